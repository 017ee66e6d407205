"""Modes by messages and a search that goes on from them, beside messages for sums."""

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch import Tensor

from rdpgraph._core import effort
from rdpgraph._core.cache import cached_property
from rdpgraph.engines.configurations import Searched, best_of, likeliest
from rdpgraph.engines.portfolio import Approximations, FirstConverged
from rdpgraph.engines.search.solution import SearchedMarginalModes, Seeker, proved
from rdpgraph.engines.solution import Question, Solution, Status, Value
from rdpgraph.plan.clock import Allowance


@dataclass(frozen=True, eq=False)
class Sought(SearchedMarginalModes, Approximations):
    """Modes by messages of their own if these are consistent, and else by a search from there.

    All other questions are answered by the messages for sums.
    """

    first: FirstConverged  # answers sums
    seeker: Seeker = field(repr=False)  # finds better modes, and bounds them
    allowance: Allowance  # seconds, those of the messages
    # hard zeros of logical factors: plain messages are those for modes, and a search goes on there
    logical: bool = False

    @property
    def messages(self) -> FirstConverged:
        """The messages that answer sums."""
        return self.first

    def _ask(self, question: Question[Value]) -> Value:
        return question(self.first)

    @cached_property
    def _for_modes(self) -> Allowance:
        return self.allowance.for_one_answer()

    @cached_property
    def _reweighted(self) -> Searched | None:
        """Best configurations by tree-reweighted messages; None unless the model is pairwise."""
        if not self.seeker.bounding.is_pairwise:
            return None
        with self._for_modes.spending():
            return self.seeker.by_messages(self._for_modes.left(effort.MODES))[0]

    @property
    def _messages_prove(self) -> bool:
        """True if tree-reweighted messages prove the modes of all items."""
        return self._reweighted is not None and bool(self._reweighted.optimal.all())

    @cached_property
    def _default(self) -> Solution | None:
        """The messages of `Loopy()` where no seconds were given: no mode is worse than theirs."""
        if self.first.plainly is None or self.allowance.counter is None:
            return None
        with self._for_modes.spending(), torch.no_grad(), warnings.catch_warnings():
            # That messages have found no possible mode is no news of the one that is sought.
            warnings.simplefilter("ignore")
            solution = self.first.plainly(None)
            solution.possible_mode()
        return solution

    @cached_property
    def _messages(self) -> Solution:
        """Messages for modes."""
        soft = self.first.plainly is not None and self.first.decoding is None
        if (self.logical or soft) and self._default is not None:
            return self._default
        if self.logical and self.first.plainly is not None:
            return self._modal(effort.MODE_START, self._for_modes, self.first.plainly)
        return self._damped

    @cached_property
    def _damped(self) -> Solution:
        """Messages that are damped from the first sweep on."""
        soft = self.first.plainly is not None and self.first.decoding is None
        return self._modal(effort.SOFT_MODE_START if soft else effort.MODE_START, self._for_modes)

    @cached_property
    def _maxima(self) -> Solution:
        """Messages for max-marginals."""
        if self.first.decoding is not None:
            return self._messages
        return self._modal(effort.MODE_START, self.allowance.for_one_answer())

    def _modal(
        self, part: float, allowance: Allowance, by: Callable[[float], Solution] | None = None
    ) -> Solution:
        with allowance.spending(), torch.no_grad():
            solution = (by or self.first.modal)(part * allowance.left(effort.MODES))
            solution.mode()
        return solution

    @cached_property
    def _start(self) -> Tensor:
        """Start of a search for a mode: the best configuration by messages, or by plain ones."""
        allowance, network = self._for_modes, self.seeker.network
        plainly, decoding = self.first.plainly, self.first.decoding
        if self._reweighted is not None and decoding is None and plainly is not None:
            # The search compares this start with tree-reweighted ones, and soon passes both.
            seconds = allowance.left(effort.PLAIN_PAIRS)
            late = seconds < effort.PLAIN_SWEEPS * self.seeker.bounding.seconds_of_bound(0.0)
            if late and self._default is None:
                return self._reweighted.states
            return self._plain_mode(seconds)
        every = [self._messages.mode()]
        every += [] if self._reweighted is None else [self._reweighted.states]
        if plainly is None:
            return best_of(network, every).states if len(every) > 1 else every[0]
        if self.logical:
            # Messages between tables are of use where those of logical factors end in no mode.
            every += [] if self._default is None else [self._default.possible_mode()]
            best = best_of(network, every)
            if bool(best.found.all()):
                return best.states
            other = self._modal(effort.MODE_START, allowance).mode()
            return best_of(network, [best.states, other]).states
        if decoding is None and self._default is not None:
            return best_of(network, [*every, self._damped.mode()]).states
        if decoding is not None:
            # A search soon passes all messages, and repairs what they violate. Plain ones for
            # modes, which decode parities, are compared with its outcome (`_found`).
            every += [] if self._default is None else [self._default.possible_mode()]
            plain = self.first.started(effort.HARD_MODE_START, allowance)
            if plain is not None:
                with allowance.spending(), torch.no_grad():
                    every.append(likeliest(plain, network.graph))
        else:
            part = max(effort.PLAIN_MODES, self.first.first)
            every.append(self._plain_mode(allowance.left(part)))
        with allowance.spending():
            return best_of(network, every).states

    def _plain_mode(self, seconds: float) -> Tensor:
        """The mode of plain messages: of `Loopy()` as it is where no seconds were given."""
        if self._default is not None:
            return self._default.possible_mode()
        assert self.first.plainly is not None
        with self._for_modes.spending(), torch.no_grad():
            return self.first.plainly(seconds).mode()

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
        # Without hard zeros no messages pass for this question.
        known = self.mode_exists()
        if known is not None and not bool(known.all()):
            return True
        if self._reweighted is not None:
            return False
        if not self.logical:
            return bool(self._messages.mode_is_consistent().all())
        with self.allowance.for_one_answer().spending():
            return bool(self._messages.mode_is_optimal().all())

    @property
    def _has_settled(self) -> bool:
        """True if messages promise that little is better than their mode.

        Where plain ones have converged to it, none is that differs in trees and single loops alone
        (Weiss and Freeman 2001). Those of logical factors have ended if they come to a possible one
        and stay there.
        """
        if self.logical:
            return bool(best_of(self.seeker.network, [self._messages.mode()]).found.all())
        if self._default is None:
            return False
        return bool(self._default.mode_is_consistent().all())

    @cached_property
    def _found(self) -> Searched:
        start, allowance = self._start, self._for_modes
        seconds, seeker = allowance.left(effort.MODES), self.seeker
        if (
            allowance.counter is not None
        ):  # messages have a time of their own, which that of a search is by
            seconds = effort.MODES * allowance.seconds
            before = max(allowance.spent, effort.LEAST_PATIENCE[self._has_settled])
            seeker = replace(seeker, limits=replace(seeker.limits, before=before))
        with allowance.spending(), torch.no_grad():
            best = seeker.sought(None, start, seconds)
        if self.first.decoding and not (self.logical or bool(best.optimal.all())):
            other = self._plain_mode(allowance.left())
            both = best_of(self.seeker.network, [best.states, other])
            best = replace(both, optimal=best.optimal)
        return best.warned()

    def status_of(self, answer: str) -> Status:
        """Status of the messages that answer, or of the search for a mode."""
        if answer == "max_marginals":
            maxima = self._maxima
            with self.allowance.for_one_answer().spending():
                return self.first.advised(maxima.status_of(answer))
        if answer == "mode":
            if self._messages_prove:
                cut = bool((self.seeker.settled(0.0) >= 0).all())
                method = "minimum cut" if cut else "tree-reweighted messages"
                return Status(method=method, route="search")
            if self._messages_decide:
                return self.first.advised(self._messages.status_of(answer))
            remedy = "more seconds may find better configurations"
            optimal = bool(self._found.optimal.all())
            status = Status(optimal, method="search", route="search")
            return self.first.advised(status if status.exact else replace(status, remedy=remedy))
        return self.first.status_of(answer)

    def max_marginals(self) -> Tensor:
        maxima = self._maxima
        with self.allowance.for_one_answer().spending():
            return maxima.max_marginals()

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
            with self.allowance.for_one_answer().spending():
                known = replace(known, optimal=self._messages.mode_is_optimal().cpu())
        else:
            known = self._found
        return proved(known, partial(self._above, None))

    def _above(self, numbers: Tensor | None, scores: Tensor) -> Tensor:
        allowance = self.allowance.for_one_answer()
        seeker = self.seeker if numbers is None else self._of_sums
        with allowance.spending():
            return seeker.above(numbers, scores, effort.AUTO_BOUNDS * allowance.seconds)

    @cached_property
    def _of_sums(self) -> Seeker:
        allowance = self.allowance.for_one_answer()
        with allowance.spending(), torch.no_grad():
            return self.seeker.for_sums(effort.AUTO_BOUNDS * allowance.seconds)

    def bounds(self) -> tuple[Tensor, Tensor]:
        """(B,) and (B,) bounds on log Z: by the mode, and by the messages if they are bounds."""
        lower, upper = (end.double().cpu() for end in Solution.bounds(self.first.chosen))
        if not bool((lower < upper).any()):
            return lower, upper
        below, above = self.bounds_by_mode
        return torch.maximum(lower, below), torch.minimum(upper, above)

    @cached_property
    def bounds_by_mode(self) -> tuple[Tensor, Tensor]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """(B,) and (B,) bounds on log Z by the mode, and by messages that pass for bounds alone."""
        network = self.seeker.network
        if network.impossible:
            return network.no_bounds[0], network.no_bounds[0]
        _ = self.mode_exists()  # before the mode, as whoever asks for that
        states, bounding = self.mode(), self._of_sums.bounding
        allowance = self.allowance.for_one_answer()
        with allowance.spending(), torch.no_grad():
            seconds = allowance.left(effort.SUM_BOUNDS)
            return bounding.within(1.0, [states], seconds)

    def interval(self, confidence: float) -> tuple[Tensor, Tensor]:
        del confidence  # nothing is drawn
        return self.bounds()

    def mode_exists(self) -> Tensor | None:
        """(B,) bool, by the messages for modes."""
        network = self.seeker.network
        if network.possible is None:  # there are no hard zeros
            constant = network.constant.detach().cpu().expand(network.batch)
            return constant > -math.inf
        messages = self._messages
        with self.allowance.for_one_answer().spending():
            return messages.mode_exists()

    def mode_is_possible(self) -> Tensor | None:
        """(B,) bool, by these messages and by the search that they started."""
        known = self.mode_exists()
        if self._messages_prove:
            best = self._reweighted
        else:
            best = None if self._messages_decide else self._found
        return known if known is None or best is None else known.cpu() & best.exists

    def mode_is_consistent(self) -> Tensor:
        """(B,) bool: messages or a proof say that no configuration is better."""
        return self._best[1]

    def _search(self, numbers: Tensor) -> Searched:
        allowance = self.allowance.for_one_answer()
        with allowance.spending(), torch.no_grad():
            start = None
            if self.first.plainly is not None:
                plain = self.first.plainly(allowance.left(effort.MARGINAL_START))
                start = likeliest(plain, self.seeker.network.graph)
            best = self.seeker.sought(numbers, start, allowance.left(effort.MARGINAL_MODES))
        return best.required(self.seeker.network.graph, "marginal mode")
