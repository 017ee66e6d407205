"""File formats of models: one object each, in a registry that anyone may add to."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any, Protocol

import torch

from rdpgraph.errors import ModelError
from rdpgraph.io.text import Bytes
from rdpgraph.model.graph import FactorGraph

ENTRY_POINTS = "rdpgraph.formats"
"""The group of entry points by which an installed package offers formats of its own."""


class Parse(Protocol):
    """What makes a graph of a file's content."""

    def __call__(self, data: Bytes, /, *, source: str, dtype: torch.dtype) -> FactorGraph:
        """The model.

        Args:
            data: the content, unpacked.
            source: the file's name, for messages.
            dtype: of the log-values.

        Raises:
            FileFormatError: one line, with the place in the file that does not fit.
        """
        ...


@dataclass(frozen=True)
class FileFormat:
    """How models are read from files of one kind, and written to them.

    Args:
        suffix: how their names end, such as ``.uai``; in a file's name ``.gz`` may follow.
        parse: makes a graph of a file's bytes: ``parse(data, source=name, dtype=dtype)``.
        text: makes the text of a file of a graph; None where models of this kind are only read.
        first_words: those by which a file of any other name is known, in small letters.

    Raises:
        ModelError: a suffix that has no dot in front, has capital letters or ends in ``.gz``.
    """

    suffix: str
    parse: Parse
    text: Callable[[FactorGraph], str] | None = None
    first_words: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        plain = self.suffix == self.suffix.lower() and not self.suffix.endswith(".gz")
        if len(self.suffix) < 2 or not self.suffix.startswith(".") or not plain:
            raise ModelError(
                "FileFormat needs a suffix such as '.uai', in small letters and without .gz; got "
                f"{self.suffix!r}."
            )

    def fits(self, name: str) -> bool:
        """Whether a file's name says that it is of this kind."""
        return name.lower().removesuffix(".gz").endswith(self.suffix)


class Formats:
    """The formats that `read` and `write` know, those that installed packages offer included."""

    def __init__(self) -> None:
        self._known: dict[str, FileFormat] = {}
        self._looked = False

    def add(self, added: FileFormat) -> None:
        """Register a format.

        Raises:
            ModelError: it is no `FileFormat`, or its suffix or one of its first words is taken.
        """
        if not isinstance(added, FileFormat):
            raise ModelError(f"register_format needs a FileFormat; got {added!r:.80}.")
        for known in self._known.values():
            words = set(known.first_words) & set(added.first_words)
            if known.suffix == added.suffix or words:
                taken = f"first word {min(words)!r}" if words else f"suffix {added.suffix!r}"
                raise ModelError(f"A file format with the {taken} is registered already.")
        self._known[added.suffix] = added

    def remove(self, suffix: str) -> None:
        """Take a format out of the registry.

        Raises:
            ModelError: none has this suffix.
        """
        if self._known.pop(suffix, None) is None:
            raise ModelError(f"No file format with the suffix {suffix!r} is registered.")

    def find(self, name: str, first_word: str = "") -> FileFormat | None:
        """The format that a file's name says, or else that which its first word says, if any.

        Where none does, the packages that are installed are asked for theirs, once.
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
        """Those of the formats that can be written."""
        return tuple(known.suffix for known in self._known.values() if known.text is not None)

    def _find(self, name: str, first_word: str) -> FileFormat | None:
        every = tuple(self._known.values())
        by_name = (known for known in every if known.fits(name))
        by_word = (known for known in every if first_word in known.first_words)
        return next(by_name, None) or next(by_word, None)


FORMATS = Formats()
"""The registry that `read` and `write` ask."""
