"""Plans that are made when they are asked for, and carried out by the answer after them."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from rdpgraph._cache import Kept, cached_property, differentiable_property, recording
from rdpgraph._portable import tensors_in
from rdpgraph.engines.circuit import CircuitSolution
from rdpgraph.engines.solution import Solution
from rdpgraph.model.graph import FactorGraph
from rdpgraph.plan.plan import Plan
from rdpgraph.schedulers.contraction import require_fit
from rdpgraph.schedulers.scheduler import Scheduler

_NAME = "_prepared"
_Made: TypeAlias = tuple[Scheduler, Plan, Callable[[], Solution]]


def prepared(
    scheduler: Scheduler, graph: FactorGraph, *, keep: bool
) -> tuple[Plan, Callable[[], Solution]]:
    """The scheduler's plan for a graph, and what carries it out.

    With ``keep``, or where the plan does not fit, both stay with the graph for the next call, which
    neither reads the tables nor plans if the scheduler is equal and no table has been written to.
    They are taken once: gradients pass through what was read from the tables once only.
    """
    read = [(block.scopes, block.potential, block.rows) for block in graph.blocks]
    earlier: Kept[_Made] | None = graph.__dict__.pop(_NAME, None)
    if earlier is not None and earlier.value[0] == scheduler and earlier.is_current(read):
        _, plan, run = earlier.value
    else:
        plan, run = scheduler.plan(graph)
    if keep or not plan.fits:
        graph.__dict__[_NAME] = Kept.of((scheduler, plan, run), read)
    return plan, run


def begun(
    scheduler: Scheduler, graph: FactorGraph
) -> tuple[Plan | Callable[[], Plan], Callable[[], Solution]]:
    """The plan for a graph, or what makes it, and what gives the answers.

    Raises:
        BudgetError: the plan does not fit its budget.
    """
    circuit = scheduler.circuit(graph)
    if circuit is None:
        plan, run = prepared(scheduler, graph, keep=False)
        require_fit(plan)
        return plan, run
    later = _Deferred(scheduler, graph)
    return later.plan, partial(CircuitSolution, graph, circuit, later.solution)


@dataclass(frozen=True, eq=False)
class _Deferred:
    """What a scheduler plans for a graph."""

    scheduler: Scheduler
    graph: FactorGraph

    @cached_property
    def _planned(self) -> tuple[Plan, Callable[[], Solution]]:
        with recording(lambda: tensors_in(self.graph.blocks)):
            return prepared(self.scheduler, self.graph, keep=False)

    @differentiable_property
    def _solution(self) -> Solution:
        plan, run = self._planned
        require_fit(plan)
        return run()

    def plan(self) -> Plan:
        """The plan, which is made when it is first asked for."""
        return self._planned[0]

    def solution(self) -> Solution:
        """What carries it out."""
        return self._solution
