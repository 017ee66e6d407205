"""Log Z with a known error: exact if that alone fits, else an estimate, or messages.

Marginals are those of messages, and of estimates where these are precise and contradict messages.
Everything else is answered by messages.
"""

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from rdpgraph._core import effort, tuning
from rdpgraph._core.cache import cached_property
from rdpgraph.engines.minibuckets.estimate import Estimate
from rdpgraph.engines.minibuckets.solution import MiniBucketSolution
from rdpgraph.engines.portfolio import Approximations, FirstConverged
from rdpgraph.engines.solution import (
    OF_LOG_PARTITION,
    Question,
    Solution,
    Status,
    Value,
)
from rdpgraph.errors import BudgetError
from rdpgraph.plan import clock
from rdpgraph.plan.clock import Allowance

_PRECISE = 0.1
"""Standard error (nats) below which messages are not asked."""
_HOPELESS = 1.0
"""Standard error (nats) of a trial above which estimates are given up."""
_MEMBERS = 100
"""Members of a population that its marginals need: fewer are pinned in all populations alike."""
_CONTRADICTED, _NEAR = 3.0, 1e-4
"""Standard errors, plus a probability, by which messages must differ to be taken as wrong."""
_DOUBT = 3.0
"""Nats by which an unbiased estimate exceeds log Z with a probability of at most one in twenty, by
Markov's inequality."""


