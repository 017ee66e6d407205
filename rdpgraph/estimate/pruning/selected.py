"""Which answers a sweep holds: the selection chain, which never looks at the answers."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from rdpgraph.errors import ModelError
from rdpgraph.structures.draws import uniform


class Selected(ABC):
    """A policy of which questions each sweep holds to their present answers.

    It is told the likely questions and the last selection, and nothing of the answers: a choice
    that looked at those would not leave the posterior invariant (Andrieu and Moulines 2006).
    Any configuration must be reachable from any other by what is left out: of a step of three
    states whose first and third are held in every other sweep and the second in those between, the
    second is never left.
    """

    @abstractmethod
    def first(self, likely: Tensor, generator: torch.Generator | None) -> Tensor:
        """(chains, items, questions) bool: a selection to begin with.

        Args:
            likely: (chains, items, questions) bool: the questions that may be selected.
            generator: the randomness.
        """

    @abstractmethod
    def after(self, last: Tensor, likely: Tensor, generator: torch.Generator | None) -> Tensor:
        """The next selection, of the last one's shape."""


@dataclass(frozen=True)
class Alternating(Selected):
    """A fixed share of the likely questions: all left out last time, and a random rest.

    With two thirds, the share of Bouchard-Côté, Petrov and Klein 2009, section 3.2, the next
    selection is what was left out and a random half of what was selected, so that no two sweeps in
    turn have the same mask.

    Args:
        share: in 0..1. At 0 every sweep is exact inference; below 1 at least one likely question of
            each item is left out; at 1 none is, ever, so that the chain cannot move the answers to
            the likely questions.

    Raises:
        ModelError: a share out of range.
    """

    share: float = 2 / 3

    def __post_init__(self) -> None:
        if not 0.0 <= self.share <= 1.0:
            raise ModelError(f"Alternating needs a share in 0..1; got {self.share}.")

    def first(self, likely: Tensor, generator: torch.Generator | None) -> Tensor:
        """A random subset of the likely questions."""
        order = uniform(likely.shape, likely.device, generator)
        return _smallest(order.masked_fill(~likely, 2.0), self._size(likely))

    def after(self, last: Tensor, likely: Tensor, generator: torch.Generator | None) -> Tensor:
        """What was left out, and a random part of what was not."""
        # Those left out come first; where they are too many, a random part of them is taken.
        order = uniform(likely.shape, likely.device, generator) + last.double()
        return _smallest(order.masked_fill(~likely, 3.0), self._size(likely))

    def _size(self, likely: Tensor) -> Tensor:
        total = likely.sum(-1, keepdim=True)
        size = (self.share * total).round().long()
        return size if self.share == 1.0 else torch.minimum(size, (total - 1).clamp(min=0))


def _smallest(values: Tensor, count: Tensor) -> Tensor:
    """Where the `count` smallest entries of each row stand."""
    if not values.shape[-1]:
        return values > 0
    last = values.sort(-1).values.gather(-1, (count - 1).clamp(min=0))
    return (values <= last) & (count > 0)
