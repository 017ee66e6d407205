"""Factor graphs as groups of sites."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from rdpgraph._cache import cached_property
from rdpgraph.estimate.evidence import opened
from rdpgraph.estimate.problem import Model, Supports
from rdpgraph.estimate.view import StructureView, View
from rdpgraph.model.block import Block
from rdpgraph.model.evidence import MISSING
from rdpgraph.model.graph import FactorGraph
from rdpgraph.model.sites import Sites
from rdpgraph.model.structure import Structure
from rdpgraph.model.support import Support


def view_of(model: Model, generator: torch.Generator | None) -> View:
    """The view of a model; that of a graph has its entries observed as a whole or not at all."""
    if isinstance(model, Structure):
        return StructureView(model, generator)
    return GraphView(opened(model), generator)


@dataclass(frozen=True, eq=False)
class GraphView(View):
    """A factor graph whose entries are observed as a whole or not at all."""

    graph: FactorGraph
    generator: torch.Generator | None

    @cached_property
    def _free(self) -> dict[int, list[int]]:
        """By their number of states, the places of the entries that are not observed."""
        places_by_size: dict[int, list[int]] = {}
        free = self.is_free.tolist()
        for place, entry in enumerate(self.graph.variables):
            if math.prod(entry.shape) and free[self.graph.domain.starts[place]]:
                places_by_size.setdefault(entry.size, []).append(place)
        return places_by_size

    def unary(self, numbers: Tensor, size: int) -> Tensor:
        """(*batch, sites, size): factors over one of the sites and observed variables only.

        With gradients, which the sites that proposals see are without.
        """
        graph = self.graph
        place = torch.full((graph.num_variables,), -1)
        place[numbers] = torch.arange(len(numbers))
        shape = (*graph.batch_shape, len(numbers), size)
        total = torch.zeros(shape, dtype=graph.dtype, device=graph.device)
        for block in graph.blocks:
            sites = place[block.scopes]
            alone = self.is_free[block.scopes].sum(1) == 1
            for slot in range(block.arity):
                rows = (alone & (sites[:, slot] >= 0)).nonzero().flatten()
                if not len(rows):
                    continue
                values = self._on_observed(block, slot, rows)
                values = values.expand(*graph.batch_shape, len(rows), size).to(total)
                total = total.index_add(-2, sites[rows, slot].to(total.device), values)
        return total

    def _on_observed(self, block: Block, slot: int, rows: Tensor) -> Tensor:
        """(*batch, F or 1, states) log-values of factors, all slots but one as observed."""
        every = torch.arange(block.sizes[slot])
        states = [
            every if other == slot else self._observed_at(block.scopes[rows, other])
            for other in range(block.arity)
        ]
        values = block.select(rows).evaluate(states)
        values = values.reshape(*values.shape[: values.ndim - block.arity], len(every))
        return values if values.ndim > 1 else values.unsqueeze(0)

    def _observed_at(self, numbers: Tensor) -> Tensor:
        assert self.graph.observed is not None
        return self.graph.observed[..., numbers].unsqueeze(-1)

    @cached_property
    def is_free(self) -> Tensor:
        """(V,) whether each variable is not observed."""
        if self.graph.observed is None:
            return torch.ones(self.graph.num_variables, dtype=torch.bool)
        return (self.graph.observed == MISSING).reshape(-1, self.graph.num_variables).any(0)

    def _numbers(self, place: int) -> Tensor:
        return torch.arange(self.graph.domain.starts[place], self.graph.domain.starts[place + 1])

    @property
    def groups(self) -> tuple[Sites, ...]:
        """Sites by their number of states, (*batch, sites, states)."""
        return self._groups

    @cached_property
    def _groups(self) -> tuple[Sites, ...]:
        graph, sites = self.graph, list[Sites]()
        for size, places in self._free.items():
            numbers = torch.cat([self._numbers(place) for place in places])
            unary = self.unary(numbers, size).detach()
            few = partial(self._on_few, len(sites))
            given = partial(Sites, unary, graph=lambda: graph, generator=self.generator)
            sites.append(given(restrict=few, numbers=numbers))
        return tuple(sites)

    def _on_few(self, group: int, states: Tensor, log_weights: Tensor) -> FactorGraph:
        """The graph on some states of one group, and all of the others."""
        few = Support(states, log_weights)
        every = range(len(self._free))
        return self.restrict(self.supports([few if own == group else None for own in every]))

    def supports(self, chosen: Supports) -> tuple[Support | None, ...]:
        """One for each entry; observed entries have the state observed."""
        graph = self.graph
        result: list[Support | None] = [None] * len(graph.variables)
        for places, support in zip(self._free.values(), chosen, strict=True):
            start = 0
            for place in places:
                entry = graph.variables[place]
                stop = start + math.prod(entry.shape)
                if support is not None:
                    states, weights = (
                        values[..., start:stop, :].unflatten(-2, entry.shape)
                        if entry.shape
                        else values[..., start, :]
                        for values in (support.states, support.log_weights)
                    )
                    result[place] = Support(states, weights)
                start = stop
        free = {place for places in self._free.values() for place in places}
        if graph.observed is not None:
            for place, entry in enumerate(graph.variables):
                if place not in free and math.prod(entry.shape):
                    numbers = graph.domain.numbers(entry)
                    states = graph.observed[..., numbers].unsqueeze(-1)
                    result[place] = Support(states, torch.zeros_like(states, dtype=graph.dtype))
        return tuple(result)

    def restrict(self, supports: Supports) -> FactorGraph:
        """The graph on its entries' supports."""
        entries = zip(self.graph.variables, supports, strict=True)
        return self.graph.restrict({e: s for e, s in entries if s is not None})

    def marginals(self, answer: Any, chosen: Sequence[Support] = ()) -> tuple[Tensor, ...]:
        """(*lead, *batch, sites, kept) for each group."""
        entries = self.graph.variables
        of_entry = list(answer.marginals().values())
        return tuple(
            torch.cat(
                [
                    of_entry[p].flatten(-1 - len(entries[p].shape), -2)
                    if entries[p].shape
                    else of_entry[p].unsqueeze(-2)
                    for p in places
                ],
                dim=-2,
            )
            for places in self._free.values()
        )

    @property
    def num_tables(self) -> int:
        """Factors of two variables and more, times the batch."""
        joint = sum(block.count for block in self.graph.blocks if block.arity > 1)
        return max(joint, 1) * math.prod(self.graph.batch_shape)
