"""The BIF format of Bayesian networks: reading."""

import re
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from operator import itemgetter

import numpy as np
import torch
from numpy.typing import NDArray

from rdpgraph.io.bif_blocks import read_blocks, usual_scopes
from rdpgraph.io.bif_tables import Headers, read_tables
from rdpgraph.io.bif_tokens import (
    PUNCTUATION,
    Tokens,
    after,
    as_utf8,
    name_lists,
    next_token,
    unquoted,
    words_of,
)
from rdpgraph.io.source import WAIT
from rdpgraph.io.tables import find_cycle
from rdpgraph.io.text import LIMIT, Bytes, PathLike, fail, read_bytes
from rdpgraph.model.compact import CompactVariables, StateLists
from rdpgraph.model.domain import Domain
from rdpgraph.model.graph import FactorGraph
from rdpgraph.model.names import CODEC, Names, NumberedNames

_MOST_SLOTS = 60  # numpy and torch stop at 64 dims
_MOST_OF_A_LIST = 1 << 8  # bytes of names of states that are remembered as they stand in the file
_SHARED = 1 << 10
_HEADERS = 1 << 9  # that are read at once


def read_bif(
    path: PathLike, *, dtype: torch.dtype = torch.float64, limit: int = LIMIT, wait: float = WAIT
) -> FactorGraph:
    """The network of a BIF file, plain or gzipped.

    Every ``probability`` block becomes the factor P(X | parents) over (X, *parents); the
    variables keep the file's order and the names of their states. The sum of a row may be off by
    a file's rounding (0.1), and a row may be all zeros. Time is linear in the text, and memory at
    most six times as much, beyond 1 MB.

    Args:
        path: the file.
        dtype: of the log-values.
        limit: the most bytes of text, unpacked.
        wait: how long a pipe may be silent, in seconds.

    Raises:
        FileFormatError: with the line that does not fit.
    """
    return parse_bif(read_bytes(path, limit=limit, wait=wait), source=str(path), dtype=dtype)


def parse_bif(
    text: str | Bytes, *, source: str = "<text>", dtype: torch.dtype = torch.float64
) -> FactorGraph:
    """The network of a BIF file's text, as `read_bif` has it of a file.

    Example:
        >>> graph = parse_bif('''
        ...     variable rain { type discrete [2] { no, yes }; }
        ...     probability (rain) { table 0.8, 0.2; }
        ... ''')
        >>> graph.variables[0].states
        ('no', 'yes')
    """
    data = as_utf8(text)
    del text
    declared = _Declared(data, source)
    probabilities = read_blocks(data, source, declared)
    variables, lists = declared.variables(), declared.lists
    del declared
    headers = _read_headers(data, source, probabilities, variables.names)
    _refuse_cycles(source, headers, variables.names)
    del probabilities
    blocks = read_tables(data, source, variables, lists, headers, dtype)
    return FactorGraph.from_blocks(Domain(variables.made()), blocks)


