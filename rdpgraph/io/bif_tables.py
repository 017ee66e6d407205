"""The tables of BIF files, read straight into those of the graph."""

import math
from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from rdpgraph.errors import FileFormatError
from rdpgraph.io.bif_batches import HEAD, Batch
from rdpgraph.io.bif_probabilities import MOST_BY_DEFAULT, Probabilities, Scope, strides_of
from rdpgraph.io.bif_tokens import PIECE
from rdpgraph.io.text import Bytes
from rdpgraph.model.block import Block
from rdpgraph.model.compact import CompactVariables, StateLists
from rdpgraph.model.table import Table

Array = NDArray[np.float64]

_OPEN = 1 << 6  # batches that wait for more blocks


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
    """The blocks of one shape, and their tables."""

    shape: tuple[int, ...]
    blocks: "array[int]" = field(default_factory=lambda: array("i"))
    values: Array | None = None

    @property
    def tables(self) -> Array:
        """(F, size, rows) the tables."""
        assert self.values is not None
        return self.values.reshape(len(self.blocks), self.shape[0], -1)


def read_tables(
    data: Bytes,
    source: str,
    variables: CompactVariables,
    lists: StateLists,
    headers: Headers,
    dtype: torch.dtype,
) -> list[Block]:
    """The factors P(child | parents), those of one shape in one block.

    Args:
        data: the file.
        source: its name, for messages.
        variables: those of the file.
        lists: the names of their states.
        headers: where the blocks are.
        dtype: of the log-values.
    """
    reading = _Reading(data, source, variables, lists, headers)
    try:
        return [_block_of(group, headers, dtype) for group in reading.read()]
    except FileFormatError:
        reading.read_one_by_one()  # the first error of the file, which another may have come before
        raise


class _Reading:
    """The tables of a file: of the usual form many at a time, others one by one."""

    def __init__(
        self,
        data: Bytes,
        source: str,
        variables: CompactVariables,
        lists: StateLists,
        headers: Headers,
    ) -> None:
        self._data, self._source, self._headers = data, source, headers
        self._variables, self._lists = variables, lists
        self._groups: dict[tuple[int, ...], _Alike] = {}
        self._batches: dict[object, tuple[_Alike, Batch]] = {}
        self._budget = MOST_BY_DEFAULT

    def read(self) -> Iterable[_Alike]:
        """The groups of blocks, filled."""
        sizes, headers, groups = self._variables.sizes.data, self._headers, self._groups
        room = MOST_BY_DEFAULT
        for block in range(len(headers)):
            shape = tuple(map(sizes.__getitem__, headers.scope(block)))
            group = groups.get(shape)
            if group is None:
                group = groups[shape] = _Alike(shape)
            group.blocks.append(block)
            start, end = headers.body(block)
            # Nothing is allocated on the word of a header: only what the text fills, where an entry
            # takes two bytes, and defaults as far as the budget goes.
            lacking = math.prod(shape) - (end - start + 1) // 2
            if lacking > 0:
                room -= lacking
                if room < 0 or self._data.find(b"default", start, end) < 0:
                    self.read_one_by_one()
                    raise AssertionError("a table that the text cannot fill")
        for group in groups.values():
            group.values = np.empty(len(group.blocks) * math.prod(group.shape))
        for group in groups.values():
            for place, block in enumerate(group.blocks):
                self._put(group, place, block)
        for key in list(self._batches):
            self._close(key)
        return groups.values()

    def read_one_by_one(self) -> None:
        """Read every block on its own, in the order of the file."""
        self._budget = MOST_BY_DEFAULT
        for block in range(len(self._headers)):
            self._read_alone(block, None)

    def _put(self, group: _Alike, place: int, block: int) -> None:
        """Read a block, now or together with others."""
        start, end = self._headers.body(block)
        head = HEAD.match(self._data, start, end)
        rows = math.prod(group.shape[1:])
        of_rows = head is not None and head[1] is not None
        unusual = head is None or end - start > PIECE
        if unusual or (of_rows and self._data.count(b";", start, end) != rows):
            self._read_alone(block, group.tables[place])
            return
        states: list[Mapping[bytes, int]] = []
        if of_rows:
            states = Scope(self._variables, self._lists, self._headers.scope(block)).states()
        key = group.shape, of_rows
        if key not in self._batches:
            if len(self._batches) == _OPEN:
                self._close(next(iter(self._batches)))
            strides = strides_of(group.shape[1:]) if of_rows else None
            self._batches[key] = group, Batch(group.shape[0], rows, strides)
        batch = self._batches[key][1]
        batch.add(block, place, start, end, states)
        if batch.length > PIECE:
            self._close(key)

    def _close(self, key: object) -> None:
        """Read the blocks of a batch."""
        group, batch = self._batches.pop(key)
        left = [batch]
        while left:
            batch = left.pop()
            if batch.read(self._data, group.tables):
                continue
            if len(batch) > 1:  # one that is unusual is not to make the others slow
                left.extend(batch.halves())
            else:
                block, place = batch.spans[:2]
                self._read_alone(block, group.tables[place])

    def _read_alone(self, block: int, table: Array | None) -> None:
        scope = Scope(self._variables, self._lists, self._headers.scope(block))
        values = None if table is None else table.reshape(-1)
        body = self._headers.body(block)
        probabilities = Probabilities(self._data, self._source, scope, *body, values)
        self._budget -= probabilities.read(self._budget)


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
