"""Hypergraphs level by level: sums and maxima over derivations, and derivations from the top."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rdpgraph._cache import cached_property
from rdpgraph.model.semiring import soft_sum
from rdpgraph.structures.draws import Pick, require_possible


@dataclass(frozen=True, eq=False)
class Level:
    """Nodes whose tails are all of lower levels, with M ways to derive each.

    Attributes:
        nodes: (n,).
        weights: (B, n, M) log-weights (nats) of the ways.
        tails: (n, M, arity), or (B, n, M, arity) where each item has ways of its own; padded with
            the number of nodes.
    """

    nodes: Tensor
    weights: Tensor
    tails: Tensor

    def of_tails(self, values: Tensor) -> Tensor:
        """(B, n, M, arity) of values (B, nodes + 1)."""
        if self.tails.ndim == 3:
            return values[:, self.tails]
        return values.gather(1, self.tails.flatten(1)).reshape(self.tails.shape)

    def of_way(self, item: Tensor, place: Tensor, way: Tensor) -> Tensor:
        """(Q, arity) the tails of ways of some nodes, given by their places."""
        at = (place, way) if self.tails.ndim == 3 else (item, place, way)
        return self.tails[at]


@dataclass(frozen=True, eq=False)
class Hypergraph:
    """Hyperedges between nodes in topological order.

    Attributes:
        heads: (E,) nodes 0..nodes-1.
        tails: (E, arity) nodes, padded with -1.
        nodes: how many there are; the last one is the goal.
    """

    heads: Tensor
    tails: Tensor
    nodes: int

    @cached_property
    def edges(self) -> Sequence[Sequence[int]]:
        """Of each node, its hyperedges."""
        edges: list[list[int]] = [[] for _ in range(self.nodes)]
        for edge, head in enumerate(self.heads.tolist()):
            edges[head].append(edge)
        return edges

    @cached_property
    def below(self) -> Sequence[Sequence[int]]:
        """Of each hyperedge, its tails."""
        return [[tail for tail in row if tail >= 0] for row in self.tails.tolist()]

    @cached_property
    def levels(self) -> Sequence[tuple[Tensor, Tensor]]:
        """Nodes and their hyperedges, (nodes, most of them) padded with E, by depth."""
        depth, tails = [0] * self.nodes, self.tails.tolist()
        by_depth: dict[int, list[int]] = {}
        for node, edges in enumerate(self.edges):
            depths = [depth[tail] for edge in edges for tail in tails[edge] if tail >= 0]
            depth[node] = 1 + max(depths, default=-1)
            if edges:
                by_depth.setdefault(depth[node], []).append(node)
        levels: list[tuple[Tensor, Tensor]] = []
        for level in sorted(by_depth):
            # Nodes of about as many hyperedges, so that little of the padding is empty.
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
    def padded_tails(self) -> Tensor:
        """(E + 1, arity) the tails, the number of nodes for padding."""
        tails = torch.where(self.tails < 0, self.nodes, self.tails)
        return torch.nn.functional.pad(tails, (0, 0, 0, 1), value=self.nodes)

    @cached_property
    def each_once(self) -> bool:
        """Whether no derivation of the goal uses a node twice.

        One does where two tails of a hyperedge that it can use may both have a node below them.
        Nodes times hyperedges, a bit each.
        """
        within = list[int]()  # the nodes that a derivation of each may use; 0: it has none
        usable: list[list[int]] = []
        for node, own in enumerate(self.edges):
            usable.append([edge for edge in own if all(within[tail] for tail in self.below[edge])])
            used = 1 << node if usable[-1] else 0
            for edge in usable[-1]:
                for tail in self.below[edge]:
                    used |= within[tail]
            within.append(used)
        return all(
            self._disjoint(edge, within)
            for node, own in enumerate(usable)
            if within[-1] >> node & 1
            for edge in own
        )

    def _disjoint(self, edge: int, within: Sequence[int]) -> bool:
        """Whether no node is below two tails."""
        seen = 0
        for tail in self.below[edge]:
            if seen & within[tail]:
                return False
            seen |= within[tail]
        return True

    def _numbers(self, numbers: Sequence[int] | Sequence[Sequence[int]]) -> Tensor:
        return torch.tensor(numbers, dtype=torch.long, device=self.heads.device)

    def _padded(self, rows: Sequence[Sequence[int]]) -> Tensor:
        most = max(map(len, rows), default=0)
        return self._numbers([[*row, *[len(self.heads)] * (most - len(row))] for row in rows])


def inside(levels: Sequence[Level], like: Tensor, nodes: int, temperature: float) -> Tensor:
    """(B, nodes + 1) the log of the sum over each node's derivations; then 0, for no tail.

    Args:
        levels: from the lowest.
        like: (B, ...) of the type of the log-weights.
        nodes: how many there are.
        temperature: 1.0 for sums, 0.0 for maxima.
    """
    values = like.new_full((len(like), nodes + 1), -math.inf)
    values[:, nodes] = 0.0
    for level in levels:
        below = level.of_tails(values).sum(-1)
        values = values.index_copy(1, level.nodes, soft_sum(level.weights + below, 2, temperature))
    return values


def possible(values: Tensor) -> Tensor:
    """What `inside` gives, if every item has a derivation.

    Raises:
        ImpossibleEvidenceError: one has none.
    """
    require_possible("Derivations", values[:, -2] > -math.inf)
    return values


def derived(
    levels: Sequence[Level], values: Tensor, count: int, pick: Pick
) -> Iterator[tuple[Level, Tensor, Tensor, Tensor]]:
    """Derivations of the last node, from the top: which way is chosen for each node used.

    Args:
        levels: from the lowest.
        values: what `inside` gives; the goal has a derivation in every item.
        count: how many of each item.
        pick: chooses among the ways.

    Yields:
        A level, and (Q,) each rows of (count * B), places of its nodes, and ways: a node that is
        used twice has two.
    """
    item = torch.arange(len(values), device=values.device).repeat(count)
    needed = torch.zeros(len(item), values.shape[1], dtype=torch.long, device=values.device)
    needed[:, -2] = 1
    for level in reversed(levels):
        logs = level.weights + level.of_tails(values).sum(-1)
        row, place = needed[:, level.nodes].nonzero().unbind(1)
        # A node that is needed twice is derived twice.
        times = needed[row, level.nodes[place]]
        row, place = row.repeat_interleave(times), place.repeat_interleave(times)
        chosen = pick(logs[item[row], place])
        yield level, row, place, chosen
        below = level.of_way(item[row], place, chosen)
        needed.index_put_(
            (row.unsqueeze(1).expand_as(below), below), torch.ones_like(below), accumulate=True
        )


def best_through(levels: Sequence[Level], values: Tensor) -> Iterator[tuple[Level, Tensor]]:
    """The score of the best derivation of the last node with each way, (B, n, M), by level.

    Args:
        levels: from the lowest.
        values: what `inside` gives at temperature 0.
    """
    outside = torch.full_like(values, -math.inf)
    outside[:, -2] = 0.0
    for level in reversed(levels):
        above = outside[:, level.nodes].unsqueeze(2) + level.weights
        below = level.of_tails(values)
        yield level, above + below.sum(3)
        for slot in range(below.shape[3]):
            others = above + below[..., :slot].sum(3) + below[..., slot + 1 :].sum(3)
            into = level.tails[..., slot].expand(others.shape)
            outside.scatter_reduce_(1, into.flatten(1), others.flatten(1), "amax")
