"""A hypertree with one batch dim, laid flat, and the scores of given trees."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from rdpgraph._core.cache import cached_property
from rdpgraph.structures.grammar.spans import HypertreeFields
from rdpgraph.structures.recursion.rules import Rules, flat


def score(
    states: Tensor, unary: Tensor, lengths: Tensor, root: Tensor, rules: Rules, preterminals: int
) -> Tensor:
    """(R, B) the log-potentials of trees, -inf for what is none; O(T^2) for each.

    Args:
        states: (R, B, T, T), -1 for what is not a constituent.
        unary: (B, T, T, C).
        lengths: (B,).
        root: (1 or B, C).
        rules: flat.
        preterminals: how many of the states are for single words alone.
    """
    count, batch, total, _ = states.shape
    if not total:
        return unary.sum((1, 2, 3)).expand(count, batch)
    place = torch.arange(total, device=states.device)
    last = (lengths - 1).clamp(min=0)
    among = states >= 0
    wide = among & (place.unsqueeze(1) < place)
    words = among.diagonal(dim1=2, dim2=3)
    within = place < lengths.unsqueeze(1)
    fits = (words == within).all(2) & (wide.flatten(2).sum(2) == (lengths - 1).clamp(min=0))
    fits &= ~(among & (place.unsqueeze(1) > place)).flatten(2).any(2)
    # The left part of (i, j) is the widest constituent from i that ends before j.
    ends = torch.where(among, place, -1).cummax(3).values
    before = torch.nn.functional.pad(ends[..., :-1], (1, 0), value=-1)
    nodes = wide.flatten(2).int().argsort(dim=2, descending=True, stable=True)[..., : total - 1]
    real = wide.flatten(2).gather(2, nodes)
    i, j = nodes // total, nodes % total
    middle = torch.maximum(before.flatten(2).gather(2, nodes), i)
    flat = states.flatten(2)
    left = flat.gather(2, (i * total + middle))
    right = flat.gather(2, ((middle + 1).clamp(max=total - 1) * total + j))
    parent = flat.gather(2, nodes)
    known = unary.shape[3] - preterminals
    fits &= ((left >= 0) & (right >= 0) | ~real).all(2) & ((parent < known) | ~real).all(2)
    triple = (torch.where(parent < known, parent, 0), left, right)
    joint = rules.evaluate(*(part.clamp(min=0).transpose(0, 1).unsqueeze(3) for part in triple))
    joint = joint.reshape(batch, count, real.shape[2]).transpose(0, 1)
    item = torch.arange(batch, device=states.device).unsqueeze(1)
    spans = unary[item, i, j, parent.clamp(0, known - 1)]
    result = torch.where(real, spans + joint, 0.0).sum(2)
    own = states.diagonal(dim1=2, dim2=3)
    if preterminals:
        fits &= (own >= known).eq(within).all(2)
    leaves = unary[item, place, place, own.clamp(min=0)]
    result = result + torch.where(within, leaves, 0.0).sum(2)
    item = item.squeeze(1)
    top = states[:, item, 0, last]
    fits &= (top >= 0) | (lengths == 0)
    roots = root.expand(batch, -1)[item, top.clamp(min=0)]
    result = result + torch.where(lengths > 0, roots, 0.0)
    return torch.where(fits, result, -math.inf)


@dataclass(frozen=True, eq=False)
class Form:
    """The tensors of a hypertree in one batch dim.

    Args:
        tree: the hypertree.
    """

    tree: HypertreeFields

    @cached_property
    def batch(self) -> int:
        """B, the product of the batch dims."""
        return math.prod(self.tree.batch_shape)

    @property
    def states(self) -> int:
        """N, of spans of two words and more."""
        return self.tree.unary.shape[-1] - self.tree.preterminals

    @property
    def unary(self) -> Tensor:
        """(B, T, T, C) the potentials."""
        return self.tree.unary.reshape(self.batch, *self.tree.unary.shape[-3:])

    @cached_property
    def rules(self) -> Rules:
        """Of one batch dim, 1 or B."""
        return self.tree.rules.flat(self.tree.batch_shape)

    @cached_property
    def lengths(self) -> Tensor:
        """(B,) the numbers of words of the items."""
        tree = self.tree
        if tree.lengths is not None:
            return tree.lengths.reshape(-1)
        return torch.full((self.batch,), tree.unary.shape[-2], device=tree.unary.device)

    @property
    def root(self) -> Tensor:
        """(1 or B, C), -inf for preterminals."""
        tree = self.tree
        root = tree.unary.new_zeros(self.states) if tree.root is None else tree.root
        return pad(flat(root, 1, tree.batch_shape), (0, tree.preterminals), value=-math.inf)

    def scored(self, states: Tensor, lead: Sequence[int]) -> Tensor:
        """(*lead, *batch) the scores of trees (*lead, *batch, T, T)."""
        tree = self.tree
        states = states.reshape(math.prod(lead), self.batch, *states.shape[-2:])
        scores = score(states, self.unary, self.lengths, self.root, self.rules, tree.preterminals)
        return scores.reshape([*lead, *tree.batch_shape])

    def flat(self, rules: Rules) -> HypertreeFields:
        """The hypertree with one batch dim, and with other rules, of that for each item."""
        tree, batch = self.tree, self.batch
        rules = rules.flat(tree.batch_shape)
        rules = rules.with_parts([part.expand(batch, *part.shape[1:]) for part in rules.parts])
        root = tree.root
        if root is not None:
            root = flat(root, 1, tree.batch_shape).expand(batch, -1)
        return replace(tree, unary=self.unary, rules=rules, root=root, lengths=self.lengths)
