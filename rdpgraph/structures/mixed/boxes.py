"""Bispans as lists of their ends, found by the ends that they share."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

Pairs = tuple[Tensor, Tensor]

_BLOCK = 1 << 22  # pairs of bispans that are compared at once


@dataclass(frozen=True, eq=False)
class Boxes:
    """Bispans of some items.

    Attributes:
        item: (P,) whose.
        ends: (4, P) i, k, j, l: words i..k-1 of the source and j..l-1 of the target.
        longest: the words of the longest sentence.
    """

    item: Tensor
    ends: Tensor
    longest: int

    def __len__(self) -> int:
        """The number of bispans."""
        return len(self.item)

    def turned(self) -> "Boxes":
        """With the target read backwards, so that inverted is straight."""
        back = torch.cat([self.ends[:2], self.longest - self.ends[[3, 2]]])
        return Boxes(self.item, back, self.longest)

    def at(self, sides: Sequence[int]) -> Tensor:
        """(P,) a number for the item and some of the ends."""
        number = self.item
        for side in sides:
            number = number * (self.longest + 1) + self.ends[side]
        return number

    def some(self, index: Tensor) -> "Boxes":
        """Some of them."""
        return Boxes(self.item[index], self.ends[:, index], self.longest)

    def distinct(self) -> tuple["Boxes", Tensor]:
        """Each once, and the place of each of these among them."""
        keys, place = self.at(range(4)).unique(return_inverse=True)
        first = torch.empty_like(keys)
        first[place] = torch.arange(len(place), device=place.device)
        return self.some(first), place

    def nested(self) -> Pairs:
        """All pairs of one and another one within it."""
        order = self.item.argsort(stable=True)
        sizes = torch.bincount(self.item).tolist() if len(self.item) else []
        nested: list[Pairs] = [(order[:0], order[:0])]
        for own in order.split(sizes):
            inner = self.ends[:, own].to(torch.int16)
            for rows in own.split(max(_BLOCK // max(len(own), 1), 1)):
                outer = self.ends[:, rows].to(torch.int16).unsqueeze(2)
                within = (outer[0] <= inner[0]) & (outer[1] >= inner[1])
                within &= (outer[2] <= inner[2]) & (outer[3] >= inner[3])
                row, column = within.nonzero().T
                nested.append((rows[row], own[column]))
        whole, part = (torch.cat(own) for own in zip(*nested, strict=True))
        other = whole != part
        return whole[other], part[other]
