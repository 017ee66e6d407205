"""Steps of chains within their lengths."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from rdpgraph._core.cache import remembered
from rdpgraph.logspace.logmatrix import finite


def inside(lengths: Tensor, total: int) -> Tensor:
    """(*batch, T): whether a step is within the length."""
    return torch.arange(total, device=lengths.device) < lengths.unsqueeze(-1)


def flat_lengths(lengths: Tensor | None, shape: Sequence[int], like: Tensor) -> Tensor:
    """(B,) lengths from (*batch,), for shape (*batch, T); default: all T."""
    if lengths is not None:
        return lengths.reshape(-1)
    return _full(math.prod(shape[:-1]), shape[-1], like.device)


@remembered(64)
def _full(count: int, length: int, device: torch.device) -> Tensor:
    return torch.full((count,), length, device=device)


def masked(unary: Tensor, lengths: Tensor) -> Tensor:
    """Unary potentials (*batch, T, N), zero beyond the lengths (*batch,)."""
    return torch.where(inside(lengths, unary.shape[-2]).unsqueeze(-1), unary, 0.0)


def held(values: Tensor, lengths: Tensor, *, best: bool) -> Tensor:
    """Marginals or max-marginals (*batch, T, states), with state 0 certain beyond the lengths."""
    if not values.shape[-2]:
        return values
    sure = torch.ones_like(lengths, dtype=values.dtype)
    if best:
        sure = torch.where(lengths > 0, values.amax((-2, -1)), 0.0)
    first = torch.arange(values.shape[-1], device=values.device) == 0
    only = torch.where(first, sure.reshape([*lengths.shape, 1, 1]), -math.inf if best else 0.0)
    return torch.where(inside(lengths, values.shape[-2]).unsqueeze(-1), values, only)


def peak(logs: Tensor, dims: tuple[int, ...]) -> Tensor:
    """The maxima over some dims, kept at size 1; 0 where all is -inf."""
    return finite(logs.amax(dims, keepdim=True))
