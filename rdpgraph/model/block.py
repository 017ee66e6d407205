"""Blocks of factors, the stored form of a graph: made, moved, described, and evaluated."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from itertools import combinations
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rdpgraph._core import tuning
from rdpgraph._core.cache import cached_property
from rdpgraph._core.notebook import circle, panel
from rdpgraph._core.portable import in_full_precision, tensors_in
from rdpgraph._core.types import Scopes
from rdpgraph.errors import EvidenceError, ModelError, UnsupportedError
from rdpgraph.model.domain import Domain, Entry
from rdpgraph.model.evidence import MISSING
from rdpgraph.model.factor import Factor, FactorBlock, Slot
from rdpgraph.model.potentials.automaton import Automaton
from rdpgraph.model.potentials.potential import Potential
from rdpgraph.model.potentials.table import Table
from rdpgraph.model.variable import Variable, VariableArray


@dataclass(frozen=True, eq=False)
class Block:
    """Factors of one shape and one kind of potential.

    Attributes:
        scopes: (F, arity) numbers of variables.
        potential: (*batch, *shape, sizes); all factors share it where ``shape`` counts one.
        shape: the potential's block dims.
        rows: (F,) each factor's place in the flattened block dims; None: the factor's number.
        declared: (F,) the place of each factor in the order of declaration.
        copied: version counters of the tensors that the potential copies, with their values then.
        count: the number of factors.
        arity: the number of slots.
        batch_shape: the batch dims of the potential.
    """

    scopes: Scopes
    potential: Potential
    shape: tuple[int, ...]
    rows: Tensor | None
    declared: Tensor
    copied: tuple[tuple[Tensor, int], ...] = field(default=(), metadata={"elsewhere": ()})
    count: int = field(init=False)
    arity: int = field(init=False)
    batch_shape: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        count, arity = self.scopes.shape
        lead = self.potential.lead(arity)
        batch = lead[: max(len(lead) - len(self.shape), 0)]
        vars(self).update(count=count, arity=arity, batch_shape=batch)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "copied": ()}  # a copy has no part in the versions of the originals

    @cached_property
    def watched(self) -> list[Tensor]:
        """The potential's tensors whose writes are counted."""
        potential = self.potential
        parts = [potential.log_values] if isinstance(potential, Table) else tensors_in(potential)
        return [part for part in parts if not part.is_inference()]

    @cached_property
    def layout(self) -> tuple[bytes, tuple[int, ...], int, bytes | None] | None:
        """Scopes, their shape, the number of tables, and each factor's; None with batch dims."""
        lead = self.potential.lead(self.arity)
        tables = math.prod(lead)
        if tables != 1 and lead != self.shape:
            return None
        rows = None if self.rows is None or tables == 1 else self.rows.numpy().tobytes()
        return self.scopes.numpy().tobytes(), tuple(self.scopes.shape), tables, rows

    @property
    def sizes(self) -> tuple[int, ...]:
        """The number of states of each slot."""
        return self.potential.slots(self.arity)

    @property
    def shared(self) -> bool:
        """True where all factors have one potential."""
        return math.prod(self.shape) == 1

    def holding(self, wanted: Tensor) -> tuple[Tensor, tuple[int, ...]] | None:
        """Factors (n,) that hold the variables (n, k), and their slots; None if one lacks."""
        scopes = self.scopes
        if not wanted.shape[1]:
            constant = len(scopes) and not scopes.shape[1]
            return (torch.zeros(1, device="cpu").long(), ()) if constant else None
        listed = wanted.tolist()
        holds = torch.stack([(scopes == number).any(1) for number in listed[0]]).all(0)
        for slots in {tuple(map(row.index, listed[0])): None for row in scopes[holds].tolist()}:
            columns = scopes[:, list(slots)]
            if len(wanted) == 1:
                return (columns == wanted[0]).all(1).nonzero()[0], slots
            rows = {tuple(held): place for place, held in enumerate(columns.tolist())}
            places = [rows.get(tuple(numbers), -1) for numbers in listed]
            if min(places) >= 0:
                return torch.tensor(places, device="cpu"), slots
        return None

    def select(self, rows: Tensor | None = None) -> Potential:
        """The potential of some factors (all, if None): (*batch, F or 1, sizes)."""
        places = self.rows if rows is None else rows
        if rows is not None and self.rows is not None:
            places = self.rows[rows]
        return self.potential.select(self.shape, None if self.shared else places, self.arity)

    def table(self, row: int | None = None) -> Tensor:
        """The log-values of a factor, (*batch, *sizes), or of all, as `select` gives them."""
        if (entries := math.prod(self.sizes)) > tuning.MOST_TABULATED:
            raise UnsupportedError(
                f"A {type(self.potential).__name__} over {self.arity} variables would be written "
                f"out to {entries:,} entries; at most {tuning.MOST_TABULATED:,} are."
            )
        rows = None if row is None else torch.tensor([row], device="cpu")
        table = self.select(rows).table(self.arity)
        one = row is not None and table.ndim > self.arity
        return table.squeeze(self.slot_axis) if one else table

    def unique(self) -> tuple[Tensor, Tensor | None]:
        """The distinct tables (*batch, U, sizes), and which each factor has (None: U is 1 or F)."""
        tables = self.potential.select(self.shape, None, self.arity).table(self.arity)
        if tables.ndim == self.arity:
            tables = tables.unsqueeze(0)
        return tables, None if tables.shape[-self.arity - 1] == 1 else self.rows

    @property
    def slot_axis(self) -> int:
        """The dim over factors of what `select` gives, from the end."""
        return -self.arity - 1


