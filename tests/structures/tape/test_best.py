"""The k best derivations: lists of the nodes asked for, and torch's lists of all entries."""

import pytest
import torch

import rdpgraph as rg
from tests.structures.tape.models import PAIRS, Spans, draw


def recursions():
    """Structures, and those on two of the states of each site, one of them twice."""
    for name, (ours, theirs) in PAIRS.items():
        yield name, ours
        if isinstance(theirs, rg.SemiMarkov):
            yield f"{name}, the library's", theirs
        shape = (*ours.unary.shape[:-1], 3)
        states = torch.tensor([0, 1, 1]).expand(shape)
        yield f"{name}, kept", ours.restrict(states, draw(*shape, seed=11))
    triples = torch.tensor([[0, 0, 1], [1, 0, 0], [0, 1, 1]])
    listed = rg.trees.SparseRules(triples, draw(3, seed=15), parents=2)
    yield "spans, listed", Spans(draw(2, 4, 4, 2, seed=16), listed)
    yield "alignment", rg.Alignment(draw(2, 3, 3, 3, seed=12))
    yield "bitext", rg.Bitext(draw(2, 3, 3, 3, 3, 2, seed=13), rg.trees.DenseRules(draw(2, 2, 2)))


@pytest.mark.parametrize("name", RECURSIONS := dict(recursions()))
def test_both_ways_find_the_same_lists(name, by_torch):
    model, k = RECURSIONS[name], 7
    ours, theirs = model.k_best(k).scores, by_torch(lambda: model.k_best(k)).scores
    torch.testing.assert_close(ours, theirs)
    assert bool((ours[:-1] >= ours[1:] - 1e-9).all())


def test_lists_of_one_are_the_modes_and_impossible_items_have_none():
    unary = draw(3, 4, 2, 2)
    unary[1] = -torch.inf
    found = rg.SemiMarkov(unary, draw(2, 2, seed=1)).k_best(1)
    assert (found.scores[0] > -torch.inf).tolist() == [True, False, True]
    mode = rg.SemiMarkov(unary[::2], draw(2, 2, seed=1)).mode()
    assert torch.equal(found.segmentations.labels[0, ::2], mode.labels)
    assert bool((found.segmentations.labels[0, 1] == -1).all())
