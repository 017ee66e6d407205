"""A graph that a structure recognised: fast log Z and marginals, the rest by contraction."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from rdpgraph.engines.solution import Solution
from rdpgraph.model.graph import FactorGraph
from rdpgraph.model.structure import Match, Structure


def site_marginals(structure: Structure) -> Tensor:
    """(*batch, *sites, states): the gradient of log Z in the unary potentials.

    Differentiable if anything in the structure is.
    """
    tracked = structure.unary.requires_grad
    with torch.enable_grad():
        unary = structure.unary if tracked else structure.unary.detach().requires_grad_()
        log_z = structure.with_unary(unary).log_partition()
        keep = tracked or log_z.grad_fn is not None
        (grad,) = torch.autograd.grad(log_z.sum(), unary, create_graph=keep)
    return grad if tracked else grad.detach()


@dataclass(frozen=True, eq=False)
class MatchedSolution(Solution):
    """Answers for a recognised graph.

    Attributes:
        graph: as declared.
        match: the structure, and the variable at each of its sites.
        general: solves the graph by contraction, for the questions the structure leaves open.
    """

    graph: FactorGraph
    match: Match
    general: Callable[[], Solution]

    @cached_property
    def _general(self) -> Solution:
        return self.general()

    def log_partition(self) -> Tensor:
        """(B,) by the structure's recursion."""
        return self.match.structure.log_partition().reshape(-1)

    def variable_marginals(self) -> Tensor:
        """(B, S) by the structure's recursion and its gradient."""
        values = site_marginals(self.match.structure)
        numbers = self.match.numbers.reshape(-1)
        sizes = self.graph.domain.sizes
        starts = torch.nn.functional.pad(sizes.cumsum(0), (1, 0))
        size = values.shape[-1]
        places = (starts[numbers].unsqueeze(1) + torch.arange(size)).reshape(-1)
        flat = values.reshape(-1, len(numbers) * size)
        empty = flat.new_zeros(flat.shape[0], int(starts[-1]))
        return empty.index_copy(1, places.to(flat.device), flat)

    def factor_marginals(self, block: int) -> Tensor:
        """(B, F, *sizes)."""
        return self._general.factor_marginals(block)

    def expected_score(self) -> Tensor:
        """(B,)."""
        return self._general.expected_score()

    def max_marginals(self) -> Tensor:
        """(B, S)."""
        return self._general.max_marginals()

    def mode(self) -> Tensor:
        """(B, V)."""
        return self._general.mode()

    def sample(self, count: int, generator: torch.Generator | None) -> Tensor:
        """(count, B, V)."""
        return self._general.sample(count, generator)

    def marginal_mode(self, numbers: Tensor) -> Tensor:
        """(B, n)."""
        return self._general.marginal_mode(numbers)
