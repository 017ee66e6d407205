"""Topologies, elimination orders and contraction trees: any of them gives the sum."""

import itertools
import math
import subprocess
import sys
from random import Random

import numpy as np
import pytest
import torch  # noqa: F401  # planning takes compiled code where this is loaded
from hypothesis import given, settings
from hypothesis import strategies as st

from rdpgraph._core import tuning
from rdpgraph.plan import clock, orders
from rdpgraph.plan.anneal import anneal
from rdpgraph.plan.buckets import buckets_of, eliminated
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


@settings(max_examples=20)
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


@given(topologies(), topologies())
def test_keys_are_equal_exactly_for_equal_topologies(one, other):
    assert (one.key == other.key) == (one == other)
    assert Topology(one.scopes, one.sizes).key == one.key


def test_keys_tell_scopes_apart_that_flatten_alike():
    assert Topology(((0, 1), (2,)), (2, 2, 2)).key != Topology(((0,), (1, 2)), (2, 2, 2)).key
    # The lengths of scopes, the variables in them and the sizes are the numbers 1, 0, 1, 5, 7.
    assert Topology(((0,),), (1, 5, 7)).key != Topology(((1,), ()), (5, 7)).key


def test_keys_are_the_same_in_another_process():
    text = "from rdpgraph.plan.tree import Topology as T; print(T(((0, 1),), (2, 3)).key.hex())"
    out = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == Topology(((0, 1),), (2, 3)).key.hex()


def test_the_empty_topology():
    assert Topology((), ()).components() == ()
    assert Topology((), (2, 2)).num_variables == 2


RULES = [min_fill, weighted_min_fill, min_weight]


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


def test_min_fill_takes_a_least_fill_variable_every_time():
    """Noise makes the fill of each variable appear larger by a part of up to this."""
    for seed in range(20):
        draw = Random(seed)
        count, sizes = draw.randint(4, 14), [2, 3, 5]
        scopes = tuple(tuple(draw.sample(range(count), 2)) for _ in range(3 * count))
        topology = Topology(scopes, tuple(draw.choice(sizes) for _ in range(count)))
        graph = primal_graph(topology.scopes, topology.sizes)
        for rule, noise in itertools.product((min_fill, weighted_min_fill), (0.0, 1e-9)):
            sizes = (1,) * count if rule is min_fill else topology.sizes
            adjacency, left = [set(near) for near in graph.adjacency], set(range(count))
            for v in rule(graph, rng=Random(seed), noise=noise):
                least = min(fill_edges(adjacency, u, sizes) for u in left)
                assert fill_edges(adjacency, v, sizes) == least
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


@given(topologies())
def test_forests_are_told_from_graphs_with_cycles(topology):
    """A factor graph is a forest iff it has as many edges as nodes less components."""
    used = {v for scope in topology.scopes for v in scope}
    edges = sum(map(len, topology.scopes))
    acyclic = edges == len(used) + topology.num_tensors - len(topology.components())
    order = forest_order(topology)
    assert (order is not None) == acyclic
    assert order is None or sorted(order) == list(range(topology.num_variables))


def test_a_private_variable_is_summed_out_first_where_that_is_cheaper():
    for a, b, c in itertools.product((1, 2, 3, 7), repeat=3):
        topology = Topology(((0, 1), (1, 2)), (a, b, c))
        first, second, both = a * b + b * c, a * b + b * c, a * b + b * c + b
        price = cost(tree_from_order(topology, (1, 0, 2)))
        assert price.flops == min(a * b * c, first, second, both)


