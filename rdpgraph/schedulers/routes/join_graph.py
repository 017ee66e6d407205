"""The route of messages between clusters of factors."""

from dataclasses import replace
from functools import partial
from typing import Any

from rdpgraph._core import effort
from rdpgraph.engines.portfolio import FirstConverged
from rdpgraph.engines.solution import Question, Solution
from rdpgraph.plan.bids import Bid, Exactness
from rdpgraph.plan.plan import Budget, Plan
from rdpgraph.schedulers.loopy import JoinGraph
from rdpgraph.schedulers.route import Others, Route, Task
from rdpgraph.schedulers.routes.messages import first_share
from rdpgraph.schedulers.scheduler import Planned


class JoinGraphRoute(Route):
    """Messages between clusters, as large as a quarter of the time allows.

    Where seconds are short and nothing is impossible, messages between factors come first: the bid
    is then that of messages which come after these.
    """

    def bid(self, task: Task, question: Question[Any], budget: Budget) -> Bid | None:
        """For log Z and marginals, where exact inference has been refused."""
        if question.name not in ("log_partition", "variable_marginals") or task.stands_by:
            return None
        if task.joint > effort.MOST_JOINED:
            return None
        planned = task.once("clusters", lambda: self._planned(task))
        if planned is None:
            return None
        plan = planned[0]
        if task.network.possible is not None:
            why = (
                "messages between factors are used instead if their likeliest states violate "
                "fewer factors than those of messages between clusters"
            )
        elif first_share(task):
            why = (
                "messages between clusters are tried if those between factors do not converge soon"
            )
            seconds = task.allowance.seconds + plan.seconds
            return _bid(Exactness.MESSAGES, seconds, plan, why, planned)
        else:
            why = "messages between factors are used if those between clusters do not converge"
        return _bid(Exactness.CLUSTERS, plan.seconds, plan, why, planned)

    @staticmethod
    def _planned(task: Task) -> Planned | None:
        """The plan of clusters that fit, by a deadline; None if none do."""
        seconds = task.allowance.seconds
        deadline = max(task.begin + effort.PLANNING * seconds, task.once("least", lambda: 0.0))
        scheduler = JoinGraph(
            task.memory, effort.JOINED * seconds, tolerance=1e-3, progress=task.progress
        )
        return scheduler.plan_network(task.graph, task.network, "", deadline=deadline)

    def run(self, task: Task, bid: Bid) -> Solution:
        return bid.work[1]()

    def run_with(self, task: Task, bid: Bid, others: Others | None) -> Solution:
        """Clusters are tried before the messages between factors, which answer where they fail."""
        after = None if others is None else others(0.0)
        if not isinstance(after, FirstConverged):
            return self.run(task, bid)
        return replace(after, attempts=(partial(_clustered, bid), *after.attempts))

    def plan(self, task: Task, bid: Bid, why: str) -> Plan:
        return replace(bid.work[0], why=why)


def _bid(exactness: Exactness, seconds: float, plan: Plan, note: str, planned: Planned) -> Bid:
    why = f"messages between clusters of factors, of {plan.width:.0f} bits at most"
    return Bid(exactness, seconds, plan.stored_bytes, why, note=note, work=planned)


def _clustered(bid: Bid, _: float) -> Solution:
    return bid.work[1]()
