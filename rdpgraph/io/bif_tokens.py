"""Tokens of BIF files, quoted names among them, and errors with their lines."""

import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NoReturn

from rdpgraph._core import tuning
from rdpgraph.io.text import BLANK, BLANKS, Bytes, fail, shown, utf8
from rdpgraph.io.tokens import Array, non_negative

_WORD = rb'[^\s\x1c-\x1f{}()\[\]|,;"]'
_REST_OF_COMMENT = rb"(?:/[^\n]*|\*[\s\S]*?(?:\*/|\Z))"
# Comments, quoted names, and blanks beyond those of bytes. Comments count where a token may begin,
# so a name may hold slashes. No alternative can fail after a long match (a comment or a quote left
# open ends with the file or its line), and each begins with a different byte: linear time.
_HIDDEN = re.compile(
    rb'/(?<!%b/)%b(?:\s*+/%b)*+|"[^"\n]*"|\x1c|\x1d|\x1e|\x1f|%b'
    % (_WORD, _REST_OF_COMMENT, _REST_OF_COMMENT, BLANK)
)
_TOKEN = re.compile(rb'"[^"\n]*"|%b+|[{}()\[\]|,;"]' % _WORD)
_CUT = re.compile(rb"[\s{}()|,;]")
_MARKS_BUT_COMMAS = frozenset(bytes([mark]) for mark in b'{}()[]|;"')
MARKS = _MARKS_BUT_COMMAS | {b","}
# Punctuation in quotes is masked by bytes that UTF-8 does not use.
_QUOTABLE, _MASKS = b" \t\r\f\v{}()|,;", b"\xc0\xc1\xf5\xf6\xf7\xf8\xf9\xfa\xfb\xfc\xfd\xfe"
_MASKED, _UNMASKED = bytes.maketrans(_QUOTABLE, _MASKS), bytes.maketrans(_MASKS, _QUOTABLE)
_BLANKED = bytes(byte if byte == ord("\n") else ord(" ") for byte in range(256))


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
            table = _MASKED if match[0].startswith(b'"') else _BLANKED
            data[match.start() : match.end()] = match[0].translate(table)
        return BifText(data, source)

    def fail(self, at: int, expected: str) -> NoReturn:
        """Raise an error about the next token from a place on."""
        match = self.next(at)
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
    if len(text.translate(None, b'{}[]|"')) < len(text):
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
