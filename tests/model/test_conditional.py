"""Bayesian networks from conditional tables, which are checked."""

import math

import pytest
import torch

import rdpgraph as rg
from rdpgraph.testing import brute_force

A, B = rg.Variable("a", ("no", "yes")), rg.Variable("b", 3)
C = rg.Variable("c", 2)
ROWS = [[0.2, 0.3, 0.5], [0.6, 0.4, 0.0]]


def test_a_network_is_the_product_of_its_tables():
    pair = torch.rand(3, 2, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    pair = pair / pair.sum(-1, keepdim=True)
    # Children may come before their parents.
    graph = rg.FactorGraph.bayesian_network(
        [(C, (B, A), pair), (A, [], [0.75, 0.25]), (B, (A,), torch.tensor(ROWS))]
    )
    assert [variable.name for variable in graph.variables] == ["c", "a", "b"]
    joint = brute_force(graph).joint((A, B, C))
    first, second = torch.tensor([0.75, 0.25]), torch.tensor(ROWS)
    expected = (first[:, None] * second).double()[..., None] * pair.transpose(0, 1)
    torch.testing.assert_close(joint, expected, rtol=1e-6, atol=1e-6)
    assert abs(float(rg.infer(graph).log_partition)) < 1e-6


def test_gradients_and_batches():
    logits = torch.zeros(4, 2, dtype=torch.float64, requires_grad=True)
    graph = rg.FactorGraph.bayesian_network([(A, (), logits.softmax(-1))])
    assert graph.batch_shape == (4,)
    rg.infer(graph.condition({A: "yes"})).log_partition.sum().backward()
    torch.testing.assert_close(logits.grad, torch.tensor([-0.5, 0.5]).expand(4, 2).double())


def drawn(*shape):
    generator = torch.Generator().manual_seed(len(shape))
    return torch.rand(shape, generator=generator, dtype=torch.float64).softmax(-1)


def network():
    tables = [(C, (B, A), drawn(3, 2, 2)), (A, (), drawn(2)), (B, (A,), drawn(2, 3))]
    return tables, rg.FactorGraph.bayesian_network(tables)


def test_conditional_tables_are_asked_for_as_they_were_given(tmp_path):
    tables, made = network()
    paths = [tmp_path / "network.bif", tmp_path / "network.uai"]
    for path in paths:
        rg.write(made, path)
    read, bayes = map(rg.read, paths)
    seen = made.condition({A: ["yes", None]})
    for graph, place in ((made, None), (read, None), (seen, None), (bayes, [C, A, B].index)):
        for child, parents, values in tables:
            names = [own.name if place is None else str(place(own)) for own in (child, *parents)]
            assert [own.name for own in graph.parents(names[0])] == names[1:]
            torch.testing.assert_close(graph.cpt(names[0]), values)
    again = rg.FactorGraph.bayesian_network(
        [(x, made.parents(x), made.cpt(x)) for x in made.variables]
    )
    assert [f.variables for f in again.factors()] == [f.variables for f in made.factors()]
    # Files and conditional tables agree about the order of a factor's variables.
    scopes = [[own.name for own in factor.variables] for factor in made.factors()]
    kept = sorted(scopes, key=lambda scope: [v.name for v in made.variables].index(scope[0]))
    assert [[own.name for own in factor.variables] for factor in read.factors()] == kept


def test_conditional_tables_of_blocks_and_batches():
    x = rg.VariableArray("x", (4,), 2)
    step = drawn(5, 2, 2)
    links = rg.FactorBlock((x[:-1], x[1:]), rg.Table(step.log()[:, None]))
    graph = rg.FactorGraph([rg.Factor((x[0],), rg.Table(drawn(2).log())), links])
    assert graph.parents(x[3]) == (x[2],)
    assert graph.parents("x[0]") == ()
    torch.testing.assert_close(graph.cpt(x[3]), step)
    values = torch.zeros(2, 2, requires_grad=True)
    made = rg.FactorGraph.bayesian_network([(C, (A,), values.softmax(-1)), (A, (), [0.5, 0.5])])
    (gradient,) = torch.autograd.grad(made.cpt(C)[1, 0], values)
    torch.testing.assert_close(gradient, torch.tensor([[0.0, 0.0], [0.25, -0.25]]))


def test_interventions_leave_out_the_tables_of_what_is_set():
    """Pearl's truncated factorization, by enumeration."""
    a, b, c = drawn(2), drawn(2, 3), drawn(2, 3, 2)
    made = rg.FactorGraph.bayesian_network([(C, (A, B), c), (B, (A,), b), (A, (), a)])
    whole = {"A": a[:, None, None].expand(2, 3, 2), "B": b[:, :, None].expand(2, 3, 2), "C": c}
    done = made.do({"b": 1})
    kept = whole["A"] * whole["C"] * torch.tensor([0.0, 1.0, 0.0])[:, None]
    torch.testing.assert_close(rg.infer(done).joint(["a", "b", "c"]), kept.to(a))
    assert done.parents("b") == ()
    assert done.parents("c") == (A, B)
    seen = rg.infer(made.do({B: 2, A: "no"}).condition({"c": 1}))
    torch.testing.assert_close(seen.log_partition, c[0, 2, 1].log())
    torch.testing.assert_close(
        rg.infer(made.condition({"c": 1}).do({B: 2, A: "no"})).log_partition, c[0, 2, 1].log()
    )
    assert made.do({}).num_factors == 3
    x = rg.VariableArray("x", (3,), 2)
    step = drawn(2, 2)
    chain = rg.FactorGraph([
        rg.Factor((x[0],), rg.Table(drawn(2).log())),
        rg.FactorBlock((x[:-1], x[1:]), rg.Table(step.log())),
    ])  # fmt: skip
    torch.testing.assert_close(rg.infer(chain.do({"x[1]": 1})).marginal("x[2]"), step[1])
    with pytest.raises(rg.errors.ModelError, match="one state for each variable"):
        made.do({"b": [0, 1]})
    with pytest.raises(rg.errors.EvidenceError, match="'b' has"):
        made.do({"b": 7})
    with pytest.raises(rg.errors.UnsupportedError, match="Not a Bayesian network"):
        made.with_factors(rg.Factor((A,), rg.Table([0.0, 1.0]))).do({"b": 1})


def test_graphs_that_are_no_network_have_no_conditional_tables():
    _, made = network()
    half = rg.Table.from_probabilities(torch.full((2, 2), 0.5))
    cycle = rg.FactorGraph([rg.Factor((A, C), half), rg.Factor((C, A), half)])
    soft = made.with_factors(rg.Factor((A,), rg.Table([0.0, 1.0])))
    for graph in (cycle, soft, rg.FactorGraph([rg.Factor((A,), rg.Table([0.0, 1.0]))])):
        for ask in (graph.parents, graph.cpt):
            with pytest.raises(rg.errors.UnsupportedError, match="Not a Bayesian network"):
                ask(A)
    with pytest.raises(rg.errors.UnknownVariableError, match="'snow'"):
        made.cpt("snow")
    x = rg.VariableArray("x", (2,), 2)
    block = rg.FactorGraph([rg.FactorBlock((x,), rg.Table.from_probabilities([0.25, 0.75]))])
    with pytest.raises(rg.errors.ModelError, match=r"single variable is needed.*'x'"):
        block.parents(x)


@pytest.mark.parametrize(
    ("tables", "said"),
    [
        ([(A, (), [0.5, 0.4])], "of 'a' sum to 0.9, not to one"),
        ([(A, (), [1, 0]), (B, (A,), [ROWS[0], [0.5] * 3])], "'b' given a=yes sum to 1.5"),
        ([(B, (), [1.5, -0.5, 0.0])], "of 'b' hold -0.5"),
        ([(A, (), [math.nan, 1.0])], "hold NaN"),
        ([(A, (), [[0.5, 0.5], [1.0, 1.0]])], "of 'a', in batch item 1, sum to 2"),
        ([(A, (), [0.5, 0.5]), (A, (), [0.5, 0.5])], "two conditional tables"),
        ([(B, (A,), ROWS)], "'a' is a parent of 'b' and has no table"),
        ([(A, (C,), [[0.5] * 2] * 2), (C, (A,), [[0.5] * 2] * 2)], "cannot have a directed cycle"),
        ([(B, (A,), [[0.5, 0.5]] * 3)], r"needs shape \(2, 3\)"),
        ([(A, (A,), [[0.5] * 2] * 2)], "twice"),
        ([rg.Factor((A,), rg.Table([0.0, 0.0]))], "variable, parents, probabilities"),
        ([("a", (), [1.0])], "variable, parents, probabilities"),
        ([(A, B, ROWS)], "tuple of Variables"),
        ([(A, (), "half")], "needs floating values"),
    ],
)
def test_tables_that_are_no_network(tables, said):
    with pytest.raises(rg.errors.ModelError, match=said) as error:
        rg.FactorGraph.bayesian_network(tables)
    assert "\n" not in str(error.value)
    loose = [(A, (), [0.5, 0.4])]
    assert rg.FactorGraph.bayesian_network(loose, tolerance=0.2).num_factors == 1
