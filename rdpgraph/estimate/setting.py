"""The estimator interface, and what proposals learn a model with."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import torch
from torch import Tensor

from rdpgraph.engines.solution import Solution
from rdpgraph.errors import ModelError
from rdpgraph.estimate.selections import Selection
from rdpgraph.model.graph import FactorGraph
from rdpgraph.model.graph_sites import by_entry, free_entries, graph_sites
from rdpgraph.model.overlay import opened
from rdpgraph.model.sites import Sites
from rdpgraph.model.structure import Structure
from rdpgraph.model.support import Support

Model: TypeAlias = FactorGraph | Structure
Supports: TypeAlias = tuple[Support | None, ...]
Lift: TypeAlias = Callable[[Solution], Solution]


@dataclass(frozen=True, eq=False)
class Problem:
    """Smaller model that an estimator made of a model.

    Attributes:
        model: the model to solve in its place.
        lift: from the solution of that to one of the model as declared, in its own variables and
            states; its `Solution.status` says whether the answers are exact. A dataclass, or a
            function that pickles, so that posteriors do. None: the model is the one declared.
    """

    model: Model
    lift: Lift | None = None


class Estimator(ABC):
    """A rewrite of a model into one that is cheaper to solve; it never touches the recursion."""

    @abstractmethod
    def prepare(
        self, model: Model, *, solve: Callable[[Model], Any], generator: torch.Generator | None
    ) -> Problem:
        """The problem to solve in place of a model.

        Args:
            model: as declared, evidence included.
            solve: gives the posterior of a model, by the scheduler that solves the problem: for a
                pilot, or for what a lift must ask again. It may be kept.
            generator: all the randomness there is.
        """


@dataclass(frozen=True)
class Exact(Estimator):
    """The identity: the model as it is."""

    def prepare(
        self, model: Model, *, solve: Callable[[Model], Any], generator: torch.Generator | None
    ) -> Problem:
        """The model itself."""
        return Problem(model)


@dataclass(frozen=True, eq=False)
class Setting:
    """A model as groups of sites, and the means to ask about it before states are scored.

    Attributes:
        model: a graph has its entries observed as a whole or not at all, by `opened`.
        groups: sites by their number of states; a structure has one group.
        selection: how states are chosen for the estimate.
        solve: gives the posterior of a model.
        generator: all the randomness there is.
    """

    model: Model
    groups: tuple[Sites, ...]
    selection: Selection
    solve: Callable[[Model], Any]
    generator: torch.Generator | None

    @staticmethod
    def of(
        model: Model,
        selection: Selection,
        *,
        solve: Callable[[Model], Any],
        generator: torch.Generator | None,
    ) -> "Setting":
        """That of a model as declared.

        Raises:
            ModelError: a structure without sites.
        """
        model = opened(model) if isinstance(model, FactorGraph) else model
        return Setting(model, sites_of(model, generator), selection, solve, generator)

    def supports(self, chosen: Sequence[Support | None]) -> Supports:
        """Supports of the groups as those of the model's own variables and arrays."""
        if isinstance(self.model, Structure):
            sites = self.groups[0]
            return tuple(s.over(sites.states) if s and sites.every else s for s in chosen)
        supports: dict[int, Support] = {}
        for places, support in zip(free_entries(self.model).values(), chosen, strict=True):
            if support is not None:
                supports |= by_entry(self.model, places, support)
        return tuple(supports.get(place) for place in range(len(self.model.variables)))

    def restrict(self, chosen: Sequence[Support]) -> Model:
        """The model on supports of the groups; further dims in front are batch dims."""
        return restricted(self.model, self.supports(chosen))

    def marginals(self, posterior: Any, chosen: Sequence[Support] = ()) -> tuple[Tensor, ...]:
        """What the posterior of a restricted model says of the groups: (*batch, *sites, kept).

        Args:
            posterior: of the model, or of a restriction.
            chosen: the states of the groups that it is restricted to, if it is.
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
    """The groups of sites that a model offers, without gradient.

    Raises:
        ModelError: a structure offers none.
    """
    if isinstance(model, FactorGraph):
        return graph_sites(model, generator)
    offered = model.sites()
    if offered is None and model.site_places() is not None:
        raise ModelError(
            f"{type(model).__name__} has configurations here that use a site twice, on whose "
            "states no estimate of Z would be unbiased; leave the estimator out."
        )
    if offered is None:
        raise ModelError(
            f"{type(model).__name__} offers no sites(), which randomized estimators choose states "
            "by; give infer its factor_graph() instead, if it has one."
        )
    return (replace(offered, unary=offered.unary.detach(), generator=generator),)


def restricted(model: Model, supports: Supports) -> Model:
    """A model on supports of its variables and arrays, in their order, or of its sites."""
    if isinstance(model, FactorGraph):
        entries = zip(model.variables, supports, strict=True)
        return model.restrict({entry: support for entry, support in entries if support})
    (support,), sites = supports, model.sites()
    return sites.restrict(support.states, support.log_weights) if support and sites else model
