"""Topologies, elimination orders and contraction trees: any of them gives the sum."""

import math
import subprocess
import sys
from random import Random

import numpy as np
import pytest
import torch  # noqa: F401  # planning takes compiled code where this is loaded
from hypothesis import given
from hypothesis import strategies as st

from rdpgraph._core import tuning
from rdpgraph.plan import clock, orders
from rdpgraph.plan.anneal import anneal
from rdpgraph.plan.orders import (
    elimination_order,
    forest_order,
    graph_of,
    min_fill,
    min_weight,
    peel,
    primal_graph,
    weighted_min_fill,
)
from rdpgraph.plan.plan import cost
from rdpgraph.plan.tree import (
    ContractionStep,
    ContractionTree,
    Topology,
    tree_from_order,
    tree_from_path,
)

from .problems import brute_force, check, forest, grid, product_of_roots, run, tables, topologies


@pytest.mark.long
@given(topologies())
def test_components_are_those_of_a_flood_fill(topology):
    left = set(range(topology.num_tensors))
    expected = []
    while left:
        reached = {min(left)}
        while True:
            variables = {v for t in reached for v in topology.scopes[t]}
            more = {t for t in left if variables.intersection(topology.scopes[t])}
            if more == reached:
                break
            reached = more
        left -= reached
        expected.append(tuple(sorted(reached)))
    assert sorted(topology.components()) == sorted(expected)


@pytest.mark.long
@given(topologies(), topologies())
def test_keys_are_equal_exactly_for_equal_topologies(one, other):
    assert (one.key == other.key) == (one == other)
    assert Topology(one.scopes, one.sizes).key == one.key


def test_keys_tell_scopes_apart_that_flatten_alike():
    assert Topology(((0, 1), (2,)), (2, 2, 2)).key != Topology(((0,), (1, 2)), (2, 2, 2)).key


def test_keys_are_the_same_in_another_process():
    text = "from rdpgraph.plan.tree import Topology as T; print(T(((0, 1),), (2, 3)).key.hex())"
    out = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == Topology(((0, 1),), (2, 3)).key.hex()


def test_the_empty_topology():
    assert Topology((), ()).components() == ()
    assert Topology((), (2, 2)).num_variables == 2


RULES = [min_fill, weighted_min_fill, min_weight]


@pytest.mark.long
@pytest.mark.parametrize("rule", RULES)
@given(topology=topologies(max_variables=9, max_tensors=16), data=st.data())
def test_orders_are_permutations_with_the_last_ones_last(rule, topology, data):
    count = topology.num_variables
    last = data.draw(st.frozensets(st.integers(0, count - 1)))
    for rng, noise in ((None, 0.0), (Random(0), 0.0), (Random(0), 0.5)):
        graph = primal_graph(topology.scopes, topology.sizes)
        order = rule(graph, rng=rng, noise=noise, last=last)
        assert sorted(order) == list(range(count))
        assert set(order[count - len(last) :]) == last


def fill_edges(adjacency: list[set[int]], v: int, sizes: tuple[int, ...]) -> int:
    near = sorted(adjacency[v])
    return sum(sizes[a] * sizes[b] for a in near for b in near if a < b and b not in adjacency[a])


@pytest.mark.long
@given(
    topologies(max_variables=9, max_tensors=16), st.booleans(), st.randoms(use_true_random=False)
)
def test_min_fill_takes_a_least_fill_variable_every_time(topology, weighted, random):
    graph = primal_graph(topology.scopes, topology.sizes)
    sizes = topology.sizes if weighted else (1,) * topology.num_variables
    order = (weighted_min_fill if weighted else min_fill)(graph, rng=Random(random.randint(0, 9)))
    adjacency = [set(near) for near in graph.adjacency]
    left = set(range(topology.num_variables))
    for v in order:
        assert fill_edges(adjacency, v, sizes) == min(fill_edges(adjacency, u, sizes) for u in left)
        left.discard(v)
        near = adjacency[v]
        for u in near:
            adjacency[u] |= near
            adjacency[u] -= {u, v}


def test_rules_give_up_at_their_limits():
    topology = grid(6, 6)
    graph = primal_graph(topology.scopes, topology.sizes)
    for rule in RULES:
        assert rule(graph, limit=10.0) is None
        assert rule(graph, deadline=0.0) is None
        assert rule(graph, limit=1e9) is not None


