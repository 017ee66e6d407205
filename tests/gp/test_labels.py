"""Kernels and inducing points of each label, and covariances of pairs of labels."""

import dataclasses

import pytest
import torch
from torch.nn.functional import pad

from rdpgraph.errors import ModelError
from rdpgraph.gp import (
    RBF,
    DiagonalCovariance,
    Features,
    FullCovariance,
    Functions,
    Linear,
    Matern,
    PairwiseBound,
    PiecewisePseudoLikelihood,
    ScoreFunction,
    StructuredGP,
    Training,
)
from tests.gp import models

F64 = torch.float64
NAMES = "a", "b"


def drawn(*shape, seed=0):
    return torch.randn(shape, dtype=F64, generator=torch.Generator().manual_seed(seed))


def data():
    rows = [drawn(4, 3, seed=1), drawn(2, 3, seed=2), drawn(3, 3, seed=3)]
    return rows, [["b" if row[0] > 0 else "a" for row in one] for one in rows]


def tagger(**options):
    options = {"training": Training(steps=3), "predictive_samples": 8, **options}
    return StructuredGP(NAMES, **options)


@pytest.mark.parametrize("kind", [DiagonalCovariance(), FullCovariance()])
@torch.no_grad()
def test_functions_of_each_label_are_those_of_its_kernel_and_points(kind):
    points = [Features(drawn(3, 2, seed=1)), Features(drawn(5, 2, seed=2))]
    kernels = [RBF(1.2, 2.0), Matern(0.7)]
    known = models.basis_by_label(points, kernels, 0.01)
    q = models.posterior(5, covariance=kind, entropy=PairwiseBound())
    group = models.group_of(known, 3, 2)
    together = Functions(q, known.conditional(group))

    def drawn_of(functions):
        return functions.drawn(5, dtype=F64, generator=torch.Generator().manual_seed(0))[0]

    for label in range(2):
        own = models.basis_of(points[label], kernels[label], 0.01)
        (given,) = own.conditional(models.group_of(own, 3, 2))
        count = points[label].rows
        wide = dataclasses.replace(given, rows=pad(given.rows, (0, 5 - count)))
        alone = Functions(q, (wide,))
        for part in ("mean", "covariance"):
            one, other = (getattr(each.gaussians(), part)[:, label] for each in (together, alone))
            torch.testing.assert_close(one, other)
        torch.testing.assert_close(drawn_of(together)[..., label], drawn_of(alone)[..., label])
        # Points that a label does not have count for nothing.
        mean = given.rows @ q.means[0, label, :count]
        torch.testing.assert_close(together.gaussians().mean[:, label], mean)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"training": Training(steps=3, kernel_every=2)},
        {
            "estimator": ScoreFunction(50, control=0.2),
            "likelihood": PiecewisePseudoLikelihood(),
        },
    ],
    ids=["plain", "learned", "pieces"],
)
def test_the_same_kernel_and_points_for_each_label_are_one_for_all(options):
    rows, labels = data()
    points, kernel = drawn(3, 3, seed=9), RBF(1.5, 2.0)
    given = [
        {"kernel": kernel, "inducing": points},
        {"kernel": kernel, "inducing": dict.fromkeys(NAMES, points)},
    ]
    made = [
        tagger(**options, **one).fit(rows, labels, generator=torch.Generator().manual_seed(0))
        for one in given
    ]
    assert made[0].bounds_ == pytest.approx(made[1].bounds_)
    for one, other in zip(*(each.predict_marginals(rows) for each in made), strict=True):
        torch.testing.assert_close(one, other)


def test_labels_have_kernels_that_are_learned_and_points_of_their_own():
    rows, labels = data()
    kernels = {"b": Linear(), "a": RBF(1.5)}
    made = tagger(kernel=kernels, training=Training(steps=4, kernel_every=1))
    made.fit(rows, labels, generator=torch.Generator().manual_seed(0))
    assert made.inducing_["b"].rows == 3  # as many as linear functions of three features take
    assert made.inducing_["a"].rows == 9
    for name, kernel in kernels.items():
        learned = list(made.kernel_[name].parameters())
        assert any(
            not torch.equal(one, other)
            for one, other in zip(kernel.parameters(), learned, strict=True)
        )
    assert torch.tensor(made.elbo(rows, labels)).isfinite()


@torch.no_grad()
def test_the_divergence_of_pairs_is_that_of_their_covariance():
    root = drawn(4, 4, seed=5) + 3 * torch.eye(4)
    whole = root @ root.mT
    for prior, given in ((whole, whole), (0.09 * torch.eye(4, dtype=F64), 0.3)):
        q = models.posterior(
            3, covariance=DiagonalCovariance(), entropy=PairwiseBound(), pairwise_scale=given
        )
        normal = torch.distributions.MultivariateNormal
        own = normal(q.pairwise_mean.flatten(), (2 * q.pairwise_log_scale).exp().flatten().diag())
        exact = torch.distributions.kl_divergence(own, normal(torch.zeros(4, dtype=F64), prior))
        unary = torch.distributions.kl_divergence(
            torch.distributions.Normal(q.means, q.covariance.log_scales.exp()),
            torch.distributions.Normal(torch.zeros((), dtype=F64), 1.0),
        ).sum()
        torch.testing.assert_close(q.divergence(), unary + exact)


def test_a_covariance_of_pairs_is_fitted():
    rows, labels = data()
    ties = 0.5 * torch.eye(4, dtype=F64) + 0.5
    made = tagger(kernel=Linear(), pairwise_scale=ties).fit(rows, labels)
    assert torch.tensor(made.bounds_).isfinite().all()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"kernel": {"a": RBF()}}, "kernel for each of the labels"),
        ({"inducing": {"a": 2, "b": 2, "c": 2}}, "inducing for each of the labels"),
        ({"kernel": {"a": RBF(), "b": 1.0}}, "a Kernel for each label; got 1.0"),
        ({"pairwise_scale": torch.eye(3)}, "covariance .4, 4. of the pairs"),
        ({"pairwise_scale": torch.zeros(4, 4)}, "not positive definite"),
        ({"pairwise_scale": -1.0}, "pairwise_scale above 0"),
    ],
)
def test_bad_input_is_one_line(options, said):
    with pytest.raises(ModelError, match=said):
        tagger(**options).fit(*data())
