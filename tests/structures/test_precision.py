"""Structures in float32 beside float64, entries near underflow, and threads over items."""

import math
from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close

import rdpgraph as rg
from tests.structures.declared.models import agree_by_threads_and_items

INF = math.inf


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def models(dtype=torch.float64):
    """One of each kind."""

    def drawn(*shape, seed=0):
        return draw(*shape, seed=seed).to(dtype)

    lengths, rules = torch.tensor([3, 0]), rg.trees.DenseRules(drawn(2, 2, 2, 2, seed=1))
    ranks = rg.trees.LowRankRules(*(drawn(count, 2, seed=8) for count in (3, 3, 3)))
    triples = torch.cartesian_prod(torch.arange(2), torch.arange(3), torch.arange(3))[::2]
    listed = rg.trees.SparseRules(triples, drawn(9, seed=1), parents=2, children=3)
    return {
        "chain": rg.Chain(drawn(2, 3, 2), drawn(2, 2, seed=1), lengths=lengths),
        "steps": rg.Chain(drawn(2, 3, 2), drawn(2, 2, 2, 2, seed=1)),
        "segments": rg.SemiMarkov(drawn(2, 3, 2, 2), drawn(2, 2, seed=1), lengths=lengths),
        "trees": rg.Hypertree(drawn(2, 3, 3, 2), rules, lengths=lengths),
        "ranked": rg.Hypertree(drawn(2, 3, 3, 3), ranks),
        "words apart": rg.Hypertree(
            drawn(2, 3, 3, 3), rg.trees.DenseRules(drawn(2, 3, 3, seed=1)), preterminals=1
        ),
        "listed": rg.Hypertree(drawn(2, 3, 3, 3), listed, preterminals=1, lengths=lengths),
    }


MODELS = models()
each = pytest.mark.parametrize("name", MODELS)


def leaves(model):
    """The tensors that a model's gradients are in."""
    rules = getattr(model, "rules", None)
    if isinstance(rules, rg.trees.Rules):
        return [model.unary, *rules.parts]
    return [model.unary, model.transition]


def rebuilt(model, given):
    """The model on other tensors, in the order of `leaves`."""
    unary, *rest = given
    rules = getattr(model, "rules", None)
    if isinstance(rules, rg.trees.Rules):
        return replace(model, unary=unary, rules=rules.with_parts(rest))
    return replace(model, unary=unary, transition=rest[0])


def gradients(model):
    """Log Z, and its gradient in all tensors."""
    parts = [part.detach().clone().requires_grad_() for part in leaves(model)]
    value = rebuilt(model, parts).log_partition()
    possible = torch.where(value == -INF, 0.0, value).sum()
    return value.detach(), *torch.autograd.grad(possible, parts, materialize_grads=True)


def compared(narrow, wide):
    """Log Z to five digits of what its scores add up to; marginals as far as these tell them."""
    found, *parts = gradients(narrow)
    expected, *others = gradients(wide)
    least = 1e-5 * wide.unary[wide.unary > -INF].abs().max().clamp(min=1)
    assert_close(found.double(), expected, rtol=1e-5, atol=float(least))
    errors = float(least) * 10
    for part, other in zip(parts, others, strict=True):
        assert bool(part.isfinite().all())
        assert_close(part.double(), other, rtol=1e-3, atol=1e-4 + min(1.0, errors))


@each
@pytest.mark.parametrize("spread", [1.0, 300.0])
@pytest.mark.parametrize("offset", [0.0, 1e4])
def test_single_precision_holds_at_any_spread(name, spread, offset):
    model = models(torch.float32)[name]
    scaled = rebuilt(model, [spread * part for part in leaves(model)])
    scaled = scaled.with_unary(scaled.unary + offset)
    compared(scaled, rebuilt(scaled, [part.double() for part in leaves(scaled)]))


@each
@pytest.mark.parametrize("spread", [1.0, 300.0])
def test_modes_in_single_precision_are_the_best(name, spread):
    model = models(torch.float32)[name]
    scaled = rebuilt(model, [spread * part for part in leaves(model)])
    wide = rebuilt(scaled, [part.double() for part in leaves(scaled)])
    best = wide.k_best(1).scores[0]
    assert_close(wide.score(scaled.mode()), best, rtol=1e-5, atol=1e-6 * spread)


@pytest.mark.parametrize("kind", ["chain", "segments"])
def test_single_precision_holds_where_values_grow(kind):
    """Marginals have their digits however large log Z is: here some 2,000 nats."""
    unary, table = draw(200, 2, 3).float() + 8.0, draw(3, 3, seed=1).float()
    model = rg.Chain(unary[:, 0], table) if kind == "chain" else rg.SemiMarkov(unary, table)
    _, *found = gradients(model)
    _, *expected = gradients(rebuilt(model, [part.double() for part in leaves(model)]))
    for part, other in zip(found, expected, strict=True):
        assert_close(part.double(), other, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("low", [-1e2, -1e3, -1e5])
@pytest.mark.parametrize("kind", ["chain", "steps", "segments", "trees", "words apart"])
def test_faint_entries_are_exact(kind, low):
    """All that is possible goes by entries that are tiny beside the largest of their column."""
    unary, table = draw(2, 4, 3).float(), draw(3, 3, seed=1).float()
    # Those of state 0 lead by far in all columns, and nothing is in state 0.
    unary[..., 0], table[0] = -INF, -low
    trees, rules = draw(2, 4, 4, 3).float(), draw(3, 3, 3, seed=1).float()
    trees[..., 0] = -INF
    rules[:, 0], rules[..., 0] = -low, -low
    model = {
        "chain": lambda: rg.Chain(unary, table),
        "steps": lambda: rg.Chain(unary, table.expand(2, 3, 3, 3).clone()),
        "segments": lambda: rg.SemiMarkov(unary.unsqueeze(2), table),
        "trees": lambda: rg.Hypertree(trees, rg.trees.DenseRules(rules)),
        "words apart": lambda: rg.Hypertree(
            trees, rg.trees.DenseRules(rules[:2].clone()), preterminals=1
        ),
    }[kind]()
    compared(model, rebuilt(model, [part.double() for part in leaves(model)]))


@pytest.mark.parametrize("kind", ["chain", "steps", "segments", "trees", "words apart", "ranked"])
def test_threads_and_items_one_by_one_agree(kind):
    lengths = torch.tensor([9, 1, 0, 8, 5])
    trees, rules = draw(5, 9, 9, 24), draw(24, 24, 24, seed=1)
    many, table = draw(5, 9, 4, 120), draw(120, 120, seed=1)
    ranks = rg.trees.LowRankRules(*(draw(24, 40, seed=seed) for seed in range(3)))

    def made(item):
        own = slice(None) if item is None else slice(item, item + 1)
        some = lengths[own]
        return {
            "chain": lambda: rg.Chain(many[own, :, 0], table, lengths=some),
            "steps": lambda: rg.Chain(many[own, :, 0], table.expand(8, 120, 120), lengths=some),
            "segments": lambda: rg.SemiMarkov(many[own], table, lengths=some),
            "trees": lambda: rg.Hypertree(trees[own], rg.trees.DenseRules(rules), lengths=some),
            "words apart": lambda: rg.Hypertree(
                trees[own], rg.trees.DenseRules(rules[:20]), preterminals=4, lengths=some
            ),
            "ranked": lambda: rg.Hypertree(trees[own], ranks, lengths=some),
        }[kind]()

    agree_by_threads_and_items(lambda item: gradients(made(item)), len(lengths))
