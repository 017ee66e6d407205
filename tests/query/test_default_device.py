"""Answers are computed where a graph's tensors are, and not on torch's default device."""

from collections.abc import Mapping

import pytest
import torch

import rdpgraph as rg
from tests.questions import QUESTIONS, seeded


def draw(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def grid(height, width, states):
    sites = rg.VariableArray("site", (height, width), states)
    near = rg.Table(draw(states, states, seed=1))
    slots = [(sites[:, 1:], sites[:, :-1]), (sites[1:], sites[:-1])]
    blocks = [rg.FactorBlock(pair, near) for pair in slots if pair[0].shape[0] and pair[0].shape[1]]
    return rg.FactorGraph(
        [rg.FactorBlock((sites,), rg.Table(draw(height, width, states))), *blocks]
    )


def mixed():
    bits = [rg.Variable(f"bit{number}", 2) for number in range(4)]
    cells = torch.tensor([[0, 1], [1, 0]])
    return rg.FactorGraph(
        [
            rg.Factor(bits[:3], rg.Or(3, dtype=torch.float64)),
            rg.Factor(bits, rg.Automaton(torch.tensor([[0, 1], [1, 0]]), draw(2), 4)),
            rg.Factor(bits[:2], rg.Sparse(cells, draw(2, seed=1), (2, 2))),
            *(rg.Factor([bit], rg.Table(draw(2, seed=2))) for bit in bits),
        ]
    )


def settled():
    graph = grid(2, 2, 2)
    return graph.condition({graph.variables[0]: torch.tensor([[0, 1], [1, 0]])})


def rows():
    graph = grid(2, 3, 2)
    seen = [[[0, -1, 1], [-1, 1, -1]], [[-1, 0, -1], [1, -1, 0]], [[-1, -1, -1], [-1, -1, -1]]]
    return graph.condition({graph.variables[0]: torch.tensor(seen)})


GRAPHS = {
    "loops": lambda: grid(3, 3, 3),
    "a chain": lambda: grid(1, 5, 3),
    "potentials of all kinds": lambda: mixed().condition({"bit1": 0}),
    "nothing left": settled,
    "rows with gaps": rows,
}
SOLVED_BY = {
    "exactly": {},
    "by messages": {"scheduler": rg.Loopy()},
    "by clusters": {"scheduler": rg.JoinGraph(3)},
    "by mini-buckets": {"scheduler": rg.MiniBuckets(5.0, 2e3, 20)},
    "by a search": {"scheduler": rg.Search()},
    "by a few states": {"estimator": rg.Randomized.default(keep=0.6, replicates=2)},
    "by a pilot": {"estimator": rg.Randomized.piloted(keep=0.6, replicates=2)},
    "by ranks": {"estimator": rg.LowRankFactors(4)},
    "within masks": {"estimator": rg.RandomizedPruning(sweeps=3)},
}
ASKED = QUESTIONS | {
    "rsample": lambda posterior: posterior.rsample(temperature=0.5, generator=seeded()),
}


def answers(graph, choices):
    """Every answer, and the refusals."""
    source, found, refused = torch.Generator().manual_seed(0), {}, {}
    posterior = rg.infer(graph, **choices, generator=source)
    for question, ask in ASKED.items():
        try:
            answer = ask(posterior)
            found[question] = dict(answer) if isinstance(answer, Mapping) else answer
        except rg.errors.RdpgraphError as refusal:
            refused[question] = str(refusal)
    return found, refused


@pytest.mark.long
@pytest.mark.cover(1)
@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("solved_by", SOLVED_BY)
def test_answers_are_computed_where_the_tensors_are(name, solved_by):
    graph = GRAPHS[name]()
    with torch.device("meta"):
        found, refused = answers(graph, SOLVED_BY[solved_by])
    expected, as_well = answers(graph, SOLVED_BY[solved_by])
    torch.testing.assert_close(found, expected)
    assert refused == as_well


def test_small_graphs_are_answered_where_the_tensors_are():
    """Compiled code reads numbers on the CPU, which a tensor of another device does not have."""
    graph = grid(3, 3, 2)
    expected = rg.infer(graph)
    with torch.device("meta"):
        found = rg.infer(graph)
        log_z, marginal = found.log_partition, found.marginal("site[1,1]")
    assert found.status.route == "buckets"
    assert torch.equal(log_z, expected.log_partition)
    assert torch.equal(marginal, expected.marginal("site[1,1]"))
