"""What the conformance suite asks of posteriors, and says when something does not hold."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

ROUNDING = 1e-6
"""How far from one a weight may be by rounding."""

_SIGMAS = 6.0
"""How far a mean may be from one in standard errors; a right one fails once in 10^9."""

NUMBERS: dict[str, Callable[[Any], Any]] = {
    "log_partition": lambda posterior: posterior.log_partition,
    "marginals()": lambda posterior: posterior.marginals(),
    "max_marginals()": lambda posterior: posterior.max_marginals(),
    "entropy()": lambda posterior: posterior.entropy(),
}
"""What a posterior has one answer to."""

QUESTIONS: dict[str, Callable[[Any], Any]] = NUMBERS | {
    "mode()": lambda posterior: posterior.mode(),
    "sample()": lambda posterior: posterior.sample(6, generator=seeded()),
    "rsample()": lambda posterior: posterior.rsample(temperature=0.7, generator=seeded()),
}
"""What every posterior is asked."""


def seeded(seed: int = 0) -> torch.Generator:
    """A generator of a seed."""
    return torch.Generator().manual_seed(seed)


def tensors_of(answer: Any) -> list[Tensor]:
    """The tensors of an answer, whatever the question and the model."""
    if isinstance(answer, Tensor):
        return [answer]
    return list((answer if isinstance(answer, dict) else vars(answer)).values())


def alike(got: Any, expected: Any, what: str) -> None:
    """Two answers have one type, and tensors of the same shapes and types, without NaN.

    Raises:
        AssertionError: they do not.
    """
    kind = Tensor if isinstance(expected, Tensor) else type(expected)
    agree(isinstance(got, kind), f"{what} is a {kind.__name__}")
    for one, other in zip(tensors_of(got), tensors_of(expected), strict=True):
        agree(one.shape == other.shape, f"{what} has shape {tuple(other.shape)}")
        agree(one.dtype == other.dtype, f"{what} has type {other.dtype}")
        agree(not bool(one.isnan().any()), f"{what} has no NaN")


def close(got: Tensor, expected: Tensor, what: str) -> None:
    """Two tensors that broadcast hold the same numbers, up to the rounding of their type.

    Raises:
        AssertionError: they do not.
    """
    got, expected = torch.broadcast_tensors(got.detach(), expected.detach())
    if got.dtype == torch.bool:
        got, expected = got.long(), expected.long()
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
