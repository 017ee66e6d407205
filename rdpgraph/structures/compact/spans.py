"""The spans that cross none of those required, as lists, and the ways to join them."""

from dataclasses import dataclass

import torch
from torch import Tensor


def each(many: Tensor) -> tuple[Tensor, Tensor]:
    """Each number as often as `many` (n,) says: which, and how many of it come before."""
    index = torch.repeat_interleave(torch.arange(len(many), device=many.device), many)
    within = torch.arange(len(index), device=many.device)
    return index, within - (many.cumsum(0) - many)[index]


def matched(left: Tensor, right: Tensor, *, among: int | None = None) -> tuple[Tensor, Tensor]:
    """All pairs of places in which two lists of numbers are equal, by those of the left one.

    Args:
        left: (n,).
        right: (m,).
        among: that all numbers are below, where they are few and none is negative.
    """
    values, order = right.sort(stable=True)
    if among is None:
        begin = torch.searchsorted(values, left)
        many = torch.searchsorted(values, left, right=True) - begin
    else:
        count = torch.bincount(right, minlength=among)
        begin, many = (count.cumsum(0) - count)[left], count[left]
    row, within = each(many)
    return row, order[begin[row] + within]


@dataclass(frozen=True, eq=False)
class Spans:
    """The spans of some sentences that a mask leaves.

    Attributes:
        item: (P,) which sentence, by width.
        ends: (2, P) the first and the last word.
        rows: where each width begins among them, and P.
        number: (B, T, T) the number of each span; -1: left out.
    """

    item: Tensor
    ends: Tensor
    rows: tuple[int, ...]
    number: Tensor

    @classmethod
    def of(cls, lengths: Tensor, required: Tensor, forbidden: Tensor) -> "Spans":
        """Those that cross no required span and are not forbidden; words are always there.

        Args:
            lengths: (B,).
            required: (B, T, T) bool, [first, last].
            forbidden: likewise.
        """
        total = required.shape[1]
        place = torch.arange(total, device=required.device)
        first, last = place.unsqueeze(1), place
        kept = (last > first) & ~forbidden & (last < lengths.reshape(-1, 1, 1))
        item, left, right = required.nonzero().T.unsqueeze(-1).unsqueeze(-1)
        crossing = (left < first) & (first <= right) & (right < last)
        crossing |= (first < left) & (left <= last) & (last < right)
        crossed = torch.zeros(kept.shape, dtype=torch.int32, device=kept.device)
        crossed.index_add_(0, item.flatten(), crossing.int())
        kept &= crossed == 0
        kept |= (first == last) & (last < lengths.reshape(-1, 1, 1))
        item, left, right = kept.nonzero().T
        width, order = (right - left).sort(stable=True)
        bounds = torch.arange(total + 1, device=width.device)
        rows = tuple(torch.searchsorted(width, bounds).tolist())
        number = torch.full(kept.shape, -1, device=width.device)
        item, left, right = item[order], left[order], right[order]
        number[item, left, right] = torch.arange(len(item), device=width.device)
        return cls(item, torch.stack([left, right]), rows, number)

    def joins(self) -> tuple[Tensor, Tensor, Tensor]:
        """The whole, the left part and the right one of every way; the whole may be -1."""
        total = self.number.shape[1]
        first, last = self.ends
        own = self.item * (total + 1) + first
        at = self.item * (total + 1) + last + 1
        left, right = matched(at, own, among=len(self.number) * (total + 1) + 1)
        return self.number[self.item[left], first[left], last[right]], left, right
