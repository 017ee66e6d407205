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

from rdpgraph.model.logmatrix import steep
from rdpgraph.model.semiring import finite, safe_log, soft_sum


@dataclass(frozen=True, eq=False)
class Coupling:
    """The transition between labels, prepared for products.

    Attributes:
        transition: (N, N) log-potentials, [from, to], or (B, N, N), those of each item.
        weights: of that shape, their exponentials, each column scaled to a maximum of one.
        peaks: (N,) or (B, N) the logs of what the columns were scaled by.
        faint: totals below this are summed again in logs; those to be differentiated sooner.
        bounded: no total of a possible step can be below it.
    """

    transition: Tensor
    weights: Tensor
    peaks: Tensor
    faint: float
    bounded: bool

    @classmethod
    def of(cls, transition: Tensor) -> Self:
        """Prepare a transition, differentiably; O(N^2), for each item that has its own."""
        peaks = finite(transition.detach().amax(-2, keepdim=True))
        info = torch.finfo(transition.dtype)
        faint = info.tiny / info.eps * transition.shape[-1]
        shifted = transition - peaks
        lowest = float(shifted.detach().amin()) if len(transition) else 0.0
        bounded = lowest > math.log(max(faint, steep(transition.dtype)))
        return cls(transition, shifted.exp(), peaks.squeeze(-2), faint, bounded)

    def scaled(self, logs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """exp(logs) scaled by row (*lead, N), its product with the weights, and the log-scale."""
        peak = finite(logs.detach().amax(-1, keepdim=True))
        values = (logs - peak).exp()
        return values, times(values, self.weights), peak

    def enter(self, logs: Tensor) -> Tensor:
        """(B, N) log sum_m exp(logs[m] + transition[m, n]); differentiable any number of times."""
        _, totals, peak = self.scaled(logs)
        logs_entered = safe_log(totals) + peak + self.peaks
        rows, columns = self.lost(logs, totals)
        if len(rows):
            table = self.transition
            into = table.T[columns] if table.ndim == 2 else table[rows, :, columns]
            exact = soft_sum(logs[rows] + into, 1)
            logs_entered = logs_entered.index_put((rows, columns), exact)
        return logs_entered

    def lost(self, logs: Tensor, totals: Tensor) -> tuple[Tensor, Tensor]:
        """The rows and columns of (B, N) totals that are possible and too faint to trust."""
        least = max(self.faint, steep(totals.dtype)) if totals.requires_grad else self.faint
        with torch.no_grad():
            faint = totals < least
            if self.bounded or not bool(faint.any()):
                none = torch.zeros(0, dtype=torch.long, device=totals.device)
                return none, none
            before = (logs > -math.inf).to(self.weights)
            possible = times(before, (self.transition > -math.inf).to(self.weights)) > 0
            rows, columns = (faint & possible).nonzero().unbind(1)
            return rows, columns


def times(rows: Tensor, matrix: Tensor) -> Tensor:
    """(B, M) of rows (B, N) and a matrix (N, M), or one (B, N, M) for each of them."""
    return rows @ matrix if matrix.ndim == 2 else (rows.unsqueeze(-2) @ matrix).squeeze(-2)
