"""The inside recursion with rules of low rank, by scaled products, and its gradient.

Each span is projected to the ranks once, as a left and as a right part; the splits of a span are
then summed rank by rank, and the parent's factors applied to the sum: O(T^3 r + T^2 N r).
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rdpgraph.structures.hypertree.charts import (
    Chart,
    HypertreeTensors,
    limit,
    lowest,
    lowest_log,
    peak,
    products,
    rescaled,
    split_weights,
    times,
)
from rdpgraph.structures.hypertree.plain import recomputed
from rdpgraph.structures.hypertree.ranks import Ranks


def log_roots(parts: HypertreeTensors) -> tuple[Tensor, Tensor]:
    """(B, N) the log inside values of whole sentences, and (B,) whether underflow may have hurt.

    Keeps O(T^2 (r + N)). Twice differentiable.
    """
    rules = parts.rules
    assert isinstance(rules, Ranks)
    return _Ranked.apply(  # pyright: ignore
        parts.leaves, parts.spans, rules.left, rules.right, rules.parent, parts.lengths, parts.split
    )


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

    def rows(self, first: int, last: int | None) -> "_Factor":
        return _Factor(self.values[:, first:last], self.top, self.low)


@dataclass(frozen=True, eq=False)
class _Inside:
    """What the forward pass keeps.

    Attributes:
        ranks: (B, T, T, r) spans in the ranks, as left and as right parts, each of largest 1.
        scales: (B, T, T) their log-scales.
        tops: (B, T, T) what they were divided by.
        values: by width (B, T - width, .) inside values of largest 1.
        peaks: by width (B, T - width, 1) what those were divided by; by width from 1.
        sums: by width (B, T - width, r) the sums over the splits; by width from 1.
        root: (B, N) log inside values of whole sentences.
        doubtful: (B,).
    """

    ranks: Chart
    scales: Chart
    tops: Chart
    values: list[Tensor]
    peaks: list[Tensor]
    sums: list[Tensor]
    root: Tensor
    doubtful: Tensor


class _Sweep:
    """The factors of one hypertree, and the two sweeps over its spans."""

    def __init__(self, parts: HypertreeTensors) -> None:
        assert isinstance(parts.rules, Ranks)
        self.parts, rules = parts, parts.rules
        self.left, self.right = _Factor.of(rules.left), _Factor.of(rules.right)
        self.parent = None if rules.parent is None else _Factor.of(rules.parent)
        self.states = parts.spans.shape[3]

    def sides(self, width: int) -> tuple[_Factor, _Factor]:
        """The factors of single words, or of wider spans."""
        if not self.parts.split:
            return self.left, self.right
        bounds = (self.states, None) if width == 0 else (0, self.states)
        return self.left.rows(*bounds), self.right.rows(*bounds)

    def forward(self) -> _Inside:
        """The inside values of all spans."""
        parts, least = self.parts, limit(self.parts.spans.dtype)
        batch, total = parts.leaves.shape[:2]
        rank = self.left.values.shape[2]
        ranks, lows = Chart.of(parts.leaves, rank), Chart.of(parts.leaves)
        scales, tops = Chart.of(parts.leaves), Chart.of(parts.leaves, fill=1.0)
        values, peaks, sums = list[Tensor](), list[Tensor](), list[Tensor]()
        root = parts.spans.new_full((batch, self.states), -torch.inf)
        base = peak(parts.leaves)
        words, _, word_scale = rescaled((parts.leaves - base).exp(), base)
        doubtful = (lowest_log(parts.leaves - base) < least).any(1)

        def project(width: int, value: Tensor, scale: Tensor) -> Tensor:
            """Set the spans of a width; gives the lowest log of their products."""
            values.append(value)
            own, worst = lowest(value), list[Tensor]()
            for factor, put in zip(self.sides(width), ("left", "right"), strict=True):
                raw = times(value, factor.values)
                scaled_ranks, top, scaled = rescaled(raw, scale.unsqueeze(2) + factor.top)
                getattr(ranks, put)(width).copy_(scaled_ranks)
                getattr(tops, put)(width).copy_(top.squeeze(2))
                getattr(scales, put)(width).copy_(scaled)
                getattr(lows, put)(width).copy_(lowest(scaled_ranks))
                worst.append(own + factor.low)
            return torch.minimum(*worst)

        doubtful |= ((project(0, words, word_scale) < least) & parts.inside(0)).any(1)
        for width in range(1, total):
            weights, top, low = split_weights(scales, lows, width)
            left = ranks.left_parts(width, 0, width)
            total_ranks = (weights.unsqueeze(3) * left * ranks.right_parts(width, 0, width)).sum(2)
            sums.append(total_ranks)
            raw, high = self.join(total_ranks), top
            if self.parent is not None:
                high, low = high + self.parent.top, low + self.parent.low
            phi = parts.phi(width)
            offset = peak(phi)
            value, divisor, scale = rescaled(raw * (phi - offset).exp(), high + offset)
            peaks.append(divisor)
            low = low + lowest_log(phi - offset).clamp(max=0.0)
            low = torch.minimum(low, project(width, value, scale))
            doubtful |= ((low < least) & parts.inside(width)).any(1)
            whole = (parts.lengths == width + 1).unsqueeze(1)
            root = torch.where(whole, value[:, 0].log() + scale[:, :1], root)
        return _Inside(ranks, scales, tops, values, peaks, sums, root, doubtful)

    def join(self, ranks: Tensor) -> Tensor:
        """(B, S, r) as (B, S, N)."""
        if self.parent is None:
            return ranks.unflatten(2, (self.states, -1)).sum(3)
        return times(ranks, self.parent.values.mT)

    def backward(self, inside: _Inside, gradient: Tensor) -> list[Tensor | None]:
        """Gradients of leaves, spans, left, right and parent factors, by the outside recursion."""
        parts, total = self.parts, self.parts.leaves.shape[1]
        into = Chart.of(parts.leaves, self.left.values.shape[2])
        spans = torch.zeros_like(parts.spans)
        sides = [torch.zeros_like(self.left.values), torch.zeros_like(self.right.values)]
        parent = None if self.parent is None else torch.zeros_like(self.parent.values)
        # What is in doubt is solved again by others, and has no gradient here.
        sure = ~inside.doubtful.reshape(-1, 1, 1)
        for width in range(total - 1, 0, -1):
            value, divisor = inside.values[width], inside.peaks[width - 1]
            alive = (value > 0) & sure
            marginals = torch.where(alive, self._projected(width, inside, into, sides) * value, 0.0)
            whole = (parts.lengths == width + 1).unsqueeze(1) & alive[:, 0]
            marginals[:, 0] += torch.where(whole, gradient, 0.0)
            spans.diagonal(offset=width, dim1=1, dim2=2).copy_(marginals.mT)
            phi = parts.phi(width)
            gain = (phi - peak(phi)).exp() / divisor
            grads = torch.where(alive, marginals / torch.where(alive, value, 1.0) * gain, 0.0)
            if self.parent is not None and parent is not None:
                parent += products(grads, inside.sums[width - 1], len(parent))
                back = times(grads, self.parent.values)
            else:
                runs = inside.sums[width - 1].shape[2] // self.states
                back = grads.repeat_interleave(runs, 2)
            scales = inside.scales.left_parts(width, 0, width)
            scales = scales + inside.scales.right_parts(width, 0, width)
            share = (scales - peak(scales)).exp().unsqueeze(3) * back.unsqueeze(2)
            into.left_parts(width, 0, width).addcmul_(
                share, inside.ranks.right_parts(width, 0, width)
            )
            into.right_parts(width, 0, width).addcmul_(
                share, inside.ranks.left_parts(width, 0, width)
            )
        words = inside.values[0]
        leaves = torch.where(words > 0, self._projected(0, inside, into, sides) * words, 0.0)
        if self.parent is not None and parent is not None:
            parent.mul_(self.parent.values)
        sides[0].mul_(self.left.values)
        sides[1].mul_(self.right.values)
        return [leaves, spans, *sides, parent]

    def _projected(self, width: int, inside: _Inside, into: Chart, sides: list[Tensor]) -> Tensor:
        """The gradient of the inside values of a width; that of the factors is added to theirs."""
        value, total = inside.values[width], torch.zeros_like(inside.values[width])
        both = (("left", sides[0]), ("right", sides[1]))
        for factor, (side, grads) in zip(self.sides(width), both, strict=True):
            top = getattr(inside.tops, side)(width).unsqueeze(2)
            alive = getattr(inside.ranks, side)(width) > 0
            rank = torch.where(alive, getattr(into, side)(width) / top, 0.0)
            total += times(rank, factor.values.mT)
            first = self.states if self.parts.split and width == 0 else 0
            grads[:, first : first + factor.values.shape[1]] += products(value, rank, len(grads))
        return total


class _Ranked(torch.autograd.Function):
    @staticmethod
    def forward(  # pyright: ignore
        ctx: Any, leaves: Tensor, spans: Tensor, left: Tensor, right: Tensor,
        parent: Tensor | None, lengths: Tensor, split: bool,  # noqa: FBT001
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        ctx.set_materialize_grads(False)  # pyright: ignore
        sweep = _Sweep(HypertreeTensors(leaves, spans, Ranks(left, right, parent), lengths, split))
        inside = sweep.forward()
        ctx.split, ctx.many = split, len(inside.values)  # pyright: ignore
        ctx.save_for_backward(  # pyright: ignore
            leaves, spans, left, right, parent, lengths, inside.ranks.lefts, inside.ranks.rights,
            inside.scales.lefts, inside.scales.rights, inside.tops.lefts, inside.tops.rights,
            inside.doubtful, *inside.values, *inside.peaks, *inside.sums,
        )  # fmt: skip
        ctx.mark_non_differentiable(inside.doubtful)  # pyright: ignore
        return inside.root, inside.doubtful

    @staticmethod
    def backward(ctx: Any, gradient: Tensor | None, _: Tensor | None):  # pyright: ignore
        if gradient is None:
            return None, None, None, None, None, None, None
        leaves, spans, left, right, parent, lengths, *kept = ctx.saved_tensors  # pyright: ignore
        parts = HypertreeTensors(leaves, spans, Ranks(left, right, parent), lengths, ctx.split)  # pyright: ignore
        if torch.is_grad_enabled():
            given = recomputed(parts, gradient)
            return *given, *(None,) * (7 - len(given))
        many: int = ctx.many  # pyright: ignore
        inside = _Inside(
            ranks=Chart(kept[0], kept[1]),
            scales=Chart(kept[2], kept[3]),
            tops=Chart(kept[4], kept[5]),
            values=list(kept[7 : 7 + many]),
            peaks=list(kept[7 + many : 6 + 2 * many]),
            sums=list(kept[6 + 2 * many :]),
            root=gradient,
            doubtful=kept[6],
        )
        return *_Sweep(parts).backward(inside, gradient), None, None
