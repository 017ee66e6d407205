"""The route of rows of evidence: each row by itself, over the variables that it lacks."""

from functools import partial
from typing import Any

from rdpgraph.engines.solution import Question
from rdpgraph.plan.bids import Bid
from rdpgraph.plan.plan import Budget
from rdpgraph.schedulers.auction import planned_whole, solver_without_structure
from rdpgraph.schedulers.route import PlannedRoute, Task
from rdpgraph.schedulers.rows import planned_rows
from rdpgraph.schedulers.scheduler import Planned


class RowsRoute(PlannedRoute):
    """Rows of evidence on a graph of tables, one by one, by compiled code."""

    def bid(self, task: Task, question: Question[Any], budget: Budget) -> Bid | None:
        """Exact, where the work of each row is small; other answers take rows together."""
        planned = task.once("rows", lambda: self._planned(task))
        return None if planned is None else self.exact_bid(planned)

    def _planned(self, task: Task) -> Planned | None:
        structures = "structure given evidence" in task.routes
        general = partial(solver_without_structure, task) if structures else None
        return planned_rows(task.graph, task.budget, planned_whole(task), general)
