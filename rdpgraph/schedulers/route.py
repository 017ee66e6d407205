"""Routes: ways to an answer, which bid for questions; and the table in which they are named."""

import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias, TypeVar

from rdpgraph._core import effort, tuning
from rdpgraph.engines.exact.buckets import Factors, small_factors
from rdpgraph.engines.solution import Question, Solution
from rdpgraph.errors import ModelError
from rdpgraph.interface.structure import REGISTRY, Match
from rdpgraph.model.graph import FactorGraph
from rdpgraph.model.potentials.potential import Potential
from rdpgraph.plan import clock
from rdpgraph.plan.bids import Bid, Exactness
from rdpgraph.plan.clock import Allowance, Counter
from rdpgraph.plan.plan import Budget, Plan
from rdpgraph.schedulers.scheduler import budget_of, reduced, sweep_seconds

if TYPE_CHECKING:
    from rdpgraph.engines.reduction.network import Network
    from rdpgraph.plan.planner import Optimize

Value = TypeVar("Value")

_OF_ANSWERS = ("budget", "counter", "reduced", "run_seconds", "allowance", "for messages")
"""Of what is kept of a task, what routes need when they run."""

Others: TypeAlias = Callable[[float], Solution]
"""Gives the solution of the routes that stand by, after so many seconds that another one took."""


EXACT = 8.0
"""Predicted seconds of exact inference, 3e8 operations each, that it may take without a limit."""


@dataclass(frozen=True)
class Shape:
    """What is known of a graph before its tables are read.

    Attributes:
        num_variables: observed ones included.
        num_factors: of any number of variables.
        num_states: of all variables together.
        arity: the number of variables of the largest factor.
        items: the number of batch items.
        is_observed: there is evidence.
        potentials: the names of the classes of its potentials, and of those that they extend, such
            as "Table" and "Potential".
    """

    num_variables: int
    num_factors: int
    num_states: int
    arity: int
    items: int
    is_observed: bool
    potentials: frozenset[str]

    @classmethod
    def of(cls, graph: FactorGraph) -> "Shape":
        """The shape of a graph."""
        return cls(
            graph.num_variables,
            graph.num_factors,
            graph.domain.total_states,
            max((block.arity for block in graph.blocks), default=0),
            prod(graph.batch_shape),
            graph.observed is not None,
            frozenset(
                base.__name__
                for block in graph.blocks
                for base in type(block.potential).__mro__
                if issubclass(base, Potential)
            ),
        )


@dataclass(frozen=True)
class Settings:
    """What `Auto` or `Contraction` was given.

    Attributes:
        memory: bytes, or None.
        seconds: for all answers, or None.
        progress: called with reports, or None.
        optimize: gives the order of contraction, or None.
    """

    memory: float | None = None
    seconds: float | None = None
    progress: Callable[[Any], None] | None = field(default=None, metadata={"elsewhere": None})
    optimize: "Optimize | None" = None


