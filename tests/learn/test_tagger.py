"""The tagger's loss against enumeration, its weights against the conditions of a minimum."""

import itertools
import math

import numpy as np
import pytest
import torch

from rdpgraph import errors, learn

X = [
    [{"word": "the", "size": 3}, {"word": "old", "size": 3}, {"word": "man", "capital": False}],
    [["word:the"], ["word:man"]],
    [{"word": "man"}, {"tail": ["n", "an"], "near": {"left": "the", "far": 0.5}}],
    [],
    [{"word": "old"}],
]
Y = [["D", "A", "N"], ["D", "N"], ["N", "A"], [], ["N"]]


def score_of(tagger, tokens, labels):
    """The score of labels, by the names of features."""
    names = {name: at for at, name in enumerate(tagger.attributes_)}
    number = {label: at for at, label in enumerate(tagger.classes_)}
    total = 0.0
    for token, label in zip(tokens, labels, strict=True):
        for name, value in token.items():
            if name in names:
                total += value * float(tagger.state_weights_[names[name], number[label]])
    for one, other in itertools.pairwise(labels):
        total += float(tagger.transition_weights_[number[one], number[other]])
    return total


NAMED = [
    [{"word:the": 1, "size": 3}, {"word:old": 1, "size": 3}, {"word:man": 1, "capital": 0}],
    [{"word:the": 1}, {"word:man": 1}],
    [{"word:man": 1}, {"tail:n": 1, "tail:an": 1, "near:left:the": 1, "near:far": 0.5}],
    [],
    [{"word:old": 1}],
]


def test_features_are_read_as_crfsuite_reads_them_and_the_likelihood_is_a_sum_over_labels():
    tagger = learn.SequenceTagger(c2=0.3).fit(X, Y)
    assert set(tagger.attributes_) == {name for each in NAMED for token in each for name in token}
    found, marginals = tagger.log_likelihood(X, Y), tagger.predict_marginals(X)
    best = tagger.predict(X)
    for tokens, labels, log, chances, mode in zip(NAMED, Y, found, marginals, best, strict=True):
        every = list(itertools.product(tagger.classes_, repeat=len(tokens)))
        scores = torch.tensor([score_of(tagger, tokens, each) for each in every])
        assert float(log) == pytest.approx(score_of(tagger, tokens, labels) - scores.logsumexp(0))
        assert mode == list(every[int(scores.argmax())])
        for place, own in enumerate(chances):
            for label, chance in own.items():
                there = torch.tensor([each[place] == label for each in every])
                assert chance == pytest.approx(float(scores.softmax(0)[there].sum()))
    weights = torch.cat([tagger.state_weights_.flatten(), tagger.transition_weights_.flatten()])
    loss = -float(found.sum()) + 0.3 * float(weights @ weights)
    assert tagger.losses_[-1] == pytest.approx(loss)


def corpus(count, seed):
    draw = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        labels = [str(draw.integers(3))]
        for _ in range(draw.integers(1, 6)):
            labels.append(labels[-1] if draw.random() < 0.6 else str(draw.integers(3)))
        words = [int(label) * 4 + int(draw.integers(6)) for label in labels]
        found.append(([[f"word={word}", "bias"] for word in words], labels))
    return [one for one, _ in found], [other for _, other in found]


@pytest.mark.parametrize("c1", [0.0, 1.5])
def test_weights_are_where_no_direction_lowers_the_loss(c1):
    """Of a convex loss: the gradient of each weight is 0, or within c1 at a weight of zero."""
    tokens, labels = corpus(15, 0)
    c2 = 0.2
    tagger = learn.SequenceTagger(
        c1=c1, c2=c2, tolerance=1e-13, all_possible_states=True, all_possible_transitions=True
    ).fit(tokens, labels)
    assert tagger.converged_
    chances = tagger.predict_marginals(tokens)
    names = {name: at for at, name in enumerate(tagger.attributes_)}
    gradient = 2 * c2 * tagger.state_weights_
    for each, own, probable in zip(tokens, labels, chances, strict=True):
        for token, label, chance in zip(each, own, probable, strict=True):
            for name in token:
                for at, other in enumerate(tagger.classes_):
                    gradient[names[name], at] += chance[other] - (label == other)
    weights = tagger.state_weights_
    off = torch.where(
        weights != 0, (gradient + c1 * weights.sign()).abs(), (gradient.abs() - c1).clamp(min=0)
    )
    assert off.max() < 1e-3
    assert bool((weights == 0).any()) == (c1 > 0)


def test_only_what_occurs_has_a_weight_unless_asked_for():
    tagger = learn.SequenceTagger().fit(X, Y)
    at = tagger.attributes_.index("word:the")
    assert (tagger.state_weights_[at] != 0).tolist() == [False, True, False]
    assert {(one, other) for one, other, _ in tagger.top_transitions()} == {
        ("D", "A"), ("A", "N"), ("D", "N"), ("N", "A"),
    }  # fmt: skip
    every = learn.SequenceTagger(all_possible_states=True, all_possible_transitions=True).fit(X, Y)
    assert (every.transition_weights_ != 0).all()
    assert (every.state_weights_[at] != 0).all()


