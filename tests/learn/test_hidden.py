"""Hidden Markov and semi-Markov models against enumeration of their states, and hmmlearn."""

import copy
import dataclasses
import itertools
import math
import pickle
import re

import numpy as np
import pytest
import torch
from torch.distributions import Poisson

import rdpgraph as rg
from rdpgraph import learn
from rdpgraph.errors import BudgetError, EvidenceError, ImpossibleEvidenceError, ModelError

NAN = math.nan
GONE = -math.inf


def draws(seed=0):
    return torch.Generator().manual_seed(seed)


def rows(*shape, seed=0):
    return torch.rand(shape, generator=draws(seed), dtype=torch.float64).log().log_softmax(-1)


def steps(count, columns=1, seed=0):
    return torch.randn(count, columns, generator=draws(seed), dtype=torch.float64)


def close(found, expected, **options):
    torch.testing.assert_close(found, torch.as_tensor(expected, dtype=torch.float64), **options)


def symbols():
    """Three sequences, one of a single step, with symbols missing."""
    given = torch.tensor([0.0, 2, NAN, 1, 1, -1, 2, 0]).unsqueeze(1)
    return given, [4, 1, 3]


def cuts(length, longest, censored):
    """Durations of segments that cover so many steps, and whether the last one is cut off."""
    if not length:
        return [[]]
    return [
        [(size, censored and size == length), *rest]
        for size in range(1, min(longest, length) + 1)
        for rest in cuts(length - size, longest, censored)
    ]


def counted(sequences, start, follow, emission, durations=None, *, censored=True):
    """Expected first states, transitions, durations and steps in states, by enumeration."""
    states = len(start)
    first, pairs = torch.zeros_like(start), torch.zeros_like(follow)
    lasts = None if durations is None else torch.zeros_like(durations)
    inside, total = [], 0.0
    for sequence in sequences:
        likely = emission.log_prob(sequence).exp()
        ways = []
        length = len(sequence)
        segmentations = (
            [[(1, False)] * length] if durations is None else cuts(length, len(durations), censored)
        )
        for cut in segmentations:
            for labels in itertools.product(range(states), repeat=len(cut)):
                mass = start[labels[0]].exp()
                for one, other in itertools.pairwise(labels):
                    mass = mass * follow[one, other].exp()
                path = [s for s, (size, _) in zip(labels, cut, strict=True) for _ in range(size)]
                for place, state in enumerate(path):
                    mass = mass * likely[place, state]
                if durations is not None:
                    for state, (size, tail) in zip(labels, cut, strict=True):
                        own = durations[:, state].exp()
                        mass = mass * (own[size - 1 :].sum() if tail else own[size - 1])
                ways.append((float(mass), labels, cut, path))
        whole = sum(mass for mass, *_ in ways)
        total += math.log(whole)
        here = torch.zeros(length, states, dtype=torch.float64)
        for mass, labels, cut, path in ways:
            share = mass / whole
            if not share:
                continue
            first[labels[0]] += share
            for pair in itertools.pairwise(labels):
                pairs[pair] += share
            for place, state in enumerate(path):
                here[place, state] += share
            if lasts is not None:
                for state, (size, tail) in zip(labels, cut, strict=True):
                    own = durations[:, state].exp()
                    if tail:
                        lasts[size - 1 :, state] += share * own[size - 1 :] / own[size - 1 :].sum()
                    else:
                        lasts[size - 1, state] += share
        inside.append(here)
    return first, pairs, lasts, torch.cat(inside), total


def shared(counts, dim=-1):
    return counts / counts.sum(dim, keepdim=True)


def shown(data, weights, count):
    """(states, symbols) the weight of each symbol."""
    result = torch.zeros(weights.shape[1], count, dtype=torch.float64)
    for value, own in zip(data[:, 0].tolist(), weights, strict=True):
        if value >= 0:
            result[:, int(value)] += own
    return result


