"""Portfolios of solutions: the first approximate one that converges, or exact ones first."""

import logging
import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from rdpgraph._core import effort
from rdpgraph._core.cache import cached_property
from rdpgraph.engines.configurations import likeliest, violations
from rdpgraph.engines.reduction.network import Network
from rdpgraph.engines.solution import (
    OF_LOG_PARTITION,
    OF_MODES,
    Delegate,
    Question,
    Solution,
    Status,
    Value,
)
from rdpgraph.errors import BudgetError
from rdpgraph.plan import clock
from rdpgraph.plan.clock import Allowance

_log = logging.getLogger(__name__)


class Approximations(Delegate):
    """Approximate answers that end in messages, which other routes are combined with."""

    @property
    @abstractmethod
    def messages(self) -> "FirstConverged":
        """The messages that answer sums."""

    @property
    @abstractmethod
    def bounds_by_mode(self) -> tuple[Tensor, Tensor]:
        """(B,) and (B,) bounds on log Z that a mode gives, float64; -inf and inf without one."""

    def with_exact(self, exactly: Callable[[float], Solution]) -> "Approximations":
        """The same, with a function that gives log Z alone within some seconds.

        The default leaves it out: with messages alone log Z has gradients, and is theirs.
        """
        del exactly
        return self


@dataclass(frozen=True, eq=False)
class FirstConverged(Approximations):
    """Tries solutions in turn until one converges; else takes the one of least residual.

    With hard zeros it takes the one whose likeliest states violate the fewest factors.
    """

    # give the solutions from the remaining seconds, the better ones first, or None where there is
    # nothing to try; run only when they are needed
    attempts: tuple[Callable[[float], Solution | None], ...] = field(repr=False)
    # gives messages for modes and max-marginals from the remaining seconds
    modal: Callable[[float], Solution] = field(repr=False)
    network: Network  # reduced
    allowance: Allowance  # seconds: for all answers, or counted for each
    # gives messages as `Loopy` by default, from the remaining seconds or without a limit; with hard
    # zeros their mode is compared at the end
    plainly: Callable[[float | None], Solution] | None = field(default=None, repr=False)
    first: float = 0.0  # part of the time for these before others
    remedy: str = ""  # advice that gives better answers than all of them

    @property
    def messages(self) -> "FirstConverged":
        """These messages."""
        return self

    @cached_property
    def for_sums(self) -> Allowance:
        """Seconds for log Z, marginals, and what is read off the same messages."""
        return self.allowance.for_one_answer()

    @property
    def decoding(self) -> Callable[[float | None], Solution] | None:
        """Messages of `Loopy` by default; None without hard zeros."""
        hard = self.plainly is not None and self.network.possible is not None
        return self.plainly if hard else None

    @cached_property
    def _plain(self) -> Solution | None:
        """Messages of `Loopy` before all others, if there is time for both."""
        part, allowance = self.first, self.for_sums
        late = part < 1.0 and allowance.spent > part * allowance.seconds
        return None if late or not part else self.started(part, allowance)

    def started(self, part: float, allowance: Allowance) -> Solution | None:
        """Messages of `Loopy` in a part of the time, and at least what planning may take."""
        if self.plainly is None:
            return None
        with allowance.spending():
            solution = self.plainly(max(allowance.left(part), effort.LEAST_PLANNING))
            _ = solution.status()
        return solution

    @cached_property
    def tried(self) -> tuple[Solution, ...]:
        """Solutions that were tried, in turn."""
        every = [] if self._plain is None else [self._plain]
        settled = self.decoding is None and any(one.status().converged for one in every)
        if settled or (every and self.for_sums.is_over):
            return tuple(every)
        with self.for_sums.spending():
            end = clock.now() + self.for_sums.left()
            for attempt in self.attempts:
                solution = attempt(end - clock.now())
                if solution is None:
                    continue
                every.append(solution)
                _log.debug("tried: %s", every[-1].status())
                # What stopped at the end of the time is no worse than what does not begin.
                if every[-1].status().converged or clock.now() > end:
                    break
        return tuple(every)

    @cached_property
    def chosen(self) -> Solution:
        """Solution that answers."""
        return min(self._latest_first, key=self._faults)

    def _faults(self, solution: Solution) -> tuple[float, ...]:
        """Violated factors, if any may be, and then what has not converged."""
        violated = 0 if self.decoding is None else self._violated(solution)
        status = solution.status()
        residual = 0.0 if status.converged else status.residual or 0.0
        return violated, not status.converged, residual

    @property
    def _latest_first(self) -> list[Solution]:
        return list(reversed(self.tried))

    def _violated(self, solution: Solution) -> int:
        """Number of factors that the likeliest states violate."""
        graph = self.network.graph
        with torch.no_grad(), self.for_sums.spending():
            return int(violations(graph, likeliest(solution, graph)).sum())

    @cached_property
    def plain(self) -> Solution:
        """Solution whose log Z is nearest: a bound is no estimate, even if it converged."""
        free = [one for one in self._latest_first if not one.status().bound]
        return min(free, key=self._faults, default=self.chosen)

    def _ask(self, question: Question[Value]) -> Value:
        chosen = self.chosen
        with self.for_sums.spending():
            return question(chosen)

    def status(self) -> Status:
        """Status of log Z and marginals, with advice for better answers."""
        status = self.advised(self.chosen.status())
        others = (one.status() for one in self.tried if one is not self.chosen)
        failed = dict.fromkeys(one.route for one in others if not one.converged)
        return replace(status, tried=tuple(f"{name}: it has not converged" for name in failed))

    def status_of(self, answer: str) -> Status:
        """The same for all answers, which are read off the same messages."""
        del answer
        return self.status()

    def advised(self, status: Status) -> Status:
        """A status with the advice for better answers, unless it is exact."""
        if status.exact or not self.remedy:
            return status
        return replace(status, remedy="; ".join(filter(None, (status.remedy, self.remedy))))

    @cached_property
    def bounds_by_mode(self) -> tuple[Tensor, Tensor]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """(B,) and (B,) -inf and inf: without a search there is no mode that bounds log Z."""
        return self.network.no_bounds

    def bounds(self) -> tuple[Tensor, Tensor]:
        """(B,) and (B,) bounds on log Z, by the messages if they are bounds."""
        lower, upper = Solution.bounds(self.chosen)
        return lower.double().cpu(), upper.double().cpu()

    def interval(self, confidence: float) -> tuple[Tensor, Tensor]:
        del confidence  # nothing is drawn
        return self.bounds()


