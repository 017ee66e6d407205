from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rdpgraph.plan.orders import (
    elimination_order,
    forest_order,
    min_fill,
    min_weight,
    primal_graph,
    weighted_min_fill,
)
from rdpgraph.plan.plan import cost
from rdpgraph.plan.topology import Topology
from rdpgraph.plan.tree import tree_from_order

from .problems import forest, grid, topologies

RULES = [min_fill, weighted_min_fill, min_weight]


@pytest.mark.long
@pytest.mark.parametrize("rule", RULES)
@given(topology=topologies(max_variables=9, max_tensors=16), data=st.data())
def test_orders_are_permutations_with_the_last_ones_last(rule, topology, data):
    count = topology.num_variables
    last = data.draw(st.frozensets(st.integers(0, count - 1)))
    for rng, noise in ((None, 0.0), (Random(0), 0.0), (Random(0), 0.5)):
        order = elimination_order(topology, rule, rng=rng, noise=noise, last=last)
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
