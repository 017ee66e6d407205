"""Numbers as arguments: Python's and NumPy's, and tensors of one number."""

import math
from numbers import Integral, Real
from statistics import NormalDist

import torch
from torch import Tensor

from rdpgraph._core import tuning

ROUNDING = 1e-6
"""Differences below this are rounding: relative to a value, or in nats below one nat."""

PROOF = 1e-9
"""The same where a score in float64 meets an upper bound, which proves that no other is better: on
large models other configurations may differ by less than `ROUNDING` of the score."""

LEAST = 4
"""The fewest draws that give a standard error: Student's t with two degrees of freedom, of three
draws, has no variance."""

LOG_RANGE = 650.0
"""Log-values that are at most so many nats apart have exponentials in the range of float64."""


def is_whole(value: object, least: int = 0) -> bool:
    """Return whether a value is an integer of at least ``least``; booleans are not."""
    if type(value) is int:  # several times as fast to ask
        return value >= least
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= least


def is_real(value: object) -> bool:
    """Return whether a value is a number or a tensor of one; booleans are not."""
    if isinstance(value, Tensor):
        return value.ndim == 0
    return isinstance(value, Real) and not isinstance(value, bool)


def lowest(values: Tensor) -> float:
    """The least of some values; of few without torch's kernels, whose calls would take longer."""
    if 0 < values.numel() <= tuning.LISTED:
        return min(values.flatten().tolist())
    return values.amin().item() if values.numel() else math.inf


def outside(values: Tensor, least: int, most: int) -> int | None:
    """Return the first number that is not from ``least`` to ``most``; None if all are.

    A few numbers are compared in Python, which takes less time than a call into torch.
    """
    if values.numel() <= tuning.LISTED:
        return next((x for x in values.flatten().tolist() if not least <= x <= most), None)
    wrong = values[(values < least) | (values > most)]
    return int(wrong[0]) if len(wrong) else None


def are_finite(values: Tensor) -> bool:
    """Return whether no value is NaN or infinite, by two reductions without a temporary."""
    if not values.numel():
        return True
    return values.amin().item() > -math.inf and values.amax().item() < math.inf


def student(chance: float, freedom: int) -> float:
    """The quantile of Student's t at a probability in 1/2..1; +inf without degrees of freedom."""
    if freedom < 1:
        return math.inf
    if freedom >= 30:  # the expansion of Cornish and Fisher is good to six digits there
        z, n = NormalDist().inv_cdf(chance), freedom
        terms = z**3 + z, 5 * z**5 + 16 * z**3 + 3 * z, 3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z
        return z + terms[0] / (4 * n) + terms[1] / (96 * n**2) + terms[2] / (384 * n**3)
    low, high = 0.0, math.pi / 2
    while (angle := (low + high) / 2) not in (low, high):
        # Abramowitz and Stegun, 26.7.3 and 4: the chance of less than t = sqrt(n) tan(angle).
        term = math.cos(angle) if freedom % 2 else 1.0
        total = 0.0
        for power in range(2 + freedom % 2, freedom + 1, 2):
            total += term
            term *= math.cos(angle) ** 2 * (power - 1) / power
        inside = math.sin(angle) * total
        if freedom % 2:
            inside = 2 / math.pi * (angle + inside)
        low, high = (angle, high) if 0.5 + inside / 2 < chance else (low, angle)
    return math.sqrt(freedom) * math.tan(angle)


def flushed(values: Tensor) -> Tensor:
    """Values with 0 in place of subnormal numbers.

    A product of matrices that holds such numbers takes up to a hundred times longer on a CPU.
    """
    kind = torch.finfo(values.dtype)
    return torch.nn.functional.hardshrink(values, kind.tiny * (1 - kind.eps))  # the largest of them
