"""The best tree through each state of each span: maxima inside and outside of it."""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from rdpgraph.structures.hypertree import sparse
from rdpgraph.structures.hypertree.charts import Chart, HypertreeTensors
from rdpgraph.structures.hypertree.ranks import Ranks
from rdpgraph.structures.hypertree.sparse_rules import SparseRules

_BLOCK = 2**22
Down = Callable[[int, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
"""Of a width, what is outside of its spans with their potentials (B, S, .), and the left and right
parts of all splits (B, S, w, .): what is outside of those parts, of the same shapes."""


@torch.no_grad()
def max_marginals(parts: HypertreeTensors, rows: Sequence[Tensor], root: Tensor) -> Tensor:
    """(B, T, T, C) the score of the best tree with each constituent, -inf where there is none.

    O(T^2 N^3 + T^3 N^2) with dense rules, else of rank one.

    Args:
        parts: the hypertree, in doubles.
        rows: by width (B, T - width, C) the best scores of spans.
        root: (1 or B, C).
    """
    states = parts.spans.shape[3]

    def down(width: int, through: Tensor, left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
        above = through[..., :states] + parts.phi(width)
        if isinstance(parts.rules, Ranks):
            return _by_rank(parts.rules, above, left, right)
        if isinstance(parts.rules, SparseRules):
            return sparse.outside(parts.rules, above, left, right)
        table = parts.rules.log_rule
        size = max(1, _BLOCK // (len(above) * left.shape[3] ** 2 * max(width, states)))
        pieces = zip(*(part.split(size, 1) for part in (above, left, right)), strict=True)
        sides = [_by_table(table, *piece) for piece in pieces]
        lefts, rights = zip(*sides, strict=True)
        return torch.cat(lefts, 1), torch.cat(rights, 1)

    return outside(rows, root.expand(len(parts.leaves), -1), parts.lengths, down)


def outside(rows: Sequence[Tensor], root: Tensor, lengths: Tensor, down: Down) -> Tensor:
    """(B, T, T, C) by first and last word: the largest sums of what is inside and outside.

    Args:
        rows: by width (B, T - width, C) the best scores of spans.
        root: (B, C) for the span that covers the length.
        lengths: (B,).
        down: from spans to their parts.
    """
    batch, total, states = rows[0].shape
    beyond = Chart.of(rows[0], states, fill=-math.inf)
    result = rows[0].new_full((batch, total, total, states), -math.inf)
    for width in range(total - 1, -1, -1):
        through = torch.maximum(beyond.left(width), beyond.right(width))
        whole = (lengths == width + 1).unsqueeze(1)
        through[:, 0] = torch.where(whole, torch.maximum(through[:, 0], root), through[:, 0])
        result.diagonal(offset=width, dim1=1, dim2=2).copy_((rows[width] + through).mT)
        if not width:
            break
        count = total - width
        left = torch.stack([rows[m][:, :count] for m in range(width)], 2)
        right = [rows[width - 1 - m][:, m + 1 :][:, :count] for m in range(width)]
        above = down(width, through, left, torch.stack(right, 2))
        for view, value in zip(
            (beyond.left_parts(width, 0, width), beyond.right_parts(width, 0, width)),
            above,
            strict=True,
        ):
            view.copy_(torch.maximum(view, value))
    return result


def _by_table(table: Tensor, above: Tensor, left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    pairs = (above[..., None, None] + table.unsqueeze(1)).amax(2)
    to_left = (pairs.unsqueeze(2) + right.unsqueeze(3)).amax(4)
    return to_left, (pairs.unsqueeze(2) + left.unsqueeze(4)).amax(3)


def _by_rank(rules: Ranks, above: Tensor, left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    assert rules.parent is not None
    top = (above + rules.parent[:, None, :, 0]).amax(2)[..., None, None]
    by_left, by_right = rules.left[:, None, None, :, 0], rules.right[:, None, None, :, 0]
    to_left = top + (right + by_right).amax(3, keepdim=True) + by_left
    return to_left, top + (left + by_left).amax(3, keepdim=True) + by_right
