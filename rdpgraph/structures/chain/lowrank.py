"""Log Z of chains whose transition is of low rank: O(T N r), by way of the rank at every step."""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rdpgraph.model.gradients import regradient
from rdpgraph.structures.chain import logs, lowrank_ranks, recursion
from rdpgraph.structures.chain.factors import inside, masked, peak, product, step_of
from rdpgraph.structures.chain.panels import to_ranks, to_states
from rdpgraph.structures.chain.steps import RankSteps
from rdpgraph.structures.chain.tensors import RankTensors, of_items

_LEAST = {torch.float32: 1e-10, torch.float64: 1e-100}
"""The smallest mass of a rank for which underflow elsewhere is nothing; see `_doubtful`."""


def log_partition(parts: RankTensors) -> Tensor:
    """Log Z of each item, (B,), in nats: 0 at length 0, -inf where nothing is possible.

    O(T N r) per item, as two products of matrices at each step, or by the r x r matrices between
    ranks where that is faster. What is kept for the gradient is O(T (N + r)). Items in which
    underflow may have taken something are solved again in float64, and then in logs. Any number
    of derivatives; the gradient is the marginals of states and of states with ranks.

    Source: Chiu, Deng and Rush 2021 (arXiv:2201.02715), algorithm 1, in the scaled form.
    """
    if parts.unary.shape[1] == 0:
        return parts.unary.sum((1, 2))
    return (lowrank_ranks.log_partition if lowrank_ranks.worthwhile(parts) else in_stages)(parts)


def in_stages(parts: RankTensors) -> Tensor:
    """The same over states: scaled in the type of the potentials, in float64, or in logs."""
    unary, steps, lengths = parts
    attempts = recursion.stages(unary.dtype, unary.device, _Scaled.apply, _in_logs)
    values = recursion.first_safe(attempts, unary, steps.left, steps.right, lengths)
    return values.to(unary.dtype)


def _in_logs(*parts: Tensor) -> tuple[Tensor, Tensor]:
    values = _Parts(*parts).log_partition()
    return values, torch.zeros_like(values, dtype=torch.bool)


class _Parts(NamedTuple):
    """What the scaled recursion takes: (B, T, N), two sides of `RankSteps`, and (B,)."""

    unary: Tensor
    left: Tensor
    right: Tensor
    lengths: Tensor

    def log_partition(self) -> Tensor:
        """(B,) log Z in nats, by sums in logs."""
        return logs.log_partition(self.unary, RankSteps(self.left, self.right), self.lengths)


class _Sweep(NamedTuple):
    """What a forward sweep found.

    Attributes:
        states: (B, T, N) alpha, each row summing to 1, or to 0 where nothing is possible.
        ranks: (B, T, r) the messages of the ranks into each step; zero at the first.
        back_scales: (B, T, r) what a message back to a rank is multiplied by.
        scales: (B, T) the sum of each alpha before it was normalised.
        values: (B,) log Z.
        doubtful: (B,) bool.
    """

    states: Tensor
    ranks: Tensor
    back_scales: Tensor
    scales: Tensor
    values: Tensor
    doubtful: Tensor


class _Factors(NamedTuple):
    """Factors as probabilities: the largest of each rank on the left, of each state on the right.

    Attributes:
        left: (N, r) or (1 or B, T-1, N, r).
        right: as left.
        columns: (1, r) or (1 or B, T-1, r): what was taken off each rank on the left (nats).
        rows: (1, N) or (1 or B, T-1, N): off each state on the right.
    """

    left: Tensor
    right: Tensor
    columns: Tensor
    rows: Tensor

    @classmethod
    def of(cls, parts: _Parts) -> "_Factors":
        columns, rows = peak(parts.left, (-2,)), peak(parts.right, (-1,))
        left, right = (parts.left - columns).exp_(), (parts.right - rows).exp_()
        return cls(left, right, columns.squeeze(-2), rows.squeeze(-1))

    def emission(self, parts: _Parts, step: int) -> tuple[Tensor, Tensor]:
        """(B, N), its maximum 1, and the log that was taken off, (B, 1); flat beyond the length."""
        logs = torch.where((step < parts.lengths).unsqueeze(1), parts.unary[:, step], 0.0)
        if step:
            logs = logs + (self.rows if self.rows.ndim == 1 else self.rows[:, step - 1])
        top = peak(logs, (1,))
        return (logs - top).exp_(), top

    def columns_at(self, step: int) -> Tensor:
        """(r,) or (1 or B, r) of the step into the one given."""
        return self.columns if self.columns.ndim == 1 else self.columns[:, step - 1]


