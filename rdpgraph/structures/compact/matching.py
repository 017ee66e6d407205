"""Lists of different lengths side by side, and the places in which lists of numbers are equal."""

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
