"""Gradients of the expected log-likelihood: finite differences, quadrature, and each other."""

import pytest
import torch
from torch.distributions import MultivariateNormal, Normal

from rdpgraph.errors import ModelError
from rdpgraph.gp import (
    RBF,
    ChainLikelihood,
    DiagonalCovariance,
    FullCovariance,
    Functions,
    Likelihood,
    PairwiseBound,
    PiecewisePseudoLikelihood,
    Reparameterised,
    ScoreFunction,
)

from . import models

F64 = torch.float64


class Constant(Likelihood):
    """A likelihood whose gradient is zero."""

    def log_prob(self, labels, unary, pairwise):
        return torch.full(unary.shape[:2], -7.0, dtype=unary.dtype)


class Quadratic(Likelihood):
    """A likelihood of known expectation: -(f - y)^2 / 2 at each position, and - |f_bin|^2 / 2."""

    def log_prob(self, labels, unary, pairwise):
        target = torch.nn.functional.one_hot(labels.states.clamp(min=0), unary.shape[-1])
        own = (unary - target).square().sum(-1) * labels.inside()
        return -(own.sum(-1) + pairwise.square().sum((1, 2)).unsqueeze(1)) / 2

    @staticmethod
    def expected(labels, gaussians):
        target = torch.nn.functional.one_hot(labels.states.clamp(min=0), gaussians.mean.shape[1])
        variances = gaussians.covariance.diagonal(dim1=-2, dim2=-1)
        own = ((gaussians.mean.mT - target).square() + variances.mT).sum(-1) * labels.inside()
        pairs = gaussians.pairwise_mean.square() + gaussians.pairwise_scale.square()
        return -(own.sum(-1) + pairs.sum()) / 2


def problem(kind=None):
    known = models.basis(3)
    group = models.group_of(known, 3, 1)
    q = models.posterior(3, covariance=kind or FullCovariance(), entropy=PairwiseBound(),
                         spread=0.3)  # fmt: skip
    return q, known, group


def gradient(q, known, group, estimator, likelihood, seed):
    functions = models.functions(q, known, group)
    generator = torch.Generator().manual_seed(seed)
    total = estimator.expected(likelihood, group.labels, functions, generator).sum()
    parts = torch.autograd.grad(total, list(q.parameters()), allow_unused=True)
    return torch.cat([one.flatten() for one in parts if one is not None])


@pytest.mark.parametrize("kind", [DiagonalCovariance(), FullCovariance()])
@pytest.mark.parametrize("likelihood", [ChainLikelihood(), PiecewisePseudoLikelihood()])
def test_reparameterised_gradients_are_finite_differences(kind, likelihood):
    """Gradients of all parameters and hyperparameters, with common random numbers."""
    q, known, group = problem(kind)
    known.kernels = [RBF(1.1, 1.5)]
    objective = models.objective(q, known, likelihood, Reparameterised(4, dtype=F64))

    def bound(*_):
        expected = objective.expected(group, torch.Generator().manual_seed(0), known.roots())
        return expected - q.divergence()

    everything = [*q.parameters(), *known.kernels[0].parameters()]
    inputs = [one for one in everything if one.requires_grad]
    assert torch.autograd.gradcheck(bound, inputs, fast_mode=True)


@pytest.mark.parametrize("control", [0.0, 0.2])
def test_score_function_gradients_are_right_in_mean(control):
    q, known, group = problem()
    truth = torch.cat([
        one.flatten() for one in torch.autograd.grad(
            Quadratic.expected(group.labels, models.functions(q, known, group).gaussians()).sum(),
            list(q.parameters()), allow_unused=True)
        if one is not None
    ])  # fmt: skip
    estimator = ScoreFunction(1000, control=control, dtype=F64)
    found = torch.stack(
        [gradient(q, known, group, estimator, Quadratic(), seed) for seed in range(60)]
    )
    error = found.std(0) / len(found) ** 0.5
    assert ((found.mean(0) - truth).abs() <= 5 * error + 1e-9).all()


def test_a_score_function_averages_log_likelihoods_times_gradients_of_log_q():
    q, known, group = problem()
    gaussians = models.functions(q, known, group).gaussians()
    parts = [gaussians.mean, gaussians.covariance, gaussians.pairwise_mean,
             gaussians.pairwise_scale]  # fmt: skip
    terms = []

    class Weighed(Quadratic):
        def log_prob(self, labels, unary, pairwise):
            values = super().log_prob(labels, unary, pairwise)
            with torch.enable_grad():
                own = MultivariateNormal(*parts[:2]).log_prob(unary.mT).sum(-1)
                own = own + Normal(*parts[2:]).log_prob(pairwise).sum((1, 2)).unsqueeze(1)
                terms.append(values * own)
            return values

    found = gradient(q, known, group, ScoreFunction(3, control=0.0, dtype=F64), Weighed(), 0)
    slopes = torch.autograd.grad(torch.cat(terms).mean(0).sum(), list(q.parameters()),
                                 allow_unused=True)  # fmt: skip
    wanted = torch.cat([one.flatten() for one in slopes if one is not None])
    torch.testing.assert_close(found, wanted)


@pytest.mark.long
def test_both_estimators_agree_and_the_control_variate_is_less_noisy():
    q, known, group = problem(DiagonalCovariance())
    likelihood = ChainLikelihood()
    runs = {
        name: torch.stack([gradient(q, known, group, one, likelihood, seed) for seed in range(40)])
        for name, one in (
            ("reparameterised", Reparameterised(200, dtype=F64)),
            ("controlled", ScoreFunction(1000, control=0.2, dtype=F64)),
            ("plain", ScoreFunction(800, control=0.0, dtype=F64)),
        )
    }
    mean = runs["reparameterised"].mean(0)
    for name in ("controlled", "plain"):
        error = (runs[name].var(0) + runs["reparameterised"].var(0)).sqrt() / 40**0.5
        assert ((runs[name].mean(0) - mean).abs() <= 5 * error + 1e-9).all()
    noise = {name: float(one.var(0).sum()) for name, one in runs.items()}
    assert noise["reparameterised"] < noise["controlled"] < noise["plain"] / 3


