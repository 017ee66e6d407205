"""Conditional probability tables: the factors of a Bayesian network, made and read."""

import graphlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rdpgraph._core import tuning
from rdpgraph._core.once import warn_once
from rdpgraph.errors import ModelError, UnsupportedError
from rdpgraph.model.block import Block
from rdpgraph.model.domain import Domain
from rdpgraph.model.factor import Factor
from rdpgraph.model.potentials.table import Table, as_values
from rdpgraph.model.variable import Variable, names_of

Array = NDArray[np.floating[Any]]
Conditional = tuple[Variable, Sequence[Variable], Any]
"""A variable, its parents, and probabilities (*batch, *parents, states of the variable)."""

_TOLERANCE = 0.1  # for files: a hundred states, each rounded by 0.001
_SILENT = 1e-4  # sums this near to one are not mentioned


@dataclass(frozen=True, eq=False)
class ConditionalTables:
    """The conditional tables of a Bayesian network, by the numbers of their variables.

    Attributes:
        slot: the place of the child in every scope: 0, or -1 for the last.
        places: for each child the block that holds its table, and the row there.
    """

    slot: int
    places: Mapping[int, tuple[Block, int]]

    @staticmethod
    def read(domain: Domain, blocks: Sequence[Block]) -> "ConditionalTables":
        """The network of factors P(x | parents), x first in every scope or last in every one."""
        count = sum(block.count for block in blocks)
        for slot in (0, -1):
            places: dict[int, tuple[Block, int]] = {}
            for block in blocks:
                if not block.arity or not _holds(block, slot):
                    break
                children = block.scopes[:, slot].tolist()
                places.update((child, (block, row)) for row, child in enumerate(children))
            network = ConditionalTables(slot, places)
            whole = len(places) == count == domain.count
            if whole and cycle_of({x: network.parents(x) for x in places}) is None:
                return network
        raise UnsupportedError(
            "Not a Bayesian network: expected one table P(x | parents) per variable, x first or "
            f"last in its scope; got {count} factors over {domain.count} variables."
        )

    def parents(self, child: int) -> list[int]:
        """The parents of a variable."""
        block, row = self.places[child]
        return [number for number in block.scopes[row].tolist() if number != child]

    def log_values(self, child: int) -> Tensor:
        """(*batch, *parents, states) the logarithms of a variable's table."""
        block, row = self.places[child]
        table = block.table(row)
        return table.movedim(-block.arity, -1) if self.slot == 0 else table


def parents_drawn(domain: Domain, blocks: Sequence[Block]) -> dict[int, list[int]] | None:
    """The parents of each variable of a Bayesian network, for pictures; None for other graphs.

    Factors over one variable that were declared after all tables, as soft evidence is, are left
    out. Tables of more than `tuning.BLOCK` entries are not read, and count as no network.
    """
    cells = sum(block.count * math.prod(block.sizes) for block in blocks)
    if cells > tuning.BLOCK or max((block.arity for block in blocks), default=0) < 2:
        return None
    tables: list[Block] = []
    for block in blocks:
        rows = (block.declared < domain.count).nonzero().flatten()
        if len(rows) == block.count:
            tables.append(block)
        elif block.arity != 1:
            return None
        elif len(rows):
            shape = (1,) if block.shared else (len(rows),)
            potential, declared = block.select(rows), block.declared[rows]
            tables.append(Block(block.scopes[rows], potential, shape, None, declared))
    try:
        network = ConditionalTables.read(domain, tables)
    except UnsupportedError:
        return None
    return {child: network.parents(child) for child in range(domain.count)}


def _holds(block: Block, slot: int) -> bool:
    """Test if every table of a block is conditional."""
    # Clipped above any probability, so that exp does not overflow.
    values = block.table().detach().double().clamp(max=1.0).exp().cpu().numpy()
    return is_conditional(values, -block.arity if slot == 0 else -1)


def is_conditional(values: Array, dim: int) -> bool:
    """Test if sums over a dim are 1 up to a file's rounding; all-zero rows pass."""
    with np.errstate(over="ignore"):
        sums = values.sum(axis=dim)
    return bool(((np.abs(sums - 1) <= _TOLERANCE) | (sums == 0)).all())


