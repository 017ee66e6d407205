"""Sites of models, which estimators choose states of; variables of a graph as sites."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from rdpgraph._core import tuning
from rdpgraph._core.cache import cached_property
from rdpgraph.errors import ModelError
from rdpgraph.model.block import Block
from rdpgraph.model.evidence import MISSING, observed_entries
from rdpgraph.model.graph import FactorGraph
from rdpgraph.model.potentials.lowrank import Bilinear
from rdpgraph.model.potentials.potential import Potential
from rdpgraph.model.restriction import Support


@dataclass(frozen=True, eq=False)
class Neighbours:
    """The factors of a block that join one of the sites to others."""

    rows: Tensor  # (F,) the site that each factor holds
    slot: int  # its slot in the factor
    potential: Potential  # of the factors, leading dims (*batch, F or 1)
    sizes: tuple[int, ...]  # the number of states of each slot


@dataclass(frozen=True, eq=False)
class Sites:
    """Sites with equally many states, from which estimators choose.

    A structure defines them by `Structure.sites`; a graph has a group for each number of states.

    Attributes:
        unary: (*batch, *sites, states) the summed log-potentials of each site alone (nats),
            evidence included; -inf: impossible, and never kept. Proposals see it without gradient.
        restrict: the model on (states, log_weights) of (*replicates, *batch, *sites, kept), the
            log-weights added to its unary potentials; repeats are separate entries.
        links: ``links()`` returns the factors that join a site to others, for sites of one dim, to
            proposals that read them. They may join sites that a batch item lacks.
        graph: ``graph()`` returns a graph with these factors, where there are no ``links``. If it
            is None as well, ``means`` is used instead.
        means: ``means(landmarks, generator)`` returns, instead of factors, the log of each state's
            mean factor value over ``landmarks`` random states of the other sites, broadcastable to
            ``unary``.
        masses: ``masses(states, log_weights)``, of arguments as for ``restrict``, returns the
            log-mass of every state of a site, (*replicates, *batch, *sites, states), given the
            states kept at the other sites, up to a constant for each site. A `Pilot` proposes
            states by it. If it is None, or returns None, the pilot solves the model once for each
            block of states that were not kept.
        marginals: ``marginals(states, log_weights)`` returns the probability of every state of a
            site given the states kept at the other sites, (*replicates, *batch, *sites, states),
            differentiable; zeros at a site that a batch item lacks. For models whose sites are each
            in one state. None: as for ``masses``.
        every: True if the model takes as long on few states as on all, as one of low rank. It is
            then restricted by log-weights of -inf at the states that are not kept, and stays a
            model of its class.
        numbers: (sites,) the graph's numbers of the variables; None: all of them, in order.
        generator: the source of randomness.
    """

    unary: Tensor
    restrict: Callable[[Tensor, Tensor], Any] = field(kw_only=True)
    links: Callable[[], Sequence[Neighbours]] | None = field(default=None, kw_only=True)
    graph: Callable[[], FactorGraph] | None = field(default=None, kw_only=True)
    means: Callable[[int, torch.Generator | None], Tensor] | None = field(
        default=None, kw_only=True
    )
    masses: Callable[[Tensor, Tensor], Tensor | None] | None = field(default=None, kw_only=True)
    marginals: Callable[[Tensor, Tensor], Tensor] | None = field(default=None, kw_only=True)
    every: bool = field(default=False, kw_only=True)
    numbers: Tensor | None = field(default=None, kw_only=True)
    generator: torch.Generator | None = field(default=None, kw_only=True)

    @property
    def states(self) -> int:
        """The number of states of each site."""
        return self.unary.shape[-1]

    @cached_property
    def _graph(self) -> FactorGraph | None:
        return None if self.graph is None else self.graph()

    @cached_property
    def _neighbours(self) -> tuple[Neighbours, ...]:
        if self.links is not None:
            return tuple(self.links())
        return () if self._graph is None else tuple(_links_in(self._graph, self.numbers))

    def neighbours(self) -> Iterator[Neighbours]:
        """The factors over a site and other free variables, for each slot; none if not known."""
        return iter(self._neighbours)

    def norms(self) -> Tensor | None:
        """The mean L1 norm of each state's embeddings in `Bilinear` potentials, like ``unary``.

        None if there are no embeddings; zero for a site without any.
        """
        gathered = [
            (near.rows, near.potential.norms(near.slot))
            for near in self._neighbours
            if isinstance(near.potential, Bilinear)
        ]
        if not gathered:
            return None
        ones = [(rows, torch.ones_like(values[..., :1])) for rows, values in gathered]
        return self._gathered(gathered).div_(self._gathered(ones).clamp(min=1.0))

    def mean_values(self, landmarks: int) -> Tensor:
        """The log of each state's mean factor value over random states of its neighbours.

        Returns (*batch, *sites, states): the logs of a site's factors are added. O(landmarks)
        evaluations of each factor on all states of the site.

        Args:
            landmarks: the number of random states of the factor's other variables.

        Raises:
            ModelError: there are neither factors nor `means`.
        """
        if self.links is None and self.graph is None:
            if self.means is not None:
                return self.means(landmarks, self.generator)
            raise ModelError(
                "The default proposal needs the factors around each site, and these sites do not "
                "give them; use Local() or Uniform(), or give Sites(..., means=...)."
            )
        return self._gathered(
            (near.rows, self._mean_value(near, landmarks)) for near in self._neighbours
        )

    def _mean_value(self, near: Neighbours, landmarks: int) -> Tensor:
        """Log mean values (*batch, F or 1, states)."""
        potential, arity = near.potential, len(near.sizes)
        device, lead = potential.device, potential.lead(arity)
        source = device if self.generator is None else self.generator.device
        asked = [
            torch.randint(size, (landmarks,), generator=self.generator, device=source).to(device)
            for size in near.sizes
        ]
        everything = torch.arange(self.states, device=device)
        parts: list[Tensor] = []
        # As many landmarks are evaluated at once as a block has room for.
        width = tuning.per_block(math.prod(lead) * self.states, tuning.BLOCK)
        for first in range(0, landmarks, width):
            some = [states[first : first + width] for states in asked]
            states = list(some)
            if arity == 2:  # the landmarks are the states of the other slot
                over = -1 - near.slot
            else:  # each is a state of every other slot, and they are a dim in front of the lead
                states = [part.reshape(-1, *(1,) * (len(lead) + 1)) for part in some]
                over = -2 - len(lead)
            states[near.slot] = everything
            values = potential.evaluate(states).detach()
            if arity != 2:
                values = values.reshape(*values.shape[: values.ndim - arity], self.states)
            parts.append(values.logsumexp(over))
        total = parts[0] if len(parts) == 1 else torch.stack(parts).logsumexp(0)
        return total - math.log(landmarks)

    def _gathered(self, parts: Iterable[tuple[Tensor, Tensor]]) -> Tensor:
        """Sum values of factors (*batch, F or 1, n) by site, broadcastable with ``unary``."""
        shape = tuple(self.unary.shape[-2:-1])
        if self.links is None and self.numbers is None:
            assert self._graph is not None
            shape = self._graph.variables[0].shape  # sites of any number of dims
        count, total = math.prod(shape), None
        for rows, values in parts:
            values = values if values.ndim > 1 else values.unsqueeze(0)
            values = values.expand(*values.shape[:-2], len(rows), -1).to(self.unary)
            wanted = *values.shape[:-2], count, values.shape[-1]
            # As large as all potentials: what is there already is added to in place.
            if total is None or total.shape != wanted:
                sums = values.new_zeros(wanted)
                total = sums if total is None else total + sums
            first = int(rows[0]) if len(rows) else 0
            if torch.equal(rows, torch.arange(first, first + len(rows), device=rows.device)):
                total.narrow(-2, first, len(rows)).add_(values)
            else:
                total.index_add_(-2, rows.to(total.device), values)
        if total is None:
            total = self.unary.new_zeros(count, 1)
        return total.reshape(*total.shape[:-2], *shape, total.shape[-1])


def _links_in(graph: FactorGraph, numbers: Tensor | None) -> Iterator[Neighbours]:
    """The factors of a graph that join variables of some numbers to other free variables."""
    free = free_variables(graph)
    place = torch.full((graph.num_variables,), -1, device="cpu")
    if numbers is None:
        numbers = torch.arange(graph.num_variables, device="cpu")
    place[numbers] = torch.arange(len(numbers), device="cpu")
    for block in graph.blocks:
        joint = free[block.scopes].sum(1) > 1
        for slot in range(block.arity):
            held = place[block.scopes[:, slot]]
            inside = ((held >= 0) & joint).nonzero().flatten()
            if len(inside):
                some = None if len(inside) == block.count else inside
                yield Neighbours(held[inside], slot, block.select(some), block.sizes)


def free_variables(graph: FactorGraph) -> Tensor:
    """(V,) bool: the variables that are not observed in every batch item."""
    if graph.observed is None:
        return torch.ones(graph.num_variables, dtype=torch.bool, device="cpu")
    return (graph.observed == MISSING).reshape(-1, graph.num_variables).any(0)


def free_entries(graph: FactorGraph) -> dict[int, list[int]]:
    """Places of the entries that are not observed, by number of states."""
    places: dict[int, list[int]] = {}
    observed = [False] * len(graph.variables)
    if graph.observed is not None:
        _, observed = observed_entries(graph.domain, graph.observed)
    for place, entry in enumerate(graph.variables):
        if math.prod(entry.shape) and not observed[place]:
            places.setdefault(entry.size, []).append(place)
    return places


def free_numbers(graph: FactorGraph) -> dict[int, Tensor]:
    """Numbers of the variables of `free_entries`, by number of states."""
    starts = graph.domain.starts
    return {
        size: torch.cat(
            [torch.arange(starts[place], starts[place + 1], device="cpu") for place in places]
        )
        for size, places in free_entries(graph).items()
    }


def graph_sites(graph: FactorGraph, generator: torch.Generator | None = None) -> tuple[Sites, ...]:
    """Sites of a graph: a group for each number of states, in the order of `free_entries`.

    Each variable of the graph is observed in all batch items or in none, as `opened` makes it.
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
    """Split a support (*lead, sites, kept) of the members of some entries by the entry's place."""
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
    """Restrict a graph to some states of some entries."""
    supports = by_entry(graph, places, Support(states, log_weights))
    return graph.restrict({graph.variables[place]: support for place, support in supports.items()})


def site_potentials(graph: FactorGraph, numbers: Tensor, size: int) -> Tensor:
    """(*batch, n, size) summed log-values of factors whose other variables are observed.

    Differentiable in the potentials; ``numbers`` (n,) are of variables with ``size`` states.
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
