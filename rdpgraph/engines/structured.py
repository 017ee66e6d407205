"""Answers of a structure as those of a solution, site by site."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rdpgraph._core.cache import differentiable_property
from rdpgraph.engines.solution import Solution
from rdpgraph.interface.structure import Structure
from rdpgraph.model.domain import Entry


@dataclass(frozen=True, eq=False)
class StructureSolution(Solution):
    """Answers of a structure, site by site; a general graph answers the rest."""

    structure: Structure  # the model
    solve: Callable[[Any], Any]  # gives the posterior of its `factor_graph`

    @differentiable_property
    def general(self) -> Any:
        """Posterior of the same model as a graph."""
        return self.solve(self.structure.factor_graph())

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """Batch dims of the structure, from log Z if it does not declare them."""
        known = type(self.structure).batch_shape is not Structure.batch_shape
        return self.structure.batch_shape if known else tuple(self.shaped_log_partition.shape)

    def _flat(self, values: Tensor, *dims: int) -> Tensor:
        lead = (*dims, math.prod(self.batch_shape))
        ends = values.shape[len(dims) + len(self.batch_shape) :]
        return values.reshape(*lead, math.prod(ends))

    @differentiable_property
    def shaped_log_partition(self) -> Tensor:
        """(*batch,) log Z."""
        return self.structure.log_partition()

    @differentiable_property
    def shaped_marginals(self) -> Tensor:
        """(*batch, *sites, states) marginals of the sites."""
        return self.structure.marginals()

    def log_partition(self) -> Tensor:
        return self.shaped_log_partition.reshape(-1)

    def variable_marginals(self) -> Tensor:
        """(B, S); zero at sites that an item lacks."""
        return self._flat(self.shaped_marginals)

    def factor_marginals(self, block: int) -> Tensor:
        return self.general.solution.factor_marginals(block)

    def entropy(self) -> Tensor:
        entropy = self.structure.entropy()
        return (self.general.entropy() if entropy is None else entropy).reshape(-1)

    def entropy_over(self, log_base: Tensor) -> Tensor | None:
        """(B,) entropy relative to a base measure (B, S), or None."""
        entropy = self.structure.entropy_over(log_base.reshape(self.structure.unary.shape))
        return None if entropy is None else entropy.reshape(-1)

    def expected_score(self) -> Tensor:
        log_z = self.log_partition()
        possible = log_z.detach() > -math.inf
        return torch.where(possible, torch.where(possible, log_z, 0.0) - self.entropy(), 0.0)

    def max_marginals(self) -> Tensor:
        values = self.structure.max_marginals()
        return self._flat(_only(self.general.max_marginals()) if values is None else values)

    def shaped_mode(self) -> Any:
        """Mode in the structure's own form."""
        mode = self.structure.mode()
        return _only(self.general.mode()) if mode is None else mode

    def mode(self) -> Tensor:
        """(B, V); -1 at sites that an item lacks."""
        return self._flat(self.structure.site_states(self.shaped_mode()))

    def shaped_sample(self, count: int, generator: torch.Generator | None) -> Any:
        """Draws in the structure's own form."""
        drawn = self.structure.sample(count, generator)
        return _only(self.general.sample(count, generator=generator)) if drawn is None else drawn

    def sample(self, count: int, generator: torch.Generator | None) -> Tensor:
        drawn = self.structure.site_states(self.shaped_sample(count, generator))
        return self._flat(drawn, count)

    def rsample(self, temperature: float, generator: torch.Generator | None) -> Tensor:
        relaxed = self.structure.rsample(1, temperature=temperature, generator=generator)
        return self._flat(relaxed[0])

    def marginal_mode(self, numbers: Tensor) -> Tensor:
        return self.general.solution.marginal_mode(numbers)

    def marginal_mode_scores(self, numbers: Tensor) -> tuple[Tensor, Tensor]:
        return self.general.solution.marginal_mode_scores(numbers)


def _only(answers: dict[Entry, Tensor]) -> Tensor:
    (value,) = answers.values()
    return value
