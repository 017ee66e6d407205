"""Lattices: paths through layers of nodes, as lists of the nodes and edges that a mask keeps."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from rdpgraph._cache import cached_property
from rdpgraph.structures.compact.inside import LOWEST, segments
from rdpgraph.structures.compact.layers import Layered


@dataclass(frozen=True, eq=False)
class Lattice(Layered):
    """Paths from the source of each item to its sink, along edges that lead to later layers.

    Time and memory are in proportion to the edges.

    Attributes:
        sources: (I,) the node that each item's paths begin at.
        sinks: (I,) and end at.
        rows: where each layer begins among the nodes, and their number; the first is the sources'.
        before: (E,) the node that each edge comes from, ordered by the node that it leads to.
        after: (E,) the node that it leads to.
        logs: (E,) their log-weights (nats).
    """

    sources: Tensor
    sinks: Tensor
    rows: tuple[int, ...]
    before: Tensor
    after: Tensor
    logs: Tensor

    @classmethod
    def of(
        cls,
        sources: Tensor,
        sinks: Tensor,
        rows: tuple[int, ...],
        *edges: tuple[Tensor, Tensor, Tensor],
    ) -> tuple["Lattice", Tensor]:
        """From lists of edges (before, after, log-weight); and where each stands, side by side."""
        before, after, logs = (torch.cat(own) for own in zip(*edges, strict=True))
        after, order = after.sort(stable=True)
        place = torch.empty_like(order)
        place[order] = torch.arange(len(order), device=order.device)
        return cls(sources, sinks, rows, before[order], after, logs[order]), place

    @property
    def made(self) -> Tensor:
        """The nodes that edges lead to."""
        return self.after

    @cached_property
    def sums(self) -> Tensor:
        """(nodes,) log-sums over the paths up to each."""
        sums = self.logs.new_full((self.rows[-1],), -math.inf)
        sums[self.sources] = 0.0
        for nodes, edges in self.layers:
            terms = sums[self.before[edges]] + self.logs[edges]
            segment = self.after[edges] - nodes.start
            sums[nodes] = segments(terms.unsqueeze(1), self.counts[nodes], segment).squeeze(1)
        return sums

    @cached_property
    def shares(self) -> Tensor:
        """(E,) the probability of each edge given the node that it leads to."""
        whole = self.sums.clamp(min=LOWEST)[self.after]
        return (self.sums[self.before] + self.logs - whole).exp()

    @property
    def log_partition(self) -> Tensor:
        """(I,) nats; -inf where an item has no path."""
        return self.sums[self.sinks]

    def expected(self) -> Tensor:
        """(E,) the probability that a path uses each edge."""
        nodes, edges = torch.zeros_like(self.sums), torch.zeros_like(self.logs)
        nodes[self.sinks] = (self.log_partition > -math.inf).to(nodes)
        for _, layer in reversed(self.layers):
            own = nodes[self.after[layer]] * self.shares[layer]
            nodes.index_add_(0, self.before[layer], own)
            edges[layer] = own
        return edges

    def draw(self, item: Tensor, generator: torch.Generator | None) -> Tensor:
        """The edges of exact draws of one path of each of some items, which have paths."""
        sums, done, node = self.shares.cumsum(0), [item[:0]], self.sinks[item]
        while len(node):
            edge = self.drawn(sums, node, generator)
            done.append(edge)
            node = self.before[edge]
            node = node[node >= self.rows[1]]
        return torch.cat(done)
