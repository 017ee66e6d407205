"""Randomized pruning leaves the posterior invariant: every configuration, every selection."""

import itertools

import pytest
import torch
from torch.testing import assert_close

import rdpgraph as rg
from rdpgraph import Segmentation
from rdpgraph.pruning import masks_of
from tests.structures.mixed_trees import trees as trees_of_rules

TIGHT = {"rtol": 0.0, "atol": 1e-12}


def draw(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def selections(questions):
    """All, (2 ** questions, questions)."""
    return torch.tensor(list(itertools.product([False, True], repeat=questions)))


def stepped(masks, some, answers, scores, selected):
    """(S, X) for each selection the posterior after a step, by the masks' own log Z and means.

    A draw from a mask is one of the model given that it agrees on what is selected, if the mask
    leaves what agrees and that alone: its log Z and its mean answers are those of the list.

    Args:
        masks: of the model, an item of it.
        some: (Q, dims) the questions asked.
        answers: (X, Q) of every configuration.
        scores: (X,) theirs.
        selected: (S, X, Q) what is held of each.
    """
    bits = 2 ** torch.arange(answers.shape[1])
    coded = (answers * bits).sum(1)
    held = (selected * bits).sum(2)
    case = torch.stack([torch.arange(len(held)).unsqueeze(1).expand_as(held), held & coded,
                        held & ~coded], -1).flatten(0, 1)  # fmt: skip
    cases, place = case.unique(dim=0, return_inverse=True)
    posterior = scores.softmax(0)
    mass = scores.new_zeros(len(cases)).index_add_(0, place, posterior.repeat(len(held)))
    after = scores.new_zeros(len(held), len(scores))
    for part in torch.arange(len(cases)).split(500):
        number, *sides = cases[part].T
        required, forbidden = (torch.zeros(len(part), *masks.questions).bool() for _ in sides)
        for wide, codes in zip((required, forbidden), sides, strict=True):
            wide[(slice(None), *some.T)] = codes.unsqueeze(1) & bits > 0
        agrees = (coded & (sides[0] | sides[1]).unsqueeze(1)) == sides[0].unsqueeze(1)
        logs = torch.where(agrees, scores, -torch.inf)
        shares = logs.softmax(1)
        within = masks.masked(required, forbidden)
        assert_close(within.log_partition, logs.logsumexp(1), **TIGHT)
        expected = within.expected()
        means = expected.answers[(slice(None), *some.T)]
        assert_close(means, shares @ answers.double(), **TIGHT)
        assert_close(expected.score, torch.where(agrees, shares * scores, 0.0).sum(1))
        drawn = within.draw(torch.Generator().manual_seed(0)).answers
        assert bool(((drawn | ~required) & ~(drawn & forbidden)).all())
        after.index_add_(0, number, mass[part].unsqueeze(1) * shares)
    return after


def trees():
    """The binary trees of 5 words."""
    model = rg.Hypertree(draw(5, 5, 1), rg.trees.DenseRules(draw(1, 1, 1, seed=1)))
    found = model.k_best(20)
    states = found.trees.states[found.scores > -torch.inf]
    masks = masks_of(model, rg.infer)
    some = masks.open().nonzero()
    return masks, some, (states >= 0)[(slice(None), *some.T)], model.score(states)


def test_trees_keep_what_is_apart_from_a_required_span():
    masks, some, answers, scores = trees()
    agrees = answers[:, (some == torch.tensor([0, 1])).all(1)].squeeze(1)
    assert int(agrees.sum()) == 5
    # The algorithm as printed takes every span away that is not nested with this one: the third
    # word, too, which every tree has.
    required = torch.zeros(1, 5, 5, dtype=torch.bool)
    required[0, 0, 1] = True
    within = masks.masked(required, torch.zeros_like(required))
    assert_close(within.log_partition[0], scores[agrees].logsumexp(0), **TIGHT)
    assert_close(within.expected().answers[0].diagonal(), torch.ones(5), check_dtype=False)


def alignments():
    """The derivations of a bitext of 3 x 2 words, phrases among its leaves."""
    phrases = torch.full((4, 4, 3, 3), -torch.inf, dtype=torch.float64)
    phrases[0, 2, 0, 2], phrases[1, 3, 0, 1] = 0.4, 0.2
    model = rg.Bitext.words(
        draw(3, 2), draw(3, seed=1), draw(2, seed=2), straight=0.2, inverted=-0.4,
        phrases=phrases, normal_form=True,
    )  # fmt: skip
    found = model.k_best(200)
    assert found.scores[-1] == -torch.inf
    states = found.states[found.scores > -torch.inf]
    answers = torch.zeros(len(states), 3, 2, dtype=torch.bool)
    for i, k, j, m in itertools.product(range(4), range(4), range(3), range(3)):
        leaf = states[:, i, k, j, m] >= 6
        answers[:, i:k, j:m] |= leaf[:, None, None]
    masks = masks_of(model, rg.infer)
    some = masks.open().nonzero()
    return masks, some, answers.flatten(1), found.scores[: len(states)]


def mixed():
    """The trees of 3 x 2 words by rules that mix words and up to three parts."""
    words = [draw(4, 4, 3, 3, 1), draw(3, 2), draw(3, seed=1), draw(2, seed=2), draw(10, seed=3)]
    model = rg.MixedBitext(*words[:4], rules=words[4])
    listed = list(trees_of_rules(0, 3, 0, 2))
    scores = torch.tensor([tree.score(*words) for tree in listed], dtype=torch.float64)
    answers = torch.zeros(len(listed), 3, 2, dtype=torch.bool)
    for own, tree in zip(answers, listed, strict=True):
        for link in tree.links:
            own[link] = True
    masks = masks_of(model, rg.infer)
    return masks, masks.open().nonzero(), answers.flatten(1), scores


def segmentations():
    """The ways to cut 4 steps into segments of at most two steps and two labels."""
    model = rg.SemiMarkov(draw(4, 2, 2), draw(3, 2, 2, seed=1))
    every = torch.tensor(list(itertools.product([0, 1], repeat=8)))
    labels, starts = every[:, :4], every[:, 4:].bool()
    scores = model.score(Segmentation(labels, starts))
    some = scores > -torch.inf
    answers = torch.nn.functional.one_hot(labels[some], 2).flatten(1).bool()
    masks = masks_of(model, rg.infer)
    return masks, masks.open().nonzero(), answers, scores[some]


def grid():
    """A grid of 2 x 2 variables of two states."""
    pixels = rg.VariableArray("pixel", (2, 2), 2)
    model = rg.FactorGraph(
        [
            rg.FactorBlock((pixels[:, :-1], pixels[:, 1:]), rg.Table(draw(2, 2))),
            rg.FactorBlock((pixels[:-1], pixels[1:]), rg.Table(draw(2, 2, seed=1))),
            rg.FactorBlock((pixels,), rg.Table(draw(2, 2, 2, seed=2))),
        ]
    )
    states = torch.tensor(list(itertools.product(range(2), repeat=4)))
    answers = torch.nn.functional.one_hot(states, 2).flatten(1).bool()
    masks = masks_of(model, rg.infer)
    return masks, masks.open().nonzero(), answers, model.score({pixels: states.reshape(-1, 2, 2)})


@pytest.mark.long
@pytest.mark.parametrize("model", [trees, alignments, mixed, segmentations])
def test_every_kernel_leaves_the_posterior_invariant(model):
    masks, some, answers, scores = model()
    posterior = scores.softmax(0)
    chosen = selections(len(some))
    found = stepped(masks, some, answers, scores, chosen.unsqueeze(1).expand(-1, len(scores), -1))
    assert_close(found, posterior.expand(len(chosen), -1), **TIGHT)


@pytest.mark.long
def test_every_kernel_of_a_grid_leaves_the_posterior_invariant():
    masks, some, answers, scores = grid()
    posterior = scores.softmax(0)
    # What is held of a variable of two states fixes it, whichever state it is about.
    kept = torch.tensor(list(itertools.product([False, True], repeat=4)))
    about = torch.stack([kept, torch.zeros_like(kept)], -1).flatten(1)
    other = about.unflatten(1, (4, 2)).flip(-1).flatten(1)
    for chosen in (about, other[9:11], (about | other)[-2:]):
        held = chosen.unsqueeze(1).expand(-1, len(scores), -1)
        found = stepped(masks, some, answers, scores, held)
        assert_close(found, posterior.expand(len(chosen), -1), **TIGHT)


@pytest.mark.parametrize("model", [trees, alignments, mixed, segmentations])
def test_a_selection_that_looks_at_the_answers_is_found_out(model):
    masks, some, answers, scores = model()
    posterior = scores.softmax(0)
    # The positive ones, which prune the most: tempting, and wrong.
    looking = answers.clone()
    looking[:, ::2] = False
    (found,) = stepped(masks, some, answers, scores, looking.unsqueeze(0))
    assert float((found - posterior).abs().max()) > 1e-3
