"""Numbers of a file, read piece by piece, and errors with their lines."""

import math
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import islice
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from rdpgraph._core import tuning
from rdpgraph.io.text import Bytes, fail, shown

Array = NDArray[np.float64]

MOST_BY_DEFAULT = 1 << 24
"""Entries of tables that a file may give by defaults, functions and exceptions."""

MOST_UNLISTED = 1 << 20
"""States, or variables, that a file may declare without listing them."""

MOST_OF_A_TOKEN = 1 << 20
"""Bytes of a token, or of a line of rules."""

_COMMENT = re.compile(rb"#[^\n]*|//[^\n]*|^[ \t]*c(?:[ \t\r][^\n]*)?$", re.MULTILINE)
_WORD = re.compile(rb"\S+")
_SPACE = re.compile(rb"\s")
_NUMBER = re.compile(rb"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_OF_NUMBERS = b"0123456789+-.eE \t\n\r\f\v"
_BLANK = np.zeros(256, dtype=np.bool_)
_BLANK[list(b" \t\n\r\f\v")] = True


class Numbers:
    """The numbers of a file, after a heading (one of ``kinds``) or none, read piece by piece.

    Comments after ``#``, ``//`` and ``c`` are dropped, from a bytearray in place. ``total`` is the
    count of numbers, ``place`` that of those read. Errors name the line of the faulty token.
    """

    def __init__(self, data: Bytes, source: str, *, kinds: tuple[str, ...] = ()) -> None:
        if b"#" in data or b"//" in data or b"c" in data:
            data = _without_comments(data)
        self.source, self._data = source, data
        head = _WORD.search(data) if kinds else None
        if kinds and (head is None or _text(head[0]).upper() not in kinds):
            got = f"got {shown(_text(head[0]))}" if head else "the file is empty"
            fail(source, f"token 1: expected {' or '.join(kinds)}; {got}.")
        self._headings = len(kinds[:1])
        self._start = self._next = head.end() if head else 0
        self.total = sum(_count(data, *span) for span in self._spans())
        self.place = 0
        self._piece: Array = np.empty(0)
        self._read = 0

    def ahead(self) -> Array:
        """The next numbers, at least one unless at the end; they stay unread."""
        while self._read == len(self._piece) and self._next < len(self._data):
            end = self._cut(self._next)
            self._piece, self._read = self._parsed(bytes(self._data[self._next : end])), 0
            self._next = end
        return self._piece[self._read :]

    def skip(self, count: int) -> None:
        """Mark numbers from `ahead` as read."""
        self._read += count
        self.place += count

    def take(self, count: int) -> Array:
        """The next numbers, fewer at the end of the file."""
        values = np.empty(min(count, self.total - self.place))
        filled = 0
        while filled < len(values):
            piece = self.ahead()[: len(values) - filled]
            values[filled : filled + len(piece)] = piece
            filled += len(piece)
            self.skip(len(piece))
        return values

    def whole(self, expected: str, most: float = math.inf) -> int:
        """Read a whole number from 0 to ``most``."""
        place = self.place
        value = next(iter(self.take(1).tolist()), -1.0)
        return self.checked_whole(value, place, expected, most)

    def checked_whole(self, value: float, place: int, expected: str, most: float = math.inf) -> int:
        """Check that the number read at a place is whole and from 0 to ``most``."""
        if not 0 <= value <= min(most, 2.0**53) or value % 1:
            self.fail(place, expected if most == math.inf else f"{expected} up to {most}")
        return int(value)

    def check(self, good: NDArray[np.bool_], place: int, expected: str) -> None:
        """Raise an error about the first number from a place on that is not good."""
        if not good.all():
            self.fail(place + int(good.argmin()), expected)

    def fail(self, place: int, expected: str) -> NoReturn:
        """Raise an error about the number at a place, or about the end of the file."""
        token = min(place, self.total) + self._headings + 1
        match = next(islice(_WORD.finditer(self._data, self._start), place, None), None)
        if match is None:
            fail(self.source, f"token {token}: expected {expected}, got the end of the file.")
        line = self._data.count(b"\n", 0, match.start()) + 1
        got = shown(_text(match[0]))
        fail(self.source, f"line {line}, token {token}: expected {expected}, got {got}.")

    def _spans(self) -> Iterator[tuple[int, int]]:
        """Spans of the pieces, which end after a blank or at the end of the file."""
        start = self._start
        while start < len(self._data):
            end = self._cut(start)
            yield start, end
            start = end

    def _cut(self, start: int) -> int:
        end = start + tuning.PIECE
        blank = _SPACE.search(self._data, end - 1, end - 1 + MOST_OF_A_TOKEN)
        if blank:
            return blank.end()
        if len(self._data) < end + MOST_OF_A_TOKEN:
            return len(self._data)
        line = self._data.count(b"\n", 0, end) + 1
        fail(self.source, f"line {line}: expected a number, got a token of a million characters.")

    def _parsed(self, piece: bytes) -> Array:
        words = piece.split()
        values = _finite(piece, words)
        if values is not None:
            return values
        for at, word in enumerate(words):
            if not is_number(word):
                self.fail(self.place + at, "a finite number")
        raise AssertionError("a piece is numbers, or one of its words is none")


def is_number(word: str | Bytes) -> bool:
    """Test for a finite decimal number."""
    word = word.encode() if isinstance(word, str) else word
    return _NUMBER.fullmatch(word) is not None and math.isfinite(float(word))


def non_negative(words: Sequence[bytes]) -> Array | None:
    """The values of words that are finite decimal numbers >= 0; None if one is not."""
    values = _finite(b"".join(words), words)
    return None if values is None or (len(values) and values.min() < 0) else values


def _finite(text: bytes, words: Sequence[bytes]) -> Array | None:
    """The values of a text's words, finite decimal numbers; None if one is not."""
    if not text.translate(None, _OF_NUMBERS):  # float() also accepts 1_0, inf and nan
        with suppress(ValueError):
            values = np.fromiter(map(float, words), dtype=np.float64, count=len(words))
            if np.isfinite(values).all():
                return values
    return None


def _count(data: Bytes, start: int, end: int) -> int:
    """The number of words in a piece that begins with a word or a blank."""
    blank = _BLANK[np.frombuffer(data, dtype=np.uint8, count=end - start, offset=start)]
    return int((blank[:-1] & ~blank[1:]).sum()) + int(not blank[0])


def _without_comments(data: Bytes) -> bytearray:
    """Remove comments, in place from a bytearray; lines stay."""
    text = data if isinstance(data, bytearray) else bytearray(data)
    kept = at = 0
    while at < len(text):
        newline = text.find(b"\n", at + tuning.PIECE)
        end = len(text) if newline < 0 else newline + 1
        piece = _COMMENT.sub(b"", text[at:end])
        text[kept : kept + len(piece)] = piece
        kept, at = kept + len(piece), end
    del text[kept:]
    return text


def _text(word: Bytes) -> str:
    return word[:1000].decode("utf-8", "replace")
