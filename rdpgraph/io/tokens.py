"""Tokens of files: numbers read piece by piece, those of BIF, and errors with their lines."""

import math
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from rdpgraph._core import tuning
from rdpgraph.io.text import BLANK, BLANKS, Bytes, fail, shown, utf8

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


class TokenNumbers:
    """The numbers of a file, after a heading (one of ``kinds``) or none, read piece by piece.

    Comments after ``#``, ``//`` and ``c`` are dropped, from a bytearray in place. ``heading`` is in
    capital letters, ``total`` is the count of numbers and ``place`` that of those read. Errors name
    the line of the faulty token.
    """

    def __init__(self, data: Bytes, source: str, *, kinds: tuple[str, ...] = ()) -> None:
        if b"#" in data or b"//" in data or b"c" in data:
            data = _without_comments(data)
        self.source, self._data = source, data
        head = _WORD.search(data) if kinds else None
        if kinds and (head is None or _text(head[0]).upper() not in kinds):
            got = f"got {shown(_text(head[0]))}" if head else "the file is empty"
            fail(source, f"token 1: expected {' or '.join(kinds)}; {got}.")
        self.heading = _text(head[0]).upper() if head else ""
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
        """Mark so many of the numbers that `ahead` returned as read."""
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


# Brackets belong to words, as R's `cut` names intervals, except for those of `type discrete [2]`.
_BIF_WORD = rb'[^\s\x1c-\x1f{}()|,;"]'
_REST_OF_COMMENT = rb"(?:/[^\n]*|\*[\s\S]*?(?:\*/|\Z))"
# Comments, quoted names, and blanks beyond those of bytes. Comments count where a token may begin,
# so a name may hold slashes. No alternative can fail after a long match (a comment or a quote left
# open ends with the file or its line), and each begins with a different byte: linear time.
_HIDDEN = re.compile(
    rb'/(?<!%b/)%b(?:\s*+/%b)*+|"[^"\n]*"|\x1c|\x1d|\x1e|\x1f|%b'
    % (rb'[^\s\x1c-\x1f{}()\[\]|,;"]', _REST_OF_COMMENT, _REST_OF_COMMENT, BLANK)
)
_TOKEN = re.compile(rb'"[^"\n]*"|%b+|[{}()|,;"]' % _BIF_WORD)
_CUT = re.compile(rb"[\s{}()|,;]")
_MARKS_BUT_COMMAS = frozenset(bytes([mark]) for mark in b'{}()|;"')
MARKS = _MARKS_BUT_COMMAS | {b","}
# Punctuation in quotes is masked by bytes that UTF-8 does not use.
_QUOTABLE, _MASKS = b" \t\r\f\v{}()|,;", b"\xc0\xc1\xf5\xf6\xf7\xf8\xf9\xfa\xfb\xfc\xfd\xfe"
_MASKED, _UNMASKED = bytes.maketrans(_QUOTABLE, _MASKS), bytes.maketrans(_MASKS, _QUOTABLE)
_BLANKED = bytes(byte if byte == ord("\n") else ord(" ") for byte in range(256))


def _open_comment(comments: Bytes) -> int:
    """Where the last of some comments begins, if it has no end; else -1."""
    at = comments.rfind(b"/*")
    if at < 0 or comments.find(b"*/", at + 2) >= 0:
        return -1
    before = max(comments.rfind(b"\n", 0, at), comments.rfind(b"*/", 0, at))
    return at if comments.find(b"//", before + 1, at) < 0 else -1


