"""A structure within a mask as a forest: draws of derivations, and links between two sentences."""

import math
from abc import abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from rdpgraph._core.cache import cached_property
from rdpgraph.interface.masks import NOTHING, Draw, Expected, Masked, StructureMasks
from rdpgraph.interface.structure import Structure
from rdpgraph.model.soundness import require_possible
from rdpgraph.structures.compact.inside import Forest, Inside, inside, weighted
from rdpgraph.structures.draws import column, drawn_between


@dataclass(frozen=True, eq=False)
class LinkMasks(StructureMasks):
    """Questions of a source and a target word, (p, q).

    Args:
        model: of the two sentences.
        source_lengths: (*batch,) its own, or None.
        target_lengths: likewise.
    """

    model: Structure
    source_lengths: Tensor | None
    target_lengths: Tensor | None

    site_dims = 5

    @property
    def questions(self) -> tuple[int, ...]:
        """(p, q): whether each source word is linked to each target word."""
        _, rows, _, columns, _ = self.sites
        return rows - 1, columns - 1

    @cached_property
    def lengths(self) -> tuple[Tensor, Tensor]:
        """(B,) of the sources and of the targets."""
        given = self.source_lengths, self.target_lengths
        source, target = map(self.flat_lengths, given, self.questions)
        return source, target

    def open(self) -> Tensor:
        """The pairs of words within the lengths."""
        inside = [
            torch.arange(most, device=own.device) < own.unsqueeze(1)
            for own, most in zip(self.lengths, self.questions, strict=True)
        ]
        within = inside[0].unsqueeze(2) & inside[1].unsqueeze(1)
        return within.reshape(*self.batch_shape, *self.questions)

    def guess(self, likely: Tensor) -> Tensor:
        """The pairs that gain most of both words, one of a word at most."""
        if not likely.numel():
            return likely
        gains = self.gains().masked_fill(~likely, -math.inf)
        best = [torch.zeros_like(gains, dtype=torch.bool) for _ in range(2)]
        for own, dim in zip(best, (-1, -2), strict=True):
            own.scatter_(dim, gains.argmax(dim, keepdim=True), value=True)
        return best[0] & best[1] & likely

    @abstractmethod
    def gains(self) -> Tensor:
        """(*batch, p, q) by how much a link is better than both words alone, nats."""


@dataclass(frozen=True, eq=False)
class Drawn:
    """The places that derivations use.

    Attributes:
        item: (n,) whose derivation.
        place: (n,) the place.
        label: (n,) its label.
        ended: (n,) whether it has no parts.
    """

    item: Tensor
    place: Tensor
    label: Tensor
    ended: Tensor


