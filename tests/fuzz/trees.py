"""Random hypertrees, dependency trees and derivation forests, with lengths."""

import itertools
from functools import cache
from typing import Any

import numpy as np
import torch

import rdpgraph as rg
from tests.fuzz.chains import kept_whole
from tests.fuzz.compare import Array, Skipped, log_sum
from tests.fuzz.enumerated import Asked, Item, counted
from tests.fuzz.pieces import Style, style

Span = tuple[int, int]


def case(rng: np.random.Generator) -> int:
    """One structure; how many items it has."""
    kinds = ["hypertree", "hypertree", "projective", "any", "derivations"]
    kind = str(rng.choice(kinds))
    if kind == "hypertree":
        asked = _hypertree(rng)
    elif kind == "derivations":
        asked = _derivations(rng)
    else:
        asked = _dependencies(rng, projective=kind == "projective")
    estimator = None
    if kind in ("projective", "any", "hypertree") and rng.random() < 0.15:
        estimator = kept_whole(rng)
    asked.check(rng, estimator)
    return len(asked.items)


def _hypertree(rng: np.random.Generator) -> Asked:
    how = style(rng)
    total, states = int(rng.integers(0, 5)), int(rng.integers(1, 4))
    if total == 4:
        states = min(states, 2)
    preterminals = int(rng.integers(0, states))
    parents, batch = states - preterminals, int(rng.integers(1, 7))
    unary = how.draw(rng, (batch, total, total, states))
    rules, table = _rules(rng, how, parents, states, (batch,) if rng.random() < 0.3 else ())
    root = (
        how.draw(rng, (batch, parents) if rng.random() < 0.5 else (parents,))
        if rng.random() < 0.6
        else None
    )
    lengths = rng.integers(0, total + 1, size=batch) if rng.random() < 0.6 else None
    hypertree = rg.Hypertree(
        torch.tensor(unary, dtype=how.dtype), rules,
        root=None if root is None else torch.tensor(root, dtype=how.dtype),
        preterminals=preterminals,
        lengths=None if lengths is None else torch.tensor(lengths),
    )  # fmt: skip
    items: list[Item] = []
    for number in range(batch):
        length = total if lengths is None else int(lengths[number])
        own = table[number if len(table) > 1 else 0]
        keys: list[tuple[int, ...]] = []
        scores: list[float] = []
        for tree, inner in labelled(length, states, preterminals):
            where = np.full((total, total), -1)
            score = 0.0
            for (first, last), state in tree.items():
                where[first, last] = state
                score += unary[number, first, last, state]
            for parent, left, right in inner:
                score += own[tree[parent], tree[left], tree[right]]
            if length and root is not None:
                of_item = root[number] if root.ndim > 1 else root
                score += of_item[tree[0, length - 1]]
            keys.append(tuple(where.reshape(-1).tolist()))
            scores.append(float(score))
        grid = np.array(keys, dtype=np.int64).reshape(len(keys), total, total)
        items.append(Item(keys, np.array(scores, dtype=np.float64), counted(grid, states)))

    def best(k: int) -> tuple[torch.Tensor, torch.Tensor]:
        found = hypertree.k_best(k)
        return found.scores, found.trees.states

    tolerance = 1e-9 if how.dtype == torch.float64 else 1e-4
    name = f"a hypertree with {type(rules).__name__}"
    return Asked(
        name, hypertree, items, tolerance, lambda s: s.flatten(-2), hypertree.log_prob, best
    )


def _rules(
    rng: np.random.Generator, how: Style, parents: int, states: int, batch: tuple[int, ...]
) -> tuple[rg.trees.Rules, Array]:
    """Rules, and their table (1 or batch, N, C, C)."""
    rank = int(rng.integers(1, 4))

    def tensor(values: Array) -> torch.Tensor:
        return torch.tensor(values, dtype=how.dtype)

    kind = int(rng.integers(5))
    if kind == 0:
        table = how.draw(rng, (*batch, parents, states, states))
        return rg.trees.DenseRules(tensor(table)), table.reshape(-1, parents, states, states)
    if kind == 1:
        parent = how.draw(rng, (*batch, parents, rank))
        left, right = (how.draw(rng, (*batch, states, rank)) for _ in range(2))
        table = log_sum(
            parent[..., :, None, None, :] + left[..., None, :, None, :]
            + right[..., None, None, :, :]
        )  # fmt: skip
        made = rg.trees.LowRankRules(tensor(parent), tensor(left), tensor(right))
        return made, table.reshape(-1, parents, states, states)
    if kind == 2:
        shape = (*batch, parents, states, rank)
        left, right = (how.draw(rng, shape, hard=False) for _ in range(2))
        table = log_sum(left[..., :, None, :] + right[..., None, :, :])
        table = table - log_sum(table.reshape(*batch, parents, -1))[..., None, None]
        made = rg.trees.FactorisedRules(tensor(left), tensor(right))
        return made, table.reshape(-1, parents, states, states)
    if kind == 3:
        left, right = rng.normal(size=(2, *batch, parents, states, rank))
        table = np.einsum("...ar,...br->...ab", left, right)
        table = table - log_sum(table.reshape(*batch, parents, -1))[..., None, None]
        made = rg.trees.BilinearRules(tensor(left), tensor(right))
        return made, table.reshape(-1, parents, states, states)
    return rg.trees.NoRules(), np.zeros((1, parents, states, states))


