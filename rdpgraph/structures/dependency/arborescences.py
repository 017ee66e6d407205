"""Spanning arborescences by eliminating words: best trees, draws and max-marginals.

The recursion of `trees.in_logs` adds, multiplies and divides weights, but never
subtracts, so it holds in maxima too: one elimination of O(n^3) finds best trees of all items at
once, instead of contracting cycles item by item (Chu and Liu; Edmonds).

With one root, log-values are pairs, (2, ...): the order, minus the number of the root's arcs, and
the value in nats. Terms of the highest order count in a sum, as if the weight of the root's arcs
went to zero. Otherwise log-values are (1, ...). Absence is -inf in both.

The k best (Chu and Liu; Edmonds; Camerini, Fratta and Maffioli 1980) take plain lists, sentence by
sentence. Scores are integers, multiples of a power of two, so that sums and differences are exact.
With one root, each of its arcs costs more than all other arcs can bring, so that a best tree has as
few of them as it can.
"""

import heapq
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from rdpgraph._core.types import Arcs, Heads, Lengths
from rdpgraph.structures.draws import Pick

_LOWEST = torch.finfo(torch.float64).min


@dataclass(frozen=True, eq=False)
class Eliminated:
    """The words of B items, eliminated from the last to the first."""

    # Of each word k, from the first, (O, B, k + 1) its arcs from the positions before it, once the
    # words after it are eliminated.
    heads: list[Tensor]
    # Of each word k, (B, k, k + 1) log-odds (nats) that an arc from each position to a word before
    # k goes through k.
    odds: list[Tensor]
    possible: Tensor  # (B,) whether there is a tree

    def descend(self, count: int, pick: Pick) -> Heads:
        """(count * B, n) heads of trees of possible items. O(n^2 log n) each.

        Words are restored in order. Some arcs of the tree so far go through the new word, which
        becomes their head; its head is any position not below it. The ways to choose it have
        the mass of those arcs, by the weighted form of Cayley's formula.
        """
        item = torch.arange(len(self.possible), device=self.possible.device).repeat(count)
        heads = torch.zeros(len(item), 0, dtype=torch.int64, device=item.device)
        for word, (arcs, odds) in enumerate(zip(self.heads, self.odds, strict=True)):
            place = torch.arange(word, device=item.device)
            through = odds[item.unsqueeze(1), place, heads]
            ways = torch.stack([torch.zeros_like(through), through], 2).flatten(0, 1)
            through = pick(ways).reshape(heads.shape) == 1
            left = arcs[:, item].masked_fill(_below(heads, through), -math.inf)
            heads = torch.where(through, word + 1, heads)
            heads = torch.cat([heads, pick(_highest(left, 1)).unsqueeze(1)], 1)
        return heads


def _below(heads: Heads, some: Tensor) -> Tensor:
    """(R, n + 1) whether each position is one of some words (R, n), or below one."""
    below = torch.nn.functional.pad(some, (1, 0))
    above = torch.nn.functional.pad(heads, (1, 0))
    for _ in range(heads.shape[1].bit_length()):
        below = below | below.gather(1, above)
        above = above.gather(1, above)
    return below


@torch.no_grad()
def eliminated(unary: Arcs, lengths: Lengths, *, multiroot: bool, temperature: float) -> Eliminated:
    """Eliminate all words, at temperature 1.0 for draws, 0.0 for the best tree. O(n^3)."""
    pairs = _pairs(unary, lengths, multiroot=multiroot)
    heads, odds = list[Tensor](), list[Tensor]()
    total = pairs.new_zeros(pairs.shape[:2])
    for word in range(unary.shape[1] - 1, -1, -1):
        step = _Step.of(pairs, word, temperature)
        pairs, total = step.rest(temperature), total + step.pivot
        heads.append(step.heads)
        odds.append(step.odds)
    return Eliminated(heads[::-1], odds[::-1], _fits(total, lengths))


