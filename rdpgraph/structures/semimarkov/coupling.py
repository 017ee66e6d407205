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
from rdpgraph.model.semiring import soft_sum


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
        peaks = _finite(transition.detach().amax(-2, keepdim=True))
        info = torch.finfo(transition.dtype)
        faint = info.tiny / info.eps * transition.shape[-1]
        shifted = transition - peaks
        lowest = float(shifted.detach().amin()) if len(transition) else 0.0
        bounded = lowest > math.log(max(faint, steep(transition.dtype)))
        return cls(transition, shifted.exp(), peaks.squeeze(-2), faint, bounded)

    def scaled(self, logs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """exp(logs) scaled by row (*lead, N), its product with the weights, and the log-scale."""
        peak = _finite(logs.detach().amax(-1, keepdim=True))
        values = (logs - peak).exp()
        return values, times(values, self.weights), peak

    def into(self, rows: Tensor, columns: Tensor) -> Tensor:
        """(Q, N) log-potentials from every label to the ones (Q,) entered in the items (Q,)."""
        return _into(self.transition, rows, columns)

    def enter(self, logs: Tensor) -> Tensor:
        """(B, N) log sum_m exp(logs[m] + transition[m, n]); differentiable any number of times."""
        _, totals, peak = self.scaled(logs)
        logs_entered = _safe_log(totals) + peak + self.peaks
        rows, columns = self.lost(logs, totals)
        if len(rows):
            exact = soft_sum(logs[rows] + self.into(rows, columns), 1)
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

    def surprise(self, logs: Tensor, inner: Tensor) -> Tensor:
        """(B, N) entropy of the label before, given the one entered, plus the mean of `inner`.

        Args:
            logs: (B, N) log-mass of the labels before.
            inner: (B, N) what is averaged over them.
        """
        values, totals, peak = self.scaled(logs)
        own = torch.where(logs > -math.inf, logs - peak, 0.0)
        relative = self.transition - self.peaks.unsqueeze(-2)
        scores = torch.where(self.transition > -math.inf, relative, 0.0)
        sums = times(values * (inner - own), self.weights) - times(values, self.weights * scores)
        rows, columns = self.lost(logs, totals)
        alive = _without(totals > 0, rows, columns)
        divisor = torch.where(alive, totals, 1.0)
        entropies = torch.where(alive, sums / divisor + divisor.log(), 0.0)
        if len(rows):
            chances, entropy = conditional(logs[rows] + self.into(rows, columns), 1)
            exact = entropy + (chances * inner[rows]).sum(1)
            entropies = entropies.index_put((rows, columns), exact)
        return entropies

    def mean(self, logs: Tensor, inner: Tensor, scores: Tensor) -> Tensor:
        """(B, N) mean of `inner` and a score over the label before the one entered; 0 of none.

        Args:
            logs: (B, N) log-mass of the labels before.
            inner: (B, N) what is averaged over them.
            scores: (N, N) or (B, N, N) finite scores of pairs, [from, to], likewise.
        """
        values, totals, _ = self.scaled(logs)
        sums = times(values * inner, self.weights) + times(values, self.weights * scores)
        rows, columns = self.lost(logs, totals)
        alive = _without(totals > 0, rows, columns)
        means = torch.where(alive, sums / torch.where(alive, totals, 1.0), 0.0)
        if len(rows):
            chances, _ = conditional(logs[rows] + self.into(rows, columns), 1)
            exact = (chances * (inner[rows] + _into(scores, rows, columns))).sum(1)
            means = means.index_put((rows, columns), exact)
        return means


def times(rows: Tensor, matrix: Tensor) -> Tensor:
    """(B, M) of rows (B, N) and a matrix (N, M), or one (B, N, M) for each of them."""
    return rows @ matrix if matrix.ndim == 2 else (rows.unsqueeze(-2) @ matrix).squeeze(-2)


def _into(matrix: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    return matrix.T[columns] if matrix.ndim == 2 else matrix[rows, :, columns]


def _without(alive: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """All but some entries: divided by what is too faint, no gradient would be no number."""
    alive[rows, columns] = False
    return alive


def conditional(logs: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """The softmax of logs over a dim, zero where all are -inf, and its entropy, without NaN."""
    possible = logs > -math.inf
    # Relative to the largest first: the log of a sum of large logs would round away the rest.
    logs = logs - _finite(logs.detach().amax(dim, keepdim=True))
    total = soft_sum(logs, dim).unsqueeze(dim)
    normal = torch.where(possible, logs - torch.where(total > -math.inf, total, 0.0), 0.0)
    chances = torch.where(possible, normal.exp(), 0.0)
    return chances, -(chances * normal).sum(dim)


def _finite(peak: Tensor) -> Tensor:
    return torch.where(peak > -math.inf, peak, 0.0)


def _safe_log(totals: Tensor) -> Tensor:
    alive = totals > 0
    return torch.where(alive, torch.where(alive, totals, 1.0).log(), -math.inf)
