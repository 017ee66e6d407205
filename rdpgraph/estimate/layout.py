"""The kept states of all variables of a graph, side by side."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from rdpgraph._cache import cached_property
from rdpgraph.estimate.exact import Kept
from rdpgraph.model.graph import FactorGraph
from rdpgraph.model.support import Support


@dataclass(frozen=True, eq=False)
class Layout:
    """Where the kept states S' of all variables stand among all S of them; B items, flattened.

    Attributes:
        graph: the model as declared.
        kept: which states of it were kept.
    """

    graph: FactorGraph
    kept: Kept

    @property
    def batch(self) -> int:
        """B."""
        return math.prod(self.graph.batch_shape)

    @cached_property
    def _parts(self) -> tuple[Tensor, Tensor, Tensor]:
        graph, kept = self.graph, self.kept
        lead, flat = (kept.replicates, *graph.batch_shape), (kept.replicates, self.batch, -1)
        numbers = torch.repeat_interleave(torch.arange(graph.num_variables), self.sizes)
        # There may be no variable at all.
        states = [torch.zeros(*flat[:2], 0, dtype=torch.long)]
        weights = [torch.zeros(*flat[:2], 0, dtype=graph.dtype)]
        for entry, support in zip(graph.variables, kept.supports, strict=True):
            if support is None:
                everything = torch.arange(entry.size, device=graph.device)
                zero = torch.zeros((), dtype=graph.dtype, device=graph.device)
                support = Support(everything, zero.expand(entry.size))
                shape = (*(1,) * len(entry.shape), entry.size)
            else:
                shape = support.states.shape
            whole = (*lead, *entry.shape, support.kept)
            states.append(support.states.reshape(shape).expand(whole).reshape(flat))
            weights.append(support.log_weights.reshape(shape).expand(whole).reshape(flat))
        device = graph.device
        joined = torch.cat([part.to(device) for part in states], -1)
        first = _starts(graph.domain.sizes)[numbers].to(device)
        return joined, torch.cat([part.to(device) for part in weights], -1), joined + first

    @cached_property
    def sizes(self) -> Tensor:
        """(V,) how many states each variable keeps."""
        pairs = zip(self.graph.variables, self.kept.supports, strict=True)
        each = [
            torch.full((math.prod(entry.shape),), entry.size if s is None else s.kept)
            for entry, s in pairs
        ]
        return torch.cat([*each, torch.zeros(0, dtype=torch.long)])

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
        return int(self.graph.domain.sizes.sum())

    def starts(self, numbers: Tensor) -> Tensor:
        """Where the kept states of some variables begin."""
        return _starts(self.sizes)[numbers]

    def of(self, numbers: Tensor) -> Tensor:
        """(replicates, B, n, kept): those of (n,) variables that keep equally many."""
        kept = int(self.sizes[numbers[0]])
        places = self.starts(numbers).unsqueeze(1) + torch.arange(kept)
        return self.states[..., places.to(self.states.device)]


def _starts(sizes: Tensor) -> Tensor:
    return torch.nn.functional.pad(sizes.cumsum(0), (1, 0))
