"""Large neighbourhood search: large parts of a model solved exactly given the rest."""

import math
from collections import deque
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from random import Random

from rdpgraph._core.progress import goes_on
from rdpgraph.engines.reduction.tables import Integers, Tables
from rdpgraph.engines.search.elimination import eliminate
from rdpgraph.plan import clock
from rdpgraph.plan.cutset import ConditionedOrder, conditioned_order
from rdpgraph.plan.orders import PrimalGraph, joined, min_fill, min_weight

_CELLS = 2048
"""Entries of the largest table of a move to begin with, or a few states squared."""
_MOST_CELLS = 1 << 22
_BYTES = 4.0
"""Bytes held for each entry of the tables of a move, messages included."""
_TABLE, _SUMMED = 28.0, 2e7
"""Bytes for each entry of the largest table of a sum, and entries that are summed in a second."""
_ONCE = 0.1
"""Part of the time that one sum takes at most, as predicted."""
_PART = 8000
"""Variables of a part, at most: moves of a larger one take long."""
_STALE = 8
"""Moves without a gain after which tables grow, or some fixed variables are changed."""
_LONG = 0.03
"""Part of the time that a move may take: tables grow up to there."""
_KEPT, _AGAIN = 16, 0.8
"""Orders in the cache, and how often one is reused: finding one takes as long as carrying it out,
and its fixed variables have other states by then."""
_RETURN = 4
"""Moves after a change of fixed variables until its outcome is judged."""
_GREEDY = 0.5
"""Probability to eliminate summed variables in a greedy order, and not in the narrowest."""
_LOCAL, _NEAR = 0.7, (10, 30, 100)
"""Probability that a move with sums is around one variable, and numbers of variables around it."""
_ORDERS = 5
"""Orders of the summed variables of which the narrowest is taken."""
_ROUNDING = 1e-11
"""Relative gain of a score that counts as rounding."""


@dataclass(frozen=True)
class Move:
    """Progress of a search, as given to a callback after every move.

    Attributes:
        number: moves done.
        score: the log-value of the best configuration so far, or of its mass; nats.
        seconds: since the start.
    """

    number: int
    score: float
    seconds: float

    def __str__(self) -> str:
        return f"search: move {self.number}, best score {self.score:.4f}"


@dataclass(frozen=True, eq=False)
class Outcome:
    """Outcome of a search."""

    states: Integers  # (V,) the best configuration
    score: float  # its log-value (nats), sums over summed variables included
    optimal: bool  # no configuration is better
    moves: int  # number of parts solved
    seconds: float  # from the start to the last improvement


