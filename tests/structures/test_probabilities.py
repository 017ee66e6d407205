"""Probabilities given in the place of log-values are warned of, as in a `Table`."""

import dataclasses
import warnings

import pytest
import torch

import rdpgraph as rg
from rdpgraph import distributions, trees

ROWS = torch.tensor([[0.9, 0.1], [0.2, 0.8]])
NONE = torch.zeros(3, 2)
GRAMMAR = torch.rand(2, 9, generator=torch.Generator().manual_seed(0)).softmax(-1)

GIVEN = {
    "Chain's transition": lambda rows: rg.Chain(NONE, rows),
    "one for each step": lambda rows: rg.Chain(NONE, rows.expand(2, 2, 2)),
    "[to, from]": lambda rows: rg.Chain(NONE, rows.mT),
    "Chain's unary": lambda rows: rg.Chain(rows, NONE[:2]),
    "crf": lambda rows: rg.Chain.crf(NONE, rows, start=NONE[0]),
    "another transition": lambda rows: dataclasses.replace(
        rg.Chain(NONE, NONE[:2]), transition=rows
    ),
    "SemiMarkov": lambda rows: rg.SemiMarkov(torch.zeros(4, 2, 2), rows),
    "SemiMarkov of positions": lambda rows: rg.SemiMarkov.from_unary(NONE, rows, NONE),
    "Alignment's transition": lambda rows: rg.Alignment(
        torch.zeros(3, 3, 2), moves=((1, 0), (0, 1)), transition=rows
    ),
    "LinearChain": lambda rows: distributions.LinearChain(NONE, rows),
    "LowRank": lambda rows: rg.LowRank(rows, NONE[:2]),
}
RULES = {
    "DenseRules": lambda rows: trees.DenseRules(rows.reshape(2, 3, 3)),
    "root": lambda rows: rg.Hypertree(torch.zeros(3, 3, 9), trees.NoRules(), root=rows[0]),
    "Table": lambda rows: rg.Table(rows.reshape(2, 3, 3)),
}
EVERY = [
    *((name, make, ROWS) for name, make in GIVEN.items()),
    *((name, make, GRAMMAR) for name, make in RULES.items()),
]


@pytest.mark.parametrize(
    ("make", "rows"), [(m, r) for _, m, r in EVERY], ids=[n for n, *_ in EVERY]
)
def test_probabilities_are_warned_of_and_their_logarithms_are_not(make, rows):
    with pytest.warns(rg.errors.ProbabilityWarning, match="look like probabilities") as said:
        make(rows)
    assert said[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make(rows.log())
        make(torch.zeros_like(rows))


def test_what_is_made_of_declared_log_values_is_not_warned_of():
    x = rg.VariableArray("x", (5,), 2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for rows in (ROWS, ROWS.expand(4, 2, 2)):
            graph = rg.FactorGraph([
                rg.FactorBlock((x,), rg.Table.from_logs([0.3, 0.7])),
                rg.FactorBlock((x[:-1], x[1:]), rg.Table.from_logs(rows)),
            ])  # fmt: skip
            for estimator in (None, rg.Randomized.default(keep=2, replicates=2)):
                posterior = rg.infer(graph, estimator=estimator)
                assert posterior.marginal(x).sum() == pytest.approx(5)
                assert posterior.mode()[x].shape == (5,)
        chain = rg.Chain(torch.zeros(4, 2), rg.Table.from_logs(ROWS))
        assert rg.infer(chain).marginals().sum() == pytest.approx(4)
        best = rg.ProjectiveDependencies(torch.zeros(2, 3))
        rg.ProjectiveDependencies(best.marginals())
