"""Several approximate solutions, of which the first that converged answers."""

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch import Tensor

from rdpgraph._core.cache import cached_property
from rdpgraph.engines.search.configurations import Searched, best_of, likeliest, violations
from rdpgraph.engines.search.solution import SearchedMarginalModes, Seeker, proved
from rdpgraph.engines.solution import Delegate, Question, Solution, Status, Value
from rdpgraph.errors import BudgetError
from rdpgraph.plan import clock
from rdpgraph.plan.clock import Allowance

_log = logging.getLogger(__name__)

_PLAIN = 0.1
"""The part of the time for plain messages."""

_CHEAPLY, _DECODED = 0.1, 0.4
"""The part of what is left in which plain messages are decoded: without hard zeros, and with zeros
that nothing found so far meets."""

_MODES = 0.8
"""The part of the time that is for modes, where sums have not begun."""

_MARGINAL = 0.9
"""The same for marginal modes."""

_BOUNDING = 0.05
"""The part of the time for a bound of their scores."""

_STARTED = 0.4
"""The part of that after which messages end, and the search begins with what they say."""


@dataclass(frozen=True, eq=False)
class FirstConverged(SearchedMarginalModes, Delegate):
    """Tries solutions in turn until one converges; if none does, the calmest answers.

    With hard zeros one answers whose likeliest states violate no more factors than those of plain
    messages. Modes are sought apart: those that messages say are taken where they are consistent,
    and else are where a search begins.

    Attributes:
        attempts: give the solutions, the better ones first, from the seconds that are left; run
            only when they are needed.
        modal: gives messages for modes and max-marginals from the seconds there are.
        seeker: finds better modes, and bounds them.
        allowance: seconds for all of them.
        plainly: gives plain messages from the seconds there are.
        decoding: gives messages as `Loopy` by default, whose mode is compared at the end, or None.
        remedy: what would do better than all of them.
    """

    attempts: tuple[Callable[[float], Solution], ...] = field(repr=False)
    modal: Callable[[float], Solution] = field(repr=False)
    seeker: Seeker = field(repr=False)
    allowance: Allowance
    plainly: Callable[[float], Solution] | None = field(default=None, repr=False)
    decoding: Callable[[float], Solution] | None = field(default=None, repr=False)
    remedy: str = ""

    @cached_property
    def _plain(self) -> Solution | None:
        """Messages as `Loopy` passes them by default; None where there are no hard zeros."""
        if self.plainly is None or self.seeker.network.possible is None:
            return None
        with self.allowance.spending():
            solution = self.plainly(self.allowance.left(_PLAIN))
            _ = solution.status()
        return solution

    @cached_property
    def tried(self) -> tuple[Solution, ...]:
        """Those that were tried, in turn."""
        every = [] if self._plain is None else [self._plain]
        with self.allowance.spending():
            end = clock.now() + self.allowance.left()
            for attempt in self.attempts:
                every.append(attempt(end - clock.now()))
                _log.debug("tried: %s", every[-1].status())
                # What stopped at the end of the time is no worse than what does not begin.
                if every[-1].status().converged or clock.now() > end:
                    break
        return tuple(every)

    @cached_property
    def chosen(self) -> Solution:
        """The one that answers."""
        every = self._latest_first
        if self._plain is not None:
            most = self._violated(self._plain)
            every = [one for one in every if one is self._plain or self._violated(one) <= most]
        return min(every, key=_unrest)

    @property
    def _latest_first(self) -> list[Solution]:
        return list(reversed(self.tried))

    def _violated(self, solution: Solution) -> int:
        """Factors that the likeliest states violate."""
        graph = self.seeker.network.graph
        with torch.no_grad(), self.allowance.spending():
            return int(violations(graph, likeliest(solution, graph)).sum())

    @cached_property
    def plain(self) -> Solution:
        """The one whose log Z is nearest: a bound is no estimate, even where it settled."""
        free = [one for one in self._latest_first if not one.status().bound]
        return min(free, key=_unrest, default=self.chosen)

    @cached_property
    def _messages(self) -> Solution:
        """Those for modes and max-marginals."""
        with self.allowance.spending(), torch.no_grad():
            solution = self.modal(_STARTED * self.allowance.left(_MODES))
            solution.mode()
        return solution

    @cached_property
    def _start(self) -> Tensor:
        """Where a search for a mode begins: the best that messages say."""
        every = [self._messages.mode()]
        if self.plainly is None:
            return every[0]
        network, plain = self.seeker.network, self._plain
        solutions = self.__dict__.get("tried", () if plain is None else (plain,))
        with self.allowance.spending(), torch.no_grad():
            every += [likeliest(one, network.graph) for one in solutions]
            best = best_of(network, every)
            if plain is not None and bool(best.found.all()):
                return best.states
            part = _CHEAPLY if plain is None else _DECODED
            other = self.plainly(self.allowance.left(part)).mode()
            return best_of(network, [best.states, other]).states

    @cached_property
    def _best(self) -> tuple[Tensor, Tensor]:
        """The best modes, and whether messages or a proof say that none is better."""
        states, sure = self._messages.mode(), self._messages.mode_is_consistent()
        if self._messages_decide:
            return states, sure
        return self._found.states, self._found.optimal

    @cached_property
    def _messages_decide(self) -> bool:
        """Whether messages say what the mode is, or that there is none."""
        known = self._messages.mode_exists()
        nothing = known is not None and not bool(known.all())
        return nothing or bool(self._messages.mode_is_consistent().all())

    @cached_property
    def _found(self) -> Searched:
        start = self._start
        with self.allowance.spending(), torch.no_grad():
            best = self.seeker.sought(None, start, self.allowance.left(_MODES))
            if self.decoding is not None and not bool(best.optimal.all()):
                other = self.decoding(self.allowance.left()).mode()
                both = best_of(self.seeker.network, [best.states, other])
                best = replace(both, optimal=best.optimal)
        return best.warned()

    def _ask(self, question: Question[Value]) -> Value:
        chosen = self.chosen
        with self.allowance.spending():
            return question(chosen)

    def status(self) -> Status:
        """The status of the solution that answers, and what would do better than any."""
        status = self.chosen.status()
        if status.exact or not self.remedy:
            return status
        return replace(status, remedy="; ".join(filter(None, (status.remedy, self.remedy))))

    @property
    def modes_by(self) -> str:
        """What modes and marginal modes so far are by; empty if none was asked for."""
        if "_found" in self.__dict__ or self._results:
            return "search"
        return self._messages.status().method if "_best" in self.__dict__ else ""

    def max_marginals(self) -> Tensor:
        return self._messages.max_marginals()

    def mode(self) -> Tensor:
        return self._best[0]

    def possible_mode(self) -> Tensor:
        """(B, V) the same: a search comes to no other."""
        return self.mode()

    def mode_bound(self) -> Tensor:
        """(B,) nats, by mini-buckets; the mode's score where a search proved it."""
        return self._proved[1]

    def mode_is_optimal(self) -> Tensor:
        """(B,) whether a search, messages on a tree or the bound prove it."""
        return self._proved[0].optimal

    @cached_property
    def _proved(self) -> tuple[Searched, Tensor]:
        if not self._messages_decide:
            return proved(self._found, partial(self._above, None))
        known = self.seeker.scored(self.mode())
        known = replace(known, optimal=self._messages.mode_is_optimal())
        return proved(known, partial(self._above, None))

    def _above(self, numbers: Tensor | None, scores: Tensor) -> Tensor:
        with self.allowance.spending():
            return self.seeker.above(numbers, scores, _BOUNDING * self.allowance.seconds)

    def mass_at_least(self) -> Tensor:
        """(B,) the largest score of a mode or a marginal mode that was found: log Z is no less."""
        every = list(self._results.values())
        every += [self._found] if "_found" in self.__dict__ else []
        scores = [one.scores.cpu() for one in every]
        return torch.stack(scores).amax(0) if scores else torch.tensor(-math.inf, device="cpu")

    def mode_exists(self) -> Tensor | None:
        """(B,) bool, by the messages for modes, and by the search that began with them."""
        known = self._messages.mode_exists()
        best: Searched | None = self.__dict__.get("_found")
        return known if known is None or best is None else known.cpu() & best.exists

    def mode_is_consistent(self) -> Tensor:
        """(B,) bool: whether messages or a proof say that no configuration is better."""
        return self._best[1]

    def _search(self, numbers: Tensor) -> Searched:
        with self.allowance.spending(), torch.no_grad():
            best = self.seeker.sought(numbers, None, self.allowance.left(_MARGINAL))
        return best.required(self.seeker.network.graph, "marginal mode")


