"""Structures that a user declares answer as those of the library that are the same."""

import pytest
import torch
from torch.testing import assert_close

import rdpgraph as rg
from tests.structures.declared.models import LENGTHS, PAIRS, RANKS, RankedSpans, Spans, Tags, draw

each = pytest.mark.parametrize("name", PAIRS)


def close(got, wanted):
    assert_close(got, wanted, rtol=1e-9, atol=1e-9)


@each
def test_sums_and_maxima(name):
    ours, theirs = PAIRS[name]
    close(ours.log_partition(), theirs.log_partition())
    close(ours.marginals(), theirs.marginals())
    close(ours.max_marginals(), theirs.max_marginals())
    close(ours.entropy(), theirs.entropy())


def test_sums_by_ranks():
    unary = draw(4, 4, 4, 2, seed=9)
    ours = RankedSpans(unary, *RANKS, lengths=LENGTHS)
    theirs = rg.Hypertree(unary, rg.trees.LowRankRules(*RANKS), lengths=LENGTHS)
    close(ours.log_partition(), theirs.log_partition())
    close(ours.marginals(), theirs.marginals())


@each
def test_best_configurations_and_their_scores(name):
    ours, theirs = PAIRS[name]
    best, known = ours.k_best(6), theirs.k_best(6)
    close(best.scores, known.scores)
    close(ours.score(ours.mode()), best.scores[0])
    states = best.states.flatten(2)
    for item in range(4):
        there = best.scores[:, item] > -torch.inf
        assert len(states[there, item].unique(dim=0)) == there.sum()
    close(ours.score(best.states)[best.scores > -torch.inf], best.scores[best.scores > -torch.inf])
    if not isinstance(theirs, rg.SemiMarkov):
        close(theirs.score(ours.mode()), theirs.score(theirs.mode()))


@pytest.mark.long
@each
def test_on_kept_states(name):
    ours, theirs = PAIRS[name]
    sites = ours.unary.shape[:-1]
    generator = torch.Generator().manual_seed(0)
    states = torch.randint(ours.unary.shape[-1], (3, *sites, 2), generator=generator)
    weights = draw(3, *sites, 2, seed=11)
    few, known = ours.restrict(states, weights), theirs.restrict(states, weights)
    close(few.log_partition(), known.log_partition())
    close(few.marginals(), known.marginals())
    close(few.max_marginals(), known.max_marginals())
    close(few.entropy(), known.entropy())
    if bool((few.log_partition() > -torch.inf).all()):
        close(few.k_best(3).scores[0], few.score(few.mode()))
        drawn = few.sample(5, torch.Generator().manual_seed(1))
        assert bool((few.score(drawn) > -torch.inf).all())
    fewer = few.restrict(torch.ones_like(states[..., :1]), torch.zeros_like(weights[..., :1]))
    close(fewer.log_partition(), ours.restrict(states[..., 1:], weights[..., 1:]).log_partition())


@pytest.mark.parametrize("kind", ["chain, table", "segments, low rank", "spans, dense"])
def test_divergences(kind):
    ours, theirs = PAIRS[kind]
    others = [replaced(model) for model in (ours, theirs)]
    close(ours.cross_entropy(others[0]), theirs.cross_entropy(others[1]))
    close(ours.kl_divergence(others[0]), theirs.kl_divergence(others[1]))
    close(ours.cross_entropy(ours), ours.entropy())


def replaced(model):
    unary = draw(*model.unary.shape, seed=21)
    if isinstance(model, Spans | rg.Hypertree):
        table = draw(2, 2, 2, seed=22)
        rules = table if isinstance(model, Spans) else rg.trees.DenseRules(table)
        return type(model)(unary, rules, lengths=model.lengths)
    return type(model)(unary, draw(3, 3, seed=22), lengths=model.lengths)


@each
def test_samples_have_their_probabilities(name):
    ours, _ = PAIRS[name]
    drawn = ours.sample(4000, torch.Generator().manual_seed(2))
    every = torch.arange(ours.unary.shape[-1])
    found = (drawn.unsqueeze(-1) == every).double().mean(0)
    wanted = ours.marginals()
    # Six standard errors.
    assert bool(((found - wanted).abs() <= 6 * (wanted * (1 - wanted) / 4000).sqrt() + 1e-12).all())


@each
def test_relaxed_samples(name):
    ours, _ = PAIRS[name]
    unary = ours.unary.clone().requires_grad_()
    drawn = ours.with_unary(unary).rsample(
        2, temperature=0.3, generator=torch.Generator().manual_seed(3)
    )
    (gradient,) = torch.autograd.grad((drawn * draw(*drawn.shape)).sum(), unary)
    assert bool(gradient.isfinite().all())
    assert bool((gradient != 0).any())
    used = ours.marginals().sum(-1)
    sure = (used - used.round()).abs() < 1e-9
    close(drawn.sum(-1)[:, sure], used[sure].expand(2, -1))


@each
def test_relaxed_samples_are_those_of_the_library(name):
    one, other = (
        model.rsample(3, temperature=0.5, generator=torch.Generator().manual_seed(4))
        for model in PAIRS[name]
    )
    close(one, other)


@pytest.mark.parametrize("name", ["chain, table", "segments, table", "chain, low rank"])
def test_potentials_take_the_widest_type(name):
    """As in `Chain`; answers of a narrow unary would lose the digits of the other tensors."""
    ours, _ = PAIRS[name]
    narrow = ours.with_unary(ours.unary.float().requires_grad_())
    wide = ours.with_unary(narrow.unary.detach().double())
    assert narrow.log_partition().dtype == narrow.marginals().dtype == torch.float64
    assert torch.equal(narrow.log_partition(), wide.log_partition())
    # Those with a gradient are summed by torch.
    close(narrow.k_best(2).scores.detach(), wide.k_best(2).scores)
    generators = (torch.Generator().manual_seed(0) for _ in range(2))
    one, other = (each.sample(5, next(generators)) for each in (narrow, wide))
    assert torch.equal(one, other)


def test_large_tables_and_long_sequences():
    unary, transition = 20 * draw(2, 150, 40), 20 * draw(40, 40, seed=1)
    ours, theirs = Tags(unary, transition), rg.Chain(unary, transition)
    close(ours.log_partition(), theirs.log_partition())
    close(ours.marginals(), theirs.marginals())
    close(ours.k_best(2).scores, theirs.k_best(2).scores)
    single = Tags(unary.float(), transition.float())
    assert single.log_partition().dtype == torch.float32
    assert_close(single.log_partition(), theirs.log_partition().float(), rtol=1e-5, atol=0.0)
