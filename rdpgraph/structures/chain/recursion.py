"""Log Z of chains and their messages, by the fastest route that is exact."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rdpgraph._core import tuning
from rdpgraph._core.compiler import opaque
from rdpgraph._core.types import Doubt, Lengths, LogZ, Transition, Unary
from rdpgraph.logspace.logmatrix import finite, soft_sum
from rdpgraph.structures.chain import logs, scaled, scan, tapes
from rdpgraph.structures.chain.steps import OperatorSteps, RankSteps, Steps, of_items, stepping


@dataclass(frozen=True, eq=False)
class Messages:
    """Forward and backward messages of chains, in nats; -inf beyond the length."""

    # (B, T, N) log-probability of the state given the prefix that ends there, its unary included;
    # -inf where that prefix is impossible.
    log_forward: Tensor
    # (B, T, N) log of the sum over suffixes after the step, its maximum 0; -inf if impossible.
    log_backward: Tensor


@opaque
def log_partition(
    unary: Unary, transition: Transition | RankSteps | OperatorSteps, lengths: Lengths
) -> LogZ:
    """Log Z of each item, (B,), in nats: 0 at length 0, -inf where nothing is possible.

    O(T N^2) per item, as scaled products of matrices, or O(T N r) by way of ranks; O(T N), or
    O(T (N + r)), is kept for the gradient. The machine sums entries that underflow in logarithms;
    without it items that may lose something are solved again in float64, and then in log-space: see
    `scaled`. Differentiable twice (in log-space any number of times); the gradient is the
    marginals, zero in impossible items.

    Args:
        unary: (B, T, N) in nats; -inf allowed; any but NaN beyond the lengths.
        transition: (N, N), or (1 or B, T-1, N, N) per step; [from, to]; or steps.
        lengths: (B,) int64, 0 to T.

    Source: Rabiner (1989), section V.A, for the scaling; Chiu, Deng and Rush 2021
    (arXiv:2201.02715), algorithm 1, for the ranks.
    """
    if unary.shape[1] == 0:
        return unary.sum((1, 2))
    if isinstance(transition, OperatorSteps):
        return logs.log_partition(unary, transition, lengths)
    low = isinstance(transition, RankSteps)
    sides = transition.sides if low else (transition,)
    dtype = torch.promote_types(unary.dtype, sides[0].dtype)
    attempts = stages(dtype, unary.device, scaled.log_partition, _in_logs)
    work = attempts[0][0]
    given = unary.to(work), stepping(*(side.to(work) for side in sides))
    # With ranks the machine keeps twice as much, which counts where there is much.
    if tapes.serves(*given) and not (low and unary.numel() > tuning.BLOCK):
        return tapes.log_partition(*given, lengths).to(dtype)
    if not low and scan.worthwhile(unary):
        attempts = [(work, scan.log_partition), *attempts]
    return first_safe(attempts, unary, *torch.broadcast_tensors(*sides), lengths).to(dtype)


Attempt = Callable[..., tuple[Tensor, Tensor]]
"""A route from potentials and lengths to values of items, and (B,) whether they are in doubt."""


def stages(
    dtype: torch.dtype, device: torch.device, quick: Attempt, *slow: Attempt
) -> list[tuple[torch.dtype, Attempt]]:
    """Routes to try in turn, and their dtypes; the last one is never in doubt.

    ``quick`` is tried in the dtype of the potentials, at least float32, then in float64 where the
    device has it; ``slow`` ones in float64.
    """
    work = dtype if dtype == torch.float64 else torch.float32
    wide = work if device.type == "mps" else torch.float64
    first = [(kind, quick) for kind in dict.fromkeys((work, wide))]
    return [*first, *((wide, route) for route in slow)]


def first_safe(attempts: Sequence[tuple[torch.dtype, Attempt]], *parts: Tensor) -> Tensor:
    """Values by the first route, with items in doubt by the next ones; parts are its arguments."""
    (dtype, route), *others = attempts
    typed = [part.to(dtype) if part.is_floating_point() else part for part in parts]
    values, doubtful = route(*typed)
    if not others or not bool(doubtful.any()):
        return values
    rows, sure = doubtful.nonzero().squeeze(1), (~doubtful).nonzero().squeeze(1)
    again = first_safe(others, *of_items(parts, rows))
    result = torch.zeros_like(values).index_copy(0, rows, again.to(values.dtype))
    if not len(sure):
        return result
    kept = values[sure]
    if kept.requires_grad:
        # Repeat without the others, whose underflow times a zero gradient may be NaN.
        kept, _ = route(*of_items(typed, sure))
    return result.index_copy(0, sure, kept)


def _in_logs(unary: Unary, *parts: Tensor) -> tuple[LogZ, Doubt]:
    *sides, lengths = parts
    values = logs.log_partition(unary, stepping(*sides), lengths)
    return values, torch.zeros_like(lengths, dtype=torch.bool)


def messages(unary: Unary, transition: Transition | Steps, lengths: Lengths) -> Messages:
    """Forward and backward messages; differentiable; arguments as for `log_partition`."""
    if tapes.serves(unary, transition):
        return Messages(*tapes.both(unary, transition, lengths).unbind(1))
    forward = logs.forward(unary, transition, lengths)
    forward = forward - finite(soft_sum(forward, 2)).unsqueeze(2)
    return Messages(forward, logs.backward(unary, transition, lengths))


def filtered(unary: Unary, transition: Transition | Steps, lengths: Lengths) -> Unary:
    """(B, T, N) probabilities of the state given the prefix; differentiable; 0 if impossible."""
    sent = forward(unary, transition, lengths)
    alive = (sent.detach() > -math.inf).any(-1, keepdim=True)
    return torch.where(alive, torch.where(alive, sent, 0.0).softmax(-1), 0.0)


def forward(unary: Unary, transition: Transition | Steps, lengths: Lengths) -> Unary:
    """(B, T, N) the forward messages, up to a constant in each row; differentiable."""
    if tapes.serves(unary, transition):
        return tapes.forward(unary, transition, lengths)
    return logs.forward(unary, transition, lengths)
