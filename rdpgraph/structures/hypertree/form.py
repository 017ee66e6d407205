"""A hypertree with one batch dim, laid flat."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from rdpgraph._cache import cached_property
from rdpgraph.structures.hypertree.fields import HypertreeFields
from rdpgraph.structures.hypertree.rules import Rules, flat
from rdpgraph.structures.hypertree.score import score


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
