"""Best sequences of chains, against all sequences."""

import math

import pytest
import torch
from torch.testing import assert_close

from rdpgraph import Chain
from rdpgraph.errors import ImpossibleEvidenceError
from tests.structures.chain.enumeration import (
    KINDS,
    SHAPES,
    chain_of,
    chains,
    item_of,
    possible_items,
    seeded,
    sequences,
)


def place_of(listed, states):
    """Index of a sequence in a list."""
    (place,) = (listed == states).all(1).nonzero().flatten().tolist()
    return place


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("states", "total"), SHAPES)
@pytest.mark.parametrize(("seed", "compiled"), [(0, True), (1, False)])
def test_viterbi_finds_the_best_of_all_sequences(kind, states, total, seed, compiled, by_torch):
    parts = chains(kind, seed=seed, states=states, total=total)
    some, gone = possible_items(*parts)
    model = chain_of(*some)
    found = model.mode() if compiled else by_torch(model.mode)
    scores = model.score(found)
    for item, length in enumerate(some[2].tolist()):
        listed, expected = sequences(*some, item)
        assert_close(scores[item], expected.max())
        assert bool((found[item, length:] == -1).all())
        assert_close(expected[place_of(listed, found[item, :length])], expected.max())
    if gone:
        with pytest.raises(ImpossibleEvidenceError, match="has no mode"):
            chain_of(*parts).mode()


@pytest.mark.cover(2)
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("states", "total"), SHAPES)
@pytest.mark.parametrize("k", [1, 2, 7, 30])
@pytest.mark.parametrize("whole", [False, True])
def test_k_best_are_the_first_of_all_sequences_sorted(
    kind, states, total, k, whole, compiled, by_torch
):
    parts = chains(kind, seed=k, states=states, total=total, whole=whole)
    model = chain_of(*parts)
    best = model.k_best(k) if compiled else by_torch(lambda: model.k_best(k))
    found, scores = best.states, best.scores
    assert found.shape == (k, total + 1, total)
    assert scores.shape == (k, total + 1)
    for item, length in enumerate(parts[2].tolist()):
        listed, every = sequences(*parts, item)
        expected = every.sort(descending=True).values[:k]
        possible = int((expected > -math.inf).sum())
        assert_close(scores[:possible, item], expected[:possible])
        assert bool((scores[possible:, item] == -math.inf).all())
        assert bool((found[possible:, item] == -1).all())
        assert bool((found[:, item, length:] == -1).all())
        places = [place_of(listed, found[rank, item, :length]) for rank in range(possible)]
        assert len(set(places)) == possible
        assert_close(every[places], scores[:possible, item])


@pytest.mark.parametrize("k", [1, 4, 60])
def test_lists_of_a_few_states_and_of_all_are_the_same(k, by_torch):
    model, scores = chain_of(*chains("shared", seed=k, states=5, total=40)), []
    for best in (model.k_best(k), by_torch(lambda: model.k_best(k))):
        scores.append(best.scores)
        possible = (best.scores > -math.inf).sum(0)
        for item, count in enumerate(possible.tolist()):
            assert len({tuple(row) for row in best.states[:count, item].tolist()}) == count
    assert_close(*scores)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("states", "total"), SHAPES)
def test_max_marginals_are_the_best_of_the_sequences_through_each_state(kind, states, total):
    parts = chains(kind, seed=3, states=states, total=total)
    found = chain_of(*parts).max_marginals()
    assert found.shape == parts[0].shape
    for item, length in enumerate(parts[2].tolist()):
        listed, every = sequences(*parts, item)
        assert bool((found[item, length:] == -math.inf).all())
        for step in range(length):
            for state in range(states):
                through = every[listed[:, step] == state]
                assert_close(found[item, step, state], through.max())


def answers(model, k):
    """The best sequences, their scores, and those through every state."""
    best = model.k_best(k)
    return [best.states, best.scores, model.max_marginals()]


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_is_its_items_one_by_one(kind):
    parts, _ = possible_items(*chains(kind, seed=5))
    model = chain_of(*parts)
    states, (lists, scores, largest) = model.mode(), answers(model, 4)
    for item in range(len(parts[2])):
        one = chain_of(*item_of(*parts, item))
        own = answers(one, 4)
        assert torch.equal(one.mode()[0], states[item])
        assert torch.equal(own[0][:, 0], lists[:, item])
        assert_close(own[1][:, 0], scores[:, item])
        assert_close(own[2][0], largest[item])


