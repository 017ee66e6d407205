"""Best arborescences (Chu and Liu; Edmonds): one, the k best, and the best one with each arc.

Items are taken one by one, in Python.
"""

import heapq
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from rdpgraph._types import Arcs, Lengths

Scores = list[list[float]]
"""Of each word, those of its heads 0..n, nats."""


def best(unary: Arcs, lengths: Lengths, *, multiroot: bool) -> Tensor:
    """(B, n) the heads of one best tree of each item, all of which have one.

    Args:
        unary: (B, n, n + 1) in nats, [word, head], -inf where there is no arc.
        lengths: (B,).
        multiroot: whether more than one word may have the root as its head.
    """
    heads = torch.zeros(unary.shape[:2], dtype=torch.int64)
    for item, scores in _items(unary, lengths):
        heads[item, : len(scores)] = torch.tensor(best_of_one(scores, multiroot=multiroot)[1])
    return heads.to(unary.device)


def k_best(unary: Arcs, lengths: Lengths, k: int, *, multiroot: bool) -> Tensor:
    """(k, B, n) the heads of the best trees, best first; -1 throughout where there are fewer.

    The trees that remain are parted by the first word whose head differs from that of the one
    found last (Lawler 1972): n best trees for each of the k. Other arguments as for `best`.
    """
    heads = torch.full((k, *unary.shape[:2]), -1)
    for item, scores in _items(unary, lengths):
        for rank, found in enumerate(_k_best_of_one(scores, k, multiroot=multiroot)):
            heads[rank, item, : len(scores)] = torch.tensor(found)
    return heads.to(unary.device)


def max_marginals(unary: Arcs, lengths: Lengths, *, multiroot: bool) -> Arcs:
    """(B, n, n + 1) the score of the best tree with each arc, -inf where there is none.

    One best tree for each arc: O(n^5). Arguments as for `best`.
    """
    result = torch.full(unary.shape, -math.inf, dtype=torch.float64)
    for item, scores in _items(unary, lengths):
        for word, head in itertools.product(range(len(scores)), range(len(scores) + 1)):
            if scores[word][head] > -math.inf:
                only = _changed(scores, word, lambda other, head=head: other == head)
                result[item, word, head] = best_of_one(only, multiroot=multiroot)[0]
    return result.to(unary)


def _items(unary: Arcs, lengths: Lengths) -> list[tuple[int, Scores]]:
    """Those of any words, with their scores."""
    values = unary.detach().double().cpu()
    return [
        (item, values[item, :length, : length + 1].tolist())
        for item, length in enumerate(lengths.tolist())
        if length
    ]


def _changed(scores: Scores, word: int, allowed: Callable[[int], bool]) -> Scores:
    """The same with some heads of a word alone."""
    row = [value if allowed(head) else -math.inf for head, value in enumerate(scores[word])]
    return [*scores[:word], row, *scores[word + 1 :]]


def best_of_one(scores: Scores, *, multiroot: bool) -> tuple[float, list[int]]:
    """The score and the heads of one best tree; -inf, and any heads, where there is none."""
    heads = edmonds(scores)
    if multiroot or heads.count(0) == 1:
        return _total(scores, heads), heads
    options = [(-math.inf, heads)]
    for root, row in enumerate(scores):
        if row[0] > -math.inf:
            only = [[r[0] if word == root else -math.inf, *r[1:]] for word, r in enumerate(scores)]
            heads = edmonds(only)
            options.append((_total(only, heads), heads))
    return max(options)


def _k_best_of_one(scores: Scores, k: int, *, multiroot: bool) -> list[list[int]]:
    """The heads of the words of the best trees."""
    score, heads = best_of_one(scores, multiroot=multiroot)
    # The words before `fixed` keep their heads in all trees of an entry.
    heap = [(-score, heads, scores, 0)] if score > -math.inf else []
    found: list[list[int]] = []
    while heap and len(found) < k:
        _, heads, scores, fixed = heapq.heappop(heap)
        found.append(heads)
        for word in range(fixed, len(heads)):
            others = _changed(scores, word, lambda head, own=heads[word]: head != own)
            score, best_heads = best_of_one(others, multiroot=multiroot)
            if score > -math.inf:
                heapq.heappush(heap, (-score, best_heads, others, word))
            scores = _changed(scores, word, lambda head, own=heads[word]: head == own)
    return found


def _total(scores: Scores, heads: list[int]) -> float:
    return sum(row[head] for row, head in zip(scores, heads, strict=True))


def edmonds(scores: Scores) -> list[int]:
    """The heads 0..n of n words in a best arborescence rooted at 0 (Chu and Liu; Edmonds). O(n^3).

    Where there is none, some heads of words are arbitrary, and the total is -inf.

    Args:
        scores: for each word those of the heads 0..n.
    """
    contracted: list[_Contraction] = []
    while True:
        heads = [max(range(len(scores) + 1), key=row.__getitem__) for row in scores]
        cycle = _cycle(heads)
        if not cycle:
            break
        scores, found = _contracted(scores, heads, cycle)
        contracted.append(found)
    for each in reversed(contracted):
        heads = each.opened(heads)
    return heads


@dataclass(frozen=True)
class _Contraction:
    """How a cycle became one node, the last of a smaller problem.

    Attributes:
        heads: of all words, the cycle closed.
        nodes: those outside of the cycle, in their order.
        leaving: for each word outside, the best head in the cycle.
        entering: for each node outside, the word of the cycle that it is best a head of.
    """

    heads: list[int]
    nodes: list[int]
    leaving: list[int]
    entering: list[int]

    def opened(self, found: list[int]) -> list[int]:
        """The heads of all words, from those of the smaller problem."""
        result = list(self.heads)
        for place, word in enumerate(self.nodes[1:]):
            head = found[place]
            inside = head == len(self.nodes)
            result[word - 1] = self.leaving[place] if inside else self.nodes[head]
        outside = found[-1] if found[-1] < len(self.nodes) else 0
        result[self.entering[outside] - 1] = self.nodes[outside]
        return result


def _contracted(scores: Scores, heads: list[int], cycle: list[int]) -> tuple[Scores, _Contraction]:
    ring = set(cycle)
    rest = [word for word in range(1, len(scores) + 1) if word not in ring]
    # The words left keep their order, and the cycle is the last of the smaller problem.
    nodes = [0, *rest]
    lost = {word: scores[word - 1][heads[word - 1]] for word in cycle}
    smaller: Scores = []
    leaving: list[int] = []
    for word in rest:
        row = scores[word - 1]
        leaving.append(max(cycle, key=row.__getitem__))
        smaller.append([*(row[node] for node in nodes), row[leaving[-1]]])
    entering: list[int] = []
    entry: list[float] = []
    for node in nodes:
        gains = {word: _gain(scores[word - 1][node], lost[word]) for word in cycle}
        entering.append(max(cycle, key=gains.__getitem__))
        entry.append(gains[entering[-1]])
    smaller.append([*entry, -math.inf])
    return smaller, _Contraction(heads, nodes, leaving, entering)


def _gain(score: float, lost: float) -> float:
    return -math.inf if score == -math.inf else score - lost


def _cycle(heads: list[int]) -> list[int]:
    """The words of a cycle, or none."""
    state = [0] * (len(heads) + 1)
    state[0] = 2
    for start in range(1, len(heads) + 1):
        path: list[int] = []
        word = start
        while state[word] == 0:
            state[word] = 1
            path.append(word)
            word = heads[word - 1]
        if state[word] == 1:
            return path[path.index(word) :]
        for passed in path:
            state[passed] = 2
    return []
