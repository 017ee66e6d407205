"""Emissions against the distributions of torch, and maximisation against plain sums."""

import math
import pickle
from dataclasses import replace

import pytest
import torch
from torch.distributions import (
    Bernoulli,
    Categorical,
    Independent,
    Laplace,
    MultivariateNormal,
    Normal,
    Poisson,
)

from rdpgraph import learn
from rdpgraph.errors import EvidenceError, ModelError
from rdpgraph.learn.sequences import as_rows

NAN = math.nan
STATES, COLUMNS, ROWS = 2, 3, 12
KINDS = ("spherical", "diagonal", "full", "tied")


def draws(seed=0):
    return torch.Generator().manual_seed(seed)


def reals(*shape, seed=0):
    return torch.randn(shape, generator=draws(seed), dtype=torch.float64)


def weights(rows=ROWS, states=STATES):
    return torch.rand(rows, states, generator=draws(7), dtype=torch.float64)


def statistics(emission, observed, counts):
    return emission.statistics(as_rows([observed]), counts.unsqueeze(0))


def gaps(observed, seed=3):
    """A third of the entries missing, and one row as a whole."""
    hidden = torch.rand(observed.shape, generator=draws(seed)) < 0.33
    hidden[1] = True
    return observed.masked_fill(hidden, NAN)


def covariance(states=STATES, columns=COLUMNS):
    root = reals(states, columns, columns, seed=5)
    return root @ root.mT + torch.eye(columns)


def gaussian(kind, **options):
    full = covariance()
    tables = {"full": full, "tied": full[0], "diagonal": full.diagonal(dim1=1, dim2=2)}
    own = tables.get(kind, full[:, 0, 0])
    return learn.Gaussian(kind, reals(STATES, COLUMNS, seed=4), own, **options)


def dense(emission):
    """(states, columns, columns) the covariances."""
    table, kind = emission.covariances, emission.covariance
    if kind == "spherical":
        return table[:, None, None] * torch.eye(COLUMNS)
    return {"diagonal": table.diag_embed, "full": table.clone}.get(
        kind, lambda: table.expand(STATES, -1, -1)
    )()


def whole(rows=ROWS, columns=COLUMNS, most=4):
    return torch.randint(most, (rows, columns), generator=draws(2)).double()


def example(name):
    """An emission with tables, data without gaps, and the same distribution of torch."""
    shares = torch.rand(STATES, COLUMNS, generator=draws(1), dtype=torch.float64)
    if name == "categorical":
        table = shares.log().log_softmax(1)
        return learn.Categorical(3, table), whole(columns=1, most=3), Categorical(logits=table)
    if name == "poisson":
        return learn.Poisson(shares * 4), whole(), Poisson(shares * 4)
    if name == "bernoulli":
        return learn.Bernoulli(shares), whole(most=2), Bernoulli(shares)
    if name == "density":
        loc = reals(STATES, COLUMNS)
        own = learn.Density(Laplace, {"loc": loc, "scale": shares}, states=STATES)
        return own, reals(ROWS, COLUMNS), Laplace(loc, shares)
    own = gaussian(name)
    return own, reals(ROWS, COLUMNS), MultivariateNormal(own.means, dense(own))


EXAMPLES = ("categorical", "poisson", "bernoulli", "density", *KINDS)


@pytest.mark.parametrize("name", EXAMPLES)
def test_log_likelihoods_are_those_of_torch(name: str) -> None:
    emission, observed, own = example(name)
    data = observed if name == "categorical" else observed.unsqueeze(1)
    expected = own.log_prob(data)
    expected = expected.sum(2) if expected.ndim == 3 else expected
    torch.testing.assert_close(emission.log_prob(observed), expected)


@pytest.mark.parametrize("name", EXAMPLES)
def test_entries_that_are_missing_are_summed_out(name: str) -> None:
    emission, observed, own = example(name)
    seen = gaps(observed)
    found = emission.log_prob(seen)
    for row, values in zip(seen, found, strict=True):
        there = ~row.isnan()
        if not bool(there.any()):
            expected = torch.zeros(STATES, dtype=torch.float64)
        elif name in KINDS:
            tables = dense(emission)[:, there][:, :, there]
            marginal = MultivariateNormal(emission.means[:, there], tables)
            expected = marginal.log_prob(row[there])
        elif name == "categorical":
            expected = own.log_prob(row)
        else:
            expected = own.log_prob(torch.where(there, row, observed[0]))[:, there].sum(1)
        torch.testing.assert_close(values, expected)
    assert not bool(found.isnan().any())


