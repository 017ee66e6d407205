"""Structures and graphs of half precision against float64 on the same numbers."""

from dataclasses import replace

import pytest
import torch

import rdpgraph as rg
from tests.fuzz.structures import mapped
from tests.structures.test_conformance import ANSWERS, STRUCTURES, draw

HALF = [torch.float16, torch.bfloat16]
MODELS = STRUCTURES | {
    "alignment": lambda: rg.Alignment(draw(2, 4, 4, 3)),
    "bitext": lambda: rg.Bitext.words(draw(2, 2), draw(2, seed=1), draw(2, seed=2)),
    "parities": lambda: rg.ParityModel([[1, 1, 0], [0, 1, 1]], draw(3), syndrome=[[1, 0], [1, 1]]),
}
ASKED = ("log_partition", "marginals", "entropy", "mode", "samples")


def in_double(own):
    return own.detach().double() if own.is_floating_point() else own


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("name", MODELS)
def test_structures_answer_in_float32(name, dtype):
    # Scores of a hundred and more, of which half precision keeps a digit after the point or none.
    given = mapped(
        MODELS[name](), lambda own: (50 * own).to(dtype) if own.is_floating_point() else own
    )
    exact = mapped(given, in_double)
    for question in ASKED:
        found, known = ANSWERS[question](given), ANSWERS[question](exact)
        if known is None:
            continue
        assert found.dtype == torch.float32, question
        torch.testing.assert_close(found.double(), known, rtol=1e-5, atol=1e-3, msg=question)


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize(
    "name", ["chain", "dense rules", "segments", "projective", "non-projective"]
)
def test_divergences_are_computed_in_float32_and_gradients_have_the_dtype_given(name, dtype):
    model = mapped(MODELS[name](), lambda own: own.to(dtype) if own.is_floating_point() else own)
    leaf = (50 * model.unary).to(dtype).requires_grad_()
    given = replace(model, unary=leaf)
    other = given.with_unary(leaf.detach() * 0.5)
    double = [mapped(model, in_double) for model in (given, other)]
    for question in ("kl_divergence", "cross_entropy"):
        known = getattr(double[0], question)(double[1])
        torch.testing.assert_close(
            getattr(given, question)(other).double(), known, rtol=1e-5, atol=1e-3
        )
    (slopes,) = torch.autograd.grad(given.log_partition().sum(), leaf)
    assert slopes.dtype == dtype
    known = double[0].marginals().nan_to_num()
    torch.testing.assert_close(slopes.double(), known, rtol=0, atol=torch.finfo(dtype).eps)


def halves(dtype, *shapes):
    return [(20 * draw(*shape, seed=seed)).to(dtype) for seed, shape in enumerate(shapes)]


BUILT = {
    "Chain.crf": (
        lambda *p: rg.Chain.crf(*p[:2], start=p[2], end=p[3]), (6, 3), (3, 3), (3,), (3,)
    ),
    "SemiMarkov.from_unary": (rg.SemiMarkov.from_unary, (9, 2), (2, 2), (8, 2)),
    "from_labelled_arcs": (rg.NonProjectiveDependencies.from_labelled_arcs, (4, 4, 5)),
    "Alignment.pairwise": (lambda match: rg.Alignment.pairwise(match, -0.3, -0.7), (3, 4)),
    "Bitext.words": (lambda *p: rg.Bitext.words(*p, straight=0.3), (2, 2), (2,), (2,)),
    "ParityModel.from_rates": (
        lambda rates: rg.ParityModel.from_rates([[1, 1, 0], [0, 1, 1]], rates.abs() / 64), (3,)
    ),
}  # fmt: skip


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("name", BUILT)
def test_constructors_add_in_float32(name, dtype):
    build, *shapes = BUILT[name]
    given = halves(dtype, *shapes)
    found, known = build(*given), build(*(part.double() for part in given))
    torch.testing.assert_close(found.unary.double(), known.unary, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", HALF)
def test_hidden_markov_models_rounded_to_half_precision_are_taken(dtype):
    start, transition, emission = (draw(*shape).log_softmax(-1) for shape in ((3,), (3, 3), (3, 5)))
    rows = [part.to(dtype) for part in (start, transition, emission)]
    seen = torch.tensor([0, 4, 1, 2])
    found = rg.Chain.hmm(*rows, seen).log_partition()
    known = rg.Chain(
        rows[2].double().mT[seen] + torch.eye(4, 1).double() * rows[0].double(), rows[1].double()
    ).log_partition()
    torch.testing.assert_close(found.double(), known, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("scheduler", [rg.Auto(), rg.Contraction(), rg.Loopy()])
@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("cycle", [False, True])
def test_graphs_answer_in_float32(scheduler, dtype, cycle):
    x = rg.VariableArray("x", (8,), 3)
    unary, pairs = (30 * draw(8, 3)).to(dtype), draw(7, 3, 3, seed=1).to(dtype)

    def built(unary, pairs):
        blocks = [
            rg.FactorBlock((x,), rg.Table(unary)), rg.FactorBlock((x[:-1], x[1:]), rg.Table(pairs))
        ]  # fmt: skip
        extra = [rg.Factor((x[0], x[2]), rg.Table(pairs[0]))] if cycle else []
        return rg.FactorGraph([*blocks, *extra])

    leaf = unary.clone().requires_grad_()
    given = rg.infer(built(leaf, pairs), scheduler=scheduler)
    exact = rg.infer(built(unary.double(), pairs.double()), scheduler=scheduler)
    for question in ("log_partition", "entropy"):
        found, known = (getattr(posterior, question) for posterior in (given, exact))
        found, known = (each() if callable(each) else each for each in (found, known))
        assert found.dtype == torch.float32
        torch.testing.assert_close(found.double(), known, rtol=1e-5, atol=1e-3)
    score = built(unary, pairs).score(exact.mode())
    known = built(unary.double(), pairs.double()).score(exact.mode())
    torch.testing.assert_close(score.double(), known, rtol=1e-6, atol=1e-6)
    (slopes,) = torch.autograd.grad(given.log_partition, leaf)
    assert slopes.dtype == dtype


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("kind", [rg.LowRank, rg.Bilinear])
def test_potentials_that_compute_their_values_do_so_in_float32(kind, dtype):
    x = rg.VariableArray("x", (5,), 4)
    sides = [(2 * draw(4, 3, seed=seed)).to(dtype) for seed in (0, 1)]

    def built(*sides):
        pairs = rg.FactorBlock((x[:-1], x[1:]), kind(*sides))
        return rg.FactorGraph([pairs, rg.Factor((x[0], x[3]), kind(*sides))])

    given, exact = built(*sides), built(*(side.double() for side in sides))
    states = rg.infer(exact).mode()
    for ask in (lambda graph: rg.infer(graph).log_partition, lambda graph: graph.score(states)):
        torch.testing.assert_close(ask(given).double(), ask(exact), rtol=1e-6, atol=1e-5)
    sides[0].zero_()  # the graph has a copy
    with pytest.raises(rg.errors.ModelError, match="changed in place"):
        rg.infer(given)