def test_forest_trees_are_shallow():
    count = 1023  # a complete binary tree of depth 9
    topology = Topology(tuple(((v - 1) // 2, v) for v in range(1, count)), (2,) * count)
    assert max(tree_from_order(topology, forest_order(topology)).levels) <= 2 * 9


def test_chains_and_trees_are_peeled_without_a_rule():
    chain = Topology(tuple((v, v + 1) for v in range(50)), (3,) * 51)
    assert cost(tree_from_order(chain, elimination_order(chain))).width == pytest.approx(
        cost(tree_from_order(Topology(((0, 1),), (3, 3)), (0, 1))).width
    )


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


@settings(max_examples=20)
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


@given(topologies(), st.integers(0, 5))
def test_annealing_keeps_the_sum(topology, seed):
    start = tree_from_order(topology, range(topology.num_variables))
    tree = anneal(start, rng=Random(seed), sweeps=20, hot=5.0)
    check(tree)
    leaves = tables(topology)
    assert product_of_roots(tree, leaves) == pytest.approx(brute_force(topology, leaves))


def written(tree, weight):
    """Entries of the tables of all joins, and of their results, each of which is worth a weight."""
    sizes, scopes = tree.topology.sizes, [set(scope) for scope in tree.topology.scopes]
    total = 0.0
    for left, right, scope in tree.steps:
        if right < 0:
            scopes.append(scopes[left])  # a lone sum is a part of the join that follows
            continue
        joined = scopes[left] | scopes[right]
        total += math.prod(sizes[v] for v in joined) + weight * math.prod(sizes[v] for v in scope)
        scopes.append(set(scope))
    return total


@pytest.mark.parametrize("weight", [0.1, 4.0])
def test_annealing_never_gives_a_more_expensive_tree(weight):
    for seed in range(1, 60, 2):  # of many sizes
        topology = tangled(seed, 9)
        start = tree_from_order(topology, range(topology.num_variables))
        tree = anneal(start, rng=Random(seed), sweeps=3, hot=20.0, write_weight=weight)
        assert written(tree, weight) <= written(start, weight) * (1 + 1e-9)


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


@given(topologies())
def test_costs_are_those_of_the_tables_that_a_run_makes(topology):
    tree = tree_from_order(topology, range(topology.num_variables))
    made, leaves, price = run(tree, tables(topology)), topology.num_tensors, cost(tree)
    assert price.stored == sum(table.size for table in made[leaves:])
    # All variables of a step's operands, and the results that wait for their step.
    joined = [
        {v for part in (left, right) if part >= 0 for v in tree.scopes[part]}
        for left, right, _ in tree.steps
    ]
    volumes = [math.prod(topology.sizes[v] for v in variables) for variables in joined]
    assert price.flops == sum(volumes)
    assert price.width == math.log2(max(volumes, default=1))
    used = {part: step for step, (*parts, _) in enumerate(tree.steps, leaves) for part in parts}
    waiting = [
        sum(made[each].size for each in range(leaves, step + 1) if used.get(each, step) >= step)
        for step in range(leaves, len(made))
    ]
    assert price.peak == max(waiting, default=0)


@pytest.mark.parametrize("batch", [1, 3])
def test_only_a_large_table_that_meets_vectors_is_priced_as_read_once(batch):
    """A product of matrices writes a table, and of two tables both are read."""
    size = math.isqrt(tuning.CORE_BLOCK)

    def seconds(scopes, kept, states=size):
        step = ContractionStep(0, len(scopes) - 1 or -1, kept)
        return cost(ContractionTree(Topology(scopes, (states, states)), (step,)), batch=batch)

    start = tuning.SECONDS_PER_GROUP
    plain = start + batch * size**2 / tuning.OPERATIONS_PER_SECOND
    quick = start + batch * size**2 / tuning.VECTOR_OPERATIONS
    for scopes, kept, expected in (
        (((0, 1), (1,)), (0,), quick),
        (((0, 1),), (0,), quick),
        (((0, 1), (0, 1)), (0,), plain),
        (((0,), (1,)), (0, 1), plain),  # which is written
    ):
        price = seconds(scopes, kept)
        assert price.flops == batch * size**2
        assert price.seconds == pytest.approx(expected)
    small = (size - 1) ** 2
    expected = start + batch * small / tuning.OPERATIONS_PER_SECOND
    assert seconds(((0, 1), (1,)), (0,), size - 1).seconds == pytest.approx(expected)


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


def flat_of(leaves):
    """The tables of factors one after the other, and where each begins."""
    offsets = np.cumsum([0, *(table.size for table in leaves)])[:-1]
    return np.concatenate([table.ravel() for table in leaves] or [np.zeros(0)]), offsets


def summed(buckets, flat, allowed):
    """Z by the levels of buckets, of the cells that are allowed."""
    cells = allowed.astype(float)
    np.multiply.at(cells, buckets.cells, flat[buckets.entries])
    parts = np.split(cells, np.cumsum(buckets.counts)[:-1]) if buckets.counts else []
    total = float(np.prod(flat[buckets.constants]))
    for part, level in zip(parts, buckets.levels, strict=True):
        sums = np.bincount(level.targets, part, level.count)
        for send in level.sends:
            np.multiply.at(parts[send.level], send.cells, sums[send.messages])
        total *= float(np.prod(sums[level.roots]))
    return total


@given(topologies(), st.data())
def test_levels_add_up_to_the_sum_with_any_state_of_any_variable(topology, data):
    leaves = [*tables(topology), np.array(0.3)]
    scopes = [*topology.scopes, ()]
    flat, offsets = flat_of(leaves)
    buckets = buckets_of(scopes, offsets, topology.sizes)
    assert buckets.size == sum(buckets.counts) == len(buckets.variables) == len(buckets.states)
    alone = math.prod(
        size for v, size in enumerate(topology.sizes) if all(v not in scope for scope in scopes)
    )
    value = 0.3 * alone * brute_force(topology, leaves[:-1])
    assert summed(buckets, flat, np.ones(buckets.size, bool)) == pytest.approx(value)
    # The cells of one variable's bucket know its state.
    v = data.draw(st.integers(0, topology.num_variables - 1))
    state = data.draw(st.integers(0, topology.sizes[v] - 1))
    seen = (buckets.variables != v) | (buckets.states == state)
    cut = [
        np.moveaxis(np.where(np.arange(topology.sizes[v]) == state, np.moveaxis(
            table, scope.index(v), -1), 0.0), -1, scope.index(v)) if v in scope else table
        for table, scope in zip(leaves, topology.scopes, strict=False)
    ]  # fmt: skip
    if not any(v in scope for scope in scopes):
        value /= topology.sizes[v]
    else:
        value = 0.3 * alone * brute_force(topology, cut)
    assert summed(buckets, flat, seen) == pytest.approx(value)


@given(topologies(max_variables=9, max_tensors=14))
def test_buckets_are_the_cliques_of_their_order(topology):
    graph = primal_graph(topology.scopes, topology.sizes)
    order, near = eliminated(graph)
    assert sorted(order) == list(range(topology.num_variables))
    adjacency = [set(others) for others in graph.adjacency]
    for v in order:
        assert near[v] == adjacency[v]
        for u in near[v]:
            adjacency[u] |= near[v]
            adjacency[u] -= {u, v}


def test_paths_and_grids_need_few_levels():
    """Half of a path goes in each round, and no bucket has more than two variables."""
    scopes = [(v, v + 1) for v in range(64)]
    buckets = buckets_of(scopes, list(range(0, 64 * 9, 9)), (3,) * 65)
    assert len(buckets.levels) <= 2 * math.log2(65)
    assert buckets.size <= 65 * 27
