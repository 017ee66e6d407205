"""Counting numbers: appearance probabilities, upper bounds, and the two ends of `Fractional`."""

import itertools
import math

import networkx as nx
import pytest
import torch

import rdpgraph as rg
from rdpgraph.testing import brute_force
from tests.engines.loopy.helpers import (
    ising,
    loopy,
    mixed,
    mixed_tables,
    randn,
    random_grid,
    random_tree,
    same,
    seeded,
)


def pairwise(count, pairs, states=2, seed=0):
    variables = [rg.Variable(f"x{i}", states) for i in range(count)]
    tables = randn(seed, len(pairs), states, states)
    factors = [
        rg.Factor((variables[a], variables[b]), rg.Table(t))
        for (a, b), t in zip(pairs, tables, strict=True)
    ]
    return rg.FactorGraph(factors, variables=variables)


class Noted(rg.loopy.CountingNumbers):
    """The numbers of another way, which are noted with the edges that they are of."""

    def __init__(self, how):
        self.how = how

    def numbers(self, edges):
        self.edges, self.found = edges, self.how.numbers(edges)
        return self.found


def noted(graph, how=None):
    counting = Noted(how or rg.loopy.TreeReweighted())
    loopy(graph, counting=counting, sweeps=1).log_partition  # noqa: B018
    return counting


def appearances(graph, how=None):
    return torch.cat(noted(graph, how).found)


def is_forest(scopes, chosen):
    """True if some factors have no cycle, seen as a graph of factors and variables."""
    graph = nx.Graph()
    links = 0
    for factor in chosen:
        graph.add_edges_from((("f", factor), variable) for variable in scopes[factor])
        links += len(scopes[factor])
    return not links or nx.is_forest(graph)


PAIRS = [(0, 1), (1, 2), (2, 0), (2, 3), (3, 4), (4, 2), (0, 4)]


@pytest.mark.long
@pytest.mark.parametrize("pairs", [PAIRS, [*PAIRS, (1, 0)], PAIRS[:5], PAIRS[:1]])
def test_appearance_probabilities_are_those_of_all_spanning_trees(pairs):
    count = 1 + max(max(pair) for pair in pairs)
    size = count - 1
    hits, trees = torch.zeros(len(pairs), dtype=torch.float64), 0
    for chosen in itertools.combinations(range(len(pairs)), size):
        multigraph = nx.MultiGraph([pairs[place] for place in chosen])
        if multigraph.number_of_nodes() == count and nx.is_tree(multigraph):
            trees += 1
            hits[list(chosen)] += 1
    same(appearances(pairwise(count, pairs)), hits / trees)


@pytest.mark.parametrize("seed", range(5))
def test_appearance_probabilities_sum_to_the_edges_of_a_spanning_forest(seed):
    graph = nx.gnm_random_graph(14, 20, seed=seed)
    numbers = appearances(pairwise(14, list(graph.edges)))
    assert bool((numbers > 0).all())
    assert bool((numbers <= 1).all())
    same(numbers.sum(), 14.0 - nx.number_connected_components(graph))
    bridges = {tuple(sorted(pair)) for pair in nx.bridges(graph)}
    certain = {tuple(sorted(p)) for p, n in zip(graph.edges, numbers, strict=True) if n > 1 - 1e-9}
    assert certain == bridges


def test_a_settled_slot_is_no_variable_of_the_trees():
    """Evidence that leaves one slot of some factors: they are in every tree, and no edge."""
    x = rg.VariableArray("x", (3, 3, 3), 2)
    triples = rg.FactorBlock(
        (x[:, :, 0], x[:, :, 1], x[:, :, 2]), rg.Table(randn(0, 3, 3, 2, 2, 2))
    )
    across = rg.FactorBlock((x[:-1, :, 0], x[1:, :, 0]), rg.Table(randn(1, 2, 2)))
    seen = torch.full((3, 3, 3), -1)
    seen[:, :, 1] = 1
    seen[0, 0, 2] = 0
    graph = rg.FactorGraph([triples, across]).condition({x: seen})
    posterior = loopy(graph, counting=rg.loopy.TreeReweighted())
    same(posterior.log_partition, loopy(graph).log_partition)  # it is a tree
    same(posterior.log_partition, rg.infer(graph).log_partition)


