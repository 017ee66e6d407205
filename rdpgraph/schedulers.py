"""Schedulers: how a factor graph is solved."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from time import perf_counter

import torch

from rdpgraph.engines.exact import ExactSolution
from rdpgraph.engines.joined import JoinedSolution
from rdpgraph.engines.loopy.counting import Bethe, Counting, Fractional, TreeReweighted
from rdpgraph.engines.loopy.damping import Damping, LogDamping
from rdpgraph.engines.loopy.gradients import Gradient, Implicit
from rdpgraph.engines.loopy.propagation import Limits, Sweep
from rdpgraph.engines.loopy.schedules import Flooding, RandomSubsets, Schedule
from rdpgraph.engines.loopy.solution import LoopySolution
from rdpgraph.engines.matched import MatchedSolution, plan_of
from rdpgraph.engines.network import Network, reduce_graph
from rdpgraph.engines.portfolio import FirstConverged
from rdpgraph.engines.probing import refuted_states
from rdpgraph.engines.sliced import SlicedSolution
from rdpgraph.engines.solution import Solution
from rdpgraph.errors import BudgetError, ModelError
from rdpgraph.estimate.redrawn import Redrawn
from rdpgraph.model.evidence import MISSING
from rdpgraph.model.graph import FactorGraph
from rdpgraph.model.structure import REGISTRY
from rdpgraph.plan.budget import Budget
from rdpgraph.plan.joingraph import choose_join_graph
from rdpgraph.plan.plan import Plan
from rdpgraph.plan.scheduler import is_easy, make_plan
from rdpgraph.plan.topology import Topology
from rdpgraph.plan.tree import ContractionTree
from rdpgraph.query.posterior import Posterior
from rdpgraph.query.redrawn import redrawn_solution

MOST_PLANNED = 50_000
"""Factors of two and more variables, with cycles, for which an exact order is sought."""

MOST_JOINED = 8_000
"""The same for clusters."""


class Scheduler(ABC):
    """Chooses how a factor graph is solved."""

    @abstractmethod
    def plan(self, graph: FactorGraph) -> tuple[Plan, Callable[[], Solution]]:
        """The plan, and what carries it out."""


@dataclass(frozen=True)
class Contraction(Scheduler):
    """Exact contraction, never a registered structure.

    Args:
        memory: bytes for the tables of one run; None: 60% of what the machine has available.
        seconds: the predicted time that a run may take, planning (at most a quarter of it) not
            counted.
    """

    memory: float | None = None
    seconds: float = 60.0

    def plan(self, graph: FactorGraph) -> tuple[Plan, Callable[[], Solution]]:
        """Evidence, hard zeros, then the cheapest order found."""
        return self.plan_network(_reduced(graph))

    def plan_network(self, network: Network) -> tuple[Plan, Callable[[], Solution]]:
        """The same for a reduced network."""
        budget = _budget(self.memory, self.seconds)
        plan = _planned(network, budget)
        return plan, lambda: _solved(network, plan, budget)


@dataclass(frozen=True, eq=False)
class Loopy(Scheduler):
    """Loopy belief propagation: approximate, exact where the factor graph has no cycle.

    Time and memory of a sweep are those of reading the tables. All batch items are solved
    together; one that has converged changes no more.

    Args:
        sweeps: at most.
        damping: the share of the old message that an update keeps; a number is `LogDamping`.
        tolerance: on the largest change of a log-message, relative beyond one nat.
        schedule: which messages are updated when.
        counting: `Bethe()` is plain belief propagation, `TreeReweighted()` bounds log Z above.
        temperature: 1 is sum-product, 0 max-product; t gives the posterior of p(x) to the power
            1 / t, and t times its log Z.
        gradient: how gradients reach the potentials through the messages.
        start: a posterior of this scheduler, of the same model or one that shares factors with
            it, whose messages to begin with.
        seconds: at most, or None; looked at after every sweep.
        progress: called with a `Sweep` after every sweep.
        supports: which few states of each variable the messages are over, and when these are
            drawn anew; None: all states.

    Raises:
        ModelError: a number out of range.
    """

    sweeps: int = 1000
    damping: float | Damping = 0.0
    tolerance: float = 1e-5
    schedule: Schedule = field(default_factory=Flooding)
    counting: Counting = field(default_factory=Bethe)
    temperature: float = 1.0
    gradient: Gradient = field(default_factory=Implicit)
    start: Posterior | None = None
    seconds: float | None = None
    progress: Callable[[Sweep], None] | None = None
    supports: Redrawn | None = None

    def __post_init__(self) -> None:
        if self.sweeps < 1 or not self.tolerance >= 0 or not self.temperature >= 0:
            raise ModelError(
                "Loopy needs sweeps >= 1, tolerance >= 0 and temperature >= 0; got "
                f"{self.sweeps}, {self.tolerance} and {self.temperature}."
            )
        self._limits()
        plain = isinstance(self.counting, Bethe) and self.temperature == 1 and self.start is None
        if self.supports is not None and not plain:
            raise ModelError(
                "Loopy(supports=...) is plain belief propagation: leave out counting, temperature "
                "and start."
            )
        if self.start is not None and not isinstance(self.start.solution, LoopySolution):
            raise ModelError(
                f"Loopy(start=...) needs a posterior that Loopy gave; this one is by "
                f"{self.start.plan.route}."
            )

    def _limits(self) -> Limits:
        damping = self.damping
        if not isinstance(damping, Damping):
            damping = LogDamping(damping)
        return Limits(
            self.schedule, damping, self.sweeps, self.tolerance, self.seconds, self.progress
        )

    def plan(self, graph: FactorGraph) -> tuple[Plan, Callable[[], Solution]]:
        """Evidence, hard zeros, then messages."""
        return self.plan_because(graph, "approximate, as asked for")

    def plan_because(self, graph: FactorGraph, why: str) -> tuple[Plan, Callable[[], Solution]]:
        """The same with a reason."""
        if self.supports is not None:
            return _redrawn_plan(graph, self.supports, why), self._on_supports(graph, self.supports)
        network = reduce_graph(graph, whole=True)
        start = None if self.start is None else self.start.solution
        assert start is None or isinstance(start, LoopySolution)

        def run() -> LoopySolution:
            solution = self.solution(network)
            return solution if start is None else solution.started_from(start)

        return _loopy_plan(network, self.sweeps, why), run

    def _on_supports(self, graph: FactorGraph, supports: Redrawn) -> Callable[[], Solution]:
        def solve(other: FactorGraph, sweeps: int) -> LoopySolution:
            part = replace(self, supports=None, sweeps=sweeps)
            return part.solution(reduce_graph(other, whole=True))

        return lambda: redrawn_solution(graph, supports, self.sweeps, solve)

    def solution(self, network: Network) -> LoopySolution:
        """Messages in a network reduced with ``whole=True``; a start is left out."""
        return LoopySolution(
            network, self.counting, self.temperature, self._limits(), self.gradient
        )


@dataclass(frozen=True)
class Auto(Scheduler):
    """The default: a registered structure, else exact contraction, else approximate messages.

    Where exact inference does not fit the budget: messages between clusters (`JoinGraph`), and if
    those do not converge between single factors (`Loopy`). Models of more than 50,000 factors
    with cycles go straight to `Loopy`. `status` says what the answer is worth.

    Args:
        memory: bytes for the tables of one run; None: 60% of what the machine has available.
        seconds: the time that a run may take: predicted, for exact inference.
    """

    memory: float | None = None
    seconds: float = 60.0

    def plan(self, graph: FactorGraph) -> tuple[Plan, Callable[[], Solution]]:
        """The registry first, then contraction if it fits the budget, then `Loopy`."""
        match = REGISTRY.recognise(graph) if graph.observed is None else None
        if match is None:
            return self._general(graph)
        found = match

        def general() -> Solution:
            # The structure's answers are exact, so that those which it lacks must be too.
            plan, run = Contraction(self.memory, self.seconds).plan(graph)
            require_fit(plan)
            return run()

        return plan_of(match.structure), lambda: MatchedSolution(graph, found, general)

    def _general(self, graph: FactorGraph) -> tuple[Plan, Callable[[], Solution]]:
        begin = perf_counter()
        exact = Contraction(self.memory, self.seconds)
        network = _reduced(graph)
        joint = sum(len(g.scopes) for g in network.groups if g.scopes.shape[1] > 1)
        if joint > MOST_PLANNED and _has_cycle(network):
            why = f"no exact order is sought for {joint:,} factors with cycles"
            return Loopy().plan_because(graph, why)[0], self._fallback(network, begin)
        plan, run = exact.plan_network(network)
        if plan.fits:
            return plan, run
        why = f"exact inference {plan.remedy.split(';')[0]}"
        if joint > MOST_JOINED:
            return Loopy().plan_because(graph, why)[0], self._fallback(network, begin)
        left = max(self.seconds - (perf_counter() - begin), 0.2 * self.seconds)
        plan, clusters = JoinGraph(self.memory, 0.3 * left).plan_network(graph, network, why)
        return plan, self._fallback(network, begin, lambda _: clusters())

    def _fallback(
        self, reduced: Network, begin: float, *before: Callable[[float], Solution]
    ) -> Callable[[], Solution]:
        """Loopy propagation in several tries, after others, in the seconds that are left."""
        graph, possible = reduced.graph, reduced.possible
        if possible is not None and len(possible.starts) != graph.num_variables + 1:
            possible = None  # it speaks of auxiliary variables, which are not made for messages
        network = reduce_graph(graph, possible=possible, whole=True)
        tries = _SOFT if network.possible is None else _HARD
        attempts = (*before, *(partial(_attempt, network, settings) for settings in tries))
        seconds = 0.9 * max(self.seconds - (perf_counter() - begin), 0.2 * self.seconds)
        return lambda: FirstConverged(attempts, seconds)


@dataclass(frozen=True)
class _Try:
    """One try of loopy propagation, and its part of the time that is left."""

    damping: float
    counting: Counting
    part: float
    tolerance: float = 1e-4
    in_turn: bool = False


_SOFT = (
    _Try(0.5, Bethe(), 0.35),
    _Try(0.8, Bethe(), 0.4),
    _Try(0.5, Fractional(0.5), 0.5),
    _Try(0.5, TreeReweighted(), 0.9),
)
"""Damped more and more, and at last with convex counting numbers."""

_HARD = (
    _Try(0.3, Bethe(), 0.3, in_turn=True),
    _Try(0.5, Fractional(0.7), 0.5, tolerance=5e-4),
    _Try(0.5, Fractional(0.5), 0.6, tolerance=5e-4),
    _Try(0.5, TreeReweighted(), 0.9, tolerance=5e-4),
)
"""With hard zeros, messages that do not take turns contradict each other for ever, and some of
convex counting numbers come to rest as slowly as one over the number of sweeps."""


def _attempt(network: Network, settings: _Try, left: float) -> Solution:
    schedule = Flooding()
    if settings.in_turn:
        schedule = RandomSubsets(0.1, torch.Generator().manual_seed(0))
    scheduler = Loopy(
        sweeps=100_000,
        damping=settings.damping,
        tolerance=settings.tolerance,
        schedule=schedule,
        counting=settings.counting,
        seconds=settings.part * max(left, 0.0),
    )
    return scheduler.solution(network)


@dataclass(frozen=True)
class JoinGraph(Scheduler):
    """Messages between clusters of factors: better than `Loopy`, and dearer, up to exact.

    The clusters are as large as memory and time allow. Runs in float64. Modes come from loopy
    max-product.

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
        budget = _budget(self.memory, self.seconds)
        topology = _topology(network)
        # Half of the memory: a cluster's belief stands beside its table.
        clusters = choose_join_graph(
            topology,
            elements=budget.memory_bytes / 16 / network.batch,
            seconds=self.seconds,
            batch=network.batch,
        )
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


