"""The route of large low-rank factors: sums over their ranks, in place of their tables."""

from typing import Any, ClassVar

from rdpgraph.engines.solution import Question, Solution
from rdpgraph.plan.bids import Bid
from rdpgraph.plan.plan import Budget, Plan
from rdpgraph.schedulers.auction import planned_with_ranks
from rdpgraph.schedulers.contraction import planned_by_ranks
from rdpgraph.schedulers.route import Route, Task
from rdpgraph.schedulers.scheduler import Planned


class RanksRoute(Route):
    """Large `LowRank` factors become variables of their ranks; all routes bid for that graph.

    The tables of such factors are not written out, so no later route is asked about the graph as
    it was declared.
    """

    decisive: ClassVar[bool] = True

    def bid(self, task: Task, question: Question[Any], budget: Budget) -> Bid | None:
        """The best bid for the graph with variables of ranks, where it is much smaller."""
        planned = task.once("ranks", lambda: self._planned(task))
        if planned is None:
            return None
        plan = planned[0]
        name = question.name
        best = next((offer.bids[name] for offer in plan.bids if name in offer.taken_for), None)
        if best is None:
            return None
        return Bid(best.exactness, plan.seconds, plan.stored_bytes, plan.why, work=planned)

    def _planned(self, task: Task) -> Planned | None:
        return planned_by_ranks(task.graph, planned_with_ranks(task))

    def run(self, task: Task, bid: Bid) -> Solution:
        return bid.work[1]()

    def plan(self, task: Task, bid: Bid, why: str) -> Plan:
        return bid.work[0]
