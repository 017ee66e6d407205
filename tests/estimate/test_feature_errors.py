"""Predicted errors of log Z under random features, and replicates of them."""

import itertools
import math

import numpy as np
import pytest
import torch

import rdpgraph as rg

WIDE = torch.float64


def drawn(*shape, seed=0, scale=1.0):
    generator = torch.Generator().manual_seed(seed)
    return scale * torch.randn(shape, generator=generator, dtype=WIDE)


def models(states=3):
    """A chain, a star and a triangle of `Bilinear` factors with one set of embeddings."""
    embeddings = drawn(states, 2, seed=1, scale=0.4)
    pairs = rg.Bilinear(embeddings, embeddings)
    sites, hub = rg.VariableArray("x", (3,), states), rg.Variable("hub", states)
    unary = rg.FactorBlock((sites,), rg.Table(drawn(3, states)))
    ends = sites[0], sites[1], sites[2]
    return {
        "chain": rg.Chain(drawn(4, states), pairs),
        "star": rg.FactorGraph([unary, rg.FactorBlock((hub, sites), pairs)]),
        "triangle": rg.FactorGraph(
            [unary, *(rg.Factor(both, pairs) for both in itertools.combinations(ends, 2))]
        ),
    }


def replicated(model, features, count, *, shared=False):
    estimator = rg.LowRankFactors(features, orthogonal=False, shared=shared, replicates=count)
    return rg.infer(model, estimator=estimator, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("shape", ["chain", "star", "triangle"])
@pytest.mark.filterwarnings("ignore:Random features are useless")
def test_the_second_moment_is_that_of_many_draws(shape):
    """Within four standard errors of the variance of 20,000 draws, and no more than 10% off."""
    model = models()[shape]
    predicted = rg.LowRankFactors(16).predicted_error(model, solve=rg.infer)
    assert predicted.exact
    log_z = rg.infer(model).log_partition
    ratios = (replicated(model, 16, 20_000).solution.log_partitions().flatten() - log_z).exp()
    squares = (ratios - 1).square()
    error = float(squares.std()) / math.sqrt(len(squares))
    assert abs(float(squares.mean()) - float(predicted.relative_variance)) < 4 * error
    assert float(squares.mean()) == pytest.approx(float(predicted.relative_variance), rel=0.1)
    logs = ratios.log()
    assert float(logs.std()) == pytest.approx(float(predicted.deviation), rel=0.1)
    assert float(logs.mean()) == pytest.approx(float(predicted.bias), abs=0.02)


def test_sampled_moments_are_those_of_two_copies():
    """A chain too wide for two copies in a graph: here they are a chain of pairs of states."""
    states, features = 33, 32
    embeddings = drawn(states, 2, scale=0.4)
    chain = rg.Chain(drawn(5, states), rg.Bilinear(embeddings, embeddings))
    centred = embeddings - embeddings.mean(0)
    sums = (centred[:, None] + centred).reshape(-1, 2)
    kernel = embeddings @ embeddings.T
    joint = (1 + (sums @ sums.T).expm1() / features).log().unflatten(0, (states, states))
    joint = joint.unflatten(2, (states, states)).permute(0, 2, 1, 3)  # [from, from', to, to']
    joint = joint + kernel[:, None, :, None] + kernel[None, :, None, :]
    pairs = rg.Chain(
        (chain.unary[:, :, None] + chain.unary[:, None]).flatten(1),
        joint.flatten(2).flatten(0, 1),
    )
    exact = (pairs.log_partition() - 2 * chain.log_partition()).expm1()
    generator = torch.Generator().manual_seed(0)
    found = rg.LowRankFactors(features).predicted_error(
        chain, solve=rg.infer, samples=20_000, generator=generator
    )
    assert not found.exact
    assert float(found.relative_variance) == pytest.approx(float(exact), rel=0.1)


@pytest.mark.long
@pytest.mark.parametrize("shape", ["chain", "star"])
def test_one_map_for_all_to_first_order(shape):
    """Many features: what is left out is of order 1 / d^2."""
    model, features, count = models()[shape], 400, 2000
    generator = torch.Generator().manual_seed(0)
    estimator = rg.LowRankFactors(features, shared=True)
    predicted = estimator.predicted_error(model, solve=rg.infer, samples=count, generator=generator)
    log_z = rg.infer(model).log_partition
    logs = (
        replicated(model, features, count, shared=True).solution.log_partitions().flatten() - log_z
    )
    assert float(logs.std()) == pytest.approx(float(predicted.deviation), rel=0.15)
    error = float(logs.std()) / math.sqrt(len(logs))
    assert abs(float(logs.mean()) - float(predicted.bias)) < 4 * error + 0.1 * float(logs.std())


def grammar(words=4, parents=2, children=4, dimension=1, scale=0.5):
    """Sentences whose rules are of `BilinearRules`."""
    left, right = drawn(2, parents, children, dimension, seed=3, scale=scale)
    rules = rg.trees.BilinearRules(left, right)
    root = drawn(parents, seed=4).log_softmax(0)
    return rg.Hypertree.pcfg(root, rules, drawn(words, children - parents, seed=5))


@pytest.mark.parametrize("shared", [False, True])
def test_the_error_of_a_grammar_is_that_of_one_feature_among_many(shared):
    """One feature of weight t, by quadrature: slopes of log Z in t, and their slopes."""
    model = grammar()
    predicted = rg.LowRankFactors(1, shared=shared).predicted_error(
        model, solve=rg.infer, samples=40_000, generator=torch.Generator().manual_seed(0)
    )
    nodes, masses = (torch.tensor(one) for one in np.polynomial.hermite_e.hermegauss(12))
    masses = masses / masses.sum()
    left, right = (side - side.mean(1, keepdim=True) for side in model.rules.parts)
    ratio = (right.square().mean((1, 2)) / left.square().mean((1, 2))) ** 0.25
    left, right = left * ratio[:, None, None], right / ratio[:, None, None]
    sums = (left[:, :, None] + right[:, None]).squeeze(-1)
    features = (nodes[:, None, None, None] * sums - sums.square() / 2).expm1()
    variance = bias = 0.0
    for own in [torch.ones(2, 1, 1)] if shared else list(torch.eye(2)[:, :, None, None]):
        weights = torch.zeros(len(nodes), 1, 1, 1, dtype=WIDE, requires_grad=True)
        logs = model.rules.table(2, 4) + (weights * features * own).log1p()
        rules = rg.trees.DenseRules(logs.flatten(2).log_softmax(2).unflatten(2, (4, 4)))
        unary = model.unary.expand(len(nodes), *model.unary.shape)
        log_z = rg.Hypertree(unary, rules, root=model.root, preterminals=2).log_partition()
        (slopes,) = torch.autograd.grad(log_z.sum(), weights, create_graph=True)
        (bends,) = torch.autograd.grad(slopes.sum(), weights)
        variance += float(masses @ slopes.detach().flatten().square())
        bias += float(masses @ bends.flatten()) / 2
    assert float(predicted.relative_variance) == pytest.approx(variance, rel=1e-4)
    assert float(predicted.bias) == pytest.approx(bias, abs=0.005)  # of a deviation of 0.29


@pytest.mark.parametrize("shared", [False, True])
def test_the_error_of_a_grammar_is_that_of_many_draws(shared):
    model, features = grammar(words=3, parents=2, children=5, dimension=2, scale=0.3), 64
    estimator = rg.LowRankFactors(features, shared=shared)
    predicted = estimator.predicted_error(
        model, solve=rg.infer, generator=torch.Generator().manual_seed(0)
    )
    logs = replicated(model, features, 800, shared=shared).solution.log_partitions().flatten()
    errors = logs - model.log_partition()
    assert float(errors.std()) == pytest.approx(float(predicted.deviation), rel=0.1)
    error = float(errors.std()) / math.sqrt(len(errors))
    assert abs(float(errors.mean()) - float(predicted.bias)) < 4 * error
    fewest = predicted.features_for(0.01)
    assert math.hypot(*map(float, (predicted.of(fewest).deviation, predicted.of(fewest).bias))) <= (
        0.01
    )


def test_a_sample_stands_for_many_rules():
    """5,000 rules of one map, and the sum over all pairs of them."""
    model = grammar(words=2, parents=2, children=50, dimension=2, scale=0.3)
    found = rg.LowRankFactors(1, shared=True).predicted_error(
        model, solve=rg.infer, samples=2, generator=torch.Generator().manual_seed(0)
    )
    table = model.rules.table(2, 50)
    dense = rg.Hypertree(model.unary, rg.trees.DenseRules(table), root=model.root, preterminals=48)
    uses = dense.rule_marginals()[0]
    slopes = (uses - uses.sum((1, 2), keepdim=True) * table.exp()).flatten()
    left, right = (side - side.mean(1, keepdim=True) for side in model.rules.parts)
    ratio = (right.square().mean((1, 2)) / left.square().mean((1, 2)))[:, None, None] ** 0.25
    sums = ((left * ratio)[:, :, None] + (right / ratio)[:, None]).flatten(0, 2)
    exact = slopes @ (sums @ sums.T).exp() @ slopes
    assert float(found.relative_variance) == pytest.approx(float(exact), rel=0.15)


@pytest.mark.parametrize("shape", ["chain", "star"])
def test_the_error_of_cosines_and_sines_is_that_of_many_draws(shape):
    model = models()[shape]
    estimator = rg.LowRankFactors(16, orthogonal=False, replicates=20_000)
    predicted = estimator.predicted_error(model, solve=rg.infer, signed=True)
    assert predicted.exact
    found = estimator.signed(model, generator=torch.Generator().manual_seed(0))
    ratios = found.signs * (found.log_sizes - rg.infer(model).log_partition).exp()
    variance = float((ratios - 1).square().mean())
    assert variance == pytest.approx(float(predicted.relative_variance), rel=0.1)
    positive = ratios[ratios > 0].log()
    assert float(positive.std()) == pytest.approx(float(predicted.deviation), rel=0.1)
    assert float(positive.mean()) == pytest.approx(float(predicted.bias), abs=0.02)


def test_the_error_of_one_pair_by_cosines_and_sines_is_a_formula():
    """4 sinh^2(|x - y|^2 / 2) / d, enumerated, sampled, and even of states far apart."""
    left, right = drawn(1, 3, seed=1), drawn(1, 3, seed=2)
    pair = rg.Chain(torch.zeros(2, 1, dtype=WIDE), rg.Bilinear(left, right))
    waves = rg.LowRankFactors(8).predicted_error(pair, solve=rg.infer, signed=True)
    assert float(waves.relative_variance) == pytest.approx(0.0, abs=1e-12)  # centred: x = y = 0
    fewest = rg.LowRankFactors(8).predicted_error(models()["chain"], solve=rg.infer, signed=True)
    assert fewest.features_for(0.05) % 2 == 0
    states = torch.tensor([[-1.0], [1.0]], dtype=WIDE)
    pair = rg.Chain(torch.zeros(2, 2, dtype=WIDE), rg.Bilinear(states, states))
    values = (states @ states.T).exp().flatten()
    sizes = (states - states.T).flatten()  # x - y
    cosh = torch.cosh(sizes[:, None] * sizes) - 1
    expected = (values[:, None] * values * cosh).sum() / values.sum().square() * 2 / 8
    found = rg.LowRankFactors(8).predicted_error(pair, solve=rg.infer, signed=True)
    assert float(found.relative_variance) == pytest.approx(float(expected))
    far = rg.Chain(torch.zeros(2, 2, dtype=WIDE), rg.Bilinear(20 * states, 20 * states))
    for signed in (False, True):
        error = rg.LowRankFactors(8).predicted_error(far, solve=rg.infer, signed=signed)
        assert not error.deviation.isnan()
        assert not error.bias.isnan()


def test_cosines_and_sines_take_maps_of_their_own():
    for estimator in (rg.LowRankFactors(7), rg.LowRankFactors(8, shared=True)):
        with pytest.raises(rg.errors.ModelError, match=r"LowRankFactors\.signed"):
            estimator.predicted_error(models()["chain"], solve=rg.infer, signed=True)


def test_evidence_and_batches_are_predicted_item_by_item():
    graph = models()["star"]
    both = graph.condition({"x": [[1, -1, -1], [-1, 2, 0]]})
    estimator = rg.LowRankFactors(8)
    whole = estimator.predicted_error(both, solve=rg.infer)
    for item, states in enumerate(([1, -1, -1], [-1, 2, 0])):
        single = estimator.predicted_error(graph.condition({"x": states}), solve=rg.infer)
        assert torch.allclose(whole.relative_variance[item], single.relative_variance)


def test_features_for_an_error_are_the_fewest():
    model = models()["chain"]
    predicted = rg.LowRankFactors(8).predicted_error(model, solve=rg.infer)
    least = predicted.features_for(0.1)

    def error(features):
        other = rg.LowRankFactors(features).predicted_error(model, solve=rg.infer)
        return math.hypot(float(other.deviation), float(other.bias))

    assert error(least) <= 0.1 < error(least - 1)
    with pytest.raises(rg.errors.ModelError, match="above 0 nats; got 0"):
        predicted.features_for(0)


def test_a_model_without_such_factors_has_no_error():
    chain = rg.Chain(drawn(3, 4), drawn(4, 4))
    predicted = rg.LowRankFactors(8).predicted_error(chain, solve=rg.infer)
    assert float(predicted.relative_variance) == pytest.approx(0.0, abs=1e-12)
    assert predicted.features_for(1e-6) == 1
    with pytest.raises(rg.errors.ModelError, match="features="):
        rg.LowRankFactors().predicted_error(chain, solve=rg.infer)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("shape", ["chain", "star", "triangle"])
def test_replicates_are_the_mean_of_single_draws(shape, shared):
    """The same maps one by one: Z is the mean, marginals in proportion to Z."""
    model, count = models()[shape], 4
    many = replicated(model, 64, count, shared=shared)
    each = many.solution.log_partitions()[:, 0]
    assert torch.allclose(many.log_partition, each.logsumexp(0) - math.log(count))
    inner = many.solution.inner.variable_marginals().unflatten(0, (count, -1))
    weights = each.softmax(0)
    mean = (weights[:, None, None] * inner).sum(0)
    assert torch.allclose(many.solution.variable_marginals(), mean)
    assert many.status.biased
    assert not many.status.converged  # four replicates do not say what their error is
    assert 0 < many.status.standard_error < math.inf
    generator = torch.Generator().manual_seed(1)
    drawn_states = many.solution.sample(4000, generator)
    sizes = [entry.size for entry in many.graph.variables] if shape == "star" else []
    assert drawn_states.shape[1] == 1
    if not sizes:
        return
    first = torch.nn.functional.one_hot(drawn_states[:, 0, 0], 3).double().mean(0)
    assert torch.allclose(first, many.solution.variable_marginals()[0, :3], atol=0.04)


def test_replicates_of_a_batch_are_replicates_of_each_item():
    chain = rg.Chain(drawn(2, 4, 3), rg.Bilinear(drawn(3, 2, scale=0.3), drawn(3, 2, scale=0.3)))
    many = replicated(chain, 2048, 16)
    assert many.marginals().shape == (2, 4, 3)
    assert torch.allclose(many.log_partition, chain.log_partition(), atol=0.1)
    assert torch.allclose(many.marginals(), chain.marginals(), atol=0.05)
    assert many.status.converged


def test_replicates_of_sequences_of_several_lengths():
    embeddings = drawn(3, 2, scale=0.3)
    chain = rg.Chain(
        drawn(2, 4, 3), rg.Bilinear(embeddings, embeddings), lengths=torch.tensor([4, 2])
    )
    many = replicated(chain, 2048, 8)
    assert torch.allclose(many.log_partition, chain.log_partition(), atol=0.1)


def test_the_interval_covers():
    """At least 330 of 400 intervals at 90%, with 8 replicates, hold log Z."""
    chain = models()["chain"]
    exact = rg.infer(chain).log_partition
    logs = replicated(chain, 64, 3200).solution.log_partitions().reshape(400, 8)
    held = 0
    for row in logs:
        low, high = rg.answers.Replicates(row.unsqueeze(1)).interval(0.9)
        held += bool(low <= exact <= high)
    assert held >= 330


def test_averages_refuse_what_they_cannot_say():
    many = replicated(models()["chain"], 16, 2)
    for ask in (many.mode, many.entropy, many.max_marginals):
        with pytest.raises(rg.errors.UnsupportedError, match="replicates=1"):
            ask()
    with pytest.raises(
        rg.errors.ModelError, match="replicates as a whole number of at least 1; got 0"
    ):
        rg.LowRankFactors(8, replicates=0)
