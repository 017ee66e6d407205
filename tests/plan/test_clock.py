"""Planning under a clock that ticks whenever it is looked at, and what is remembered of it."""

import math
import pickle
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import replace
from random import Random

import pytest
import torch

import rdpgraph as rg
from rdpgraph import schedulers
from rdpgraph._core import effort
from rdpgraph.engines.reduction import network
from rdpgraph.engines.reduction.network import reduce_graph
from rdpgraph.errors import BudgetError
from rdpgraph.plan import clock, joingraph, planner
from rdpgraph.plan.clock import Allowance
from rdpgraph.plan.joingraph import choose_join_graph
from rdpgraph.plan.orders import elimination_order, min_fill, min_weight, weighted_min_fill
from rdpgraph.plan.plan import Budget
from rdpgraph.plan.planner import is_easy, make_plan
from rdpgraph.plan.tree import Topology

from .problems import grid


class Ticking:
    """A clock that a look moves on."""

    def __init__(self, tick: float) -> None:
        self.time, self.tick = 1000.0, tick

    def __call__(self) -> float:
        self.time += self.tick
        return self.time


@pytest.fixture
def ticking(monkeypatch):
    """Puts a clock that ticks in place of the machine's."""

    def start(tick: float) -> Ticking:
        found = Ticking(tick)
        monkeypatch.setattr(clock, "now", found)
        return found

    return start


def tangled(count: int, factors: int, arity: int = 3, seed: int = 0) -> Topology:
    """Random factors, many to a variable: no order is cheap."""
    draw = Random(seed)
    scopes = [tuple(draw.sample(range(count), arity)) for _ in range(factors)]
    return Topology(tuple(scopes), (2,) * count)


@pytest.mark.parametrize("rule", [min_fill, min_weight, weighted_min_fill])
def test_orders_end_at_their_deadline(rule, ticking):
    watch = ticking(1e-3)
    topology = tangled(150, 400)
    assert elimination_order(topology, rule, deadline=watch.time + 0.05) is None
    assert watch.time <= 1000.0 + 0.06
    assert elimination_order(topology, rule) is not None


@pytest.mark.parametrize("seconds", [1.0, 4.0])
def test_planning_ends_within_its_part_of_the_budget(seconds, ticking):
    watch = ticking(1e-3)
    for seed in range(3):
        topology, budget = tangled(300, 600, seed=seed), Budget(1e9, seconds)
        begin = watch.time
        plan = make_plan(topology, budget=budget, element_bytes=4)
        assert not plan.fits
        deadline = begin + effort.PLANNING * seconds
        choose_join_graph(topology, budget=budget, deadline=deadline)
        assert watch.time - begin <= 1.1 * effort.PLANNING * seconds


def test_slices_are_chosen_within_their_part_of_the_seconds(ticking):
    """Each variable that is fixed looks at the clock, and the part is 2 of 100 seconds."""
    topology = grid(4, 5, states=3)
    given = {"element_bytes": 4, "optimize": "greedy"}  # in which no search looks at the clock
    whole = make_plan(topology, budget=Budget(1e9, 100.0), **given)
    few, many = (Budget(part * whole.stored_bytes, 100.0) for part in (0.3, 0.1))

    def plan(tick, budget):
        ticking(tick)
        return make_plan(topology, budget=replace(budget, seconds=100.0 + tick), **given)

    assert len(plan(0.0, few).slices) > 1
    assert plan(0.3, few).fits
    assert len(plan(0.0, many).slices) > 4
    assert not plan(0.8, many).fits


def test_an_order_that_came_too_late_is_said_to(ticking):
    ticking(0.05)
    plan = make_plan(tangled(300, 600, seed=7), budget=Budget(1e9, 1.0), element_bytes=4)
    assert "its cost is not known" in plan.remedy
    assert "raise" not in plan.remedy  # nobody knows that it would help
    assert choose_join_graph(tangled(300, 600), budget=Budget(1e9, 3.0), deadline=0.0) is None


