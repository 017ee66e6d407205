"""Estimates of log Z by several populations: their error, and an interval by betting."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from rdpgraph._core.numbers import LEAST
from rdpgraph.engines.elimination import log_sum
from rdpgraph.engines.minibuckets.population import Grown
from rdpgraph.engines.reduction.tables import Floats

_STAKES = np.array([1.0, 0.5, 0.25, 0.125])
"""Fractions of the capital that are bet, with equal parts of the first stake."""
_STEPS = 60
"""Halvings of the range of an end."""
_RANGE = 200.0
"""Nats below the largest estimate in which a lower end is looked for."""


@dataclass(frozen=True)
class Draws:
    """Independent estimates of one Z."""

    logs: tuple[float, ...]  # of the estimates
    most: float  # log of an upper bound on all of them


def interval(draws: Sequence[Draws], confidence: float) -> tuple[float, float]:
    """Confidence interval of log Z (nats).

    Bets on the next estimate gain nothing on average at the true Z, so that a Z at which they have
    multiplied their stake by n is wrong with a probability of at least 1 - 1/n (Ville's
    inequality), however few estimates there are and whenever they end (Waudby-Smith and Ramdas
    2024). The empirical Bernstein inequality (Maurer and Pontil 2009) says nothing for eight.

    Args:
        draws: in the order in which they were made; later ones may depend on earlier ones.
        confidence: the probability, at least; below 1.
    """
    needed = math.log(2.0 / (1.0 - confidence))
    peak = max((log for group in draws for log in group.logs), default=-math.inf)
    least, most = -math.inf, min((group.most for group in draws), default=math.inf)
    if not draws:
        return least, most
    if peak > -math.inf and _gain(draws, peak - _RANGE, above=True) >= needed:
        least = _last(peak - _RANGE, peak, lambda z: _gain(draws, z, above=True) >= needed)[0]
    high = _last(most - _RANGE, most, lambda z: _gain(draws, z, above=False) < needed)[1]
    return (least, high) if least <= high else (-math.inf, most)


def _last(low: float, high: float, holds: Callable[[float], bool]) -> tuple[float, float]:
    """Adjacent numbers between which ``holds`` ceases to be true."""
    for _ in range(_STEPS):
        middle = 0.5 * (low + high)
        if not low < middle < high:
            break
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low, high


def _gain(draws: Sequence[Draws], log_z: float, *, above: bool) -> float:
    """Log of the value of a stake of one, were this log Z (below all upper bounds).

    A part of it is bet from each group of estimates on, as the first ones may be much worse. The
    bets are that estimates are above Z, or below it.
    """
    total, parts = np.zeros(len(_STAKES)), list[float]()
    for place in reversed(range(len(draws))):
        ratios = _ratios(draws[place], log_z, above=above)
        with np.errstate(divide="ignore"):
            total = total + np.log1p(_STAKES[:, None] * (ratios - 1.0)).sum(1)
        share = math.log(len(_STAKES) * (place + 1) * (place + 2))
        parts.append(float(log_sum(total, 0)) - share)
    return float(log_sum(np.array(parts), 0))


def _ratios(group: Draws, log_z: float, *, above: bool) -> Floats:
    """Return of a bet of the whole stake on each estimate; its mean is 1."""
    logs = np.array(group.logs)
    if above:
        return np.exp(np.minimum(logs - log_z, 700.0))
    room = -np.expm1(log_z - group.most)  # above 0, as Z is below what none exceeds
    return -np.expm1(np.minimum(logs - group.most, 0.0)) / room


RUNS = 8
"""Populations whose differences give the error."""
FEWER = 4
"""Ratio of the sizes of populations and of smaller ones. Large ones can all miss the same mass, and
agree: then smaller ones miss more of it, or differ, more than chance allows."""
CHANCE = 2.0
"""Standard errors by which the two may differ by chance."""
_LEAST = 0.008
"""Least error reported, below which nothing more is drawn: a missing part of Z of a few times that
would not show."""
_NEAR = 3.0
"""Nats by which the best of those that lead may be better than others that count."""
SPREAD = 0.5
"""Standard deviation of log Z (nats) over populations above which it is the error itself: the mean
of so few is too low then, by about that much."""


@dataclass(frozen=True, eq=False)
class Populations:
    """Populations of one size with the same pins, and others to check them."""

    runs: tuple[Grown, ...] = ()  # the populations
    fewer: tuple[float, ...] = ()  # logs of estimates by smaller ones
    # logs of estimates by populations that are forced to include configurations drawn elsewhere,
    # and the scores of these
    led: tuple[tuple[float, float], ...] = ()
    unseen: float = 0.0  # part of Z of configurations that no start found, as estimated

    def joined(self, other: "Populations") -> "Populations":
        """Union with other populations of the same size."""
        return Populations(self.runs + other.runs, self.fewer + other.fewer, self.led + other.led)

    @property
    def logs(self) -> Floats:
        """Estimates of log Z."""
        return np.array([run.log_partition for run in self.runs])

    @property
    def mean(self) -> float:
        """Log of their mean."""
        return log_mean(self.logs) if self.runs else -math.inf

    @property
    def lower(self) -> float:
        """The largest of the populations' lower bounds."""
        return max((run.lower for run in self.runs), default=-math.inf)

    @property
    def exact(self) -> bool:
        """True if nothing was drawn."""
        return bool(self.runs) and self.runs[0].exact

    @property
    def is_precise(self) -> bool:
        """True if more of them would be of no use."""
        return self.exact or (len(self.runs) >= RUNS and self.error <= _LEAST)

    @property
    def error(self) -> float:
        """Error of the log of their mean; 0 if nothing was drawn."""
        if self.exact:
            return 0.0
        error = max(error_beside(self.logs, np.array(self.fewer)), self.unseen, _LEAST)
        if not self.led or not math.isfinite(error):
            return error
        # Led by draws of the model they come to 1 + the relative variance of a population. Chains
        # that end far below others draw from elsewhere.
        single, best = error * math.sqrt(len(self.runs)), max(score for _, score in self.led)
        led = np.array([log for log, score in self.led if score >= best - _NEAR])
        excess = log_mean(led) - self.mean
        excess -= CHANCE * math.hypot(single / math.sqrt(len(led)), error)
        if excess <= 0.0:
            return error
        return max(error, math.sqrt(math.expm1(min(excess, 700.0)) / len(self.runs)))


