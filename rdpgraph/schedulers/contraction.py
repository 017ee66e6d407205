"""Scheduler of exact inference: an auction among the routes that are exact for any graph."""

from dataclasses import dataclass

from rdpgraph._core.arguments import require_fields
from rdpgraph.engines.exact.buckets import Factors
from rdpgraph.engines.solution import Solution
from rdpgraph.model.graph import FactorGraph
from rdpgraph.plan.planner import Optimize, require_optimize
from rdpgraph.schedulers.auction import planned
from rdpgraph.schedulers.preparing import solved
from rdpgraph.schedulers.route import Settings, Task
from rdpgraph.schedulers.scheduler import Planned, Scheduler


@dataclass(frozen=True)
class Contraction(Scheduler):
    """Exact inference on a factor graph; structures are not recognised.

    Also known as variable elimination, bucket elimination or the junction tree algorithm: variables
    are summed out in a good order, and a pass back gives all marginals. Of the routes of `Auto`
    those bid that are exact for any graph: buckets of a small graph, rows of evidence, one by one,
    and contraction, whole or in slices. No approximate one stands by: what does not fit is refused.

    Args:
        memory: bytes for the tables of one run; None: 60% of what the machine has available.
        seconds: the predicted time that a run may take; planning takes a fifth of it at most.
        optimize: gives the order: a name of opt_einsum's, such as ``"greedy"``, or an optimizer of
            opt_einsum or cotengra, which limits its time itself; None: this library's search, which
            marginal modes and slices take in any case. With an optimizer all rows of evidence are
            contracted together.

    Raises:
        ModelError: a limit that is no number above zero, or no optimizer.
    """

    memory: float | None = None
    seconds: float = 60.0
    optimize: Optimize | None = None

    def __post_init__(self) -> None:
        require_fields(self, memory="(0, inf]", seconds="(0, inf]")
        require_optimize(self.optimize)

    def plan(self, graph: FactorGraph) -> Planned:
        """Plan the cheapest exact answers, of the reduced network or row by row."""
        return planned(self._task(graph))

    def _task(self, graph: FactorGraph) -> Task:
        names = {"buckets", "rows", "contraction"} if self.optimize is None else {"contraction"}
        given = Settings(self.memory, self.seconds, optimize=self.optimize)
        return Task(graph, given, frozenset(names))

    def small(self, graph: FactorGraph) -> Factors | None:
        """Factors of a small graph, or None; a subclass that plans otherwise decides for itself."""
        otherwise = self.optimize is not None or type(self).plan is not Contraction.plan
        return None if otherwise else self._task(graph).small

    def solve(self, graph: FactorGraph) -> Solution:
        """Solution of a graph.

        Raises:
            BudgetError: it does not fit.
        """
        return solved(self.plan, graph)
