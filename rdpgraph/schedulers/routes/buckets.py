"""The route of small graphs: bucket elimination in compiled code."""

from functools import partial
from typing import Any, ClassVar

from rdpgraph.engines.exact.buckets import BucketsSolution
from rdpgraph.engines.solution import Question, Solution
from rdpgraph.model.graph import FactorGraph
from rdpgraph.plan.bids import Bid, Exactness
from rdpgraph.plan.plan import Budget
from rdpgraph.schedulers.auction import solver_without_structure
from rdpgraph.schedulers.route import Route, Task


class BucketsRoute(Route):
    """Log Z and marginals of a small graph of tables, in a few calls.

    `Auto.small` takes it before an auction begins, as asking takes longer than answering. So its
    bids are told in the table, and the plan is that of the other questions.
    """

    beforehand: ClassVar[bool] = True

    def bid(self, task: Task, question: Question[Any], budget: Budget) -> Bid | None:
        """Exact, for log Z and marginals of a small graph."""
        if question.name not in ("log_partition", "variable_marginals"):
            return None
        factors = task.small
        if factors is None:
            return None
        cells, variables = factors.cells, len(factors.sizes)
        why = f"{cells:,.0f} cells in the buckets of {variables:,} variables"
        return Bid(Exactness.EXACT, factors.seconds, 16.0 * cells, why, work=factors)

    def run(self, task: Task, bid: Bid) -> Solution:
        general = solver_without_structure(task, task.graph)
        return BucketsSolution(task.graph, bid.work, general, partial(_solved_in_general, task))


def _solved_in_general(task: Task, graph: FactorGraph) -> Solution:
    return solver_without_structure(task, graph)()
