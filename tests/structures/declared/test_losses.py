"""Relaxed draws, entropies and divergences by compiled code: as by torch, at any spread."""

import math

import pytest
import torch
from torch.testing import assert_close

import rdpgraph as rg
from tests.structures.declared.models import (
    PlainSpans,
    Segments,
    Steps,
    Tags,
    draw,
    leaves,
    rebuilt,
)
from tests.structures.declared.test_numbers import MODELS, each, models, tables_of

INF = math.inf


def relaxed(model, temperature, *, count=3):
    return model.rsample(count, temperature=temperature, generator=torch.Generator().manual_seed(1))


@each
@pytest.mark.parametrize("temperature", [1e-4, 0.3, 2.0])
def test_relaxed_draws_and_their_gradients_are_those_of_torch(name, temperature, by_torch):
    model = MODELS[name]
    unary = model.unary.clone()
    unary.view(-1)[::7] = -INF

    def asked():
        parts = [unary.clone(), *(part.clone() for part in leaves(model)[1:])]
        fixed = relaxed(rebuilt(model, parts), temperature)
        parts = [part.requires_grad_() for part in parts]
        found = relaxed(rebuilt(model, parts), temperature)
        assert_close(fixed, found.detach())
        pulled = torch.autograd.grad(found.square().sum(), parts, materialize_grads=True)
        return found.detach(), pulled

    found, pulled = asked()
    assert bool(found.isfinite().all())
    assert_close((found, pulled), by_torch(asked), rtol=1e-7, atol=max(1e-7, 1e-10 / temperature))


@each
@pytest.mark.parametrize(("spread", "temperature"), [(1.0, 5.0), (30.0, 0.5), (1000.0, 1e-3)])
def test_relaxed_draws_hold_in_single_precision(name, spread, temperature):
    model = models(torch.float32)[name]
    narrow = rebuilt(model, [spread * part for part in leaves(model)])
    wide = rebuilt(narrow, [part.double() for part in leaves(narrow)])
    found, expected = (relaxed(own, temperature) for own in (narrow, wide))
    assert_close(found.double(), expected, rtol=0, atol=1e-4)


class Backwards(rg.Recurrence):
    """A chain from its last site to the first."""

    unary, transition = rg.Input("T N"), rg.Input("N N")
    rules = """
        b[t, n] += unary[t, n] if t == T - 1
        b[t, m] += unary[t, m] * transition[m, n] * b[t+1, n]
        goal    += b[0, n]
    """


class Joined(rg.Recurrence):
    """Two sites that are linked to a third one each."""

    unary, transition = rg.Input("S N"), rg.Input("N N")
    rules = """
        a[n] += unary[0, i] * transition[i, n]
        b[n] += unary[1, i] * transition[i, n]
        goal += a[n] * b[n] * unary[2, n]
    """


@pytest.mark.parametrize("kind", [Segments, Backwards, Joined])
def test_relaxed_draws_are_marginals_of_the_noisy_model(kind):
    """All values over the temperature; the noise is what is left where scores are level."""
    shape = (2, 3, 2) if kind is not Segments else (2, 3, 2, 2)
    model, temperature = kind(draw(*shape), draw(2, 2, seed=1)), 0.7
    generator = torch.Generator().manual_seed(1)
    numbers = torch.rand(3, *shape, generator=generator, dtype=torch.float64)
    noisy = model.unary - (-numbers.log()).log()
    scaled = kind(noisy / temperature, model.transition / temperature)
    assert_close(relaxed(model, temperature), scaled.marginals())


LENGTHS = {"lengths": torch.tensor([[3, 2, 0, 3], [1, 3, 3, 2]])}


@pytest.mark.parametrize("temperature", [1e-30, 0.7])
@pytest.mark.parametrize(
    ("kind", "shape", "options"),
    [(Tags, (2, 2), LENGTHS), (Tags, (2, 4, 2, 2), LENGTHS), (Steps, (2, 4, 2, 2, 2), {})],
)
def test_relaxed_draws_of_chains_are_those_of_the_library(kind, shape, options, temperature):
    """Their argmaxes are exact draws; with gradients, and gradients of these."""
    unary, tables = draw(2, 4, 3, 2), draw(*shape, seed=1).requires_grad_()
    unary[..., 0, 0] = -INF
    unary.requires_grad_()
    each = tables.unsqueeze(2).expand(2, 4, 2, 2, 2) if len(shape) == 4 else tables
    found = []
    for model in (kind(unary, tables, **options), rg.Chain(unary, each, **options)):
        drawn = relaxed(model, temperature)
        slopes = torch.autograd.grad(drawn.square().sum(), (unary, tables), create_graph=True)
        bends = sum(part.square().sum() for part in slopes)
        found.append((drawn, *slopes, *torch.autograd.grad(bends, (unary, tables))))
    assert_close(*found)


class Alone(rg.Recurrence):
    """One site of one state, which is all."""

    unary = rg.Input("S N")
    rules = "goal += unary[0, n]"


def losses(model, other):
    """The entropy, the cross-entropy and the divergence from another."""
    return [model.entropy(), model.cross_entropy(other), model.kl_divergence(other)]


