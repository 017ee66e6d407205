"""Refusals of arguments of the wrong kind: one line that says what was expected, in every room."""

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
