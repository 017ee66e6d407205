"""Forward messages of chains that gradients pass through."""

import math

import torch
from torch import Tensor

from rdpgraph._types import Lengths, Transition, Unary
from rdpgraph.structures.chain import logs


def forward(unary: Unary, transition: Transition, lengths: Lengths) -> Unary:
    """(B, T, N) log-probability of the state given the prefix that ends there; differentiable.

    Up to a constant in each row, to which no gradient goes: their softmax over states is the
    filtered distribution, with its gradient. -inf beyond the length, and where a state cannot be
    reached, the gradient there zero. Costs O(T N^2), as matrix products of scaled probabilities;
    O(T N) and the exponentials of the transition are kept for the gradient. A step in which those
    would underflow is summed in logs instead.

    Args:
        unary: (B, T, N) in nats; -inf allowed.
        transition: (N, N), or (1 or B, T-1, N, N) per step; [from, to]; -inf allowed.
        lengths: (B,) int64.
    """
    steps = torch.arange(unary.shape[1], device=unary.device)
    inside = (steps < lengths.unsqueeze(1)).unsqueeze(2)
    unary = torch.where(inside, unary, 0.0)
    # One unbinding: its gradient is one tensor, that of an index is one for each step.
    matrices = () if transition.ndim == 2 else transition.unbind(1)
    shared = _scaled(transition) if transition.ndim == 2 else None
    parts: list[Tensor] = []
    for step, values in enumerate(unary.unbind(1)):
        if step:
            matrix = matrices[step - 1] if matrices else transition
            values = values + _summed(parts[-1], matrix, *(shared or _scaled(matrix)))
        parts.append(values - _finite(values.detach().amax(1, keepdim=True)))
    return torch.where(inside, torch.stack(parts, 1), -math.inf) if parts else unary


def _scaled(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Probabilities whose rows have maximum 1, and the log of what they were divided by."""
    peak = _finite(matrix.detach().amax(-1))
    return (matrix - peak.unsqueeze(-1)).exp(), peak


def _summed(state: Tensor, matrix: Tensor, scaled: Tensor, scale: Tensor) -> Tensor:
    """``logsumexp_i(state_i + matrix_ij)``, (B, N), up to a constant in each row."""
    logs_in = state + scale
    weights = (logs_in - _finite(logs_in.detach().amax(1, keepdim=True))).exp()
    total = (weights.unsqueeze(-2) @ scaled).squeeze(-2) if scaled.ndim == 3 else weights @ scaled
    # What underflowed is at most `tiny` for each of N terms.
    limits = torch.finfo(total.dtype)
    low = total.detach() < limits.tiny / limits.eps * total.shape[-1]
    if bool(low.any()):
        reached = _reached(state, matrix, total.dtype)
        if bool((low & reached).any()):
            return logs.advance(state, matrix)
    positive = total > 0
    return torch.where(positive, torch.where(positive, total, 1.0).log(), -math.inf)


@torch.no_grad()
def _reached(state: Tensor, matrix: Tensor, dtype: torch.dtype) -> Tensor:
    """Which states any possible one leads to, (B, N)."""
    possible = (state > -math.inf).to(dtype).unsqueeze(-2)
    return (possible @ (matrix > -math.inf).to(dtype)).squeeze(-2) > 0


def _finite(peak: Tensor) -> Tensor:
    return torch.where(peak > -math.inf, peak, 0.0)
