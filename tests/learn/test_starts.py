"""Fits from several starts, of which some collapse, and parameters that are held fixed."""

import math

import numpy as np
import pytest
import torch

import rdpgraph as rg
from rdpgraph import learn
from rdpgraph.errors import ImpossibleEvidenceError, ModelError
from rdpgraph.learn import EM, Probabilities, fit_by_gradient, standard_errors
from rdpgraph.learn.sequences import as_rows


def generated(seed=0):
    return torch.Generator().manual_seed(seed)


def two_groups(seed=4, count=30):
    draws = np.random.default_rng(seed)
    return np.r_[draws.normal(0, 1, count), draws.normal(3, 1, count)]


def test_a_start_that_collapses_is_dropped_and_counted() -> None:
    """A start that came to its end was scored before each step and after the last one."""
    seen: dict[int, list[float]] = {}
    model = learn.HMM(
        4, learn.Gaussian(), starts=4, limit=10, tolerance=0.0,
        progress=lambda step: seen.setdefault(step.start, []).append(step.objective),
    )  # fmt: skip
    model.fit(two_groups(6, 15), generator=generated(6))
    ends = [objectives[-1] for objectives in seen.values() if len(objectives) == 11]
    assert 0 < len(ends) < 4
    assert model.fit_.history[-1] == max(ends)
    remedy = model.fit_.status.remedy
    assert f"{4 - len(ends)} of 4 starts collapsed and were dropped, the first by: " in remedy
    assert "is singular" in remedy
    # The other starts are as they would be without those that collapsed.
    again = learn.HMM(4, learn.Gaussian(), starts=4, limit=10, tolerance=0.0)
    again.fit(two_groups(6, 15), generator=generated(6))
    assert again.fit_.history == model.fit_.history


def test_numbers_of_states_whose_fits_collapse_are_no_choice() -> None:
    """Three steps of one value are no five Gaussians; fits of all numbers may not collapse."""
    data = torch.tensor([0.0, 1.0, 0.5, 0.2] * 3)
    scores = learn.held_out(learn.HMM(1, learn.Gaussian()), data, [4] * 3, states=(1, 7))
    assert scores[7] == -math.inf
    assert math.isfinite(scores[1])
    with pytest.raises(ModelError, match="is singular"):
        learn.held_out(learn.HMM(1, learn.Gaussian()), data, [4] * 3, states=(7,))


def test_starts_that_all_collapse_end_with_the_first_error() -> None:
    data = torch.ones(20)
    with pytest.raises(ModelError, match=r"All 3 starts collapsed. The first: .*singular"):
        learn.HMM(2, learn.Gaussian(), starts=3).fit(data)
    with pytest.raises(ModelError, match=r"^Gaussian's diagonal covariance"):
        learn.HMM(2, learn.Gaussian()).fit(data)
    stay = torch.eye(2).log()
    table = torch.tensor([[1.0, 0.0], [0.0, 1.0]]).log()
    never = learn.HMM(2, learn.Categorical(2, table), transition=stay, starts=2)
    with pytest.raises(ImpossibleEvidenceError, match="All 2 starts collapsed"):
        never.fit(torch.tensor([0.0, 1.0]))


def test_arguments_that_do_not_fit_are_no_collapse() -> None:
    with pytest.raises(ModelError, match=r"^HMM needs start"):
        learn.HMM(2, learn.Gaussian(), start=[0.0], starts=3).fit(torch.arange(5.0))


class Moody(Probabilities):
    """A table that has no maximum where its first entry is likelier than the second one."""

    def maximised(self, statistics):
        if self.log_values[0] > self.log_values[1]:
            raise ModelError("the mood is bad.")
        return super().maximised(statistics)


def test_collapsed_starts_of_any_model_are_dropped() -> None:
    side = rg.Variable("side", 2)

    def model(values, rows):
        return rg.FactorGraph([rg.Factor(side, rg.Table(values["side"]))]).condition({side: rows})

    rows = torch.tensor([0, 1, 1, 1])
    for first, others in (([0.9, 0.1], 4), ([0.1, 0.9], 0)):
        parameters = {"side": Moody(torch.tensor(first).double().log())}
        if not others:
            assert EM(model, parameters).fit(rows).status.remedy == ""
            continue
        with pytest.raises(ModelError, match="mood"):
            EM(model, parameters).fit(rows)
        fit = EM(model, parameters, starts=1 + others).fit(rows, generator=generated())
        assert "of 5 starts collapsed" in fit.status.remedy
        found = fit.parameters["side"].log_values.exp()
        torch.testing.assert_close(found, torch.tensor([0.25, 0.75]).double())


