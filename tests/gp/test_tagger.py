"""The tagger: in the manner of scikit-learn, sparse features as they are, errors of one line."""

import functools
import math

import pytest
import torch

import rdpgraph as rg
from rdpgraph.errors import ModelError, UnsupportedError
from rdpgraph.gp import (
    RBF,
    SAGA,
    ChainLikelihood,
    FullCovariance,
    GraphLikelihood,
    JensenBound,
    Linear,
    PiecewisePseudoLikelihood,
    Reparameterised,
    ScoreFunction,
    StructuredGP,
    Training,
)

NAMES = ("left", "right")
QUICK = Training(steps=30, optimiser=functools.partial(torch.optim.Adam, lr=0.2))


def data(lengths=(5, 1, 3, 4), seed=0):
    """The sign of the first of three numbers, and of one that says nothing."""
    generator = torch.Generator().manual_seed(seed)
    rows = [torch.randn(length, 3, generator=generator) for length in lengths]
    return rows, [[NAMES[int(value > 0)] for value in one[:, 0]] for one in rows]


def tagger(**options):
    return StructuredGP(NAMES, options.pop("kernel", Linear(4.0)), **{"training": QUICK, **options})


@pytest.fixture(scope="module")
def fitted():
    return tagger().fit(*data(), generator=torch.Generator().manual_seed(0))


def test_what_is_learned_predicts(fitted):
    rows, labels = data((6, 2), seed=1)
    assert fitted.score(rows, labels) >= 0.75
    marginals = fitted.predict_marginals(rows)
    for one, names, truth in zip(marginals, fitted.predict(rows), labels, strict=True):
        assert one.shape == (len(truth), 2)
        torch.testing.assert_close(
            one.sum(1), torch.ones(len(truth), dtype=one.dtype), atol=1e-5, rtol=0
        )
        assert names == [NAMES[state] for state in one.argmax(1)]
    assert fitted.bounds_[-1] > fitted.bounds_[0]
    assert fitted.elbo(*data()) > fitted.bounds_[0]


def test_sequences_together_are_the_same_ones_by_themselves(fitted):
    rows, _ = data((6, 2, 1), seed=1)
    for one, together in zip(rows, fitted.predict_marginals(rows), strict=True):
        torch.testing.assert_close(fitted.predict_marginals([one])[0], together)


def test_samples_have_the_predicted_marginals():
    rows, labels = data()
    made = tagger(predictive_samples=1000).fit(
        rows, labels, generator=torch.Generator().manual_seed(0)
    )
    drawn = made.sample(rows[:2])
    assert [len(one) for one in drawn] == [1000, 1000]
    for draws, marginals in zip(drawn, made.predict_marginals(rows[:2]), strict=True):
        part = torch.tensor([[name == NAMES[1] for name in one] for one in draws]).double().mean(0)
        torch.testing.assert_close(part, marginals[:, 1], atol=0.08, rtol=0)


def test_labels_of_two_sequences_are_independent_given_their_functions():
    rows, labels = data()
    few = tagger(predictive_samples=100, training=Training(steps=1)).fit(rows, labels)
    one, other = few.sample([rows[0], rows[0]], generator=torch.Generator().manual_seed(0))
    assert 0 < sum(draw != same for draw, same in zip(one, other, strict=True)) < 100


def test_inference_mode_changes_nothing(fitted):
    rows, labels = data((6, 2), seed=1)
    with torch.inference_mode():
        assert fitted.predict(rows) == fitted.predict(rows)
        tagger(training=Training(steps=2)).fit(rows, labels).predict(rows)


@pytest.mark.long
@pytest.mark.parametrize(
    "options",
    [
        {"estimator": ScoreFunction(200, control=0.2)},
        {"likelihood": PiecewisePseudoLikelihood()},
        {"components": 2},
        {"components": 2, "entropy": JensenBound(), "covariance": FullCovariance()},
        {"kernel": RBF(2.0, 4.0) + Linear(), "training": Training(
            steps=30, optimiser=functools.partial(torch.optim.Adam, lr=0.2), kernel_every=5)},
        {"training": Training(steps=60, sequences=2, decay=False,
                              optimiser=functools.partial(SAGA, lr=2e-3))},
        {"training": Training(steps=30, sequences=2)},
        {"inducing": 4},
        {"inducing": torch.eye(3)},
        {"likelihood": GraphLikelihood(rg.Contraction()), "training": Training(steps=4)},
    ],
    ids=lambda options: "-".join(options),
)  # fmt: skip
def test_every_choice_raises_the_bound(options):
    rows, labels = data()
    made = tagger(**options)
    made.fit(rows, labels, generator=torch.Generator().manual_seed(0))
    judge = StructuredGP.elbo
    made.likelihood, made.estimator = ChainLikelihood(), Reparameterised(64)
    first = tagger(**{**options, "training": Training(steps=1)})
    first.fit(rows, labels, generator=torch.Generator().manual_seed(0))
    first.likelihood, first.estimator = made.likelihood, made.estimator
    assert judge(made, rows, labels, generator=torch.Generator().manual_seed(1)) > judge(
        first, rows, labels, generator=torch.Generator().manual_seed(1))  # fmt: skip


