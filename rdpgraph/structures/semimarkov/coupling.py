"""Sums over the label before: scaled matrix products, exact sums where those lose the answer.

An entry of a scaled product is a sum of terms of which those below the smallest normal number are
lost. Where the sum is larger than that by the number of labels over the rounding unit, what is lost
is below rounding; where it is smaller, it is summed again in logs. Transitions of moderate range
without hard zeros never come to that, and are not looked at step by step.
"""

import math
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from rdpgraph.model.semiring import finite
from rdpgraph.structures.chain.factors import product


@dataclass(frozen=True, eq=False)
class Coupling:
    """The transition between labels, prepared for products.

    Attributes:
        transition: (N, N) log-potentials, [from, to], or (B, N, N), those of each item.
        weights: of that shape, their exponentials, each column scaled to a maximum of one.
        peaks: (N,) or (B, N) the logs of what the columns were scaled by.
        faint: totals below this are summed again in logs.
        bounded: no total of a possible step can be below it.
    """

    transition: Tensor
    weights: Tensor
    peaks: Tensor
    faint: float
    bounded: bool

    @classmethod
    def of(cls, transition: Tensor) -> Self:
        """Prepare a transition; O(N^2), for each item that has its own."""
        peaks = finite(transition.amax(-2, keepdim=True))
        info = torch.finfo(transition.dtype)
        faint = info.tiny / info.eps * transition.shape[-1]
        shifted = transition - peaks
        bounded = not len(transition) or float(shifted.amin()) > math.log(faint)
        return cls(transition, shifted.exp(), peaks.squeeze(-2), faint, bounded)

    @classmethod
    def each(cls, transition: Tensor, steps: int) -> list[Self]:
        """The T - 1 transitions of (N, N), the same, or of (1 or B, T - 1, N, N), each its own.

        Number t lies between a segment that ends at position t and one that starts at t + 1.
        """
        if transition.ndim == 2:
            return [cls.of(transition)] * (steps - 1)
        tables = transition[0] if len(transition) == 1 else transition.transpose(0, 1)
        return [cls.of(table) for table in tables]

    def scaled(self, logs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """exp(logs) scaled by row (*lead, N), its product with the weights, and the log-scale."""
        peak = finite(logs.amax(-1, keepdim=True))
        values = (logs - peak).exp()
        return values, product(values, self.weights), peak

    def enter(self, logs: Tensor) -> Tensor:
        """(B, N) log sum_m exp(logs[m] + transition[m, n])."""
        _, totals, peak = self.scaled(logs)
        logs_entered = totals.log() + peak + self.peaks
        rows, columns = self.lost(logs, totals)
        if len(rows):
            table = self.transition
            into = table.T[columns] if table.ndim == 2 else table[rows, :, columns]
            logs_entered[rows, columns] = (logs[rows] + into).logsumexp(1)
        return logs_entered

    def lost(self, logs: Tensor, totals: Tensor) -> tuple[Tensor, Tensor]:
        """The rows and columns of (B, N) totals that are possible and too faint to trust."""
        faint = totals < self.faint
        if self.bounded or not bool(faint.any()):
            none = torch.zeros(0, dtype=torch.long, device=totals.device)
            return none, none
        before = (logs > -math.inf).to(self.weights)
        possible = product(before, (self.transition > -math.inf).to(self.weights)) > 0
        rows, columns = (faint & possible).nonzero().unbind(1)
        return rows, columns
