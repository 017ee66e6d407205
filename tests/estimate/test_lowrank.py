"""Rank variables, low-rank look-ahead, control variates."""

import math

import pytest
import torch

import rdpgraph as rg

WIDE = torch.float64


def drawn(*shape, seed=0, scale=1.0):
    generator = torch.Generator().manual_seed(seed)
    return scale * torch.randn(shape, generator=generator, dtype=WIDE)


def graphs(potential, states=4, only=""):
    """A chain, a star and a cycle with one pairwise potential, or one for each factor."""
    sites = rg.VariableArray("x", (3,), states)
    hub = rg.Variable("hub", states)
    unary = rg.FactorBlock((sites,), rg.Table(drawn(3, states)))
    pairs = (sites[0], sites[1], sites[2]), (sites[1], sites[2], sites[0])
    scopes = {"chain": (sites[:-1], sites[1:]), "star": (hub, sites), "cycle": pairs}
    return {
        shape: rg.FactorGraph([unary, rg.FactorBlock(scope, potential)])
        for shape, scope in scopes.items()
        if only in ("", shape)
    }


SHARED = rg.LowRank(drawn(4, 2, seed=1), drawn(4, 2, seed=2))


@pytest.mark.parametrize("shape", ["chain", "star", "cycle"])
def test_rank_variables_change_no_answer_about_the_model(shape):
    graph = graphs(SHARED)[shape]
    low = rg.infer(graph, estimator=rg.LowRankFactors())
    exact = rg.infer(graph)
    assert low.status.exact
    assert torch.allclose(low.log_partition, exact.log_partition)
    for entry in graph.variables:
        assert torch.allclose(low.marginal(entry), exact.marginal(entry))
    observed = graph.condition({"x": [[1, -1, -1], [-1, 2, 3]]})
    low = rg.infer(observed, estimator=rg.LowRankFactors())
    assert torch.allclose(low.log_partition, rg.infer(observed).log_partition)


def test_a_potential_for_each_factor_and_a_batch():
    sites = rg.VariableArray("x", (3,), 4)
    potential = rg.LowRank(drawn(5, 2, 4, 3), drawn(2, 4, 3, seed=1))
    graph = rg.FactorGraph([rg.FactorBlock((sites[:-1], sites[1:]), potential)])
    low = rg.infer(graph, estimator=rg.LowRankFactors())
    assert low.log_partition.shape == (5,)
    assert torch.allclose(low.log_partition, rg.infer(graph).log_partition)


def planned(shape, *, states=400, rank=8, factors=12):
    """The plan of a chain of that many steps, or of a star of that many leaves, rewritten."""
    low = rg.LowRank(torch.zeros(states, rank), torch.zeros(states, rank))
    sites = rg.VariableArray("x", (factors + (shape == "chain"),), states)
    hub = rg.Variable("hub", states)
    scope = (sites[:-1], sites[1:]) if shape == "chain" else (hub, sites)
    graph = rg.FactorGraph(
        [rg.FactorBlock((sites,), rg.Table(torch.zeros(states))), rg.FactorBlock(scope, low)]
    )
    return rg.explain(graph, estimator=rg.LowRankFactors())


@pytest.mark.parametrize("shape", ["chain", "star"])
def test_the_planner_finds_the_order_whose_cost_is_linear(shape):
    """O(T N r) for a chain, O(N r deg) for a star: linear in the states, the rank and the factors.

    Beside one product with each of two tables for a factor there are terms without the rank, so
    that doubling one of the three numbers less than doubles the work; none is ever squared.
    """
    base = planned(shape)
    assert base.route == "forest"
    assert base.flops <= 1.2 * 2 * 12 * 400 * 8
    for change in ({"states": 800}, {"rank": 16}, {"factors": 24}):
        ratio = planned(shape, **change).flops / base.flops
        assert 1.8 < ratio < 2.1
    whole = planned(shape, states=400, rank=400)
    assert base.flops < 0.03 * whole.flops
    assert "forest" in str(base)


