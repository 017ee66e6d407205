"""Tensors of a program: as its slots have them, and as numbers for the compiled machine."""

import math
import mmap
from array import array
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import torch
from torch import Tensor

from rdpgraph._core import tuning
from rdpgraph.native import library
from rdpgraph.structures.recursion.links import Table
from rdpgraph.structures.recursion.program import NotLoweredError, Program, Slot, lowered
from rdpgraph.structures.recursion.steps import Leaf
from rdpgraph.structures.recursion.tape import Tape

PROGRAM, GIVEN = ("program",), ("given",)
"""Keys of a tape's program, and of the tensors of its slots where its steps do not have them."""

_LAZY_BYTES = 2**22  # of zeros that are mapped
_PAGE_BYTES = 2**21  # of a large page, which begins at a multiple of them
TABLE, DIRECT = 9, -2
"""Numbers of a tensor, and the room of a table that is read where it lies."""


@dataclass(frozen=True, eq=False)
class Inputs:
    """The tensors that a program is run on."""

    unary: Tensor  # (B, sites, K) the potentials of the sites
    # Of each slot: leaves (B or 1, P, K), tables (n, S, I, J), of which item b has number b mod n,
    # or (I, J), and places (B or 1, M, P) int64.
    given: Sequence[Tensor]

    def over(self, temperature: float) -> "Inputs":
        """All log-values over a temperature."""
        parts = [part / temperature if part.is_floating_point() else part for part in self.given]
        return Inputs(self.unary / temperature, parts)

    def double(self) -> "Inputs":
        """The same in float64."""
        given = [part.double() if part.is_floating_point() else part for part in self.given]
        return Inputs(self.unary.double(), given)


def tensor_of(slot: Slot, dtype: torch.dtype) -> Tensor:
    """The tensor of a slot, from its source."""
    if isinstance(slot, Leaf):
        assert slot.logs is not None
        return slot.logs.to(dtype).contiguous()
    if isinstance(slot, Table):
        return slot.source.contiguous() if slot.source.shape[1] > 1 else slot.source
    assert slot.index is not None
    return slot.index.long().contiguous()


def inputs_of(tape: Tape, program: Program) -> Inputs:
    """The tensors that the program of a tape is run on."""
    given = tape.sources.known.get(GIVEN)
    if given is None:
        given = [tensor_of(slot, tape.dtype) for slot in program.slots]
    unary, shape = tape.unary, (tape.batch, math.prod(tape.site_shape), tape.unary.shape[-1])
    unary = unary if unary.shape == shape else unary.reshape(shape)
    return Inputs(unary.to(tape.dtype).contiguous(), given)


def known_program(tape: Tape) -> Program | None:
    """The program of a tape that has a goal, if there is one of all steps."""

    def made() -> Program | None:
        try:
            return lowered(tape.steps, math.prod(tape.site_shape), tape.unary.shape[-1])
        except NotLoweredError:
            return None

    return tape.sources.once(PROGRAM, made)


def chain_of(tape: Tape) -> tuple[Tensor, Tensor, Tensor] | None:
    """The unary, transition and lengths of a tape that is laid out as a chain; None for others.

    (B, T, K), (K, K) or (1 or B, 1 or T - 1, K, K), and (B,).
    """
    program = known_program(tape)
    if program is None or program.ends is None:
        return None
    inputs = inputs_of(tape, program)
    tables = inputs.given[next(iter(program.rows)) - 1]
    lengths = torch.tensor(program.ends, device="cpu")
    for part in inputs.given:
        if not part.is_floating_point():  # none where an item has no end
            lengths = torch.cat([lengths, lengths.new_zeros(1)])[part.cpu().flatten()]
    items = len(inputs.unary)
    if 1 < len(tables) < items:
        tables = tables.repeat(items // len(tables), 1, 1, 1)
    tables = tables[0, 0] if tables.shape[:2] == (1, 1) else tables
    return inputs.unary, tables, lengths.expand(items).to(tape.device)


def table_in_rows(program: Program, tables: "array[int]") -> "array[int] | None":
    """The numbers of the only table, if values of its links lie as rows before and after do."""
    if program.first_link is None:
        return None
    (slot,) = program.rows
    table = tables[TABLE * slot : TABLE * (slot + 1)]
    return table if table[1] == 1 else None  # not tables of items, whose rows lie item by item


def tables_of(program: Program, inputs: Inputs, *, alike: bool) -> tuple["array[int]", int]:
    """(slots, 9) addresses, sizes and strides of tensors, and the size of the prepared tables."""
    unary = inputs.unary
    wide = library.panel_width(unary.element_size())
    batch, sites, states = unary.shape
    rows = array("q", [unary.data_ptr(), batch, 0, sites, 0, states, 0, -1, 1])
    size = 0
    for slot, (owner, part) in enumerate(zip(program.slots, inputs.given, strict=True), 1):
        if isinstance(owner, Table):
            items, many, depth, columns = (1, 1, *part.shape)[-4:]
            hop, _, row, column = (0, 0, *part.stride())[-4:]
            direct = items == batch and program.reads[slot] <= tuning.DIRECT_ROWS * many
            one = alike and not direct and items > 1 and not hop  # for all items
            hop, room = -1 if one else hop, DIRECT if direct else size
            rows.extend((part.data_ptr(), items, hop, depth, row, columns, column, room, many))
            panels = -(-columns // wide) * depth + -(-depth // wide) * columns
            size += (not direct) * (1 if one else items) * many * (columns + panels * wide)
        else:
            rows.extend((part.data_ptr(), part.shape[0], part.stride(0), 0, 0, 0, 0, -1, 1))
    return rows, size


def zeros(like: Tensor, count: int | None = None, *, dense: bool = False) -> Tensor:
    """Zeros of a tensor's shape, or room for a count; many take memory only where written to.

    Large pages, which are mapped in less time, if ``dense``: nearly all will be written to.
    """
    size = (like.numel() if count is None else count) * like.element_size()
    if size < _LAZY_BYTES or not hasattr(mmap, "MAP_ANONYMOUS"):
        if count is not None:
            return like.new_empty(count)
        return torch.zeros_like(like, memory_format=torch.contiguous_format)
    # The last one as well, if over a quarter of it is used.
    whole = round(size / _PAGE_BYTES + 0.25) * _PAGE_BYTES if dense else 0
    bound = max(size, whole) + _PAGE_BYTES
    room = mmap.mmap(-1, bound, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    start = -torch.frombuffer(room, dtype=torch.uint8).data_ptr() % _PAGE_BYTES
    if dense:
        with suppress(AttributeError, OSError):  # there are none
            room.madvise(mmap.MADV_HUGEPAGE, start, whole)
    part = torch.frombuffer(room, dtype=like.dtype, offset=start, count=size // like.element_size())
    return part.reshape(like.shape if count is None else count)


def places_of(parts: Sequence[Tensor | None]) -> "array[int]":
    """The addresses of tensors; 0: none."""
    return array("q", [0 if part is None else part.data_ptr() for part in parts])
