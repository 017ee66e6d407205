"""Word alignments as a grammar, its potentials from scores of words; and splits of bispans."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from rdpgraph.errors import ModelError
from rdpgraph.model.arrays import as_values, spread
from rdpgraph.structures.hypertree.rules import DenseRules

Cells: TypeAlias = tuple[Tensor, Tensor, Tensor, Tensor]
Parts: TypeAlias = tuple[Tensor, Tensor]


def words_unary(
    pairs: Tensor, source_null: Tensor, target_null: Tensor, phrases: Tensor | None, inner: int
) -> Tensor:
    """(*batch, p + 1, p + 1, q + 1, q + 1, inner + 3) potentials, for `Bitext.words`.

    The last three states are those of pairs and phrases, and of words of either side alone.
    """
    pairs = as_values("Bitext.words' pairs", pairs)
    if pairs.ndim < 2:
        raise ModelError(f"Bitext.words needs pairs (*batch, p, q); got {tuple(pairs.shape)}.")
    *batch, p, q = pairs.shape
    shape = (*batch, p + 1, p + 1, q + 1, q + 1)
    leaf = pairs.new_full(shape, -math.inf)
    source_null = spread("Bitext.words' source_null", source_null, (*batch, p), pairs)
    target_null = spread("Bitext.words' target_null", target_null, (*batch, q), pairs)
    both = (leaf if phrases is None else phrases.expand(shape)).clone()
    alone, other = leaf.clone(), leaf.clone()
    both.diagonal(1, -4, -3).diagonal(1, -3, -2).copy_(pairs)
    alone.diagonal(1, -4, -3).diagonal(0, -3, -2).copy_(source_null.unsqueeze(-1))
    other.diagonal(0, -4, -3).diagonal(1, -3, -2).copy_(target_null.unsqueeze(-2))
    return torch.cat([pairs.new_zeros(*shape, inner), torch.stack([both, alone, other], -1)], -1)


def grammar_rules(
    straight: Tensor, inverted: Tensor, *, normal_form: bool
) -> tuple[DenseRules, DenseRules]:
    """Straight and inverted rules over the states of `words_unary`.

    In the normal form a word pair takes the words alone that follow it, first those of the source,
    then those of the target; what precedes all pairs goes to the whole, likewise; and of parts in
    one order the left one comes first, so that no straight part is the right one of a straight
    whole, nor an inverted one of an inverted. So every alignment has one tree.
    """
    if not normal_form:
        one, none = straight.new_zeros(1, 4, 4), straight.new_full((3, 4, 4), -math.inf)
        table = torch.cat([one, none])
        return DenseRules(table + straight), DenseRules(table + inverted)
    names = ("source", "target", "straight", "inverted", "early", "late", "pair", "s", "t")
    number = {name: place for place, name in enumerate(names)}
    tables = torch.full((2, 9, 9, 9), -math.inf, dtype=straight.dtype, device=straight.device)

    def allow(order: int, whole: str, left: str, right: str) -> None:
        for first in left.split():
            for second in right.split():
                tables[order, number[whole], number[first], number[second]] = 0.0

    block = "pair source target"
    allow(0, "source", "pair source", "s")
    allow(0, "target", block, "t")
    allow(0, "straight", f"{block} straight inverted", f"{block} inverted")
    allow(1, "inverted", f"{block} straight inverted", f"{block} straight")
    allow(0, "late", "t", f"{block} straight inverted late t")
    allow(0, "early", "s", f"{block} straight inverted late early s t")
    return DenseRules(tables[0] + straight), DenseRules(tables[1] + inverted)


@dataclass(frozen=True, eq=False)
class Splits:
    """The bispans in the order of their sizes, and their splits into smaller ones.

    Attributes:
        stand: (p + 1, p + 1, q + 1, q + 1) where each bispan [i, k, j, l] stands among those done
            so far; -1: nowhere.
    """

    stand: Tensor

    @classmethod
    def of(cls, shape: Sequence[int], device: torch.device) -> "Splits":
        """None done yet."""
        return cls(torch.full(tuple(shape), -1, device=device))

    def by_size(self, allowed: Tensor | None) -> Iterator[tuple[Cells, Parts, Parts]]:
        """The bispans of one size, (places,) four times; their straight splits, and inverted ones.

        Of splits the two parts, (splits, places) each, as they stand; those with no part allowed
        are left out.
        """
        p, q = self.stand.shape[0] - 1, self.stand.shape[2] - 1
        device, count = self.stand.device, 0
        for w, h in sorted(((w, h) for w in range(p + 1) for h in range(q + 1)), key=sum)[1:]:
            i, j = _grid(p + 1 - w, q + 1 - h, device)
            if allowed is not None:
                here = allowed.to(device)[i, i + w, j, j + h]
                i, j = i[here], j[here]
            if not len(i):
                continue
            k, last = i + w, j + h
            a, b = (part.unsqueeze(1) for part in _grid(w + 1, h + 1, device))
            proper = ((a + b > 0) & (a + b < w + h)).squeeze(1)
            inner = ((a > 0) & (a < w) & (b > 0) & (b < h)).squeeze(1)
            s, t = a[proper], b[proper]
            straight = self.stand[i, i + s, j, j + t], self.stand[i + s, k, j + t, last]
            s, t = a[inner], b[inner]
            inverted = self.stand[i, i + s, last - t, last], self.stand[i + s, k, j, last - t]
            yield (i, k, j, last), _possible(*straight), _possible(*inverted)
            self.stand[i, k, j, last] = torch.arange(count, count + len(i), device=device)
            count += len(i)


def _grid(rows: int, columns: int, device: torch.device) -> tuple[Tensor, Tensor]:
    every = torch.arange(rows * columns, device=device)
    return every // columns, every % columns


def _possible(left: Tensor, right: Tensor) -> Parts:
    some = ((left >= 0) & (right >= 0)).any(1)
    return left[some], right[some]