@pytest.mark.long
@pytest.mark.parametrize("name", EXAMPLES)
def test_statistics_add_up_and_parameters_are_pickled(name: str) -> None:
    emission, observed, _ = example(name)
    observed, counts = gaps(observed), weights()
    rows = as_rows([observed])
    together = emission.maximised(emission.statistics(rows, counts.unsqueeze(0)))
    parts = []
    for at in (slice(0, 5), slice(5, ROWS)):
        own = as_rows([observed[at]], [at.start], ROWS)
        parts.append(emission.statistics(own, counts[at].unsqueeze(0)))
    summed = tuple(a + b for a, b in zip(*parts, strict=True))
    other = pickle.loads(pickle.dumps(emission.maximised(summed)))
    torch.testing.assert_close(together.log_prob(observed), other.log_prob(observed))


@pytest.mark.parametrize("name", [name for name in EXAMPLES if name != "density"])
def test_nothing_near_the_maximum_is_better(name: str) -> None:
    """The weighted log-likelihood of what was seen, plus the prior, has its maximum there."""
    prior = {
        "categorical": {"prior": 0.5}, "poisson": {"shape": 1.5, "rate": 0.3},
        "bernoulli": {"prior": 0.4},
    }.get(name, {"mean_prior": 0.2, "mean_weight": 0.5, "covariance_prior": 0.3,
                 "covariance_weight": 0.7})  # fmt: skip
    emission, observed, _ = example(name)
    emission = replace(emission, **prior)
    counts = weights()

    def objective(own):
        return float((counts * own.log_prob(observed)).sum() + own.log_prior())

    best = emission.maximised(statistics(emission, observed, counts))
    top = objective(best)
    for seed in range(8):
        tables = {}
        for field in best.tables:
            table = getattr(best, field)
            noise = 0.05 * torch.randn(table.shape, generator=draws(seed), dtype=torch.float64)
            if field == "covariances" and name in ("full", "tied"):
                near = torch.matrix_exp((noise + noise.mT) / 2) @ table
                tables[field] = (near + near.mT) / 2
            elif field == "log_values":
                tables[field] = (table + noise).log_softmax(1)
            else:
                tables[field] = table + noise if field == "means" else table * (1 + noise)
        assert objective(replace(best, **tables)) < top


@pytest.mark.parametrize("kind", ["full", "tied"])
def test_covariances_come_from_conditional_moments(kind: str) -> None:
    emission, counts = gaussian(kind), weights()
    observed = gaps(reals(ROWS, COLUMNS))
    found = emission.maximised(statistics(emission, observed, counts))
    tables = dense(emission)
    filled, rest, mass = [], [], counts.clone()
    for row in observed:
        o, m = ~row.isnan(), row.isnan()
        means = row.nan_to_num(0.0).repeat(STATES, 1)
        left = torch.zeros_like(tables)
        for state in range(STATES):
            mean, table = emission.means[state], tables[state]
            gain = table[m][:, o] @ torch.linalg.inv(table[o][:, o])
            means[state, m] = mean[m] + gain @ (row[o] - mean[o])
            left[state][m.outer(m)] = (table[m][:, m] - gain @ table[o][:, m]).flatten()
        filled.append(means)
        rest.append(left)
    mass[observed.isnan().all(1)] = 0.0
    x, total = torch.stack(filled), mass.sum(0)
    means = torch.einsum("rs,rsc->sc", mass, x) / total.unsqueeze(1)
    apart = x - means
    squares = torch.einsum("rs,rsc,rsd->scd", mass, apart, apart)
    squares = squares + torch.einsum("rs,rscd->scd", mass, torch.stack(rest))
    torch.testing.assert_close(found.means, means)
    if kind == "tied":
        torch.testing.assert_close(found.covariances, squares.sum(0) / total.sum())
    else:
        torch.testing.assert_close(found.covariances, squares / total[:, None, None])


