"""Derivations of small hypergraphs, against the list of them."""

import itertools
import math

import pytest
import torch

import rdpgraph as rg
from rdpgraph import Derivations, Hypertree
from rdpgraph.errors import ImpossibleEvidenceError
from tests.structures.hypertree.enumeration import entropy_of, normal, rules_of

CLOSE = {"rtol": 1e-9, "atol": 1e-9}
HEADS = [0, 0, 1, 2, 2, 3, 3, 4, 4]
TAILS = [[], [], [], [0], [0, 1], [0, 0], [2, 1], [3, 2], [2, 2]]


def hypergraph(batch=(), *, hard=()):
    tails = torch.tensor([[*tail, *[-1] * (2 - len(tail))] for tail in TAILS])
    unary = normal(*batch, len(HEADS))
    unary[..., list(hard)] = -math.inf
    return Derivations(unary, torch.tensor(HEADS), tails, nodes=5)


def derivations(node):
    """Numbers of uses, one list for each derivation."""
    found = []
    for edge, head in enumerate(HEADS):
        if head == node:
            for below in itertools.product(*(derivations(tail) for tail in TAILS[edge])):
                uses = [sum(column) for column in zip([0] * len(HEADS), *below, strict=True)]
                uses[edge] += 1
                found.append(uses)
    return found