def test_a_logical_factor_with_one_slot_left_is_in_every_tree():
    count = 11
    bits = rg.VariableArray("bit", (2, count), 2)
    slots = tuple(bits[:, place] for place in range(count))
    logical = rg.FactorBlock(slots, rg.Cardinality(count, at_most=5, dtype=torch.float64))
    single = rg.FactorBlock((bits,), rg.Table(randn(0, 2, count, 2)))
    link = rg.Factor((bits[0, 0], bits[1, 0]), rg.Table(randn(1, 2, 2)))
    seen = torch.zeros(2, count, dtype=torch.long)
    seen[0, :2] = -1  # two slots left
    seen[1, :1] = -1  # one
    graph = rg.FactorGraph([logical, single, link]).condition({bits: seen})
    same(appearances(graph), torch.ones(3, dtype=torch.float64))
    posterior = loopy(graph, counting=rg.loopy.TreeReweighted())
    same(posterior.log_partition, rg.infer(graph).log_partition)


def test_a_logical_factor_with_no_slot_left_takes_no_part():
    x = [rg.Variable(f"x{i}", 2) for i in range(12)]
    logical = rg.Factor(tuple(x[:9]), rg.Or(9, dtype=torch.float64))
    pairs = [(9, 10), (10, 11), (11, 9), (0, 9)]
    links = [rg.Factor((x[a], x[b]), rg.Table(randn(n, 2, 2))) for n, (a, b) in enumerate(pairs)]
    graph = rg.FactorGraph([logical, *links]).condition(dict.fromkeys(x[:9], 1))
    posterior = loopy(graph, counting=rg.loopy.TreeReweighted(), damping=0.3)
    assert posterior.status.converged
    assert float(posterior.log_partition - rg.infer(graph).log_partition) >= -1e-8


def test_drawn_trees_are_acyclic_and_hold_every_factor():
    graph = mixed(mixed_tables(0))
    scopes = [row for own in noted(graph).edges.scopes for row in own.tolist()]
    for trees in (1, 8, 40):
        numbers = appearances(graph, rg.loopy.TreeReweighted(trees=trees))
        assert bool((numbers > 0).all())
        assert bool((numbers <= 1).all())
        # Every acyclic set is a corner, so no set of factors has more than its largest forest.
        for size in range(1, len(scopes) + 1):
            for chosen in itertools.combinations(range(len(scopes)), size):
                largest = max(
                    part
                    for part in range(size + 1)
                    if any(is_forest(scopes, c) for c in itertools.combinations(chosen, part))
                )
                assert float(numbers[list(chosen)].sum()) <= largest + 1e-9
    first, second = (appearances(graph, rg.loopy.TreeReweighted(seed=seed)) for seed in (0, 0))
    assert torch.equal(first, second)


def random_ising(seed, count, side, strength):
    """Grids with couplings of both signs, up to another strength in each item of a batch."""
    generator = seeded(seed)
    most = torch.rand([count, 1, 1], generator=generator, dtype=torch.float64) * strength

    def couplings(*shape):
        uniform = torch.rand([count, *shape], generator=generator, dtype=torch.float64)
        return (2 * uniform - 1) * most

    return ising(couplings(side, side - 1), couplings(side - 1, side), couplings(side, side) / 2)


