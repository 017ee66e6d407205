"""Bounds and draws by mini-buckets, against enumeration."""

import itertools
import math
from random import Random

import numpy as np
import pytest
import torch

import rdpgraph as rg
from rdpgraph.engines.minibuckets import solution
from rdpgraph.engines.minibuckets.bounds import bounded
from rdpgraph.engines.minibuckets.draws import conditional, draw
from rdpgraph.engines.network import reduce_graph
from rdpgraph.engines.tables import tables_of
from rdpgraph.errors import BudgetError, ModelError, UnsupportedError
from rdpgraph.testing import brute_force

DOUBLE = torch.float64
SIZES = (2, 3, 2, 2, 3)


def random_graph(seed: int, *, zeros: float = 0.0, batch: tuple[int, ...] = ()) -> rg.FactorGraph:
    """Five variables with many pairs and triples; one configuration is always possible."""
    rng, generator = Random(seed), torch.Generator().manual_seed(seed)
    variables = [rg.Variable(f"x{i}", size) for i, size in enumerate(SIZES)]
    truth = [rng.randrange(size) for size in SIZES]
    factors = []
    for arity in (1, 1, 2, 2, 2, 2, 2, 3):
        places = rng.sample(range(len(SIZES)), arity)
        shape = (*batch, *(SIZES[i] for i in places))
        values = 2 * torch.randn(shape, generator=generator, dtype=DOUBLE)
        struck = torch.rand(shape, generator=generator) < zeros
        struck[(..., *(truth[i] for i in places))] = False
        table = rg.Table(values.masked_fill(struck, -math.inf))
        factors.append(rg.Factor([variables[i] for i in places], table))
    return rg.FactorGraph(factors, variables=variables)


def shuffled(seed: int, count: int) -> list[int]:
    order = list(range(count))
    Random(seed).shuffle(order)
    return order


@pytest.mark.parametrize("seed", range(40))
def test_log_z_lies_between_the_bounds(seed):
    zeros = 0.3 * (seed % 2)
    graph = random_graph(seed, zeros=zeros)
    log_z = brute_force(graph).log_partition.item()
    network = reduce_graph(graph)
    tables, constant = tables_of(network, 0, zeros=True), float(network.constant[0])
    order = shuffled(seed, len(network.sizes))
    for cells in (1, 6, 1e6):
        above = bounded(tables, order, cells=cells)
        assert above.bound + constant >= log_z - 1e-9
        if cells == 1e6:
            assert above.exact
        if above.exact:
            assert above.bound + constant == pytest.approx(log_z, abs=1e-9)
        if not zeros:
            below = bounded(tables, order, cells=cells, lower=True)
            assert below.bound + constant <= log_z + 1e-9


@pytest.mark.parametrize("seed", range(12))
def test_the_mean_weight_is_z_and_no_weight_exceeds_the_bound(seed):
    graph = random_graph(seed, zeros=0.3 * (seed % 2))
    log_z = brute_force(graph).log_partition.item()
    network = reduce_graph(graph)
    tables, constant = tables_of(network, 0, zeros=True), float(network.constant[0])
    order = shuffled(seed, len(network.sizes))
    every = np.array(list(itertools.product(*map(range, network.sizes)))).T
    columns = np.arange(every.shape[1])
    for cells in (1, 6):
        passed = bounded(tables, order, cells=cells)
        q = np.ones(every.shape[1])
        for bucket in passed.buckets:
            q *= conditional(bucket, every)[every[bucket[0].scope[0]], columns]
        assert q.sum() == pytest.approx(1.0, rel=1e-12)
        scores = np.zeros(every.shape[1])
        for stack in tables.stacks:
            rows = np.arange(len(stack.scopes))[:, None]
            scores += stack.values[(rows, *every[stack.scopes.T])].sum(0)
        mass = np.exp(scores)
        assert (q[mass > 0] > 0).all()  # so that the mean of mass / q is the sum of mass
        assert math.log(mass.sum()) + constant == pytest.approx(log_z)
        weights = scores[mass > 0] - np.log(q[mass > 0])
        assert weights.max() <= passed.bound + 1e-9
        states, logs, drawn = draw(tables, passed, 200, np.random.default_rng(seed))
        places = np.ravel_multi_index(tuple(states.T), network.sizes)
        with np.errstate(divide="ignore"):
            np.testing.assert_allclose(drawn, scores[places])
            expected = np.where(mass[places] > 0, scores[places] - np.log(q[places]), -math.inf)
        np.testing.assert_allclose(logs, expected)