@dataclass(frozen=True, eq=False)
class BifText:
    """The UTF-8 text of a BIF file without comments; blanks and marks in quotes are masked."""

    data: Bytes
    source: str

    @staticmethod
    def of(text: str | Bytes, source: str) -> "BifText":
        """The text of a file; a bytearray is changed in place."""
        data = utf8(text)
        del text
        usual = b'"' not in data and b"/" not in data and not re.search(rb"[\x1c-\x1f]", data)
        if usual and (data.isascii() or not BLANKS.search(data)):
            return BifText(data, source)
        data = data if isinstance(data, bytearray) else bytearray(data)
        for match in _HIDDEN.finditer(data):
            if match.end() == len(data) and (opened := _open_comment(match[0])) >= 0:
                line = data.count(b"\n", 0, match.start() + opened) + 1
                fail(source, f"line {line}: expected */ after /*, got the end of the file.")
            table = _MASKED if match[0].startswith(b'"') else _BLANKED
            data[match.start() : match.end()] = match[0].translate(table)
        return BifText(data, source)

    def fail(self, at: int, expected: str, end: int = sys.maxsize) -> NoReturn:
        """Raise an error about the next token from a place on, up to an end."""
        match = self.next(at, end)
        if match is None:
            fail(self.source, f"expected {expected}, got the end of the file.")
        line = self.data.count(b"\n", 0, match.start()) + 1
        got = shown(match[0][:1000].translate(_UNMASKED).decode("utf-8", "replace"))
        fail(self.source, f"line {line}: expected {expected}, got {got}.")

    def next(self, at: int, end: int = sys.maxsize) -> re.Match[bytes] | None:
        """The next token from a place on."""
        return _TOKEN.search(self.data, at, end)

    def name(self, at: int, what: str) -> re.Match[bytes]:
        """The next token, which must be a name."""
        match = self.next(at)
        if match is None or match[0] in MARKS:
            self.fail(at, what)
        return match

    def expect(self, at: int, *words: bytes) -> int:
        """The place after some words, which must come next."""
        for word in words:
            match = self.next(at)
            if match is None or match[0] != word:
                self.fail(at, repr(word.decode()))
            at = match.end()
        return at

    def after(self, at: int, mark: bytes) -> int:
        """The place after the next mark of a kind."""
        end = self.data.find(mark, at) + 1
        if not end:
            fail(self.source, f"expected {mark.decode()!r}, got the end of the file.")
        return end

    def tokens(self, start: int, end: int = sys.maxsize) -> Iterator[re.Match[bytes]]:
        """The tokens of a part."""
        return _TOKEN.finditer(self.data, start, end)

    def pieces(self, start: int, end: int) -> Iterator[tuple[int, list[bytes]]]:
        """The tokens of a part without commas, piece by piece, and where each piece begins."""
        while start < end:
            cut = _CUT.search(self.data, min(start + tuning.PIECE, end), end)
            stop = end if cut is None else cut.end()
            yield start, words_of(bytes(self.data[start:stop]))
            start = stop

    def names(self, start: int, end: int, count: int, what: str) -> Iterator[list[bytes]]:
        """The ``count`` names of a part, separated by commas or spaces, piece by piece.

        Unquoted names with spaces are read too, where commas alone give the count.
        """
        seen, plain = 0, True
        for _, words in self.pieces(start, end):
            seen += len(words)
            plain = plain and MARKS.isdisjoint(words)
        if seen == count and plain:
            lists = (list(map(unquoted, words)) for _, words in self.pieces(start, end))
            return filter(None, lists)
        if seen != count and sum(1 for _ in self._between_commas(start, end)) != count:
            self.fail(start, f"{count} {what} here (there are {seen})")
        for match in self.tokens(start, end):
            if match[0] in _MARKS_BUT_COMMAS:
                self.fail(match.start(), what)
        return self._between_commas(start, end)

    def _between_commas(self, start: int, end: int) -> Iterator[list[bytes]]:
        while start < end:
            comma = self.data.find(b",", start, end) % (end + 1)
            name = bytearray()
            for match in self.tokens(start, comma):
                name += b" " + unquoted(match[0])
            if name:
                yield [bytes(name[1:])]
            start = comma + 1


def words_of(text: bytes) -> list[bytes]:
    """The tokens of a short text, without commas."""
    if len(text.translate(None, b'{}|"')) < len(text):
        return [word for word in _TOKEN.findall(text) if word != b","]
    for mark in (b"(", b")", b";"):
        text = text.replace(mark, b" " + mark + b" ")
    return text.replace(b",", b" ").split()


def unquoted(word: bytes) -> bytes:
    """The name that a token writes."""
    quoted = len(word) > 1 and word.startswith(b'"')
    return word[1:-1].translate(_UNMASKED) if quoted else word


def statements_alike(
    text: bytes, count: int, head: Sequence[bytes | None], size: int
) -> tuple[list[list[bytes]], Array] | None:
    """Read ``count`` statements of one form: the head, ``size`` numbers and a semicolon.

    Returns the words at the open places (None) of the head, and (count, size) numbers; None for any
    other text.
    """
    words = words_of(text)
    width, listed = len(head) + size + 1, list[list[bytes]]()
    if len(words) != count * width:
        return None
    for place, mark in ((width - 1, b";"), *reversed(list(enumerate(head)))):
        column = words[place::width]
        if mark is None:
            listed.append(column)
        elif column.count(mark) != count:
            return None
        del words[place::width]
        width -= 1
    values = non_negative(words)
    return None if values is None else (listed[::-1], values.reshape(count, size))
