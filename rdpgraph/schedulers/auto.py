"""Default scheduler: an auction among all routes."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from rdpgraph._core.arguments import require_fields
from rdpgraph.engines.exact.buckets import Factors
from rdpgraph.engines.solution import Solution
from rdpgraph.model.graph import FactorGraph
from rdpgraph.plan.plan import Plan
from rdpgraph.schedulers.route import ROUTES, Settings, Shape, Task
from rdpgraph.schedulers.scheduler import Planned, Scheduler, reported


@dataclass(frozen=True)
class Auto(Scheduler):
    """The default: an auction, in which routes bid for each question and the best bid answers.

    Routes are asked in the order of `rdpgraph.extend.ROUTES`: those that users have registered; a
    count for factors with hidden variables; buckets of a small graph; a registered structure;
    sums over the ranks of large `LowRank` factors; rows of evidence, one by one; a structure that
    evidence leaves; contraction; counting; a join graph; mini-buckets; search; and loopy messages.
    A bid says how much will be known of the error, and predicts seconds and bytes.

    The rule: of the bids within the budget the one of most exactness is taken (exact, bounded,
    an estimate, messages between clusters, messages), and of equally exact ones that of the fewest
    predicted seconds, for each question by itself. The first exact bid of a built-in route for all
    marginals ends the asking, as no later route does the same for less. A small graph is answered
    before, whatever structure it is, as this takes less time than to recognise one. Where a route
    does not keep its word, in time, memory or convergence, the next one goes on.
    ``explain(graph).bids`` prints the table of all bids; `Status.route` says which route gave an
    answer, and `Status.tried` which failed.

    Where exact inference does not fit the budget, messages between clusters answer
    (`JoinGraph`), or messages between single factors (`Loopy`) if those do not converge; with
    hard zeros, the ones whose most probable states violate the fewest factors. Graphs with
    cycles and over 50,000 factors go to `Loopy` directly. Where one kind of answer does not
    fit, as a marginal mode whose order is wide, the others stay exact (`Posterior.status_of`).

    Log Z is exact where it alone fits the budget. With ``seconds``, log Z of models whose factors
    are mostly constraints is counted, as by `Counting`, in at most two fifths of the time left;
    marginals and batches are exact if a circuit is compiled in that time. Otherwise log Z is the
    estimate of `MiniBuckets`, without gradients, unless its error is above half a nat and the value
    of messages contradicts neither the bounds nor the estimate. Marginals are those of messages, or
    of `MiniBuckets` where its estimates are precise and differ from messages by three standard
    errors: this takes the time left, unless a trial of a tenth of it shows that they will not be
    precise. Messages answer for tables that require gradients, more than 8,000 factors, and more
    than eight batch items.

    Modes of models of pairs begin with sequential tree-reweighted messages (Kolmogorov 2006), in a
    quarter of the time: they bound all scores, and prove a mode whose score meets the bound. Else a
    search goes on from the best configuration that these and plain messages give.
    `Posterior.bounds` and `mode_bound` are finite at any size, by such messages or the largest
    value of each factor.

    Without ``seconds`` answers take seconds and are the same on every machine, because operations
    are counted in place of time: exact answers where all marginals take at most 2.4e9
    multiply-adds (2e10 of large tables with vectors, as on trees), about 5 s; else approximate
    ones in about 2 s each, or in four times the time of loopy messages if that is longer. A mode
    that is sought is no worse than that of `Loopy()`, whose time is added. The search ends after as
    long without a gain as everything took up to the last one, and after 0.25 s at least, or 0.01 s
    where these messages have converged, or those of logical factors have come to a possible mode.
    The plan and `status.remedy` say how many seconds would give better answers.

    Args:
        memory: bytes for the tables of one run; None: 60% of what the machine has available.
        seconds: for all answers; predicted, for exact inference. Planning takes at most a fifth.
            Approximate answers may use all of it, and the later ones what is left. None: see above.
        progress: called with a `Sweep` after every sweep of messages, a `Move` after every move of
            a search, and a `Progress` after every population of an estimate, and every two seconds
            in which there is none of these.

    Raises:
        ModelError: a limit that is no number above zero, or progress that is no function.
    """

    memory: float | None = None
    seconds: float | None = None
    progress: Callable[[Any], None] | None = field(default=None, metadata={"elsewhere": None})

    def __post_init__(self) -> None:
        require_fields(self, memory="(0, inf]", seconds="(0, inf]")

    def plan(self, graph: FactorGraph) -> Planned:
        return reported(self._planned, graph, self.progress)

    def _planned(self, graph: FactorGraph) -> Planned:
        from rdpgraph.schedulers.auction import planned  # a small graph is answered without one

        return planned(self._task(graph))

    def _task(self, graph: FactorGraph) -> Task:
        return Task(graph, Settings(self.memory, self.seconds, self.progress), ROUTES.names)

    @property
    def _is_planned_otherwise(self) -> bool:
        """Whether a subclass has a `plan` of its own, which then decides for every graph."""
        return type(self).plan is not Auto.plan

    def begin(self, graph: FactorGraph) -> tuple[Plan | None, Callable[[], Solution]]:
        from rdpgraph.schedulers.auction import begun

        if self.progress is not None or self._is_planned_otherwise:
            return super().begin(graph)
        return begun(self._task(graph))

    def small(self, graph: FactorGraph) -> Factors | None:
        """Factors of a small graph, or None; see `Task.small`.

        It answers before any route is asked, unless a user's route might bid for the graph, or a
        subclass plans otherwise.
        """
        if self._is_planned_otherwise:
            return None
        if ROUTES.own and any(entry.might_bid(Shape.of(graph)) for entry in ROUTES.own):
            return None
        return self._task(graph).small
