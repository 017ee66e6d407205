"""Fits by gradient and standard errors against those of EM and of textbooks."""

import functools

import pytest
import torch

import rdpgraph as rg
from rdpgraph import learn
from rdpgraph.learn import EM, Probabilities, fit_by_gradient, standard_errors

A, B = rg.Variable("a", 2), rg.Variable("b", 3)


def model(values, rows):
    graph = rg.FactorGraph([
        rg.Factor(A, rg.Table(values["a"])), rg.Factor((A, B), rg.Table(values["b"])),
    ])  # fmt: skip
    return graph.condition({A: rows[:, 0], B: rows[:, 1]})


def start(**options):
    a, b = torch.tensor([0.4, 0.6]).double(), torch.tensor([[0.2, 0.3, 0.5], [0.5, 0.4, 0.1]])
    return {"a": Probabilities(a.log(), **options), "b": Probabilities(b.double().log(), **options)}


def rows(count=60, gaps=0.25, seed=0):
    generator = torch.Generator().manual_seed(seed)
    made = (torch.rand(count, 2, generator=generator) ** 2 * torch.tensor([2, 3])).long()
    return made.masked_fill(torch.rand(made.shape, generator=generator) < gaps, -1)


@pytest.mark.parametrize("options", [{}, {"prior": 0.5}])
def test_gradients_end_where_em_does(options):
    em = EM(model, start(**options), tolerance=1e-12, limit=100)
    one, other = em.fit(rows()), fit_by_gradient(em, rows())
    assert other.history[-1] == pytest.approx(one.history[-1], abs=1e-6)
    for name, own in one.parameters.items():
        p, q = own.log_values.exp(), other.parameters[name].log_values.exp()
        torch.testing.assert_close(p, q, atol=1e-4, rtol=0)


def test_steps_are_told_from_zero_on_and_errors_of_the_model_as_they_are():
    seen = []
    em = EM(model, start(), limit=4, tolerance=0, progress=seen.append)
    fit = fit_by_gradient(em, rows())
    assert [(step.start, step.number) for step in seen] == [(0, n) for n in range(len(seen))]
    assert [step.objective for step in seen] == list(fit.history[: len(seen)])

    def refuses(values, rows):
        raise ValueError("a mistake of the user's")

    with pytest.raises(ValueError, match="a mistake of the user's"):
        fit_by_gradient(EM(refuses, start()), rows())


@pytest.mark.parametrize("over", [2, -3, (0, 5), 1.5])
def test_probabilities_are_normalised_over_dims_of_their_table(over):
    with pytest.raises(rg.errors.ModelError, match="over dims of their table only, which has 2"):
        Probabilities(torch.zeros(2, 3), over=over)


@pytest.mark.long
def test_fits_in_inference_mode_are_the_same():
    em = EM(model, start(prior=0.5), limit=20)
    fits = em.fit(rows()), fit_by_gradient(em, rows())
    errors = standard_errors(em, fits[0], rows())["a"]
    with torch.inference_mode():
        again = em.fit(rows()), fit_by_gradient(em, rows())
        torch.testing.assert_close(standard_errors(em, again[0], rows())["a"], errors)
    assert [fit.history for fit in again] == [fit.history for fit in fits]


@pytest.mark.long
def test_optimisers_of_torch_and_batches_serve():
    em = EM(model, start(), limit=40, tolerance=0, batch_size=32)
    adam = functools.partial(torch.optim.Adam, lr=0.2)
    fit = fit_by_gradient(em, rows(), optimizer=adam)
    assert fit.history[-1] == pytest.approx(em.fit(rows()).history[-1], abs=0.5)
    again = fit_by_gradient(em, rows(), start=fit)
    assert again.history[-1] >= fit.history[-1] - 1e-6


def test_standard_errors_of_complete_rows_are_the_binomial_ones():
    complete = rows(400, gaps=0.0)
    em = EM(model, start())
    fit = em.fit(complete)
    p = fit.parameters["a"].log_values.exp()
    expected = (p * (1 - p) / 400).sqrt()
    q = fit.parameters["b"].log_values.exp()
    given = (q * (1 - q) / (400 * p[:, None])).sqrt()
    errors = standard_errors(em, fit, complete)
    torch.testing.assert_close(errors["a"][0], expected)
    torch.testing.assert_close(errors["b"][0], given)
    outer = standard_errors(em, fit, complete, scores=True)
    torch.testing.assert_close(outer["a"][0], expected)
    weighted = standard_errors(em, fit, complete, torch.full((400,), 4.0))
    torch.testing.assert_close(weighted["a"][0], expected / 2)


