"""The route of exact contraction: everything where it fits, or log Z alone where only that does."""

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from rdpgraph._core import effort
from rdpgraph._core.units import duration
from rdpgraph.engines.exact.engine import ExactSolution, SlicedSolution
from rdpgraph.engines.portfolio import Approximations, ExactFirst
from rdpgraph.engines.reduction.network import Network, reduce_graph
from rdpgraph.engines.solution import Question, Solution
from rdpgraph.errors import BudgetError
from rdpgraph.model.block import Block
from rdpgraph.model.evidence import MISSING
from rdpgraph.model.graph import FactorGraph
from rdpgraph.model.potentials.table import Table
from rdpgraph.plan import clock
from rdpgraph.plan.bids import Bid, Exactness
from rdpgraph.plan.clock import Allowance
from rdpgraph.plan.plan import PASSES, Budget, Plan
from rdpgraph.plan.planner import Optimize, make_plan
from rdpgraph.plan.tree import ContractionTree
from rdpgraph.schedulers.route import Others, PlannedRoute, Task
from rdpgraph.schedulers.scheduler import Planned, require_fit


@dataclass(frozen=True)
class _Alone:
    """The order in which log Z alone is summed."""

    tree: ContractionTree


class ContractionRoute(PlannedRoute):
    """Variables are summed out in the cheapest order found, whole or in slices."""

    def bid(self, task: Task, question: Question[Any], budget: Budget) -> Bid | None:
        """Exact for all questions; refused, with the costs, where that exceeds the budget."""
        if task.is_large:
            why = f"no exact order is sought for {task.joint:,} factors with cycles"
            return Bid(Exactness.EXACT, math.inf, math.inf, refused=why)
        plan, run = self._planned(task)
        if plan.fits:
            return self.exact_bid((plan, run))
        if question.name == "log_partition" and (alone := self._alone(task, plan)) is not None:
            return alone
        timed = task.seconds is not None
        refused = f"exact inference {plan.remedy.split(';')[0] if timed else _advice(plan)}"
        remedy = "" if timed else refused
        return Bid(
            Exactness.EXACT, plan.seconds, plan.stored_bytes, refused=refused, remedy=remedy,
            work=(plan, run),
        )  # fmt: skip

    def _planned(self, task: Task) -> Planned:
        def compute() -> Planned:
            network, seconds, begin = task.network, task.exact_seconds, task.begin
            # What reading the tables took is not missing where the search is quick.
            least = clock.now() + max(0.03 * seconds, effort.LEAST_PLANNING)
            task.once("least", lambda: least)
            deadline = max(begin + effort.SEARCHING * seconds, least)
            optimize = task.given.optimize
            return plan_network(network, task.budget, deadline=deadline, optimize=optimize)

        return task.once("contraction", compute)

    def _alone(self, task: Task, plan: Plan) -> Bid | None:
        """The bid for log Z alone, where that may fit though marginals do not.

        Products of large tables take a fraction of the prediction, so in real time more is tried
        than what surely fits.
        """
        if task.is_exact or plan.tree is None:
            return None
        if plan.peak_bytes > 0.5 * task.budget.memory_bytes:
            return None
        counted = task.counter is not None
        times = effort.FORWARD_SURE if counted else effort.FORWARD_TRIED
        seconds = plan.seconds / PASSES
        if seconds > times * task.allowance.seconds:
            return None
        why, note = "one pass gives log Z alone, if it ends in time", "log Z alone is exact"
        work = _Alone(plan.tree)
        return Bid(Exactness.EXACT, seconds, plan.peak_bytes, why, note=note, work=work)

    def run(self, task: Task, bid: Bid) -> Solution:
        if isinstance(bid.work, _Alone):
            seconds = effort.EXACT_SUM * task.allowance.left()
            return _upwards(task.network, bid.work.tree, seconds)
        return super().run(task, bid)

    def run_with(self, task: Task, bid: Bid, others: Others | None) -> Solution:
        """Each kind of answer is exact where its pass ends in time; else the others give it."""
        if others is None:
            return self.run(task, bid)
        if isinstance(bid.work, _Alone):
            known = others(0.0)
            if not isinstance(known, Approximations):
                return known
            return known.with_exact(partial(_upwards, task.network, bid.work.tree))
        plan, run = bid.work
        # Predictions fail where others use the machine, unless operations are counted.
        quick = plan.num_slices == 1 and plan.seconds < effort.SURE * task.exact_seconds
        taken = Allowance(math.inf, 0.0, task.counter)
        sure = quick or task.counter is not None
        return ExactFirst(run(), others, sure, taken, task.exact_seconds)


def _advice(plan: Plan) -> str:
    """Needs of exact inference, where no limit was given."""
    short = plan.remedy.split(";")[0]
    if not plan.seconds <= effort.LONGEST_ADVISED or "memory" in short:
        return short
    enough = 10 * math.ceil(effort.ADVISED * plan.seconds / 10)
    width = f"width {plan.width:.0f}"
    return f"would take about {duration(plan.seconds)} ({width}): Auto(seconds={enough})"


def _upwards(network: Network, tree: ContractionTree, seconds: float) -> ExactSolution:
    return ExactSolution(network, tree, False, _no_order, seconds / effort.UPWARDS)  # noqa: FBT003


def _no_order(last: frozenset[int]) -> ContractionTree:  # noqa: ARG001
    raise BudgetError("Only log Z is exact here.")


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
