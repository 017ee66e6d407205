"""A structure within a mask, as a forest."""

from abc import abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from rdpgraph._cache import cached_property
from rdpgraph.model.masks import Draw, Expected, Masked
from rdpgraph.structures.compact.descend import descend
from rdpgraph.structures.compact.forest import Forest
from rdpgraph.structures.compact.inside import Inside, inside, weighted


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
        """Places and ways."""
        return len(self.forest.item) + len(self.forest.left)

    @property
    def log_partition(self) -> Tensor:
        """(*lead,) log Z of what the mask allows, nats."""
        log_z = self.inside.log_partition
        return torch.where(self.empty, 0.0, log_z).reshape(self.lead)

    def expected(self) -> Expected:
        """By the sums of the forest, from the whole downwards."""
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
        """One derivation of each item."""
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
