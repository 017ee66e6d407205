"""The route of search, for modes that exact inference does not give."""

from typing import Any

from rdpgraph._core import effort
from rdpgraph.engines.loopy.high_order import is_logical
from rdpgraph.engines.portfolio import FirstConverged
from rdpgraph.engines.search.solution import Seeker
from rdpgraph.engines.search.sought import Sought
from rdpgraph.engines.search.starts import SearchLimits
from rdpgraph.engines.solution import Question, Solution
from rdpgraph.engines.trws.bounding import Bounding
from rdpgraph.plan.bids import Bid, Exactness
from rdpgraph.plan.plan import Budget
from rdpgraph.schedulers.route import Others, Route, Task
from rdpgraph.schedulers.search import Search


class SearchRoute(Route):
    """Modes and marginal modes by a search from what messages say, with bounds on their scores."""

    def bid(self, task: Task, question: Question[Any], budget: Budget) -> Bid | None:
        """Bounded, for modes and marginal modes."""
        if question.name not in ("mode", "marginal_mode"):
            return None
        part = effort.MODES if question.name == "mode" else effort.MARGINAL_MODES
        seconds, memory = part * task.allowance.seconds, task.memory_limit
        why = "a search from the best configuration of messages, with a bound on all scores"
        return Bid(Exactness.BOUNDED, seconds, memory, why, memory_is_limit=True)

    def run(self, task: Task, bid: Bid) -> Solution:
        scheduler = Search(min(bid.seconds, effort.NEVER), task.memory, progress=task.progress)
        return scheduler.plan(task.graph)[1]()

    def run_with(self, task: Task, bid: Bid, others: Others | None) -> Solution:
        """Modes by a search from the messages that stand by; these answer all other questions."""
        messages = None if others is None else others(0.0)
        if not isinstance(messages, FirstConverged):
            return self.run(task, bid)
        network, memory, allowance = task.network, task.budget.memory_bytes, task.allowance
        eliminating = task.joint <= max(
            effort.MOST_JOINED, effort.BOUNDED_PER_SECOND * allowance.seconds
        )
        limits = SearchLimits(
            allowance.seconds, memory, effort.PATIENCE, progress=task.progress
        )  # fmt: skip
        seeker = Seeker(network, limits, Bounding(network, memory), eliminating)
        logical = network.possible is not None and is_logical(network.graph)
        return Sought(messages, seeker, allowance, logical)
