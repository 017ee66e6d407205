"""Several approximate solutions, of which the first that converged answers."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from rdpgraph._cache import cached_property
from rdpgraph.engines.solution import Delegate, Solution, Value
from rdpgraph.engines.status import Status
from rdpgraph.errors import BudgetError
from rdpgraph.model.graph import FactorGraph
from rdpgraph.plan import clock
from rdpgraph.plan.clock import Allowance

_MODES = 0.6  # the part of the time that is for modes, where sums have not begun


@dataclass(frozen=True, eq=False)
class FirstConverged(Delegate):
    """Tries solutions in turn; the last answers if none converges.

    Modes are sought apart: that of the best score is taken, from tries that end with the first
    that is consistent.

    Attributes:
        graph: the model.
        attempts: give the solutions, the better ones first, from the seconds that are left; run
            only when they are needed.
        modal: the same for modes and max-marginals.
        allowance: seconds for all of them.
    """

    graph: FactorGraph
    attempts: tuple[Callable[[float], Solution], ...] = field(repr=False)
    modal: tuple[Callable[[float], Solution], ...] = field(repr=False)
    allowance: Allowance

    @cached_property
    def chosen(self) -> Solution:
        """The one that answers."""
        with self.allowance.spending():
            end = clock.now() + self.allowance.left()
            solution = self.attempts[0](end - clock.now())
            for attempt in self.attempts[1:]:
                # What stopped at the end of the time is no worse than what does not begin.
                if solution.status().converged or clock.now() > end:
                    break
                solution = attempt(end - clock.now())
        return solution

    @cached_property
    def _best(self) -> tuple[Solution, Tensor, Tensor]:
        """The last solution tried for modes, and the best modes of all: states, consistency."""
        with self.allowance.spending(), torch.no_grad():
            end = clock.now() + self.allowance.left(_MODES)
            solution = self.modal[0](end - clock.now())
            states, sure = solution.mode(), solution.mode_is_consistent()
            score = self._score(states)
            for attempt in self.modal[1:]:
                if bool(sure.all()) or clock.now() > end:
                    break
                solution = attempt(end - clock.now())
                others = solution.mode()
                value, agrees = self._score(others), solution.mode_is_consistent()
                better = (value > score) | (agrees & ~sure)
                states = torch.where(better.unsqueeze(1), others, states)
                score = torch.where(better, value, score)
                sure = torch.where(better.to(sure.device), agrees, sure)
        return solution, states, sure

    def _score(self, states: Tensor) -> Tensor:
        """(B,) of (B, V) states."""
        shaped = states.reshape([*self.graph.batch_shape, states.shape[1]])
        return self.graph.score_states(shaped).reshape(-1)

    def _ask(self, question: Callable[[Solution], Value]) -> Value:
        return question(self.chosen)

    def max_marginals(self) -> Tensor:
        """(B, S) nats."""
        return self._best[0].max_marginals()

    def mode(self) -> Tensor:
        """(B, V) states."""
        return self._best[1]

    def mode_exists(self) -> Tensor | None:
        """(B,) bool, by the messages for modes."""
        return self._best[0].mode_exists()

    def mode_is_consistent(self) -> Tensor:
        """(B,) bool."""
        return self._best[2]


@dataclass(frozen=True, eq=False)
class ExactFirst(Delegate):
    """Exact answers, until one takes too long; approximate ones from then on.

    Attributes:
        exact: answers, or raises `BudgetError`.
        otherwise: gives the other solution, from the seconds that exact answers took.
        taken: these seconds.
    """

    exact: Solution
    otherwise: Callable[[float], Solution] = field(repr=False)
    taken: Allowance = field(default_factory=partial(Allowance, math.inf), repr=False)

    @cached_property
    def _other(self) -> Solution:
        return self.otherwise(self.taken.spent)

    def _ask(self, question: Callable[[Solution], Value]) -> Value:
        if "_other" not in self.__dict__:
            try:
                with self.taken.spending():
                    return question(self.exact)
            except BudgetError:
                if "_told" in self.__dict__:
                    raise
        return question(self._other)

    def status(self) -> Status:
        """That of the solution that answers; once it is said to be exact, it stays so."""
        if "_told" not in self.__dict__:
            self._ask(lambda one: one.log_partition())
        return self._told

    @cached_property
    def _told(self) -> Status:
        return (self._other if "_other" in self.__dict__ else self.exact).status()

    def sample(self, count: int, generator: torch.Generator | None) -> Tensor:
        """(count, B, V) draws; exact ones only."""
        return self.exact.sample(count, generator)

    def marginal_mode(self, numbers: Tensor) -> Tensor:
        """(B, n) states; exact ones only."""
        return self.exact.marginal_mode(numbers)
