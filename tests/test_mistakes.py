"""Refusals of arguments of the wrong kind: one line that says what was expected, in every room."""

import math

import numpy as np
import pytest
import torch

import rdpgraph as rg
from rdpgraph import distributed, distributions, gp, nn


def zeros(*shape):
    return torch.zeros(*shape)


def graph():
    return rg.FactorGraph([rg.Factor([rg.Variable("x", 2)], rg.Table(zeros(2)))])


def dependencies():
    return rg.ProjectiveDependencies(zeros(2, 3))


def derivations():
    return rg.Derivations(zeros(1), torch.tensor([0]), torch.tensor([[-1, -1]]), nodes=1)


def tagger(**choices):
    features = [torch.eye(3, dtype=torch.float64)]
    return gp.StructuredGP("abc", **choices).fit(features, ["abc"])


def crf(*given):
    return nn.CRF(3)(*given)


MISTAKES = {
    "a segmentation": (lambda wrong: rg.SemiMarkov(zeros(2, 1, 2), zeros(2, 2)).score(wrong)),
    "uses of hyperedges": lambda wrong: derivations().score(wrong),
    "another tree": lambda wrong: rg.Hypertree(zeros(2, 2, 1)).cross_entropy(wrong),
    "other dependencies": lambda wrong: dependencies().kl_divergence(wrong),
    "potentials of a bitext": lambda wrong: rg.MixedBitext.words(
        zeros(2, 2), zeros(2), zeros(2)
    ).with_unary(wrong),
    "words of a bitext": lambda wrong: rg.Bitext.words(wrong, wrong, wrong),
    "rules in a list": lambda wrong: rg.trees.SparseRules(wrong, zeros(1), parents=1),
    "weights to be made hard": rg.straight_through,
    "a place for tables": lambda wrong: graph().to(wrong),
    "variables of a joint": lambda wrong: rg.infer(graph()).joint(wrong),
    "sizes of slots": lambda wrong: rg.Sparse(zeros(1, 2).long(), zeros(1), wrong),
    "a class of structures": rg.extend.register,
    "a file format": rg.extend.register_format,
    "the text of a grammar": rg.trees.parse_grammar,
    "the path of a model": rg.read,
    "the path of a grammar": rg.trees.read_grammar,
    "a kernel": lambda wrong: tagger(kernel=wrong),
    "a likelihood": lambda wrong: tagger(likelihood=wrong),
    "a gradient": lambda wrong: tagger(estimator=wrong),
    "a training": lambda wrong: tagger(training=wrong),
    "a scale": lambda wrong: tagger(scale=wrong),
    "labels": lambda wrong: gp.StructuredGP(wrong).fit([zeros(1, 1)], ["a"]),
    "features": lambda wrong: gp.StructuredGP("ab").fit(wrong, ["a"]),
    "a lengthscale": lambda wrong: gp.RBF(lengthscale=wrong),
    "items": lambda wrong: gp.SAGA([zeros(1)], items=wrong, lr=0.1),
    "steps": lambda wrong: gp.Training(steps=wrong),
    "samples": lambda wrong: gp.Reparameterised(samples=wrong),
    "samples of a score": lambda wrong: gp.ScoreFunction(samples=wrong),
    "sizes of an HMM": lambda wrong: nn.HMM(states=wrong, vocabulary=3),
    "tokens": lambda wrong: nn.HMM(states=2, vocabulary=3)(wrong),
    "sizes of a decoder": lambda wrong: nn.LSTMDecoder(states=wrong, vocabulary=2),
    "states of a VAE": lambda wrong: nn.StructuredVAE(
        torch.nn.Identity(), torch.nn.Identity(), states=wrong, dimension=2
    ),
    "emissions": lambda wrong: crf(wrong, zeros(1, 1)),
    "tags": lambda wrong: crf(zeros(1, 1, 3), wrong),
    "constraints": lambda wrong: nn.Constraints(wrong, wrong, wrong),
    "a start": lambda wrong: distributions.HMM(wrong, zeros(2, 2), zeros(2, 2), length=2),
    "a length": lambda wrong: distributions.HMM(zeros(2), zeros(2, 2), zeros(2, 2), length=wrong),
    "ranks": lambda wrong: distributed.Cluster(wrong),
    "a model to forecast": lambda wrong: distributed.explain(wrong, distributed.Cluster(2)),
    "a mesh": lambda wrong: distributed.share([1, 2], wrong),
    "a pruning": lambda wrong: distributed.SpreadChains(wrong, None),
}
NONE_IS_A_CHOICE = ("a place for tables", "a kernel", "a likelihood", "a gradient", "a training")


@pytest.mark.parametrize("name", MISTAKES)
def test_what_is_of_the_wrong_kind_is_refused_in_one_line(name):
    for wrong in (None, object()):
        if wrong is None and name in NONE_IS_A_CHOICE:
            continue
        with pytest.raises(rg.errors.RdpgraphError) as caught:
            MISTAKES[name](wrong)
        assert "\n" not in str(caught.value)


def gaussian_kernel(**options):
    return rg.RandomFeatures(4, 8, **options)


