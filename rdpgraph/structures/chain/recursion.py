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
from rdpgraph.structures.chain import bands, logs, scaled, tapes
from rdpgraph.structures.chain.steps import (
    OperatorSteps,
    RankSteps,
    Steps,
    of_items,
    of_tables,
    tables_of,
)


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
    if bands.serves(unary, transition):
        return bands.log_partition(unary, transition, lengths)
    if isinstance(transition, OperatorSteps):
        return logs.log_partition(unary, transition, lengths)
    sides = tables_of(transition)
    dtype = unary.dtype
    work = dtype if dtype == torch.float64 else torch.float32
    on_host = unary.is_cpu or (unary.is_cuda and _is_for_host(unary, sides))
    # With ranks the machine keeps twice as much, which counts where there is much.
    if on_host and (len(sides) == 1 or unary.numel() <= tuning.BLOCK):
        given, *tables = (part.to("cpu", work) for part in (unary, *sides))
        links = of_tables(*tables)
        if tapes.serves(given, links):
            return tapes.log_partition(given, links, lengths.cpu()).to(unary.device, dtype)
    wide = work if unary.device.type == "mps" else torch.float64
    attempts = [(kind, scaled.log_partition) for kind in dict.fromkeys((work, wide))]
    return _first_safe([*attempts, (wide, _in_logs)], unary, lengths, *sides).to(dtype)


def _is_for_host(unary: Tensor, sides: Sequence[Tensor]) -> bool:
    """Return whether the host's machine is expected to be faster than the launches on a GPU."""
    batch, steps, _ = unary.shape
    products = sum(math.prod(side.shape[-2:]) for side in sides)
    work = batch * steps * (tuning.MACHINE_STEP + 3 * products * tuning.MACHINE_PRODUCT)
    launches = steps * tuning.STEP_LAUNCHES * tuning.SECONDS_PER_CALL
    return work + tuning.HOST_COPIES < launches


Attempt = Callable[..., tuple[Tensor, Tensor]]
"""A route from potentials, lengths and tables to log Z, and (B,) whether items are in doubt."""


def _first_safe(attempts: Sequence[tuple[torch.dtype, Attempt]], *parts: Tensor) -> Tensor:
    """Log Z by the first route, with items in doubt by the next ones; the last is in no doubt."""
    (dtype, route), *others = attempts
    typed = [part.to(dtype) if part.is_floating_point() else part for part in parts]
    values, doubtful = route(*typed)
    if not others or not bool(doubtful.any()):
        return values
    rows, sure = doubtful.nonzero().squeeze(1), (~doubtful).nonzero().squeeze(1)
    again = _first_safe(others, *of_items(parts, rows))
    result = torch.zeros_like(values).index_copy(0, rows, again.to(values.dtype))
    if not len(sure):
        return result
    kept = values[sure]
    if kept.requires_grad:
        # Repeat without the others, whose underflow times a zero gradient may be NaN.
        kept, _ = route(*of_items(typed, sure))
    return result.index_copy(0, sure, kept)


def _in_logs(unary: Unary, lengths: Lengths, *sides: Tensor) -> tuple[LogZ, Doubt]:
    values = logs.log_partition(unary, of_tables(*sides), lengths)
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
