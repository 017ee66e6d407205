"""Bitexts of mixed rules within masks of the pairs of words that one rule has."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from rdpgraph._core.cache import cached_property
from rdpgraph.interface.masks import Draw, Expected
from rdpgraph.structures.bitext.emission import ORDERS, Boxes, Emission
from rdpgraph.structures.bitext.mixed_rules import AROUND, PARTIAL, Listed, Nodes
from rdpgraph.structures.compact.bispans import Bispans
from rdpgraph.structures.compact.inside import LOWEST
from rdpgraph.structures.compact.masked import LinkMasks
from rdpgraph.structures.compact.ruled import RuleMasked


@dataclass(frozen=True, eq=False)
class MixedMasks(LinkMasks):
    """The question of a source and a target word is whether one rule has both.

    A yes leaves the bispans that have both words or neither, so that whichever rule has the one
    has the other; a no leaves the rules that do not have both.

    Args:
        model: the bitext.
        source_lengths: its own.
        target_lengths: its own.
        pairs: its own, and so are the scores of words alone and the rules.
    """

    pairs: Tensor
    source: Tensor
    target: Tensor
    rules: Tensor | None

    def open(self) -> Tensor:
        return super().open() & (self.pairs.detach() > -math.inf)

    def gains(self) -> Tensor:
        alone = self.source.detach().unsqueeze(-1) + self.target.detach().unsqueeze(-2)
        return self.pairs.detach().double() - alone.double().clamp(min=LOWEST)

    def masked(self, required: Tensor, forbidden: Tensor) -> "MaskedMixed":
        """The bispans and rules that are left."""
        lead, (p, q) = tuple(required.shape[:-2]), self.questions
        batch, chains = self.items, self.chains(lead)
        lengths = self.lengths[0].repeat(chains), self.lengths[1].repeat(chains)
        items = len(lengths[0])
        spans = Bispans.of(lengths, required.reshape(items, p, q).nonzero(), None)
        i, k, j, m = spans.ends
        own = self.potentials[spans.item % max(batch, 1), i, k, j, m, 0].double()
        some = ((k > i) & (m > j) & (own > -math.inf)).nonzero().squeeze(1)
        kept, own = Boxes(spans.item[some], spans.ends[:, some], max(p, q)), own[some]
        pairs = self.pairs.detach().reshape(batch, p, q).repeat(chains, 1, 1)
        emission = Emission(
            pairs.masked_fill(forbidden.reshape(items, p, q), -math.inf),
            self.source.detach().reshape(batch, p),
            self.target.detach().reshape(batch, q),
        )
        weights = own.new_zeros(len(ORDERS)) if self.rules is None else self.rules.detach()
        top = (kept.ends[0] == 0) & (kept.ends[2] == 0)
        top &= kept.ends[1] == lengths[0][kept.item]
        top &= kept.ends[3] == lengths[1][kept.item]
        tops = torch.full((items,), -1, device=own.device)
        tops[kept.item[top]] = top.nonzero().squeeze(1)
        listed = Listed.of(Nodes.of(kept, emission), own, weights, tops, p + q)
        empty = (lengths[0] == 0) & (lengths[1] == 0)
        return MaskedMixed(lead, listed.forest, listed.item, empty, self, kept, listed)


@dataclass(frozen=True, eq=False)
class MaskedMixed(RuleMasked):
    """A bitext of mixed rules within a mask: bispans, what stands between, and the ways to make it.

    Attributes:
        masks: of the bitext.
        kept: the bispans.
        listed: what they are made of.
    """

    masks: MixedMasks
    kept: Boxes
    listed: Listed

    @cached_property
    def places(self) -> Tensor:
        """(P,) the number of each bispan among the sites."""
        rows, _, columns, _, _ = self.masks.sites
        i, k, j, m = self.kept.ends
        return (((self.kept.item * rows + i) * rows + k) * columns + j) * columns + m

    def averages(self, chances: Tensor, used: Tensor, score: Tensor) -> Expected:
        """Aligned words, and bispans; ``"orders"``: how often each kind of rule is used."""
        chances, item = chances[self.listed.place], self.owner[self.forest.whole]
        seen = chances > 0
        counts = used.new_zeros(len(self.empty) * (PARTIAL + 1))
        counts.index_add_(0, item * (PARTIAL + 1) + self.listed.kind, used)
        counts = counts.reshape(*self.lead, PARTIAL + 1)[..., :PARTIAL]
        rules = (used > 0).nonzero().squeeze(1)
        return Expected(
            self._aligned(rules, used[rules]), score, self.places[seen], chances[seen],
            {"orders": counts},
        )  # fmt: skip

    def configuration(self, rules: Tensor) -> Draw:
        """Aligned words, and bispans."""
        ones = torch.ones(len(rules), dtype=torch.float64, device=rules.device)
        made = self.forest.whole[rules[self.listed.kind[rules] < PARTIAL]]
        return Draw(self._aligned(rules, ones) > 0.5, self.places[self.number[made]])

    @cached_property
    def number(self) -> Tensor:
        """(nodes,) which of the bispans each is; -1: none."""
        number = torch.full((len(self.owner),), -1, device=self.owner.device)
        number[self.listed.place] = torch.arange(len(self.kept), device=number.device)
        return number

    def _aligned(self, ways: Tensor, weights: Tensor) -> Tensor:
        """(*lead, p, q) the summed weights of the ways that have both words, by corners."""
        p, q = self.masks.questions
        counts = weights.new_zeros(len(self.empty) * (p + 1) * (q + 1))

        def add(rows: Tensor, columns: Tensor, own: Tensor, sign: int = 1) -> None:
            for a in (0, 1):
                for b in (0, 1):
                    at = rows[:, a] * (q + 1) + columns[:, b]
                    counts.index_add_(0, at, own, alpha=sign if a == b else -sign)

        whole, kept, listed = self.forest.whole[ways], self.kept, self.listed
        around = listed.kind[ways] == AROUND
        some = (~around).nonzero().squeeze(1)
        words = listed.words[ways[some]]
        both = (words[:, 1] > 0).all(1).nonzero().squeeze(1)
        some, words = some[both], words[both].long()
        first = (self.owner[whole[some]] * (p + 1)).unsqueeze(1)
        add(words[:, :, 0] + first, words[:, :, 1], weights[some])
        # Words around a part: those of both bispans, less those of either with the other's.
        some = around.nonzero().squeeze(1)
        outer, inner = self.number[whole[some]], self.number[self.forest.parts[0, ways[some]]]
        rows = (kept.item * (p + 1)).unsqueeze(1) + kept.ends[:2].T
        columns, weights = kept.ends[2:].T, weights[some]
        both = weights.new_zeros(len(kept)).index_add_(0, outer, weights)
        add(rows, columns, both.index_add_(0, inner, weights))
        add(rows[outer], columns[inner], weights, -1)
        add(rows[inner], columns[outer], weights, -1)
        sums = counts.reshape(-1, p + 1, q + 1).cumsum(1).cumsum(2).clamp_(0.0, 1.0)
        return sums[:, :p, :q].reshape(*self.lead, p, q)
