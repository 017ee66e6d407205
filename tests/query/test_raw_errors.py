"""Models and modes of torch at the edge, where every question is answered or refused in a line."""

import math
from contextlib import suppress

import pytest
import torch

import rdpgraph as rg


def test_joints_in_inference_mode():
    bits = [rg.Variable(f"bit{number}", 2) for number in range(30)]
    scores = torch.randn(30, 2, generator=torch.Generator().manual_seed(0))
    factors = [rg.Factor((bit,), rg.Table(row)) for bit, row in zip(bits, scores, strict=True)]
    graph = rg.FactorGraph([*factors, rg.Factor(bits, rg.Xor(30))])
    expected = rg.infer(graph).joint([bits[0], bits[2]])
    with torch.inference_mode():
        torch.testing.assert_close(rg.infer(graph).joint([bits[0], bits[2]]), expected)
        there = rg.FactorGraph([*factors, rg.Factor(bits, rg.Xor(30))])
        torch.testing.assert_close(rg.infer(there).joint([bits[0], bits[2]]), expected)


@pytest.mark.parametrize("count", [3, 12, 14, 16])
def test_joints_of_a_few_variables_of_a_parity(count):
    bits = [rg.Variable(f"bit{number}", 2) for number in range(count)]
    odds = torch.randn(count, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    factors = [rg.Factor((b,), rg.Table([0.0, float(o)])) for b, o in zip(bits, odds, strict=True)]
    graph = rg.FactorGraph([*factors, rg.Factor(bits, rg.Xor(count, parity=1))])
    joint = rg.infer(graph).joint([bits[2], bits[0]])
    masses = torch.ones(2, dtype=torch.float64)  # by the parity of the other bits
    masses[1] = 0.0
    for odd in odds[[number for number in range(count) if number not in (0, 2)]].exp():
        masses = masses + odd * masses.flip(0)
    pair = torch.outer(*(torch.stack([torch.ones_like(o), o.exp()]) for o in (odds[2], odds[0])))
    pair = pair * torch.stack([masses.flip(0), masses])
    torch.testing.assert_close(joint.double(), pair / pair.sum())


@pytest.mark.parametrize("count", [3, 5])
@pytest.mark.parametrize("memory", [2e2, 2e3, 1e6])
def test_mini_buckets_of_impossible_models(count, memory):
    birds = [rg.Variable(f"bird{number}", 2) for number in range(count)]
    apart = rg.Table(torch.tensor([[-math.inf, 0.0], [0.0, -math.inf]]))
    graph = rg.FactorGraph(
        [rg.Factor((birds[i], birds[j]), apart) for i in range(count) for j in range(i)]
    )
    for ask in (
        lambda posterior: posterior.log_partition.tolist() == -math.inf,
        lambda posterior: posterior.status is not None,
        lambda posterior: bool((posterior.marginal(birds[0]) == 0).all()),
    ):
        with suppress(rg.errors.BudgetError):
            assert ask(rg.infer(graph, scheduler=rg.MiniBuckets(seconds=0.05, memory=memory)))


@pytest.mark.parametrize("shape", [(0, 2), (2, 0), (0, 0)])
def test_bitexts_with_an_empty_side(shape):
    p, q = shape
    tensors = torch.zeros(p, q), torch.zeros(p), torch.zeros(q)
    bitext = rg.MixedBitext.words(*tensors)
    assert bitext.log_partition() == (0.0 if p == q else -math.inf)
    assert bitext.pair_marginals().shape == shape
    assert bitext.entropy() == 0
    batch = rg.MixedBitext.words(*(part.expand(3, *part.shape) for part in tensors))
    assert bool((rg.infer(batch).log_partition == rg.infer(bitext).log_partition).all())


TRANSITIONS = {
    "each": lambda steps: torch.zeros(0, steps, 2, 2),
    "low rank each": lambda steps: rg.LowRank(
        torch.zeros(0, steps, 2, 1), torch.zeros(0, steps, 2, 1)
    ),
    "shared": lambda _: torch.zeros(2, 2),
}


@pytest.mark.parametrize("name", TRANSITIONS)
@pytest.mark.parametrize("total", [1, 3])
def test_chains_of_an_empty_batch(name, total):
    chain = rg.Chain(torch.zeros(0, total, 2), TRANSITIONS[name](total - 1))
    assert chain.entropy().shape == chain.kl_divergence(chain).shape == (0,)
    assert chain.marginals().shape == chain.max_marginals().shape == (0, total, 2)
    assert chain.k_best(2).scores.shape == (2, 0)
    assert chain.sample(2).shape == (2, 0, total)
    assert chain.rsample(2, temperature=1.0).shape == (2, 0, total, 2)
    assert rg.infer(chain).entropy().shape == (0,)
