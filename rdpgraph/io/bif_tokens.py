"""The tokens of a BIF file, cut piece by piece."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NoReturn

from rdpgraph.io.text import fail, shown

# Comments count where a token may begin, so a name may hold slashes. No alternative can fail
# after a long match (a comment or a quote left open ends with the file or its line): linear time.
_TOKEN = re.compile(
    r"""//[^\n]*|/\*[\s\S]*?(?:\*/|\Z)|"[^"\n]*"|[^\s{}()\[\]|,;"]+|[{}()\[\]|,;"]"""
)
# The same tokens, none of them kept, as far as a brace, or a brace or the end of a statement.
_SKIPPED = r"""(?://[^\n]*|/\*[\s\S]*?(?:\*/|\Z)|"[^"\n]*"|[^\s{}()\[\]|,;"]+|[\s()\[\]|,"%s])*+"""
_TO_BRACE = re.compile(_SKIPPED % ";")
_TO_END = re.compile(_SKIPPED % "{}")
_PIECE = 1 << 16
"""Characters of statements that are cut into tokens at once; a statement may be longer."""
_COMMENTS = ("//", "/*")
_PUNCTUATION = frozenset('{}()[]|,;"')
PLAIN_NAME = re.compile(r"""(?!//|/\*)[^\s{}()\[\]|,;"]+""")


@dataclass(frozen=True, eq=False)
class Tokens:
    """The words, quoted names and punctuation of a part of a BIF file, without its comments.

    Attributes:
        source: the file's name, for messages.
        text: the file.
        start: where the part begins.
        words: the tokens; quoted names keep their quotes, so no name is taken for punctuation.
    """

    source: str
    text: str
    start: int
    words: list[str]

    @staticmethod
    def of(text: str, source: str, start: int = 0, end: int | None = None) -> "Tokens":
        """The tokens of a part of a text."""
        words = _TOKEN.findall(text, start, len(text) if end is None else end)
        if any(word.startswith(_COMMENTS) for word in words):
            words = [word for word in words if not word.startswith(_COMMENTS)]
        return Tokens(source, text, start, words)

    def fail(self, at: int, expected: str) -> NoReturn:
        """Raise an error about a token, or about what comes after the part, with its line."""
        kept = 0
        for match in _TOKEN.finditer(self.text, self.start):
            if match[0].startswith(_COMMENTS):
                continue
            if kept == at:
                line = self.text.count("\n", 0, match.start()) + 1
                fail(self.source, f"line {line}: expected {expected}, got {shown(match[0])}.")
            kept += 1
        fail(self.source, f"expected {expected}, got the end of the file.")

    def expect(self, at: int, *words: str) -> int:
        """The place after some words, which must stand at ``at``."""
        for word in words:
            if at >= len(self.words) or self.words[at] != word:
                self.fail(at, repr(word))
            at += 1
        return at

    def find(self, word: str, start: int, end: int | None = None) -> int:
        """The place of the first such word in a span."""
        end = len(self.words) if end is None else end
        try:
            return self.words.index(word, start, end)
        except ValueError:
            self.fail(end, repr(word))

    def name(self, at: int, what: str) -> str:
        """The name at a place, without its quotes."""
        if at >= len(self.words) or self.words[at] in _PUNCTUATION:
            self.fail(at, what)
        return unquoted(self.words[at])

    def names(self, start: int, end: int, count: int, what: str) -> list[str]:
        """The ``count`` names of a span, apart by commas or spaces.

        Names that hold spaces without quotes are read too, where commas alone give the count.
        """
        span = self.words[start:end]
        names = [unquoted(word) for word in span if word != ","]
        if len(names) != count:
            groups = _between_commas(span)
            if len(groups) != count:
                self.fail(start, f"{count} {what} here (there are {len(names)})")
            names = groups
        for offset, word in enumerate(span):
            if word in _PUNCTUATION and word != ",":
                self.fail(start + offset, what)
        return names


def unquoted(word: str) -> str:
    """A token as a name."""
    return word[1:-1] if len(word) > 1 and word[0] == '"' else word


def _between_commas(span: list[str]) -> list[str]:
    groups: list[list[str]] = [[]]
    for word in span:
        if word == ",":
            groups.append([])
        else:
            groups[-1].append(unquoted(word))
    return [" ".join(group) for group in groups if group]


@dataclass(frozen=True)
class Item:
    """Where a declaration of the file lies: its word, what is in its braces, and its end."""

    word: str
    start: int
    body: int
    end: int


def items_of(text: str, source: str) -> Iterator[Item]:
    """The declarations of a file, one after the other.

    Raises:
        FileFormatError: another word, or a brace or semicolon that lacks.
    """
    at = 0
    while (match := _next(text, at)) is not None:
        word, start, body = match[0], match.start(), match.end()
        if word == "variable":
            at = _after_variable(text, source, body)
        elif word in ("network", "probability"):
            body = _after(text, source, body, "{")
            at = _after(text, source, body, "}")
        elif word == "property":
            at = _after(text, source, body, ";")
        else:
            Tokens(source, text, start, []).fail(0, "network, variable, probability or property")
        yield Item(word, start, body, at)


def statements(text: str, source: str, start: int, end: int) -> Iterator[Tokens]:
    """The tokens of whole statements, some at a time."""
    while start < end:
        at = text.find(";", start + _PIECE, end) + 1 or end
        if not _is_plain(text, start, at):
            at = start
            while at < end and at - start < _PIECE:
                at = min(_skipped(_TO_END, text, at, end) + 1, end)
        yield Tokens.of(text, source, start, at)
        start = at


def _next(text: str, at: int) -> re.Match[str] | None:
    """The next token that is no comment."""
    return next((m for m in _TOKEN.finditer(text, at) if not m[0].startswith(_COMMENTS)), None)


def _after(text: str, source: str, at: int, mark: str) -> int:
    """The place after the next brace or semicolon of a kind."""
    end = text.find(mark, at) + 1
    if end and _is_plain(text, at, end):
        return end
    skip = _TO_END if mark == ";" else _TO_BRACE
    while (at := _skipped(skip, text, at, len(text)) + 1) <= len(text):
        if text[at - 1] == mark:
            return at
    fail(source, f"expected {mark!r}, got the end of the file.")


def _after_variable(text: str, source: str, at: int) -> int:
    """The place after the closing brace of a variable, whose properties may hold any braces."""
    at = _after(text, source, at, "{")
    while (mark := _next(text, at)) is not None and mark[0] != "}":
        at = mark.end()
        if mark[0] != ";":
            at = _after(text, source, at, ";" if mark[0] == "property" else "}")
    return len(text) if mark is None else mark.end()


def _is_plain(text: str, start: int, end: int) -> bool:
    """Whether a span has no quotes and no comments, so that every mark in it counts."""
    return text.find('"', start, end) < 0 and text.find("/", start, end) < 0


def _skipped(skip: re.Pattern[str], text: str, at: int, end: int) -> int:
    """The place of the next mark, or the end."""
    match = skip.match(text, at, end)
    assert match is not None  # it may be empty
    return match.end()
