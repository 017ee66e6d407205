"""Flooding in binary pairwise models by log-odds: one number for each message."""

import math
from functools import cached_property

import torch
from torch import Tensor

from rdpgraph.engines.loopy.field import Field, Messages
from rdpgraph.engines.loopy.kernels import TableKernel


class LogOdds:
    """The messages of a binary pairwise field as log-odds h = log m(1) / m(0), one per edge.

    A table (a b; c d) turns cavity log-odds h into log (c + d e^h) / (a + b e^h). This is
    `Field.update` with half the numbers and a third of the operations. The edges at the first
    slots of all factors come first, then those at their second slots.
    """

    def __init__(self, field: Field, messages: Messages) -> None:
        c = field.edges.classes[0]
        slots: list[list[Tensor]] = [[], []]
        parts: list[Tensor] = []
        for number, kernel in enumerate(field.kernels):
            assert isinstance(kernel, TableKernel)
            for slot, segment in enumerate(field.edges.by_kernel[number]):
                edges = field.edges.segments[segment]
                slots[slot].append(torch.arange(edges.start, edges.stop))
            parts.append(kernel.scaled.expand(-1, -1, -1, kernel.count))
        order = torch.cat([*slots[0], *slots[1]]).to(c.variable.device)
        self._place = torch.empty_like(order)
        self._place[order] = torch.arange(len(order), device=order.device)
        tables = torch.cat(parts, 3)
        (a, b), (x, y) = tables[:, 0].unbind(1), tables[:, 1].unbind(1)
        # The numerator and denominator of both directions, as a line in the other end's odds.
        self._lines = [torch.cat(pair, 1) for pair in ((x, b), (y, y), (a, a), (b, x))]
        self._variable = c.variable[order]
        self._buckets = [
            (*bucket.edges.shape, self._padded_place[bucket.edges.reshape(-1)])
            for bucket in c.buckets
        ]
        self._padded = c.padded
        self._unary = field.unary[0][:, 1] - field.unary[0][:, 0]
        self._halves: tuple[Tensor, Tensor] | None = None
        self.odds = (messages[0][:, 1] - messages[0][:, 0])[:, order]

    @cached_property
    def _padded_place(self) -> Tensor:
        """Where each edge lies here; one more place stands for a missing edge."""
        return torch.cat([self._place, self._place.new_tensor([len(self._place)])])

    @staticmethod
    def applies(field: Field) -> bool:
        """Whether all is binary, pairwise and dense, and no number can leave its type's range."""
        if len(field.edges.classes) != 1 or field.edges.classes[0].size != 2:
            return False
        if field.temperature != 1 or field.weights is not None or field.vanishing:
            return False
        tables = all(isinstance(k, TableKernel) and len(k.ports) == 2 for k in field.kernels)
        return tables and _largest_odds(field) < 0.9 * math.log(torch.finfo(field.dtype).max)

    def messages(self) -> Messages:
        """Back to log-messages whose maximum is 0."""
        odds = self.odds.index_select(1, self._place)
        return (torch.stack([(-odds).clamp(max=0), odds.clamp(max=0)], 1),)

    def step(self, keep: float) -> Tensor:
        """One sweep of all messages, an old one kept with weight ``keep``; (B,) the change."""
        odds = self.odds
        belief = self._arriving(odds).add_(self._unary)
        cavity = belief.index_select(1, self._variable).sub_(odds).exp_()
        other = cavity.reshape(len(odds), 2, -1).flip(1).reshape(odds.shape)
        x, y, a, b = self._lines
        fresh = torch.addcmul(x, y, other).div_(torch.addcmul(a, b, other))
        new = fresh.log_()
        halves = _halves(new)
        before = _halves(odds) if self._halves is None else self._halves
        changes = [
            (one - other).abs_().div_(one.abs().clamp_(min=1.0)).amax(1)
            for one, other in zip(halves, before, strict=True)
        ]
        self._halves = None if keep else halves
        self.odds = torch.lerp(new, odds, keep) if keep else new
        return torch.maximum(*changes)

    def _arriving(self, values: Tensor) -> Tensor:
        """(B, E) summed at the variables: (B, n)."""
        if self._padded:
            values = torch.nn.functional.pad(values, (0, 1))
        parts = [
            values.index_select(1, edges).reshape(len(values), degree, count).sum(1)
            for degree, count, edges in self._buckets
        ]
        return torch.cat(parts, 1)


def _halves(odds: Tensor) -> tuple[Tensor, Tensor]:
    """The log-message of state 1 and, its sign changed, of state 0; the larger of them is 0."""
    return odds.clamp(max=0.0), odds.clamp(min=0.0)


def _largest_odds(field: Field) -> float:
    """A bound on the log-odds of any cavity: those of the unaries and of the tables, added up."""
    c = field.edges.classes[0]
    reach = field.unary[0].new_zeros(c.count)
    for number, kernel in enumerate(field.kernels):
        assert isinstance(kernel, TableKernel)
        logs = kernel.scaled.detach().log()
        first, second = (field.edges.segments[s] for s in field.edges.by_kernel[number])
        reach[first.start : first.stop] = (logs[:, 1] - logs[:, 0]).abs().amax((0, 1))
        reach[second.start : second.stop] = (logs[:, :, 1] - logs[:, :, 0]).abs().amax((0, 1))
    unary = field.unary[0].detach()
    total = (unary[:, 1] - unary[:, 0]).abs().amax(0).index_add(0, c.variable, reach)
    largest = float(total.amax())
    return math.inf if math.isnan(largest) else largest