@pytest.mark.long
@pytest.mark.parametrize("kind", [DiagonalCovariance(), FullCovariance()])
def test_pieces_have_the_gradient_of_the_whole_and_scatter_less(kind):
    class Whole(PiecewisePseudoLikelihood):
        def pieces(self, labels):
            return None

    known = models.basis(3)
    group = models.group_of(known, 9, 1, 8)
    q = models.posterior(3, covariance=kind, entropy=PairwiseBound(), spread=0.3)
    estimator = ScoreFunction(500, control=0.2, dtype=F64)
    runs = {
        likelihood: torch.stack(
            [gradient(q, known, group, estimator, likelihood(), seed) for seed in range(40)]
        )
        for likelihood in (Whole, PiecewisePseudoLikelihood)
    }
    whole, pieces = runs.values()
    error = (whole.var(0) + pieces.var(0)).sqrt() / 40**0.5
    assert ((whole.mean(0) - pieces.mean(0)).abs() <= 5 * error + 1e-9).all()
    assert pieces.var(0).sum() < whole.var(0).sum() / 2


@pytest.mark.parametrize("keeps", [False, True])
@pytest.mark.parametrize("kind", [DiagonalCovariance(), FullCovariance()])
def test_gaussians_of_pieces_are_blocks_of_those_of_the_whole(kind, keeps):
    known = models.basis(3)
    group = models.group_of(known, 4, 1)
    q = models.posterior(3, covariance=kind, entropy=PairwiseBound(), spread=0.3)
    functions = Functions(q, known.reused(group) if keeps else known.conditional(group))
    pieces = PiecewisePseudoLikelihood().pieces(group.labels)
    whole, cut = functions.gaussians(), functions.cut(pieces).gaussians()
    for piece, (item, places) in enumerate(
        zip(pieces.sequences.tolist(), pieces.positions.tolist(), strict=True)
    ):
        places = places[: int(pieces.labels.lengths[piece])]
        size = len(places)
        torch.testing.assert_close(cut.mean[piece, :, :size], whole.mean[item][:, places])
        torch.testing.assert_close(
            cut.covariance[piece, :, :size, :size], whole.covariance[item][:, places][..., places]
        )


def test_covariances_without_a_factor_are_one_line():
    q, known, group = problem(DiagonalCovariance())
    with torch.no_grad():
        q.covariance.log_scales += torch.inf
    with pytest.raises(ModelError, match="no Cholesky factor") as caught:
        gradient(q, known, group, ScoreFunction(10), ChainLikelihood(), 0)
    assert "\n" not in str(caught.value)


def test_a_control_variate_of_all_samples_is_refused():
    for samples, control in ((1, 0.9), (10, 0.96), (10, 1.0), (0, 0.1)):
        with pytest.raises(
            ModelError, match=r"below 1 for the control|number of at least 1|number in"
        ):
            ScoreFunction(samples, control=control)
    assert ScoreFunction(10, control=0.9).samples == 10


def test_a_constant_has_no_gradient_with_the_control_variate():
    q, known, group = problem()
    found = gradient(q, known, group, ScoreFunction(50, control=0.2, dtype=F64), Constant(), 0)
    torch.testing.assert_close(found, torch.zeros_like(found), atol=1e-9, rtol=0)
    plain = gradient(q, known, group, ScoreFunction(50, control=0.0, dtype=F64), Constant(), 0)
    assert plain.abs().max() > 0.01


def test_blocks_of_samples_change_nothing_but_memory(small_blocks):
    q, known, group = problem()
    functions = models.functions(q, known, group)
    estimator = ScoreFunction(64, control=0.25, dtype=F64)
    values = estimator.expected(ChainLikelihood(), group.labels, functions,
                                torch.Generator().manual_seed(0))  # fmt: skip
    seen = []

    class Watched(ChainLikelihood):
        def log_prob(self, labels, unary, pairwise):
            seen.append(len(unary))
            return super().log_prob(labels, unary, pairwise)

    small_blocks(10 * functions.gaussians().mean.numel())
    blocks = estimator.expected(Watched(), group.labels, functions,
                                torch.Generator().manual_seed(0))  # fmt: skip
    assert max(seen) == 10
    assert sum(seen) == 64
    assert values.shape == blocks.shape == (2,)


def test_values_do_not_depend_on_the_padding():
    q, known, _ = problem()
    features, states = models.sequences(3, 1)
    padded = known.group([0, 1], features, states, None)
    alone = known.group([1], features, states, None)
    likelihood = Quadratic()
    with torch.no_grad():
        both = Quadratic.expected(padded.labels, models.functions(q, known, padded).gaussians())
        one = Quadratic.expected(alone.labels, models.functions(q, known, alone).gaussians())
        torch.testing.assert_close(both[1:], one)
        values = ScoreFunction(4000, dtype=F64).expected(
            likelihood, padded.labels, models.functions(q, known, padded),
            torch.Generator().manual_seed(0))  # fmt: skip
    torch.testing.assert_close(values, both, atol=0.3, rtol=0)


def test_bad_numbers_are_one_line():
    for make in (lambda: Reparameterised(3), lambda: ScoreFunction(10, control=1.0)):
        with pytest.raises(ModelError) as caught:
            make()
        assert "\n" not in str(caught.value)
