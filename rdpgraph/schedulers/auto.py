"""Default scheduler: exact inference where it fits, else the best approximation."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

import torch

import rdpgraph.structures  # noqa: F401  # pyright: ignore[reportUnusedImport]  # registers them
from rdpgraph._core import effort
from rdpgraph._core.arguments import require_fields
from rdpgraph._core.cache import cached_property
from rdpgraph._core.portable import tensors_in
from rdpgraph._core.progress import Progress
from rdpgraph.engines.counting.solution import CountedFirst
from rdpgraph.engines.exact.engine import ExactSolution
from rdpgraph.engines.log_partition import BestKnown
from rdpgraph.engines.loopy.high_order import is_logical
from rdpgraph.engines.loopy.network_equations import Bethe, CountingNumbers, Fractional
from rdpgraph.engines.loopy.propagation import Sweep
from rdpgraph.engines.loopy.schedules import Flooding, RandomSubsets
from rdpgraph.engines.minibuckets.estimate import Sampling
from rdpgraph.engines.minibuckets.solution import MiniBucketSolution
from rdpgraph.engines.portfolio import ExactFirst, FirstConverged
from rdpgraph.engines.recognised import RecognisedSolution, graph_held, plan_of, recognised_left
from rdpgraph.engines.reduction.network import Network
from rdpgraph.engines.search.neighbourhoods import Move
from rdpgraph.engines.search.solution import Seeker
from rdpgraph.engines.search.starts import Limits
from rdpgraph.engines.solution import Solution
from rdpgraph.engines.trws.bounding import Bounding
from rdpgraph.errors import BudgetError
from rdpgraph.interface.structure import REGISTRY
from rdpgraph.model.graph import FactorGraph
from rdpgraph.model.potentials.automaton import Automaton
from rdpgraph.plan import clock
from rdpgraph.plan.circuit import Circuit
from rdpgraph.plan.clock import Allowance, Counter, counted
from rdpgraph.plan.plan import PASSES, Budget, Plan, duration
from rdpgraph.plan.tree import ContractionTree
from rdpgraph.schedulers.contraction import plan_network, planned_by_ranks, solved
from rdpgraph.schedulers.counting import (
    Counting,
    CountOf,
    counting_of,
    has_both,
    has_projections,
    is_constraints_alone,
)
from rdpgraph.schedulers.loopy import ForMessages, JoinGraph, Loopy, sweep_seconds
from rdpgraph.schedulers.rows import planned_rows
from rdpgraph.schedulers.rows_apart import RowsApart
from rdpgraph.schedulers.scheduler import (
    Planned,
    Scheduler,
    bounding_of,
    budget_of,
    compiled_functions,
    reduced,
    reported,
    within,
)
from rdpgraph.structures.potential import StructurePotential

EXACT = 8.0
"""Predicted seconds of exact inference, 3e8 operations each, that it may take without a limit."""


@dataclass(frozen=True)
class Auto(Scheduler):
    """The default: a registered structure, else exact contraction, else approximate messages.

    Large `LowRank` factors are summed over their ranks, as by `LowRankFactors`. Where exact
    inference does not fit the budget, messages between clusters answer (`JoinGraph`), or messages
    between single factors (`Loopy`) if those do not converge; with hard zeros, the ones whose most
    probable states violate the fewest factors. Graphs with cycles and over 50,000 factors go to
    `Loopy` directly. Each kind of answer has a route of its own: where one does not fit, as a
    marginal mode whose order is wide, the others stay exact (`Posterior.status_of`).

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
    ones in about 2 s each, or in four times the time of loopy messages if that is longer. With hard
    zeros a mode is no worse than that of `Loopy()`, whose time is added; with logical factors it is
    sought from there. The plan and `status.remedy` say how many seconds would give better answers.

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
    progress: Callable[[Sweep | Move | Progress], None] | None = field(
        default=None, metadata={"elsewhere": None}
    )

    def __post_init__(self) -> None:
        require_fields(self, memory="(0, inf]", seconds="(0, inf]")

    @property
    def _exact_seconds(self) -> float:
        """Predicted seconds that exact inference may take."""
        return EXACT if self.seconds is None else self.seconds

    def plan(self, graph: FactorGraph) -> Planned:
        return reported(self._planned, graph, self.progress)

    def _planned(self, graph: FactorGraph) -> Planned:
        if has_projections(graph):
            return Counting(
                min(self.seconds or Counting.seconds, effort.LONGEST_ADVISED), self.memory
            ).plan(graph)
        kinds = StructurePotential, Automaton  # structures that are found with evidence
        held = graph.observed is None or any(isinstance(b.potential, kinds) for b in graph.blocks)
        match = REGISTRY.recognise(graph_held(graph)) if held else None
        if match is None:
            return planned_by_ranks(graph, self._without_structure)
        general = self._generally(graph)
        return plan_of(match.structure), partial(RecognisedSolution, graph, match, general)

    def _generally(self, graph: FactorGraph) -> Callable[[], Solution]:
        """Solver of a graph as no structure, for questions that a structure does not answer."""
        planned = partial(self._whole, structures=False)
        apart = graph.observed is not None and not any(b.batch_shape for b in graph.blocks)
        if graph.batch_shape and apart:
            memory = budget_of(self.memory, self._exact_seconds).memory_bytes
            return partial(RowsApart, graph, planned, memory)
        return partial(solved, planned, graph)

    def circuit(self, graph: FactorGraph) -> Circuit | None:
        """Circuit of a small graph which is no registered structure, or None."""
        circuit = within(self.memory, self._exact_seconds, graph)
        if circuit is None or graph.observed is not None:
            return circuit
        match = REGISTRY.recognise(graph)
        # Among structures of several sizes much is empty.
        return None if match is not None and bool((match.numbers >= 0).all()) else circuit

    def _without_structure(self, graph: FactorGraph) -> Planned:
        budget = budget_of(self.memory, self._exact_seconds)
        return planned_rows(graph, budget, self._whole, self._generally) or self._whole(graph)

    def _whole(self, graph: FactorGraph, *, structures: bool = True) -> Planned:
        """Plan of all rows of evidence at once; ``structures`` are looked for in what is left."""
        with counted(counter := Counter() if self.seconds is None else None):
            return self._general(graph, counter, structures=structures)

    def _general(self, graph: FactorGraph, counter: Counter | None, *, structures: bool) -> Planned:
        begin, seconds = clock.now(), self._exact_seconds
        network = reduced(graph, seconds)
        left = recognised_left(graph, network, self._generally) if structures else None
        if left is not None:
            return left
        budget = budget_of(self.memory, seconds)
        allowance = self._allowance(network, counter)
        route = _Approximate(network, self.memory, budget.memory_bytes, allowance, self.progress)
        joint = _joint(network)
        if joint > effort.MOST_PLANNED and _has_cycle(network):
            self._spend(allowance, begin)
            return route.planned(f"no exact order is sought for {joint:,} factors with cycles")
        # What reading the tables took is not missing where the search is quick.
        least = clock.now() + max(0.03 * seconds, effort.LEAST_PLANNING)
        deadline = max(begin + effort.SEARCHING * seconds, least)
        plan, run = plan_network(network, budget, deadline=deadline)
        if plan.fits:
            self._spend(allowance, begin)
            # Predictions fail where others use the machine, unless operations are counted.
            quick = plan.num_slices == 1 and plan.seconds < effort.SURE * seconds
            sure, taken = quick or counter is not None, Allowance(math.inf, 0.0, counter)
            return plan, lambda: ExactFirst(run(), route.solution, sure, taken, seconds)
        short = plan.remedy.split(";")[0] if counter is None else _advice(plan)
        why = f"exact inference {short}"
        route = replace(route, remedy="" if counter is None else why)
        deadline = max(begin + effort.PLANNING * allowance.seconds, least)
        if joint <= effort.MOST_JOINED:
            part = JoinGraph(
                self.memory,
                effort.JOINED * allowance.seconds,
                tolerance=1e-3,
                progress=self.progress,
            )
            clusters = part.plan_network(graph, network, why, deadline=deadline)
            route = replace(route, clusters=clusters)
        self._spend(allowance, begin)
        route = replace(route, forward=_forward(network, plan, budget, allowance))
        sure = route.forward and plan.seconds / PASSES <= effort.FORWARD_SURE * allowance.seconds
        if self.seconds is not None and not sure:
            route = replace(route, counting=counting_of(network, budget.memory_bytes))
        return route.planned(why)

    def _allowance(self, network: Network, counter: Counter | None) -> Allowance:
        """Seconds for approximate answers."""
        if self.seconds is not None:
            return Allowance(0.9 * self.seconds)
        return Allowance(max(effort.APPROXIMATE_SECONDS, _soon(network)), 0.0, counter)

    def _spend(self, allowance: Allowance, begin: float) -> None:
        """Subtract the time of planning from the given seconds."""
        if self.seconds is not None:
            allowance.spent = min(clock.now() - begin, 0.8 * self.seconds)


