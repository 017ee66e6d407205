"""Loopy belief propagation on a few states of each variable, redrawn from the beliefs so far."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from rdpgraph._core.arguments import require_fields
from rdpgraph.engines.loopy.interpolation import InterpolatedMessages, started
from rdpgraph.engines.loopy.network_equations import Bethe
from rdpgraph.engines.loopy.solution import LoopySolution
from rdpgraph.engines.solution import Delegate, Question, Solution, Status, Value, prefix_method
from rdpgraph.errors import ModelError
from rdpgraph.estimate.estimator import Estimator, Model, Problem, Setting
from rdpgraph.estimate.proposals import Scores, mixed, normalised
from rdpgraph.estimate.randomized import Randomized
from rdpgraph.estimate.restriction import Restriction
from rdpgraph.interface.sites import free_numbers, free_variables
from rdpgraph.model.graph import FactorGraph


@dataclass(frozen=True, eq=False)
class Lifted(Delegate):
    """The answers of another solution; a subclass overrides those that differ.

    Attributes:
        inner: the solution of the model that an estimator made.
    """

    inner: Solution

    def _ask(self, question: Question[Value]) -> Value:
        return question(self.inner)

    def status_of(self, answer: str) -> Status:
        """Status of an answer of the other solution; `status`, if a subclass has its own."""
        if type(self).status is not Lifted.status:
            return self.status()
        return self.inner.status_of(answer)


@dataclass(frozen=True, eq=False)
class Inexact(Lifted):
    """The answers of a model that approximates the one declared: a lift by itself.

    Proofs about the approximation do not hold for the model.
    """

    bounds, interval = Solution.bounds, Solution.interval
    mode_bound, mode_is_optimal = Solution.mode_bound, Solution.mode_is_optimal

    def status(self) -> Status:
        """Status without exactness, unbiasedness, bounds or an error."""
        return self._approximate(self.inner.status())

    def status_of(self, answer: str) -> Status:
        return self._approximate(self.inner.status_of(answer))

    def _approximate(self, known: Status) -> Status:
        status = replace(known, exact=False, biased=True, bound="", standard_error=None)
        return prefix_method("approximate model", status)

    def log_partition_errors(self) -> Tensor:
        """(B,) +inf: of the distance to the model nothing is known."""
        return torch.full_like(self.inner.log_partition().detach(), math.inf)


@dataclass(frozen=True)
class Redrawn(Estimator):
    """Draws the states of every variable again from the beliefs, at some sweeps of `Loopy`.

    The first states are those of the estimator. At each of the sweeps every factor's message is
    taken one step further, from the states kept to all states of the variable that it goes to: in
    O(K N) for a pair of variables with N states of which K are kept. The beliefs so formed choose
    the next states, and the sweeps continue with the messages at those; the plan is that of the
    last sweeps. It needs ``scheduler=Loopy(...)``, plain belief propagation, which gives damping,
    schedule, tolerance and the number of all sweeps together.

    Args:
        estimator: chooses states; its replicates run side by side, and the beliefs are their mean.
        at: the numbers of sweeps after which states are drawn again, increasing; those that the
            scheduler's sweeps do not exceed are left out.
        share: the part of the beliefs in the proposal, the rest being the estimator's.
    """

    estimator: Randomized
    at: tuple[int, ...] = (5, 10)
    share: float = 0.5

    def __post_init__(self) -> None:
        require_fields(self, at="[1, inf)", share="(0, 1]")
        if any(after <= before for before, after in pairwise(self.at)):
            raise ModelError(f"Redrawn needs increasing numbers of sweeps; got {self.at}.")

    def prepare(
        self, model: Model, *, solve: Callable[[Model], Any], generator: torch.Generator | None
    ) -> Problem:
        """Restrict the model to the last states drawn, after the sweeps on those before.

        Raises:
            ModelError: a structure, or a scheduler that does not pass plain messages.
        """
        if not isinstance(model, FactorGraph):
            raise ModelError(
                f"Redrawn draws states for messages in a FactorGraph; got a {type(model).__name__}."
            )
        estimator = self.estimator
        setting = Setting.of(model, estimator.selection, solve=solve, generator=generator)
        if not setting.groups:
            return Problem(model)
        with torch.no_grad():
            base = estimator.proposal.scores_of(setting)
        lift = RedrawnStates(estimator.drawn(setting, lambda: base))
        for stop in self.at:
            if lift.restriction.exact:
                break
            solution = _plain(solve(lift.restriction.model).solution)
            if stop >= solution.limits.sweeps:
                break
            with torch.no_grad():
                messages = lift.messages(solution, stop - lift.done)
                done = lift.done + len(messages.solution.outcome.trace)
                scores = self._scores(messages, setting, base)
            drawn = estimator.drawn(setting, lambda given=scores: given)
            lift = RedrawnStates(drawn, messages, done)
        return Problem(model) if lift.restriction.exact else Problem(lift.restriction.model, lift)

    def _scores(self, messages: InterpolatedMessages, setting: Setting, base: Scores) -> Scores:
        """Mean belief of the replicates, mixed with the scores of the first draw."""
        lead = messages.restricted.batch_shape
        beliefs = tuple(
            normalised(logs).reshape(*lead, *logs.shape[1:]).logsumexp(0).to(sites.unary)
            for logs, sites in zip(messages.log_beliefs, setting.groups, strict=True)
        )
        share = self.share
        return beliefs if share == 1.0 else mixed((beliefs, base), (share, 1.0 - share))


@dataclass(frozen=True, eq=False)
class RedrawnStates:
    """Lift from messages over the last states drawn, which start where those before ended."""

    restriction: Restriction  # to these states
    before: InterpolatedMessages | None = None  # messages over the states before, if any
    done: int = 0  # number of sweeps that these took

    def messages(self, solution: LoopySolution, sweeps: int) -> InterpolatedMessages:
        """Messages over the states drawn, with at most so many sweeps."""
        limited = replace(solution, limits=replace(solution.limits, sweeps=sweeps))
        graph, layout = self.restriction.original, self.restriction.layout
        assert isinstance(graph, FactorGraph)
        messages = InterpolatedMessages(graph, layout.of, free_variables(graph), limited)
        if self.before is None:
            return messages
        with torch.no_grad():
            start = self.before.at_states_of(messages)
            return replace(messages, solution=started(limited, start))

    def __call__(self, solution: Solution) -> "RedrawnSolution":
        plain = _plain(solution)
        messages = self.messages(plain, plain.limits.sweeps - self.done)
        return RedrawnSolution(self.restriction(messages.solution), messages, self.done)


@dataclass(frozen=True, eq=False)
class RedrawnSolution(Lifted):
    """Answers of loopy belief propagation on few states of each variable.

    Marginals are the beliefs of all states, one step beyond those drawn, and the mean of the
    replicates. All else is the estimate on the last states drawn.

    Attributes:
        inner: that estimate.
        messages: its messages at all states.
        sweeps: number of sweeps before those of the last states.
    """

    messages: InterpolatedMessages
    sweeps: int

    def status(self) -> Status:
        """Status of the last messages, all sweeps counted."""
        return self._with_sweeps(self.inner.status())

    def status_of(self, answer: str) -> Status:
        return self._with_sweeps(self.inner.status_of(answer))

    def _with_sweeps(self, status: Status) -> Status:
        return replace(status, iterations=self.sweeps + (status.iterations or 0))

    def variable_marginals(self) -> Tensor:
        """(B, S) beliefs, averaged over the replicates."""
        flat, graph = self.inner.variable_marginals(), self.messages.graph
        each = self.messages.restricted.batch_shape[0], len(flat)
        groups = zip(free_numbers(graph).items(), self.messages.log_beliefs, strict=True)
        for (size, numbers), logs in groups:
            places = graph.domain.places(numbers, size)
            beliefs = normalised(logs).exp().unflatten(0, each).mean(0).flatten(1)
            flat = flat.index_copy(1, places.flatten().to(flat.device), beliefs)
        return flat


def _plain(solution: Solution) -> LoopySolution:
    """Return the solution if plain messages gave it; raise an error if not."""
    if isinstance(solution, LoopySolution):
        plain = isinstance(solution.counting, Bethe) and solution.temperature == 1
        if plain and solution.start is None:
            return solution
    raise ModelError(
        "Redrawn is plain belief propagation: give infer scheduler=Loopy(...), and leave out its "
        "counting, temperature and start."
    )
