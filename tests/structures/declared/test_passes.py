"""Answers of declared structures: identities, gradients, hard zeros, batches, refusals."""

import math
from dataclasses import dataclass

import pytest
import torch
from torch.testing import assert_close

import rdpgraph as rg
from rdpgraph.testing import check_structure
from tests.estimate.enumeration import expectation
from tests.structures.declared.models import (
    LENGTHS,
    PAIRS,
    RANKS,
    PlainSpans,
    RankedSpans,
    Segments,
    Spans,
    Tags,
    draw,
    leaves,
)

each = pytest.mark.parametrize("name", PAIRS)
SMALL = {
    "chain": Tags(draw(2, 3, 2), draw(2, 2, seed=1), lengths=torch.tensor([3, 1])),
    "low rank": Tags(draw(3, 2), rg.LowRank(draw(2, 3, seed=1), draw(2, 3, seed=2))),
    "segments": Segments(draw(2, 3, 2, 2), draw(2, 2, seed=1), lengths=torch.tensor([0, 3])),
    "spans": Spans(draw(3, 3, 2), draw(2, 2, 2, seed=1)),
    "ranked spans": RankedSpans(draw(3, 3, 2), *RANKS),
    "arcs": rg.ProjectiveDependencies(draw(2, 2, 3), lengths=torch.tensor([2, 1])),
    "arcs from the root": rg.ProjectiveDependencies(draw(2, 2, 3), multiroot=True),
    "plain spans": PlainSpans(draw(2, 3, 3, 2), lengths=torch.tensor([3, 2])),
}
small = pytest.mark.parametrize("name", SMALL)


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name in SMALL if name != "ranked spans"])
def test_conformance(name):
    check_structure(SMALL[name])


@each
def test_what_the_best_configuration_uses_is_worth_what_it_is(name):
    model, _ = PAIRS[name]
    through, states = model.max_marginals(), model.mode()
    best = model.score(states)
    best = best.reshape(-1, *(1,) * (states.ndim - 1)).expand(states.shape)
    own = through.gather(-1, states.clamp(min=0).unsqueeze(-1)).squeeze(-1)
    assert_close(own[states >= 0], best[states >= 0])
    assert bool((through <= best.unsqueeze(-1) + 1e-9).all())


@dataclass(frozen=True, eq=False)
class Distances(rg.extend.Potential):
    """A rate (B,) of each item times the distance of two states."""

    rate: torch.Tensor

    shape = property(lambda self: (*self.rate.shape, 3, 3))
    dtype = property(lambda self: self.rate.dtype)
    device = property(lambda self: self.rate.device)

    def evaluate(self, states):
        left, right = states
        apart = (left.unsqueeze(-1) - right.unsqueeze(-2)).abs()
        return -self.rate.reshape(-1, 1, 1) * apart


def test_a_users_potential_may_differ_between_items():
    unary, rate = draw(2, 4, 3), draw(2, seed=1).abs()
    states = torch.arange(3)
    tables = -rate.reshape(2, 1, 1, 1) * (states.unsqueeze(1) - states).abs()
    for name in ("log_partition", "max_marginals", "entropy"):
        found = getattr(Tags(unary, Distances(rate)), name)()
        assert_close(found, getattr(rg.Chain(unary, tables.expand(2, 3, 3, 3)), name)())


@small
def test_terms_made_again_for_the_gradient_of_the_entropy_are_the_same(name, small_blocks):
    model = SMALL[name]

    def asked():
        unary = model.unary.clone().requires_grad_()
        (first,) = torch.autograd.grad(
            model.with_unary(unary).entropy().sum(), unary, create_graph=True
        )
        (second,) = torch.autograd.grad(first.square().sum(), unary)
        return first, second

    kept = asked()
    small_blocks(1)
    assert_close(asked(), kept)


@small
def test_entropies_are_means_of_minus_the_log_probability(name):
    """Entropies are cross-entropies to themselves, which are summed alternative by alternative."""
    model = SMALL[name]
    assert_close(model.entropy(), model.cross_entropy(model))


@pytest.mark.long
@small
def test_gradients_and_their_gradients(name):
    model = SMALL[name]
    unary = model.unary.clone().requires_grad_()

    def log_z(unary):
        return model.with_unary(unary).log_partition()

    def entropy(unary):
        return model.with_unary(unary).entropy()

    assert torch.autograd.gradgradcheck(log_z, (unary,), fast_mode=True)
    assert torch.autograd.gradcheck(entropy, (unary,), fast_mode=True)


