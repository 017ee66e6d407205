"""The spans of a hypertree on a few states each, and the inside recursion over them.

Rules are evaluated on the states kept, span by span, in log-space; rules of low rank by rows of
their factors. Blocks of terms are computed again for the gradient.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from rdpgraph.model.semiring import soft_sum
from rdpgraph.structures.hypertree.ranks import Ranks
from rdpgraph.structures.hypertree.rules import NoRules, Rules

BLOCK = 2**22
"""Entries of a block of terms."""
Rows: TypeAlias = list[Tensor]
"""Values of the spans of each width, (B, T - width, ...)."""


@dataclass(frozen=True, eq=False)
class RankRows:
    """The inside values in the ranks.

    Attributes:
        lefts: by width (B, T - width, r) log-values of spans as left parts.
        rights: as right parts.
        sums: by width from 1 (B, T - width, r), summed over the splits.
        values: by width (B, T - width, K) log inside values.
    """

    lefts: Rows
    rights: Rows
    sums: Rows
    values: Rows


@dataclass(frozen=True, eq=False)
class Cells:
    """Spans of K kept states, one batch dim.

    Attributes:
        unary: (B, T, T, K) log-potentials, weights included.
        states: (B, T, T, K) which states they are.
        lengths: (B,).
        rules: flat.
        ranks: the same by rank, if they are of low rank.
        root: (B, K) of the span that covers the length.
        parents: how many states the parents of rules have.
    """

    unary: Tensor
    states: Tensor
    lengths: Tensor
    rules: Rules
    ranks: Ranks | None
    root: Tensor
    parents: int

    @property
    def batch(self) -> int:
        """B."""
        return len(self.unary)

    def of_width(self, width: int) -> tuple[Tensor, Tensor]:
        """(B, T - width, K) log-potentials and states of the spans of a width."""
        ends = torch.arange(width, self.unary.shape[1], device=self.unary.device)
        inside = (ends < self.lengths.unsqueeze(1)).unsqueeze(2)
        phi = self.unary.diagonal(offset=width, dim1=1, dim2=2).mT
        kept = self.states.diagonal(offset=width, dim1=1, dim2=2).mT
        return torch.where(inside, phi, -math.inf), kept

    def total(self, rows: Rows, root: Tensor) -> Tensor:
        """(B,) log Z from inside values; ``root`` (B, K) in the place of the cells' own."""
        if not rows:
            return self.unary.sum((-3, -2, -1))
        firsts = torch.stack([row[:, 0] for row in rows], 1)
        item = torch.arange(self.batch, device=self.lengths.device)
        top = firsts[item, (self.lengths - 1).clamp(min=0)]
        return torch.where(self.lengths > 0, soft_sum(top + root, 1), 0.0)

    def rows(self, temperature: float, power: Tensor | None = None) -> Rows:
        """By width (B, T - width, K) log inside values; at temperature 0 the best scores.

        Args:
            temperature: 0 or 1.
            power: (B,) of the rules, if they are taken to one.
        """
        # Sums over ranks are neither maxima over rules nor powers of them.
        whole = temperature == 1.0 and power is None
        if self.ranks is not None and (whole or isinstance(self.rules, NoRules)):
            return self.by_rank(self.ranks, temperature).values
        return self._by_table(temperature, power)

    def by_rank(self, ranks: Ranks, temperature: float = 1.0) -> RankRows:
        """O(T^2 K r + T^3 r)."""
        assert ranks.parent is not None
        found = RankRows([], [], [], [])
        last = ranks.parent.shape[1] - 1

        def project(value: Tensor, kept: Tensor, factor: Tensor) -> Tensor:
            rows = factor[_items(factor), kept]
            return soft_sum(value.unsqueeze(3) + rows, 2, temperature)

        def lift(sums: Tensor, kept: Tensor, factor: Tensor) -> Tensor:
            rows = factor[_items(factor), kept.clamp(max=last)]
            return soft_sum(sums.unsqueeze(2) + rows, 3, temperature)

        total, rank = self.unary.shape[-2], ranks.left.shape[2]
        size = max(1, BLOCK // max(1, self.batch * self.unary.shape[-1] * rank))
        for width in range(total):
            phi, kept = self.of_width(width)
            if width:
                left, right = sides(found.lefts, found.rights, width)
                sums = soft_sum(left + right, 2, temperature)
                found.sums.append(sums)
                phi = phi + blocks(lift, size, (sums, kept), ranks.parent)
            found.values.append(phi)
            found.lefts.append(blocks(project, size, (phi, kept), ranks.left))
            found.rights.append(blocks(project, size, (phi, kept), ranks.right))
        return found

    def _by_table(self, temperature: float, power: Tensor | None) -> Rows:
        """O(T^3 K^3)."""
        rows, states = Rows(), Rows()
        total, many = self.unary.shape[-2:]

        def join(
            left: Tensor, right: Tensor, parent: Tensor, by_left: Tensor, by_right: Tensor
        ) -> Tensor:
            rule = self.rule(parent, by_left, by_right).to(left)
            if power is not None:
                forbidden = rule == -math.inf
                safe = torch.where(forbidden, 0.0, rule) * power.reshape(-1, 1, 1, 1, 1, 1)
                rule = torch.where(forbidden, -math.inf, safe)
            pairs = left.unsqueeze(4) + right.unsqueeze(3)
            return soft_sum(rule + pairs.unsqueeze(3), (2, 4, 5), temperature)

        for width in range(total):
            phi, kept = self.of_width(width)
            states.append(kept)
            if width:
                size = max(1, BLOCK // max(1, self.batch * width * many**3))
                parts = (*sides(rows, rows, width), kept, *sides(states, states, width))
                phi = phi + blocks(join, size, parts)
            rows.append(phi)
        return rows

    def rule(self, parent: Tensor, left: Tensor, right: Tensor) -> Tensor:
        """(B, S, w, K, K, K) of parents (B, S, K) and parts (B, S, w, K)."""
        above = parent.clamp(max=self.parents - 1).unsqueeze(2).expand_as(left)
        return self.rules.evaluate(above, left, right)


def sides(lefts: Rows, rights: Rows, width: int) -> tuple[Tensor, Tensor]:
    """(B, S, w, ...) the left and right parts of all splits of the spans of a width."""
    count = lefts[0].shape[1] - width
    left = torch.stack([lefts[place][:, :count] for place in range(width)], 2)
    right = [rights[width - 1 - place][:, place + 1 :][:, :count] for place in range(width)]
    return left, torch.stack(right, 2)


def blocks(
    block: Callable[..., Tensor], size: int, rows: tuple[Tensor, ...], *whole: Tensor
) -> Tensor:
    """A function of some spans at a time, its terms computed again for the gradient."""
    found: list[Tensor] = []
    for piece in zip(*(part.split(size, 1) for part in rows), strict=True):
        if torch.is_grad_enabled():
            found.append(
                checkpoint(  # pyright: ignore
                    block, *piece, *whole, use_reentrant=False, preserve_rng_state=False
                )
            )
        else:
            found.append(block(*piece, *whole))
    return torch.cat(found, 1)


def _items(factor: Tensor) -> Tensor:
    return torch.arange(len(factor), device=factor.device).reshape(-1, 1, 1)
