"""The tables of BIF files, read straight into those of the graph."""

import math
import re
from array import array
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NoReturn

import numpy as np
import torch
from numpy.typing import NDArray

from rdpgraph.io.bif_tokens import (
    CODEC,
    PIECE,
    Tokens,
    find_token,
    names_of,
    next_token,
    pieces,
    statements,
)
from rdpgraph.io.tables import is_conditional
from rdpgraph.io.text import Bytes
from rdpgraph.io.tokens import is_number
from rdpgraph.model.block import Block
from rdpgraph.model.table import Table
from rdpgraph.model.variable import Variable

Array = NDArray[np.float64]

_TABLE = re.compile(rb"\s*table\s([0-9eE+.,\s-]*+);?\s*")
_MOST_BY_DEFAULT = 1 << 24  # table entries that the `default` lines of a file may stand for


@dataclass(frozen=True, eq=False)
class Headers:
    """The probability blocks of a file: their scopes, and where in it their braces are.

    Attributes:
        starts: where the scope of each block begins in ``members``, and at the end their count.
        members: the numbers of variables, each child before its parents.
        bodies: for each block the place after its first brace, and that of its last one.
    """

    starts: "array[int]"
    members: "array[int]"
    bodies: "array[int]"

    def __len__(self) -> int:
        return len(self.starts) - 1

    def scope(self, block: int) -> "array[int]":
        """The variables of a block."""
        return self.members[self.starts[block] : self.starts[block + 1]]

    def body(self, block: int) -> tuple[int, int]:
        """The span between the braces of a block."""
        return self.bodies[2 * block], self.bodies[2 * block + 1]


@dataclass(eq=False)
class _Alike:
    """The blocks of one shape."""

    shape: tuple[int, ...]
    blocks: "array[int]" = field(default_factory=lambda: array("i"))
    values: Array | None = None
    filled: int = 0

    def next_values(self) -> Array | None:
        """Room for the next block's table."""
        if self.values is None:
            return None
        start, self.filled = self.filled, self.filled + math.prod(self.shape)
        return self.values[start : self.filled]


def read_tables(
    data: Bytes, source: str, variables: Sequence[Variable], headers: Headers, dtype: torch.dtype
) -> list[Block]:
    """The factors P(child | parents), those of one shape in one block."""
    groups: dict[tuple[int, ...], _Alike] = {}
    for block in range(len(headers)):
        shape = _shape(variables, headers.scope(block))
        groups.setdefault(shape, _Alike(shape)).blocks.append(block)
    # Nothing is allocated on the word of a header: only what the text fills, and its defaults.
    if _can_be_filled(data, variables, headers):
        for group in groups.values():
            group.values = np.empty(len(group.blocks) * math.prod(group.shape))
    budget = _MOST_BY_DEFAULT
    for block in range(len(headers)):
        numbers = headers.scope(block)
        values = groups[_shape(variables, numbers)].next_values()
        scope = [variables[number] for number in numbers]
        table = _Probabilities(data, source, scope, *headers.body(block), values)
        budget -= table.read(budget)
    return [_block_of(group, headers, dtype) for group in groups.values()]


def _shape(variables: Sequence[Variable], numbers: Sequence[int]) -> tuple[int, ...]:
    return tuple(variables[number].size for number in numbers)


def _can_be_filled(data: Bytes, variables: Sequence[Variable], headers: Headers) -> bool:
    """Whether the tables may be as large as the scopes say: an entry takes two bytes of text.

    Those of blocks with a default may be larger, as far as the budget goes.
    """
    room = _MOST_BY_DEFAULT
    for block in range(len(headers)):
        start, end = headers.body(block)
        entries, listed = math.prod(_shape(variables, headers.scope(block))), (end - start + 1) // 2
        if entries > listed:
            room -= entries - listed
            if room < 0 or data.find(b"default", start, end) < 0:
                return False
    return True


def _block_of(group: _Alike, headers: Headers, dtype: torch.dtype) -> Block:
    assert group.values is not None  # else reading has failed
    places = np.frombuffer(group.blocks, dtype=np.int32)
    starts = np.frombuffer(headers.starts, dtype=np.int64)[places]
    members = np.frombuffer(headers.members, dtype=np.int32)
    scopes = torch.from_numpy(members[starts[:, None] + np.arange(len(group.shape))]).long()
    count = len(places)
    shape = () if count == 1 else (count,)
    values, group.values = group.values, None
    table = torch.from_numpy(values).log_().to(dtype).reshape(*shape, *group.shape)
    return Block(scopes, Table(table), shape, None, torch.from_numpy(places).long())