def test_hyperparameters_are_learned_on_a_copy_or_left():
    kernel = RBF(2.0, 4.0)
    before = [one.clone() for one in kernel.parameters()]
    for every, moved in ((0, False), (2, True)):
        made = tagger(kernel=kernel, training=Training(steps=4, kernel_every=every)).fit(*data())
        assert all(
            torch.equal(one, other) for one, other in zip(before, kernel.parameters(), strict=True)
        )
        assert moved != all(
            torch.equal(one, other)
            for one, other in zip(before, made.kernel_.parameters(), strict=True)
        )


def test_sparse_features_are_those_written_out_and_are_never_densified(monkeypatch):
    rows, labels = data()
    wide = 5_000
    places = torch.tensor([17, 2_000, 4_999])

    def widened(one):
        found = torch.zeros(len(one), wide)
        found[:, places] = one
        return found

    whole = Training(steps=5)
    expected = tagger(training=whole).fit(
        [widened(one) for one in rows], labels, generator=torch.Generator().manual_seed(0)
    )
    expected = expected.predict_marginals([widened(one) for one in rows])
    sparse = [widened(one).to_sparse() for one in rows]
    dense = torch.Tensor.to_dense

    def watched(tensor, *arguments, **options):
        assert tensor.shape[-1] < wide
        return dense(tensor, *arguments, **options)

    monkeypatch.setattr(torch.Tensor, "to_dense", watched)
    found = tagger(training=whole).fit(sparse, labels, generator=torch.Generator().manual_seed(0))
    assert found.inducing_.matrix.is_sparse
    for one, other in zip(found.predict_marginals(sparse), expected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=0)


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("estimator", [Reparameterised(4), ScoreFunction(20)])
@pytest.mark.parametrize("likelihood", [ChainLikelihood(), PiecewisePseudoLikelihood()])
def test_everything_is_made_where_the_features_are(sparse, estimator, likelihood):
    """Tensors made without a device land on the default one, where nothing can be computed here."""
    rows, labels = data()
    kernel, generator = RBF(2.0) + Linear(), torch.Generator().manual_seed(0)
    given = [one.to_sparse() for one in rows] if sparse else rows
    rate = functools.partial(torch.optim.SGD, lr=0.01)
    for training in (
        Training(steps=2, optimiser=rate, kernel_every=2),
        Training(steps=2, optimiser=functools.partial(SAGA, lr=0.01), sequences=2),
    ):
        made = tagger(kernel=kernel, training=training, estimator=estimator, likelihood=likelihood,
                      predictive_samples=4, covariance=FullCovariance(), components=2)  # fmt: skip
        with torch.device("meta"):
            made.fit(given, labels, generator=generator)
            marginals = made.predict_marginals(given)
            bound = made.elbo(given, labels, generator=generator)
        assert marginals[0].device.type == "cpu"
        assert math.isfinite(bound)


def test_a_rate_that_is_too_large_is_told_in_a_line():
    rows, labels = data()
    training = Training(steps=60, optimiser=functools.partial(torch.optim.SGD, lr=1e3))
    with pytest.raises(ModelError, match=r"diverged at step .* smaller learning rate"):
        tagger(training=training).fit(rows, labels)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_features_of_either_precision_are_the_same(dtype):
    rows, labels = data()
    made = tagger(training=Training(steps=3)).fit(
        [one.to(dtype) for one in rows], labels, generator=torch.Generator().manual_seed(0)
    )
    wide = tagger(training=Training(steps=3)).fit(
        [one.double() for one in rows], labels, generator=torch.Generator().manual_seed(0)
    )
    assert made.bounds_ == wide.bounds_


def test_positions_that_repeat_need_no_care():
    row = torch.ones(1, 3)
    made = tagger(kernel=RBF()).fit([row.expand(4, 3)], [["left", "right", "left", "left"]])
    assert made.inducing_.rows == 1
    assert made.predict_marginals([row])[0][0, 0] > 0.5