@pytest.mark.parametrize("name", ["poisson", "spherical", "diagonal"])
def test_entries_are_counted_where_they_were_seen(name: str) -> None:
    emission, observed, _ = example(name)
    observed, counts = gaps(observed), weights()
    found = emission.maximised(statistics(emission, observed, counts))
    seen = (~observed.isnan()).double()
    mass = counts.mT @ seen
    means = counts.mT @ observed.nan_to_num(0.0) / mass
    torch.testing.assert_close(found.rates if name == "poisson" else found.means, means)
    if name != "poisson":
        squares = (observed.unsqueeze(1) - means).square().nan_to_num(0.0)
        total = (counts.unsqueeze(2) * squares).sum(0)
        if name == "spherical":
            torch.testing.assert_close(found.covariances, total.sum(1) / mass.sum(1))
        else:
            torch.testing.assert_close(found.covariances, total / mass)


def test_means_that_are_far_apart_lose_nothing() -> None:
    means = torch.tensor([[0.0, 1.0], [3e7, -2e7]], dtype=torch.float64)
    scales = torch.tensor([[1e-2, 2e-2], [3e-2, 1e-2]], dtype=torch.float64)
    states = torch.arange(ROWS) % 2
    observed = means[states] + scales[states] * reals(ROWS, 2)
    observed[0, 0] = NAN
    emission = learn.Gaussian("diagonal", means, scales.square())
    expected = Normal(means, scales).log_prob(observed.nan_to_num(0.0).unsqueeze(1))
    expected = torch.where(observed.isnan().unsqueeze(1), 0.0, expected).sum(2)
    torch.testing.assert_close(emission.log_prob(observed), expected)
    counts = torch.nn.functional.one_hot(states, 2).double()
    found = emission.maximised(statistics(emission, observed, counts))
    for state in range(2):
        own = observed[states == state] - means[state]
        torch.testing.assert_close(
            found.means[state] - means[state], own.nanmean(0), rtol=1e-4, atol=1e-8
        )
        variance = (own - own.nanmean(0)).square().nanmean(0)
        torch.testing.assert_close(found.covariances[state], variance, rtol=1e-4, atol=0.0)


def test_impossible_counts_are_minus_infinity() -> None:
    emission = learn.Poisson(torch.tensor([[0.0], [2.0]]))
    found = emission.log_prob(torch.tensor([[0.0], [1.0], [NAN], [-1.0]], dtype=torch.float64))
    assert found[:, 0].tolist() == [0.0, -math.inf, 0.0, 0.0]
    assert bool(found[:, 1].isfinite().all())
    sure = learn.Bernoulli(torch.tensor([[1.0], [0.5]]))
    assert sure.log_prob(torch.zeros(1, 1, dtype=torch.float64))[0, 0] == -math.inf


def test_a_mixture_weighs_its_components() -> None:
    parts = gaussian("full", covariance_prior=0.1)
    weights_ = torch.tensor([[0.3, 0.7]], dtype=torch.float64)
    mixture = learn.Mixture(2, parts, weights_.log())
    observed = gaps(reals(ROWS, COLUMNS))
    joint = parts.log_prob(observed) + weights_.log()
    torch.testing.assert_close(mixture.log_prob(observed)[:, 0], joint.logsumexp(1))
    shares = joint.softmax(1)
    found = mixture.maximised(statistics(mixture, observed, torch.ones(ROWS, 1).double()))
    torch.testing.assert_close(found.log_weights.exp()[0], shares.mean(0))
    expected = parts.maximised(statistics(parts, observed, shares))
    torch.testing.assert_close(found.emission.covariances, expected.covariances)


def test_the_prior_of_a_mixture_is_of_its_weights_and_of_its_components() -> None:
    """Pseudo-counts times the log-weights, as of Dirichlet's prior."""
    parts = gaussian("full", covariance_prior=0.1)
    weights_ = torch.tensor([[0.3, 0.7]], dtype=torch.float64)
    mixture = learn.Mixture(2, parts, weights_.log(), prior=1.5)
    expected = 1.5 * weights_.log().sum() + parts.log_prior()
    torch.testing.assert_close(mixture.log_prior(), expected)


def test_draws_of_a_mixture_are_of_a_component_by_its_weight() -> None:
    means = torch.tensor([[0.0], [1.0], [2.0], [3.0]]).double()
    sure = learn.Gaussian("full", means, torch.full((4, 1, 1), 1e-12).double())
    weights_ = torch.tensor([[0.0, 1.0], [0.3, 0.7]]).double()
    states = torch.tensor([0] * 50 + [1] * 4000)
    drawn = learn.Mixture(2, sure, weights_.log()).sample(states, draws())[:, 0].round()
    assert drawn[:50].unique().tolist() == [1.0]
    assert drawn[50:].unique().tolist() == [2.0, 3.0]
    assert abs(float(drawn[50:].mean()) - 2.7) < 5 * math.sqrt(0.21 / 4000)


