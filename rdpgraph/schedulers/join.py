"""Messages between clusters of factors as a scheduler."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from rdpgraph.engines.joined import JoinedSolution
from rdpgraph.engines.network import Network, reduce_graph
from rdpgraph.engines.solution import Solution
from rdpgraph.errors import ModelError
from rdpgraph.model.graph import FactorGraph
from rdpgraph.plan.joingraph import choose_join_graph
from rdpgraph.plan.plan import Plan
from rdpgraph.schedulers.contraction import Contraction
from rdpgraph.schedulers.loopy import Loopy
from rdpgraph.schedulers.scheduler import Scheduler, budget_of, topology_of


@dataclass(frozen=True)
class JoinGraph(Scheduler):
    """Messages between clusters of factors: better than `Loopy`, and dearer, up to exact.

    The clusters are as large as memory and time allow; one that holds all is solved exactly, as by
    `Contraction`. Runs in float64. The gradient of log Z is that at fixed messages; marginals have
    none, and that of the entropy is refused. Modes and max-marginals come from loopy max-product.

    Args:
        memory: bytes for the clusters' tables; None: 60% of what the machine has available.
        seconds: predicted, for a run; it stops there in any case.
        sweeps: at most.
        tolerance: on the largest change of a message, as values scaled to a maximum of one.
        damping: the share of the old message that an update keeps, from the second sweep on; it
            is raised where the residual stalls.
    """

    memory: float | None = None
    seconds: float = 60.0
    sweeps: int = 1000
    tolerance: float = 1e-6
    damping: float = 0.0

    def __post_init__(self) -> None:
        if self.sweeps < 1 or not self.tolerance >= 0 or not 0 <= self.damping < 1:
            raise ModelError(
                "JoinGraph needs sweeps >= 1, tolerance >= 0 and 0 <= damping < 1; got "
                f"{self.sweeps}, {self.tolerance} and {self.damping}."
            )

    def plan(self, graph: FactorGraph) -> tuple[Plan, Callable[[], Solution]]:
        """Evidence, hard zeros, clusters, then messages."""
        return self.plan_network(graph, reduce_graph(graph), "approximate, as asked for")

    def plan_network(
        self, graph: FactorGraph, network: Network, why: str
    ) -> tuple[Plan, Callable[[], Solution]]:
        """The same for a reduced network."""
        budget = budget_of(self.memory, self.seconds)
        topology = topology_of(network)
        # Half of the memory: a cluster's belief stands beside its table.
        clusters = choose_join_graph(
            topology,
            elements=budget.memory_bytes / 16 / network.batch,
            seconds=self.seconds,
            batch=network.batch,
        )
        if clusters.exact:
            whole, run = Contraction(budget.memory_bytes, self.seconds).plan_network(network)
            if whole.fits and whole.num_slices == 1:
                return replace(whole, why="the join graph is a junction tree, solved as one"), run
        largest = max([math.prod(clusters.sizes[v] for v in s) for s in clusters.scopes], default=1)
        plan = Plan(
            route="join graph",
            why=why,
            num_variables=len(network.sizes),
            num_factors=topology.num_tensors,
            num_components=len(topology.components()),
            dropped_states=network.dropped,
            width=math.log2(largest),
            flops=3.0 * clusters.elements() * network.batch,
            peak_bytes=16.0 * clusters.elements() * network.batch,
            stored_bytes=16.0 * clusters.elements() * network.batch,
            seconds=clusters.seconds(network.batch),
        )

        def solve() -> JoinedSolution:
            loopy = Loopy(damping=0.3, seconds=self.seconds).plan(graph)[1]
            return JoinedSolution(
                network, clusters, self.sweeps, self.tolerance, self.seconds, self.damping, loopy
            )

        return plan, solve
