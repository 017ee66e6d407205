"""The default: exact where it fits, else the messages that come nearest."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from time import perf_counter

import torch

from rdpgraph.engines.loopy.counting import Bethe, Counting, Fractional, TreeReweighted
from rdpgraph.engines.loopy.schedules import Flooding, RandomSubsets
from rdpgraph.engines.matched import MatchedSolution, plan_of
from rdpgraph.engines.network import Network, reduce_graph
from rdpgraph.engines.portfolio import FirstConverged
from rdpgraph.engines.solution import Solution
from rdpgraph.model.graph import FactorGraph
from rdpgraph.model.structure import REGISTRY
from rdpgraph.plan.plan import Plan
from rdpgraph.schedulers.contraction import Contraction, require_fit
from rdpgraph.schedulers.join import JoinGraph
from rdpgraph.schedulers.loopy import Loopy
from rdpgraph.schedulers.scheduler import Scheduler, reduced

MOST_PLANNED = 50_000
"""Factors of two and more variables, with cycles, for which an exact order is sought."""

MOST_JOINED = 8_000
"""The same for clusters."""


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
        network = reduced(graph)
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
        self, whole: Network, begin: float, *before: Callable[[float], Solution]
    ) -> Callable[[], Solution]:
        """Loopy propagation in several tries, after others, in the seconds that are left."""
        graph, possible = whole.graph, whole.possible
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


def _has_cycle(network: Network) -> bool:
    """Whether counting shows a cycle: more links than a forest has room for."""
    scopes = [group.scopes for group in network.groups]
    links = sum(len(scope) * (scope.shape[1] - 1) for scope in scopes)
    return links >= len(network.sizes)
