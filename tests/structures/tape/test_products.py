"""Expectations by products of matrices are those over choices looked at one by one."""

from functools import partial

import pytest
import torch
from torch.testing import assert_close

import rdpgraph as rg
from tests.structures.tape.models import Segments, Spans, Tags, draw

INF = float("inf")


def with_zeros(logs, share, seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.where(torch.rand(logs.shape, generator=generator) < share, -INF, logs)


SHAPES = {Tags: ((4,), (3, 3)), Segments: ((4, 2), (3, 3)), Spans: ((4, 4), (2, 3, 3))}
"""Sites and table of each kind: of spans rules with fewer parents than states."""


def pairs(kind, zeros):
    """Two recursions of one shape, the second of which allows all that the first does, or not.

    And the potentials of both.
    """
    sites, shape = SHAPES[kind]
    models, inputs = [], []
    for seed in (0, 10):
        unary = with_zeros(3 * draw(2, *sites, 3, seed=seed), zeros, seed).requires_grad_()
        table = with_zeros(3 * draw(*shape, seed=seed + 1), zeros, seed + 1).requires_grad_()
        link = rg.trees.DenseRules(table) if kind is Spans else table
        models.append(kind(unary, link, lengths=torch.tensor([4, 3])))
        inputs += [unary, table]
    return *models, inputs


@pytest.mark.parametrize("kind", list(SHAPES))
@pytest.mark.parametrize("zeros", [0.0, 0.2, 0.5])
def test_products_are_choices_looked_at_one_by_one(kind, zeros, small_blocks, by_torch):
    one, other, inputs = pairs(kind, zeros)
    answers = {
        "entropy": one.entropy,
        "cross-entropy": lambda: one.cross_entropy(other),
        "divergence": lambda: one.kl_divergence(other),
        "from itself": lambda: one.kl_divergence(one),
    }

    def asked(answer):
        value = answer()
        finite = torch.where(value.isfinite(), value, 0.0).sum()
        return (value, *torch.autograd.grad(finite, inputs, materialize_grads=True))

    one_by_one = {name: by_torch(partial(asked, answer)) for name, answer in answers.items()}
    small_blocks(1)
    for name, answer in answers.items():
        found = by_torch(partial(asked, answer))
        assert all(part.isfinite().all() for part in found[1:]), name
        assert_close(found, one_by_one[name], rtol=1e-9, atol=1e-9, msg=name)
    assert not by_torch(lambda: one.kl_divergence(one)).any()


def test_products_are_differentiable_twice(small_blocks):
    small_blocks(1)
    unary, table = draw(1, 3, 3, seed=3).requires_grad_(), draw(3, 3, seed=4).requires_grad_()
    torch.autograd.gradgradcheck(
        lambda *parts: Tags(*parts).entropy(), (unary, table), fast_mode=True
    )


def test_entropies_of_faint_choices_are_exact(small_blocks):
    small_blocks(1)
    # All that is possible has a share of e^-900 of the largest sums.
    unary = torch.zeros(2, 2, dtype=torch.float64)
    table = torch.tensor([[0.0, -900.0], [0.0, -900.0]], dtype=torch.float64)
    unary[1, 0] = -INF
    assert_close(Tags(unary, table).entropy(), torch.tensor(2.0, dtype=torch.float64).log())
