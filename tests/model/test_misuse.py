"""Models and questions that cannot be meant, refused in one line."""

import math

import pytest
import torch

import rdpgraph as rg

A, B, C = (rg.Variable(name, 2) for name in "abc")
LAMPS = rg.VariableArray("lamp", (3,), 2)


def table(*values):
    return rg.Table(torch.tensor(values))


def pair():
    return rg.FactorGraph(
        [
            rg.Factor((A, B), table([1.0, 0.0], [0.0, 2.0])),
            rg.FactorBlock((LAMPS,), table(1.0, 0.0)),
        ]
    )


def test_evidence_that_contradicts_itself():
    with pytest.raises(rg.errors.EvidenceError, match="two different states"):
        pair().condition({A: 0, "a": 1})
    missing = torch.full((3,), -1)
    for given in ({LAMPS[0]: 1, LAMPS: missing}, {LAMPS: missing, LAMPS[0]: 1}):
        observed = pair().condition(given).observed
        assert int((observed == 1).sum()) == 1


def test_a_variable_with_the_name_of_a_member():
    member = rg.Factor((rg.Variable("lamp[0]", 2),), table(5.0, 0.0))
    with pytest.raises(rg.errors.ModelError, match="member of array"):
        rg.FactorGraph([member, rg.FactorBlock((LAMPS,), table(1.0, 0.0))])
    alone = rg.FactorGraph([member])  # without the array it is a name like others
    assert rg.infer(alone).marginal("lamp[0]").shape == (2,)


def test_parameters_changed_after_a_copy_was_taken():
    first, second = (torch.zeros(2, requires_grad=True) for _ in range(2))
    both = rg.FactorGraph([rg.Factor((A,), rg.Table(first)), rg.Factor((B,), rg.Table(second))])
    lone = rg.FactorGraph([rg.Factor((A,), rg.Table(first))])
    with torch.no_grad():
        first.copy_(torch.tensor([3.0, 0.0]))
    for ask in (rg.infer, rg.explain):
        with pytest.raises(rg.errors.ModelError, match="changed in place"):
            ask(both)
    expected = torch.tensor([3.0, 0.0]).softmax(0)
    torch.testing.assert_close(rg.infer(lone).marginal(A), expected)


@pytest.mark.parametrize(
    "make",
    [
        lambda: rg.Loopy(temperature=math.inf),
        lambda: rg.loopy.Fractional(math.inf),
        lambda: rg.Randomized(rg.randomized.Local, rg.randomized.Top(2)),
        lambda: rg.Randomized(rg.randomized.Local(), 2),
        lambda: rg.Randomized.default(keep=2, replicates=2.5),
        lambda: rg.infer(pair(), scheduler="loopy"),
        lambda: rg.infer(pair(), estimator="randomized"),
        lambda: rg.infer(pair(), generator=0),
        lambda: rg.infer(rg.FactorGraph([rg.Factor((A,), rg.Table(torch.zeros(0, 2)))])),
        lambda: rg.infer(pair()).marginal_mode("a"),
        lambda: rg.infer(pair()).factor_marginal("a"),
        lambda: rg.infer(pair()).factor_marginal(A),
        lambda: rg.infer(pair()).factor_marginal((LAMPS,)),
    ],
)
def test_what_cannot_be_meant(make):
    with pytest.raises(rg.errors.RdpgraphError) as error:
        make()
    assert "\n" not in str(error.value)


def test_logical_factors_move_without_a_table():
    lamps = rg.VariableArray("lamp", (40,), 2)
    graph = rg.FactorGraph(
        [
            rg.Factor(tuple(lamps[i] for i in range(40)), rg.Cardinality(40, at_least=3)),
            rg.FactorBlock((lamps,), rg.Table(torch.zeros(40, 2))),
        ]
    )
    moved = graph.to(torch.float64)
    expected = math.log(sum(math.comb(40, k) for k in range(3, 41)))
    assert abs(float(rg.infer(moved).log_partition) - expected) < 1e-9
    assert rg.infer(moved).log_partition.dtype == torch.float64
    with pytest.raises(rg.errors.UnsupportedError, match="written out"):
        next(graph.factors())
