"""Answers about a model from one with rank variables beside its own."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from rdpgraph._cache import differentiable_property
from rdpgraph.engines.solution import Solution
from rdpgraph.engines.status import Status
from rdpgraph.errors import BudgetError
from rdpgraph.model.graph import FactorGraph
from rdpgraph.model.lowrank import LowRank


@dataclass(frozen=True, eq=False)
class FactorisedSolution(Solution):
    """What rank variables sum out is read off them; the rest is asked of the model without them.

    log Z, marginals of variables, samples and the joints of factors that were not rewritten cost
    what the rewritten model does. A maximum over ranks, or the log of a sum over them, is none
    over states: modes, max-marginals, the entropy and the joints of rewritten factors are those of
    the plain model, in which a factor of N x M values is one again.

    Attributes:
        plain: the model, each factor that was rewritten as its `LowRank`.
        inner: the solution of the model with rank variables, which come last.
        solve: solves the plain model.
        rewritten: the model with rank variables.
    """

    plain: FactorGraph
    inner: Solution
    solve: Callable[[FactorGraph], Solution]
    rewritten: FactorGraph

    @differentiable_property
    def _whole(self) -> Solution:
        found = self.solve(self.plain)
        if self.inner.status().exact and not found.status().exact:
            raise BudgetError(
                "Modes, max-marginals, the entropy and joints of low-rank factors have no shortcut "
                "by ranks, and the model without rank variables is beyond exact inference; give "
                "Contraction(...) a larger budget, or Loopy() for an approximation."
            )
        return found

    def status(self) -> Status:
        """That of the model with rank variables."""
        return self.inner.status()

    def log_partition(self) -> Tensor:
        """By ranks."""
        return self.inner.log_partition()

    def variable_marginals(self) -> Tensor:
        """By ranks."""
        return self.inner.variable_marginals()[:, : int(self.plain.domain.sizes.sum())]

    def factor_marginals(self, block: int) -> Tensor:
        """By ranks, but for factors that were rewritten."""
        if isinstance(self.plain.blocks[block].potential, LowRank):
            return self._whole.factor_marginals(block)
        before = (isinstance(other.potential, LowRank) for other in self.plain.blocks[:block])
        return self.inner.factor_marginals(block + sum(before))

    def expected_score(self) -> Tensor:
        """Of the plain model."""
        return self._whole.expected_score()

    def entropy(self) -> Tensor:
        """Of the plain model."""
        return self._whole.entropy()

    def max_marginals(self) -> Tensor:
        """Of the plain model."""
        return self._whole.max_marginals()

    def mode(self) -> Tensor:
        """Of the plain model."""
        return self._whole.mode()

    def mode_is_consistent(self) -> Tensor:
        """Of the plain model."""
        return self._whole.mode_is_consistent()

    def sample(self, count: int, generator: torch.Generator | None) -> Tensor:
        """By ranks."""
        return self.inner.sample(count, generator)[..., : self.plain.num_variables]

    def marginal_mode(self, numbers: Tensor) -> Tensor:
        """Of the plain model."""
        return self._whole.marginal_mode(numbers)