@pytest.mark.parametrize("estimator", [Reparameterised(), ScoreFunction(200)])
@pytest.mark.parametrize("likelihood", [GraphLikelihood(), PiecewisePseudoLikelihood()])
def test_skip_edges_tie_positions(likelihood, estimator):
    """Two positions without features, tied to ones that have them."""
    generator = torch.Generator().manual_seed(0)
    rows, labels, edges = [], [], []
    for _ in range(6):
        side = int(torch.randint(2, (), generator=generator))
        one = torch.zeros(3, 1)
        one[0] = 2.0 * side - 1
        rows.append(one)
        labels.append([NAMES[side]] * 3)
        edges.append(torch.tensor([[0, 1], [1, 2], [0, 2]]))
    made = tagger(likelihood=likelihood, estimator=estimator, training=Training(
        steps=15, optimiser=functools.partial(torch.optim.Adam, lr=0.3)))  # fmt: skip
    made.fit(rows, labels, edges=edges, generator=generator)
    assert made.predict(rows, edges=edges) == labels
    assert math.isfinite(made.elbo(rows, labels, edges=edges, generator=generator))
    for refused in (
        lambda: tagger().fit(rows, labels, edges=edges),
        lambda: tagger(training=Training(steps=1)).fit(rows, labels).predict(rows, edges=edges),
    ):
        with pytest.raises(UnsupportedError, match="ties neighbours alone, and was given edges"):
            refused()


@pytest.mark.long
def test_the_manners_of_scikit_learn(fitted):
    base = pytest.importorskip("sklearn.base")
    copy = base.clone(fitted)
    assert not hasattr(copy, "posterior_")
    assert copy.get_params()["labels"] == NAMES
    assert copy.set_params(inducing=3).inducing == 3


def test_one_seed_is_one_answer():
    rows, labels = data()
    made = tagger(training=Training(steps=3))
    first = made.fit(rows, labels, generator=torch.Generator().manual_seed(7)).bounds_
    assert made.fit(rows, labels, generator=torch.Generator().manual_seed(7)).bounds_ == first


def test_time_ends_training():
    assert len(tagger(training=Training(steps=50, seconds=0.0)).fit(*data()).bounds_) <= 1


def test_bad_input_is_one_line(fitted):
    rows, labels = data()
    cases = [
        (lambda: tagger().fit(rows, labels[:2]), "each of 4 sequences; got labels for 2"),
        (lambda: tagger().fit(rows, [["up"] * len(one) for one in rows]), "the label 'up'"),
        (lambda: tagger().fit(rows[:1], [["left"]]), "each of 5 positions; got 1 labels"),
        (lambda: tagger().fit([torch.zeros(0, 3)], [[]]), "Sequence 0 is empty"),
        (lambda: tagger().fit([], []), "at least one sequence"),
        (lambda: tagger(inducing=torch.ones(2, 3)).fit(rows, labels), "not positive definite"),
        (lambda: tagger(inducing=torch.ones(2, 4)).fit(rows, labels), "need 3 features"),
        (lambda: tagger(inducing=0).fit(rows, labels), "1 inducing point or more"),
        (lambda: tagger(nugget=0.0).fit(rows, labels), "nugget above 0"),
        (lambda: tagger().set_params(depth=3), "no parameter 'depth'"),
        (lambda: tagger().predict(rows), "not fitted"),
        (lambda: StructuredGP(("a", "a")).fit(rows, labels), "distinct labels"),
        (lambda: fitted.predict([torch.zeros(2, 4)]), "needs 3 features"),
        (lambda: fitted.predict([torch.zeros(0, 3)]), "Sequence 0 is empty"),
        (lambda: fitted.predict(rows[:1], edges=[torch.tensor([[0, 9]])]), "positions 0 to 4"),
        (lambda: fitted.predict(rows[:1], edges=[[[0.5, 1.0]]]), "edges .E, 2."),
        (lambda: fitted.predict(rows[:1], edges=[[[1, 1]]]), "between two positions; got"),
        (lambda: fitted.score(rows, labels[:2]), "each of 4 sequences; got labels for 2"),
        (lambda: tagger(components=1.5).fit(rows, labels), "above 0, a whole number"),
        (lambda: fitted.predict(rows[:1], edges=[]), "edges for 0"),
        (lambda: Training(steps=0), "steps as a whole number of at least 1"),
    ]
    for make, message in cases:
        with pytest.raises(ModelError, match=message) as caught:
            make()
        assert "\n" not in str(caught.value)
