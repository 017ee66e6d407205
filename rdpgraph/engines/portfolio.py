"""Several approximate solutions, of which the first that converged answers."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from time import perf_counter

import torch
from torch import Tensor

from rdpgraph.engines.solution import Solution
from rdpgraph.engines.status import Status


@dataclass(frozen=True, eq=False)
class FirstConverged(Solution):
    """Tries solutions in turn; the last answers if none converges.

    Attributes:
        attempts: give the solutions, the better ones first, from the seconds that are left; run
            only when they are needed.
        seconds: for all of them, from the first on.
    """

    attempts: tuple[Callable[[float], Solution], ...] = field(repr=False)
    seconds: float

    @cached_property
    def chosen(self) -> Solution:
        """The one that answers."""
        end = perf_counter() + self.seconds
        found = self.attempts[0](self.seconds)
        for attempt in self.attempts[1:]:
            if found.status().converged:
                break
            found = attempt(end - perf_counter())
        return found

    def status(self) -> Status:
        """That of the solution that answers."""
        return self.chosen.status()

    def log_partition(self) -> Tensor:
        """(B,) nats."""
        return self.chosen.log_partition()

    def variable_marginals(self) -> Tensor:
        """(B, S) probabilities."""
        return self.chosen.variable_marginals()

    def factor_marginals(self, block: int) -> Tensor:
        """(B, F, *sizes) probabilities."""
        return self.chosen.factor_marginals(block)

    def expected_score(self) -> Tensor:
        """(B,) nats."""
        return self.chosen.expected_score()

    def entropy(self) -> Tensor:
        """(B,) nats."""
        return self.chosen.entropy()

    def max_marginals(self) -> Tensor:
        """(B, S) nats."""
        return self.chosen.max_marginals()

    def mode(self) -> Tensor:
        """(B, V) states."""
        return self.chosen.mode()

    def mode_is_consistent(self) -> Tensor:
        """(B,) bool."""
        return self.chosen.mode_is_consistent()

    def sample(self, count: int, generator: torch.Generator | None) -> Tensor:
        """(count, B, V) draws."""
        return self.chosen.sample(count, generator)

    def marginal_mode(self, numbers: Tensor) -> Tensor:
        """(B, n) states."""
        return self.chosen.marginal_mode(numbers)
