"""Bitexts of mixed rules within masks of the pairs of words that one rule has."""

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from rdpgraph._cache import cached_property
from rdpgraph.errors import ImpossibleEvidenceError
from rdpgraph.model.masks import NOTHING, Draw, Expected, Masked, Masks
from rdpgraph.structures.compact.bispans import Bispans
from rdpgraph.structures.compact.links import SentencePairs, mutual
from rdpgraph.structures.compact.rule_forest import RuleForest
from rdpgraph.structures.mixed.boxes import Boxes
from rdpgraph.structures.mixed.emission import Emission
from rdpgraph.structures.mixed.listed import Listed
from rdpgraph.structures.mixed.shapes import ORDERS
from rdpgraph.structures.mixed.ways import AROUND, PARTIAL, Nodes


class MixedFields(SentencePairs, Protocol):
    """What masks read of a `MixedBitext`, whose fields are described there."""

    @property
    def pairs(self) -> Tensor:
        """Of pairs of words."""
        ...

    @property
    def source(self) -> Tensor:
        """Of source words alone."""
        ...

    @property
    def target(self) -> Tensor:
        """Of target words alone."""
        ...

    @property
    def rules(self) -> Tensor | None:
        """Of kinds of rules."""
        ...


@dataclass(frozen=True, eq=False)
class MixedMasks(Masks):
    """The question of a source and a target word is whether one rule has both.

    A yes leaves the bispans that have both words or neither, so that whichever rule has the one
    has the other; a no leaves the rules that do not have both.

    Args:
        model: the bitext.
    """

    model: MixedFields

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """The batch dims of the bitext."""
        return self.model.batch_shape

    @property
    def questions(self) -> tuple[int, ...]:
        """(p, q): whether each source word is aligned with each target word."""
        return tuple(self.model.pairs.shape[-2:])

    @property
    def sites(self) -> tuple[int, ...]:
        """(p + 1, p + 1, q + 1, q + 1, 1)."""
        return tuple(self.model.unary.shape[-5:])

    @cached_property
    def lengths(self) -> tuple[Tensor, Tensor]:
        """(B,) of the sources and of the targets."""
        batch, device = math.prod(self.batch_shape), self.model.unary.device
        given = self.model.source_lengths, self.model.target_lengths
        source, target = (
            torch.full((batch,), most, device=device) if own is None else own.reshape(-1)
            for own, most in zip(given, self.questions, strict=True)
        )
        return source, target

    def open(self) -> Tensor:
        """The pairs of words within the lengths that may be aligned."""
        inside = [
            torch.arange(most, device=own.device) < own.unsqueeze(1)
            for own, most in zip(self.lengths, self.questions, strict=True)
        ]
        within = (inside[0].unsqueeze(2) & inside[1].unsqueeze(1)).reshape(self.model.pairs.shape)
        return within & (self.model.pairs.detach() > -math.inf)

    def guess(self, likely: Tensor) -> Tensor:
        """The pairs that are the best ones of both words, by what they gain over words alone."""
        model = self.model
        alone = model.source.detach().unsqueeze(-1) + model.target.detach().unsqueeze(-2)
        gains = model.pairs.detach().double() - alone.double().clamp(min=-1e300)
        return mutual(gains.masked_fill(~likely, -math.inf)) & likely

    def masked(self, required: Tensor, forbidden: Tensor) -> "MaskedMixed":
        """The bispans and rules that are left."""
        model, lead, (p, q) = self.model, tuple(required.shape[:-2]), self.questions
        batch = math.prod(self.batch_shape)
        chains = math.prod(lead) // batch if batch else 0
        lengths = self.lengths[0].repeat(chains), self.lengths[1].repeat(chains)
        items = len(lengths[0])
        spans = Bispans.of(lengths, required.reshape(items, p, q).nonzero(), None)
        unary = model.unary.detach().reshape(batch, *self.sites[:-1])
        i, k, j, m = spans.ends
        own = unary[spans.item % max(batch, 1), i, k, j, m].double()
        some = ((k > i) & (m > j) & (own > -math.inf)).nonzero().squeeze(1)
        kept, own = Boxes(spans.item[some], spans.ends[:, some], max(p, q)), own[some]
        pairs = model.pairs.detach().reshape(batch, p, q).repeat(chains, 1, 1)
        emission = Emission(
            pairs.masked_fill(forbidden.reshape(items, p, q), -math.inf),
            model.source.detach().reshape(batch, p),
            model.target.detach().reshape(batch, q),
        )
        weights = own.new_zeros(len(ORDERS)) if model.rules is None else model.rules.detach()
        top = (kept.ends[0] == 0) & (kept.ends[2] == 0)
        top &= kept.ends[1] == lengths[0][kept.item]
        top &= kept.ends[3] == lengths[1][kept.item]
        tops = torch.full((items,), -1, device=own.device)
        tops[kept.item[top]] = top.nonzero().squeeze(1)
        listed = Listed.of(Nodes.of(kept, emission), own, weights, tops, p + q)
        return MaskedMixed(self, lead, kept, listed, (lengths[0] == 0) & (lengths[1] == 0))


