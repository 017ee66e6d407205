"""Structures within masks as forests of places, or of single rules."""

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rdpgraph._core.cache import cached_property
from rdpgraph.interface.masks import NOTHING, Draw, Expected, Masked, StructureMasks
from rdpgraph.model.soundness import require_possible
from rdpgraph.structures.compact.inside import LOWEST, Forest, Inside, inside, segments, weighted
from rdpgraph.structures.draws import column, drawn_between


@dataclass(frozen=True, eq=False)
class LinkMasks(StructureMasks):
    """Questions about pairs (p, q) of a source and a target word of a model."""

    model: Any

    site_dims = 5

    @property
    def questions(self) -> tuple[int, ...]:
        _, rows, _, columns, _ = self.sites
        return rows - 1, columns - 1

    @cached_property
    def lengths(self) -> tuple[Tensor, Tensor]:
        """(B,) of the sources and of the targets."""
        given = self.model.source_lengths, self.model.target_lengths
        source, target = map(self.flat_lengths, given, self.questions)
        return source, target

    def open(self) -> Tensor:
        """Pairs of words within the lengths."""
        inside = [
            torch.arange(most, device=lengths.device) < lengths.unsqueeze(1)
            for lengths, most in zip(self.lengths, self.questions, strict=True)
        ]
        within = inside[0].unsqueeze(2) & inside[1].unsqueeze(1)
        return within.reshape(*self.batch_shape, *self.questions)

    def guess(self, likely: Tensor) -> Tensor:
        """The pairs that gain most for both words, at most one for each."""
        if not likely.numel():
            return likely
        gains = self.gains().masked_fill(~likely, -math.inf)
        best = [torch.zeros_like(gains, dtype=torch.bool) for _ in range(2)]
        for mask, dim in zip(best, (-1, -2), strict=True):
            mask.scatter_(dim, gains.argmax(dim, keepdim=True), value=True)
        return best[0] & best[1] & likely

    @abstractmethod
    def gains(self) -> Tensor:
        """(*batch, p, q) by how much a link is better than both words alone, nats."""


