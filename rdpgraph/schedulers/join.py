"""Scheduler of messages between clusters of factors."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

from rdpgraph._core.numbers import is_real, is_whole
from rdpgraph.engines.loopy.gradients import Implicit
from rdpgraph.engines.loopy.join_graph import JoinedSolution
from rdpgraph.engines.loopy.propagation import Sweep
from rdpgraph.engines.loopy.schedules import Damping, ProbabilityDamping, Schedule
from rdpgraph.engines.reduction.network import Network, reduce_graph
from rdpgraph.engines.solution import Solution
from rdpgraph.errors import ModelError
from rdpgraph.model.graph import FactorGraph
from rdpgraph.plan import clock
from rdpgraph.plan.clock import Allowance
from rdpgraph.plan.joingraph import ClusterGraph, choose_join_graph
from rdpgraph.plan.plan import SMALL, Plan
from rdpgraph.schedulers.contraction import plan_network
from rdpgraph.schedulers.loopy import Loopy
from rdpgraph.schedulers.scheduler import (
    Scheduler,
    budget_of,
    require_budget,
    require_function,
    require_kind,
    topology_of,
)

_DAMPING = 0.3
_SETUP = 0.5


@dataclass(frozen=True)
class JoinGraph(Scheduler):
    """Messages between clusters of factors: more accurate than `Loopy`, and more expensive.

    The clusters are as large as memory and time allow; one that holds all is solved exactly, as by
    `Contraction`. Runs in float64, on the messages of `Loopy`. Modes and max-marginals come from
    loopy max-product between single factors.

    Args:
        memory: bytes for the clusters' tables; None: 60% of what the machine has available.
        seconds: for all answers, as predicted; messages stop there in any case.
        sweeps: at most.
        tolerance: on the largest change of a message, as values scaled to a maximum of one.
        damping: the share of the old message that an update keeps, from the second sweep on; a
            number is `ProbabilityDamping`, and its share is raised where the residual stalls.
        schedule: which messages of clusters are updated when, the variables that two clusters
            share counting as one; None: every cluster up an order of the clusters, then down.
        gradient: how gradients of marginals and entropy reach the potentials.
        progress: called with a `Sweep` after every sweep.
    """

    memory: float | None = None
    seconds: float = 60.0
    sweeps: int = 1000
    tolerance: float = 1e-6
    damping: float | Damping = 0.0
    schedule: Schedule | None = None
    gradient: Implicit = field(default_factory=Implicit)
    progress: Callable[[Sweep], None] | None = field(default=None, metadata={"elsewhere": None})

    def __post_init__(self) -> None:
        require_budget("JoinGraph", self.memory, self.seconds)
        require_kind("JoinGraph", "schedule", self.schedule, Schedule, "Flooding()")
        require_kind("JoinGraph", "gradient", self.gradient, Implicit, "Implicit()")
        require_function("JoinGraph", self.progress)
        number = 0.0 if isinstance(self.damping, Damping) else self.damping
        numbers = is_whole(self.sweeps, 1) and is_real(self.tolerance) and is_real(number)
        if not numbers or not self.tolerance >= 0 or not 0 <= number < 1:
            raise ModelError(
                "JoinGraph needs sweeps >= 1, tolerance >= 0 and 0 <= damping < 1; got "
                f"{self.sweeps!r:.80}, {self.tolerance!r:.80} and {self.damping!r:.80}."
            )

    def plan(self, graph: FactorGraph) -> tuple[Plan, Callable[[], Solution]]:
        """Plan evidence, hard zeros, clusters, then messages.

        Planning takes a fifth of the seconds at most. If no clusters are found by then that fit the
        memory and can be set up in time, `Loopy` answers.
        """
        begin = clock.now()
        deadline = begin + max(clock.PLANNING * self.seconds, clock.LEAST_PLANNING)
        network, why = reduce_graph(graph), "approximate, as asked for"
        planned = self.plan_network(graph, network, why, begin=begin, deadline=deadline)
        if planned is not None:
            return planned
        left = Allowance(self.seconds, clock.now() - begin).left()
        loopy = Loopy(
            sweeps=self.sweeps, damping=_DAMPING, seconds=left, memory=self.memory,
            progress=self.progress,
        )  # fmt: skip
        return loopy.plan_because(graph, "no clusters larger than factors keep to the budget")

    def plan_network(
        self,
        graph: FactorGraph,
        network: Network,
        why: str,
        *,
        deadline: float,
        begin: float = math.inf,
    ) -> tuple[Plan, Callable[[], Solution]] | None:
        """Plan of a reduced network and the function that solves it; None if no clusters fit.

        Args:
            graph: the model.
            network: the model, reduced.
            why: the reason for this route.
            deadline: when planning ends, on `clock.now`.
            begin: since when the seconds count; by default only answers do.
        """
        budget = budget_of(self.memory, self.seconds)
        topology, batch = topology_of(network), network.batch
        clusters = choose_join_graph(topology, budget=budget, batch=batch, deadline=deadline)
        if clusters is None:
            return None
        if clusters.exact:
            whole, run = plan_network(network, budget, deadline=deadline)
            if whole.fits and whole.num_slices == 1:
                return replace(whole, why="the join graph is a junction tree, solved as one"), run
        stored = 16.0 * clusters.elements() * batch
        large = stored > max(budget.memory_bytes, SMALL)
        if large or clusters.setup_seconds(batch) > _SETUP * self.seconds:
            return None
        largest = max([math.prod(clusters.sizes[v] for v in s) for s in clusters.scopes], default=1)
        plan = Plan(
            route="join graph",
            why=why,
            num_variables=len(network.sizes),
            num_factors=topology.num_tensors,
            num_components=len(topology.components()),
            dropped_states=network.dropped,
            width=math.log2(largest),
            flops=3.0 * clusters.elements() * batch,
            peak_bytes=stored,
            stored_bytes=stored,
            memory=self.memory,
            seconds=clusters.seconds(batch),
        )
        spent = max(clock.now() - begin, 0.0)
        return plan, partial(self._solution, graph, network, clusters, spent)

    def _solution(
        self, graph: FactorGraph, network: Network, clusters: ClusterGraph, spent: float
    ) -> JoinedSolution:
        allowance = Allowance(self.seconds, spent)
        modes = partial(_modes, graph, allowance)
        damping = self.damping
        return JoinedSolution(
            network,
            clusters,
            self.sweeps,
            self.tolerance,
            allowance,
            damping if isinstance(damping, Damping) else ProbabilityDamping(damping),
            self.schedule,
            self.gradient,
            modes,
            self.progress,
        )


def _modes(graph: FactorGraph, allowance: Allowance) -> Solution:
    with allowance.spending():
        network = reduce_graph(graph, high_order=True)
    return Loopy(damping=_DAMPING, seconds=allowance.seconds).solution(network, allowance)