@dataclass(eq=False)
class _Declared:
    """The variables of a file, in its order."""

    data: Bytes
    source: str
    names: Names = field(default_factory=Names)
    sizes: "array[int]" = field(default_factory=lambda: array("q"))
    lists: StateLists = field(default_factory=StateLists)
    list_of: "array[int]" = field(default_factory=lambda: array("i"))
    known: dict[tuple[bytes, bytes], tuple[int, int]] = field(
        default_factory=dict[tuple[bytes, bytes], tuple[int, int]]
    )

    def variables(self) -> CompactVariables:
        """All of them."""
        if not self.sizes:
            fail(self.source, "expected a variable; the file declares none.")
        sizes = np.frombuffer(self.sizes, dtype=np.int64)
        return CompactVariables(self.names, sizes, (self.lists, self.list_of))

    def add_usual(self, blocks: Sequence[tuple[bytes, ...]]) -> int:
        """Take variables given as (name, number, names of states); how many are as usual."""
        lists = list(takewhile(itemgetter(1), (self._list(*block[1:]) for block in blocks)))
        numbers = self.names.add_all([name for name, *_ in blocks[: len(lists)]])
        again = np.flatnonzero(numbers != np.arange(len(numbers)) + len(self.sizes))
        taken = int(again[0]) if len(again) else len(lists)
        self.list_of.extend(number for number, _ in lists[:taken])
        self.sizes.extend(size for _, size in lists[:taken])
        return taken

    def _list(self, digits: bytes, text: bytes) -> tuple[int, int]:
        """The number of a list of states as it stands in a file, and its length; 0 if unusual."""
        key = digits, text
        known = self.known.get(key)
        if known is None:
            names = text.replace(b",", b" ").split()
            if len(names) != int(digits) or len(set(names)) < len(names):
                return 0, 0
            known = self.lists.add(b"\n".join(names)), len(names)
            if len(self.known) < _SHARED and len(text) <= _MOST_OF_A_LIST:
                self.known[key] = known
        return known

    def add(self, start: int) -> int:
        """Read ``variable NAME { type discrete [ k ] { names }; }``; the place after it."""
        data, source = self.data, self.source
        tokens = Tokens.first(data, source, start, 3)
        name = tokens.name(1, "the name of a variable")
        tokens.expect(2, b"{")
        at = after(data, source, start, b"{")
        known: tuple[int, int] | None = None
        while (mark := next_token(data, at)) is None or mark[0] != b"}":
            if mark is not None and mark[0] == b"property":
                at = after(data, source, mark.end(), b";")
            elif known is not None:
                what = f"the closing brace of variable {name.decode(*CODEC)!r}"
                Tokens(source, data, at, []).fail(0, what)
            else:
                known, at = self._read_states(tokens, name.decode(*CODEC), at)
        if known is None:
            what = f"the type of variable {name.decode(*CODEC)!r}"
            Tokens(source, data, at, []).fail(0, what)
        if not name:
            tokens.fail(1, "a variable; its name is empty")
        if self.names.add_bytes(name) < len(self.sizes):
            tokens.fail(1, "a variable that is not declared yet")
        self.list_of.append(known[0])
        self.sizes.append(known[1])
        return mark.end()

    def _read_states(self, variable: Tokens, name: str, start: int) -> tuple[tuple[int, int], int]:
        """The states of a variable from its ``type`` on, and the place after them."""
        data, source = self.data, self.source
        tokens = Tokens.first(data, source, start, 6)
        at = tokens.expect(0, b"type", b"discrete", b"[")
        digits = tokens.name(at, f"the number of states of {name!r}")
        first = after(data, source, start, b"{")
        last = after(data, source, first, b"}")
        if not re.fullmatch(b"[1-9][0-9]{0,8}", digits) or int(digits) > last - first:
            tokens.fail(at, f"a number of states that {name!r} lists")
        tokens.expect(at + 1, b"]", b"{")
        count = int(digits)
        text, hashes = bytearray(), array("q")
        what = f"state names of {name!r}"
        for names in name_lists(data, source, first, last - 1, count, what):
            text += b"\n".join(names) + b"\n"
            hashes.extend(map(hash, names))
        states = bytes(memoryview(text)[:-1])
        del text
        repeated = _repeated(states, hashes)
        if repeated is not None:
            state = repeated.decode(*CODEC)
            variable.fail(1, f"a variable; {name!r} has the state name {state!r} twice")
        mark = next_token(data, last)
        stop = mark.end() if mark is not None and mark[0] == b";" else last
        return (self.lists.add(states), count), stop


def _repeated(names: bytes, hashes: "array[int]") -> bytes | None:
    """A name that stands twice among some, with newlines between them, or None."""
    ranked = np.frombuffer(hashes, dtype=np.int64).copy()
    ranked.sort()
    again = frozenset(ranked[1:][ranked[1:] == ranked[:-1]].tolist())
    met: set[bytes] = set()
    for name in names.split(b"\n") if again else ():
        if hash(name) in again:
            if name in met:
                return name
            met.add(name)
    return None


