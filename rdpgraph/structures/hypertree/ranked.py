"""The inside recursion with rules of low rank: parts are taken to the ranks.

Each span is projected to the ranks once, as a left and as a right part; the splits of a span are
then summed rank by rank, and the parent's factors applied to the sum: O(T^3 r + T^2 N r). Keeps
O(T^2 (r + N)).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rdpgraph.structures.hypertree.charts import (
    Chart,
    HypertreeTensors,
    lowest,
    lowest_log,
    peak,
    products,
    rescaled,
    times,
)
from rdpgraph.structures.hypertree.ranks import Ranks
from rdpgraph.structures.hypertree.sweep import Sweep


@dataclass(frozen=True, eq=False)
class _Factor:
    """Log-factors (R, M, r) as scaled values, their log-scale (R, 1, 1), lowest log (R, 1)."""

    values: Tensor
    top: Tensor
    low: Tensor

    @staticmethod
    def of(logs: Tensor) -> "_Factor":
        flat = logs.flatten(1)
        top = peak(flat)
        low = lowest_log(flat - top).unsqueeze(1)
        return _Factor((logs - top.unsqueeze(2)).exp(), top.unsqueeze(2), low)


class RankedSweep(Sweep):
    """Spans by the factors of rules.

    Charts are of the parts in the ranks, each of largest 1, and of what they were divided by; rows
    of the values, and of the sums over the splits.
    """

    def __init__(self, parts: HypertreeTensors, *, recorded: bool = False) -> None:
        super().__init__(parts, recorded=recorded)
        assert isinstance(parts.rules, Ranks)
        rules, self.states = parts.rules, parts.spans.shape[3]
        self.sides = _Factor.of(rules.left), _Factor.of(rules.right)
        self.parent = None if rules.parent is None else _Factor.of(rules.parent)
        self.top, self.low = (self.parent.top, self.parent.low) if self.parent else (0.0, 0.0)
        self.factors = (*self.sides, self.parent) if self.parent else self.sides
        self.charts["ranks"] = self.chart(rules.left.shape[2])
        self.charts["tops"] = self.chart(fill=1.0)
        self.rows |= {"values": [], "sums": []}

    def _rows(self, width: int) -> slice:
        """The rows of the factors that are of single words, or of wider spans."""
        if not self.parts.split:
            return slice(None)
        return slice(0, self.states) if width else slice(self.states, None)

    def put(self, width: int, value: Tensor, scale: Tensor) -> Tensor:
        """In the ranks."""
        self.rows["values"].append(value)
        kept, own = list[tuple[Tensor, ...]](), lowest(value)
        for factor in self.sides:
            raw = times(value, factor.values[:, self._rows(width)])
            ranks, top, scaled = rescaled(raw, scale.unsqueeze(2) + factor.top)
            kept.append((ranks, top.squeeze(2), scaled, lowest(ranks)))
        charts = (*(self.charts[name] for name in ("ranks", "tops", "scales")), self.lows)
        for chart, left, right in zip(charts, *kept, strict=True):
            chart.put(width, left, right)
        return torch.minimum(*(own + factor.low for factor in self.sides))

    def sums(self, width: int, weights: Tensor) -> Tensor:
        """Rank by rank; then those of the parents."""
        ranks = self.charts["ranks"]
        left, right = ranks.left_parts(width, 0, width), ranks.right_parts(width, 0, width)
        total = (weights.unsqueeze(3) * left * right).sum(2)
        self.rows["sums"].append(total)
        if self.parent is None:
            return total.unflatten(2, (self.states, -1)).sum(3)
        return times(total, self.parent.values.mT)

    def value(self, width: int) -> Tensor:
        """Those that were put there."""
        return self.rows["values"][width]

    def backward(self, gradient: Tensor, doubtful: Tensor) -> list[Tensor]:
        """With room for the gradients."""
        self.into = Chart.of(self.parts.leaves, self.factors[0].values.shape[2])
        self.of_factors = [torch.zeros_like(factor.values) for factor in self.factors]
        return super().backward(gradient, doubtful)

    def above(self, width: int) -> Tensor:
        """From the ranks; the gradient of the factors is added to theirs."""
        value, some = self.value(width), self._rows(width)
        total = torch.zeros_like(value)
        ranks, tops, into = self.charts["ranks"], self.charts["tops"], self.into
        parts = (
            (ranks.left(width), tops.left(width), into.left(width)),
            (ranks.right(width), tops.right(width), into.right(width)),
        )
        for factor, grads, (own, top, given) in zip(self.sides, self.of_factors, parts):  # noqa: B905
            rank = torch.where(own > 0, given / top.unsqueeze(2), 0.0)
            total += times(rank, factor.values[:, some].mT)
            grads[:, some] += products(value, rank, len(grads))
        return total

    def below(self, width: int, sums: Tensor, weights: Tensor) -> None:
        """To the parent's factors, and to the ranks of both parts."""
        total, ranks = self.rows["sums"][width - 1], self.charts["ranks"]
        if self.parent is None:
            back = sums.repeat_interleave(total.shape[2] // self.states, 2)
        else:
            self.of_factors[2] += products(sums, total, len(self.parent.values))
            back = times(sums, self.parent.values)
        share = weights.unsqueeze(3) * back.unsqueeze(2)
        left, right = ranks.left_parts(width, 0, width), ranks.right_parts(width, 0, width)
        self.into.left_parts(width, 0, width).addcmul_(share, right)
        self.into.right_parts(width, 0, width).addcmul_(share, left)

    def of_rules(self) -> Sequence[Tensor]:
        """Of the left, right and parent factors."""
        pairs = zip(self.of_factors, self.factors, strict=True)
        return [grads.mul_(factor.values) for grads, factor in pairs]
