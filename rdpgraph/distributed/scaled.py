"""Log Z of chains whose states lie on several ranks, by scaled products; gradients by hand.

As `structures.chain.sweeps`, the columns of the transition split: a step multiplies all states by
the columns that are here, and gathers the states that come of it, N numbers an item; the pass back
multiplies this rank's states by the same columns and adds up what that says of all states, N
numbers again. What was gathered is kept for the gradient of the transition: T N numbers an item.
"""

import math
from typing import Any

import torch
from torch import Tensor

from rdpgraph.distributed.wire import Split
from rdpgraph.logspace.gradients import differentiable_once
from rdpgraph.logspace.logmatrix import finite
from rdpgraph.structures.chain.factors import (
    Factors,
    edge_gradient,
    inside,
    joined,
    masked,
    product,
    steps_of,
)
from rdpgraph.structures.chain.ranges import state_limit, step_limit

_AT_ONCE = 2**22  # entries of a transition that are looked at together


def log_partition(
    unary: Tensor, transition: Tensor, lengths: Tensor, *, split: Split
) -> tuple[Tensor, Tensor]:
    """Log Z of each item, (B,), on every rank, and whether underflow may have taken some of it.

    Args:
        unary: (B, T, n) in nats, T > 0, of the states here; -inf allowed.
        transition: (N, n), or (1 or B, T-1, N, n) per step: the columns of the states here.
        lengths: (B,) int64, 0 to T.
        split: of the states.
    """
    return _Scaled.apply(unary, transition, lengths, split)  # pyright: ignore


@torch.no_grad()
def forward(
    unary: Tensor, transition: Tensor, lengths: Tensor, split: Split, *, keep: bool = True
) -> tuple[Factors, Tensor, Tensor, Tensor, Tensor]:
    """A forward sweep.

    Returns:
        The factors here, their offsets those of all ranks; (B, T, N) states, each row summing to
        1, or to 0 where nothing is possible, and empty if they are not kept; (B, T) their sums
        before; (B,) log Z; (B,) what is in doubt.
    """
    local, lowest = _factors(unary, transition, lengths, split)
    (batch, total, _), matrices = local.emission.shape, steps_of(local.matrix, unary.shape[1] - 1)
    states = unary.new_empty(total if keep else 0, batch, split.total)
    scales, least = (unary.new_empty(total, batch) for _ in range(2))
    state = unary.new_empty(0)
    for step, emission in enumerate(local.emission.unbind(1)):
        part = product(state, matrices[step - 1]) * emission if step else emission
        whole = split.gathered(part)
        scales[step] = whole.sum(1)
        # What has died stays dead.
        state = torch.div(whole, scales[step].unsqueeze(1), out=states[step] if keep else None)
        state.masked_fill_((scales[step] == 0).unsqueeze(1), 0.0)
        least[step] = torch.where(state > 0, state, 1.0).amin(1)
    within = inside(lengths, total)
    states = states.transpose(0, 1)
    states.masked_fill_(~within.unsqueeze(2), 0.0) if keep else None
    scales = scales.mT.contiguous()
    values = torch.where(within, scales.log() + local.offset, 0.0).sum(1)
    low = (least.mT < state_limit(unary.dtype)) | (lowest < step_limit(unary.dtype))
    doubtful = (low & within).any(1)
    # Asked of all: ranks that round differently must not go different ways.
    agreed = split.wire.largest(doubtful.to(unary.dtype)) > 0
    return local, states, scales, values, agreed


def _factors(
    unary: Tensor, transition: Tensor, lengths: Tensor, split: Split
) -> tuple[Factors, Tensor]:
    """Scaled factors, by the peaks of all ranks, and (B, T) the least product of two at a step."""
    unary = masked(unary, lengths)
    rows, low = _reach(unary, (2,))
    top, down = _reach(transition, (-2, -1))
    parts = [rows, top, low, down]
    flat = split.wire.largest(torch.cat([part.reshape(-1) for part in parts]))
    agreed = flat.split([part.numel() for part in parts])
    rows, top, low, down = (a.view(p.shape) for a, p in zip(agreed, parts, strict=True))
    rows, top = finite(rows), finite(top)
    lowest = (-finite(low) - rows).squeeze(2)
    lowest[:, 1:] += (-finite(down) - top).squeeze(-1).squeeze(-1)
    emission, matrix = torch.sub(unary, rows).exp_(), torch.sub(transition, top).exp_()
    factors = Factors(unary, joined(rows, top), lengths, transition, emission, matrix)
    return factors, lowest.exp()


def _reach(logs: Tensor, dims: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """The largest over some dims, kept at size 1, and minus the least finite; -inf of none."""
    logs, most = logs.detach(), math.prod(logs.shape[dim] for dim in dims)
    shape = [1 if dim - logs.ndim in dims or dim in dims else n for dim, n in enumerate(logs.shape)]
    high, low = (logs.new_full(shape, -math.inf) for _ in range(2))
    rows = max(1, _AT_ONCE // max(1, logs.numel() // max(1, logs.shape[-2])))
    # In blocks: one copy of the transition is as large as the model.
    for block in logs.split(rows, -2) if most and len(dims) == 2 else [logs] if most else ():
        high = torch.maximum(high, block.amax(dims, keepdim=True))
        least = torch.where(block > -math.inf, block, math.inf).amin(dims, keepdim=True)
        low = torch.maximum(low, -least)
    return high, low


class _Scaled(torch.autograd.Function):
    """The scaled recursion on several ranks."""

    @staticmethod
    def forward(
        ctx: Any, unary: Tensor, transition: Tensor, lengths: Tensor, split: Split
    ) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        keep = any(ctx.needs_input_grad[:2])
        local, states, scales, values, doubtful = forward(
            unary, transition, lengths, split, keep=keep
        )
        ctx.split = split
        if keep:
            ctx.save_for_backward(lengths, local.emission, local.matrix, states, scales)
        ctx.mark_non_differentiable(doubtful)
        return values, doubtful

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, gradient: Tensor | None, _: Tensor | None):  # pyright: ignore
        if gradient is None:
            return None, None, None, None
        lengths, emission, matrix, states, scales = ctx.saved_tensors
        here, ahead = _backward(ctx.split, lengths, emission, matrix, states, scales, gradient)
        edges = edge_gradient(matrix, states, ahead) if ctx.needs_input_grad[1] else None
        return here, edges, None, None


def _backward(
    split: Split, lengths: Tensor, emission: Tensor, matrix: Tensor, states: Tensor,
    scales: Tensor, gradient: Tensor,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Marginals here times the gradient, and the other side of each edge, both (B, T, n)."""
    mine = split.part(states)
    ahead, futures = torch.zeros_like(emission), torch.zeros_like(emission)
    seeds = torch.zeros_like(scales)
    seeds.scatter_(1, (lengths - 1).clamp(min=0).unsqueeze(1), gradient.unsqueeze(1))
    futures += seeds.unsqueeze(2)
    divisors = scales.unsqueeze(2).clamp(min=torch.finfo(scales.dtype).tiny)
    behind = (emission / divisors).masked_fill_(mine == 0, 0.0)
    matrices = steps_of(matrix.mT, emission.shape[1] - 1)
    for step in range(emission.shape[1] - 1, 0, -1):
        ahead[:, step - 1] = behind[:, step] * futures[:, step]
        futures[:, step - 1] += split.scattered(product(ahead[:, step - 1], matrices[step - 1]))
    return futures.mul_(mine), ahead
