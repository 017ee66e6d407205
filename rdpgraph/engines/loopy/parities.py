"""Flooding on parity checks, compiled, by log-odds."""

from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor

from rdpgraph.engines.loopy.arithmetic import BOTTOM, FLOOR
from rdpgraph.engines.loopy.edges import Edges
from rdpgraph.engines.loopy.equations import Equations, Messages

Flood: TypeAlias = Callable[..., Any]
"""One sweep of all messages: ``parity_flood`` of the compiled library."""


class ParityMessages:
    """Messages of a model whose factors are functions of parities of bits, as log-odds of 0."""

    def __init__(
        self, flood: Flood, even: Tensor, equations: Equations, messages: Messages
    ) -> None:
        self._flood, self._equations, batch = flood, equations, equations.batch
        starts, order = equations.edges.remembered("parities", _by_factor)
        c = equations.edges.classes[0]
        self._order = order
        self._parts = starts, c.variable[order].contiguous()
        unary = equations.unary[0].detach().double()
        prior = (unary[:, 0] - unary[:, 1]).expand(batch, -1)
        self._logs = prior.T.contiguous(), even.double().expand(batch, -1).T.contiguous()
        odds = messages[0][:, 0] - messages[0][:, 1]
        self._odds = odds[:, order].T.double().contiguous()  # (E, B)
        self._changes = torch.zeros(batch, dtype=torch.float64)

    @staticmethod
    def evens(equations: Equations) -> Tensor | None:
        """(b, F) the log-odds that each factor's parity is even; None where it is no such model."""
        classes, plain = equations.edges.classes, equations.weights is None
        plain = plain and equations.boundary is None
        if not plain or [c.size for c in classes] != [2] or not equations.edges.count:
            return None
        if equations.temperature not in (0.0, 1.0) or equations.unary_device.type != "cpu":
            return None
        if not bool(equations.unary[0].isfinite().all()):
            return None
        odds = [kernel.log_odds() for kernel in equations.kernels]
        each = [part for part in odds if part is not None]
        if len(each) < len(odds):
            return None
        rows = max(map(len, each))
        even = torch.cat([part.expand(rows, -1) for part in each], 1)
        starts = equations.edges.remembered("parities", _by_factor)[0]
        # A hard check of one bit is a hard zero of it, and one of no parity is impossible.
        hard = even.isnan() | (even.isinf() & (starts.diff() == 1))
        return None if bool(hard.any()) else even

    def messages(self) -> Messages:
        """Log-messages whose maximum is 0."""
        odds = torch.empty_like(self._odds)
        odds[self._order] = self._odds
        odds = odds.T.to(self._equations.dtype)
        return (torch.stack([odds.clamp(max=0), (-odds).clamp(max=0)], 1),)

    def step(self, keep: float) -> Tensor:
        """Sweep all messages, with weight ``keep`` for old ones; (B,) the largest change.

        The change is that of `arithmetic.change`, except for a message that turns from one state to
        the other: there it is up to twice as large.
        """
        equations = self._equations
        tensors = (*self._parts, *self._logs, self._odds, self._changes)
        seen = BOTTOM if equations.bounded or equations.forest else FLOOR
        self._flood(tensors, keep, -equations.lowest, seen, product=equations.temperature == 1)
        return self._changes.clone()


def _by_factor(edges: Edges) -> tuple[Tensor, Tensor]:
    """(F + 1,) the first edge of each factor, among the edges in order (E,) of their factors."""
    first, parts = 0, list[Tensor]()
    offsets: list[int] = []
    for count in edges.factors:
        offsets.append(first)
        first += count
    for segment in edges.segments:
        rows = edges.ports[segment.kernel][segment.port].rows
        rows = torch.arange(edges.factors[segment.kernel]) if rows is None else rows
        parts.append(rows + offsets[segment.kernel])
    factor = torch.cat(parts)
    starts = torch.cat([torch.zeros(1).long(), factor.bincount(minlength=first).cumsum(0)])
    return starts, factor.argsort(stable=True)
