"""Several approximate solutions, of which the first that converged answers."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias

import torch
from torch import Tensor

from rdpgraph._cache import cached_property
from rdpgraph.engines.search.solution import Searched, SearchedMarginalModes
from rdpgraph.engines.solution import Delegate, Solution, Value
from rdpgraph.engines.status import Status
from rdpgraph.errors import BudgetError
from rdpgraph.plan import clock
from rdpgraph.plan.clock import Allowance

_MODES = 0.8
"""The part of the time that is for modes, where sums have not begun."""

_BOUNDING = 0.05
"""The part of the time for a bound of their scores."""

_STARTED = 0.4
"""The part of that after which messages end, and the search begins with what they say."""

SearchFrom: TypeAlias = Callable[[Tensor | None, Tensor | None, float], Searched]
"""From the variables to maximise over (None: all), where to begin (or None), and seconds."""


@dataclass(frozen=True, eq=False)
class FirstConverged(SearchedMarginalModes, Delegate):
    """Tries solutions in turn; the last answers if none converges.

    Modes are sought apart: those that messages say are taken where they are consistent, and else
    are where a search begins.

    Attributes:
        attempts: give the solutions, the better ones first, from the seconds that are left; run
            only when they are needed.
        modal: gives messages for modes and max-marginals from the seconds there are.
        search: finds better modes.
        allowance: seconds for all of them.
        ceiling: bounds the scores of modes in some seconds; None: nothing does.
    """

    attempts: tuple[Callable[[float], Solution], ...] = field(repr=False)
    modal: Callable[[float], Solution] = field(repr=False)
    search: SearchFrom = field(repr=False)
    allowance: Allowance
    ceiling: Callable[[float], Tensor] | None = field(default=None, repr=False)

    @cached_property
    def tried(self) -> tuple[Solution, ...]:
        """Those that were tried, the one that answers last."""
        with self.allowance.spending():
            end = clock.now() + self.allowance.left()
            every = [self.attempts[0](end - clock.now())]
            for attempt in self.attempts[1:]:
                # What stopped at the end of the time is no worse than what does not begin.
                if every[-1].status().converged or clock.now() > end:
                    break
                every.append(attempt(end - clock.now()))
        return tuple(every)

    @property
    def chosen(self) -> Solution:
        """The one that answers."""
        return self.tried[-1]

    @cached_property
    def plain(self) -> Solution:
        """The one whose log Z is nearest: a bound is no estimate, even where it settled."""
        free = [one for one in self.tried if not one.status().bound]
        return min(free, key=_unrest, default=self.chosen)

    @cached_property
    def _messages(self) -> Solution:
        """Those for modes and max-marginals."""
        with self.allowance.spending(), torch.no_grad():
            solution = self.modal(_STARTED * self.allowance.left(_MODES))
            solution.mode()
        return solution

    @cached_property
    def _best(self) -> tuple[Tensor, Tensor]:
        """The best modes, and whether messages or a proof say that none is better."""
        states, sure = self._messages.mode(), self._messages.mode_is_consistent()
        known = self._messages.mode_exists()
        if bool(sure.all()) or (known is not None and not bool(known.all())):
            return states, sure
        return self._found.states, self._found.optimal

    @cached_property
    def _found(self) -> Searched:
        states = self._messages.mode()
        with self.allowance.spending(), torch.no_grad():
            return self.search(None, states, self.allowance.left(_MODES))

    def _ask(self, question: Callable[[Solution], Value]) -> Value:
        return question(self.chosen)

    def max_marginals(self) -> Tensor:
        """(B, S) nats."""
        return self._messages.max_marginals()

    def mode(self) -> Tensor:
        """(B, V) states."""
        return self._best[0]

    def mode_bound(self) -> Tensor:
        """(B,) nats, by mini-buckets; the mode's score where a search proved it."""
        return self._bound

    @cached_property
    def _bound(self) -> Tensor:
        states = self.mode()
        if self.ceiling is None:
            return torch.full((len(states),), math.inf, dtype=torch.float64)
        with self.allowance.spending():
            ceiling = self.ceiling(_BOUNDING * self.allowance.seconds)
        searched = self.__dict__.get("_found")
        if searched is None or searched.states is not states:
            return ceiling
        most = torch.maximum(ceiling, searched.scores.cpu())
        return torch.where(searched.optimal, searched.scores.cpu(), most)

    def mode_exists(self) -> Tensor | None:
        """(B,) bool, by the messages for modes."""
        return self._messages.mode_exists()

    def mode_is_consistent(self) -> Tensor:
        """(B,) bool."""
        return self._best[1]

    def _search(self, numbers: Tensor) -> Searched:
        with self.allowance.spending(), torch.no_grad():
            return self.search(numbers, None, self.allowance.left(_MODES))


def _unrest(solution: Solution) -> tuple[bool, float]:
    status = solution.status()
    return not status.converged, status.residual or 0.0


@dataclass(frozen=True, eq=False)
class ExactFirst(Delegate):
    """Exact answers, until one takes too long; approximate ones from then on.

    Attributes:
        exact: answers, or raises `BudgetError`.
        otherwise: gives the other solution, from the seconds that exact answers took.
        sure: exact answers are not refused, except for marginal modes.
        taken: these seconds.
    """

    exact: Solution
    otherwise: Callable[[float], Solution] = field(repr=False)
    sure: bool = False
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
        if not self.sure and "_told" not in self.__dict__:
            self._ask(lambda one: one.log_partition())
        return self._told.status()

    @cached_property
    def _told(self) -> Solution:
        return self._other if "_other" in self.__dict__ else self.exact

    def sample(self, count: int, generator: torch.Generator | None) -> Tensor:
        """(count, B, V) draws; exact ones only."""
        return self.exact.sample(count, generator)

    def marginal_mode(self, numbers: Tensor) -> Tensor:
        """(B, n) states."""
        try:
            return self.exact.marginal_mode(numbers)
        except BudgetError:
            return self._other.marginal_mode(numbers)

    def marginal_mode_is_optimal(self, numbers: Tensor) -> Tensor:
        """(B,) bool."""
        if "_other" not in self.__dict__:
            return self.exact.marginal_mode_is_optimal(numbers)
        return self._other.marginal_mode_is_optimal(numbers)
