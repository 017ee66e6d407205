"""What the conformance suite says when something does not hold."""

import torch
from torch import Tensor


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


def agree(holds: object, what: str) -> None:
    """Something that must hold does.

    Raises:
        AssertionError: it does not.
    """
    if not holds:
        raise AssertionError(f"It does not hold that {what}.")