@pytest.mark.parametrize("seed", range(4))
def test_answers_are_within_their_error_bars(seed):
    graph = random_graph(seed, zeros=0.3 * (seed % 2))
    truth = brute_force(graph)
    scheduler = rg.MiniBuckets(seconds=20.0, memory=500.0, draws=20_000)
    posterior = rg.infer(graph, scheduler=scheduler)
    status = posterior.status
    assert not status.exact
    assert status.biased
    assert status.standard_error is not None
    assert status.effective_sample_size is not None
    error = abs(float(posterior.log_partition) - truth.log_partition.item())
    assert error <= 5 * status.standard_error + 1e-9
    spread = 5 / math.sqrt(status.effective_sample_size)
    exact = rg.infer(graph).marginals()
    for variable, values in posterior.marginals().items():
        torch.testing.assert_close(values, exact[variable], atol=spread, rtol=0)
        assert float(values.sum()) == pytest.approx(1.0)
    lower, upper = posterior.bounds()
    assert float(lower) <= truth.log_partition.item() + 1e-9 <= float(upper) + 2e-9
    wide = rg.infer(graph, scheduler=rg.MiniBuckets(seconds=20.0, draws=2000))
    torch.testing.assert_close(wide.log_partition, truth.log_partition.reshape(()))
    for bound in wide.bounds():
        torch.testing.assert_close(bound, truth.log_partition.reshape(()))


def test_a_batch_is_its_items():
    graph = random_graph(3, zeros=0.2, batch=(3,))
    scheduler = rg.MiniBuckets(seconds=60.0, memory=500.0, draws=500)
    together = rg.infer(graph, scheduler=scheduler)
    network = reduce_graph(graph)
    assert network.batch == 3
    for item in range(3):
        blocks = [
            rg.Factor(factor.variables, rg.Table(factor.potential.log_values[item]))
            for factor in graph.factors()
        ]
        alone = rg.infer(rg.FactorGraph(blocks, variables=graph.variables), scheduler=scheduler)
        truth = brute_force(rg.FactorGraph(blocks, variables=graph.variables))
        lower, upper = (bound[item] for bound in together.bounds())
        assert lower <= truth.log_partition + 1e-9
        assert truth.log_partition <= upper + 1e-9
        error = (together.log_partition[item] - alone.log_partition).abs()
        assert error <= 1e-9 + 5 * (together.status.standard_error + alone.status.standard_error)


def test_every_posterior_says_what_bounds_it_knows():
    graph = random_graph(1)
    log_z = brute_force(graph).log_partition.item()
    exact = rg.infer(graph).bounds()
    assert float(exact.lower) == float(exact.upper) == pytest.approx(log_z)
    convex = rg.Loopy(counting=rg.loopy.TreeReweighted(), sweeps=5000, damping=0.5)
    lower, upper = rg.infer(graph, scheduler=convex).bounds()
    assert float(lower) == -math.inf
    assert log_z - 1e-6 <= float(upper) < math.inf
    plain = rg.infer(graph, scheduler=rg.Loopy(sweeps=5000, damping=0.5)).bounds()
    assert (float(plain.lower), float(plain.upper)) == (-math.inf, math.inf)


def test_draws_that_are_all_impossible_are_an_error(monkeypatch):
    def impossible(tables, passed, count, rng):
        states, logs, scores = draw(tables, passed, count, rng)
        return states, logs - math.inf, scores - math.inf

    monkeypatch.setattr(solution, "draw", impossible)
    scheduler = rg.MiniBuckets(seconds=5.0, memory=100.0, draws=7)
    with pytest.raises(BudgetError, match="None of 7 draws is possible"):
        _ = rg.infer(random_graph(0, zeros=0.3), scheduler=scheduler).log_partition


def test_few_effective_draws_are_not_called_converged():
    graph = random_graph(2)
    few, many = (
        rg.infer(graph, scheduler=rg.MiniBuckets(seconds=9.0, memory=100.0, draws=draws)).status
        for draws in (5, 5000)
    )
    assert not few.converged
    assert "not reliable" in few.remedy
    assert many.converged


def test_other_questions_are_refused():
    posterior = rg.infer(random_graph(0), scheduler=rg.MiniBuckets(seconds=1.0, draws=10))
    with pytest.raises(UnsupportedError, match=r"not a mode.*Search"):
        posterior.mode()
    with pytest.raises(UnsupportedError, match="not independent draws"):
        posterior.sample(1)
    with pytest.raises(ModelError, match="draws >= 1"):
        rg.MiniBuckets(draws=0)
