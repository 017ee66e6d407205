"""Tables of BIF files, read into those of the graph without copies."""

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, repeat
from operator import getitem
from typing import NoReturn

import numpy as np
import torch
from numpy.typing import NDArray

from rdpgraph._core import tuning
from rdpgraph.errors import FileFormatError
from rdpgraph.io.text import Bytes
from rdpgraph.io.tokens import MOST_BY_DEFAULT, BifText, is_number, non_negative, statements_alike
from rdpgraph.model.block import Block
from rdpgraph.model.conditional import SumsOff, is_conditional
from rdpgraph.model.names import CODEC, CompactVariables, StateLists
from rdpgraph.model.potentials.table import Table
from rdpgraph.model.restriction import grouped_rows

Array = NDArray[np.float64]
Codes = Mapping[bytes, int]

_TABLE = re.compile(rb"\s*+(table\s[^;]*+);?\s*+")
_COMMA_FIRST = re.compile(rb"(?:\A|;)\s*+,")  # a statement that begins with a comma
_PROPERTIES = re.compile(rb"(?:\s*+property\s[^;]*+;)*+")


@dataclass(frozen=True, eq=False)
class Headers:
    """The variables of a file, and its probability blocks in order.

    The scope of block b is ``members[starts[b] : starts[b + 1]]``, the child first; ``bodies`` (F,
    2) are the places after the first brace of a block and of its last one.
    """

    variables: CompactVariables
    lists: StateLists
    starts: NDArray[np.int64]
    members: NDArray[np.int32]
    bodies: NDArray[np.int64]


@dataclass(eq=False)
class _BlockGroup:
    """The blocks of one shape, and their tables."""

    shape: tuple[int, ...]
    blocks: NDArray[np.int32]
    values: Array | None = None

    @property
    def tables(self) -> Array:
        """(F, size, rows) the tables."""
        assert self.values is not None
        return self.values.reshape(len(self.blocks), self.shape[0], -1)