class Search:
    """Large neighbourhood search (Shaw 1998) whose parts are nearly the whole model.

    A part is all that an elimination order with small tables can solve while a random cutset keeps
    its states. When moves gain no more, the tables grow, and some of the cutset is changed at
    random (iterated local search: Lourenco, Martin and Stutzle 2003).
    """

    def __init__(
        self,
        tables: Tables,
        rng: Random,
        *,
        memory: float = math.inf,
        most: float = _MOST_CELLS,
        summed: frozenset[int] = frozenset(),
        deadline: float = math.inf,
        seconds: float = math.inf,
    ) -> None:
        """Prepare a search with at most ``memory`` bytes and ``most`` entries of a table per move.

        Sums over ``summed`` variables that take a large part of the seconds do not fit; their order
        is sought until the deadline.
        """
        self.tables, self.rng, self.summed = tables, rng, summed
        largest = max(tables.sizes, default=1)
        self.most = max(min(most, memory / (8 * _BYTES)), largest)
        self.memory = memory
        self.sums: ConditionedOrder | None = None
        self.together = _components(tables.graph, summed)
        self.asked = [v for v in range(len(tables.sizes)) if v not in summed]
        self.sequence: list[int] = []
        needed = 0.0
        if summed:
            self.sequence, needed = _narrowest(tables.graph, summed, rng, deadline)
        # With all that is maximised fixed, sums take so much, and a few free variables more.
        self.most = max(self.most, min(4 * needed, memory / _TABLE, _ONCE * _SUMMED * seconds))
        self.cells = float(min(max(_CELLS, 4 * largest**2, 4 * needed), self.most))
        self.small = self.cells
        self.kept: deque[ConditionedOrder] = deque(maxlen=_KEPT)
        self.whole = len(tables.sizes) <= _PART or bool(summed)

    def value(self, states: Integers, *, deadline: float = math.inf) -> float | None:
        """Log-value of a configuration; None if its sum has tables that are too large."""
        if not self.summed:
            return self.tables.score(states)
        if self.sums is None:
            self.sums = self._order(self.summed, self.most, deadline)
        if self.sums is None:
            return None
        return eliminate(self.tables, self.sums, states, summed=self.summed)[1]

    def run(
        self,
        states: Integers,
        *,
        seconds: float,
        patience: float = math.inf,
        any_possible: bool = False,
        progress: Callable[[Move], None] | None = None,
        constant: float = 0.0,
    ) -> Outcome | None:
        """Search for some seconds; None if a sum over the summed variables has too large tables.

        It ends after ``patience`` seconds without an improvement, or once no hard zero is met
        (``any_possible``). Progress is told scores plus a constant.
        """
        begin = gained = clock.now()
        end = begin + seconds
        value = self.value(states, deadline=end)
        if value is None:
            return None
        walk, took, moves = _Walk(states, value, self.rng), 0.0, 0
        while (start := clock.now()) + took <= end and start - gained <= patience:
            if any_possible and self.tables.is_possible(walk.best_value):
                break
            order = self._next(deadline=end, widely=walk.stuck or bool(walk.away))
            if order is None:
                if self.summed and clock.now() < end and self._grow():
                    continue
                break
            if walk.stuck and order.fixed:
                walk.leave(self._changed(walk.home, order))
            states, value = eliminate(self.tables, order, walk.here, summed=self.summed)
            moves += 1
            if len(order.steps) + len(order.fixed) < len(states):  # sums elsewhere are not in it
                value = self.value(states)
                assert value is not None
            took = clock.now() - start
            if len(order.steps) == len(states):
                return Outcome(
                    states, value, optimal=True, moves=moves, seconds=clock.now() - begin
                )
            if walk.arrive(states, value):
                gained = clock.now()
            move = Move(moves, walk.best_value + constant, clock.now() - begin)
            if not goes_on(progress, move):
                break
            if walk.stale % _STALE == _STALE - 1 and 2 * took < _LONG * seconds:
                self._grow()
        return Outcome(
            walk.best, walk.best_value, optimal=False, moves=moves, seconds=gained - begin
        )

    def _grow(self) -> bool:
        if 2 * self.cells > self.most:
            return False
        self.cells *= 2
        self.kept.clear()
        return True

    def _next(self, deadline: float, *, widely: bool) -> ConditionedOrder | None:
        """A part, as large as tables of the present size allow; some are reused.

        Unless ``widely``, it may be a small part around one variable.
        """
        small = self.summed and self.asked and not widely
        if small and self.rng.random() < _LOCAL:
            part = self._near(self.rng.choice(_NEAR))
            order = self._order(part, min(self.cells, self.small), deadline)
            if order is not None:
                return order
        if len(self.kept) == _KEPT and self.rng.random() < _AGAIN:
            self.kept.rotate()
            return self.kept[0]
        order = self._planned(deadline)
        if order is not None:
            self.kept.append(order)
        return order

    def _planned(self, deadline: float) -> ConditionedOrder | None:
        while True:
            part = range(len(self.tables.sizes)) if self.whole else self._near(_PART)
            order = self._order(part, self.cells, deadline)
            if order is None or order.cells * _BYTES <= self.memory or self.cells <= _CELLS:
                return order
            self.most = self.cells = self.cells / 2

    def _order(
        self,
        part: Sequence[int] | Set[int],
        cells: float,
        deadline: float,
    ) -> ConditionedOrder | None:
        degree = float(self.rng.choice((0, 1, 2)))
        summed, sequences = self.summed.intersection(part), [self.sequence]
        if self.summed and self.rng.random() < _GREEDY:  # more of the others stay free
            sequences.insert(0, [])
        for sequence in sequences:
            order = conditioned_order(
                self.tables.graph, part, rng=self.rng, cells=cells, summed=summed,
                sequence=[v for v in sequence if v in summed], degree=degree, deadline=deadline,
            )  # fmt: skip
            if order is not None:
                return order
        return None

    def _near(self, most: int) -> list[int]:
        """Variables around one to maximise over, with all that are summed together."""
        adjacency = self.tables.graph.adjacency
        seed = self.rng.choice(self.asked)
        part, queue = {seed}, deque([seed])
        while queue and len(part) < most:
            for u in adjacency[queue.popleft()]:
                if u not in part:
                    part.add(u)
                    queue.append(u)
        for v in [v for v in part if v not in self.summed]:
            for u in adjacency[v]:
                part.update(self.together.get(u, ()))
        part.update(*[self.together[v] for v in part if v in self.together])
        return sorted(part)

    def _changed(self, states: Integers, order: ConditionedOrder) -> Integers:
        """States with random ones for a few of the fixed variables."""
        count = min(self.rng.choice((1, 1, 2, 3, 5, 8)), len(order.fixed))
        changed = states.copy()
        for v in self.rng.sample(order.fixed, count):
            changed[v] = self.rng.randrange(self.tables.sizes[v])
        return changed