class TestSteps:
    def test_of_a_hidden_markov_model_equals_the_textbook(self) -> None:
        data, lengths = symbols()
        start, follow, table = rows(2), rows(2, 2, seed=1), rows(2, 3, seed=2)
        emission = learn.Categorical(3, table, prior=0.3)
        options = {"start_prior": 0.5, "transition_prior": 0.2, "sticky": 0.4}
        model = learn.HMM(2, emission, start=start, transition=follow, limit=1, **options)
        model.fit(data, lengths)
        first, pairs, _, inside, total = counted(data.split(lengths), start, follow, emission)
        close(model.start_.exp(), shared(first + 0.5))
        close(model.transition_.exp(), shared(pairs + 0.2 + 0.4 * torch.eye(2)))
        close(model.emission_.log_values.exp(), shared(shown(data, inside, 3) + 0.3))
        prior = 0.5 * start.sum() + 0.2 * follow.sum() + 0.4 * follow.trace() + 0.3 * table.sum()
        assert model.fit_.history[0] == pytest.approx(total + float(prior))

    @pytest.mark.parametrize("censored", [True, False])
    def test_of_a_hidden_semi_markov_model_equals_the_textbook(self, censored: bool) -> None:
        data, lengths = symbols()
        start, follow, table = rows(3), rows(3, 3, seed=1), rows(3, 3, seed=2)
        follow = follow.fill_diagonal_(GONE).log_softmax(1)
        lasts = rows(3, 3, seed=3)
        lasts[2, 0] = GONE
        lasts = lasts.log_softmax(0)
        emission = learn.Categorical(3, table)
        model = learn.HSMM(
            3, emission, lasts, start=start, transition=follow, duration_prior=0.1, limit=1,
            censored=censored,
        ).fit(data, lengths)  # fmt: skip
        first, pairs, ages, inside, total = counted(
            data.split(lengths), start, follow, emission, lasts, censored=censored
        )
        assert model.fit_.history[0] == pytest.approx(
            total + 0.1 * float(lasts[lasts > GONE].sum())
        )
        close(model.start_.exp(), shared(first))
        close(model.transition_.exp(), shared(pairs))
        expected = torch.where(lasts > GONE, ages + 0.1, 0.0)
        close(model.duration_.exp(), shared(expected, 0))
        close(model.emission_.log_values.exp(), shared(shown(data, inside, 3)))

    def test_of_transitions_of_low_rank_equals_the_textbook(self) -> None:
        """Enumerate the classes between states, and the states."""
        data, lengths = symbols()
        begun = learn.HMM(3, learn.Categorical(3), rank=2, limit=0).fit(data, lengths)
        into = begun.fit_.parameters["into"].log_values
        out = begun.fit_.parameters["out"].log_values
        pairs = counted(
            data.split(lengths), begun.start_, begun.transition_.table(2), begun.emission_
        )[1]
        joint = into.exp().unsqueeze(2) * out.exp()  # (from, class, to)
        ways = pairs.unsqueeze(1) * joint / joint.sum(1, keepdim=True)
        model = learn.HMM(3, begun.emission_, start=begun.start_, rank=2, limit=1)
        model.fit(data, lengths)
        close(model.fit_.parameters["into"].log_values.exp(), shared(ways.sum(2)))
        close(model.fit_.parameters["out"].log_values.exp(), shared(ways.sum(0)))


@pytest.mark.parametrize("kind", ["hmm", "hsmm"])
def test_a_hard_step_counts_the_most_probable_states(kind: str) -> None:
    data, lengths = symbols()
    table, told = rows(2, 3, seed=2), []
    options = {"start": rows(2), "transition": rows(2, 2, seed=1), "limit": 1, "hard": True}
    options["progress"] = told.append
    if kind == "hmm":
        model = learn.HMM(2, learn.Categorical(3, table, prior=0.1), **options)
    else:
        model = learn.HSMM(
            2, learn.Categorical(3, table, prior=0.1), rows(2, 2, seed=5).mT, **options
        )
    score, path = model.decode(data, lengths)
    model.fit(data, lengths)
    inside = torch.nn.functional.one_hot(path, 2).double()
    close(model.emission_.log_values.exp(), shared(shown(data, inside, 3) + 0.1))
    first = torch.nn.functional.one_hot(path[[0, 4, 5]], 2).double().sum(0)
    close(model.start_.exp(), shared(first))
    assert model.fit_.history[0] == pytest.approx(score + 0.1 * float(table.sum()))
    assert [step.number for step in told] == [0, 1]


