"""Soft sums in few calls, and terms a few at a time."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from rdpgraph.model.semiring import soft_sum

_BLOCK = 2**19  # terms that are held at a time where they are not all kept


def soft(logs: Tensor, dim: int, temperature: float) -> Tensor:
    """`soft_sum`, in fewer calls."""
    if not logs.shape[dim] or (temperature == 0.0 and logs.requires_grad):
        return soft_sum(logs, dim, temperature)
    if temperature == 0.0:
        return logs.amax(dim)
    scaled = logs if temperature == 1.0 else logs / temperature
    total: Tensor = (
        _LogSum.apply(scaled, dim)  # pyright: ignore[reportAssignmentType]
        if scaled.requires_grad
        else scaled.logsumexp(dim)
    )
    return total if temperature == 1.0 else temperature * total


class _LogSum(torch.autograd.Function):
    """A log-sum of no possible term has a zero gradient; `torch.logsumexp` makes it NaN."""

    @staticmethod
    def forward(ctx: Any, logs: Tensor, dim: int) -> Tensor:
        total = logs.logsumexp(dim)
        ctx.save_for_backward(logs, total)
        ctx.dim = dim
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        logs, total = ctx.saved_tensors
        total = torch.where(total > -math.inf, total, 0.0).unsqueeze(ctx.dim)
        return gradients[0].unsqueeze(ctx.dim) * (logs - total).exp(), None


def in_blocks(terms: int, parts: Sequence[Tensor], dim: int) -> Iterator[tuple[Tensor, ...]]:
    """Tensors in pieces of a dim, so that not too many terms are there at a time.

    Args:
        terms: how many all of them would have.
        parts: of one size in the dim.
        dim: of the places.
    """
    places = parts[0].shape[dim]
    if terms <= _BLOCK or places < 2:
        return iter([tuple(parts)])
    size = max(1, places * _BLOCK // terms)
    return zip(*(part.split(size, dim) for part in parts), strict=True)
