"""Best trees and draws by eliminating words, at sizes that nothing enumerates."""

import math

import pytest
import torch

from rdpgraph import NonProjectiveDependencies
from tests.structures.hypertree.enumeration import normal

CLOSE = {"rtol": 1e-9, "atol": 1e-9}


def trees(batch, words, *, multiroot, seed=0, hard=0.0, lengths=None):
    unary = 3 * normal(batch, words, words + 1, seed=seed)
    if hard:
        generator = torch.Generator().manual_seed(seed)
        unary[torch.rand(unary.shape, generator=generator) < hard] = -math.inf
        # The words in a row, so that there is a tree.
        place = torch.arange(words)
        unary[:, place, place] = normal(batch, words, seed=seed + 1)
    return NonProjectiveDependencies(unary, multiroot=multiroot, lengths=lengths)


def test_cycles_within_cycles():
    words = 120
    unary = torch.full((words, words + 1), -100.0, dtype=torch.float64)
    unary[:, 0] = 0.0
    place = torch.arange(words - 1)
    unary[place, place + 2], unary[place + 1, place + 1] = 10.0, 9.0
    # All heads are the next words but the last one's: any other root trades tens for nines.
    heads = NonProjectiveDependencies(unary, multiroot=True).mode()
    assert heads.tolist() == [*range(2, words + 1), 0]


@pytest.mark.parametrize("multiroot", [False, True])
@pytest.mark.parametrize("hard", [0.0, 0.7])
@pytest.mark.parametrize("words", [7, 12])
def test_max_marginals_are_those_of_trees_with_the_arc(multiroot, hard, words):
    """The best tree where an arc is the only one of its word, by the mode alone."""
    lengths = torch.tensor([words, words - 2])
    model = trees(2, words, multiroot=multiroot, hard=hard, lengths=lengths)
    found, log_z = model.max_marginals(), model.log_partition()
    torch.testing.assert_close(found.amax(-1)[:, 0], model.score(model.mode()), **CLOSE)
    for word, head in ((0, 0), (1, 4), (4, 1), (words - 1, 3), (3, words)):
        only = model.unary.clone()
        only[:, word] = -math.inf
        only[:, word, head] = model.unary[:, word, head]
        forced = model.with_unary(only)
        possible = (forced.log_partition() > -math.inf) & (word < lengths) & (head <= lengths)
        assert torch.equal(found[:, word, head] > -math.inf, possible)
        for item in possible.nonzero().flatten().tolist():
            length = int(lengths[item])
            one = only[item, :length, : length + 1]
            alone = NonProjectiveDependencies(one, multiroot=multiroot)
            best = alone.score(alone.mode())
            torch.testing.assert_close(found[item, word, head], best, **CLOSE)
    assert bool((found.flatten(1).amax(1) <= log_z).all())


@pytest.mark.parametrize("multiroot", [False, True])
def test_the_k_best_trees_differ_and_the_next_one_is_not_better(multiroot):
    batch = 3
    model = trees(batch, 9, multiroot=multiroot, hard=0.4)
    best = model.k_best(12)
    torch.testing.assert_close(best.scores, model.score(best.heads), **CLOSE)
    assert bool((best.scores[1:] <= best.scores[:-1]).all())
    assert torch.equal(model.score(model.mode()), best.scores[0])
    for item in range(batch):
        assert len({tuple(heads) for heads in best.heads[:, item].tolist()}) == 12
    torch.testing.assert_close(model.k_best(5).scores, best.scores[:5], **CLOSE)
    # The second best has an arc that the best has not.
    others = model.max_marginals().scatter(2, best.heads[0].unsqueeze(2), -math.inf)
    torch.testing.assert_close(others.flatten(1).amax(1), best.scores[1], **CLOSE)


@pytest.mark.parametrize("multiroot", [False, True])
def test_trees_of_equal_score_are_told_apart(multiroot):
    model = NonProjectiveDependencies(torch.zeros(4, 5), multiroot=multiroot)
    count = round(float(model.log_partition().exp()))
    best = model.k_best(count + 3)
    assert len({tuple(each) for each in best.heads.tolist()}) == count + 1  # and none at all
    assert bool((best.scores[count:] == -math.inf).all())


@pytest.mark.long
@pytest.mark.parametrize("multiroot", [False, True])
def test_draws_have_the_marginals_of_the_arcs(multiroot):
    count = 20_000
    model = trees(2, 12, multiroot=multiroot, hard=0.3, lengths=torch.tensor([12, 9]))
    drawn = model.sample(count, torch.Generator().manual_seed(0))
    assert bool((model.score(drawn[:200]) > -math.inf).all())
    found = torch.stack([(drawn == head).sum(0) for head in range(13)], -1) / count
    expected = model.marginals()
    spread = (expected * (1 - expected) / count).sqrt()
    assert bool(((found - expected).abs() <= 5 * spread + 1e-9).all())


def test_scores_far_apart_leave_the_root_alone():
    """Scores that stand for forbidden arcs, of which one has to be taken."""
    unary = normal(5, 6)
    unary[:, 0], unary[2:, :3] = -1e30, -1e30
    heads = NonProjectiveDependencies(unary).mode()
    assert int((heads == 0).sum()) == 1


@pytest.mark.long
def test_finite_scores_for_absent_arcs_change_nothing_in_long_sentences():
    hard = trees(3, 40, multiroot=False, hard=0.9, lengths=torch.tensor([40, 33, 20]))
    unary = torch.where(hard.unary > -math.inf, hard.unary, -1e30)
    soft = hard.with_unary(unary)
    possible = hard.max_marginals() > -math.inf
    assert int(possible.sum()) > 100
    torch.testing.assert_close(
        soft.max_marginals()[possible], hard.max_marginals()[possible], **CLOSE
    )
    assert bool(
        (soft.max_marginals()[~possible & (soft.max_marginals() > -math.inf)] < -1e29).all()
    )
    for ask in ("log_partition", "marginals", "entropy", "mode"):
        torch.testing.assert_close(getattr(soft, ask)(), getattr(hard, ask)(), **CLOSE)
