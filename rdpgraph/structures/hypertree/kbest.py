"""The k best trees, by lazy lists (Huang and Chiang 2005, "Better k-best parsing", algorithm 3)."""

import heapq
import math

import torch
from torch import Tensor

from rdpgraph.structures.hypertree.charts import HypertreeTensors
from rdpgraph.structures.hypertree.rules import DenseRules
from rdpgraph.structures.hypertree.sparse_rules import SparseRules

Node = tuple[int, int, int]
"""First word, last word, state."""
Edge = tuple[float, int, int, int]
"""The rule's log-weight with the parent's potential, the split, the states of the parts."""


@torch.no_grad()
def k_best(parts: HypertreeTensors, rows: list[Tensor], root: Tensor, k: int) -> Tensor:
    """(k, B, T, T) states of the k best trees of each item, -1 throughout where there are fewer.

    Args:
        parts: the hypertree, in doubles.
        rows: by width (B, T - width, C) the best scores of spans.
        root: (1 or B, C).
        k: at least 1.
    """
    batch, total = parts.leaves.shape[:2]
    trees = torch.full((k, batch, total, total), -1)
    root = root.expand(batch, -1)
    for item, length in enumerate(parts.lengths.tolist()):
        if length:
            lists = _Lists(parts, [row[item] for row in rows], item, k)
            for place, nodes in enumerate(lists.trees(length, root[item])):
                for first, last, state in nodes:
                    trees[place, item, first, last] = state
    return trees.to(parts.leaves.device)


class _Lists:
    """The lists of one item, grown when they are asked for."""

    def __init__(self, parts: HypertreeTensors, rows: list[Tensor], item: int, k: int) -> None:
        self.parts, self.rows, self.item, self.k = parts, rows, item, k
        rules = parts.rules
        self.table, self.listed = None, None
        if isinstance(rules, DenseRules):
            self.table = rules.log_rule[item if len(rules.log_rule) > 1 else 0]
        elif isinstance(rules, SparseRules):
            self.listed = rules.item(torch.tensor([item], device=rules.log_weights.device))
        self.done: dict[Node, list[tuple[float, int, int, int]]] = {}
        self.heaps: dict[Node, list[tuple[float, int, int, int]]] = {}
        self.edges: dict[Node, list[Edge]] = {}
        self.seen: dict[Node, set[tuple[int, int, int]]] = {}

    def trees(self, length: int, root: Tensor) -> list[list[Node]]:
        """The nodes of the k best trees."""
        tops = root.tolist()
        heap = []
        scores = (self.rows[length - 1][0] + root).tolist()
        for state, score in enumerate(scores):
            if score > -math.inf:
                heap.append((-score, state, 0))
        heapq.heapify(heap)
        result: list[list[Node]] = []
        while heap and len(result) < self.k:
            _, state, rank = heapq.heappop(heap)
            node = (0, length - 1, state)
            result.append(self._tree(node, rank))
            score = self._score(node, rank + 1)
            if score is not None:
                heapq.heappush(heap, (-(score + tops[state]), state, rank + 1))
        return result

    def _tree(self, node: Node, rank: int) -> list[Node]:
        nodes: list[Node] = []
        waiting = [(node, rank)]
        while waiting:
            here, place = waiting.pop()
            nodes.append(here)
            if here[0] == here[1]:
                continue
            self._score(here, place)
            _, number, left, right = self.done[here][place]
            _, split, a, b = self.edges[here][number]
            waiting.append(((here[0], split, a), left))
            waiting.append(((split + 1, here[1], b), right))
        return nodes

    def _score(self, node: Node, rank: int) -> float | None:
        """The score of the tree of a rank under a node; None if there are fewer."""
        first, last, state = node
        if first == last:
            value = float(self.rows[0][first, state])
            return value if rank == 0 and value > -math.inf else None
        if node not in self.done:
            self._start(node)
        done, heap = self.done[node], self.heaps[node]
        while len(done) <= rank:
            if done:
                self._extend(node, *done[-1][1:])
            if not heap:
                return None
            score, number, left, right = heapq.heappop(heap)
            done.append((-score, number, left, right))
        return done[rank][0]

    def _start(self, node: Node) -> None:
        self.done[node], self.heaps[node], self.seen[node] = [], [], set()
        self.edges[node] = self._edges(node)
        for number in range(len(self.edges[node])):
            self._push(node, number, 0, 0)

    def _extend(self, node: Node, number: int, left: int, right: int) -> None:
        self._push(node, number, left + 1, right)
        self._push(node, number, left, right + 1)

    def _push(self, node: Node, number: int, left: int, right: int) -> None:
        key = (number, left, right)
        if key in self.seen[node]:
            return
        self.seen[node].add(key)
        first, last, _ = node
        own, split, a, b = self.edges[node][number]
        one = self._score((first, split, a), left)
        two = None if one is None else self._score((split + 1, last, b), right)
        if one is not None and two is not None:
            heapq.heappush(self.heaps[node], (-(own + one + two), *key))

    def _edges(self, node: Node) -> list[Edge]:
        """The k edges whose best trees are best: no other is among the k best."""
        first, last, state = node
        width = last - first
        left = torch.stack([self.rows[place][first] for place in range(width)])
        right = torch.stack([self.rows[width - 1 - m][first + m + 1] for m in range(width)])
        phi = float(self.parts.spans[self.item, first, last, state])
        if self.listed is not None:
            return self._listed(self.listed, left, right, node, phi)
        scores = left.unsqueeze(2) + right.unsqueeze(1)
        rule = scores.new_zeros(scores.shape[1:]) if self.table is None else self.table[state]
        scores = scores + rule
        values, places = scores.flatten().topk(min(self.k, scores.numel()))
        size = scores.shape[2]
        edges: list[Edge] = []
        for value, place in zip(values.tolist(), places.tolist(), strict=True):
            if value == -math.inf:
                break
            split, a, b = place // size**2, place // size % size, place % size
            edges.append((float(rule[a, b]) + phi, first + split, a, b))
        return edges

    def _listed(
        self, rules: SparseRules, left: Tensor, right: Tensor, node: Node, phi: float
    ) -> list[Edge]:
        """The same of rules in a list, left and right parts (w, C)."""
        first, _, state = node
        rows = rules.by_parent[0][state][rules.by_parent[1][state]]
        if not len(rows):
            return []
        _, a, b = rules.triples[rows].unbind(1)
        weights = rules.log_weights[0, rows]
        scores = left[:, a] + right[:, b] + weights
        values, places = scores.flatten().topk(min(self.k, scores.numel()))
        edges: list[Edge] = []
        for value, place in zip(values.tolist(), places.tolist(), strict=True):
            if value == -math.inf:
                break
            split, rule = divmod(place, len(rows))
            edges.append((float(weights[rule]) + phi, first + split, int(a[rule]), int(b[rule])))
        return edges
