"""Hypertrees with one batch dim: scores of given trees, uses of rules, means for proposals."""

import math
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from rdpgraph.interface.structure import is_tracked
from rdpgraph.logspace.gradients import expectations
from rdpgraph.logspace.logmatrix import soft_scatter
from rdpgraph.structures.grammar.rules import LowRankRules, NoRules, Rules, flat
from rdpgraph.structures.grammar.spans import HypertreeFields
from rdpgraph.structures.grammar.sparse_rules import SparseRules


def score(tree: HypertreeFields, states: Tensor) -> Tensor:
    """(R, B) log-potentials of trees (R, B, T, T), -inf for what is no tree; O(T^2) each."""
    count, batch, total, _ = states.shape
    unary, lengths, preterminals = tree.flat_unary, tree.flat_lengths, tree.preterminals
    if not total:
        return unary.sum((1, 2, 3)).expand(count, batch)
    # A tree of n words has its words on the diagonal and n - 1 spans above it.
    place = torch.arange(total, device=states.device)
    last = (lengths - 1).clamp(min=0)
    among = states >= 0
    wide = among & (place.unsqueeze(1) < place)
    words = among.diagonal(dim1=2, dim2=3)
    within = place < lengths.unsqueeze(1)
    fits = (words == within).all(2) & (wide.flatten(2).sum(2) == (lengths - 1).clamp(min=0))
    fits &= ~(among & (place.unsqueeze(1) > place)).flatten(2).any(2)
    # Each span has two parts that are nodes, and a parent that is no tag.
    real, i, j, parent, left, right = branches(states)
    known = unary.shape[3] - preterminals
    fits &= ((left >= 0) & (right >= 0) | ~real).all(2) & ((parent < known) | ~real).all(2)
    triple = (torch.where(parent < known, parent, 0), left, right)
    # Score: rules and spans,
    rules = tree.rules.flat(tree.batch_shape)
    joint = rules.evaluate(*(part.clamp(min=0).transpose(0, 1).unsqueeze(3) for part in triple))
    joint = joint.reshape(batch, count, real.shape[2]).transpose(0, 1)
    item = torch.arange(batch, device=states.device).unsqueeze(1)
    spans = unary[item, i, j, parent.clamp(0, known - 1)]
    result = torch.where(real, spans + joint, 0.0).sum(2)
    # and words, which have tags where there are any,
    tags = states.diagonal(dim1=2, dim2=3)
    if preterminals:
        fits &= (tags >= known).eq(within).all(2)
    leaves = unary[item, place, place, tags.clamp(min=0)]
    result = result + torch.where(within, leaves, 0.0).sum(2)
    # and the root. What is no tree is -inf.
    item = item.squeeze(1)
    top = states[:, item, 0, last]
    fits &= (top >= 0) | (lengths == 0)
    roots = tree.flat_root.expand(batch, -1)[item, top.clamp(min=0)]
    result = result + torch.where(lengths > 0, roots, 0.0)
    return torch.where(fits, result, -math.inf)


def branches(states: Tensor) -> tuple[Tensor, ...]:
    """(R, B, T - 1) the inner nodes of trees (R, B, T, T): real, first and last word, three states.

    The states are those of a node and of its left and right part.
    """
    total = states.shape[-1]
    place = torch.arange(total, device=states.device)
    among = states >= 0
    wide = (among & (place.unsqueeze(1) < place)).flatten(2)
    # The left part of (i, j) is the widest constituent from i that ends before j.
    ends = torch.where(among, place, -1).cummax(3).values
    before = pad(ends[..., :-1], (1, 0), value=-1)
    nodes = wide.int().argsort(dim=2, descending=True, stable=True)[..., : max(total - 1, 0)]
    i, j = nodes // max(total, 1), nodes % max(total, 1)
    middle = torch.maximum(before.flatten(2).gather(2, nodes), i)
    flat = states.flatten(2)
    parts = i * total + middle, (middle + 1).clamp(max=total - 1) * total + j
    return wide.gather(2, nodes), i, j, flat.gather(2, nodes), *(flat.gather(2, p) for p in parts)


def rule_uses(tree: HypertreeFields) -> list[Tensor]:
    """(*batch, ...) the gradients of log Z in the tensors of the rules."""
    unary, rules, root = tree.flat_unary, tree.rules.flat(tree.batch_shape), tree.root
    rules = rules.with_parts([part.expand(len(unary), *part.shape[1:]) for part in rules.parts])
    if root is not None:
        root = flat(root, 1, tree.batch_shape).expand(len(unary), -1)
    one = replace(tree, unary=unary, rules=rules, root=root, lengths=tree.flat_lengths)
    _, gradients = expectations(
        lambda *parts: replace(one, rules=rules.with_parts(parts)).log_partition(),
        rules.parts, tracked=is_tracked(tree),
    )  # fmt: skip
    return [part.reshape([*tree.batch_shape, *part.shape[1:]]) for part in gradients]


