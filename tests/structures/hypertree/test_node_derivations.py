"""Derivations by some hyperedges of each node: every draw enumerated, and every answer."""

import itertools
import math

import pytest
import torch

import rdpgraph as rg
from rdpgraph import Derivations
from rdpgraph.testing import check_estimator, check_structure
from tests.estimate.enumeration import expectation
from tests.structures.hypertree.enumeration import normal

CLOSE = {"rtol": 1e-9, "atol": 1e-9}
HEADS = [0, 0, 0, 1, 1, 1, 2, 3, 3, 3, 4, 4, 4, 4]
TAILS = [[], [], [], [], [], [], [], [0], [2], [], [3, 1], [0, 1], [1, 2], [2, 0]]
SELECTIONS = [
    rg.randomized.TopTail(1, 1),
    rg.randomized.TopTail(0, 2),
    rg.randomized.TopSystematic(1, 1),
    rg.randomized.Threshold(2),
]
PROPOSALS = [
    rg.randomized.Uniform(),
    rg.randomized.Local(),
    rg.randomized.LocalGlobal(),
    rg.randomized.Landmark(2),
    rg.randomized.Pilot(selection=rg.randomized.TopTail(1, 1)),
    rg.randomized.Oracle(),
]


def hypergraph(heads, tails, *batch):
    most = max(map(len, tails))
    rows = torch.tensor([[*tail, *[-1] * (most - len(tail))] for tail in tails])
    unary = normal(*batch, len(heads))
    return Derivations(unary, torch.tensor(heads), rows, nodes=max(heads) + 1)


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.long
@pytest.mark.cover(1)
@pytest.mark.parametrize("selection", SELECTIONS, ids=repr)
@pytest.mark.parametrize("proposal", PROPOSALS, ids=lambda proposal: type(proposal).__name__)
def test_the_expectation_of_z_is_z(selection, proposal):
    model = hypergraph(HEADS, TAILS)
    mean, number = expectation(model, proposal, selection)
    assert number >= 8
    torch.testing.assert_close(mean, model.log_partition(), rtol=0, atol=1e-12)


def wide(model, states, log_weights):
    """The same derivations with the weights of what is kept of each hyperedge summed."""
    places = model.site_places()
    total = torch.zeros(*states.shape[:-2], model.unary.shape[-1], dtype=torch.float64)
    edges = places.expand(*states.shape[:-1], -1).gather(-1, states)
    here = torch.where(edges < 0, 0.0, log_weights.exp()).flatten(-2)
    total = total.scatter_add(-1, edges.clamp(min=0).flatten(-2), here)
    return model.with_unary(model.unary + total.log())


def wide_best(model, states, unary):
    """The best score, of the best entry of each hyperedge."""
    edges = model.site_places().expand(*states.shape[:-1], -1).gather(-1, states)
    best = torch.full((*states.shape[:-2], model.unary.shape[-1]), -math.inf, dtype=torch.float64)
    scores = torch.where(edges < 0, -math.inf, unary).flatten(-2)
    best = best.scatter_reduce(-1, edges.clamp(min=0).flatten(-2), scores, "amax")
    return model.with_unary(best).max_marginals().amax(-1)


def test_answers_on_what_is_kept_are_those_of_the_summed_weights():
    model = hypergraph(HEADS, TAILS, 2)
    states = torch.randint(0, 4, (3, 2, 5, 3), generator=seeded())
    states[:, :, :2] %= 3
    weights = torch.randn(states.shape, generator=seeded(1), dtype=torch.float64)
    kept, same = model.restrict(states, weights), wide(model, states, weights)
    torch.testing.assert_close(kept.log_partition(), same.log_partition(), **CLOSE)
    edges = model.site_places().expand(*states.shape[:-1], -1).gather(-1, states)
    assert bool((kept.unary[edges < 0] == -math.inf).all())
    folded = torch.zeros_like(same.unary).scatter_add(
        -1, edges.clamp(min=0).flatten(-2), kept.marginals().flatten(-2)
    )
    torch.testing.assert_close(folded, same.marginals(), **CLOSE)
    mode, best = kept.mode(), kept.max_marginals()
    scores = kept.unary.gather(-1, mode.clamp(min=0).unsqueeze(-1)).squeeze(-1)
    scores = torch.where(mode < 0, 0.0, scores).sum(-1)
    torch.testing.assert_close(scores, best.flatten(-2).amax(-1), **CLOSE)
    expected = wide_best(model, states, kept.unary)
    torch.testing.assert_close(scores, expected, **CLOSE)
    drawn = kept.sample(4000, seeded(2))
    hot = torch.nn.functional.one_hot(drawn.clamp(min=0), 3) * (drawn >= 0).unsqueeze(-1)
    chances = kept.marginals()
    spread = (chances * (1 - chances) / 4000).sqrt()
    assert bool(((hot.double().mean(0) - chances).abs() <= 5 * spread + 1e-9).all())
    unary = kept.unary.clamp(min=-5.0).requires_grad_()
    assert torch.autograd.gradcheck(
        lambda u: kept.with_unary(u).log_partition(), unary, fast_mode=True
    )


