"""What lists of nodes, layer by layer, and of the ways to make each have in common."""

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from rdpgraph._cache import cached_property


class Layered(ABC):
    """Nodes in layers, and the ways to make each from nodes of earlier layers.

    Attributes:
        rows: where each layer begins among the nodes, and their number.
    """

    rows: tuple[int, ...]

    @property
    @abstractmethod
    def made(self) -> Tensor:
        """(E,) the node that each way makes, rising."""

    @cached_property
    def counts(self) -> Tensor:
        """(nodes,) how many ways make each."""
        return torch.bincount(self.made, minlength=self.rows[-1])

    @cached_property
    def begins(self) -> Tensor:
        """(nodes + 1,) where those of each node begin."""
        return torch.nn.functional.pad(self.counts.cumsum(0), (1, 0))

    @cached_property
    def layers(self) -> list[tuple[slice, slice]]:
        """The nodes of each layer that has ways to make them, and these."""
        edges = self.begins[torch.tensor(self.rows, device=self.begins.device)].tolist()
        bounds = zip(self.rows, self.rows[1:], edges, edges[1:], strict=False)
        return [(slice(a, b), slice(c, d)) for a, b, c, d in bounds if c < d]

    def drawn(self, sums: Tensor, nodes: Tensor, generator: torch.Generator | None) -> Tensor:
        """(n,) a way to make each node, by running sums (E,) of the shares of all ways."""
        return drawn_between(sums, self.begins[nodes], self.begins[nodes + 1], generator)


def drawn_between(
    sums: Tensor, start: Tensor, stop: Tensor, generator: torch.Generator | None
) -> Tensor:
    """(n,) a place from each start on, before its stop, drawn by running sums of weights."""
    low = torch.where(start > 0, sums[start - 1], 0.0)
    target = low + uniform(len(low), low, generator) * (sums[stop - 1] - low)
    place = torch.searchsorted(sums, target, right=True)
    return torch.minimum(torch.maximum(place, start), stop - 1)


def uniform(count: int, like: Tensor, generator: torch.Generator | None) -> Tensor:
    """(count,) numbers from 0 to 1, where and of the type of another tensor."""
    source = like.device if generator is None else generator.device
    drawn = torch.rand(count, generator=generator, dtype=like.dtype, device=source)
    return drawn.to(like.device)
