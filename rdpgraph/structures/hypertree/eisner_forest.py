"""Projective dependency trees as derivations of Eisner's chart, for what asks about its edges."""

import torch
from torch import Tensor
from torch.nn.functional import pad

from rdpgraph._cache import remembered
from rdpgraph.structures.hypertree.derivations import Derivations


def forest(unary: Tensor, *, multiroot: bool) -> Derivations:
    """The trees of sequences of one length; the first hyperedges are the arcs, [word, head].

    A tree has one derivation. O(n^3) hyperedges, made in Python.

    Args:
        unary: (B, n, n + 1) in nats, -inf where there is no arc; n >= 1.
        multiroot: whether more than one word may have the root as its head.
    """
    heads, tails, nodes = _chart(unary.shape[1], multiroot=multiroot)
    arcs = unary.flatten(1)
    weights = pad(arcs, (0, len(heads) - arcs.shape[1]))
    return Derivations(weights, heads.to(unary.device), tails.to(unary.device), nodes=nodes)


@remembered(16)
def _chart(words: int, *, multiroot: bool) -> tuple[Tensor, Tensor, int]:
    """Heads (E,), tails (E, 3) and the number of nodes; nodes 0..n(n + 1)-1 are the arcs."""
    arcs = words * (words + 1)
    heads, tails = list(range(arcs)), [[-1, -1, -1] for _ in range(arcs)]
    nodes = arcs

    def node(alternatives: list[list[int]]) -> int:
        nonlocal nodes
        heads.extend([nodes] * len(alternatives))
        tails.extend(alternatives)
        nodes += 1
        return nodes - 1

    def arc(head: int, word: int) -> int:
        return (word - 1) * (words + 1) + head

    # Complete spans headed by their first and by their last position; those of one position have
    # nothing to derive, -1. Then those with an arc between their ends.
    right = {(i, i): -1 for i in range(words + 1)}
    left = dict(right)
    right_arc: dict[tuple[int, int], int] = {}
    left_arc: dict[tuple[int, int], int] = {}
    for width in range(1, words + 1):
        for i in range(words + 1 - width):
            j = i + width
            inner = [(right[i, s], left[s + 1, j]) for s in range(i, j)]
            right_arc[i, j] = node([[arc(i, j), *both] for both in inner])
            right[i, j] = node([[right_arc[i, s], right[s, j], -1] for s in range(i + 1, j + 1)])
            if i:  # the root has no head
                left_arc[i, j] = node([[arc(j, i), *both] for both in inner])
                left[i, j] = node([[left[i, s], left_arc[s, j], -1] for s in range(i, j)])
    if not multiroot:
        tops = range(1, words + 1)
        node([[arc(0, top), left[1, top], right[top, words]] for top in tops])
    return torch.tensor(heads), torch.tensor(tails), nodes
