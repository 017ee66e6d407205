"""Sums over the joint probabilities of neighbours, which are never held for all steps at once."""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from rdpgraph.model.gradients import expectations
from rdpgraph.structures.chain.factors import inside, peak, product
from rdpgraph.structures.chain.recursion import Messages, log_partition, messages
from rdpgraph.structures.chain.tensors import ChainTensors, of_items

_CELLS = 2**22  # of the tables that are held at once where products of probabilities fail


def edge_counts(parts: ChainTensors) -> Tensor:
    """(B, N, N): for each item the expected number of steps with each pair of neighbours.

    O(B T N^2) and (B, N, N) memory for shared transitions. Differentiable; where a gradient is
    asked for, the items are solved one by one.
    """
    unary, transition, _ = parts
    batch, total, states = unary.shape
    if torch.is_grad_enabled() and (unary.requires_grad or transition.requires_grad):
        each = [_counts_of_one(parts, item) for item in range(batch)]
        return torch.stack(each) if each else unary.new_zeros(0, states, states)
    if total < 2:
        return unary.new_zeros(batch, states, states)
    sent = messages(*parts)
    before, after, weights = _factors(parts, sent)
    mass = (product(before, weights) * after).sum(-1)
    sound = mass > _least(mass.dtype)
    before = before * torch.where(sound, 1 / torch.where(sound, mass, 1.0), 0.0).unsqueeze(-1)
    if transition.ndim == 2:
        counts = (before.mT @ after) * weights
    else:
        counts = unary.new_zeros(batch, states, states)
        for step in range(total - 1):
            joint = before[:, step].unsqueeze(2) * after[:, step].unsqueeze(1)
            counts += joint * weights[:, step]
    for items, _, joint in _doubtful(parts, sent, sound):
        counts.index_add_(0, items, joint)
    return counts


def _counts_of_one(parts: ChainTensors, item: int) -> Tensor:
    """(N, N): the gradient of one item's log Z in transitions that all steps share."""
    row = torch.tensor([item], device=parts.unary.device)
    unary, transition, lengths = of_items(parts, row)
    _, (gradient,) = expectations(
        lambda table: log_partition(unary, table, lengths), [transition], tracked=True
    )
    return gradient if gradient.ndim == 2 else gradient.sum((0, 1))


def _factors(parts: ChainTensors, sent: Messages) -> tuple[Tensor, Tensor, Tensor]:
    """Factors of the joint of neighbours, each at most 1; zero beyond the length."""
    before = sent.log_forward[:, :-1].exp()
    right = (sent.log_backward + parts.unary)[:, 1:]
    within = inside(parts.lengths, parts.unary.shape[1])[:, 1:].unsqueeze(2)
    after = torch.where(within, (right - peak(right, (2,))).exp(), 0.0)
    weights = (parts.transition - peak(parts.transition, (-2, -1))).exp()
    return torch.where(within, before, 0.0), after, weights


def _least(dtype: torch.dtype) -> float:
    """A mass beside which what vanishes in a product of three is nothing."""
    return math.sqrt(torch.finfo(dtype).tiny)


def _doubtful(
    parts: ChainTensors, sent: Messages, sound: Tensor
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Items and steps (n,) whose products vanish, and their joint (n, N, N) from logs."""
    unary, transition, _ = parts
    within = inside(parts.lengths, unary.shape[1])
    possible = ((sent.log_forward > -math.inf).any(-1) & within)[:, 1:]
    items, steps = (possible & ~sound).nonzero(as_tuple=True)
    size = max(1, _CELLS // unary.shape[2] ** 2)
    for own, step in zip(items.split(size), steps.split(size), strict=True):
        left = sent.log_forward[own, step]
        right = (sent.log_backward + unary)[own, step + 1]
        table = transition if transition.ndim == 2 else transition[own % len(transition), step]
        logs = left.unsqueeze(2) + right.unsqueeze(1) + table
        joint = (logs - peak(logs, (1, 2))).exp()
        mass = joint.sum((1, 2), keepdim=True)
        yield own, step, joint / torch.where(mass > 0, mass, 1.0)
