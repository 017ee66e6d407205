"""Large neighbourhood search: each move solves a large part of a model exactly given the rest."""

import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import numpy as np

from rdpgraph._core import effort, tuning
from rdpgraph._core.progress import goes_on
from rdpgraph.engines.moves import ComponentSum, MovedPart, Moves, components, narrowest
from rdpgraph.engines.reduction.tables import Integers, Tables
from rdpgraph.plan import clock

_ROUNDING = 1e-11
"""A relative gain of a score up to which it is taken for rounding."""


@dataclass(frozen=True)
class Move:
    """Progress of a search, as given to a callback after every move.

    Attributes:
        number: how many moves were made.
        score: the log-value of the best configuration so far (nats); in a search for a marginal
            mode, that of the sum over all configurations that agree with it.
        seconds: since the start.
    """

    number: int
    score: float
    seconds: float

    def __str__(self) -> str:
        return f"search: move {self.number}, best score {self.score:.4f}"


@dataclass(frozen=True, eq=False)
class SearchOutcome:
    """The outcome of a search."""

    states: Integers  # (V,) the best configuration
    score: float  # its log-value (nats), summed over the summed variables
    optimal: bool  # it is proved that no configuration is better
    moves: int  # the number of parts that were solved
    seconds: float  # from the start to the last improvement


@dataclass(eq=False)
class Patience:
    """How long a search goes on without a gain.

    At most some seconds, and at most as long as everything took up to the last gain: then all that
    is spent in vain is no more than what was spent on the result.
    """

    seconds: float = math.inf  # at most
    before: float = math.inf  # seconds that everything before the search took

    def __post_init__(self) -> None:
        self.begin = self.gained = clock.now()  # of the search, and of its last gain

    @property
    def allowed(self) -> float:
        """Seconds without a gain after which the search ends."""
        return min(self.seconds, self.before + self.gained - self.begin)

    @property
    def left(self) -> float:
        """Seconds until the search ends if it gains nothing."""
        return self.allowed - (clock.now() - self.gained)


