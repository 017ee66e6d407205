"""Log Z of chains and their messages, by the fastest route that is exact."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rdpgraph._core import tuning
from rdpgraph._core.compiler import opaque
from rdpgraph._core.types import Lengths, LogZ, Transition, Unary
from rdpgraph.logspace.logmatrix import finite, soft_sum
from rdpgraph.structures.chain import logs, operators, rules
from rdpgraph.structures.chain.steps import (
    OperatorSteps,
    RankSteps,
    Steps,
    of_tables,
    tables_of,
)


@dataclass(frozen=True, eq=False)
class ChainMessages:
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
    O(T (N + r)), is kept for the gradient. Entries that underflow are summed in logarithms. All
    derivatives exist; the gradient is the marginals, zero in impossible items.

    Args:
        unary: (B, T, N) in nats; -inf allowed; any but NaN beyond the lengths.
        transition: (N, N), or (1 or B, T-1, N, N) per step; [from, to]; or steps.
        lengths: (B,) int64, 0 to T.

    Source: Rabiner (1989), section V.A, for the scaling; Chiu, Deng and Rush 2021
    (arXiv:2201.02715), algorithm 1, for the ranks.
    """
    if not unary.numel():
        return _of_none(unary, transition)
    if operators.serves(unary, transition):
        return operators.log_partition(unary, transition, lengths)
    if isinstance(transition, OperatorSteps) or unary.device.type == "mps":  # without float64
        return logs.log_partition(unary, transition, lengths)
    sides = tables_of(transition)
    if unary.is_cuda and _is_for_host(unary, sides):
        given, *tables = (part.cpu() for part in (unary, *sides))
        return rules.log_partition(given, of_tables(*tables), lengths.cpu()).to(unary.device)
    return rules.log_partition(unary, transition, lengths)


def _of_none(unary: Tensor, transition: Tensor | RankSteps | OperatorSteps) -> Tensor:
    """(B,) zeros, for chains without steps or no chains; gradients are zeros."""
    sides = (transition,) if isinstance(transition, Tensor) else transition.sides
    return unary.sum((1, 2)) + sum(side.reshape(-1)[:0].sum() for side in sides)


def _is_for_host(unary: Tensor, sides: Sequence[Tensor]) -> bool:
    """Return whether the host's machine is expected to be faster than the launches on a GPU."""
    batch, steps, _ = unary.shape
    products = sum(math.prod(side.shape[-2:]) for side in sides)
    work = batch * steps * (tuning.MACHINE_STEP + 3 * products * tuning.MACHINE_PRODUCT)
    launches = steps * tuning.STEP_LAUNCHES * tuning.SECONDS_PER_CALL
    return work + tuning.HOST_COPIES < launches


def messages(unary: Unary, transition: Transition | Steps, lengths: Lengths) -> ChainMessages:
    """Forward and backward messages; differentiable; arguments as for `log_partition`."""
    if rules.serves(unary, transition):
        return ChainMessages(*rules.both(unary, transition, lengths).unbind(1))
    forward = logs.forward(unary, transition, lengths)
    forward = forward - finite(soft_sum(forward, 2)).unsqueeze(2)
    return ChainMessages(forward, logs.backward(unary, transition, lengths))


def filtered(unary: Unary, transition: Transition | Steps, lengths: Lengths) -> Unary:
    """(B, T, N) probabilities of the state given the prefix; differentiable; 0 if impossible."""
    sent = forward(unary, transition, lengths)
    alive = (sent.detach() > -math.inf).any(-1, keepdim=True)
    return torch.where(alive, torch.where(alive, sent, 0.0).softmax(-1), 0.0)


def forward(unary: Unary, transition: Transition | Steps, lengths: Lengths) -> Unary:
    """(B, T, N) the forward messages, up to a constant in each row; differentiable."""
    if rules.serves(unary, transition):
        return rules.forward(unary, transition, lengths)
    if operators.is_banded(transition) and operators.serves(unary, transition):
        return operators.forward(unary, transition, lengths)
    return logs.forward(unary, transition, lengths)
