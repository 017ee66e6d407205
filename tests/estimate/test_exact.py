"""The estimator that changes nothing, and one of a user's own."""

from dataclasses import dataclass

import pytest
import torch

import rdpgraph as rg


def graph():
    a, b = rg.Variable("a", 3), rg.Variable("b", 2)
    generator = torch.Generator().manual_seed(0)
    table = torch.randn(3, 2, generator=generator, dtype=torch.float64)
    return rg.FactorGraph([rg.Factor((a, b), rg.Table(table))])


def test_exact_is_the_identity():
    model = graph()
    problem = rg.Exact().prepare(model, solve=rg.infer, generator=None)
    assert problem.model is model
    assert problem.lift is None
    plain, named = rg.infer(model), rg.infer(model, estimator=rg.Exact())
    assert torch.equal(plain.log_partition, named.log_partition)


@dataclass(frozen=True)
class FirstStates(rg.extend.Estimator):
    """Keeps two states of variable a."""

    def prepare(self, model, *, solve, generator):
        support = rg.extend.Support(torch.tensor([[0, 1]]), torch.zeros(1, 2, dtype=torch.float64))
        kept = rg.extend.Restriction(model, (support, None), solve)
        return rg.extend.Problem(kept.model, kept)


@dataclass(frozen=True)
class Unsaid(rg.extend.Estimator):
    """Another model, and not a word of what it is to the one declared."""

    def prepare(self, model, *, solve, generator):
        return rg.extend.Problem(graph())


def test_an_approximation_is_never_passed_off_as_exact():
    model = graph()
    kept = rg.infer(model, estimator=FirstStates())
    assert not kept.status.exact
    assert kept.status.biased
    table = model.blocks[0].select().table(2)
    assert torch.allclose(kept.log_partition, table.reshape(3, 2)[:2].flatten().logsumexp(0))
    with pytest.raises(rg.errors.ModelError, match="returned another model without a lift"):
        rg.infer(model, estimator=Unsaid())
