"""Sites of structures, and what configurations use of them, as graphs and as pictures."""

import re
from collections import Counter

import networkx
import pytest
import torch

import rdpgraph as rg


def draw(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


HEADS = torch.tensor([0, 0, 1, 2, 3])
TAILS = torch.tensor([[-1, -1], [-1, -1], [0, -1], [0, 1], [2, 2]])
STRUCTURES = {
    "chain": lambda: rg.Chain(draw(4, 3), draw(3, 3, seed=1)),
    "segments": lambda: rg.SemiMarkov(draw(2, 4, 2, 2), draw(2, 2, seed=1)),
    "hypertree": lambda: rg.Hypertree(draw(4, 4, 2)),
    "projective": lambda: rg.ProjectiveDependencies(draw(4, 5)),
    "non-projective": lambda: rg.NonProjectiveDependencies(draw(2, 4, 5)),
    "derivations": lambda: rg.Derivations(draw(5), HEADS, TAILS, nodes=4),
    "alignment": lambda: rg.Alignment(draw(3, 4, 3)),
    "bitext": lambda: rg.Bitext.words(draw(2, 3), draw(2, seed=1), draw(3, seed=2)),
    "mixed": lambda: rg.MixedBitext(draw(3, 3, 3, 3, 1), draw(2, 2), draw(2), draw(2)),
}


@pytest.mark.parametrize("name", STRUCTURES)
def test_a_configuration_of_every_structure_is_connected_and_drawn(name, tmp_path):
    structure = STRUCTURES[name]()
    mode = structure.mode()
    graph = rg.to_networkx(structure, configuration=mode)
    used = [node for node, data in graph.nodes(data=True) if data["state"] is not None]
    states = structure.site_states(mode)
    first = states.reshape(-1, *structure.states_shape[len(structure.batch_shape) :])[0]
    least = 1 if name == "derivations" else 0
    assert len(used) == int((first >= least).sum())
    assert all(graph.nodes[node]["state"] == int(first[node]) for node in used)
    joined = graph.subgraph(used).to_undirected()
    assert networkx.is_connected(joined)
    assert name == "derivations" or networkx.is_tree(joined)  # which uses a node twice
    for target, given in (("mode.png", mode), ("sites.svg", None)):
        rg.draw(structure, tmp_path / target, given)
        assert (tmp_path / target).stat().st_size > 1000


def test_edges_are_those_of_trees_and_heads():
    spans = torch.full((3, 3), -1)
    spans[0, 2] = spans[1, 2] = spans[0, 0] = spans[1, 1] = spans[2, 2] = 0
    graph = rg.to_networkx(rg.Hypertree(draw(3, 3, 1)), configuration=spans)
    parts = {((0, 2), (0, 0)), ((0, 2), (1, 2)), ((1, 2), (1, 1)), ((1, 2), (2, 2))}
    assert set(graph.edges) == parts
    assert len(graph) == 6  # spans that end before they start are none
    heads = torch.tensor([2, 0, 2])
    graph = rg.to_networkx(rg.ProjectiveDependencies(draw(3, 4)), configuration=heads)
    assert set(graph.edges) == {(1, 0), (1, 2)}
    chain = rg.to_networkx(STRUCTURES["chain"]())
    assert set(chain.edges) == {(0, 1), (1, 2), (2, 3)}


def test_what_is_not_drawn_is_refused(tmp_path):
    chain = STRUCTURES["chain"]()
    with pytest.raises(rg.errors.FileFormatError, match=r"must end in \.png"):
        rg.draw(chain, tmp_path / "chain.txt")
    with pytest.raises(
        rg.errors.ModelError, match="draw needs model as a FactorGraph, a Posterior, a"
    ):
        rg.draw(3, tmp_path / "chain.png")
    with pytest.raises(rg.errors.UnsupportedError, match="not readable"):
        rg.draw(rg.Chain(torch.zeros(5000, 2), torch.zeros(2, 2)), tmp_path / "chain.png")


def test_plans_are_drawn_where_they_contract(tmp_path):
    graph = rg.read("examples/asia.bif")
    plan = rg.explain(graph)
    rg.draw(plan, tmp_path / "plan.svg")
    shown = Counter(re.findall("<!-- ([0-9x]+) -->", (tmp_path / "plan.svg").read_text()))
    factors = Counter("x".join(str(v.size) for v in f.variables) for f in graph.factors())
    assert plan.tree is not None
    assert shown.total() == len(plan.tree.scopes)
    assert factors <= shown
    assert shown["1"] == 1
    with pytest.raises(rg.errors.UnsupportedError, match="by loopy"):
        rg.draw(rg.explain(graph, rg.Loopy()), tmp_path / "plan.svg")


def test_graphs_and_posteriors_are_drawn(tmp_path):
    graph = rg.read("examples/asia.bif").condition({"dysp": "yes"})
    rg.draw(graph, tmp_path / "graph.svg")
    rg.draw(rg.infer(graph), tmp_path / "posterior.svg")  # which has bars
    sizes = [(tmp_path / f"{name}.svg").stat().st_size for name in ("graph", "posterior")]
    assert 1000 < sizes[0] < sizes[1]
    rg.draw(rg.infer(STRUCTURES["chain"]()), tmp_path / "chain.svg")
    with pytest.raises(rg.errors.ModelError, match="configurations of structures"):
        rg.draw(graph, tmp_path / "x.png", [0])