def _components(graph: PrimalGraph, summed: Set[int]) -> dict[int, Set[int]]:
    """Per summed variable the connected component of summed ones that holds it."""
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


def _narrowest(
    graph: PrimalGraph, summed: Set[int], rng: Random, deadline: float
) -> tuple[list[int], float]:
    """Order of the summed variables given all others, and the entries of its largest table.

    The size is infinite if no order was found by the deadline.
    """
    names = sorted(summed)
    rank = {v: place for place, v in enumerate(names)}
    near = tuple({rank[u] for u in graph.adjacency[v] if u in rank} for v in names)
    part = PrimalGraph(near, tuple(graph.sizes[v] for v in names))
    best, least = list(range(len(names))), math.inf
    for turn in range(_ORDERS):
        rule = min_weight if turn == 0 else min_fill
        order = rule(part, rng=rng, deadline=deadline)
        cells = math.inf if order is None else _largest(part, order, deadline)
        if order is not None and cells < least:
            best, least = order, cells
    return [names[v] for v in best], least


def _largest(graph: PrimalGraph, order: Sequence[int], deadline: float) -> float:
    """Entries of the largest table of an order; infinite if not counted in time."""
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


class _Walk:
    """Current, last accepted and best state of a search."""

    def __init__(self, states: Integers, value: float, rng: Random) -> None:
        self.here = self.home = self.best = states
        self.home_value = self.best_value = value
        self.rng = rng
        self.stale = self.away = 0

    @property
    def stuck(self) -> bool:
        """True if moves from home have gained nothing for long."""
        return not self.away and self.stale >= _STALE

    def leave(self, states: Integers) -> None:
        """Continue from other states for a few moves."""
        self.here, self.away = states, _RETURN

    def arrive(self, states: Integers, value: float) -> bool:
        """Accept or reject a move's outcome; return whether it is the best so far."""
        self.here = states
        gain = value > self.best_value + _ROUNDING * max(1.0, abs(value))
        if gain:
            self.best, self.best_value, self.stale = states, value, 0
        elif self.away <= 1:
            self.stale += 1
        self.away = max(self.away - 1, 0)
        if self.away:
            return gain
        loss = self.home_value - value
        if loss <= 0 or self.rng.random() <= math.exp(-loss):
            self.home, self.home_value = states, value
        if self.stale and self.stale % (3 * _STALE) == 0:
            self.home, self.home_value = self.best, self.best_value
        self.here = self.home
        return gain