def test_top_features_and_transitions_are_in_order():
    tagger = learn.SequenceTagger(c2=0.1).fit(*corpus(30, 0))
    weights = [weight for *_, weight in tagger.top_features(5)]
    assert weights == sorted(weights, reverse=True)
    assert weights[0] == tagger.state_weights_.max()
    assert tagger.top_features(-1)[0][2] == tagger.state_weights_.min()
    assert tagger.top_transitions(1)[0][2] == tagger.transition_weights_.max()


def test_hashed_features_without_collisions_give_the_same_model():
    tokens, labels = corpus(20, 0)
    plain = learn.SequenceTagger(c2=0.2, tolerance=1e-10).fit(tokens, labels)
    hashed = learn.SequenceTagger(c2=0.2, tolerance=1e-10, hashed=2**16).fit(tokens, labels)
    assert not hashed.attributes_
    assert hashed.losses_[-1] == pytest.approx(plain.losses_[-1], rel=1e-6)
    assert hashed.predict(tokens) == plain.predict(tokens)
    assert hashed.top_features(1)[0][0].startswith("#")
    crowded = learn.SequenceTagger(c2=0.2, hashed=2).fit(tokens, labels)
    assert crowded.losses_[-1] > plain.losses_[-1]


@pytest.mark.long
def test_minibatches_come_near_the_minimum():
    tokens, labels = corpus(12, 0)
    best = learn.SequenceTagger(c2=0.5).fit(tokens, labels)
    other = learn.SequenceTagger(c2=0.5, batch_size=6, limit=25, rate=0.1).fit(tokens, labels)
    assert other.losses_[-1] < 1.1 * best.losses_[-1]


def test_rare_features_are_left_out():
    tokens = [[["often"], ["often", "once"]], [["often"]]]
    tagger = learn.SequenceTagger(min_freq=2).fit(tokens, [["A", "B"], ["A"]])
    assert tagger.attributes_ == ["often"]


def test_the_conventions_of_scikit_learn():
    base = pytest.importorskip("sklearn.base")
    tagger = base.clone(learn.SequenceTagger(c2=0.5)).set_params(c1=0.1)
    assert (tagger.c1, tagger.c2) == (0.1, 0.5)
    assert tagger.fit(X, Y) is tagger
    assert tagger.score(X, Y) == np.mean([
        one == other
        for mine, theirs in zip(tagger.predict(X), Y, strict=True)
        for one, other in zip(mine, theirs, strict=True)
    ])  # fmt: skip


def test_a_tagger_is_saved_and_read(tmp_path):
    pytest.importorskip("safetensors")
    tagger = learn.SequenceTagger(c2=0.5).fit(X, Y)
    learn.save(tagger, tmp_path)
    again = learn.load(tmp_path)
    assert again.predict_marginals(X) == tagger.predict_marginals(X)


def test_files_of_conll(tmp_path):
    path = tmp_path / "train.conll"
    path.write_text("-DOCSTART- -X- O\n\nAnn NNP B\nsings VBZ O\n\n\nGo VB O\n")
    assert learn.read_conll(path) == [
        [("Ann", "NNP", "B"), ("sings", "VBZ", "O")],
        [("Go", "VB", "O")],
    ]
    path.write_text("Ann NNP B\nsings O\n")
    with pytest.raises(errors.FileFormatError, match=r"train\.conll:2: expected 3 columns.*got 2"):
        learn.read_conll(path)


WRONG = {
    "too few labels": lambda: learn.SequenceTagger().fit(X, Y[:-1]),
    "a label too many": lambda: learn.SequenceTagger().fit([[["a"]]], [["A", "B"]]),
    "nothing": lambda: learn.SequenceTagger().fit([[]], [[]]),
    "a word": lambda: learn.SequenceTagger().fit([["word"]], [["A"]]),
    "a value of nothing": lambda: learn.SequenceTagger().fit([[{"a": None}]], [["A"]]),
    "an infinite value": lambda: learn.SequenceTagger().fit([[{"a": math.inf}]], [["A"]]),
    "a number as a name": lambda: learn.SequenceTagger().fit([[[1]]], [["A"]]),
    "a penalty below 0": lambda: learn.SequenceTagger(c2=-1.0).fit(X, Y),
    "L1 by minibatches": lambda: learn.SequenceTagger(c1=1.0, batch_size=2).fit(X, Y),
    "counts of buckets": lambda: learn.SequenceTagger(hashed=8, min_freq=2).fit(X, Y),
    "not fitted": lambda: learn.SequenceTagger().predict(X),
    "another label": lambda: learn.SequenceTagger().fit(X, Y).log_likelihood([[["a"]]], [["Z"]]),
}


@pytest.mark.parametrize("name", WRONG)
def test_mistakes_are_named_in_a_line(name):
    with pytest.raises(errors.RdpgraphError) as caught:
        WRONG[name]()
    assert "\n" not in str(caught.value)
