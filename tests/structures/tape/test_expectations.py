"""Relaxed draws by the compiled machine: as by torch, at any temperature and spread."""

import math

import pytest
import torch
from torch.testing import assert_close

from tests.structures.tape.models import Tags, draw
from tests.structures.tape.test_machine import MODELS, each, leaves, models, rebuilt

INF = math.inf


def relaxed(model, temperature, *, count=3):
    return model.rsample(count, temperature=temperature, generator=torch.Generator().manual_seed(1))


@each
@pytest.mark.parametrize("temperature", [1e-9, 0.3, 2.0])
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
    assert_close((found, pulled), by_torch(asked))


@each
@pytest.mark.parametrize("spread", [1.0, 30.0, 1000.0])
@pytest.mark.parametrize("temperature", [1e-3, 0.5, 5.0])
def test_relaxed_draws_hold_in_single_precision(name, spread, temperature):
    model = models(torch.float32)[name]
    narrow = rebuilt(model, [spread * part for part in leaves(model)])
    wide = rebuilt(narrow, [part.double() for part in leaves(narrow)])
    found, expected = (relaxed(own, temperature) for own in (narrow, wide))
    assert_close(found.double(), expected, rtol=0, atol=1e-4)


def test_relaxed_draws_are_marginals_of_the_noisy_model():
    """All values over the temperature; the noise is what is left where scores are level."""
    model, temperature = Tags(draw(2, 3, 2), draw(2, 2, seed=1)), 0.7
    generator = torch.Generator().manual_seed(1)
    numbers = torch.rand(3, 2, 3, 2, generator=generator, dtype=torch.float64)
    noisy = model.unary - (-numbers.log()).log()
    scaled = Tags(noisy / temperature, model.transition / temperature)
    assert_close(relaxed(model, temperature), scaled.marginals())
