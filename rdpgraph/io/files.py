"""Models in files, by their names or by what they hold."""

import re
from collections.abc import Callable

import torch

from rdpgraph.errors import UnsupportedError
from rdpgraph.io.bif import parse_bif
from rdpgraph.io.bif_text import write_bif
from rdpgraph.io.source import WAIT
from rdpgraph.io.text import LIMIT, Bytes, PathLike, fail, read_bytes
from rdpgraph.io.uai import parse_uai, write_uai
from rdpgraph.model.graph import FactorGraph

_SKIPPED = re.compile(rb"\s+|(?:#|//|c[ \t])[^\n]*|/\*[\s\S]*?(?:\*/|\Z)")
_WORD = re.compile(rb"[A-Za-z]*")
_FIRST_WORDS = dict.fromkeys((b"markov", b"bayes"), parse_uai) | dict.fromkeys(
    (b"network", b"variable", b"probability", b"property"), parse_bif
)
_SUFFIXES = ((".uai", parse_uai, write_uai), (".bif", parse_bif, write_bif))


def read(
    path: PathLike, *, dtype: torch.dtype = torch.float64, limit: int = LIMIT, wait: float = WAIT
) -> FactorGraph:
    """The model of a file: UAI or BIF, plain or gzipped.

    Args:
        path: a file that ends in ``.uai`` or ``.bif``, with ``.gz`` or not; under any other name,
            that of a pipe such as ``/dev/stdin`` for one, the first words decide.
        dtype: of the log-values.
        limit: the most bytes of text, unpacked; memory is a few times the text.
        wait: how long a pipe may be silent, in seconds.

    Raises:
        FileFormatError: one line, with the place in the file that does not fit.
        BudgetError: a model much larger than its text.
        OSError: the file cannot be read; TimeoutError: a pipe is silent.
    """
    source = str(path)
    data = read_bytes(path, limit=limit, wait=wait)
    for suffix, parse, _ in _SUFFIXES:
        if _ends(source, suffix):
            return parse(data, source=source, dtype=dtype)
    first = _first_word(data).lower()
    if first in _FIRST_WORDS:
        return _FIRST_WORDS[first](data, source=source, dtype=dtype)
    fail(source, "expected a UAI file (MARKOV or BAYES first) or a BIF file; got neither.")


def write(graph: FactorGraph, path: PathLike) -> None:
    """Write a model in the format that the file's name says: ``.uai`` or ``.bif``, maybe ``.gz``.

    Raises:
        UnsupportedError: another name, or a model that the format cannot hold.
    """
    writer_of(path)(graph, path)


def writer_of(path: PathLike) -> Callable[[FactorGraph, PathLike], None]:
    """What writes a model in the format that a name says.

    Raises:
        UnsupportedError: it says none.
    """
    source = str(path)
    for suffix, _, write_model in _SUFFIXES:
        if _ends(source, suffix):
            return write_model
    raise UnsupportedError(f"{source}: a model is written to a name in .uai or .bif (then .gz).")


def _ends(source: str, suffix: str) -> bool:
    return source.lower().removesuffix(".gz").endswith(suffix)


def _first_word(data: Bytes) -> bytes:
    at = 0
    while skipped := _SKIPPED.match(data, at):
        at = skipped.end()
    word = _WORD.match(data, at)
    return bytes(word[0]) if word else b""
