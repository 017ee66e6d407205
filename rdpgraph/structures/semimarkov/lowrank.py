"""Transitions of low rank between segments: labels are left and entered by way of the ranks."""

from dataclasses import dataclass

from torch import Tensor

from rdpgraph.model.logmatrix import LogMatrix
from rdpgraph.model.lowrank import LowRank


@dataclass(frozen=True, eq=False)
class LowRankCoupling:
    """A transition of rank r, prepared for products: O(N r) instead of O(N^2).

    Attributes:
        out: (r, N) log-factors of the label that is left.
        into: (N, r) those of the label that is entered.
    """

    out: LogMatrix
    into: LogMatrix

    def enter(self, logs: Tensor) -> Tensor:
        """(B, N) log sum_m exp(logs[m] + transition[m, n]); exact at any range."""
        return self.into.times(self.out.times(logs))


def coupling_of(transition: LowRank) -> LowRankCoupling:
    """Prepare a transition, differentiably."""
    left, right = transition.log_left, transition.log_right
    return LowRankCoupling(LogMatrix.of(left.mT), LogMatrix.of(right))
