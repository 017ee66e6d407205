"""Small models from flat arrays: as contraction answers them, and as enumeration does."""

import math

import pytest
import torch

import rdpgraph as rg
from rdpgraph.testing import brute_force

DOUBLE = torch.float64
SEEN = {"c": 1, "e": 0}


def leaves(seed=0, zeros=0.0, dtype=DOUBLE, scale=1.0):
    """Log-tables of a model with a cycle, a variable that two trees share, and a constant."""
    generator = torch.Generator().manual_seed(seed)
    found = []
    for shape in ((2, 3), (3, 4), (4, 2), (3, 2), (3, 2, 2), (), (2,), (5,)):
        values = scale * torch.randn(shape, generator=generator, dtype=dtype)
        gone = torch.rand(shape, generator=generator) < zeros
        values = values.masked_fill(gone & (len(shape) > 0), -math.inf)
        found.append(values.requires_grad_())
    return found


def declared(tables):
    a, b, c, d, e, f, g, h, i = (
        rg.Variable(name, size)
        for name, size in zip("abcdefghi", (2, 3, 4, 2, 2, 5, 1, 3, 3), strict=True)
    )
    scopes = ((a, b), (b, c), (c, a), (b, d), (b, d, e), (), (d,), (f,))
    factors = [rg.Factor(s, rg.Table(t)) for s, t in zip(scopes, tables, strict=True)]
    factors.append(rg.Factor((h, d), rg.Table(tables[3])))  # a table that two factors have
    return rg.FactorGraph(factors, variables=(a, b, c, d, e, f, g, h, i))


def in_small(graph):
    """The answers of compiled buckets."""
    assert rg.Contraction().small(graph) is not None
    return rg.infer(graph).solution


def close(found, expected):
    torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("evidence", [{}, SEEN, dict.fromkeys("abcdefghi", 0)])
@pytest.mark.parametrize("zeros", [0.0, 0.3])
@pytest.mark.parametrize("seed", range(4))
def test_answers_are_those_of_contraction(seed, zeros, evidence):
    tables = leaves(seed, zeros)
    graph = declared(tables)
    graph = graph.condition(evidence) if evidence else graph
    general, small = rg.Contraction().solve(graph), in_small(graph)
    close(small.log_partition(), general.log_partition())
    close(small.log_partition(), brute_force(graph).log_partition.reshape(1))
    with torch.no_grad():
        flat = in_small(graph).variable_marginals()
        close(flat, general.variable_marginals())
    if small.log_partition() == -math.inf:
        assert not flat.any()
        return
    found, expected = (
        torch.autograd.grad(
            each.log_partition(), tables, create_graph=True, allow_unused=True,
            materialize_grads=True,
        )
        for each in (small, general)
    )  # fmt: skip
    for ours, theirs in zip(found, expected, strict=True):
        close(ours, theirs)
    weight = [torch.full_like(part, 0.3 + place) for place, part in enumerate(tables)]
    again = [
        torch.autograd.grad(
            sum((w * part).sum() for w, part in zip(weight, each, strict=True)), tables,
            allow_unused=True, materialize_grads=True,
        )
        if any(part.requires_grad for part in each)
        else [torch.zeros_like(part) for part in tables]
        for each in (found, expected)
    ]  # fmt: skip
    for ours, theirs in zip(*again, strict=True):
        close(ours, theirs)


def test_gradients_of_gradients_are_those_of_differences():
    tables = [part.detach() for part in leaves(7)]

    def log_z(*given):
        return in_small(declared(list(given)).condition(SEEN)).log_partition()

    given = [part.requires_grad_() for part in tables]
    assert torch.autograd.gradcheck(log_z, given, fast_mode=True)
    assert torch.autograd.gradgradcheck(log_z, given, fast_mode=True)


def test_an_observed_state_has_probability_one():
    flat = rg.infer(declared(leaves(3)).condition(SEEN))
    assert flat.marginal("c").tolist() == [0.0, 1.0, 0.0, 0.0]
    assert flat.marginal("e").tolist() == [1.0, 0.0]


def test_single_precision_is_kept():
    tables = leaves(1, dtype=torch.float32)
    graph = declared(tables)
    posterior = rg.infer(graph)
    exact = rg.infer(declared([part.double() for part in tables]))
    assert posterior.log_partition.dtype == posterior.marginal("a").dtype == torch.float32
    torch.testing.assert_close(posterior.log_partition.double(), exact.log_partition)
    with torch.no_grad():
        torch.testing.assert_close(rg.infer(graph).marginal("c").double(), exact.marginal("c"))
    found = torch.autograd.grad(posterior.log_partition, tables)
    assert all(part.dtype == torch.float32 for part in found)


def test_tables_of_a_wide_range_are_answered_in_logarithms():
    for graph in (declared(leaves(2, scale=400.0)), declared(leaves(2, scale=1e5))):
        general = rg.Contraction().solve(graph)
        close(in_small(graph).log_partition(), general.log_partition())
        close(rg.infer(graph).log_partition, general.log_partition()[0])


def test_blocks_with_rows_and_shared_tables_are_read_alike():
    x = rg.VariableArray("x", (3, 4), 2)
    values = torch.randn(3, 3, 2, 2, generator=torch.Generator().manual_seed(1), dtype=DOUBLE)
    single = rg.Table(values[0, 0])
    graph = rg.FactorGraph(
        [
            rg.FactorBlock((x[:, :-1], x[:, 1:]), rg.Table(values)),
            rg.FactorBlock((x[:-1], x[1:]), rg.Table(values[0, 0].reshape(1, 1, 2, 2))),
            rg.Factor((x[0, 0], x[2, 3]), rg.Table(values[1, 1])),
            rg.Factor((x[0, 3], x[2, 0]), single),
            rg.Factor((x[0, 1], x[2, 1]), single),
        ]
    )
    general, small = rg.Contraction().solve(graph), in_small(graph)
    close(small.log_partition(), general.log_partition())
    close(small.variable_marginals(), general.variable_marginals())


