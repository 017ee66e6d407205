"""Portfolios of solutions: the first approximate one that converges, or exact ones first."""

import logging
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch import Tensor

from rdpgraph._core import effort
from rdpgraph._core.cache import cached_property
from rdpgraph.engines.search.solution import SearchedMarginalModes, Seeker, proved
from rdpgraph.engines.search.starts import Searched, best_of, likeliest, violations
from rdpgraph.engines.solution import Delegate, Question, Solution, Status, Value
from rdpgraph.errors import BudgetError
from rdpgraph.plan import clock
from rdpgraph.plan.clock import Allowance

_log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class FirstConverged(SearchedMarginalModes, Delegate):
    """Tries solutions in turn until one converges; else takes the one of least residual.

    With hard zeros it takes the one whose likeliest states violate the fewest factors. Modes have
    separate messages, which are taken if consistent, and else start a search.
    """

    # give the solutions from the remaining seconds, the better ones first; run only when they are
    # needed
    attempts: tuple[Callable[[float], Solution], ...] = field(repr=False)
    # gives messages for modes and max-marginals from the remaining seconds
    modal: Callable[[float], Solution] = field(repr=False)
    seeker: Seeker = field(repr=False)  # finds better modes, and bounds them
    allowance: Allowance  # seconds for all of them
    # gives messages as `Loopy` by default, from the remaining seconds or without a limit; with hard
    # zeros their mode is compared at the end
    plainly: Callable[[float | None], Solution] | None = field(default=None, repr=False)
    first: float = 0.0  # part of the time for these before others
    remedy: str = ""  # advice that gives better answers than all of them
    # hard zeros of logical factors: plain messages are those for modes, and a search goes on there
    logical: bool = False

    @property
    def _decoding(self) -> Callable[[float | None], Solution] | None:
        """Messages of `Loopy` by default; None without hard zeros."""
        hard = self.plainly is not None and self.seeker.network.possible is not None
        return self.plainly if hard else None

    @cached_property
    def _plain(self) -> Solution | None:
        """Messages of `Loopy` before all others, if there is time for both."""
        part, allowance = self.first, self.allowance
        late = part < 1.0 and allowance.spent > part * allowance.seconds
        return None if late or not part else self._started(part)

    def _started(self, part: float) -> Solution | None:
        """Messages of `Loopy` in a part of the time, and at least what planning may take."""
        if self.plainly is None:
            return None
        with self.allowance.spending():
            solution = self.plainly(max(self.allowance.left(part), effort.LEAST_PLANNING))
            _ = solution.status()
        return solution

    @cached_property
    def tried(self) -> tuple[Solution, ...]:
        """Solutions that were tried, in turn."""
        every = [] if self._plain is None else [self._plain]
        settled = self._decoding is None and any(one.status().converged for one in every)
        if settled or (every and self.allowance.is_over):
            return tuple(every)
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
        """Solution that answers."""
        return min(self._latest_first, key=self._faults)

    def _faults(self, solution: Solution) -> tuple[float, ...]:
        """Violated factors, if any may be, and then what has not converged."""
        violated = 0 if self._decoding is None else self._violated(solution)
        status = solution.status()
        residual = 0.0 if status.converged else status.residual or 0.0
        return violated, not status.converged, residual

    @property
    def _latest_first(self) -> list[Solution]:
        return list(reversed(self.tried))

    def _violated(self, solution: Solution) -> int:
        """Number of factors that the likeliest states violate."""
        graph = self.seeker.network.graph
        with torch.no_grad(), self.allowance.spending():
            return int(violations(graph, likeliest(solution, graph)).sum())

    @cached_property
    def plain(self) -> Solution:
        """Solution whose log Z is nearest: a bound is no estimate, even if it converged."""
        free = [one for one in self._latest_first if not one.status().bound]
        return min(free, key=self._faults, default=self.chosen)

    @cached_property
    def _reweighted(self) -> Searched | None:
        """Best configurations by tree-reweighted messages; None unless the model is pairwise."""
        if not self.seeker.bounding.is_pairwise:
            return None
        with self.allowance.spending():
            seconds = effort.REWEIGHTED * self.allowance.left(effort.MODES)
            return self.seeker.by_messages(seconds)[0]

    @property
    def _messages_prove(self) -> bool:
        """True if tree-reweighted messages prove the modes of all items."""
        return self._reweighted is not None and bool(self._reweighted.optimal.all())

    @cached_property
    def _messages(self) -> Solution:
        """Messages for modes."""
        if self.logical and self.plainly is not None:
            timed = self.allowance.counter is None
            part = effort.MODE_START if timed else effort.DECODING / effort.MODES
            return self._modal(part, self.plainly)
        soft = self.plainly is not None and self._decoding is None
        return self._modal(effort.SOFT_MODE_START if soft else effort.MODE_START)

    @cached_property
    def _maxima(self) -> Solution:
        """Messages for max-marginals."""
        return self._messages if self._decoding is not None else self._modal(effort.MODE_START)

    def _modal(self, part: float, by: Callable[[float], Solution] | None = None) -> Solution:
        with self.allowance.spending(), torch.no_grad():
            solution = (by or self.modal)(part * self.allowance.left(effort.MODES))
            solution.mode()
        return solution

    @cached_property
    def _start(self) -> Tensor:
        """Start of a search for a mode: the best configuration by messages."""
        network, every = self.seeker.network, [self._messages.mode()]
        every += [] if self._reweighted is None else [self._reweighted.states]
        if self.plainly is None:
            return best_of(network, every).states if len(every) > 1 else every[0]
        if self.logical:
            every.append(self._modal(effort.MODE_START).mode())
            return best_of(network, every).states
        plain = None
        if self._decoding is not None:  # nothing else decodes parities as well: all of the time
            plain = self._plain if "tried" in self.__dict__ else self._started(1.0)
        solutions = self.__dict__.get("tried", () if plain is None else (plain,))
        with self.allowance.spending(), torch.no_grad():
            every += [likeliest(one, network.graph) for one in solutions]
            best = best_of(network, every)
            if plain is not None and bool(best.found.all()):
                return best.states
            part = max(effort.PLAIN_MODES if self._decoding is None else 1.0, self.first)
            other = self.plainly(self.allowance.left(part)).mode()
            return best_of(network, [best.states, other]).states

    @cached_property
    def _best(self) -> tuple[Tensor, Tensor]:
        """Best modes, and whether messages or a proof say that none is better."""
        if self._messages_prove:
            assert self._reweighted is not None
            return self._reweighted.states, self._reweighted.optimal
        if self._messages_decide:
            return self._messages.mode(), self._messages.mode_is_consistent()
        return self._found.states, self._found.optimal

    @cached_property
    def _messages_decide(self) -> bool:
        """True if messages give the mode, or say that there is none.

        That plain messages are consistent proves nothing on cycles: where tree-reweighted ones have
        left a gap to their bound, a search goes on.
        """
        messages = self._messages
        known = messages.mode_exists()
        if known is not None and not bool(known.all()):
            return True
        if self._reweighted is not None:
            return False
        sure = messages.mode_is_optimal() if self.logical else messages.mode_is_consistent()
        return bool(sure.all())

    @cached_property
    def _found(self) -> Searched:
        start = self._start
        seconds = self.allowance.left(effort.MODES)
        if self.logical and self.allowance.counter is not None:
            seconds = effort.MODES * self.allowance.seconds
        with self.allowance.spending(), torch.no_grad():
            best = self.seeker.sought(None, start, seconds)
            if self._decoding and not (self.logical or bool(best.optimal.all())):
                timed = self.allowance.counter is None
                more = effort.DECODING * self.allowance.seconds
                other = self._decoding(self.allowance.left() if timed else more).mode()
                both = best_of(self.seeker.network, [best.states, other])
                best = replace(both, optimal=best.optimal)
        return best.warned()

    def _ask(self, question: Question[Value]) -> Value:
        chosen = self.chosen
        with self.allowance.spending():
            return question(chosen)

    def status(self) -> Status:
        """Status of the solution that answers, with advice for better answers."""
        status = self.chosen.status()
        if status.exact or not self.remedy:
            return status
        return replace(status, remedy="; ".join(filter(None, (status.remedy, self.remedy))))

    @property
    def modes_by(self) -> str:
        """Method of the modes and marginal modes so far; empty if none was asked for."""
        if "_found" in self.__dict__ or self._results:
            return "search"
        if "_best" not in self.__dict__:
            return ""
        if self._messages_prove:
            return "tree-reweighted messages"
        return self._messages.status().method

    def max_marginals(self) -> Tensor:
        return self._maxima.max_marginals()

    def mode(self) -> Tensor:
        return self._best[0]

    def possible_mode(self) -> Tensor:
        """(B, V) the mode: a search would find no other."""
        return self.mode()

    def mode_bound(self) -> Tensor:
        """(B,) nats, by messages and mini-buckets; the mode's score where a search proved it."""
        return self._proved[1]

    def mode_is_optimal(self) -> Tensor:
        """(B,) whether a search, messages on a tree or the bound prove it."""
        return self._proved[0].optimal

    @cached_property
    def _proved(self) -> tuple[Searched, Tensor]:
        if self._messages_prove:
            assert self._reweighted is not None
            known = self._reweighted
        elif self._messages_decide:
            known = self.seeker.scored(self.mode())
            known = replace(known, optimal=self._messages.mode_is_optimal().cpu())
        else:
            known = self._found
        return proved(known, partial(self._above, None))

    def _above(self, numbers: Tensor | None, scores: Tensor) -> Tensor:
        with self.allowance.spending():
            return self.seeker.above(numbers, scores, effort.AUTO_BOUNDS * self.allowance.seconds)

    def bounds(self) -> tuple[Tensor, Tensor]:
        """(B,) and (B,) bounds on log Z, by the messages, and by what is known of modes."""
        lower, upper = (torch.tensor(end, device="cpu") for end in (-math.inf, math.inf))
        if "tried" in self.__dict__:
            # The chosen messages bound log Z themselves, or are exact.
            lower, upper = Solution.bounds(self.chosen)
        for one in self._results.values():  # the mass of a marginal mode is a part of Z
            lower = torch.maximum(lower.cpu().double(), one.scores.cpu())
        with self.allowance.spending(), torch.no_grad():
            seconds = self.allowance.left(effort.SUM_BOUNDS)
            return self.seeker.bounding.within((lower, upper), 1.0, self._known(seconds), seconds)

    def _known(self, seconds: float) -> Iterator[Tensor]:
        """(B, V) configurations that were met so far, and at least those of messages."""
        network, asked = self.seeker.network, self.__dict__.keys()
        if "_best" in asked:
            yield self.mode()
        if "tried" in asked and not network.impossible:
            yield from (likeliest(one, network.graph) for one in self.tried)
        if not {"_best", "tried"} & asked:
            yield self.seeker.by_messages(seconds)[0].states

    def interval(self, confidence: float) -> tuple[Tensor, Tensor]:
        del confidence  # nothing is drawn
        return self.bounds()

    def mode_exists(self) -> Tensor | None:
        """(B,) bool, by the messages for modes, and by the search that they started."""
        network = self.seeker.network
        if network.possible is None:  # there are no hard zeros
            constant = network.constant.detach().cpu().expand(network.batch)
            return constant > -math.inf
        known = self._messages.mode_exists()
        best: Searched | None = self.__dict__.get("_found", self.__dict__.get("_reweighted"))
        return known if known is None or best is None else known.cpu() & best.exists

    def mode_is_consistent(self) -> Tensor:
        """(B,) bool: messages or a proof say that no configuration is better."""
        return self._best[1]

    def _search(self, numbers: Tensor) -> Searched:
        with self.allowance.spending(), torch.no_grad():
            start = None
            if self.plainly is not None:
                plain = self.plainly(self.allowance.left(effort.MARGINAL_START))
                start = likeliest(plain, self.seeker.network.graph)
            best = self.seeker.sought(numbers, start, self.allowance.left(effort.MARGINAL_MODES))
        return best.required(self.seeker.network.graph, "marginal mode")


@dataclass(frozen=True, eq=False)
class ExactFirst(Delegate):
    """Exact answers, until one takes too long; approximate ones from then on."""

    exact: Solution  # answers, or raises `BudgetError`
    # gives the other solution, from the seconds that exact answers took
    otherwise: Callable[[float], Solution] = field(repr=False)
    sure: bool = False  # exact answers are not refused, except for marginal modes
    # these seconds
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
        """Status of the solution that answers; once it is exact, it stays so."""
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
        """Solution that answers marginal modes of some variables."""
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
