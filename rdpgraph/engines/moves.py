"""Moves of a search: variables that make tables large are fixed, and the others are solved."""

import math
from collections import deque
from collections.abc import Callable, Collection, Sequence, Set
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np

from rdpgraph._core import effort, tuning
from rdpgraph.engines.elimination import conditioned_order, eliminate
from rdpgraph.engines.reduction.tables import Integers, Tables
from rdpgraph.native.library import call, serves_graphs
from rdpgraph.plan import clock
from rdpgraph.plan.orders import PrimalGraph, joined, min_fill, min_weight


@dataclass(frozen=True, eq=False)
class MovedPart:
    """Variables that are solved together, while all others keep their states."""

    fixed: Sequence[int]  # variables that were asked for, but keep their states
    count: int  # the number of variables that are solved
    cells: float  # the number of entries of all tables together
    steps: Any  # a `ConditionedOrder`, or arrays for the compiled library


class Moves:
    """The moves on the tables of one batch item; compiled code makes them where it is available."""

    def __init__(self, tables: Tables, summed: frozenset[int]) -> None:
        self.tables, self.summed, self.compiled = tables, summed, serves_graphs()
        if not self.compiled:
            return
        # The model as flat arrays, in the order of the arguments of search.h: first the graph of
        # neighbours, which orders are found on.
        count = len(tables.sizes)
        self._starts, self._near = tables.graph.starts, tables.graph.near
        self._logs = np.log(np.array(tables.sizes, np.float64))
        self._sizes = np.array(tables.sizes, np.int32)
        self._summed = np.zeros(count, np.int8)
        self._summed[list(summed)] = 1
        # Scopes and values of all factors, one after the other.
        stacks = tables.stacks
        arities = np.repeat(
            [stack.scopes.shape[1] for stack in stacks], [len(stack.scopes) for stack in stacks]
        ).astype(np.int64)
        lengths = np.repeat(
            [stack.values[:1].size for stack in stacks], [len(stack.scopes) for stack in stacks]
        ).astype(np.int64)
        self._scope_starts = np.concatenate([[0], arities.cumsum()]).astype(np.int64)
        self._scopes = np.concatenate([s.scopes.ravel() for s in stacks] or [[]]).astype(np.int32)
        self._value_starts = (lengths.cumsum() - lengths).astype(np.int64)
        self._values = np.concatenate([s.values.ravel() for s in stacks] or [[]]).astype(float)
        # For each variable the factors that hold it.
        self._holding = np.repeat(np.arange(len(arities)), arities)[
            self._scopes.argsort(kind="stable")
        ].astype(np.int32)
        counts = np.bincount(self._scopes, minlength=count)
        self._holding_starts = np.concatenate([[0], counts.cumsum()]).astype(np.int64)

    def part(
        self, members: Collection[int], *, rng: Random, cells: float, sequence: Sequence[int] = (),
        degree: float = 1.0, deadline: float = math.inf,
    ) -> MovedPart | None:  # fmt: skip
        """Return a part of the members whose tables have at most so many cells.

        Arguments and results are those of `conditioned_order`.
        """
        if not self.compiled:
            order = conditioned_order(
                self.tables.graph, members, rng=rng, cells=cells,
                summed=self.summed.intersection(members), sequence=sequence, degree=degree,
                deadline=deadline,
            )  # fmt: skip
            return order and MovedPart(order.fixed, len(order.steps), order.cells, order)
        # Members, and for each variable its place in the sequence, if it has one.
        part = np.fromiter(members, np.int32, len(members))
        places = np.full(len(self._sizes), -1, np.int32)
        places[list(sequence)] = np.arange(len(sequence))
        # Room for the steps: a table of so many cells has this many dims at most, and no more than
        # there are members.
        smallest = max(min(self.tables.sizes, default=2), 2)
        capacity = int(len(part) * min(math.log(cells) / math.log(smallest) + 3, len(part)))
        steps, starts = np.empty(capacity, np.int32), np.zeros(len(part) + 1, np.int64)
        fixed, counts, total = np.empty(len(part), np.int32), np.zeros(2, np.int64), np.zeros(1)
        left = min(max(deadline - clock.now(), effort.ORDER_SECONDS), 1e9)
        arrays = self._starts, self._near, self._logs, self._summed, part, places, steps, starts
        call(
            "search_order", *arrays, fixed, counts, total, len(self._sizes), len(part), capacity,
            rng.getrandbits(62), math.log(cells), degree, left,
        )  # fmt: skip
        count, outside = counts.tolist()
        clock.count(tuning.MOVE_VARIABLE[1] * len(part))
        if count < 0:
            return None
        used = steps[: starts[count]].copy(), starts[: count + 1]
        return MovedPart(sorted(fixed[:outside].tolist()), count, float(total[0]), used)

    def solved(
        self, part: MovedPart, states: Integers, *, whole: bool = True
    ) -> tuple[Integers, float]:
        """Return the best states given those outside of the part, and their log-value.

        If ``whole`` is False, the log-value leaves out factors without a variable of the part.
        """
        if not self.compiled:
            return eliminate(self.tables, part.steps, states, summed=self.summed, whole=whole)
        variables = part.count + len(part.fixed)
        clock.count(tuning.MOVE_VARIABLE[1] * variables + tuning.MOVE_ENTRY * part.cells)
        states, value = states.copy(), np.zeros(1)
        arrays = self._sizes, self._scope_starts, self._scopes, self._value_starts, self._values
        call(
            "search_solve", *arrays, self._holding_starts, self._holding, self._summed, *part.steps,
            states, value, len(self._sizes), len(self._value_starts), part.count, int(whole),
        )  # fmt: skip
        return states, float(value[0])