@dataclass(frozen=True, eq=False)
class MaskedMixed(Masked):
    """A bitext of mixed rules within a mask.

    Attributes:
        masks: of the bitext.
        lead: chains and batch dims.
        kept: the bispans.
        listed: what they are made of.
        empty: (I,) bool: sentences without words.
    """

    masks: MixedMasks
    lead: tuple[int, ...]
    kept: Boxes
    listed: Listed
    empty: Tensor

    @property
    def forest(self) -> RuleForest:
        """The ways to make the bispans by rules."""
        return self.listed.forest

    @property
    def log_partition(self) -> Tensor:
        """(*lead,) log Z of what the mask allows, nats."""
        return torch.where(self.empty, 0.0, self.forest.log_partition).reshape(self.lead)

    @property
    def work(self) -> int:
        """Bispans and what stands between them, and the ways to make these."""
        return len(self.listed.item) + len(self.forest.whole)

    @cached_property
    def places(self) -> Tensor:
        """(P,) the number of each bispan among the sites."""
        rows, _, columns, _, _ = self.masks.sites
        i, k, j, m = self.kept.ends
        return (((self.kept.item * rows + i) * rows + k) * columns + j) * columns + m

    def expected(self) -> Expected:
        """By the sums of the forest."""
        chances, used = self.forest.expected()
        chances, item = chances[self.listed.place], self.listed.item[self.forest.whole]
        seen = chances > 0
        score = used.new_zeros(len(self.empty))
        score.index_add_(0, item, torch.where(used > 0, used * self.forest.logs, 0.0))
        counts = used.new_zeros(len(self.empty) * (PARTIAL + 1))
        counts.index_add_(0, item * (PARTIAL + 1) + self.listed.kind, used)
        counts = counts.reshape(*self.lead, PARTIAL + 1)[..., :PARTIAL]
        rules = (used > 0).nonzero().squeeze(1)
        return Expected(
            self._aligned(rules, used[rules]), score.reshape(self.lead), self.places[seen],
            chances[seen], {"orders": counts},
        )  # fmt: skip

    def draw(self, generator: torch.Generator | None) -> Draw:
        """One tree of each item."""
        if not bool((self.log_partition > -math.inf).all()):
            raise ImpossibleEvidenceError(NOTHING)
        rules = self.forest.draw((~self.empty).nonzero().squeeze(1), generator)
        ones = torch.ones(len(rules), dtype=torch.float64, device=rules.device)
        made = self.forest.whole[rules[self.listed.kind[rules] < PARTIAL]]
        return Draw(self._aligned(rules, ones) > 0.5, self.places[self.number[made]])

    @cached_property
    def number(self) -> Tensor:
        """(nodes,) which of the bispans each is; -1: none."""
        number = torch.full((len(self.listed.item),), -1, device=self.listed.item.device)
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
        first = (listed.item[whole[some]] * (p + 1)).unsqueeze(1)
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