@cache
def labelled(
    length: int, states: int, preterminals: int
) -> list[tuple[dict[Span, int], list[tuple[Span, Span, Span]]]]:
    """Every labelled binary tree over some words: its spans' states, and which join which."""
    if length == 0:
        return [({}, [])]
    wide = range(states - preterminals)
    single = range(states - preterminals, states) if preterminals else wide
    found: list[tuple[dict[Span, int], list[tuple[Span, Span, Span]]]] = []
    if length == 1 and preterminals:
        return found
    for joins in _joins(0, length - 1):
        spans = [*{span for join in joins for span in join}] or [(0, 0)]
        choices = [single if first == last else wide for first, last in spans]
        found += [
            (dict(zip(spans, labels, strict=True)), joins) for labels in itertools.product(*choices)
        ]
    return found


def _joins(first: int, last: int) -> list[list[tuple[Span, Span, Span]]]:
    if first == last:
        return [[]]
    return [
        [((first, last), (first, split), (split + 1, last)), *left, *right]
        for split in range(first, last)
        for left in _joins(first, split)
        for right in _joins(split + 1, last)
    ]


def _dependencies(rng: np.random.Generator, *, projective: bool) -> Asked:
    how = style(rng)
    total, batch = int(rng.integers(0, 5)), int(rng.integers(1, 7))
    multiroot = bool(rng.random() < 0.5)
    unary = how.draw(rng, (batch, total, total + 1))
    lengths = rng.integers(0, total + 1, size=batch) if rng.random() < 0.6 else None
    kind = rg.ProjectiveDependencies if projective else rg.NonProjectiveDependencies
    given = None if lengths is None else torch.tensor(lengths)
    structure = kind(torch.tensor(unary, dtype=how.dtype), multiroot=multiroot, lengths=given)
    items: list[Item] = []
    for number in range(batch):
        length = total if lengths is None else int(lengths[number])
        trees = headed(length, multiroot, projective)
        keys = [(*heads, *[-1] * (total - length)) for heads in trees]
        scores = [sum(unary[number, word, head] for word, head in enumerate(t)) for t in trees]
        grid = np.array(keys, dtype=np.int64).reshape(len(keys), total)
        items.append(Item(keys, np.array(scores, dtype=np.float64), counted(grid, total + 1)))

    def best(k: int) -> tuple[torch.Tensor, torch.Tensor]:
        found = structure.k_best(k)
        return found.scores, found.heads

    tolerance = 1e-8 if how.dtype == torch.float64 else 1e-4
    return Asked(kind.__name__, structure, items, tolerance, lambda s: s, structure.log_prob, best)


@cache
def headed(length: int, multiroot: bool, projective: bool) -> list[tuple[int, ...]]:
    """The heads of every dependency tree over some words, counted from 1; 0 is the root."""
    found: list[tuple[int, ...]] = []
    for heads in itertools.product(range(length + 1), repeat=length):
        if length and not multiroot and heads.count(0) != 1:
            continue
        if not all(_reaches(heads, word) for word in range(1, length + 1)):
            continue
        arcs = [sorted((word, head)) for word, head in enumerate(heads, 1)]
        crossing = any(a < c < b < d for a, b in arcs for c, d in arcs)
        if not (projective and crossing):
            found.append(heads)
    return found


def _reaches(heads: tuple[int, ...], word: int) -> bool:
    for _ in heads:
        word = heads[word - 1]
        if word == 0:
            return True
    return False


def _derivations(rng: np.random.Generator) -> Asked:
    how = style(rng)
    nodes, arity, batch = int(rng.integers(1, 5)), int(rng.integers(1, 4)), int(rng.integers(1, 7))
    heads: list[int] = []
    tails: list[list[int]] = []
    for node in range(nodes):
        for _ in range(int(rng.integers(0 if node < nodes - 1 else 1, 4))):
            count = int(rng.integers(0, arity + 1)) if node else 0
            heads.append(node)
            own = [int(n) for n in rng.integers(0, max(node, 1), size=count)]
            tails.append([*own, *[-1] * (arity - count)])
    unary = how.draw(rng, (batch, len(heads)))
    structure = rg.Derivations(
        torch.tensor(unary, dtype=how.dtype), torch.tensor(heads), torch.tensor(tails), nodes=nodes
    )

    def derived(node: int) -> list[tuple[int, ...]]:
        found: list[tuple[int, ...]] = []
        for edge, head in enumerate(heads):
            if head != node:
                continue
            parts = [below[tail] for tail in tails[edge] if tail >= 0]
            for chosen in itertools.islice(itertools.product(*parts), 4000):
                uses = [0] * len(heads)
                uses[edge] = 1
                for part in chosen:
                    uses = [a + b for a, b in zip(uses, part, strict=True)]
                found.append(tuple(uses))
        return found

    below: list[list[tuple[int, ...]]] = []
    for node in range(nodes):
        below.append(derived(node))
        if len(below[-1]) > 1000:
            raise Skipped("a forest of more than 1,000 derivations")
    grid = np.array(below[-1], dtype=np.float64).reshape(len(below[-1]), len(heads))
    items: list[Item] = []
    for number in range(batch):
        with np.errstate(invalid="ignore"):
            each = np.where(grid > 0, grid * unary[number], 0.0)
        items.append(Item(below[-1], each.sum(-1), grid))

    def best(k: int) -> tuple[torch.Tensor, torch.Tensor]:
        found = structure.k_best(k)
        return found.scores, found.uses

    def own(uses: Any) -> torch.Tensor:
        return uses.long()

    tolerance = 1e-9 if how.dtype == torch.float64 else 1e-4
    return Asked("derivations", structure, items, tolerance, own, structure.log_prob, best)
