"""The k best derivations of a hypergraph (Huang and Chiang 2005, algorithm 2)."""

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass

Best = tuple[float, int, tuple[int, ...]]
"""Score, hyperedge, and which of the best derivations of each of its tails."""


@dataclass(frozen=True, eq=False)
class Forest:
    """A hypergraph in lists.

    Attributes:
        edges: of each node, in topological order, its hyperedges.
        tails: of each hyperedge.
    """

    edges: Sequence[Sequence[int]]
    tails: Sequence[Sequence[int]]

    def k_best(self, weights: Sequence[float], k: int) -> list[list[int]]:
        """Of the last node's best derivations, best first, how often each uses every hyperedge.

        O(E log k + nodes k log k).
        """
        best: list[list[Best]] = []
        for edges in self.edges:
            best.append(self._of_node(edges, weights, best, k))
        return [self._uses(best, len(best) - 1, rank) for rank in range(len(best[-1]))]

    def _of_node(
        self, edges: Sequence[int], weights: Sequence[float], best: list[list[Best]], k: int
    ) -> list[Best]:
        heap: list[Best] = []
        seen = set[tuple[int, tuple[int, ...]]]()

        def push(edge: int, ranks: tuple[int, ...]) -> None:
            tails = self.tails[edge]
            ready = all(rank < len(best[tail]) for tail, rank in zip(tails, ranks, strict=True))
            if ready and (edge, ranks) not in seen and weights[edge] > -math.inf:
                seen.add((edge, ranks))
                below = (best[tail][rank][0] for tail, rank in zip(tails, ranks, strict=True))
                heapq.heappush(heap, (-(weights[edge] + sum(below)), edge, ranks))

        for edge in edges:
            push(edge, (0,) * len(self.tails[edge]))
        listed: list[Best] = []
        while heap and len(listed) < k:
            score, edge, ranks = heapq.heappop(heap)
            listed.append((-score, edge, ranks))
            for slot in range(len(ranks)):
                push(edge, (*ranks[:slot], ranks[slot] + 1, *ranks[slot + 1 :]))
        return listed

    def _uses(self, best: list[list[Best]], node: int, rank: int) -> list[int]:
        uses = [0] * len(self.tails)
        waiting = [(node, rank)]
        while waiting:
            here, place = waiting.pop()
            _, edge, ranks = best[here][place]
            uses[edge] += 1
            waiting += zip(self.tails[edge], ranks, strict=True)
        return uses