def test_gradients_in_transitions_and_divergences():
    unary, other = draw(3, 2), draw(3, 2, seed=5)
    table = draw(2, 2, seed=1).requires_grad_()

    def divergence(table):
        return Tags(unary, table).kl_divergence(Tags(other, table.T))

    assert torch.autograd.gradcheck(divergence, (table,), fast_mode=True)
    assert torch.autograd.gradgradcheck(
        lambda t: Tags(unary, t).log_partition(), (table,), fast_mode=True
    )


@small
def test_hard_zeros_make_no_nan(name):
    model = SMALL[name]
    unary = model.unary.clone()
    unary[..., 0] = -math.inf
    unary = unary.requires_grad_()
    hard = model.with_unary(unary)
    (first,) = torch.autograd.grad(hard.log_partition().sum(), unary, create_graph=True)
    (second,) = torch.autograd.grad(first.square().sum(), unary)
    (third,) = torch.autograd.grad(hard.entropy().sum(), unary)
    assert not any(bool(values.isnan().any()) for values in (first, second, third))
    assert bool((first[..., 0] == 0).all())
    nothing = model.with_unary(torch.full_like(unary, -math.inf))
    possible = torch.tensor(-math.inf) if nothing.lengths is None else (nothing.lengths == 0).log()
    assert_close(nothing.log_partition(), possible.double().expand_as(nothing.log_partition()))
    assert bool((nothing.entropy() == 0).all())
    if not bool((possible == 0).all()):
        with pytest.raises(rg.errors.ImpossibleEvidenceError):
            nothing.mode()


def test_a_divergence_from_what_forbids_is_infinite():
    model = Tags(draw(2, 3, 2), draw(2, 2, seed=1))
    unary = model.unary.clone()
    unary[1, 0, 0] = -math.inf
    unary = unary.requires_grad_()
    found = model.kl_divergence(model.with_unary(unary))
    assert found[0] == 0
    assert found[1] == math.inf
    (gradient,) = torch.autograd.grad(found[0], unary)
    assert not bool(gradient.isnan().any())
    assert bool((model.with_unary(unary).kl_divergence(model) < math.inf).all())


@pytest.mark.long
@each
def test_a_batch_is_its_items(name):
    model, _ = PAIRS[name]
    kind, shape = type(model), {"chain": 1}.get(name.split(",")[0], 2)
    wide = kind is Spans
    for item, length in enumerate(LENGTHS.tolist()):
        unary = model.unary[item]
        unary = unary[:length, :length] if wide else unary[:length]
        one = kind(unary, *leaves(model)[1:])
        assert_close(one.log_partition(), model.log_partition()[item])
        assert_close(one.entropy(), model.entropy()[item])
        best, all_best = one.k_best(3), model.k_best(3)
        assert_close(best.scores, all_best.scores[:, item])
        cut = all_best.states[:, item]
        cut = cut[:, :length, :length] if wide else cut[:, :length]
        assert_close(one.score(cut[:1]), best.scores[:1])
        assert best.states.ndim == 1 + shape


def test_several_batch_dims_and_tables_for_each_item():
    unary, table = draw(2, 3, 4, 3), draw(2, 3, 3, 3, seed=1)
    model = Tags(unary, table)
    assert model.log_partition().shape == (2, 3)
    for i, j in ((0, 2), (1, 0)):
        one = Tags(unary[i, j], table[i, j])
        assert_close(model.log_partition()[i, j], one.log_partition())
        assert_close(model.max_marginals()[i, j], one.max_marginals())
        assert_close(model.k_best(2).scores[:, i, j], one.k_best(2).scores)
    assert model.sample(5).shape == (5, 2, 3, 4)
    states = torch.randint(3, (7, 2, 3, 4, 2))
    few = model.restrict(states, torch.zeros(states.shape, dtype=torch.float64))
    assert_close(few.log_partition()[3, 1, 2], Tags(unary[1, 2], table[1, 2]).restrict(
        states[3, 1, 2], torch.zeros(4, 2, dtype=torch.float64)).log_partition())  # fmt: skip


def test_scores_of_what_the_recursion_does_not_have():
    model = Segments(draw(3, 2, 2), draw(2, 2, seed=1))
    states = torch.full((3, 2), -1)
    assert model.score(states) == -math.inf
    states[2, 1] = 0
    assert model.score(states) == -math.inf
    states[0, 0] = 1
    assert_close(
        model.log_prob(states).exp() + 1,
        1 + model.score(states).exp() / model.log_partition().exp(),
    )
    # A further segment, which no derivation uses beside these.
    states[1, 0] = 1
    assert model.score(states) == -math.inf
    with pytest.raises(rg.errors.EvidenceError, match="configurations"):
        model.score(states[:2])
    with pytest.raises(rg.errors.EvidenceError, match="states 0 to 1"):
        model.score(states + 5)


