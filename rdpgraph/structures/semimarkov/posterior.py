"""log Z with a gradient written by hand: the posterior of segments and of transitions.

The gradient runs the forward recursion backwards with conditional probabilities: which segment
ended here, which label stood before. Each is at most one and they sum to one, at any range of
scores. Only O(T N) is kept from the forward pass; the posterior of segments has the size of the
scores.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn.functional import pad

from rdpgraph.model.gradients import regradient
from rdpgraph.structures.semimarkov.coupling import Coupling
from rdpgraph.structures.semimarkov.recursion import Prefixes, at_last, prefixes


def log_partition(
    segments: Tensor, transition: Tensor, lengths: Tensor, again: Callable[[Tensor, Tensor], Tensor]
) -> Tensor:
    """(B,) log Z. O(T (D N + N^2)) time, O(T N) kept beside the scores.

    Args:
        segments: (B, T, D, N).
        transition: (N, N); without gradient (1 or B, T - 1, N, N), too.
        lengths: (B,) int64.
        again: log Z of segments and transition by autograd, for second derivatives.
    """
    if transition.ndim > 2 or not torch.is_grad_enabled():
        return prefixes(
            segments, Coupling.each(transition, segments.shape[1]), lengths
        ).log_partition
    log_z: Tensor = _LogPartition.apply(segments, transition, lengths, again)  # pyright: ignore
    return log_z


class _LogPartition(Function):
    @staticmethod
    def forward(
        ctx: Any,
        segments: Tensor,
        transition: Tensor,
        lengths: Tensor,
        again: Callable[[Tensor, Tensor], Tensor],
    ) -> Tensor:
        forward = prefixes(segments, Coupling.each(transition, segments.shape[1]), lengths)
        ctx.save_for_backward(
            segments, transition, lengths, forward.leaving, forward.entering, forward.bases
        )
        ctx.again = again
        return forward.log_partition

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        segments, transition, lengths, *messages = ctx.saved_tensors
        (grad,) = gradients
        if torch.is_grad_enabled():
            return *regradient(ctx.again, (segments, transition), grad), None, None
        forward = Prefixes(grad, *messages)
        answer = posterior(segments, Coupling.of(transition), lengths, forward, grad)
        return *answer, None, None


def posterior(
    segments: Tensor, coupling: Coupling, lengths: Tensor, forward: Prefixes, grad: Tensor
) -> tuple[Tensor, Tensor]:
    """The probabilities of segments and the expected transitions, each item's times `grad`.

    Args:
        segments: (B, T, D, N).
        coupling: the transition.
        lengths: (B,).
        forward: the messages of the forward recursion.
        grad: (B,) the weight of each item.

    Returns:
        (B, T, D, N) and, summed over items and steps, (N, N).
    """
    batch, steps, durations, labels = segments.shape
    if not steps:
        return torch.zeros_like(segments), torch.zeros_like(coupling.transition)
    marginals = conditionals(segments, forward)
    values, totals, _ = coupling.scaled(forward.leaving)
    trusted = totals >= coupling.faint
    careful = not (coupling.bounded or bool(trusted.all()))
    divisors = torch.where(trusted, totals, math.inf)
    starting = torch.zeros_like(totals)
    counts = torch.zeros_like(coupling.transition)
    ending = _last(forward.leaving, lengths)
    pending = segments.new_zeros(batch, durations, labels)
    for place in range(steps - 1, -1, -1):
        marginals[:, place] *= ending[:, place].unsqueeze(1)
        if not place:
            break
        # What lies over a position is one segment; said at each step, rounding does not add up.
        pending = pending + marginals[:, place]
        over = pending.sum((1, 2), keepdim=True)
        pending = pending / torch.where(over > 0, over, 1.0)
        starts, before = pending[:, 0], place - 1
        starting[:, before] = starts / divisors[:, before]
        back = values[:, before] * (starting[:, before] @ coupling.weights.T)
        if careful:
            rows, columns = coupling.lost(forward.leaving[:, before], totals[:, before])
            if len(rows):
                logs = forward.leaving[rows, before] + coupling.transition.T[columns]
                shares = logs.softmax(1) * starts[rows, columns].unsqueeze(1)
                back = back.index_add(0, rows, shares)
                counts = counts.index_add(1, columns, (shares * grad[rows].unsqueeze(1)).T)
        ending[:, before] += back
        pending = pad(pending[:, 1:], (0, 0, 0, 1))
    starting *= grad.reshape(-1, 1, 1)
    flat = values.reshape(-1, labels).T @ starting.reshape(-1, labels)
    return marginals.mul_(grad.reshape(-1, 1, 1, 1)), counts + coupling.weights * flat


def conditionals(segments: Tensor, forward: Prefixes) -> Tensor:
    """(B, T, D, N): how likely the segment of a label that ends at a position lasts d + 1 steps."""
    durations = segments.shape[2]
    before = pad(forward.entering, (0, 0, durations - 1, 0), value=-math.inf)
    bases = pad(forward.bases, (durations - 1, 0))
    shifts = bases.unfold(1, durations, 1).flip(2) - forward.bases.unsqueeze(2)
    logs = segments + before.unfold(1, durations, 1).flip(3).transpose(2, 3)
    leaving = torch.where(forward.leaving > -math.inf, forward.leaving, 0.0)
    logs += shifts.to(logs.dtype).unsqueeze(3)
    logs -= leaving.unsqueeze(2)
    chances = logs.exp_()
    # Divided by their sum, or the rounding of thousands of large logs adds up along the sequence.
    total = chances.sum(2, keepdim=True)
    return chances.div_(torch.where(total > 0, total, 1.0))


def _last(leaving: Tensor, lengths: Tensor) -> Tensor:
    """(B, T, N) the probability of each label at the last position, zero elsewhere."""
    last = at_last(leaving, lengths)
    alive = (last > -math.inf).any(1, keepdim=True) & (lengths > 0).unsqueeze(1)
    chances = torch.where(alive, last, 0.0).softmax(1).masked_fill(~alive, 0.0)
    place = (lengths - 1).clamp(min=0).reshape(-1, 1, 1).expand(-1, 1, leaving.shape[2])
    return torch.zeros_like(leaving).scatter(1, place, chances.unsqueeze(1))