EMISSIONS = {
    "categorical": lambda: learn.Categorical(4),
    "poisson": lambda: learn.Poisson(rate=0.1),
    "bernoulli": lambda: learn.Bernoulli(prior=0.1),
    "spherical": lambda: learn.Gaussian("spherical"),
    "diagonal": lambda: learn.Gaussian(covariance_prior=0.1),
    "full": lambda: learn.Gaussian("full", mean_weight=0.1, covariance_prior=0.2),
    "tied": lambda: learn.Gaussian("tied"),
    "mixture": lambda: learn.Mixture(2, learn.Gaussian("full", covariance_prior=0.5), prior=0.2),
    "density": lambda: learn.Density(
        torch.distributions.StudentT, {"df": 4.0, "loc": 0.0, "scale": 1.0}, ["df"]
    ),
    "product": lambda: learn.Product([(learn.Poisson(), [0, 2]), (learn.Gaussian("tied"), [1])]),
}


def observed(name, count=60):
    """Data of an emission, in sequences of many lengths, with a fifth of its entries missing."""
    if name in ("categorical", "bernoulli"):
        most, columns = (4, 1) if name == "categorical" else (2, 3)
        data = torch.randint(most, (count, columns), generator=draws(4)).double()
    else:
        data = steps(count, 3, seed=5).abs().mul(3)
        data[:, [0, 2]] = (
            data[:, [0, 2]].round() if name in ("poisson", "product") else data[:, [0, 2]]
        )
        data = data.round() if name == "poisson" else data
    hidden = torch.rand(data.shape, generator=draws(6)) < 0.2
    hidden[7:9] = True
    return data.masked_fill(hidden, NAN), [1, 20, 2, 30, count - 53]


@pytest.mark.cover(1)
@pytest.mark.parametrize("kind", ["hmm", "hsmm", "durations"])
@pytest.mark.parametrize("name", EMISSIONS)
def test_the_history_never_falls(name: str, kind: str) -> None:
    data, lengths = observed(name)
    if kind == "hmm":
        model = learn.HMM(2, EMISSIONS[name](), limit=6, tolerance=0.0)
    else:
        family = learn.Durations(learn.Density(Poisson, {"rate": 1.5}), 4)
        lasts = 4 if kind == "hsmm" else family
        model = learn.HSMM(2, EMISSIONS[name](), lasts, limit=6, tolerance=0.0)
    history = model.fit(data, lengths).fit_.history
    assert all(b >= a - 1e-8 * abs(a) for a, b in itertools.pairwise(history))
    assert history[-1] > history[0]


@pytest.mark.parametrize("name", [*EMISSIONS, "hsmm"])
def test_a_batch_equals_its_sequences(name: str) -> None:
    own = "diagonal" if name == "hsmm" else name
    data, lengths = observed(own)
    if name == "hsmm":
        model = learn.HSMM(2, EMISSIONS[own](), 4, limit=2)
    else:
        model = learn.HMM(2, EMISSIONS[own](), limit=2)
    model.fit(data, lengths)
    parts = data.split(lengths)
    assert model.score(data, lengths) == pytest.approx(sum(map(model.score, parts)))
    close(model.predict_proba(data, lengths), torch.cat([model.predict_proba(p) for p in parts]))
    path = torch.cat([model.predict(part) for part in parts])
    assert torch.equal(model.predict(data, lengths), path)
    best = sum(model.decode(part)[0] for part in parts)
    assert model.decode(list(parts))[0] == pytest.approx(best)
    structure = model.structure(data, lengths)
    assert float(structure.log_partition().sum()) == pytest.approx(model.score(data, lengths))