@dataclass(frozen=True, eq=False)
class _Approximate:
    """Messages, a search and estimates within the given seconds."""

    network: Network
    memory: float | None  # bytes as given
    memory_bytes: float  # bytes as given, or those of the machine
    allowance: Allowance
    progress: Callable[[Sweep | Move | Progress], None] | None = field(metadata={"elsewhere": None})
    remedy: str = ""  # advice that gives better answers
    clusters: Planned | None = None
    forward: Callable[[float], Solution] | None = None  # log Z alone, where that fits
    counting: tuple[str, CountOf | None] = ("", None)  # the reason why log Z is counted or not

    @cached_property
    def _for_messages(self) -> ForMessages:
        return ForMessages(self.network, self.memory)

    @cached_property
    def _bounding(self) -> Bounding:
        return bounding_of(self.network, self.memory_bytes)

    def planned(self, why: str) -> Planned:
        """Plan, and the function that carries it out.

        The route is that of the messages which are tried first; the reason says when others answer.
        """
        clusters, hard = self.clusters, self.network.possible is not None
        if clusters is not None and hard:
            why += (
                "; messages between factors are used instead if their likeliest states violate "
                "fewer factors than those of messages between clusters"
            )
        elif clusters is not None and self._plain_part(self.allowance):
            why += (
                "; messages between clusters are tried if those between factors do not converge "
                "soon"
            )
            clusters = None
        elif clusters is not None:
            why += "; messages between factors are used if those between clusters do not converge"
        if self.counting[0] or _is_estimated(self.network):
            exactly = "exact" if self.forward else "estimated by populations"
            why += f"; log Z alone is {self.counting[0] or exactly}"
        if clusters is not None:
            return replace(clusters[0], why=why), self.solution
        return self._for_messages.plan(why, self.allowance.seconds), self.solution

    def solution(self, spent: float = 0.0) -> Solution:
        """Solution, after so many seconds that others took."""
        if self.counting[1] is not None:
            left = self.allowance.left() - spent
            others = replace(self, counting=("", None)).solution
            kept = (1.0 - effort.COUNTED) * left - effort.MESSAGE_RUNS * _soon(self.network)
            kept = max(kept, 0.0) if has_both(self.network) else 0.0
            count = self.counting[1](effort.COUNTED * left)
            return CountedFirst(count, others, Allowance(left), kept)
        network, hard = self.network, self.network.possible is not None
        allowance = replace(self.allowance, spent=self.allowance.spent + spent)
        logical = hard and is_logical(network.graph)
        loopy = tuple(partial(self._attempt, each) for each in (_HARD if hard else _SOFT))
        joined = () if self.clusters is None else (self._clustered,)
        eliminating = _joint(network) <= max(
            effort.MOST_JOINED, effort.BOUNDED_PER_SECOND * allowance.seconds
        )
        limits = Limits(
            allowance.seconds, self.memory_bytes, effort.PATIENCE, compiled=compiled_functions,
            progress=self.progress,
        )  # fmt: skip
        seeker = Seeker(network, limits, self._bounding, eliminating)
        messages = FirstConverged(
            (*joined, *loopy), loopy[0], seeker, allowance, self._plainly,
            self._plain_part(allowance), self.remedy, logical,
        )  # fmt: skip
        known = BestKnown(messages, self._drawn, self.forward, allowance)
        return known if _is_estimated(network) else messages

    def _plain_part(self, allowance: Allowance) -> float:
        """Part of the time for plain messages before others; most end in less."""
        network, timed = self.network, allowance.counter is None
        if network.possible is None:
            return float(timed and allowance.left() < 2.0 * _soon(network))
        return 1.0 if timed and is_constraints_alone(network) else effort.PLAIN_WITH_ZEROS

    def _clustered(self, _: float) -> Solution:
        assert self.clusters is not None
        return self.clusters[1]()

    def _attempt(self, settings: "_Try", left: float) -> Solution:
        schedule, network = Flooding(), self._for_messages.network
        if settings.in_turn:  # each subset asks automata slot by slot
            share = 0.5 if network.high_order else 0.1
            schedule = RandomSubsets(share, torch.Generator().manual_seed(0))
        scheduler = Loopy(
            sweeps=100_000,
            damping=settings.damping,
            tolerance=settings.tolerance,
            schedule=schedule,
            counting=settings.counting,
            seconds=settings.part * max(left, 0.0),
            progress=self.progress,
        )
        return scheduler.solution(network)

    def _plainly(self, left: float | None) -> Solution:
        return Loopy(seconds=left, progress=self.progress).solution(self._for_messages.network)

    def _drawn(self, seconds: float) -> MiniBucketSolution:
        sampling = Sampling(
            seconds, self.memory_bytes, None, 0, sums_only=True, grace=0.0, progress=self.progress
        )
        return MiniBucketSolution(self.network, sampling, replace(self._bounding))