def test_a_product_is_of_its_columns() -> None:
    normal, counts = gaussian("full"), learn.Poisson(torch.tensor([[1.0], [3.0]]))
    both = learn.Product([(counts, [2]), (normal, [0, 1, 3])])
    observed = torch.cat([reals(ROWS, 2), whole(columns=1), reals(ROWS, 1, seed=9)], 1)
    expected = counts.log_prob(observed[:, [2]]) + normal.log_prob(observed[:, [0, 1, 3]])
    torch.testing.assert_close(both.log_prob(observed), expected)
    found = both.maximised(statistics(both, observed, weights()))
    own = normal.maximised(statistics(normal, observed[:, [0, 1, 3]], weights()))
    torch.testing.assert_close(found.parts[1][0].covariances, own.covariances)
    assert both.size == normal.size + counts.size
    drawn = both.sample(torch.zeros(2000, dtype=torch.long), draws())
    assert bool((drawn[:, 2] % 1 == 0).all())
    torch.testing.assert_close(drawn[:, [0, 1, 3]].mean(0), normal.means[0], atol=0.3, rtol=0.0)


def test_a_family_is_maximised_by_gradient() -> None:
    observed, counts = gaps(reals(ROWS, COLUMNS)), weights()
    start = {"loc": torch.zeros(STATES, COLUMNS), "scale": torch.ones(STATES, COLUMNS)}
    density = learn.Density(Normal, start, states=STATES)
    found = density.maximised(statistics(density, observed, counts))
    exact = learn.Gaussian("diagonal", start["loc"], start["scale"])
    exact = exact.maximised(statistics(exact, observed, counts))
    torch.testing.assert_close(found.parameters["loc"], exact.means, atol=1e-4, rtol=0.0)
    scales = exact.covariances.sqrt()
    torch.testing.assert_close(found.parameters["scale"], scales, atol=1e-4, rtol=0.0)
    held = learn.Density(Normal, start, ["scale"], states=STATES)
    found = held.maximised(statistics(held, observed, counts))
    torch.testing.assert_close(found.parameters["scale"], start["scale"].double())


def test_a_family_of_vectors() -> None:
    own = gaussian("full")
    tables = {"loc": own.means, "covariance_matrix": own.covariances}
    density = learn.Density(MultivariateNormal, tables)
    density = density.blank(STATES, own.means)
    one = learn.Density(
        MultivariateNormal, {"loc": own.means[0], "covariance_matrix": torch.eye(3)}
    )
    assert one.blank(STATES, own.means).parameters["covariance_matrix"].shape == (STATES, 3, 3)
    observed = reals(ROWS, COLUMNS)
    observed[2] = NAN
    torch.testing.assert_close(density.log_prob(observed), own.log_prob(observed))
    observed[3, 0] = NAN
    with pytest.raises(EvidenceError, match="seen or missing as a whole"):
        density.log_prob(observed)


@pytest.mark.parametrize("form", ["scale_tril", "covariance_matrix", "precision_matrix"])
def test_matrices_of_a_family_are_maximised(form: str) -> None:
    own, observed, counts = gaussian("full"), reals(60, COLUMNS), weights(60)
    family = learn.Density(MultivariateNormal, {"loc": torch.zeros(COLUMNS), form: torch.eye(3)})
    family = family.blank(STATES, own.means)
    found = family.maximised(statistics(family, observed, counts))
    expected = own.maximised(statistics(own, observed, counts))
    normal = MultivariateNormal(**found.parameters)
    torch.testing.assert_close(normal.loc, expected.means, atol=1e-3, rtol=0.0)
    torch.testing.assert_close(normal.covariance_matrix, expected.covariances, atol=1e-3, rtol=0.0)
    assert found.size == expected.size