PASS_OF = {
    **dict.fromkeys((*OF_LOG_PARTITION, "possible", "mode_exists"), "log_partition"),
    **dict.fromkeys(
        ("variable_marginals", "check_factor_marginals", "factor_marginals", "expected_score",
         "entropy"),
        "variable_marginals",
    ),
    **dict.fromkeys(OF_MODES - {"mode_exists"}, "mode"),
    "max_marginals": "max_marginals",
}  # fmt: skip
"""For each question the one that stands for it: where the exact engine has time for that, it has
time for all that are read off the same pass."""
_AFTER = {"variable_marginals": "log_partition", "max_marginals": "mode"}
"""Passes down, and the passes up that they follow."""


@dataclass(frozen=True, eq=False)
class ExactFirst(Delegate):
    """Exact answers, except for those that take too long, which another solution gives.

    Each kind of answer has a route of its own: that one does not fit says nothing of the others.
    """

    exact: Solution  # answers, or raises `BudgetError`
    # gives the other solution, from the seconds that exact answers took
    otherwise: Callable[[float], Solution] = field(repr=False)
    sure: bool = False  # exact answers are not refused, except for marginal modes
    # these seconds
    taken: Allowance = field(default_factory=partial(Allowance, math.inf), repr=False)
    seconds: float = math.inf  # on the clock, of which a pass of the exact engine may take a part

    joint, rsample = Solution.joint, Solution.rsample

    @cached_property
    def _other(self) -> Solution:
        return self.otherwise(0.0 if self.taken.is_counted else self.taken.spent)

    @cached_property
    def _fits(self) -> dict[str, bool]:
        """Whether kinds of answers are exact, as far as that is decided; it stays so."""
        return {}

    def _ask(self, question: Question[Value]) -> Value:
        if question.subject == "sample":  # approximations have no draws
            return question(self.exact)
        kind = PASS_OF[question.subject]
        if question.name == "status_of":
            return self._told(question(self._in_charge(kind)), kind)
        if kind in self._fits or not self._may_fit(kind):
            return question(self._in_charge(kind))
        if not self.sure and question.name != kind:
            return question(self._in_charge(kind))
        # The question itself is the trial: its answer need not be computed twice.
        try:
            answer = self.exactly(question)
        except BudgetError as error:
            self._fits[kind], self._reasons[kind] = False, str(error)
            return question(self._other)
        if question.name == kind:
            self._fits[kind] = True
        return answer

    def _told(self, status: Any, kind: str) -> Any:
        """A status that says why the exact engine did not give the answer it is of."""
        if self._fits[kind]:
            return status
        first = _AFTER.get(kind, kind)
        reason = self._reasons.get(kind) or self._reasons.get(first) or "there was no time left"
        return replace(status, tried=(f"{self.exact.route}: {reason}", *status.tried))

    @cached_property
    def _reasons(self) -> dict[str, str]:
        """Why kinds of answers are not exact."""
        return {}

    def _in_charge(self, kind: str) -> Solution:
        """The solution that gives answers of a kind."""
        if kind not in self._fits:
            self._fits[kind] = self.sure or (self._may_fit(kind) and self._ends(kind))
        return self.exact if self._fits[kind] else self._other

    def _may_fit(self, kind: str) -> bool:
        """Return whether there is time to try an exact pass, and those before it fit."""
        if self.sure:
            return True
        if kind in _AFTER and self._in_charge(_AFTER[kind]) is not self.exact:
            return False
        # A pass that ran out of time has taken with it what another would need.
        late = self.taken.spent > (1.0 - effort.UPWARDS) * self.seconds
        return self.taken.is_counted or all(self._fits.values()) or not late

    def _ends(self, kind: str) -> bool:
        """Return whether an exact pass ends in time; it is cached."""
        try:
            self.exactly(Question[Tensor](kind))
        except BudgetError as error:
            self._reasons[kind] = str(error)
            return False
        return True

    def status(self) -> Status:
        """Status of log Z and marginals, by the solutions that answer them."""
        return self.status_of_sums()

    def sample(self, count: int, generator: torch.Generator | None) -> Tensor:
        """(count, B, V) draws; exact ones only."""
        return self.exactly(Question("sample", (count, generator)))

    def exactly(self, question: Question[Value]) -> Value:
        """The answer of the exact engine.

        Raises:
            BudgetError: it takes too long.
        """
        with self.taken.spending():
            return question(self.exact)

    def marginal_mode(self, numbers: Tensor) -> Tensor:
        return self._maximising(numbers).marginal_mode(numbers)

    def marginal_mode_scores(self, numbers: Tensor) -> tuple[Tensor, Tensor]:
        """(B,) and (B,), by the solution that gives the states."""
        return self._maximising(numbers).marginal_mode_scores(numbers)

    def _maximising(self, numbers: Tensor) -> Solution:
        """Solution that answers marginal modes of some variables."""
        key = tuple(numbers.tolist())
        if key not in self._of_marginal_modes:
            try:
                self.exactly(Question("marginal_mode", (numbers,)))
                self._of_marginal_modes[key] = self.exact
            except BudgetError:
                self._of_marginal_modes[key] = self._other
        return self._of_marginal_modes[key]

    @cached_property
    def _of_marginal_modes(self) -> dict[tuple[int, ...], Solution]:
        return {}
