"""Second derivatives of declared structures by compiled code, and what is made of them."""

from functools import partial

import pytest
import torch
from torch.autograd import grad, gradcheck
from torch.autograd.functional import hessian, jacobian
from torch.testing import assert_close

import rdpgraph as rg
from tests.structures.declared.models import Joints, Segments, Spans, Tags, draw, leaves, rebuilt
from tests.structures.declared.test_numbers import INF, MODELS, each, models

QUESTIONS = {
    "entropy": lambda one, _: one.entropy(),
    "cross-entropy": lambda one, two: one.cross_entropy(two),
    "divergence": lambda one, two: one.kl_divergence(two),
}


def scaled(model, spread, seed=0):
    """The model, and another one, with scores of some spread and hard zeros."""
    tensors = [spread * part for part in leaves(model)]
    tensors[0].view(-1)[::5] = -INF
    others = [part + spread * draw(*part.shape, seed=seed).to(part) for part in tensors]
    return rebuilt(model, tensors), rebuilt(model, others)


def watched(model):
    """A copy whose tensors need gradients, and these."""
    tensors = [part.detach().clone().requires_grad_() for part in leaves(model)]
    return rebuilt(model, tensors), tensors


def of_gradients(model):
    """Gradients of a loss on gradients of log Z, by item weighed with numbers that have one too."""
    copy, tensors = watched(model)
    value = copy.log_partition()
    weights = torch.linspace(1, 2, value.numel()).reshape(value.shape).to(value).requires_grad_()
    possible = torch.where(value == -INF, 0.0, value)
    found = grad((weights * possible).sum(), tensors, create_graph=True, materialize_grads=True)
    moves = [draw(*part.shape, seed=3).to(part) for part in found]
    loss = sum((move * part).sum() for move, part in zip(moves, found, strict=True))
    return grad(loss, [weights, *tensors], materialize_grads=True)


def of_losses(one, two, kind):
    """An entropy or divergence, and its gradients in the tensors of both models."""
    (one, parts), (two, others) = watched(one), watched(two)
    value = QUESTIONS[kind](one, two)
    finite = torch.where(value < INF, value, 0.0)
    return value.detach(), *grad(finite.sum(), [*parts, *others], materialize_grads=True)


@each
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("spread", [1.0, 30.0, 300.0])
def test_second_derivatives_are_those_of_torch(name, dtype, spread, by_torch):
    model, _ = scaled(models(dtype)[name], spread)
    wide = rebuilt(model, [part.double() for part in leaves(model)])
    expected = by_torch(lambda: of_gradients(wide))
    near = {} if dtype == torch.float64 else {"rtol": 1e-5, "atol": 1e-5}
    assert_close([part.double() for part in of_gradients(model)], list(expected), **near)