def descend(inside: Inside, item: Tensor, generator: torch.Generator | None) -> list[Tensor]:
    """Draw a derivation of each of some items, which may be repeated.

    The items, places and labels (n,) that derivations use, and whether they have no parts.

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
    # Running sums of the ways' probabilities, one class pair after another.
    sums = inside.probabilities.T.flatten().cumsum(0)
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
    return columns


@dataclass(frozen=True, eq=False)
class ForestMasked(Masked):
    """A structure within a mask, as a forest."""

    forest: Forest  # the kept places, of chains * batch items; items that have no words have none
    lead: tuple[int, ...]  # chains and batch dims
    site: Tensor  # (P,) the number of each place's site within its item
    sites: int  # the number of sites of an item
    empty: Tensor  # (items,) bool: items whose one configuration is empty

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
        forest, (places, ended, rules) = self.forest, self.inside.expected()
        score = weighted(ended, forest.ends) + weighted(places - ended, forest.joined)
        score = score.new_zeros(len(self.empty)).index_add_(0, forest.item, score.sum(1))
        score += weighted(rules.flatten(2), forest.rules.table).sum((1, 2))
        score += weighted(self.inside.tops.softmax(1).nan_to_num(0.0), forest.root).sum(1)
        labels = places.shape[1]
        every = torch.arange(labels, device=self.site.device)
        number = (forest.item * self.sites + self.site).unsqueeze(1) * labels + every
        seen = places > 0
        counts = {name: count.reshape(*self.lead, *count.shape[1:]) for name, count in
                  self.counts(rules).items()}  # fmt: skip
        place = torch.arange(len(forest.item), device=self.site.device)
        weights = self.answering(place, places.sum(1), ended.sum(1))
        return Expected(
            self.answers(forest.item, weights, place), score.reshape(self.lead),
            number[seen], places[seen], counts,
        )  # fmt: skip

    def draw(self, generator: torch.Generator | None) -> Draw:
        alive = (~self.empty).nonzero().squeeze(1)
        item, place, label, ended = descend(self.inside, alive, generator)
        ended = ended.to(self.forest.ends)
        weights = self.answering(place, torch.ones_like(ended), ended)
        answers = self.answers(item, weights, place)
        places = (item * self.sites + self.site[place]) * self.forest.ends.shape[1] + label
        return Draw(answers > 0.5, places)

    @abstractmethod
    def answering(self, place: Tensor, used: Tensor, ended: Tensor) -> Tensor:
        """(n,) the probabilities that answer questions, of places used and of those that end."""

    @abstractmethod
    def answers(self, item: Tensor, weights: Tensor, place: Tensor) -> Tensor:
        """(*lead, *questions) answers of places (n,) of items, with weights."""

    @abstractmethod
    def counts(self, rules: Tensor) -> dict[str, Tensor]:
        """Named counts from the expected uses (items, K, G, L, R) of rules."""


@dataclass(frozen=True, eq=False)
class RuleForest:
    """The kept places of some items, by size, and the rules that make one of some others.

    Time and memory are in proportion to the rules.
    """

    rows: tuple[int, ...]  # the first place of each size, and P
    whole: Tensor  # (E,) the place that each rule makes, ascending
    parts: Tensor  # (m, E) its parts; P: none
    logs: Tensor  # (E,) log-weights (nats) of the rules, potentials of the wholes included
    tops: Tensor  # (I,) the place of each item's whole; -1: none, and Z is 0

    @cached_property
    def counts(self) -> Tensor:
        """(P,) the number of rules that make each place."""
        return torch.bincount(self.whole, minlength=self.rows[-1])

    @cached_property
    def begins(self) -> Tensor:
        """(P + 1,) the first rule of each place."""
        return torch.nn.functional.pad(self.counts.cumsum(0), (1, 0))

    @cached_property
    def layers(self) -> list[tuple[slice, slice]]:
        """The places and the rules of each size that has rules."""
        edges = self.begins[torch.tensor(self.rows, device=self.begins.device)].tolist()
        bounds = zip(self.rows, self.rows[1:], edges, edges[1:], strict=False)
        return [(slice(a, b), slice(c, d)) for a, b, c, d in bounds if c < d]

    @cached_property
    def sums(self) -> Tensor:
        """(P + 1,) log-sums over the trees below each place; the last is 0, for no part."""
        sums = self.logs.new_full((self.rows[-1] + 1,), -math.inf)
        sums[-1] = 0.0
        for places, rules in self.layers:
            logs = self._products(sums, rules).unsqueeze(1)
            segment = self.whole[rules] - places.start
            sums[places] = segments(logs, self.counts[places], segment).squeeze(1)
        return sums

    def _products(self, sums: Tensor, rules: slice) -> Tensor:
        logs = self.logs[rules]
        for part in self.parts[:, rules]:
            logs = logs + sums[part]
        return logs

    @cached_property
    def probabilities(self) -> Tensor:
        """(E,) the probability of each rule given its whole."""
        logs = self._products(self.sums, slice(None))
        return (logs - self.sums.clamp(min=LOWEST)[self.whole]).exp()

    @property
    def log_partition(self) -> Tensor:
        """(I,) nats; -inf where an item has no tree."""
        return torch.where(self.tops < 0, -math.inf, self.sums[self.tops])

    def expected(self) -> tuple[Tensor, Tensor]:
        """(P,) the probability of each place; (E,) of each rule."""
        places, rules = torch.zeros_like(self.sums), torch.zeros_like(self.logs)
        alive = self.tops[self.log_partition > -math.inf]
        places[alive] = 1.0
        for _, layer in reversed(self.layers):
            chances = places[self.whole[layer]] * self.probabilities[layer]
            rules[layer] = chances
            for part in self.parts[:, layer]:
                places.index_add_(0, part, chances)
        return places[:-1], rules

    def draw(self, item: Tensor, generator: torch.Generator | None) -> Tensor:
        """The rules of an exact draw of each of some items, which have trees."""
        sums, done, place = self.probabilities.cumsum(0), [item[:0]], self.tops[item]
        while len(place):
            rule = drawn_between(sums, self.begins[place], self.begins[place + 1], generator)
            done.append(rule)
            place = self.parts[:, rule].flatten()
            place = place[place < self.rows[-1]]
        return torch.cat(done)


@dataclass(frozen=True, eq=False)
class RuleMasked(Masked):
    """A structure within a mask, as a forest of rules."""

    lead: tuple[int, ...]  # chains and batch dims
    forest: RuleForest  # the kept places, and the rules that make them
    owner: Tensor  # (P,) the item of each place
    empty: Tensor  # (I,) bool: items whose one configuration is empty

    @property
    def log_partition(self) -> Tensor:
        return torch.where(self.empty, 0.0, self.forest.log_partition).reshape(self.lead)

    @property
    def work(self) -> int:
        return len(self.owner) + len(self.forest.logs)

    def expected(self) -> Expected:
        chances, used = self.forest.expected()
        terms = weighted(used, self.forest.logs)
        score = used.new_zeros(len(self.empty))
        score.index_add_(0, self.owner[self.forest.whole], terms)
        return self.averages(chances, used, score.reshape(self.lead))

    def draw(self, generator: torch.Generator | None) -> Draw:
        require_possible(NOTHING, self.log_partition > -math.inf)
        return self.configuration(self.forest.draw((~self.empty).nonzero().squeeze(1), generator))

    @abstractmethod
    def averages(self, chances: Tensor, used: Tensor, score: Tensor) -> Expected:
        """Averages from probabilities (P,) of places and (E,) of rules, and the score (*lead,)."""

    @abstractmethod
    def configuration(self, rules: Tensor) -> Draw:
        """Configurations that use some rules (n,) once each."""
