"""Models in files, by their names or by what they hold."""

import re
from collections.abc import Callable
from contextlib import suppress

import torch

from rdpgraph.errors import UnsupportedError
from rdpgraph.io.bif import format_bif, parse_bif
from rdpgraph.io.formats import FORMATS, FileFormat
from rdpgraph.io.source import WAIT
from rdpgraph.io.tables import require_graph
from rdpgraph.io.text import LIMIT, Bytes, PathLike, fail, read_bytes, write_text_atomically
from rdpgraph.io.uai import format_uai, parse_uai
from rdpgraph.model.graph import FactorGraph

_SKIPPED = re.compile(rb"\s+|(?:#|//|c[ \t])[^\n]*|/\*[\s\S]*?(?:\*/|\Z)")
_WORD = re.compile(rb"[A-Za-z]*")


def _uai_of(graph: FactorGraph) -> str:
    """BAYES of a Bayesian network, MARKOV of any other graph."""
    if graph.num_factors == graph.num_variables:
        with suppress(UnsupportedError):
            return format_uai(graph, kind="BAYES")
    return format_uai(graph)


FORMATS.add(FileFormat(".uai", parse_uai, _uai_of, ("markov", "bayes")))
FORMATS.add(
    FileFormat(".bif", parse_bif, format_bif, ("network", "variable", "probability", "property"))
)


def read(
    path: PathLike, *, dtype: torch.dtype = torch.float64, limit: int = LIMIT, wait: float = WAIT
) -> FactorGraph:
    """The model of a file: UAI, BIF or a registered `FileFormat`, plain or gzipped.

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
    known = FORMATS.find(source, _first_word(data).lower())
    if known is None:
        fail(source, "expected a UAI file (MARKOV or BAYES first) or a BIF file; got neither.")
    return known.parse(data, source=source, dtype=dtype)


def write(graph: FactorGraph, path: PathLike) -> None:
    """Write a model in the format that the file's name says: ``.uai``, ``.bif``, maybe ``.gz``.

    A Bayesian network becomes a UAI file of kind ``BAYES``, any other graph one of ``MARKOV``.

    Raises:
        UnsupportedError: another name, or a model that the format cannot hold.
        ModelError: no FactorGraph.
    """
    require_graph("write", graph)
    write_text_atomically(path, text_of(path)(graph))


def text_of(path: PathLike) -> Callable[[FactorGraph], str]:
    """What makes the text of a model in the format that a file's name says.

    Raises:
        UnsupportedError: it says none that can be written.
    """
    source = str(path)
    known = FORMATS.find(source)
    if known is not None and known.text is not None:
        return known.text
    names = " or ".join(FORMATS.suffixes)
    raise UnsupportedError(f"{source}: a model is written to a name in {names} (then .gz).")


def _first_word(data: Bytes) -> str:
    at = 0
    while skipped := _SKIPPED.match(data, at):
        at = skipped.end()
    word = _WORD.match(data, at)
    return bytes(word[0]).decode() if word else ""
