"""Hypertrees on a few states of each span: every draw enumerated."""

import math
from dataclasses import replace

import pytest
import torch

import rdpgraph as rg
from rdpgraph import Hypertree, Randomized
from rdpgraph.randomized import (
    Global,
    Landmark,
    Local,
    LocalGlobal,
    Oracle,
    Pilot,
    SoftmaxGlobal,
    Threshold,
    Top,
    TopSystematic,
    TopTail,
    Uniform,
)
from rdpgraph.structures.grammar.kept import RestrictedHypertree
from tests.estimate.enumeration import Recorder, expectation
from tests.structures.hypertree.enumeration import KINDS, normal, rules_of
from tests.structures.hypertree.test_hypertree import CLOSE, hypertree

SELECTIONS = [TopTail(1, 1), TopTail(0, 2), TopSystematic(0, 1), TopSystematic(1, 1), Threshold(2)]


class Likely(rg.randomized.Proposal):
    """One of a user's own."""

    def log_scores(self, sites):
        return sites.unary / 2


def name(value):
    return type(value).__name__


PROPOSALS = [
    Uniform(),
    Local(),
    Global(2),
    SoftmaxGlobal(2),
    LocalGlobal(),
    Landmark(2),
    Pilot(selection=TopTail(1, 1)),
    Pilot(most=2),
    Oracle(),
    Likely(),
]


@pytest.mark.cover(1)
@pytest.mark.parametrize("selection", SELECTIONS, ids=repr)
@pytest.mark.parametrize("proposal", PROPOSALS, ids=name)
def test_the_expectation_of_z_is_z(selection, proposal):
    """Over every joint draw of all spans."""
    model = hypertree("low rank", 3 if selection != TopTail(0, 2) else 2, 3)
    mean, number = expectation(model, proposal, selection)
    assert number >= 8
    torch.testing.assert_close(mean, model.log_partition(), rtol=0, atol=1e-12)


@pytest.mark.cover(1)
@pytest.mark.parametrize("proposal", [LocalGlobal(), Landmark(2), Pilot(most=2)], ids=name)
@pytest.mark.parametrize(("kind", "preterminals"), [*((k, 0) for k in KINDS), ("dense", 2)])
def test_the_expectation_of_z_is_z_with_all_rules(proposal, kind, preterminals):
    model = hypertree(kind, 3, 3 + (preterminals > 0), preterminals=preterminals)
    mean, _ = expectation(model, proposal, TopSystematic(1, 1))
    torch.testing.assert_close(mean, model.log_partition(), rtol=0, atol=1e-12)


def printed(cells):
    """Log Z by eq. 18 as it is printed: top with top and sampled with sampled, without rules."""

    def joined(left, right):
        return (left + right).logsumexp(-1, keepdim=True)

    leaf = [cells[:, i, i] for i in range(3)]
    pair = [cells[:, i, i + 1] + joined(leaf[i], leaf[i + 1]) for i in range(2)]
    splits = [joined(leaf[0], pair[1]), joined(pair[0], leaf[2])]
    whole = cells[:, 0, 2] + torch.logaddexp(*splits)
    return whole.logsumexp(-1)  # the root's potentials are among those of the whole


def test_products_without_cross_terms_are_caught(monkeypatch):
    """The same expectation, with the other sum instead of ours."""
    model = hypertree("none", 3, 3)
    right, _ = expectation(model, Local(), TopTail(1, 1))
    monkeypatch.setattr(RestrictedHypertree, "log_partition", lambda self: printed(self.unary))
    wrong, _ = expectation(model, Local(), TopTail(1, 1))
    truth = float(model.log_partition())
    assert abs(float(right) - truth) < 1e-12
    assert abs(float(wrong) - truth) > 0.1