def _reduced(graph: FactorGraph) -> Network:
    """The network to contract; where that is not cheap, with the states probed one by one."""
    network = reduce_graph(graph)
    if network.possible is None or network.impossible or is_easy(_topology(network)):
        return network
    found = refuted_states(network)
    if not found:
        return network
    for number, states in found:
        network.possible.allow_only(number, torch.tensor(states, dtype=torch.long))
    return reduce_graph(graph, possible=network.possible)


def _has_cycle(network: Network) -> bool:
    """Whether counting shows a cycle: more links than a forest has room for."""
    scopes = [group.scopes for group in network.groups]
    links = sum(len(scope) * (scope.shape[1] - 1) for scope in scopes)
    return links >= len(network.sizes)


def _budget(memory: float | None, seconds: float) -> Budget:
    return Budget.of_machine(seconds) if memory is None else Budget(memory, seconds)


def _loopy_plan(network: Network, sweeps: int, why: str) -> Plan:
    tables = [group.log_tables for group in network.groups]
    factors = [len(group.scopes) for group in network.groups]
    cells = [math.prod(table.shape[2:]) for table in tables]
    element = torch.finfo(network.graph.dtype).bits // 8
    messages = sum(
        count * sum(table.shape[2:]) for table, count in zip(tables, factors, strict=True)
    )
    flops = 2.0 * network.batch * sum(c * n for c, n in zip(cells, factors, strict=True))
    stored = sum(table.numel() for table in tables) + 8.0 * messages * network.batch
    return Plan(
        route="loopy",
        why=why,
        num_variables=len(network.sizes),
        num_factors=sum(factors),
        dropped_states=network.dropped,
        width=max((math.log2(cell) for cell in cells), default=0.0),
        flops=flops,
        peak_bytes=stored * element,
        stored_bytes=stored * element,
        seconds=sweeps * (flops / 1e9 + 1e-4 * len(tables)),
    )


