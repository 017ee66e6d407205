"""Join graphs: what makes their messages right, whatever the bound."""

import math
import random

import networkx as nx
import pytest

from rdpgraph.plan.joingraph import choose_join_graph, join_graph
from rdpgraph.plan.orders import elimination_order
from rdpgraph.plan.plan import Budget
from rdpgraph.plan.tree import Topology


def random_topology(seed):
    """Up to 14 variables of 2 to 4 states, factors of one to four of them."""
    draw = random.Random(seed)
    count = draw.randint(3, 14)
    sizes = tuple(draw.randint(2, 4) for _ in range(count))
    scopes = []
    for _ in range(draw.randint(count, 3 * count)):
        arity = min(draw.randint(1, 4), count)
        scopes.append(tuple(draw.sample(range(count), arity)))
    return Topology(tuple(scopes), sizes)


def table(sizes, scope):
    return math.prod(sizes[v] for v in scope)


@pytest.mark.parametrize("seed", range(40))
def test_every_tensor_is_in_one_cluster_and_every_variable_lives_in_a_tree(seed):
    topology = random_topology(seed)
    order = elimination_order(topology)
    largest = max(table(topology.sizes, scope) for scope in topology.scopes)
    for bound in (1, 16, 64, 1e9):
        graph = join_graph(topology, order, bound)
        held = sorted(tensor for own in graph.tensors for tensor in own)
        assert held == list(range(topology.num_tensors))
        for own, scope in zip(graph.tensors, graph.scopes, strict=True):
            assert scope == tuple(sorted(scope))
            assert table(topology.sizes, scope) <= max(bound, largest)
            for tensor in own:
                assert set(topology.scopes[tensor]) <= set(scope)
        for link in graph.links:
            assert link.separator
            assert link.child < link.parent
            assert set(link.separator) <= set(graph.scopes[link.child])
            assert set(link.separator) <= set(graph.scopes[link.parent])
        for variable in {v for scope in topology.scopes for v in scope}:
            web = nx.MultiGraph()
            web.add_nodes_from(c for c, scope in enumerate(graph.scopes) if variable in scope)
            web.add_edges_from((a.child, a.parent) for a in graph.links if variable in a.separator)
            assert nx.is_tree(web)


@pytest.mark.parametrize("seed", range(10))
def test_without_a_bound_it_is_a_junction_tree(seed):
    topology = random_topology(seed)
    graph = join_graph(topology, elimination_order(topology), math.inf)
    assert graph.exact
    web = nx.MultiGraph((link.child, link.parent) for link in graph.links)
    assert not web or nx.is_forest(web)
    assert not join_graph(topology, elimination_order(topology), 1).exact or graph.elements() < 99


def test_a_search_without_time_is_not_remembered():
    topology, budget = random_topology(7), Budget(1e6, 1e9)
    assert choose_join_graph(topology, budget=budget, deadline=-math.inf) is None
    assert choose_join_graph(topology, budget=budget) is not None


@pytest.mark.parametrize("seed", range(10))
def test_a_larger_budget_gives_larger_clusters_that_keep_to_it(seed):
    topology = random_topology(seed)
    before = 0
    for elements in (100, 1000, 1e4, 1e7):
        graph = choose_join_graph(topology, budget=Budget(16 * elements, 1e9))
        widest = max(table(topology.sizes, scope) for scope in graph.scopes)
        assert widest >= before
        before = widest
        least = choose_join_graph(topology, budget=Budget(1, 1e9))
        assert graph.elements() <= max(elements, least.elements())
    assert graph.exact


def test_a_join_graph_is_that_of_its_own_arguments():
    """Whatever was asked before: a part that the cache's key lacks would give another's graph."""
    scopes = [(row * 6 + i, row * 6 + i + 1) for row in range(6) for i in range(5)]
    scopes += [(row * 6 + i, row * 6 + 6 + i) for row in range(5) for i in range(6)]
    given = {"topology": Topology(tuple(scopes), (3,) * 36), "budget": Budget(1e5, 60.0)}
    first = choose_join_graph(**given)
    changes = [
        {"topology": Topology(tuple(scopes[1:]), (3,) * 36)}, {"budget": Budget(1e4, 60.0)},
        {"budget": Budget(1e5, 1e-4)}, {"batch": 10},
        {"budget": Budget(1e5, 60.0, measured=True)},
    ]  # fmt: skip
    for change in changes:
        second = choose_join_graph(**(given | change))
        assert second is not first
        assert choose_join_graph(**(given | change)) is second
    assert choose_join_graph(**given) is first
