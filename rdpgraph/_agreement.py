"""What the conformance suite says when something does not hold."""

import math

import torch
from torch import Tensor

ROUNDING = 1e-6
"""How far from one a weight may be by rounding."""

_SIGMAS = 6.0
"""How far a mean may be from one in standard errors; a right one fails once in 10^9."""


def close(got: Tensor, expected: Tensor, what: str) -> None:
    """Two tensors that broadcast hold the same numbers, up to the rounding of their type.

    Raises:
        AssertionError: they do not.
    """
    got, expected = torch.broadcast_tensors(got.detach(), expected.detach())
    tolerance = 1e-8 if got.dtype == torch.float64 else 1e-4
    same = (got == expected) | ((got - expected).abs() <= tolerance * (1 + expected.abs()))
    if not bool(same.all()):
        worst = (got - expected).abs()[~same].max()
        raise AssertionError(f"{what} differs from what it must be, by {float(worst):.3g}.")


def agree_on_average(ratios: Tensor, what: str) -> None:
    """The mean of draws (n, ...) is one, by their own standard error.

    Raises:
        AssertionError: it is not.
    """
    error = ratios.std(0) / math.sqrt(len(ratios))
    off = (ratios.mean(0) - 1).abs() > _SIGMAS * error + ROUNDING
    means = [round(mean, 3) for mean in ratios.mean(0).reshape(-1).tolist()]
    agree(not bool(off.any()), f"{what}; the means of {len(ratios):,} draws are {means}")


def agree(holds: object, what: str) -> None:
    """Something that must hold does.

    Raises:
        AssertionError: it does not.
    """
    if not holds:
        raise AssertionError(f"It does not hold that {what}.")
