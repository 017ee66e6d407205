"""The selected states of all variables of a model, side by side."""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from rdpgraph._cache import cached_property
from rdpgraph.estimate.setting import Model, Supports
from rdpgraph.model.domain import Domain
from rdpgraph.model.graph import FactorGraph
from rdpgraph.model.structure import Structure
from rdpgraph.model.support import Support, expanded
from rdpgraph.model.variable import Variable, VariableArray


@dataclass(frozen=True, eq=False)
class Layout:
    """Where the selected states S' of all variables stand among all S; B items, flattened.

    Attributes:
        model: as declared; the sites of a structure are its variables.
        supports: (replicates, *batch, *shape, K), or what expands to that, for each variable or
            array of a graph, in its order; None where all states are selected. A structure has
            one, over its sites.
        replicates: how many choices there are.
    """

    model: Model
    supports: Supports
    replicates: int

    @property
    def batch(self) -> int:
        """B, the number of batch items."""
        return math.prod(self.model.batch_shape)

    @cached_property
    def site_places(self) -> Tensor | None:
        """(*sites, states) where they stand in the potentials of a structure that has no sites."""
        return self.model.site_places() if isinstance(self.model, Structure) else None

    @cached_property
    def domain(self) -> Domain:
        """The variables; the sites of a structure are those of one array."""
        if isinstance(self.model, FactorGraph):
            return self.model.domain
        shape = self.model.unary.shape[len(self.model.batch_shape) :]
        *sites, states = shape if self.site_places is None else self.site_places.shape
        entry = VariableArray("site", tuple(sites), states) if sites else Variable("site", states)
        return Domain((entry,))

    @cached_property
    def restricted(self) -> Domain:
        """The same variables with the selected states."""
        entries = zip(self.domain.entries, self.expanded, strict=True)
        return Domain(tuple(replace(entry, states=support.kept) for entry, support in entries))

    @property
    def num_states(self) -> int:
        """S, the number of states of all variables."""
        if isinstance(self.model, FactorGraph):
            return self.model.domain.total_states
        return math.prod(self.model.unary.shape[len(self.model.batch_shape) :])

    @property
    def _like(self) -> Tensor:
        """Of the model's floating type, on its device."""
        if isinstance(self.model, Structure):
            return self.model.unary
        return torch.zeros((), dtype=self.model.dtype, device=self.model.device)

    @cached_property
    def expanded(self) -> tuple[Support, ...]:
        """For each entry (replicates, *batch, *shape, K), all states where all are selected."""
        like, lead = self._like, (self.replicates, *self.model.batch_shape)
        every: list[Support] = []
        for entry, support in zip(self.domain.entries, self.supports, strict=True):
            if support is None:
                support = Support.plain(torch.arange(entry.size, device="cpu"), like)
            support = support.map(lambda part: part.to(like.device))
            every.append(expanded(repr(entry.name), support, (*lead, *entry.shape)))
        return tuple(every)

    @cached_property
    def selected(self) -> Support:
        """(replicates, B, S') which state of its variable each one is, and their log-weights."""
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
        """(replicates, B, S') where each stands in a flat table (B, S) of all states."""
        states = self.selected.states
        first = self.domain.state_starts[:-1].repeat_interleave(self.restricted.sizes)
        places = states + first.to(states.device)
        if self.site_places is not None:
            places = self.site_places.flatten().clamp(min=0)[places]  # nowhere: of no weight
        return places

    def of(self, numbers: Tensor) -> Tensor:
        """(replicates, B, n, K) states of (n,) variables of which equally many are selected."""
        sizes, starts = self.restricted.sizes, self.restricted.state_starts
        places = starts[numbers].unsqueeze(1) + torch.arange(int(sizes[numbers[0]]), device="cpu")
        return self.selected.states[..., places.to(self.selected.states.device)]

    def original(self, selected: Tensor, chosen: Tensor) -> Tensor:
        """Configurations of the model by those of its restrictions.

        Args:
            selected: (n, B, V) numbers among the selected states; -1 where a site is not used.
            chosen: (n, B) of which replicate.

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
