"""Bitexts: distributions over the trees that two sentences share."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from rdpgraph.errors import ModelError
from rdpgraph.model.arrays import settle
from rdpgraph.model.masks import Masks
from rdpgraph.model.table import checked_log_values
from rdpgraph.structures.bitext_grammar import Splits, grammar_rules, words_unary
from rdpgraph.structures.bitext_masks import BitextMasks
from rdpgraph.structures.hypertree.checks import settle_lengths
from rdpgraph.structures.hypertree.rules import NoRules, Rules
from rdpgraph.structures.tape.recursion import Recursion
from rdpgraph.structures.tape.tape import Tape
from rdpgraph.structures.tape.values import Value


@dataclass(frozen=True, eq=False)
class Bitext(Recursion):
    """The trees of an inversion transduction grammar over p source and q target words (Wu 1997).

    A constituent covers words i..k-1 of the source and j..l-1 of the target, a bispan, and has a
    state. It is a leaf, in one of the last states, or has two parts in turn on both sides
    (straight), or in turn in the source and the other way round in the target (inverted); an
    inverted one has parts with words on both sides. The score of a tree is the sum of `unary` over
    its constituents, of the rules at those with parts, and of `root` at the whole. Sites are
    bispans; two sentences without words have one tree, of score 0.

    O(p^3 q^3 N^2 + p^2 q^2 N^3) time, all bispans of one size at once; O(p^2 q^2 N) numbers.

    Args:
        unary: (*batch, p + 1, p + 1, q + 1, q + 1, N) log-potentials (nats), [i, k, j, l, state];
            -inf forbids. What covers no words is ignored.
        straight: log-weights of a state given those of its two parts: N parents, N children.
        inverted: likewise.
        leaves: how many of the states, the last ones, are for leaves alone; others are for none.
        root: (*batch, N) log-potentials of the state of the whole; default: zeros.
        allowed: (p + 1, p + 1, q + 1, q + 1) bool: the bispans that may be constituents; time
            falls with them. Default: all.
        source_lengths: (*batch,) integers in 0..p; default: all p.
        target_lengths: (*batch,) integers in 0..q; default: all q.

    Raises:
        ModelError: shapes that do not fit, a length out of range.

    Example:
        >>> words, alone = torch.zeros(3, 3), torch.full((3,), -torch.inf)
        >>> Bitext.words(words, alone, alone).log_partition().exp()  # 6 orders, 2 of them twice
        tensor(8.)
    """

    straight: Rules = field(default_factory=NoRules)
    inverted: Rules = field(default_factory=NoRules)
    leaves: int = field(default=1, kw_only=True)
    root: Tensor | None = field(default=None, kw_only=True, metadata={"dims": 1})
    allowed: Tensor | None = field(default=None, kw_only=True)
    source_lengths: Tensor | None = field(default=None, kw_only=True, metadata={"dims": 0})
    target_lengths: Tensor | None = field(default=None, kw_only=True, metadata={"dims": 0})

    site_dims = 4

    def __post_init__(self) -> None:
        settle(self, "unary", "root", whole=("source_lengths", "target_lengths"))
        checked_log_values("Bitext", self.unary)
        shape = tuple(self.unary.shape)
        if len(shape) < 5 or shape[-5] != shape[-4] or shape[-3] != shape[-2] or 0 in shape[-5:]:
            raise ModelError(
                "Bitext needs unary (*batch, p + 1, p + 1, q + 1, q + 1, N), [i, k, j, l, state]; "
                f"got {shape}."
            )
        own = {rules.shape for rules in (self.straight, self.inverted)} - {None}
        if not 1 <= self.leaves <= shape[-1] or own - {shape[-1:] * 2}:
            raise ModelError(
                f"Bitext of {shape[-1]} states needs rules of (N, N) states, and 1 to N of them "
                f"for leaves; got {own} and {self.leaves}."
            )
        if self.allowed is not None and tuple(self.allowed.shape) != shape[-5:-1]:
            raise ModelError(f"Bitext needs allowed {shape[-5:-1]}; got {self.allowed.shape}.")
        settle_lengths(self, source_lengths=shape[-4] - 1, target_lengths=shape[-2] - 1)

    @classmethod
    def words(
        cls,
        pairs: Tensor,
        source_null: Tensor,
        target_null: Tensor,
        *,
        straight: Tensor | float = 0.0,
        inverted: Tensor | float = 0.0,
        phrases: Tensor | None = None,
        normal_form: bool = False,
        **rest: Any,
    ) -> "Bitext":
        """The alignments of words: of one another, or of a word with none.

        Scores `pairs` (*batch, p, q), `source_null` (*batch, p) and `target_null` (*batch, q), in
        nats; those of every straight and inverted constituent; and those of bispans that are
        leaves, `phrases` (*batch, p + 1, p + 1, q + 1, q + 1). In `normal_form` every alignment
        has one tree, rather than one for each way to bracket it: 9 states instead of 4. The rest
        are other fields.
        """
        unary = words_unary(pairs, source_null, target_null, phrases, 6 if normal_form else 1)
        weights = ((unary.new_zeros(()) + own).to(unary) for own in (straight, inverted))
        rules = grammar_rules(*weights, normal_form=normal_form)
        return cls(unary, *rules, leaves=3, **rest)

    def pair_marginals(self) -> Tensor:
        """(*batch, p, q) the probability of each pair of words as a leaf; differentiable."""
        leaves = self.marginals()[..., -self.leaves :].sum(-1)
        return leaves.diagonal(1, -4, -3).diagonal(1, -3, -2)

    def bispan_marginals(self) -> Tensor:
        """(*batch, p + 1, p + 1, q + 1, q + 1) the probability of each constituent."""
        return self.marginals().sum(-1)

    def masks(self) -> Masks:
        """Whether one leaf has two words, for each pair of them."""
        rest = self.straight, self.inverted, self.leaves, self.root, self.allowed
        return BitextMasks(self, self.source_lengths, self.target_lengths, *rest)

    def recursion(self, tape: Tape) -> Value:
        """By size: from all splits of a bispan on both sides."""
        leaf = torch.arange(self.unary.shape[-1], device=tape.device).flip(0) < self.leaves
        leaf, whole = (torch.where(own, 0.0, -torch.inf) for own in (leaf, ~leaf))
        splits, done = Splits.of(tape.site_shape, tape.device), list[Value]()
        for cells, straight, inverted in splits.by_size(self.allowed):
            site = tape.sites[cells]
            ways: list[tuple[Value, ...]] = [(site, tape.lookup(leaf, site))]
            for sides, rules in ((straight, self.straight), (inverted, self.inverted)):
                if len(sides[0]):
                    left, right = (tape.view(done, side) for side in sides)
                    joined = tape.join(left, right, rules, to=site)
                    ways.append((site, tape.lookup(whole, site), joined))
            done.append(tape.total(*ways))
        source = tape.lengths(self.source_lengths, tape.site_shape[0] - 1)
        target = tape.lengths(self.target_lengths, tape.site_shape[2] - 1)
        empty = tape.allowed(((source == 0) & (target == 0)).unsqueeze(1))
        if not done:
            return empty
        last = splits.stand[0, source, 0, target].reshape(-1, 1, 1)
        top = tape.total(tape.view(done, last))
        if self.root is not None:
            top = tape.total((top, tape.lookup(self.root, top)))
        return tape.total(tape.sum(top), empty)
