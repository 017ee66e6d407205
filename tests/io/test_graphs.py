"""networkx in both forms, both ways."""

import networkx as nx
import numpy as np
import pytest
import torch
from hypothesis import given, settings

from rdpgraph import (
    Factor,
    FactorGraph,
    Sparse,
    Table,
    Variable,
    VariableArray,
    from_networkx,
    to_networkx,
)
from rdpgraph.errors import ModelError, UnsupportedError
from tests.io.helpers import graphs, networks, same_graph

TABLE = [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]


@pytest.mark.long
@given(graphs(named=True))
@settings(deadline=None)
def test_bipartite_round_trip(graph):
    same_graph(from_networkx(to_networkx(graph)), graph)


@given(networks())
@settings(deadline=None)
def test_state_names_survive(graph):
    again = from_networkx(to_networkx(graph))
    assert [v.states for v in again.variables] == [v.states for v in graph.variables]


@pytest.mark.long
@given(graphs(most_slots=2))
@settings(deadline=None)
def test_pairwise_round_trip(graph):
    """Factors on one scope are added up, so the second trip is exact and the first keeps scores."""
    once = from_networkx(to_networkx(graph, bipartite=False))
    same_graph(from_networkx(to_networkx(once, bipartite=False)), once)
    states = {v.name: v.size - 1 for v in graph.variables}
    torch.testing.assert_close(once.score(states), graph.score(states), check_dtype=False)


def test_bipartite_form():
    a, b = Variable("a", ("x", "y")), Variable("b", 3)
    table = torch.tensor(TABLE)
    g = to_networkx(FactorGraph([Factor((b, a), Table(table.T))]))
    assert g.nodes["a"] == {"states": ("x", "y"), "bipartite": 0}
    assert g.nodes[("factor", 0)]["bipartite"] == 1
    assert torch.equal(g.nodes[("factor", 0)]["potential"], table.T)
    assert [g.edges[name, ("factor", 0)]["slot"] for name in "ba"] == [0, 1]
    assert nx.is_bipartite(g)


def pair(g, **edge):
    """A graph a - b in which a has 2 states, b has 3; the table's rows are a's by ``edge``."""
    g.add_node("a", states=2)
    g.add_node("b", states=3)
    g.add_edge(*edge.pop("ends", ("a", "b")), **edge)
    return from_networkx(g)


@pytest.mark.parametrize(
    "make",
    [
        lambda: pair(nx.Graph(), potential=TABLE),
        lambda: pair(nx.Graph(), potential=TABLE, ends=("b", "a")),
        lambda: pair(nx.Graph(), potential=np.array(TABLE).T, order=("b", "a")),
        lambda: pair(nx.Graph(), potential=TABLE, order=["a", "b"], ends=("b", "a")),
        lambda: pair(nx.DiGraph(), potential=torch.tensor(TABLE)),
        lambda: pair(nx.DiGraph(), potential=np.array(TABLE).T, ends=("b", "a")),
        lambda: pair(nx.DiGraph(), potential=Table(torch.tensor(TABLE).T), ends=("b", "a")),
        lambda: pair(nx.DiGraph(), potential=TABLE, ends=("b", "a"), order=("a", "b")),
        lambda: pair(nx.MultiGraph(), potential=TABLE, ends=("b", "a")),
    ],
)
def test_orientation(make):
    graph = make()
    for a in range(2):
        for b in range(3):
            assert float(graph.score({"a": a, "b": b})) == TABLE[a][b]


def test_undirected_rows_are_of_the_node_that_was_added_first():
    g = nx.Graph()
    g.add_node("b")
    g.add_edge("a", "b", potential=np.array(TABLE).T)
    assert [(v.name, v.size) for v in from_networkx(g).variables] == [("b", 3), ("a", 2)]


def test_both_directions_are_two_factors():
    g = nx.DiGraph()
    g.add_edge(0, 1, potential=TABLE)
    g.add_edge(1, 0, potential=np.array(TABLE).T)
    graph = from_networkx(g)
    assert graph.num_factors == 2
    assert float(graph.score({"0": 1, "1": 2})) == 2 * TABLE[1][2]


