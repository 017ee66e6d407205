"""The recursion by scaled products, in operations that autograd can differentiate again.

Charts are lists of log-values by width.
"""

import math
from typing import TypeAlias

import torch
from torch import Tensor
from torch.nn.functional import pad

from rdpgraph.model.gradients import regradient
from rdpgraph.model.semiring import safe_log, soft_sum
from rdpgraph.structures.hypertree.charts import HypertreeTensors, peak
from rdpgraph.structures.hypertree.ranks import Ranks
from rdpgraph.structures.hypertree.rules import DenseRules

Rows: TypeAlias = list[Tensor]
"""Log-values of the spans of each width, (B, T - width, ...)."""


def recomputed(parts: HypertreeTensors, gradient: Tensor) -> list[Tensor | None]:
    """The gradient of whole inside values in leaves, spans and rules, with a graph of its own."""

    def again(*tensors: Tensor) -> Tensor:
        alike = parts.with_tensors(tensors)
        item = torch.arange(len(parts.lengths), device=gradient.device)
        firsts = torch.stack([row[:, 0] for row in scaled(alike)], 1)
        return firsts[item, (parts.lengths - 2).clamp(min=0)]

    return regradient(again, parts.tensors, gradient)


def scaled(parts: HypertreeTensors) -> Rows:
    """Log inside values of spans of two words and more."""
    leaves, states = parts.leaves, parts.spans.shape[3]
    if parts.split:
        leaves = pad(leaves, (states, 0), value=-math.inf)
    lefts, rights = _sides(parts.rules, leaves)
    lefts, rights, rows = [lefts], [rights], list[Tensor]()
    for width in range(1, parts.spans.shape[1]):
        left, right = sides(lefts, rights, width)
        if isinstance(parts.rules, Ranks):
            ranks = soft_sum(left + right, 2)
            value = _from_ranks(parts.rules, states, ranks)
        else:
            value = _by_table(parts.rules, left, right)
        rows.append(value + parts.phi(width))
        wide = pad(rows[-1], (0, parts.children - states), value=-math.inf)
        for side, own in zip((lefts, rights), _sides(parts.rules, wide), strict=True):
            side.append(own)
    return rows


def sides(lefts: Rows, rights: Rows, width: int) -> tuple[Tensor, Tensor]:
    """(B, S, w, ...) the left and right parts of all splits of the spans of a width."""
    count = lefts[0].shape[1] - width
    left = torch.stack([lefts[place][:, :count] for place in range(width)], 2)
    right = [rights[width - 1 - place][:, place + 1 :][:, :count] for place in range(width)]
    return left, torch.stack(right, 2)


def _sides(rules: DenseRules | Ranks, value: Tensor) -> tuple[Tensor, Tensor]:
    """What (B, S, C) values are as left and as right parts, (B, S, ...)."""
    if isinstance(rules, DenseRules):
        return value, value
    return log_times(value, rules.left), log_times(value, rules.right)


def _by_table(rules: DenseRules, left: Tensor, right: Tensor) -> Tensor:
    """(B, S, N) from all splits, (B, S, w, C)."""
    tops = peak(left.detach()), peak(right.detach())
    scales = (tops[0] + tops[1]).squeeze(3)
    dead = (left.detach() == -math.inf).all(3) | (right.detach() == -math.inf).all(3)
    scales = torch.where(dead, -math.inf, scales)
    high = peak(scales)
    weights = (scales - high).exp().unsqueeze(3)
    outer = ((left - tops[0]).exp() * weights).mT @ (right - tops[1]).exp()
    table = rules.log_rule.flatten(2).mT
    top = peak(table.detach().flatten(1)).unsqueeze(2)
    return safe_log(torch.matmul(outer.flatten(2), (table - top).exp())) + high + top


def _from_ranks(rules: Ranks, states: int, ranks: Tensor) -> Tensor:
    """(B, S, N) from (B, S, r)."""
    if rules.parent is not None:
        return log_times(ranks, rules.parent.mT)
    return soft_sum(ranks.unflatten(2, (states, -1)), 3)


def log_times(logs: Tensor, table: Tensor) -> Tensor:
    """Log of exp(logs) (B, S, M) times exp(table) (R, M, N), scaled by row and by column."""
    top = peak(logs.detach())
    high = table.detach().amax(1, keepdim=True)
    high = torch.where(high > -math.inf, high, 0.0)
    return safe_log((logs - top).exp() @ (table - high).exp()) + top + high