def tables(states=2):
    draws = torch.rand(states, states, generator=generated(1), dtype=torch.float64)
    return {
        "start": torch.tensor([0.3, 0.7]).double().log(),
        "transition": draws.log_softmax(1),
        "emission": learn.Gaussian("diagonal", [[0.0], [2.0]], [[1.0], [2.0]]),
    }


def pieces(model):
    """What was fitted, by the names that `fixed` takes."""
    result = {
        "start": [model.start_], "transition": [model.transition_],
        "emission": [model.emission_.means, model.emission_.covariances],
    }  # fmt: skip
    return result | ({"durations": [model.duration_]} if isinstance(model, learn.HSMM) else {})


@pytest.mark.parametrize("kind", ["hmm", "hsmm"])
@pytest.mark.parametrize("fixed", [["start"], ["transition", "emission"], ["emission", "start"]])
def test_what_is_fixed_stays_and_the_rest_is_fitted(kind: str, fixed) -> None:
    """After one step the rest is as without fixing: a step maximises each by itself."""
    given = tables()
    if kind == "hsmm":
        given["transition"] = torch.tensor([[0.0, 1.0], [1.0, 0.0]]).log()
        given["durations"] = torch.tensor([[0.5, 0.2], [0.3, 0.5], [0.2, 0.3]]).log()
        fixed = [*fixed, "durations"]
    made = learn.HMM if kind == "hmm" else learn.HSMM
    data = torch.tensor(two_groups())
    held = pieces(made(2, **given, limit=1, fixed=fixed).fit(data))
    free = pieces(made(2, **given, limit=1).fit(data))
    begun = pieces(made(2, **given, limit=0).fit(data))
    for name, parts in held.items():
        expected = begun[name] if name in fixed else free[name]
        for part, wanted in zip(parts, expected, strict=True):
            torch.testing.assert_close(part, wanted)
    assert not torch.equal(begun["start"][0], free["start"][0])


def test_further_starts_keep_what_is_fixed() -> None:
    given = tables()
    model = learn.HMM(
        2, given["emission"], transition=given["transition"], fixed=["transition", "start"],
        starts=3, limit=5,
    )  # fmt: skip
    model.fit(two_groups())
    torch.testing.assert_close(model.transition_, given["transition"])
    torch.testing.assert_close(model.start_.exp(), torch.tensor([0.5, 0.5]).double())


def test_what_is_fixed_is_no_free_parameter_and_has_no_error() -> None:
    data = torch.tensor(two_groups())
    given = tables()
    model = learn.HMM(2, **given, fixed=["start", "emission"], tolerance=1e-9, limit=300).fit(data)
    assert model.aic(data) == pytest.approx(2 * 2 - 2 * model.score(data))
    errors = model.standard_errors(data)
    for name in ("start", "emission"):
        assert all(not part.any() for part in errors[name])
    assert bool((errors["transition"][0] > 0).all())


def test_gradients_and_errors_leave_fixed_parameters() -> None:
    data = torch.tensor(two_groups())
    model = learn.HMM(2, **tables(), limit=0).fit(data)
    batches = [as_rows([data.unsqueeze(1)])]
    em = EM(model._model, model.fit_.parameters, fixed=["emission"], tolerance=1e-10)
    one, other = em.fit(batches), fit_by_gradient(em, batches)
    assert other.history[-1] == pytest.approx(one.history[-1], abs=1e-4)
    assert torch.equal(other.parameters["emission"].means, model.emission_.means)
    whole = EM(model._model, model.fit_.parameters, fixed=[*model.fit_.parameters])
    for fit in (whole.fit(batches), fit_by_gradient(whole, batches)):
        assert fit.status.converged
        assert fit.log_likelihood == pytest.approx(model.score(data))
    assert not any(
        bool(part.any()) for own in standard_errors(whole, fit, batches).values() for part in own
    )