class _Scaled(torch.autograd.Function):
    """The scaled recursion, and the gradient from two more sweeps' worth of products."""

    @staticmethod
    def forward(
        ctx: Any, unary: Tensor, left: Tensor, right: Tensor, lengths: Tensor
    ) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        parts = _Parts(unary, left, right, lengths)
        factors = _Factors.of(parts)
        swept = _forward(parts, factors)
        ctx.save_for_backward(*parts, *factors, *swept[:4])
        ctx.mark_non_differentiable(swept.doubtful)
        ctx.products = _autocast(unary.device.type)
        return swept.values, swept.doubtful

    @staticmethod
    def backward(ctx: Any, gradient: Tensor | None, _: Tensor | None):  # pyright: ignore
        if gradient is None:
            return None, None, None, None
        parts = _Parts(*ctx.saved_tensors[:4])
        if torch.is_grad_enabled():

            def again(unary: Tensor, left: Tensor, right: Tensor) -> Tensor:
                alike = _Parts(unary, left, right, parts.lengths)
                return alike.log_partition()

            return *regradient(again, parts[:3], gradient), None
        factors = _Factors(*ctx.saved_tensors[4:8])
        with ctx.products:
            return (*_backward(parts, factors, ctx.saved_tensors[8:], gradient), None)


def _autocast(device: str) -> torch.autocast:
    """What is asked for now, for the products of the gradient: in bfloat16 within autocast."""
    return torch.autocast(
        device, torch.get_autocast_dtype(device), enabled=torch.is_autocast_enabled(device)
    )


def _forward(parts: _Parts, factors: _Factors) -> _Sweep:
    """alpha_t = (alpha_t-1 L) R^T * e_t, normalised."""
    unary, (batch, total, _) = parts.unary, parts.unary.shape
    rank, least = parts.left.shape[-1], torch.finfo(parts.unary.dtype).tiny
    states = torch.empty_like(unary, memory_format=torch.contiguous_format)
    ranks, back_scales = (unary.new_zeros(batch, total, rank) for _ in range(2))
    arrived = unary.new_zeros(batch, total, rank)
    scales, offsets = (unary.new_empty(batch, total) for _ in range(2))
    for step in range(total):
        state, top = factors.emission(parts, step)
        if step:
            mass = to_ranks(states[:, step - 1], step_of(factors.left, step - 1)).to(unary.dtype)
            columns = factors.columns_at(step)
            logs = mass.log() + columns
            highest = peak(logs, (1,))
            ranks[:, step] = (logs - highest).exp()
            # A rank that nothing reaches has no part in what comes back.
            back_scale = (columns - highest).exp().masked_fill(mass == 0, 0.0)
            # Above that bound only where the answer is in doubt.
            back_scales[:, step] = back_scale.clamp(max=1 / _LEAST[unary.dtype])
            arrived[:, step] = mass
            arriving = to_states(ranks[:, step], step_of(factors.right, step - 1))
            state = state.mul_(arriving)
            top = top + highest
        scale = state.sum(1, keepdim=True)
        scales[:, step], offsets[:, step] = scale.squeeze(1), top.squeeze(1)
        torch.div(state, scale.clamp(min=least), out=states[:, step])
    within = inside(parts.lengths, total)
    states.masked_fill_(~within.unsqueeze(2), 0.0)
    values = torch.where(within, scales.double().log() + offsets, 0.0).sum(1).to(unary.dtype)
    doubtful = _doubtful(parts, arrived, ranks, scales)
    return _Sweep(states, ranks, back_scales, scales, values, doubtful)