def read_tables(text: BifText, headers: Headers, dtype: torch.dtype) -> list[Block]:
    """The factors P(child | parents), those of one shape in one block."""
    reading = _Reading(text, headers)
    try:
        groups = list(reading.read())
    except FileFormatError:
        reading.read_one_by_one()  # raises the first error in file order
        raise
    off = SumsOff()
    for group in groups:
        # Sums of all rows at once would take too much memory next to a large table.
        count, _, rows = group.tables.shape
        for first in range(0, count, step := max(1, tuning.PIECE // rows)):
            for at in range(0, rows, tuning.PIECE):
                part = group.tables[first : first + step, :, at : at + tuning.PIECE]
                off.add(group.blocks[first : first + step], part.sum(1))
    names, children = headers.variables.names, headers.members[headers.starts[:-1]]
    off.warn(text.source, lambda block: names.entry(int(children[block])))
    return [_block_of(group, headers, dtype) for group in groups]


class _Reading:
    """A reader of tables: many of the usual form at a time, others one by one."""

    def __init__(self, text: BifText, headers: Headers) -> None:
        self._text, self._headers, self._budget = text, headers, MOST_BY_DEFAULT

    def read(self) -> Iterable[_BlockGroup]:
        """The groups of blocks, filled."""
        bodies, data = self._headers.bodies, self._text.data
        groups, lengths = self._groups(), np.diff(bodies)[:, 0]
        room = MOST_BY_DEFAULT
        for group in groups:
            # Allocate only what the text can fill, whatever the header says: an entry
            # takes two bytes, and `default` has a budget.
            size = min(math.prod(group.shape), 2 * MOST_BY_DEFAULT + len(data))
            lacking = size - (lengths[group.blocks] + 1) // 2
            short = bodies[group.blocks[lacking > 0]].tolist()
            room -= int(lacking[lacking > 0].sum())
            if room < 0 or any(data.find(b"default", *body) < 0 for body in short):
                self.read_one_by_one()
                raise AssertionError("a table that the text cannot fill")
        for group in groups:
            group.values = np.empty(len(group.blocks) * math.prod(group.shape))
        for group in groups:
            counts = lengths[group.blocks]
            for place in np.flatnonzero(counts > tuning.PIECE).tolist():
                self._read_alone(int(group.blocks[place]), group.tables[place])
            places = np.flatnonzero(counts <= tuning.PIECE)
            parts = counts[places].cumsum() // tuning.PIECE
            for part in np.split(places, np.flatnonzero(np.diff(parts)) + 1):
                self._read_part(group, part)
        return groups

    def _groups(self) -> list[_BlockGroup]:
        """The blocks by shape, in the order of the first of each."""
        groups: list[_BlockGroup] = []
        starts, sizes = self._headers.starts, self._headers.variables.sizes
        arities = np.diff(starts)
        for arity in np.unique(arities).tolist():
            rows = np.flatnonzero(arities == arity).astype(np.int32)
            scopes = self._headers.members[starts[rows, None] + np.arange(arity)]
            shapes, parts = grouped_rows(torch.from_numpy(sizes[scopes]))
            for shape, part in zip(shapes.tolist(), parts, strict=True):
                groups.append(_BlockGroup(tuple(shape), rows[part.numpy()]))
        return sorted(groups, key=lambda group: int(group.blocks[0]))

    def read_one_by_one(self) -> None:
        """Read every block separately, in the order of the file."""
        self._budget = MOST_BY_DEFAULT
        for block in range(len(self._headers.bodies)):
            self._read_alone(block, None)

    def _read_part(self, group: _BlockGroup, places: NDArray[np.int64]) -> None:
        """Read some blocks of a group, those of tables and those of rows together."""
        data, bodies = self._text.data, self._headers.bodies[group.blocks[places]].tolist()
        texts = [bytes(data[start:end]) for start, end in bodies]
        of_rows = np.fromiter((b"(" in text for text in texts), np.bool_, len(texts))
        for read, kind in ((self._tables_of, ~of_rows), (self._rows_of, of_rows)):
            left = [np.flatnonzero(kind)] if kind.any() else []
            while left:
                part = left.pop()
                blocks = group.blocks[places[part]]
                values = read([texts[at] for at in part.tolist()], blocks, group.shape)
                if values is not None and is_conditional(values, 1):
                    group.tables[places[part]] = values
                elif len(part) > 1:  # isolate unusual blocks by bisection
                    left += np.array_split(part, 2)
                else:
                    self._read_alone(int(blocks[0]), group.tables[places[part[0]]])

    def _tables_of(
        self, texts: list[bytes], blocks: NDArray[np.int32], shape: tuple[int, ...]
    ) -> Array | None:
        """(B, size, rows) the probabilities of bodies ``table probabilities;``; None for others."""
        matches = list(map(_TABLE.fullmatch, texts))
        if not all(matches):
            return None
        text = b"".join([match[1] + b";" for match in matches if match])
        read = statements_alike(text, len(texts), [b"table"], math.prod(shape))
        return None if read is None else read[1].reshape(len(texts), shape[0], -1)

    def _rows_of(
        self, texts: list[bytes], blocks: NDArray[np.int32], shape: tuple[int, ...]
    ) -> Array | None:
        """(B, size, rows) the probabilities of bodies that list every row; None for others."""
        rows, members = math.prod(shape[1:]), self._headers.members
        if any(text.count(b";") != rows for text in texts):
            return None
        codes: list[tuple[Iterable[Codes], int]] = []
        for slot, stride in enumerate(_strides(shape[1:]), 1):
            lists = self._headers.variables.lists_of(members[self._headers.starts[blocks] + slot])
            known = map(self._headers.lists.places, lists)
            codes.append((chain.from_iterable(repeat(each, rows) for each in known), stride))
        read = _rows_alike(b"".join(texts), len(texts) * rows, codes, shape[0])
        if read is None:
            return None
        numbers = read[0].reshape(len(texts), rows)
        if (np.sort(numbers, axis=1) != np.arange(rows)).any():
            return None
        values = np.empty((len(texts), rows, shape[0]))
        np.put_along_axis(values, numbers[..., None], read[1].reshape(values.shape), 1)
        return values.transpose(0, 2, 1)

    def _read_alone(self, block: int, table: Array | None) -> None:
        values = None if table is None else table.reshape(-1)
        self._budget -= _Body(self._text, self._headers, block, values).read(self._budget)


def _strides(sizes: Sequence[int]) -> list[int]:
    """The strides of a table of some sizes, the last dim the fastest."""
    return [math.prod(sizes[dim + 1 :]) for dim in range(len(sizes))]


def _rows_alike(
    text: bytes, count: int, codes: Sequence[tuple[Iterable[Codes], int]], size: int
) -> tuple[NDArray[np.int64], Array] | None:
    """Read ``count`` rows ``(names) probabilities;``: (R,) row numbers and (R, size) probabilities.

    ``codes`` has for each parent the numbers of its states, row by row, and its stride. None for
    any other text.
    """
    read = statements_alike(text, count, [b"(", *[None] * len(codes), b")"], size)
    if read is None or _COMMA_FIRST.search(text):
        return None
    numbers = np.zeros(count, dtype=np.int64)
    try:
        for words, (states, stride) in zip(read[0], codes, strict=True):
            numbers += stride * np.fromiter(map(getitem, states, words), np.int64, count)
    except KeyError:
        return None
    return numbers, read[1]


class _Body:
    """A reader of one block's statements into the flat table (child, *parents).

    ``values`` is None for a table that the text cannot fill: its statements are checked alone.
    """

    def __init__(self, text: BifText, headers: Headers, block: int, values: Array | None) -> None:
        variables = headers.variables
        members = headers.members[headers.starts[block] : headers.starts[block + 1]].tolist()
        self._text, self._values = text, values
        self._start, self._end = headers.bodies[block].tolist()
        self._child = repr(variables.names.entry(members[0]))
        self._size, *parents = variables.sizes[members].tolist()
        self._rows = math.prod(parents)
        lists = variables.lists_of(np.array(members[1:], np.int64))
        states = map(headers.lists.places, lists)
        self._codes = list(zip(states, _strides(parents), strict=True))
        self._listed: defaultdict[int, int] | bytearray = (
            defaultdict(int) if values is None else bytearray(self._rows)
        )
        self._count = 0
        self._default: Array | None = None
        self._whole = False
        self._sums = True

    def read(self, budget: int) -> int:
        """Fill the table; the number of entries that only ``default`` gives, within the budget."""
        text, start = self._text, self._start
        while start < self._end:
            end = self._part_end(start)
            if self._read_rows(start, end):
                start = end
            while (start := _skip_properties(text.data, start, end)) < end:
                stop = text.data.find(b";", start, end) % (end + 1)
                self._read_statement(start, stop)
                start = stop + 1
        unlisted = self._filled(budget)
        if self._whole and self._values is not None:
            table = self._values.reshape(self._size, self._rows)
            for at in range(0, self._rows, tuning.PIECE):
                self._sums &= is_conditional(table[:, at : at + tuning.PIECE], 0)
        if not self._sums:
            text.fail(self._start, f"probabilities of {self._child} that sum to 1")
        return unlisted

    def _part_end(self, start: int) -> int:
        """The end of the statements that fit a piece, or of one longer statement."""
        data, end = self._text.data, self._end
        if end - start <= tuning.PIECE:
            return end
        cut = start + tuning.PIECE
        return data.rfind(b";", start, cut) + 1 or data.find(b";", start, end) + 1 or end

    def _filled(self, budget: int) -> int:
        text, rows, default = self._text, self._rows, self._default
        if self._whole and not self._count and default is None:
            return 0
        unlisted = (rows - self._count) * self._size
        if self._whole or (unlisted and default is None):
            text.fail(self._end, f"{rows} rows of {self._child} (there are {self._count})")
        if unlisted > budget:
            text.fail(self._end, f"rows of {self._child} rather than a default for {unlisted}")
        listed = self._listed
        if self._values is not None and default is not None and isinstance(listed, bytearray):
            lacking = np.frombuffer(listed, dtype=np.uint8) == 0
            for state, row in enumerate(self._values.reshape(self._size, rows)):
                np.copyto(row, default[state], where=lacking)
        return unlisted

    def _read_rows(self, start: int, end: int) -> bool:
        """Read a part that has only rows of the usual form; False for others."""
        listed = self._listed
        if end - start > tuning.PIECE or self._values is None or not isinstance(listed, bytearray):
            return False
        text = bytes(self._text.data[start:end])
        codes = [(repeat(states), stride) for states, stride in self._codes]
        read = _rows_alike(text, text.count(b";"), codes, self._size) if b"(" in text else None
        if read is None:
            return False
        numbers, values = read
        ranked, known = np.sort(numbers), np.frombuffer(listed, dtype=np.uint8)
        if (ranked[1:] == ranked[:-1]).any() or known[numbers].any():
            return False
        known[numbers] = 1
        self._count += len(numbers)
        self._take_rows(numbers, values)
        return True

    def _read_statement(self, start: int, stop: int) -> None:
        """Read ``(names) numbers``, ``default numbers``, ``table numbers`` or ``property``."""
        text, data = self._text, self._text.data
        head = text.next(start, stop)
        if head is None:  # nothing but blanks, which only the end of a block may have
            if stop < self._end:
                self._fail_at_statement(stop)
        elif head[0] == b"(":
            # A row: the states of the parents say where its probabilities go.
            close = data.find(b")", head.end(), stop)
            if close < 0:
                text.fail(stop, "')'")
            what = f"states of {self._child}'s parents"
            lists = text.names(head.end(), close, len(self._codes), what)
            row = self._row(head.start(), list(chain.from_iterable(lists)))
            self._take_rows([row], self._numbers(close + 1, stop, self._size))
        elif head[0] == b"default" and self._default is None:
            self._default = self._numbers(head.end(), stop, self._size)
            self._sums &= is_conditional(self._default, 0)
        elif head[0] == b"table" and not self._whole:
            # All rows at once, read into the table itself where they can be.
            values = self._numbers(head.end(), stop, self._size * self._rows)
            self._whole = True
            if self._values is not None and self._values is not values:
                self._values[:] = values
        elif head[0] != b"property":
            self._fail_at_statement(start)

    def _numbers(self, start: int, end: int, count: int) -> Array:
        """The probabilities of a part, read into the table itself if they fill it."""
        text, filled = self._text, self._values
        if filled is None or count != len(filled) or self._count:
            filled = np.empty(count if 2 * count <= end - start + 1 else 0)
        seen, wrong = 0, False
        for _, words in text.pieces(start, end):
            values = None
            if not wrong and seen + len(words) <= len(filled):
                values = non_negative(words)
                wrong = values is None
            if values is not None:
                filled[seen : seen + len(words)] = values
            seen += len(words)
        if seen != count:
            text.fail(start, f"{count} probabilities here (there are {seen})")
        for match in text.tokens(start, end) if wrong else ():
            if match[0] != b"," and (not is_number(match[0]) or float(match[0]) < 0):
                text.fail(match.start(), "a probability >= 0")
        return filled

    def _take_rows(self, places: Sequence[int] | NDArray[np.int64], values: Array) -> None:
        rows = values.reshape(-1, self._size)
        self._sums &= is_conditional(rows, 1)
        if self._values is not None:
            self._values.reshape(self._size, self._rows)[:, places] = rows.T

    def _row(self, at: int, names: Sequence[bytes]) -> int:
        """The number of the row of some states, which is not listed yet."""
        text = self._text
        try:
            pairs = zip(self._codes, names, strict=True)
            row = sum(stride * states[name] for (states, stride), name in pairs)
        except KeyError as error:
            state = error.args[0].decode(*CODEC)
            text.fail(at, f"states of {self._child}'s parents (one has no {state!r})")
        if self._listed[row]:
            text.fail(at, f"a row that {self._child} has not listed yet")
        self._listed[row] = 1
        self._count += 1
        return row

    def _fail_at_statement(self, at: int) -> NoReturn:
        self._text.fail(at, f"a row, table or default of {self._child} (one of each)")


def _skip_properties(data: Bytes, start: int, end: int) -> int:
    match = _PROPERTIES.match(data, start, end)
    assert match is not None  # the pattern matches the empty string
    return match.end()


def _block_of(group: _BlockGroup, headers: Headers, dtype: torch.dtype) -> Block:
    assert group.values is not None  # filled by _Reading.read
    places = group.blocks
    slots = headers.starts[places][:, None] + np.arange(len(group.shape))
    scopes = torch.from_numpy(headers.members[slots]).long()
    shape = () if len(places) == 1 else (len(places),)
    values, group.values = group.values, None
    table = torch.from_numpy(values).log_().to(dtype).reshape(*shape, *group.shape)
    return Block(scopes, Table.from_logs(table), shape, None, torch.from_numpy(places).long())