def drawn_apart(model, spread, seed, *, zeros=0.0, beside=0.0):
    """The model with drawn scores, and another: hard zeros of both, and some of the other's own."""
    generator = torch.Generator().manual_seed(seed)
    pairs = [[], []]
    for part in leaves(model):
        gone = [torch.rand(part.shape, generator=generator) < share for share in (zeros, beside)]
        for own, mask in zip(pairs, (gone[0], gone[0] | gone[1]), strict=True):
            scores = torch.randn(part.shape, generator=generator, dtype=torch.float64).to(part)
            own.append((spread * scores).masked_fill(mask, -INF))
    return [rebuilt(model, own) for own in pairs]


OWN = {**MODELS, "alone": Alone(torch.zeros(2, 1, 1, dtype=torch.float64))}


@pytest.mark.parametrize("name", OWN)
@pytest.mark.parametrize("spread", [1.0, 30.0, 1000.0])
@pytest.mark.parametrize("zeros", [(0.0, 0.0), (0.2, 0.0), (0.1, 0.15)])
def test_losses_are_those_of_torch(name, spread, zeros, by_torch):
    for seed in range(3):
        pair = drawn_apart(OWN[name], spread, seed, zeros=zeros[0], beside=zeros[1])
        found = losses(*pair)
        assert not any(bool(part.isnan().any()) for part in found)
        assert_close(found, by_torch(lambda: losses(*pair)))  # noqa: B023


@pytest.mark.parametrize("name", ["tags", "tables of items", "hard tags", "alone"])
@pytest.mark.parametrize("beside", [0.0, 0.1])
def test_losses_are_those_of_enumeration(name, beside):
    """Means over configurations, each of which has one derivation."""
    for seed in range(3):
        model, other = drawn_apart(OWN[name], 1.0, seed, zeros=0.1, beside=beside)
        scores, others = (tables_of(each)[0] for each in (model, other))
        logs, theirs = (
            part - part.logsumexp(0).nan_to_num(neginf=0.0) for part in (scores, others)
        )
        shares, possible = logs.exp(), logs > -INF
        means = [
            (shares * torch.where(possible, part, 0.0)).sum(0)
            for part in (-logs, -theirs, torch.where(possible, logs, 0.0) - theirs)
        ]
        assert_close(losses(model, other), means)


@pytest.mark.parametrize("low", [-1e2, -1e3, -1e5])
@pytest.mark.parametrize("own", [False, True])
def test_losses_by_faint_entries_are_exact(own, low):
    """All that is possible goes by entries that are tiny beside the largest of their column."""

    def made(seed, lead):
        unary, table = draw(2, 4, 3, seed=seed), draw(3, 3, seed=seed + 1)
        unary[..., 0], table[0] = -INF, lead
        return Tags(unary, table.expand(2, 3, 3).clone() if own else table)

    # Nothing is in state 0, whatever its scores.
    assert_close(losses(made(0, -low), made(2, -low)), losses(made(0, 0.0), made(2, 0.0)))


def test_losses_of_scores_in_single_precision_are_those_in_double():
    for model in OWN.values():
        narrow = rebuilt(model, [part.float() for part in leaves(model)])
        wide = rebuilt(model, [part.double() for part in leaves(narrow)])
        assert_close(narrow.entropy(), wide.entropy().float())


def test_losses_of_models_of_other_steps_or_tables(by_torch):
    unary, table = draw(2, 3, 2), draw(2, 2)
    pairs = [
        [Tags(unary, table, lengths=torch.tensor(sizes)) for sizes in ([3, 1], [2, 3])],
        [Tags(unary, draw(2, 2, 2)), Tags(draw(2, 3, 2, seed=1), table)],
    ]
    for pair in pairs:
        assert_close(losses(*pair), by_torch(lambda: losses(*pair)))  # noqa: B023


def test_losses_of_threads_and_items_one_by_one_agree():
    lengths = torch.tensor([9, 1, 0, 8, 5])
    parts = [(draw(5, 9, 100, seed=seed), draw(5, 100, 100, seed=seed + 2)) for seed in (0, 1)]
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            found.append(losses(*(Tags(*part, lengths=lengths) for part in parts)))
    finally:
        torch.set_num_threads(before)
    assert_close(*found)
    for item in range(5):
        some = slice(item, item + 1)
        pair = [Tags(*(own[some] for own in part), lengths=lengths[some]) for part in parts]
        assert_close(losses(*pair), [part[some] for part in found[0]])


def test_gradients_of_losses_are_those_of_torch(by_torch):
    def asked():
        pair = drawn_apart(OWN["joints"], 1.0, 0, zeros=0.1)
        parts = [part.requires_grad_() for own in pair for part in leaves(own)]
        total = torch.stack(losses(*pair)).sum()
        return torch.autograd.grad(total, parts, materialize_grads=True)

    assert_close(asked(), by_torch(asked))


def test_gradients_of_divergences_by_torch_are_differences(by_torch):
    """Steps that read pools of earlier values, looked at without gradients, too."""
    inputs = [draw(3, 3, 2, seed=seed).requires_grad_() for seed in (0, 1)]

    def divergence(*parts):
        one, two = map(PlainSpans, parts)
        return one.kl_divergence(two)

    assert by_torch(lambda: torch.autograd.gradcheck(divergence, inputs, fast_mode=True))
