"""The default: exact where it fits, else the messages that come nearest."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias

import torch

import rdpgraph.structures  # noqa: F401  # pyright: ignore[reportUnusedImport]  # registers them
from rdpgraph._cache import cached_property, recording
from rdpgraph._portable import tensors_in
from rdpgraph.engines.best_known import BestKnown
from rdpgraph.engines.exact import UP, ExactSolution
from rdpgraph.engines.loopy.counting import Bethe, Counting, Fractional, TreeReweighted
from rdpgraph.engines.loopy.schedules import Flooding, RandomSubsets
from rdpgraph.engines.minibuckets.estimate import Sampling
from rdpgraph.engines.minibuckets.solution import MiniBucketSolution
from rdpgraph.engines.network import Network, reduce_graph
from rdpgraph.engines.portfolio import ExactFirst, FirstConverged
from rdpgraph.engines.recognised import RecognisedSolution, plan_of
from rdpgraph.engines.recognised_left import LeftSolution, graph_left
from rdpgraph.engines.search.solution import Seeker
from rdpgraph.engines.solution import Solution
from rdpgraph.errors import BudgetError
from rdpgraph.model.graph import FactorGraph
from rdpgraph.model.structure import REGISTRY
from rdpgraph.plan import clock
from rdpgraph.plan.budget import Budget
from rdpgraph.plan.circuit import Circuit
from rdpgraph.plan.clock import Allowance
from rdpgraph.plan.plan import Plan
from rdpgraph.plan.scheduler import PASSES, SEARCHING
from rdpgraph.plan.tree import ContractionTree
from rdpgraph.schedulers.contraction import Contraction, plan_network, solved
from rdpgraph.schedulers.join import JoinGraph
from rdpgraph.schedulers.loopy import Loopy, loopy_plan
from rdpgraph.schedulers.scheduler import Scheduler, budget_of, reduced, require_budget, within

MOST_PLANNED = 50_000
"""Factors of two and more variables, with cycles, for which an exact order is sought."""

MOST_JOINED = 8_000
"""The same for clusters."""

_SURE = 0.1
"""Exact inference that is predicted to take less than this part of the time is relied on."""

_INVERSE, _DRAWN = 4e-9, 200

_PATIENCE = 0.5
"""The part of the time after which a search for modes that finds nothing better ends."""

_BOUNDED = 400
"""Factors for each second of the budget, of which modes are bounded in any case."""

_FORWARD = 0.25
"""The part of the time in which log Z alone is exact, as predicted."""

_JOINED = 0.24
"""The part of the time that messages between clusters take."""

_ITEMS = 8
"""Batch items at most whose log Z is estimated one after the other."""

_Attempts: TypeAlias = tuple[Callable[[float], Solution], ...]


@dataclass(frozen=True)
class Auto(Scheduler):
    """The default: a registered structure, else exact contraction, else approximate messages.

    Where exact inference does not fit the budget: messages between clusters (`JoinGraph`), and if
    those do not converge between single factors (`Loopy`). Models of more than 50,000 factors
    with cycles go straight to `Loopy`. `status` says what the answer is worth.

    Log Z is exact where that alone fits. Else it is the estimate of `MiniBuckets`, unless its error
    is above half a nat and messages say what contradicts neither bounds nor estimate; it has no
    gradients then. Marginals are those of messages, and of `MiniBuckets` where its estimates are
    precise and contradict messages by three standard errors: this takes the seconds that are left,
    unless a tenth of them shows that estimates will not be precise. Messages answer for models with
    tables that are trained, of more than 8,000 factors, and of more than eight batch items.

    Args:
        memory: bytes for the tables of one run; None: 60% of what the machine has available.
        seconds: for all answers; predicted, for exact inference. Planning takes a fifth of it at
            most.

    Raises:
        ModelError: a limit that is no number above zero.
    """

    memory: float | None = None
    seconds: float = 60.0

    def __post_init__(self) -> None:
        require_budget("Auto", self.memory, self.seconds)

    def plan(self, graph: FactorGraph) -> tuple[Plan, Callable[[], Solution]]:
        """The registry first, then contraction if it fits the budget, then `Loopy`."""
        match = REGISTRY.recognise(graph) if graph.observed is None else None
        if match is None:
            return self._general(graph)
        general = self._exactly(graph)
        return plan_of(match.structure), partial(RecognisedSolution, graph, match, general)

    def _exactly(self, graph: FactorGraph) -> Callable[[], Solution]:
        """What a structure lacks: its own answers are exact, so that these must be too."""
        return partial(solved, Contraction(self.memory, self.seconds), graph)

    def circuit(self, graph: FactorGraph) -> Circuit | None:
        """The circuit of a small graph which is no registered structure, or None."""
        circuit = within(self.memory, self.seconds, graph)
        if circuit is None or graph.observed is not None:
            return circuit
        match = REGISTRY.recognise(graph)
        # Among structures of several sizes much is empty.
        return None if match is not None and bool((match.numbers >= 0).all()) else circuit

    def _general(self, graph: FactorGraph) -> tuple[Plan, Callable[[], Solution]]:
        begin = clock.now()
        network = reduced(graph, self.seconds)
        left = None if graph.observed is None else graph_left(network)
        match = None if left is None else REGISTRY.recognise(left)
        if left is not None and match is not None:
            general = self._exactly(graph)
            inner = RecognisedSolution(left, match, self._exactly(left))
            return plan_of(match.structure), partial(LeftSolution, network, inner, general)
        for_messages = _ForMessages(network, self.memory)
        joint = _joint(network)
        if joint > MOST_PLANNED and _has_cycle(network):
            why = f"no exact order is sought for {joint:,} factors with cycles"
            return for_messages.plan(why), self._fallback(for_messages, begin)
        budget = budget_of(self.memory, self.seconds)
        # What reading the tables took is not missing where the search is quick.
        least = clock.now() + max(0.03 * self.seconds, clock.LEAST_PLANNING)
        deadline = max(begin + SEARCHING * self.seconds, least)
        plan, run = plan_network(network, budget, deadline=deadline)
        if plan.fits:
            loopy = self._fallback(for_messages, begin)
            # Predictions fail where others use the machine.
            sure = plan.num_slices == 1 and plan.seconds < _SURE * self.seconds
            return plan, partial(_exact_first, run, loopy, sure)
        why = f"exact inference {plan.remedy.split(';')[0]}"
        planned = None
        if joint <= MOST_JOINED:
            deadline = max(begin + clock.PLANNING * self.seconds, least)
            part = JoinGraph(self.memory, _JOINED * self.seconds)
            planned = part.plan_network(graph, network, why, deadline=deadline)
        forward = _forward(network, plan, budget)
        if _is_estimated(network):
            why += "; log Z alone is " + ("exact" if forward else "estimated by populations")
        if planned is None:
            return for_messages.plan(why), self._fallback(for_messages, begin, forward=forward)
        joined = partial(_at_once, planned[1])
        run = self._fallback(for_messages, begin, joined, forward=forward)
        return replace(planned[0], why=why), run

    def _fallback(
        self,
        for_messages: "_ForMessages",
        begin: float,
        *before: Callable[[float], Solution],
        forward: "_Forward | None" = None,
    ) -> Callable[..., Solution]:
        """Loopy propagation in several tries, after others, in the seconds that are left.

        What it gives may be called with seconds that were spent since.
        """
        network = for_messages.reduced
        tries = _SOFT if network.possible is None else _HARD
        tries = tries if _has_time_for_trees(network, self.seconds) else tries[:-1]
        loopy = tuple(partial(_attempt, for_messages, settings) for settings in tries)
        seconds = 0.9 * max(self.seconds - (clock.now() - begin), 0.2 * self.seconds)
        memory = budget_of(self.memory, self.seconds).memory_bytes
        joint = _joint(network)
        bounding = joint <= max(MOST_JOINED, _BOUNDED * self.seconds)
        seeker = Seeker(network, memory, _PATIENCE, bounding)
        messages = partial(_first_converged, (*before, *loopy), loopy[0], seeker, seconds)
        if not _is_estimated(network):
            return messages
        return partial(_best_known, network, memory, messages, forward)


@dataclass(frozen=True, eq=False)
class _ForMessages:
    """A network made when it is needed, whose potentials answer messages themselves."""

    reduced: Network
    memory: float | None

    @cached_property
    def network(self) -> Network:
        graph, possible = self.reduced.graph, self.reduced.possible
        if possible is not None and len(possible.starts) != graph.num_variables + 1:
            possible = None  # it includes auxiliary variables, which are not made for messages
        with recording(lambda: tensors_in(graph.blocks)):
            return reduce_graph(graph, possible=possible, high_order=True)

    def plan(self, why: str) -> Plan:
        """The plan of loopy belief propagation."""
        return loopy_plan(self.network, Loopy().sweeps, why, memory=self.memory)


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
"""With hard zeros, messages that do not take turns contradict each other forever, and some of
convex counting numbers converge as slowly as one over the number of sweeps."""


def _first_converged(
    attempts: _Attempts,
    modal: Callable[[float], Solution],
    seeker: Seeker,
    seconds: float,
    spent: float = 0.0,
) -> FirstConverged:
    return FirstConverged(attempts, modal, seeker, Allowance(seconds, spent))


def _best_known(
    network: Network,
    memory: float,
    messages: Callable[[float], FirstConverged],
    forward: "_Forward | None",
    spent: float = 0.0,
) -> BestKnown:
    made = messages(spent)
    drawn = partial(_drawn, network, memory)
    return BestKnown(made, drawn, forward, made.allowance)


def _drawn(network: Network, memory: float, seconds: float) -> MiniBucketSolution:
    sampling = Sampling(seconds, memory, None, 0, sums_only=True, grace=0.0)
    return MiniBucketSolution(network, sampling)


_Forward: TypeAlias = Callable[[float], Solution]


def _forward(network: Network, plan: Plan, budget: Budget) -> _Forward | None:
    """Log Z alone, where that fits though marginals do not."""
    if plan.tree is None or plan.peak_bytes > 0.5 * budget.memory_bytes:
        return None
    if plan.seconds / PASSES > _FORWARD * budget.seconds:
        return None
    return partial(_upwards, network, plan.tree)


def _upwards(network: Network, tree: ContractionTree, seconds: float) -> ExactSolution:
    return ExactSolution(network, tree, False, _no_order, seconds / UP)  # noqa: FBT003


def _no_order(last: frozenset[int]) -> ContractionTree:  # noqa: ARG001
    raise BudgetError("Only log Z is exact here.")


def _exact_first(
    run: Callable[[], Solution],
    loopy: Callable[[float], Solution],
    sure: bool,  # noqa: FBT001
) -> ExactFirst:
    return ExactFirst(run(), loopy, sure)


def _at_once(run: Callable[[], Solution], left: float) -> Solution:  # noqa: ARG001
    return run()


def _attempt(for_messages: _ForMessages, settings: _Try, left: float) -> Solution:
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
    return scheduler.solution(for_messages.network)


def _joint(network: Network) -> int:
    """Factors of two and more variables."""
    return sum(len(group.scopes) for group in network.groups if group.scopes.shape[1] > 1)


def _is_estimated(network: Network) -> bool:
    """Whether log Z that is not exact is estimated, and not only by messages."""
    trained = any(part.requires_grad for part in tensors_in(network.graph.blocks))
    return not trained and _joint(network) <= MOST_JOINED and network.batch <= _ITEMS


def _has_time_for_trees(network: Network, seconds: float) -> bool:
    """Whether the counting numbers of `TreeReweighted` are found in a tenth of the time or so."""
    scopes = [group.scopes for group in network.groups if group.scopes.shape[1] > 1]
    count = len(network.sizes)
    if all(scope.shape[1] == 2 for scope in scopes) and count <= 2000:
        return _INVERSE * count**3 <= seconds  # by the matrix-tree theorem
    return sum(map(len, scopes)) <= _DRAWN * seconds


def _has_cycle(network: Network) -> bool:
    """Whether counting shows a cycle: more links than a forest has room for."""
    scopes = [group.scopes for group in network.groups]
    links = sum(len(scope) * (scope.shape[1] - 1) for scope in scopes)
    return links >= len(network.sizes)
