"""The variables of a graph as sites: those with equally many states together."""

import math
from functools import partial

import torch
from torch import Tensor

from rdpgraph.model.block import Block
from rdpgraph.model.evidence import observed_entries
from rdpgraph.model.graph import FactorGraph
from rdpgraph.model.sites import Sites, free_variables
from rdpgraph.model.support import Support


def free_entries(graph: FactorGraph) -> dict[int, list[int]]:
    """By their number of states, the places of the entries that are not observed."""
    places: dict[int, list[int]] = {}
    observed = [False] * len(graph.variables)
    if graph.observed is not None:
        _, observed = observed_entries(graph.domain, graph.observed)
    for place, entry in enumerate(graph.variables):
        if math.prod(entry.shape) and not observed[place]:
            places.setdefault(entry.size, []).append(place)
    return places


def free_numbers(graph: FactorGraph) -> dict[int, Tensor]:
    """By their number of states, the numbers of the variables of `free_entries`."""
    starts = graph.domain.starts
    return {
        size: torch.cat(
            [torch.arange(starts[place], starts[place + 1], device="cpu") for place in places]
        )
        for size, places in free_entries(graph).items()
    }


def graph_sites(graph: FactorGraph, generator: torch.Generator | None = None) -> tuple[Sites, ...]:
    """What estimators choose states of a graph by, as `Structure.sites` is for a structure.

    Args:
        graph: has its entries observed as a whole or not at all, as `opened` makes them.
        generator: the randomness of what proposals ask of factors.

    Returns:
        A group for each number of states, in the order of `free_entries`.
    """
    places = free_entries(graph)
    return tuple(
        Sites(
            site_potentials(graph, numbers, size).detach(),
            restrict=partial(_restricted, graph, places[size]),
            graph=lambda: graph,
            numbers=numbers,
            generator=generator,
        )
        for size, numbers in free_numbers(graph).items()
    )


def by_entry(graph: FactorGraph, places: list[int], support: Support) -> dict[int, Support]:
    """A support (*lead, sites, kept) of the members of some entries as one for each, by place."""
    entries = [graph.variables[place] for place in places]
    counts = [math.prod(entry.shape) for entry in entries]
    parts = map(Support, support.states.split(counts, -2), support.log_weights.split(counts, -2))
    return {
        place: part.map(lambda v, to=entry.shape: v.reshape(*v.shape[:-2], *to, v.shape[-1]))
        for place, entry, part in zip(places, entries, parts, strict=True)
    }


def _restricted(
    graph: FactorGraph, places: list[int], states: Tensor, log_weights: Tensor
) -> FactorGraph:
    """The graph on some states of some entries, and on all of the others."""
    supports = by_entry(graph, places, Support(states, log_weights))
    return graph.restrict({graph.variables[place]: own for place, own in supports.items()})


def site_potentials(graph: FactorGraph, numbers: Tensor, size: int) -> Tensor:
    """(*batch, n, size) the summed log-values of factors whose other variables are observed.

    Differentiable in the potentials.

    Args:
        graph: the model.
        numbers: (n,) of variables with equally many states.
        size: how many.
    """
    place, free = torch.full((graph.num_variables,), -1, device="cpu"), free_variables(graph)
    place[numbers] = torch.arange(len(numbers), device="cpu")
    shape = (*graph.batch_shape, len(numbers), size)
    total = torch.zeros(shape, dtype=graph.dtype, device=graph.device)
    for block in graph.blocks:
        sites = place[block.scopes]
        alone = free[block.scopes].sum(1) == 1
        for slot in range(block.arity):
            rows = (alone & (sites[:, slot] >= 0)).nonzero().flatten()
            if len(rows):
                values = _given_observed(graph, block, slot, rows)
                values = values.expand(*graph.batch_shape, len(rows), size).to(total)
                total = total.index_add(-2, sites[rows, slot].to(total.device), values)
    return total


def _given_observed(graph: FactorGraph, block: Block, slot: int, rows: Tensor) -> Tensor:
    """(*batch, F or 1, states) log-values of factors whose other slots are observed."""
    states = [torch.arange(block.sizes[slot], device="cpu")] * block.arity
    for other in range(block.arity):
        if other != slot:
            assert graph.observed is not None
            states[other] = graph.observed[..., block.scopes[rows, other]].unsqueeze(-1)
    values = block.select(rows).evaluate(states)
    values = values.reshape(*values.shape[: values.ndim - block.arity], block.sizes[slot])
    return values if values.ndim > 1 else values.unsqueeze(0)
