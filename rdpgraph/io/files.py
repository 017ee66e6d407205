"""Models in files, by their names or by what they hold."""

import re

import torch

from rdpgraph.errors import UnsupportedError
from rdpgraph.io.bif import parse_bif
from rdpgraph.io.bif_text import write_bif
from rdpgraph.io.text import PathLike, fail, read_text
from rdpgraph.io.uai import parse_uai, write_uai
from rdpgraph.model.graph import FactorGraph

_SKIPPED = re.compile(r"\s+|(?:#|//|c[ \t])[^\n]*|/\*[\s\S]*?(?:\*/|\Z)")
_WORD = re.compile(r"[A-Za-z]*")
_FIRST_WORDS = dict.fromkeys(("markov", "bayes"), parse_uai) | dict.fromkeys(
    ("network", "variable", "probability", "property"), parse_bif
)
_SUFFIXES = ((".uai", parse_uai, write_uai), (".bif", parse_bif, write_bif))


def read(path: PathLike, *, dtype: torch.dtype = torch.float64) -> FactorGraph:
    """The model of a file: UAI or BIF, plain or gzipped.

    Args:
        path: a file that ends in ``.uai`` or ``.bif``, with ``.gz`` or not; under any other name
            the first words decide.
        dtype: of the log-values.

    Raises:
        FileFormatError: one line, with the place in the file that does not fit.
    """
    source = str(path)
    text = read_text(path)
    for suffix, parse, _ in _SUFFIXES:
        if _ends(source, suffix):
            return parse(text, source=source, dtype=dtype)
    first = _first_word(text).lower()
    if first in _FIRST_WORDS:
        return _FIRST_WORDS[first](text, source=source, dtype=dtype)
    fail(source, "expected a UAI file (MARKOV or BAYES first) or a BIF file; got neither.")


def write(graph: FactorGraph, path: PathLike) -> None:
    """Write a model in the format that the file's name says: ``.uai`` or ``.bif``, maybe ``.gz``.

    Raises:
        UnsupportedError: another name, or a model that the format cannot hold.
    """
    source = str(path)
    for suffix, _, write_model in _SUFFIXES:
        if _ends(source, suffix):
            write_model(graph, path)
            return
    raise UnsupportedError(f"{source}: a model is written to a name in .uai or .bif (then .gz).")


def _ends(source: str, suffix: str) -> bool:
    return source.lower().removesuffix(".gz").endswith(suffix)


def _first_word(text: str) -> str:
    at = 0
    while skipped := _SKIPPED.match(text, at):
        at = skipped.end()
    word = _WORD.match(text, at)
    return word[0] if word else ""
