"""Hypertrees on a few states of each span: every draw enumerated."""

import itertools
import math
from dataclasses import replace

import pytest
import torch

import rdpgraph as rg
from rdpgraph.estimate.proposals import Local
from rdpgraph.estimate.randomized import Randomized
from rdpgraph.estimate.selections import Threshold, Top, TopSystematic, TopTail
from rdpgraph.structures.hypertree.model import Hypertree
from tests.estimate.enumeration import outcomes
from tests.structures.hypertree.enumeration import KINDS, normal, rules_of
from tests.structures.hypertree.test_hypertree import CLOSE, hypertree


def all_draws(model, selection):
    """[(probability, states, log-weights)] over all joint draws, spans chosen independently."""
    total, states = model.unary.shape[-2:]
    cells = [(i, j) for i in range(total) for j in range(i, total)]
    scores = model.unary
    if model.preterminals:
        single = torch.arange(states) >= states - model.preterminals
        word = torch.eye(total, dtype=torch.bool).unsqueeze(-1)
        scores = torch.where(word == single, scores, -math.inf)
    rows = [outcomes(selection, scores[cell]) for cell in cells]
    joint = list(itertools.product(*rows))
    kept = joint[0][0][1].states.shape[-1]
    chosen = torch.zeros(len(joint), total, total, kept, dtype=torch.int64)
    weights = torch.zeros(len(joint), total, total, kept, dtype=torch.float64)
    chances = torch.tensor([math.prod(c for c, _ in draw) for draw in joint], dtype=torch.float64)
    for place, draw in enumerate(joint):
        for cell, (_, support) in zip(cells, draw, strict=True):
            chosen[(place, *cell)], weights[(place, *cell)] = support.states, support.log_weights
    return chances, chosen, weights


SELECTIONS = [TopTail(1, 1), TopTail(0, 2), TopSystematic(0, 1), Threshold(2)]


@pytest.mark.parametrize("selection", SELECTIONS, ids=repr)
@pytest.mark.parametrize(("kind", "preterminals"), [*((k, 0) for k in KINDS), ("dense", 2)])
def test_z_is_unbiased_over_every_draw(selection, kind, preterminals):
    model = hypertree(kind, 3, 3 + (preterminals > 0), preterminals=preterminals)
    if preterminals:
        selection = TopTail(1, 1)
    if isinstance(selection, TopTail) and selection.top == 0:
        model = hypertree(kind, 2, 3)
    chances, states, weights = all_draws(model, selection)
    restricted = model.restrict(states, weights)
    mean = (chances.log() + restricted.log_partition()).logsumexp(0)
    torch.testing.assert_close(chances.sum(), torch.ones((), dtype=torch.float64))
    torch.testing.assert_close(mean, model.log_partition(), **CLOSE)


def test_products_without_cross_terms_are_biased():
    """Top with top and sampled with sampled alone, as eq. 18 is printed, is another number."""
    model = hypertree("none", 3, 3)
    chances, states, weights = all_draws(model, TopTail(1, 1))
    value = model.unary.expand(len(chances), 3, 3, 3).gather(-1, states) + weights

    def joined(left, right):
        return (left + right).logsumexp(-1, keepdim=True)

    def printed(value):
        leaf = [value[:, i, i] for i in range(3)]
        pair = [value[:, i, i + 1] + joined(leaf[i], leaf[i + 1]) for i in range(2)]
        splits = [joined(leaf[0], pair[1]), joined(pair[0], leaf[2])]
        return value[:, 0, 2] + torch.logaddexp(*splits)

    root = model.root[states[:, 0, 2]]
    found = (chances.log() + (printed(value) + root).logsumexp(-1)).logsumexp(0)
    assert abs(float(found - model.log_partition())) > 0.1


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("preterminals", [0, 1])
def test_all_states_kept_is_the_same_model(kind, preterminals):
    model = hypertree(kind, 4, batch=(2,), lengths=[4, 2], preterminals=preterminals)
    states = torch.arange(3).expand(3, 2, 4, 4, 3)
    whole = model.restrict(states, torch.zeros(states.shape, dtype=torch.float64))
    for name in ("log_partition", "marginals", "entropy", "max_marginals"):
        mine, theirs = getattr(whole, name)(), getattr(model, name)()
        torch.testing.assert_close(mine, theirs.expand(3, *theirs.shape), **CLOSE)
    modes = whole.mode()
    torch.testing.assert_close(model.score(modes), model.score(model.mode()).expand(3, 2), **CLOSE)
    drawn = whole.sample(5, torch.Generator().manual_seed(0))
    assert drawn.shape == (5, 3, 2, 4, 4)
    assert bool((model.score(drawn) > -math.inf).all())


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_reach_the_potentials(kind):
    model = hypertree(kind, 3, 4)
    states = torch.randint(4, (3, 3, 2), generator=torch.Generator().manual_seed(0))
    weights = normal(3, 3, 2, seed=7)
    inputs = tuple(
        p.clone().requires_grad_() for p in (model.unary, *model.rules.parts, model.root)
    )

    def log_z(unary, *rest):
        rules = model.rules.with_parts(rest[:-1])
        other = replace(model, unary=unary, rules=rules, root=rest[-1])
        return other.restrict(states, weights).log_partition()

    assert torch.autograd.gradcheck(log_z, inputs)


