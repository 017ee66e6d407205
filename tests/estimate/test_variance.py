"""Variance of the estimate: Fu, Cunningham and Lapata 2022, appendices A and B, over every draw."""

import itertools
import math
import runpy
import sys
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

import rdpgraph as rg
from tests.estimate.enumeration import outcomes

FOLDER = Path(__file__).parents[2] / "examples" / "paper"
TopTail = rg.randomized.TopTail


@pytest.fixture
def theory(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    yield runpy.run_path(str(FOLDER / "variance.py"), run_name="variance")
    for module in ("measure", "potentials"):
        sys.modules.pop(module, None)


def draw(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def sums(log_a, log_q, selection):
    """(chances, Z^) of one sum over every draw."""
    listed = outcomes(selection, log_q)
    chances = torch.tensor([chance for chance, _ in listed], dtype=torch.float64)
    values = [(log_a[s.states] + s.log_weights).exp().sum() for _, s in listed]
    return chances, torch.stack(values)


def moments(chances, values):
    mean = (chances * values).sum()
    return mean, (chances * (values - mean).square()).sum()


def chains(chain, log_q, selection):
    """(chances, Z^) of a chain over every draw."""
    rows = [outcomes(selection, step) for step in log_q]
    joint = list(itertools.product(*rows))
    chances = torch.tensor([math.prod(c for c, _ in row) for row in joint], dtype=torch.float64)
    states, weights = (
        torch.stack([torch.stack([getattr(s, name) for _, s in row]) for row in joint])
        for name in ("states", "log_weights")
    )
    return chances, chain.restrict(states, weights).log_partition().exp()


def gap(log_a, log_q, top):
    """S^2 sum eps^2 / q over what is drawn."""
    rest = log_q.topk(len(log_q) - top, largest=False).indices
    a, q = log_a[rest].exp(), log_q[rest].softmax(0)
    eps = a / a.sum() - q
    assert_close(eps.sum(), torch.zeros((), dtype=torch.float64))  # so 2 eps of eq. 61 adds nothing
    return a.sum().square() * (eps.square() / q).sum()


@pytest.mark.long
@pytest.mark.parametrize(("top", "tail"), [(0, 1), (1, 1), (2, 2), (1, 3)])
def test_of_one_sum_the_variance_is_the_gap_over_the_number_of_draws(top, tail):
    """Theorem B.1 and corollary B.2, exactly: the slope in 1 / K2 is that of one draw."""
    log_a, log_q = draw(5), draw(5, seed=1)
    mean, variance = moments(*sums(log_a, log_q, TopTail(top, tail)))
    assert_close(mean, log_a.exp().sum())
    assert_close(variance, gap(log_a, log_q, top) / tail)


def test_drawn_in_proportion_to_the_terms_one_sum_does_not_vary():
    log_a = draw(5)
    _, variance = moments(*sums(log_a, log_a, TopTail(1, 2)))
    assert float(variance) < 1e-28


@pytest.mark.long
def test_without_repeats_one_sum_varies_less():
    """Over proposals on average; a single one may be unlucky in its order."""
    less = []
    for seed in range(8):
        log_a = draw(6, seed=seed)
        log_q = log_a + 0.5 * draw(6, seed=100 + seed)
        ours = moments(*sums(log_a, log_q, rg.randomized.TopSystematic(1, 3)))[1]
        less.append(float(ours / (gap(log_a, log_q, 1) / 3)))
    assert sum(less) / len(less) < 0.6


CHAIN = (draw(3, 4), draw(4, 4, seed=1))


@pytest.mark.long
@pytest.mark.parametrize(("top", "tail"), [(0, 2), (1, 1), (1, 2), (2, 1)])
def test_of_a_chain_the_variance_is_a_sum_over_pairs_of_sequences(theory, top, tail):
    chain, log_q = rg.Chain(*CHAIN), draw(3, 4, seed=2)
    mean, variance = moments(*chains(chain, log_q, TopTail(top, tail)))
    assert_close(mean, chain.log_partition().exp())
    found = theory["relative_variance"](chain, log_q, top, tail)
    assert found == pytest.approx(float(variance / mean.square()), rel=1e-9)


def test_with_many_draws_the_variances_of_the_steps_add_up(theory):
    """Var Z^ / Z^2 to first order in 1 / K2 is a sum over the steps, not a product (eq. 84)."""
    chain, log_q = rg.Chain(*CHAIN), draw(3, 4, seed=2)
    sizes = (10**3, 10**5)
    apart = [
        theory["relative_variance"](chain, log_q, 1, tail)
        / theory["first_order"](chain, log_q, 1, tail)
        - 1
        for tail in sizes
    ]
    assert abs(apart[1]) < 1e-3
    assert apart[0] / apart[1] == pytest.approx(100, rel=0.1)


def test_with_few_draws_the_variance_of_z_grows_by_a_factor_each_step(theory):
    """Steps that do not depend on each other: 1 + Var Z^ / Z^2 is the product over them."""
    unary, log_q = draw(1, 4).expand(6, 4), draw(1, 4, seed=2).expand(6, 4)
    ratio = [
        1 + theory["relative_variance"](rg.Chain(unary[:n], torch.zeros(4, 4).double()),
                                        log_q[:n], 1, 1)
        for n in (1, 2, 6)
    ]  # fmt: skip
    assert ratio[1] == pytest.approx(ratio[0] ** 2)
    assert ratio[2] == pytest.approx(ratio[0] ** 6)


@pytest.mark.long
def test_the_variance_of_the_logarithm_adds_up_over_independent_steps():
    """The sum is no logarithm of the variance of Z^, to which eq. 85 equates it."""
    table, log_q = torch.zeros(4, 4, dtype=torch.float64), draw(1, 4, seed=2).expand(3, 4)
    unary = draw(1, 4).expand(3, 4)
    of_log, log_of = [], []
    for steps in (1, 2, 3):
        chances, values = chains(rg.Chain(unary[:steps], table), log_q[:steps], TopTail(1, 2))
        of_log.append(float(moments(chances, values.log())[1]))
        log_of.append(float(moments(chances, values)[1].log()))
    assert of_log == pytest.approx([of_log[0], 2 * of_log[0], 3 * of_log[0]])
    # Z scales with a constant in the potentials, and so does its variance; the other does not.
    chances, values = chains(rg.Chain(unary[:1] - 9.0, table), log_q[:1], TopTail(1, 2))
    assert float(moments(chances, values.log())[1]) == pytest.approx(of_log[0])
    assert float(moments(chances, values)[1].log()) == pytest.approx(log_of[0] - 18.0)
    assert float(moments(chances, values)[1].log()) < 0 < of_log[0]  # no variance is below zero


@pytest.mark.long
@pytest.mark.parametrize("tail", [1, 2, 3])
def test_the_logarithm_is_too_low_on_average_by_half_of_its_variance_if_that_is_small(tail):
    """Corollary A.2, and by how much."""
    chain = rg.Chain(0.2 * CHAIN[0], 0.2 * CHAIN[1])
    log_q = 0.3 * draw(3, 4, seed=2)
    chances, values = chains(chain, log_q, TopTail(1, tail))
    mean, variance = moments(chances, values.log())
    bias = float(mean - chain.log_partition())
    assert bias <= 1e-12
    assert bias == pytest.approx(-float(variance) / 2, rel=0.2, abs=1e-12)
    sharp = rg.Chain(3 * CHAIN[0], CHAIN[1])
    chances, values = chains(sharp, log_q, TopTail(1, tail))
    assert float((chances * values.log()).sum()) <= float(sharp.log_partition()) + 1e-12
