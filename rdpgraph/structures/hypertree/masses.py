"""The masses of all states of every span, given a few states of the others: inside x outside."""

import math

import torch
from torch import Tensor
from torch.nn.functional import pad

from rdpgraph.structures.hypertree.cells import Cells
from rdpgraph.structures.hypertree.charts import Chart
from rdpgraph.structures.hypertree.plain import log_times, sides


@torch.no_grad()
def log_masses(cells: Cells, unary: Tensor) -> Tensor:
    """(B, T, T, C) what all trees with a state weigh, whose other states are kept ones.

    The inside recursion runs over the states kept, and so does that outside, rank by rank; both
    are taken one step further to all states. O(T^2 C r + T^3 r).

    Args:
        cells: the states kept.
        unary: (B, T, T, C) potentials of all states, with the root's at the whole, -inf where no
            tree has them.
    """
    result, ranks = unary.clone(), cells.ranks
    assert ranks.parent is not None
    by_rank, total = cells.by_rank(), unary.shape[1]
    words = unary.shape[3] - cells.parents
    if not total:
        return result
    like = unary[:, :, 0]
    as_left = Chart.of(like, ranks.left.shape[2], fill=-math.inf)
    as_right = Chart.of(like, ranks.left.shape[2], fill=-math.inf)
    for width in range(total - 1, -1, -1):
        whole = (cells.lengths == width + 1).reshape(-1, 1, 1)
        left = log_times(as_left.left(width), ranks.left.mT)
        right = log_times(as_right.right(width), ranks.right.mT)
        outside = torch.logaddexp(left, right)
        outside[:, :1] = torch.where(whole, 0.0, outside[:, :1])
        inside = torch.zeros_like(outside)
        if width:
            inside = log_times(by_rank.sums[width - 1], ranks.parent.mT)
            inside = pad(inside, (0, words), value=-math.inf)
        cell = result.diagonal(offset=width, dim1=1, dim2=2)
        cell.add_((inside + outside).mT)
        if not width:
            break
        phi, kept = cells.of_width(width)
        beyond = outside.gather(2, kept)
        beyond[:, :1] = torch.where(whole, cells.root.unsqueeze(1), beyond[:, :1])
        # Kept states are summed over in all of them, at their places.
        every = torch.full_like(outside, -math.inf)
        every = _log_scatter(every, kept, phi + beyond)[..., : cells.parents]
        above = log_times(every, ranks.parent).unsqueeze(2)
        lefts, rights = sides(by_rank.lefts, by_rank.rights, width)
        for view, others in (
            (as_left.left_parts(width, 0, width), rights),
            (as_right.right_parts(width, 0, width), lefts),
        ):
            view.copy_(torch.logaddexp(view, above + others))
    return result


def _log_scatter(target: Tensor, places: Tensor, logs: Tensor) -> Tensor:
    """The logs of the summed exponentials at each place of the last dim."""
    top = logs.amax(-1, keepdim=True)
    top = torch.where(top > -math.inf, top, 0.0)
    return torch.zeros_like(target).scatter_add_(-1, places, (logs - top).exp()).log() + top
