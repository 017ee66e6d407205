"""Rules in the lines of a grammar; lines of the usual form are read many at a time."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from operator import itemgetter

import numpy as np
from numpy.typing import NDArray

from rdpgraph._core import tuning
from rdpgraph.io.text import BLANKS, Bytes, fail, shown
from rdpgraph.io.tokens import MOST_OF_A_TOKEN, is_number, non_negative
from rdpgraph.model.names import CODEC

_TOKEN = re.compile(r"""\s*+(?:(#)|"([^"]*)"|'([^']*)'|([^\s"'#]+)|(.)|\Z)""")
_END = re.compile(rb"[\r\n]")
_EMPTY = re.compile(rb"(?:[\r\n]++|#[^\r\n]*+)++")
"""Empty lines and comments."""
_NONE: list[list[bytes]] = [[] for _ in range(6)]
# Groups of a line: weight, parent, two symbols or a quoted word; else the whole line.
_SYMBOL, _GAP = rb"""([^\s"'#]++)""", rb"[ \t\f\v]"
_LINES = re.compile(
    rb"""%b*+(?:%b%b++%b%b++->%b++(?:%b%b++%b|("[^"\n]++"|'[^'\n]++'))%b*+)?+(?:#[^\n]*+)?+(?:\n|\Z)"""
    rb"""|([^\n]++)(?:\n|\Z)"""
    % (_GAP, _SYMBOL, _GAP, _SYMBOL, _GAP, _GAP, _SYMBOL, _GAP, _SYMBOL, _GAP)
)
_RARE = b"\x1c\x1d\x1e\x1f"  # blanks of str.split, not of bytes.split


@dataclass(frozen=True, eq=False)
class RuleLines:
    """Rules in the order of their lines: numbers of lines, weights, names in UTF-8.

    ``lexical`` is (M,) True for a rule with a word; ``left`` and ``right`` are those of the other
    rules, and ``words`` of the lexical ones.
    """

    lines: NDArray[np.int64]
    weights: NDArray[np.float64]
    lexical: NDArray[np.bool_]
    parents: list[bytes]
    left: list[bytes]
    right: list[bytes]
    words: list[bytes]


def rules_of(data: Bytes, source: str) -> Iterator[RuleLines]:
    """Read the rules of a grammar in UTF-8, piece by piece."""
    for number, piece in _pieces(data, source):
        rules = _read(piece, number, source)
        if rules is None:
            for line, content in enumerate(piece.split(b"\n"), number):
                _read_line(content, f"{source}: line {line}")
            raise AssertionError("every line is a rule, or one of them is none")
        yield rules


def _pieces(data: Bytes, source: str) -> Iterator[tuple[int, bytes]]:
    """Pieces of whole lines with newlines between them, and the number of their first."""
    number, at = 1, 0
    while at < len(data):
        if empty := _EMPTY.match(data, at):
            gap, at = empty.span(), empty.end()
            number += data.count(b"\n", *gap) + data.count(b"\r", *gap) - data.count(b"\r\n", *gap)
            continue
        most = at + tuning.PIECE
        stop = max(data.rfind(b"\n", at, most), data.rfind(b"\r", at, most)) + 1
        if not stop:  # a long line is one piece
            cut = _END.search(data, at)
            stop = len(data) if cut is None else cut.start()
            if stop - at > MOST_OF_A_TOKEN:
                fail(source, f"line {number}: expected a rule, got a line of a million characters.")
        elif data.startswith(b"\n", stop):
            stop += 1  # the pair \r\n
        piece = bytes(data[at:stop])
        if b"\r" in piece:
            piece = piece.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        yield number, piece
        number += piece.count(b"\n")
        at = stop


def _read(piece: bytes, first: int, source: str) -> RuleLines | None:
    """The rules of some lines; None if a weight is not a number."""
    rows: list[tuple[bytes, ...]] = _LINES.findall(piece)
    if len(piece.translate(None, _RARE)) < len(piece) or (
        not piece.isascii() and BLANKS.search(piece)
    ):
        rows = [(*[b""] * 5, line) for line in piece.split(b"\n")]
    for at, row in enumerate(rows):
        if row[5]:
            rows[at] = _read_line(row[5], f"{source}: line {first + at}")
    lines = np.flatnonzero(np.fromiter(map(bool, map(itemgetter(0), rows)), np.bool_, len(rows)))
    if len(lines) < len(rows):
        rows = [rows[at] for at in lines.tolist()]
    weights, parents, left, right, words, _ = map(list, zip(*rows, strict=True)) if rows else _NONE
    values = non_negative(weights)
    if values is None:
        return None
    lexical = np.fromiter(map(bool, words), np.bool_, len(words))
    left, right = (list(filter(None, symbols)) for symbols in (left, right))
    words = [word[1:-1] for word in words if word]
    return RuleLines(lines + first, values, lexical, parents, left, right, words)


def _read_line(line: bytes, where: str) -> tuple[bytes, ...]:
    """The weight, parent, two symbols or quoted word of a line; empty strings for no rule."""
    text = line.decode(*CODEC)
    tokens: list[tuple[str, bool]] = []
    for match in _TOKEN.finditer(text):
        comment, double, single, plain, stray = match.groups()
        if comment is not None or len(tokens) > 5 or match.end() == match.start():
            break
        if match.lastindex is None:  # blanks at the end
            break
        if stray is not None:
            got = shown(text[:100].strip())
            fail(where, f"a quote that is not closed, or is inside a name: {got}.")
        tokens.append((plain, False) if plain is not None else (double or single or "", True))
    if not tokens:
        return (b"",) * 6
    texts = [text for text, _ in tokens]
    quoted = [is_word for _, is_word in tokens]
    pair, word = [False] * 5, [False] * 3 + [True]
    if quoted not in (pair, word) or texts[2] != "->" or not all(texts):
        fail(
            where,
            'expected a rule such as: 0.5 S -> NP VP, or: 1.0 N -> "dog"; got '
            f"{shown(' '.join(text[:1000].split()), 60)}.",
        )
    if not is_number(texts[0]) or float(texts[0]) < 0:
        fail(where, f"expected a weight >= 0; got {shown(texts[0])}.")
    weight, parent, _, *parts = (text.encode(*CODEC) for text in texts)
    symbols = (*parts, b"") if len(parts) == 2 else (b"", b"", b'"%b"' % parts[0])
    return weight, parent, *symbols, b""
