"""The route of messages between clusters of factors."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from rdpgraph._core import effort
from rdpgraph.engines.portfolio import FirstConverged
from rdpgraph.engines.solution import Question, Solution
from rdpgraph.errors import BudgetError
from rdpgraph.plan import clock
from rdpgraph.plan.bids import Bid, Exactness
from rdpgraph.plan.clock import Counter, counted
from rdpgraph.plan.plan import Budget, Plan
from rdpgraph.schedulers.loopy import JoinGraph
from rdpgraph.schedulers.route import Others, Route, Task
from rdpgraph.schedulers.routes.messages import first_share
from rdpgraph.schedulers.scheduler import Planned


class JoinGraphRoute(Route):
    """Messages between clusters, as large as a quarter of the time allows.

    Where seconds are short and nothing is impossible, messages between factors come first: the bid
    is then that of messages which come after these. Where answers begin at once, clusters are
    planned when the first of them needs messages: a mode does not.
    """

    def bid(self, task: Task, question: Question[Any], budget: Budget) -> Bid | None:
        """For log Z and marginals, where exact inference has been refused."""
        if question.name not in ("log_partition", "variable_marginals") or task.stands_by:
            return None
        if task.joint > effort.MOST_JOINED:
            return None
        left = task.once("time for clusters", lambda: self._deadline(task) - clock.now())
        if task.lazily:
            make = partial(_planned_later, task, left)
            return self._bid(task, effort.JOINED * task.allowance.seconds, None, make)
        planned = task.once("clusters", lambda: _planned(task, clock.now() + left))
        if planned is None:
            refused = "no clusters larger than single factors fit into the memory and the time"
            return Bid(Exactness.CLUSTERS, task.allowance.seconds, refused=refused)
        return self._bid(task, planned[0].seconds, planned[0], lambda: planned)

    @staticmethod
    def _deadline(task: Task) -> float:
        """When clusters have to be found, on `clock.now`."""
        part = effort.PLANNING * task.allowance.seconds
        return max(task.begin + part, task.once("least", lambda: 0.0))

    @staticmethod
    def _bid(
        task: Task, seconds: float, plan: Plan | None, make: Callable[[], Planned | None]
    ) -> Bid:
        """The bid of clusters that are planned, or will be by ``make`` when they are needed."""
        exactness = Exactness.CLUSTERS
        if task.network.possible is not None:
            note = (
                "messages between factors are used instead if their likeliest states violate "
                "fewer factors than those of messages between clusters"
            )
        elif first_share(task):
            note = (
                "messages between clusters are tried if those between factors do not converge soon"
            )
            exactness, seconds = Exactness.MESSAGES, task.allowance.seconds + seconds
        else:
            note = "messages between factors are used if those between clusters do not converge"
        why, memory = "messages between clusters of factors", task.memory_limit
        if plan is not None:
            why, memory = f"{why}, of {plan.width:.0f} bits at most", plan.stored_bytes
        return Bid(exactness, seconds, memory, why, note=note, work=make)

    def run(self, task: Task, bid: Bid) -> Solution:
        planned = bid.work()
        if planned is None:
            raise BudgetError("No clusters larger than single factors fit into the budget.")
        return planned[1]()

    def run_with(self, task: Task, bid: Bid, others: Others | None) -> Solution:
        """Clusters are tried before the messages between factors, which answer where they fail."""
        after = None if others is None else others(0.0)
        if not isinstance(after, FirstConverged):
            return self.run(task, bid)
        return replace(after, attempts=(partial(_clustered, bid), *after.attempts))

    def plan(self, task: Task, bid: Bid, why: str) -> Plan:
        return replace(bid.work()[0], why=why)


def _planned(task: Task, deadline: float) -> Planned | None:
    """The plan of clusters that fit, by a deadline; None if none do."""
    seconds = effort.JOINED * task.allowance.seconds
    scheduler = JoinGraph(task.memory, seconds, tolerance=1e-3, progress=task.progress)
    return scheduler.plan_network(task.graph, task.network, "", deadline=deadline)


def _planned_later(task: Task, left: float) -> Planned | None:
    """The plan of clusters, made when an answer first needs it, in the time left at the auction.

    As at an auction, operations of planning are not counted among those of answers.
    """
    counter = None if task.counter is None else Counter()
    with counted(counter):
        return task.once("clusters", lambda: _planned(task, clock.now() + left))


def _clustered(bid: Bid, _: float) -> Solution | None:
    planned = bid.work()
    return None if planned is None else planned[1]()