@pytest.mark.parametrize("shape", ["chain", "star", "cycle"])
def test_independent_maps_leave_z_unbiased(shape):
    """Within 4.5 standard errors of Z over 4,000 draws: it fails once in 100,000 seeds."""
    embeddings = drawn(4, 2, scale=0.4)
    graph = graphs(rg.Bilinear(embeddings, embeddings))[shape]
    exact = rg.infer(graph).log_partition.exp()
    maps, generator = 4000, torch.Generator().manual_seed(0)
    count = 2 if shape == "chain" else 3
    features = rg.RandomFeatures(2, 4, maps=(maps, count), generator=generator, dtype=WIDE)
    many = graphs(features.low_rank(embeddings, embeddings), only=shape)[shape]
    values = rg.infer(many, estimator=rg.LowRankFactors()).log_partition.exp()
    error = values.std() / math.sqrt(maps)
    assert abs(float(values.mean() - exact)) < 4.5 * float(error)


@pytest.mark.filterwarnings("ignore:Random features are useless")
def test_one_map_for_all_factors_is_biased():
    """The bias, over 4,000 draws, is more than ten standard errors: the flag is not for show."""
    embeddings = drawn(4, 2, scale=0.4)
    graph = graphs(rg.Bilinear(embeddings, embeddings))["chain"]
    maps, generator = 4000, torch.Generator().manual_seed(0)
    features = rg.RandomFeatures(2, 2, maps=(maps, 1), generator=generator, dtype=WIDE)
    many = graphs(features.low_rank(embeddings, embeddings))["chain"]
    values = rg.infer(many, estimator=rg.LowRankFactors()).log_partition.exp()
    error = values.std() / math.sqrt(maps)
    assert abs(float(values.mean() - rg.infer(graph).log_partition.exp())) > 4 * float(error)


@pytest.mark.parametrize("shared", [False, True])
def test_the_estimator_rewrites_bilinear_potentials(shared):
    embeddings = drawn(4, 2, scale=0.4)
    estimator = rg.LowRankFactors(4096, shared=shared)
    generator = torch.Generator().manual_seed(0)
    for graph in graphs(rg.Bilinear(embeddings, embeddings)).values():
        low = rg.infer(graph, estimator=estimator, generator=generator)
        assert not low.status.exact
        assert torch.allclose(low.log_partition, rg.infer(graph).log_partition, atol=0.1)
    chain = rg.Chain(drawn(5, 4), rg.Bilinear(embeddings, embeddings))
    low = rg.infer(chain, estimator=estimator, generator=generator)
    assert isinstance(low.solved.structure.transition, rg.LowRank)
    assert low.solved.structure.transition.lead(2) == (() if shared else (4,))
    assert torch.allclose(low.log_partition, chain.log_partition(), atol=0.1)
    with pytest.raises(rg.errors.ModelError, match="number of features"):
        rg.infer(chain, estimator=rg.LowRankFactors())


def hard_chain(states=60):
    """A chain whose marginals are far from its emissions."""
    embeddings = drawn(states, 3, scale=0.5)
    return rg.Chain(drawn(8, states, seed=1, scale=0.3), rg.Bilinear(embeddings, embeddings))


def replicates(chain, proposal, seed=0):
    estimator = rg.Randomized(proposal, rg.randomized.TopSystematic(4, 4), replicates=400)
    return rg.infer(chain, estimator=estimator, generator=torch.Generator().manual_seed(seed))


@pytest.mark.long
def test_looking_ahead_lowers_the_variance_and_keeps_z_unbiased():
    chain = hard_chain()
    exact = chain.log_partition()
    ahead, local = (
        replicates(chain, p) for p in (rg.randomized.LowRankPilot(4096), rg.randomized.Local())
    )
    for found in (ahead, local):
        off = (found.log_partition - exact).abs()
        assert off < 5 * found.standard_error
    assert ahead.standard_error < local.standard_error