class ComponentSum:
    """The log-sums over a connected component of summed variables.

    Such a sum depends only on the states of the variables around the component. It is kept under
    these, and looked up when they come again.
    """

    def __init__(
        self,
        moves: Moves,
        members: Set[int],
        plan: Callable[[Sequence[int], float], MovedPart | None],
    ) -> None:
        """Sum over the members, in the part that ``plan`` makes of them before a deadline."""
        self.moves, self.members, self.plan = moves, sorted(members), plan
        adjacency = moves.tables.graph.adjacency
        self.around = sorted({u for v in members for u in adjacency[v]}.difference(members))
        self.part: MovedPart | None = None
        self.known: dict[bytes, float] = {}

    def value(self, states: Integers, deadline: float) -> float | None:
        """Return the log-sum given the states of all others; None if its tables are too large."""
        key = states[self.around].tobytes()
        if key in self.known:
            return self.known[key]
        if self.part is None:
            self.part = self.plan(self.members, deadline)
        if self.part is None:
            return None
        if len(self.known) >= effort.KEPT_SUMS:
            self.known.clear()
        value = self.known[key] = self.moves.solved(self.part, states, whole=False)[1]
        return value


def components(graph: PrimalGraph, summed: Set[int]) -> dict[int, Set[int]]:
    """Return, for each summed variable, the connected component of summed variables around it."""
    components: dict[int, Set[int]] = {}
    for v in summed:
        if v in components:
            continue
        component, queue = {v}, [v]
        while queue:
            for u in graph.adjacency[queue.pop()]:
                if u in summed and u not in component:
                    component.add(u)
                    queue.append(u)
        components.update(dict.fromkeys(component, component))
    return components


def narrowest(
    graph: PrimalGraph, summed: Set[int], rng: Random, deadline: float
) -> tuple[list[int], float]:
    """Return an order of the summed variables given all others, and the size of its largest table.

    The size, a number of entries, is infinite if no order was found by the deadline.
    """
    names = sorted(summed)
    rank = {v: place for place, v in enumerate(names)}
    near = [{rank[u] for u in graph.adjacency[v] if u in rank} for v in names]
    part = PrimalGraph.of(near, [graph.sizes[v] for v in names])
    best, least = list(range(len(names))), math.inf
    for turn in range(effort.MOVE_ORDERS):
        rule = min_weight if turn == 0 else min_fill
        order = rule(part, rng=rng, deadline=deadline)
        cells = math.inf if order is None else _largest(part, order, deadline)
        if order is not None and cells < least:
            best, least = order, cells
    return [names[v] for v in best], least


def _largest(graph: PrimalGraph, order: Sequence[int], deadline: float) -> float:
    """Return the number of entries of an order's largest table; infinite if time runs out."""
    adjacency = [set(near) for near in graph.adjacency]
    logs = [math.log(size) for size in graph.sizes]
    weights = [logs[v] + sum([logs[u] for u in near]) for v, near in enumerate(adjacency)]
    largest = 0.0
    for v in order:
        if clock.now() > deadline:
            return math.inf
        largest = max(largest, weights[v])
        deque(joined(v, adjacency, weights, logs), maxlen=0)
    return math.exp(min(largest, 700.0))
