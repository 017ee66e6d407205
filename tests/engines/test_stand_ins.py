"""Finite scores that stand for absence, as -1e30 does: bounds hold, other digits stay."""

import itertools
import math

import pytest
import torch

import rdpgraph as rg

LOW = [-1e9, -1e12, -1e17, -1e30, -1e300]


def pairs(low, seed, *, count=5):
    """All pairs of a few variables and each alone, some of whose scores are low."""
    generator = torch.Generator().manual_seed(seed)
    variables = [rg.Variable(f"x{number}", 2) for number in range(count)]

    def table(*shape):
        values = torch.randn(*shape, generator=generator, dtype=torch.float64)
        gone = torch.rand(*shape, generator=generator) < 0.25
        return rg.Table(torch.where(gone, low, values))

    scopes = [*itertools.combinations(variables, 2), *((one,) for one in variables)]
    return rg.FactorGraph([rg.Factor(scope, table(*[2] * len(scope))) for scope in scopes])


@pytest.mark.long
@pytest.mark.parametrize("low", LOW)
def test_bounds_hold(low):
    for seed in range(8):
        graph = pairs(low, seed)
        log_z = float(rg.infer(graph).log_partition)
        slack = 1e-6 * (1 + abs(log_z))
        small = rg.infer(graph, scheduler=rg.MiniBuckets(memory=200.0, seconds=0.01)).bounds()
        assert small.lower <= log_z + slack
        assert small.upper >= log_z - slack
        messages = rg.Loopy(counting=rg.loopy.TreeReweighted(), sweeps=50, damping=0.3)
        posterior = rg.infer(graph, scheduler=messages)
        if posterior.status.bound == "upper":
            assert posterior.log_partition >= log_z - slack


@pytest.mark.long
@pytest.mark.cover(1)
@pytest.mark.parametrize("low", LOW)
@pytest.mark.parametrize(
    "scheduler",
    [rg.Loopy(damping=0.3), rg.JoinGraph(memory=300.0), rg.Contraction()],
    ids=["loopy", "join", "contraction"],
)
def test_answers_are_those_of_scores_that_are_low_enough(scheduler, low):
    for seed in range(3):
        near, far = (rg.infer(pairs(each, seed), scheduler=scheduler) for each in (-1e4, low))
        if not near.status.converged or rg.infer(near.graph).log_partition < -1e3:
            continue  # nothing is possible without one of them
        assert far.status.converged
        torch.testing.assert_close(far.log_partition, near.log_partition, atol=1e-4, rtol=1e-6)
        for variable in near.graph.variables:
            one, other = near.marginal(variable), far.marginal(variable)
            torch.testing.assert_close(one, other, atol=1e-4, rtol=0)


@pytest.mark.long
@pytest.mark.parametrize("low", LOW)
def test_estimates_that_converged_are_within_their_error(low):
    for seed in range(3):
        posterior = rg.infer(pairs(low, seed), scheduler=rg.MiniBuckets(memory=600.0, seconds=0.2))
        exact = rg.infer(pairs(low, seed)).log_partition
        if posterior.status.converged:
            reach = max(0.1, 5 * float(posterior.standard_error))
            assert abs(float(posterior.log_partition - exact)) < reach


def test_tree_reweighted_messages_say_where_digits_are_lost():
    messages = rg.Loopy(counting=rg.loopy.TreeReweighted(), sweeps=200, damping=0.3)
    lost = rg.infer(pairs(-1e30, 1), scheduler=messages).status
    assert not lost.converged
    assert not lost.bound
    assert "-inf" in lost.remedy
    assert rg.infer(pairs(-1e9, 1), scheduler=messages).status.bound == "upper"


@pytest.mark.long
@pytest.mark.parametrize("low", LOW)
def test_words_of_bitexts_keep_their_digits(low):
    generator = torch.Generator().manual_seed(0)
    scores = [torch.randn(size, generator=generator).double() for size in ((3, 3), (3,), (3,))]
    scores[0][0, 1] = scores[1][1] = low
    absent = [torch.where(part == low, -math.inf, part) for part in scores]
    bitext, plain = rg.MixedBitext.words(*scores), rg.MixedBitext.words(*absent)
    for ask in (
        lambda model: model.log_partition(),
        lambda model: model.marginals(),
        lambda model: model.pair_marginals(),
        lambda model: model.k_best(5).scores,
    ):
        torch.testing.assert_close(ask(bitext), ask(plain))
    none = torch.zeros(1, 3, 3, dtype=torch.bool)
    found, wanted = (model.masks().masked(none, none) for model in (bitext, plain))
    torch.testing.assert_close(found.log_partition, wanted.log_partition)
