"""Masks: yes-or-no questions about configurations, some of whose answers are held."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from rdpgraph._core.cache import cached_property

NOTHING = "A mask allows nothing"
"""What is wrong where there is nothing to draw."""


@dataclass(frozen=True, eq=False)
class Expected:
    """What a model within a mask has on average.

    Attributes:
        answers: (*lead, *questions) the probability of a yes to each question.
        score: (*lead,) the expected score, nats.
        places: (n,) numbers of places, item by item: what of the sites has been visited.
        chances: (n,) their probabilities; a place that stands there twice has the sum.
        counts: of what else may be counted, by name, (*lead, ...).
    """

    answers: Tensor
    score: Tensor
    places: Tensor
    chances: Tensor
    counts: dict[str, Tensor] = field(default_factory=dict[str, Tensor])


@dataclass(frozen=True, eq=False)
class Draw:
    """A configuration of each item.

    Attributes:
        answers: (*lead, *questions) bool.
        places: (n,) the places that the configurations use, item by item.
    """

    answers: Tensor
    places: Tensor


class Masked(ABC):
    """A model within a mask, for `lead` = (chains, *batch) items."""

    @property
    @abstractmethod
    def log_partition(self) -> Tensor:
        """(*lead,) log Z of what the mask allows, nats; -inf where that is nothing."""

    @abstractmethod
    def expected(self) -> Expected:
        """The averages, exactly."""

    @abstractmethod
    def draw(self, generator: torch.Generator | None) -> Draw:
        """An exact draw of each item.

        Raises:
            ImpossibleEvidenceError: a mask allows nothing.
        """

    @property
    @abstractmethod
    def work(self) -> int:
        """How many places and ways were visited."""


class Masks(ABC):
    """The questions that a model can be masked by.

    A mask holds the answers to some of the questions and leaves what agrees with them, so that time
    and memory are in proportion to that. Places are the states of sites, numbered row by row within
    an item: site * states + state.
    """

    model: Any
    """The model, as declared."""

    @property
    @abstractmethod
    def batch_shape(self) -> tuple[int, ...]:
        """The batch dims of the model."""

    @property
    @abstractmethod
    def questions(self) -> tuple[int, ...]:
        """The shape of the questions of an item."""

    @property
    def questions_count(self) -> int:
        """How many questions an item has."""
        return math.prod(self.questions)

    @property
    @abstractmethod
    def sites(self) -> tuple[int, ...]:
        """The shape of an item's marginals, states last."""

    @property
    def numbers(self) -> tuple[Tensor, Tensor]:
        """(S,) of each place of an item its site, and its state."""
        size = math.prod(self.sites)
        place, states = torch.arange(size, device=self.open().device), max(self.sites[-1], 1)
        return place // states, place % states

    @property
    def dtype(self) -> torch.dtype:
        """The floating type of the marginals."""
        return self.model.unary.dtype

    @abstractmethod
    def open(self) -> Tensor:
        """(*batch, *questions) bool: those that an item has, and whose answer is not known."""

    @abstractmethod
    def masked(self, required: Tensor, forbidden: Tensor) -> Masked:
        """The model with some answers held.

        Args:
            required: (chains, *batch, *questions) bool: yes.
            forbidden: of that shape: no.
        """

    @abstractmethod
    def guess(self, likely: Tensor) -> Tensor:
        """(*batch, *questions) bool: yeses that may hold together, to begin with.

        Args:
            likely: of that shape: those to choose from.
        """


class StructureMasks(Masks):
    """Questions about a structure, whose unary potentials say what its batch and its sites are."""

    site_dims: ClassVar[int]
    """How many dims an item's marginals have, that of the states included."""

    @property
    def batch_shape(self) -> tuple[int, ...]:
        return tuple(self.model.unary.shape[: -self.site_dims])

    @property
    def sites(self) -> tuple[int, ...]:
        return tuple(self.model.unary.shape[-self.site_dims :])

    @property
    def items(self) -> int:
        """B, the product of the batch dims."""
        return math.prod(self.batch_shape)

    @cached_property
    def potentials(self) -> Tensor:
        """(B, *sites) the unary potentials, without gradient."""
        return self.model.unary.detach().reshape(self.items, *self.sites)

    def flat_lengths(self, lengths: Tensor | None, most: int) -> Tensor:
        """(B,) lengths (*batch,); all the most if there are none."""
        device = self.model.unary.device
        if lengths is None:
            return torch.full((self.items,), most, device=device)
        return lengths.reshape(self.items).to(device)

    def chains(self, lead: tuple[int, ...]) -> int:
        """How many there are of (chains, *batch)."""
        return math.prod(lead) // self.items if self.items else 0
