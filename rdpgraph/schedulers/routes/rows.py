"""The route of rows of evidence: each row by itself, over the variables that it lacks."""

from functools import partial
from typing import Any, ClassVar

from rdpgraph.engines.solution import Question, Solution
from rdpgraph.plan.bids import Bid, Exactness
from rdpgraph.plan.plan import Budget, Plan
from rdpgraph.schedulers.auction import planned_whole, solver_without_structure
from rdpgraph.schedulers.route import Route, Task
from rdpgraph.schedulers.rows import planned_rows
from rdpgraph.schedulers.scheduler import Planned


class RowsRoute(Route):
    """Rows of evidence on a graph of tables, one by one, by compiled code."""

    decisive: ClassVar[bool] = True

    def bid(self, task: Task, question: Question[Any], budget: Budget) -> Bid | None:
        """Exact, where the work of each row is small; other answers take rows together."""
        planned = task.once("rows", lambda: self._planned(task))
        if planned is None:
            return None
        plan = planned[0]
        return Bid(Exactness.EXACT, plan.seconds, plan.stored_bytes, plan.why, work=planned)

    def _planned(self, task: Task) -> Planned | None:
        structures = "structure given evidence" in task.routes
        general = partial(solver_without_structure, task) if structures else None
        return planned_rows(task.graph, task.budget, planned_whole(task), general)

    def run(self, task: Task, bid: Bid) -> Solution:
        return bid.work[1]()

    def plan(self, task: Task, bid: Bid, why: str) -> Plan:
        return bid.work[0]