@pytest.mark.parametrize("hard", [(), (0,), (7,), (0, 5)])
def test_every_answer_is_that_of_all_derivations(hard):
    model = hypergraph(hard=hard)
    every = torch.tensor(derivations(4))
    scores = model.score(every)
    expected = torch.stack([
        torch.stack([count * model.unary[e] for e, count in enumerate(row) if count]).sum()
        for row in every.tolist()
    ])  # fmt: skip
    torch.testing.assert_close(scores, expected, **CLOSE)
    torch.testing.assert_close(model.log_partition(), scores.logsumexp(0), **CLOSE)
    torch.testing.assert_close(model.log_prob(every), scores.log_softmax(0), **CLOSE)
    for wrong in (every[0] * 2, torch.zeros_like(every[0]), torch.ones_like(every[0])):
        assert model.score(wrong) == -math.inf
    with pytest.raises(rg.errors.EvidenceError, match="numbers of uses"):
        model.score(every[0, 1:])
    chances = scores.softmax(0)
    torch.testing.assert_close(model.marginals(), (chances.unsqueeze(1) * every).sum(0), **CLOSE)
    torch.testing.assert_close(model.entropy(), entropy_of(scores), **CLOSE)
    torch.testing.assert_close(model.score(model.mode()), scores.max(), **CLOSE)
    through = torch.where(every > 0, scores.unsqueeze(1), -math.inf).amax(0)
    torch.testing.assert_close(model.max_marginals(), through, **CLOSE)
    best = model.k_best(len(every) + 2)
    possible = int((scores > -math.inf).sum())
    top = scores.sort(descending=True).values[:possible]
    torch.testing.assert_close(best.scores[:possible], top, **CLOSE)
    assert bool((best.scores[possible:] == -math.inf).all())
    assert not best.uses[possible:].any()
    listed = sorted(map(tuple, every[scores > -math.inf].tolist()))
    assert sorted(map(tuple, best.uses[:possible].tolist())) == listed
    cold = model.rsample(5, temperature=1e-4, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(cold.round(), cold, rtol=0, atol=1e-3)
    assert bool((model.score(cold.round().long()) > -math.inf).all())
    count = 20_000
    drawn, found = model.sample(count, torch.Generator().manual_seed(0)).unique(
        dim=0, return_counts=True
    )
    chance = {}
    for row, p in zip(every.tolist(), chances.tolist(), strict=True):
        chance[tuple(row)] = chance.get(tuple(row), 0.0) + p
    wanted = torch.tensor([chance[tuple(row)] for row in drawn.tolist()]) * count
    common = wanted >= 5
    statistic = ((found - wanted) ** 2 / wanted)[common].sum()
    half = torch.tensor((int(common.sum()) - 1) / 2)
    assert float(torch.special.gammaincc(half, statistic / 2)) > 1e-4


def test_a_batch_is_its_items_and_gradients_are_right():
    model = hypergraph((2, 3))
    assert model.mode().shape == (2, 3, 9)
    assert model.sample(4).shape == (4, 2, 3, 9)
    assert model.rsample(4, temperature=1.0).shape == (4, 2, 3, 9)
    for place in itertools.product(range(2), range(3)):
        alone = Derivations(model.unary[place], model.heads, model.tails, nodes=5)
        torch.testing.assert_close(model.log_partition()[place], alone.log_partition(), **CLOSE)
        torch.testing.assert_close(model.marginals()[place], alone.marginals(), **CLOSE)
        assert torch.equal(model.mode()[place], alone.mode())
        assert torch.equal(model.k_best(2).uses[:, *place], alone.k_best(2).uses)
        assert torch.equal(model.max_marginals()[place], alone.max_marginals())
    unary = model.unary[0].clone().requires_grad_()

    def log_z(unary):
        return Derivations(unary, model.heads, model.tails, nodes=5).log_partition()

    assert torch.autograd.gradcheck(log_z, unary, fast_mode=True)
    assert torch.autograd.gradgradcheck(log_z, unary, fast_mode=True)
    torch.testing.assert_close(rg.infer(model).entropy(), model.entropy())


@pytest.mark.parametrize("hard", [(), (7,)])
def test_divergences_are_those_of_the_list(hard):
    own, other = hypergraph((2,), hard=hard), hypergraph((2,))
    other = own.with_unary(other.unary.flip(0) / 2)
    every = torch.tensor(derivations(4)).unsqueeze(1).expand(-1, 2, -1)
    p, q = own.log_prob(every), other.log_prob(every)
    nats = -(p.exp() * torch.where(p > -math.inf, q, 0.0)).sum(0)
    torch.testing.assert_close(own.cross_entropy(other), nats, **CLOSE)
    torch.testing.assert_close(own.kl_divergence(other), nats - own.entropy(), **CLOSE)
    back = other.cross_entropy(own)
    assert bool((back == math.inf).all()) == bool(hard)
    swapped = Derivations(own.unary, own.heads, own.tails.flip(1), nodes=5)
    with pytest.raises(rg.errors.ModelError, match="hypergraphs are the same"):
        own.kl_divergence(swapped)


def test_what_cannot_be_derived_has_no_draws():
    model = hypergraph((), hard=(7, 8))
    assert model.log_partition() == -math.inf
    assert not model.marginals().any()
    assert model.entropy() == 0
    assert bool((model.max_marginals() == -math.inf).all())
    assert bool((model.k_best(2).scores == -math.inf).all())
    for ask in (model.mode, lambda: model.sample(1)):
        with pytest.raises(rg.errors.ImpossibleEvidenceError):
            ask()


def test_a_chart_is_a_hypergraph():
    """The spans of a hypertree, written out."""
    total, states = 4, 2
    tree = Hypertree(normal(total, total, states), rules_of("dense", states, states))
    table, numbers = tree.rules.table(states, states), {}
    heads, tails, weights = [], [], []
    for width in range(total):
        for first in range(total - width):
            for state in range(states):
                numbers[first, first + width, state] = len(numbers)
    goal = len(numbers)
    for (first, last, state), node in numbers.items():
        phi = float(tree.unary[first, last, state])
        if first == last:
            heads, tails, weights = [*heads, node], [*tails, [-1, -1]], [*weights, phi]
        for split, a, b in itertools.product(range(first, last), range(states), range(states)):
            heads.append(node)
            tails.append([numbers[first, split, a], numbers[split + 1, last, b]])
            weights.append(phi + float(table[state, a, b]))
    for state in range(states):
        heads.append(goal)
        tails.append([numbers[0, total - 1, state], -1])
        weights.append(0.0)
    model = Derivations(
        torch.tensor(weights, dtype=torch.float64), torch.tensor(heads), torch.tensor(tails),
        nodes=goal + 1,
    )  # fmt: skip
    torch.testing.assert_close(model.log_partition(), tree.log_partition(), **CLOSE)
    torch.testing.assert_close(model.entropy(), tree.entropy(), **CLOSE)
    best = tree.score(tree.mode())
    torch.testing.assert_close(model.score(model.mode()), best, **CLOSE)


def test_wrong_models_are_refused():
    model = hypergraph()
    for changes in (
        {"heads": model.heads[:3]},
        {"heads": model.heads + 1},
        {"heads": model.heads.float()},
        {"tails": model.tails + 3},
        {"nodes": 2},
    ):
        given = {"heads": model.heads, "tails": model.tails, "nodes": 5, **changes}
        with pytest.raises(rg.errors.ModelError, match="Derivations"):
            Derivations(model.unary, given["heads"], given["tails"], nodes=given["nodes"])


@pytest.mark.parametrize("batch", [(), (3,)])
def test_without_hyperedges_there_is_no_derivation(batch):
    none = torch.zeros(0, 2, dtype=torch.int64)
    model = Derivations(torch.zeros(*batch, 0), none[:, 0], none, nodes=2)
    assert torch.equal(model.log_partition(), torch.full(batch, -math.inf))
    assert model.marginals().shape == model.max_marginals().shape == (*batch, 0)
    assert torch.equal(model.entropy(), torch.zeros(batch))
    assert torch.equal(model.k_best(2).scores, torch.full((2, *batch), -math.inf))
    with pytest.raises(ImpossibleEvidenceError):
        model.mode()


def test_what_is_impossible_at_the_goal_alone_has_no_entropy():
    unary = torch.tensor([0.0, 1.0, -math.inf], dtype=torch.float64)
    tails = torch.tensor([[-1], [-1], [0]])
    model = Derivations(unary, torch.tensor([0, 0, 1]), tails, nodes=2)
    assert model.entropy() == 0.0