@pytest.mark.parametrize("kind", ["diagonal", "spherical", "full", "tied"])
def test_parameters_are_those_of_hmmlearn(kind: str) -> None:
    hmm = pytest.importorskip("hmmlearn.hmm")
    data = (steps(80, 2) + 3 * (torch.arange(80) // 5 % 3).unsqueeze(1)).numpy()
    lengths = [30, 1, 49]
    weight = 0.0 if kind == "tied" else 0.5  # theirs leaves this prior out of tied covariances
    emission = learn.Gaussian(kind, mean_prior=0.3, mean_weight=weight, covariance_prior=0.1)
    options = {"start_prior": 0.5, "transition_prior": 0.25, "tolerance": 0.0}
    begun = learn.HMM(3, emission, **options, limit=0).fit(data, lengths)
    narrow = kind in ("diagonal", "spherical")
    theirs = hmm.GaussianHMM(
        3, covariance_type="diag" if kind == "diagonal" else kind, n_iter=5, tol=-math.inf,
        init_params="", startprob_prior=1.5, transmat_prior=1.25, means_prior=0.3,
        means_weight=weight, covars_prior=0.1 if narrow else 0.1 * np.eye(2),
        covars_weight=0, implementation="scaling",
    )  # fmt: skip
    theirs.n_features = 2
    theirs.startprob_, theirs.transmat_ = (
        t.exp().numpy() for t in (begun.start_, begun.transition_)
    )
    theirs.means_, theirs.covars_ = begun.emission_.means, begun.emission_.covariances.numpy()
    theirs.fit(data, lengths)
    ours = learn.HMM(
        3, begun.emission_, start=begun.start_, transition=begun.transition_, limit=5, **options
    ).fit(data, lengths)
    close(ours.start_.exp(), theirs.startprob_)
    close(ours.transition_.exp(), theirs.transmat_)
    close(ours.emission_.means, theirs.means_)
    table = ours.emission_.covariances
    if kind == "spherical":
        close(table, theirs._covars_.reshape(3, -1)[:, 0])
    else:
        close(table.diag_embed() if narrow else table.expand(3, 2, 2), theirs.covars_)
    assert ours.score(data, lengths) == pytest.approx(theirs.score(data, lengths))
    assert ours.decode(data, lengths)[0] == pytest.approx(theirs.decode(data, lengths)[0])
    assert np.array_equal(ours.predict(data, lengths), theirs.predict(data, lengths))
    close(ours.predict_proba(data, lengths), theirs.predict_proba(data, lengths))
    assert ours.aic(data, lengths) == pytest.approx(theirs.aic(data, lengths))
    assert ours.bic(data, lengths) == pytest.approx(theirs.bic(data, lengths))


def test_symbols_are_fitted_as_by_hmmlearn() -> None:
    hmm = pytest.importorskip("hmmlearn.hmm")
    data = torch.randint(4, (60, 1), generator=draws()).numpy()
    begun = learn.HMM(2, learn.Categorical(4), limit=0).fit(data, [20, 40])
    theirs = hmm.CategoricalHMM(2, n_features=4, n_iter=5, tol=-math.inf, init_params="")
    tables = begun.start_, begun.transition_, begun.emission_.log_values
    theirs.startprob_, theirs.transmat_, theirs.emissionprob_ = (t.exp().numpy() for t in tables)
    theirs.fit(data, [20, 40])
    ours = learn.HMM(
        2, begun.emission_, start=tables[0], transition=tables[1], limit=5, tolerance=0.0
    ).fit(data, [20, 40])
    close(ours.emission_.log_values.exp(), theirs.emissionprob_)
    close(ours.transition_.exp(), theirs.transmat_)
    assert ours.bic(data, [20, 40]) == pytest.approx(theirs.bic(data, [20, 40]))


def known(length=3000):
    """A model with tables, two states far apart, and a sequence that it gives."""
    emission = learn.Gaussian("diagonal", [[0.0], [4.0]], [[1.0], [2.0]])
    start, follow = torch.tensor([0.5, 0.5]).log(), torch.tensor([[0.9, 0.1], [0.2, 0.8]]).log()
    model = learn.HMM(2, emission, start=start, transition=follow)
    return model, *model.sample(length, draws())


def test_known_parameters_are_found_again() -> None:
    """Within four standard errors, in as many rows as the states have."""
    model, data, states = known()
    found = learn.HMM(2, learn.Gaussian()).fit(data)
    order = found.emission_.means[:, 0].argsort()
    count = torch.bincount(states).double()
    means, spread = found.emission_.means[order, 0], torch.tensor([1.0, 2.0], dtype=torch.float64)
    assert bool(((means - torch.tensor([0.0, 4.0])).abs() < 6 * (spread / count).sqrt()).all())
    moved = found.transition_.exp()[order][:, order] - torch.tensor([[0.9, 0.1], [0.2, 0.8]])
    assert bool((moved.abs() < 6 * (0.25 / count).sqrt().unsqueeze(1)).all())
    assert found.score(data) >= model.score(data)
    right = (found.predict(data) == order[states]).double().mean()
    assert right > 0.95


def test_known_durations_are_found_again() -> None:
    lasts = torch.full((6, 2), GONE, dtype=torch.float64)
    lasts[2:4, 0], lasts[5, 1] = math.log(0.5), 0.0
    own = learn.Gaussian("diagonal", [[0.0], [3.0]], [[1.0], [1.0]])
    start, follow = torch.tensor([0.5, 0.5]).log(), torch.tensor([[0.0, 1.0], [1.0, 0.0]]).log()
    data, _ = learn.HSMM(2, own, lasts, start=start, transition=follow).sample(1500, draws())
    found = learn.HSMM(2, learn.Gaussian(), 6, limit=30).fit(data.split(300))
    order = found.emission_.means[:, 0].argsort()
    close(found.duration_.exp()[:, order], lasts.exp(), atol=0.12, rtol=0.0)


@pytest.mark.parametrize("kind", ["hmm", "hsmm"])
def test_probabilities_of_all_sequences_sum_to_one(kind: str) -> None:
    table = rows(2, 2)
    options = {"start": rows(2, seed=4), "transition": rows(2, 2, seed=5)}
    if kind == "hmm":
        model = learn.HMM(2, learn.Categorical(2, table), **options)
    else:
        options["transition"] = torch.tensor([[0.0, 1.0], [1.0, 0.0]]).log()
        model = learn.HSMM(2, learn.Categorical(2, table), rows(2, 3, seed=6).mT, **options)
    every = torch.tensor(list(itertools.product((0.0, 1.0), repeat=4)))
    scores = model.structure(list(every.unsqueeze(2))).log_partition()
    assert float(scores.exp().sum()) == pytest.approx(1.0)


def test_impossible_transitions_stay() -> None:
    data, _ = observed("diagonal")
    follow = learn.left_to_right(3)
    start = torch.tensor([0.0, GONE, GONE])
    model = learn.HMM(3, EMISSIONS["diagonal"](), start=start, transition=follow, starts=2, limit=8)
    model.fit(data, [30, 30])
    assert torch.equal(model.transition_ == GONE, follow == GONE)
    assert torch.equal(model.start_ == GONE, start == GONE)
    for path in model.predict(data, [30, 30]).split(30):
        assert path[0] == 0
        assert bool((path.diff() >= 0).all() & (path.diff() <= 1).all())
    assert learn.left_to_right(3, 2).exp()[0].tolist() == pytest.approx([1 / 3] * 3)


def test_more_starts_are_no_worse() -> None:
    data, lengths = observed("categorical")
    one = learn.HMM(3, learn.Categorical(4), limit=8).fit(data, lengths)
    more = learn.HMM(3, learn.Categorical(4), limit=8, starts=3).fit(data, lengths)
    assert more.fit_.history[-1] >= one.fit_.history[-1]
    again = learn.HMM(3, learn.Categorical(4), limit=8, starts=3).fit(data, lengths)
    assert again.fit_.history == more.fit_.history
    other = learn.HMM(3, learn.Categorical(4), limit=8).fit(data, lengths, generator=draws(9))
    assert other.fit_.history != one.fit_.history


@pytest.mark.parametrize("kind", ["hmm", "hsmm"])
def test_low_rank_is_that_of_its_product(kind: str) -> None:
    data, lengths = observed("categorical")

    def model(emission, durations, **options):
        if kind == "hmm":
            return learn.HMM(5, emission, **options)
        return learn.HSMM(5, emission, durations, **options)

    fitted = model(learn.Categorical(4), 3, rank=2, limit=10).fit(data, lengths)
    history = fitted.fit_.history
    assert all(after >= before - 1e-9 for before, after in itertools.pairwise(history))
    durations = None if kind == "hmm" else fitted.duration_
    assert isinstance(fitted.transition_, rg.LowRank)
    table = fitted.transition_.table(2)
    close(table.exp().sum(1), torch.ones(5))
    dense = model(fitted.emission_, durations, start=fitted.start_, transition=table)
    assert dense.score(data, lengths) == pytest.approx(fitted.score(data, lengths))
    assert torch.equal(dense.predict(data, lengths), fitted.predict(data, lengths))
    free = 4 + (5 * 1 + 2 * 4) + 5 * 3 + (0 if durations is None else 5 * 2)
    aic = 2 * free - 2 * fitted.score(data, lengths)
    assert fitted.aic(data, lengths) == pytest.approx(aic)
    given = {"start": fitted.start_, "transition": fitted.transition_, "limit": 0}
    again = model(fitted.emission_, durations, **given)
    assert again.score(data, lengths) == pytest.approx(fitted.score(data, lengths))
    assert again.fit(data, lengths).bic(data, lengths) == pytest.approx(fitted.bic(data, lengths))


def test_the_number_of_states_is_chosen_by_what_is_left_out() -> None:
    _, data, _ = known(600)
    model = learn.HMM(1, learn.Gaussian(), limit=20)
    scores = learn.held_out(model, data, [100] * 6, states=(1, 2), folds=2)
    assert max(scores, key=scores.get) == 2
    assert model.states == 1
    with pytest.raises(EvidenceError, match="a sequence for each"):
        learn.held_out(model, data, states=(1, 2))


def test_folds_are_drawn_by_the_generator() -> None:
    _, data, _ = known(40)
    model = learn.HMM(1, learn.Gaussian(), limit=2)

    def score(seed: int) -> float:
        drawn = torch.Generator().manual_seed(seed)
        return learn.held_out(model, data, [10] * 4, states=(1,), folds=2, generator=drawn)[1]

    scores = [score(seed) for seed in range(6)]
    assert len(set(scores)) > 1
    assert score(3) == scores[3]


def test_data_comes_in_many_forms() -> None:
    pandas = pytest.importorskip("pandas")
    plain = [[0.1, None], [4.0, 1.0], [NAN, 2.0], [3.9, NAN], [0.0, 0.5]]
    array = np.array(plain, dtype=float)
    model = learn.HMM(2, learn.Gaussian(covariance_prior=0.1), limit=3).fit(array)
    score = model.score(array)
    frame = pandas.DataFrame(plain, columns=["a", "b"])
    for form in (plain, frame, torch.tensor(array), torch.tensor(array).float(), [array]):
        assert model.score(form) == pytest.approx(score)
    apart = [array[:2], array[2:]]
    assert model.score(apart) == pytest.approx(model.score(array, [2, 3]))
    assert model.score(apart) == pytest.approx(model.score(array, np.array([2, 3])))


def test_a_model_is_an_estimator_of_scikit_learn() -> None:
    base = pytest.importorskip("sklearn.base")
    pipeline = pytest.importorskip("sklearn.pipeline")
    scaling = pytest.importorskip("sklearn.preprocessing")
    _, data, states = known(300)
    model = learn.HMM(2, learn.Gaussian(), sticky=1.0)
    twin = base.clone(model)
    assert twin is not model
    assert twin.get_params()["sticky"] == 1.0
    assert twin.set_params(states=3).states == 3
    with pytest.raises(ModelError, match="no parameter 'size'"):
        twin.set_params(size=3)
    both = pipeline.Pipeline([("scale", scaling.StandardScaler()), ("model", model)])
    found = np.asarray(both.fit(data.numpy()).predict(data.numpy()))
    same = np.mean(found == states.numpy())
    assert max(same, 1 - same) > 0.9
    semi = learn.HSMM(2, learn.Gaussian(), durations=5)
    assert base.clone(semi).durations == 5


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_fitted_models_are_copied(copied) -> None:
    data, lengths = observed("product")
    model = learn.HSMM(2, EMISSIONS["product"](), 3, limit=2).fit(data, lengths)
    assert copied(model).score(data, lengths) == model.score(data, lengths)


THIRDS = torch.full((3, 2), 1 / 3).log()
LOW = rg.LowRank(torch.zeros(3, 1), torch.full((3, 1), 1 / 3).log())  # of three states, not two


@pytest.mark.parametrize(
    ("ask", "kind", "match"),
    [
        (lambda m, x: m.predict(x), ModelError, "not fitted"),
        (lambda m, x: learn.HSMM(2, m.emission, 3).predict(x), ModelError, "not fitted"),
        (
            lambda m, x: learn.HSMM(2, m.emission, THIRDS, start=THIRDS[0]).predict(x),
            ModelError, "not fitted",
        ),
        (lambda m, x: m.set_params(states=0).fit(x), ModelError, "states as .* least 1; got 0"),
        (lambda m, x: m.set_params(emission="normal").fit(x), ModelError, "as an Emission"),
        (lambda m, x: m.set_params(start=[0.0]).fit(x), ModelError, r"start .*\(2,\); got \(1,\)"),
        (lambda m, x: m.set_params(transition=rows(3, 3)).fit(x), ModelError, r"got \(3, 3\)"),
        (lambda m, x: m.set_params(rank=0).fit(x), ModelError, "rank, at least 1"),
        (lambda m, x: m.set_params(rank=2, sticky=1.0).fit(x), ModelError, "no sticky prior"),
        (lambda m, x: m.set_params(transition=LOW).fit(x), ModelError, "LowRank transition"),
        (lambda m, x: m.fit(x, [3, 3]), EvidenceError, "must add up to the 5 steps"),
        (lambda m, x: m.fit([[1j], [2]]), EvidenceError, "Complex data not supported"),
        (lambda m, x: m.fit(x, 4), EvidenceError, "must add up to the 5 steps"),
        (lambda m, x: m.set_params(limit=1).fit(x).sample(2.5), ModelError, "number of steps"),
        (lambda m, x: m.fit(x[:0]), EvidenceError, "no step"),
        (lambda m, x: m.fit(x / 0), EvidenceError, "holds an infinity"),
        (lambda m, x: m.fit([x, torch.zeros(3, 2)]), EvidenceError, r"columns; got \[1, 2\]"),
        (lambda m, x: m.fit(["a"]), EvidenceError, "Sequences need numbers"),
        (lambda m, x: m.fit(torch.zeros(2, 2, 2)), EvidenceError, r"\(steps, columns\); got"),
        (
            lambda m, x: m.set_params(emission=learn.Gaussian(means=torch.zeros(3, 1))).fit(x),
            ModelError, r"means of shape \(2, 1\)",
        ),
        (lambda m, x: m.fit(torch.ones(5)), ModelError, "state 0 is singular"),
        (lambda m, x: learn.HSMM(2, m.emission, 0).fit(x), ModelError, "durations"),
        (lambda m, x: learn.HSMM(2, m.emission, "many").fit(x), ModelError, "durations"),
    ],
)  # fmt: skip
def test_mistakes_are_told_in_a_line(ask, kind, match: str) -> None:
    with pytest.raises(kind, match=match) as error:
        ask(learn.HMM(2, learn.Gaussian()), torch.tensor([0.1, 3.0, 0.2, 2.9, 0.0]))
    assert "\n" not in str(error.value)


def test_a_sequence_of_probability_zero_is_named() -> None:
    table = torch.tensor([[1.0, 0.0], [0.0, 1.0]]).log()
    stay = torch.eye(2).log()
    model = learn.HMM(2, learn.Categorical(2, table), transition=stay)
    with pytest.raises(ImpossibleEvidenceError, match="sequence 1 probability zero"):
        model.fit([[0.0], [0.0], [0.0], [1.0], [0.0], [0.0], [0.0]], [2, 2, 3])


@pytest.mark.parametrize(
    ("emission", "given", "asked", "match"),
    [
        (learn.Gaussian(), [[0.0, 1.0], [2.0, 0.5], [1.0, 3.0]], [[0.0]], r"\(2, 1\).*\(2, 2\)"),
        (learn.Poisson(), [[0.0, 1.0], [2.0, 3.0], [2.0, 1.0]], [[0.0]], r"\(2, 1\).*\(2, 2\)"),
        (learn.Poisson(), [0.0, 1.0, 4.0], [0.0, 1.5], "got 1.5"),
        (learn.Categorical(2), [0.0, 1.0, 0.0], [0.0, 5.0], "0 to 1 .*got 5"),
    ],
)
def test_questions_check_their_data(emission, given, asked, match: str) -> None:
    model = learn.HMM(2, emission, limit=0).fit(torch.tensor(given))
    for ask in (model.score, model.predict, model.predict_proba, model.structure):
        with pytest.raises(EvidenceError, match=match):
            ask(torch.tensor(asked))


def test_sequences_may_be_empty() -> None:
    data = steps(12, 2)
    for model in (learn.HMM(2, learn.Gaussian()), learn.HSMM(2, learn.Gaussian(), 3)):
        model.set_params(limit=2).fit(data, [5, 0, 7])
        assert model.predict(data, [5, 0, 7]).shape == (12,)
        assert model.score(data, [5, 0, 7]) == pytest.approx(model.score(data, [5, 7]))
        assert model.score(data[:0]) == 0.0
        assert model.sample(0)[0].shape == (0, 2)


def test_modes_of_torch_change_nothing() -> None:
    data = steps(12, 2)
    score = learn.HMM(2, learn.Gaussian(), limit=2).fit(data).score(data)
    for mode in (torch.no_grad(), torch.inference_mode()):
        with mode:
            assert learn.HMM(2, learn.Gaussian(), limit=2).fit(data + 0).score(data) == score


@dataclasses.dataclass(frozen=True, eq=False)
class Counted(learn.Categorical):
    """Symbols, and how many steps are asked for at a time."""

    def value(self, rows):
        ASKED.append(rows["observed"].shape[:2].numel())
        return super().value(rows)


ASKED: list[int] = []


def test_a_long_sequence_pads_no_short_ones() -> None:
    sequences = [torch.arange(length) % 2 for length in (40_000, *[10] * 200)]
    model = learn.HMM(2, Counted(2, prior=0.1), limit=0)
    ASKED.clear()
    model.fit(sequences)
    assert sum(ASKED) == 40_000 + 2_000
    assert len(ASKED) == 2


LARGE = 10**7
POISSON = learn.Density(Poisson, {"rate": 1.0})


@pytest.mark.parametrize(
    ("make", "table"),
    [
        (lambda: learn.HMM(LARGE, learn.Gaussian()), "'transition' of HMM has 10,000,000^2 ="),
        (lambda: learn.HMM(LARGE, learn.Gaussian(), rank=LARGE), "give a smaller rank"),
        (lambda: learn.HSMM(LARGE, learn.Gaussian(), 3), "'transition' of HSMM"),
        (lambda: learn.HSMM(2, learn.Gaussian(), 10**11), "'durations' of HSMM"),
        (
            lambda: learn.HSMM(2, learn.Gaussian(), learn.Durations(POISSON, 10**11)),
            "durations has",
        ),
        (lambda: learn.HMM(2, learn.Categorical(10**12)), "Categorical of 2 states has 2 x 1,000,"),
        (lambda: learn.HMM(2, learn.Mixture(10**11, learn.Gaussian())), "Mixture of 2 states"),
    ],
)
def test_tables_that_do_not_fit_the_memory_are_refused(make, table: str) -> None:
    with pytest.raises(BudgetError, match=re.escape(table)) as error:
        make().fit(steps(5))
    assert "\n" not in str(error.value)


def test_a_table_of_left_to_right_that_does_not_fit_is_refused() -> None:
    with pytest.raises(BudgetError, match=r"left_to_right has 10,000,000\^2"):
        learn.left_to_right(LARGE)
