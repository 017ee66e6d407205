"""A graph that a structure recognised: its recursion answers, and contraction what it leaves."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from rdpgraph._cache import cached_property, differentiable_property
from rdpgraph.engines.solution import Solution
from rdpgraph.model.graph import FactorGraph
from rdpgraph.model.structure import Match, Structure
from rdpgraph.plan.plan import Plan, structure_plan


def plan_of(structure: Structure) -> Plan:
    """The plan of a structure: its own recursion."""
    shape = structure.unary.shape
    return structure_plan(
        type(structure).__name__,
        num_variables=math.prod(shape[:-1]),
        states=shape[-1],
        flops=structure.work(),
        element_bytes=structure.unary.element_size(),
    )


@dataclass(frozen=True, eq=False)
class RecognisedSolution(Solution):
    """Answers for a recognised graph.

    Attributes:
        graph: as declared.
        match: the structure, and the variable at each of its sites.
        general: solves the graph by contraction, for the questions the structure leaves open.
    """

    graph: FactorGraph
    match: Match
    general: Callable[[], Solution]

    @differentiable_property
    def _general(self) -> Solution:
        return self.general()

    @property
    def _structure(self) -> Structure:
        return self.match.structure

    @differentiable_property
    def _each(self) -> Tensor:
        """(B, M) log Z of each of the structures that the graph falls into."""
        log_z = self._structure.log_partition()
        return log_z.reshape(math.prod(self.graph.batch_shape), -1)

    @cached_property
    def _alive(self) -> Tensor:
        return (self._each.detach() > -math.inf).all(1)

    def log_partition(self) -> Tensor:
        """(B,) by the structure's recursion."""
        return torch.where(self._alive, self._each.sum(1), -math.inf)

    def variable_marginals(self) -> Tensor:
        """(B, S) by the structure's recursion and its gradient."""
        flat = self._flat(self._structure.marginals())
        return torch.where(self._alive.unsqueeze(1), flat, 0.0)

    def factor_marginals(self, block: int) -> Tensor:
        """(B, F, *sizes)."""
        return self._general.factor_marginals(block)

    def entropy(self) -> Tensor:
        """(B,) that of the structure, if it has one."""
        own = self._structure.entropy()
        if own is None:
            return super().entropy()
        return torch.where(self._alive, own.reshape(self._each.shape).sum(1), 0.0)

    def expected_score(self) -> Tensor:
        """(B,) from the structure's entropy, if it has one."""
        own = self._structure.entropy()
        if own is None:
            return self._general.expected_score()
        total = torch.where(self._alive, self._each.sum(1), 0.0)
        return torch.where(self._alive, total - own.reshape(self._each.shape).sum(1), 0.0)

    def max_marginals(self) -> Tensor:
        """(B, S) those of the structure, if it has them."""
        own = self._structure.max_marginals()
        if own is None:
            return self._general.max_marginals()
        batch, many = self._each.shape
        own = own.reshape(batch, many, -1, own.shape[-1])
        # What a state is worth in its own part, and the best of the other parts.
        best = own[:, :, :1].amax(-1, keepdim=True)
        alive = (best > -math.inf).all(1, keepdim=True)
        best = torch.where(alive, best, 0.0)
        raised = torch.where(alive, own + (best.sum(1, keepdim=True) - best), -math.inf)
        return self._flat(raised)

    def mode(self) -> Tensor:
        """(B, V) that of the structure, if it has one."""
        own = self._structure.mode()
        return self._general.mode() if own is None else self._placed(own, ())

    def sample(self, count: int, generator: torch.Generator | None) -> Tensor:
        """(count, B, V) those of the structure, if it has them."""
        own = self._structure.sample(count, generator)
        if own is None:
            return self._general.sample(count, generator)
        return self._placed(own, (count,))

    def marginal_mode(self, numbers: Tensor) -> Tensor:
        """(B, n) the states of a marginal mode."""
        return self._general.marginal_mode(numbers)

    def marginal_mode_scores(self, numbers: Tensor) -> tuple[Tensor, Tensor]:
        """(B,) and (B,)."""
        return self._general.marginal_mode_scores(numbers)

    def _placed(self, states: Tensor, lead: tuple[int, ...]) -> Tensor:
        """(*lead, B, V): states of sites under the numbers of their variables."""
        numbers = self.match.numbers.reshape(-1)
        flat = states.reshape(*lead, len(self._each), len(numbers))
        order = torch.argsort(numbers)[int((numbers < 0).sum()) :]
        return flat[..., order.to(flat.device)]

    def _flat(self, values: Tensor) -> Tensor:
        """(B, S): values of the states of every site, under the numbers of their variables."""
        numbers = self.match.numbers.reshape(-1)
        sizes = self.graph.domain.sizes
        starts = torch.nn.functional.pad(sizes.cumsum(0), (1, 0))
        size = values.shape[-1]
        there = (numbers >= 0).nonzero().flatten()
        places = (starts[numbers[there]].unsqueeze(1) + torch.arange(size, device="cpu")).reshape(
            -1
        )
        flat = values.reshape(len(self._each), len(numbers), size)
        flat = flat if len(there) == len(numbers) else flat[:, there.to(flat.device)]
        flat = flat.flatten(1)
        empty = flat.new_zeros(flat.shape[0], int(starts[-1]))
        return empty.index_copy(1, places.to(flat.device), flat)
