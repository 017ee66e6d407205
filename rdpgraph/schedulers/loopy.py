"""Schedulers of messages: loopy belief propagation, and between clusters of factors."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import ClassVar

import torch

from rdpgraph._core import effort, tuning
from rdpgraph._core.arguments import require_fields
from rdpgraph._core.cache import cached_property, recording
from rdpgraph._core.portable import tensors_in
from rdpgraph._core.progress import Progress
from rdpgraph._core.units import quantity
from rdpgraph.engines.loopy.interpolation import started_from
from rdpgraph.engines.loopy.join_graph import JoinedSolution
from rdpgraph.engines.loopy.network_equations import Bethe, CountingNumbers
from rdpgraph.engines.loopy.propagation import Gradient, Implicit, Limits, Sweep
from rdpgraph.engines.loopy.schedules import (
    Damping,
    Flooding,
    LogDamping,
    ProbabilityDamping,
    Schedule,
)
from rdpgraph.engines.loopy.solution import LoopySolution
from rdpgraph.engines.reduction.network import Network, reduce_graph
from rdpgraph.engines.reported import Reported
from rdpgraph.engines.solution import Solution
from rdpgraph.errors import ModelError
from rdpgraph.model.graph import FactorGraph
from rdpgraph.plan import clock
from rdpgraph.plan.clock import Allowance
from rdpgraph.plan.joingraph import ClusterGraph, choose_join_graph
from rdpgraph.plan.plan import Plan
from rdpgraph.query.posterior import Posterior
from rdpgraph.schedulers.routes.contraction import plan_network
from rdpgraph.schedulers.scheduler import (
    Planned,
    Scheduler,
    budget_of,
    reported,
)


@dataclass(frozen=True, eq=False)
class Loopy(Scheduler):
    """Loopy belief propagation: approximate, exact where the factor graph has no cycle.

    Also known as the sum-product algorithm or message passing; modes and max-marginals are by
    max-product.

    Time and memory of a sweep are those of reading the tables. All batch items are solved
    together; one that has converged changes no more.

    Args:
        sweeps: at most. For a mode in graphs with logical factors a fifth of them, but at least 200
            or all; fewer where its states are possible and have not changed for ten sweeps.
        damping: the share of the old message that an update keeps; a number is `LogDamping`. None:
            none, and 0.5 from the eleventh sweep on in graphs with cycles and logical factors
            (`Automaton`), whose messages would often swing to and fro forever.
        tolerance: on the largest change of a log-message, relative beyond one nat. Without cycles
            sums go on until they are exact.
        schedule: which messages are updated when.
        counting: `Bethe()` is plain belief propagation, `TreeReweighted()` bounds log Z above.
        temperature: 1 is sum-product, 0 max-product; t gives the posterior of p(x) to the power
            1 / t, and t times its log Z.
        gradient: how gradients reach the potentials through the messages.
        start: a posterior of this scheduler, of the same model or one that shares factors with
            it, whose messages to begin with.
        seconds: for all answers together, or None; looked at after every sweep.
        progress: called with a `Sweep` after every sweep. A sweep is not reported while it runs.
        memory: bytes for tables, messages and marginals, or None; models that need more, and more
            than 16 MB, are refused.

    Raises:
        ModelError: a number out of range.
        BudgetError: (`infer`) the model needs more memory.
    """

    takes_no_items: ClassVar[bool] = True

    sweeps: int = 1000
    damping: float | Damping | None = None
    tolerance: float = 1e-5
    schedule: Schedule = field(default_factory=Flooding)
    counting: CountingNumbers = field(default_factory=Bethe)
    temperature: float = 1.0
    gradient: Gradient = field(default_factory=Implicit)
    start: Posterior | None = None
    seconds: float | None = None
    progress: Callable[[Sweep], None] | None = field(default=None, metadata={"elsewhere": None})
    memory: float | None = None

    def __post_init__(self) -> None:
        require_fields(
            self, sweeps="[1, inf)", damping="[0, 1)", tolerance="[0, inf]",
            temperature="[0, inf)", seconds="[0, inf]", memory="(0, inf]",
        )  # fmt: skip
        if self.start is not None and not isinstance(_inside(self.start), LoopySolution):
            raise ModelError(
                f"Loopy(start=...) needs a posterior that Loopy gave; this one is by "
                f"{self.start.plan.route}."
            )

    def _limits(self) -> Limits:
        damping = self.damping
        if not isinstance(damping, Damping):
            damping = LogDamping(0.0 if damping is None else damping)
        return Limits(
            self.schedule,
            damping,
            self.sweeps,
            self.tolerance,
            self.seconds,
            self.progress,
            settling=self.damping is None,
        )

    def plan(self, graph: FactorGraph) -> Planned:
        return self.plan_because(graph, "approximate, as asked for")

    def plan_because(self, graph: FactorGraph, why: str) -> Planned:
        """Plan with a reason for this route."""
        begin = clock.now()
        network = reduce_graph(graph, high_order=True)
        plan = loopy_plan(network, self.sweeps, why, memory=self.memory)
        return plan, partial(self._started, network, clock.now() - begin)

    def _started(self, network: Network, spent: float) -> LoopySolution:
        allowance = None if self.seconds is None else Allowance(self.seconds, spent)
        solution = self.solution(network, allowance)
        if self.start is None:
            return solution
        before = _inside(self.start)
        assert isinstance(before, LoopySolution)
        return started_from(solution, before)

    def solution(self, network: Network, allowance: Allowance | None = None) -> LoopySolution:
        """Solution of a network reduced with ``high_order=True``; a start is left out.

        Args:
            network: the model.
            allowance: the remaining seconds; None: all of them.
        """
        if allowance is None and self.seconds is not None:
            allowance = Allowance(self.seconds)
        return LoopySolution(
            network, self.counting, self.temperature, self._limits(), self.gradient, allowance
        )


@dataclass(frozen=True, eq=False)
class ForMessages:
    """Network reduced for messages, made when needed; potentials compute messages themselves."""

    reduced: Network  # the network, without whole potentials
    memory: float | None  # bytes for tables, messages and marginals, or None

    @cached_property
    def network(self) -> Network:
        """The network whose large logical factors are kept as they are (``high_order=True``)."""
        graph, possible = self.reduced.graph, self.reduced.possible
        if possible is not None and len(possible.starts) != graph.num_variables + 1:
            possible = None  # it includes auxiliary variables, which are not made for messages
        with recording(lambda: tensors_in(graph.blocks)):
            return reduce_graph(graph, possible=possible, high_order=True)

    def plan(self, why: str, seconds: float) -> Plan:
        """Plan of loopy belief propagation, which ends after some seconds at most."""
        plan = loopy_plan(self.network, Loopy().sweeps, why, memory=self.memory)
        return replace(plan, seconds=min(plan.seconds, seconds))


def loopy_plan(network: Network, sweeps: int, why: str, *, memory: float | None = None) -> Plan:
    """Plan and cost of messages in a network reduced with ``high_order=True``."""
    # Work is the entries of all tables in each sweep; memory is these, the states, and eight
    # numbers for each entry of a message.
    tables = [group.log_tables for group in network.groups]
    factors = [len(group.scopes) for group in network.groups]
    cells = [math.prod(table.shape[2:]) for table in tables]
    element = torch.finfo(network.graph.dtype).bits // 8
    messages = sum(
        count * sum(table.shape[2:]) for table, count in zip(tables, factors, strict=True)
    )
    flops = 2.0 * network.batch * sum(c * n for c, n in zip(cells, factors, strict=True))
    stored = sum(table.numel() for table in tables) + 8.0 * messages * network.batch
    stored += network.graph.domain.total_states * network.batch
    # Nothing smaller than messages can be planned: the plan says what is lacking, and does not fit.
    needed, remedy = stored * element, ""
    if memory is not None and needed > max(memory, tuning.SMALL_BYTES):
        remedy = (
            f"needs {quantity(needed)}B of memory, and the budget is {quantity(memory)}B; raise "
            "it, or condition on more evidence"
        )
    return Plan(
        route="loopy",
        why=why,
        fits=not remedy,
        remedy=remedy,
        memory=memory,
        num_variables=len(network.counts),
        num_factors=sum(factors),
        dropped_states=network.dropped,
        width=max((math.log2(cell) for cell in cells), default=0.0),
        flops=flops,
        peak_bytes=needed,
        stored_bytes=needed,
        seconds=sweeps * (flops / 1e9 + 1e-4 * len(tables)),
    )


def _inside(posterior: Posterior) -> Solution:
    """The solution of a posterior, also where its progress is reported."""
    solution = posterior.solution
    return solution.solution if isinstance(solution, Reported) else solution


DAMPING = 0.3
"""Damping of messages that answer questions of other schedulers."""


@dataclass(frozen=True)
class JoinGraph(Scheduler):
    """Messages between clusters of factors: more accurate than `Loopy`, and more expensive.

    Also known as generalised belief propagation or join-graph propagation.

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
        progress: called with a `Sweep` after every sweep, and with a `Progress` every two seconds
            in which there is none, as while clusters are chosen.
    """

    memory: float | None = None
    seconds: float = 60.0
    sweeps: int = 1000
    tolerance: float = 1e-6
    damping: float | Damping = 0.0
    schedule: Schedule | None = None
    gradient: Implicit = field(default_factory=Implicit)
    progress: Callable[[Sweep | Progress], None] | None = field(
        default=None, metadata={"elsewhere": None}
    )

    def __post_init__(self) -> None:
        require_fields(
            self, sweeps="[1, inf)", damping="[0, 1)", tolerance="[0, inf]",
            seconds="(0, inf]", memory="(0, inf]",
        )  # fmt: skip

    def plan(self, graph: FactorGraph) -> Planned:
        """Plan evidence, hard zeros, clusters, then messages.

        Planning takes a fifth of the seconds at most. If no clusters are found by then that fit the
        memory and can be set up in time, `Loopy` answers: with these sweeps, seconds, memory and
        progress, and with its own tolerance, damping, schedule and gradient.
        """
        return reported(self._planned, graph, self.progress)

    def _planned(self, graph: FactorGraph) -> Planned:
        begin = clock.now()
        deadline = begin + max(effort.PLANNING * self.seconds, effort.LEAST_PLANNING)
        network, why = reduce_graph(graph), "approximate, as asked for"
        planned = self.plan_network(graph, network, why, begin=begin, deadline=deadline)
        if planned is not None:
            return planned
        left = Allowance(self.seconds, clock.now() - begin).left()
        loopy = Loopy(
            sweeps=self.sweeps, damping=DAMPING, seconds=left, memory=self.memory,
            progress=self.progress,
        )  # fmt: skip
        return loopy.plan_because(
            graph, "no clusters larger than single factors fit into the budget"
        )

    def plan_network(
        self,
        graph: FactorGraph,
        network: Network,
        why: str,
        *,
        deadline: float,
        begin: float = math.inf,
    ) -> Planned | None:
        """Plan of a reduced network and the function that solves it; None if no clusters fit.

        Args:
            graph: the model.
            network: the model, reduced.
            why: the reason for this route.
            deadline: when planning ends, on `clock.now`.
            begin: the time, on `clock.now`, from which planning counts towards the seconds; by
                default it does not.
        """
        budget = budget_of(self.memory, self.seconds)
        topology, batch = network.topology, network.batch
        clusters = choose_join_graph(topology, budget=budget, batch=batch, deadline=deadline)
        if clusters is None:
            return None
        # Clusters that form a tree are a junction tree: contraction solves it at once.
        if clusters.exact:
            whole, run = plan_network(network, budget, deadline=deadline)
            if whole.fits and whole.num_slices == 1:
                return replace(whole, why="the join graph is a junction tree, solved as one"), run
        # Messages between large clusters, or ones that take long to prepare, are not worth it.
        stored = 16.0 * clusters.elements() * batch
        large = stored > max(budget.memory_bytes, tuning.SMALL_BYTES)
        if large or clusters.setup_seconds(batch) > effort.CLUSTERS_SETUP * self.seconds:
            return None
        largest = max([math.prod(clusters.sizes[v] for v in s) for s in clusters.scopes], default=1)
        plan = Plan(
            route="join graph",
            why=why,
            num_variables=len(network.counts),
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
        # Time that planning took is taken off the seconds for answers.
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
    return Loopy(damping=DAMPING, seconds=allowance.seconds).solution(network, allowance)