@pytest.mark.parametrize("name", ["chain", "segments", "spans"])
def test_estimates_are_unbiased(name):
    model = {
        "chain": Tags(draw(3, 3), draw(3, 3, seed=1)),
        "segments": Segments(draw(2, 2, 3), draw(3, 3, seed=1)),
        "spans": Spans(draw(2, 2, 3), draw(3, 3, 3, seed=1)),
    }[name]
    mean, count = expectation(model, rg.randomized.Local(), rg.randomized.TopTail(1, 1))
    assert count > 1
    assert_close(mean, model.log_partition())


@pytest.mark.parametrize("name", ["chain, table", "segments, low rank", "spans, dense"])
@pytest.mark.parametrize("estimator", [rg.Randomized.default, rg.Randomized.piloted])
def test_estimates_answer_what_exact_inference_does(name, estimator):
    model, _ = PAIRS[name]
    exact = rg.infer(model)
    whole = rg.infer(
        model, estimator=estimator(keep=1.0), generator=torch.Generator().manual_seed(0)
    )
    some = rg.infer(
        model, estimator=estimator(keep=2, replicates=2), generator=torch.Generator().manual_seed(0)
    )
    assert_close(whole.log_partition, exact.log_partition)
    assert_close(whole.marginals(), exact.marginals())
    assert_close(whole.entropy(), exact.entropy())
    assert_close(whole.max_marginals(), exact.max_marginals())
    for question in ("marginals", "entropy", "max_marginals"):
        assert getattr(some, question)().shape == getattr(exact, question)().shape
    if bool((some.log_partition > -math.inf).all()):
        assert bool((model.score(some.mode()) > -math.inf).all())
        assert bool((model.score(some.sample(3)) > -math.inf).all())
        assert some.rsample(temperature=1.0).shape == model.unary.shape


def test_questions_that_mean_nothing_are_refused():
    with pytest.raises(rg.errors.ModelError, match="its shape"):
        Tags(draw(3, 2), draw(2, 2)).kl_divergence(Tags(draw(4, 2), draw(2, 2)))
    with pytest.raises(rg.errors.ModelError, match="k >= 1"):
        Tags(draw(3, 2), draw(2, 2)).k_best(0)
    with pytest.raises(rg.errors.UnsupportedError, match="Tags has no factor graph"):
        Tags(draw(3, 2), draw(2, 2)).factor_graph()


def test_empty_batches():
    model = Tags(draw(0, 3, 2), draw(2, 2))
    assert model.log_partition().shape == (0,)
    assert model.marginals().shape == (0, 3, 2)
    assert model.entropy().shape == (0,)
    assert model.mode().shape == (0, 3)
    assert model.sample(2).shape == (2, 0, 3)
    assert model.max_marginals().shape == (0, 3, 2)


def test_within_inference_mode():
    with torch.inference_mode():
        model = Tags(draw(3, 2), draw(2, 2))
        found = model.marginals(), model.entropy(), model.mode(), model.sample(2)
    assert_close(found[0], Tags(draw(3, 2), draw(2, 2)).marginals())


def test_replicates_share_the_tables_of_their_items():
    unary, table = draw(2, 3, 3), draw(2, 3, 3, seed=1)
    states = torch.randint(3, (5, 2, 3, 2), generator=torch.Generator().manual_seed(0))
    few = Tags(unary, table).restrict(states, draw(5, 2, 3, 2, seed=2))
    ones = [
        Tags(unary[item], table[item]).restrict(states[:, item], draw(5, 2, 3, 2, seed=2)[:, item])
        for item in range(2)
    ]
    for question in ("log_partition", "marginals", "entropy", "max_marginals"):
        found = torch.stack([getattr(one, question)() for one in ones], 1)
        assert_close(getattr(few, question)(), found)
    assert_close(few.k_best(2).scores, torch.stack([one.k_best(2).scores for one in ones], 2))
    assert few.sample(2).shape == (2, 5, 2, 3)
    assert Tags(unary, table).rsample(3, temperature=0.5).shape == (3, 2, 3, 3)


def test_dense_rules_are_evaluated_as_by_four_indices():
    table = draw(2, 3, 5, 5)
    generator = torch.Generator().manual_seed(1)
    whole, left, right = (
        torch.randint(size, (2, 4, kept), generator=generator)
        for size, kept in ((3, 2), (5, 3), (5, 4))
    )
    found = rg.trees.DenseRules(table).evaluate(whole, left, right)
    item = torch.arange(2).reshape(2, 1, 1, 1, 1)
    pairs = left[..., None, :, None], right[..., None, None, :]
    assert torch.equal(found, table[item, whole[..., None, None], *pairs])
