"""How a chain is solved: by tables of pairs of states, or by way of the ranks of its transition."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from rdpgraph._cache import cached_property
from rdpgraph.structures.chain import (
    decode,
    filtering,
    lowrank,
    lowrank_decode,
    lowrank_messages,
    lowrank_moments,
    lowrank_sampling,
    moments,
    recursion,
    sampling,
)
from rdpgraph.structures.chain.lowrank_messages import LowRankTensors
from rdpgraph.structures.chain.tensors import ChainTensors


@dataclass(frozen=True, eq=False)
class Solver(ABC):
    """The answers whose recursion depends on the form of the transition; batch dims flattened."""

    @abstractmethod
    def log_partition(self) -> Tensor:
        """(B,) nats, differentiable."""

    @abstractmethod
    def forward(self) -> Tensor:
        """(B, T, N) log-probability of the state given the prefix, up to a constant for a step."""

    @abstractmethod
    def entropy(self) -> Tensor:
        """(B,) nats, differentiable once."""

    @abstractmethod
    def viterbi(self) -> Tensor:
        """(B, T) the best states; -1 beyond the length, and where no sequence is possible."""

    @abstractmethod
    def max_marginals(self) -> Tensor:
        """(B, T, N) the largest score of a sequence with each state."""

    @abstractmethod
    def draw(self, count: int, generator: torch.Generator | None) -> Tensor:
        """(count, B, T) exact draws, as `viterbi`."""

    @abstractmethod
    def relaxed(self, count: int, temperature: float, generator: torch.Generator | None) -> Tensor:
        """(count, B, T, N) relaxed draws, differentiable."""


@dataclass(frozen=True, eq=False)
class TableSolver(Solver):
    """With the transition as a table."""

    parts: ChainTensors

    @cached_property
    def messages(self) -> recursion.Messages:
        """Forward and backward messages, without gradient."""
        return recursion.messages(*self.parts)

    def log_partition(self) -> Tensor:
        """(B,) log Z in nats, from messages between states."""
        return recursion.log_partition(*self.parts)

    def forward(self) -> Tensor:
        """(B, T, N) log-probability of the state given the prefix, up to a constant for a step."""
        return filtering.forward(*self.parts)

    def entropy(self, log_base: Tensor | None = None) -> Tensor:
        """(B,) nats, from the marginals of pairs of neighbours."""
        return moments.entropy(self.parts, self.messages, log_base)

    def viterbi(self) -> Tensor:
        """(B, T) the best states, by maxima over pairs of states."""
        return decode.best_states(*self.parts)

    def max_marginals(self) -> Tensor:
        """(B, T, N) the largest score of a sequence with each state, from maxima both ways."""
        return decode.max_marginals(*self.parts)

    def draw(self, count: int, generator: torch.Generator | None) -> Tensor:
        """(count, B, T) exact draws, by forward filtering and backward sampling."""
        return sampling.draw(*self.parts, count, generator)

    def relaxed(self, count: int, temperature: float, generator: torch.Generator | None) -> Tensor:
        """(count, B, T, N) relaxed draws, by backward sampling with Gumbel noise."""
        return sampling.relaxed(*self.parts, count, temperature, generator)


@dataclass(frozen=True, eq=False)
class RankSolver(Solver):
    """With the transition as factors; what has no shortcut is read off a table that fits.

    Attributes:
        parts: the chains.
        tables: the same chains with a table.
        streamed: whether that table is larger than what is written out.
    """

    parts: LowRankTensors
    tables: Callable[[], TableSolver]
    streamed: bool

    def log_partition(self) -> Tensor:
        """(B,) log Z in nats, by way of the ranks."""
        return lowrank.log_partition(self.parts)

    def forward(self) -> Tensor:
        """(B, T, N) log-probability of the state given the prefix, up to a constant for a step."""
        return lowrank_messages.forward(self.parts)

    def entropy(self) -> Tensor:
        """(B,) nats, in blocks of pairs of states, or by tables for factors of each step."""
        if self.parts.left.ndim == self.parts.right.ndim == 2:
            return lowrank_moments.entropy(self.parts)
        return self.tables().entropy()

    def viterbi(self) -> Tensor:
        """(B, T) the best states, by maxima over blocks of pairs if a table is too large."""
        return lowrank_decode.viterbi(self.parts) if self.streamed else self.tables().viterbi()

    def max_marginals(self) -> Tensor:
        """(B, T, N) the largest score with each state, in blocks if a table is too large."""
        if self.streamed:
            return lowrank_decode.max_marginals(self.parts)
        return self.tables().max_marginals()

    def draw(self, count: int, generator: torch.Generator | None) -> Tensor:
        """(count, B, T) exact draws, whose states are chosen by way of the ranks."""
        return lowrank_sampling.draw(self.parts, count, generator)

    def relaxed(self, count: int, temperature: float, generator: torch.Generator | None) -> Tensor:
        """(count, B, T, N) relaxed draws, by way of the ranks."""
        return lowrank_sampling.relaxed(self.parts, count, temperature, generator)
