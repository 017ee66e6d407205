"""The recursion in log-space: exact whatever the range of the potentials, and slow."""

import math
from typing import Any

import torch
from torch import Tensor

from rdpgraph._types import Lengths, LogZ, Transition, Unary
from rdpgraph.model.gradients import regradient
from rdpgraph.model.semiring import soft_sum
from rdpgraph.structures.chain.factors import step_of, steps_of

_BLOCK = 2**18
"""Terms at a time. They have one room for all steps: a block allocated again at each would leave
holes too large for what is kept and, once that is in them, too small for the next block."""


def log_partition(unary: Unary, transition: Transition, lengths: Lengths) -> LogZ:
    """Log Z of each item, (B,), in nats; differentiable any number of times.

    O(T N^2) exponentials per item. What is kept for the gradient is O(T N); the rest is computed
    again, in blocks of columns of the transition.

    Args:
        unary: (B, T, N) in nats, T > 0; -inf allowed; anything but NaN beyond the lengths.
        transition: (N, N), or (1 or B, T-1, N, N) per step; [from, to].
        lengths: (B,) int64.
    """
    steps = torch.arange(unary.shape[1], device=unary.device)
    totals = torch.stack(_totals(unary, transition), 1)
    last = steps == lengths.unsqueeze(1) - 1
    terms = torch.where(last, totals, totals.detach())
    return torch.where(steps < lengths.unsqueeze(1), terms, 0.0).sum(1)


def _totals(unary: Tensor, transition: Tensor) -> list[Tensor]:
    """Log of what step t adds to the sum of prefixes, each (B,); the shifts are constants."""
    totals: list[Tensor] = []
    first, *others = unary.unbind(1)
    state, room, matrices = first, room_for(unary), steps_of(transition, len(others))
    for step in range(unary.shape[1]):
        if step:
            state = advance(state, matrices[step - 1], room) + others[step - 1]
        totals.append(soft_sum(state, 1))
        shift = totals[-1].detach()
        state = state - torch.where(shift > -math.inf, shift, 0.0).unsqueeze(1)
    return totals


def forward(unary: Unary, transition: Transition) -> Unary:
    """Log-probabilities of the state at each step given the prefix, (B, T, N)."""
    state, room = _normalised(unary[:, 0]), room_for(unary)
    states = [state]
    for step in range(1, unary.shape[1]):
        state = _normalised(advance(state, step_of(transition, step - 1), room) + unary[:, step])
        states.append(state)
    return torch.stack(states, 1)


def backward(unary: Unary, transition: Transition, lengths: Lengths) -> Unary:
    """Log of the sum over suffixes after each step, (B, T, N), its maximum 0; -inf beyond."""
    batch, total, states = unary.shape
    result = unary.new_full((batch, total, states), -math.inf)
    state, room = unary.new_full((batch, states), -math.inf), room_for(unary)
    for step in range(total - 1, -1, -1):
        if step < total - 1:
            state = advance(state + unary[:, step + 1], step_of(transition, step).mT, room)
            peak = state.amax(1, keepdim=True)
            state = state - torch.where(peak > -math.inf, peak, 0.0)
        state = torch.where((lengths == step + 1).unsqueeze(1), 0.0, state)
        result[:, step] = state
    return result


def room_for(unary: Tensor) -> Tensor:
    """Memory for the terms of `advance`, for states (B, N) of unary potentials (B, T, N)."""
    size = unary.shape[0] * unary.shape[2]
    return torch.empty(size * _width(size), dtype=unary.dtype, device=unary.device)


def advance(state: Tensor, transition: Tensor, room: Tensor | None = None) -> Tensor:
    """``logsumexp_i(state_i + transition_ij)``: (B, N), with (N, N) or (1 or B, N, N)."""
    room = room_for(state.unsqueeze(1)) if room is None else room
    return _Advance.apply(state, transition, room)  # pyright: ignore


def _summed(state: Tensor, transition: Tensor) -> Tensor:
    return soft_sum(state.unsqueeze(2) + transition, 1)


class _Advance(torch.autograd.Function):
    """A step of the recursion in blocks of columns; keeps its arguments and its result alone."""

    @staticmethod
    def forward(ctx: Any, state: Tensor, transition: Tensor, room: Tensor) -> Tensor:
        ctx.room = room
        parts: list[Tensor] = []
        for block in transition.split(_width(state.numel()), -1):
            terms = _terms(state, block, room)
            peak = terms.amax(1, keepdim=True)
            shift = torch.where(peak > -math.inf, peak, 0.0)
            parts.append(terms.sub_(shift).exp_().sum(1).log_().add_(shift.squeeze(1)))
        result = torch.cat(parts, -1)
        ctx.save_for_backward(state, transition, result)
        return result

    @staticmethod
    def backward(ctx: Any, gradient: Tensor):  # pyright: ignore
        state, transition, result = ctx.saved_tensors
        if torch.is_grad_enabled():
            return *regradient(_summed, (state, transition), gradient), None
        shift = torch.where(result > -math.inf, result, 0.0)
        whole, parts = torch.zeros_like(state), list[Tensor]()
        width = _width(state.numel())
        for block, total, weight in zip(
            *(part.split(width, -1) for part in (transition, shift, gradient)), strict=True
        ):
            terms = _terms(state, block, ctx.room).sub_(total.unsqueeze(1)).exp_()
            terms.mul_(weight.unsqueeze(1))
            whole += terms.sum(2)
            if ctx.needs_input_grad[1]:
                parts.append(terms.sum_to_size(block.shape).clone())
        return whole, torch.cat(parts, -1) if parts else None, None


def _width(size: int) -> int:
    """Columns of a block, for states of some size altogether."""
    return max(1, _BLOCK // max(1, size))


def _terms(state: Tensor, block: Tensor, room: Tensor) -> Tensor:
    """(B, N, columns): a state and a transition out of it, summed in the room for that."""
    batch, states = state.shape
    shape = (batch, states, block.shape[-1])
    return torch.add(state.unsqueeze(2), block, out=room[: math.prod(shape)].view(shape))


def _normalised(state: Tensor) -> Tensor:
    total = soft_sum(state, 1).unsqueeze(1)
    return state - torch.where(total > -math.inf, total, 0.0)
