"""Log Z with its error and its bounds: passes of mini-buckets, then populations grown by them."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random

import numpy as np

from rdpgraph._core import effort, tuning
from rdpgraph._core.progress import Progress, goes_on
from rdpgraph.engines.elimination import ReachedConfigurations, annealed, log_total
from rdpgraph.engines.elimination_bounds import Elimination, bounded, tight_order
from rdpgraph.engines.minibuckets.population import Grown, grown
from rdpgraph.engines.minibuckets.population_intervals import (
    CHANCE,
    FEWER,
    RUNS,
    SPREAD,
    Draws,
    Populations,
    interval,
)
from rdpgraph.engines.reduction.tables import Floats, Integers, Tables
from rdpgraph.plan import clock

_COUNTS, _OFTEN = 0.01, 5.0
"""Part of Z that must not be missed, and number of populations that must have met with it."""


@dataclass(frozen=True)
class Sampling:
    """Limits of time, memory and draws."""

    seconds: float  # for all items of a batch
    memory: float  # bytes for the tables of a pass
    draws: int | None  # members of all populations at most; None: as many as the seconds allow
    seed: int  # of the randomness
    sums_only: bool = False  # log Z and its bounds may take all of the seconds
    # seconds by which the first population may be late; without one there is no estimate
    grace: float = math.inf
    # called after every population
    progress: Callable[[Progress], object] | None = field(
        default=None, compare=False, metadata={"elsewhere": None}
    )


@dataclass(frozen=True, eq=False)
class Estimate:
    """Estimate of log Z of one batch item (nats)."""

    lower: float  # bound
    upper: float  # bound
    log_partition: float  # the log of the mean of unbiased estimates of Z
    error: float  # its standard error; 0 if nothing was drawn
    size: float  # effective number of equal estimates
    each: tuple[float, ...]  # logs of these estimates
    passed: Elimination  # the mini-buckets that gave the bound
    members: int  # of a population
    draws: tuple[Draws, ...] = ()  # all estimates that were made, in groups
    pins: Integers | None = None  # (P, V) configurations in all populations
    confirmed: bool = True  # configurations from independent starts, or the bounds, agree

    @property
    def stated_error(self) -> float:
        """Standard error; the distance to the farther bound where nothing confirms it."""
        if self.confirmed:
            return self.error
        return max(self.error, self.log_partition - self.lower, self.upper - self.log_partition)

    @property
    def reliable(self) -> bool:
        """True if the error is small enough to be believed."""
        return self.error <= SPREAD

    @property
    def converged(self) -> bool:
        """True if the error is reliable, and confirmed by independent starts or bounds."""
        return self.reliable and self.confirmed

    def interval(self, confidence: float) -> tuple[float, float]:
        """Confidence interval of log Z, within the bounds."""
        if confidence >= 1.0 or self.lower >= self.upper:
            return self.lower, self.upper
        least, most = interval(self.draws, confidence)
        if least > self.upper or most < self.lower:
            return self.lower, self.upper
        return max(least, self.lower), min(most, self.upper)


def estimated(
    tables: Tables, sampling: Sampling, likely: Sequence[Floats] = (), constant: float = 0.0
) -> Estimate:
    """Estimate log Z of one batch item: passes with growing tables, then growing populations.

    Progress is told estimates plus a constant.
    """
    return _Work(tables, sampling, likely, constant).estimate()


class _Work:
    """An estimate in progress."""

    def __init__(
        self, tables: Tables, sampling: Sampling, likely: Sequence[Floats], constant: float
    ) -> None:
        self.tables, self.sampling, self.likely = tables, sampling, likely
        self.constant = constant
        self.begin = clock.now()
        self.end = self.begin + sampling.seconds
        self.last = self.end + sampling.grace
        self.rng, self.choice = np.random.default_rng(sampling.seed), Random(sampling.seed)
        self.searching = np.random.default_rng(sampling.seed + 1)
        self.known = ReachedConfigurations(tables)
        self.pins = self.known.heaviest(0)
        self.lower = -math.inf
        self.draws = list[Draws]()
        self.made = Populations()
        self.passed_by = list[float]()
        self.spent = 0.0
        self.grown = 0
        count = effort.MOST_MEMBERS * RUNS if sampling.draws is None else sampling.draws
        states = len(tables.sizes) + tuning.MEMBER_EXTENDED * max(tables.sizes, default=1)
        member = tuning.MEMBER_VARIABLE * states
        self.limit = max(int(min(count // RUNS, sampling.memory / member, effort.MOST_MEMBERS)), 1)

    def estimate(self) -> Estimate:
        best = self._passed()
        members = self._grow(best, min(effort.FIRST_MEMBERS, self.limit))
        while not self.is_settled and clock.now() < self.end:
            drawn = self.sampling.draws is not None and self.known.starts >= 2 * effort.LED_STARTS
            if drawn or not self._round(best, members):
                break
        return self._summary(best, members)

    @property
    def is_settled(self) -> bool:
        """True if more would be of no use."""
        return self.made.exact or (self.made.is_precise and self.is_confirmed)

    @property
    def _has_drawn(self) -> bool:
        """True if there are as many populations as are of use, or were asked for."""
        all_asked = self.sampling.draws is not None and len(self.made.runs) >= RUNS
        return self.made.is_precise or all_asked

    @property
    def is_confirmed(self) -> bool:
        """True if configurations from enough independent starts agree."""
        enough = len(self.made.led) >= effort.LED_STARTS
        return enough and self.known.is_found_again(self.made.mean)

    def _passed(self) -> Elimination:
        """Tightest pass, with populations of few members after each."""
        tables, sampling, begin = self.tables, self.sampling, self.begin
        # The first pass takes small tables in an order that is found at once.
        most = max(sampling.memory / (tuning.BUCKET_BYTES * max(len(tables.sizes), 1)), 2.0)
        soon = begin + effort.POPULATION_ORDER * sampling.seconds
        order = tight_order(tables, cells=most, seconds=0.0, rng=self.choice, deadline=soon)
        cells, best = min(effort.POPULATION_CELLS, most), None
        finite = not any(bool(np.isneginf(stack.values).any()) for stack in tables.stacks)
        while True:
            # A pass gives an upper bound on log Z, and one of finite tables a lower bound too.
            start = clock.now()
            passed = bounded(tables, order, cells=cells)
            if finite and not passed.exact:
                below = bounded(tables, order, cells=cells, lower=True).bound
                self.lower = max(self.lower, below)
            took = clock.now() - start
            # A tighter pass makes better populations: a few tell whether they suffice.
            if best is None or passed.bound <= best.bound:
                best = passed
                members = min(effort.FIRST_MEMBERS, self.limit)
                self._round(best, members, afresh=True)
                while self.made.is_precise and not self.is_settled and clock.now() < self.end:
                    self._search(best, members)
                    if self.known.starts >= 2 * effort.LED_STARTS:
                        break
            # End if the estimate is settled, or the next pass would take too long or too much.
            end = begin + effort.POPULATION_PASSES * sampling.seconds
            late = clock.now() + effort.PASS_GROWTH * took > end
            if (
                self.is_settled
                or late
                or effort.PASS_GROWTH * passed.cells * tuning.BUCKET_BYTES > sampling.memory
            ):
                return best
            # After the first pass a better order is worth its time.
            if cells <= effort.POPULATION_CELLS:
                seconds = effort.POPULATION_ORDER * sampling.seconds
                order = tight_order(tables, cells=most, seconds=seconds, rng=self.choice)
            cells *= effort.PASS_GROWTH

    def _grow(self, passed: Elimination, members: int) -> int:
        """Grow larger populations until a round takes its share of the time; return their size."""
        while not self.is_settled and members < self.limit and clock.now() < self.end:
            start = clock.now()
            first = self._grown(passed, members)
            if first is None:
                break
            self.lower = max(self.lower, first.lower)
            self.draws.append(_drawn([first.log_partition], passed))
            took = (clock.now() - start) * RUNS * (2.0 + 1.0 / FEWER)
            more = effort.ROUND * (self.end - clock.now()) / took if took > 0 else math.inf
            if more < 1.5 and self.made.runs:
                break
            members = int(min(self.limit, members * max(min(more, 8.0), 1.5)))
            if more <= 8.0 or members == self.limit:
                self._round(passed, members, afresh=True)
                break
        return members

    def _grown(
        self, passed: Elimination, members: int, forced: Integers | None = None
    ) -> Grown | None:
        grow = partial(
            grown, passed, members, self.rng, likely=self.likely, pins=self.pins, forced=forced
        )
        made = grow(deadline=self.last)
        if made is None and clock.stopped() and not self.grown:
            made = grow(deadline=math.inf)
        if made is not None:
            self.grown += 1
            value, seconds = made.log_partition + self.constant, clock.now() - self.begin
            step = Progress("populations", self.grown, value, seconds)
            if not goes_on(self.sampling.progress, step):
                self.end = -math.inf
        return made

    def _search(self, passed: Elimination, members: int) -> None:
        """Look for configurations that runs may miss, from another start, if there is time."""
        # Searches take a fixed part of the time, unless all populations are drawn.
        start, seconds = clock.now(), self.sampling.seconds
        enough = self.spent > effort.PINS_MADE * (start - self.begin)
        if self.known.starts and enough and not self._has_drawn:
            return
        until = min(self.end, start + effort.PINS_MADE * seconds)
        memory = self.sampling.memory
        tried = annealed(self.tables, self.searching, memory=memory, deadline=until)
        self.spent += clock.now() - start
        if tried is None:
            return
        # What was found bounds log Z from below.
        drawn, others = tried
        heaviest, weight = self.known.add(np.concatenate([drawn, others]))
        self.lower = max(self.lower, self.known.lower)
        made = self.made
        if not made.runs or made.exact:
            return
        # A population that is led to one of the configurations tells whether runs miss its like.
        one = drawn[int(self.searching.integers(len(drawn)))]
        led = self._grown(passed, members, one)
        if led is not None:
            self.made = replace(made, led=(*made.led, (led.log_partition, self.tables.score(one))))
        # A configuration that is heavy against the estimate, and that runs are unlikely to meet,
        # shows that they missed it: they are made again, with it among the pins.
        if weight > made.mean + math.log(_COUNTS):
            led = self._grown(passed, members, heaviest)
            if led is None or led.log_chances[-1] + math.log(len(made.runs)) < math.log(_OFTEN):
                self.made = Populations()
                self.passed_by.clear()
        else:
            self.passed_by.append(weight)

    def _unseen(self) -> float:
        """Part of Z at risk: that of configurations that one start alone found.

        By Good (1953) they weigh as much as those that none has found. Configurations that runs are
        likely to meet by chance are not at risk.
        """
        once, scores = self.known.found_once(self.pins)
        runs = [run.log_chances for run in self.made.runs if len(run.log_chances)]
        if self.known.starts < 2 or self.made.exact or not runs:
            return 0.0
        often = np.exp(runs[-1]) * len(self.made.runs) > _OFTEN
        weight = log_total([*scores[~often[once]], *self.passed_by])
        return min(math.exp(min(weight - self.made.mean, 0.0)), SPREAD)

    def _round(self, passed: Elimination, members: int, *, afresh: bool = False) -> bool:
        """Grow more populations; return whether any was made in time.

        If ``afresh``, earlier ones are worse, and no longer count.
        """
        # A search first, so that populations are pinned to what it finds.
        if not (afresh and self.known.starts):
            self._search(passed, members)
        if self._has_drawn and not afresh:
            self.made = replace(self.made, unseen=self._unseen())
            return True
        self.pins = self.known.heaviest(max(members // 2, effort.FEW_PINS))
        # Each run is grown with all members and with a quarter of them: if the two differ by more
        # than chance allows, the difference is the error.
        runs, fewer = list[Grown](), list[float]()
        quarter = max(members // FEWER, 1)
        while len(runs) < RUNS and (not runs or clock.now() < self.end):
            run = self._grown(passed, members)
            if run is None:
                break
            runs.append(run)
            if run.exact:
                break
            small = None if clock.now() > self.end else self._grown(passed, quarter)
            fewer += [] if small is None else [small.log_partition]
        if not runs:
            return False
        # New populations are joined with earlier ones, or replace them.
        more = Populations(tuple(runs), tuple(fewer))
        self.made = more if afresh or more.exact else self.made.joined(more)
        self.made = replace(self.made, unseen=self._unseen())
        self.lower = max(self.lower, more.lower)
        self.draws.append(_drawn(more.logs, passed))
        return True

    def _summary(self, passed: Elimination, members: int) -> Estimate:
        made, lower, draws = self.made, self.lower, tuple(self.draws)
        if not made.runs:
            nothing = -math.inf
            return Estimate(
                lower, passed.bound, nothing, math.inf, 0.0, (nothing,), passed, members
            )
        logs, error = made.logs, made.error
        peak = float(logs.max())
        if made.exact:
            return Estimate(peak, peak, peak, 0.0, math.inf, (peak,), passed, members)
        weights = np.exp(logs - peak) if peak > -math.inf else np.zeros(len(logs))
        size = float(weights.sum() ** 2 / (weights**2).sum()) if peak > -math.inf else 0.0
        # An estimate outside the bounds is wrong for certain.
        inside = min(max(made.mean, lower), passed.bound)
        if abs(inside - made.mean) > CHANCE * error:
            error = max(error, abs(inside - made.mean))
        confirmed = self.is_confirmed
        if passed.bound - lower < error:
            error, confirmed = passed.bound - lower, True
        each = tuple(logs.tolist())
        return Estimate(
            lower,
            passed.bound,
            inside,
            error,
            size,
            each,
            passed,
            members,
            draws,
            self.pins,
            confirmed,
        )


def _drawn(logs: Sequence[float] | Floats, passed: Elimination) -> Draws:
    return Draws(tuple(map(float, logs)), passed.bound)
