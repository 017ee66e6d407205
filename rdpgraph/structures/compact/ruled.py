"""A structure within a mask, as a forest of single rules."""

import math
from abc import abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from rdpgraph.model.masks import NOTHING, Draw, Expected, Masked
from rdpgraph.model.soundness import require_possible
from rdpgraph.structures.compact.inside import weighted
from rdpgraph.structures.compact.rule_forest import RuleForest


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
        """(*lead,) log Z of what the mask allows, nats."""
        return torch.where(self.empty, 0.0, self.forest.log_partition).reshape(self.lead)

    @property
    def work(self) -> int:
        """Places and rules."""
        return len(self.owner) + len(self.forest.logs)

    def expected(self) -> Expected:
        """By the sums of the forest."""
        chances, used = self.forest.expected()
        terms = weighted(used, self.forest.logs)
        score = used.new_zeros(len(self.empty))
        score.index_add_(0, self.owner[self.forest.whole], terms)
        return self.averages(chances, used, score.reshape(self.lead))

    def draw(self, generator: torch.Generator | None) -> Draw:
        """One configuration of each item, from its whole."""
        require_possible(NOTHING, self.log_partition > -math.inf)
        return self.configuration(self.forest.draw((~self.empty).nonzero().squeeze(1), generator))

    @abstractmethod
    def averages(self, chances: Tensor, used: Tensor, score: Tensor) -> Expected:
        """What the chances (P,) of places and (E,) of rules say, beside the score (*lead,)."""

    @abstractmethod
    def configuration(self, rules: Tensor) -> Draw:
        """The configurations that use some rules (n,), each of them once."""