@pytest.mark.parametrize("kind", KINDS)
def test_blocks_of_any_size_give_the_same(kind, small_blocks, by_torch):
    parts, _ = possible_items(*chains(kind, seed=6))
    model = chain_of(*parts)
    watched = chain_of(parts[0], parts[1].clone().requires_grad_(), parts[2])
    before = by_torch(lambda: [model.mode(), *answers(model, 5)])
    small_blocks(1)
    after = by_torch(lambda: [model.mode(), *answers(model, 5)])
    for one, other in zip(before, after, strict=True):
        assert torch.equal(one, other)
    assert_close(watched.max_marginals(), before[-1])


@pytest.mark.parametrize("kind", KINDS)
def test_the_gradient_of_scores_is_that_of_the_sequences_of_that_rank(kind):
    unary, transition, lengths = possible_items(*chains(kind, seed=7))[0]
    unary.requires_grad_()
    transition.requires_grad_()
    model = chain_of(unary, transition, lengths)
    scores = torch.cat([model.score(model.mode())[None], model.k_best(3).scores])
    weights = torch.randn(scores.shape, generator=seeded(1), dtype=torch.float64)
    expected = []
    for item in range(len(lengths)):
        every = sequences(unary, transition, lengths, item)[1]
        ranked = every.sort(descending=True).values
        column = torch.nn.functional.pad(ranked, (0, 3), value=-math.inf)[[0, 0, 1, 2]]
        expected.append(column)
    expected = torch.stack(expected, 1)
    alive = expected > -math.inf
    # The whole of the scores, -inf included: those entries have no gradient.
    got = torch.autograd.grad((scores * weights).sum(), (unary, transition))
    wanted = torch.autograd.grad((expected[alive] * weights[alive]).sum(), (unary, transition))
    assert_close(got, wanted)


@pytest.mark.parametrize("kind", KINDS)
def test_the_gradient_of_max_marginals_is_that_of_the_best_sequences(kind):
    unary, transition, lengths = chains(kind, seed=8)
    unary.requires_grad_()
    transition.requires_grad_()
    found = chain_of(unary, transition, lengths).max_marginals()
    weights = torch.randn(found.shape, generator=seeded(2), dtype=torch.float64)
    total = 0.0
    for item, length in enumerate(lengths.tolist()):
        listed, every = sequences(unary, transition, lengths, item)
        for step in range(length):
            for state in range(unary.shape[2]):
                best = every[listed[:, step] == state].max()
                if best > -math.inf:
                    total = total + best * weights[item, step, state]
    got = torch.autograd.grad((found * weights).sum(), (unary, transition))
    assert_close(got, torch.autograd.grad(total, (unary, transition)))


def test_an_impossible_item_has_no_sequence_no_score_and_no_gradient():
    generator = seeded(9)
    unary = torch.randn(2, 3, 2, generator=generator, dtype=torch.float64)
    unary[0, 1] = -math.inf
    unary.requires_grad_()
    transition = torch.randn(2, 2, generator=generator, dtype=torch.float64, requires_grad=True)
    lengths = torch.tensor([3, 3])
    model = chain_of(unary, transition, lengths)
    with pytest.raises(ImpossibleEvidenceError, match="has no mode"):
        model.mode()
    lists, scores, largest = answers(model, 2)
    assert bool((lists[:, 0] == -1).all())
    for values in (scores[:, 0], largest[0]):
        assert bool((values == -math.inf).all())
    for gradient in torch.autograd.grad(scores[:, 0].sum() + largest[0].sum(), (unary, transition)):
        assert bool((gradient == 0).all())


@pytest.mark.long
def test_single_precision_tells_long_sequences_apart():
    generator = seeded(10)
    unary = 1000 + torch.randn(1, 2000, 5, generator=generator)
    transition = torch.randn(5, 5, generator=generator)
    single, exact = Chain(unary, transition), Chain(unary.double(), transition.double())
    best = exact.score(exact.mode())
    for states in (single.mode(), single.k_best(2).states[0]):
        # The spacing of single precision at this score is a quarter of a nat.
        assert_close(exact.score(states), best, rtol=0, atol=1e-2)
    largest = single.max_marginals()
    assert_close(largest, exact.max_marginals().float(), rtol=4e-7, atol=0)
