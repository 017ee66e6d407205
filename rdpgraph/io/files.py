"""Reading and writing of models, and the registry of file formats."""

import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any, Protocol

import torch

from rdpgraph._core.arguments import require_fields, typed
from rdpgraph._core.portable import ByName
from rdpgraph.errors import ModelError, UnsupportedError
from rdpgraph.io.bif import format_bif, parse_bif
from rdpgraph.io.tables import require_graph
from rdpgraph.io.text import LIMIT, WAIT, Bytes, PathLike, fail, read_bytes, write_text_atomically
from rdpgraph.io.uai import format_uai, parse_uai
from rdpgraph.model.graph import FactorGraph

ENTRY_POINTS = "rdpgraph.formats"
"""Group of entry points for formats of installed packages."""
_SKIPPED = re.compile(rb"\s+|(?:#|//|c[ \t])[^\n]*|/\*[\s\S]*?(?:\*/|\Z)")
_WORD = re.compile(rb"[A-Za-z]*")


class Parse(Protocol):
    """The signature of a parser: content, source name and type to a graph."""

    def __call__(self, data: Bytes, /, *, source: str, dtype: torch.dtype) -> FactorGraph:
        """The model in a file's unpacked content; raises `FileFormatError`, with the place."""
        ...


@dataclass(frozen=True)
class FileFormat:
    """A file format: the names of its files, a parser and a writer.

    Args:
        suffix: the ending of file names, such as ``.uai``; ``.gz`` may follow it.
        parse: makes a graph of a file's bytes: ``parse(data, source=name, dtype=dtype)``.
        text: makes the text of a file of a graph; None for a format that is only read.
        first_words: words, in small letters, by which a file of another name is recognised.

    Raises:
        ModelError: a suffix that has no dot in front, has capital letters or ends in ``.gz``.
    """

    suffix: str
    parse: Parse
    text: Callable[[FactorGraph], str] | None = None
    first_words: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        require_fields(self)
        plain = self.suffix == self.suffix.lower() and not self.suffix.endswith(".gz")
        if len(self.suffix) < 2 or not self.suffix.startswith(".") or not plain:
            raise ModelError(
                "FileFormat needs a suffix such as '.uai', in small letters and without .gz; got "
                f"{self.suffix!r}."
            )

    def fits(self, name: str) -> bool:
        """Test if a file's name has this suffix."""
        return name.lower().removesuffix(".gz").endswith(self.suffix)


class Formats:
    """The registry of `read` and `write`, including formats that installed packages offer."""

    def __init__(self) -> None:
        self._known: dict[str, FileFormat] = {}
        self._looked = False

    def add(self, added: FileFormat) -> None:
        """Register a format; raises `ModelError` where its suffix or a first word is taken."""
        if not isinstance(added, FileFormat):
            raise ModelError(f"register_format needs a FileFormat; got {added!r:.80}.")
        for known in self._known.values():
            words = set(known.first_words) & set(added.first_words)
            if known.suffix == added.suffix or words:
                taken = f"first word {min(words)!r}" if words else f"suffix {added.suffix!r}"
                raise ModelError(
                    f"A file format with the {taken} is registered already; give yours another."
                )
        self._known[added.suffix] = added

    def remove(self, suffix: str) -> None:
        """Remove the format with a suffix; raises `ModelError` where there is none."""
        if self._known.pop(suffix, None) is None:
            raise ModelError(
                f"There is no file format with the suffix {suffix!r} to remove: none is registered."
            )

    def find(self, name: str, first_word: str = "") -> FileFormat | None:
        """The format for a file's name, or else for its first word, if any.

        Formats of installed packages are loaded when no other fits, once.
        """
        fitting = self._find(name, first_word)
        if fitting is None and not self._looked:
            self._looked = True
            for entry in entry_points(group=ENTRY_POINTS):
                offered: Any = entry.load()
                if not isinstance(offered, FileFormat):
                    raise ModelError(
                        f"The entry point {entry.name!r} of {ENTRY_POINTS} needs a FileFormat; "
                        f"got {offered!r}."
                    )
                if self._known.get(offered.suffix) != offered:
                    self.add(offered)
            fitting = self._find(name, first_word)
        return fitting

    @property
    def suffixes(self) -> tuple[str, ...]:
        """Suffixes of the formats that can be written."""
        return tuple(known.suffix for known in self._known.values() if known.text is not None)

    def _find(self, name: str, first_word: str) -> FileFormat | None:
        every = tuple(self._known.values())
        by_name = (known for known in every if known.fits(name))
        by_word = (known for known in every if first_word in known.first_words)
        return next(by_name, None) or next(by_word, None)


