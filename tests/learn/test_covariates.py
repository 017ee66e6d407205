"""Hidden Markov models driven by covariates, irregular times, ends: against sums over all paths."""

import copy
import itertools
import math
import pickle

import pytest
import torch

import rdpgraph as rg
from rdpgraph import learn
from rdpgraph.errors import EvidenceError, ModelError, UnsupportedError


class Softmax(torch.nn.Module):
    """Scores of transitions that are linear in covariates."""

    def __init__(self, states, covariates, seed=0):
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        shape = states, states, covariates
        self.weight = torch.nn.Parameter(torch.randn(shape, generator=generator) / 2)
        self.bias = torch.nn.Parameter(torch.randn(shape[:2], generator=generator) / 2)

    def forward(self, covariates):
        return torch.einsum("ijk,rk->rij", self.weight, covariates) + self.bias


class Line(torch.nn.Module):
    """A line for each state, with normal noise."""

    def __init__(self, states, spread=1.0):
        super().__init__()
        self.slope = torch.nn.Parameter(torch.linspace(-1.5, 1.5, states))
        self.log_scale = torch.nn.Parameter(torch.zeros(states))

    def law(self, covariates):
        return torch.distributions.Normal(covariates[:, :1] * self.slope, self.log_scale.exp())

    def forward(self, observed, covariates):
        return self.law(covariates).log_prob(observed)

    def sample(self, states, covariates, generator):
        means = self.law(covariates).mean.gather(1, states.unsqueeze(1))
        noise = torch.randn(means.shape, generator=generator, dtype=means.dtype)
        return means + noise * self.log_scale.exp()[states].unsqueeze(1)