def embedded():
    vectors = torch.eye(4)
    return rg.Chain(zeros(2, 4), rg.Bilinear(vectors, vectors))


def grammar(**options):
    return rg.trees.parse_grammar('1.0 S -> "a"', **options)


def controlled(**options):
    chain = rg.Chain(zeros(2, 3), zeros(3, 3))
    given = {"model": chain, "estimator": rg.Randomized.default(keep=2), "solve": rg.infer}
    return rg.controlled(surrogate=chain, **{**given, **options})


def learned(wrong=None, **options):
    bits = [[1, 1, 0], [0, 1, 1]]
    model = wrong or rg.ParityModel.from_rates(bits, [0.1] * 3)
    return rg.decoding.learn_rates(model, [[0, 1]], **options)


ARGUMENTS = {
    "offsets": (lambda wrong: rg.Banded(zeros(3, 1), wrong), (3, None, ["a"], [0.5])),
    "rest": (lambda wrong: rg.Banded(zeros(3, 1), (0,), wrong), (3, "a", zeros(3, 3))),
    "maps": (lambda wrong: gaussian_kernel(maps=wrong), (3, "a", [-1], None)),
    "orthogonal": (lambda wrong: gaussian_kernel(orthogonal=wrong), ("no", None, 2)),
    "dtype": (lambda wrong: gaussian_kernel(dtype=wrong), (3, "a", float)),
    "embeddings": (lambda wrong: gaussian_kernel().low_rank(wrong, zeros(2, 4)), (3, zeros(4))),
    "configurations": (lambda wrong: rg.Sparse(wrong, zeros(1), (2, 2)), (None, [[0.5, 0.5]])),
    "arity": (rg.Or, (0, 2.5, "a", True, None)),
    "parity": (lambda wrong: rg.Xor(3, parity=wrong), (2, "a", None)),
    "at_most": (lambda wrong: rg.Cardinality(3, at_most=wrong), (-1, "a")),
    "base": (rg.randomized.Pilot, ("a", 3, None)),
    "selection": (lambda wrong: rg.randomized.Pilot(selection=wrong), ("a", rg.Exact())),
    "base of ranks": (lambda wrong: rg.randomized.LowRankPilot(base=wrong), ("a", None)),
    "features": (rg.randomized.LowRankPilot, (0, "a", 2.5)),
    "weights": (lambda wrong: rg.randomized.Mixture((), wrong), (3, ["a"], [0.0], [math.nan])),
    "above": (lambda wrong: rg.pruning.LikelyBy(graph(), above=wrong), ("a", None, 2, math.nan)),
    "mask": (rg.pruning.Given, ("a", None, 1j)),
    "generator": (lambda wrong: rg.loopy.RandomSubsets(generator=wrong), (3, "a")),
    "generator of draws": (lambda wrong: embedded().sample(1, wrong), (3, "a")),
    "generator of a search": (lambda wrong: rg.Search(generator=wrong), (3, "a")),
    "schedule": (lambda wrong: rg.Loopy(schedule=wrong), (None, 3)),
    "seconds": (rg.Search, (None, 0, "a", math.nan, math.inf)),
    "optimize": (lambda wrong: rg.Contraction(optimize=wrong), (3, "a", int)),
    "order": (rg.loopy.Sequential, ("a", [None])),
    "coefficient": (lambda wrong: controlled(coefficient=wrong), ("a", None, math.nan)),
    "solve": (lambda wrong: controlled(solve=wrong), (None, 3)),
    "model": (lambda wrong: controlled(model=wrong), (None, 3)),
    "model of waves": (rg.LowRankFactors(4).signed, (None, 3)),
    "confidence": (lambda wrong: rg.infer(graph()).replicates.interval(wrong), (0, 1, "a")),
    "moves": (lambda wrong: rg.Alignment(zeros(2, 2, 1), wrong), (3, "a", [3], [("a", 1)])),
    "local": (lambda wrong: rg.Alignment(zeros(2, 2, 3), local=wrong), ("a", None)),
    "transition": (lambda wrong: rg.Alignment(zeros(2, 2, 1), transition=wrong),
                   ("a", zeros(1, 1).int())),
    "multiroot": (lambda wrong: rg.NonProjectiveDependencies(zeros(2, 3), multiroot=wrong), ("a",)),
    "heads": (lambda wrong: rg.Derivations(zeros(1), wrong, [[-1, -1]], nodes=1), (None, [0.5])),
    "starts": (lambda wrong: rg.Segmentation(torch.tensor([0]), wrong), (3, None)),
    "states": (rg.trees.Trees, (3, None)),
    "observations": (
        rg.LowRankHMM(zeros(1), rg.LowRank(zeros(1, 1), zeros(1, 1)), zeros(1, 1)).log_prob,
        (None, "a", 0, [0.5]),
    ),
    "relaxed": (rg.straight_through, (3, torch.tensor([1j]))),
    "configuration": (lambda wrong: rg.draw(embedded(), "a.png", wrong), (3, [0, 1, 2])),
    "target": (lambda wrong: rg.draw(embedded(), wrong), (3, None)),
    "model of rates": (learned, (3, "a")),
    "tied": (lambda wrong: learned(tied=wrong), (3, "a")),
    "decoder": (lambda wrong: rg.decoding.learn_damping(wrong, [[0, 1]]), (3, None)),
    "limit": (lambda wrong: rg.read("model.uai", limit=wrong), ("a", -1, None)),
    "type of a grammar": (lambda wrong: grammar(dtype=wrong), ("a", 3)),
    "sentences": (lambda wrong: rg.Hypertree.parses(grammar(), wrong), (3, None)),
    "symbols": (lambda wrong: rg.trees.Grammar(wrong, (), *4 * [zeros(0)]), (3, None)),
    "scheduler": (gp.GraphLikelihood, (3, "a")),
    "folds": (lambda wrong: rg.learn.held_out(wrong, zeros(4, 1), states=(1,)), (3, "a")),
    "shape": (lambda wrong: rg.learn.Poisson(shape=wrong), ("a", None, 0.5)),
    "size": (rg.learn.BDeu, ("a", -1.0)),
    "tolerance": (lambda wrong: rg.learn.HMM(2, rg.learn.Gaussian(), tolerance=wrong).fit(zeros(3)),
                  ("a", -1.0)),
}  # fmt: skip


