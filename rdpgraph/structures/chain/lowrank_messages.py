"""Messages of chains of low rank, in logs and exact, that gradients pass through."""

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from rdpgraph.model.logmatrix import LogMatrix
from rdpgraph.model.semiring import soft_sum
from rdpgraph.structures.chain.factors import inside, masked, step_of


class LowRankTensors(NamedTuple):
    """Chains as tensors, batch dims flattened.

    Attributes:
        unary: (B, T, N) log-potentials in nats; -inf allowed.
        left: (N, r), or (1 or B, T - 1, N, r) per step: log-factors of the state before.
        right: likewise, of the state after.
        lengths: (B,) int64, 0 to T.
    """

    unary: Tensor
    left: Tensor
    right: Tensor
    lengths: Tensor

    def items(self, rows: Tensor) -> "LowRankTensors":
        """The tensors of some items of the batch."""
        left, right = (
            side if side.ndim == 2 or len(side) == 1 else side[rows] for side in self[1:3]
        )
        return LowRankTensors(self.unary[rows], left, right, self.lengths[rows])

    def to(self, dtype: torch.dtype) -> "LowRankTensors":
        """In another floating type."""
        unary, left, right = (part.to(dtype) for part in self[:3])
        return LowRankTensors(unary, left, right, self.lengths)


class Links:
    """The log-matrices of the steps; those that all steps share are made once."""

    def __init__(self, side: Tensor) -> None:
        self._side = side
        self._shared = LogMatrix.of(side) if side.ndim == 2 else None

    def times(self, step: int, rows: Tensor) -> Tensor:
        """(B, k) through the matrix of a step, as (B, n); or (B, m, k) as (B, m, n)."""
        if self._shared is not None:
            return self._shared.times(rows)
        matrix = LogMatrix.of(step_of(self._side, step))
        return matrix.times(rows) if rows.ndim == 3 else matrix.times(rows.unsqueeze(1)).squeeze(1)


def log_partition(parts: LowRankTensors) -> Tensor:
    """(B,) log Z, T > 0: exact at any range, any number of derivatives; O(T (N + r)) is kept."""
    totals: list[Tensor] = []
    for logs, shift in _forward(parts):
        totals.append(soft_sum(logs, 1) + shift)
    values = torch.stack(totals, 1)
    steps = torch.arange(values.shape[1], device=values.device)
    last = steps == parts.lengths.unsqueeze(1) - 1
    return torch.where(last, values, 0.0).sum(1).to(parts.unary.dtype)


def forward(parts: LowRankTensors) -> Tensor:
    """(B, T, N) log-probability of the state given the prefix up to it, up to a constant.

    To that constant no gradient goes. -inf beyond the length, and where nothing leads.
    """
    if not parts.unary.shape[1]:
        return parts.unary
    logs = torch.stack([state for state, _ in _forward(parts)], 1)
    return torch.where(inside(parts.lengths, logs.shape[1]).unsqueeze(2), logs, -math.inf)


def _forward(parts: LowRankTensors) -> Iterator[tuple[Tensor, Tensor]]:
    """Each step's log alpha, its maximum 0, and the log (B,), float64, that it lacks."""
    out, into = Links(parts.left.mT), Links(parts.right)
    unary = masked(parts.unary, parts.lengths)
    state, total = unary.new_zeros(()), unary.new_zeros(len(unary), dtype=_wide(unary))
    for step, own in enumerate(unary.unbind(1)):  # the gradient of a slice is as large as unary
        state = into.times(step - 1, out.times(step - 1, state)) + own if step else own
        top = finite(state.detach().amax(1))
        state, total = state - top.unsqueeze(1), total + top
        yield state, total


def backward(parts: LowRankTensors) -> Tensor:
    """(B, T, N) log of the sum over suffixes after each step, up to a constant; -inf beyond."""
    total = parts.unary.shape[1]
    if not total:
        return parts.unary
    out, into = Links(parts.left), Links(parts.right.mT)
    unary = masked(parts.unary, parts.lengths).unbind(1)
    state = torch.zeros_like(unary[0])
    messages: list[Tensor] = []
    for step in range(total - 1, -1, -1):
        if step < total - 1:
            passed = out.times(step, into.times(step, state + unary[step + 1]))
            goes_on = (step + 1 < parts.lengths).unsqueeze(1)
            state = torch.where(goes_on, passed, 0.0)
            state = state - finite(state.detach().amax(1, keepdim=True))
        messages.append(state)
    logs = torch.stack(messages[::-1], 1)
    return torch.where(inside(parts.lengths, total).unsqueeze(2), logs, -math.inf)


def finite(peak: Tensor) -> Tensor:
    """Peaks with 0 where nothing is possible."""
    return torch.where(peak > -math.inf, peak, 0.0)


def _wide(like: Tensor) -> torch.dtype:
    return like.dtype if like.device.type == "mps" else torch.float64
