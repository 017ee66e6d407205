"""What an estimator sees of a model: groups of sites, and the model on some states of them."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from rdpgraph._cache import cached_property
from rdpgraph.errors import ModelError
from rdpgraph.estimate.problem import Model, Supports
from rdpgraph.model.sites import Sites
from rdpgraph.model.structure import Structure
from rdpgraph.model.support import Support


class View(ABC):
    """A model as groups of sites."""

    @property
    @abstractmethod
    def groups(self) -> tuple[Sites, ...]:
        """Sites by their number of states."""

    @abstractmethod
    def supports(self, chosen: Supports) -> tuple[Support | None, ...]:
        """Supports of the groups as those of the model's own parts."""

    @abstractmethod
    def restrict(self, supports: Supports) -> Model:
        """The model on supports of its own parts; further dims in front are batch dims."""

    @abstractmethod
    def marginals(self, answer: Any, chosen: Sequence[Support] = ()) -> tuple[Tensor, ...]:
        """What the posterior of a restricted model says of the groups, in the groups' shape.

        Args:
            answer: the posterior.
            chosen: the states of the groups that it is restricted to, if it is.
        """

    def masses(self, chosen: Sequence[Support]) -> tuple[Tensor, ...] | None:
        """The log-mass of every state beside those chosen, by a way of the model's own; or None."""
        return None

    @property
    @abstractmethod
    def num_tables(self) -> int:
        """How many tables the restricted model has, batch items counted."""


@dataclass(frozen=True, eq=False)
class StructureView(View):
    """A structure: one group, the sites that it offers."""

    structure: Structure
    generator: torch.Generator | None

    @cached_property
    def _sites(self) -> Sites:
        offered = self.structure.sites()
        if offered is None and self.structure.site_places() is not None:
            raise ModelError(
                f"{type(self.structure).__name__} has configurations here that use a site twice, "
                "on whose states no estimate of Z would be unbiased; leave the estimator out."
            )
        if offered is None:
            raise ModelError(
                f"{type(self.structure).__name__} offers no sites(), which randomized estimators "
                "choose states by; give infer its factor_graph() instead, if it has one."
            )
        return replace(offered, unary=offered.unary.detach(), generator=self.generator)

    @property
    def groups(self) -> tuple[Sites, ...]:
        """The sites, (*batch, *sites, states)."""
        return (self._sites,)

    def supports(self, chosen: Supports) -> tuple[Support | None, ...]:
        """The one support."""
        sites = self._sites
        return tuple(s.over(sites.states) if s and sites.every else s for s in chosen)

    def restrict(self, supports: Supports) -> Structure:
        """The structure on the support of its sites."""
        (support,) = supports
        if support is None:
            return self.structure
        return self._sites.restrict(support.states, support.log_weights)

    def masses(self, chosen: Sequence[Support]) -> tuple[Tensor, ...] | None:
        """Those of the structure, if it has any."""
        (support,), masses = chosen, self._sites.masses
        known = None if masses is None else masses(support.states, support.log_weights)
        return None if known is None else (known,)

    def marginals(self, answer: Any, chosen: Sequence[Support] = ()) -> tuple[Tensor, ...]:
        """(*lead, *batch, *sites, kept)."""
        marginals, places = answer.marginals(), answer.structure.site_places()
        if chosen and self._sites.every:
            (few,) = chosen
            # Entries of one state have a share of it each.
            total = few.over(self._sites.states).log_weights.gather(-1, few.states)
            shares = torch.where(total > -math.inf, few.log_weights - total, -math.inf).exp()
            marginals = marginals.gather(-1, few.states) * shares
        if places is not None:
            marginals = torch.where(places < 0, 0.0, marginals[..., places.clamp(min=0)])
        return (marginals,)

    @property
    def num_tables(self) -> int:
        """The sites, batch items counted."""
        return max(1, math.prod(self.structure.unary.shape[:-1]))