@dataclass(frozen=True, eq=False)
class Task:
    """A graph that routes bid for, the limits given, and what has been found out about both.

    What routes compute of the graph is kept here (`once`), so that it is computed once in a call.

    Attributes:
        graph: the model, evidence included.
        given: the attributes of the scheduler.
        routes: the names of those that are asked.
        stands_by: an exact bid was taken and did not keep its word, so that time has passed.
        lazily: answers begin at once and nobody has asked for the plan, so that a route may bid for
            what it will plan when an answer needs it.
        remedy: advice for better answers than approximate ones, of a refused exact bid.
    """

    graph: FactorGraph
    given: Settings
    routes: frozenset[str]
    stands_by: bool = False
    lazily: bool = False
    remedy: str = ""
    _kept: dict[str, Any] = field(default_factory=dict[str, Any], repr=False)
    _bids: list[dict[str, Bid]] = field(default_factory=list[dict[str, Bid]], repr=False)

    def once(self, key: str, compute: Callable[[], Value]) -> Value:
        """The value of a function, computed by the first who asks for this key."""
        if key not in self._kept:
            self._kept[key] = compute()
        return self._kept[key]

    def settled(self, remedy: str) -> "Task":
        """The task without what was only computed for bids, as answers keep it."""
        kept = {key: value for key, value in self._kept.items() if key in _OF_ANSWERS}
        return replace(self, remedy=remedy, _kept=kept, _bids=[])

    def after(self, spent: float) -> "Task":
        """The same task with its own allowance, of which so many seconds are spent."""
        own = replace(self.allowance, spent=self.allowance.spent + spent)
        return replace(self, _kept={**self._kept, "allowance": own})

    def standing_by(self) -> "Task":
        """The same task after an exact bid that did not keep its word."""
        return replace(self, stands_by=True, _bids=[])

    @property
    def is_exact(self) -> bool:
        """True if no approximate route is asked: what no exact one answers is refused."""
        return ROUTES.last not in self.routes

    @property
    def memory(self) -> float | None:
        """Bytes that were given, or None."""
        return self.given.memory

    @property
    def seconds(self) -> float | None:
        """Seconds that were given, or None."""
        return self.given.seconds

    @property
    def progress(self) -> Callable[[Any], None] | None:
        """Called with reports, or None."""
        return self.given.progress

    @property
    def exact_seconds(self) -> float:
        """Predicted seconds that exact inference may take."""
        return EXACT if self.seconds is None else self.seconds

    @property
    def budget(self) -> Budget:
        """The limits of exact inference: those given, or those of the machine."""
        return self.once("budget", lambda: budget_of(self.memory, self.exact_seconds))

    @property
    def memory_limit(self) -> float:
        """Bytes that routes keep to which do not predict their memory; a little is always taken."""
        return max(self.budget.memory_bytes, tuning.SMALL_BYTES)

    @property
    def counter(self) -> Counter | None:
        """Counts operations in place of time where no seconds were given."""
        return self.once("counter", lambda: Counter() if self.seconds is None else None)

    @property
    def network(self) -> "Network":
        """The graph without observed variables and impossible states, as tables."""
        return self._reduced[0]

    @property
    def begin(self) -> float:
        """When the network was begun, on `clock.now`: planning counts from there."""
        return self._reduced[1]

    @property
    def _reduced(self) -> "tuple[Network, float]":
        def compute() -> "tuple[Network, float]":
            begin = clock.now()
            return reduced(self.graph, self.exact_seconds), begin

        return self.once("reduced", compute)

    @property
    def match(self) -> Match | None:
        """The structure that the graph is, recognised once; None if it is none.

        Evidence is taken as factors of one variable. Only structures with a factor over all
        variables, and those of automata, are found with it: others are found in what it leaves.
        """

        def compute() -> Match | None:
            # A small graph is answered without these imports.
            import rdpgraph.structures  # noqa: F401  # pyright: ignore[reportUnusedImport]
            from rdpgraph.engines.recognised import graph_held

            graph, kinds = self.graph, {"StructurePotential", "Automaton"}
            if graph.observed is None or kinds & Shape.of(graph).potentials:
                return REGISTRY.recognise(graph_held(graph))
            return None

        return self.once("match", compute)

    @property
    def small(self) -> Factors | None:
        """The factors of a small graph, or None.

        It is answered whatever structure it is, as to recognise one takes longer; unless a user
        has registered a structure, and structures are asked.
        """
        return self.once("small", self._small)

    def _small(self) -> Factors | None:
        memory, graph = self.given.memory, self.graph
        # Budgets below what any small graph may take are meant.
        ample = (memory is None or memory >= tuning.SMALL_BYTES) and self.exact_seconds >= 1.0
        factors = small_factors(graph) if ample else None
        if factors is None or graph.observed is not None or not REGISTRY.has_own:
            return factors
        if "structure" not in self.routes:
            return factors
        # Among structures of several sizes much is empty.
        match = self.match
        return None if match is not None and bool((match.numbers >= 0).all()) else factors

    @property
    def joint(self) -> int:
        """The number of the network's factors of two and more variables."""
        groups = self.network.groups
        return sum(len(group.scopes) for group in groups if group.scopes.shape[1] > 1)

    @property
    def is_large(self) -> bool:
        """True if the network has cycles and so many factors that only messages are passed."""
        if self.is_exact or self.joint <= effort.MOST_PLANNED:
            return False
        # There are more links than a forest has room for.
        scopes = [group.scopes for group in self.network.groups]
        links = sum(len(scope) * (scope.shape[1] - 1) for scope in scopes)
        return links >= len(self.network.counts)

    @property
    def run_seconds(self) -> float:
        """Counted seconds of a few runs of plain messages."""

        def compute() -> float:
            sweep = sweep_seconds(self.network)
            return effort.APPROXIMATE_RUNS * effort.RUN_SWEEPS * sweep

        return self.once("run_seconds", compute)

    @property
    def allowance(self) -> Allowance:
        """Seconds for approximate answers, shared by all that give some."""

        def compute() -> Allowance:
            if self.seconds is not None:
                return Allowance(0.9 * self.seconds)
            seconds = max(effort.APPROXIMATE_SECONDS, self.run_seconds)
            return Allowance(seconds, 0.0, self.counter)

        return self.once("allowance", compute)

    def spend_planning(self) -> None:
        """Take the time since the network was begun from the seconds that were given."""
        if self.seconds is not None and "reduced" in self._kept:
            self.allowance.spent = min(clock.now() - self.begin, 0.8 * self.seconds)

    def note(self, bids: dict[str, Bid]) -> None:
        """Record the bids of a route, by question, for those that are asked after it."""
        self._bids.append(bids)

    def bids_for(self, question: str) -> list[Bid]:
        """The bids that routes asked before have made for a question, refused ones included."""
        return [bids[question] for bids in self._bids if question in bids]


