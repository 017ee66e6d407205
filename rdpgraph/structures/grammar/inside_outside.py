"""The masses of all states of every span, given a few states of the others: inside x outside.

Charts are laid out so that the parts of all spans of a width are slices. A span of width w + 1 that
starts at i has w splits. Its left parts start at i and have widths 1..w; its right parts end at
i + w and have widths w..1. Lefts are kept by start and width, rights by end and falling width, so
that split m is at the same place in both slices.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from rdpgraph.logspace.logmatrix import finite, soft_sum
from rdpgraph.structures.grammar.batched import Form
from rdpgraph.structures.recursion.rules import LowRankRules, NoRules

_BLOCK = 2**22  # entries of a block of terms


@dataclass(frozen=True, eq=False)
class Chart:
    """Values of every span, twice: as left parts and as right parts. Filled in place.

    Attributes:
        lefts: (B, T, T, ...) by start and width.
        rights: (B, T, T, ...) by end and falling width.
    """

    lefts: Tensor
    rights: Tensor

    @staticmethod
    def of(like: Tensor, *dims: int, fill: float = 0.0) -> "Chart":
        """A chart of (B, T, T, *dims) for leaves (B, T, P)."""
        shape = (like.shape[0], like.shape[1], like.shape[1], *dims)
        return Chart(like.new_full(shape, fill), like.new_full(shape, fill))

    def put(self, width: int, left: Tensor, right: Tensor) -> None:
        """Set the spans of width + 1 words."""
        self.left(width).copy_(left)
        self.right(width).copy_(right)

    def left(self, width: int) -> Tensor:
        """(B, T - width, ...) what spans of width + 1 words are as left parts."""
        return self.lefts[:, : self.lefts.shape[1] - width, width]

    def right(self, width: int) -> Tensor:
        """(B, T - width, ...) what spans of width + 1 words are as right parts."""
        return self.rights[:, width:, self.rights.shape[1] - 1 - width]

    def left_parts(self, width: int, first: int, last: int) -> Tensor:
        """(B, T - width, last - first, ...) left parts of some splits of all spans of a width."""
        return self.lefts[:, : self.lefts.shape[1] - width, first:last]

    def right_parts(self, width: int, first: int, last: int) -> Tensor:
        """(B, T - width, last - first, ...) right parts of the same splits."""
        start = self.rights.shape[1] - width
        return self.rights[:, width:, start + first : start + last]


@dataclass(frozen=True, eq=False)
class Cells:
    """Spans of K kept states, one batch dim.

    Attributes:
        unary: (B, T, T, K) log-potentials, weights included.
        states: (B, T, T, K) which states they are.
        lengths: (B,).
        ranks: the rules.
        root: (B, K) of the span that covers the length.
        parents: how many states the parents of rules have.
    """

    unary: Tensor
    states: Tensor
    lengths: Tensor
    ranks: LowRankRules
    root: Tensor
    parents: int

    @classmethod
    def of(cls, form: Form, unary: Tensor, states: Tensor) -> "Cells | None":
        """Of a hypertree's kept states (*lead, T, T, K); None if its rules have no ranks."""
        lead, shape = unary.shape[:-3], (-1, *unary.shape[-3:])
        rules = form.tree.rules.flat(tuple(lead))
        if isinstance(rules, NoRules):
            zeros = unary.new_zeros(1, form.tree.unary.shape[-1], 1)
            rules = LowRankRules(zeros[:, : form.states], zeros, zeros)
        if not isinstance(rules, LowRankRules):
            return None
        unary, states = unary.reshape(shape), states.reshape(shape)
        copies = max(1, len(unary) // max(1, form.batch))
        lengths = form.lengths.repeat(copies)
        root = form.root.repeat(copies, 1) if len(form.root) > 1 else form.root
        item = torch.arange(len(unary), device=states.device)
        kept = states[item, 0, (lengths - 1).clamp(min=0)]
        return cls(
            unary, states, lengths, rules, root.expand(len(unary), -1).gather(1, kept), form.states
        )

    def of_width(self, width: int) -> tuple[Tensor, Tensor]:
        """(B, T - width, K) log-potentials and states of the spans of a width."""
        ends = torch.arange(width, self.unary.shape[1], device=self.unary.device)
        inside = (ends < self.lengths.unsqueeze(1)).unsqueeze(2)
        phi = self.unary.diagonal(offset=width, dim1=1, dim2=2).mT
        kept = self.states.diagonal(offset=width, dim1=1, dim2=2).mT
        return torch.where(inside, phi, -math.inf), kept

    def by_rank(self) -> tuple[Chart, list[Tensor]]:
        """Log-values of spans in the ranks, as parts; by width from 1 their sums over the splits.

        O(T^2 K r + T^3 r).
        """
        ranks, sums, total = self.ranks, list[Tensor](), self.unary.shape[-2]
        last, rank = ranks.parent.shape[1] - 1, ranks.left.shape[2]
        chart = Chart.of(self.unary[:, :, 0], rank)
        for width in range(total):
            phi, kept = self.of_width(width)
            if width:
                parts = chart.left_parts(width, 0, width) + chart.right_parts(width, 0, width)
                sums.append(soft_sum(parts, 2))
                phi = phi + _joined(sums[-1], ranks.parent, kept.clamp(max=last), 2)
            left, right = (_joined(phi, factor, kept, 3) for factor in (ranks.left, ranks.right))
            chart.put(width, left, right)
        return chart, sums


def _joined(logs: Tensor, factor: Tensor, states: Tensor, dim: int) -> Tensor:
    """(B, S, K) from ranks (B, S, r) to some states, dim 2; or to ranks from those, dim 3.

    By the rows of a factor (B or 1, C, r) for the states (B, S, K).
    """
    size = max(1, _BLOCK // max(1, states[:, 0].numel() * factor.shape[2]))
    item = torch.arange(len(factor), device=factor.device).reshape(-1, 1, 1)
    terms = zip(logs.split(size, 1), states.split(size, 1), strict=True)
    return torch.cat(
        [soft_sum(own.unsqueeze(dim) + factor[item, at], 5 - dim) for own, at in terms], 1
    )


@torch.no_grad()
def log_masses(cells: Cells, unary: Tensor) -> Tensor:
    """(B, T, T, C) what all trees with a state weigh, whose other states are kept ones.

    The inside recursion runs over the states kept, and so does that outside, rank by rank; both
    are taken one step further to all states. O(T^2 C r + T^3 r).

    Args:
        cells: the states kept.
        unary: (B, T, T, C) potentials of all states, with the root's at the whole, -inf where no
            tree has them.
    """
    result, ranks, total = unary.clone(), cells.ranks, unary.shape[1]
    assert ranks.parent is not None
    if not total:
        return result
    words, (inner, sums) = unary.shape[3] - cells.parents, cells.by_rank()
    outer = Chart.of(unary[:, :, 0], ranks.left.shape[2], fill=-math.inf)
    for width in range(total - 1, -1, -1):
        whole = (cells.lengths == width + 1).reshape(-1, 1, 1)
        left = _log_times(outer.left(width), ranks.left.mT)
        right = _log_times(outer.right(width), ranks.right.mT)
        outside = torch.logaddexp(left, right)
        outside[:, :1] = torch.where(whole, 0.0, outside[:, :1])
        inside = torch.zeros_like(outside)
        if width:
            inside = _log_times(sums[width - 1], ranks.parent.mT)
            inside = pad(inside, (0, words), value=-math.inf)
        cell = result.diagonal(offset=width, dim1=1, dim2=2)
        cell.add_((inside + outside).mT)
        if not width:
            break
        phi, kept = cells.of_width(width)
        beyond = outside.gather(2, kept)
        beyond[:, :1] = torch.where(whole, cells.root.unsqueeze(1), beyond[:, :1])
        own = kept.clamp(max=cells.parents - 1)
        above = _joined(phi + beyond, ranks.parent, own, 3).unsqueeze(2)
        for view, others in (
            (outer.left_parts(width, 0, width), inner.right_parts(width, 0, width)),
            (outer.right_parts(width, 0, width), inner.left_parts(width, 0, width)),
        ):
            view.copy_(torch.logaddexp(view, above + others))
    return result


def _log_times(logs: Tensor, table: Tensor) -> Tensor:
    """Log of exp(logs) (B, S, M) times exp(table) (R, M, N), scaled by row and by column."""
    top, high = finite(logs.amax(-1, keepdim=True)), finite(table.amax(-2, keepdim=True))
    return ((logs - top).exp() @ (table - high).exp()).log() + top + high