@dataclass(eq=False)
class SumsOff:
    """Rows of probabilities that do not sum to one, over many tables; all-zero rows pass."""

    count: int = 0
    _worst: tuple[float, int, float] = (0.0, 0, 1.0)  # how far off, the table, and the sum

    def add(self, tables: Sequence[int] | NDArray[np.integer[Any]], sums: Array) -> None:
        """Add the sums (T, rows) of tables of such numbers."""
        off = np.where(sums == 0, 0.0, np.abs(sums - 1))
        self.count += int((off > _SILENT).sum())
        place = int(off.argmax()) if off.size else 0
        if off.size and off.flat[place] > self._worst[0]:
            table = int(tables[place // (off.size // len(off))])
            self._worst = float(off.flat[place]), table, float(sums.flat[place])

    def warn(self, where: str, name_of: Callable[[int], str]) -> None:
        """Warn once, if there are any; ``name_of`` gives the variable of a table."""
        if self.count:
            _, table, total = self._worst
            rows = f"{self.count:,} row{'s' if self.count > 1 else ''}"
            warn_once(
                f"{where}: probabilities do not sum to one in {rows}; those of "
                f"{name_of(table)!r} sum to {total:.6g}. They are used as they are; divide each "
                "row by its sum, unless that is meant."
            )


def network_factors(conditionals: Iterable[Conditional], tolerance: float) -> list[Factor]:
    """The factors of conditional tables over (child, *parents), in the order given."""
    factors: list[Factor] = []
    parents: dict[str, list[str]] = {}
    off = SumsOff()
    for item in conditionals:
        child, given, values = _parts(item)
        if child.name in parents:
            raise ModelError(f"Variable {child.name!r} has two conditional tables; give one.")
        parents[child.name] = [parent.name for parent in given]
        table = _checked(child, given, as_values(f"The table of {child.name!r}", values), tolerance)
        sums = table.detach().double().sum(-1).cpu().numpy()
        off.add([len(factors)], sums.reshape(1, -1))
        table = table.movedim(-1, -1 - len(given))
        factors.append(Factor((child, *given), Table.from_probabilities(table)))
    for child, names in parents.items():
        lacking = [name for name in names if name not in parents]
        if lacking:
            raise ModelError(
                f"Variable {lacking[0]!r} is a parent of {child!r} and has no table; "
                "add one, without parents if it has none."
            )
    refuse_cycle(parents)
    off.warn("bayesian_network", list(parents).__getitem__)
    return factors


def cycle_of(parents: Mapping[Any, Iterable[Any]]) -> list[Any] | None:
    """The nodes along a directed cycle, the first one again at the end, or None."""
    try:
        graphlib.TopologicalSorter(parents).prepare()
    except graphlib.CycleError as error:
        return error.args[1]
    return None


def refuse_cycle(parents: Mapping[str, Iterable[str]]) -> None:
    """Raise a `ModelError` for variables whose parents form a cycle."""
    cycle = cycle_of(parents)
    if cycle is not None:
        shown = " - ".join(map(repr, cycle[:8]))
        raise ModelError(f"A Bayesian network cannot have a directed cycle; got {shown}.")


def _parts(item: object) -> Conditional:
    fits = isinstance(item, tuple | list) and len(item) == 3 and isinstance(item[0], Variable)
    if not fits:
        raise ModelError(
            "A Bayesian network needs (variable, parents, probabilities) for each variable; "
            f"got {item!r:.80}."
        )
    child, parents, values = item  # pyright: ignore[reportGeneralTypeIssues]
    several = isinstance(parents, tuple | list)
    if not several or not all(isinstance(parent, Variable) for parent in parents):
        raise ModelError(
            f"The parents of {child.name!r} must be a tuple of Variables, () for none; got "
            f"{parents!r:.80}."
        )
    return child, tuple(parents), values


def _checked(
    child: Variable, parents: Sequence[Variable], values: Tensor, tolerance: float
) -> Tensor:
    shape = tuple(variable.size for variable in (*parents, child))
    if values.ndim < len(shape) or tuple(values.shape[values.ndim - len(shape) :]) != shape:
        given = ", ".join(repr(parent.name) for parent in parents) or "nothing"
        raise ModelError(
            f"The table of {child.name!r} given {given} needs shape {shape}, parents first and the "
            f"variable last (batch dims in front); got {tuple(values.shape)}."
        )
    known = values.detach()
    off = ~((known.sum(-1) - 1).abs() <= tolerance) | ~(known >= 0).all(-1)
    if bool(off.any()):
        place = tuple(int(i) for i in off.nonzero()[0])
        raise ModelError(f"{_said(child, parents, place)} {_wrong(known[place])}.")
    return values


def _said(child: Variable, parents: Sequence[Variable], place: tuple[int, ...]) -> str:
    lead = place[: len(place) - len(parents)]
    states = place[len(lead) :]
    pairs = [
        f"{parent.name}={names_of(parent.states)[state]}"
        for parent, state in zip(parents, states, strict=True)
    ]
    given = f" given {', '.join(pairs)}" if pairs else ""
    item = f", in batch item {', '.join(map(str, lead))}," if lead else ""
    return f"The probabilities of {child.name!r}{given}{item}"


def _wrong(row: Tensor) -> str:
    if not bool((row >= 0).all()):
        return f"hold {'NaN' if bool(row.isnan().any()) else f'{float(row.amin()):.6g}'}, not >= 0"
    return f"sum to {float(row.sum(dtype=torch.float64)):.6g}, not to one"