def test_sizes_constants_and_types_follow_the_attributes():
    g = nx.Graph(potential=2.0)
    g.add_node(("a", 1), potential=torch.zeros(4, dtype=torch.float32))
    g.add_node("named", states=["no", "yes"])
    g.add_node("alone", states=np.int64(3))
    graph = from_networkx(g)
    assert [(v.name, v.states) for v in graph.variables] == [
        ("('a', 1)", 4), ("named", ("no", "yes")), ("alone", 3)
    ]  # fmt: skip
    assert sorted(str(f.potential.dtype) for f in graph.factors()) == [
        "torch.float32", "torch.float64"
    ]  # fmt: skip
    assert float(graph.score({"('a', 1)": 0, "named": "no", "alone": 0})) == 2.0


def test_potential_objects_and_gradients_stay():
    weights = torch.zeros(2, requires_grad=True)
    same = Sparse(torch.tensor([[0, 0], [1, 1]]), weights, (2, 2))
    g = nx.Graph()
    g.add_edge("a", "b", potential=same)
    from_networkx(g).score({"a": 1, "b": 1}).backward()
    assert weights.grad.tolist() == [0.0, 1.0]


def test_batch_dims_and_arrays():
    pixels = VariableArray("p", (2,), 2)
    table = torch.arange(12.0).reshape(3, 2, 2)
    graph = FactorGraph([Factor((pixels[1], pixels[0]), Table(table))])
    for bipartite in (True, False):
        again = from_networkx(to_networkx(graph, bipartite=bipartite))
        assert again.batch_shape == (3,)
        assert again.score({"p[0]": 0, "p[1]": 1}).tolist() == table[:, 1, 0].tolist()


def bad_bipartite(**edge):
    g = nx.Graph()
    g.add_node("a", states=2, bipartite=0)
    g.add_node("b", states=2, bipartite=0)
    g.add_node("f", bipartite=1, potential=torch.zeros(2, 2))
    g.add_edge("a", "f", **edge)
    g.add_edge("b", "f", slot=1)
    return g


def with_nodes(*nodes, edges=()):
    g = nx.Graph()
    for node, data in nodes:
        g.add_node(node, **data)
    for left, right, data in edges:
        g.add_edge(left, right, **data)
    return g


@pytest.mark.parametrize(
    ("g", "message"),
    [
        (bad_bipartite(), "'f'.*slot"),
        (bad_bipartite(slot=1), "'f'.*slot"),
        (with_nodes(("a", {"bipartite": 0, "states": 2}), ("b", {})), "'b' needs bipartite"),
        (
            with_nodes(
                ("a", {"bipartite": 0, "states": 2}),
                ("b", {"bipartite": 0, "states": 2}),
                edges=[("a", "b", {})],
            ),
            "variable and a factor",
        ),
        (with_nodes(("f", {"bipartite": 1})), "'f' needs an attribute `potential`"),
        (with_nodes(("a", {})), "'a' needs an attribute `states`"),
        (with_nodes(("a", {"states": "ab"})), "'a' needs an attribute `states`.*'ab'"),
        (with_nodes(("a", {"states": 1.5})), "'a' needs an attribute `states`"),
        (with_nodes(("a", {"states": None, "potential": 0.0})), "dim per variable"),
        (with_nodes((1, {"states": 2}), ("1", {"states": 2})), "relabel"),
        (with_nodes(edges=[("a", "b", {})]), "'a' - 'b' needs an attribute `potential`"),
        (with_nodes(edges=[("a", "a", {"potential": TABLE})]), "loop"),
        (with_nodes(edges=[("a", "b", {"potential": TABLE, "order": "ac"})]), "`order`"),
        (with_nodes(("a", {"states": 2, "potential": [[0.0], [1.0, 2.0]]})), "'a'.*not a table"),
        (with_nodes(("a", {"states": 2, "potential": [0.0, float("nan")]})), "'a'.*NaN"),
        (with_nodes(("a", {"states": 2, "potential": [0.0, 0.0, 0.0]})), r"\(2,\)"),
    ],
)
def test_refused(g, message):
    with pytest.raises(ModelError, match=message):
        from_networkx(g)


def test_what_a_graph_cannot_hold_is_refused():
    a, b, c = (Variable(name, 2) for name in "abc")
    graph = FactorGraph([Factor((a, b, c), Table(torch.zeros(2, 2, 2)))])
    with pytest.raises(UnsupportedError, match="bipartite=True"):
        to_networkx(graph, bipartite=False)
    with pytest.raises(UnsupportedError, match="condition"):
        to_networkx(graph.condition({"a": 1}))
