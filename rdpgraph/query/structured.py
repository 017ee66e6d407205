"""The posterior of a structure that was declared as one."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from rdpgraph.engines.matched import site_marginals
from rdpgraph.engines.status import Status
from rdpgraph.model.structure import Structure
from rdpgraph.plan.plan import Plan
from rdpgraph.query.posterior import Assignment, Posterior


@dataclass(frozen=True, eq=False)
class StructuredPosterior:
    """The distribution over a structure's sites; tensors in its own shape instead of dictionaries.

    log Z and marginals come from the structure's recursion; the other answers, where a structure
    brings none of its own, from the same model as a general graph.

    Attributes:
        structure: the model.
        plan: how it is solved.
        status: whether the answers are exact.
        general: the posterior of its `factor_graph`.
    """

    structure: Structure
    plan: Plan
    status: Status
    general: "Lazy" = field(repr=False)

    @cached_property
    def log_partition(self) -> Tensor:
        """(*batch,) log Z in nats."""
        return self.structure.log_partition()

    @cached_property
    def _marginals(self) -> Tensor:
        return site_marginals(self.structure)

    def marginals(self) -> Tensor:
        """(*batch, *sites, states) probabilities."""
        return self._marginals

    def entropy(self) -> Tensor:
        """(*batch,) entropy in nats."""
        return self.general().entropy()

    def mode(self) -> Tensor:
        """(*batch, *sites) one most probable configuration."""
        return _only(self.general().mode())

    def sample(self, count: int, *, generator: torch.Generator | None = None) -> Tensor:
        """(count, *batch, *sites) independent draws."""
        return _only(self.general().sample(count, generator=generator))


@dataclass(frozen=True, eq=False)
class Lazy:
    """The general posterior of a structure, solved when first asked for."""

    solve: Callable[[], object]

    @cached_property
    def _posterior(self) -> Posterior:
        answer = self.solve()
        assert isinstance(answer, Posterior)
        return answer

    def __call__(self) -> Posterior:
        """The posterior."""
        return self._posterior


def _only(answers: Assignment) -> Tensor:
    (value,) = answers.values()
    return value
