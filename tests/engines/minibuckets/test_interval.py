"""Intervals that hold Z with a probability, against enumeration of the draws."""

import itertools
import math
from random import Random

import numpy as np
import pytest
import torch

import rdpgraph as rg
from rdpgraph._core import tuning
from rdpgraph.engines.minibuckets.population_intervals import (
    Draws,
    _gain,
    error_beside,
    error_of,
    interval,
)
from rdpgraph.errors import ModelError
from rdpgraph.testing import brute_force

DOUBLE = torch.float64

DISTRIBUTIONS = [
    ([0.0, 1.0], [0.5, 0.5]),
    ([0.0, 1.0], [0.9, 0.1]),
    ([0.2, 0.3, 1.0], [0.6, 0.3, 0.1]),
    ([1e-6, 0.5, 1.0], [0.3, 0.5, 0.2]),
    ([0.4, 0.41], [0.5, 0.5]),
]
"""Values of an estimate of which none exceeds 1, and their probabilities."""


def outcomes(values, chances, groups):
    """Every outcome of some groups of draws, with its probability; bounds differ by group."""
    count = sum(groups)
    for places in itertools.product(range(len(values)), repeat=count):
        logs = [math.log(values[i]) if values[i] else -math.inf for i in places]
        made, at = [], 0
        for number, size in enumerate(groups):
            made.append(Draws(tuple(logs[at : at + size]), 0.5 * (len(groups) - 1 - number)))
            at += size
        yield made, math.prod(chances[i] for i in places)


@pytest.mark.long
@pytest.mark.cover(1)
@pytest.mark.parametrize(("values", "chances"), DISTRIBUTIONS)
@pytest.mark.parametrize("groups", [(1,), (3,), (1, 2)])
def test_the_part_of_all_outcomes_whose_interval_holds_z(values, chances, groups):
    log_z = math.log(np.dot(values, chances))
    every = list(outcomes(values, chances, groups))
    for above in (True, False):
        gains = sum(chance * math.exp(_gain(made, log_z, above=above)) for made, chance in every)
        assert gains <= 1.0 + 1e-9  # bets at the true Z gain nothing
    for confidence in (0.5, 0.9):
        held = 0.0
        for made, chance in every:
            least, most = interval(made, confidence)
            assert least <= most
            held += chance * (least <= log_z + 1e-9 and log_z <= most + 1e-9)
        assert held >= confidence - 1e-9


def test_more_draws_and_less_confidence_give_closer_ends():
    rng = np.random.default_rng(0)
    logs = np.log(rng.beta(2.0, 6.0, 4000))
    widths = []
    for count in (8, 100, 4000):
        least, most = interval([Draws(tuple(logs[:count].tolist()), 0.0)], 0.95)
        assert least <= math.log(0.25) <= most
        widths.append(most - least)
        low, high = interval([Draws(tuple(logs[:count].tolist()), 0.0)], 0.5)
        assert least < low < high < most
    assert widths == sorted(widths, reverse=True)
    assert widths[-1] < 0.2


def test_estimates_of_zero_and_none_at_all():
    assert interval([], 0.9) == (-math.inf, math.inf)
    least, most = interval([Draws((-math.inf,) * 20, 3.0)], 0.9)
    assert least == -math.inf
    assert most < 3.0 - 1.0
    least, most = interval([Draws((3.0,) * 20, 3.0)], 0.9)
    assert 2.5 < least <= 3.0 == pytest.approx(most)


def random_graph(seed: int) -> rg.FactorGraph:
    """Five variables with many pairs, half of the models with hard zeros."""
    rng, generator = Random(seed), torch.Generator().manual_seed(seed)
    variables = [rg.Variable(f"x{i}", 3) for i in range(5)]
    truth = [rng.randrange(3) for _ in variables]
    factors = []
    for pair in itertools.combinations(range(5), 2):
        values = torch.randn(3, 3, generator=generator, dtype=DOUBLE)
        struck = torch.rand(3, 3, generator=generator) < 0.2 * (seed % 2)
        struck[truth[pair[0]], truth[pair[1]]] = False
        table = rg.Table(values.masked_fill(struck, -math.inf))
        factors.append(rg.Factor([variables[i] for i in pair], table))
    return rg.FactorGraph(factors)


@pytest.mark.long
def test_intervals_of_small_populations_hold_log_z(monkeypatch):
    monkeypatch.setattr(tuning, "MEMBER_VARIABLE", 0.05)
    held, closer = 0, 0
    for seed in range(8):
        graph = random_graph(seed)
        truth = brute_force(graph).log_partition.item()
        posterior = rg.infer(graph, scheduler=rg.MiniBuckets(20.0, memory=500.0, draws=48))
        sure, likely = posterior.bounds(), posterior.bounds(confidence=0.8)
        assert float(sure.lower) <= float(likely.lower) <= float(likely.upper) <= float(sure.upper)
        held += float(likely.lower) - 1e-9 <= truth <= float(likely.upper) + 1e-9
        closer += float(likely.upper - likely.lower) < float(sure.upper - sure.lower)
        surer = posterior.bounds(confidence=0.99)
        assert float(surer.lower) <= float(likely.lower)
        assert float(likely.upper) <= float(surer.upper)
    assert held >= 6  # of 8, at least four of five are expected
    assert closer >= 2


@pytest.mark.filterwarnings("error")
def test_populations_that_end_at_a_score_for_absence_are_of_no_use():
    assert error_of(np.array([0.0, 0.0, 0.0, -1e300])) == math.inf


def test_smaller_populations_say_what_larger_ones_all_miss():
    alike = np.full(8, -4.0)
    assert error_beside(alike, alike) == 0.0
    assert error_beside(alike, alike - 1.0) == pytest.approx(1.0)  # more is found by more
    rng = np.random.default_rng(0)
    wide = 3.0 * rng.standard_normal(8)
    assert error_beside(alike, wide) >= error_of(wide) / 4
    assert error_beside(alike, alike[:3]) == math.inf  # of so few nothing is known
    assert error_beside(np.full(8, -math.inf), alike) == math.inf
    for _ in range(20):
        near, rough = 0.01 * rng.standard_normal(8), 0.02 * rng.standard_normal(8)
        assert error_of(near) <= error_beside(near, rough) <= 0.1


@pytest.mark.long
def test_an_error_of_a_posterior_is_that_of_its_status(monkeypatch):
    monkeypatch.setattr(tuning, "MEMBER_VARIABLE", 0.05)
    raised = 0
    for seed in range(6):
        scheduler = rg.MiniBuckets(20.0, memory=500.0, draws=48)
        posterior = rg.infer(random_graph(seed), scheduler=scheduler)
        error = float(posterior.standard_error)
        assert error == pytest.approx(posterior.status.standard_error)
        assert float(posterior.replicates.standard_error) == error
        own = float(rg.answers.Replicates(posterior.log_partitions).standard_error)
        raised += own + 1e-12 < error < math.inf
        assert own <= error or math.isinf(own)
    assert raised


def test_intervals_where_nothing_is_drawn():
    posterior = rg.infer(random_graph(0))
    exact = posterior.bounds(confidence=0.9)
    assert float(exact.lower) == float(exact.upper) == float(posterior.log_partition)
    for wrong in (0.0, 1.5, math.nan):
        with pytest.raises(ModelError, match="0 < confidence <= 1"):
            posterior.bounds(confidence=wrong)
