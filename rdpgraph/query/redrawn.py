"""Loopy belief propagation on a few states of each variable, drawn anew as the beliefs form."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import NoReturn

import torch
from torch import Tensor

from rdpgraph._cache import differentiable_property
from rdpgraph.engines.loopy.interpolation import InterpolatedMessages
from rdpgraph.engines.loopy.slots import started
from rdpgraph.engines.loopy.solution import LoopySolution
from rdpgraph.engines.solution import Approximation, Solution
from rdpgraph.engines.status import Status
from rdpgraph.errors import ModelError
from rdpgraph.estimate.exact import Model
from rdpgraph.estimate.graph_view import GraphView
from rdpgraph.estimate.layout import Layout
from rdpgraph.estimate.proposal import Given, Mixture, Proposal, normalised
from rdpgraph.estimate.redrawn import Redrawn
from rdpgraph.model.graph import FactorGraph
from rdpgraph.query.estimated import EstimatedSolution


@dataclass(frozen=True, eq=False)
class RedrawnSolution(Approximation):
    """The answers of loopy belief propagation on few states of each variable.

    Marginals are the beliefs of all states, one step beyond those kept, and the mean of the
    replicates. All else is the estimate on the last states drawn.

    Attributes:
        estimate: that estimate.
        view: the model as groups of variables.
        beyond: its messages at all states.
        sweeps: how many went before those of the last states.
    """

    estimate: EstimatedSolution
    view: GraphView
    beyond: InterpolatedMessages
    sweeps: int

    def status(self) -> Status:
        """That of the last messages, all sweeps counted."""
        own = self.estimate.status()
        return replace(own, iterations=self.sweeps + (own.iterations or 0))

    def log_partition(self) -> Tensor:
        """(B,) the log of the mean of the replicates' Bethe approximations."""
        return self.estimate.log_partition()

    def variable_marginals(self) -> Tensor:
        """(B, S) the beliefs."""
        flat = self.estimate.variable_marginals()
        starts = torch.nn.functional.pad(self.estimate.graph.domain.sizes.cumsum(0), (1, 0))
        for logs, sites in zip(self.log_beliefs, self.view.groups, strict=True):
            assert sites.numbers is not None
            places = starts[sites.numbers].unsqueeze(1) + torch.arange(sites.states)
            found = normalised(logs).exp().mean(0).reshape(len(flat), -1)
            flat = flat.index_copy(1, places.flatten().to(flat.device), found)
        return flat

    @differentiable_property
    def log_beliefs(self) -> tuple[Tensor, ...]:
        """For each group (replicates, *batch, sites, states), unnormalised."""
        return _log_beliefs(self.beyond, self.view)

    def factor_marginals(self, block: int) -> Tensor:
        """(B, F, *sizes), zero where a state was not kept."""
        return self.estimate.factor_marginals(block)

    def expected_score(self) -> Tensor:
        """(B,) on the states kept."""
        return self.estimate.expected_score()

    def max_marginals(self) -> Tensor:
        """(B, S), -inf where a state was not kept."""
        return self.estimate.max_marginals()

    def mode(self) -> Tensor:
        """(B, V) of kept states."""
        return self.estimate.mode()

    def mode_is_consistent(self) -> Tensor:
        """(B,) False: a state left out may be better."""
        return self.estimate.mode_is_consistent()


def redrawn_solution(
    graph: FactorGraph,
    settings: Redrawn,
    sweeps: int,
    solve: Callable[..., LoopySolution],
) -> Solution:
    """Sweeps on states drawn, and drawn anew, until they end.

    Args:
        graph: the model, evidence included.
        settings: when, and by what.
        sweeps: at most, those before the last states included.
        solve: messages in a restricted model, so many sweeps at most.
    """
    estimator = settings.estimator
    setting = estimator.setting(graph, solve=_unsolved, generator=settings.generator)
    view = setting.view
    assert isinstance(view, GraphView)
    if not view.groups:
        return solve(graph, sweeps)
    with torch.no_grad():
        base = estimator.proposal.informed(setting)

    def stage(
        proposal: Proposal, before: InterpolatedMessages | None, most: int
    ) -> InterpolatedMessages | None:
        problem = estimator.drawn(setting, proposal)
        if problem.exact or problem.kept is None:
            return None
        assert isinstance(problem.model, FactorGraph)
        solution = solve(problem.model, most)
        beyond = InterpolatedMessages(
            view.graph, Layout(graph, problem.kept), view.is_free, solution
        )
        if before is None:
            return beyond
        with torch.no_grad():
            return replace(beyond, solution=started(solution, _interpolated(before, beyond)))

    proposal, beyond, done = base, None, 0
    for stop in (number for number in settings.at if number < sweeps):
        beyond = stage(proposal, beyond, stop - done)
        if beyond is None:
            return solve(graph, sweeps)
        with torch.no_grad():
            done += len(beyond.solution.outcome.trace)
            proposal = _informed(beyond, view, base, settings.share)
    beyond = stage(proposal, beyond, sweeps - done)
    if beyond is None:
        return solve(graph, sweeps)

    estimate = EstimatedSolution(
        graph,
        beyond.restricted,
        beyond.solution,
        beyond.layout.kept,
        exact=False,
        solve=partial(solve, sweeps=sweeps),
    )
    return RedrawnSolution(estimate, view, beyond, done)


def _informed(
    beyond: InterpolatedMessages, view: GraphView, base: Proposal, share: float
) -> Proposal:
    """The mean belief of the replicates, mixed with what the states were first drawn by."""
    scores = tuple(
        normalised(logs).logsumexp(0).to(sites.unary)
        for logs, sites in zip(_log_beliefs(beyond, view), view.groups, strict=True)
    )
    found = Given(scores, view)
    return found if share == 1.0 else Mixture((found, base), (share, 1.0 - share))


def _log_beliefs(beyond: InterpolatedMessages, view: GraphView) -> tuple[Tensor, ...]:
    lead = (beyond.layout.kept.replicates, *beyond.graph.batch_shape)
    found: list[Tensor] = []
    for sites in view.groups:
        assert sites.numbers is not None
        unary = view.unary(sites.numbers, sites.states)
        logs = beyond.log_beliefs(sites.numbers, unary)
        found.append(logs.reshape(*lead, *logs.shape[-2:]))
    return tuple(found)


def _interpolated(
    before: InterpolatedMessages, now: InterpolatedMessages
) -> dict[tuple[int, int], Tensor]:
    """The messages of one choice of states at those of the next."""
    found: dict[tuple[int, int], Tensor] = {}
    for (number, slot), values in before.messages.items():
        block = now.restricted.blocks[number]
        states = now.layout.of(block.scopes[:, slot]).flatten(0, 1)
        found[number, slot] = values.gather(2, states.clamp(max=values.shape[2] - 1))
    return found


def _unsolved(model: Model) -> NoReturn:
    raise ModelError(
        "Redrawn needs a proposal that solves no model, such as that of Randomized.default(keep="
        f"...), not one that wants a {type(model).__name__} solved: the sweeps are its pilot."
    )
