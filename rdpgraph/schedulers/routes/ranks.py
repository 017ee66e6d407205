"""The route of large low-rank factors: sums over their ranks, in place of their tables."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from rdpgraph._core import tuning
from rdpgraph._core.cache import differentiable_property
from rdpgraph.engines.solution import Question, Solution
from rdpgraph.estimate.estimator import Model
from rdpgraph.estimate.lowrank import AddedVariables, SummedOut, with_ranks
from rdpgraph.model.graph import FactorGraph
from rdpgraph.model.potentials.lowrank import LowRank
from rdpgraph.plan.bids import Bid
from rdpgraph.plan.plan import Budget
from rdpgraph.schedulers.auction import planned_with_ranks
from rdpgraph.schedulers.preparing import solved
from rdpgraph.schedulers.route import PlannedRoute, Task
from rdpgraph.schedulers.scheduler import Planned


class RanksRoute(PlannedRoute):
    """Large `LowRank` factors become variables of their ranks; all routes bid for that graph.

    The tables of such factors are not written out, so no later route is asked about the graph as
    it was declared.
    """

    def bid(self, task: Task, question: Question[Any], budget: Budget) -> Bid | None:
        """The best bid for the graph with variables of ranks, where it is much smaller."""
        planned = task.once("ranks", lambda: self._planned(task))
        if planned is None:
            return None
        plan = planned[0]
        name = question.name
        best = next((offer.bids[name] for offer in plan.bids if name in offer.taken_for), None)
        if best is None:
            return None
        return Bid(best.exactness, plan.seconds, plan.stored_bytes, plan.why, work=planned)

    def _planned(self, task: Task) -> Planned | None:
        return planned_by_ranks(task.graph, planned_with_ranks(task))


def planned_by_ranks(graph: FactorGraph, planned: Callable[[FactorGraph], Planned]) -> Planned:
    """Plan of a graph, by ``planned``; of one with rank variables where that is much smaller."""
    entries = sides = 0
    for block in graph.blocks:
        if isinstance(block.potential, LowRank):
            entries += block.count * math.prod(block.sizes)
            sides += block.count * block.potential.rank * sum(block.sizes)
    if entries < max(tuning.RANKED_ENTRIES, tuning.RANKED_GAIN * sides):
        return planned(graph)
    wide = with_ranks(graph)
    plan, run = planned(wide)
    why = "; ".join(filter(None, (plan.why, "sums of low-rank factors are over their ranks")))
    return replace(plan, why=why), partial(_summed, graph, wide, run, planned)


def _summed(
    graph: FactorGraph,
    wide: FactorGraph,
    run: Callable[[], Solution],
    planned: Callable[[FactorGraph], Planned],
) -> Solution:
    return RankSums(run(), AddedVariables(graph, wide, partial(_solved, planned)))


def _solved(planned: Callable[[FactorGraph], Planned], graph: Model) -> Solution:
    assert isinstance(graph, FactorGraph)
    return solved(planned, graph)


@dataclass(frozen=True, eq=False)
class RankSums(SummedOut):
    """Sums by the model with rank variables, and all else as without them."""

    @differentiable_property
    def _plain(self) -> Solution:
        return self.lift.solve(self.lift.plain)

    def _require_as_exact(self, answer: str) -> None:
        """Let approximations pass: the default scheduler answers what it can."""