def drawn(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def sums_over_paths(start, transitions, shown, end=None):
    """Log Z of one sequence, given (T - 1, N, N) and (T, N)."""
    total, states = shown.shape
    scores = []
    for path in itertools.product(range(states), repeat=total):
        score = start[path[0]] + shown[0, path[0]]
        for step in range(1, total):
            score = score + transitions[step - 1, path[step - 1], path[step]]
            score = score + shown[step, path[step]]
        scores.append(score if end is None else score + end[path[-1]])
    return torch.stack(scores).logsumexp(0)


def test_likelihoods_are_sums_over_all_paths():
    X, lengths = drawn(9, 3), [4, 1, 4]
    X[5, 0] = math.nan
    module, start = Softmax(2, 2).double(), torch.tensor([0.3, 0.7]).double().log()
    normal = learn.Gaussian("diagonal", torch.tensor([[0.0], [1.0]]), torch.ones(2, 1))
    model = learn.HMM(2, normal, start=start, transition=module, covariates=[1, 2])
    expected = 0.0
    with torch.no_grad():
        for rows in X.split(lengths):
            transitions = module(rows[1:, 1:]).log_softmax(-1)
            shown = torch.distributions.Normal(torch.tensor([0.0, 1.0]).double(), 1.0)
            shown = shown.log_prob(rows[:, :1].nan_to_num(0.0))
            shown = torch.where(rows[:, :1].isnan(), 0.0, shown)
            expected += float(sums_over_paths(start, transitions, shown))
    assert model.score(X, lengths) == pytest.approx(expected, rel=1e-12)
    assert model.predict(X, lengths).shape == (9,)
    chances = model.predict_proba(X, lengths)
    torch.testing.assert_close(chances.sum(1), torch.ones(9).double())
    # In one batch or one by one, padded or not.
    each = sum(model.score(rows) for rows in X.split(lengths))
    assert model.score(X, lengths) == pytest.approx(each, rel=1e-12)


@pytest.mark.long
def test_em_never_falls_and_ends_where_gradients_vanish():
    covariates = drawn(400, 2, seed=1)
    truth = learn.HMM(
        2, learn.Driven(Line(2)), start=torch.zeros(2).log_softmax(0), transition=Softmax(2, 2, 5),
        covariates=[1, 2],
    )  # fmt: skip
    shown, _ = truth.sample(400, torch.Generator().manual_seed(0), covariates=covariates)
    X = torch.cat([shown, covariates], 1)
    X[7, 0] = math.nan
    lengths = [150, 250]
    model = learn.HMM(
        2, learn.Driven(Line(2)), transition=Softmax(2, 2), covariates=[1, 2], tolerance=1e-6,
        limit=200,
    ).fit(X, lengths)  # fmt: skip
    history = torch.tensor(model.fit_.history)
    assert bool((history.diff() > -1e-6).all())
    assert model.fit_.status.exact
    assert model.fit_.status.converged
    assert model.score(X, lengths) > truth.score(X, lengths)

    # The likelihood as a function of all weights has no slope there.
    def score(step):
        module = copy.deepcopy(model.transition_)
        with torch.no_grad():
            for number, weight in enumerate(module.parameters()):
                weight += step * drawn(*weight.shape, seed=number)
        fixed = {"start": model.start_, "transition": module, "covariates": [1, 2]}
        return learn.HMM(2, model.emission_, **fixed).score(X, lengths)

    assert abs(score(1e-4) - score(-1e-4)) / 2e-4 < 0.1
    assert max(score(0.1), score(-0.1)) < score(0.0)
    # What was fitted is given back as a module, from which a fit goes on.
    again = learn.HMM(
        2, model.emission_, start=model.start_, transition=model.transition_, covariates=[1, 2]
    )
    assert again.score(X, lengths) == pytest.approx(model.score(X, lengths))
    assert pickle.loads(pickle.dumps(again)).score(X, lengths) == again.score(X, lengths)
    assert model.aic(X, lengths) == pytest.approx(2 * (1 + 12 + 4) - 2 * model.score(X, lengths))


def test_a_module_of_constant_scores_is_a_table():
    """With a bias alone EM has the maximum of the table in closed form."""
    X = torch.cat([drawn(60, 1), torch.zeros(60, 1).double()], 1)
    X[::3, 0] += 4
    normal = learn.Gaussian("diagonal", torch.tensor([[0.0], [4.0]]), torch.ones(2, 1))
    options = {"start": torch.zeros(2).log_softmax(0), "limit": 200, "tolerance": 1e-7}
    table = torch.tensor([[0.6, 0.4], [0.5, 0.5]]).double().log()
    expected = learn.HMM(2, normal, transition=table, **options).fit(X[:, 0])
    module = Softmax(2, 1)
    with torch.no_grad():
        module.bias.copy_(table)
    driven = learn.HMM(2, normal, transition=module, covariates=[1], **options).fit(X)
    assert driven.fit_.log_likelihood == pytest.approx(expected.fit_.log_likelihood, abs=1e-3)
    with torch.no_grad():
        found = driven.transition_(torch.zeros(1, 1).double())[0].log_softmax(1)
    torch.testing.assert_close(found.exp(), expected.transition_.exp(), atol=1e-2, rtol=0)
    assert torch.equal(module.bias, table.float())  # the user's own is not changed


def test_held_weights_and_held_entries_stay():
    X = torch.cat([drawn(40, 1), drawn(40, 1, seed=2)], 1)
    module = Softmax(2, 1)
    module.weight.requires_grad_(requires_grad=False)
    model = learn.HMM(2, learn.Gaussian(), transition=module, covariates=[1], limit=3).fit(X)
    torch.testing.assert_close(model.transition_.weight, module.weight.double())
    assert not torch.allclose(model.transition_.bias, module.bias.double())
    start = torch.tensor([[0.9, 0.1], [0.4, 0.6]]).double()
    held = torch.tensor([[True, True], [False, False]])
    some = learn.Probabilities(start.log(), fixed=held)
    model = learn.HMM(2, learn.Gaussian(), transition=some, limit=5).fit(X[:, 0])
    torch.testing.assert_close(model.transition_.exp()[0], start[0])
    assert not torch.allclose(model.transition_.exp()[1], start[1])
    fixed = learn.HMM(
        2, learn.Gaussian(), transition=module, covariates=[1], fixed=["transition"], limit=3
    ).fit(X)
    torch.testing.assert_close(fixed.transition_.bias, module.bias.double())


def test_rates_are_exponentials_of_elapsed_times():
    rates = learn.Rates(3, allowed=learn.left_to_right(3).exp() > 0, rate=0.7).double()
    times = torch.tensor([[0.0], [0.5], [3.0], [0.5]]).double()
    with torch.no_grad():
        found = rates(times)
        expected = torch.linalg.matrix_exp(rates.matrix() * times.unsqueeze(2))
    torch.testing.assert_close(found.exp(), expected)
    assert bool((found[0][~torch.eye(3).bool()] == -math.inf).all())  # no time, no jump
    assert bool((found.tril(-1)[:, [1, 2, 2], [0, 0, 1]] == -math.inf).all())  # never back
    assert bool((found[1:].triu(1)[:, [0, 0, 1], [1, 2, 2]] > -math.inf).all())
    loss = torch.where(found > -math.inf, rates(times), 0.0).sum()
    (slope,) = torch.autograd.grad(loss, rates.log_rates)
    assert bool(slope.isfinite().all())
    # Chapman and Kolmogorov: a step of 3.5 is one of .5 and one of 3.
    with torch.no_grad():
        both = rates(torch.tensor([[3.5]]).double())
    torch.testing.assert_close(both[0].exp(), found[1].exp() @ found[2].exp())


def test_rates_are_found_from_irregular_times():
    truth = torch.tensor([[-0.5, 0.5], [0.2, -0.2]]).double()
    generator = torch.Generator().manual_seed(3)
    gaps = torch.rand(3000, generator=generator).double() * 3
    chances = torch.linalg.matrix_exp(truth * gaps[:, None, None])
    states = [0]
    for step in range(1, 3000):
        states.append(int(torch.multinomial(chances[step, states[-1]], 1, generator=generator)))
    shown = torch.tensor(states).double() * 10 + drawn(3000)
    X = torch.stack([shown, gaps], 1)
    means = torch.tensor([[0.0], [10.0]])
    model = learn.HMM(
        2, learn.Gaussian("diagonal", means, torch.ones(2, 1)), transition=learn.Rates(2),
        covariates=[1], limit=20,
    ).fit(X)  # fmt: skip
    with torch.no_grad():
        found = model.transition_.matrix()
    assert float((found - truth).abs().max()) < 0.06
    assert model.fit_.status.converged


def test_sequences_that_end_are_those_of_an_absorbing_state():
    tables = [0.6, 0.4], [0.1, 0.3], [[0.7, 0.3], [0.2, 0.8]], [[0.9, 0.1], [0.2, 0.8]]
    start, end, table, shown = (torch.tensor(t, dtype=torch.float64).log() for t in tables)
    model = learn.HMM(2, learn.Categorical(2, shown), start=start, transition=table, end=end)
    X, lengths = torch.tensor([0, 1, 1, 0, 0, 1]), [3, 1, 2]
    going = table + torch.log1p(-end.exp()).unsqueeze(1)
    expected = sum(
        float(sums_over_paths(start, going.expand(len(x) - 1, 2, 2), shown.T[x], end))
        for x in X.split(lengths)
    )
    assert model.score(X, lengths) == pytest.approx(expected, rel=1e-12)
    torch.testing.assert_close(model.transition_, table)
    torch.testing.assert_close(model.end_, end)
    # All sequences of all lengths together have the probability of one.
    total = 0.0
    for length in range(1, 9):
        rows = torch.tensor(list(itertools.product(range(2), repeat=length)))
        total += float(model.structure(list(rows.unsqueeze(2))).log_partition().exp().sum())
    left = start.exp() @ going.exp().matrix_power(8)
    assert total == pytest.approx(1 - float(left.sum()), abs=1e-9)


def test_an_end_given_as_numbers_is_read_with_all_digits():
    end = [math.log(0.1), math.log(0.3)]
    shown = torch.tensor([[0.9, 0.1], [0.2, 0.8]], dtype=torch.float64).log()
    given = {"start": torch.zeros(2).double().log_softmax(0), "transition": torch.eye(2).log()}
    model = learn.HMM(2, learn.Categorical(2, shown), end=end, **given)
    expected = math.log(0.5 * 0.9 * 0.1 + 0.5 * 0.2 * 0.3)
    assert model.score(torch.tensor([0])) == pytest.approx(expected, rel=1e-13)


def test_ends_are_fitted():
    generator = torch.Generator().manual_seed(0)
    lengths = (torch.rand(300, generator=generator).log() / math.log(0.75)).floor().long() + 1
    X = drawn(int(lengths.sum()), 1)
    model = learn.HMM(1, learn.Gaussian(), end=torch.tensor([0.5]).log(), limit=3)
    model.fit(X, lengths)
    assert float(model.end_.exp()) == pytest.approx(300 / float(lengths.sum()))
    two = learn.HMM(
        2, learn.Gaussian(), end=torch.tensor([0.5, 0.5]).log(), limit=10, sticky=2.0, starts=2,
        transition_prior=torch.ones(2, 2),
    ).fit(X, lengths)  # fmt: skip
    joint = torch.cat([two.transition_.exp() * (1 - two.end_.exp()).unsqueeze(1)], 1).sum(1)
    torch.testing.assert_close(joint + two.end_.exp(), torch.ones(2).double())
    assert bool((torch.tensor(two.fit_.history).diff() > -1e-6).all())


def test_gradients_and_standard_errors_reach_the_weights():
    X = torch.cat([drawn(80, 1), drawn(80, 1, seed=2)], 1)
    X[:40, 0] += 3
    model = learn.HMM(
        2, learn.Gaussian(), transition=Softmax(2, 1), covariates=[1], limit=400, tolerance=1e-8
    ).fit(X, [20] * 4)  # fmt: skip
    errors = model.standard_errors(X, [20] * 4)["transition"]
    assert [part.shape for part in errors] == [(2, 2, 1), (2, 2)]


def test_a_semi_markov_model_takes_driven_emissions():
    X = torch.cat([drawn(12, 1), drawn(12, 1, seed=2)], 1)
    model = learn.HSMM(2, learn.Driven(Line(2)), 3, covariates=[1], limit=2).fit(X)
    assert model.predict(X).shape == (12,)
    with pytest.raises(ModelError, match="is the transition of an HMM"):
        learn.HSMM(2, learn.Gaussian(), 3, transition=Softmax(2, 1), covariates=[1]).fit(X)


def test_what_does_not_fit_is_told_in_a_line():
    X = torch.cat([drawn(12, 1), drawn(12, 1, seed=2)], 1)
    X[3, 1] = math.nan
    module, normal = Softmax(2, 1), learn.Gaussian()
    cases = [
        (lambda: learn.HMM(2, normal, transition=module, covariates=[1]).fit(X), EvidenceError,
         "Row 3 of X lacks a covariate"),
        (lambda: learn.HMM(2, normal, transition=module).fit(X[:3]), ModelError,
         r"covariates=\[1, 2\]"),
        (lambda: learn.HMM(2, normal, transition=module, covariates=[2]).fit(X), ModelError,
         "from 0 to 1"),
        (lambda: learn.HMM(2, normal, transition=module, covariates=[0, 1]).fit(X), ModelError,
         "leave one"),
        (lambda: learn.HMM(3, normal, transition=module, covariates=[1]).fit(X[4:]), ModelError,
         r"gives scores \(rows, states, states\)"),
        (lambda: learn.HMM(2, normal, transition=module, rank=1).fit(X), ModelError, "not both"),
        (lambda: learn.HMM(2, normal, rank=1, end=torch.zeros(2)).fit(X), ModelError, "no rank"),
        (lambda: learn.HMM(2, normal, end=torch.ones(2)).fit(X), ModelError, "needs an end"),
        (lambda: learn.HMM(2, normal).fit(X[4:]).end_, ModelError, "has no end"),
        (lambda: learn.Driven(3), ModelError, "needs a torch.nn.Module"),
        (lambda: learn.Rates(2, allowed=torch.ones(3, 3).bool()), ModelError, "allowed jumps"),
        (lambda: learn.Rates(2)(torch.tensor([[-1.0]])), EvidenceError, "elapsed times"),
        (lambda: learn.Driven(Line(2)).log_prob(X), UnsupportedError, "structure"),
    ]  # fmt: skip
    for make, error, message in cases:
        with pytest.raises(error, match=message) as caught:
            make()
        assert "\n" not in str(caught.value)


def test_sampling_needs_covariates():
    model = learn.HMM(
        2, learn.Driven(Line(2)), start=torch.zeros(2).log_softmax(0), transition=Softmax(2, 1),
        covariates=[1],
    )  # fmt: skip
    with pytest.raises(ModelError, match="needs covariates"):
        model.sample(5)
    shown, states = model.sample(5, covariates=drawn(5, 1))
    assert shown.shape == (5, 1)
    assert not shown.requires_grad
    assert states.shape == (5,)
    assert isinstance(model.structure(drawn(4, 2)), rg.Chain)


@pytest.mark.parametrize("states", [1, 2])
def test_rates_without_any_jump_are_fitted_with_the_rest(states):
    X = torch.stack([torch.arange(6.0), torch.ones(6)], 1)
    none = torch.zeros(states, states, dtype=torch.bool)
    model = learn.HMM(
        states, learn.Gaussian(), transition=learn.Rates(states, allowed=none), covariates=[1]
    ).fit(X, [3, 3])
    torch.testing.assert_close(model.transition_.matrix(), torch.zeros(states, states).double())
    assert math.isfinite(model.score(X, [3, 3]))
