"""Hypergraphs in levels, and the recursion over their derivations."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_

import torch
from torch import Tensor

from rdpgraph._core.cache import cached_property
from rdpgraph.structures.recursion.tape import Tape
from rdpgraph.structures.recursion.values import Value, View


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
    def levels(self) -> Sequence[tuple[Tensor, Tensor]]:
        """Nodes and their hyperedges, (nodes, most of them) padded with E, by depth."""
        depth, tails = [*[0] * self.nodes, -1], self.tails.tolist()  # the last is of no tail
        by_depth: dict[int, list[int]] = {}
        for node, edges in enumerate(self.edges):
            depths = [depth[tail] for edge in edges for tail in tails[edge]]
            depth[node] = 1 + max(depths, default=-1)
            if edges:
                by_depth.setdefault(depth[node], []).append(node)
        levels: list[tuple[Tensor, Tensor]] = []
        for level in sorted(by_depth):
            # Nodes with similar numbers of hyperedges, to limit padding.
            groups: dict[int, list[int]] = {}
            for node in by_depth[level]:
                groups.setdefault((len(self.edges[node]) - 1).bit_length(), []).append(node)
            levels += [
                (self._numbers(nodes), self._padded([self.edges[node] for node in nodes]))
                for nodes in groups.values()
            ]
        return levels

    @cached_property
    def by_node(self) -> Tensor:
        """(nodes, M) the hyperedges of each node, padded with E."""
        return self._padded(self.edges)

    @cached_property
    def rows(self) -> Sequence["Row"]:
        """Levels with all hyperedges of each node."""
        return [
            self.row(level, edges.mT.contiguous()) for level, (_, edges) in enumerate(self.levels)
        ]

    def row(self, level: int, edges: Tensor) -> "Row":
        """A level with some hyperedges of each node, (M, nodes) or (B, M, nodes); E: none."""
        places, used = self._tails
        return Row(edges, [places[slot][edges] for slot in used[level]])

    @cached_property
    def _places(self) -> Sequence[int]:
        """The index of each node among the values of `whole`, and last that of no tail.

        Index 0 is for no tail and 1 for nodes without derivations; the rest follow level by level.
        """
        place = [1] * self.nodes
        derived = [node for nodes, _ in self.levels for node in nodes.tolist()]
        for number, node in enumerate(derived):
            place[node] = number + 2
        return [*place, 0]

    @cached_property
    def _tails(self) -> tuple[Tensor, Sequence[Sequence[int]]]:
        """(arity, E + 1) the indices of tails, and the slots in use at each level."""
        tails = torch.nn.functional.pad(self.tails, (0, 0, 0, 1), value=-1).mT
        used = [(tails[:, edges] >= 0).flatten(1).any(1) for _, edges in self.levels]
        return self._numbers(self._places)[tails], [
            flags.nonzero().flatten().tolist() for flags in used
        ]

    def whole(self, tape: Tape, weights: Sequence[View], rows: Sequence["Row"]) -> Value:
        """The value of the goal, from log-weights (M, nodes) and rows of each level."""
        values = [tape.one, tape.nothing]
        for view, row in zip(weights, rows, strict=True):
            pool = tuple(values)
            tails = [View(pool, places) for places in row.tails]
            values.append(tape.total((view, *tails)))
        return tape.total(View(tuple(values), self._numbers([self._places[self.nodes - 1 :][:1]])))

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


@dataclass(frozen=True, eq=False)
class Row:
    """Hyperedges of the nodes of a level."""

    edges: Tensor  # (M, nodes), or (B, M, nodes) if items differ; E: none
    # Of that shape, the index of each tail among the values of the lower levels.
    tails: Sequence[Tensor]
