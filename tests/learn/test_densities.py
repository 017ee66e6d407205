"""Families of torch as emissions: their support, and maxima that are maxima."""

import functools
import math

import pytest
import torch
from torch import distributions as D

from rdpgraph import learn
from rdpgraph.errors import EvidenceError, ModelError, RdpgraphError, UnsupportedError
from rdpgraph.learn.sequences import as_rows

NAN = math.nan
GAMMA = {"concentration": 1.0, "rate": 1.0}
BETA = {"concentration1": 1.0, "concentration0": 1.0}


def values(count=40, seed=0, low=0.05):
    """Numbers above ``low``, as of an exponential distribution."""
    draws = torch.rand(count, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return low - (1 - draws).log()


def reals(count=40, seed=0):
    return torch.randn(count, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def fitted(family, parameters, data, states=1, fixed=(), **options):
    density = learn.Density(family, parameters, fixed)
    return learn.HMM(states, density, **options).fit(data)


OUTSIDE = [
    (D.Gamma, GAMMA, -0.5, "of at least 0"),
    (D.Exponential, {"rate": 1.0}, -1.0, "of at least 0"),
    (D.LogNormal, {"loc": 0.0, "scale": 1.0}, 0.0, "above 0"),
    (D.Weibull, {"scale": 1.0, "concentration": 1.0}, 0.0, "above 0"),
    (D.Beta, BETA, 1.2, "of 0 to 1"),
    (D.Geometric, {"probs": 0.5}, 1.5, "whole numbers of at least 0"),
    (D.Poisson, {"rate": 1.0}, -2.0, "whole numbers of at least 0"),
    (D.Bernoulli, {"probs": 0.5}, 0.5, "0 or 1"),
    (D.Binomial, {"total_count": 3.0, "probs": 0.5}, 4.0, "whole numbers of 0 to 3"),
    (D.Categorical, {"probs": [0.2, 0.8]}, 2.0, "whole numbers of 0 to 1"),
    (D.Uniform, {"low": 0.0, "high": 2.0}, 2.5, "of 0 to 2"),
    (D.Pareto, {"scale": 0.5, "alpha": 1.0}, 0.25, "of at least 0.5"),
]


@pytest.mark.parametrize(
    ("family", "parameters", "wrong", "words"), OUTSIDE, ids=[case[0].__name__ for case in OUTSIDE]
)
def test_values_outside_of_the_support_are_refused(family, parameters, wrong, words) -> None:
    """Fits and questions name the first such value and its row; its log-density is -inf."""
    inside = family in (D.LogNormal, D.Weibull, D.Pareto, D.Beta)
    good = torch.tensor([0.6, 0.7, 0.9, 0.8] if inside else [1.0, 0.0, 1.0, 1.0])
    density = learn.Density(family, parameters, [*parameters])
    model = learn.HMM(1, density).fit(good)
    data = torch.cat([good, torch.tensor([wrong, -7.0])])
    for ask in (learn.HMM(1, density).fit, model.score, model.predict_proba):
        with pytest.raises(EvidenceError, match=rf"{words} .*got {wrong:g} in row 4") as error:
            ask(data)
        assert "\n" not in str(error.value)
    found = model.emission_.log_prob(data.double().unsqueeze(1))[:, 0]
    assert found[4:].tolist() == [-math.inf, -math.inf]
    law = family(**{name: torch.as_tensor(p).double() for name, p in parameters.items()})
    torch.testing.assert_close(found[:4], law.log_prob(good.double()))


def test_vectors_outside_of_the_support_are_refused() -> None:
    rows = torch.tensor([[0.5, 0.5], [0.2, 0.8], [0.5, 0.6]])
    with pytest.raises(EvidenceError, match=r"got \[0.5, 0.6.* in row 2"):
        fitted(D.Dirichlet, {"concentration": torch.ones(2)}, rows)


def test_whole_numbers_are_missing_at_minus_one() -> None:
    counts = torch.tensor([0.0, 3.0, -1.0, 2.0, 0.0, 1.0])
    scores = [
        fitted(D.Poisson, {"rate": 1.0}, data).score(data)
        for data in (counts, torch.where(counts < 0, NAN, counts))
    ]
    assert scores[0] == pytest.approx(scores[1])


def test_states_have_supports_of_their_own() -> None:
    """Independent steps of two uniform states: a mixture at each, by hand."""
    low, high = torch.tensor([[0.0], [1.0]]), torch.tensor([[2.0], [3.0]])
    density = learn.Density(D.Uniform, {"low": low, "high": high}, ["low", "high"], states=2)
    half = torch.tensor([0.5, 0.5]).log()
    model = learn.HMM(2, density, start=half, transition=half.expand(2, 2))
    data = torch.tensor([0.5, 1.5, 2.5, NAN])
    assert model.score(data) == pytest.approx(math.log(0.25) + math.log(0.5) + math.log(0.25))
    assert model.predict_proba(data)[:3].tolist() == [[1.0, 0.0], [0.5, 0.5], [0.0, 1.0]]
    with pytest.raises(EvidenceError, match=r"of 0 to 3 .*got 3.5 in row 4"):
        model.score(torch.cat([data, torch.tensor([3.5])]))


def test_gradients_are_those_of_the_values_that_count() -> None:
    """Missing entries, and those outside of a state's support, add no NaN to the gradient."""
    scale = torch.tensor([[0.5], [2.0]]).double()
    alpha = torch.tensor([[1.0], [3.0]]).double()
    density = learn.Density(D.Pareto, {"scale": scale, "alpha": alpha}, ["scale"], states=2)
    observed = torch.tensor([[1.0], [3.0], [NAN], [0.1]]).double()

    def total(free):
        found = density.at([free]).log_prob(observed)
        return torch.where(found > -math.inf, found, 0.0).sum()

    (free,) = density.free()
    assert torch.autograd.gradcheck(total, free.requires_grad_())
    assert (density.log_prob(observed) == -math.inf).tolist() == [
        [False, True], [False, False], [False, False], [True, True],
    ]  # fmt: skip


ENDS = [
    (D.Gamma, GAMMA, 0.0, 1),
    (D.Gamma, {"concentration": 2.0, "rate": 1.0}, 0.0, 2),
    (D.Chi2, {"df": 2.0}, 0.0, 1),
    (D.Beta, BETA, 0.0, 1),
    (D.Beta, BETA, 1.0, 1),
    (D.Kumaraswamy, BETA, 0.0, 1),
]


@pytest.mark.parametrize(("family", "parameters", "end", "states"), ENDS)
def test_an_infinite_density_at_an_end_of_the_support_is_no_maximum(
    family, parameters, end: float, states: int
) -> None:
    data = values(40) / 6
    data = data[data < 1]
    with pytest.raises(ModelError, match=rf"no maximum: row {len(data)}, column 0 is {end:g},"):
        fitted(family, parameters, torch.cat([data, torch.tensor([end])]), states)
    # The advice: as a missing value it counts for nothing.
    gone = torch.cat([data, torch.tensor([NAN])])
    one, other = (fitted(family, parameters, rows, limit=3) for rows in (gone, data))
    assert one.score(gone) == pytest.approx(other.score(data))


def test_finite_densities_at_an_end_of_the_support_are_fitted() -> None:
    data = torch.cat([values(), torch.zeros(3)])
    rate = fitted(D.Exponential, {"rate": 1.0}, data).emission_.parameters["rate"]
    assert float(rate) == pytest.approx(1 / float(data.mean()), rel=1e-4)


def test_an_infinite_density_is_refused_in_questions() -> None:
    model = fitted(D.Gamma, GAMMA, values(low=0.0) ** 3)
    assert model.emission_.parameters["concentration"] < 1
    with pytest.raises(EvidenceError, match=r"log-density of inf at \[0.0\] in row 1"):
        model.score([1.0, 0.0])


@pytest.mark.parametrize("seed", range(4))
def test_kinks_do_not_end_a_fit(seed: int) -> None:
    """Laplace's maximum is the median and the mean distance from it."""
    data = reals(21, seed)
    median = data.median()
    best = D.Laplace(median, (data - median).abs().mean()).log_prob(data).sum()
    found = fitted(D.Laplace, {"loc": 0.0, "scale": 1.0}, data)
    assert found.fit_.status.converged
    assert found.score(data) == pytest.approx(float(best), abs=1e-3)


def test_kinks_of_some_states_do_not_hold_others() -> None:
    """The same by weighted medians, in each state and column."""
    data, weights = reals(30).reshape(15, 2), values(45).reshape(15, 3)
    start = {"loc": torch.zeros(3, 2), "scale": torch.ones(3, 2)}
    density = learn.Density(D.Laplace, start, states=3)
    found = density.maximised(density.statistics(as_rows([data]), weights.unsqueeze(0)))

    def loss(own):
        values = own.log_densities(data)
        return -(weights.unsqueeze(2) * values).sum(0) / weights.sum(0).unsqueeze(1)

    order = data.argsort(0)
    mass = weights.unsqueeze(2).expand(15, 3, 2).gather(0, order.unsqueeze(1).expand(15, 3, 2))
    half = mass.cumsum(0) >= mass.sum(0) / 2
    median = data.gather(0, order).unsqueeze(1).expand(15, 3, 2).gather(
        0, half.long().argmax(0, keepdim=True)
    )[0]  # fmt: skip
    spread = (data.unsqueeze(1) - median).abs()
    scale = (weights.unsqueeze(2) * spread).sum(0) / weights.sum(0).unsqueeze(1)
    best = learn.Density(D.Laplace, {"loc": median, "scale": scale}, states=3)
    assert float((loss(found) - loss(best)).max()) < 2e-3


def test_a_start_where_the_gradient_is_nearly_zero_is_no_maximum() -> None:
    data = reals(40)
    near, far = (
        fitted(D.Cauchy, {"loc": loc, "scale": 1.0}, data).score(data) for loc in (0.0, 1e9)
    )
    assert far == pytest.approx(near, abs=1e-3)


@pytest.mark.long
def test_a_density_that_narrows_to_a_value_is_no_maximum() -> None:
    data = torch.full((12,), 3.0)
    start = {"loc": 0.0, "scale": 1.0}
    with pytest.raises(ModelError, match=r"narrows to the value of row 0, column 0.*Fix") as error:
        fitted(D.Laplace, start, data)
    assert "\n" not in str(error.value)
    found = fitted(D.Laplace, start, data, fixed=["scale"])
    assert float(found.emission_.parameters["loc"]) == pytest.approx(3.0, abs=1e-6)


@pytest.mark.long
def test_rounding_is_not_taken_for_likelihood() -> None:
    """Torch's density of Student is wrong from 1e12 degrees of freedom on."""
    data = reals(20)
    student = fitted(D.StudentT, {"df": 1e-3, "loc": 1e4, "scale": 1e-4}, data).score(data)
    assert student == pytest.approx(learn.HMM(1, learn.Gaussian()).fit(data).score(data), abs=0.1)


def test_ends_of_the_range_of_a_parameter_stay_or_are_refused() -> None:
    zeros, some = torch.zeros(5), torch.tensor([0.0, 1.0, 1.0])
    assert float(fitted(D.Poisson, {"rate": 0.0}, zeros).emission_.parameters["rate"]) == 0.0
    for family, start, name in (
        (D.Poisson, {"rate": 0.0}, "rate"), (D.Bernoulli, {"probs": 0.0}, "probs"),
        (D.Geometric, {"probs": 1.0}, "probs"),
    ):  # fmt: skip
        with pytest.raises(ModelError, match=f"starts from {name} of .* the data contradicts it"):
            fitted(family, start, some)
        again = fitted(family, {name: 0.5}, some)
        assert again.fit_.status.converged
    with pytest.raises(UnsupportedError, match=r"probabilities of 0.*fixed="):
        fitted(D.Categorical, {"probs": [0.5, 0.5, 0.0]}, some)


def test_a_support_that_moves_is_not_fitted() -> None:
    data = values(low=1.0)
    with pytest.raises(UnsupportedError, match=r"support depends on it.*fixed=\['scale'\]"):
        fitted(D.Pareto, {"scale": 1.0, "alpha": 1.0}, data)
    found = fitted(D.Pareto, {"scale": 1.0, "alpha": 1.0}, data, fixed=["scale"])
    expected = 1 / float(data.log().mean())
    assert float(found.emission_.parameters["alpha"]) == pytest.approx(expected, rel=1e-4)


def test_starting_parameters_are_finite_numbers_of_their_range() -> None:
    for loc, message in ((math.inf, "holds an infinity"), (NAN, "do not fit its family")):
        with pytest.raises(ModelError, match=message):
            learn.Density(D.Normal, {"loc": loc, "scale": 1.0})


@pytest.mark.parametrize(
    ("family", "parameters"),
    [(D.Gamma, {"concentration": 0.5, "rate": 1.0}), (D.Uniform, {"low": 7.0, "high": 9.0})],
)
def test_durations_need_finite_densities(family, parameters) -> None:
    durations = learn.Durations(learn.Density(family, parameters, [*parameters]), 5)
    with pytest.raises(ModelError, match="Durations of 1 to 5 steps need a density that is finite"):
        learn.HSMM(2, learn.Gaussian(), durations).fit(reals(20))


def test_durations_outside_of_the_support_have_probability_zero() -> None:
    density = learn.Density(D.Bernoulli, {"probs": [[0.3]]}, states=1)
    table = learn.Durations(density, 4).value(None).exp()
    assert table[:, 0].tolist() == pytest.approx([0.7, 0.3, 0.0, 0.0])


def em_of(emission, data, **options):
    """EM, and batches, of one state."""
    model = learn.HMM(1, emission, limit=0).fit(data)
    batches = [as_rows([data.double().unsqueeze(1)])]
    return learn.EM(model._model, model.fit_.parameters, **options), batches


def gamma(concentration: float):
    one = torch.ones(1, 1)
    return learn.Density(D.Gamma, {"concentration": concentration * one, "rate": one}, states=1)


def test_a_gradient_fit_that_cannot_move_has_not_converged() -> None:
    em, batches = em_of(gamma(1.0), torch.cat([values(), torch.zeros(1)]))
    fit = learn.fit_by_gradient(em, batches)
    assert not fit.status.converged
    assert "not finite" in fit.status.remedy
    assert math.isfinite(fit.log_likelihood)
    em, batches = em_of(gamma(1.0), values())
    assert learn.fit_by_gradient(em, batches).status.converged
    for rate in (0.0, 1e-9):
        slow = functools.partial(torch.optim.SGD, lr=rate)
        fit = learn.fit_by_gradient(em, batches, optimizer=slow)
        assert not fit.status.converged
        assert "gain less than the tolerance" in fit.status.remedy


def test_a_gradient_fit_that_leaves_the_domain_gives_its_best_point() -> None:
    em, batches = em_of(gamma(1.0), values())
    wild = functools.partial(torch.optim.SGD, lr=1e6)
    fit = learn.fit_by_gradient(em, batches, optimizer=wild)
    assert not fit.status.converged
    assert "the optimizer reached parameters where" in fit.status.remedy
    assert math.isfinite(fit.log_likelihood)
    assert bool(fit.parameters["emission"].parameters["rate"].isfinite().all())


def test_mixtures_of_densities_have_gradients_where_a_state_is_impossible() -> None:
    low = torch.tensor([[0.0], [0.0], [5.0], [5.0]])
    parts = learn.Density(D.Uniform, {"low": low, "high": low + 2}, ["low", "high"], states=4)
    weights = torch.full((2, 2), 0.5).double().log()
    mixture = learn.Mixture(2, parts, weights)
    observed = torch.tensor([[1.0], [6.0]]).double()
    free = [part.requires_grad_() for part in mixture.free()]
    found = mixture.at(free).log_prob(observed)
    assert (found == -math.inf).tolist() == [[False, True], [True, False]]
    slopes = torch.autograd.grad(found[found > -math.inf].sum(), free, allow_unused=True)
    assert all(bool(slope.isfinite().all()) for slope in slopes if slope is not None)


@pytest.mark.parametrize(
    "emission",
    [
        learn.Gaussian("diagonal", [[math.inf]], [[1.0]]),
        learn.Gaussian("diagonal", [[0.0]], [[0.0]]),
        learn.Gaussian("spherical", [[0.0]], [math.inf]),
        learn.Gaussian("full", [[0.0]], [[[0.0]]]),
        learn.Poisson([[math.inf]]),
    ],
)
def test_tables_without_a_likelihood_are_refused(emission) -> None:
    with pytest.raises(ModelError, match="within their range"):
        learn.HMM(1, emission).fit(torch.tensor([0.0, 1.0]))


@pytest.mark.parametrize(
    "make",
    [
        lambda: learn.Categorical(2, prior=math.inf),
        lambda: learn.Gaussian(covariance_prior=-1.0),
        lambda: learn.Gaussian(mean_prior=NAN),
        lambda: learn.Probabilities(torch.zeros(1), prior=math.inf),
    ],
)
def test_priors_are_finite(make) -> None:
    with pytest.raises(RdpgraphError, match="finite"):
        make()


def test_a_value_of_probability_zero_is_named() -> None:
    with pytest.raises(EvidenceError, match=r"no state can give \[1.0\] in row 3"):
        learn.HMM(1, learn.Poisson([[0.0]])).fit([0.0, 0.0, 0.0, 1.0], [2, 2])