def no_factors(dtype: torch.dtype) -> Block:
    """A block without factors, by which a graph without any has a type of log-values."""
    none = torch.zeros(0, dtype=torch.long, device="cpu")
    potential = Table.checked(torch.zeros(0, dtype=dtype, device="cpu"))
    return Block(none.reshape(0, 0), potential, (0,), None, none)


def blocks_of(items: Sequence[Factor | FactorBlock], domain: Domain) -> tuple[Block, ...]:
    """Group factors of one shape and kind; a table that many factors share is stored once."""
    singles: dict[object, list[tuple[Factor, int]]] = {}
    blocks: list[Block] = []
    alike: dict[int, object] = {}
    declared = 0
    for item in items:
        if isinstance(item, Factor):
            potential = item.potential
            if type(potential) is Table:
                values, arity = potential.log_values, len(item.variables)
                key = values.shape, arity, values.dtype, values.device
            else:
                key = _group_key(item, alike)
            singles.setdefault(key, []).append((item, declared))
            declared += 1
        else:
            block = _declared_block(item, domain, declared)
            if block.count:
                blocks.append(block)
            declared += item.count
    blocks += [_grouped(group, domain) for group in singles.values()]
    return tuple(blocks)


def _group_key(factor: Factor, alike: dict[int, object]) -> object:
    """A key that factors of one block share, where they have no tables."""
    potential, arity = factor.potential, len(factor.variables)
    if isinstance(potential, Automaton):
        if id(potential) not in alike:
            alike[id(potential)] = _value_of(potential)
        return alike[id(potential)], arity
    return id(potential), arity


def _value_of(potential: Automaton) -> object:
    """A key that equal small constant constraints share, unique for any other one."""
    accept = potential.log_accept
    few = accept.ndim == 1 and len(accept) <= tuning.COMPARED_STATES
    if accept.requires_grad or accept.device.type != "cpu" or not few:
        return id(potential)
    steps = tuple(map(tuple, potential.transitions.tolist()))
    return steps, accept.dtype, tuple(accept.tolist())


def _grouped(group: list[tuple[Factor, int]], domain: Domain) -> Block:
    arity = len(group[0][0].variables)
    variables = [variable for factor, _ in group for variable in factor.variables]
    numbers = domain.singles(variables)
    if None in numbers:  # one that the domain refuses, with the reason
        numbers = list(map(domain.number, variables))
    places = torch.from_numpy(np.array([place for _, place in group]))
    listed = torch.from_numpy(np.array(numbers, np.int64).reshape(len(group), arity))
    tensors: dict[int, int] = {}
    kept: list[Tensor] = []
    rows: list[int] = []
    for factor, _ in group:
        potential = factor.potential
        if not isinstance(potential, Table):
            full, copied = _in_full_precision(potential)
            return Block(listed, full, (), None, places, copied)
        row = tensors.setdefault(id(potential.log_values), len(kept))
        if row == len(kept):
            kept.append(potential.log_values)
        rows.append(row)
    if len(kept) == 1:
        return Block(listed, group[0][0].potential, (), None, places)
    stacked = Table.checked(torch.stack(kept, dim=kept[0].ndim - arity))
    index = None if len(kept) == len(group) else torch.tensor(rows, device="cpu")
    return Block(listed, stacked, (len(kept),), index, places, _counters(kept))


def _in_full_precision(potential: Potential) -> tuple[Potential, tuple[tuple[Tensor, int], ...]]:
    """A potential that computes its values in float32 at least, and counters of what it copies.

    Tables compute nothing: their entries are exact in any type.
    """
    full = potential if isinstance(potential, Table) else in_full_precision(potential)
    return full, () if full is potential else _counters(list(tensors_in(potential)))