def test_few_variables_are_planned_without_a_clock(ticking):
    topology = tangled(16, 40)
    before = make_plan(topology, budget=Budget(1e9, 60.0), element_bytes=4)
    ticking(10.0)
    after = make_plan(topology, budget=Budget(1e9, 59.0), element_bytes=4)
    assert after.fits
    assert after.tree is not None
    assert before.tree is not None
    assert after.tree.steps == before.tree.steps


def test_what_is_easy_is_not_remembered_past_a_deadline(ticking):
    topology = grid(4, 7)
    ticking(1.0)
    assert not is_easy(topology, deadline=0.0)
    assert is_easy(topology)


def test_plans_know_the_budget_to_the_byte():
    topology = grid(9, 9)
    small = make_plan(topology, budget=Budget(1e3, 1.0), element_bytes=4)
    large = make_plan(topology, budget=Budget(6e7, 1.0), element_bytes=4)
    assert not small.fits
    assert "1.0 kB" in small.remedy
    assert large.fits


def test_memory_that_was_measured_may_differ_a_little():
    topology = grid(6, 6, states=3)
    first = make_plan(topology, budget=Budget(1e9, 1.0, measured=True), element_bytes=4)
    near = make_plan(topology, budget=Budget(0.9e9, 1.0, measured=True), element_bytes=4)
    given = make_plan(topology, budget=Budget(0.9e9, 1.0), element_bytes=4)
    far = make_plan(topology, budget=Budget(1e8, 1.0, measured=True), element_bytes=4)
    assert near is first
    assert given is not first
    assert far is not first


def parities(bits):
    """Scores of bits, each in three checks of six."""
    draw, x = Random(0), rg.VariableArray("x", (bits,), 2)
    unary = torch.randn(bits, 2, generator=torch.Generator().manual_seed(0))
    blocks = [rg.FactorBlock((x,), rg.Table(unary))]
    for _ in range(3):
        places = torch.tensor(draw.sample(range(bits), bits)).reshape(-1, 6)
        slots = tuple(x[places[:, slot]] for slot in range(6))
        blocks.append(rg.FactorBlock(slots, rg.Xor(6)))
    return rg.FactorGraph(blocks), x


def test_infer_plans_no_clusters_until_they_are_asked_for(monkeypatch):
    graph, _ = parities(180)
    made, choose = [], joingraph._choose
    monkeypatch.setattr(joingraph, "_choose", lambda *args: made.append(1) or choose(*args))
    posterior = rg.infer(graph)
    assert not made
    assert posterior.plan.route == "join graph"
    assert posterior.plan.bids.taken["variable_marginals"] == "join graph"
    assert posterior.plan == rg.explain(parities(180)[0])


@pytest.mark.long
def test_clusters_that_are_planned_late_give_the_same_answers():
    graph, x = parities(180)
    rg.explain(graph)  # the plan is kept for the next call
    early = rg.infer(graph)
    late = rg.infer(parities(180)[0])
    late.max_marginals()
    assert torch.equal(early.marginal(x), late.marginal(x))
    assert early.status == late.status


def test_what_explain_planned_infer_uses(monkeypatch):
    draw = Random(3)
    variables = [rg.Variable(f"b{i}", 2) for i in range(150)]
    factors = [rg.Factor(tuple(draw.sample(variables, 4)), rg.Xor(4)) for _ in range(75)]
    graph = rg.FactorGraph(factors)
    counts = {"search": 0, "join": 0}
    search, choose = planner.search, joingraph._choose

    def counted_search(*args, **options):
        counts["search"] += 1
        return search(*args, **options)

    def counted_choose(*args, **options):
        counts["join"] += 1
        return choose(*args, **options)

    monkeypatch.setattr(planner, "search", counted_search)
    monkeypatch.setattr(joingraph, "_choose", counted_choose)
    auto = rg.Auto(seconds=2.0)
    plan = rg.explain(graph, scheduler=auto)
    seen = dict(counts)
    other = rg.FactorGraph(factors)
    assert rg.infer(other, scheduler=auto).plan == plan
    assert counts == seen


@pytest.fixture
def reductions(monkeypatch):
    """The graphs that are reduced."""
    seen = []

    def counted(graph, **options):
        seen.append(graph)
        return reduce_graph(graph, **options)

    for room in (network, schedulers.loopy):
        monkeypatch.setattr(room, "reduce_graph", counted)
    return seen


