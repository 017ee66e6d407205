"""Between which numbers Z lies with a probability, from a few unbiased estimates of it.

Bets on what the next estimate will be: at the true Z they gain nothing on average, so that a Z at
which they have multiplied their stake by n is wrong with a probability of at least 1 - 1/n (Ville's
inequality), however few estimates there are and whenever they end. The empirical Bernstein
inequality (Maurer and Pontil 2009) says nothing for as few as eight.

Waudby-Smith and Ramdas (2024), Estimating means of bounded random variables by betting.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from rdpgraph.engines.minibuckets.bounds import log_sum
from rdpgraph.engines.tables import Floats

_STAKES = np.array([1.0, 0.5, 0.25, 0.125])
"""Parts of what there is that are bet, with equal shares of the first stake."""
_STEPS = 60
"""Halvings of the range in which an end lies."""
_RANGE = 200.0
"""Nats below the largest estimate where a lower end is looked for."""


@dataclass(frozen=True)
class Draws:
    """Independent estimates of one Z.

    Attributes:
        logs: of them.
        most: the log of what none of them exceeds.
    """

    logs: tuple[float, ...]
    most: float


def interval(draws: Sequence[Draws], confidence: float) -> tuple[float, float]:
    """Two numbers between which log Z lies with a probability (nats).

    Args:
        draws: in the order in which they were made; later ones may depend on what came before.
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
    """Two numbers next to each other between which something ceases to hold; it is asked inside."""
    for _ in range(_STEPS):
        middle = 0.5 * (low + high)
        if not low < middle < high:
            break
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low, high


def _gain(draws: Sequence[Draws], log_z: float, *, above: bool) -> float:
    """The log of what a stake of one has become, were this log Z.

    A part of it is bet from each group of estimates on, as the first ones may be much worse.

    Args:
        draws: the estimates.
        log_z: below what none exceeds.
        above: bets that estimates are above Z; else that they are below it.
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
    """What each bet of all there is returns; its mean is 1."""
    logs = np.array(group.logs)
    if above:
        return np.exp(np.minimum(logs - log_z, 700.0))
    room = -np.expm1(log_z - group.most)  # above 0, as Z is below what none exceeds
    return -np.expm1(np.minimum(logs - group.most, 0.0)) / room
