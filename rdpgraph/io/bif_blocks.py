"""The blocks of BIF files: those of the usual form are found many at a time."""

import re
from array import array
from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from rdpgraph.io.bif_tokens import PIECE, Tokens, after, next_token
from rdpgraph.io.text import Bytes
from rdpgraph.model.names import Names

# What is usual, without quotes and comments; what does not match is read token by token.
_NAME = rb'[^\s\x1c-\x1f{}()\[\]|,;"/]++'
_NAMES = rb'[^\x1c-\x1f{}()\[\]|;"/]*+'
_VARIABLE = (
    rb"variable\s++(%b)\s*+\{\s*+type\s++discrete\s*+\[\s*+([1-9][0-9]{0,8})\s*+\]\s*+\{"
    rb"(%b)\}\s*+;?\s*+\}" % (_NAME, _NAMES)
)
_PROBABILITY = rb'(probability\s*+\([^{}"/]*+\{)([^{}"/]*+\})'
_BLOCKS = re.compile(rb"(\s*+(?:%b|%b))|([\s\S]++)" % (_VARIABLE, _PROBABILITY))
_HEADERS = re.compile(
    rb"probability\s*+\(\s*+(%b)\s*+(?:\|(%b))?\)\s*+\{|([\s\S]++)" % (_NAME, _NAMES)
)


class Declarations(Protocol):
    """What takes the variables of a file."""

    def add(self, start: int) -> int:
        """Read a variable that begins at a place; the place after it."""
        ...

    def add_usual(self, blocks: Sequence[tuple[bytes, ...]]) -> int:
        """Take variables of the usual form, given as names, numbers and names of states.

        Returns:
            How many are taken; `add` must read the next one.
        """
        ...


def read_blocks(data: Bytes, source: str, variables: Declarations) -> "array[int]":
    """Where each probability block begins, and the text in its braces, and its end.

    Args:
        data: the file.
        source: its name, for messages.
        variables: take those of the file.

    Raises:
        FileFormatError: another word, or a brace or semicolon that lacks.
    """
    spans, at = array("q"), 0
    while True:
        start, at = at, _read_usual(data, at, variables, spans)
        if at > start:
            continue
        match = next_token(data, at)
        if match is None:
            return spans
        word, start, body = match[0], match.start(), match.end()
        if word == b"variable":
            at = variables.add(start)
        elif word in (b"network", b"probability"):
            body = after(data, source, body, b"{")
            at = after(data, source, body, b"}")
            if word == b"probability":
                spans.extend((start, body, at))
        elif word == b"property":
            at = after(data, source, body, b";")
        else:
            expected = "network, variable, probability or property"
            Tokens(source, data, start, []).fail(0, expected)


def _read_usual(data: Bytes, at: int, variables: Declarations, spans: "array[int]") -> int:
    """Read blocks as long as they are of the usual form; the place after them."""
    matches: list[tuple[bytes, ...]] = _BLOCKS.findall(data, at, at + PIECE)
    if matches and matches[-1][-1]:
        del matches[-1]
    if not matches:
        return at
    whole, names, _, _, heads, tails, _ = zip(*matches, strict=True)
    stops = at + _lengths(whole).cumsum()
    places = np.flatnonzero(_lengths(names))
    taken = variables.add_usual([matches[place][1:4] for place in places.tolist()])
    most = len(matches) if taken == len(places) else int(places[taken])
    bodies = stops - _lengths(tails)
    own = np.stack([bodies - _lengths(heads), bodies, stops], 1)[:most]
    spans.frombytes(own[_lengths(heads)[:most] > 0].tobytes())
    return int(stops[most - 1]) if most else at


def _lengths(texts: Sequence[bytes]) -> NDArray[np.int64]:
    return np.fromiter(map(len, texts), np.int64, len(texts))


def usual_scopes(
    data: Bytes, spans: NDArray[np.int64], names: Names, most: int
) -> tuple[NDArray[np.int64], NDArray[np.int32]] | None:
    """The variables in some headers: how many each has, and all of them, each child first.

    Args:
        data: the file.
        spans: (B, 2) where each header begins and ends.
        names: of the variables.
        most: how many variables a scope may have.

    Returns:
        None if a header is not of the usual form, or not a scope of different variables.
    """
    if (np.diff(spans) > PIECE).any():
        return None
    texts = [bytes(data[start:end]) for start, end in spans.tolist()]
    matches: list[tuple[bytes, ...]] = _HEADERS.findall(b"".join(texts))
    if len(matches) != len(texts) or matches[-1][-1]:
        return None
    words = b" ; ".join(map(b" ".join, matches)).replace(b",", b" ").split()
    marks = np.fromiter(map(b";".__eq__, words), np.bool_, len(words))
    counts = np.diff(np.flatnonzero(marks), prepend=-1, append=len(words)) - 1
    members = names.find_all(words)[~marks]
    if members.min() < 0 or counts.max() > most:
        return None
    ranked = np.sort(members + len(names) * np.repeat(np.arange(len(counts)), counts))
    return None if (ranked[1:] == ranked[:-1]).any() else (counts, members)
