"""Hypergraphs as lists of hyperedges, by node."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_

import torch
from torch import Tensor

from rdpgraph._core.cache import cached_property


@dataclass(frozen=True, eq=False)
class Hypergraph:
    """Hyperedges between nodes in topological order."""

    heads: Tensor  # (E,) nodes 0..nodes-1
    tails: Tensor  # (E, arity) nodes, padded with -1
    nodes: int  # their number; the last one is the goal

    @cached_property
    def edges(self) -> Sequence[Sequence[int]]:
        """The hyperedges of each node."""
        edges: list[list[int]] = [[] for _ in range(self.nodes)]
        for edge, head in enumerate(self.heads.tolist()):
            edges[head].append(edge)
        return edges

    @cached_property
    def below(self) -> Sequence[Sequence[int]]:
        """The tails of each hyperedge."""
        return [[tail for tail in row if tail >= 0] for row in self.tails.tolist()]

    @cached_property
    def by_node(self) -> Tensor:
        """(nodes, M) the hyperedges of each node, padded with E."""
        return self._padded(self.edges)

    @cached_property
    def listed(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return the hyperedges as a list of rows, one for each node, after one for no tail.

        The results are (E,) the numbers of the hyperedges sorted by their heads; (nodes + 2,) where
        each row begins, the last entry being the end; and (E, arity) the tails of the hyperedges in
        this order, 0 for none.
        """
        order = self.heads.argsort(stable=True)
        every = torch.arange(self.nodes + 1, device=order.device)
        begins = torch.searchsorted(self.heads[order].contiguous(), every)
        return order, torch.nn.functional.pad(begins, (1, 0)), self.tails[order] + 1

    @cached_property
    def tails_by_node(self) -> Tensor:
        """(nodes, M, arity) the tails of the hyperedges of each node, from 1 on, 0 for none."""
        return torch.nn.functional.pad(self.tails + 1, (0, 0, 0, 1))[self.by_node]

    @cached_property
    def each_once(self) -> bool:
        """Return whether no derivation of the goal uses a node twice.

        One does if two tails of a usable hyperedge share a node below them. Bit sets: O(nodes E)
        bits.
        """
        within = list[int]()  # the nodes that a derivation of each may use; 0: it has none
        usable: list[list[int]] = []
        for node, ways in enumerate(self.edges):
            usable.append([edge for edge in ways if all(within[tail] for tail in self.below[edge])])
            used = 1 << node if usable[-1] else 0
            for edge in usable[-1]:
                for tail in self.below[edge]:
                    used |= within[tail]
            within.append(used)
        # Disjoint sets add up without a carry.
        return all(
            sum(within[tail] for tail in self.below[edge])
            == reduce(or_, (within[tail] for tail in self.below[edge]), 0)
            for node, edges in enumerate(usable)
            if within[-1] >> node & 1
            for edge in edges
        )

    def _numbers(self, numbers: Sequence[int] | Sequence[Sequence[int]]) -> Tensor:
        return torch.tensor(numbers, dtype=torch.long, device=self.heads.device)

    def _padded(self, rows: Sequence[Sequence[int]]) -> Tensor:
        most = max(map(len, rows), default=0)
        return self._numbers([[*row, *[len(self.heads)] * (most - len(row))] for row in rows])
