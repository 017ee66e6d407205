"""The kept states of all variables of a model, side by side."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from rdpgraph._cache import cached_property
from rdpgraph.estimate.problem import Model
from rdpgraph.model.structure import Structure
from rdpgraph.model.support import Support


@dataclass(frozen=True, eq=False)
class Layout:
    """Where the kept states S' of all variables stand among all S of them; B items, flattened.

    Attributes:
        model: as declared; the sites of a structure are its variables.
        supports: (replicates, *batch, *shape, kept) for each variable or array of a graph, in its
            order; None where all states are kept. A structure has one, over its sites.
        replicates: how many choices there are.
    """

    model: Model
    supports: tuple[Support | None, ...]
    replicates: int

    @property
    def batch(self) -> int:
        """B."""
        return math.prod(self.model.batch_shape)

    @cached_property
    def entries(self) -> list[tuple[tuple[int, ...], int]]:
        """Of each variable, array or structure its shape and its number of states."""
        model = self.model
        if isinstance(model, Structure):
            shape = tuple(model.unary.shape[len(model.batch_shape) :])
            shape = shape if self.site_places is None else tuple(self.site_places.shape)
            return [(shape[:-1], shape[-1])]
        return [(entry.shape, entry.size) for entry in model.variables]

    @cached_property
    def _parts(self) -> tuple[Tensor, Tensor, Tensor]:
        like = self.model.unary if isinstance(self.model, Structure) else self.model
        dtype, device = like.dtype, like.device
        lead, flat = (self.replicates, *self.model.batch_shape), (self.replicates, self.batch, -1)
        # There may be no variable at all.
        states = [torch.zeros(*flat[:2], 0, dtype=torch.long, device=device)]
        weights = [torch.zeros(*flat[:2], 0, dtype=dtype, device=device)]
        for (shape, size), support in zip(self.entries, self.supports, strict=True):
            if support is None:
                everything = torch.arange(size, device=device)
                zero = torch.zeros((), dtype=dtype, device=device)
                support = Support(everything, zero.expand(size))
                own = (*(1,) * len(shape), size)
            else:
                own = support.states.shape
            whole, count = (*lead, *shape, support.kept), math.prod(shape) * support.kept
            flat = (self.replicates, self.batch, count)
            for parts, values in ((states, support.states), (weights, support.log_weights)):
                parts.append(values.reshape(own).expand(whole).reshape(flat).to(device))
        joined = torch.cat(states, -1)
        first = _starts(self.all_sizes).repeat_interleave(self.sizes).to(device)
        places = joined + first
        if self.site_places is not None:
            places = self.site_places.flatten().clamp(min=0)[places]  # nowhere: of no weight
        return joined, torch.cat(weights, -1), places

    @cached_property
    def site_places(self) -> Tensor | None:
        """(*sites, states) where they stand in the potentials of a structure that has no sites."""
        return self.model.site_places() if isinstance(self.model, Structure) else None

    def used(self, states: Tensor) -> Tensor:
        """Configurations (..., B, V) of states of sites, -1 where one is not used, in the model's.

        The same, or how often each of its potentials is used, (..., B, S).
        """
        if self.site_places is None:
            return states
        places = self.site_places.flatten(0, -2).expand(*states.shape, -1)
        places = places.gather(-1, states.clamp(min=0).unsqueeze(-1)).squeeze(-1)
        uses = states.new_zeros(*states.shape[:-1], self.num_states)
        return uses.scatter_add(-1, places, (states >= 0).to(states))

    def _each(self, sizes: list[int]) -> Tensor:
        """(V,) from a number for each entry."""
        counts = [math.prod(shape) for shape, _ in self.entries]
        return torch.tensor(sizes, dtype=torch.long).repeat_interleave(
            torch.tensor(counts, dtype=torch.long)
        )

    @cached_property
    def all_sizes(self) -> Tensor:
        """(V,) how many states each variable has."""
        return self._each([size for _, size in self.entries])

    @cached_property
    def sizes(self) -> Tensor:
        """(V,) how many states each variable keeps."""
        pairs = zip(self.entries, self.supports, strict=True)
        return self._each([size if s is None else s.kept for (_, size), s in pairs])

    @property
    def states(self) -> Tensor:
        """(replicates, B, S') which state of its variable each one is."""
        return self._parts[0]

    @property
    def log_weights(self) -> Tensor:
        """(replicates, B, S') nats."""
        return self._parts[1]

    @property
    def places(self) -> Tensor:
        """(replicates, B, S') where it stands in a flat table (B, S) of all states."""
        return self._parts[2]

    @property
    def num_states(self) -> int:
        """S."""
        if self.site_places is None:
            return int(self.all_sizes.sum())
        assert isinstance(self.model, Structure)
        return self.model.unary.shape[-1]

    def starts(self, numbers: Tensor) -> Tensor:
        """Where the kept states of some variables begin."""
        return _starts(self.sizes)[numbers]

    def of(self, numbers: Tensor) -> Tensor:
        """(replicates, B, n, kept): those of (n,) variables that keep equally many."""
        kept = int(self.sizes[numbers[0]])
        places = self.starts(numbers).unsqueeze(1) + torch.arange(kept)
        return self.states[..., places.to(self.states.device)]


def _starts(sizes: Tensor) -> Tensor:
    return sizes.cumsum(0) - sizes
