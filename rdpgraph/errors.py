"""Exceptions that the library raises on purpose, all under `RdpgraphError`.

Every message names the thing, what was expected, what came, and the remedy.
"""

import re
from collections.abc import Generator
from contextlib import contextmanager

__all__ = [
    "BudgetError",
    "EvidenceError",
    "FileFormatError",
    "GroupError",
    "ImpossibleEvidenceError",
    "ModelError",
    "ProbabilityWarning",
    "RdpgraphError",
    "UnknownVariableError",
    "UnsupportedError",
]


_LONG_WORD = re.compile(r"(\S{80})\S{121,}(\S{40})")
_LONG = re.compile(r"(?s)(.{700}).{301,}(.{300})")


def printable(text: str) -> str:
    """Text as a terminal may show it: control characters are escaped as `repr` does."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def in_a_line(text: str) -> str:
    """Return a text on one printable line.

    The middles of long words and of long texts are left out.
    """
    line = printable(" ".join(text.split()))
    return _LONG.sub(r"\1 ... \2", _LONG_WORD.sub(r"\1...\2", line))


class RdpgraphError(Exception):
    """Base of every error this library raises on purpose; its message is one short line."""

    def __init__(self, *args: object) -> None:
        # Graphs and tensors print on several lines.
        super().__init__(*(in_a_line(a) if isinstance(a, str) else a for a in args))


class ModelError(RdpgraphError, ValueError):
    """A model, or a part of one, that cannot be built as declared."""


class ProbabilityWarning(UserWarning):
    """A `Table` of log-values whose numbers look like probabilities; it is shown once."""


class UnknownVariableError(ModelError, KeyError):
    """A name that a graph, or an answer about one, does not have."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""  # that of KeyError is a repr


class EvidenceError(RdpgraphError, ValueError):
    """Evidence, or an assignment, that does not fit its model."""


class ImpossibleEvidenceError(EvidenceError):
    """A question with no answer because the evidence, or the whole model, has probability zero."""


class FileFormatError(RdpgraphError, ValueError):
    """A file that cannot be read; the message gives the place."""


class BudgetError(RdpgraphError):
    """A model that does not fit its memory or time budget; the message says by how much."""


class GroupError(RdpgraphError, RuntimeError):
    """A group of processes that did not form, or that lost one of them."""


class UnsupportedError(RdpgraphError, NotImplementedError):
    """A question that the chosen route cannot answer; the message names one that can."""


@contextmanager
def no_raw_memory_error(what: str) -> Generator[None, None, None]:
    """Raise a `BudgetError` of one line where an allocation fails."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, MemoryError) or "allocate" in str(error) or "memory" in str(error):
            raise BudgetError(f"{what} would not fit into this machine's memory.") from None
        raise
