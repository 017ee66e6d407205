"""The k best arborescences of short sentences (Chu and Liu; Edmonds; Lawler 1972), in Python.

Plain lists beat torch at this size. Scores are integers, multiples of a power of two, so that sums
and differences are exact. With one root, each of its arcs costs more than all other arcs can bring,
so that a best tree has as few of them as it can.
"""

import heapq
import math

import torch

from rdpgraph._core.types import Arcs, Heads, Lengths

Scores = list[list[float]]
"""Scores of the heads 0..n of each word: integers, or -inf."""


def quicker(batch: int, words: int) -> bool:
    """Return whether this is faster than max-marginals of all items at once, as measured."""
    return batch * (max(words, 4) / 10) ** 1.5 <= 4


def k_best(unary: Arcs, lengths: Lengths, k: int, *, multiroot: bool) -> Heads:
    """(k, B, n) the heads of the best trees, best first; -1 throughout where there are fewer.

    Remaining trees are partitioned by the first word whose head differs from the last tree's: n
    best trees for each of the k. Arguments as for `nonprojective.log_partition`.
    """
    trees = torch.full((k, *unary.shape[:2]), -1, device="cpu")
    values = unary.detach().double().cpu()
    for item, length in enumerate(lengths.tolist()):
        if length:
            scores = _whole(values[item, :length, : length + 1].tolist(), multiroot=multiroot)
            best = _k_best(scores, k, multiroot=multiroot)
            trees[: len(best), item, :length] = torch.tensor(best, device="cpu").reshape(-1, length)
    return trees.to(unary.device)


def _whole(scores: Scores, *, multiroot: bool) -> Scores:
    """Scores as integers, with the cost of the root's arcs."""
    ratios = [
        [score.as_integer_ratio() if score > -math.inf else (0, 1) for score in row]
        for row in scores
    ]
    unit = max(below for row in ratios for _, below in row)
    whole: Scores = [[above * (unit // below) for above, below in row] for row in ratios]
    cost = 0 if multiroot else 1 + 2 * len(scores) * max(abs(n) for row in whole for n in row)
    for row, given in zip(whole, scores, strict=True):
        row[0] -= cost
        for head, score in enumerate(given):
            if score == -math.inf:
                row[head] = score
    return whole


def _k_best(scores: Scores, k: int, *, multiroot: bool) -> list[list[int]]:
    """The heads of the words of the best trees."""
    # The words before `fixed` keep their heads in all trees of an entry.
    heap: list[tuple[float, list[int], Scores, int]] = []

    def push(scores: Scores, fixed: int) -> None:
        heads = _best(scores)
        total = sum(row[head] for row, head in zip(scores, heads, strict=True))
        if total > -math.inf and (multiroot or heads.count(0) == 1):
            heapq.heappush(heap, (-total, heads, scores, fixed))

    push(scores, 0)
    best: list[list[int]] = []
    while heap:
        _, heads, scores, fixed = heapq.heappop(heap)
        best.append(heads)
        if len(best) == k:
            break
        for word in range(fixed, len(heads)):
            row, head = scores[word], heads[word]
            others = [*row[:head], -math.inf, *row[head + 1 :]]
            only = [-math.inf] * len(row)
            only[head] = row[head]
            push([*scores[:word], others, *scores[word + 1 :]], word)
            scores = [*scores[:word], only, *scores[word + 1 :]]
    return best


def _best(scores: Scores) -> list[int]:
    """The heads 0..n of n words in a best arborescence rooted at 0. O(n^3).

    If there is none, some heads are arbitrary, and their total is -inf.
    """
    count = len(scores)
    heads = [row.index(max(row)) for row in scores]
    cycle = _cycle(heads)
    if not cycle:
        return heads
    ring = set(cycle)
    rest = [word for word in range(1, count + 1) if word not in ring]
    # The remaining words keep their order; the contracted cycle is the last node.
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
        gains = {word: _less(scores[word - 1][node], lost[word]) for word in cycle}
        entering.append(max(cycle, key=gains.__getitem__))
        entry.append(gains[entering[-1]])
    smaller.append([*entry, -math.inf])
    contracted = _best(smaller)
    result = list(heads)
    for place, word in enumerate(rest):
        head = contracted[place]
        result[word - 1] = leaving[place] if head == len(nodes) else nodes[head]
    outside = contracted[-1] if contracted[-1] < len(nodes) else 0
    result[entering[outside] - 1] = nodes[outside]
    return result


def _less(score: float, lost: float) -> float:
    return -math.inf if score == -math.inf else score - lost


def _cycle(heads: list[int]) -> list[int]:
    """The words of a cycle, or an empty list."""
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
