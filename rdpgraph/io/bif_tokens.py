"""The tokens of a BIF file: words, quoted names and punctuation, cut piece by piece."""

import re
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import NoReturn

from rdpgraph.io.text import BLANK, BLANKS, Bytes, encoding_of, fail, shown
from rdpgraph.model.names import CODEC

PIECE = 1 << 14
"""Bytes that are cut into tokens at once; a token may be longer."""

# Comments count where a token may begin, so a name may hold slashes. No alternative can fail
# after a long match (a comment or a quote left open ends with the file or its line): linear time.
_COMMENT = rb"//[^\n]*|/\*[\s\S]*?(?:\*/|\Z)"
_QUOTED = rb'"[^"\n]*"'
_WORD = rb'[^\s\x1c-\x1f{}()\[\]|,;"]'
_MARKS = rb'{}()\[\]|,;"'
_TOKEN = re.compile(b"%b|%b|%b+|[%b]" % (_COMMENT, _QUOTED, _WORD, _MARKS))
_GAP = re.compile(rb"(?:[\s\x1c-\x1f]++|%b)*+" % _COMMENT)
# The same tokens, none of them kept, as far as a brace, or a brace or the end of a statement.
_SKIPPED = rb'(?:%b|%b|%b+|[\s\x1c-\x1f()\[\]|,"%%b])*+' % (_COMMENT, _QUOTED, _WORD)
_TO_BRACE = re.compile(_SKIPPED % b";")
_TO_END = re.compile(_SKIPPED % b"{}")
# The same tokens, where words end before a blank beyond ASCII.
_BLANKS_AND_TOKENS = re.compile(
    b"%b|%b|(%b)|(?:(?!%b)%b)+" % (_COMMENT, _QUOTED, BLANK, BLANK, _WORD)
)
_CUT = re.compile(rb"[\s{}()\[\]|,;]")
_COMMENTS = (b"//", b"/*")
PUNCTUATION = frozenset(bytes([mark]) for mark in b'{}()[]|,;"')
_NO_NAMES = PUNCTUATION - {b","}
_TOKENS_AT_ONCE = 1 << 11
PLAIN_NAME = re.compile(r"""(?!//|/\*)[^\s{}()\[\]|,;"]+""")


def as_utf8(text: str | Bytes) -> Bytes:
    """A file as UTF-8 whose blanks between tokens are ASCII; every line keeps its number."""
    if isinstance(text, str):
        data: Bytes = text.encode(*CODEC)
    else:
        data = text if encoding_of(text) == "utf-8" else text.decode("latin-1").encode()
    if data.isascii() or not BLANKS.search(data):
        return data
    data = bytearray(data)
    for match in _BLANKS_AND_TOKENS.finditer(data):
        if match[1]:
            data[match.start() : match.end()] = b" " * len(match[1])
    return data


@dataclass(frozen=True, eq=False)
class Tokens:
    """The words, quoted names and punctuation of a part of a BIF file, without its comments.

    Attributes:
        source: the file's name, for messages.
        data: the file.
        start: where the part begins.
        words: the tokens; quoted names keep their quotes, so no name is taken for punctuation.
    """

    source: str
    data: Bytes
    start: int
    words: list[bytes]

    @staticmethod
    def of(data: Bytes, source: str, start: int, end: int) -> "Tokens":
        """The tokens of a part of a file, which should be short."""
        words: list[bytes] = _TOKEN.findall(data, start, end)
        if data.find(b"/", start, end) >= 0:
            words = [word for word in words if not word.startswith(_COMMENTS)]
        return Tokens(source, data, start, words)

    @staticmethod
    def first(data: Bytes, source: str, start: int, count: int) -> "Tokens":
        """The first few tokens of a part."""
        return Tokens(source, data, start, [m[0] for m in islice(_matches(data, start), count)])

    def fail(self, at: int, expected: str) -> NoReturn:
        """Raise an error about a token, or about what comes after the part, with its line."""
        match = next(islice(_matches(self.data, self.start), at, None), None)
        if match is None:
            fail(self.source, f"expected {expected}, got the end of the file.")
        line = self.data.count(b"\n", 0, match.start()) + 1
        got = shown(match[0][:1000].decode("utf-8", "replace"))
        fail(self.source, f"line {line}: expected {expected}, got {got}.")

    def expect(self, at: int, *words: bytes) -> int:
        """The place after some words, which must stand at ``at``."""
        for word in words:
            if at >= len(self.words) or self.words[at] != word:
                self.fail(at, repr(word.decode()))
            at += 1
        return at

    def find(self, word: bytes, start: int, end: int) -> int:
        """The place of the first such word in a span."""
        try:
            return self.words.index(word, start, end)
        except ValueError:
            self.fail(end, repr(word.decode()))

    def name(self, at: int, what: str) -> bytes:
        """The name at a place, without its quotes."""
        if at >= len(self.words) or self.words[at] in PUNCTUATION:
            self.fail(at, what)
        return unquoted(self.words[at])

    def names(self, start: int, end: int, count: int, what: str) -> list[bytes]:
        """The ``count`` names of a span, apart by commas or spaces."""
        span = self.words[start:end]
        names = [unquoted(word) for word in span if word != b","]
        if len(names) != count or not _NO_NAMES.isdisjoint(span):
            return list(_grouped(self, start, lambda: span, count, what))
        return names


