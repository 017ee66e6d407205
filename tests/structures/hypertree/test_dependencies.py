"""Dependency trees against all of them, up to four words."""

import itertools
import math

import pytest
import torch

import rdpgraph as rg
from rdpgraph.structures.hypertree.arborescence import edmonds
from rdpgraph.structures.hypertree.dependencies import (
    NonProjectiveDependencies,
    ProjectiveDependencies,
)
from tests.structures.hypertree.enumeration import entropy_of, normal

KINDS = (ProjectiveDependencies, NonProjectiveDependencies)
CLOSE = {"rtol": 1e-9, "atol": 1e-9}


def is_tree(heads, *, projective, multiroot):
    words = range(1, len(heads) + 1)
    if not multiroot and heads and heads.count(0) != 1:
        return False
    for word in words:
        seen = set()
        while word and word not in seen:
            seen.add(word)
            word = heads[word - 1]
        if word:
            return False
    arcs = [(min(word, head), max(word, head)) for word, head in zip(words, heads, strict=True)]
    crossing = any(a < c < b < d for (a, b), (c, d) in itertools.product(arcs, arcs))
    return not (projective and crossing)


def all_trees(length, kind, *, multiroot):
    projective = kind is ProjectiveDependencies
    choices = itertools.product(range(length + 1), repeat=length)
    found = [
        heads
        for heads in choices
        if is_tree(list(heads), projective=projective, multiroot=multiroot)
    ]
    return torch.tensor(found, dtype=torch.int64).reshape(len(found), length)


