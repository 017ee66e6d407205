"""Log Z with its error and its bounds: passes of mini-buckets, then populations grown by them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

import numpy as np

from rdpgraph.engines.minibuckets.bounds import Elimination, bounded, log_sum
from rdpgraph.engines.minibuckets.interval import Draws, interval
from rdpgraph.engines.minibuckets.ordering import tight_order
from rdpgraph.engines.minibuckets.population import Grown, grown
from rdpgraph.engines.tables import Floats, Tables
from rdpgraph.plan import clock

_CELLS, _GROWTH = 2.0**10, 8.0
"""Entries of the largest table of the first pass, and how many times more those of the next."""
_ORDER = 0.15
"""The part of the time in which orders are compared."""
_PASSES = 0.45
"""The part of the time in which passes end."""
_BYTES = 24.0
"""Bytes for each entry of a pass: tables, messages and what is made on the way."""
RUNS = 8
"""Populations by whose differences the error is known."""
FEW = 500
"""Members of the first populations."""
_FEWER = 4
"""How many times smaller populations are beside them. Large ones can all miss the same mass, and
agree: then smaller ones miss more of it, or differ, more than chance allows."""
_CHANCE = 2.0
"""Standard errors by which the two may differ by chance."""
_MOST = 1 << 20
_MEMBER = 2000.0
"""Bytes for a member while its population grows, with all states that it is extended by."""
_PRECISE = 0.005
"""A standard error (nats) below which nothing more is drawn."""
_SPREAD = 0.5
"""The standard deviation of log Z (nats) over populations above which it is the error itself: the
mean of so few is too low then, by about that much."""


@dataclass(frozen=True)
class Sampling:
    """How long, how large and how many.

    Attributes:
        seconds: for all items of a batch.
        memory: bytes for the tables of a pass.
        draws: members of all populations at most; None: as many as the seconds allow.
        seed: of the randomness.
        sums_only: log Z and its bounds may take all of the seconds.
        grace: seconds by which the first population may be late; without one there is no estimate.
    """

    seconds: float
    memory: float
    draws: int | None
    seed: int
    sums_only: bool = False
    grace: float = math.inf


@dataclass(frozen=True, eq=False)
class _Populations:
    """Populations of one size, and beside them smaller ones."""

    runs: tuple[Grown, ...] = ()
    fewer: tuple[Grown, ...] = ()

    @property
    def logs(self) -> Floats:
        """Their estimates of log Z."""
        return np.array([run.log_partition for run in self.runs])

    @property
    def lower(self) -> float:
        """The largest of their bounds."""
        return max((run.lower for run in self.runs), default=-math.inf)

    @property
    def exact(self) -> bool:
        """Whether nothing was drawn."""
        return bool(self.runs) and self.runs[0].exact

    @property
    def error(self) -> float:
        """Of the log of their mean; 0 where nothing was drawn."""
        if self.exact:
            return 0.0
        return error_beside(self.logs, np.array([run.log_partition for run in self.fewer]))

    @property
    def is_settled(self) -> bool:
        """Whether more would be of no use."""
        return self.exact or (len(self.runs) == RUNS and self.error < _PRECISE)


@dataclass(frozen=True, eq=False)
class Estimate:
    """What is known of log Z of one batch item (nats).

    Attributes:
        lower: bound.
        upper: bound.
        log_partition: the log of the mean of unbiased estimates of Z.
        error: its standard error; 0 where nothing was drawn.
        size: how many equal estimates they are worth.
        each: the logs of these estimates.
        passed: the mini-buckets that gave the bound.
        members: of a population.
        draws: all estimates that were made, in groups.
    """

    lower: float
    upper: float
    log_partition: float
    error: float
    size: float
    each: tuple[float, ...]
    passed: Elimination
    members: int
    draws: tuple[Draws, ...] = ()

    @property
    def reliable(self) -> bool:
        """Whether the error is to be believed."""
        return self.error <= _SPREAD

    def interval(self, confidence: float) -> tuple[float, float]:
        """Between what log Z lies with a probability: in any case between the bounds."""
        if confidence >= 1.0 or self.lower >= self.upper:
            return self.lower, self.upper
        least, most = interval(self.draws, confidence)
        if least > self.upper or most < self.lower:
            return self.lower, self.upper
        return max(least, self.lower), min(most, self.upper)


def estimated(tables: Tables, sampling: Sampling, likely: Sequence[Floats] = ()) -> Estimate:
    """Log Z of one batch item: passes with larger and larger tables, then larger populations.

    Args:
        tables: the model.
        sampling: how long, how large and how many.
        likely: a proposal, as for `grown`.
    """
    begin, rng = clock.now(), np.random.default_rng(sampling.seed)
    end = begin + sampling.seconds
    most = max(sampling.memory / (_BYTES * max(len(tables.sizes), 1)), 2.0)
    choice = Random(sampling.seed)
    soon = begin + _ORDER * sampling.seconds
    order = tight_order(tables, cells=most, seconds=0.0, rng=choice, deadline=soon)
    count = _MOST * RUNS if sampling.draws is None else sampling.draws
    last = end + sampling.grace
    limit = max(min(count // RUNS, int(sampling.memory / _MEMBER), _MOST), 1)
    cells, best, made, lower = min(_CELLS, most), None, _Populations(), -math.inf
    draws = list[Draws]()
    finite = not any(bool(np.isneginf(stack.values).any()) for stack in tables.stacks)
    while True:
        start = clock.now()
        passed = bounded(tables, order, cells=cells)
        if finite and not passed.exact:
            lower = max(lower, bounded(tables, order, cells=cells, lower=True).bound)
        took = clock.now() - start
        if best is None or passed.bound <= best.bound:
            best = passed
            tighter = _populations(best, min(FEW, limit), rng, likely, end, last)
            made = tighter if tighter.runs else made
            lower = max(lower, tighter.lower)
            draws.append(_drawn(tighter.logs, best))
        cells_used = sum(part.values.size for bucket in passed.buckets for part in bucket)
        late = clock.now() + _GROWTH * took > begin + _PASSES * sampling.seconds
        if made.is_settled or late or _GROWTH * cells_used * _BYTES > sampling.memory:
            break
        if cells <= _CELLS:
            order = tight_order(tables, cells=most, seconds=_ORDER * sampling.seconds, rng=choice)
        cells *= _GROWTH
    members = min(FEW, limit)
    while not made.is_settled and members < limit and clock.now() < end:
        start = clock.now()
        first = grown(best, members, rng, likely=likely, deadline=last)
        if first is None:
            break
        lower = max(lower, first.lower)
        draws.append(_drawn([first.log_partition], best))
        took = (clock.now() - start) * RUNS * (1.0 + 1.0 / _FEWER)
        more = (end - clock.now()) / took if took > 0 else math.inf
        if more < 1.5 and made.runs:
            break
        members = int(min(limit, members * max(min(more, 8.0), 1.5)))
        if more <= 8.0 or members == limit:
            larger = _populations(best, members, rng, likely, end, last)
            made = larger if larger.runs else made
            lower = max(lower, larger.lower)
            draws.append(_drawn(larger.logs, best))
            break
    return _summary(best, made, lower, members, tuple(draws))


def _populations(
    passed: Elimination,
    members: int,
    rng: np.random.Generator,
    likely: Sequence[Floats],
    end: float,
    last: float,
) -> _Populations:
    """Fewer where the time ends, and one where it is exact; the first ends at last."""
    runs, fewer, apart = list[Grown](), list[Grown](), rng.spawn(1)[0]
    while len(runs) < RUNS and (not runs or clock.now() < end):
        run = grown(passed, members, rng, likely=likely, deadline=last)
        if run is None:
            break
        runs.append(run)
        if run.exact:
            return _Populations((run,))
        quarter = max(members // _FEWER, 1)
        late = clock.now() > end
        small = None if late else grown(passed, quarter, apart, likely=likely, deadline=last)
        fewer += [] if small is None else [small]
    return _Populations(tuple(runs), tuple(fewer))


def _drawn(logs: Sequence[float] | Floats, passed: Elimination) -> Draws:
    return Draws(tuple(map(float, logs)), passed.bound)


def error_of(logs: Floats) -> float:
    """The standard deviation of the log of the mean, as Student's t has it for so few.

    Args:
        logs: of estimates; +inf is known of fewer than four.
    """
    alive = logs[logs > -math.inf]
    if len(logs) < 4 or not len(alive):
        return math.inf
    weights = np.exp(logs - logs.max())
    error = float(weights.std(ddof=1) / weights.mean() / math.sqrt(len(logs)))
    spread = float(alive.std())
    error = max(error, spread) if spread > _SPREAD or len(alive) < len(logs) else error
    return error * math.sqrt((len(logs) - 1) / (len(logs) - 3))


def error_beside(logs: Floats, fewer: Floats) -> float:
    """The standard error of the log of a mean, given estimates by smaller populations.

    These say more than the larger ones where all of those miss the same: how far both means are
    apart, if that is no chance, and their own error, which should not fall faster than members
    are added.

    Args:
        logs: of estimates.
        fewer: of estimates by populations `_FEWER` times smaller; +inf is known of none.
    """
    error, other = error_of(logs), error_of(fewer)
    if not math.isfinite(error) or not math.isfinite(other):
        return math.inf
    apart = abs(_log_mean(logs) - _log_mean(fewer))
    chance = apart <= _CHANCE * math.hypot(error, other)
    return max(error, other / _FEWER, 0.0 if chance else apart)


def _log_mean(logs: Floats) -> float:
    return float(log_sum(logs, 0)) - math.log(len(logs))


def _summary(
    passed: Elimination, made: _Populations, lower: float, members: int, draws: tuple[Draws, ...]
) -> Estimate:
    if not made.runs:
        nothing = -math.inf
        return Estimate(lower, passed.bound, nothing, math.inf, 0.0, (nothing,), passed, members)
    logs, error = made.logs, made.error
    peak = float(logs.max())
    if made.exact:
        return Estimate(peak, peak, peak, 0.0, math.inf, (peak,), passed, members)
    weights = np.exp(logs - peak) if peak > -math.inf else np.zeros(len(logs))
    size = float(weights.sum() ** 2 / (weights**2).sum()) if peak > -math.inf else 0.0
    # An estimate outside the bounds is wrong for certain.
    inside = min(max(_log_mean(logs), lower), passed.bound)
    each = tuple(logs.tolist())
    return Estimate(lower, passed.bound, inside, error, size, each, passed, members, draws)
