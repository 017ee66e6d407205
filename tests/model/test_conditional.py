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
        ([(A, (C,), [[0.5] * 2] * 2), (C, (A,), [[0.5] * 2] * 2)], "no directed cycle"),
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