@pytest.mark.long
def test_the_low_rank_marginals_are_the_proposal_on_graphs_too():
    graph = graphs(SHARED)["cycle"].condition({"x": [-1, 2, -1]})
    estimator = rg.Randomized(
        rg.randomized.LowRankPilot(), rg.randomized.TopTail(1, 1), replicates=2000
    )
    found = rg.infer(graph, estimator=estimator, generator=torch.Generator().manual_seed(0))
    off = (found.log_partition - rg.infer(graph).log_partition).abs()
    assert off < 5 * found.standard_error


@pytest.mark.long
def test_a_surrogate_takes_its_error_off():
    chain = hard_chain()
    generator = torch.Generator().manual_seed(1)
    low = rg.LowRankFactors(4096, shared=True)
    surrogate = low.prepare(chain, solve=rg.infer, generator=generator).model
    estimator = rg.Randomized(
        rg.randomized.Local(), rg.randomized.TopSystematic(4, 4), replicates=100
    )
    found = rg.controlled(
        chain, surrogate, estimator=estimator, solve=rg.infer, generator=generator
    )
    ratio = (found.log_absolute - chain.log_partition()).exp() * found.sign
    assert abs(float(ratio - 1)) < 5 * float(found.standard_error)
    plain = found.log_plain.exp()
    assert found.standard_error < plain.std(0) / plain.mean(0) / math.sqrt(100)
    same = rg.controlled(chain, chain, estimator=estimator, solve=rg.infer, generator=generator)
    assert torch.allclose(same.log_partition, chain.log_partition())


def test_a_controlled_estimate_where_all_is_observed():
    """Then there are no states to choose, and the items of a batch are no replicates."""
    x = rg.Variable("x", 2)
    table = rg.Table(torch.tensor([[0.5, 2.0], [-3.0, 1.0]]))
    graph = rg.FactorGraph([rg.Factor((x,), table)])
    estimator = rg.Randomized.default(keep=1)
    for model in (graph.condition({x: [0, 1]}), graph.condition({x: 0})):
        found = rg.controlled(model, model, estimator=estimator, solve=rg.infer)
        torch.testing.assert_close(found.log_partition, rg.infer(model).log_partition)


def test_an_estimate_below_zero_says_so():
    found = rg.answers.ControlledEstimate(
        torch.tensor([[0.0, 0.0]]), torch.tensor([[2.0, 0.0]]), torch.tensor([0.0, 1.0]), 1.0
    )
    assert found.sign.tolist() == [-1, 1]
    expected = torch.tensor([math.exp(2.0) - 2, math.e])
    assert torch.allclose(found.log_absolute, expected.log())
    assert torch.allclose(found.log_partition, torch.tensor([0.0, 1.0]))


def test_a_surrogate_of_other_states_is_refused():
    generator = torch.Generator().manual_seed(0)
    model, other = (
        rg.Chain(torch.zeros(4, states), torch.zeros(states, states)) for states in (4, 5)
    )
    estimator = rg.Randomized.default(keep=2)
    with pytest.raises(rg.errors.ModelError, match="same variables, states and batch"):
        rg.controlled(model, other, estimator=estimator, solve=rg.infer, generator=generator)


@pytest.mark.parametrize(
    "wrong", [torch.zeros(3, 5), torch.zeros(0, 2), torch.full((3, 2), float("nan"))]
)
def test_features_have_no_error_on_what_are_no_embeddings(wrong):
    with pytest.raises(rg.errors.ModelError, match="embeddings"):
        rg.RandomFeatures(2, 3).predicted_error(wrong, torch.zeros(3, 2))


def test_the_bound_of_a_mode_is_one_of_sums_over_ranks():
    """A maximum over rank variables bounds no score, which is a sum over them."""
    sites = rg.VariableArray("x", (9,), 3)
    first, second = torch.combinations(torch.arange(9)).unbind(1)
    potential = rg.LowRank(drawn(36, 3, 4), drawn(36, 3, 4, seed=1))
    graph = rg.FactorGraph([rg.FactorBlock((sites[first], sites[second]), potential)])
    best = graph.score(rg.infer(graph).mode())
    for scheduler in (rg.Auto(), rg.Contraction(), rg.Loopy()):
        low = rg.infer(graph, estimator=rg.LowRankFactors(), scheduler=scheduler)
        assert bool(low.solution.mode_bound() >= best - 1e-9)
        assert bool(low.mode_bound() >= best - 1e-9)


