from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rdpgraph.errors import ModelError
from rdpgraph.plan.anneal import anneal
from rdpgraph.plan.plan import cost
from rdpgraph.plan.topology import Topology
from rdpgraph.plan.tree import ContractionTree, Step, tree_from_order, tree_from_path

from .problems import brute_force, grid, product_of_roots, run, tables, topologies


@pytest.mark.long
@given(topologies(), st.randoms(use_true_random=False), st.booleans())
def test_any_order_gives_the_brute_force_sum(topology, random, eager):
    order = random.sample(range(topology.num_variables), topology.num_variables)
    tree = tree_from_order(topology, order, eager=eager)
    tree.check()
    leaves = tables(topology)
    assert product_of_roots(tree, leaves) == pytest.approx(brute_force(topology, leaves))
    assert len(tree.roots) == len(topology.components())


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
        tree.check()
        assert product_of_roots(tree, leaves) == pytest.approx(brute_force(topology, leaves))


@pytest.mark.long
@given(topologies(), st.integers(0, 5))
def test_annealing_keeps_the_sum(topology, seed):
    start = tree_from_order(topology, range(topology.num_variables))
    tree = anneal(start, rng=Random(seed), sweeps=20, hot=5.0)
    tree.check()
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
    tree = ContractionTree(topology, (Step(0, -1, (1,)), Step(2, 1, (2,)), Step(3, -1, ())))
    tree.check()
    price = cost(tree, batch=10)
    assert price.flops == 10 * (2 * 3 + 3 * 5 + 5)
    assert price.stored == 10 * (3 + 5 + 1)
    assert price.peak == 10 * (3 + 5)
    assert price.width == pytest.approx(np.log2(15))
    assert price.groups == price.steps == 3


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


@pytest.mark.parametrize(
    "steps",
    [
        (Step(0, 1, (0, 2)),),  # (0, 2) is never reduced
        (Step(0, 1, (0, 2)), Step(0, -1, ())),  # tensor 0 twice
        (Step(0, -1, (0,)), Step(1, 2, ())),  # sums out 1 while tensor 1 still has it
        (Step(0, 1, (0, 3)),),  # 3 is not there
    ],
)
def test_check_refuses_what_is_not_a_contraction(steps):
    topology = Topology(((0, 1), (1, 2)), (2, 2, 2))
    with pytest.raises(ModelError):
        ContractionTree(topology, steps).check()
