"""A structure within a mask, as a forest of single rules, and sums over its trees."""

import math
from abc import abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from rdpgraph._core.cache import cached_property
from rdpgraph.interface.masks import NOTHING, Draw, Expected, Masked
from rdpgraph.model.soundness import require_possible
from rdpgraph.structures.compact.inside import LOWEST, segments, weighted
from rdpgraph.structures.draws import drawn_between


@dataclass(frozen=True, eq=False)
class RuleForest:
    """The kept places of some items, by size; and the rules that make one of some others.

    Time and memory are in proportion to the rules.

    Attributes:
        rows: where each size begins among the places, and P.
        whole: (E,) the place that each rule makes, rising.
        parts: (m, E) those that it is made of; P: there is none.
        logs: (E,) log-weights (nats) of the rules, potentials of the wholes included.
        tops: (I,) the place of each item's whole; -1: it has none, and Z is 0.
    """

    rows: tuple[int, ...]
    whole: Tensor
    parts: Tensor
    logs: Tensor
    tops: Tensor

    @cached_property
    def counts(self) -> Tensor:
        """(P,) how many rules make each place."""
        return torch.bincount(self.whole, minlength=self.rows[-1])

    @cached_property
    def begins(self) -> Tensor:
        """(P + 1,) where those of each place begin."""
        return torch.nn.functional.pad(self.counts.cumsum(0), (1, 0))

    @cached_property
    def layers(self) -> list[tuple[slice, slice]]:
        """The places of each size that has rules to make them, and these."""
        edges = self.begins[torch.tensor(self.rows, device=self.begins.device)].tolist()
        bounds = zip(self.rows, self.rows[1:], edges, edges[1:], strict=False)
        return [(slice(a, b), slice(c, d)) for a, b, c, d in bounds if c < d]

    @cached_property
    def sums(self) -> Tensor:
        """(P + 1,) log-sums over the trees below each place; the last is that of no part, 0."""
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
    def shares(self) -> Tensor:
        """(E,) the probability of each rule given its whole."""
        own = self._products(self.sums, slice(None))
        return (own - self.sums.clamp(min=LOWEST)[self.whole]).exp()

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
            own = places[self.whole[layer]] * self.shares[layer]
            rules[layer] = own
            for part in self.parts[:, layer]:
                places.index_add_(0, part, own)
        return places[:-1], rules

    def draw(self, item: Tensor, generator: torch.Generator | None) -> Tensor:
        """The rules of an exact draw of each of some items, which have trees."""
        sums, done, place = self.shares.cumsum(0), [item[:0]], self.tops[item]
        while len(place):
            rule = drawn_between(sums, self.begins[place], self.begins[place + 1], generator)
            done.append(rule)
            place = self.parts[:, rule].flatten()
            place = place[place < self.rows[-1]]
        return torch.cat(done)


@dataclass(frozen=True, eq=False)
class RuleMasked(Masked):
    """What every structure says of its forest of rules.

    Attributes:
        lead: chains and batch dims.
        forest: the places that are left, and the rules that make them.
        owner: (P,) the item of each place.
        empty: (I,) bool: the items whose one configuration is that of nothing.
    """

    lead: tuple[int, ...]
    forest: RuleForest
    owner: Tensor
    empty: Tensor

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
        """What the chances (P,) of places and (E,) of rules say, beside the score (*lead,)."""

    @abstractmethod
    def configuration(self, rules: Tensor) -> Draw:
        """The configurations that use some rules (n,), each of them once."""
