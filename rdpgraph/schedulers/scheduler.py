"""Interface of schedulers, and checks and plans that they share."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import torch

from rdpgraph._core import effort, tuning
from rdpgraph._core.progress import reporting
from rdpgraph.engines.exact.buckets import Factors
from rdpgraph.engines.solution import Solution
from rdpgraph.errors import BudgetError, ModelError
from rdpgraph.model.evidence import MISSING
from rdpgraph.model.graph import FactorGraph
from rdpgraph.plan import clock
from rdpgraph.plan.plan import Budget, Plan, require_room

if TYPE_CHECKING:
    from rdpgraph.engines.reduction.network import Network

Planned: TypeAlias = tuple[Plan, Callable[[], Solution]]
"""A plan, and the function that carries it out."""


def reported(
    plan: Callable[[FactorGraph], Planned], graph: FactorGraph,
    progress: Callable[[Any], object] | None,
) -> Planned:  # fmt: skip
    """The plan of a graph, and its solution, which report their work where they have no steps."""
    if progress is None:
        return plan(graph)
    from rdpgraph.engines.reported import Reported

    with reporting(progress, "planning"):
        planned, run = plan(graph)
    return planned, lambda: Reported(run(), progress)


class Scheduler(ABC):
    """A way to solve a factor graph. A subclass implements `plan`.

    Attributes:
        takes_no_items: whether it gives empty answers for a batch without items, a batch dim of 0.
            If not, such a batch is refused.
    """

    takes_no_items: ClassVar[bool] = False

    @abstractmethod
    def plan(self, graph: FactorGraph) -> Planned:
        """Plan a graph's solution; return the plan, and a function that carries it out."""

    def begin(self, graph: FactorGraph) -> tuple[Plan | None, Callable[[], Solution]]:
        """The same for answers that begin at once; None for a plan that is made when asked for."""
        return plan_by(self, graph)

    def small(self, graph: FactorGraph) -> Factors | None:
        """Return the factors of a graph so small that it is planned only when asked, or None."""
        return None


def plan_by(scheduler: Scheduler, graph: FactorGraph) -> Planned:
    """What a scheduler plans for a graph, checked: schedulers may be users' own."""
    made: object = scheduler.plan(graph)
    name = f"{type(scheduler).__name__}.plan"
    parts = tuple[object, ...](made) if isinstance(made, tuple) else ()  # pyright: ignore
    if len(parts) != 2 or not isinstance(parts[0], Plan) or not callable(parts[1]):
        got = f"({', '.join(type(part).__name__ for part in parts)})"
        raise ModelError(
            f"{name} must return (plan, run), a Plan and a function without arguments that gives "
            f"the Solution; got {got if parts else type(made).__name__}. Another scheduler's may "
            "be returned: Auto().plan(graph)."
        )
    return parts[0], partial(_run, f"The function that {name} returned", parts[1])


def _run(what: str, run: Callable[[], object]) -> Solution:
    solution = run()
    if not isinstance(solution, Solution):
        raise ModelError(f"{what} must give a Solution; got {type(solution).__name__}.")
    return solution


def reduced(graph: FactorGraph, seconds: float) -> "Network":
    """The reduced network to contract. If that is not cheap as it is, states are probed one by one.

    Probing takes a twentieth of the seconds at most.
    """
    # Small graphs, and structures, are answered without a network.
    from rdpgraph.engines.reduction.network import reduce_graph
    from rdpgraph.engines.reduction.probing import refuted_states
    from rdpgraph.plan.planner import is_easy

    network = reduce_graph(graph)
    if network.possible is None or network.impossible:
        return network
    left = max(effort.PROBING * seconds, effort.LEAST_PLANNING)
    # Whether an order is cheap takes a look for each variable, after which nothing may be left.
    if clock.Meter().is_counting and len(network.sizes) * tuning.SECONDS_PER_LOOK > left:
        return network
    deadline = clock.now() + left
    if is_easy(network.topology, deadline=deadline) or clock.now() > deadline:
        return network
    refuted = refuted_states(network, seconds=seconds, deadline=deadline)
    if not refuted:
        return network
    for number, states in refuted:
        network.possible.allow_only(number, torch.tensor(states, dtype=torch.long, device="cpu"))
    return reduce_graph(graph, possible=network.possible)


def require_fit(plan: Plan) -> None:
    """Raise `BudgetError` for a plan that exceeds its budget."""
    if not plan.fits:
        what = "Message passing" if plan.route == "loopy" else "Exact inference"
        raise BudgetError(f"{what} does not fit: it {plan.remedy}.")


def require_room_for_states(graph: FactorGraph) -> None:
    """Raise `BudgetError` if one number per unobserved state, as messages need, does not fit."""
    states = graph.domain.total_states
    if 8.0 * states <= tuning.SMALL_BYTES:  # in any type
        return
    element = torch.finfo(graph.dtype).bits / 8
    require_room(8.0 * graph.num_variables, f"The {graph.num_variables:,} variables of this graph")
    if graph.observed is not None:
        seen = (graph.observed != MISSING).reshape(-1, graph.num_variables).all(0)
        states -= int(graph.domain.sizes[seen].sum())
    require_room(element * states, f"A number for each of the {states:,} states of this graph")


def asked_plan(route: str, why: str, network: "Network", budget: Budget) -> Plan:
    """Plan of a route chosen by name, which takes the seconds it is given."""
    return Plan(
        route=route,
        why=why,
        memory=budget.memory_bytes,
        num_variables=len(network.counts),
        num_factors=sum(len(group.scopes) for group in network.groups),
        dropped_states=network.dropped,
        seconds=budget.seconds,
    )


def sweep_seconds(network: "Network") -> float:
    """Predicted seconds of a sweep of messages."""
    work = 0.0
    for group in network.groups:
        shape = group.log_tables.shape[2:]
        each = tuning.MESSAGE_ENTRY * sum(shape) + len(shape) * math.prod(shape)
        work += len(group.scopes) * each
    return network.batch * work / tuning.OPERATIONS_PER_SECOND


def is_constraints_alone(network: "Network") -> bool:
    """Return whether no joint factor has other values than zero and one more."""
    hard, joint = constraints(network)
    return hard == joint


def constraints(network: "Network") -> tuple[int, int]:
    """Number of joint factors that are constraints alone, and of all joint factors."""
    hard = joint = 0
    for group in network.groups:
        count, dims = group.scopes.shape
        if dims == 1:
            continue
        tables = group.log_tables.detach().flatten(2)
        top = tables.amax(2, keepdim=True)
        zero = tables == -math.inf
        alone = ((zero | (tables == top)).all(2) & zero.any(2)).all(0)
        hard += count if len(alone) == 1 and alone[0] else 0
        if len(alone) > 1:
            hard += int((alone if group.rows is None else alone[group.rows]).sum())
        joint += count
    return hard, joint


def seed_of(generator: torch.Generator | None) -> int:
    """A number drawn from a generator; a constant without one."""
    if generator is None:
        return 0
    return int(torch.randint(2**62, (), generator=generator, device="cpu"))


def budget_of(memory: float | None, seconds: float) -> Budget:
    """Budget of the memory and time given, or those of the machine."""
    return Budget.of_machine(seconds) if memory is None else Budget(memory, seconds)