def descend(inside: Inside, item: Tensor, generator: torch.Generator | None) -> Drawn:
    """An exact draw of each of some items, which may be named more than once.

    Raises:
        ImpossibleEvidenceError: an item has no derivation.
    """
    forest, rules = inside.forest, inside.forest.rules
    lost = inside.log_partition[item] == -torch.inf
    spared = torch.ones_like(inside.log_partition, dtype=torch.bool)
    require_possible(NOTHING, spared.index_fill(0, item[lost], value=False))
    ends, joined, left, right = inside.choices
    options = torch.cat([ends.unsqueeze(2), joined], 2)
    lefts, rights = rules.counts
    # The shares of the ways, class pair by class pair; those of a whole are a stretch of it.
    sums = inside.shares.T.flatten().cumsum(0)
    ways = len(forest.left)

    place, label = forest.tops[item], column(inside.tops[item].softmax(1), generator)
    done: list[tuple[Tensor, ...]] = [(item[:0], place[:0], label[:0], label[:0] > 0)]
    while len(place):
        way = column(options[place, label], generator) - 1
        done.append((item, place, label, way < 0))
        on = (way >= 0).nonzero().squeeze(1)
        item, place, way = item[on], place[on], way[on]
        if not len(place):
            break
        kind, pair = way // (lefts * rights), way % (lefts * rights)
        whole = place * rules.kinds + kind
        start, stop = forest.before[whole] + pair * ways, forest.before[whole + 1] + pair * ways
        edge = drawn_between(sums, start, stop, generator) - pair * ways
        one, other = forest.left[edge], forest.right[edge]
        first = torch.where(rules.left == (pair // rights).unsqueeze(1), left[one], 0.0)
        second = torch.where(rules.right == (pair % rights).unsqueeze(1), right[other], 0.0)
        item, place = item.repeat(2), torch.cat([one, other])
        label = column(torch.cat([first, second]), generator)
    columns = [torch.cat(column) for column in zip(*done, strict=True)]
    return Drawn(columns[0], columns[1], columns[2], columns[3])


@dataclass(frozen=True, eq=False)
class ForestMasked(Masked):
    """What every structure says of its forest.

    Attributes:
        forest: the kept places, of chains * batch items; items that have no words have none.
        lead: chains and batch dims.
        site: (P,) the number of each place's site within its item.
        sites: how many sites an item has.
        empty: (items,) bool: the items whose one configuration is that of nothing.
    """

    forest: Forest
    lead: tuple[int, ...]
    site: Tensor
    sites: int
    empty: Tensor

    @cached_property
    def inside(self) -> Inside:
        """The inside sums over the places of the forest."""
        return inside(self.forest)

    @property
    def work(self) -> int:
        return len(self.forest.item) + len(self.forest.left)

    @property
    def log_partition(self) -> Tensor:
        log_z = self.inside.log_partition
        return torch.where(self.empty, 0.0, log_z).reshape(self.lead)

    def expected(self) -> Expected:
        """Averages by the sums of the forest, from the whole downwards."""
        forest, shares = self.forest, self.inside.expected()
        joined = shares.places - shares.ended
        score = weighted(shares.ended, forest.ends) + weighted(joined, forest.joined)
        score = score.new_zeros(len(self.empty)).index_add_(0, forest.item, score.sum(1))
        score += weighted(shares.rules.flatten(2), forest.rules.table).sum((1, 2))
        score += weighted(self.inside.tops.softmax(1).nan_to_num(0.0), forest.root).sum(1)
        labels = shares.places.shape[1]
        every = torch.arange(labels, device=self.site.device)
        number = (forest.item * self.sites + self.site).unsqueeze(1) * labels + every
        seen = shares.places > 0
        counts = {name: own.reshape(*self.lead, *own.shape[1:]) for name, own in
                  self.counts(shares.rules).items()}  # fmt: skip
        place = torch.arange(len(forest.item), device=self.site.device)
        weights = self.answering(place, shares.places.sum(1), shares.ended.sum(1))
        return Expected(
            self.answers(forest.item, weights, place), score.reshape(self.lead),
            number[seen], shares.places[seen], counts,
        )  # fmt: skip

    def draw(self, generator: torch.Generator | None) -> Draw:
        alive = (~self.empty).nonzero().squeeze(1)
        drawn = descend(self.inside, alive, generator)
        labels = self.forest.ends.shape[1]
        site = drawn.item * self.sites + self.site[drawn.place]
        ended = drawn.ended.to(self.forest.ends)
        weights = self.answering(drawn.place, torch.ones_like(ended), ended)
        answers = self.answers(drawn.item, weights, drawn.place)
        return Draw(answers > 0.5, site * labels + drawn.label)

    @abstractmethod
    def answering(self, place: Tensor, used: Tensor, ended: Tensor) -> Tensor:
        """(n,) of the chances of places, to be used and to have no parts, those that answer."""

    @abstractmethod
    def answers(self, item: Tensor, weights: Tensor, place: Tensor) -> Tensor:
        """(*lead, *questions) what places (n,) of items, with weights, say to the questions."""

    @abstractmethod
    def counts(self, rules: Tensor) -> dict[str, Tensor]:
        """By name, of the expected uses (items, K, G, L, R) of rules, what is told of them."""