@pytest.mark.long
def test_gaps_widen_standard_errors_and_what_is_fixed_has_none():
    em = EM(model, start(), tolerance=1e-12)
    full, part = rows(200, gaps=0.0), rows(200, gaps=0.5)
    wide, narrow = (standard_errors(em, em.fit(x), x)["a"][0] for x in (part, full))
    assert bool((wide > narrow).all())
    fixed = start() | {"a": Probabilities(start()["a"].log_values, fixed=True)}
    em = EM(model, fixed)
    assert standard_errors(em, em.fit(full), full)["a"][0].tolist() == [0.0, 0.0]


def test_tables_are_recovered_within_three_standard_errors():
    truth = {name: own.log_values for name, own in start().items()}
    graph = model(truth, torch.full((1, 2), -1))
    drawn = rg.infer(graph).sample(2000, torch.Generator().manual_seed(5))
    data = torch.stack([drawn["a"][:, 0], drawn["b"][:, 0]], 1)
    data = data.masked_fill(
        torch.rand(data.shape, generator=torch.Generator().manual_seed(1)) < 0.2, -1
    )
    em = EM(model, start(), tolerance=1e-10)
    fit = em.fit(data)
    errors = standard_errors(em, fit, data)
    for name, own in fit.parameters.items():
        off = (own.log_values.exp() - truth[name].exp()).abs() / errors[name][0]
        assert float(off.max()) < 3


def test_what_the_data_says_nothing_of_has_no_error_bar():
    hidden = torch.full((20, 2), -1)
    hidden[:, 1] = torch.arange(20) % 3
    em = EM(model, start(), tolerance=1e-12)
    fit = em.fit(hidden)
    assert bool(standard_errors(em, fit, hidden)["a"][0].isinf().all())


P = 5 / 12
MEAN, VARIANCE = (P * (1 - P) / 12) ** 0.5, (2 * (P * (1 - P)) ** 2 / 12) ** 0.5
NORMAL = torch.distributions.Normal


@pytest.mark.parametrize(
    ("emission", "expected"),
    [
        (learn.Categorical(3), [[MEAN, MEAN, 0.0]]),
        (learn.Gaussian(), [[MEAN], [VARIANCE]]),
        (learn.Gaussian("tied"), [[MEAN], [VARIANCE]]),
        (learn.Poisson(), [[(P / 12) ** 0.5]]),
        (learn.Bernoulli(), [[MEAN]]),
        (learn.Mixture(1, learn.Gaussian()), [[0.0], [MEAN], [VARIANCE]]),
        (learn.Product([(learn.Poisson(), [0])]), [[(P / 12) ** 0.5]]),
        (learn.Density(NORMAL, {"loc": 0.0, "scale": 0.5}, fixed=["scale"]), [[0.5 / 12**0.5]]),
    ],
)
def test_errors_of_emissions_are_those_of_a_sample(emission, expected):
    """Errors of a mean, and of a variance, of the 12 steps seen, in one state."""
    data = torch.tensor([0, 1, 1, 0, 0, 1, 0, 1, 0, 0, 1, 0, torch.nan])
    errors = learn.HMM(1, emission, tolerance=1e-10).fit(data).standard_errors(data)["emission"]
    for own, wanted in zip(errors, expected, strict=True):
        wanted = torch.tensor(wanted).double()
        torch.testing.assert_close(own.flatten(), wanted, atol=1e-5, rtol=1e-3)


def test_errors_of_a_hidden_markov_model_are_of_all_tables():
    generator = torch.Generator().manual_seed(0)
    data = torch.randn(30, 2, generator=generator).double()
    data[10:20] += 2
    data[3, 0] = torch.nan
    model = learn.HMM(2, learn.Gaussian("full", covariance_prior=1.0), tolerance=1e-9, limit=500)
    model.set_params(start_prior=0.5, transition_prior=0.5)
    errors = model.fit(data).standard_errors(data)
    assert {name: own[0].shape for name, own in errors.items()} == {
        "start": (2,), "transition": (2, 2), "emission": (2, 2),
    }  # fmt: skip
    assert all(bool((part > 0).all()) for own in errors.values() for part in own)


@pytest.mark.long
def test_intervals_cover():
    """95% intervals of a table with a third of the entries missing, over many fits."""
    truth = {name: own.log_values for name, own in start().items()}
    graph = model(truth, torch.full((1, 2), -1))
    generator = torch.Generator().manual_seed(3)
    drawn = rg.infer(graph).sample(150 * 80, generator)
    data = torch.stack([drawn["a"][:, 0], drawn["b"][:, 0]], 1)
    data = data.masked_fill(torch.rand(data.shape, generator=generator) < 1 / 3, -1)
    em, covered = EM(model, start(), tolerance=1e-5), []
    for part in data.split(150):
        fit = em.fit(part)
        errors = standard_errors(em, fit, part)
        for name, own in fit.parameters.items():
            off = (own.log_values.exp() - truth[name].exp()).abs()
            covered.append((off <= 1.96 * errors[name][0]).flatten()[:-1])
    share = torch.cat(covered).double().mean()
    assert abs(float(share) - 0.95) < 3 * (0.95 * 0.05 / 80) ** 0.5