def error_of(logs: Floats) -> float:
    """Standard deviation of the log of a mean, by Student's t; +inf for fewer than four."""
    alive = logs[logs > -math.inf]
    if len(logs) < LEAST or not len(alive):
        return math.inf
    weights = np.exp(logs - logs.max())
    error = float(weights.std(ddof=1) / weights.mean() / math.sqrt(len(logs)))
    with np.errstate(over="ignore"):  # +inf between ordinary scores and -1e300
        spread = float(alive.std())
    error = max(error, spread) if spread > SPREAD or len(alive) < len(logs) else error
    return error * math.sqrt((len(logs) - 1) / (len(logs) - 3))


def error_beside(logs: Floats, fewer: Floats) -> float:
    """Standard error (nats) of the log of the mean of estimates by large populations.

    It is no less than those by populations `FEWER` times smaller suggest.

    Large populations that all miss the same mass agree, and their spread says nothing. The smaller
    ones show it in two ways: their mean lies below by more than chance, and the error falls faster
    from them to the large ones than members are added. Without smaller ones the error is +inf.
    """
    error, other = error_of(logs), error_of(fewer)
    if not math.isfinite(error) or not math.isfinite(other):
        return math.inf
    apart = abs(log_mean(logs) - log_mean(fewer))
    chance = apart <= CHANCE * math.hypot(error, other)
    return max(error, other / FEWER, 0.0 if chance else apart)


def log_mean(logs: Floats) -> float:
    """Log of the mean of exponentials."""
    return float(log_sum(logs, 0)) - math.log(len(logs))