def _counters(kept: list[Tensor]) -> tuple[tuple[Tensor, int], ...]:
    """Empty tensors that share the version counters of others, with their values."""
    counted: dict[int, tuple[Tensor, int]] = {}
    empty = kept[0].new_empty(0)
    for part in kept:
        origin = part if part._base is None else part._base
        if id(origin) not in counted and not part.is_inference():
            counter = part.detach()
            counter.data = empty
            counted[id(origin)] = counter, part._version
    return tuple(counted.values())


def _declared_block(block: FactorBlock, domain: Domain, declared: int) -> Block:
    dims = block.shape
    # Numbers are written where they stay: of large graphs scopes are most of the memory.
    scopes = torch.empty(*dims, len(block.scopes), dtype=torch.long, device="cpu")
    for slot, column in enumerate(block.scopes):
        scopes[..., slot] = _slot_numbers(column, domain)
    scopes = scopes.reshape(-1, len(block.scopes))
    _refuse_repeats(scopes, domain)
    places = torch.arange(declared, declared + block.count, device="cpu")
    lead = block.potential.lead(len(block.scopes))
    aligned = lead[max(len(lead) - len(dims), 0) :]
    shared = math.prod(aligned) == 1
    # A shared potential keeps dims of size 1, to tell them from batch dims.
    shape = (1,) * len(aligned) if shared and block.count != 1 else dims
    potential, copied = _in_full_precision(block.potential)
    return Block(scopes, potential, shape, None, places, copied)


def _slot_numbers(slot: Slot, domain: Domain) -> Tensor:
    if isinstance(slot, Variable | VariableArray):
        return domain.numbers(slot)
    return torch.tensor([domain.number(v) for v in slot], dtype=torch.long, device="cpu")


def _refuse_repeats(scopes: Tensor, domain: Domain) -> None:
    # Slots of few variables are compared two by two, which is faster than sorting and needs no
    # memory for a copy.
    columns = scopes.unbind(1)
    if len(columns) <= _COMPARED_SLOTS and not any(
        bool((one == other).any()) for one, other in combinations(columns, 2)
    ):
        return
    ordered, slots = scopes.sort(dim=1, stable=True)
    again = (ordered[:, 1:] == ordered[:, :-1]).nonzero()
    if len(again):
        row, place = again[0].tolist()
        name = domain.variable(int(ordered[row, place])).name
        first, second = slots[row, place : place + 2].tolist()
        raise ModelError(
            f"A factor holds variable {name!r} in slots {first} and {second}; each variable once."
        )


def items_in_order(items: Iterable[Factor | FactorBlock]) -> list[Variable | VariableArray]:
    """The variables of factors in order of appearance."""
    found: list[Variable | VariableArray] = []
    for item in items:
        if isinstance(item, Factor):
            found += item.variables
            continue
        for slot in item.scopes:
            if isinstance(slot, Variable | VariableArray):
                found.append(slot)
            else:
                found += slot
    return found


def in_order(blocks: Sequence[Block]) -> list[tuple[int, int]]:
    """The block and the row of every factor, in order of declaration."""
    places = [
        (number, place, row)
        for place, block in enumerate(blocks)
        for row, number in enumerate(block.declared.tolist())
    ]
    return [(place, row) for _, place, row in sorted(places)]


def tabulated(blocks: Sequence[Block]) -> Iterator[tuple[list[int], Tensor]]:
    """The scope and the table of every factor, in order of declaration."""
    tables = [block.table() for block in blocks]
    scopes = [block.scopes.tolist() for block in blocks]
    for place, row in in_order(blocks):
        table, axis = tables[place], blocks[place].slot_axis
        if table.ndim >= -axis:
            table = table.select(axis, row if table.shape[axis] > 1 else 0)
        yield scopes[place][row], table


_SHOWN = 6  # entries of a list shown in a text
_COMPARED_SLOTS = 4  # slots compared two by two: six pairs take no longer than a sort


def outliving(
    blocks: Iterable[Block], observed: Tensor | None
) -> tuple[tuple[Block, ...], Tensor | None]:
    """Copies of blocks and evidence made in inference mode, through which gradients may pass."""
    copies = tuple(
        replace(
            block,
            scopes=block.scopes.clone(),
            rows=None if block.rows is None else block.rows.clone(),
            declared=block.declared.clone(),
        )
        for block in blocks
    )
    return copies, None if observed is None else observed.clone()


def moved(potential: Potential, *args: Any) -> Potential:
    """A potential on another device or of another floating type."""
    if isinstance(potential, Table):
        return Table.from_logs(potential.log_values.to(*args))
    if not is_dataclass(potential):
        return potential
    changes: dict[str, Tensor] = {}
    for part in fields(potential):
        value = getattr(potential, part.name)
        if part.init and isinstance(value, Tensor):
            moved = torch.empty(0, dtype=value.dtype, device=value.device).to(*args)
            changes[part.name] = (
                value.to(*args) if value.is_floating_point() else value.to(moved.device)
            )
    return replace(potential, **changes)


