"""Scheduler of exact contraction, whole or in slices; low-rank factors by added variables."""

import math
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from rdpgraph._core import effort
from rdpgraph._core.arguments import require_fields
from rdpgraph.engines.exact.buckets import Factors
from rdpgraph.engines.exact.engine import ExactSolution, SlicedSolution
from rdpgraph.engines.reduction.network import Network, reduce_graph
from rdpgraph.engines.solution import Solution
from rdpgraph.model.block import Block
from rdpgraph.model.evidence import MISSING
from rdpgraph.model.graph import FactorGraph
from rdpgraph.model.potentials.table import Table
from rdpgraph.plan import clock
from rdpgraph.plan.plan import Budget, Plan
from rdpgraph.plan.planner import Optimize, make_plan, require_optimize
from rdpgraph.plan.tree import ContractionTree
from rdpgraph.schedulers.rows import planned_rows
from rdpgraph.schedulers.scheduler import (
    Planned,
    Scheduler,
    budget_of,
    reduced,
    require_fit,
    within,
)


@dataclass(frozen=True)
class Contraction(Scheduler):
    """Exact contraction of a factor graph; structures are not recognised.

    Also known as variable elimination, bucket elimination or the junction tree algorithm: variables
    are summed out in a good order, and a pass back gives all marginals.

    Args:
        memory: bytes for the tables of one run; None: 60% of what the machine has available.
        seconds: the predicted time that a run may take; planning takes a fifth of it at most.
        optimize: gives the order: a name of opt_einsum's, such as ``"greedy"``, or an optimizer of
            opt_einsum or cotengra, which limits its time itself; None: this library's search, which
            marginal modes and slices take in any case.

    Raises:
        ModelError: a limit that is no number above zero, or no optimizer.
    """

    memory: float | None = None
    seconds: float = 60.0
    optimize: Optimize | None = None

    def __post_init__(self) -> None:
        require_fields(self, memory="(0, inf]", seconds="(0, inf]")
        require_optimize(self.optimize)

    def plan(self, graph: FactorGraph) -> Planned:
        """Plan contraction in the cheapest order found, of the reduced network or row by row."""
        if self.optimize is not None:
            return self._whole(graph)
        rows = planned_rows(graph, budget_of(self.memory, self.seconds), self._whole)
        return rows or self._whole(graph)

    def _whole(self, graph: FactorGraph) -> Planned:
        network = reduced(graph, self.seconds)
        budget = budget_of(self.memory, self.seconds)
        return plan_network(network, budget, optimize=self.optimize)

    def small(self, graph: FactorGraph) -> Factors | None:
        return within(self.memory, self.seconds, graph) if self.optimize is None else None

    def solve(self, graph: FactorGraph) -> Solution:
        """Solution of a graph.

        Raises:
            BudgetError: it does not fit.
        """
        plan, run = self.plan(graph)
        require_fit(plan)
        return run()


def plan_network(
    network: Network,
    budget: Budget,
    *,
    deadline: float | None = None,
    optimize: Optimize | None = None,
) -> Planned:
    """Plan of a reduced network, and the function that carries it out."""
    plan = planned(network, budget, deadline=deadline, optimize=optimize)
    return plan, partial(solved_network, network, plan, budget)


def planned(
    network: Network,
    budget: Budget,
    last: frozenset[int] = frozenset(),
    deadline: float | None = None,
    optimize: Optimize | None = None,
) -> Plan:
    """Plan the contraction of a reduced network in the cheapest order found."""
    element = torch.finfo(network.graph.dtype).bits // 8
    return make_plan(
        network.topology,
        budget=budget,
        element_bytes=element,
        batch=network.batch,
        last=last,
        dropped_states=network.dropped,
        sliceable=len(network.numbers),
        deadline=deadline,
        optimize=optimize,
        tables_bytes=network.tables_bytes,
        # A copy of the marginals is zero where no configuration is possible.
        answer_bytes=2.0 * element * network.batch * network.graph.domain.total_states,
    )


def solved_network(network: Network, plan: Plan, budget: Budget) -> Solution:
    """Solution by a plan that fits."""
    if plan.num_slices > 1:
        return in_slices(network, plan, budget)
    return _exact(network, plan, budget)


def _exact(network: Network, plan: Plan, budget: Budget) -> ExactSolution:
    assert plan.tree is not None
    constrained = partial(_constrained, network, budget)
    return ExactSolution(network, plan.tree, True, constrained, budget.seconds)  # noqa: FBT003


def _constrained(network: Network, budget: Budget, last: frozenset[int]) -> ContractionTree:
    narrow = planned(network, budget, last)
    require_fit(narrow)
    assert narrow.tree is not None
    return narrow.tree


def in_slices(network: Network, plan: Plan, budget: Budget) -> SlicedSolution:
    """Exact solutions of all configurations of the cutset, by conditioning."""
    numbers = network.numbers[torch.tensor(plan.slices, device="cpu")]
    pairs = zip(numbers, plan.slices, strict=True)
    kept = [network.states_left(n.reshape(1), network.sizes[a])[0] for n, a in pairs]
    grid = torch.cartesian_prod(*kept).reshape(-1, len(kept))
    solve = partial(_slice, network, budget, numbers, grid)
    return SlicedSolution(
        tuple(numbers.tolist()), network.graph.num_variables, range(len(grid)), solve,
        budget.seconds,
    )  # fmt: skip


def _slice(
    network: Network, budget: Budget, numbers: Tensor, grid: Tensor, number: int
) -> ExactSolution:
    graph, blocks = network.graph, network.graph.blocks
    observed = graph.observed
    if observed is None:
        observed = torch.full((graph.num_variables,), MISSING, device="cpu")
    states = observed.clone()
    states[..., numbers] = grid[number]
    seen = observed[..., numbers]
    against = ((seen != MISSING) & (seen != grid[number])).any(-1)
    if bool(against.any()):  # a variable that some items only observe, in another state
        never = torch.zeros(against.shape, dtype=graph.dtype, device=graph.device)
        never = never.masked_fill(against.to(graph.device), -math.inf)
        empty = torch.zeros(1, 0, dtype=torch.long, device="cpu")
        declared = torch.zeros(1, device="cpu").long()
        blocks = (*blocks, Block(empty, Table(never), (), None, declared))
    part = FactorGraph.from_blocks(graph.domain, blocks, states)
    slice_network = reduce_graph(part, possible=network.possible)
    ample = replace(budget, seconds=budget.seconds * 1e6)
    deadline = clock.now() + effort.SEARCHING * budget.seconds
    plan = planned(slice_network, ample, deadline=deadline)
    require_fit(plan)
    return _exact(slice_network, plan, budget)
