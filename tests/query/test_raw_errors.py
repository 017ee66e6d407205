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


@pytest.mark.parametrize("batch", [(0,), (2, 0)])
def test_estimates_and_frames_of_an_empty_batch(batch):
    chain = rg.Chain(torch.zeros(*batch, 3, 4), torch.zeros(4, 4))
    assert rg.infer(chain).to_frame().shape == (12, 0)  # no column for an item
    estimate = rg.infer(chain, estimator=rg.Randomized.default(keep=2, replicates=4))
    assert estimate.log_partitions.shape == (4, *batch)
    assert estimate.effective_sample_size.shape == batch
    tables = torch.zeros(*batch, 2, 2, 2)
    trees = rg.Hypertree(torch.zeros(*batch, 2, 2, 2), rg.trees.DenseRules(tables))
    estimate = rg.infer(trees, estimator=rg.Randomized.default(keep=1))
    assert estimate.log_partition.shape == batch
    messages = rg.infer(chain.factor_graph(), rg.Loopy())
    assert messages.mode_bound().shape == messages.standard_error.shape == batch


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


GRAPH = rg.FactorGraph([rg.Factor((rg.Variable("x", 2),), rg.Table(torch.zeros(2)))])
RETURNED = {
    "a plan alone": (lambda: rg.explain(GRAPH), "plan, run.*got Plan"),
    "one thing": (lambda: (rg.explain(GRAPH),), r"plan, run.*got \(Plan\)"),
    "nothing": (lambda: None, "plan, run.*got NoneType"),
    "no function": (lambda: (rg.explain(GRAPH), 3), r"plan, run.*got \(Plan, int\)"),
    "no plan": (lambda: ("a plan", lambda: None), r"plan, run.*got \(str, function\)"),
    "no solution": (lambda: (rg.explain(GRAPH), lambda: 7), "must give a Solution; got int"),
}


@pytest.mark.parametrize("name", RETURNED)
def test_schedulers_of_users_are_checked(name):
    made, words = RETURNED[name]

    class Own(rg.extend.Scheduler):
        def plan(self, graph):
            return made()

    with pytest.raises(rg.errors.ModelError, match=f"Own.plan.*{words}"):
        _ = rg.infer(GRAPH, Own()).log_partition
    if name != "no solution":
        with pytest.raises(rg.errors.ModelError, match=f"Own.plan.*{words}"):
            rg.explain(GRAPH, Own())


def test_a_scheduler_may_return_the_plan_of_another():
    class Own(rg.extend.Scheduler):
        def plan(self, graph):
            return rg.Auto().plan(graph)

    assert rg.infer(GRAPH, Own()).log_partition == rg.infer(GRAPH).log_partition


@pytest.mark.parametrize("made", [GRAPH, None])
def test_estimators_of_users_are_checked(made):
    class Own(rg.extend.Estimator):
        def prepare(self, model, *, solve, generator):
            return made

    for ask in (rg.infer, rg.explain):
        with pytest.raises(rg.errors.ModelError, match=r"Own\.prepare must return a Problem"):
            ask(GRAPH, estimator=Own())
