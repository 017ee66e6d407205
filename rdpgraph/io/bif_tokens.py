"""The tokens of a BIF file, cut in one pass."""

import re
from dataclasses import dataclass
from typing import NoReturn

from rdpgraph.io.text import fail, shown

# Comments count where a token may begin, so a name may hold slashes. No alternative can fail
# after a long match (a comment or a quote left open ends with the file or its line): linear time.
_TOKEN = re.compile(
    r"""//[^\n]*|/\*[\s\S]*?(?:\*/|\Z)|"[^"\n]*"|[^\s{}()\[\]|,;"]+|[{}()\[\]|,;"]"""
)
_COMMENTS = ("//", "/*")
_PUNCTUATION = frozenset('{}()[]|,;"')
PLAIN_NAME = re.compile(r"""(?!//|/\*)[^\s{}()\[\]|,;"]+""")


@dataclass(frozen=True, eq=False)
class Tokens:
    """The words, quoted names and punctuation of a BIF file, without its comments.

    Attributes:
        source: the file's name, for messages.
        text: the file.
        words: the tokens; quoted names keep their quotes, so no name is taken for punctuation.
    """

    source: str
    text: str
    words: list[str]

    @staticmethod
    def of(text: str, source: str) -> "Tokens":
        """The tokens of a text."""
        words = _TOKEN.findall(text)
        if "//" in text or "/*" in text:
            words = [word for word in words if not word.startswith(_COMMENTS)]
        return Tokens(source, text, words)

    def fail(self, at: int, expected: str) -> NoReturn:
        """Raise an error about a token, with its line."""
        if at >= len(self.words):
            fail(self.source, f"expected {expected}, got the end of the file.")
        kept = 0
        line = 0
        for match in _TOKEN.finditer(self.text):
            if match[0].startswith(_COMMENTS):
                continue
            if kept == at:
                line = self.text.count("\n", 0, match.start()) + 1
                break
            kept += 1
        fail(self.source, f"line {line}: expected {expected}, got {shown(self.words[at])}.")

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
        found = [unquoted(word) for word in span if word != ","]
        if len(found) != count:
            groups = _between_commas(span)
            if len(groups) != count:
                self.fail(start, f"{count} {what} here (there are {len(found)})")
            found = groups
        for offset, word in enumerate(span):
            if word in _PUNCTUATION and word != ",":
                self.fail(start + offset, what)
        return found


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
