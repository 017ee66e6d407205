"""Log Z of chains and their messages."""

import math

import torch
from torch import Tensor

from rdpgraph._core import tuning
from rdpgraph._core.compiler import opaque
from rdpgraph._core.types import LogZ, Unary
from rdpgraph.model.potentials.lowrank import LowRank
from rdpgraph.structures.chain import rules
from rdpgraph.structures.chain.parts import (
    AnyChain,
    Parts,
    inside,
    masked,
    peak,
    replaced,
    sides_of,
)


@opaque
def log_partition(parts: AnyChain) -> LogZ:
    """Log Z of each item, (B,), in nats: 0 at length 0, -inf where nothing is possible.

    O(T N^2) per item, as scaled products of matrices, or O(T N r) by way of ranks; O(T N), or
    O(T (N + r)), is kept for the gradient. Entries that underflow are summed in logarithms. All
    derivatives exist; the gradient is the marginals, zero in impossible items.

    Source: Rabiner (1989), section V.A, for the scaling; Chiu, Deng and Rush 2021
    (arXiv:2201.02715), algorithm 1, for the ranks.
    """
    unary, link, lengths = parts.unary, parts.transition, parts.lengths
    if not unary.numel():  # without steps or without chains; gradients are zeros
        return unary.sum((1, 2)) + sum(side.reshape(-1)[:0].sum() for side in sides_of(link))
    # Logs of sums are in float64, which some devices lack.
    if unary.device.type == "mps" or (unary.is_cuda and _is_for_host(parts)):
        there = replaced(link, [side.cpu() for side in sides_of(link)])
        host = Parts(unary.cpu(), there, lengths.cpu())
        return rules.bound(host).log_partition().to(unary.device)
    return rules.bound(parts).log_partition()


def _is_for_host(parts: AnyChain) -> bool:
    """Return whether the host's machine is expected to be faster than the launches on a GPU."""
    if not isinstance(parts.transition, Tensor | LowRank):
        return False
    batch, steps, _ = parts.unary.shape
    products = sum(math.prod(side.shape[-2:]) for side in sides_of(parts.transition))
    work = batch * steps * (tuning.MACHINE_STEP + 3 * products * tuning.MACHINE_PRODUCT)
    launches = steps * tuning.STEP_LAUNCHES * tuning.SECONDS_PER_CALL
    return work + tuning.HOST_COPIES < launches


def forward(parts: AnyChain, *, best: bool = False) -> Unary:
    """(B, T, N) the forward messages; differentiable.

    Up to a constant in each row; or they are the best scores of prefixes, in float64.
    """
    unary, lengths = parts.unary, parts.lengths
    if not unary.numel():
        return unary
    # Of full length each row of an item is there, whatever lies beyond its own.
    full = torch.full_like(lengths, unary.shape[1])
    whole = Parts(masked(unary, lengths), parts.transition, full)
    sums = rules.bound(whole, maxima=best).rows("a", best=best)
    return torch.where(inside(lengths, unary.shape[1]).unsqueeze(2), sums, -math.inf)


def backward(parts: AnyChain, *, best: bool = False) -> Unary:
    """(B, T, N) the log-sums over suffixes after each step, their maximum 0; differentiable.

    Of tables and ranks; or the best scores of suffixes, in float64.
    """
    unary, link, lengths = parts.unary, parts.transition, parts.lengths
    batch, total, _ = unary.shape
    if not unary.numel():
        return unary
    # Each item from its last step to its first, which is what a chain has from the first to the
    # last. The sums over what is behind a step leave out the step's own potentials.
    every = torch.arange(total, device=lengths.device)
    steps = (lengths.unsqueeze(1) - 1 - every).clamp(min=0)

    def turned(side: Tensor) -> Tensor:
        if side.ndim == 2:
            return side
        items = torch.arange(batch, device=side.device).unsqueeze(1) if len(side) > 1 else 0
        return side[items, (steps[:, :-1] - 1).clamp(min=0)]

    if isinstance(link, Tensor):
        link = turned(link).mT
    else:
        assert isinstance(link, LowRank)
        link = LowRank(turned(link.log_right), turned(link.log_left))
    at = steps.unsqueeze(2).expand_as(unary)
    chain = Parts(unary.gather(1, at), link, torch.full_like(lengths, total))
    arriving = rules.bound(chain, apart=True).rows("into", best=best)
    arriving = torch.cat([torch.zeros_like(arriving[:, :1]), arriving[:, 1:]], 1)
    behind = arriving.gather(1, at)
    if not best:
        behind = behind - peak(behind.detach(), (2,))
    return torch.where(inside(lengths, total).unsqueeze(2), behind, -math.inf)


def probabilities(logs: Tensor) -> Tensor:
    """Exponentials in rows that sum to 1, or to 0 where all is impossible; differentiable."""
    alive = (logs.detach() > -math.inf).any(-1, keepdim=True)
    return torch.where(alive, torch.where(alive, logs, 0.0).softmax(-1), 0.0)
