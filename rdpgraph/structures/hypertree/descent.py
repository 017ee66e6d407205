"""From the root downwards: the best tree, or draws, given the inside values of all spans.

At each span a split, then the state of the left part, then that of the right one; with rules of
low rank first the rank. All spans of one width go at once, over all trees.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from rdpgraph.model.semiring import soft_sum
from rdpgraph.structures.draws import Pick
from rdpgraph.structures.hypertree import sparse
from rdpgraph.structures.hypertree.charts import HypertreeTensors, peak
from rdpgraph.structures.hypertree.ranks import Ranks
from rdpgraph.structures.hypertree.rules import DenseRules
from rdpgraph.structures.hypertree.sparse_rules import SparseRules

_BLOCK = 2**22


@dataclass(frozen=True, eq=False)
class Nodes:
    """Constituents of one width: the item, the tree, the first word and the state, each (Q,)."""

    item: Tensor
    tree: Tensor
    first: Tensor
    state: Tensor


@torch.no_grad()
def descend(
    parts: HypertreeTensors,
    rows: list[Tensor],
    root: Tensor,
    count: int,
    pick: Pick,
    temperature: float,
) -> Tensor:
    """(count * B, T, T) states of the constituents of trees, -1 for what is none.

    Args:
        parts: the hypertree, in doubles.
        rows: by width (B, T - width, C) its log inside values.
        root: (1 or B, C).
        count: trees of each item.
        pick: of the log-values of alternatives.
        temperature: 1 where those are sums, 0 where they are maxima.
    """
    batch, total = parts.leaves.shape[:2]
    device = parts.leaves.device
    item = torch.arange(batch, device=device).repeat(count)
    symbols = torch.full((count * batch, total, total), -1, device=device)
    if not total or not batch or not count:
        return symbols
    chart = _square(rows, batch, total, parts.children)
    last = parts.lengths[item] - 1
    top = chart[item, 0, last.clamp(min=0)] + root.expand(batch, -1)[item]
    states = pick(top)
    trees = torch.arange(len(item), device=device)
    alive = (last >= 0) & (top.amax(1) > -math.inf)
    symbols[trees[alive], 0, last[alive]] = states[alive]
    step = _Step(parts, chart, pick, temperature)
    for width in range(total - 1, 0, -1):
        place = torch.arange(total - width, device=device)
        tree, first = (symbols[:, place, place + width] >= 0).nonzero().unbind(1)
        if not len(tree):
            continue
        nodes = Nodes(item[tree], tree, first, symbols[tree, first, first + width])
        split, left, right = step.chosen(nodes, width)
        symbols[tree, first, first + split] = left
        symbols[tree, first + split + 1, first + width] = right
    return symbols


def _square(rows: list[Tensor], batch: int, total: int, children: int) -> Tensor:
    """(B, T, T, C) by first word and width."""
    chart = rows[0].new_full((batch, total, total, children), -math.inf)
    for width, row in enumerate(rows):
        chart[:, : row.shape[1], width] = row
    return chart


class _Step:
    """Chooses the parts of spans."""

    def __init__(
        self, parts: HypertreeTensors, chart: Tensor, pick: Pick, temperature: float
    ) -> None:
        self.rules, self.chart, self.pick = parts.rules, chart, pick
        self.states, self.temperature = parts.spans.shape[3], temperature

    def chosen(self, nodes: Nodes, width: int) -> tuple[Tensor, Tensor, Tensor]:
        """Of each node the last word of the left part, counted from the first, and two states."""
        size = max(1, _BLOCK // (width * self._terms()))
        parts = zip(*(p.split(size) for p in (nodes.item, nodes.first, nodes.state)), strict=True)
        choices = [self._block(item, first, state, width) for item, first, state in parts]
        split, left, right = (torch.cat(part) for part in zip(*choices, strict=True))
        return split, left, right

    def _terms(self) -> int:
        if isinstance(self.rules, DenseRules):
            return self.chart.shape[3] ** 2
        if isinstance(self.rules, SparseRules):
            return 3 * self.rules.by_parent[0].shape[1] + 2 * self.chart.shape[3]
        return max(self.rules.left.shape[2] * 4, self.chart.shape[3])

    def _block(
        self, item: Tensor, first: Tensor, state: Tensor, width: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        splits = torch.arange(width, device=item.device)
        rows, starts = item.unsqueeze(1), first.unsqueeze(1)
        left = self.chart[rows, starts, splits]
        right = self.chart[rows, starts + splits + 1, width - 1 - splits]
        if isinstance(self.rules, DenseRules):
            return self._by_table(self.rules, item, state, left, right)
        if isinstance(self.rules, SparseRules):
            return sparse.chosen(self.rules, item, state, left, right, self.pick, self.temperature)
        return self._by_rank(self.rules, item, state, left, right)

    def _by_table(
        self, rules: DenseRules, item: Tensor, state: Tensor, left: Tensor, right: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        table = rules.log_rule
        table = table[item if len(table) > 1 else torch.zeros_like(item), state]
        sums = self._sums(left, table, right)
        split = self.pick(soft_sum(left + sums, 2, self.temperature))
        at = torch.arange(len(item), device=item.device)
        first = self.pick(left[at, split] + sums[at, split])
        return split, first, self.pick(table[at, first] + right[at, split])

    def _sums(self, left: Tensor, table: Tensor, right: Tensor) -> Tensor:
        """(Q, w, C) over the states of right parts, for each state of left ones."""
        if self.temperature == 1.0:
            tops = peak(table), peak(right)
            products = (right - tops[1]).exp() @ (table - tops[0]).exp().mT
            least = products.masked_fill(products == 0, math.inf).amin()
            wanted = (table > -math.inf).any(2).unsqueeze(1) & (right > -math.inf).any(
                2, keepdim=True
            )
            if bool((least > 1e-200) & ~((products == 0) & wanted).any()):
                return products.log() + tops[0].mT + tops[1]
        return soft_sum(table.unsqueeze(1) + right.unsqueeze(2), 3, self.temperature)

    def _by_rank(
        self, rules: Ranks, item: Tensor, state: Tensor, left: Tensor, right: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        own = item if len(rules.left) > 1 else torch.zeros_like(item)
        at = torch.arange(len(item), device=item.device)
        if rules.parent is None:
            runs = rules.left.shape[2] // self.states
            ranks = state.unsqueeze(1) * runs + torch.arange(runs, device=item.device)
            weights = torch.zeros_like(ranks, dtype=left.dtype)
        else:
            ranks = torch.arange(rules.left.shape[2], device=item.device).expand(len(item), -1)
            weights = rules.parent[own, state]
        by_left = rules.left[own.unsqueeze(1), :, ranks]
        by_right = rules.right[own.unsqueeze(1), :, ranks]
        lefts, rights = self._projected(left, by_left), self._projected(right, by_right)
        rank = self.pick(soft_sum(lefts + rights, 1, self.temperature) + weights)
        split = self.pick(lefts[at, :, rank] + rights[at, :, rank])
        first = self.pick(left[at, split] + by_left[at, rank])
        return split, first, self.pick(right[at, split] + by_right[at, rank])

    def _projected(self, values: Tensor, factor: Tensor) -> Tensor:
        """(Q, w, r) from (Q, w, C) and (Q, r, C)."""
        parts = [
            soft_sum(value.unsqueeze(2) + rows.unsqueeze(1), 3, self.temperature)
            for value, rows in zip(values.split(_rows(values)), factor.split(_rows(values)),
                                   strict=True)
        ]  # fmt: skip
        return torch.cat(parts)


def _rows(values: Tensor) -> int:
    return max(1, 2**16 // max(values.shape[1] * values.shape[2], 1))
