"""One step of the recursion in log-space: exact whatever the range of the potentials, and slow."""

import math
from typing import Any

import torch
from torch import Tensor

from rdpgraph.model.gradients import regradient
from rdpgraph.model.semiring import soft_sum

_BLOCK = 2**18
"""Terms at a time. They have one room for all steps: a block allocated again at each would leave
holes too large for what is kept and, once that is in them, too small for the next block."""


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
