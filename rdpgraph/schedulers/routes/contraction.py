"""The route of exact contraction: everything where it fits, or log Z alone where only that does."""

import math
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from rdpgraph._core import effort
from rdpgraph._core.units import duration
from rdpgraph.engines.exact.engine import ExactSolution
from rdpgraph.engines.portfolio import Approximations, ExactFirst
from rdpgraph.engines.reduction.network import Network
from rdpgraph.engines.solution import Question, Solution
from rdpgraph.errors import BudgetError
from rdpgraph.plan import clock
from rdpgraph.plan.bids import Bid, Exactness
from rdpgraph.plan.clock import Allowance
from rdpgraph.plan.plan import PASSES, Budget, Plan
from rdpgraph.plan.tree import ContractionTree
from rdpgraph.schedulers.contraction import plan_network
from rdpgraph.schedulers.route import Others, Route, Task
from rdpgraph.schedulers.scheduler import Planned


@dataclass(frozen=True)
class _Alone:
    """The order in which log Z alone is summed."""

    tree: ContractionTree


class ContractionRoute(Route):
    """Variables are summed out in the cheapest order found, whole or in slices."""

    decisive: ClassVar[bool] = True

    def bid(self, task: Task, question: Question[Any], budget: Budget) -> Bid | None:
        """Exact for all questions; refused, with the costs, where that exceeds the budget."""
        if task.is_large:
            why = f"no exact order is sought for {task.joint:,} factors with cycles"
            return Bid(Exactness.EXACT, math.inf, math.inf, refused=why)
        plan, run = self._planned(task)
        if plan.fits:
            return Bid(Exactness.EXACT, plan.seconds, plan.stored_bytes, plan.why, work=(plan, run))
        if question.name == "log_partition" and (alone := self._alone(task, plan)) is not None:
            return alone
        timed = task.seconds is not None
        refused = f"exact inference {plan.remedy.split(';')[0] if timed else _advice(plan)}"
        remedy = "" if timed else refused
        return Bid(Exactness.EXACT, plan.seconds, plan.stored_bytes, refused=refused, remedy=remedy)

    def _planned(self, task: Task) -> Planned:
        def compute() -> Planned:
            network, seconds, begin = task.network, task.exact_seconds, task.begin
            # What reading the tables took is not missing where the search is quick.
            least = clock.now() + max(0.03 * seconds, effort.LEAST_PLANNING)
            task.once("least", lambda: least)
            deadline = max(begin + effort.SEARCHING * seconds, least)
            return plan_network(network, task.budget, deadline=deadline)

        return task.once("contraction", compute)

    def _alone(self, task: Task, plan: Plan) -> Bid | None:
        """The bid for log Z alone, where that may fit though marginals do not.

        Products of large tables take a fraction of the prediction, so in real time more is tried
        than what surely fits.
        """
        if plan.tree is None or plan.peak_bytes > 0.5 * task.budget.memory_bytes:
            return None
        counted = task.counter is not None
        times = effort.FORWARD_SURE if counted else effort.FORWARD_TRIED
        seconds = plan.seconds / PASSES
        if seconds > times * task.allowance.seconds:
            return None
        why, note = "one pass gives log Z alone, if it ends in time", "log Z alone is exact"
        work = _Alone(plan.tree)
        return Bid(Exactness.EXACT, seconds, plan.peak_bytes, why, note=note, work=work)

    def run(self, task: Task, bid: Bid) -> Solution:
        if isinstance(bid.work, _Alone):
            seconds = effort.EXACT_SUM * task.allowance.left()
            return _upwards(task.network, bid.work.tree, seconds)
        return bid.work[1]()

    def run_with(self, task: Task, bid: Bid, others: Others | None) -> Solution:
        """Each kind of answer is exact where its pass ends in time; else the others give it."""
        if others is None:
            return self.run(task, bid)
        if isinstance(bid.work, _Alone):
            known = others(0.0)
            if not isinstance(known, Approximations):
                return known
            return known.with_exact(partial(_upwards, task.network, bid.work.tree))
        plan, run = bid.work
        # Predictions fail where others use the machine, unless operations are counted.
        quick = plan.num_slices == 1 and plan.seconds < effort.SURE * task.exact_seconds
        taken = Allowance(math.inf, 0.0, task.counter)
        sure = quick or task.counter is not None
        return ExactFirst(run(), others, sure, taken, task.exact_seconds)

    def plan(self, task: Task, bid: Bid, why: str) -> Plan:
        return bid.work[0]


def _advice(plan: Plan) -> str:
    """Needs of exact inference, where no limit was given."""
    short = plan.remedy.split(";")[0]
    if not plan.seconds <= effort.LONGEST_ADVISED or "memory" in short:
        return short
    enough = 10 * math.ceil(effort.ADVISED * plan.seconds / 10)
    width = f"width {plan.width:.0f}"
    return f"would take about {duration(plan.seconds)} ({width}): Auto(seconds={enough})"


def _upwards(network: Network, tree: ContractionTree, seconds: float) -> ExactSolution:
    return ExactSolution(network, tree, False, _no_order, seconds / effort.UPWARDS)  # noqa: FBT003


def _no_order(last: frozenset[int]) -> ContractionTree:  # noqa: ARG001
    raise BudgetError("Only log Z is exact here.")