def _doubtful(parts: _Parts, arrived: Tensor, ranks: Tensor, scales: Tensor) -> Tensor:
    """(B,) bool: whether what underflow took may matter.

    Factors are at most 1 on the left. So with v the messages back to the ranks, the future of any
    state, sum_k L_ik v_k, is at most 1 / min_k w_k times that of the whole, sum_k w_k v_k, where w
    are the masses of the ranks: a loss of N tiny numbers is nothing while no w is small. The same
    holds on the right, whose factors have a maximum of 1 in each state. Ranks that nothing can
    reach do not count.
    """
    least = _LEAST[parts.unary.dtype]
    within = inside(parts.lengths, parts.unary.shape[1])
    low = (torch.minimum(arrived, ranks) < least) & within.unsqueeze(2)
    low[:, 0] = False
    faint = (scales < least) & within
    if not bool(low.any()) and not bool(faint.any()):
        return torch.zeros_like(within[:, 0])
    rows = (low.flatten(1).any(1) | faint.any(1)).nonzero().squeeze(1)
    reached, alive = _reached(_Parts(*of_items(parts, rows)))
    doubtful = torch.zeros_like(within[:, 0])
    doubtful[rows] = (low[rows] & reached).flatten(1).any(1) | (faint[rows] & alive).any(1)
    return doubtful


def _reached(parts: _Parts) -> tuple[Tensor, Tensor]:
    """Ranks (B, T, r) that some prefix reaches, and steps (B, T) that it does."""
    unary = masked(parts.unary, parts.lengths)
    left, right = ((side > -math.inf).to(unary) for side in parts[1:3])
    state = (unary[:, 0] > -math.inf).to(unary)
    ranks = [unary.new_zeros(len(unary), left.shape[-1], dtype=torch.bool)]
    alive = [state.any(1)]
    for step in range(1, unary.shape[1]):
        rank = product(state, step_of(left, step - 1)) > 0
        into = product(rank.to(unary), step_of(right, step - 1).mT) > 0
        state = (into & (unary[:, step] > -math.inf)).to(unary)
        ranks.append(rank)
        alive.append(state.any(1))
    return torch.stack(ranks, 1), torch.stack(alive, 1)


def _backward(
    parts: _Parts, factors: _Factors, swept: tuple[Tensor, ...], gradient: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Marginals of states, of states before a rank, of states after it; times the gradient."""
    states, ranks, back_scales, scales = swept
    total = states.shape[1]
    least = torch.finfo(states.dtype).tiny
    seeds = torch.zeros_like(scales)
    seeds.scatter_(1, (parts.lengths - 1).clamp(min=0).unsqueeze(1), gradient.unsqueeze(1))
    marginals, ahead = torch.empty_like(states), torch.empty_like(states)
    back = torch.zeros_like(ranks)
    future = seeds[:, -1:].expand(-1, states.shape[2])
    for step in range(total - 1, -1, -1):
        torch.mul(states[:, step], future, out=marginals[:, step])
        if not step:
            ahead[:, 0] = 0.0
            continue
        emission, _ = factors.emission(parts, step)
        share = emission.div_(scales[:, step].clamp(min=least).unsqueeze(1)).mul_(future)
        share.masked_fill_(states[:, step] == 0, 0.0)
        ahead[:, step] = share
        back[:, step - 1] = to_ranks(share, step_of(factors.right, step - 1)) * back_scales[:, step]
        future = to_states(back[:, step - 1], step_of(factors.left, step - 1))
        future = future + seeds[:, step - 1 : step]
    return marginals, _pairs(states, back, factors.left, 0), _pairs(ahead, ranks, factors.right, 1)


def _pairs(states: Tensor, ranks: Tensor, factor: Tensor, first: int) -> Tensor:
    """Sums of marginals of a state and a rank, in the shape of the factor."""
    if factor.ndim == 2:
        return (states.flatten(0, 1).mT @ ranks.flatten(0, 1)).mul_(factor)
    steps = slice(first, states.shape[1] - 1 + first)
    states, ranks = states[:, steps], ranks[:, steps]
    if len(factor) == 1:
        return torch.einsum("bti,btk->tik", states, ranks).unsqueeze(0).mul_(factor)
    return (states.unsqueeze(3) * ranks.unsqueeze(2)).mul_(factor)
