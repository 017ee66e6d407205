"""Estimates of log Z by several populations, and the error that these leave."""

import math
from dataclasses import dataclass

import numpy as np

from rdpgraph.engines.minibuckets.bounds import log_sum
from rdpgraph.engines.minibuckets.population import Grown
from rdpgraph.engines.tables import Floats

RUNS = 8
"""Populations by whose differences the error is known."""
FEWER = 4
"""How many times smaller populations are beside them. Large ones can all miss the same mass, and
agree: then smaller ones miss more of it, or differ, more than chance allows."""
CHANCE = 2.0
"""Standard errors by which the two may differ by chance."""
_LEAST = 0.008
"""The least error that is told, below which nothing more is drawn: that a part of Z of a few times
that is missing shows in nothing."""
_NEAR = 3.0
"""Nats by which the best of those that lead may be better than others that count."""
SPREAD = 0.5
"""The standard deviation of log Z (nats) over populations above which it is the error itself: the
mean of so few is too low then, by about that much."""


@dataclass(frozen=True, eq=False)
class Populations:
    """Populations of one size that know the same configurations, and others beside them.

    Attributes:
        runs: the populations.
        fewer: the logs of estimates by smaller ones.
        led: the logs of estimates by populations that configurations drawn elsewhere lead, and the
            scores of these.
        unseen: the part of Z that configurations may have which no start found.
    """

    runs: tuple[Grown, ...] = ()
    fewer: tuple[float, ...] = ()
    led: tuple[tuple[float, float], ...] = ()
    unseen: float = 0.0

    def joined(self, other: "Populations") -> "Populations":
        """Return those of both, in one."""
        return Populations(self.runs + other.runs, self.fewer + other.fewer, self.led + other.led)

    @property
    def logs(self) -> Floats:
        """Their estimates of log Z."""
        return np.array([run.log_partition for run in self.runs])

    @property
    def mean(self) -> float:
        """The log of their mean."""
        return _log_mean(self.logs) if self.runs else -math.inf

    @property
    def lower(self) -> float:
        """The largest of their bounds."""
        return max((run.lower for run in self.runs), default=-math.inf)

    @property
    def exact(self) -> bool:
        """Whether nothing was drawn."""
        return bool(self.runs) and self.runs[0].exact

    @property
    def is_precise(self) -> bool:
        """Whether more of them would be of no use."""
        return self.exact or (len(self.runs) >= RUNS and self.error <= _LEAST)

    @property
    def error(self) -> float:
        """Of the log of their mean; 0 where nothing was drawn."""
        if self.exact:
            return 0.0
        error = max(error_beside(self.logs, np.array(self.fewer)), self.unseen, _LEAST)
        if not self.led or not math.isfinite(error):
            return error
        # Led by draws of the model they come to 1 + the relative variance of a population. Chains
        # that end far below others draw from elsewhere.
        single, best = error * math.sqrt(len(self.runs)), max(score for _, score in self.led)
        led = np.array([log for log, score in self.led if score >= best - _NEAR])
        excess = _log_mean(led) - self.mean
        excess -= CHANCE * math.hypot(single / math.sqrt(len(led)), error)
        if excess <= 0.0:
            return error
        return max(error, math.sqrt(math.expm1(min(excess, 700.0)) / len(self.runs)))


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
    error = max(error, spread) if spread > SPREAD or len(alive) < len(logs) else error
    return error * math.sqrt((len(logs) - 1) / (len(logs) - 3))


def error_beside(logs: Floats, fewer: Floats) -> float:
    """The standard error of the log of a mean, given estimates by smaller populations.

    These say more than the larger ones where all of those miss the same: how far both means are
    apart, if that is no chance, and their own error, which should not fall faster than members
    are added.

    Args:
        logs: of estimates.
        fewer: of estimates by populations `FEWER` times smaller; +inf is known of none.
    """
    error, other = error_of(logs), error_of(fewer)
    if not math.isfinite(error) or not math.isfinite(other):
        return math.inf
    apart = abs(_log_mean(logs) - _log_mean(fewer))
    chance = apart <= CHANCE * math.hypot(error, other)
    return max(error, other / FEWER, 0.0 if chance else apart)


def _log_mean(logs: Floats) -> float:
    return float(log_sum(logs, 0)) - math.log(len(logs))
