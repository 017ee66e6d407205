"""What every engine answers about a factor graph; the query room asks nothing else."""

import math
from abc import ABC, abstractmethod

import torch
from torch import Tensor

from rdpgraph.engines.status import Status
from rdpgraph.errors import UnsupportedError


class Solution(ABC):
    """A solved factor graph, in numbers: B batch items (flattened), V variables, S states in all.

    A flat table (B, S) holds the states of variable 0, then those of variable 1, and so on.
    """

    crosses = True

    def status(self) -> Status:
        """What the answers are worth; exact unless an engine says otherwise."""
        return Status()

    @abstractmethod
    def log_partition(self) -> Tensor:
        """(B,) log Z in nats; -inf where no configuration is possible."""

    @abstractmethod
    def variable_marginals(self) -> Tensor:
        """(B, S) probabilities; zero throughout where log Z is -inf."""

    def check_factor_marginals(self, block: int) -> None:
        """Refuse what `factor_marginals` does not form, before room is asked for."""
        del block  # all are formed

    @abstractmethod
    def factor_marginals(self, block: int) -> Tensor:
        """(B, F, *sizes) probabilities of the configurations of a block's factors."""

    @abstractmethod
    def expected_score(self) -> Tensor:
        """(B,) the expectation of the summed log-values (nats)."""

    def entropy(self) -> Tensor:
        """(B,) nats; 0 where log Z is -inf."""
        log_z = self.log_partition()
        alive = log_z.detach() > -math.inf
        return torch.where(alive, torch.where(alive, log_z, 0.0) - self.expected_score(), 0.0)

    @abstractmethod
    def max_marginals(self) -> Tensor:
        """(B, S) the largest score of a configuration with each state (nats)."""

    @abstractmethod
    def mode(self) -> Tensor:
        """(B, V) one most probable configuration."""

    def mode_exists(self) -> Tensor | None:
        """(B,) whether any configuration is possible, where that is known without log Z."""
        return None

    def mode_is_consistent(self) -> Tensor:
        """(B,) whether every factor's best configurations include the mode's."""
        return torch.ones(len(self.log_partition()), dtype=torch.bool)

    @abstractmethod
    def sample(self, count: int, generator: torch.Generator | None) -> Tensor:
        """(count, B, V) independent draws."""

    @abstractmethod
    def marginal_mode(self, numbers: Tensor) -> Tensor:
        """(B, len(numbers)) the most probable configuration of some variables, the rest summed."""


class Approximation(Solution):
    """Beliefs that need not be the marginals of any joint distribution."""

    def sample(self, count: int, generator: torch.Generator | None) -> Tensor:
        """Not available.

        Raises:
            UnsupportedError: always.
        """
        raise UnsupportedError(
            "Message passing gives marginals and no joint distribution to sample from; use "
            "Contraction(), or condition on variables drawn one after the other."
        )

    def marginal_mode(self, numbers: Tensor) -> Tensor:
        """Not available.

        Raises:
            UnsupportedError: always.
        """
        raise UnsupportedError("Marginal MAP needs exact inference; use Contraction().")
