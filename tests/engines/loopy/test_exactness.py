"""Loopy belief propagation where it is exact (trees), and where its error is known (one loop)."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import rdpgraph as rg
from rdpgraph.testing import brute_force
from tests.engines.loopy.helpers import SCHEDULES, loopy, randn, random_tree, same

DAMPINGS = (
    0.0,
    rg.loopy.LogDamping(0.5),
    rg.loopy.ProbabilityDamping(0.0),
    rg.loopy.ProbabilityDamping(0.4),
)


def check_against_enumeration(drawn, name, **options):
    graph = drawn.graph
    truth, posterior = brute_force(graph), loopy(graph, name, **options)
    assert posterior.status.converged
    assert posterior.status.exact
    assert posterior.status.bound == ""
    assert posterior.log_partition.shape == graph.batch_shape
    same(posterior.log_partition, truth.log_partition)
    for variable in graph.variables:
        same(posterior.marginal(variable), truth.joint((variable,)))
    for factor in drawn.factors:
        if factor.variables:
            same(posterior.factor_marginal(factor), truth.joint(factor.variables))
            back = factor.variables[::-1]
            same(posterior.factor_marginal(back), truth.joint(back))
    same(posterior.entropy(), truth.entropy, 1e-6)
    if bool((truth.log_partition == -torch.inf).any()):
        with pytest.raises(rg.errors.ImpossibleEvidenceError):
            posterior.mode()
        return
    same(graph.score({**posterior.mode()}), truth.maximum)
    best = posterior.max_marginals()
    for variable in graph.variables:
        same(best[variable], truth.max_marginal(variable))


@pytest.mark.long
@settings(max_examples=10)
@given(
    seed=st.integers(0, 10**6),
    batch=st.sampled_from([(), (), (3,), (2, 2)]),
    zeros=st.sampled_from([0.0, 0.25]),
    evidence=st.sampled_from(["none", "hard", "rows"]),
    name=st.sampled_from(SCHEDULES),
    damping=st.sampled_from(DAMPINGS),
)
def test_everything_on_trees_is_that_of_enumeration(seed, batch, zeros, evidence, name, damping):
    drawn = random_tree(seed, batch=batch, zeros=zeros, evidence=evidence)
    check_against_enumeration(drawn, name, damping=damping)


@pytest.mark.long
@pytest.mark.cover(1)
@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("damping", [0.0, 0.4, rg.loopy.ProbabilityDamping(0.5)], ids=str)
def test_every_schedule_with_every_damping(name, damping):
    check_against_enumeration(random_tree(2, scale=2.0), name, damping=damping)
    check_against_enumeration(random_tree(5, batch=(2,), evidence="rows"), name, damping=damping)


@pytest.mark.parametrize("name", SCHEDULES)
def test_hard_zeros_that_only_some_batch_items_have(name):
    for seed in range(2):
        drawn = random_tree(seed, batch=(4,), zeros=0.3, evidence="rows")
        check_against_enumeration(drawn, name)


@pytest.mark.parametrize("share", [0.3, 0.7])
def test_probability_damping_loses_no_hard_zero(share):
    """Item 0 of two is impossible, whatever share of the first, flat messages is kept."""
    x, y, z = (rg.Variable(name, 2) for name in "xyz")
    equal = torch.eye(2, dtype=torch.float64).log()
    graph = rg.FactorGraph([rg.Factor(pair, rg.Table(equal)) for pair in ((x, y), (y, z))])
    graph = graph.condition({x: [0, -1], z: [1, -1]})
    truth = brute_force(graph)
    posterior = loopy(graph, damping=rg.loopy.ProbabilityDamping(share))
    same(posterior.log_partition, truth.log_partition)
    same(posterior.marginal(y), truth.joint((y,)))
    same(posterior.max_marginals()[y], truth.max_marginal(y))


def test_the_joint_of_two_variables_that_other_factors_hold_in_another_order():
    """The first factor of the block holds only one of them, in another slot than the second."""
    a, b, c = (rg.Variable(name, 2) for name in "abc")
    graph = rg.FactorGraph(
        [rg.Factor(p, rg.Table(randn(n, 2, 2))) for n, p in enumerate([(a, c), (b, a)])]
    )
    same(loopy(graph).factor_marginal((a, b)), brute_force(graph).joint((a, b)))


def test_lengths_zero_and_one():
    nothing = rg.FactorGraph([rg.Factor((), rg.Table(torch.tensor(0.7, dtype=torch.float64)))])
    posterior = loopy(nothing)
    assert float(posterior.log_partition) == 0.7
    assert posterior.status.exact
    assert posterior.mode() == {}
    a, b = rg.Variable("a", 3), rg.Variable("b", 2)
    alone = rg.FactorGraph([rg.Factor((a,), rg.Table(randn(0, 3)))], variables=[a, b])
    truth, posterior = brute_force(alone), loopy(alone)
    same(posterior.log_partition, truth.log_partition)
    same(posterior.marginal(b), truth.joint((b,)))
    same(alone.score({**posterior.mode()}), truth.maximum)
    single = rg.VariableArray("x", (1,), 3)
    chain = rg.FactorGraph(
        [
            rg.FactorBlock((single,), rg.Table(randn(1, 3))),
            rg.FactorBlock((single[:-1], single[1:]), rg.Table(randn(2, 3, 3))),
        ]
    )
    same(loopy(chain).log_partition, brute_force(chain).log_partition)
    observed = alone.condition({a: 1, b: 0})
    same(loopy(observed).log_partition, brute_force(observed).log_partition)


@pytest.mark.parametrize("name", SCHEDULES)
def test_an_empty_batch_gives_empty_answers(name):
    a, b = rg.Variable("a", 2), rg.Variable("b", 2)
    graph = rg.FactorGraph([rg.Factor((a, b), rg.Table(randn(0, 2, 2)))])
    graph = graph.with_factors(rg.Factor((a,), rg.Table(randn(1, 0, 2))))
    posterior = loopy(graph, name)
    assert posterior.log_partition.shape == posterior.mode()[a].shape == (0,)
    assert posterior.marginal(b).shape == (0, 2)


def test_variables_of_one_state_and_twice_the_same_scope():
    a, b, c = rg.Variable("a", 3), rg.Variable("b", 1), rg.Variable("c", 2)
    tree = rg.FactorGraph(
        [rg.Factor((a, b, c), rg.Table(randn(0, 3, 1, 2))), rg.Factor((b,), rg.Table(randn(1, 1)))]
    )
    truth, posterior = brute_force(tree), loopy(tree)
    assert posterior.status.exact
    same(posterior.log_partition, truth.log_partition)
    same(posterior.factor_marginal((c, a)), truth.joint((c, a)))
    twice = tree.with_factors(rg.Factor((c, a), rg.Table(randn(2, 2, 3))))
    assert not loopy(twice).status.exact


def ring(tables, unary):
    variables = [rg.Variable(f"x{i}", unary.shape[-1]) for i in range(len(tables))]
    pairs = zip(variables, [*variables[1:], variables[0]], strict=True)
    factors = [rg.Factor(p, rg.Table(t)) for p, t in zip(pairs, tables, strict=True)]
    factors += [rg.Factor((v,), rg.Table(u)) for v, u in zip(variables, unary, strict=True)]
    return variables, rg.FactorGraph(factors)


def round_trip(tables, unary, start):
    """The matrix of once around the loop, from and to variable ``start``, its unary included."""
    count, product = len(tables), torch.eye(unary.shape[-1], dtype=torch.float64)
    for step in range(count):
        here = (start + step) % count
        product = product @ torch.diag(unary[here].exp()) @ tables[here].exp()
    return product


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize(("length", "states"), [(3, 2), (4, 3), (5, 4)])
def test_beliefs_on_a_loop_are_those_of_the_principal_eigenvectors(name, length, states):
    """Messages around a single loop are the power iteration of its matrix (Weiss 2000)."""
    tables, unary = randn(0, length, states, states) * 1.5, randn(1, length, states)
    variables, graph = ring(tables, unary)
    posterior = loopy(graph, name)
    assert posterior.status.converged
    assert not posterior.status.exact
    for place, variable in enumerate(variables):
        matrix = round_trip(tables, unary, place)
        values, right = torch.linalg.eig(matrix)
        lefts, left = torch.linalg.eig(matrix.T)
        u = left[:, lefts.real.argmax()].real
        v = right[:, values.real.argmax()].real
        belief = u * v / (u @ v)
        same(posterior.marginal(variable), belief)
        same(posterior.log_partition, values.real.max().log())


@pytest.mark.parametrize("length", [3, 6])
def test_the_error_of_a_binary_loop_is_known(length):
    """p = (l1 b + l2 (1 - b)) / (l1 + l2), l the eigenvalues of the loop's matrix (Weiss 2000)."""
    tables, unary = randn(2, length, 2, 2) * 1.2, randn(3, length, 2)
    variables, graph = ring(tables, unary)
    truth, posterior = brute_force(graph), loopy(graph, damping=0.2)
    first, second = torch.linalg.eigvals(round_trip(tables, unary, 0)).real.sort(descending=True)[0]
    same(truth.log_partition, (first + second).log())
    for variable in variables:
        belief = posterior.marginal(variable)
        mixed = (first * belief + second * (1 - belief)) / (first + second)
        same(truth.joint((variable,)), mixed)
        assert float((truth.joint((variable,)) - belief).abs().max()) > 1e-6


