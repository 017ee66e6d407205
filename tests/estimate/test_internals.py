"""Probes of pilots, and averages of sweeps, which no public answer shows alone."""

import math

import pytest
import torch

import rdpgraph as rg
from rdpgraph.estimate import proposals
from rdpgraph.estimate.estimator import Setting
from rdpgraph.estimate.pruning.averages import Averages
from rdpgraph.randomized import Threshold, TopTail
from tests.estimate.pruning_models import draw, seeded
from tests.estimate.test_chains import embedded
from tests.structures.hypertree.test_hypertree import hypertree


def test_a_pilot_by_messages_is_one_by_probes():
    chain, dense = embedded(states=9)
    graph = dense.factor_graph()
    support = Threshold(3).select(draw(4, 9, seed=5), seeded(6))
    setting = Setting.of(graph, Threshold(3), solve=rg.infer, generator=seeded())
    (probed,) = proposals.probed(setting, [support])
    masses = chain.sites().masses(support.states, support.log_weights)
    assert torch.allclose(probed.softmax(-1), masses.softmax(-1), atol=1e-3)


@pytest.mark.parametrize("kind", ["low rank", "none", "dense"])
def test_probes_of_a_pilot_are_marginals_with_the_state_put_among_those_kept(kind):
    model = hypertree(kind, 3, 5, lengths=2)
    support = TopTail(1, 1).select(model.sites().unary, torch.Generator().manual_seed(0))
    setting = Setting.of(model, TopTail(1, 1), solve=rg.infer, generator=None)
    (probed,) = proposals.probed(setting, [support])
    for first, last in ((0, 0), (1, 1), (0, 1)):
        # All states at one span, those kept at the others.
        states = torch.zeros(3, 3, 5, dtype=torch.int64)
        weights = torch.full((3, 3, 5), -math.inf, dtype=torch.float64)
        states[..., :2], weights[..., :2] = support.states, support.log_weights
        states[first, last], weights[first, last] = torch.arange(5), 0.0
        expected = model.restrict(states, weights).marginals()[first, last]
        torch.testing.assert_close(
            probed[first, last].softmax(-1), expected, rtol=1e-2, atol=1e-3, check_dtype=False
        )


def test_averages_know_their_error():
    generator = seeded()
    # Autoregressive noise, 800 times: each sweep's value is worth a third of an independent one.
    values = torch.zeros(4, 800, dtype=torch.float64)
    averages = Averages.none(values)
    for _ in range(400):
        noise = torch.randn(4, 800, generator=generator, dtype=torch.float64)
        values = 0.5 * values + math.sqrt(0.75) * noise
        averages = averages.with_sweep(values)
    held = averages.mean.abs() < averages.half_width(0.9)
    assert 0.87 <= float(held.double().mean()) <= 0.94
    assert 0.2 < float(averages.effective.median()) / (4 * 400) < 0.5
    assert 0.99 < float(averages.r_hat.min()) <= float(averages.r_hat.max()) < 1.05


def test_values_of_chains_that_do_not_move_are_not_independent():
    chains = draw(8, 500).abs()
    averages = Averages.none(chains)
    for _ in range(64):
        averages = averages.with_sweep(chains)
    off = (averages.mean - math.sqrt(2 / math.pi)).abs()
    assert 0.8 < float((off < averages.half_width(0.9)).double().mean()) < 0.97
    assert float(averages.r_hat.min()) == math.inf
