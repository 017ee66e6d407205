"""Training: optimisers that evaluate several times in a step, and options without effect."""

import functools

import pytest
import torch

from rdpgraph.errors import ModelError
from rdpgraph.gp import (
    RBF,
    ChainLikelihood,
    DiagonalCovariance,
    PairwiseBound,
    Reparameterised,
    ScoreFunction,
    Training,
)
from tests.gp.models import basis, functions, group_of, posterior
from tests.gp.test_tagger import data, tagger

LBFGS = functools.partial(torch.optim.LBFGS, max_iter=10, line_search_fn="strong_wolfe")


def fitted(seed=0, **options):
    """A tagger trained by L-BFGS."""
    options = {"steps": 5, "optimiser": LBFGS, "decay": False, **options}
    made = tagger(
        kernel=RBF(2.0, variance=4.0), estimator=Reparameterised(4), training=Training(**options)
    )
    generator = None if seed is None else torch.Generator().manual_seed(seed)
    return made.fit(*data(), generator=generator)


@pytest.mark.parametrize("kernel_every", [0, 1])
def test_quasi_newton_steps_maximise_the_bound_of_the_same_samples(kernel_every):
    made = fitted(kernel_every=kernel_every)
    rises = torch.tensor(made.bounds_).diff()
    assert float(rises.min()) > -1e-4  # scores are in float32
    assert abs(float(rises[-1])) < 0.05 * float(rises.sum())
    assert fitted(kernel_every=kernel_every, steps=2).bounds_ == made.bounds_[:2]
    learned = float(made.kernel_.log_lengthscale.detach().exp())
    assert (abs(learned - 2.0) > 1e-3) == bool(kernel_every)


def test_quasi_newton_steps_need_no_generator():
    assert len(fitted(seed=None, steps=2).bounds_) == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sequences": 2}, "LBFGS evaluates the bound of all sequences several times"),
        ({"kernel_every": 2}, "kernel_every of 0 or 1; got 2"),
        ({"kernel_every": 7}, "5 steps never updates a kernel with kernel_every=7; give at most 5"),
    ],
)
def test_options_that_would_have_no_effect_are_refused(options, message):
    with pytest.raises(ModelError, match=message) as error:
        fitted(**options)
    assert "\n" not in str(error.value)


def test_a_control_variate_of_one_sample_takes_none_from_the_average():
    known = basis(3)
    q = posterior(3, covariance=DiagonalCovariance(), entropy=PairwiseBound())
    group = group_of(known, 3, 2)

    def slopes(estimator):
        generator = torch.Generator().manual_seed(0)
        value = estimator.expected(
            ChainLikelihood(), group.labels, functions(q, known, group), generator
        )
        return value, torch.autograd.grad(value.sum(), q.means)[0]

    few, none = slopes(ScoreFunction(12)), slopes(ScoreFunction(12, control=0.0))
    assert all(map(torch.equal, few, none))
    assert not torch.equal(slopes(ScoreFunction(30))[1], slopes(ScoreFunction(30, control=0.0))[1])