@each
@pytest.mark.parametrize("kind", QUESTIONS)
@pytest.mark.parametrize("spread", [1.0, 100.0])
def test_gradients_of_losses_are_those_of_torch(name, kind, spread, by_torch):
    pair = scaled(MODELS[name], spread)
    found, expected = of_losses(*pair, kind), by_torch(lambda: of_losses(*pair, kind))
    assert_close(found, expected, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("kind", QUESTIONS)
@pytest.mark.parametrize("spread", [1.0, 100.0])
@pytest.mark.parametrize("name", ["joints", "steps of items", "plain spans", "segments"])
def test_gradients_of_losses_are_differences(name, kind, spread):
    one, two = scaled(MODELS[name], spread)
    inputs = [part.requires_grad_() for part in (*leaves(one), *leaves(two))]
    count = len(leaves(one))

    def losses(*parts):
        value = QUESTIONS[kind](rebuilt(one, parts[:count]), rebuilt(two, parts[count:]))
        return torch.where(value < INF, value, 0.0)

    assert gradcheck(losses, inputs, fast_mode=True, atol=1e-4)


@each
def test_what_is_impossible_has_no_second_derivative(name):
    model = MODELS[name].with_unary(torch.full_like(MODELS[name].unary, -INF))
    for found in (of_gradients(model), of_losses(model, model, "entropy")[1:]):
        assert not any(bool(part.any()) for part in found)


def test_what_another_forbids_has_no_gradient():
    unary, table = draw(2, 3, 2), draw(2, 2)
    barred = unary.clone()
    barred[0, 1, 0] = -INF
    value, *found = of_losses(Tags(unary, table), Tags(barred, table), "cross-entropy")
    assert value.isinf().tolist() == [True, False]
    assert all(bool(part.isfinite().all()) for part in found)
    assert not bool(found[0][0].any())
    assert bool(found[0][1].any())


@pytest.mark.parametrize("low", [-1e3, -1e5])
@pytest.mark.parametrize("name", ["tags", "steps", "spans", "pairs"])
def test_faint_entries_are_exact(name, low, by_torch):
    """All that is possible goes by entries that are tiny beside the largest of their column."""
    unary, table, trees, rules = draw(2, 4, 3), draw(3, 3), draw(2, 4, 4, 3), draw(3, 3, 3)
    unary[..., 0], table[0], trees[..., 0], rules[:, 0] = -INF, -low, -INF, -low
    model = {
        "tags": lambda: Tags(unary, table),
        "steps": lambda: Segments(unary.unsqueeze(2), table),
        "spans": lambda: Spans(trees, rules),
        "pairs": lambda: Joints(
            torch.tensor([[[-INF, 0.3], [0.1, -INF], [0.5, -0.5]]]),
            torch.tensor([[[-low, -low], [0.0, -low]], [[0.2, 0.1], [-low, -low]]]),
            torch.tensor([[0.0, -INF], [low, low]]),
            torch.tensor([[low, low], [-low, 0.0]]),
        ),
    }[name]()
    model = rebuilt(model, [part.double() for part in leaves(model)])
    assert_close(of_gradients(model), by_torch(lambda: of_gradients(model)), rtol=1e-6, atol=1e-9)
    found = of_losses(model, model, "entropy")
    assert_close(found, by_torch(lambda: of_losses(model, model, "entropy")), rtol=1e-6, atol=1e-8)


@each
def test_gradients_of_marginals_and_relaxed_draws_are_those_of_torch(name, by_torch):
    model, _ = scaled(MODELS[name], 2.0)

    def asked():
        copy, tensors = watched(model)
        relaxed = copy.rsample(2, temperature=0.5, generator=torch.Generator().manual_seed(0))
        losses = [part.square().sum() for part in (copy.marginals(), relaxed)]
        return [part for loss in losses for part in grad(loss, tensors, materialize_grads=True)]

    assert_close(asked(), by_torch(asked))


def test_third_derivatives_are_those_of_torch(by_torch):
    unary, table = draw(2, 4, 3).requires_grad_(), draw(3, 3).requires_grad_()

    def third():
        loss = Tags(unary, table).log_partition().square().sum()
        for _ in range(2):
            loss = sum(
                part.square().sum() for part in grad(loss, [unary, table], create_graph=True)
            )
        losses = [
            loss,
            *grad(Tags(unary, table).entropy().sum(), [unary, table], create_graph=True),
        ]
        return grad(sum(part.square().sum() for part in losses), [unary, table])

    assert_close(third(), by_torch(third))


@pytest.mark.parametrize("vectorize", [False, True])
def test_jacobians_are_those_of_torch(vectorize, by_torch):
    table = draw(3, 3)
    questions = [
        lambda x: Tags(x, table).log_partition(),
        lambda x: Tags(x, table).entropy(),
        lambda x: Tags(x, table).marginals()[:, 0],
    ]
    asked = [partial(jacobian, each, draw(2, 4, 3), vectorize=vectorize) for each in questions]
    asked.append(lambda: hessian(lambda x: questions[0](x)[0], draw(2, 4, 3), vectorize=vectorize))
    for answer in asked:
        assert_close(answer(), by_torch(answer))


def test_threads_and_items_one_by_one_agree():
    before, found = torch.get_num_threads(), []
    model = Segments(draw(5, 9, 4, 20), draw(20, 20), lengths=torch.tensor([9, 1, 0, 8, 5]))
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            found.append(of_losses(model, model, "entropy"))
    finally:
        torch.set_num_threads(before)
    assert_close(*found)
    for item, length in enumerate(model.lengths):
        alone = Segments(model.unary[item], model.transition, lengths=length)
        value, single, *_ = of_losses(alone, alone, "entropy")
        assert_close((value, single), (found[0][0][item], found[0][1][item]))


@pytest.mark.parametrize("through", ["log_partition", "marginals", "entropy"])
def test_gradients_asked_for_one_by_one_are_those_asked_for_together(through):
    leaves = [draw(2, 3, 2).requires_grad_(), draw(2, 2, 2, 2, seed=1).requires_grad_()]
    derived = [leaves[0] * 1.5, leaves[1].tanh()]

    def value(unary, transition):
        answer = getattr(rg.Chain(unary, transition), through)()
        return (answer * draw(*answer.shape, seed=2)).sum()

    result = value(*derived)
    together = torch.autograd.grad(result, [*leaves, *derived], retain_graph=True)
    for wanted, expected in zip([*leaves, *derived], together, strict=True):
        alone = torch.autograd.grad(result, wanted, retain_graph=True)
        torch.testing.assert_close(alone, (expected,))
    result.backward(inputs=leaves[1:])
    assert leaves[0].grad is None
    torch.testing.assert_close(leaves[1].grad, together[1])
    again = [torch.autograd.grad(value(*leaves), leaf)[0] for leaf in leaves]
    torch.testing.assert_close(again, list(torch.autograd.grad(value(*leaves), leaves)))
