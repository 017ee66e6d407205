"""Loopy belief propagation on a few states of each variable, drawn again as the beliefs form."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from rdpgraph._cache import differentiable_property
from rdpgraph.engines.loopy.counting import Bethe
from rdpgraph.engines.loopy.interpolation import InterpolatedMessages
from rdpgraph.engines.loopy.slots import started
from rdpgraph.engines.loopy.solution import LoopySolution
from rdpgraph.engines.solution import Solution
from rdpgraph.engines.status import Status
from rdpgraph.errors import ModelError
from rdpgraph.estimate.graph_view import GraphView
from rdpgraph.estimate.lifted import Lifted
from rdpgraph.estimate.problem import Estimator, Model, Problem
from rdpgraph.estimate.proposal import Given, Mixture, Proposal, normalised
from rdpgraph.estimate.randomized import Randomized
from rdpgraph.estimate.restriction import Restriction
from rdpgraph.model.graph import FactorGraph


@dataclass(frozen=True)
class Redrawn(Estimator):
    """States of every variable drawn again, at some sweeps of `Loopy`, from the beliefs so far.

    The first states are those of the estimator. At each of the sweeps every factor's message is
    taken one step further, from the states kept to all states of the variable that it goes to: in
    O(K N) for a pair of variables with N states of which K are kept. The beliefs so formed choose
    the next states, and the messages at those are where the sweeps go on; the plan is that of the
    last of them. It needs ``scheduler=Loopy(...)``, plain belief propagation, which gives damping,
    schedule, tolerance and the number of all sweeps together.

    Args:
        estimator: chooses states; its replicates run side by side, and the beliefs are their mean.
        at: the numbers of sweeps after which states are drawn again, increasing.
        share: the part of the beliefs in the proposal, the rest being the estimator's own.
    """

    estimator: Randomized
    at: tuple[int, ...] = (5, 10)
    share: float = 0.5

    def __post_init__(self) -> None:
        object.__setattr__(self, "at", tuple(self.at))
        steps = [after - before for before, after in zip((0, *self.at), self.at, strict=False)]
        if not all(step >= 1 for step in steps) or not 0.0 < self.share <= 1.0:
            raise ModelError(
                "Redrawn needs increasing numbers of sweeps >= 1 and a share in (0, 1]; got "
                f"{self.at} and {self.share}."
            )

    def prepare(
        self, model: Model, *, solve: Callable[[Model], Any], generator: torch.Generator | None
    ) -> Problem:
        """The model on the last states drawn, after the sweeps on those before.

        Raises:
            ModelError: a structure, or a scheduler that does not pass plain messages.
        """
        if not isinstance(model, FactorGraph):
            raise ModelError(
                f"Redrawn draws states for messages in a FactorGraph; got a {type(model).__name__}."
            )
        setting = self.estimator.setting(model, solve=solve, generator=generator)
        view = setting.view
        assert isinstance(view, GraphView)
        if not view.groups:
            return Problem(model)
        with torch.no_grad():
            base = self.estimator.proposal.informed(setting)
        lift = RedrawnStates(self.estimator.drawn(setting, base), view)
        for stop in self.at:
            if lift.kept.exact:
                break
            solution = _messages(solve(lift.kept.model).solution)
            if stop >= solution.limits.sweeps:
                break
            with torch.no_grad():
                beyond = lift.beyond(solution, stop - lift.done)
                done = lift.done + len(beyond.solution.outcome.trace)
                proposal = self._informed(beyond, view, base)
            lift = RedrawnStates(self.estimator.drawn(setting, proposal), view, beyond, done)
        return Problem(model) if lift.kept.exact else Problem(lift.kept.model, lift)

    def _informed(self, beyond: InterpolatedMessages, view: GraphView, base: Proposal) -> Proposal:
        """The mean belief of the replicates, mixed with what the states were first drawn by."""
        scores = tuple(
            normalised(logs).logsumexp(0).to(sites.unary)
            for logs, sites in zip(_log_beliefs(beyond, view), view.groups, strict=True)
        )
        proposal, share = Given(scores, view), self.share
        return proposal if share == 1.0 else Mixture((proposal, base), (share, 1.0 - share))


@dataclass(frozen=True, eq=False)
class RedrawnStates:
    """The lift from messages over the last states drawn, which go on where those before ended.

    Attributes:
        kept: the states.
        view: the model as groups of variables.
        before: the messages over the states before, if there were any.
        done: how many sweeps these took.
    """

    kept: Restriction
    view: GraphView
    before: InterpolatedMessages | None = None
    done: int = 0

    def beyond(self, solution: LoopySolution, sweeps: int) -> InterpolatedMessages:
        """The messages over the states kept, to be sent so many times at most."""
        limited = replace(solution, limits=replace(solution.limits, sweeps=sweeps))
        layout, free = self.kept.layout, self.view.is_free
        counts = torch.tensor([math.prod(entry.shape) for entry in self.view.graph.variables])
        chosen = torch.tensor([support is not None for support in self.kept.supports])
        few = chosen.repeat_interleave(counts) & free
        interpolated = InterpolatedMessages(self.view.graph, layout.of, few, free, limited)
        if self.before is None:
            return interpolated
        with torch.no_grad():
            start = _interpolated(self.before, interpolated)
            return replace(interpolated, solution=started(limited, start))

    def __call__(self, solution: Solution) -> "RedrawnSolution":
        """What messages over the states kept say of all states."""
        own = _messages(solution)
        beyond = self.beyond(own, own.limits.sweeps - self.done)
        return RedrawnSolution(self.kept(beyond.solution), self.view, beyond, self.done)


@dataclass(frozen=True, eq=False)
class RedrawnSolution(Lifted):
    """The answers of loopy belief propagation on few states of each variable.

    Marginals are the beliefs of all states, one step beyond those kept, and the mean of the
    replicates. All else is the estimate on the last states drawn.

    Attributes:
        inner: that estimate.
        view: the model as groups of variables.
        beyond: its messages at all states.
        sweeps: how many went before those of the last states.
    """

    view: GraphView
    beyond: InterpolatedMessages
    sweeps: int

    def status(self) -> Status:
        """That of the last messages, all sweeps counted."""
        own = self.inner.status()
        return replace(own, iterations=self.sweeps + (own.iterations or 0))

    @differentiable_property
    def log_beliefs(self) -> tuple[Tensor, ...]:
        """For each group (replicates, *batch, sites, states), unnormalised."""
        return _log_beliefs(self.beyond, self.view)

    def variable_marginals(self) -> Tensor:
        """(B, S) the beliefs."""
        flat, sizes = self.inner.variable_marginals(), self.beyond.graph.domain.sizes
        starts = sizes.cumsum(0) - sizes
        for logs, sites in zip(self.log_beliefs, self.view.groups, strict=True):
            assert sites.numbers is not None
            places = starts[sites.numbers].unsqueeze(1) + torch.arange(sites.states)
            marginals = normalised(logs).exp().mean(0).reshape(len(flat), -1)
            flat = flat.index_copy(1, places.flatten().to(flat.device), marginals)
        return flat


def _messages(solution: Solution) -> LoopySolution:
    """The messages of a solution that has plain ones."""
    if isinstance(solution, LoopySolution):
        plain = isinstance(solution.counting, Bethe) and solution.temperature == 1
        if plain and solution.start is None:
            return solution
    raise ModelError(
        "Redrawn is plain belief propagation: give infer scheduler=Loopy(...), and leave out its "
        "counting, temperature and start."
    )


def _log_beliefs(beyond: InterpolatedMessages, view: GraphView) -> tuple[Tensor, ...]:
    cavities: list[Tensor] = []
    for sites in view.groups:
        assert sites.numbers is not None
        unary = view.unary(sites.numbers, sites.states)
        logs = beyond.log_beliefs(sites.numbers, unary)
        cavities.append(logs.reshape(*beyond.restricted.batch_shape, *logs.shape[-2:]))
    return tuple(cavities)


def _interpolated(
    before: InterpolatedMessages, now: InterpolatedMessages
) -> dict[tuple[int, int], Tensor]:
    """The messages of one choice of states at those of the next."""
    beliefs: dict[tuple[int, int], Tensor] = {}
    for (number, slot), values in before.messages.items():
        block = now.restricted.blocks[number]
        states = now.kept(block.scopes[:, slot]).flatten(0, 1)
        beliefs[number, slot] = values.gather(2, states.clamp(max=values.shape[2] - 1))
    return beliefs