@pytest.mark.parametrize("kept", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_the_best_trees_of_kept_states_have_their_scores(kind, kept):
    """Those of one state of each span, too, whose rules are looked up at places that are data."""
    model = hypertree(kind, 4, 3)
    states = torch.randint(3, (2, 4, 4, kept), generator=torch.Generator().manual_seed(kept))
    few = model.restrict(states, torch.zeros_like(states, dtype=torch.float64))
    best = few.k_best(2)
    # A tree of kept states scores what it scores in the whole model, each kept state once.
    whole = states.expand(2, *states.shape).gather(-1, best.states.clamp(min=0).unsqueeze(-1))
    whole = torch.where(best.states < 0, -1, whole.squeeze(-1))
    torch.testing.assert_close(best.scores, model.score(whole), **CLOSE)
    torch.testing.assert_close(best.scores[0], few.max_marginals().amax((-3, -2, -1)), **CLOSE)


@pytest.mark.parametrize("kind", KINDS)
def test_mean_values_are_means_of_rules(kind):
    model = hypertree(kind, 3, 4, preterminals=2, batch=(2,), lengths=[3, 2])
    table = model.rules.table(2, 4).double().exp()
    parent = table.mean((1, 2))
    part = (table.mean((0, 2)) + table.mean((0, 1))) / 2
    # Landmarks by the thousand are all states.
    found = model.sites().means(300, torch.Generator().manual_seed(0)).exp().expand(2, 3, 3, 4)
    allowed = {"rtol": 0.2 if kind in ("dense", "factorised") else 1e-9, "atol": 0.0}
    torch.testing.assert_close(found[0, 0, 2, :2], parent, **allowed)
    torch.testing.assert_close(found[0, 0, 1, :2], parent * part[:2], **allowed)
    torch.testing.assert_close(found[1, 0, 1, :2], parent, **allowed)
    torch.testing.assert_close(found[0, 1, 1, 2:], part[2:], **allowed)


def test_what_trees_cannot_have_is_never_kept():
    model = hypertree("dense", 3, 5, preterminals=2, batch=(3,), lengths=[3, 2, 0])
    recorder = Recorder()
    estimator = Randomized(Landmark(2), recorder)
    rg.infer(model, estimator=estimator, generator=torch.Generator().manual_seed(0))
    possible = recorder.seen[0] > -math.inf
    place = torch.arange(3)
    within = (place.unsqueeze(1) <= place) & (place < model.lengths.reshape(-1, 1, 1))
    wide = place.unsqueeze(1) < place
    assert torch.equal(possible[..., 3:].all(-1), within & ~wide)
    assert torch.equal(possible[..., :3].all(-1), within & wide)
    assert torch.equal(possible[..., 3:].any(-1), within & ~wide)
    assert torch.equal(possible[..., :3].any(-1), within & wide)


@pytest.mark.cover(1)
@pytest.mark.parametrize("selection", [*SELECTIONS, Top(2), TopTail(2, 2)], ids=repr)
@pytest.mark.parametrize("proposal", PROPOSALS, ids=name)
def test_replicates_of_a_batch(selection, proposal):
    """Replicates of several lengths and with rules of each item."""
    model = hypertree("low rank", 4, 5, preterminals=2, batch=(4,), lengths=[4, 3, 2, 0])
    rules = rules_of("low rank", 3, 5, batch=(4,))
    model = replace(model, rules=rules, root=normal(4, 3, seed=4))
    estimator = Randomized(proposal, selection, replicates=3)
    posterior = rg.infer(model, estimator=estimator, generator=torch.Generator().manual_seed(0))
    assert posterior.log_partitions.shape == (3, 4)
    assert float(posterior.log_partition[3]) == 0.0
    assert posterior.marginals().shape == model.unary.shape
    assert bool(posterior.entropy().isfinite().all())
    possible = posterior.log_partition > -math.inf
    if bool(possible.all()):
        drawn = posterior.sample(2, generator=torch.Generator().manual_seed(1))
        assert bool((model.score(drawn) > -math.inf).all())


@pytest.mark.parametrize(("kind", "preterminals"), [*((k, 0) for k in KINDS), ("dense", 2)])
@pytest.mark.parametrize("keep", [1.0, 5])
def test_the_default_with_all_states_is_exact(kind, preterminals, keep):
    model = hypertree(kind, 4, 5, preterminals=preterminals, batch=(3,), lengths=[4, 2, 0])
    for estimator in (Randomized.default(keep=keep), Randomized.piloted(keep=keep, replicates=2)):
        posterior = rg.infer(model, estimator=estimator, generator=torch.Generator().manual_seed(0))
        assert posterior.status.exact
        torch.testing.assert_close(posterior.log_partition, model.log_partition(), **CLOSE)
        torch.testing.assert_close(posterior.marginals(), model.marginals(), **CLOSE)
        torch.testing.assert_close(posterior.entropy(), model.entropy(), **CLOSE)
        assert torch.equal(posterior.mode(), model.mode())


@pytest.mark.parametrize("kind", KINDS)
def test_relaxed_samples_are_on_the_kept_states(kind):
    model = hypertree(kind, 4, 6, batch=(2,), lengths=[4, 3])
    unary = model.unary.clone().requires_grad_()
    model = replace(model, unary=unary)
    estimator = Randomized(Local(), TopTail(2, 2), replicates=2)
    posterior = rg.infer(model, estimator=estimator, generator=torch.Generator().manual_seed(0))
    cold = posterior.rsample(temperature=1e-4, generator=torch.Generator().manual_seed(1))
    cold = cold.detach()
    torch.testing.assert_close(cold.round(), cold, rtol=0, atol=1e-3)
    states = torch.where(cold.sum(-1) > 0.5, cold.argmax(-1), -1)
    assert bool((model.score(states) > -math.inf).all())
    warm = posterior.rsample(temperature=0.7, generator=torch.Generator().manual_seed(1))
    kept = posterior.supports.states
    among = torch.zeros(2, 2, 4, 4, 6).scatter_(-1, kept, 1.0).amax(0).bool()
    assert not warm[~among].any()
    (gradient,) = torch.autograd.grad((warm**2).sum(), unary)
    assert bool(gradient.isfinite().all())
    assert bool(gradient.any())
    with pytest.raises(rg.errors.ModelError, match="temperature"):
        posterior.rsample(temperature=-1.0)


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

    assert torch.autograd.gradcheck(log_z, inputs, fast_mode=True)


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


@pytest.mark.long
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
        with pytest.raises(rg.errors.ImpossibleEvidenceError):
            ask()
    with pytest.raises(rg.errors.ModelError, match="restrict"):
        model.restrict(states[:2], torch.zeros(2, 3, 1))
    with pytest.raises(rg.errors.ModelError, match="range"):
        model.restrict(states + 3, torch.zeros(3, 3, 1))
    assert Hypertree(torch.zeros(0, 0, 2), rules_of("none", 2, 2)).log_partition() == 0