@dataclass(frozen=True, eq=False)
class BestKnown(Approximations):
    """Messages for most answers; the best known log Z and marginals, without gradients."""

    others: Approximations  # answer all other questions
    # gives estimates with errors and bounds, within some seconds
    drawn: Callable[[float], MiniBucketSolution] = field(repr=False)
    allowance: Allowance  # seconds, those of the messages
    # gives log Z alone within some seconds, or raises `BudgetError`; None if too large
    exactly: Callable[[float], Solution] | None = field(default=None, repr=False)

    def _ask(self, question: Question[Value]) -> Value:
        return question(self.others)

    @property
    def messages(self) -> FirstConverged:
        """The messages among the others."""
        return self.others.messages

    @property
    def bounds_by_mode(self) -> tuple[Tensor, Tensor]:
        """Bounds of the others, which give the mode."""
        return self.others.bounds_by_mode

    def with_exact(self, exactly: Callable[[float], Solution]) -> "BestKnown":
        """Return these answers with log Z alone by exact inference, where it ends in time."""
        return replace(self, exactly=exactly)

    @cached_property
    def _exact(self) -> Solution | None:
        if self.exactly is None:
            return None
        allowance = self.allowance.for_one_answer()
        try:
            with allowance.spending(), torch.no_grad():
                solution = self.exactly(effort.EXACT_SUM * allowance.left())
                solution.log_partition()
        except BudgetError as error:
            vars(self)["_late"] = f"contraction: {error}"
            return None
        return solution

    @cached_property
    def _drawn(self) -> MiniBucketSolution:
        allowance = self.allowance.for_one_answer()
        with allowance.spending():
            solution = self.drawn(allowance.left(effort.DRAWN_SUM))
            _ = solution.estimates, solution.bounds()
        return solution

    @cached_property
    def chosen(self) -> Solution:
        """Solution that answers log Z."""
        if self._exact is not None:
            return self._exact
        if clock.stopped() and "_drawn" not in self.__dict__:  # no other work is begun
            return self.messages.plain
        estimates = self._drawn.estimates
        # What is below the score of a known configuration is not believed, however precise.
        known = bool((self._drawn.log_estimates() >= self._drawn.bounds()[0] - _PRECISE).all())
        if known and all(one.error <= _PRECISE or one.reliable for one in estimates):
            return self._drawn
        plain = self.messages.plain
        nothing = any(one.log_partition == -math.inf for one in estimates)
        return plain if nothing or self._may_be(plain) else self._drawn

    @cached_property
    def _draws_tell(self) -> bool:
        """True if estimates are precise enough for their marginals to correct those of messages."""
        known = "_drawn" in self.__dict__ and not self.allowance.is_counted  # for nothing more
        if not known and self._is_hopeless:
            return False
        every = self._drawn.estimates
        few = any(_draws(one) < _MEMBERS * len(one.each) for one in every)
        return not few and all(one.error <= _PRECISE for one in every)

    @cached_property
    def _is_hopeless(self) -> bool:
        """True if there is no time for estimates, or a trial shows them far from precise."""
        allowance = self.messages.for_sums
        left = allowance.left()
        if left < effort.DRAWN_LEAST * allowance.seconds or clock.stopped():
            return True
        trial = self.drawn(effort.DRAWN_TRIAL * left)
        if effort.DRAWN_TRIAL * left < tuning.SECONDS_PER_FACTOR * sum(
            len(g.scopes) for g in trial.network.groups
        ):
            return True
        with allowance.spending():
            return any(one.error > _HOPELESS for one in trial.estimates)

    @cached_property
    def _marginals(self) -> tuple[Tensor, bool]:
        """(B, S) probabilities, and whether some of them come from estimates."""
        flat = self.others.variable_marginals().detach()
        if self.messages.chosen.status().exact or not self._draws_tell:
            return flat, False
        with self.messages.for_sums.spending(), suppress(BudgetError):
            drawn, errors = self._drawn.variable_marginals(), self._drawn.marginal_errors()
            # No more is known than from as many draws, however well populations agree.
            draws = min(map(_draws, self._drawn.estimates))
            errors = torch.maximum(errors.to(flat), (flat * (1.0 - flat) / draws).sqrt())
            far = (drawn.to(flat) - flat).abs() > _CONTRADICTED * errors + _NEAR
            return torch.where(self._any_of_variable(far), drawn.to(flat), flat), bool(far.any())
        return flat, False

    def _any_of_variable(self, flags: Tensor) -> Tensor:
        """(B, S) whether any state of the same variable is flagged."""
        sizes = self._drawn.network.graph.domain.sizes
        of = torch.repeat_interleave(torch.arange(len(sizes), device="cpu"), sizes).to(flags.device)
        counts = torch.zeros(len(flags), len(sizes), device=flags.device)
        return counts.index_add(1, of, flags.to(counts))[:, of] > 0

    def variable_marginals(self) -> Tensor:
        return self._marginals[0]

    def _may_be(self, solution: Solution) -> bool:
        """Return whether a log Z is no bound, and contradicts neither bounds nor estimates."""
        log_z = solution.log_partition().detach().double().cpu()
        lower, upper = self._drawn.bounds()
        least = torch.maximum(lower, self._drawn.log_estimates() - _DOUBT)
        inside = ((log_z >= least) & (log_z <= upper)).all()
        return not solution.status().bound and bool(inside)

    def log_partition(self) -> Tensor:
        """(B,) log Z in nats, clamped to the bounds."""
        log_z = self.chosen.log_partition()
        if self._exact is not None:
            return log_z
        ends = self._drawn.bounds() if "_drawn" in self.__dict__ else self.bounds()
        lower, upper = (bound.to(log_z) for bound in ends)
        return torch.minimum(torch.maximum(log_z, lower), upper)

    def log_partitions(self) -> Tensor:
        return self.chosen.log_partitions()

    def log_partition_errors(self) -> Tensor | None:
        return self.chosen.log_partition_errors()

    def bounds(self) -> tuple[Tensor, Tensor]:
        """(B,) and (B,): the largest lower and the smallest upper bound of all routes."""
        if self._exact is not None:
            return self._exact.bounds()
        return self._within(self._unknown or self._drawn.bounds())

    def interval(self, confidence: float) -> tuple[Tensor, Tensor]:
        """(B,) and (B,): interval of the estimates, within the bounds of all routes."""
        if self._exact is not None:
            return self._exact.bounds()
        return self._within(self._unknown or self._drawn.interval(confidence))

    @property
    def _unknown(self) -> tuple[Tensor, Tensor] | None:
        """(B,) and (B,): -inf and +inf once stopped, where nothing was drawn; else None."""
        if not clock.stopped() or "_drawn" in self.__dict__:
            return None
        return self.messages.network.no_bounds

    def _within(self, ends: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Interval tightened by the mode, and by the messages that bound log Z for it."""
        if not bool((ends[0] < ends[1]).any()):
            return ends
        below, above = (bound.double().cpu() for bound in self.others.bounds_by_mode)
        return torch.maximum(ends[0], below), torch.minimum(ends[1], above)

    def status(self) -> Status:
        """Status of log Z and marginals; its `method` names the method of each."""
        _ = self.messages.status()  # first: they take less of the seconds, and leave more
        return self.status_of_sums()

    def status_of(self, answer: str) -> Status:
        """Status of log Z, of marginals, or of the messages that give other answers."""
        if answer in OF_LOG_PARTITION:
            status = self.chosen.status_of(answer)
            late: str = vars(self).get("_late", "")
            status = replace(status, tried=(late, *status.tried)) if late else status
            if self.chosen not in (self._exact, self.__dict__.get("_drawn")):
                return self.messages.advised(status)
            return replace(status, method=status.method or "contraction")
        status = self.others.status_of(answer)
        if answer == "variable_marginals" and self._marginals[1]:
            return replace(status, method=f"{status.method} and populations")
        return status


def _draws(one: Estimate) -> float:
    """Members of all populations; infinite if nothing was drawn."""
    return math.inf if one.lower == one.upper else one.members * len(one.each)