@torch.no_grad()
def site_unary(tree: HypertreeFields) -> Tensor:
    """(*batch, T, T, C) potentials of spans, the root's added to the whole; -inf for no span."""
    lengths, total = tree.flat_lengths, tree.unary.shape[-2]
    values = tree.potentials(tree.flat_unary)
    place = torch.arange(total, device=values.device)
    allowed = (place.unsqueeze(1) <= place) & (place < lengths.reshape(-1, 1, 1))
    values = torch.where(allowed.unsqueeze(3), values, -math.inf)
    if total:
        item = torch.arange(len(values), device=values.device)
        values[item, 0, (lengths - 1).clamp(min=0)] += tree.flat_root
    return values.reshape(tree.unary.shape)


@torch.no_grad()
def mean_values(tree: HypertreeFields, landmarks: int, generator: torch.Generator | None) -> Tensor:
    """(*batch, T, T, C) log mean rules of a state as a parent and as a part."""
    lengths, (total, children) = tree.flat_lengths, tree.unary.shape[-2:]
    states, rules = children - tree.preterminals, tree.rules.flat(tree.batch_shape)
    # The mean weight of rules with a state as the parent, or as a part: exactly from ranks or
    # lists, else over some random states of the others.
    if isinstance(tree.rules, NoRules):
        return tree.unary.new_zeros((*tree.batch_shape, 1, 1, 1))
    if isinstance(rules, LowRankRules):
        parent, part = _means_by_rank(rules)
    elif isinstance(rules, SparseRules):
        parent, part = _means_of_list(rules)
    else:
        device = tree.unary.device
        where = device if generator is None else generator.device
        asked = [
            torch.randint(size, (1, landmarks), generator=generator, device=where).to(device)
            for size in (states, children, children)
        ]
        parent, part = _means(rules, asked, states, children)
    parent = pad(parent, (0, children - states))
    place = torch.arange(total, device=parent.device)
    # A span of several words is a parent, and all but the whole sentence are parts: their sum in
    # logs is the product of both means.
    wide = place.unsqueeze(1) < place
    whole = (place.unsqueeze(1) == 0) & (place == lengths.reshape(-1, 1, 1) - 1)
    above = torch.where(wide.unsqueeze(-1), parent[:, None, None], 0.0)
    below = torch.where(whole.unsqueeze(-1), 0.0, part[:, None, None])
    means = above + below
    return means.reshape(
        *(tree.batch_shape if len(means) == len(lengths) else ()), *means.shape[1:]
    )


def _means_by_rank(rules: LowRankRules) -> tuple[Tensor, Tensor]:
    """(R, N) and (R, C), over all states, from ranks."""
    parent, left, right = (_log_mean(part, 1) for part in rules.parts)
    above = torch.logsumexp(rules.parent + left + right, 2)
    by_left = torch.logsumexp(rules.left + parent + right, 2)
    by_right = torch.logsumexp(rules.right + parent + left, 2)
    return above, torch.logaddexp(by_left, by_right) - math.log(2)


def _means_of_list(rules: SparseRules) -> tuple[Tensor, Tensor]:
    """(R, N) and (R, C), over all states, from listed rules."""
    (states, children), weights = rules.shape, rules.log_weights.mT
    parent, left, right = rules.triples.unbind(1)
    above = soft_scatter(weights, parent, states) - 2 * math.log(children)
    parts = (soft_scatter(weights, side, children) for side in (left, right))
    below = torch.logaddexp(*parts) - math.log(2 * states * children)
    return above.mT, below.mT


def _means(rules: Rules, asked: list[Tensor], states: int, children: int) -> tuple[Tensor, Tensor]:
    """(R, N) and (R, C), over grids of sampled parents, left and right parts, each (1, count)."""
    batch = max([len(part) for part in rules.parts], default=1)
    parents, left, right = (part.expand(batch, -1) for part in asked)
    every = torch.arange(children, device=left.device).expand(batch, -1)
    above = _log_mean(rules.evaluate(every[:, :states], left, right).flatten(2), 2)
    by_left = _log_mean(rules.evaluate(parents, every, right).transpose(1, 2).flatten(2), 2)
    by_right = _log_mean(rules.evaluate(parents, left, every).movedim(3, 1).flatten(2), 2)
    means = above.squeeze(2), torch.logaddexp(by_left, by_right).squeeze(2) - math.log(2)
    return means


def _log_mean(logs: Tensor, dim: int) -> Tensor:
    """Log of the mean of exponentials, the dim kept."""
    return logs.logsumexp(dim, keepdim=True) - math.log(max(1, logs.shape[dim]))