def moved_blocks(blocks: Iterable[Block], *args: Any) -> list[Block]:
    """Blocks with their potentials on another device or of another floating type."""
    try:
        torch.empty(0, device="cpu").to(*args)
    except (AssertionError, RuntimeError, TypeError) as error:
        reason = str(error).partition("\n")[0]
        raise ModelError(f"FactorGraph.to needs a device or a type: {reason}") from None
    return [Block(b.scopes, moved(b.potential, *args), b.shape, b.rows, b.declared) for b in blocks]


def described(
    domain: Domain, blocks: Sequence[Block], observed: Tensor | None, batch_shape: tuple[int, ...]
) -> str:
    """Describe a `FactorGraph` as its `repr` does."""
    factors = sum(block.count for block in blocks)
    lines = [f"FactorGraph of {domain.count:,} variables and {factors:,} factors"]
    if batch_shape:
        lines[0] += f", batch {batch_shape}"
    lines.append(
        f"  variables: {_some(list(map(_described, domain.entries[:_SHOWN])), len(domain.entries))}"
    )
    kinds = [
        f"{b.count:,} of shape {b.sizes}{' (one table)' if b.shared and b.count > 1 else ''}"
        for b in blocks
        if b.count
    ]
    lines.append(f"  factors: {_some(kinds[:_SHOWN], len(kinds))}")
    if observed is not None:
        seen = (observed != MISSING).reshape(-1, domain.count).any(0)
        lines.append(f"  observed: {int(seen.sum()):,} variables")
    return "\n".join(lines)


MOST_PICTURED = 24  # variables of a graph that is drawn in a notebook


def pictured(
    text: str, domain: Domain, blocks: Sequence[Block], parents: Mapping[int, Sequence[int]] | None
) -> str:
    """A description as HTML, with a drawing of small graphs; parents are joined by arrows."""
    if not 0 < domain.count <= MOST_PICTURED or sum(block.count for block in blocks) > 100:
        return panel(text)
    names = [domain.variable(number).name for number in range(domain.count)]
    if parents is not None:
        pairs = ((names[one], names[child]) for child, above in parents.items() for one in above)
        return panel(text, circle(names, pairs, arrows=True))
    scopes = (scope for block in blocks for scope in block.scopes.tolist())
    return panel(text, circle(names, ([names[number] for number in scope] for scope in scopes)))


def _described(entry: Entry) -> str:
    if isinstance(entry, VariableArray):
        return f"{entry.name} {entry.shape} of {entry.size} states"
    if isinstance(entry.states, tuple) and len(entry.states) <= 4:
        return f"{entry.name} ({', '.join(map(str, entry.states))})"
    return f"{entry.name} ({entry.size} states)"


def _some(shown: Sequence[str], count: int) -> str:
    """The first parts of a list, and the number of others."""
    listed = "; ".join(shown) or "none"
    return listed if count == len(shown) else f"{listed}; and {count - len(shown):,} more"


def log_values_at(
    states: Tensor, domain: Domain, blocks: Sequence[Block], observed: Tensor | None,
    device: torch.device,
) -> tuple[Tensor, Iterator[Tensor], tuple[int, ...]]:  # fmt: skip
    """Log-values of a graph at configurations (*lead, V), -1 where a variable has no state.

    Returns:
        (..., V or 1) bool, True where a state contradicts the evidence; for each block (..., F)
        log-values of its factors, differentiable; the leading dims.
    """
    clash = torch.zeros(1, dtype=torch.bool, device=device)
    if observed is not None:
        seen, states = torch.broadcast_tensors(observed, states)
        # States that are not given are those observed.
        clash = ((seen != MISSING) & (states != MISSING) & (seen != states)).to(device)
        states = torch.where(states == MISSING, seen, states)
    missing = states == MISSING
    lacking = (missing.flatten(0, -2).any(0) if missing.ndim > 1 else missing).nonzero()
    if len(lacking):
        name = domain.variable(int(lacking[0])).name
        row = f" in row {int(missing[:, lacking[0]].nonzero()[0, 0])}" if missing.ndim == 2 else ""
        raise EvidenceError(
            f"An assignment needs a state for every variable; {len(lacking)} have none, "
            f"such as {name!r}{row}."
        )

    def values() -> Iterator[Tensor]:
        for block in blocks:
            chosen = states[..., block.scopes].to(device)
            slots = [chosen[..., slot].unsqueeze(-1) for slot in range(block.arity)]
            each = block.select().evaluate(slots)
            each = each.reshape(each.shape[: each.ndim - block.arity] or (1,))
            yield each.expand(*each.shape[:-1], block.count)

    return clash, values(), tuple(states.shape[:-1])
