"""States that hard zeros refute once they are assumed: found, exact, and no more than those."""

import math
from itertools import combinations

import pytest
import torch

import rdpgraph as rg
from rdpgraph.engines.reduction.network import reduce_graph
from rdpgraph.engines.reduction.probing import refuted_states
from rdpgraph.schedulers.scheduler import reduced
from rdpgraph.testing import brute_force


def random_clauses(seed: int, variables: int, clauses: int, sizes: tuple[int, ...] = (2,)):
    """Impossible configurations of two or three variables each, over random tables."""
    generator = torch.Generator().manual_seed(seed)

    def number(top: int) -> int:
        return int(torch.randint(top, (), generator=generator))

    nodes = [rg.Variable(f"x{i}", sizes[i % len(sizes)]) for i in range(variables)]
    factors: list[rg.Factor] = []
    for _ in range(clauses):
        arity = 2 + number(2)
        scope = [nodes[i] for i in torch.randperm(variables, generator=generator)[:arity].tolist()]
        table = torch.randn([node.size for node in scope], generator=generator).double()
        table[tuple(number(node.size) for node in scope)] = -math.inf
        factors.append(rg.Factor(tuple(scope), rg.Table(table)))
    return rg.FactorGraph(factors)


@pytest.mark.long
@pytest.mark.parametrize("sizes", [(2,), (3, 2)])
def test_only_states_without_a_configuration_are_refuted(sizes):
    found = 0
    for seed in range(30):
        graph = random_clauses(seed, 8, 16 if sizes == (2,) else 40, sizes)
        truth = brute_force(graph)
        network = reduce_graph(graph)
        if network.impossible or not len(network.sizes):
            continue
        for number, kept in refuted_states(network):
            possible = truth.joint((graph.domain.variable(number),)) > 0
            lost = [state for state in range(len(possible)) if state not in kept]
            left = network.states_left(
                torch.tensor([number]), network.sizes[network.active[number]]
            )
            found += sum(state in left for state in lost)
            assert not bool(possible[lost].any())
    assert found > 8  # arc consistency has not found these already


def test_a_chain_of_implications_that_refutes_its_beginning():
    """a implies b and c; not both: a is false, which no single factor says."""
    a, b, c = (rg.Variable(name, 2) for name in "abc")
    implies = rg.Table(torch.tensor([[0.0, 0.0], [-math.inf, 0.0]]))
    not_both = rg.Table(torch.tensor([[0.0, 0.0], [0.0, -math.inf]]))
    graph = rg.FactorGraph(
        [rg.Factor((a, b), implies), rg.Factor((a, c), implies), rg.Factor((b, c), not_both)]
    )
    network = reduce_graph(graph)
    assert network.dropped == 0
    assert refuted_states(network) == [(0, [0])]


def test_a_model_whose_every_assumption_fails_is_impossible():
    nodes = [rg.Variable(f"x{i}", 2) for i in range(3)]
    differ = rg.Table(torch.tensor([[-math.inf, 0.0], [0.0, -math.inf]]))
    graph = rg.FactorGraph([rg.Factor(pair, differ) for pair in combinations(nodes, 2)])
    network = reduce_graph(graph)
    assert not network.impossible
    assert refuted_states(network) == [(0, []), (1, []), (2, [])]


@pytest.mark.long
def test_answers_stay_the_same(monkeypatch):
    monkeypatch.setattr("rdpgraph.plan.planner.is_easy", lambda topology, **_options: False)
    dropped = 0
    for seed in range(40):
        graph = random_clauses(seed, 8, 16)
        truth = brute_force(graph)
        dropped += reduced(graph, 60.0).dropped - reduce_graph(graph).dropped
        posterior = rg.infer(graph, scheduler=rg.Contraction())
        torch.testing.assert_close(posterior.log_partition, truth.log_partition)
        for name in ("x0", "x6"):
            torch.testing.assert_close(posterior.marginal(name), truth.joint((name,)))
    assert dropped > 0


def test_evidence_in_some_rows_only():
    """States ruled out by one batch item are possible in another."""
    graph = random_clauses(3, 6, 10)
    batch = graph.condition({"x0": torch.tensor([0, 1, -1]), "x1": torch.tensor([1, -1, -1])})
    truth = brute_force(graph)
    joint = truth.joint(("x0", "x1", "x5"))
    network = reduce_graph(batch)
    for number, kept in refuted_states(network):
        possible = truth.joint((graph.domain.variable(number),)) > 0
        assert not bool(possible[[s for s in range(2) if s not in kept]].any())
    expected = torch.stack([joint[0, 1], joint[1].sum(0), joint.sum((0, 1))])
    answer = rg.infer(batch, scheduler=rg.Contraction()).marginal("x5")
    mass = expected.sum(1, keepdim=True)
    torch.testing.assert_close(answer, expected / torch.where(mass > 0, mass, 1.0))


def test_the_search_ends_with_its_looks(monkeypatch):
    graph = random_clauses(0, 8, 16)
    monkeypatch.setattr("rdpgraph._core.effort.PROBED_LOOKS", 0)
    assert refuted_states(reduce_graph(graph)) == []
