"""Search for a good contraction tree: greedy orders, then annealing while it gains.

Annealing starts from the best tree and at times from a noisy elimination order. It found cheaper
trees per second than the refinements of opt_einsum and cotengra, and starts from their greedy paths
did not make it better.
"""

from collections.abc import Set
from itertools import chain
from math import inf, log2
from random import Random

from rdpgraph._core import effort, tuning
from rdpgraph.errors import BudgetError
from rdpgraph.plan import clock
from rdpgraph.plan.anneal import HOT, anneal
from rdpgraph.plan.orders import (
    Rule,
    forest_order,
    graph_of,
    min_fill,
    min_weight,
    peel,
    weighted_min_fill,
)
from rdpgraph.plan.plan import Cost, cost, predicted_seconds
from rdpgraph.plan.tree import (
    ContractionStep,
    ContractionTree,
    Topology,
    Workbench,
    tree_from_order,
)


class HopelessError(BudgetError):
    """Every order is too expensive, however long the search."""


CLOCK_STEP = 1e-9
"""Least seconds of a run, for clocks that have not moved."""


def search(
    topology: Topology,
    *,
    deadline: float,
    memory_elements: float,
    seed: int = 0,
    last: Set[int] = frozenset(),
    batch: int = 1,
) -> ContractionTree:
    """Search for the cheapest contraction tree in reasonable time.

    A forest gets its optimal tree at once. Otherwise every component is peeled of its safe
    variables, tried with the greedy orders, and annealed; components that are alike are solved
    once. The search stops when it has taken as long as the best tree is predicted to run, when it
    no longer gains, or at the deadline.

    Args:
        topology: the model's shape.
        deadline: on `clock.now`.
        memory_elements: trees that store more elements than this rank behind all that fit, by their
            excess and by predicted time (slicing turns the first into the second).
        seed: of every random choice; the time limits decide how many there are.
        last: variables eliminated after all others of their component (marginal MAP). Every step
            in such a component eliminates at most one variable.
        batch: number of items that run at once; multiplies operations and storage.

    Raises:
        BudgetError: no order of fewer than 2^64 operations is in sight by the deadline.
    """
    began = clock.now()
    order = None if last else forest_order(topology)
    if order is not None:
        return tree_from_order(topology, order)
    parts = _parts(topology, last, memory_elements, batch, deadline)
    rng = Random(seed)
    for part in parts:
        part.try_greedy(deadline)
    # Improve what does not fit, then what takes the most time, for as long as all would run.
    while waiting := [part for part in parts if part.improvable]:
        fits = all(part.excess() <= 0 for part in parts)
        end = min(deadline, began + sum(p.predicted() for p in parts)) if fits else deadline
        quick = sum(part.predicted() for part in parts) < effort.EASY_SECONDS
        if (fits and quick) or clock.now() >= end:
            break
        max(waiting, key=_Component.rank).improve(rng, end)
    return _joined(topology, parts)


def _parts(
    topology: Topology, last: Set[int], memory_elements: float, batch: int, deadline: float
) -> list["_Component"]:
    """Distinct components, each with all its places in the topology."""
    parts: dict[object, _Component] = {}
    for tensors in topology.components():
        if len(tensors) > effort.GREEDY_VARIABLES and clock.now() > deadline:
            raise BudgetError(_out_of_reach(topology.num_variables, len(tensors)))
        began = clock.now()
        # Components that are equal up to the numbers of their variables are planned once.
        scopes = [topology.scopes[t] for t in tensors]
        names = tuple(sorted(set(chain.from_iterable(scopes))))
        rank = {name: i for i, name in enumerate(names)}
        ranked = tuple([tuple([rank[v] for v in scope]) for scope in scopes])
        sizes = tuple([topology.sizes[v] for v in names])
        late = frozenset([rank[v] for v in last if v in rank])
        signature = ranked, sizes, late
        part = parts.get(signature)
        if part is None:
            part = _Component(Topology(ranked, sizes), late, deadline, began)
            parts[signature] = part
        part.places.append((tensors, names))
    for part in parts.values():
        part.copies = len(part.places) * batch
        part.memory = memory_elements / part.copies
    return list(parts.values())


