"""The tables of BIF files, read straight into those of the graph."""

import math
from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from rdpgraph.errors import FileFormatError
from rdpgraph.io.bif_batches import listed_of, tables_of
from rdpgraph.io.bif_probabilities import MOST_BY_DEFAULT, Probabilities, Scope, strides_of
from rdpgraph.io.bif_tokens import PIECE
from rdpgraph.io.shapes import alike, distinct_sizes
from rdpgraph.io.text import Bytes
from rdpgraph.model.block import Block
from rdpgraph.model.compact import CompactVariables, StateLists
from rdpgraph.model.conditional import is_conditional
from rdpgraph.model.table import Table

Array = NDArray[np.float64]


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
    blocks: NDArray[np.int32]
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
        self._starts = np.frombuffer(headers.starts, np.int64)
        self._members = np.frombuffer(headers.members, np.int32)
        self._bodies = np.frombuffer(headers.bodies, np.int64).reshape(-1, 2)
        self._budget = MOST_BY_DEFAULT

    def read(self) -> Iterable[_Alike]:
        """The groups of blocks, filled."""
        groups, lengths = self._groups(), np.diff(self._bodies)[:, 0]
        room = MOST_BY_DEFAULT
        for group in groups:
            # Nothing is allocated on the word of a header: only what the text fills, where an entry
            # takes two bytes, and defaults as far as the budget goes.
            size = min(math.prod(group.shape), 2 * MOST_BY_DEFAULT + len(self._data))
            lacking = size - (lengths[group.blocks] + 1) // 2
            short = self._bodies[group.blocks[lacking > 0]].tolist()
            room -= int(lacking[lacking > 0].sum())
            if room < 0 or any(self._data.find(b"default", *body) < 0 for body in short):
                self.read_one_by_one()
                raise AssertionError("a table that the text cannot fill")
        for group in groups:
            group.values = np.empty(len(group.blocks) * math.prod(group.shape))
        for group in groups:
            own = lengths[group.blocks]
            for place in np.flatnonzero(own > PIECE).tolist():
                self._read_alone(int(group.blocks[place]), group.tables[place])
            places = np.flatnonzero(own <= PIECE)
            parts = own[places].cumsum() // PIECE
            for part in np.split(places, np.flatnonzero(np.diff(parts)) + 1):
                self._read_part(group, part)
        return groups

    def _groups(self) -> list[_Alike]:
        """The blocks by shape, in the order of the first of each."""
        groups: list[_Alike] = []
        sizes, arities = self._variables.sizes, np.diff(self._starts)
        distinct = distinct_sizes(sizes)
        for arity in np.unique(arities).tolist():
            rows = np.flatnonzero(arities == arity).astype(np.int32)
            scopes = self._members[self._starts[rows, None] + np.arange(arity)]
            for part in alike(scopes, sizes, distinct):
                shape = tuple(sizes[scopes[part][0]].tolist())
                groups.append(_Alike(shape, rows[part]))
        return sorted(groups, key=lambda group: int(group.blocks[0]))

    def read_one_by_one(self) -> None:
        """Read every block on its own, in the order of the file."""
        self._budget = MOST_BY_DEFAULT
        for block in range(len(self._headers)):
            self._read_alone(block, None)

    def _read_part(self, group: _Alike, places: NDArray[np.int64]) -> None:
        """Read some blocks of a group, those of tables and those of rows together."""
        texts = [
            bytes(self._data[at:end]) for at, end in self._bodies[group.blocks[places]].tolist()
        ]
        of_rows = np.fromiter((b"(" in text for text in texts), np.bool_, len(texts))
        for kind in (False, True):
            left = [np.flatnonzero(of_rows == kind)]
            while left:
                part = left.pop()
                own = [texts[at] for at in part.tolist()]
                if not own or self._read_together(group, places[part], own, of_rows=kind):
                    continue
                if len(own) > 1:  # one that is unusual is not to make the others slow
                    left += np.array_split(part, 2)
                    continue
                place = int(places[part[0]])
                self._read_alone(int(group.blocks[place]), group.tables[place])

    def _read_together(
        self, group: _Alike, places: NDArray[np.int64], texts: list[bytes], *, of_rows: bool
    ) -> bool:
        """Fill the tables of some blocks, if all of them are of the usual form."""
        size, rows = group.shape[0], math.prod(group.shape[1:])
        if of_rows:
            codes = list[tuple[list[Mapping[bytes, int]], int]]()
            for slot, stride in enumerate(strides_of(group.shape[1:]), 1):
                members = self._members[self._starts[group.blocks[places]] + slot]
                lists = self._variables.lists_of(members)
                codes.append((list(map(self._lists.places, lists)), stride))
            values = listed_of(texts, size, rows, codes)
        else:
            values = tables_of(texts, size, rows)
        if values is None or not is_conditional(values, 1):
            return False
        group.tables[places] = values
        return True

    def _read_alone(self, block: int, table: Array | None) -> None:
        scope = Scope(self._variables, self._lists, self._headers.scope(block))
        values = None if table is None else table.reshape(-1)
        body = self._headers.body(block)
        probabilities = Probabilities(self._data, self._source, scope, *body, values)
        self._budget -= probabilities.read(self._budget)


def _block_of(group: _Alike, headers: Headers, dtype: torch.dtype) -> Block:
    assert group.values is not None  # else reading has failed
    places = group.blocks
    starts = np.frombuffer(headers.starts, dtype=np.int64)[places]
    members = np.frombuffer(headers.members, dtype=np.int32)
    scopes = torch.from_numpy(members[starts[:, None] + np.arange(len(group.shape))]).long()
    count = len(places)
    shape = () if count == 1 else (count,)
    values, group.values = group.values, None
    table = torch.from_numpy(values).log_().to(dtype).reshape(*shape, *group.shape)
    return Block(scopes, Table.from_logs(table), shape, None, torch.from_numpy(places).long())
