"""The selected states of all variables of a model, side by side."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from rdpgraph._cache import cached_property
from rdpgraph.estimate.problem import Model, Supports
from rdpgraph.model.structure import Structure
from rdpgraph.model.support import Support


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
    def entries(self) -> list[tuple[tuple[int, ...], int]]:
        """Of each variable, array or structure its shape and its number of states."""
        if not isinstance(self.model, Structure):
            return [(entry.shape, entry.size) for entry in self.model.variables]
        shape = tuple(self.model.unary.shape[len(self.model.batch_shape) :])
        shape = shape if self.site_places is None else tuple(self.site_places.shape)
        return [(shape[:-1], shape[-1])]

    def of_variables(self, values: list[int]) -> Tensor:
        """(V,) from a number for each entry."""
        counts = torch.tensor([math.prod(shape) for shape, _ in self.entries], dtype=torch.long)
        return torch.tensor(values, dtype=torch.long).repeat_interleave(counts)

    @cached_property
    def sizes(self) -> Tensor:
        """(V,) how many states of each variable are selected."""
        return self.of_variables([support.kept for support in self.expanded])

    @cached_property
    def starts(self) -> Tensor:
        """(V,) where the selected states of each variable begin."""
        return self.sizes.cumsum(0) - self.sizes

    @cached_property
    def _all_sizes(self) -> Tensor:
        """(V,) how many states each variable has."""
        return self.of_variables([size for _, size in self.entries])

    @property
    def num_states(self) -> int:
        """S, the number of states of all variables."""
        if self.site_places is None:
            return int(self._all_sizes.sum())
        assert isinstance(self.model, Structure)
        return self.model.unary.shape[-1]

    @cached_property
    def expanded(self) -> tuple[Support, ...]:
        """For each entry (replicates, *batch, *shape, K), all states where all are selected."""
        like = self.model.unary if isinstance(self.model, Structure) else self.model
        expanded: list[Support] = []
        for (shape, size), support in zip(self.entries, self.supports, strict=True):
            states = torch.arange(size) if support is None else support.states
            weights = (
                torch.zeros(size, dtype=like.dtype) if support is None else support.log_weights
            )
            lead = (self.replicates, *self.model.batch_shape, *shape, states.shape[-1])
            states, weights = (part.to(like.device).expand(lead) for part in (states, weights))
            expanded.append(Support(states, weights))
        return tuple(expanded)

    @cached_property
    def selected(self) -> Support:
        """(replicates, B, S') which state of its variable each one is, and their log-weights."""
        like = self.model.unary if isinstance(self.model, Structure) else self.model
        batch, lead = 1 + len(self.model.batch_shape), (self.replicates, self.batch)
        # There may be no variable at all.
        states = [torch.zeros(*lead, 0, dtype=torch.long, device=like.device)]
        weights = [torch.zeros(*lead, 0, dtype=like.dtype, device=like.device)]
        for support in self.expanded:
            flat = (*lead, math.prod(support.states.shape[batch:]))
            states.append(support.states.reshape(flat))
            weights.append(support.log_weights.reshape(flat))
        return Support(torch.cat(states, -1), torch.cat(weights, -1))

    @cached_property
    def places(self) -> Tensor:
        """(replicates, B, S') where it stands in a flat table (B, S) of all states."""
        first = self._all_sizes.cumsum(0) - self._all_sizes
        states = self.selected.states
        places = states + first.repeat_interleave(self.sizes).to(states.device)
        if self.site_places is not None:
            places = self.site_places.flatten().clamp(min=0)[places]  # nowhere: of no weight
        return places

    def of(self, numbers: Tensor) -> Tensor:
        """(replicates, B, n, K) states of (n,) variables of which equally many are selected."""
        places = self.starts[numbers].unsqueeze(1) + torch.arange(int(self.sizes[numbers[0]]))
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
        places = selected.clamp(min=0) + self.starts.to(known.device)
        states = known[chosen.to(known.device).unsqueeze(-1), batch, places]
        states = torch.where(selected < 0, selected, states)
        if self.site_places is None:
            return states
        places = self.site_places.flatten(0, -2).expand(*states.shape, -1)
        places = places.gather(-1, states.clamp(min=0).unsqueeze(-1)).squeeze(-1)
        uses = states.new_zeros(*states.shape[:-1], self.num_states)
        return uses.scatter_add(-1, places, (states >= 0).to(states))