class _Probabilities:
    """The table of a block, (child, *parents), as its statements give it.

    Args:
        data: the file.
        source: its name, for messages.
        scope: the child and its parents.
        start: where the text in its braces begins.
        end: where it ends.
        values: the flat table, to be filled; None for one that the text cannot fill.
    """

    def __init__(
        self,
        data: Bytes,
        source: str,
        scope: Sequence[Variable],
        start: int,
        end: int,
        values: Array | None,
    ) -> None:
        self._data, self._source, self._scope = data, source, scope
        self._start, self._end, self._values = start, end, values
        self._child, self._size = scope[0], scope[0].size
        self._rows = math.prod(parent.size for parent in scope[1:])
        self._listed: defaultdict[int, int] | bytearray = (
            defaultdict(int) if values is None else bytearray(self._rows)
        )
        self._by_state: list[dict[bytes, int]] | None = None
        self._count = 0
        self._default: Array | None = None
        self._whole = False
        self._sums = True

    def read(self, budget: int) -> int:
        """Fill the table; the number of entries that only ``default`` gives, within the budget."""
        if not self._read_numbers_alone():
            for start, end in statements(self._data, self._start, self._end):
                if end - start > PIECE:
                    self._read_long(start, end)
                else:
                    self._read_statements(Tokens.of(self._data, self._source, start, end))
        unlisted = self._filled(budget)
        if self._whole and self._values is not None:
            table = self._values.reshape(self._size, self._rows)
            for at in range(0, self._rows, PIECE):
                self._sums &= is_conditional(table[:, at : at + PIECE], 0)
        if not self._sums:
            expected = f"probabilities of {self._child.name!r} that sum to 1"
            Tokens(self._source, self._data, self._start, []).fail(0, expected)
        return unlisted

    def _filled(self, budget: int) -> int:
        after = Tokens(self._source, self._data, self._end, [])
        rows, default, child = self._rows, self._default, self._child.name
        if self._whole and not self._count and default is None:
            return 0
        unlisted = (rows - self._count) * self._size
        if self._whole or (unlisted and default is None):
            after.fail(0, f"{rows} rows of {child!r} (there are {self._count})")
        if unlisted > budget:
            after.fail(0, f"rows of {child!r} rather than a default for {unlisted}")
        listed = self._listed
        if self._values is not None and default is not None and isinstance(listed, bytearray):
            lacking = np.frombuffer(listed, dtype=np.uint8) == 0
            for state, row in enumerate(self._values.reshape(self._size, rows)):
                np.copyto(row, default[state], where=lacking)
        return unlisted

    def _read_numbers_alone(self) -> bool:
        """Read a block that is one ``table`` of numbers, if it is, without its tokens."""
        values = self._values
        match = _TABLE.fullmatch(self._data, self._start, self._end)
        if match is None or values is None:
            return False
        (at, end), filled = match.span(1), 0
        while at < end:
            cut = min(self._data.find(b",", min(at + PIECE, end), end) % (end + 1) + 1, end)
            words = bytes(self._data[at:cut]).replace(b",", b" ").split()
            if filled + len(words) > len(values):
                return False
            try:
                values[filled : filled + len(words)] = _floats(words)
            except ValueError:
                return False
            filled += len(words)
            at = cut
        self._whole = filled == len(values) and _are_probabilities(values)
        return self._whole

    def _read_statements(self, tokens: Tokens) -> None:
        at, end, words, places = 0, len(tokens.words), list[bytes](), list[int]()
        while at < end:
            head = tokens.words[at]
            stop = _statement_end(tokens, at, end)
            if head == b"(":
                close = tokens.find(b")", at, stop)
                names = tokens.names(at + 1, close, len(self._codes), self._what)
                places.append(self._row(tokens, at, names))
                words += _numbers(tokens, close + 1, stop, self._size)
            elif head == b"default" and self._default is None:
                numbers = _numbers(tokens, at + 1, stop, self._size)
                self._take_default(_probabilities(tokens, numbers))
            elif head == b"table" and not self._whole:
                numbers = _numbers(tokens, at + 1, stop, self._size * self._rows)
                self._take_table(_probabilities(tokens, numbers))
            elif head != b"property":
                self._fail_at_statement(tokens, at)
            at = stop + 1
        self._take_rows(places, _probabilities(tokens, words))

    def _read_long(self, start: int, end: int) -> None:
        """Read a single statement, of more than a piece, without all of its tokens at once."""
        data, source = self._data, self._source
        tokens = Tokens(source, data, start, [])
        head = next_token(data, start)
        if head is None or head.start() >= end or head[0] in (b"property", b";"):
            return
        if head[0] == b"(":
            close = find_token(data, head.end(), end, b")", b";")
            if close is None or close[0] != b")":
                place = end if close is None else close.start()
                Tokens(source, data, place, []).fail(0, "')'")
            listed = names_of(data, source, head.end(), close.start(), len(self._codes), self._what)
            place = self._row(tokens, 0, list(listed))
            self._take_rows([place], self._read_numbers(close.end(), end, self._size))
        elif head[0] == b"default" and self._default is None:
            self._take_default(self._read_numbers(head.end(), end, self._size))
        elif head[0] == b"table" and not self._whole:
            self._take_table(self._read_numbers(head.end(), end, self._size * self._rows))
        else:
            self._fail_at_statement(tokens, 0)

    def _read_numbers(self, start: int, end: int, count: int) -> Array:
        """The probabilities of a span, in the table itself if they are all of it."""
        own = self._values
        if own is None or count != len(own) or self._count:
            own = np.empty(count if 2 * count <= end - start + 1 else 0)
        seen, wrong = 0, None
        for part in pieces(self._data, self._source, start, end):
            words = [word for word in part.words if word not in (b",", b";")]
            if wrong is None and seen + len(words) <= len(own):
                values = _values_of(words)
                if values is None:
                    wrong = part, words
                else:
                    own[seen : seen + len(words)] = values
            seen += len(words)
        if seen != count:
            tokens = Tokens(self._source, self._data, start, [])
            tokens.fail(0, f"{count} probabilities here (there are {seen})")
        if wrong is not None:
            _probabilities(*wrong)
        return own

    def _take_rows(self, places: list[int], values: Array) -> None:
        if not places:
            return
        rows = values.reshape(-1, self._size)
        self._sums &= is_conditional(rows, 1)
        if self._values is not None:
            self._values.reshape(self._size, self._rows)[:, places] = rows.T

    def _take_default(self, values: Array) -> None:
        self._default = values
        self._sums &= is_conditional(values, 0)

    def _take_table(self, values: Array) -> None:
        self._whole = True
        if self._values is not None and self._values is not values:
            self._values[:] = values

    def _row(self, tokens: Tokens, at: int, names: Sequence[bytes]) -> int:
        """The number of the row of some states, not listed before."""
        try:
            row = sum(code[name] for code, name in zip(self._codes, names, strict=True))
        except KeyError as error:
            state = error.args[0].decode(*CODEC)
            tokens.fail(at, f"states of {self._child.name!r}'s parents (one has no {state!r})")
        if self._listed[row]:
            tokens.fail(at, f"a row that {self._child.name!r} has not listed yet")
        self._listed[row] = 1
        self._count += 1
        return row

    @property
    def _codes(self) -> list[dict[bytes, int]]:
        """Per parent, what each state adds to the number of a row (the last one is the fastest)."""
        if self._by_state is None:
            self._by_state, stride = [], 1
            for parent in reversed(self._scope[1:]):
                assert isinstance(parent.states, tuple)
                self._by_state.append(
                    {
                        state.encode(*CODEC): stride * place
                        for place, state in enumerate(parent.states)
                    }
                )
                stride *= parent.size
            self._by_state.reverse()
        return self._by_state

    @property
    def _what(self) -> str:
        return f"states of {self._child.name!r}'s parents"

    def _fail_at_statement(self, tokens: Tokens, at: int) -> NoReturn:
        tokens.fail(at, f"a row, table or default of {self._child.name!r} (one of each)")