FORMATS = Formats()
"""The registry of `read` and `write`."""


def _uai_of(graph: FactorGraph) -> str:
    """UAI text, BAYES for a Bayesian network and MARKOV for any other graph."""
    if graph.num_factors == graph.num_variables:
        with suppress(UnsupportedError):
            return format_uai(graph, kind="BAYES")
    return format_uai(graph)


FORMATS.add(FileFormat(".uai", parse_uai, _uai_of, ("markov", "bayes")))
FORMATS.add(
    FileFormat(".bif", parse_bif, format_bif, ("network", "variable", "probability", "property"))
)
# Formats that most programs never read are imported when a file of theirs comes.
for _suffix, _module, _name, _words in (
    (".xmlbif", "xml", "xmlbif", ()),
    (".bifxml", "xml", "xmlbif", ()),
    (".xml", "xml", "xmlbif", ()),
    (".xdsl", "xml", "xdsl", ()),
    (".wcsp", "toulbar", "wcsp", ()),
    (".cfn", "toulbar", "cfn", ()),
    (".cnf", "dimacs", "dimacs", ("p",)),
):
    _place = f"rdpgraph.io.{_module}"
    _parse, _text = ByName(f"{_place}:parse_{_name}"), ByName(f"{_place}:format_{_name}")
    FORMATS.add(FileFormat(_suffix, _parse, _text, _words))
_counting = "rdpgraph.schedulers.counting"
FORMATS.add(FileFormat(".nnf", ByName(f"{_counting}:refuse_nnf"), ByName(f"{_counting}:nnf_of")))


@typed(limit="[0, inf)", wait="[0, inf]")
def read(
    path: PathLike,
    *,
    dtype: torch.dtype = torch.float64,
    limit: int = LIMIT,
    wait: float = WAIT,
    encoding: str | None = None,
) -> FactorGraph:
    """Read the model in a file: UAI, BIF, DIMACS or a registered `FileFormat`, plain or gzipped.

    Args:
        path: a file that ends in ``.uai``, ``.bif``, ``.xmlbif``, ``.xdsl``, ``.wcsp``, ``.cfn``
            or ``.cnf``, with ``.gz`` or not; under any other name, such as ``/dev/stdin``, the
            first word decides between UAI, BIF and DIMACS.
        dtype: of the log-values.
        limit: the most bytes of text, unpacked; memory is a few times the text.
        wait: how long a pipe may be silent, in seconds.
        encoding: of the text, as Python names it; None: what a byte order mark or an XML
            declaration says, or else UTF-8, or else Latin-1.

    Raises:
        FileFormatError: one line, with the place in the file that does not fit.
        ModelError: no such encoding.
        BudgetError: a model much larger than its text.
        OSError: the file cannot be read; TimeoutError: a pipe is silent.
    """
    source = str(path)
    data = read_bytes(path, limit=limit, wait=wait, encoding=encoding)
    known = FORMATS.find(source, _first_word(data).lower())
    if known is None:
        fail(source, "expected a UAI file (MARKOV or BAYES first), BIF or DIMACS; got neither.")
    return known.parse(data, source=source, dtype=dtype)


def write(graph: FactorGraph, path: PathLike) -> None:
    """Write a model in the format of the file name's suffix: ``.uai``, ``.bif``, ``.cnf``, ....

    With ``.gz`` behind it is compressed. A Bayesian network becomes a UAI file of kind ``BAYES``,
    any other graph one of ``MARKOV``.

    Raises:
        UnsupportedError: another name, or a model that the format cannot hold.
        ModelError: no FactorGraph.
    """
    require_graph("write", graph)
    write_text_atomically(path, text_of(path)(graph))


def text_of(path: PathLike) -> Callable[[FactorGraph], str]:
    """The writer for the suffix of a file's name; raises `UnsupportedError` where there is none."""
    source = str(path)
    known = FORMATS.find(source)
    if known is not None and known.text is not None:
        return known.text
    names = " or ".join(FORMATS.suffixes)
    raise UnsupportedError(
        f"{source}: the name of a model file must end in {names}, or in one of these and .gz."
    )


def _first_word(data: Bytes) -> str:
    at = 0
    while skipped := _SKIPPED.match(data, at):
        at = skipped.end()
    word = _WORD.match(data, at)
    return bytes(word[0]).decode() if word else ""