class _Component:
    """A component and its copies: the peeled prefix, the core, and the best core tree so far."""

    def __init__(self, topology: Topology, last: Set[int], deadline: float, began: float) -> None:
        self.topology = topology
        self.places: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
        self.copies = 1
        self.memory = inf
        if topology.num_variables <= effort.GREEDY_VARIABLES:
            deadline = inf
        graph = graph_of(topology)
        # What comes before the first order is linear too, and has no end of its own: it is not
        # begun where it would not be over by the deadline.
        now = clock.now()
        if now + effort.BEFORE_ORDERS * (now - began) > deadline:
            raise BudgetError(_out_of_reach(topology.num_variables, topology.num_tensors))
        prefix, _, _ = peel(graph, last=last, deadline=deadline)
        self.bench = Workbench(topology, eager=not last)
        for variable in prefix:
            self.bench.eliminate(variable)
        self.core, self.live, self.names = self.bench.residual()
        self.last = frozenset(i for i, name in enumerate(self.names) if name in last)
        self.graph = graph_of(self.core)
        self.levels = 1 + max(self.bench.levels, default=0)
        self.best: ContractionTree | None = None
        self.cost: Cost | None = None
        self.improvable = False
        self.sweeps = float(effort.FIRST_SWEEPS)
        self.runs = 0
        self.stale = 0
        self.visit_seconds = 4e-6

    def rank(self, tree_cost: Cost | None = None) -> tuple[bool, float]:
        """Sort key of trees and parts: those within memory by time, the rest by time and excess."""
        excess = self.excess(tree_cost)
        return excess > 0, log2(self.predicted(tree_cost)) + 2.0 * excess

    def excess(self, tree_cost: Cost | None = None) -> float:
        """log2 of stored elements over memory, prefix included; 0 when they fit."""
        known = tree_cost or self.cost
        stored = self.bench.stored + (known.stored if known else 0)
        return log2(stored) - log2(self.memory) if stored > self.memory else 0.0

    def predicted(self, tree_cost: Cost | None = None) -> float:
        """Predicted seconds for all copies, prefix included."""
        known = tree_cost or self.cost
        flops = self.bench.flops + (known.flops if known else 0)
        groups = known.groups if known else 0
        slices = self.levels * tuning.SECONDS_PER_GROUP
        return predicted_seconds(flops * self.copies, groups) + slices

    def try_greedy(self, stop: float) -> None:
        """Try each deterministic rule once, the fastest first, so that there is a tree."""
        if not self.core.num_tensors:
            return
        if self.core.num_variables <= effort.GREEDY_VARIABLES:
            stop = inf
        began = clock.now()
        hopeless = 2.0**effort.HOPELESS_BITS
        self._try_rule(min_weight, hopeless, stop)
        now = clock.now()
        error = HopelessError if self.best is None and now <= stop else BudgetError
        deadline = stop if self.best else min(stop, now + 2.0 + 2.0 * (now - began))
        weighted = len(set(self.core.sizes)) > 1
        for rule in (weighted_min_fill, min_fill) if weighted else (min_fill,):
            self._try_rule(rule, hopeless, deadline)
        if self.best is None:
            raise error(_out_of_reach(self.topology.num_variables, self.topology.num_tensors))
        masks = self.core.num_tensors * self.core.num_variables
        self.improvable = self.core.num_tensors > 2 and masks <= tuning.MOST_MASKS

    def improve(self, rng: Random, end: float) -> None:
        """Try again for a better tree: by annealing, or by an order if some variables come last."""
        before = self.rank()
        if self.last:
            self._reorder(rng, end)
        else:
            self._anneal(rng, end)
        after = self.rank()
        gained = after[0] < before[0] or after[1] < before[1] + log2(effort.RUN_GAIN)
        self.stale = 0 if gained else self.stale + 1
        if self.stale >= effort.STALE_RUNS * (20 if self.last else 1):
            self.improvable = False

    def _reorder(self, rng: Random, end: float) -> None:
        assert self.cost is not None
        rule = weighted_min_fill if rng.random() < 0.7 else min_fill
        limit = 2.0 * min(self.cost.flops, 1 << 500)
        self._try_rule(rule, limit, end, rng=rng, noise=rng.choice((0.1, 0.5, 1.0)))

    def _anneal(self, rng: Random, end: float) -> None:
        assert self.best is not None
        start = self.best
        self.runs += 1
        # Now and then begin at a new greedy tree, else at the best one.
        if self.runs % effort.FRESH_EVERY == 0:
            order = weighted_min_fill(self.graph, rng=rng, noise=0.5, deadline=end)
            start = tree_from_order(self.core, order) if order else start
        began = clock.now()
        # As many sweeps as the time allows by the speed measured so far.
        affordable = (end - began) / (len(start.steps) * self.visit_seconds)
        sweeps = int(min(self.sweeps, affordable))
        if sweeps < effort.FIRST_SWEEPS / 4:
            self.improvable = False
            return
        # Long runs begin hot every other time, and count writes where memory is short.
        tree = anneal(
            start,
            rng=rng,
            sweeps=sweeps,
            hot=2.0 * HOT if sweeps >= effort.LONG_RUN and self.runs % 2 else HOT,
            write_weight=tuning.STORED_ELEMENT if self.excess() > 0 else 1.0,
            deadline=end,
        )
        # What it took tells the speed of the next run, which is longer.
        taken = max(clock.now() - began, CLOCK_STEP)
        self.visit_seconds = taken / (len(start.steps) * sweeps)
        self.sweeps = min(self.sweeps * effort.SWEEP_GROWTH, effort.MOST_SWEEPS)
        if tree is not self.best:
            self._offer(tree)

    def _try_rule(
        self,
        rule: Rule,
        limit: float,
        deadline: float,
        *,
        rng: Random | None = None,
        noise: float = 0.0,
    ) -> None:
        if clock.now() > deadline:  # a rule looks at the clock once it has read the graph
            return
        order = rule(
            self.graph, rng=rng, noise=noise, last=self.last, limit=limit, deadline=deadline
        )
        if order is not None:
            self._offer(tree_from_order(self.core, order, eager=self.bench.eager))

    def _offer(self, tree: ContractionTree) -> None:
        tree_cost = cost(tree)
        if self.best is None or self.rank(tree_cost) < self.rank():
            self.best, self.cost = tree, tree_cost

    def steps(self) -> list[ContractionStep]:
        """Return the steps of the whole component, those of the prefix first."""
        steps = list(self.bench.steps)
        if self.best is None:
            return steps
        made = len(self.bench.scopes)
        ids = [*self.live, *range(made, made + len(self.best.steps))]
        return steps + _renamed(self.best.steps, ids, self.names)


def _out_of_reach(variables: int, factors: int) -> str:
    return (
        f"Exact contraction of a component of {variables} variables and {factors} factors is out "
        f"of reach: every elimination order tried needs more than 2^{effort.HOPELESS_BITS} "
        "operations, or more time than there is to plan in. Use an approximate method."
    )


def _renamed(
    steps: tuple[ContractionStep, ...] | list[ContractionStep],
    ids: list[int],
    names: tuple[int, ...],
) -> list[ContractionStep]:
    """Steps with other numbers for tensors and variables (ascending ones, so scopes stay so)."""
    return [
        ContractionStep(
            ids[left], ids[right] if right >= 0 else -1, tuple([names[v] for v in scope])
        )
        for left, right, scope in steps
    ]


def _joined(topology: Topology, parts: list[_Component]) -> ContractionTree:
    """Steps of all parts, once per copy, in the topology's numbers."""
    joined: list[ContractionStep] = []
    for part in parts:
        steps = part.steps()
        for tensors, names in part.places:
            made = topology.num_tensors + len(joined)
            joined += _renamed(steps, [*tensors, *range(made, made + len(steps))], names)
    return ContractionTree(topology, tuple(joined))