class Route(ABC):
    """A way to answer questions about a graph.

    `Auto` makes an object of the class without arguments, asks it for bids, and runs it where a bid
    of it is the best. `bid` should cost little: what it computes for a bid, `run` finds in
    ``bid.work``.

    Attributes:
        decisive: a bid for marginals that is not refused ends the asking, because no later route of
            the table does the same for less. Routes of users are compared with all in any case.
        beforehand: `Auto` takes it before an auction, which is for the questions that it leaves.
    """

    decisive: ClassVar[bool] = False
    beforehand: ClassVar[bool] = False

    @abstractmethod
    def bid(self, task: Task, question: Question[Any], budget: Budget) -> Bid | None:
        """What this route offers for a question about ``task.graph``; None: nothing.

        Args:
            task: the graph, and ``task.network``, which is reduced when it is first read.
            question: ``question.name`` is one of "log_partition", "variable_marginals",
                "max_marginals", "mode", "marginal_mode" and "sample".
            budget: bytes and seconds of exact inference.
        """

    @abstractmethod
    def run(self, task: Task, bid: Bid) -> Solution:
        """The solution of the graph by this route, given its bid.

        A route that does not keep its word raises `BudgetError`, here or from the solution, or
        gives a status that has not converged: the next one answers then.
        """

    def run_with(self, task: Task, bid: Bid, others: Others | None) -> Solution:
        """The solution by this route, with others behind it; by default, by this route alone.

        Args:
            task: as for `run`.
            bid: the best bid of this route.
            others: gives the solution of the next routes; None: there are none.
        """
        del others
        return self.run(task, bid)

    def plan(self, task: Task, bid: Bid, why: str) -> Plan:
        """The plan of a graph that this route answers, for the reason given."""
        return Plan(
            route=type(self).__name__, why=why, seconds=bid.seconds, memory=task.memory,
            peak_bytes=bid.memory, stored_bytes=bid.memory, num_factors=task.graph.num_factors,
            num_variables=task.graph.num_variables,
        )  # fmt: skip


class PlannedRoute(Route):
    """A route whose bids carry the plan that they are made of, and the function that runs it."""

    decisive: ClassVar[bool] = True

    @staticmethod
    def exact_bid(planned: tuple[Plan, Any]) -> Bid:
        """An exact bid of what a plan predicts."""
        plan = planned[0]
        return Bid(Exactness.EXACT, plan.seconds, plan.stored_bytes, plan.why, work=planned)

    def run(self, task: Task, bid: Bid) -> Solution:
        return bid.work[1]()

    def plan(self, task: Task, bid: Bid, why: str) -> Plan:
        return bid.work[0]


def _always(_: Shape) -> bool:
    return True


@dataclass(frozen=True)
class Entry:
    """A route in the table: its name, its class or where that is, and when it is imported."""

    name: str
    target: str | type[Route]
    might_bid: Callable[[Shape], bool] = _always
    is_own: bool = False  # a user's

    def route(self) -> Route | None:
        """An object of the route's class, which is imported by now; None: its ring is not there.

        Raises:
            ModelError: a user's route cannot be imported, or is no class of routes.
        """
        kind: object = self.target
        if isinstance(self.target, str):
            module, _, name = self.target.partition(":")
            try:
                kind = getattr(importlib.import_module(module), name)
            except (ImportError, AttributeError) as error:
                if not self.is_own and isinstance(error, ModuleNotFoundError):
                    return None
                raise ModelError(
                    f"The route {self.name!r} is registered as {self.target!r}, which cannot be "
                    f"imported: {error}. Register it again under its right name."
                ) from error
        if not (isinstance(kind, type) and issubclass(kind, Route)):
            raise ModelError(
                f"The route {self.name!r} needs a subclass of rdpgraph.extend.Route; got "
                f"{kind!r:.80}."
            )
        return kind()