def _unrest(solution: Solution) -> tuple[bool, float]:
    status = solution.status()
    return not status.converged, 0.0 if status.converged else status.residual or 0.0


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

    def _ask(self, question: Question[Value]) -> Value:
        if "_other" not in self.__dict__:
            try:
                with self.taken.spending():
                    return question(self.exact)
            except BudgetError:
                if "_decided" in self.__dict__:
                    raise
        return question(self._other)

    def status(self) -> Status:
        """The status of the solution that answers; once it is said to be exact, it stays so."""
        if not self.sure and "_decided" not in self.__dict__:
            self._ask(Question[Tensor]("log_partition"))
        return self._decided.status()

    @cached_property
    def _decided(self) -> Solution:
        return self._other if "_other" in self.__dict__ else self.exact

    def sample(self, count: int, generator: torch.Generator | None) -> Tensor:
        """(count, B, V) draws; exact ones only."""
        with self.taken.spending():
            return self.exact.sample(count, generator)

    def marginal_mode(self, numbers: Tensor) -> Tensor:
        return self._maximising(numbers).marginal_mode(numbers)

    def marginal_mode_scores(self, numbers: Tensor) -> tuple[Tensor, Tensor]:
        """(B,) and (B,), by the solution that gives the states."""
        return self._maximising(numbers).marginal_mode_scores(numbers)

    def _maximising(self, numbers: Tensor) -> Solution:
        """The solution that answers marginal modes of some variables."""
        key = tuple(numbers.tolist())
        if key not in self._of_marginal_modes:
            try:
                with self.taken.spending():
                    self.exact.marginal_mode(numbers)
                self._of_marginal_modes[key] = self.exact
            except BudgetError:
                self._of_marginal_modes[key] = self._other
        return self._of_marginal_modes[key]

    @cached_property
    def _of_marginal_modes(self) -> dict[tuple[int, ...], Solution]:
        return {}