@dataclass(frozen=True)
class _Try:
    """Settings of a run of loopy propagation, and its part of the remaining time."""

    damping: float
    counting: CountingNumbers
    part: float
    tolerance: float = 1e-4
    in_turn: bool = False


_SOFT = (_Try(0.5, Bethe(), 0.4, tolerance=1e-5), _Try(0.8, Bethe(), 0.9, tolerance=1e-5))
"""Runs without hard zeros, with increasing damping."""

_HARD = (
    _Try(0.3, Bethe(), 0.3, in_turn=True),
    _Try(0.5, Fractional(0.7), 0.5, tolerance=5e-4),
    _Try(0.5, Fractional(0.5), 0.9, tolerance=5e-4),
)
"""Runs with hard zeros: messages updated all at once contradict each other forever, and some of
convex counting numbers converge as slowly as one over the number of sweeps."""


def _advice(plan: Plan) -> str:
    """Needs of exact inference, where no limit was given."""
    short = plan.remedy.split(";")[0]
    if not plan.seconds <= effort.LONGEST_ADVISED or "memory" in short:
        return short
    enough = 10 * math.ceil(effort.ADVISED * plan.seconds / 10)
    width = f"width {plan.width:.0f}"
    return f"would take about {duration(plan.seconds)} ({width}): Auto(seconds={enough})"


