"""Routes of counting: log Z of models of constraints, and models with hidden variables."""

from typing import Any

from rdpgraph._core import effort
from rdpgraph.engines.counting.solution import CountedFirst
from rdpgraph.engines.solution import Question, Solution
from rdpgraph.plan.bids import Bid, Exactness
from rdpgraph.plan.clock import Allowance
from rdpgraph.plan.plan import Budget
from rdpgraph.schedulers.counting import (
    Counting,
    CountOf,
    counting_of,
    has_both,
    has_projections,
)
from rdpgraph.schedulers.route import Others, PlannedRoute, Route, Task


class ProjectionRoute(PlannedRoute):
    """Models whose factors have hidden variables, which only a count sums out."""

    def bid(self, task: Task, question: Question[Any], budget: Budget) -> Bid | None:
        """Exact, for all but marginal modes of a graph with projections."""
        if question.name == "marginal_mode" or not has_projections(task.graph):
            return None
        seconds = min(task.seconds or Counting.seconds, effort.LONGEST_ADVISED)
        scheduler = Counting(seconds, task.memory)
        planned = task.once("projections", lambda: scheduler.plan(task.graph))
        memory, why = task.memory_limit, planned[0].why
        return Bid(Exactness.EXACT, seconds, memory, why, memory_is_limit=True, work=planned)


class CountingRoute(Route):
    """Log Z by a counter where most factors are constraints, in a part of the seconds given."""

    def bid(self, task: Task, question: Question[Any], budget: Budget) -> Bid | None:
        """Exact for log Z, where seconds were given and no exact pass surely fits them."""
        if question.name != "log_partition" or task.seconds is None or task.stands_by:
            return None
        if task.is_large or self._is_known(task):
            return None
        why, count = task.once(
            "counting", lambda: counting_of(task.network, task.budget.memory_bytes)
        )
        if not why:
            return None
        # By then a circuit is there, or a count goes on that may take all of its part.
        seconds = effort.CIRCUIT_FIRST * effort.COUNTED * task.allowance.seconds
        refused, note = why if count is None else "", f"log Z alone is {why}"
        return Bid(
            Exactness.EXACT, seconds, task.memory_limit, why, refused=refused, note=note,
            memory_is_limit=True, work=count,
        )  # fmt: skip

    @staticmethod
    def _is_known(task: Task) -> bool:
        """Return whether an exact pass for log Z surely ends in time."""
        known = [bid for bid in task.bids_for("log_partition") if not bid.refused]
        sure = effort.FORWARD_SURE * task.allowance.seconds
        return any(one.exactness is Exactness.EXACT and one.seconds <= sure for one in known)

    def run(self, task: Task, bid: Bid) -> Solution:
        count: CountOf = bid.work
        return count(effort.COUNTED * task.allowance.left())

    def run_with(self, task: Task, bid: Bid, others: Others | None) -> Solution:
        """Log Z by a count that ends in time; else the others answer, in what it leaves."""
        if others is None:
            return self.run(task, bid)
        left, count = task.allowance.left(), bid.work
        # Where another program can count after messages, these do not take all of the rest.
        kept = (1.0 - effort.COUNTED) * left - effort.MESSAGE_RUNS * task.run_seconds
        kept = max(kept, 0.0) if has_both(task.network) else 0.0
        return CountedFirst(count(effort.COUNTED * left), others, Allowance(left), kept)