def _read_headers(data: Bytes, source: str, spans: "array[int]", names: NumberedNames) -> Headers:
    """The scope of every variable's block, in the file's order."""
    assert isinstance(names, Names)
    headers = Headers(array("q", [0]), array("i"), array("q"))
    defined, listed = bytearray(len(names)), np.frombuffer(spans, np.int64).reshape(-1, 3)
    left = [listed[at : at + _HEADERS] for at in range(0, len(listed), _HEADERS)][::-1]
    while left:
        part = left.pop()
        if _take_usual(data, part, names, defined, headers):
            continue
        if len(part) > 1:  # one that is unusual is not to make the others slow
            left += np.array_split(part, 2)[::-1]
            continue
        start, body, end = part[0].tolist()
        scope = _read_scope(data, source, start, body, names, defined)
        defined[scope[0]] = 1
        headers.members.extend(scope)
        headers.starts.append(len(headers.members))
        headers.bodies.extend((body, end - 1))
    lacking = defined.find(0)
    if lacking >= 0:
        fail(source, f"expected a probability block for variable {names[lacking]!r}; got none.")
    return headers


def _take_usual(
    data: Bytes, spans: NDArray[np.int64], names: Names, defined: bytearray, headers: Headers
) -> bool:
    """Read some headers together, if they are of the usual form and right."""
    scopes = usual_scopes(data, spans[:, :2], names, _MOST_SLOTS)
    if scopes is None:
        return False
    counts, members = scopes
    ends, known = counts.cumsum(), np.frombuffer(defined, dtype=np.uint8)
    children = members[ends - counts]
    if known[children].any() or len(np.unique(children)) < len(children):
        return False
    known[children] = 1
    headers.starts.frombytes((ends + len(headers.members)).tobytes())
    headers.members.frombytes(members.tobytes())
    headers.bodies.frombytes((spans[:, 1:] - [0, 1]).tobytes())
    return True


def _read_scope(
    data: Bytes, source: str, start: int, body: int, names: Names, defined: bytearray
) -> list[int]:
    tokens, place = Tokens(source, data, start, []), 1
    words = enumerate(words_of(data, source, start, body))  # the last one is a brace
    next(words)
    if next(words)[1] != b"(":
        tokens.fail(1, "'('")
    scope: dict[int, None] = {}
    for place, word in words:
        if word in (b",", b"|"):
            continue
        if word in (b")", b"{"):
            break
        if word in PUNCTUATION:
            tokens.fail(place, "the name of a variable")
        number = names.find_bytes(unquoted(word))
        if number < 0:
            tokens.fail(place, "a declared variable")
        if number in scope:
            tokens.fail(place, "a variable that its scope does not hold yet")
        if not scope and defined[number]:
            tokens.fail(place, "a variable that no probability block has defined yet")
        scope[number] = None
    following = next(words, None)
    if following is None:
        tokens.fail(place, "')'")
    if not 1 <= len(scope) <= _MOST_SLOTS:
        tokens.fail(2, f"a scope of 1 to {_MOST_SLOTS} variables (it has {len(scope)})")
    if following[1] != b"{":
        tokens.fail(following[0], "'{'")
    return list(scope)


def _refuse_cycles(source: str, headers: Headers, names: NumberedNames) -> None:
    starts, members = np.frombuffer(headers.starts, np.int64), np.frombuffer(headers.members, "i")
    children = members[starts[:-1]]
    blocks = np.empty(len(children), dtype=np.int32)
    blocks[children] = np.arange(len(children))
    if (blocks[members] <= np.repeat(np.arange(len(blocks)), np.diff(starts))).all():
        return  # parents come first
    cycle = find_cycle((starts[:-1] + 1).data, starts[1:].data, blocks[members].data)
    if cycle is not None:
        shown = " - ".join(repr(names[int(children[block])]) for block in cycle[:8])
        fail(source, f"expected parents without a cycle; got {shown}.")
