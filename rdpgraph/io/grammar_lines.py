"""The rules in the lines of a grammar: lines of the usual form are read many at a time."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import compress
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from rdpgraph.io.text import BLANKS, Bytes, encoding_of, fail, shown
from rdpgraph.io.tokens import is_number, non_negative
from rdpgraph.model.names import CODEC

_TOKEN = re.compile(r"""\s*+(?:(#)|"([^"]*)"|'([^']*)'|([^\s"'#]+)|(.)|\Z)""")
_CONTENT = re.compile(rb"""((?:[^"'#]++|"[^"\n]*+"|'[^'\n]*+'|["'])++)|#[^\n]*+""")
_END, _END_OF_BYTES = re.compile(r"[\r\n]"), re.compile(rb"[\r\n]")
_EMPTY, _EMPTY_OF_BYTES = (
    re.compile(r"(?:[\r\n]++|#[^\r\n]*+)++"),
    re.compile(rb"(?:[\r\n]++|#[^\r\n]*+)++"),
)
"""Lines that are empty or comments."""
_MOST_OF_A_LINE = 1 << 20
"""Bytes: as characters they may take four times as many, again and again."""
_PIECE = 1 << 13
_QUOTE, _BLANK, _RARE = 1, 2, 3  # kinds of bytes; the last are blanks for text, not for bytes
_KINDS = np.zeros(256, dtype=np.uint8)
_KINDS[list(b"\"'")] = _QUOTE
_KINDS[list(b" \t\n\r\f\v")] = _BLANK
_KINDS[list(b"\x1c\x1d\x1e\x1f")] = _RARE


@dataclass(frozen=True, eq=False)
class Rules:
    """Some rules, in the order of their lines.

    Attributes:
        lines: (M,) the number of each line, from 1 on.
        weights: (M,) theirs.
        lexical: (M,) whether a rule has a word rather than two symbols.
        parents: in UTF-8, as the other names.
        left: the first symbol of each rule that has two.
        right: the second one.
        words: that of each rule that has one.
    """

    lines: NDArray[np.int64]
    weights: NDArray[np.float64]
    lexical: NDArray[np.bool_]
    parents: list[bytes]
    left: list[bytes]
    right: list[bytes]
    words: list[bytes]


def rules_of(text: str | Bytes, source: str) -> Iterator[Rules]:
    """The rules of a grammar, some at a time.

    Raises:
        FileFormatError: with the first line that is none.
    """
    for number, piece in _pieces(text, source):
        rules = _read(piece, number, source)
        if rules is None:
            for line, content in enumerate(piece.split(b"\n"), number):
                _read_line(content, f"{source}: line {line}")
            raise AssertionError("every line is a rule, or one of them is none")
        yield rules


def _pieces(text: str | Bytes, source: str) -> Iterator[tuple[int, bytes]]:
    """Whole lines in UTF-8 with newlines between them, and the number of the first."""
    of_bytes = not isinstance(text, str)
    encoding = encoding_of(text) if of_bytes else ""
    end: re.Pattern[Any] = _END_OF_BYTES if of_bytes else _END
    no_rules: re.Pattern[Any] = _EMPTY_OF_BYTES if of_bytes else _EMPTY
    feed, back, both = (b"\n", b"\r", b"\r\n") if of_bytes else ("\n", "\r", "\r\n")
    whole, number, at = cast("Any", text), 1, 0
    while at < len(text):
        if empty := no_rules.match(whole, at):
            gap, at = empty.span(), empty.end()
            number += whole.count(feed, *gap) + whole.count(back, *gap) - whole.count(both, *gap)
            continue
        most = at + _PIECE
        stop = max(whole.rfind(feed, at, most), whole.rfind(back, at, most)) + 1
        if not stop:  # a long line is a piece of its own
            cut = end.search(whole, at)
            stop = len(text) if cut is None else cut.start()
            if of_bytes and stop - at > _MOST_OF_A_LINE:
                fail(source, f"line {number}: expected a rule, got a line of a million characters.")
        elif whole.startswith(feed, stop):
            stop += 1  # perhaps after a carriage return
        content = whole[at:stop].decode(encoding) if encoding else whole[at:stop]
        piece = content.encode(*CODEC)
        if b"\r" in piece:
            piece = piece.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        yield number, piece
        number += piece.count(b"\n")
        at = stop


def _read(piece: bytes, first: int, source: str) -> Rules | None:
    """The rules of some lines, most of which may be usual; None if one of these has no weight."""
    text = b"".join(_CONTENT.findall(piece)) if b"#" in piece else piece
    lines, parts, usual, lexical = _usual(text)
    every = len(usual) == len(lines)
    weights = non_negative(parts[0] if every else [parts[0][row] for row in usual.tolist()])
    if weights is None:
        return None
    if not every:
        others, kept = np.ones(len(lines), dtype=np.bool_), np.ones(len(lines), dtype=np.bool_)
        others[usual] = False
        listed = piece.split(b"\n")
        for row in np.flatnonzero(others).tolist():
            line = int(lines[row])
            read = _read_line(listed[line], f"{source}: line {first + line}")
            kept[row], lexical[row] = bool(read), len(read) == 3
            for column, part in zip(parts, read, strict=False):
                column[row] = part
        lines, lexical = lines[kept], lexical[kept]
        parts = [list(compress(column, kept.tolist())) for column in parts]
        weights = np.fromiter(map(float, parts[0]), np.float64, len(lines))
    words = [word[1:-1] for word in compress(parts[2], lexical.tolist())]
    pairs = np.flatnonzero(~lexical).tolist()
    left, right = ([column[row] for row in pairs] for column in parts[2:])
    return Rules(lines + first, weights, lexical, parts[1], left, right, words)


def _usual(
    text: bytes,
) -> tuple[NDArray[np.int64], list[list[bytes]], NDArray[np.int64], NDArray[np.bool_]]:
    """The lines that are not blank, the parts of their rules, and which of them are usual.

    The parts are four columns: the weights, the parents, and two symbols, or a word in its quotes;
    and last comes where this is.
    """
    if len(text) > 4 * _PIECE:  # one long line
        none = np.empty(0, dtype=np.int64)
        return np.zeros(1, np.int64), [[b""] for _ in range(4)], none, np.zeros(1, np.bool_)
    codes = np.frombuffer(text, dtype=np.uint8)
    kinds = _KINDS[codes]
    feeds = (codes == ord("\n")).nonzero()[0]
    quotes = (kinds == _QUOTE).nonzero()[0]
    line_of = np.searchsorted(feeds, quotes)
    quoted = np.bincount(line_of, minlength=len(feeds) + 1)
    turns = np.zeros(len(codes), dtype=np.uint8)
    turns[quotes[quoted[line_of] == 2]] = 1
    within = (kinds == _BLANK) & (np.cumsum(turns, dtype=np.uint8) & 1).view(np.bool_)  # a word
    blank = np.ones(len(codes) + 2, dtype=np.bool_)
    blank[1:-1] = (kinds == _BLANK) & ~within
    edges = (blank[1:] != blank[:-1]).nonzero()[0]
    starts, ends = edges[::2], edges[1::2]
    spans = map(slice, starts.tolist(), ends.tolist()) if within.any() else None
    words = text.split() if spans is None else list(map(text.__getitem__, spans))
    bounds = np.searchsorted(starts, np.concatenate([[0], feeds + 1, [len(codes)]]))
    heads, counts = bounds[:-1], bounds[1:] - bounds[:-1]
    rare = (kinds == _RARE).nonzero()[0].tolist()
    rare += [match.start() for match in ([] if text.isascii() else BLANKS.finditer(text))]
    counts[np.searchsorted(feeds, rare)] = -1
    lines = counts.nonzero()[0]
    heads, counts, quoted = heads[lines], counts[lines], quoted[lines]
    usual = ((counts == 4) & (quoted == 2) | (counts == 5) & (quoted == 0)).nonzero()[0]
    arrow, last = heads[usual] + 2, heads[usual] + 3
    opening, closing = codes[starts[last]], codes[ends[last] - 1]
    good = (opening == closing) & (_KINDS[opening] == _QUOTE) & (ends[last] - starts[last] > 2)
    good |= counts[usual] == 5
    good &= (ends[arrow] - starts[arrow] == 2) & (codes[starts[arrow]] == ord("-"))
    usual = usual[good & (codes[ends[arrow] - 1] == ord(">"))]
    width = int(counts[0]) if len(usual) else 1
    if len(usual) == len(lines) and (counts == width).all():
        parts = [words[part::width] for part in (0, 1, 3, width - 1)]
    else:
        tokens = np.array([*words, b""], dtype=np.object_)
        places = (np.minimum(heads + part, len(words)) for part in (0, 1, 3, 4))
        parts = [tokens[place].tolist() for place in places]
    return lines, parts, usual, counts == 4


def _read_line(line: bytes, where: str) -> tuple[bytes, ...]:
    """Weight, parent, and two symbols, or a word in quotes and nothing; or no parts."""
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
        return ()
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
    weight, parent, *parts = (part.encode(*CODEC) for part in [texts[0], texts[1], *texts[3:]])
    return weight, parent, *(parts if len(parts) == 2 else [b'"%b"' % parts[0]])
