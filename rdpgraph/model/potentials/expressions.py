"""Regular expressions, read into trees."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from rdpgraph.errors import ModelError

Copies = tuple[int, int | None]

_COPIES = r"[*+?] | \{ (?: \d+ (?: ,\d* )? | ,\d* ) \}"
_WORDS = re.compile(
    rf"""(?P<blank> \s+)
    | (?P<copies> {_COPIES}) (?P<greed> \s*[?+])?
    | (?P<open> \() | (?P<close> \)) | (?P<either> \|)
    | (?P<any> \.)
    | (?P<foreign> \\[A-Za-z0-9])
    | (?P<atom> (?: \\[^A-Za-z0-9] | [^\s\\()|*+?.{{}}] )+)
    """,
    re.DOTALL | re.VERBOSE,
)
_LETTERS = re.compile(
    rf"""(?P<blank> \(\?\#[^)]*\) | \(\?[a-zA-Z]+\) )
    | (?P<open> \( (?: \?P<\w+> | \?(?P<on>[a-zA-Z]*)(?:-(?P<off>[a-zA-Z]+))?: | (?!\?) ) )
    | (?P<foreign> \( \? (?: P= | <?[=!] | [>(] ) | [$^] | \\[AZzbB] )
    | (?P<close> \)) | (?P<either> \|)
    | (?P<copies> {_COPIES}) (?P<greed> [?+])?
    | (?P<atom> \[\^?\]? (?: \\. | [^\\\]] )* \]
        | \\ (?: x.{{2}} | u.{{4}} | U.{{8}} | N\{{[^}}]*\}}
            | 0[0-7]{{0,2}} | [0-7]{{3}} | [^1-9] ) )
    | (?P<group> \\[1-9]\d?)
    | (?P<letter> .)
    """,
    re.DOTALL | re.VERBOSE,
)  # fmt: skip
_VERBOSE_BLANK = re.compile(r"[ \t\n\r\v\f]+|#[^\n]*")
_DEEPEST = 100  # operators and parentheses inside of each other; Python stops at a thousand calls
_SIGNS: dict[str, Copies] = {"*": (0, None), "+": (1, None), "?": (0, 1)}
_ANCHOR = "whole texts are matched, so leave it out"
_BOUNDARY = r"name the characters beside it instead, as in '(.*\W)?word(\W.*)?'"
_LOOK = "join patterns with & and ~ instead"
_REASONS = {  # why a part of Python's syntax is refused, and what to write in its place
    "^": _ANCHOR, "$": _ANCHOR, "\\A": _ANCHOR, "\\Z": _ANCHOR, "\\z": _ANCHOR,
    "\\b": _BOUNDARY, "\\B": _BOUNDARY,
    "(?=": _LOOK, "(?!": _LOOK, "(?<=": _LOOK, "(?<!": _LOOK,
    "(?>": "use a plain group, which may give back what it took",
    "(?(": "write the alternatives out",
    "(?P=": "write what the group matched out",
}  # fmt: skip


@dataclass(frozen=True)
class Tree:
    """An atom, copies of the one part, either of the parts, or all of them in a row.

    Attributes:
        parts: in the order of the expression.
        atom: as it is written, ``.`` for any word; that of a character is preceded by the flags
            that hold for it, as in ``(?i:a)``. It is empty where there are parts.
        copies: the least number and the most, None if any.
        either: True of alternatives.
    """

    parts: tuple["Tree", ...] = ()
    atom: str = ""
    copies: Copies | None = None
    either: bool = False


class Token(NamedTuple):
    """A part of an expression that is read at once.

    Attributes:
        kind: ``atom``, ``copies``, ``open``, ``close`` or ``either``.
        text: as it is written.
        at: its position in the expression.
        atom: of atoms, as in `Tree`.
    """

    kind: str
    text: str
    at: int
    atom: str = ""


def by_words(expression: str) -> Tree:
    """Read an expression whose atoms are words with spaces between them.

    Raises:
        ModelError: no such expression.
    """
    return _Reader(expression, _word_tokens(expression)).whole()


def by_letters(expression: str) -> Tree:
    """Read an expression of Python's `re`, whose atoms are characters, classes and escapes.

    Raises:
        ModelError: no such expression, or one with parts that are not supported.
    """
    return _Reader(expression, _letter_tokens(expression)).whole()


def _word_tokens(expression: str) -> Iterator[Token]:
    at = 0
    while at < len(expression):
        found = _WORDS.match(expression, at)
        if found is None:
            raise _unreadable(f"{expression[at:]!r:.40}", at, expression)
        kind, text = _kind(found), found[0].strip()
        if kind == "foreign":
            why = "a backslash goes before signs, and is itself written '\\\\'"
            raise _unreadable(repr(text), at, expression, why)
        if kind != "blank":
            yield Token("atom" if kind == "any" else kind, text, at, text)
        at = found.end()


def _letter_tokens(expression: str) -> Iterator[Token]:
    # Python says what is wrong with its syntax, and which flags hold everywhere.
    try:
        given = re.compile(expression).flags
    except (re.error, OverflowError, RecursionError, ValueError) as error:
        raise ModelError(f"Pattern cannot read {expression!r:.80}: {error}.") from None
    known = {"a": re.ASCII, "i": re.IGNORECASE, "s": re.DOTALL, "x": re.VERBOSE}
    # The flags inside of each open parenthesis.
    flags, at = [{letter for letter, flag in known.items() if given & flag}], 0
    while at < len(expression):
        if "x" in flags[-1] and (blank := _VERBOSE_BLANK.match(expression, at)):
            at = blank.end()
            continue
        found = _LETTERS.match(expression, at)
        assert found is not None  # any letter matches
        kind, text = _kind(found), found[0]
        if kind in ("foreign", "group"):
            why = _REASONS.get(text, _REASONS["(?P="])
            raise _unreadable(repr(text), at, expression, why)
        if kind == "open":
            on, off = set(found["on"] or ""), set(found["off"] or "")
            kept = flags[-1] - {"a"} if "u" in on else flags[-1]
            flags.append((kept | on & known.keys()) - off)
        elif kind == "close":
            flags.pop()
        if kind != "blank":
            holding = "".join(sorted(flags[-1] - {"x"}))
            atom = f"(?{holding}:{text})" if holding else text
            yield Token("atom" if kind == "letter" else kind, text, at, atom)
        at = found.end()


def _kind(found: re.Match[str]) -> str:
    """The first named group that took part in a match: the alternative that was taken."""
    return next(name for name, text in found.groupdict().items() if text is not None)


def _unreadable(what: str, at: int, expression: str, why: str = "") -> ModelError:
    remedy = f": {why}" if why else ""
    return ModelError(f"Pattern cannot read {what} at position {at} of {expression!r:.80}{remedy}.")


class _Reader:
    """Reads an expression from left to right, by recursive descent."""

    def __init__(self, expression: str, tokens: Iterator[Token]) -> None:
        self.expression, self.depth = expression, 0
        self.tokens = list(tokens)[::-1]

    def whole(self) -> Tree:
        result = self.either()
        if self.tokens:
            raise self.wrong(self.tokens[-1])
        return result

    def either(self) -> Tree:
        rows = [self.row()]
        while self.ahead("either"):
            self.tokens.pop()
            rows.append(self.row())
        return Tree(tuple(rows), either=True)

    def row(self) -> Tree:
        items: list[Tree] = []
        while self.tokens and not self.ahead("either", "close"):
            items.append(self.item())
        return Tree(tuple(items))

    def item(self) -> Tree:
        token = self.tokens.pop()
        if token.kind == "copies":
            raise self.wrong(token, "there is nothing before it to repeat")
        result = Tree(atom=token.atom)
        if token.kind == "open":
            self.depth += 1
            if self.depth > _DEEPEST:
                raise self.wrong(token, f"there are more than {_DEEPEST} levels")
            result = self.either()
            self.depth -= 1
            if not self.tokens:
                raise self.wrong(token, "the parenthesis is not closed")
            self.tokens.pop()
        if self.ahead("copies"):
            result = Tree((result,), copies=self.copies(self.tokens.pop()))
        if self.ahead("copies"):
            raise self.wrong(self.tokens[-1], "put what is repeated already in parentheses")
        return result

    def copies(self, token: Token) -> Copies:
        """The numbers that ``*``, ``+``, ``?`` or those in braces mean; a lazy ``?`` changes none.

        A possessive ``+`` gives nothing back, so that fewer texts match: it is refused.
        """
        sign = token.text
        if len(sign) > 1 and sign[-1] in "?+":
            if sign[-1] == "+":
                raise self.wrong(token, "leave out the last +, which gives back nothing it took")
            sign = sign[:-1].rstrip()
        if sign in _SIGNS:
            return _SIGNS[sign]
        least, comma, most = sign[1:-1].partition(",")
        return int(least or 0), int(most) if most else None if comma else int(least)

    def ahead(self, *kinds: str) -> bool:
        return bool(self.tokens) and self.tokens[-1].kind in kinds

    def wrong(self, token: Token, why: str = "") -> ModelError:
        return _unreadable(repr(token.text), token.at, self.expression, why)
