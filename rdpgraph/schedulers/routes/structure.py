"""Routes of structures: recognised in a graph, or in what evidence leaves of it."""

from functools import partial
from typing import Any

from rdpgraph.engines.recognised import RecognisedSolution, plan_of, recognised_left
from rdpgraph.engines.solution import Question, Solution
from rdpgraph.interface.structure import Match, Structure
from rdpgraph.plan.bids import Bid
from rdpgraph.plan.plan import Budget
from rdpgraph.schedulers.auction import solver_without_structure
from rdpgraph.schedulers.route import PlannedRoute, Task
from rdpgraph.schedulers.scheduler import Planned


class StructureRoute(PlannedRoute):
    """A registered structure that the graph is: its own recursion answers.

    What the structure does not answer itself goes to the routes without structures.
    """

    def bid(self, task: Task, question: Question[Any], budget: Budget) -> Bid | None:
        """Exact, for every question that the structure answers."""
        match = task.match
        if match is None or not _answers(type(match.structure), question.name):
            return None
        return task.once("structure bid", lambda: self.exact_bid((plan_of(match.structure), match)))

    def run(self, task: Task, bid: Bid) -> Solution:
        match: Match = bid.work[1]
        return RecognisedSolution(task.graph, match, solver_without_structure(task, task.graph))


class RemainingStructureRoute(PlannedRoute):
    """A registered structure that is left of the graph once observed variables are gone."""

    def bid(self, task: Task, question: Question[Any], budget: Budget) -> Bid | None:
        """Exact, for every question but marginal modes."""
        planned = task.once("remaining structure", lambda: self._planned(task))
        if planned is None or question.name == "marginal_mode":
            return None
        return task.once("remaining structure bid", lambda: self.exact_bid(planned))

    def _planned(self, task: Task) -> Planned | None:
        if task.graph.observed is None:
            return None
        general = partial(solver_without_structure, task)
        return recognised_left(task.graph, task.network, general)


def _answers(structure: type[Structure], question: str) -> bool:
    """Return whether a class of structures has an answer of its own; computed, it may be None."""
    if question in ("log_partition", "variable_marginals"):
        return True
    own = getattr(structure, question, None)
    return own is not None and own is not getattr(Structure, question)
