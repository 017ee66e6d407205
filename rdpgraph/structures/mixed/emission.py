"""What the words that a rule has itself score: by the pairs of them, or each alone."""

import math
from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor
from torch.nn.functional import pad

from rdpgraph._cache import cached_property


@dataclass(frozen=True, eq=False)
class Emission:
    """Scores of stretches of words, in doubles, by running sums; differentiable.

    Words of both sides score the sum over their pairs, words of one side their own sum.

    Attributes:
        pairs: (B, p, q) log-scores of pairs of words (nats).
        source: (B or 1, p) of source words of a rule that has no target words.
        target: (B or 1, q) the other way round.
    """

    pairs: Tensor
    source: Tensor
    target: Tensor

    @cached_property
    def sums(self) -> tuple["Sums", "Sums", "Sums"]:
        """Of pairs, and of the words of either side."""
        return Sums.of(self.pairs), Sums.of(self.source), Sums.of(self.target)

    def scores(self, item: Tensor | None, source: Tensor, target: Tensor) -> Tensor:
        """(n,) for words of items (n,), or (B, n) of all items.

        Args:
            item: whose words; None: of every item.
            source: (n, S, 2) where the stretches of source words begin and end.
            target: (n, S, 2) and those of the target.
        """
        pairs, own, other = self.sums
        rows, columns = source[..., 1] > source[..., 0], target[..., 1] > target[..., 0]
        some, more = rows.any(1), columns.any(1)
        each = [
            pairs.over(item, source[:, s], target[:, t])
            for s in range(source.shape[1])
            for t in range(target.shape[1])
        ]
        alone = [own.over(item, source[:, s]) for s in range(source.shape[1])]
        others = [other.over(item, target[:, t]) for t in range(target.shape[1])]
        many = (len(source),) if item is not None else (1, len(source))
        zero = self.pairs.new_zeros(many, dtype=torch.float64)
        either = torch.where(some, sum(alone, zero), sum(others, zero))
        return torch.where(some & more, sum(each, zero), either)


@dataclass(frozen=True, eq=False)
class Sums:
    """Running sums of numbers, of which -inf is counted apart.

    Attributes:
        total: (B, p + 1) or (B, p + 1, q + 1) of those that are finite.
        gone: how many are -inf; None: none is.
    """

    total: Tensor
    gone: Tensor | None

    @classmethod
    def of(cls, values: Tensor) -> "Sums":
        """Of (B, p) or (B, p, q)."""
        absent = values == -math.inf
        parts = [torch.where(absent, 0.0, values.double())]
        if bool(absent.any()):
            parts.append(absent.long())
        for dim in range(1, values.ndim):
            parts = [own.cumsum(dim) for own in parts]
        parts = [pad(own, (1, 0) * (values.ndim - 1)) for own in parts]
        return cls(parts[0], parts[1] if len(parts) > 1 else None)

    def over(self, item: Tensor | None, *spans: Tensor) -> Tensor:
        """(n,) of items (n,), or (B, n) of all: over stretches (n, 2) of each dim."""
        corners = list(product((1, 0), repeat=len(spans)))

        def summed(own: Tensor) -> Tensor:
            covered = own.new_zeros(())
            for corner in corners:
                at = tuple(span[:, end] for span, end in zip(spans, corner, strict=True))
                value = own[:, *at] if item is None else own[item % len(own), *at]
                covered = covered - value if corner.count(0) % 2 else covered + value
            return covered

        total = summed(self.total)
        return total if self.gone is None else total.masked_fill(summed(self.gone) > 0, -math.inf)