def _statement_end(tokens: Tokens, at: int, end: int) -> int:
    try:
        return tokens.words.index(b";", at, end)
    except ValueError:
        return end  # the last semicolon before a brace may lack


def _numbers(tokens: Tokens, start: int, end: int, count: int) -> list[bytes]:
    words = [word for word in tokens.words[start:end] if word != b","]
    if len(words) != count:
        tokens.fail(start, f"{count} probabilities here (there are {len(words)})")
    return words


def _floats(words: Sequence[bytes]) -> Array:
    return np.fromiter(map(float, words), dtype=np.float64, count=len(words))


def _are_probabilities(values: Array) -> bool:
    return not len(values) or bool(values.min() >= 0 and values.max() < math.inf)


def _values_of(words: Sequence[bytes]) -> Array | None:
    """The numbers, or None where one is no probability."""
    text = b"".join(words)
    if b"_" not in text and text.isascii():  # float() takes more than a file may say
        try:
            values = _floats(words)
        except ValueError:
            return None
        if _are_probabilities(values):
            return values
    return None


def _probabilities(tokens: Tokens, words: Sequence[bytes]) -> Array:
    values = _values_of(words)
    if values is None:
        wrong = next(w for w in words if not is_number(w) or float(w) < 0)
        tokens.fail(tokens.words.index(wrong), "a probability >= 0")
    return values
