"""The distinct rows of an integer matrix."""

import torch
from torch import Tensor


def distinct_rows(rows: Tensor) -> tuple[Tensor, Tensor]:
    """The distinct rows in lexicographic order, and for each row the place of its like.

    As `torch.unique` of dim 0, in linear time where the columns have few values between them.

    Args:
        rows: (n, columns) int64, not negative.
    """
    codes, spread = torch.zeros(len(rows), dtype=torch.long, device="cpu"), 1
    for column in rows.unbind(1):
        limit = int(column.max()) + 1 if len(rows) else 1
        if spread * limit > 2**62:
            codes, spread = _ranked(codes, spread)
        codes, spread = codes * limit + column, spread * limit
    which, count = _ranked(codes, spread)
    first = torch.empty(count, dtype=torch.long, device="cpu")
    # Rows of one code are alike, whichever of them is written last.
    first[which] = torch.arange(len(rows), device="cpu")
    return rows[first], which


def _ranked(codes: Tensor, spread: int) -> tuple[Tensor, int]:
    """Codes below a number, as ranks among those that occur, and how many do."""
    if spread > 4 * len(codes) + 1024:
        distinct, ranks = torch.unique(codes, return_inverse=True)
        return ranks, len(distinct)
    occurs = torch.zeros(spread, dtype=torch.long, device="cpu")
    occurs[codes] = 1
    return (occurs.cumsum(0) - 1)[codes], int(occurs.sum())