@torch.no_grad()
def max_marginals(
    unary: Arcs, lengths: Lengths, *, multiroot: bool, others: Arcs | None = None
) -> Arcs:
    """(B, n, n + 1) the score of the best tree with each arc, -inf where there is none. O(n^3).

    Such a tree is a forest of two parts, rooted at the root and at the arc's word, with the arc's
    head in the first part. If given, ``others`` has the arcs that may occur with the one asked
    about.
    """
    words = unary.shape[1]
    if not words:
        return unary
    pairs = _pairs(unary if others is None else others, lengths, multiroot=multiroot)
    # Pad to a power of two with words whose only head is the root.
    more = (1 << (words - 1).bit_length()) - words
    wide = torch.nn.functional.pad(pairs, (0, more, 0, more), value=-math.inf)
    wide[..., words:, 0] = 0.0
    forests, first = _by_word(wide)
    if others is not None:
        pairs = _pairs(unary, lengths, multiroot=multiroot)
    through = pairs + forests[..., :words, None] + first[..., :words, : words + 1]
    there = _fits(through, lengths) & (unary > -math.inf)
    return torch.where(there, through[-1], -math.inf).to(unary)


def _by_word(pairs: Tensor) -> tuple[Tensor, Tensor]:
    """(O, B, n) for each word the best forest rooted at the root and at that word.

    And (O, B, n, n + 1) the score, relative to it, of the best with each position in the root's
    part. n is a power of 2; each half is eliminated once for all words of the other.
    """
    words = pairs.shape[2]
    if words == 1:
        first = torch.full_like(pairs, -math.inf)
        first[..., 0] = 0.0
        return torch.zeros_like(pairs[..., 0]), first
    half = words // 2
    rest = torch.stack([pairs, _swapped(pairs.roll(half, 2))], 2).flatten(1, 2)
    heads, total = list[Tensor](), torch.zeros_like(rest[..., 0, 0])
    for word in range(words - 1, half - 1, -1):
        step = _Step.of(rest, word, 0.0)
        rest, total = step.rest(0.0), total + step.pivot
        heads.append(step.heads)
    forests, first = _by_word(rest)
    forests = (forests + total.unsqueeze(2)).unflatten(1, (-1, 2))
    for arcs in reversed(heads):
        share = _sums(arcs.unsqueeze(2) + first, 3, 0.0)
        first = torch.cat([first, share.unsqueeze(3)], 3)
    one, other = first.unflatten(1, (-1, 2)).unbind(2)
    return forests.flatten(2), torch.cat([one, _swapped(other)], 2)


def _swapped(pairs: Tensor) -> Tensor:
    """Exchange the halves of the words, as heads."""
    half = (pairs.shape[3] - 1) // 2
    return torch.cat([pairs[..., :1], pairs[..., 1:].roll(half, 3)], 3)


@dataclass(frozen=True, eq=False)
class _Step:
    """One word, k, about to be eliminated."""

    pivot: Tensor  # (O, B) the sum over its heads
    heads: Tensor  # (O, B, k + 1) its arcs from the positions before it, less the pivot
    past: Tensor  # (O, B, k, k + 1) arcs between those that bypass it
    through: Tensor  # (O, B, k, k + 1) arcs between those through it

    @staticmethod
    def of(pairs: Tensor, word: int, temperature: float) -> "_Step":
        """The last of the remaining words, (O, B, k + 1, k + 2)."""
        arcs = pairs[..., word, : word + 1]
        pivot = _sums(arcs, 2, temperature)
        heads = arcs - pivot.clamp(min=_LOWEST).unsqueeze(2)
        through = pairs[..., :word, word + 1 :] + heads.unsqueeze(2)
        through.diagonal(offset=1, dim1=2, dim2=3).fill_(-math.inf)
        return _Step(pivot, heads, pairs[..., :word, : word + 1], through)

    def rest(self, temperature: float) -> Tensor:
        """(O, B, k, k + 1) the arcs without the word."""
        return _sums(torch.stack([self.past, self.through], 1), 1, temperature)

    @property
    def odds(self) -> Tensor:
        """(B, k, k + 1) log-odds of `through` against `past`; -inf where there is neither."""
        past, through = _highest(torch.stack([self.past, self.through], 1), 0)
        return torch.where(through > -math.inf, through - past, -math.inf)