def _redrawn_plan(graph: FactorGraph, supports: Redrawn, why: str) -> Plan:
    joint = sum(block.count for block in graph.blocks if block.arity > 1)
    times = len(supports.at) + 1
    return Plan(
        route="loopy",
        why=f"{why}; on a few states of each variable, drawn {times} times",
        num_variables=graph.num_variables,
        num_factors=joint,
    )


def require_fit(plan: Plan) -> None:
    """Refuse a plan that does not keep to its budget."""
    if not plan.fits:
        raise BudgetError(f"Exact inference does not fit: it {plan.remedy}.")


def _topology(network: Network) -> Topology:
    scopes = (tuple(scope) for group in network.groups for scope in group.scopes.tolist())
    return Topology(tuple(scopes), network.sizes)


def _planned(network: Network, budget: Budget, last: frozenset[int] = frozenset()) -> Plan:
    return make_plan(
        _topology(network),
        budget=budget,
        element_bytes=torch.finfo(network.graph.dtype).bits // 8,
        batch=network.batch,
        last=last,
        dropped_states=network.dropped,
        sliceable=len(network.numbers),
    )


def _solved(network: Network, plan: Plan, budget: Budget) -> Solution:
    if plan.num_slices > 1:
        return _sliced(network, plan, budget)
    return _exact(network, plan, budget)


