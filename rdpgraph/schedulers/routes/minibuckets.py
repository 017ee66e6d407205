"""The route of mini-buckets: log Z estimated by populations, between certain bounds."""

from functools import partial
from typing import Any

from rdpgraph._core import effort
from rdpgraph._core.portable import tensors_in
from rdpgraph.engines.minibuckets.best_known import BestKnown
from rdpgraph.engines.minibuckets.estimate import Sampling
from rdpgraph.engines.minibuckets.solution import MiniBucketSolution
from rdpgraph.engines.portfolio import Approximations
from rdpgraph.engines.solution import Question, Solution
from rdpgraph.engines.trws.bounding import Bounding
from rdpgraph.plan.bids import Bid, Exactness
from rdpgraph.plan.plan import Budget
from rdpgraph.schedulers.route import Others, Route, Task


class MiniBucketsRoute(Route):
    """Log Z by populations led by mini-buckets, which also correct marginals of messages."""

    def bid(self, task: Task, question: Question[Any], budget: Budget) -> Bid | None:
        """Bounded, for log Z of few items of a model that is not trained."""
        if question.name != "log_partition" or not self._is_estimated(task):
            return None
        # Tables and populations grow with the time that is left, up to the memory of the budget.
        return Bid(
            Exactness.BOUNDED,
            effort.DRAWN_SUM * task.allowance.seconds,
            task.memory_limit,
            "populations of configurations, led by mini-buckets, whose bounds are certain",
            note="log Z alone is estimated by populations",
            memory_is_limit=True,
        )

    @staticmethod
    def _is_estimated(task: Task) -> bool:
        """Return whether log Z that is not exact is estimated, and not only by messages.

        Estimates have no gradients, take their time for each item, and visit all factors.
        """
        return (
            not any(part.requires_grad for part in tensors_in(task.graph.blocks))
            and task.joint <= effort.MOST_JOINED
            and task.network.batch <= effort.ESTIMATED_ITEMS
        )

    def run(self, task: Task, bid: Bid) -> Solution:
        return _drawn(task, task.allowance.left(effort.DRAWN_SUM))

    def run_with(self, task: Task, bid: Bid, others: Others | None) -> Solution:
        """The best known log Z: estimates, or messages where these are the better ones."""
        messages = None if others is None else others(0.0)
        if not isinstance(messages, Approximations):
            return self.run(task, bid)
        return BestKnown(messages, partial(_drawn, task), task.allowance)


def _drawn(task: Task, seconds: float) -> MiniBucketSolution:
    memory = task.budget.memory_bytes
    sampling = Sampling(seconds, memory, None, 0, sums_only=True, grace=0.0, progress=task.progress)
    return MiniBucketSolution(task.network, sampling, Bounding(task.network, memory))
