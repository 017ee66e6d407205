"""Answers about a model from one with further variables beside its own."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from rdpgraph._cache import cached_property, differentiable_property
from rdpgraph.engines.solution import Question, Solution, Value
from rdpgraph.errors import BudgetError
from rdpgraph.estimate.lifted import Inexact, Lifted
from rdpgraph.estimate.problem import Model
from rdpgraph.model.graph import FactorGraph
from rdpgraph.model.overlay import with_joint
from rdpgraph.structures.relaxation import perturbed_graph

_READ_OFF = {"status", "log_partition", "log_partitions", "bounds", "interval", "possible"}
"""The questions that the model with further variables answers in place of the plain one."""


@dataclass(frozen=True, eq=False)
class AddedVariables:
    """The lift from a model with further variables, which come last and are summed out.

    Blocks of factors that stand in both models, potential and scopes the same objects, are answered
    by the one that is solved.

    Attributes:
        plain: the model without them: as declared, or what approximates it.
        model: the same distribution of its variables as a marginal of one with more of them.
        solve: gives the posterior of a model; what `Estimator.prepare` was given.
        exact: whether the plain model is the one declared.
    """

    plain: FactorGraph
    model: FactorGraph
    solve: Callable[[Model], Any] = field(repr=False)
    exact: bool = True

    def __call__(self, solution: Solution) -> Solution:
        """What the solution says of the plain model."""
        summed = SummedOut(solution, self)
        return summed if self.exact else Inexact(summed)

    @cached_property
    def blocks(self) -> dict[int, int]:
        """The numbers of the plain model's blocks that stand in the other, and theirs there."""
        known = {(id(b.potential), id(b.scopes)): n for n, b in enumerate(self.model.blocks)}
        asked = ((n, (id(b.potential), id(b.scopes))) for n, b in enumerate(self.plain.blocks))
        return {number: known[key] for number, key in asked if key in known}


@dataclass(frozen=True, eq=False)
class SummedOut(Lifted):
    """What sums over the added variables is read off; the rest is asked of the plain model.

    log Z, marginals of variables, samples and the joints of factors that were not rewritten cost
    what the solved model does. A maximum over added variables, or the log of a sum over them, is
    none over states: modes, max-marginals, the entropy and the joints of rewritten factors are
    those of the plain model, solved when they are asked for.

    Attributes:
        inner: the solution of the model with further variables.
        lift: both models.
    """

    lift: AddedVariables

    @differentiable_property
    def _plain(self) -> Solution:
        plain: Solution = self.lift.solve(self.lift.plain).solution
        if self.inner.status().exact and not plain.status().exact:
            raise BudgetError(
                "Modes, max-marginals, the entropy and joints of rewritten factors have no "
                "shortcut by added variables, and the model without these is beyond exact "
                "inference; give Contraction(...) a larger budget, or Loopy() for an approximation."
            )
        return plain

    def _ask(self, question: Question[Value]) -> Value:
        return question(self.inner if question.name in _READ_OFF else self._plain)

    def variable_marginals(self) -> Tensor:
        """(B, S) of the plain model's variables, read off the model with further ones."""
        return self.inner.variable_marginals()[:, : self.lift.plain.domain.total_states]

    def check_factor_marginals(self, block: int) -> None:
        """Refuse what the model with further variables does not form."""
        if block in self.lift.blocks:
            self.inner.check_factor_marginals(self.lift.blocks[block])

    def factor_marginals(self, block: int) -> Tensor:
        """(B, F, *sizes), of factors that were rewritten by the plain model."""
        if block not in self.lift.blocks:
            return self._plain.factor_marginals(block)
        return self.inner.factor_marginals(self.lift.blocks[block])

    def joint(self, numbers: Tensor, solve: Callable[[FactorGraph], Solution]) -> Tensor:
        """(B, *sizes) by one more solution of the model with further variables."""
        graph = self.lift.model
        wider = with_joint(graph, numbers, graph.num_factors)
        return solve(wider).factor_marginals(len(graph.blocks)).squeeze(1)

    def sample(self, count: int, generator: torch.Generator | None) -> Tensor:
        """(count, B, V) draws of the model with further variables, without these."""
        return self.inner.sample(count, generator)[..., : self.lift.plain.num_variables]

    def rsample(self, temperature: float, generator: torch.Generator | None) -> Tensor:
        """(B, S) of the plain model: at a temperature, further variables do not sum out."""
        graph = perturbed_graph(self.lift.plain, temperature, generator)
        return self.lift.solve(graph).solution.variable_marginals()
