"""Interface of estimators, the layout of a model's sites, and questions that proposals may ask."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import torch
from torch import Tensor

from rdpgraph._core.cache import cached_property
from rdpgraph.engines.solution import Solution
from rdpgraph.errors import ModelError
from rdpgraph.interface.sites import Sites, by_entry, free_entries, graph_sites
from rdpgraph.interface.structure import Structure
from rdpgraph.model.domain import Domain
from rdpgraph.model.graph import FactorGraph
from rdpgraph.model.restriction import Support, expanded
from rdpgraph.model.variable import Variable, VariableArray

if TYPE_CHECKING:
    from rdpgraph.estimate.selections import Selection

Model: TypeAlias = FactorGraph | Structure
Supports: TypeAlias = tuple[Support | None, ...]
Lift: TypeAlias = Callable[[Solution], Solution]


@dataclass(frozen=True, eq=False)
class Problem:
    """Smaller model that an estimator made of a model.

    Attributes:
        model: the model to solve in its place.
        lift: from the solution of that to one of the model as declared, in its variables and
            states; its `Solution.status` says whether the answers are exact. A dataclass, or a
            function that pickles, so that posteriors do. None: the model is the one declared.
    """

    model: Model
    lift: Lift | None = None


class Estimator(ABC):
    """A rewrite of a model into one that is cheaper to solve; it never touches the recursion."""

    takes_structures: ClassVar[bool] = False
    """True: `infer` with the default scheduler gives `prepare` the structure that it recognises in
    a graph, instead of the graph."""

    @abstractmethod
    def prepare(
        self, model: Model, *, solve: Callable[[Model], Any], generator: torch.Generator | None
    ) -> Problem:
        """Return the problem to solve in place of a model.

        Args:
            model: as declared, evidence included.
            solve: gives the posterior of a model, by the scheduler that solves the problem: for a
                pilot run, or for later questions of a lift, which may keep it.
            generator: the only source of randomness.
        """


@dataclass(frozen=True)
class Exact(Estimator):
    """The estimator that leaves the model unchanged."""

    def prepare(
        self, model: Model, *, solve: Callable[[Model], Any], generator: torch.Generator | None
    ) -> Problem:
        return Problem(model)


@dataclass(frozen=True, eq=False)
class Setting:
    """A model as groups of sites, with access to inference on it before states are scored."""

    model: Model  # a graph has its entries observed as a whole or not at all, by `opened`
    groups: tuple[Sites, ...]  # sites by their number of states; a structure has one group
    selection: "Selection"  # chooses the states of the estimate
    solve: Callable[[Model], Any]  # gives the posterior of a model
    generator: torch.Generator | None  # all the randomness there is

    @staticmethod
    def of(
        model: Model,
        selection: "Selection",
        *,
        solve: Callable[[Model], Any],
        generator: torch.Generator | None,
    ) -> "Setting":
        """Setting of a model as declared; raises `ModelError` for a structure without sites."""
        from rdpgraph.model.rewrites import opened

        model = opened(model) if isinstance(model, FactorGraph) else model
        return Setting(model, sites_of(model, generator), selection, solve, generator)

    def supports(self, chosen: Sequence[Support | None]) -> Supports:
        """Supports of the groups as those of the model's variables and arrays."""
        if isinstance(self.model, Structure):
            sites = self.groups[0]
            return tuple(s.over(sites.states) if s and sites.every else s for s in chosen)
        supports: dict[int, Support] = {}
        for places, support in zip(free_entries(self.model).values(), chosen, strict=True):
            if support is not None:
                supports |= by_entry(self.model, places, support)
        return tuple(supports.get(place) for place in range(len(self.model.variables)))

    def restrict(self, chosen: Sequence[Support]) -> Model:
        """Model on supports of the groups; further dims in front are batch dims."""
        return restricted(self.model, self.supports(chosen))

    def marginals(self, posterior: Any, chosen: Sequence[Support] = ()) -> tuple[Tensor, ...]:
        """Marginals of the groups by a posterior of the model, or of it restricted to ``chosen``.

        (*batch, *sites, kept) each.
        """
        marginals = posterior.marginals()
        if isinstance(self.model, Structure):
            places = posterior.structure.site_places()
            if chosen and self.groups[0].every:
                (few,) = chosen
                # Entries of one state have a share of it each.
                total = few.over(self.groups[0].states).log_weights.gather(-1, few.states)
                shares = torch.where(total > -math.inf, few.log_weights - total, -math.inf).exp()
                marginals = marginals.gather(-1, few.states) * shares
            if places is not None:
                marginals = torch.where(places < 0, 0.0, marginals[..., places.clamp(min=0)])
            return (marginals,)
        lead = posterior.batch_shape
        by_place = [
            values.reshape(*lead, math.prod(entry.shape), values.shape[-1])
            for entry, values in zip(self.model.variables, marginals.values(), strict=False)
        ]
        groups = free_entries(self.model).values()
        return tuple(torch.cat([by_place[place] for place in places], -2) for places in groups)


def sites_of(model: Model, generator: torch.Generator | None = None) -> tuple[Sites, ...]:
    """Groups of sites of a model, without gradient; raises `ModelError` if a structure has none."""
    if isinstance(model, FactorGraph):
        return graph_sites(model, generator)
    offered = model.sites()
    if offered is None and model.site_places() is not None:
        raise ModelError(
            f"Some configurations of this {type(model).__name__} use a site twice, and then no "
            "estimate of Z from kept states is unbiased; leave the estimator out."
        )
    if offered is None:
        raise ModelError(
            f"{type(model).__name__} offers no sites(), which randomized estimators choose states "
            "by; give infer its factor_graph() instead, if it has one."
        )
    return (replace(offered, unary=offered.unary.detach(), generator=generator),)