def test_draws_of_a_restricted_hypertree_have_their_probabilities():
    """Chi-square at a level of 1e-4, over shapes of trees and kept states."""
    model = hypertree("dense", 3, 3)
    states = torch.tensor([0, 2]).expand(3, 3, 2)
    kept = model.restrict(states, normal(3, 3, 2, seed=4))
    count = 20_000
    drawn = kept.sample(count, torch.Generator().manual_seed(0))
    trees, found = drawn.unique(dim=0, return_counts=True)
    own = torch.where(trees >= 0, torch.tensor([0, 2])[trees.clamp(min=0)], -1)
    weights = normal(3, 3, 2, seed=4).expand(len(trees), 3, 3, 2)
    extra = weights.gather(-1, trees.clamp(min=0).unsqueeze(-1)).squeeze(-1)
    scores = model.score(own) + torch.where(trees >= 0, extra, 0.0).flatten(1).sum(1)
    expected = (scores - kept.log_partition()).exp() * count
    common = expected >= 5
    statistic = ((found - expected) ** 2 / expected)[common].sum()
    half = torch.tensor((int(common.sum()) - 1) / 2, dtype=torch.float64)
    assert float(torch.special.gammaincc(half, statistic / 2)) > 1e-4
    assert float(expected.sum()) > 0.99 * count


def test_the_estimator_solves_it():
    model = hypertree("low rank", 5, 12, batch=(2,), lengths=[5, 3])
    exact = rg.infer(model).log_partition
    estimator = Randomized(Local(), TopTail(5, 3), replicates=200)
    posterior = rg.infer(model, estimator=estimator, generator=torch.Generator().manual_seed(0))
    error = (posterior.log_partition - exact).abs()
    assert bool((error < 5 * posterior.standard_error + 1e-9).all())
    assert posterior.marginals().shape == model.unary.shape
    assert posterior.entropy().shape == (2,)
    drawn = posterior.sample(4, generator=torch.Generator().manual_seed(1))
    assert bool((model.score(drawn) > -math.inf).all())
    assert bool((model.score(posterior.mode()) > -math.inf).all())
    whole = rg.infer(model, estimator=Randomized(Local(), Top(12)))
    torch.testing.assert_close(whole.log_partition, exact)


def test_impossible_supports_have_no_trees():
    model = hypertree("dense", 3, 3)
    states = torch.zeros(3, 3, 1, dtype=torch.int64)
    none = model.restrict(states, torch.full((3, 3, 1), -math.inf))
    assert none.log_partition() == -math.inf
    assert not none.marginals().any()
    assert none.entropy() == 0
    for ask in (none.mode, lambda: none.sample(1)):
        with pytest.raises(rg.ImpossibleEvidenceError):
            ask()
    with pytest.raises(rg.ModelError, match="restrict"):
        model.restrict(states[:2], torch.zeros(2, 3, 1))
    with pytest.raises(rg.ModelError, match="range"):
        model.restrict(states + 3, torch.zeros(3, 3, 1))
    assert Hypertree(torch.zeros(0, 0, 2), rules_of("none", 2, 2)).log_partition() == 0