@pytest.mark.long
@pytest.mark.parametrize("batch", [(), (2, 2)])
def test_an_estimate_answers_what_the_forest_answers(batch):
    model = hypergraph(HEADS, TAILS, *batch)
    check_structure(model)
    check_estimator(rg.Randomized.default(keep=2, replicates=5), model, draws=100)
    estimator = rg.Randomized.default(keep=2, replicates=3)
    found = rg.infer(model, estimator=estimator, generator=seeded())
    assert found.sample(6, generator=seeded(1)).shape == (6, *model.unary.shape)
    assert found.rsample(temperature=0.5, generator=seeded(2)).shape == model.unary.shape
    assert found.supports.states.shape == (3, *batch, 5, 2)
    relaxed = found.rsample_kept(temperature=0.5, generator=seeded(2))
    assert relaxed.weights.shape == (*batch, 5, 2)
    # Marginals are gradients of the estimate of log Z, and the expected number of uses.
    unary = model.unary.clone().requires_grad_()
    tracked = rg.infer(model.with_unary(unary), estimator=estimator, generator=seeded())
    (gradient,) = torch.autograd.grad(tracked.log_partition.sum(), unary)
    torch.testing.assert_close(gradient, found.marginals(), **CLOSE)


def test_all_hyperedges_kept_is_exact():
    model = hypergraph(HEADS, TAILS, 2)
    estimator = rg.Randomized.default(keep=1.0)
    found = rg.infer(model, estimator=estimator, generator=seeded())
    assert found.status.exact
    for name in ("marginals", "max_marginals", "entropy"):
        own, expected = getattr(found, name)(), getattr(rg.infer(model), name)()
        torch.testing.assert_close(own, expected, **CLOSE)
    torch.testing.assert_close(model.score(found.mode()), model.score(model.mode()), **CLOSE)


def test_a_forest_that_derives_a_node_twice_takes_no_estimator():
    model = hypergraph([0, 0, 1, 2], [[], [], [0, 0], [1]])
    assert model.sites() is None
    with pytest.raises(rg.errors.ModelError, match="use a site twice") as raised:
        rg.infer(model, estimator=rg.Randomized.default(keep=1))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("seed", range(40))
def test_a_node_is_used_once_at_most_where_no_listed_derivation_uses_it_twice(seed):
    generator = seeded(seed)
    heads, tails = [0], [[]]
    for head in range(1, 6):
        for _ in range(int(torch.randint(0, 3, (), generator=generator))):
            count = int(torch.randint(0, 3, (), generator=generator))
            heads.append(head)
            tails.append(torch.randint(0, head, (count,), generator=generator).tolist())
    heads, tails = [*heads, 6], [*tails, [int(torch.randint(1, 6, (), generator=generator)), 0]]
    model = hypergraph(heads, tails)
    counts = torch.zeros(len(listed := model.listed()), 7, dtype=torch.long)
    counts.index_add_(1, model.heads, listed)
    assert (model.sites() is not None) == bool((counts <= 1).all())


def test_no_derivation_at_all():
    model = hypergraph([0, 0, 2], [[], [], [0, 1]])  # nothing derives node 1
    posterior = rg.infer(model, estimator=rg.Randomized.default(keep=1), generator=seeded())
    assert posterior.log_partition == -math.inf
    assert not posterior.marginals().any()
    for ask in (posterior.mode, lambda: posterior.sample(1)):
        with pytest.raises(rg.errors.ImpossibleEvidenceError):
            ask()


@pytest.mark.long
def test_a_chart_written_out_has_the_estimates_of_its_sites():
    """Three words, whose spans have one hyperedge for each split, rule and pair of labels."""
    words, labels = 3, 2
    numbers = {
        cell: number
        for number, cell in enumerate(
            (first, first + width, label)
            for width in range(words)
            for first in range(words - width)
            for label in range(labels)
        )
    }
    heads, tails = [], []
    for (first, last, _label), node in numbers.items():
        if first == last:
            heads, tails = [*heads, node], [*tails, []]
        for split, a, b in itertools.product(range(first, last), range(labels), range(labels)):
            heads.append(node)
            tails.append([numbers[first, split, a], numbers[split + 1, last, b]])
    for label in range(labels):
        heads, tails = [*heads, len(numbers)], [*tails, [numbers[0, words - 1, label]]]
    model = hypergraph(heads, tails)
    check_estimator(rg.Randomized.default(keep=3, replicates=4), model, draws=100)