def test_nothing_is_proved_of_a_model_by_one_that_approximates_it():
    vectors = drawn(4, 3, scale=0.5)
    graph = graphs(rg.Bilinear(vectors, vectors))["cycle"]
    generator = torch.Generator().manual_seed(0)
    low = rg.infer(graph, estimator=rg.LowRankFactors(16), generator=generator)
    assert not low.status.exact
    assert low.bounds() == (-math.inf, math.inf)
    assert low.bounds(confidence=0.9) == (-math.inf, math.inf)
    assert not bool(low.mode_is_optimal())
    assert float(low.mode_bound()) == math.inf


def test_a_surrogate_of_an_impossible_model_leaves_no_nan():
    unary = torch.full((3, 2), -math.inf, dtype=torch.float64, requires_grad=True)
    none = rg.Chain(unary, torch.zeros(2, 2, dtype=torch.float64))
    estimator = rg.Randomized.default(keep=1, replicates=3)
    found = rg.controlled(
        none, none, estimator=estimator, solve=rg.infer, generator=torch.Generator().manual_seed(0)
    )
    assert found.log_partition == -math.inf
    assert found.standard_error == math.inf
    found.log_partition.backward()
    assert unary.grad is not None
    assert bool(unary.grad.isfinite().all())


def of_tables(states, *more):
    sites = rg.VariableArray("x", (4,), states)
    pairs = rg.FactorBlock((sites[:-1], sites[1:]), rg.Table(drawn(states, states)))
    return rg.FactorGraph([pairs, *(rg.FactorBlock((sites[:-1], sites[1:]), one) for one in more)])


NO_RANKS = {
    "tables": lambda: of_tables(8),
    "a factor over three": lambda: rg.FactorGraph(
        [rg.Factor([rg.Variable(name, 6) for name in "abc"], rg.Table(drawn(6, 6, 6)))]
    ),
    "chain": lambda: rg.Chain(drawn(4, 8), drawn(8, 8)),
    "trees": lambda: rg.Hypertree(drawn(3, 3, 4), rg.trees.DenseRules(drawn(4, 4, 4))),
    # A million entries and more beside factors of a rank of 2.
    "wide tables beside ranks": lambda: of_tables(
        700, rg.LowRank(drawn(700, 2), drawn(700, 2, seed=1))
    ),
}


@pytest.mark.parametrize("name", NO_RANKS)
def test_a_low_rank_pilot_refuses_models_that_it_would_solve_exactly(name):
    model, selection = NO_RANKS[name](), rg.randomized.TopSystematic(2, 2)
    pilot = rg.Randomized(rg.randomized.LowRankPilot(8), selection)
    with pytest.raises(rg.errors.ModelError, match=r"use Pilot\(\), which needs no ranks"):
        rg.infer(model, estimator=pilot).log_partition  # noqa: B018
    other = rg.Randomized(rg.randomized.Pilot(), selection, replicates=4)
    found = rg.infer(model, estimator=other, generator=torch.Generator().manual_seed(0))
    assert bool(found.log_partition.isfinite())


def test_a_low_rank_pilot_takes_cheap_factors_beside_those_of_low_rank():
    ranks = rg.LowRank(drawn(8, 2), drawn(8, 2, seed=1))
    seen = of_tables(700, rg.LowRank(drawn(700, 2), drawn(700, 2, seed=1)))
    for model in (
        of_tables(8, ranks),
        seen.condition({"x": [3, -1, 3, 3]}),  # one row of each table is left
        rg.Chain(drawn(4, 8), ranks),
        rg.Hypertree(drawn(3, 3, 2), rg.trees.LowRankRules(*(drawn(2, 3) for _ in range(3)))),
    ):
        estimator = rg.Randomized(rg.randomized.LowRankPilot(), rg.randomized.TopTail(2, 2))
        found = rg.infer(model, estimator=estimator, generator=torch.Generator().manual_seed(0))
        assert bool(found.log_partition.isfinite())
