"""Regular expressions, read into trees."""

import re
from dataclasses import dataclass

from rdpgraph.errors import ModelError

_COPIES = r"\{\d+(?:,\d*)?\}"
_WORDS = re.compile(rf"\s*({_COPIES}|[()|*+?.]|(?:\\.|[^\s\\()|*+?.{{}}])+)\s*")
_LETTERS = re.compile(rf"({_COPIES}|[()|*+?]|\[\^?(?:\\.|[^\\\]])+\]|\\.|.)", re.DOTALL)
_DEEPEST = 100  # operators and parentheses inside of each other
_SIGNS: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}


@dataclass(frozen=True)
class Tree:
    """An atom, copies of the one part, either of the parts, or all of them in a row.

    Attributes:
        parts: in the order of the expression.
        atom: as it is written, ``.`` for any; empty where there are parts.
        copies: the least number and the most, None if any.
        either: True of alternatives.
    """

    parts: tuple["Tree", ...] = ()
    atom: str = ""
    copies: tuple[int, int | None] | None = None
    either: bool = False


def by_words(expression: str) -> Tree:
    """An expression whose atoms are words with spaces between them.

    Raises:
        ModelError: no such expression.
    """
    return _Reader(expression.strip(), _WORDS).whole()


def by_letters(expression: str) -> Tree:
    """An expression whose atoms are characters, classes and escapes.

    Raises:
        ModelError: no such expression.
    """
    return _Reader(expression, _LETTERS).whole()


class _Reader:
    """Reads an expression from left to right, by recursive descent."""

    def __init__(self, expression: str, atoms: re.Pattern[str]) -> None:
        self.expression, self.parts, self.depth, at = expression, list[str](), 0, 0
        while at < len(expression):
            part = atoms.match(expression, at)
            if part is None:
                raise self.wrong(f"{expression[at:]!r:.40}")
            self.parts.append(part[1])
            at = part.end()
        self.parts.reverse()

    def whole(self) -> Tree:
        result = self.either()
        if self.parts:
            raise self.wrong(repr(self.parts[-1]))
        return result

    def either(self) -> Tree:
        rows = [self.row()]
        while self.ahead() == "|":
            self.parts.pop()
            rows.append(self.row())
        return Tree(tuple(rows), either=True)

    def row(self) -> Tree:
        items: list[Tree] = []
        while self.ahead() not in ("", "|", ")"):
            items.append(self.item())
        return Tree(tuple(items))

    def item(self) -> Tree:
        atom = self.parts.pop()
        if _copies(atom):
            raise self.wrong(f"{atom!r} with nothing before it")
        result = Tree(atom=atom)
        if atom == "(":
            self.deeper()
            result = self.either()
            self.depth -= 1
            if self.ahead() != ")":
                raise self.wrong("an open parenthesis")
            self.parts.pop()
        before = self.depth
        while copies := _copies(self.ahead()):
            self.deeper()
            self.parts.pop()
            result = Tree((result,), copies=copies)
        self.depth = before
        return result

    def deeper(self) -> None:
        self.depth += 1
        if self.depth > _DEEPEST:
            raise self.wrong(f"more than {_DEEPEST} levels")

    def ahead(self) -> str:
        return self.parts[-1] if self.parts else ""

    def wrong(self, what: str) -> ModelError:
        return ModelError(f"Pattern cannot read {what} in {self.expression!r:.80}.")


def _copies(sign: str) -> tuple[int, int | None] | None:
    """The numbers that ``*``, ``+``, ``?`` or those in braces mean."""
    if sign in _SIGNS:
        return _SIGNS[sign]
    if not re.fullmatch(_COPIES, sign):
        return None
    least, comma, most = sign[1:-1].partition(",")
    return int(least), int(most) if most else None if comma else int(least)