@pytest.mark.parametrize("tolerance", [1e-5, 1e-2])
def test_messages_that_hardly_change_add_up_along_a_chain(tolerance):
    """Weak evidence on strong couplings: a sweep changes messages by less than the tolerance."""
    x = rg.VariableArray("x", (150,), 2)
    weak = rg.Table.from_logs(torch.tensor([0.0, 0.9 * tolerance], dtype=torch.float64))
    strong = rg.Table.from_logs(8.0 * torch.eye(2, dtype=torch.float64))
    graph = rg.FactorGraph([rg.FactorBlock((x,), weak), rg.FactorBlock((x[:-1], x[1:]), strong)])
    found = rg.infer(graph, scheduler=rg.Loopy(tolerance=tolerance))
    assert found.status.exact
    exact = rg.infer(graph, scheduler=rg.Contraction())
    same(found.marginal(x), exact.marginal(x))
    early = rg.infer(graph, scheduler=rg.Loopy(tolerance=tolerance, sweeps=3))
    assert not early.status.exact


@pytest.mark.parametrize(("count", "sizes"), [(26_000, (2, 2)), (51_000, (2, 3))])
def test_pairs_of_a_large_graph_are_as_each_by_itself(count, sizes):
    """Graphs of more edges are indexed in parts, and their marginals are read in place."""
    tables = randn(0, count, *sizes)
    ends = [rg.VariableArray(name, (count,), size) for name, size in zip("ab", sizes, strict=True)]
    posterior = loopy(rg.FactorGraph([rg.FactorBlock(tuple(ends), rg.Table(tables))]))
    joint = tables.flatten(1).softmax(1).reshape(tables.shape)
    same(posterior.marginal(ends[0]), joint.sum(2))
    same(posterior.marginal(ends[1]), joint.sum(1))
    same(posterior.log_partition, tables.flatten(1).logsumexp(1).sum())
    settled = posterior.graph.condition({ends[0][7]: 1})
    same(loopy(settled).marginal(ends[1][7]), tables[7, 1].softmax(0))


def test_states_of_a_large_graph_are_read_in_the_order_of_its_variables():
    values = randn(1, 1000, 3)
    ends = rg.VariableArray("x", (1000,), 3)
    backwards = rg.FactorBlock((ends[torch.arange(999, -1, -1)],), rg.Table(values))
    pairs = rg.FactorBlock((ends[1::2], ends[::2]), rg.Table(torch.zeros(3, 3).double()))
    posterior = loopy(rg.FactorGraph([pairs, backwards]))
    same(posterior.marginal(ends), values.flip(0).softmax(1))