@pytest.mark.parametrize("seed", range(20))
def test_a_forest_is_as_wide_as_its_largest_factor(seed):
    topology = forest(seed)
    order = forest_order(topology)
    assert sorted(order) == list(range(topology.num_variables))
    price = cost(tree_from_order(topology, order))
    largest = max(cost(tree_from_order(Topology((s,), topology.sizes), s)).width
                  for s in topology.scopes)  # fmt: skip
    assert price.width == largest


@pytest.mark.long
@given(topologies())
def test_forests_are_told_from_graphs_with_cycles(topology):
    """A factor graph is a forest iff it has as many edges as nodes less components."""
    used = {v for scope in topology.scopes for v in scope}
    edges = sum(map(len, topology.scopes))
    acyclic = edges == len(used) + topology.num_tensors - len(topology.components())
    order = forest_order(topology)
    assert (order is not None) == acyclic
    assert order is None or sorted(order) == list(range(topology.num_variables))


def test_forest_trees_are_shallow():
    count = 1023  # a complete binary tree of depth 9
    topology = Topology(tuple(((v - 1) // 2, v) for v in range(1, count)), (2,) * count)
    assert max(tree_from_order(topology, forest_order(topology)).levels) <= 2 * 9


def test_chains_and_trees_are_peeled_without_a_rule():
    chain = Topology(tuple((v, v + 1) for v in range(50)), (3,) * 51)
    assert cost(tree_from_order(chain, elimination_order(chain))).width == pytest.approx(
        cost(tree_from_order(Topology(((0, 1),), (3, 3)), (0, 1))).width
    )


@pytest.mark.long
@given(topologies(), st.randoms(use_true_random=False), st.booleans())
def test_any_order_gives_the_brute_force_sum(topology, random, eager):
    order = random.sample(range(topology.num_variables), topology.num_variables)
    tree = tree_from_order(topology, order, eager=eager)
    check(tree)
    leaves = tables(topology)
    assert product_of_roots(tree, leaves) == pytest.approx(brute_force(topology, leaves))
    assert len(tree.roots) == len(topology.components())


@given(topologies(), st.randoms(use_true_random=False))
def test_an_order_serves_the_same_scopes_in_another_order(topology, random):
    tree = tree_from_order(topology, range(topology.num_variables))
    scopes = random.sample(topology.scopes, topology.num_tensors)
    sizes = tuple(size + 1 for size in topology.sizes)
    other = tree.over(Topology(tuple(scopes), sizes))
    check(other)
    leaves = tables(other.topology)
    assert product_of_roots(other, leaves) == pytest.approx(brute_force(other.topology, leaves))
    assert tree.over(Topology((*topology.scopes, (0,)), topology.sizes)) is None


@pytest.mark.long
@given(topologies(), st.randoms(use_true_random=False))
def test_without_eager_variables_go_one_at_a_time_in_the_order_given(topology, random):
    order = random.sample(range(topology.num_variables), topology.num_variables)
    tree = tree_from_order(topology, order, eager=False)
    gone = []
    for left, right, scope in tree.steps:
        union = set(tree.scopes[left]) | (set(tree.scopes[right]) if right >= 0 else set())
        gone.append(sorted(union.difference(scope)))
    assert all(len(variables) <= 1 for variables in gone)
    used = {v for scope in topology.scopes for v in scope}
    assert [v for variables in gone for v in variables] == [v for v in order if v in used]


@pytest.mark.long
@given(topologies(), st.randoms(use_true_random=False))
def test_any_path_gives_the_brute_force_sum(topology, random):
    """Random groups of one to three operands, in both numberings; joins of scalars are dropped."""
    live = list(range(topology.num_tensors))
    following = topology.num_tensors
    static, linear = [], []
    while len(live) > 1:
        group = random.sample(live, min(len(live), random.randint(1, 3)))
        static.append(tuple(group))
        linear.append(tuple(live.index(t) for t in group))
        live = [t for t in live if t not in group] + [following]
        following += 1
    leaves = tables(topology)
    for path, ssa in ((static, True), (linear, False), (static[: len(static) // 2], True)):
        tree = tree_from_path(topology, path, ssa=ssa)
        check(tree)
        assert product_of_roots(tree, leaves) == pytest.approx(brute_force(topology, leaves))


@pytest.mark.long
@given(topologies(), st.integers(0, 5))
def test_annealing_keeps_the_sum(topology, seed):
    start = tree_from_order(topology, range(topology.num_variables))
    tree = anneal(start, rng=Random(seed), sweeps=20, hot=5.0)
    check(tree)
    leaves = tables(topology)
    assert product_of_roots(tree, leaves) == pytest.approx(brute_force(topology, leaves))


def test_annealing_finds_a_narrow_tree_of_a_grid():
    topology = grid(4, 12)
    bad = tree_from_order(topology, range(0, 48, 2))
    good = anneal(bad, rng=Random(0), sweeps=300)
    assert cost(good).flops < cost(bad).flops
    assert cost(good).width <= 8  # the treewidth plus one is 5; a short run comes near


def test_alike_messages_are_multiplied_in_a_balanced_tree():
    count = 64
    topology = Topology(tuple((0, v) for v in range(1, count + 1)), (2,) * (count + 1))
    tree = tree_from_order(topology, [*range(1, count + 1), 0])
    assert max(tree.levels) == 1 + 6
    assert cost(tree).groups == 1 + 6


def test_costs_are_those_counted_by_hand():
    topology = Topology(((0, 1), (1, 2)), (2, 3, 5))
    tree = ContractionTree(
        topology,
        (ContractionStep(0, -1, (1,)), ContractionStep(2, 1, (2,)), ContractionStep(3, -1, ())),
    )
    check(tree)
    price = cost(tree, batch=10)
    assert price.flops == 10 * (2 * 3 + 3 * 5 + 5)
    assert price.stored == 10 * (3 + 5 + 1)
    assert price.peak == 10 * (3 + 5)
    assert price.width == pytest.approx(np.log2(15))
    assert price.groups == 3


@pytest.mark.long
@given(topologies())
def test_costs_are_those_of_the_tables_that_a_run_makes(topology):
    tree = tree_from_order(topology, range(topology.num_variables))
    made = run(tree, tables(topology))[topology.num_tensors :]
    assert cost(tree).stored == sum(table.size for table in made)


def test_costs_do_not_overflow():
    count = 1500
    topology = Topology((tuple(range(count)),), (2,) * count)
    price = cost(tree_from_order(topology, range(count)))
    assert price.width == count
    assert price.flops == 2**count
    assert price.seconds == float("inf")


def tangled(seed, most=14):
    """Random factors of up to four variables, of two to four states, some of which are large."""
    draw = Random(seed)
    count = draw.randint(1, most)
    sizes = tuple(draw.choice([2, 2, 3, 4, 40] if seed % 2 else [2]) for _ in range(count))
    arities = (min(count, draw.randint(1, 4)) for _ in range(draw.randint(0, 2 * count)))
    return Topology(tuple(tuple(draw.sample(range(count), arity)) for arity in arities), sizes)


@pytest.fixture
def both(monkeypatch):
    """Gives what a function returns with compiled code and without."""

    def asked(function):
        assert orders.is_compiled()
        answers = []
        for there in (True, False):
            if not there:
                monkeypatch.setattr(orders, "is_compiled", lambda: False)
            answers.append(function())
            monkeypatch.undo()
        return answers

    return asked


@pytest.mark.parametrize("seed", range(40))
def test_compiled_orders_are_those_of_python(seed, both):
    topology, draw = tangled(seed), Random(seed)
    count = topology.num_variables
    last = frozenset(draw.sample(range(count), draw.randint(0, count) if seed % 3 else 0))
    graph, other = both(lambda: graph_of(topology))
    assert graph.adjacency == other.adjacency
    (prefix, core, names), (first, left, kept) = both(lambda: peel(graph, last=last))
    assert (prefix, names, core.sizes) == (first, kept, left.sizes)
    assert core.adjacency == left.adjacency
    for rule in RULES:
        for limit in (math.inf, 300.0):
            compiled, plain = both(lambda: rule(graph, last=last, limit=limit))  # noqa: B023
            assert compiled == plain


@pytest.mark.parametrize("rule", RULES)
def test_a_clock_that_counts_counts_as_much_for_both(rule, both):
    draw = Random(0)
    scopes = tuple(tuple(draw.sample(range(60), 3)) for _ in range(120))
    graph = graph_of(Topology(scopes, (2,) * 60))

    def seconds():
        counter = clock.Counter()
        with clock.counted(counter):
            rule(graph)
        return counter.seconds

    compiled, plain = both(seconds)
    assert compiled == pytest.approx(plain, rel=1e-9, abs=1.1 * tuning.SECONDS_PER_LOOK)


def test_ctrl_c_passes_through_compiled_code(monkeypatch):
    def interrupted():
        raise KeyboardInterrupt

    draw = Random(0)
    scopes = tuple(tuple(draw.sample(range(60), 3)) for _ in range(120))
    graph = graph_of(Topology(scopes, (2,) * 60))
    monkeypatch.setattr(clock, "now", interrupted)
    with pytest.raises(KeyboardInterrupt):
        min_fill(graph)