def scores_of(unary, trees):
    length = trees.shape[1]
    return sum(
        (unary[word, trees[:, word]] for word in range(length)),
        torch.zeros(len(trees), dtype=unary.dtype),
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("multiroot", [False, True])
@pytest.mark.parametrize("spread", [1.0, 500.0])
@pytest.mark.parametrize("length", [0, 1, 2, 3, 4])
@pytest.mark.parametrize("seed", range(3))
def test_every_answer_is_that_of_all_trees(kind, multiroot, spread, length, seed):
    unary = spread * normal(length, length + 1, seed=seed)
    if seed:
        unary = unary.masked_fill(normal(length, length + 1, seed=seed + 9) > 0.6, -math.inf)
    model = kind(unary, multiroot=multiroot)
    trees = all_trees(length, kind, multiroot=multiroot)
    scores = scores_of(unary, trees)
    log_z = scores.logsumexp(0)
    torch.testing.assert_close(model.log_partition(), log_z, **CLOSE)
    torch.testing.assert_close(model.score(trees), scores, **CLOSE)
    if log_z == -math.inf:
        assert not model.marginals().any()
        assert model.entropy() == 0
        for ask in (model.mode, lambda: model.sample(1)):
            with pytest.raises(rg.ImpossibleEvidenceError):
                ask()
        return
    chances = scores.softmax(0)
    expected = (torch.nn.functional.one_hot(trees, length + 1) * chances.reshape(-1, 1, 1)).sum(0)
    torch.testing.assert_close(model.marginals(), expected.to(unary), **CLOSE)
    torch.testing.assert_close(model.entropy(), entropy_of(scores), rtol=1e-8, atol=1e-9 * spread)
    torch.testing.assert_close(model.score(model.mode()), scores.max(), **CLOSE)
    drawn = model.sample(10, torch.Generator().manual_seed(0))
    assert bool((model.score(drawn) > -math.inf).all())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("multiroot", [False, True])
def test_a_batch_is_its_items(kind, multiroot):
    lengths = torch.tensor([[4, 0, 1], [3, 2, 4]])
    arcs = normal(2, 3, 5, 5)
    model = kind.from_arcs(arcs, multiroot=multiroot, lengths=lengths)
    log_z, marginals, modes = model.log_partition(), model.marginals(), model.mode()
    for place in itertools.product(range(2), range(3)):
        length = int(lengths[place])
        alone = kind.from_arcs(arcs[place][: length + 1, : length + 1], multiroot=multiroot)
        torch.testing.assert_close(log_z[place], alone.log_partition(), **CLOSE)
        mine = marginals[place]
        torch.testing.assert_close(mine[:length, : length + 1], alone.marginals(), **CLOSE)
        assert not mine[length:].any()
        assert not mine[:, length + 1 :].any()
        assert torch.equal(modes[place][:length], alone.mode())
        assert bool((modes[place][length:] == -1).all())
    drawn = model.sample(3)
    assert torch.equal(drawn < 0, (modes < 0).expand_as(drawn))
    assert bool((model.score(drawn) > -math.inf).all())
    posterior = rg.infer(model)
    torch.testing.assert_close(posterior.marginals(), marginals)
    with pytest.raises(rg.UnsupportedError, match="factor graph"):
        posterior.max_marginals()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("multiroot", [False, True])
def test_gradients_of_first_and_second_order(kind, multiroot):
    lengths = torch.tensor([3, 2])
    unary = normal(2, 3, 4).requires_grad_()

    def log_z(unary):
        return kind(unary, multiroot=multiroot, lengths=lengths).log_partition()

    assert torch.autograd.gradcheck(log_z, unary)
    assert torch.autograd.gradgradcheck(log_z, unary)
    assert torch.autograd.gradcheck(
        lambda u: kind(u, multiroot=multiroot, lengths=lengths).entropy(), unary
    )
    hard = normal(3, 4).masked_fill(normal(3, 4, seed=2) > 0.5, -math.inf).requires_grad_()
    value = kind(hard, multiroot=multiroot).log_partition()
    (first,) = torch.autograd.grad(value, hard, create_graph=True)
    (second,) = torch.autograd.grad((first**2).sum(), hard)
    assert not first.isnan().any()
    assert not second.isnan().any()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("multiroot", [False, True])
def test_draws_have_the_probabilities_of_their_trees(kind, multiroot):
    """Chi-square at a level of 1e-4."""
    model = kind(normal(3, 4), multiroot=multiroot)
    trees = all_trees(3, kind, multiroot=multiroot)
    count = 10_000
    drawn = model.sample(count, torch.Generator().manual_seed(1))
    found = (drawn.unsqueeze(1) == trees).all(2).sum(0)
    assert int(found.sum()) == count
    expected = scores_of(model.unary, trees).softmax(0) * count
    common = expected >= 5
    statistic = ((found - expected) ** 2 / expected)[common].sum()
    half = torch.tensor((int(common.sum()) - 1) / 2, dtype=torch.float64)
    assert float(torch.special.gammaincc(half, statistic / 2)) > 1e-4


@pytest.mark.parametrize("kind", KINDS)
def test_arcs_with_labels(kind):
    scores = normal(4, 4, 2).requires_grad_()
    model = kind.from_labelled_arcs(scores)
    trees = all_trees(3, kind, multiroot=False)
    total = torch.stack([
        sum(scores[tree[word], word + 1].logsumexp(-1) for word in range(3)) for tree in trees
    ]).logsumexp(0)  # fmt: skip
    torch.testing.assert_close(model.log_partition(), total, **CLOSE)
    mine, theirs = (torch.autograd.grad(z, scores)[0] for z in (model.log_partition(), total))
    torch.testing.assert_close(mine, theirs, **CLOSE)


@pytest.mark.parametrize("multiroot", [False, True])
def test_nearly_closed_cycles_keep_their_precision(multiroot):
    """Two words that prefer each other by e^200: a determinant would cancel to nothing."""
    unary = torch.tensor([[-200.0, -math.inf, 0.0], [-201.0, 0.0, -math.inf]]).double()
    model = NonProjectiveDependencies(unary, multiroot=multiroot)
    ways = [-200.0, -201.0, *([-401.0] if multiroot else [])]
    expected = torch.tensor(ways, dtype=torch.float64).logsumexp(0)
    torch.testing.assert_close(model.log_partition(), expected, **CLOSE)


def test_it_is_the_determinant_of_the_laplacian():
    unary = normal(7, 8)
    weights = unary.exp().masked_fill(torch.eye(8, dtype=torch.bool)[1:], 0.0)
    laplacian = torch.diag(weights.sum(1)) - weights[:, 1:]
    torch.testing.assert_close(
        NonProjectiveDependencies(unary, multiroot=True).log_partition(),
        laplacian.logdet(), **CLOSE,
    )  # fmt: skip
    inner = torch.diag(weights[:, 1:].sum(1)) - weights[:, 1:]
    inner[:, 0] = weights[:, 0]  # Koo et al. 2007
    torch.testing.assert_close(
        NonProjectiveDependencies(unary).log_partition(), inner.logdet(), **CLOSE
    )


@pytest.mark.parametrize("seed", range(5))
def test_best_trees_are_networkx_s(seed):
    import networkx as nx

    unary = normal(8, 9, seed=seed)
    unary = unary.masked_fill(torch.eye(9, dtype=torch.bool)[1:], -math.inf)
    graph = nx.DiGraph()
    for word, head in itertools.product(range(1, 9), range(9)):
        if word != head:
            graph.add_edge(head, word, weight=float(unary[word - 1, head]))
    best = nx.maximum_spanning_arborescence(graph)
    heads = edmonds(unary.tolist())
    assert sorted(best.edges) == sorted((head, word + 1) for word, head in enumerate(heads))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("multiroot", [False, True])
def test_relaxed_trees_become_trees(kind, multiroot):
    unary = normal(2, 4, 5).requires_grad_()
    model = kind(unary, multiroot=multiroot, lengths=torch.tensor([4, 3]))
    cold = model.rsample(5, temperature=1e-4, generator=torch.Generator().manual_seed(0)).detach()
    assert cold.shape == (5, 2, 4, 5)
    torch.testing.assert_close(cold.round(), cold, rtol=0, atol=1e-3)
    heads = torch.where(cold.sum(-1) > 0.5, cold.argmax(-1), -1)
    assert bool((heads[:, 1, 3] == -1).all())
    assert bool((model.score(heads) > -math.inf).all())
    warm = rg.infer(model).rsample(temperature=1.0, generator=torch.Generator().manual_seed(0))
    (gradient,) = torch.autograd.grad((warm**2).sum(), unary)
    assert bool(gradient.isfinite().all())
    assert bool(gradient.any())
    with pytest.raises(rg.ModelError, match="temperature"):
        model.rsample(1, temperature=0.0)


def test_wrong_models_are_refused():
    for kind in KINDS:
        with pytest.raises(rg.ModelError, match="from_arcs"):
            kind(torch.zeros(3, 3))
        with pytest.raises(rg.ModelError, match="head, dependent"):
            kind.from_arcs(torch.zeros(3, 4))
        with pytest.raises(rg.ModelError, match="lengths"):
            kind(torch.zeros(3, 4), lengths=torch.tensor(4))
        with pytest.raises(rg.EvidenceError, match="Heads"):
            kind(torch.zeros(3, 4)).score(torch.tensor([0, 1, 4]))