def _sums(pairs: Tensor, dim: int, temperature: float) -> Tensor:
    """Sums of pairs over a dim: terms of the highest order."""
    if len(pairs) == 1:
        return _sum(pairs, dim, temperature)
    total = _sum(_highest(pairs, dim - 1), dim - 1, temperature)
    return torch.stack([pairs[0].amax(dim - 1), total])


def _sum(logs: Tensor, dim: int, temperature: float) -> Tensor:
    return logs.logsumexp(dim) if temperature else logs.amax(dim)


def _highest(pairs: Tensor, dim: int) -> Tensor:
    """Values without the first dim, -inf for all but the highest order along another dim."""
    if len(pairs) == 1:
        return pairs[0]
    order, values = pairs
    return torch.where(order == order.amax(dim, keepdim=True), values, -math.inf)


def _pairs(unary: Arcs, lengths: Lengths, *, multiroot: bool) -> Tensor:
    """(O, B, n, n + 1) arcs; words beyond the length have the root as their head, at no cost."""
    outside = torch.arange(unary.shape[1], device=unary.device) >= lengths.unsqueeze(1)
    pairs = unary.detach().double().unsqueeze(0)
    if not multiroot:
        order = torch.where(pairs > -math.inf, 0.0, -math.inf)
        order[..., 0] -= 1.0
        pairs = torch.cat([order, pairs])
    root = pairs[..., :1].masked_fill(outside.unsqueeze(2), 0.0)
    return torch.cat([root, pairs[..., 1:]], 3)


def _fits(pairs: Tensor, lengths: Lengths) -> Tensor:
    """(B, ...) whether values are those of trees, with one root if only one is allowed."""
    if len(pairs) == 1:
        return pairs[0] > -math.inf
    wanted = -(lengths > 0).to(pairs).reshape(-1, *(1,) * (pairs.ndim - 2))
    return pairs[0] == wanted


Scores = list[list[int | float]]
"""Scores of the heads 0..n of each word: integers, or -inf."""