def test_durations_by_a_family_are_maximised() -> None:
    """The rate of a geometric family that is hardly cut off is one over the mean."""
    rates = torch.tensor([[0.3], [0.5]])
    durations = learn.Durations(
        learn.Density(torch.distributions.Geometric, {"probs": rates}, states=2), 200
    )
    table = durations.value(None)
    torch.testing.assert_close(table.exp().sum(0), torch.ones(2).double())
    counts = torch.zeros(200, 2, dtype=torch.float64)
    counts[0], counts[3], counts[5, 1] = 2.0, 1.0, 4.0
    found = durations.maximised(durations.statistics(None, counts)).density.parameters["probs"]
    place = torch.arange(1.0, 201.0, dtype=torch.float64)
    expected = counts.sum(0) / (counts.mT @ place)
    torch.testing.assert_close(found[:, 0], expected, atol=1e-4, rtol=0.0)


@pytest.mark.parametrize("name", EXAMPLES)
def test_draws_have_the_likelihood_they_should(name: str) -> None:
    """The mean log-likelihood of draws is minus the entropy, within six standard errors."""
    emission, _, own = example(name)
    state = torch.ones(4000, dtype=torch.long)
    drawn = emission.sample(state, draws())
    again = emission.sample(state, draws())
    torch.testing.assert_close(drawn, again)
    values = emission.log_prob(drawn)[:, 1]
    if name == "poisson":
        near = torch.arange(60.0, dtype=torch.float64)[:, None, None]
        entropy = -(own.log_prob(near).exp() * own.log_prob(near)).sum(0)[1].sum()
    else:
        dims = 0 if name in (*KINDS, "categorical") else 1
        entropy = Independent(own, dims).entropy()[1]
    error = 6 * float(values.std()) / math.sqrt(len(values)) + 1e-9
    assert abs(float(values.mean() + entropy)) < error


@pytest.mark.parametrize("kind", KINDS)
def test_clusters_are_found_at_the_start(kind: str) -> None:
    centres = torch.tensor([[0.0, 0.0], [9.0, 9.0], [0.0, 9.0]], dtype=torch.float64)
    observed = centres[torch.arange(90) % 3] + 0.3 * reals(90, 2)
    observed[5, 0] = NAN
    found = learn.Gaussian(kind).started(3, observed, draws())
    nearest = torch.cdist(found.means, centres).argmin(1)
    assert sorted(nearest.tolist()) == [0, 1, 2]


