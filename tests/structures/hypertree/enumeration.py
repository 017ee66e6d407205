"""Every labelled binary tree of a hypertree, one by one."""

import itertools
import math

import torch

from rdpgraph.trees import DenseRules, FactorisedRules, LowRankRules, NoRules, SparseRules

KINDS = ("dense", "sparse", "low rank", "factorised", "none")


def normal(*shape, seed=0, dtype=torch.float64):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def rules_of(kind, parents, children, *, rank=3, batch=(), seed=5):
    if kind == "dense":
        return DenseRules(normal(*batch, parents, children, children, seed=seed))
    if kind == "low rank":
        return LowRankRules(
            normal(*batch, parents, rank, seed=seed),
            normal(*batch, children, rank, seed=seed + 1),
            normal(*batch, children, rank, seed=seed + 2),
        )
    if kind == "factorised":
        shape = (*batch, parents, children, rank)
        return FactorisedRules(normal(*shape, seed=seed), normal(*shape, seed=seed + 1))
    if kind == "sparse":
        every = torch.cartesian_prod(*map(torch.arange, (parents, children, children)))
        some = every[normal(len(every), seed=seed) > -0.3]
        some = some[normal(len(some), seed=seed).argsort()]
        weights = normal(*batch, len(some), seed=seed + 1)
        return SparseRules(some, weights, parents=parents, children=children)
    return NoRules()


def shapes(first, last):
    """Binary trees over words first..last, as lists of spans."""
    if first == last:
        yield [(first, last)]
    for split in range(first, last):
        for left, right in itertools.product(shapes(first, split), shapes(split + 1, last)):
            yield [(first, last), *left, *right]


def trees(length, total, states, preterminals=0):
    """(M, T, T) the states of all labelled trees of some words."""
    if length == 0:
        return torch.full((1, total, total), -1)
    wide = range(states - preterminals)
    single = range(states - preterminals, states) if preterminals else wide
    found = []
    for spans in shapes(0, length - 1):
        if length == 1 and preterminals:
            continue
        choices = [single if first == last else wide for first, last in spans]
        for labels in itertools.product(*choices):
            tree = torch.full((total, total), -1)
            for (first, last), label in zip(spans, labels, strict=True):
                tree[first, last] = label
            found.append(tree)
    return torch.stack(found) if found else torch.zeros(0, total, total, dtype=torch.int64)


def score_of(tree, unary, table, root, length):
    """The score of one tree, node by node in plain Python."""
    spans = {(i, j): int(tree[i, j]) for i, j in (tree >= 0).nonzero().tolist()}
    total = 0.0
    for (first, last), state in spans.items():
        total += float(unary[first, last, state])
        if first < last:
            (split,) = [
                m for m in range(first, last) if (first, m) in spans and (m + 1, last) in spans
            ]
            total += float(table[state, spans[first, split], spans[split + 1, last]])
    return total + (float(root[spans[0, length - 1]]) if length else 0.0)


def scores_of(hypertree, item=()):
    """The trees of one item and their scores, (M, T, T) and (M,)."""
    unary = hypertree.unary[item]
    total, states = unary.shape[-2:]
    length = total if hypertree.lengths is None else int(hypertree.lengths[item])
    parents = states - hypertree.preterminals
    table = hypertree.rules.table(parents, states)
    table = (
        table[item]
        if table.ndim > 3 and len(table) > 1
        else table.reshape(-1, *table.shape[-3:])[0]
    )
    root = torch.zeros(parents) if hypertree.root is None else hypertree.root
    root = root[item] if root.ndim > 1 else root
    every = trees(length, total, states, hypertree.preterminals)
    scores = [score_of(tree, unary, table, root, length) for tree in every]
    return every, torch.tensor(scores, dtype=torch.float64)


def counts(every, weights, states):
    """(T, T, N) weighted sums of the constituents of trees."""
    hot = torch.nn.functional.one_hot(every.clamp(min=0), states) * (every >= 0).unsqueeze(-1)
    return (hot * weights.reshape(-1, 1, 1, 1)).sum(0)


def entropy_of(scores):
    log_p = scores.log_softmax(0)
    return -torch.where(log_p > -math.inf, log_p.exp() * log_p, 0.0).sum()
