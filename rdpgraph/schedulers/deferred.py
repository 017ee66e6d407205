"""A plan that is made when it is asked for: small graphs are answered without one."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from rdpgraph._cache import cached_property, differentiable_property, recording
from rdpgraph._portable import tensors_in
from rdpgraph.engines.circuit import CircuitSolution
from rdpgraph.engines.solution import Solution
from rdpgraph.model.graph import FactorGraph
from rdpgraph.plan.plan import Plan
from rdpgraph.schedulers.contraction import require_fit
from rdpgraph.schedulers.prepared import prepared
from rdpgraph.schedulers.scheduler import Scheduler


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