def _exact(network: Network, plan: Plan, budget: Budget) -> ExactSolution:
    def constrained(last: frozenset[int]) -> ContractionTree:
        narrow = _planned(network, budget, last)
        require_fit(narrow)
        assert narrow.tree is not None
        return narrow.tree

    assert plan.tree is not None
    return ExactSolution(network, plan.tree, keep=True, constrained=constrained)


def _sliced(network: Network, plan: Plan, budget: Budget) -> SlicedSolution:
    """One exact solution per configuration of the cutset, made by conditioning."""
    graph = network.graph
    numbers = network.numbers[torch.tensor(plan.slices)]
    pairs = zip(numbers, plan.slices, strict=True)
    kept = [network.states_left(n.reshape(1), network.sizes[a])[0] for n, a in pairs]
    grid = torch.cartesian_prod(*kept).reshape(-1, len(kept))
    observed = graph.observed
    if observed is None:
        observed = torch.full((graph.num_variables,), MISSING)

    def solve(number: int) -> ExactSolution:
        states = observed.clone()
        states[..., numbers] = grid[number]
        part = FactorGraph.from_blocks(graph.domain, graph.blocks, states)
        slice_network = reduce_graph(part, possible=network.possible)
        slice_plan = _planned(slice_network, replace(budget, seconds=budget.seconds * 1e6))
        return _exact(slice_network, slice_plan, budget)

    return SlicedSolution(tuple(numbers.tolist()), len(grid), solve)