def _soon(network: Network) -> float:
    """Counted seconds of a few runs of plain messages."""
    return effort.APPROXIMATE_RUNS * effort.RUN_SWEEPS * sweep_seconds(network)


def _forward(
    network: Network, plan: Plan, budget: Budget, allowance: Allowance
) -> Callable[[float], Solution] | None:
    """Log Z alone, where that may fit though marginals do not."""
    if plan.tree is None or plan.peak_bytes > 0.5 * budget.memory_bytes:
        return None
    times = effort.FORWARD_TRIED if allowance.counter is None else effort.FORWARD_SURE
    if plan.seconds / PASSES > times * allowance.seconds:
        return None
    return partial(_upwards, network, plan.tree)


def _upwards(network: Network, tree: ContractionTree, seconds: float) -> ExactSolution:
    return ExactSolution(network, tree, False, _no_order, seconds / effort.UPWARDS)  # noqa: FBT003


def _no_order(last: frozenset[int]) -> ContractionTree:  # noqa: ARG001
    raise BudgetError("Only log Z is exact here.")


def _joint(network: Network) -> int:
    """Number of factors of two and more variables."""
    return sum(len(group.scopes) for group in network.groups if group.scopes.shape[1] > 1)


def _is_estimated(network: Network) -> bool:
    """Return whether log Z that is not exact is estimated, and not only by messages."""
    trained = any(part.requires_grad for part in tensors_in(network.graph.blocks))
    return (
        not trained
        and _joint(network) <= effort.MOST_JOINED
        and network.batch <= effort.ESTIMATED_ITEMS
    )


def _has_cycle(network: Network) -> bool:
    """Return whether there are more links than a forest has room for."""
    scopes = [group.scopes for group in network.groups]
    links = sum(len(scope) * (scope.shape[1] - 1) for scope in scopes)
    return links >= len(network.sizes)