@pytest.mark.parametrize("name", ARGUMENTS)
def test_an_argument_of_the_wrong_kind_or_size_is_named(name):
    ask, several = ARGUMENTS[name]
    for wrong in several:
        with pytest.raises(rg.errors.RdpgraphError, match=r"got|needs") as caught:
            ask(wrong)
        assert "\n" not in str(caught.value)


def test_what_fits_is_taken():
    """Lists for tuples; numbers of NumPy, and tensors of one."""
    assert rg.Banded(zeros(3, 2), [0, 1]).offsets == (0, 1)
    assert rg.Redrawn(rg.Randomized.default(keep=2), at=[1, 3]).at == (1, 3)
    maps = np.array([2]), torch.tensor([2])
    assert [gaussian_kernel(maps=each).maps for each in maps] == [(2,), (2,)]
    assert rg.RandomFeatures(np.int64(4), 8, orthogonal=np.True_).dimension == 4
    assert rg.loopy.Fractional(torch.tensor(1.5)).number == 1.5
    assert rg.MiniBuckets(memory=math.inf).memory == math.inf
    with pytest.raises(rg.errors.ModelError, match="a whole number of at least 1; got 0"):
        rg.Or(0)
    with pytest.raises(rg.errors.ModelError, match=r"Pilot needs share as a number in \(0, 1\)"):
        rg.randomized.Pilot(share=1)
    with pytest.raises(rg.errors.ModelError, match=r"as a Schedule, such as Flooding\(\); got 3"):
        rg.Loopy(schedule=3)


def test_questions_about_no_data_are_refused():
    fitted = rg.learn.HMM(1, rg.learn.Gaussian(covariance_prior=0.1)).fit(zeros(3))
    network = rg.learn.BayesianNetwork([("a", "b")]).fit({"a": [0, 1], "b": [0, 1]})
    none = gp.Labelling(zeros(0, 3).long(), zeros(0).long())
    for ask in (
        lambda: fitted.bic(zeros(0, 1)),
        lambda: network.bic({"a": [], "b": []}),
        lambda: gp.GraphLikelihood().log_prob(none, zeros(1, 0, 3, 2), zeros(1, 2, 2)),
    ):
        with pytest.raises(rg.errors.RdpgraphError, match="none"):
            ask()


def test_lists_are_taken_where_tensors_are():
    one = nn.HMM(states=2, vocabulary=3, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(one([[0, 2]]), one(torch.tensor([[0, 2]])))
    weights = [0.5, 0.5], [[0.9, 0.1], [0.2, 0.8]]
    hmm = distributions.HMM(*(torch.tensor(own).log().tolist() for own in (*weights, weights[1])),
                            length=2)  # fmt: skip
    same = distributions.HMM(*(torch.tensor(own).log() for own in (*weights, weights[1])), length=2)
    seen = torch.tensor([0, 1])
    torch.testing.assert_close(hmm.log_prob(seen), same.log_prob(seen))
    line = distributions.LinearChain([[0.0, 1.0]], [[0.0, 1.0], [2.0, 3.0]])
    torch.testing.assert_close(line.log_prob(torch.tensor([1])), torch.tensor(1.0).sigmoid().log())


@pytest.mark.parametrize("ask", [rg.infer, rg.explain])
def test_a_scheduler_may_come_second_and_other_choices_are_named(ask):
    model, exact = graph(), rg.Randomized.default(keep=1)
    assert rg.explain(model, rg.Loopy()).route == rg.infer(model, rg.Loopy()).plan.route == "loopy"
    for wrong, name in (
        (lambda: ask(model, exact), "estimator"),
        (lambda: ask(model, estimator=rg.Loopy()), "scheduler"),
        (lambda: ask(model, torch.Generator()), "generator"),
    ):
        with pytest.raises(rg.errors.ModelError, match=f"; give it as {name}=") as caught:
            wrong()
        assert "\n" not in str(caught.value)
