"""The scaled recursion step by step in torch, forward and backward, on any device."""

from dataclasses import dataclass

import torch
from torch import Tensor

from rdpgraph.logspace.logmatrix import safe_log
from rdpgraph.structures.chain.factors import StepFactors, inside, joined, peak, product, steps_of


@dataclass(frozen=True, eq=False)
class Forward:
    """Results of a forward sweep."""

    states: Tensor  # (B, T, N): alpha, each row summing to 1, or to 0 where nothing is possible
    scales: Tensor  # (B, T): the sum of each row before it was normalised
    values: Tensor  # (B,): log Z in nats
    doubtful: Tensor  # (B,) bool: whether underflow may have taken something


def forward(factors: StepFactors) -> Forward:
    """alpha_t = alpha_{t-1} P * e_t, normalised."""
    states, scales = swept(factors)
    return finished(factors, states.transpose(0, 1), scales.mT.contiguous())


def swept(factors: StepFactors, *, floor: float = 0.0) -> tuple[Tensor, Tensor]:
    """States (T, B, N) of `forward`, and their sums (T, B) before normalisation.

    Positive states below a floor are raised to it.

    Four calls for each step, which dominate the time of small chains.
    """
    batch, steps, count = factors.unary.shape
    # In order of the steps; states overwrite the emissions.
    states, scales = (
        factors.offset.new_empty(steps, batch, count),
        factors.offset.new_empty(steps, batch, 1),
    )
    factors.emitted(0, states)
    ones, room = states.new_ones(count, 1), states.new_empty(batch, count)
    rows, sums = states.unbind(0), scales.unbind(0)
    for step, (state, scale) in enumerate(zip(rows, sums, strict=True)):
        if step:
            factors.ahead(step - 1, rows[step - 1], room)
            state.mul_(room)
        torch.mm(state, ones, out=scale)
        torch.div(state, scale, out=state)  # NaN where nothing is possible: see below
        if floor:
            state.copy_(torch.where(state > 0, state.clamp(min=floor), state))
    states.masked_fill_(states.isnan(), 0.0)
    scales.masked_fill_(scales.isnan(), 0.0)
    return states, scales.squeeze(2)


def finished(factors: StepFactors, states: Tensor, scales: Tensor) -> Forward:
    """The results, from the states and scales of all steps; states beyond the lengths become 0."""
    within = factors.inside()
    states.masked_fill_(~within.unsqueeze(2), 0.0)
    terms = torch.where(within, scales.log() + factors.offset, 0.0)
    return Forward(states, scales, terms.sum(1), factors.doubtful(states, scales))


def backward(factors: StepFactors, swept: Forward, gradient: Tensor) -> tuple[Tensor, Tensor]:
    """Marginals times the gradient of log Z, and the other side of each edge, both (B, T, N).

    With beta_t = P (e_{t+1} beta_{t+1} / c_{t+1}) the marginals are alpha_t beta_t, and those of
    the edge from t are alpha_t(i) P_ij ahead_t(j); ahead is zero at the last step. States that no
    prefix reaches have an unbounded beta, and are left out.
    """
    states, (batch, steps, count) = swept.states, swept.states.shape
    # In order of the steps; what is ahead of one begins as the next one's share.
    ahead, futures = states.new_empty(steps, batch, count), states.new_empty(steps, batch, count)
    ahead[-1] = 0.0
    factors.emitted(1, ahead[:-1])
    ahead[:-1].div_(swept.scales.mT[1:, :, None].clamp(min=torch.finfo(states.dtype).tiny))
    ahead[:-1].masked_fill_(states.transpose(0, 1)[1:] == 0, 0.0)
    seeds = torch.zeros_like(swept.scales)
    seeds.scatter_(1, (factors.lengths - 1).clamp(min=0).unsqueeze(1), gradient.unsqueeze(1))
    futures.copy_(seeds.mT.unsqueeze(2))
    behind, after, room = ahead.unbind(0), futures.unbind(0), states.new_empty(batch, count)
    for step in range(steps - 1, 0, -1):
        behind[step - 1].mul_(after[step])
        factors.back(step - 1, behind[step - 1], room)
        after[step - 1].add_(room)
    return futures.transpose(0, 1).mul_(states), ahead.transpose(0, 1)


def unrolled(unary: Tensor, transition: Tensor, lengths: Tensor) -> Tensor:
    """(B,) log Z by operations that autograd can differentiate again; keeps O(T N)."""
    rows, top = peak(unary.detach(), (2,)), peak(transition.detach(), (-2, -1))
    emission, matrix = (unary - rows).exp(), (transition - top).exp()
    totals: list[Tensor] = []
    first, *others = emission.unbind(1)
    state, matrices = first, steps_of(matrix, len(others))
    within = inside(lengths, unary.shape[1])
    for step in range(unary.shape[1]):
        if step:
            state = product(state, matrices[step - 1]) * others[step - 1]
        total = state.sum(1, keepdim=True)
        totals.append(total)
        # What lies beyond a length may be too small to divide by.
        alive = within[:, step : step + 1] & (state > 0)
        state = torch.where(alive, state / torch.where(alive.any(1, keepdim=True), total, 1.0), 0.0)
    scales = torch.cat(totals, 1)
    logs = safe_log(scales)
    return torch.where(within, logs + joined(rows, top), 0.0).sum(1)
