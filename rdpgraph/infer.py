"""infer() and explain(): the one place where the rooms meet."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeAlias

import torch

from rdpgraph.engines.exact import ExactSolution
from rdpgraph.engines.matched import MatchedSolution
from rdpgraph.engines.network import Network, reduce_graph
from rdpgraph.engines.sliced import SlicedSolution
from rdpgraph.engines.solution import Solution
from rdpgraph.errors import BudgetError, ModelError
from rdpgraph.estimate.exact import Estimator, Exact, Model
from rdpgraph.model.evidence import MISSING
from rdpgraph.model.graph import FactorGraph
from rdpgraph.model.structure import REGISTRY, Structure
from rdpgraph.plan.budget import Budget
from rdpgraph.plan.plan import Plan
from rdpgraph.plan.scheduler import make_plan
from rdpgraph.plan.topology import Topology
from rdpgraph.plan.tree import ContractionTree
from rdpgraph.query.posterior import Posterior
from rdpgraph.query.status import Status
from rdpgraph.query.structured import Lazy, StructuredPosterior

Answer: TypeAlias = Posterior | StructuredPosterior


class Scheduler(ABC):
    """Chooses how a factor graph is solved."""

    @abstractmethod
    def schedule(self, graph: FactorGraph) -> tuple[Plan, Callable[[], Solution]]:
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

    def schedule(self, graph: FactorGraph) -> tuple[Plan, Callable[[], Solution]]:
        """Evidence, hard zeros, then the cheapest order found."""
        budget = Budget.of_machine(self.seconds)
        if self.memory is not None:
            budget = Budget(self.memory, self.seconds)
        network = reduce_graph(graph)
        plan = _planned(network, budget)
        return plan, lambda: _solved(network, plan, budget)


@dataclass(frozen=True)
class Auto(Scheduler):
    """The default: a registered structure if one recognises the graph, else exact contraction.

    Args:
        memory: bytes for the tables of one run; None: 60% of what the machine has available.
        seconds: the predicted time that a run may take.
    """

    memory: float | None = None
    seconds: float = 60.0

    def schedule(self, graph: FactorGraph) -> tuple[Plan, Callable[[], Solution]]:
        """The registry first, then contraction."""
        exact = Contraction(self.memory, self.seconds)
        match = REGISTRY.recognise(graph) if graph.observed is None else None
        if match is None:
            return exact.schedule(graph)
        found = match

        def general() -> Solution:
            plan, solve = exact.schedule(graph)
            _require_fit(plan)
            return solve()

        return _structure_plan(match.structure), lambda: MatchedSolution(graph, found, general)


def infer(
    model: Model,
    *,
    estimator: Estimator | None = None,
    scheduler: Scheduler | None = None,
    generator: torch.Generator | None = None,
) -> Answer:
    """The posterior of a model.

    Args:
        model: a `FactorGraph`, evidence included, or a `Structure`.
        estimator: rewrites the model into a cheaper one; default `Exact()`, which does not.
        scheduler: default `Auto()`.
        generator: the randomness of the estimator.

    Returns:
        A `Posterior` (a `StructuredPosterior` for a structure). Its answers are computed when
        they are first asked for; the plan is made here.

    Raises:
        BudgetError: the plan does not fit its budget; the message says by how much, and what to do.
    """
    scheduler = scheduler or Auto()

    def solve(other: Model) -> Answer:
        return infer(other, scheduler=scheduler, generator=generator)

    problem = (estimator or Exact()).prepare(model, solve=solve, generator=generator)
    status = Status(exact=problem.exact, biased=not problem.exact)
    if isinstance(problem.model, Structure):
        structure = problem.model
        general = Lazy(lambda: infer(structure.factor_graph(), scheduler=scheduler))
        return StructuredPosterior(structure, _structure_plan(structure), status, general)
    plan, run = scheduler.schedule(_checked(problem.model))
    _require_fit(plan)
    return Posterior(problem.model, plan, status, run())


def explain(model: Model, *, scheduler: Scheduler | None = None) -> Plan:
    """The plan for a model, without running it; print it.

    Reads the model's tables for hard zeros and searches for an order, which `infer` then reuses.
    """
    if isinstance(model, Structure):
        return _structure_plan(model)
    return (scheduler or Auto()).schedule(_checked(model))[0]


def _checked(model: object) -> FactorGraph:
    if not isinstance(model, FactorGraph):
        raise ModelError(
            f"infer and explain need a FactorGraph or a Structure; got {type(model).__name__}."
        )
    return model


def _structure_plan(structure: Structure) -> Plan:
    name = type(structure).__name__
    sites = math.prod(structure.unary.shape[:-1])
    why = f"solved by the recursion of the registered structure {name}"
    return Plan("structure", why, num_variables=sites, num_components=1)


def _require_fit(plan: Plan) -> None:
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
    )


def _solved(network: Network, plan: Plan, budget: Budget) -> Solution:
    if plan.num_slices > 1:
        return _sliced(network, plan, budget)
    return _exact(network, plan, budget)


def _exact(network: Network, plan: Plan, budget: Budget) -> ExactSolution:
    def constrained(last: frozenset[int]) -> ContractionTree:
        narrow = _planned(network, budget, last)
        _require_fit(narrow)
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
