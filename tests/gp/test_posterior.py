"""The posterior over functions: its Gaussians, its divergence, and the bound of the evidence."""

import dataclasses
import math

import pytest
import torch
from torch.distributions import MultivariateNormal, Normal, kl_divergence

from rdpgraph.gp import (
    RBF,
    ChainLikelihood,
    DiagonalCovariance,
    Features,
    FullCovariance,
    Functions,
    JensenBound,
    PairwiseBound,
    Reparameterised,
)

from . import models

F64 = torch.float64
KINDS = [DiagonalCovariance(), FullCovariance()]


def dense_covariances(q, component=0):
    """(V, M, M) of whitened functions."""
    if isinstance(q.covariance, FullCovariance):
        roots = q.covariance.roots()[component]
    else:
        roots = torch.diag_embed(q.covariance.log_scales[component].exp())
    return (roots @ roots.mT).detach()


@pytest.mark.parametrize("keeps", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_gaussians_of_sequences_are_blocks_of_the_dense_ones(kind, keeps):
    """Theorem 3, and theorem 2 where the inducing points are all positions."""
    features, states = models.sequences(3, 2)
    everything = Features.stacked(features)
    generator = torch.Generator().manual_seed(4)
    fewer = Features(torch.randn(4, 2, dtype=F64, generator=generator))
    kernel, nugget = RBF(1.2, 2.0), 0.01
    for points in (fewer, everything):
        known = models.basis_of(points, kernel, nugget)
        q = models.posterior(points.rows, covariance=kind, entropy=PairwiseBound())
        group = known.group([0, 1], features, states, None)
        given = known.reused(group) if keeps else known.conditional(group)
        gaussians = Functions(q, given).gaussians()
        with torch.no_grad():
            prior = kernel(points.products(points))
            root = torch.linalg.cholesky(prior)
            cross = kernel(everything.products(points))
            projection = cross @ prior.inverse()
            own = kernel(everything.products(everything)) + nugget * torch.eye(5)
            for label, whitened in enumerate(dense_covariances(q)):
                covariance = root @ whitened @ root.mT
                dense = own - projection @ cross.mT + projection @ covariance @ projection.mT
                mean = projection @ (root @ q.means[0, label])
                for item, (start, stop) in enumerate(((0, 3), (3, 5))):
                    length = stop - start
                    block = gaussians.covariance[item, label, :length, :length]
                    torch.testing.assert_close(block, dense[start:stop, start:stop])
                    torch.testing.assert_close(
                        gaussians.mean[item, label, :length], mean[start:stop])  # fmt: skip
            if points is everything:  # nothing is left but the noise
                left = own - projection @ cross.mT
                torch.testing.assert_close(left, nugget * torch.eye(5, dtype=F64))


@pytest.mark.parametrize("kind", KINDS)
def test_projected_covariances_have_gradients(kind):
    """Gradients of rows and scales, which hyperparameters move."""
    known = models.basis(3)
    group = models.group_of(known, 3, 1)
    q = models.posterior(3, covariance=kind, entropy=PairwiseBound())
    (once,) = known.conditional(group)
    rows = once.rows.clone().requires_grad_()

    def projected(rows, *_):
        return q.covariance.projected(dataclasses.replace(once, rows=rows), 0)

    assert torch.autograd.gradcheck(projected, (rows, *q.covariance.parameters()), fast_mode=True)


@pytest.mark.parametrize("kind", KINDS)
def test_draws_have_the_gaussians_moments(kind):
    known = models.basis(4)
    group = models.group_of(known, 3, 2)
    q = models.posterior(4, covariance=kind, entropy=PairwiseBound())
    functions = models.functions(q, known, group)
    with torch.no_grad():
        gaussians = functions.gaussians()
        count = 40_000
        unary, pairwise = functions.drawn(count, dtype=F64,
                                          generator=torch.Generator().manual_seed(0))  # fmt: skip
        torch.testing.assert_close(unary.mean(0).mT, gaussians.mean)  # mirror images cancel
        torch.testing.assert_close(pairwise.mean(0), gaussians.pairwise_mean)
        apart = unary - unary.mean(0)
        covariance = torch.einsum("sbtv,sbuv->bvtu", apart, apart) / count
        dense = gaussians.covariance
        bound = 6 * dense.amax() * math.sqrt(2 / count)
        assert ((covariance - dense).abs() < bound).all()
        ratio = pairwise.std(0) / gaussians.pairwise_scale
        torch.testing.assert_close(ratio, torch.ones_like(ratio), atol=0.03, rtol=0)


@pytest.mark.parametrize("kind", KINDS)
def test_the_divergence_of_one_component_is_exact(kind):
    known = models.basis(4)
    for entropy in (JensenBound(), PairwiseBound()):
        q = models.posterior(4, covariance=kind, entropy=entropy, pairwise_scale=0.3)
        with torch.no_grad():
            (root,) = known.roots()
            expected = 0.0
            for label, whitened in enumerate(dense_covariances(q)):
                own = MultivariateNormal(root @ q.means[0, label], root @ whitened @ root.mT)
                expected += kl_divergence(own, MultivariateNormal(torch.zeros(4, dtype=F64),
                                                                  root @ root.mT))  # fmt: skip
            pairs = Normal(q.pairwise_mean, q.pairwise_log_scale.exp())
            expected += kl_divergence(pairs, Normal(0.0, 0.3)).sum()
            torch.testing.assert_close(q.divergence(), expected)
        for parameter in q.parameters():
            assert torch.autograd.gradcheck(
                lambda *_, q=q: q.divergence(), (parameter,), fast_mode=True
            )


def entropy_by_grid(q):
    """Entropy of a mixture over one whitened function of one label, by a fine grid."""
    grid = torch.linspace(-40, 40, 200_001, dtype=F64).unsqueeze(1)
    components = Normal(q.means.flatten(), q.covariance.log_determinants().exp().sqrt())
    logs = (q.logits.log_softmax(0) + components.log_prob(grid)).logsumexp(1)
    return -torch.trapezoid(logs.exp() * logs, grid.squeeze(1))


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_bounds_of_the_entropy_are_below_it(kind):
    for seed, spread in ((0, 0.3), (1, 1.0), (2, 1.5)):
        q = models.posterior(1, labels=1, components=3, covariance=kind, entropy=JensenBound(),
                             seed=seed, spread=spread)  # fmt: skip
        truth = entropy_by_grid(q)
        for bound in (JensenBound(), PairwiseBound()):
            found = bound.entropy(q.logits.log_softmax(0), q.means, q.covariance)
            assert found <= truth + 1e-6
    for apart in (0.0, 20.0):
        q = models.posterior(1, labels=1, components=2, covariance=kind, entropy=JensenBound(),
                             spread=0.0)  # fmt: skip
        q.means.copy_(torch.tensor([0.0, apart]).reshape(2, 1, 1))
        truth = entropy_by_grid(q)
        arguments = q.logits.log_softmax(0), q.means, q.covariance
        torch.testing.assert_close(PairwiseBound().entropy(*arguments), truth)
        low = truth - (1 - math.log(2)) / 2
        torch.testing.assert_close(JensenBound().entropy(*arguments), low)


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_jensen_s_bound_is_that_of_densities_of_the_means(kind):
    q = models.posterior(3, labels=2, components=3, covariance=kind, entropy=JensenBound())
    logs = q.logits.log_softmax(0)
    covariances = torch.stack([dense_covariances(q, component) for component in range(3)])
    densities = torch.stack([
        MultivariateNormal(q.means, covariances + own).log_prob(mean).sum(1)
        for mean, own in zip(q.means, covariances, strict=True)
    ])  # fmt: skip
    expected = -(logs.exp() * (logs + densities).logsumexp(1)).sum()
    torch.testing.assert_close(JensenBound().entropy(logs, q.means, q.covariance), expected)


def log_evidence(known, group, pairwise_scale):
    """Log evidence of two positions and two labels: differences of scores are normal."""
    (kernel,), (first, second) = known.kernels, group.labels.states[0].tolist()
    with torch.no_grad():
        own = 2 * (kernel(group.within)[0] + known.nugget * torch.eye(2))
    nodes, weights = models.normal_nodes(24, 2)
    apart = nodes @ torch.linalg.cholesky(own).mT  # score of label 1 less that of label 0
    # Scores of pairs matter by their differences from that of (0, 0), here over a coarser grid.
    pairs, chances = models.normal_nodes(8, 4)
    pairs = (pairwise_scale * pairs).reshape(-1, 2, 2)
    unary = torch.stack([torch.zeros_like(apart), apart], -1)
    scores = unary[:, None, 0, :, None] + unary[:, None, 1, None, :] + pairs
    logs = scores.flatten(2).log_softmax(-1)[..., 2 * first + second]
    return (weights[:, None] * chances * logs.exp()).sum().log()


@pytest.mark.long
def test_the_bound_is_below_the_evidence_and_tighter_with_more_components():
    """Scores of pairs are nearly fixed, so that the functions alone are approximated."""
    generator = torch.Generator().manual_seed(0)
    features, states = models.sequences(2)
    known = models.basis_of(features[0], RBF(1.2, 30.0), 0.01)
    group = known.group([0], features, states, None)
    truth = log_evidence(known, group, 0.01)
    nodes, weights = models.normal_nodes(14, 2)
    gaps = []
    for components in (1, 2, 4):
        q = models.posterior(2, covariance=DiagonalCovariance(), entropy=PairwiseBound(),
                             components=components, pairwise_scale=0.01, spread=0.2,
                             seed=components)  # fmt: skip
        objective = models.objective(q, known, ChainLikelihood(), Reparameterised(32, dtype=F64))
        optimiser = torch.optim.Adam(q.parameters(), lr=0.1)
        for step in range(80):
            optimiser.param_groups[0]["lr"] = 0.1 * (1 - step / 80)
            optimiser.zero_grad()
            (q.divergence() - objective.expected(group, generator)).backward()
            optimiser.step()
        with torch.no_grad():
            # By quadrature over the difference of the labels' functions at both positions.
            expected = torch.zeros((), dtype=F64)
            for component, weight in enumerate(q.weights()):
                gaussians = models.functions(q, known, group, component).gaussians()
                dense = gaussians.covariance[0].sum(0)
                apart = (gaussians.mean[0, 1] - gaussians.mean[0, 0]
                         + nodes @ torch.linalg.cholesky(dense).mT)  # fmt: skip
                unary = torch.stack([torch.zeros_like(apart), apart], -1).unsqueeze(1)
                pairs = gaussians.pairwise_mean.expand(len(nodes), 2, 2)
                logs = ChainLikelihood().log_prob(group.labels, unary, pairs).squeeze(1)
                expected += weight * (weights * logs).sum()
            gaps.append(float(truth - (expected - q.divergence())))
    assert 0 < gaps[2] < gaps[1] < gaps[0]


@torch.no_grad()
def test_a_step_of_all_entries_of_a_full_covariance_is_a_small_one():
    """An optimiser moves each entry by its rate, and there are M of them in a row."""
    points, step = 200, 0.1
    covariance = FullCovariance().started(1, 1, points, scale=0.1)
    before = covariance.traces()
    covariance.below += step
    assert covariance.traces() - before < step**2