class RouteTable:
    """The routes that `Auto` asks, in this order: those of users first."""

    def __init__(self, built_in: Mapping[str, str | tuple[str, Callable[[Shape], bool]]]) -> None:
        given = {name: t if isinstance(t, tuple) else (t, _always) for name, t in built_in.items()}
        self._built_in = {name: Entry(name, *target) for name, target in given.items()}
        self._own = dict[str, Entry]()

    @property
    def entries(self) -> tuple[Entry, ...]:
        """All routes in the order in which they are asked."""
        return (*self._own.values(), *self._built_in.values())

    @property
    def own(self) -> tuple[Entry, ...]:
        """The routes of users, a part of the key under which plans are kept."""
        return tuple(self._own.values())

    @property
    def last(self) -> str:
        """The name of the last route, which always bids."""
        return next(reversed(self._built_in))

    @property
    def names(self) -> frozenset[str]:
        """The names of all routes."""
        return frozenset((*self._own, *self._built_in))

    def named(self, names: Collection[str]) -> tuple[Entry, ...]:
        """The routes of some names, in the order in which they are asked."""
        return tuple(entry for entry in self.entries if entry.name in names)

    def add(
        self,
        name: str,
        route: str | type[Route],
        *,
        might_bid: Callable[[Shape], bool] | None = None,
    ) -> None:
        """Register a route of one's own, which `Auto` asks from now on.

        Args:
            name: the name by which plans, bids and statuses call it.
            route: the class, or where it is, as "package.module:Class". That module is imported
                when a graph is solved for which the route might bid.
            might_bid: returns whether the route may bid for a graph of some `Shape`; None: always.

        Raises:
            ModelError: the name is taken, or the route is no class of routes and names none.
        """
        if not isinstance(name, str) or not name:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ModelError(f"register_route needs a name for the route; got {name!r:.80}.")
        if name in self.names:
            raise ModelError(
                f"A route named {name!r} is registered already; ROUTES.remove takes out your own."
            )
        named = isinstance(route, str) and ":" in route.strip(":")
        if not (named or (isinstance(route, type) and issubclass(route, Route))):
            raise ModelError(
                'register_route needs a subclass of Route, or its place as "package.module:Class"; '
                f"got {route!r:.80}."
            )
        self._own[name] = Entry(name, route, might_bid or _always, is_own=True)

    def remove(self, name: str) -> None:
        """Take out a route that a user registered.

        Raises:
            ModelError: there is none of this name.
        """
        if name not in self._own:
            raise ModelError(f"No route {name!r:.80} was registered by register_route.")
        del self._own[name]


def _has_evidence(shape: Shape) -> bool:
    return shape.is_observed


def _has_rows(shape: Shape) -> bool:
    return shape.is_observed and not shape.potentials - {"Table", "Stored", "Potential"}


def _has_low_rank(shape: Shape) -> bool:
    return "LowRank" in shape.potentials


def _is_small(shape: Shape) -> bool:
    return shape.num_states <= tuning.SMALL_CELLS and shape.num_factors <= tuning.SMALL_FACTORS


_PLACE = "rdpgraph.schedulers.routes"

ROUTES = RouteTable({
    "counting of projections": (
        f"{_PLACE}.counting:ProjectionRoute", lambda shape: "Projection" in shape.potentials,
    ),
    "buckets": (f"{_PLACE}.buckets:BucketsRoute", _is_small),
    "structure": f"{_PLACE}.structure:StructureRoute",
    "ranks": (f"{_PLACE}.ranks:RanksRoute", _has_low_rank),
    "rows": (f"{_PLACE}.rows:RowsRoute", _has_rows),
    "structure given evidence": (f"{_PLACE}.structure:RemainingStructureRoute", _has_evidence),
    "contraction": f"{_PLACE}.contraction:ContractionRoute",
    "counting": f"{_PLACE}.counting:CountingRoute",
    "join graph": f"{_PLACE}.join_graph:JoinGraphRoute",
    "mini-buckets": f"{_PLACE}.minibuckets:MiniBucketsRoute",
    "search": f"{_PLACE}.search:SearchRoute",
    "loopy": f"{_PLACE}.messages:MessagesRoute",
})  # fmt: skip
"""All routes. What is not asked is not imported."""


__all__ = ["ROUTES", "Bid", "Entry", "Exactness", "Others", "Route", "RouteTable", "Shape", "Task"]
