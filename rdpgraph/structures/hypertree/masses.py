"""The masses of all states of every span, given a few states of the others: inside x outside."""

import math

import torch
from torch import Tensor
from torch.nn.functional import pad

from rdpgraph.structures.hypertree.charts import Chart
from rdpgraph.structures.hypertree.plain import log_times
from rdpgraph.structures.hypertree.ranks import Ranks
from rdpgraph.structures.hypertree.restricted_cells import Cells, sides


@torch.no_grad()
def log_masses(cells: Cells, ranks: Ranks, unary: Tensor) -> Tensor:
    """(B, T, T, C) what all trees with a state weigh, whose other states are kept ones.

    The inside recursion runs over the states kept, and so does that outside, rank by rank; both
    are taken one step further to all states. O(T^2 C r + T^3 r).

    Args:
        cells: the states kept.
        ranks: the rules.
        unary: (B, T, T, C) potentials of all states, with the root's at the whole, -inf where no
            tree has them.
    """
    assert ranks.parent is not None
    result = unary.clone()
    found, total = cells.by_rank(ranks), unary.shape[1]
    words = unary.shape[3] - cells.parents
    if not total:
        return result


def _log_scatter(target: Tensor, places: Tensor, logs: Tensor) -> Tensor:
    """The logs of the summed exponentials at each place of the last dim."""
    top = logs.amax(-1, keepdim=True)
    top = torch.where(top > -math.inf, top, 0.0)
    return torch.zeros_like(target).scatter_add_(-1, places, (logs - top).exp()).log() + top
