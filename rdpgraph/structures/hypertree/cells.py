"""The spans of a hypertree on a few states each, and their inside values rank by rank."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from rdpgraph.model.semiring import soft_sum
from rdpgraph.structures.hypertree.form import Form
from rdpgraph.structures.hypertree.plain import Rows, sides
from rdpgraph.structures.hypertree.ranks import Ranks, kernel_form
from rdpgraph.structures.hypertree.rules import LowRankRules, NoRules

_BLOCK = 2**22  # entries of a block of terms


@dataclass(frozen=True, eq=False)
class RankRows:
    """The inside values in the ranks.

    Attributes:
        lefts: by width (B, T - width, r) log-values of spans as left parts.
        rights: as right parts.
        sums: by width from 1 (B, T - width, r), summed over the splits.
    """

    lefts: Rows
    rights: Rows
    sums: Rows


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
    ranks: Ranks
    root: Tensor
    parents: int

    @classmethod
    def of(cls, form: Form, unary: Tensor, states: Tensor) -> "Cells | None":
        """Of a hypertree's kept states (*lead, T, T, K); None if its rules have no ranks."""
        lead, shape = unary.shape[:-3], (-1, *unary.shape[-3:])
        rules = form.tree.rules.flat(tuple(lead))
        if not isinstance(rules, LowRankRules | NoRules):
            return None
        spans = unary.new_zeros(1, 1, 1, form.states)
        ranks, _ = kernel_form(rules, spans, form.tree.unary.shape[-1])
        assert isinstance(ranks, Ranks)
        unary, states = unary.reshape(shape), states.reshape(shape)
        copies = max(1, len(unary) // max(1, form.batch))
        lengths = form.lengths.repeat(copies)
        root = form.root.repeat(copies, 1) if len(form.root) > 1 else form.root
        item = torch.arange(len(unary), device=states.device)
        kept = states[item, 0, (lengths - 1).clamp(min=0)]
        return cls(
            unary, states, lengths, ranks, root.expand(len(unary), -1).gather(1, kept), form.states
        )

    def of_width(self, width: int) -> tuple[Tensor, Tensor]:
        """(B, T - width, K) log-potentials and states of the spans of a width."""
        ends = torch.arange(width, self.unary.shape[1], device=self.unary.device)
        inside = (ends < self.lengths.unsqueeze(1)).unsqueeze(2)
        phi = self.unary.diagonal(offset=width, dim1=1, dim2=2).mT
        kept = self.states.diagonal(offset=width, dim1=1, dim2=2).mT
        return torch.where(inside, phi, -math.inf), kept

    def by_rank(self) -> RankRows:
        """O(T^2 K r + T^3 r)."""
        values, ranks = RankRows([], [], []), self.ranks
        assert ranks.parent is not None
        last = ranks.parent.shape[1] - 1
        total, rank = self.unary.shape[-2], ranks.left.shape[2]
        size = max(1, _BLOCK // max(1, len(self.unary) * self.unary.shape[-1] * rank))
        for width in range(total):
            phi, kept = self.of_width(width)
            if width:
                left, right = sides(values.lefts, values.rights, width)
                sums = soft_sum(left + right, 2)
                values.sums.append(sums)
                above = kept.clamp(max=last).split(size, 1)
                terms = zip(sums.split(size, 1), above, strict=True)
                phi = phi + torch.cat(
                    [soft_sum(own.unsqueeze(2) + _rows(ranks.parent, at), 3) for own, at in terms],
                    1,
                )
            for side, factor in ((values.lefts, ranks.left), (values.rights, ranks.right)):
                terms = zip(phi.split(size, 1), kept.split(size, 1), strict=True)
                parts = [soft_sum(own.unsqueeze(3) + _rows(factor, at), 2) for own, at in terms]
                side.append(torch.cat(parts, 1))
        return values


def _rows(factor: Tensor, states: Tensor) -> Tensor:
    """(B, S, K, r) the rows of (B or 1, C, r) for states (B, S, K)."""
    return factor[torch.arange(len(factor), device=factor.device).reshape(-1, 1, 1), states]
