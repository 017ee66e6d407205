"""The recursion in operations that autograd can differentiate again: scaled, exact, or of maxima.

Charts are lists of log-values by width. Sums are either products of scaled values, or exact in
log-space whatever the range, in blocks; maxima are a sum at temperature zero.
"""

import math
from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor
from torch.nn.functional import pad
from torch.utils.checkpoint import checkpoint

from rdpgraph.model.gradients import regradient
from rdpgraph.model.semiring import soft_sum
from rdpgraph.structures.hypertree import sparse
from rdpgraph.structures.hypertree.charts import HypertreeTensors, peak
from rdpgraph.structures.hypertree.ranks import Ranks
from rdpgraph.structures.hypertree.rules import DenseRules
from rdpgraph.structures.hypertree.sparse_rules import SparseRules

_BLOCK = 2**22
"""Entries of a block of terms."""
Rows: TypeAlias = list[Tensor]
"""Log-values of the spans of each width, (B, T - width, ...)."""


def recomputed(parts: HypertreeTensors, gradient: Tensor) -> list[Tensor | None]:
    """The gradient of `scaled` in leaves, spans and rules, with a graph of its own."""

    def again(*tensors: Tensor) -> Tensor:
        alike = parts.with_tensors(tensors)
        item = torch.arange(len(parts.lengths), device=gradient.device)
        return _at_root(scaled(alike), alike, item)

    return regradient(again, parts.tensors, gradient)


def log_roots(parts: HypertreeTensors) -> Tensor:
    """(B, N) the log inside values of whole sentences, exact at any range; slow."""
    item = torch.arange(len(parts.lengths), device=parts.lengths.device)
    return _at_root(exact(parts), parts, item)


def scaled(parts: HypertreeTensors) -> Rows:
    """Log inside values of spans of two words and more, by products of scaled values."""
    return _inside(parts, _Scaled(parts))


def exact(parts: HypertreeTensors, temperature: float = 1.0) -> Rows:
    """The same in log-space, exact at any range; at temperature 0 the best score of each."""
    if isinstance(parts.rules, SparseRules):
        phis = [parts.phi(width) for width in range(1, parts.spans.shape[1])]
        return sparse.inside(parts.rules, _leaves(parts), phis, temperature=temperature)
    return _inside(parts, _Exact(parts, temperature))


def with_leaves(parts: HypertreeTensors, rows: Rows) -> Rows:
    """Log-values over all C states: those of single words in front."""
    leaves = _leaves(parts)
    words = parts.children - parts.spans.shape[3]
    return [leaves, *(pad(row, (0, words), value=-math.inf) for row in rows)]


def _at_root(rows: Rows, parts: HypertreeTensors, item: Tensor) -> Tensor:
    if not rows:
        return parts.spans.new_full((len(item), parts.spans.shape[3]), -math.inf)
    firsts = torch.stack([row[:, 0] for row in rows], 1)
    return firsts[item, (parts.lengths - 2).clamp(min=0)]


def _leaves(parts: HypertreeTensors) -> Tensor:
    if not parts.split:
        return parts.leaves
    return pad(parts.leaves, (parts.spans.shape[3], 0), value=-math.inf)


def _inside(parts: HypertreeTensors, algebra: "_Algebra") -> Rows:
    total, words = parts.spans.shape[1], parts.children - parts.spans.shape[3]
    sides = [algebra.sides(_leaves(parts))]
    rows: Rows = []
    for width in range(1, total):
        count = total - width
        lefts = [sides[place][0][:, :count] for place in range(width)]
        rights = [sides[width - 1 - place][1][:, place + 1 :][:, :count] for place in range(width)]
        value = algebra.joined(torch.stack(lefts, 2), torch.stack(rights, 2)) + parts.phi(width)
        rows.append(value)
        sides.append(algebra.sides(pad(value, (0, words), value=-math.inf)))
    return rows


class _Algebra:
    """How parts are summed into a span: what a span is to its left and right, and the join."""

    def __init__(self, parts: HypertreeTensors) -> None:
        assert not isinstance(parts.rules, SparseRules)
        self.rules, self.states = parts.rules, parts.spans.shape[3]

    def sides(self, value: Tensor) -> tuple[Tensor, Tensor]:
        """What (B, S, C) values are as left and as right parts, (B, S, ...)."""
        raise NotImplementedError

    def joined(self, left: Tensor, right: Tensor) -> Tensor:
        """(B, S, N) from all splits, (B, S, w, ...)."""
        raise NotImplementedError