@pytest.mark.parametrize("kind", ["spherical", "diagonal", "full", "tied"])
def test_tables_of_a_gaussian_are_fixed_by_name(kind: str) -> None:
    """Covariances about means that stay; means where covariances stay."""
    data = torch.randn(30, 2, generator=generated(), dtype=torch.float64)
    weights = torch.rand(30, 2, generator=generated(1), dtype=torch.float64)
    means = torch.tensor([[0.5, 0.0], [-0.5, 1.0]]).double()
    full = torch.eye(2).double().expand(2, 2, 2)
    own = {
        "spherical": torch.ones(2).double(), "diagonal": torch.ones(2, 2).double(), "tied": full[0]
    }.get(kind, full)  # fmt: skip

    def maximised(*fixed):
        emission = learn.Gaussian(kind, means, own, fixed=fixed)
        return emission.maximised(emission.statistics(as_rows([data]), weights.unsqueeze(0)))

    apart = data.unsqueeze(1) - means
    squares = torch.einsum("rs,rsc,rsd->scd", weights, apart, apart)
    mass = weights.sum(0)
    table = squares / mass[:, None, None]
    expected = {
        "spherical": table.diagonal(dim1=1, dim2=2).mean(1),
        "diagonal": table.diagonal(dim1=1, dim2=2), "full": table,
        "tied": squares.sum(0) / mass.sum(),
    }[kind]  # fmt: skip
    held = maximised("means")
    assert torch.equal(held.means, means)
    torch.testing.assert_close(held.covariances, expected)
    held = maximised("covariances")
    assert torch.equal(held.covariances, own)
    torch.testing.assert_close(held.means, weights.mT @ data / mass.unsqueeze(1))
    both = maximised("means", "covariances")
    assert torch.equal(both.means, means)
    assert torch.equal(both.covariances, own)
    assert (held.size, both.size) == (4, 0)


@pytest.mark.parametrize(
    ("emission", "data"),
    [
        (learn.Categorical(2, [[0.5, 0.5], [0.2, 0.8]], fixed=["log_values"]), [0, 1, 1, 0, 1]),
        (learn.Poisson([[1.0], [3.0]], fixed=["rates"]), [0, 1, 5, 2, 1]),
        (learn.Bernoulli([[0.3], [0.8]], fixed=["chances"]), [0, 1, 1, 0, 1]),
        (
            learn.Mixture(
                1, learn.Poisson([[1.0], [3.0]], fixed=["rates"]), [[0.0], [0.0]],
                fixed=["log_weights"],
            ),
            [0, 1, 5, 2, 1],
        ),
    ],
    ids=lambda given: type(given).__name__,
)  # fmt: skip
def test_tables_of_emissions_are_fixed_by_name(emission, data) -> None:
    if isinstance(emission, learn.Categorical):
        emission = learn.Categorical(2, torch.tensor([[0.5, 0.5], [0.2, 0.8]]).log(),
                                     fixed=["log_values"])  # fmt: skip
    model = learn.HMM(2, emission, limit=3).fit(torch.tensor(data).double())
    rows = torch.tensor(data).double().unsqueeze(1)
    torch.testing.assert_close(model.emission_.log_prob(rows), emission.log_prob(rows))
    assert model.emission_.size == 0
    assert all(not part.numel() for part in model.emission_.free())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: learn.Gaussian(fixed=["means"]), "cannot keep means fixed without a table"),
        (lambda: learn.Poisson([[1.0]], fixed=["means"]), "'means' fixed, which is none of rates"),
        (lambda: learn.HMM(1, learn.Gaussian(), fixed=["means"]), r"its own fixed=\['means'\]"),
        (lambda: learn.HMM(1, learn.Gaussian(), fixed=["emission"]), "has no tables of it"),
        (lambda: learn.HMM(1, learn.Gaussian(), fixed=["durations"]), "none of start, transition"),
        (
            lambda: learn.HMM(3, learn.Gaussian(), rank=2, fixed=["transition"]),
            "cannot keep its transition fixed, because it has no tables",
        ),
    ],
)
def test_names_of_nothing_are_told(make, message: str) -> None:
    with pytest.raises(ModelError, match=message) as error:
        make().fit(torch.arange(6.0))
    assert "\n" not in str(error.value)


def test_low_rank_transitions_stay() -> None:
    data = torch.tensor(two_groups())
    low = learn.HMM(3, learn.Gaussian(covariance_prior=1.0), rank=2, limit=2).fit(data).transition_
    model = learn.HMM(
        3, learn.Gaussian(covariance_prior=1.0), transition=low, fixed=["transition"], limit=3
    ).fit(data)
    torch.testing.assert_close(model.transition_.table(2), low.table(2))
    assert math.isfinite(model.score(data))