def ring(tables: torch.Tensor) -> rg.FactorGraph:
    """Four variables in a ring, a table each, held by the block as they are."""
    ring = rg.VariableArray("ring", (4,), 2)
    first, second = ring[[0, 1, 2, 3]], ring[[1, 2, 3, 0]]
    return rg.FactorGraph([rg.FactorBlock((first, second), rg.Table(tables))])


@pytest.mark.parametrize("kind", [rg.Auto, rg.Contraction, rg.JoinGraph, rg.Loopy])
def test_a_graph_that_was_explained_is_not_reduced_again(kind, reductions):
    tables = torch.randn(4, 2, 2, dtype=torch.float64, requires_grad=True)
    graph, given = ring(tables), kind()
    plan = rg.explain(graph, scheduler=given)
    again = rg.explain(graph, scheduler=given)
    done = len(reductions)
    posterior = rg.infer(graph, scheduler=given)
    assert posterior.plan is plan is again
    assert len(reductions) == done
    posterior.log_partition.backward()
    first = tables.grad.clone()
    rg.infer(graph, scheduler=given).log_partition.backward()  # reads the tables again
    torch.testing.assert_close(tables.grad, 2 * first)


def test_what_was_explained_is_left_where_something_has_changed(reductions):
    tables = torch.randn(4, 2, 2, dtype=torch.float64)
    graph = ring(tables)
    rg.explain(graph)
    tables[0, 0, 0] = -math.inf
    tables[1] += 1.0
    expected = rg.infer(ring(tables.clone())).log_partition
    torch.testing.assert_close(rg.infer(graph).log_partition, expected)
    rg.explain(graph)
    done = len(reductions)
    rg.infer(graph, scheduler=rg.JoinGraph())  # not the scheduler that was asked
    assert len(reductions) > done
    rg.explain(graph)
    for copy in (pickle.loads(pickle.dumps(graph)), deepcopy(graph)):
        torch.testing.assert_close(rg.infer(copy).log_partition, expected)
    with torch.inference_mode():
        rg.explain(graph)
    torch.testing.assert_close(rg.infer(graph).log_partition, expected)


def test_an_allowance_is_shared_and_leaves_everyone_something(ticking):
    watch = ticking(0.0)
    allowance = Allowance(10.0)
    assert allowance.left() == 10.0
    with allowance.spending():
        watch.time += 4.0
    watch.time += 100.0
    assert allowance.left() == 6.0
    assert allowance.left(0.5) == 3.0
    with allowance.spending():
        watch.time += 9.0
    assert allowance.left() == 1.0


@pytest.mark.parametrize("spent", [1.0, 3.0, 9.0, 11.0])
@pytest.mark.parametrize("done", [0.05, 0.1, 0.2, 0.5, None])
def test_work_is_given_up_once_late_or_hopeless(spent, done, hands):
    """Not before a quarter of the seconds, and where twice as many would not be enough."""
    watch = clock.Watch(10.0)
    hands.time += spent
    whole = spent if done is None else spent / done
    late = spent > 10.0
    hopeless = spent > effort.EARLY * 10.0 and whole > effort.HOPELESS * 10.0
    if late or hopeless:
        with pytest.raises(BudgetError, match=f"would take {whole:.3g} s"):
            watch.look(None if done is None else lambda: done)
    else:
        watch.look(None if done is None else lambda: done)


@pytest.mark.parametrize(("spent", "done", "goes_on"), [
    (11.0, 0.9, True), (14.0, 0.95, True), (11.0, 0.7, False), (15.5, 0.99, False),
    (11.0, None, False), (9.0, 0.5, True), (9.0, 0.4, False),
])  # fmt: skip
def test_work_that_is_nearly_done_has_more_time(spent, done, goes_on, hands):
    watch = clock.Watch(10.0, 15.0)
    hands.time += spent
    with nullcontext() if goes_on else pytest.raises(BudgetError, match="longer than predicted"):
        watch.look(None if done is None else lambda: done)
