"""The BIF format of Bayesian networks: reading."""

import re
from array import array
from dataclasses import dataclass, field

import numpy as np
import torch

from rdpgraph.errors import BudgetError, ModelError
from rdpgraph.io.bif_tables import Headers, read_tables
from rdpgraph.io.bif_tokens import (
    CODEC,
    PUNCTUATION,
    Tokens,
    after,
    as_utf8,
    blocks_of,
    names_of,
    next_token,
    unquoted,
    words_of,
)
from rdpgraph.io.names import Names
from rdpgraph.io.source import WAIT
from rdpgraph.io.tables import find_cycle
from rdpgraph.io.text import LIMIT, Bytes, PathLike, fail, read_bytes
from rdpgraph.model.domain import Domain
from rdpgraph.model.graph import FactorGraph
from rdpgraph.model.variable import Variable

_MOST_SLOTS = 60  # numpy and torch stop at 64 dims
_MOST_STATES = 1 << 18  # of all variables together
_BYTES_PER_STATE = 40  # of text, beyond that many: a name is a string of 70, and is sought in sets
_SHARED = 1 << 10
"""Tuples of few states that are remembered, so that variables of the same states share one."""


def read_bif(
    path: PathLike, *, dtype: torch.dtype = torch.float64, limit: int = LIMIT, wait: float = WAIT
) -> FactorGraph:
    """The network of a BIF file, plain or gzipped.

    Every ``probability`` block becomes the factor P(X | parents) over (X, *parents); the
    variables keep the file's order and the names of their states. The sum of a row may be off by
    a file's rounding (0.1), and a row may be all zeros. Memory is at most six times the text, and
    34 MB for the names of the first 262,144 states.

    Args:
        path: the file.
        dtype: of the log-values.
        limit: the most bytes of text, unpacked.
        wait: how long a pipe may be silent, in seconds.

    Raises:
        FileFormatError: with the line that does not fit.
        BudgetError: more than 262,144 states, in less than 40 bytes of text each.
    """
    return parse_bif(read_bytes(path, limit=limit, wait=wait), source=str(path), dtype=dtype)


def parse_bif(
    text: str | Bytes, *, source: str = "<text>", dtype: torch.dtype = torch.float64
) -> FactorGraph:
    """The network of a BIF file's text; see `read_bif`.

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
    probabilities = array("q")  # where each begins, and the span in its braces
    for block in blocks_of(data, source, declared.add):
        probabilities.extend(block)
    if not declared.variables:
        fail(source, "expected a variable; the file declares none.")
    variables, names = declared.variables, declared.names
    del declared
    headers = _read_headers(data, source, probabilities, names)
    _refuse_cycles(source, headers, names)
    del names, probabilities
    blocks = read_tables(data, source, variables, headers, dtype)
    return FactorGraph.from_blocks(Domain(tuple(variables)), blocks)


@dataclass(eq=False)
class _Declared:
    """The variables of a file, in its order."""

    data: Bytes
    source: str
    variables: list[Variable] = field(default_factory=list[Variable])
    names: Names = field(default_factory=Names)
    states: int = 0
    shared: dict[tuple[str, ...], tuple[str, ...]] = field(
        default_factory=dict[tuple[str, ...], tuple[str, ...]]
    )

    def add(self, start: int) -> int:
        """Read ``variable NAME { type discrete [ k ] { names }; }``; the place after it."""
        data, source = self.data, self.source
        tokens = Tokens.first(data, source, start, 3)
        name = tokens.name(1, "the name of a variable").decode(*CODEC)
        tokens.expect(2, b"{")
        at = after(data, source, start, b"{")
        states: tuple[str, ...] | None = None
        while (mark := next_token(data, at)) is None or mark[0] != b"}":
            if mark is not None and mark[0] == b"property":
                at = after(data, source, mark.end(), b";")
            elif states is not None:
                Tokens(source, data, at, []).fail(0, f"the closing brace of variable {name!r}")
            else:
                states, at = self._read_states(name, at)
        if states is None:
            Tokens(source, data, at, []).fail(0, f"the type of variable {name!r}")
        try:
            variable = Variable(name, states)
        except ModelError as error:
            tokens.fail(1, f"a variable; {error}")
        if self.names.add(name) < len(self.variables):
            tokens.fail(1, "a variable that is not declared yet")
        self.variables.append(variable)
        return mark.end()

    def _read_states(self, name: str, start: int) -> tuple[tuple[str, ...], int]:
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
        self._make_room(count)
        listed = names_of(data, source, first, last - 1, count, f"state names of {name!r}")
        states = tuple(state.decode(*CODEC) for state in listed)
        if len(states) <= 16 and len(self.shared) < _SHARED:
            states = self.shared.setdefault(states, states)
        mark = next_token(data, last)
        return states, mark.end() if mark is not None and mark[0] == b";" else last

    def _make_room(self, count: int) -> None:
        self.states += count
        most = max(_MOST_STATES, len(self.data) // _BYTES_PER_STATE)
        if self.states > most:
            raise BudgetError(
                f"{self.source}: the names of {self.states:,} states take about "
                f"{self.states * 130 / 1e6:.0f} MB; a BIF file of this length may have {most:,}. "
                "Write it as a UAI file, where states have no names."
            )


def _read_headers(data: Bytes, source: str, spans: "array[int]", names: Names) -> Headers:
    """The scope of every variable's block, in the file's order."""
    headers = Headers(array("q", [0]), array("i"), array("q"))
    defined = bytearray(len(names))
    for at in range(0, len(spans), 3):
        start, body, end = spans[at : at + 3]
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
            number = names.find(unquoted(word).decode(*CODEC))
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
        defined[next(iter(scope))] = 1
        headers.members.extend(scope)
        headers.starts.append(len(headers.members))
        headers.bodies.extend((body, end - 1))
    lacking = defined.find(0)
    if lacking >= 0:
        fail(source, f"expected a probability block for variable {names[lacking]!r}; got none.")
    return headers


def _refuse_cycles(source: str, headers: Headers, names: Names) -> None:
    starts, members = np.frombuffer(headers.starts, np.int64), np.frombuffer(headers.members, "i")
    children = members[starts[:-1]]
    blocks = np.empty(len(children), dtype=np.int32)
    blocks[children] = np.arange(len(children))
    cycle = find_cycle((starts[:-1] + 1).data, starts[1:].data, blocks[members].data)
    if cycle is not None:
        shown = " - ".join(repr(names[int(children[block])]) for block in cycle[:8])
        fail(source, f"expected parents without a cycle; got {shown}.")
