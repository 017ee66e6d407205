"""Eisner's recursion over all spans of a width at once, in log-space.

Positions are the root, 0, and the words, 1..n. A complete span has its head at one end and all
that is below it; an incomplete one has an arc between its ends.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from rdpgraph._types import Arcs, Heads, Lengths, LogZ
from rdpgraph.model.semiring import soft_sum
from rdpgraph.structures.draws import Pick


@dataclass(frozen=True, eq=False)
class Charts:
    """Log-values of spans, (B, n + 1, n + 1) by first and last position, -inf below the diagonal.

    Attributes:
        right: complete, headed by the first position.
        left: complete, headed by the last.
        right_arc: incomplete, an arc from the first to the last.
        left_arc: incomplete, an arc from the last to the first.
    """

    right: Tensor
    left: Tensor
    right_arc: Tensor
    left_arc: Tensor


class _Side:
    """The left or right parts of all splits of the spans of a width, (B, S, w), as it grows."""

    def __init__(self, start: Tensor, *, is_left: bool) -> None:
        self.is_left = is_left
        self.parts = start.new_zeros(*start.shape, 0)
        self.put(start)

    def put(self, values: Tensor) -> None:
        """Go on to the next width, with the values (B, S) of this one."""
        if self.is_left:
            self.parts = torch.cat([self.parts[:, :-1], values[:, :-1, None]], 2)
        else:
            self.parts = torch.cat([values[:, 1:, None], self.parts[:, 1:]], 2)


def charts(unary: Arcs, temperature: float = 1.0) -> Charts:
    """All spans, differentiable; maxima at temperature 0.

    Args:
        unary: (B, n, n + 1) in nats, [word, head], -inf where there is no arc.
        temperature: 1 or 0.
    """
    batch, total = unary.shape[:2]
    # Arcs by dependent and head, positions from 0; none into the root.
    arcs = pad(unary, (0, 0, 1, 0), value=-math.inf)
    one = unary.new_zeros(batch, total + 1)
    none = torch.full_like(one, -math.inf)
    rights, lefts, right_arcs, left_arcs = [one], [one], [none], [none]
    right, right_after = _Side(one, is_left=True), _Side(one, is_left=False)
    left, left_after = _Side(one, is_left=True), _Side(one, is_left=False)
    right_arc, left_arc = _Side(none, is_left=True), _Side(none, is_left=False)
    for width in range(1, total + 1):
        inner = soft_sum(right.parts + left_after.parts, 2, temperature)
        right_arcs.append(inner + arcs.diagonal(offset=-width, dim1=1, dim2=2))
        left_arcs.append(inner + arcs.diagonal(offset=width, dim1=1, dim2=2))
        # An arc is one position wide at least, and as wide as the span at most.
        arc = torch.cat([right_arc.parts[..., 1:], right_arcs[-1].unsqueeze(2)], 2)
        rights.append(soft_sum(arc + right_after.parts, 2, temperature))
        arc = torch.cat([left_arcs[-1].unsqueeze(2), left_arc.parts[..., :-1]], 2)
        lefts.append(soft_sum(left.parts + arc, 2, temperature))
        for side, rows in (
            (right, rights), (right_after, rights), (left, lefts), (left_after, lefts),
            (right_arc, right_arcs), (left_arc, left_arcs),
        ):  # fmt: skip
            side.put(rows[-1])
    return Charts(*(_square(rows) for rows in (rights, lefts, right_arcs, left_arcs)))


def log_partition(unary: Arcs, lengths: Lengths, *, multiroot: bool) -> LogZ:
    """(B,) log Z in nats."""
    return total(charts(unary), unary, lengths, multiroot=multiroot)


def total(
    charts: Charts, unary: Arcs, lengths: Lengths, *, multiroot: bool, temperature: float = 1.0
) -> LogZ:
    """(B,) the sum over trees, or the best of them."""
    if not unary.shape[1]:
        return unary.sum((1, 2))
    if multiroot:
        return charts.right[:, 0].gather(1, lengths.unsqueeze(1)).squeeze(1)
    sums = soft_sum(_roots(charts, unary, lengths), 1, temperature)
    return torch.where(lengths > 0, sums, 0.0)


def _roots(charts: Charts, unary: Arcs, lengths: Lengths) -> Tensor:
    """(B, n) log-values of the trees with each word under the root."""
    after = charts.right[:, 1:].gather(2, lengths.reshape(-1, 1, 1).expand(-1, unary.shape[1], 1))
    return unary[:, :, 0] + charts.left[:, 1, 1:] + after.squeeze(2)


_RIGHT, _LEFT, _RIGHT_ARC, _LEFT_ARC = range(4)


@torch.no_grad()
def descend(
    charts: Charts, unary: Arcs, lengths: Lengths, *, count: int, pick: Pick, multiroot: bool
) -> Heads:
    """(count * B, n) heads, chosen from the widest spans down; a stack of spans for each tree."""
    batch, words = unary.shape[:2]
    device = unary.device
    item = torch.arange(batch, device=device).repeat(count)
    heads = torch.zeros(len(item), words + 1, dtype=torch.int64, device=device)
    if not words or not len(item):
        return heads[:, 1:]
    # One more position, where nothing is, for what follows the last.
    chart = torch.stack([charts.right, charts.left, charts.right_arc, charts.left_arc], 1)
    chart = pad(chart, (0, 1, 0, 1), value=-math.inf)
    stack = torch.zeros(len(item), 2 * words + 4, 3, dtype=torch.int64, device=device)
    depth = torch.zeros_like(item)
    last = lengths[item]

    def push(trees: Tensor, kind: Tensor | int, i: Tensor, j: Tensor) -> None:
        real = j > i
        trees = trees[real]
        entry = torch.stack([torch.as_tensor(kind, device=device).expand_as(i), i, j], 1)
        stack[trees, depth[trees]] = entry[real]
        depth[trees] += 1

    everything = torch.arange(len(item), device=device)
    if multiroot:
        push(everything, _RIGHT, torch.zeros_like(last), last)
    else:
        some = everything[last > 0]
        top = pick(_roots(charts, unary, lengths)[item[some]]) + 1
        push(some, _LEFT, torch.ones_like(top), top)
        push(some, _RIGHT, top, last[some])
    while bool((depth > 0).any()):
        trees = (depth > 0).nonzero().squeeze(1)
        depth[trees] -= 1
        kind, i, j = stack[trees, depth[trees]].unbind(1)
        own = item[trees]
        # What is before the split and what is after it, by the kind of the span.
        before = torch.tensor([_RIGHT_ARC, _LEFT, _RIGHT, _RIGHT], device=device)[kind]
        after = torch.tensor([_RIGHT, _LEFT_ARC, _LEFT, _LEFT], device=device)[kind]
        step = (kind >= _RIGHT_ARC).long()
        place = torch.arange(words + 1, device=device)
        follows = chart[own.unsqueeze(1), after.unsqueeze(1), place + step.unsqueeze(1),
                        j.unsqueeze(1)]  # fmt: skip
        split = pick(chart[own, before, i, :-1] + follows)
        heads[trees[kind == _RIGHT_ARC], j[kind == _RIGHT_ARC]] = i[kind == _RIGHT_ARC]
        heads[trees[kind == _LEFT_ARC], i[kind == _LEFT_ARC]] = j[kind == _LEFT_ARC]
        push(trees, before, i, split)
        push(trees, after, split + step, j)
    return heads[:, 1:]


def _square(rows: list[Tensor]) -> Tensor:
    """(B, n + 1, n + 1) by first and last position, from values by width."""
    wide = torch.stack([pad(row, (0, width), value=-math.inf) for width, row in enumerate(rows)], 2)
    place = torch.arange(len(rows), device=wide.device)
    width = place - place.unsqueeze(1)
    values = wide.gather(2, width.clamp(min=0).expand(len(wide), -1, -1))
    return torch.where(width >= 0, values, -math.inf)
