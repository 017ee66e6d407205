"""The k best spanning arborescences, of all items at once, by max-marginals (Nilsson 1998)."""

import math

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from rdpgraph._types import Arcs, Heads, Lengths
from rdpgraph.structures.draws import largest
from rdpgraph.structures.hypertree.elimination import eliminated, max_marginals

_ROUNDING = 1e-9
"""By how much scores differ, relative to their size, that are not the same except for rounding."""


@torch.no_grad()
def k_best(unary: Arcs, lengths: Lengths, k: int, *, multiroot: bool) -> Heads:
    """(k, B, n) the heads of the best trees, best first; -1 throughout where there are fewer.

    Trees are parted so that the best one of each part is known. The next tree is the second best
    of some part, and has an arc that the best one has not: the part is parted into the trees with
    that arc and those without. One best tree and two rounds of max-marginals for each: O(k n^3).

    Args:
        unary: (B, n, n + 1) in nats, [word, head], -inf where there is no arc.
        lengths: (B,).
        k: how many.
        multiroot: whether more than one word may have the root as its head.
    """
    batch, words, positions = unary.shape
    trees = torch.full((k, batch, words), -1, device=unary.device)
    if not words:
        return trees
    item = torch.arange(batch, device=unary.device)
    parts = unary.double().expand(k, -1, -1, -1).clone()
    through = max_marginals(parts[0], lengths, multiroot=multiroot)
    trees[0] = _best(parts[0], lengths, through, multiroot=multiroot)
    score, arc = _second_best(through, trees[0])
    scores, arcs = score.expand(k, -1).clone(), arc.expand(k, -1).clone()
    possible = (through[:, 0] > -math.inf).any(1) | (lengths == 0)
    there = possible.expand(k, -1).clone()
    for rank in range(1, k):
        score, part = scores[:rank].max(0)
        there[rank] = score > -math.inf
        if not bool(there[rank].any()):
            there[rank:] = False
            break
        chosen = one_hot(arcs[part, item], words * positions).bool().reshape(unary.shape)
        others = chosen.any(2, keepdim=True) & ~chosen
        with_arc = parts[part, item].masked_fill(others, -math.inf)
        without = parts[part, item].masked_fill(chosen, -math.inf)
        parts[rank], parts[part, item] = with_arc, without
        through = max_marginals(
            torch.cat([with_arc, without]), lengths.repeat(2), multiroot=multiroot
        )
        trees[rank] = _best(with_arc, lengths, through[:batch], multiroot=multiroot)
        score, arc = _second_best(through, torch.cat([trees[rank], trees[part, item]]))
        scores[rank], scores[part, item] = score.chunk(2)
        arcs[rank], arcs[part, item] = arc.chunk(2)
    return torch.where(there.unsqueeze(2), trees, -1)


def _best(unary: Arcs, lengths: Lengths, through: Arcs, *, multiroot: bool) -> Heads:
    """(B, n) the heads of one best tree, read off the max-marginals if no other is as good."""
    values, heads = through.topk(2, 2)
    first, second = values.unbind(2)
    gap = torch.where(first > -math.inf, first - second, math.inf)
    if bool((gap > _ROUNDING * (1.0 + first.abs())).all()):
        return heads[..., 0]
    elimination = eliminated(unary, lengths, multiroot=multiroot, temperature=0.0)
    return elimination.descend(1, largest)


def _second_best(through: Arcs, best: Heads) -> tuple[Tensor, Tensor]:
    """(B,) the score of the best tree but one, -inf if there is none, and an arc that it has."""
    return through.scatter(2, best.unsqueeze(2), -math.inf).flatten(1).max(1)
