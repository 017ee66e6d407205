"""Tables of BIF files of the usual form, read many at a time; what differs is left to others."""

import re
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import getitem

import numpy as np
from numpy.typing import NDArray

from rdpgraph.io.tables import is_conditional
from rdpgraph.io.text import Bytes
from rdpgraph.io.tokens import non_negative

Array = NDArray[np.float64]

TABLE = re.compile(rb"\s*table\s([0-9eE+.,\s-]*+);?\s*")
HEAD = re.compile(rb"\s*(?:(\()|table\s)")
"""How the text in the braces of a block of the usual form begins; with a group, it is of rows."""
_MARKS = (b"(", b")", b";")
_UNUSUAL = b'"/[]|{}\x1c\x1d\x1e\x1f'  # quotes, comments, and what stands between words elsewhere


def rows_of(
    text: bytes, count: int, codes: Sequence[tuple[Iterable[Mapping[bytes, int]], int]], size: int
) -> tuple[NDArray[np.int64], Array] | None:
    """Rows ``(names) probabilities;``: (R,) their numbers and (R, size) the probabilities.

    Args:
        text: the rows.
        count: how many there are.
        codes: for each parent the numbers of its states, row by row, and their stride.
        size: how many probabilities are in a row.

    Returns:
        None for a text that is anything else, or that may be.
    """
    if any(text.count(mark) != count for mark in _MARKS):
        return None
    if len(text.translate(None, _UNUSUAL)) < len(text):
        return None
    for mark in (b",", *_MARKS):
        text = text.replace(mark, b" " if mark == b"," else b" " + mark + b" ")
    words = text.split()
    parents = len(codes)
    width = parents + size + 3
    if len(words) != count * width:
        return None
    for place, mark in zip((0, parents + 1, width - 1), _MARKS, strict=True):
        if words[place::width].count(mark) != count:
            return None
    numbers = np.zeros(count, dtype=np.int64)
    try:
        for place, (states, stride) in enumerate(codes, 1):
            known = map(getitem, states, words[place::width])
            numbers += stride * np.fromiter(known, dtype=np.int64, count=count)
    except KeyError:
        return None
    values = np.empty((count, size))
    for state in range(size):
        column = non_negative(words[parents + 2 + state :: width])
        if column is None:
            return None
        values[:, state] = column
    return numbers, values


@dataclass(eq=False)
class Batch:
    """Blocks of one shape, all of tables or all of rows.

    Attributes:
        size: the number of states of the child.
        rows: that of configurations of the parents.
        strides: where blocks consist of rows, for each parent what the number of a state is
            multiplied by; None for tables.
        states: then for each block and parent the numbers of the states.
        spans: for each block its number, its place among those of its shape, and the text in its
            braces.
        length: of that text, in bytes.
    """

    size: int
    rows: int
    strides: Sequence[int] | None
    states: list[list[Mapping[bytes, int]]] = field(default_factory=list[list[Mapping[bytes, int]]])
    spans: "array[int]" = field(default_factory=lambda: array("q"))
    length: int = 0

    def add(
        self, block: int, place: int, start: int, end: int, states: list[Mapping[bytes, int]]
    ) -> None:
        """One more block."""
        self.states.append(states)
        self.spans.extend((block, place, start, end))
        self.length += end - start

    def __len__(self) -> int:
        return len(self.spans) // 4

    def halves(self) -> "tuple[Batch, Batch]":
        """Two batches of about half of the blocks each."""
        at = len(self) // 2
        first = replace(self, states=self.states[:at], spans=self.spans[: 4 * at])
        return first, replace(self, states=self.states[at:], spans=self.spans[4 * at :])

    def read(self, data: Bytes, tables: Array) -> bool:
        """Fill the tables (F, size, rows) of these blocks, if all of them are of the usual form."""
        spans = np.frombuffer(self.spans, dtype=np.int64).reshape(-1, 4)
        texts = [bytes(data[start:end]) for start, end in spans[:, 2:].tolist()]
        values = self._of_tables(texts) if self.strides is None else self._of_rows(texts)
        if values is None or not is_conditional(values, 1):
            return False
        tables[spans[:, 1]] = values
        return True

    def _of_tables(self, texts: list[bytes]) -> Array | None:
        """(B, size, rows) the probabilities of texts ``table ...;``."""
        matches = [TABLE.fullmatch(text) for text in texts]
        parts = [match[1] for match in matches if match is not None]
        if len(parts) < len(texts):
            return None
        words = b";".join(parts).replace(b",", b" ").replace(b";", b" ; ").split()
        count = self.size * self.rows
        if len(words) != len(parts) * (count + 1) - 1:
            return None
        if words[count :: count + 1].count(b";") != len(parts) - 1:
            return None
        del words[count :: count + 1]
        values = non_negative(words)
        return None if values is None else values.reshape(len(parts), self.size, self.rows)

    def _of_rows(self, texts: list[bytes]) -> Array | None:
        """(B, size, rows) the probabilities of texts of all rows of a block each."""
        assert self.strides is not None
        if any(text.count(b";") != self.rows for text in texts):
            return None
        parents = zip(*self.states, strict=True)
        rows = [[states for states in parent for _ in range(self.rows)] for parent in parents]
        codes = list(zip(rows, self.strides, strict=True))
        read = rows_of(b"".join(texts), len(texts) * self.rows, codes, self.size)
        if read is None:
            return None
        numbers = read[0].reshape(len(texts), self.rows)
        if (np.sort(numbers, axis=1) != np.arange(self.rows)).any():
            return None
        values = np.empty((len(texts), self.rows, self.size))
        np.put_along_axis(values, numbers[..., None], read[1].reshape(values.shape), 1)
        return values.transpose(0, 2, 1)
