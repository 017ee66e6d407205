"""Bispans, and scores of the words in a rule."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations, product

import torch
from torch import Tensor
from torch.nn.functional import pad

from rdpgraph._core import tuning
from rdpgraph._core.cache import cached_property

Pairs = tuple[Tensor, Tensor]


@dataclass(frozen=True, eq=False)
class Boxes:
    """Bispans of some items."""

    item: Tensor  # (P,) the item of each
    ends: Tensor  # (4, P) i, k, j, l: words i..k-1 of the source and j..l-1 of the target
    longest: int  # the words of the longest sentence

    def __len__(self) -> int:
        """The number of bispans."""
        return len(self.item)

    def turned(self) -> "Boxes":
        """The bispans with the target reversed, so that inverted joins are straight."""
        back = torch.cat([self.ends[:2], self.longest - self.ends[[3, 2]]])
        return Boxes(self.item, back, self.longest)

    def at(self, sides: Sequence[int]) -> Tensor:
        """(P,) a key for the item and some of the ends."""
        number = self.item
        for side in sides:
            number = number * (self.longest + 1) + self.ends[side]
        return number

    def some(self, index: Tensor) -> "Boxes":
        """The bispans at an index."""
        return Boxes(self.item[index], self.ends[:, index], self.longest)

    def distinct(self) -> tuple["Boxes", Tensor]:
        """The distinct bispans, and the index of each of these among them."""
        keys, place = self.at(range(4)).unique(return_inverse=True)
        first = torch.empty_like(keys)
        first[place] = torch.arange(len(place), device=place.device)
        return self.some(first), place

    def nested(self) -> Pairs:
        """All pairs of a bispan and another one within it."""
        order = self.item.argsort(stable=True)
        sizes = torch.bincount(self.item).tolist() if len(self.item) else []
        nested: list[Pairs] = [(order[:0], order[:0])]
        for group in order.split(sizes):
            inner = self.ends[:, group].to(torch.int16)
            for rows in group.split(tuning.per_block(len(group), tuning.BLOCK)):
                outer = self.ends[:, rows].to(torch.int16).unsqueeze(2)
                within = (outer[0] <= inner[0]) & (outer[1] >= inner[1])
                within &= (outer[2] <= inner[2]) & (outer[3] >= inner[3])
                row, column = within.nonzero().T
                nested.append((rows[row], group[column]))
        whole, part = (torch.cat(side) for side in zip(*nested, strict=True))
        distinct = whole != part
        return whole[distinct], part[distinct]


@dataclass(frozen=True, eq=False)
class StretchScores:
    """Scores of stretches of words by running sums in float64; differentiable.

    Words of both sides score the sum over their pairs, and words of one side the sum over them.

    Attributes:
        pairs: (B, p, q) log-scores of pairs of words (nats).
        source: (B or 1, p) of source words in a rule without target words.
        target: (B or 1, q) likewise.
    """

    pairs: Tensor
    source: Tensor
    target: Tensor

    @cached_property
    def sums(self) -> tuple["RunningSums", "RunningSums", "RunningSums"]:
        """Running sums of pairs, and of the words of either side."""
        return RunningSums.of(self.pairs), RunningSums.of(self.source), RunningSums.of(self.target)

    def scores(self, item: Tensor | None, source: Tensor, target: Tensor) -> Tensor:
        """Scores (n,) for words of items (n,), or (B, n) for all items.

        ``source`` and ``target`` (n, 2): where the words begin and end.
        """
        pairs, sources, targets = self.sums
        some, more = source[:, 1] > source[:, 0], target[:, 1] > target[:, 0]
        either = torch.where(some, sources.over(item, source), targets.over(item, target))
        return torch.where(some & more, pairs.over(item, source, target), either)

    def around(self, item: Tensor | None, ends: Tensor, whole: Tensor, part: Tensor) -> Tensor:
        """(E,) scores of the words of bispans ``whole`` outside of bispans ``part`` within them.

        By inclusion and exclusion: the pairs of words of each, less those of one side of either
        with the other side of the other. ``item`` (P,) and ``ends`` (4, P) describe the bispans;
        without items (B, E) for all.
        """
        source, target = ends.T.unflatten(1, (2, 2)).unbind(1)
        some = (source[whole] != source[part]).any(1)
        more = (target[whole] != target[part]).any(1)
        pairs, *sides = self.sums
        rows, columns = (
            _joined([sum_[..., whole] - sum_[..., part] for sum_ in sums.counted(item, spans)])
            for sums, spans in zip(sides, (source, target), strict=True)
        )
        owner = None if item is None else item[whole]
        crossed = [
            pairs.counted(owner, source[one], target[other])
            for one, other in ((whole, part), (part, whole))
        ]
        both = _joined([
            sum_[..., whole] + sum_[..., part] - first - second
            for sum_, first, second in zip(
                pairs.counted(item, source, target), *crossed, strict=True
            )
        ])  # fmt: skip
        return torch.where(some & more, both, torch.where(some, rows, columns))


_FAR = 1e5  # nats above which numbers are summed separately, so that others keep their digits


def _joined(sums: Sequence[Tensor]) -> Tensor:
    """Recombine the sums of near numbers, of far ones, and the counts of these and of -inf."""
    total, *apart = sums
    if not apart:
        return total
    far, some, gone = apart
    total = total + torch.where(some > 0, far, 0.0)
    return total.masked_fill(gone > 0, -math.inf)


@dataclass(frozen=True, eq=False)
class RunningSums:
    """Running sums of numbers, with numbers far from zero and -inf summed separately.

    Finite scores that stand for absence, as -1e30, would leave no digits of the others.
    """

    # (B, p + 1) or (B, p + 1, q + 1), as `_joined` takes them; the first alone if all numbers are
    # near.
    parts: tuple[Tensor, ...]

    @classmethod
    def of(cls, values: Tensor) -> "RunningSums":
        """Sum (B, p) or (B, p, q)."""
        values, absent = values.double(), values == -math.inf
        far = (values.abs() > _FAR) & ~absent
        parts = [torch.where(absent | far, 0.0, values)]
        if bool((absent | far).any()):
            parts += [torch.where(far, values, 0.0), far.long(), absent.long()]
        for dim in range(1, values.ndim):
            parts = [part.cumsum(dim) for part in parts]
        return cls(tuple([pad(part, (1, 0) * (values.ndim - 1)) for part in parts]))

    def over(self, item: Tensor | None, *spans: Tensor) -> Tensor:
        """Sums (n,) over stretches (n, 2) of each dim for items (n,), or (B, n) for all."""
        return _joined(self.counted(item, *spans))

    def counted(self, item: Tensor | None, *spans: Tensor) -> list[Tensor]:
        """The separate parts of sums over stretches."""
        whole = self.parts[0].shape
        steps = [math.prod(whole[dim + 1 :]) for dim in range(1, len(whole))]
        ends = [span * step for span, step in zip(spans, steps, strict=True)]
        if item is not None:
            ends[0] = ends[0] + (item % whole[0] * math.prod(whole[1:])).unsqueeze(1)

        def summed(part: Tensor) -> Tensor:
            covered = part.new_zeros(())
            part = part.flatten(1) if item is None else part.flatten()
            for corner in product((1, 0), repeat=len(ends)):
                at = sum((end[:, c] for end, c in zip(ends[1:], corner[1:], strict=True)),
                         ends[0][:, corner[0]])  # fmt: skip
                value = part.index_select(-1, at)
                covered = covered - value if corner.count(0) % 2 else covered + value
            return covered

        return [summed(part) for part in self.parts]


ORDERS = tuple(order for count in range(4) for order in permutations(range(count)))
"""Kinds of rules: the place in the target of each part, in source order, for 0 to 3 parts."""