def test_what_is_no_small_table_goes_to_contraction():
    x = rg.VariableArray("x", (3,), 2)
    one = rg.Factor((x[0],), rg.Table(torch.zeros(2)))
    for other in (
        rg.Factor((x[0], x[1], x[2]), rg.Or(3)),
        rg.Factor((x[0],), rg.Table(torch.zeros(4, 2))),
        rg.Factor((x[0],), rg.Table(torch.zeros(2, dtype=torch.float16))),
    ):
        assert rg.Contraction().small(rg.FactorGraph([one, other])) is None
    graph = rg.FactorGraph([one])
    assert rg.Contraction().small(graph) is not None
    assert rg.Contraction().small(graph.condition({"x[0]": [0, 1]})) is None
    assert rg.Contraction().small(rg.FactorGraph([], variables=[x])) is None
    large = rg.VariableArray("y", (30, 30), 2)
    pairs = rg.FactorBlock((large[:-1], large[1:]), rg.Table(torch.zeros(2, 2)))
    across = rg.FactorBlock((large[:, :-1], large[:, 1:]), rg.Table(torch.zeros(2, 2)))
    assert rg.Contraction().small(rg.FactorGraph([pairs, across])) is None


def test_a_budget_that_is_no_more_than_a_small_graph_may_take_is_kept():
    graph = declared(leaves(5))
    assert rg.Contraction().small(graph) is not None
    assert rg.Contraction(memory=1e6).small(graph) is None
    assert rg.Contraction(seconds=0.5).small(graph) is None
    with pytest.raises(rg.errors.BudgetError):
        rg.infer(graph, scheduler=rg.Contraction(memory=8.0))


def test_registered_structures_come_first_where_they_are_not_small():
    chain = rg.Chain(torch.randn(9000, 2), torch.randn(2, 2)).factor_graph()
    assert rg.Auto().small(chain) is None
    assert rg.Contraction().small(chain) is None
    assert rg.infer(chain).status.route == "structure"


@pytest.mark.parametrize("length", [1, 2, 3, 40])
def test_buckets_answer_for_a_small_structure_before_it_is_recognised(length):
    generator = torch.Generator().manual_seed(length)
    unary = torch.randn(length, 3, generator=generator, dtype=DOUBLE, requires_grad=True)
    links = torch.randn(3, 3, generator=generator, dtype=DOUBLE, requires_grad=True)
    with torch.no_grad():
        links[0, 1] = -math.inf
    chain = rg.Chain(unary, links)
    graph = chain.factor_graph()
    posterior = rg.infer(graph)
    assert posterior.status_of("log_partition").route == "buckets"
    assert posterior.plan.route == ("structure" if length > 2 else "forest")  # of the rest
    close(posterior.log_partition, chain.log_partition())
    close(posterior.marginal("site"), chain.marginals())
    close(posterior.entropy(), chain.entropy())
    given = [unary, links][: 1 + (length > 1)]
    weights = torch.randn(length, 3, generator=generator, dtype=DOUBLE)
    for ours, theirs in (
        (posterior.log_partition, chain.log_partition()),
        ((posterior.marginal("site") * weights).sum(), (chain.marginals() * weights).sum()),
    ):
        slopes = [torch.autograd.grad(value, given, retain_graph=True) for value in (ours, theirs)]
        for one, other in zip(*slopes, strict=True):
            close(one, other)
    assert bool(graph.score(posterior.mode()) == chain.score(chain.mode()))


def test_other_ways_to_differentiate_are_left_to_contraction():
    tables = [part.detach() for part in leaves(6)]

    def log_z(*given):
        return rg.Contraction().small(declared(list(given)))

    with torch.autograd.forward_ad.dual_level():
        assert log_z(*tables) is None
    assert log_z(*tables) is not None


def test_other_evidence_is_answered_by_the_same_buckets():
    graph = declared([part.detach() for part in leaves(4)])
    for state in (0, 1, 2):
        posterior = rg.infer(graph.condition({"c": state, "f": state}))
        expected = rg.Contraction().solve(posterior.graph)
        close(posterior.log_partition, expected.log_partition()[0])
        close(posterior.marginal("b"), expected.variable_marginals()[0, 2:5])
        assert str(posterior.plan) == str(rg.explain(posterior.graph))


@pytest.mark.parametrize(("length", "states", "levels"), [(60, 2, 16), (40, 10, 0)])
def test_second_derivatives_of_a_long_model_are_those_of_its_structure(length, states, levels):
    generator = torch.Generator().manual_seed(length)
    unary = torch.randn(length, states, generator=generator, dtype=DOUBLE, requires_grad=True)
    links = torch.randn(states, states, generator=generator, dtype=DOUBLE, requires_grad=True)
    chain = rg.Chain(unary, links)
    graph = chain.factor_graph()
    found = len(rg.Auto().small(graph).buckets.levels)
    assert found <= levels if levels else found > 16  # by torch on the buckets, or in general
    second = []
    for log_z in (rg.infer(graph).log_partition, chain.log_partition()):
        first = torch.autograd.grad(log_z, (unary, links), create_graph=True)
        squares = sum((part**2).sum() for part in first)
        second.append(torch.autograd.grad(squares, (unary, links)))
    for ours, theirs in zip(*second, strict=True):
        close(ours, theirs)