def restricted(model: Model, supports: Supports) -> Model:
    """Model on supports of its variables and arrays, in their order, or of its sites."""
    if isinstance(model, FactorGraph):
        entries = zip(model.variables, supports, strict=True)
        return model.restrict({entry: support for entry, support in entries if support})
    (support,), sites = supports, model.sites()
    return sites.restrict(support.states, support.log_weights) if support and sites else model


@dataclass(frozen=True, eq=False)
class KeptLayout:
    """Places of the selected states S' of all variables among all S; B items, flattened."""

    model: Model  # as declared; the sites of a structure are its variables
    # (replicates, *batch, *shape, K), or broadcastable to that, for each variable or array of a
    # graph, in its order; None where all states are selected. A structure has one, over its sites.
    supports: Supports
    replicates: int  # number of choices

    @property
    def batch(self) -> int:
        """Number B of batch items."""
        return math.prod(self.model.batch_shape)

    @cached_property
    def site_places(self) -> Tensor | None:
        """(*sites, states) positions in the potentials of a structure that has no sites."""
        return self.model.site_places() if isinstance(self.model, Structure) else None

    @property
    def _sites(self) -> tuple[int, ...]:
        """The dims of the sites of a structure, and their number of states."""
        assert isinstance(self.model, Structure)
        shape = self.model.unary.shape[len(self.model.batch_shape) :]
        return tuple(shape if self.site_places is None else self.site_places.shape)

    @cached_property
    def domain(self) -> Domain:
        """Variables of the model; the sites of a structure are those of one array."""
        if isinstance(self.model, FactorGraph):
            return self.model.domain
        *sites, states = self._sites
        entry = VariableArray("site", tuple(sites), states) if sites else Variable("site", states)
        return Domain((entry,))

    @cached_property
    def restricted(self) -> Domain:
        """Variables with the selected states."""
        entries = zip(self.domain.entries, self.expanded, strict=True)
        return Domain(tuple(replace(entry, states=support.kept) for entry, support in entries))

    @property
    def num_states(self) -> int:
        """Number S of states of all variables."""
        if isinstance(self.model, FactorGraph):
            return self.model.domain.total_states
        return math.prod(self.model.unary.shape[len(self.model.batch_shape) :])

    @property
    def _like(self) -> Tensor:
        """A tensor of the model's floating type, on its device."""
        if isinstance(self.model, Structure):
            return self.model.unary
        return torch.zeros((), dtype=self.model.dtype, device=self.model.device)

    @cached_property
    def expanded(self) -> tuple[Support, ...]:
        """Per entry (replicates, *batch, *shape, K), all states where all are selected."""
        like, lead = self._like, (self.replicates, *self.model.batch_shape)
        if isinstance(self.model, FactorGraph):
            entries = [(repr(each.name), (*each.shape, each.size)) for each in self.model.variables]
        else:
            entries = [("its sites", self._sites)]
        every: list[Support] = []
        for (name, (*shape, size)), support in zip(entries, self.supports, strict=True):
            if support is None:
                support = Support.plain(torch.arange(size, device="cpu"), like)
            if support.states.device != like.device or support.log_weights.device != like.device:
                support = support.map(lambda part: part.to(like.device))
            every.append(expanded(name, support, (*lead, *shape)))
        return tuple(every)

    @cached_property
    def selected(self) -> Support:
        """(replicates, B, S') selected states and their log-weights."""
        like = self._like
        batch, lead = 1 + len(self.model.batch_shape), (self.replicates, self.batch)
        # There may be no variable at all.
        none = torch.zeros(*lead, 0, dtype=torch.long, device=like.device)
        flat = (
            support.map(lambda part: part.reshape(*lead, math.prod(part.shape[batch:])))
            for support in self.expanded
        )
        return Support.joined([Support.plain(none, like), *flat])

    @cached_property
    def places(self) -> Tensor:
        """(replicates, B, S') positions of selected states in a flat table (B, S) of all states."""
        states = self.selected.states
        first = self.domain.state_starts[:-1].repeat_interleave(self.restricted.sizes)
        places = states + first.to(states.device)
        if self.site_places is not None:
            places = self.site_places.flatten().clamp(min=0)[places]  # nowhere: of no weight
        return places

    def of(self, numbers: Tensor) -> Tensor:
        """(replicates, B, n, K) states of (n,) variables with equally many selected."""
        places = self.restricted.places(numbers, int(self.restricted.sizes[numbers[0]]))
        return self.selected.states[..., places.to(self.selected.states.device)]

    def original(self, selected: Tensor, chosen: Tensor) -> Tensor:
        """Configurations of the model from those of its restrictions.

        Args:
            selected: (n, B, V) numbers among the selected states; -1 where a site is not used.
            chosen: (n, B) replicate of each.

        Returns:
            (n, B, V) states, -1 where a site is not used. Of a structure whose potentials are not
            by site (n, B, S), how often each is used.
        """
        known = self.selected.states
        batch = torch.arange(self.batch, device=known.device).reshape(1, -1, 1)
        places = selected.clamp(min=0) + self.restricted.state_starts[:-1].to(known.device)
        states = known[chosen.to(known.device).unsqueeze(-1), batch, places]
        states = torch.where(selected < 0, selected, states)
        if self.site_places is None:
            return states
        places = self.site_places.flatten(0, -2).expand(*states.shape, -1)
        places = places.gather(-1, states.clamp(min=0).unsqueeze(-1)).squeeze(-1)
        uses = states.new_zeros(*states.shape[:-1], self.num_states)
        return uses.scatter_add(-1, places, (states >= 0).to(states))
