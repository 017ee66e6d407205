"""Sums over graphs with large low-rank factors, by added variables, for the default scheduler."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias

from rdpgraph._core.cache import differentiable_property
from rdpgraph.engines.portfolio import ExactFirst
from rdpgraph.engines.solution import Solution, Status
from rdpgraph.estimate.estimator import Model
from rdpgraph.estimate.lowrank import AddedVariables, SummedOut, with_ranks
from rdpgraph.model.graph import FactorGraph
from rdpgraph.model.potentials.lowrank import LowRank
from rdpgraph.plan.plan import Plan

_LARGE, _GAIN = 2**18, 4
"""Entries of all low-rank factors as tables, and their ratio to those of both sides of the factors,
from which sums are over ranks."""

Planned: TypeAlias = tuple[Plan, Callable[[], Solution]]


def planned_by_ranks(graph: FactorGraph, planned: Callable[[FactorGraph], Planned]) -> Planned:
    """Plan of a graph, by ``planned``; of one with rank variables where that is much smaller."""
    entries = sides = 0
    for block in graph.blocks:
        if isinstance(block.potential, LowRank):
            entries += block.count * math.prod(block.sizes)
            sides += block.count * block.potential.rank * sum(block.sizes)
    if entries < max(_LARGE, _GAIN * sides):
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
    return planned(graph)[1]()


@dataclass(frozen=True, eq=False)
class RankSums(SummedOut):
    """Sums by the model with rank variables, and all else as without them."""

    @differentiable_property
    def _plain(self) -> Solution:
        return self.lift.solve(self.lift.plain)

    def status(self) -> Status:
        """Status of the sums; not exact once another answer was approximate."""
        own, plain = self.inner.status(), self.__dict__.get("_plain")
        sure = isinstance(plain, ExactFirst) and "_other" not in plain.__dict__
        if plain is None or sure or not own.exact:
            return own
        remedy = "sums are exact; modes, the entropy and joints of low-rank factors are not"
        return replace(own, exact=False, remedy=remedy)