@pytest.mark.parametrize("kind", KINDS)
def test_a_singular_covariance_is_an_error_that_names_the_state(kind: str) -> None:
    emission = gaussian(kind)
    observed = reals(ROWS, COLUMNS)
    observed[6:] = torch.tensor([1.0, 2.0, 3.0])
    counts = torch.nn.functional.one_hot(torch.arange(ROWS) // 6, 2).double()
    if kind == "tied":
        observed[:, 1] = 4.0
    which = "all states" if kind == "tied" else "state 1"
    with pytest.raises(ModelError, match=f"{kind} covariance of {which} is singular.*_prior") as e:
        emission.maximised(statistics(emission, observed, counts))
    assert "\n" not in str(e.value)
    prior = gaussian(kind, covariance_prior=0.1)
    found = prior.maximised(statistics(prior, observed, counts))
    assert bool(found.log_prob(observed).isfinite().all())


@pytest.mark.parametrize("name", [*EXAMPLES, "mixture"])
def test_a_state_without_mass_is_an_error_that_names_it(name: str) -> None:
    if name == "mixture":
        own = learn.Mixture(1, gaussian("full"), torch.zeros(STATES, 1))
        emission, observed = own, reals(ROWS, COLUMNS)
    else:
        emission, observed, _ = example(name)
    counts = weights()
    counts[:, 1] = 0.0
    with pytest.raises(ModelError, match=r"State 1 of .* has lost all mass"):
        emission.maximised(statistics(emission, observed, counts))


def test_parameters_of_a_density_are_checked_whatever_the_setting_of_torch() -> None:
    before = Normal._validate_args
    torch.distributions.Distribution.set_default_validate_args(False)
    try:
        with pytest.raises(ModelError, match="do not fit its family"):
            learn.Density(Normal, {"loc": 0.0, "scale": -1.0})
    finally:
        torch.distributions.Distribution.set_default_validate_args(before)


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: learn.Gaussian("round"), "'full' or 'tied'.*; got 'round'"),
        (lambda: learn.Gaussian(mean_weight=-1.0), "mean_weight as a finite number of at least 0"),
        (lambda: learn.Categorical(0), "symbols as a whole number of at least 1"),
        (lambda: learn.Categorical(3, torch.zeros(2, 2)), r"\(states, 3\)"),
        (lambda: learn.Poisson(shape=0.5), "shape as a finite number of at least 1"),
        (lambda: learn.Bernoulli(prior=-1.0), "prior as a finite number of at least 0"),
        (lambda: learn.Mixture(0, learn.Gaussian()), "components as a whole number of at least 1"),
        (lambda: learn.Mixture(2, "Gaussian"), "emission as an Emission"),
        (lambda: learn.Product([(learn.Gaussian(), [1])]), "each column from 0"),
        (lambda: learn.Density(Normal, {"loc": 0.0}), "do not fit its family"),
        (
            lambda: learn.Density(Normal, {"loc": 0.0, "scale": 1.0}, fixed=["df"]),
            "cannot keep 'df' fixed, which is none of",
        ),
        (lambda: learn.Density(Normal, {"loc": 0.0, "scale": -1.0}), "do not fit its family"),
        (
            lambda: learn.Durations(learn.Density(Poisson, {"rate": 1.0}), 0),
            "longest as a whole number of at least 1",
        ),
        (lambda: learn.Gaussian().log_prob(torch.zeros(2, 2)), "no tables yet"),
    ],
)
def test_bad_arguments_are_told_in_a_line(make, match: str) -> None:
    with pytest.raises(ModelError, match=match) as error:
        make()
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("emission", "observed", "match"),
    [
        (learn.Categorical(2), [[0.0], [2.0]], "0 to 1 .*got 2"),
        (learn.Categorical(2), [[0.5]], "0 to 1 .*got 0.5"),
        (learn.Categorical(2), [[0.0, 1.0]], "parameters for 1 columns; the data has 2"),
        (learn.Poisson(), [[-2.0]], "got -2"),
        (learn.Bernoulli(), [[3.0]], "0 to 1 .*got 3"),
        (learn.Gaussian(), [[NAN], [NAN]], "all of its entries are missing"),
        (learn.Product([(learn.Poisson(), [0])]), [[1.0, 2.0]], "parameters for 1 columns"),
    ],
)
def test_data_that_does_not_fit_is_told_in_a_line(emission, observed, match: str) -> None:
    with pytest.raises(EvidenceError, match=match):
        emission.started(2, torch.tensor(observed, dtype=torch.float64), draws())


@pytest.mark.parametrize(
    "emission",
    [
        learn.Categorical(2, torch.zeros(1, 2)),
        learn.Poisson([[-1.0]]),
        learn.Bernoulli([[2.0]]),
        learn.Gaussian("diagonal", [[0.0]], [[-1.0]]),
        learn.Gaussian("full", [[0.0]], [[[-1.0]]]),
        learn.Mixture(2, learn.Poisson([[1.0], [2.0]]), torch.zeros(1, 2)),
    ],
    ids=lambda emission: type(emission).__name__,
)
def test_tables_out_of_their_range_are_refused(emission) -> None:
    with pytest.raises(ModelError, match="within their range"):
        emission.started(1, torch.zeros(3, 1, dtype=torch.float64), draws())


def test_components_differ_at_the_start() -> None:
    """Also within a product: equal components would stay equal."""
    observed = torch.cat([reals(60, 1), reals(60, 1, seed=1)], 1)
    mixture = learn.Mixture(2, learn.Gaussian())
    both = learn.Product([(learn.Gaussian(), [0]), (mixture, [1])])
    for own in (
        mixture.started(2, observed, draws()),
        both.started(2, observed, draws()).parts[1][0],
    ):
        means = own.emission.means.unflatten(0, (2, 2))
        assert bool((means[:, 0] != means[:, 1]).all())


def test_tables_that_are_given_stay_at_the_start() -> None:
    observed = reals(40, 2)
    means = torch.tensor([[0.0, 1.0], [2.0, 3.0]], dtype=torch.float64)
    own = learn.Gaussian("full", means).started(2, observed, draws())
    assert torch.equal(own.means, means)
    parts = learn.Gaussian("full", means, torch.eye(2).expand(2, 2, 2))
    mixed = learn.Mixture(2, parts).started(1, observed, draws())
    assert torch.equal(mixed.emission.means, means)
    close = torch.testing.assert_close
    close(mixed.log_weights.exp().sum(1), torch.ones(1, dtype=torch.float64))
