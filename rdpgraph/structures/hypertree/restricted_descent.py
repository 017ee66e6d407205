"""Trees of a hypertree on a few states of each span, from the root downwards."""

import math

import torch
from torch import Tensor

from rdpgraph.errors import ImpossibleEvidenceError
from rdpgraph.model.semiring import soft_sum
from rdpgraph.structures.draws import Pick
from rdpgraph.structures.hypertree.best import outside
from rdpgraph.structures.hypertree.restricted_cells import BLOCK, Cells, Rows, blocks, sides


@torch.no_grad()
def descended(cells: Cells, rows: Rows, *, count: int, pick: Pick, temperature: float) -> Tensor:
    """(count * B, T, T) numbers of kept states of the constituents of trees, -1 for what is none.

    Args:
        cells: the spans.
        rows: by width their log inside values, or best scores.
        count: trees of each item.
        pick: of the log-values of alternatives.
        temperature: 1 where those are sums, 0 where they are maxima.

    Raises:
        ImpossibleEvidenceError: an item has no possible tree.
    """
    states, lengths = cells.states, cells.lengths
    total, many = states.shape[2:]
    found = torch.full((count * cells.batch, total, total), -1, device=states.device)
    if not total:
        return found
    chart = cells.unary.new_zeros(states.shape)
    for width, row in enumerate(rows):
        chart[:, : total - width, width] = row
    item = torch.arange(cells.batch, device=states.device).repeat(count)
    last = lengths[item] - 1
    top = chart[item, 0, last.clamp(min=0)] + cells.root[item]
    if bool(((top.amax(1) == -math.inf) & (last >= 0)).any()):
        raise ImpossibleEvidenceError("At least one item has no possible tree of kept states.")
    tree = (last >= 0).nonzero().squeeze(1)
    found[tree, 0, last[tree]] = pick(top)[tree]
    for width in range(total - 1, 0, -1):
        place = torch.arange(total - width, device=states.device)
        tree, first = (found[:, place, place + width] >= 0).nonzero().unbind(1)
        size = max(1, BLOCK // (width * many**2))
        for trees, starts in zip(tree.split(size), first.split(size), strict=True):
            if not len(trees):
                continue
            own = item[trees]
            split = torch.arange(width, device=states.device)
            at, begin = own.unsqueeze(1), starts.unsqueeze(1)
            left = chart[at, begin, split]
            right = chart[at, begin + split + 1, width - 1 - split]
            above = states[own, starts, starts + width, found[trees, starts, starts + width]]
            by_left = states[at, begin, begin + split]
            by_right = states[at, begin + split + 1, begin + width]
            rule = cells.rules.item(own).evaluate(
                above.reshape(-1, 1, 1).expand(-1, width, 1), by_left, by_right
            )
            logs = rule.squeeze(2) + left.unsqueeze(3) + right.unsqueeze(2)
            row = torch.arange(len(trees), device=states.device)
            middle = pick(soft_sum(logs, (2, 3), temperature))
            logs = logs[row, middle]
            a = pick(soft_sum(logs, 2, temperature))
            found[trees, starts, starts + middle] = a
            found[trees, starts + middle + 1, starts + width] = pick(logs[row, a])
    return found


@torch.no_grad()
def max_marginals(cells: Cells) -> Tensor:
    """(B, T, T, K) the score of the best tree with each constituent; O(T^3 K^3)."""
    many = cells.unary.shape[-1]

    def block(above: Tensor, left: Tensor, right: Tensor, parent: Tensor, *parts: Tensor) -> Tensor:
        rule = cells.rule(parent, *parts).to(left) + above[:, :, None, :, None, None]
        to_left = (rule + right[:, :, :, None, None, :]).amax((3, 5))
        to_right = (rule + left[:, :, :, None, :, None]).amax((3, 4))
        return torch.stack([to_left, to_right], 4)

    def down(width: int, through: Tensor, left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
        states = [cells.of_width(place)[1] for place in range(width)]
        phi, kept = cells.of_width(width)
        size = max(1, BLOCK // max(1, cells.batch * width * many**3))
        rows = (through + phi, left, right, kept, *sides(states, states, width))
        to_left, to_right = blocks(block, size, rows).unbind(4)
        return to_left, to_right

    return outside(cells.rows(0.0), cells.root, cells.lengths, down)
