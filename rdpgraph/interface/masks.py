"""Masks: yes-or-no questions about configurations, with some of the answers given."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from rdpgraph._core.cache import cached_property

NOTHING = "A mask allows nothing"


@dataclass(frozen=True, eq=False)
class Expected:
    """Averages of a model within a mask.

    Attributes:
        answers: (*lead, *questions) the probability of a yes to each question.
        score: (*lead,) the expected score, nats.
        places: (n,) the places visited, item by item.
        chances: (n,) their probabilities; a place listed twice has the sum.
        counts: other expected counts by name, (*lead, ...).
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
        """(*lead,) log Z within the mask, nats; -inf where it allows nothing."""

    @abstractmethod
    def expected(self) -> Expected:
        """Return the exact expectations within the mask.

        They are those of the answers, of what the model counts, and of the score.
        """

    @abstractmethod
    def draw(self, generator: torch.Generator | None) -> Draw:
        """Draw each item exactly.

        Raises:
            ImpossibleEvidenceError: a mask allows nothing.
        """

    @property
    @abstractmethod
    def work(self) -> int:
        """The number of places, and of ways to join them, that an answer visits."""


class Masks(ABC):
    """Yes-or-no questions about a configuration, and the model in which some have given answers.

    A chain has the question "is this site in this state?" for each site and state; a tree may have
    "is this span a constituent?". A mask holds the answers to some questions: yes, no or open. Time
    and memory are in proportion to the places that agree with it. Places are the states of sites,
    numbered row by row within an item: site * states + state.
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
        """The number of questions of an item."""
        return math.prod(self.questions)

    @property
    @abstractmethod
    def sites(self) -> tuple[int, ...]:
        """The shape of an item's marginals, states last."""

    @property
    def numbers(self) -> tuple[Tensor, Tensor]:
        """(S,) the site and the state of each place of an item."""
        size = math.prod(self.sites)
        place, states = torch.arange(size, device=self.open().device), max(self.sites[-1], 1)
        return place // states, place % states

    @property
    def dtype(self) -> torch.dtype:
        """The floating type of the marginals."""
        return self.model.unary.dtype

    @abstractmethod
    def open(self) -> Tensor:
        """(*batch, *questions) bool: the questions of an item whose answers are not known."""

    @abstractmethod
    def masked(self, required: Tensor, forbidden: Tensor) -> Masked:
        """Return the model in which some questions have a given answer.

        Args:
            required: (chains, *batch, *questions) bool: yes.
            forbidden: of that shape: no.
        """

    @abstractmethod
    def guess(self, likely: Tensor) -> Tensor:
        """(*batch, *questions) bool: questions that one possible configuration answers with yes.

        Args:
            likely: (*batch, *questions) bool: those among which to look for them.
        """


class StructureMasks(Masks):
    """Questions about a structure whose unary potentials give its batch and sites."""

    site_dims: ClassVar[int]
    """The number of dims of an item's marginals, states included."""

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
        """(B,) lengths from (*batch,), or all ``most``."""
        device = self.model.unary.device
        if lengths is None:
            return torch.full((self.items,), most, device=device)
        return lengths.reshape(self.items).to(device)

    def chains(self, lead: tuple[int, ...]) -> int:
        """Return the number of chains in leading dims (chains, *batch)."""
        return math.prod(lead) // self.items if self.items else 0
