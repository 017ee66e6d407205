"""What a proposal sees of a model: alike variables, their potentials, their neighbours."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from rdpgraph.model.bilinear import Bilinear
from rdpgraph.model.evidence import MISSING
from rdpgraph.model.graph import FactorGraph
from rdpgraph.model.potential import Potential
from rdpgraph.model.structure import Structure


@dataclass(frozen=True, eq=False)
class Neighbours:
    """The factors of a block that join one of the sites to others.

    Attributes:
        rows: (F,) which site each factor holds.
        slot: where the factor holds it.
        potential: of the factors, leading dims (*batch, F or 1).
        sizes: the number of states of each slot.
    """

    rows: Tensor
    slot: int
    potential: Potential
    sizes: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Sites:
    """Variables with equally many states: those of a graph, or the sites of a structure.

    Attributes:
        unary: (*batch, *sites, states) the summed log-potentials of each site alone (nats),
            evidence included, without gradient; -inf: impossible.
        graph: gives the model as a graph, or None if it is none: then it has a structure.
        numbers: (sites,) the graph's numbers of the variables; None: all of them, in order.
        generator: all the randomness there is.
        structure: whose sites these are, if the model is one.
    """

    unary: Tensor
    graph: Callable[[], FactorGraph | None]
    numbers: Tensor | None
    generator: torch.Generator | None
    structure: Structure | None = None

    @property
    def states(self) -> int:
        """The number of states of each site."""
        return self.unary.shape[-1]

    def neighbours(self) -> Iterator[Neighbours]:
        """The factors over a site and others not observed, once for each slot of a site.

        None where the model is no graph.
        """
        graph = self.graph()
        if graph is None:
            return
        free = torch.ones(graph.num_variables, dtype=torch.bool)
        if graph.observed is not None:
            free = (graph.observed == MISSING).reshape(-1, graph.num_variables).any(0)
        place = torch.full((graph.num_variables,), -1)
        numbers = torch.arange(graph.num_variables) if self.numbers is None else self.numbers
        place[numbers] = torch.arange(len(numbers))
        for block in graph.blocks:
            joint = free[block.scopes].sum(1) > 1
            for slot in range(block.arity):
                held = place[block.scopes[:, slot]]
                inside = ((held >= 0) & joint).nonzero().flatten()
                if len(inside):
                    some = None if len(inside) == block.count else inside
                    yield Neighbours(held[inside], slot, block.select(some), block.sizes)

    def norms(self) -> Tensor | None:
        """The mean L1 norm of each state's embeddings in `Bilinear` potentials, like ``unary``.

        None where there are no embeddings; zero throughout for a site without any.
        """
        found = [
            (near.rows, near.potential.norms(near.slot))
            for near in self.neighbours()
            if isinstance(near.potential, Bilinear)
        ]
        if not found:
            return None
        ones = [(rows, torch.ones_like(values[..., :1])) for rows, values in found]
        return self._gathered(found) / self._gathered(ones).clamp(min=1.0)

    def mean_values(self, landmarks: int) -> Tensor:
        """The log of each state's mean factor value over random states of its neighbours.

        One term for every neighbour, summed; like ``unary``. O(landmarks) evaluations of each
        factor on all states of the site.

        Args:
            landmarks: how many random states of the other slots are looked at.
        """
        if self.structure is not None and self.graph() is None:
            return self.structure.mean_values(landmarks, self.generator)
        return self._gathered(
            (near.rows, self._mean_value(near, landmarks)) for near in self.neighbours()
        )

    def _mean_value(self, near: Neighbours, landmarks: int) -> Tensor:
        """(*batch, F or 1, states)."""
        device = near.potential.device
        asked = [
            torch.randint(
                size, (landmarks, 1), generator=self.generator,
                device=device if self.generator is None else self.generator.device,
            ).to(device)
            for size in near.sizes
        ]  # fmt: skip
        everything = torch.arange(self.states, device=device)
        total: Tensor | None = None
        for landmark in range(landmarks):
            states = [of_slot[landmark] for of_slot in asked]
            states[near.slot] = everything
            values = near.potential.evaluate(states).detach()
            values = values.reshape(*values.shape[: values.ndim - len(states)], self.states)
            total = values if total is None else torch.logaddexp(total, values)
        assert total is not None
        return total - torch.tensor(landmarks).log().to(total)

    def _gathered(self, parts: Iterable[tuple[Tensor, Tensor]]) -> Tensor:
        """The sum over factors (*batch, F or 1, n) at each site, broadcastable with ``unary``."""
        graph = self.graph()
        assert graph is not None
        shape = graph.variables[0].shape if self.numbers is None else tuple(self.unary.shape[-2:-1])
        count = graph.num_variables if self.numbers is None else len(self.numbers)
        total = torch.zeros(count, 1, dtype=self.unary.dtype, device=self.unary.device)
        for rows, values in parts:
            if values.ndim < 2:
                values = values.unsqueeze(0)
            values = values.expand(*values.shape[:-2], len(rows), -1).to(total)
            own = values.new_zeros(*values.shape[:-2], count, values.shape[-1])
            total = total + own.index_add(-2, rows.to(own.device), values)
        return total.reshape(*total.shape[:-2], *shape, total.shape[-1])
