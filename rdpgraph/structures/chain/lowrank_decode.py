"""Best sequences of chains of low rank. A maximum has no shortcut by way of the rank.

Every value between two states is formed, again at every step and in blocks: O(T N^2 r) time, O(T N)
memory. For transitions that are not too large to be written out once, `decode` is faster.
"""

import math

import torch
from torch import Tensor

from rdpgraph.model.logmatrix import LogMatrix
from rdpgraph.structures.chain.factors import inside, masked, peak, step_of
from rdpgraph.structures.chain.lowrank_messages import LowRankTensors

_CELLS = 2**22


@torch.no_grad()
def viterbi(parts: LowRankTensors) -> Tensor:
    """(B, T) the states of the best sequence; -1 beyond the length and where none is possible."""
    unary, (batch, total, _) = _levelled(parts), parts.unary.shape
    prefixes = unary + _before(unary, parts.left, parts.right, parts.lengths)
    states = torch.full((batch, total), -1, device=unary.device)
    following = torch.zeros(batch, dtype=torch.long, device=unary.device)
    possible = torch.zeros(batch, dtype=torch.bool, device=unary.device)
    for step in range(total - 1, -1, -1):
        logs = prefixes[:, step]
        possible |= (parts.lengths == step + 1) & (logs > -math.inf).any(-1)
        if step + 1 < total:
            right = step_of(parts.right, step)
            items = torch.arange(batch, device=unary.device) % (
                len(right) if right.ndim == 3 else 1
            )
            ranks = right[following] if right.ndim == 2 else right[items, following]
            left = LogMatrix.of(step_of(parts.left, step))
            into = left.times(ranks) if left.logs.ndim == 2 else left.times(ranks[:, None])[:, 0]
            logs = logs + torch.where((step + 1 < parts.lengths).unsqueeze(1), into, 0.0)
        following = logs.argmax(-1)
        states[:, step] = torch.where((step < parts.lengths) & possible, following, -1)
    return states


@torch.no_grad()
def max_marginals(parts: LowRankTensors) -> Tensor:
    """(B, T, N) the score of the best sequence through each state; no gradient."""
    unary = _levelled(parts)
    steps = torch.arange(unary.shape[1], device=unary.device)
    within = inside(parts.lengths, unary.shape[1])
    after = torch.zeros_like(unary)
    for step in range(unary.shape[1] - 2, -1, -1):
        state = unary[:, step + 1] + after[:, step + 1]
        following = _maxima(state, step_of(parts.left, step), step_of(parts.right, step))
        goes_on = (steps[step] + 1 < parts.lengths).unsqueeze(1)
        after[:, step] = torch.where(goes_on, following - peak(following, (1,)), 0.0)
    through = unary + after + _before(unary, parts.left, parts.right, parts.lengths)
    best = _score(parts, viterbi(parts))
    shift = best.reshape(-1, 1, 1) - peak(through, (2,))
    possible = within.unsqueeze(2) & (best > -math.inf).reshape(-1, 1, 1)
    return torch.where(possible & (through > -math.inf), through + shift, -math.inf)


def _score(parts: LowRankTensors, states: Tensor) -> Tensor:
    """(B,) the score of sequences (B, T), -inf for one with -1 within the length; O(T r)."""
    unary, left, right, lengths = parts
    within, known = inside(lengths, states.shape[1]), states.clamp(min=0)
    total = torch.where(within, unary.gather(2, known.unsqueeze(2)).squeeze(2), 0.0).sum(1)
    if states.shape[1] > 1:
        ranks = _rows(left, known[:, :-1]) + _rows(right, known[:, 1:])
        total = total + torch.where(within[:, 1:], ranks.logsumexp(2), 0.0).sum(1)
    return torch.where(((states >= 0) | ~within).all(1), total, -math.inf)


def _rows(side: Tensor, states: Tensor) -> Tensor:
    """(B, S, r) the factors of a state at each step."""
    if side.ndim == 2:
        return side[states]
    items = torch.arange(len(states), device=states.device).unsqueeze(1) % len(side)
    return side[items, torch.arange(states.shape[1], device=states.device), states]


def _levelled(parts: LowRankTensors) -> Tensor:
    unary = masked(parts.unary.detach(), parts.lengths)
    return unary - peak(unary, (2,))


def _before(unary: Tensor, left: Tensor, right: Tensor, lengths: Tensor) -> Tensor:
    """(B, T, N) the best score of what leads to each state, less a constant in each row."""
    before = torch.zeros_like(unary)
    for step in range(1, unary.shape[1]):
        state = unary[:, step - 1] + before[:, step - 1]
        best = _maxima(state, step_of(right, step - 1), step_of(left, step - 1))
        linked = (step < lengths).unsqueeze(1)
        before[:, step] = torch.where(linked, best - peak(best, (1,)), 0.0)
    return before


def _maxima(state: Tensor, target: Tensor, source: Tensor) -> Tensor:
    """``max_i(state_i + value_ij)``, (B, N), in blocks of targets j."""
    matrix = LogMatrix.of(source)
    width = max(1, _CELLS // max(1, state.numel()))
    parts = [
        (matrix.times(block) + state.unsqueeze(1)).amax(2) for block in target.split(width, -2)
    ]
    return torch.cat(parts, 1)
