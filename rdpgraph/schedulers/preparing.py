"""The plan of a graph and its solution by a scheduler, made once and kept for the next call."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from rdpgraph._core.cache import Kept, cached_property, differentiable_property, recording
from rdpgraph._core.portable import tensors_in
from rdpgraph.engines.exact.buckets import BucketsSolution
from rdpgraph.engines.solution import Solution
from rdpgraph.interface.structure import REGISTRY
from rdpgraph.model.graph import FactorGraph
from rdpgraph.plan.plan import Plan
from rdpgraph.schedulers.route import ROUTES
from rdpgraph.schedulers.scheduler import Planned, Scheduler, plan_by, require_fit

_NAME = "_prepared"
_Begun: TypeAlias = tuple[Plan | None, Callable[[], Solution]]
_Made: TypeAlias = tuple[tuple[Scheduler, object], Plan, Callable[[], Solution]]


def prepared(scheduler: Scheduler, graph: FactorGraph, *, keep: bool) -> Planned:
    """Plan of a scheduler for a graph, and the function that carries it out.

    With ``keep``, or if the plan does not fit, both are stored in the graph for the next call,
    which neither reads the tables nor plans if the scheduler is equal and no table has been written
    to. They are used once: gradients pass through what was read from the tables once only.
    """
    plan, run = _made(scheduler, graph, partial(plan_by, scheduler), keep=keep)
    assert plan is not None
    return plan, run


def _made(
    scheduler: Scheduler, graph: FactorGraph, make: Callable[[FactorGraph], _Begun], *, keep: bool
) -> _Begun:
    """What was stored in a graph for a scheduler, or what a function makes."""
    read = [(block.scopes, block.potential, block.rows) for block in graph.blocks]
    earlier: Kept[_Made] | None = graph.__dict__.pop(_NAME, None)
    key = scheduler, ROUTES.own  # what is registered in between may bid
    if earlier is not None and earlier.value[0] == key and earlier.is_current(read):
        _, plan, run = earlier.value
    else:
        plan, run = make(graph)
    if plan is not None and (keep or not plan.fits):
        graph.__dict__[_NAME] = Kept.of((key, plan, run), read)
    return plan, run


def begun(
    scheduler: Scheduler, graph: FactorGraph
) -> tuple[Plan | Callable[[], Plan], Callable[[], Solution]]:
    """Plan of a graph, or the function that makes it, and the function that solves the graph.

    Raises `BudgetError` if the plan does not fit its budget.
    """
    with REGISTRY.remembering():
        factors = scheduler.small(graph)
        if factors is None:
            plan, run = _made(scheduler, graph, scheduler.begin, keep=False)
            if plan is None:
                return _Deferred(scheduler, graph).plan, run
            require_fit(plan)
            return plan, run
    later = _Deferred(scheduler, graph)
    again = partial(solved, partial(plan_by, scheduler))
    return later.plan, partial(BucketsSolution, graph, factors, later.solution, again)


@dataclass(frozen=True, eq=False)
class _Deferred:
    """Plan of a scheduler for a graph, made when it is asked for."""

    scheduler: Scheduler
    graph: FactorGraph

    @cached_property
    def _planned(self) -> Planned:
        with recording(lambda: tensors_in(self.graph.blocks)):
            return prepared(self.scheduler, self.graph, keep=False)

    @differentiable_property
    def _solution(self) -> Solution:
        plan, run = self._planned
        require_fit(plan)
        return run()

    def plan(self) -> Plan:
        return self._planned[0]

    def solution(self) -> Solution:
        return self._solution


def solved(planned: Callable[[FactorGraph], Planned], graph: FactorGraph) -> Solution:
    """Solution of a graph as it is planned.

    Raises:
        BudgetError: the plan does not fit.
    """
    plan, run = planned(graph)
    require_fit(plan)
    return run()