@pytest.mark.long
@pytest.mark.parametrize(("side", "count"), [(3, 150), (4, 100)])
def test_tree_reweighting_bounds_log_z_of_random_grids(side, count):
    _, graph = random_ising(side, count, side, 2.0)
    truth = rg.infer(graph).log_partition
    how = {"counting": rg.loopy.TreeReweighted(), "damping": 0.5, "tolerance": 1e-5, "sweeps": 500}
    posterior = loopy(graph, **how)
    converged = posterior.solution.outcome.converged
    assert float(converged.double().mean()) > 0.95
    gap = posterior.log_partition - truth
    assert float(gap[converged].min()) >= -1e-6
    assert float(gap[converged].mean()) > 0.01  # it is a bound, not the answer
    assert posterior.status.bound == ("upper" if bool(converged.all()) else "")


def test_the_bound_is_said_and_only_where_it_holds():
    _, graph = random_grid(0, 4, 4, coupling=0.7)
    bound = loopy(graph, counting=rg.loopy.TreeReweighted(), damping=0.5)
    assert bound.status.bound == "upper"
    assert not bound.status.exact
    assert float(bound.log_partition) >= float(rg.infer(graph).log_partition)
    assert loopy(graph).status.bound == ""
    assert loopy(graph, counting=rg.loopy.Fractional(0.5), damping=0.5).status.bound == ""
    assert loopy(graph, counting=rg.loopy.TreeReweighted(), sweeps=2).status.bound == ""


@pytest.mark.long
@pytest.mark.parametrize("name", ["flooding", "sequential"])
def test_the_bound_holds_for_evidence_and_more_states(name):
    pixels, graph = random_grid(1, 3, 3, 3, coupling=1.0)
    graph = graph.condition({pixels[1, 1]: [-1, 0, 2]})
    posterior = loopy(graph, name, counting=rg.loopy.TreeReweighted(), damping=0.3)
    assert posterior.status.converged
    gap = posterior.log_partition - brute_force(graph).log_partition
    assert bool((gap >= -1e-8).all())


def triples(seed, batch):
    """Two overlapping rings of factors of three variables, with hard zeros."""
    variables = [rg.Variable(f"x{i}", 2 + i % 2) for i in range(7)]
    scopes = [(0, 1, 2), (2, 3, 4), (4, 5, 0), (1, 3, 5), (6, 0, 3), (5, 6, 2)]
    factors = []
    for n, scope in enumerate(scopes):
        own = tuple(variables[i] for i in scope)
        values = randn(seed + n, batch, *(v.size for v in own)) * 1.5
        if n == 0:
            values[:, 1, 2, 0] = -math.inf
        factors.append(rg.Factor(own, rg.Table(values)))
    return rg.FactorGraph(factors)


@pytest.mark.long
@pytest.mark.parametrize("trees", [1, 8])
def test_drawn_trees_bound_log_z_of_factors_of_three(trees):
    graph = triples(0, 50)
    how = rg.loopy.TreeReweighted(trees=trees)
    posterior = loopy(graph, counting=how, damping=0.5, tolerance=1e-6, sweeps=300)
    converged = posterior.solution.outcome.converged
    assert float(converged.double().mean()) > 0.95
    gap = posterior.log_partition - rg.infer(graph).log_partition
    assert float(gap[converged].min()) >= -1e-6


def test_drawn_trees_bound_log_z_too():
    x, graph = random_ising(0, 50, 3, 1.0)
    triple = rg.Factor((x[0, 0], x[1, 0], x[1, 1]), rg.Table(0.1 * randn(1, 2, 2, 2)))
    graph = graph.with_factors(triple)  # of pairs alone no trees are drawn
    exact_trees = loopy(graph, counting=rg.loopy.TreeReweighted(), damping=0.5, tolerance=1e-9)
    numbers = appearances(graph, rg.loopy.TreeReweighted(trees=20))
    same((numbers * 20).round() / 20, numbers)
    drawn = loopy(graph, counting=rg.loopy.TreeReweighted(trees=20), damping=0.5, tolerance=1e-9)
    truth = rg.infer(graph).log_partition
    for posterior in (exact_trees, drawn):
        assert posterior.status.converged
        assert float((posterior.log_partition - truth).min()) >= -1e-6


