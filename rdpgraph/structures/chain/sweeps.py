"""The scaled recursion step by step in torch, forward and backward, on any device."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from rdpgraph.structures.chain.factors import (
    Factors,
    inside,
    joined,
    peak,
    product,
    step_of,
    steps_of,
)
from rdpgraph.structures.chain.ranges import doubtful


@dataclass(frozen=True, eq=False)
class Forward:
    """What a forward sweep found.

    Attributes:
        states: (B, T, N): alpha, each row summing to 1, or to 0 where nothing is possible.
        scales: (B, T): the sum of each row before it was normalised.
        values: (B,): log Z in nats.
        doubtful: (B,) bool: whether underflow may have taken something, as `ranges` has it.
    """

    states: Tensor
    scales: Tensor
    values: Tensor
    doubtful: Tensor


def forward(factors: Factors, *, floor: float = 0.0, upward: bool = False) -> Forward:
    """alpha_t = alpha_{t-1} P * e_t, normalised; states below a floor set to zero, or to it."""
    emission, matrix = factors.emission, factors.matrix
    states, scales = torch.empty_like(emission), torch.empty_like(factors.offset)
    least = torch.finfo(emission.dtype).tiny
    state = emission[:, 0]
    for step in range(emission.shape[1]):
        if step:
            state = product(states[:, step - 1], step_of(matrix, step - 1)).mul_(emission[:, step])
            if factors.starts is not None:
                begins = (factors.starts == step).unsqueeze(1)
                state = torch.where(begins, emission[:, step], state)
        scale = state.sum(1, keepdim=True)
        scales[:, step] = scale.squeeze(1)
        if floor:
            state = squeezed(state / scale.clamp_(min=least), floor, upward=upward)
            states[:, step] = state
        else:
            torch.div(state, scale.clamp_(min=least), out=states[:, step])
    return finished(factors, states, scales)


def finished(factors: Factors, states: Tensor, scales: Tensor) -> Forward:
    """What comes of the states and scales of all steps; states beyond the lengths become 0."""
    within = factors.inside()
    states.masked_fill_(~within.unsqueeze(2), 0.0)
    terms = torch.where(within, scales.log() + factors.offset, 0.0)
    return Forward(states, scales, terms.sum(1), doubtful(factors, states))


def backward(factors: Factors, found: Forward, gradient: Tensor) -> tuple[Tensor, Tensor]:
    """Marginals times the gradient of log Z, and the other side of each edge, both (B, T, N).

    With beta_t = P (e_{t+1} beta_{t+1} / c_{t+1}) the marginals are alpha_t beta_t, and those of
    the edge from t are alpha_t(i) P_ij ahead_t(j); ahead is zero at the last step. A state that
    no prefix reaches has no bound on its beta, and no part in any other: it is left out.
    """
    states, steps = found.states, found.states.shape[1]
    least = torch.finfo(states.dtype).tiny
    share = factors.emission / found.scales.clamp(min=least).unsqueeze(2)
    share.masked_fill_(states == 0, 0.0)
    seeds = torch.zeros_like(found.scales)
    seeds.scatter_(1, (factors.lengths - 1).clamp(min=0).unsqueeze(1), gradient.unsqueeze(1))
    ahead, marginals = torch.empty_like(states), torch.empty_like(states)
    future = seeds[:, -1:].expand(-1, states.shape[2])
    ahead[:, -1] = 0.0
    for step in range(steps - 1, -1, -1):
        torch.mul(states[:, step], future, out=marginals[:, step])
        if step:
            torch.mul(share[:, step], future, out=ahead[:, step - 1])
            backwards = step_of(factors.matrix, step - 1).mT
            future = product(ahead[:, step - 1], backwards).add_(seeds[:, step - 1 : step])
    return marginals, ahead


def edge_gradient(matrix: Tensor, states: Tensor, ahead: Tensor) -> Tensor:
    """Sums of edge marginals in the shape of the transition: one product of matrices."""
    if matrix.ndim == 2:
        return (states.flatten(0, 1).mT @ ahead.flatten(0, 1)).mul_(matrix)
    states, ahead = states[:, :-1], ahead[:, :-1]
    if matrix.shape[0] == 1:
        return torch.einsum("bti,btj->tij", states, ahead).unsqueeze(0).mul_(matrix)
    return (states.unsqueeze(3) * ahead.unsqueeze(2)).mul_(matrix)


def unrolled(unary: Tensor, transition: Tensor, lengths: Tensor, floor: float) -> Tensor:
    """Log Z, (B,), by operations that autograd can differentiate again; keeps O(T N)."""
    rows, top = peak(unary.detach(), (2,)), peak(transition.detach(), (-2, -1))
    emission, matrix = (unary - rows).exp(), (transition - top).exp()
    totals: list[Tensor] = []
    first, *others = emission.unbind(1)
    state, matrices = first, steps_of(matrix, len(others))
    for step in range(unary.shape[1]):
        if step:
            state = product(state, matrices[step - 1]) * others[step - 1]
        total = state.sum(1, keepdim=True)
        totals.append(total)
        alive = state > floor * total.detach()
        state = torch.where(alive, state / torch.where(total > 0, total, 1.0), 0.0)
    scales = torch.cat(totals, 1)
    logs = torch.where(scales > 0, torch.where(scales > 0, scales, 1.0).log(), -math.inf)
    return torch.where(inside(lengths, unary.shape[1]), logs + joined(rows, top), 0.0).sum(1)


def squeezed(state: Tensor, floor: float, *, upward: bool) -> Tensor:
    """States below a floor made it, but for hard zeros; or made zero."""
    if upward:
        return torch.where(state > 0, state.clamp(min=floor), 0.0)
    return torch.where(state < floor, 0.0, state)