def k_best(unary: Arcs, lengths: Lengths, k: int, *, multiroot: bool) -> Heads:
    """(k, B, n) the heads of the best trees, best first; -1 throughout where there are fewer.

    Trees are partitioned so that the two best of each part are known. The next tree is the second
    best of some part, which is split into trees with and without an arc that only its best has.
    Item by item in Python, O(k n^3) at most. Arguments as for `trees.log_partition`.
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
    heap: list[tuple[float, list[int], int, Scores]] = []
    unit = len(scores) + 1

    def push(scores: Scores, known: list[int] | None = None) -> list[list[int]]:
        """A best tree, the known one if given; its second best goes on the heap."""
        asked = scores
        if known is not None:  # among equals that with most of its arcs
            asked = [
                [unit * score + (at == head) for at, score in enumerate(row)]
                for row, head in zip(scores, known, strict=True)
            ]
        heads, loss, word = _two_best(asked, both=k > 1)
        total = sum(row[head] for row, head in zip(scores, heads, strict=True))
        if total == -math.inf or not (multiroot or heads.count(0) == 1):
            return []
        if loss < math.inf:
            loss = loss if known is None else loss // unit
            heapq.heappush(heap, (loss - total, heads, word, scores))
        return [heads]

    best = push(scores)
    while heap and len(best) < k:
        _, heads, word, scores = heapq.heappop(heap)
        row, head = scores[word - 1], heads[word - 1]
        others = [*row[:head], -math.inf, *row[head + 1 :]]
        best += push([*scores[: word - 1], others, *scores[word:]])
        only = [-math.inf] * len(row)
        only[head] = row[head]
        push([*scores[: word - 1], only, *scores[word:]], heads)
    return best


def _two_best(scores: Scores, *, both: bool) -> tuple[list[int], int | float, int]:
    """The heads 0..n of n words in a best arborescence rooted at 0. O(n^2) for each cycle.

    And by how much the second best is worse, inf if there is none or it is not asked for, and a
    word whose arc it lacks (Camerini, Fratta and Maffioli 1980): it swaps one arc, into a word or a
    cycle. If there is no arborescence, some arcs are of -inf.
    """
    # Of each node, a word or a contracted cycle, the best and the second best arc from each other.
    rows: Scores = [[], *map(list, scores)]
    spare: Scores = [[], *([-math.inf] * len(row) for row in scores)]
    sides = (rows, spare) if both else (rows,)
    heads = [0, *(row.index(max(row)) for row in scores)]
    nodes, cycles = list(range(1, len(rows))), list[tuple[list[int], dict[int, int], list[int]]]()
    while cycle := _cycle(nodes, heads):
        nodes = [node for node in nodes if node not in cycle]
        leaving: dict[int, int] = {}
        for node in nodes:
            row, more = rows[node], spare[node]
            second, first = sorted([row[at] for at in cycle] + [more[at] for at in cycle])[-2:]
            leaving[node] = next(at for at in cycle if row[at] == first)
            for at in cycle:
                row[at] = more[at] = -math.inf
            row.append(first)
            more.append(second)
            if heads[node] in cycle:
                heads[node] = len(rows)
        lost = [rows[node][heads[node]] for node in cycle]
        entering = cycle[:1] * len(rows)
        entry: list[int | float] = [-math.inf] * (len(rows) + 1)
        others = entry.copy()
        for at in (0, *nodes):
            gains = [
                gain if gain == -math.inf else gain - less
                for side in sides
                for node, less in zip(cycle, lost, strict=True)
                for gain in (side[node][at],)
            ]
            others[at], entry[at] = sorted(gains)[-2:]
            entering[at] = cycle[gains.index(entry[at])]
        cycles.append((cycle, leaving, entering))
        nodes.append(len(rows))
        heads.append(entry.index(max(entry)))
        rows.append(entry)
        spare.append(others)
    swap = _swap(rows, spare, heads, nodes, nodes if both else [])
    while cycles:
        cycle, leaving, entering = cycles.pop()
        whole = len(scores) + len(cycles) + 1
        nodes.remove(whole)
        entered = entering[heads[whole]]
        heads[entered] = heads[whole]
        for node in nodes:
            if heads[node] == whole:
                heads[node] = leaving[node]
        nodes += cycle
        swap = min(
            (swap[0], entered) if swap[1] == whole else swap,
            _swap(rows, spare, heads, nodes, [node for node in cycle if both and node != entered]),
        )
    return heads[1 : len(scores) + 1], *swap


def _swap(
    rows: Scores, spare: Scores, heads: list[int], nodes: list[int], some: list[int]
) -> tuple[int | float, int]:
    """The least loss by another arc into one of some nodes of a tree, and that node."""
    if not some:
        return math.inf, 0
    below: dict[int, list[int]] = {node: [] for node in nodes}
    for start in nodes:
        node = start
        while node:
            below[node].append(start)
            node = heads[node]
    swaps: list[tuple[int | float, int]] = [(math.inf, 0)]
    for node in some:
        row, head = rows[node], heads[node]
        others = row.copy()
        others[head] = spare[node][head]
        for at in below[node]:
            others[at] = -math.inf
        most = max(others)
        if most > -math.inf and row[head] > -math.inf:
            swaps.append((row[head] - most, node))
    return min(swaps)


def _cycle(nodes: list[int], heads: list[int]) -> list[int]:
    """The nodes of a cycle, or an empty list."""
    seen = {0: 0}  # by the start of the path through each
    for start in nodes:
        path, node = list[int](), start
        while node not in seen:
            seen[node] = start
            path.append(node)
            node = heads[node]
        if path and seen[node] == start:
            return path[path.index(node) :]
    return []