@pytest.mark.long
@pytest.mark.parametrize("temperature", [0.5, 2.0])
def test_the_bound_holds_at_other_temperatures(temperature):
    _, graph = random_ising(1, 40, 3, 1.5)
    truth = brute_force(graph).scores
    tempered = temperature * (truth / temperature).logsumexp(0)
    posterior = loopy(
        graph,
        counting=rg.loopy.TreeReweighted(),
        damping=0.5,
        temperature=temperature,
        tolerance=1e-6,
    )
    converged = posterior.solution.outcome.converged
    assert float(converged.double().mean()) > 0.9
    assert float((posterior.log_partition - tempered)[converged].min()) >= -1e-6


def test_tree_reweighting_of_trees_is_exact():
    for seed in range(5):
        drawn = random_tree(seed, batch=(2,), zeros=0.2, evidence="rows")
        posterior, truth = (
            loopy(drawn.graph, counting=rg.loopy.TreeReweighted()),
            brute_force(drawn.graph),
        )
        same(posterior.log_partition, truth.log_partition)
        for variable in drawn.graph.variables:
            same(posterior.marginal(variable), truth.joint((variable,)))


@pytest.mark.long
@pytest.mark.cover(1)
@pytest.mark.parametrize("temperature", [1.0, 0.6, 0.0])
@pytest.mark.parametrize("name", ["flooding", "sequential"])
def test_fractional_of_one_is_bethe(name, temperature):
    options = {"temperature": temperature, "damping": 0.2, "tolerance": 1e-10}
    for graph in (mixed(mixed_tables(0, 0.1)), random_grid(0, 3, 3, coupling=0.2)[1]):
        one = loopy(graph, name, counting=rg.loopy.Fractional(1.0), **options)
        plain = loopy(graph, name, **options)
        assert one.status.converged
        same(one.log_partition, plain.log_partition)
        for variable, marginal in plain.marginals().items():
            same(one.marginal(variable), marginal)


def test_fractional_of_a_large_number_is_mean_field():
    """The entropy is sum H_i - c sum I_f, I_f >= 0 the mutual information within a factor's belief.

    As c grows beliefs become products, b_i ~ exp E[score | x_i], and log Z a lower bound.
    """
    number = 1e4
    pixels, graph = random_grid(0, 3, 3, coupling=0.4)
    posterior = loopy(graph, counting=rg.loopy.Fractional(number), tolerance=1e-15)
    beliefs = posterior.marginal(pixels).reshape(9, 2)
    truth = brute_force(graph)
    chosen = beliefs[torch.arange(9), truth.configurations]  # (C, 9) each variable's own belief
    scores = truth.scores[:, 0]
    for variable in range(9):
        others = chosen.clone()
        others[:, variable] = 1.0
        weighted = others.prod(1) * scores
        at = truth.configurations[:, variable]
        expected = torch.stack([weighted[at == state].sum() for state in (0, 1)])
        same(expected.softmax(0), beliefs[variable], 10 / number)
    product = chosen.prod(1)
    mean_field = (product * (scores - product.log())).sum()
    same(posterior.log_partition, mean_field, 10 / number)
    assert float(mean_field) < float(truth.log_partition)


def test_log_z_falls_as_the_counting_number_grows():
    """The same formula gives the maximum over beliefs of an expression that falls in c."""
    _, graph = random_grid(0, 3, 3, coupling=0.4)
    found = [
        float(loopy(graph, counting=rg.loopy.Fractional(number), damping=0.3).log_partition)
        for number in (0.3, 0.6, 1.0, 2.0, 10.0, 100.0)
    ]
    assert found == sorted(found, reverse=True)


def test_what_counting_numbers_refuse():
    for number in (0.0, -1.0, math.nan):
        with pytest.raises(rg.errors.ModelError, match="number above 0"):
            rg.loopy.Fractional(number)