class _Scaled(_Algebra):
    def sides(self, value: Tensor) -> tuple[Tensor, Tensor]:
        if isinstance(self.rules, DenseRules):
            return value, value
        return log_times(value, self.rules.left), log_times(value, self.rules.right)

    def joined(self, left: Tensor, right: Tensor) -> Tensor:
        if isinstance(self.rules, Ranks):
            return _from_ranks(self.rules, self.states, soft_sum(left + right, 2), log_times)
        tops = peak(left.detach()), peak(right.detach())
        scales = (tops[0] + tops[1]).squeeze(3)
        dead = (left.detach() == -math.inf).all(3) | (right.detach() == -math.inf).all(3)
        scales = torch.where(dead, -math.inf, scales)
        high = peak(scales)
        weights = (scales - high).exp().unsqueeze(3)
        outer = ((left - tops[0]).exp() * weights).mT @ (right - tops[1]).exp()
        table = self.rules.log_rule.flatten(2).mT
        top = peak(table.detach().flatten(1)).unsqueeze(2)
        rows = outer.flatten(2)
        return _safe_log(torch.matmul(rows, (table - top).exp())) + high + top


class _Exact(_Algebra):
    def __init__(self, parts: HypertreeTensors, temperature: float) -> None:
        super().__init__(parts)
        self.temperature = temperature

    def sides(self, value: Tensor) -> tuple[Tensor, Tensor]:
        if isinstance(self.rules, DenseRules):
            return value, value
        return self._sums(value, self.rules.left), self._sums(value, self.rules.right)

    def joined(self, left: Tensor, right: Tensor) -> Tensor:
        if isinstance(self.rules, Ranks):
            total = soft_sum(left + right, 2, self.temperature)
            return _from_ranks(self.rules, self.states, total, self._sums)
        table, temperature = self.rules.log_rule, self.temperature

        def block(left: Tensor, right: Tensor, table: Tensor) -> Tensor:
            pairs = soft_sum(left.unsqueeze(4) + right.unsqueeze(3), 2, temperature)
            return soft_sum(pairs.unsqueeze(2) + table.unsqueeze(1), (3, 4), temperature)

        batch, _, splits, states = left.shape
        size = batch * states**2 * max(splits, table.shape[1])
        return _blocks(block, max(1, _BLOCK // max(size, 1)), (left, right), table)

    def _sums(self, logs: Tensor, table: Tensor) -> Tensor:
        """Log of exp(logs) (B, S, M) times exp(table) (R, M, N)."""
        temperature = self.temperature

        def block(logs: Tensor, table: Tensor) -> Tensor:
            return soft_sum(logs.unsqueeze(3) + table.unsqueeze(1), 2, temperature)

        size = logs.shape[0] * logs.shape[2] * table.shape[2]
        return _blocks(block, max(1, _BLOCK // max(size, 1)), (logs,), table)


def _from_ranks(
    rules: Ranks, states: int, ranks: Tensor, apply: Callable[[Tensor, Tensor], Tensor]
) -> Tensor:
    """(B, S, N) from (B, S, r)."""
    if rules.parent is not None:
        return apply(ranks, rules.parent.mT)
    return soft_sum(ranks.unflatten(2, (states, -1)), 3)


def log_times(logs: Tensor, table: Tensor) -> Tensor:
    """Log of exp(logs) (B, S, M) times exp(table) (R, M, N), scaled by row and by column."""
    top = peak(logs.detach())
    high = table.detach().amax(1, keepdim=True)
    high = torch.where(high > -math.inf, high, 0.0)
    return _safe_log((logs - top).exp() @ (table - high).exp()) + top + high


def _blocks(
    block: Callable[..., Tensor], size: int, rows: tuple[Tensor, ...], table: Tensor
) -> Tensor:
    """A function of some spans at a time, its terms computed again for the gradient."""
    pieces = zip(*(part.split(size, 1) for part in rows), strict=True)
    blocks: list[Tensor] = []
    for piece in pieces:
        if torch.is_grad_enabled():
            blocks.append(
                checkpoint(  # pyright: ignore
                    block, *piece, table, use_reentrant=False, preserve_rng_state=False
                )
            )
        else:
            blocks.append(block(*piece, table))
    return torch.cat(blocks, 1)


def _safe_log(values: Tensor) -> Tensor:
    positive = values > 0
    return torch.where(positive, torch.where(positive, values, 1.0).log(), -math.inf)
