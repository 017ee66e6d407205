"""Transitions of low rank between segments: labels are left and entered by way of the ranks."""

from dataclasses import dataclass

from torch import Tensor

from rdpgraph.errors import ModelError
from rdpgraph.model.logmatrix import LogMatrix
from rdpgraph.model.lowrank import LowRank
from rdpgraph.model.potential import Potential
from rdpgraph.structures.semimarkov.coupling import Coupling


@dataclass(frozen=True, eq=False)
class LowRankCoupling:
    """A transition of rank r, prepared for products: O(N r) in the place of O(N^2).

    Attributes:
        out: (r, N) log-factors of the label that is left.
        into: (N, r) those of the label that is entered.
    """

    out: LogMatrix
    into: LogMatrix

    def enter(self, logs: Tensor) -> Tensor:
        """(B, N) log sum_m exp(logs[m] + transition[m, n]); exact at any range."""
        return self.into.times(self.out.times(logs))


def coupling_of(transition: Tensor | LowRank) -> Coupling | LowRankCoupling:
    """Prepare a transition, differentiably."""
    if isinstance(transition, Tensor):
        return Coupling.of(transition)
    left, right = transition.log_left, transition.log_right
    return LowRankCoupling(LogMatrix.of(left.mT), LogMatrix.of(right))


def columns(transition: Tensor | LowRank, labels: Tensor) -> Tensor:
    """(C, N) log-potentials from every label to the ones (C,) that follow."""
    if isinstance(transition, Tensor):
        return transition.T[labels]
    return LogMatrix.of(transition.log_left).times(transition.log_right[labels])


def joints(transition: Tensor | Potential, before: Tensor, after: Tensor) -> Tensor:
    """Log-potentials of labels and those that follow, of one shape."""
    if isinstance(transition, Tensor):
        return transition[before, after]
    ends = before.unsqueeze(-1), after.unsqueeze(-1)
    return transition.evaluate(ends)[..., 0, 0]


def checked_transition(transition: Tensor | Potential, segments: Tensor) -> None:
    """Refuse a transition that is not (N, N), or not of the segments' type."""
    labels = segments.shape[-1]
    if tuple(transition.shape) != (labels, labels):
        raise ModelError(
            f"SemiMarkov of {labels} labels needs a transition of shape {(labels, labels)}; got "
            f"{tuple(transition.shape)}."
        )
    if segments.dtype != transition.dtype:
        raise ModelError(
            "SemiMarkov needs segments and transition of one type; got "
            f"{segments.dtype} and {transition.dtype}."
        )
