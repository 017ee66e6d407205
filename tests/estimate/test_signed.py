"""Z by trigonometric features, whose sums have signs: against their formula and against Z."""

import math

import pytest
import torch
from torch.testing import assert_close

import rdpgraph as rg
from rdpgraph.errors import ModelError, UnsupportedError

F64 = torch.float64


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def draw(*shape, seed=0):
    return torch.randn(shape, generator=seeded(seed), dtype=F64)


def pair_of(first, second):
    """Two variables of two states each, opposite ones; all but the first pair are impossible."""
    only = rg.Table(torch.tensor([0.0, -math.inf], dtype=F64))
    x, y = rg.Variable("x", 2), rg.Variable("y", 2)
    pairs = rg.Bilinear(torch.stack([first, -first]), torch.stack([second, -second]))
    return rg.FactorGraph([rg.Factor((x, y), pairs), rg.Factor((x,), only), rg.Factor((y,), only)])


@pytest.mark.parametrize("angle", [0.0, 0.7, 2.0])
def test_the_error_of_a_pair_is_that_of_the_formula(angle):
    first = torch.tensor([0.8, 0.0], dtype=F64)
    second = 0.8 * torch.tensor([math.cos(angle), math.sin(angle)], dtype=F64)
    many = rg.LowRankFactors(16, replicates=20_000, orthogonal=False)
    found = many.signed(pair_of(first, second), generator=seeded())
    values = found.signs * (found.log_sizes - first @ second).exp()
    apart = float((first - second).square().sum())
    expected = 4 * math.sinh(apart / 2) ** 2 / 16
    assert float((values - 1).square().mean()) == pytest.approx(expected, rel=0.1, abs=1e-12)
    assert float(values.mean()) == pytest.approx(1.0, abs=0.03)


def tree():
    """A star with a low-rank and a tabulated factor beside the bilinear ones, in a batch."""
    hub, leaf = rg.Variable("hub", 3), rg.VariableArray("leaf", (3,), 4)
    vectors = 0.6 * draw(3, 2), 0.6 * draw(2, 1, 4, 2, seed=1)
    return rg.FactorGraph(
        [
            rg.FactorBlock((hub, leaf[:2]), rg.Bilinear(*vectors)),
            rg.Factor((leaf[2], hub), rg.Table(draw(4, 3, seed=2))),
            rg.Factor((leaf[1],), rg.Table(draw(4, seed=3))),
            rg.Factor((), rg.Table(torch.tensor(0.7, dtype=F64))),
        ],
        [rg.Variable("alone", 5)],
    )


@pytest.mark.parametrize(
    "model",
    [
        rg.Chain(draw(4, 3), rg.Bilinear(0.7 * draw(3, 2), 0.7 * draw(3, 2, seed=1))),
        rg.Chain(draw(2, 4, 3), rg.Bilinear(0.7 * draw(3, 2), 0.7 * draw(3, 2, seed=1))),
        tree(),
        tree().condition({"hub": 1}),
    ],
)
def test_z_is_right_on_average(model):
    exact = rg.infer(model).log_partition
    found = rg.LowRankFactors(8, replicates=4000).signed(model, generator=seeded())
    values = found.sign * (found.log_absolute - exact).exp()
    assert bool(((values - 1).abs() < 4 * found.standard_error * values.abs() + 1e-9).all())
    assert bool((found.standard_error < 0.1).all())


def test_without_bilinear_factors_it_is_exact_and_its_gradient_has_the_marginals():
    low = rg.LowRank(draw(3, 2), draw(3, 2, seed=1))
    unary = draw(4, 3).requires_grad_()
    chain = rg.Chain(unary, low)
    found = rg.LowRankFactors(2).signed(chain)
    assert_close(found.log_partition, chain.log_partition())
    (gradient,) = torch.autograd.grad(found.log_partition, unary)
    assert_close(gradient, chain.marginals())


def test_marginals_are_near_with_many_features_and_sum_to_one():
    unary = draw(4, 3).requires_grad_()
    chain = rg.Chain(unary, rg.Bilinear(0.4 * draw(3, 2), 0.4 * draw(3, 2)))
    found = rg.LowRankFactors(20_000).signed(chain, generator=seeded())
    (gradient,) = torch.autograd.grad(found.log_absolute, unary)
    assert_close(gradient.sum(1), torch.ones(4, dtype=F64))
    assert_close(gradient, chain.marginals(), rtol=0.0, atol=0.03)


def test_an_estimate_below_zero_has_no_log():
    chain = rg.Chain(torch.zeros(6, 9, dtype=F64), rg.Bilinear(3 * draw(9, 4), -3 * draw(9, 4)))
    found = [rg.LowRankFactors(2).signed(chain, generator=seeded(seed)) for seed in range(20)]
    below = next(one for one in found if float(one.sign) < 0)
    assert bool(below.log_absolute.isfinite())
    with pytest.raises(UnsupportedError, match="not above zero"):
        _ = below.log_partition


def test_what_cannot_carry_signs_is_refused_by_name():
    xs = rg.VariableArray("x", (3,), 2)
    near = rg.Bilinear(draw(2, 2), draw(2, 2))
    ring = rg.FactorGraph([rg.FactorBlock((xs, xs[[1, 2, 0]]), near)])
    with pytest.raises(UnsupportedError, match=r"cycle through 'x\["):
        rg.LowRankFactors(4).signed(ring)
    three = rg.FactorGraph([rg.Factor((xs[0], xs[1], xs[2]), rg.Xor(3))])
    with pytest.raises(UnsupportedError, match="Automaton over 3"):
        rg.LowRankFactors(4).signed(three)
    for wrong in (3, None):
        with pytest.raises(ModelError, match="even number"):
            rg.LowRankFactors(wrong).signed(ring)
    with pytest.raises(ModelError, match="a map for each"):
        rg.LowRankFactors(4, shared=True).signed(ring)
