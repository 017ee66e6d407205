"""Tic-tac-toe pruning of bispans (Zhang and Gildea 2005) by Model 1 in both directions."""

import torch
from torch import Tensor


def merits(forward: Tensor, backward: Tensor) -> Tensor:
    """(p + 1, p + 1, q + 1, q + 1) the log figure of merit of every bispan [i, k, j, l].

    Inside and outside scores: the words within are explained by one another, and those without by
    one another, each by the mean of the words of the other side and null; in both directions.
    O(p^2 q^2) numbers and O(p^2 q^2 (p + q)) sums.

    Args:
        forward: (p + 1, q) probabilities of target words given null and source words.
        backward: (p, q + 1) of source words given null and target words.
    """
    ahead = _one_way(forward)
    back = _one_way(backward.T).permute(2, 3, 0, 1)
    return ahead + back


def _one_way(table: Tensor) -> Tensor:
    """(p + 1, p + 1, q + 1, q + 1) the log-probabilities of the columns within and without."""
    null, words = table[0], table[1:]
    p = len(words)
    sums = torch.nn.functional.pad(words.cumsum(0), (0, 0, 1, 0))
    place = torch.arange(p + 1)
    within = sums.unsqueeze(0) - sums.unsqueeze(1)  # [i, k, column]
    size = (place - place.unsqueeze(1)).clamp(min=0).unsqueeze(2)
    inside = ((null + within.clamp(min=0.0)) / (size + 1)).log()
    outside = ((null + (sums[-1] - within).clamp(min=0.0)) / (p - size + 1)).log()
    inner, outer = (torch.nn.functional.pad(logs.cumsum(2), (1, 0)) for logs in (inside, outside))
    # Columns j..l-1 are inside, and the others are not.
    part = inner.unsqueeze(2) - inner.unsqueeze(3)
    rest = outer[..., -1, None, None] - (outer.unsqueeze(2) - outer.unsqueeze(3))
    return part + rest


def allowed(merit: Tensor, threshold: float) -> Tensor:
    """Bispans whose merit is within a factor of the best one of the same source or target span.

    Args:
        merit: of every bispan, nats.
        threshold: the log of that factor, above 0: what is further below is pruned. The whole is
            always kept.
    """
    p, q = merit.shape[0] - 1, merit.shape[2] - 1
    rows, columns = torch.arange(p + 1), torch.arange(q + 1)
    real = (rows >= rows.unsqueeze(1))[:, :, None, None] & (columns >= columns.unsqueeze(1))
    merit = merit.masked_fill(~real, -torch.inf)
    # Of what is no span, nothing is the best.
    best, other = (merit.amax(dims, keepdim=True).clamp(min=-1e300) for dims in ((2, 3), (0, 1)))
    kept = (merit >= best - threshold) | (merit >= other - threshold)
    kept[0, p, 0, q] = True
    return kept & real