def name_lists(
    data: Bytes, source: str, start: int, end: int, count: int, what: str
) -> Iterator[list[bytes]]:
    """The ``count`` names of a span of a file, apart by commas or spaces, some at a time.

    Names that hold spaces without quotes are read too, where commas alone give the count.
    """
    words = partial(words_of, data, source, start, end)
    seen, plain = 0, True
    for part in pieces(data, source, start, end):
        seen += len(part.words) - part.words.count(b",")
        plain = plain and _NO_NAMES.isdisjoint(part.words)
    if seen != count or not plain:
        grouped = _grouped(Tokens(source, data, start, []), 0, words, count, what)
        return ([name] for name in grouped)
    parts = (part.words for part in pieces(data, source, start, end))
    lists = ([unquoted(word) for word in part if word != b","] for part in parts)
    return filter(None, lists)


def words_of(data: Bytes, source: str, start: int, end: int) -> Iterator[bytes]:
    """The tokens of a part of a file, one after the other."""
    return (word for part in pieces(data, source, start, end) for word in part.words)


def pieces(data: Bytes, source: str, start: int, end: int) -> Iterator[Tokens]:
    """The tokens of a part of a file, some at a time."""
    while start < end:
        cut = _CUT.search(data, min(start + PIECE, end), end)
        stop = end if cut is None else cut.end()
        if _is_plain(data, start, stop):
            yield Tokens.of(data, source, start, stop)
        else:  # a comment or a quote may begin here and end anywhere
            matches = list(islice(_TOKEN.finditer(data, start, end), _TOKENS_AT_ONCE))
            stop = matches[-1].end() if len(matches) == _TOKENS_AT_ONCE else end
            words = [m[0] for m in matches if not data.startswith(_COMMENTS, m.start())]
            yield Tokens(source, data, start, words)
        start = stop


def statements(data: Bytes, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Spans of whole statements: of several that are a piece together, or of a longer one."""
    while start < end:
        at = end
        if end - start > PIECE:
            at = data.rfind(b";", start, start + PIECE) + 1
            at = at or data.find(b";", start + PIECE, end) + 1 or end
        if not _is_plain(data, start, at):
            at = min(_skipped(_TO_END, data, start, end) + 1, end)
            while at < end:
                following = min(_skipped(_TO_END, data, at, end) + 1, end)
                if following - start > PIECE:
                    break
                at = following
        yield start, at
        start = at


def unquoted(word: bytes) -> bytes:
    """A token as a name."""
    return word[1:-1] if len(word) > 1 and word[:1] == b'"' else word


def _grouped(
    tokens: Tokens, start: int, words: Callable[[], Iterable[bytes]], count: int, what: str
) -> Iterator[bytes]:
    """The names between commas, which may hold spaces; or what is wrong with them."""
    seen = sum(word != b"," for word in words())
    if seen != count and sum(1 for _ in _between_commas(words())) != count:
        tokens.fail(start, f"{count} {what} here (there are {seen})")
    for offset, word in enumerate(words()):
        if word in _NO_NAMES:
            tokens.fail(start + offset, what)
    return _between_commas(words())


def _between_commas(words: Iterable[bytes]) -> Iterator[bytes]:
    group = bytearray()
    for word in words:
        if word != b",":
            group += b" " + unquoted(word)
        elif group:
            yield bytes(group[1:])
            group.clear()
    if group:
        yield bytes(group[1:])


def next_token(data: Bytes, at: int) -> re.Match[bytes] | None:
    """The next token that is no comment."""
    gap = _GAP.match(data, at)
    assert gap is not None  # it may be empty
    return _TOKEN.match(data, gap.end())


def find_token(data: Bytes, start: int, end: int, *words: bytes) -> re.Match[bytes] | None:
    """The first token of a span that is one of some words."""
    return next((match for match in _matches(data, start, end) if match[0] in words), None)


def after(data: Bytes, source: str, at: int, mark: bytes) -> int:
    """The place after the next brace or semicolon of a kind."""
    end = data.find(mark, at) + 1
    if end and _is_plain(data, at, end):
        return end
    skip = _TO_END if mark == b";" else _TO_BRACE
    while (at := _skipped(skip, data, at, len(data)) + 1) <= len(data):
        if data[at - 1] == mark[0]:
            return at
    fail(source, f"expected {mark.decode()!r}, got the end of the file.")


def _matches(data: Bytes, start: int, end: int = sys.maxsize) -> Iterator[re.Match[bytes]]:
    """The tokens that are no comments."""
    matches = _TOKEN.finditer(data, start, end)
    return (m for m in matches if not data.startswith(_COMMENTS, m.start()))


def _is_plain(data: Bytes, start: int, end: int) -> bool:
    """Whether a span has no quotes and no comments, so that every mark in it counts."""
    return data.find(b'"', start, end) < 0 and data.find(b"/", start, end) < 0


def _skipped(skip: re.Pattern[bytes], data: Bytes, at: int, end: int) -> int:
    """The place of the next mark, or the end."""
    match = skip.match(data, at, end)
    assert match is not None  # it may be empty
    return match.end()
