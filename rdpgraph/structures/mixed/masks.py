"""Bitexts of mixed rules within masks of the pairs of words that one rule has."""

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import pad

from rdpgraph._cache import cached_property
from rdpgraph.errors import ImpossibleEvidenceError
from rdpgraph.model.masks import NOTHING, Draw, Expected, Masked, Masks
from rdpgraph.structures.compact.bispans import Bispans
from rdpgraph.structures.compact.links import SentencePairs, mutual
from rdpgraph.structures.compact.rule_forest import RuleForest
from rdpgraph.structures.mixed.emission import Emission
from rdpgraph.structures.mixed.shapes import MOST_STRETCHES, ORDERS
from rdpgraph.structures.mixed.ways import Kept


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
        """That of the bitext."""
        return self.model.batch_shape

    @property
    def questions(self) -> tuple[int, ...]:
        """(p, q)."""
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
        kept, own = Kept(spans.item[some], spans.ends[:, some], max(p, q)), own[some]
        size = (kept.ends[1] - kept.ends[0] + kept.ends[3] - kept.ends[2]).contiguous()
        bounds = torch.arange(1, p + q + 2, device=size.device)
        rows = tuple(torch.searchsorted(size, bounds).tolist())
        pairs = model.pairs.detach().reshape(batch, p, q).repeat(chains, 1, 1)
        emission = Emission(
            pairs.masked_fill(forbidden.reshape(items, p, q), -math.inf),
            model.source.detach().reshape(batch, p),
            model.target.detach().reshape(batch, q),
        )
        weights = own.new_zeros(len(ORDERS)) if model.rules is None else model.rules.detach()
        listed: list[tuple[Tensor, ...]] = []
        for rules in kept.rules():
            logs = emission.scores(kept.item[rules.whole], rules.source, rules.target)
            logs = logs + own[rules.whole] + weights[rules.kind].double()
            real = (logs > -math.inf).nonzero().squeeze(1)
            missing = 3 - len(rules.parts)
            parts = pad(rules.parts[:, real], (0, 0, 0, missing), value=len(own))
            source, target = (
                pad(side[real], (0, 0, 0, MOST_STRETCHES[1] - side.shape[1])).to(torch.int16)
                for side in (rules.source, rules.target)
            )
            kind = torch.full_like(real, rules.kind)
            listed.append((rules.whole[real], parts.T, logs[real], kind, source, target))
        whole, parts, logs, kind, source, target = (
            torch.cat(part) for part in zip(*listed, strict=True)
        )
        whole, order = whole.sort(stable=True)
        top = (kept.ends[0] == 0) & (kept.ends[2] == 0)
        top &= kept.ends[1] == lengths[0][kept.item]
        top &= kept.ends[3] == lengths[1][kept.item]
        tops = torch.full((items,), -1, device=whole.device)
        tops[kept.item[top]] = top.nonzero().squeeze(1)
        forest = RuleForest(rows, whole, parts[order].T.contiguous(), logs[order], tops)
        empty = (lengths[0] == 0) & (lengths[1] == 0)
        return MaskedMixed(
            self, lead, kept, forest, kind[order], source[order], target[order], empty
        )


@dataclass(frozen=True, eq=False)
class MaskedMixed(Masked):
    """A bitext of mixed rules within a mask.

    Attributes:
        masks: of the bitext.
        lead: chains and batch dims.
        kept: the bispans.
        forest: their rules.
        kind: (E,) of each rule.
        source: (E, S, 2) the stretches of source words of each.
        target: (E, S, 2) and of target words.
        empty: (I,) bool: sentences without words.
    """

    masks: MixedMasks
    lead: tuple[int, ...]
    kept: Kept
    forest: RuleForest
    kind: Tensor
    source: Tensor
    target: Tensor
    empty: Tensor

    @property
    def log_partition(self) -> Tensor:
        """(*lead,) nats."""
        return torch.where(self.empty, 0.0, self.forest.log_partition).reshape(self.lead)

    @property
    def work(self) -> int:
        """Bispans and rules."""
        return len(self.kept.item) + len(self.forest.whole)

    @cached_property
    def places(self) -> Tensor:
        """(P,) the number of each bispan among the sites."""
        rows, _, columns, _, _ = self.masks.sites
        i, k, j, m = self.kept.ends
        return (((self.kept.item * rows + i) * rows + k) * columns + j) * columns + m

    def expected(self) -> Expected:
        """By the sums of the forest."""
        chances, used = self.forest.expected()
        item, seen = self.kept.item[self.forest.whole], chances > 0
        score = used.new_zeros(len(self.empty))
        score.index_add_(0, item, torch.where(used > 0, used * self.forest.logs, 0.0))
        counts = used.new_zeros(len(self.empty), len(ORDERS))
        counts.index_put_((item, self.kind), used, accumulate=True)
        rules = (used > 0).nonzero().squeeze(1)
        return Expected(
            self._aligned(rules, used[rules]), score.reshape(self.lead), self.places[seen],
            chances[seen], {"orders": counts.reshape(*self.lead, len(ORDERS))},
        )  # fmt: skip

    def draw(self, generator: torch.Generator | None) -> Draw:
        """One tree of each item."""
        if not bool((self.log_partition > -math.inf).all()):
            raise ImpossibleEvidenceError(NOTHING)
        rules = self.forest.draw((~self.empty).nonzero().squeeze(1), generator)
        ones = torch.ones(len(rules), dtype=torch.float64, device=rules.device)
        return Draw(self._aligned(rules, ones) > 0.5, self.places[self.forest.whole[rules]])

    def _aligned(self, rules: Tensor, weights: Tensor) -> Tensor:
        """(*lead, p, q) the summed weights of the rules that have both words, by corners."""
        p, q = self.masks.questions
        item = self.kept.item[self.forest.whole[rules]]
        counts = weights.new_zeros(len(self.empty), p + 1, q + 1)
        source, target = self.source[rules].long(), self.target[rules].long()
        for rows, columns in ((s, t) for s in source.unbind(1) for t in target.unbind(1)):
            some = ((rows[:, 1] > rows[:, 0]) & (columns[:, 1] > columns[:, 0])).nonzero()[:, 0]
            for a in (0, 1):
                for b in (0, 1):
                    own = weights[some] if a == b else -weights[some]
                    at = item[some], rows[some, a], columns[some, b]
                    counts.index_put_(at, own, accumulate=True)
        counts = counts.cumsum(1).cumsum(2).clamp_(0.0, 1.0)
        return counts[:, :p, :q].reshape(*self.lead, p, q)