class NeighbourhoodSearch:
    """Large neighbourhood search (Shaw 1998) whose parts are nearly the whole model.

    A random cutset keeps its states, and a part is all that an elimination order with small tables
    then solves. When moves no longer gain anything, the tables grow, and a few variables of the
    cutset get random states (iterated local search: Lourenco, Martin and Stutzle 2003).
    """

    def __init__(
        self,
        tables: Tables,
        rng: Random,
        *,
        memory: float = math.inf,
        most: float = effort.MOST_MOVE_CELLS,
        summed: frozenset[int] = frozenset(),
        deadline: float = math.inf,
        seconds: float = math.inf,
        settled: Iterable[int] = (),
    ) -> None:
        """Prepare a search whose moves take at most ``memory`` bytes and ``most`` entries a table.

        The order of the ``summed`` variables is sought until the deadline. A sum over them that
        would take a large part of the seconds counts as one that does not fit. Variables that are
        ``settled`` keep the states of the start, which some best configuration has.
        """
        self.tables, self.rng, self.summed = tables, rng, summed
        largest = max(tables.sizes, default=1)
        self.most = max(min(most, memory / (8 * tuning.MOVE_BYTES)), largest)
        self.memory = memory
        self.moves = Moves(tables, summed)
        self.together = components(tables.graph, summed) if summed else {}
        self.settled = frozenset(settled)
        self.free = [v for v in range(len(tables.sizes)) if v not in self.settled]
        self.asked = [v for v in self.free if v not in summed]
        self.centres = self.asked  # of parts
        self.sequence: list[int] = []
        needed = 0.0
        if summed:
            self.sequence, needed = narrowest(tables.graph, summed, rng, deadline)
        # Sums need tables of so many entries when all variables to maximise over are fixed, and
        # larger ones when a few of these are free.
        wider, speed = max(4, largest) * needed, tuning.SUMMED_PER_SECOND[self.moves.compiled]
        fit = min(memory / tuning.SUM_BYTES, effort.SUM_ONCE * speed * seconds)
        self.most = max(self.most, min(wider, fit))
        few = effort.MOVE_CELLS * (effort.COMPILED_CELLS if self.moves.compiled else 1)
        self.cells = float(min(max(few, 4 * largest**2, 4 * needed), self.most))
        self.small = self.cells
        self.kept: deque[MovedPart] = deque(maxlen=effort.KEPT_ORDERS)
        self.whole = len(self.free) <= effort.PART_VARIABLES or bool(summed)
        parts = {id(part): part for part in self.together.values()}
        self.sums = [ComponentSum(self.moves, part, self._sum) for part in parts.values()]
        self.rest = tables.without(summed)
        # Of all runs: moves, the best score, the start, and whether progress ended them.
        self.done, self.peak, self.begin, self.ended = 0, -math.inf, clock.now(), False
        self.longest = math.inf  # operations for the entries of a move

    def value(self, states: Integers, *, deadline: float = math.inf) -> float | None:
        """Return the log-value of a configuration; None if the tables of its sum are too large."""
        if not self.summed:
            return self.tables.score(states)
        total = self.rest.score(states)
        for each in self.sums:
            value = each.value(states, deadline)
            if value is None:
                return None
            total += value
        return total

    def _sum(self, members: Sequence[int], deadline: float) -> MovedPart | None:
        """Return a part that sums over some variables given all others."""
        return self._order(members, self.most, deadline)

    def compete(
        self,
        starts: Iterable[Integers],
        *,
        seconds: float,
        patience: Patience | None = None,
        least: int = 0,
        enough: float = math.inf,
        progress: Callable[[Move], None] | None = None,
        constant: float = 0.0,
    ) -> SearchOutcome | None:
        """Search briefly from each start, and go on from the best.

        What a start leads to is joined with the best outcome so far (`joined`). Starts for which
        there is no time are left out. Others than the first are tried only if a brief search makes
        at least ``least`` moves. A score that is ``enough`` ends all of them.
        """
        begin, patience = clock.now(), patience or Patience()
        best, moves = None, math.inf
        settings: dict[str, Any] = {"enough": enough, "progress": progress, "constant": constant}
        # A short search from each start; the best so far is joined with what comes of it.
        for states in starts:
            since = clock.now() - begin
            if best is not None and (since > effort.STARTS_TRIED * seconds or moves < least):
                break
            part, own, before = effort.SHORT_SEARCH * seconds, patience, best
            if best is not None:  # a gain from this start need not be one over the best
                part, own = min(part, patience.left), Patience()
                if part < 0:
                    break
            other = self.run(
                states, seconds=part, patience=own, stale=effort.TIRED_MOVES, **settings
            )
            moves = math.inf if other is None else other.moves
            best = self._better(best, other, since)
            if best is None or best.optimal or self.ended or best.score >= enough:
                return best
            if before is None and patience.left < 0:
                return best
            if before is not None and best.score > before.score:
                patience.gained = clock.now()
        # The rest of the time belongs to the best, whose search was cut short.
        assert best is not None
        since = clock.now() - begin
        left = max(seconds - since, 0.0)
        rest = Patience(patience.seconds, patience.before + patience.gained - patience.begin)
        other = self.run(best.states, seconds=left, patience=rest, **settings)
        return self._better(best, other, since)

    def _better(
        self, best: SearchOutcome | None, other: SearchOutcome | None, since: float
    ) -> SearchOutcome | None:
        """Return the better of two outcomes, joined with the other; None if the second is None."""
        if other is None or best is None or other.optimal:
            return other
        other = replace(other, seconds=since + other.seconds)
        one, two = sorted((best, other), key=lambda each: each.score)
        return self.joined(two, one.states)

    def joined(self, best: SearchOutcome, other: Integers) -> SearchOutcome:
        """Return the best mixture of two configurations; it is no worse than ``best``.

        Each variable takes its state in one of the two. Variables on which these agree keep their
        states, and so separate the others into components that choose independently. If the tables
        do not fit, ``best`` is returned.
        """
        apart = [v for v in self.asked if best.states[v] != other[v]]
        if not apart:
            return best
        if self.summed:
            order = self._order(self._with_sums(set(apart)), self.most, math.inf)
            if order is None:
                return best
            states = self.moves.solved(order, best.states)[0]
        else:
            two = Moves(self.tables.between(best.states, other), self.summed)
            order = two.part(apart, rng=self.rng, cells=self.most)
            assert order is not None
            chosen = two.solved(order, np.zeros(len(other), np.int64))[0]
            states = np.where(chosen, other, best.states)
        value = self.value(states)
        assert value is not None
        return replace(best, states=states, score=value) if value > best.score else best

    def run(
        self,
        states: Integers,
        *,
        seconds: float,
        patience: Patience | None = None,
        stale: float = math.inf,
        any_possible: bool = False,
        enough: float = math.inf,
        progress: Callable[[Move], None] | None = None,
        constant: float = 0.0,
    ) -> SearchOutcome | None:
        """Search for some seconds; return None if the tables of a sum are too large.

        The search also ends where ``patience`` does, after ``stale`` moves without an improvement,
        and at a score of ``enough``. With ``any_possible`` it ends at the first configuration
        of positive probability. Scores that are given to ``progress`` have ``constant`` added.
        """
        begin, patience = clock.now(), patience or Patience()
        gained = begin
        end = begin + seconds
        value = self.value(states, deadline=end)
        if value is None:
            return None
        self.cells = min(self.small, self.most)
        self.kept.clear()
        self._limit_moves(patience)
        walk, took, moves = _Walk(states, value, self.rng), 0.0, 0
        while (start := clock.now()) + took <= end and patience.left >= 0:
            # The ends that a caller asks for.
            if walk.stale > stale:
                break
            if any_possible and self.tables.is_possible(walk.best_value):
                break
            if walk.best_value >= enough:
                break
            if not self.whole:  # until none is violated, parts lie around violated hard zeros
                violated = self.tables.violated(walk.here)
                self.centres = [v for v in violated if v not in self.settled] or self.asked
            # What is solved next: with larger tables where sums leave nothing else free.
            order = self._next(deadline=end, widely=walk.stuck or bool(walk.away))
            if order is None:
                if self.summed and clock.now() < end and self._grow():
                    continue
                break
            solves = order.count + len(order.fixed)
            if self.summed and order.count == len(self.summed) < solves and self._grow():
                continue  # no variable to maximise over was free
            # The move: from other states of some fixed variables where nothing is gained any more.
            if walk.stuck and order.fixed:
                walk.leave(self._changed(walk.home, order))
            states, value = self.moves.solved(order, walk.here)
            moves += 1
            if self.summed and order.count < len(states):  # the value lacks sums elsewhere
                value = self.value(states)
                assert value is not None
            took = clock.now() - start
            if order.count == len(self.free):
                return SearchOutcome(
                    states, value, optimal=True, moves=moves, seconds=clock.now() - begin
                )
            # A gain leaves more time for the next; without one, tables grow now and then.
            if walk.arrive(states, value):
                gained = patience.gained = clock.now()
                self._limit_moves(patience)
            self.done, self.peak = self.done + 1, max(self.peak, walk.best_value)
            move = Move(self.done, self.peak + constant, clock.now() - self.begin)
            if not goes_on(progress, move):
                self.ended = True
                break
            is_short = 2 * took < effort.MOVE_LONG * seconds
            if is_short and (walk.stale + 1) % effort.STALE_MOVES == 0:
                self._grow()
        return SearchOutcome(
            walk.best, walk.best_value, optimal=False, moves=moves, seconds=gained - begin
        )

    def _limit_moves(self, patience: Patience) -> None:
        """Let a move take a part of the time in which the search would end without a gain."""
        self.longest = effort.PATIENT_MOVE * patience.allowed * tuning.OPERATIONS_PER_SECOND

    def _grow(self) -> bool:
        if 2 * self.cells > self.most:
            return False
        self.cells *= 2
        self.kept.clear()
        return True

    def _next(self, deadline: float, *, widely: bool) -> MovedPart | None:
        """Return the next part, as large as the present size of tables allows, or one made before.

        If ``widely`` is False, it may also be a small part around one variable.
        """
        small = self.summed and self.asked and not widely
        if small and self.rng.random() < effort.LOCAL_SUMS:
            part = self._near(self.rng.choice(effort.LOCAL_VARIABLES))
            order = self._order(part, min(self.cells, self.small), deadline)
            if order is not None:
                return order
        if len(self.kept) == effort.KEPT_ORDERS and self.rng.random() < effort.REUSED_ORDER:
            self.kept.rotate()
            return self.kept[0]
        order = self._planned(deadline)
        if order is not None:
            self.kept.append(order)
        return order

    def _planned(self, deadline: float) -> MovedPart | None:
        while True:
            part: Sequence[int] = self.free
            if not self.whole:
                part = self._near(effort.PART_VARIABLES)
            order = self._order(part, self.cells, deadline)
            if order is None or self.cells <= effort.MOVE_CELLS:
                return order
            # Smaller tables are worth another order where the entries take longer than an order.
            entries = order.cells * tuning.MOVE_ENTRY
            longest = max(self.longest, tuning.MOVE_VARIABLE[1] * len(part))
            if order.cells * tuning.MOVE_BYTES > self.memory:
                self.most = self.cells = self.cells / 2
            elif entries > longest:
                self.cells = max(self.cells * longest / entries, effort.MOVE_CELLS)
            else:
                return order

    def _order(
        self, part: Sequence[int] | Set[int], cells: float, deadline: float
    ) -> MovedPart | None:
        degree = float(self.rng.choice((0, 1, 2)))
        sequences = [self.sequence]
        if self.summed and self.rng.random() < effort.GREEDY_SUMS:  # more of the others stay free
            sequences.insert(0, [])
        held = set(part) if self.summed else part
        for sequence in sequences:
            order = self.moves.part(
                part, rng=self.rng, cells=cells, sequence=[v for v in sequence if v in held],
                degree=degree, deadline=deadline,
            )  # fmt: skip
            if order is not None:
                return order
        return None

    def _near(self, most: int) -> list[int]:
        """Return variables around a random one to maximise over, with their summed components."""
        starts, near = self.tables.graph.starts, self.tables.graph.near
        taken = np.zeros(len(self.tables.sizes), np.bool_)
        taken[list(self.settled)] = True
        level = np.array([self.rng.choice(self.centres)])
        taken[level] = True
        part, count = [level], 1
        while len(level) and count < most:
            # All neighbours of this level in turn, each at the first variable that it is next to.
            lengths = starts[level + 1] - starts[level]
            owners = np.repeat(np.arange(len(level)), lengths)
            places = np.arange(len(owners)) + (starts[level] - lengths.cumsum() + lengths)[owners]
            fresh = ~taken[near[places]]
            found, owners = near[places[fresh]], owners[fresh]
            first = np.sort(np.unique(found, return_index=True)[1])
            found, owners = found[first], owners[first]
            # A variable has its neighbours added only while there are too few.
            enough = int((count + np.searchsorted(owners, np.arange(len(level))) < most).sum())
            level = found[owners < enough].astype(np.int64)
            taken[level] = True
            part.append(level)
            count += len(level)
        return self._with_sums(set(np.concatenate(part).tolist()))

    def _with_sums(self, part: set[int]) -> list[int]:
        """Return variables together with the components of summed variables in and around them."""
        if not self.summed:
            return sorted(part)
        near = [part, *(self.tables.graph.adjacency[v] for v in part if v not in self.summed)]
        sums = {u for each in near for u in each if u in self.together}
        return sorted(part.union(*[self.together[u] for u in sums]))

    def _changed(self, states: Integers, order: MovedPart) -> Integers:
        """Return a copy of the states in which a few of the fixed variables have random ones."""
        count = min(self.rng.choice((1, 1, 2, 3, 5, 8)), len(order.fixed))
        changed = states.copy()
        for v in self.rng.sample(order.fixed, count):
            changed[v] = self.rng.randrange(self.tables.sizes[v])
        return changed


class _Walk:
    """The current, the last accepted and the best configuration of a search."""

    def __init__(self, states: Integers, value: float, rng: Random) -> None:
        self.here = self.home = self.best = states
        self.home_value = self.best_value = value
        self.rng = rng
        self.stale = self.away = 0

    @property
    def stuck(self) -> bool:
        """True if many moves from the accepted configuration have gained nothing."""
        return not self.away and self.stale >= effort.STALE_MOVES

    def leave(self, states: Integers) -> None:
        """Continue from another configuration for a few moves, after which it is judged."""
        self.here, self.away = states, effort.JUDGED_MOVES

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
        if self.stale and self.stale % (3 * effort.STALE_MOVES) == 0:
            self.home, self.home_value = self.best, self.best_value
        self.here = self.home
        return gain
