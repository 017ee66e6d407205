"""Dependency trees against all of them, up to four words."""

import itertools
import math

import pytest
import torch

import rdpgraph as rg
from rdpgraph import NonProjectiveDependencies, ProjectiveDependencies
from tests.estimate.enumeration import expectation
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


def _check_lists(model, trees, scores):
    best = model.k_best(len(trees) + 2)
    possible = int((scores > -math.inf).sum())
    in_order = scores.sort(descending=True).values[:possible]
    torch.testing.assert_close(best.scores[:possible], in_order, **CLOSE)
    torch.testing.assert_close(model.score(best.heads[:possible]), in_order, **CLOSE)
    assert bool((best.scores[possible:] == -math.inf).all())
    assert bool((best.heads[possible:] == -1).all())
    assert len({tuple(heads) for heads in best.heads[:possible].tolist()}) == possible


@pytest.mark.parametrize("multiroot", [False, True])
@pytest.mark.parametrize("hard", [0.0, 0.5])
def test_the_k_best_trees_of_tiny_scores_are_exact(multiroot, hard):
    unary = 1e-200 * normal(4, 5).masked_fill(normal(4, 5, seed=1).sigmoid() < hard, -math.inf)
    trees = all_trees(4, NonProjectiveDependencies, multiroot=multiroot)
    expected = scores_of(unary, trees).sort(descending=True).values
    found = NonProjectiveDependencies(unary, multiroot=multiroot).k_best(len(trees)).scores
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=0.0)


@pytest.mark.parametrize("multiroot", [False, True])
def test_scores_that_stand_for_forbidden_arcs_leave_the_others_exact(multiroot):
    unary = normal(4, 5)
    unary[:2, 3:] = -1e30
    model = NonProjectiveDependencies(unary, multiroot=multiroot)
    trees = all_trees(4, NonProjectiveDependencies, multiroot=multiroot)
    expected = scores_of(unary, trees).sort(descending=True).values[:10]
    torch.testing.assert_close(model.k_best(10).scores, expected, **CLOSE)


@pytest.mark.cover(2)
@pytest.mark.parametrize("low", [-1e30, -1e9, -1e4])
@pytest.mark.parametrize("multiroot", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_low_scores_that_stand_for_no_arc_take_no_digits_from_others(kind, multiroot, low):
    trees = all_trees(4, kind, multiroot=multiroot)
    models, tables, expected = [], [], []
    for seed in range(12):
        unary = normal(4, 5, seed=seed)
        gone = torch.rand(4, 5, generator=torch.Generator().manual_seed(seed)) < 0.6
        only = scores_of(unary.masked_fill(gone, -math.inf), trees)
        if bool((only == -math.inf).all()):
            continue
        unary = unary.masked_fill(gone, low)
        scores = scores_of(unary, trees)
        uses = torch.nn.functional.one_hot(trees, 5) > 0
        best = torch.where(uses, scores.reshape(-1, 1, 1), -math.inf).amax(0)
        chances = torch.where(uses, scores.softmax(0).reshape(-1, 1, 1), 0.0).sum(0)
        expected.append((scores.logsumexp(0), scores.amax(), best, chances))
        tables.append(unary)
        models.append(kind(unary, multiroot=multiroot))
    assert len(models) > 2
    for model in (kind(torch.stack(tables), multiroot=multiroot), *models):
        log_z, most, best, chances = (torch.stack(part) for part in zip(*expected, strict=True))
        if not model.batch_shape:
            log_z, most, best, chances = expected[models.index(model)]
        torch.testing.assert_close(model.log_partition(), log_z, **CLOSE)
        torch.testing.assert_close(model.score(model.mode()), most, **CLOSE)
        torch.testing.assert_close(model.max_marginals(), best, rtol=1e-9, atol=1e-7)
        torch.testing.assert_close(model.marginals(), chances, rtol=1e-9, atol=1e-9)
        drawn = model.sample(20, torch.Generator().manual_seed(0))
        assert bool((model.score(drawn) > 0.5 * low).all())


@pytest.mark.cover(2)
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
    through = torch.nn.functional.one_hot(trees, length + 1).bool()
    through = torch.where(through, scores.reshape(-1, 1, 1), -math.inf)
    through = torch.cat([through, torch.full_like(through[:1], -math.inf)])
    if length:
        torch.testing.assert_close(model.max_marginals(), through.amax(0), **CLOSE)
    _check_lists(model, trees, scores)
    if log_z == -math.inf:
        assert not model.marginals().any()
        assert bool((model.log_prob(trees) == -math.inf).all())
        assert model.entropy() == 0
        for ask in (model.mode, lambda: model.sample(1)):
            with pytest.raises(rg.errors.ImpossibleEvidenceError):
                ask()
        return
    torch.testing.assert_close(model.log_prob(trees), scores.log_softmax(0), **CLOSE)
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
    most, best = posterior.max_marginals(), model.k_best(3)
    for place in itertools.product(range(2), range(3)):
        length = int(lengths[place])
        alone = kind.from_arcs(arcs[place][: length + 1, : length + 1], multiroot=multiroot)
        mine = most[place][:length, : length + 1]
        torch.testing.assert_close(mine, alone.max_marginals(), **CLOSE)
        assert bool((most[place][length:] == -math.inf).all())
        every = (slice(None), *place)
        assert torch.equal(best.heads[every][:, :length], alone.k_best(3).heads)
        torch.testing.assert_close(best.scores[every], alone.k_best(3).scores, **CLOSE)
    found = kind.recognise(model.factor_graph()).structure
    torch.testing.assert_close(found.log_partition(), model.log_partition(), **CLOSE)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("multiroot", [False, True])
@pytest.mark.parametrize("hard", [False, True])
def test_cross_entropies_are_those_of_all_trees(kind, multiroot, hard):
    values = [normal(5, 3, 4, seed=seed) for seed in range(2)]
    if hard:
        values[0] = values[0].masked_fill(normal(5, 3, 4, seed=9) > 1.0, -math.inf)
        values[1] = torch.where(values[0] > -math.inf, values[1], -math.inf)
        values[1][2:] = values[1][2:].masked_fill(normal(3, 3, 4, seed=8) > 1.0, -math.inf)
    one, other = (kind(unary, multiroot=multiroot) for unary in values)
    trees = all_trees(3, kind, multiroot=multiroot)
    found, divergence = one.cross_entropy(other), one.kl_divergence(other)
    seen = set()
    for item in range(5):
        own, others = (scores_of(model.unary[item], trees) for model in (one, other))
        chances = own.softmax(0)
        terms = torch.where(chances > 0, -chances * others.log_softmax(0), 0.0)
        expected = terms.sum() if bool((own > -math.inf).any()) else torch.zeros_like(found[item])
        expected = torch.where(expected.isnan(), math.inf, expected)
        torch.testing.assert_close(found[item], expected, **CLOSE)
        torch.testing.assert_close(
            divergence[item], expected - one.entropy()[item], rtol=1e-8, atol=1e-9
        )
        seen.add(bool(found[item].isfinite()))
    assert seen == ({True, False} if hard else {True})
    swapped = NonProjectiveDependencies if kind is ProjectiveDependencies else KINDS[0]
    with pytest.raises(rg.errors.ModelError, match="kind"):
        one.cross_entropy(swapped(other.unary, multiroot=multiroot))


@pytest.mark.cover(2)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("multiroot", [False, True])
@pytest.mark.parametrize(
    "selection", [rg.randomized.TopTail(1, 1), rg.randomized.TopSystematic(1, 1)], ids=repr
)
@pytest.mark.parametrize(
    "proposal",
    [rg.randomized.Local(), rg.randomized.Landmark(2), rg.randomized.Pilot(most=2)],
    ids=repr,
)
def test_the_expectation_of_z_is_z(kind, multiroot, selection, proposal):
    """Over every joint draw of the heads kept of all words."""
    model = kind(normal(3, 4), multiroot=multiroot)
    mean, number = expectation(model, proposal, selection)
    assert number >= 8
    torch.testing.assert_close(mean, model.log_partition(), rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("multiroot", [False, True])
def test_kept_heads_are_the_trees_of_them(kind, multiroot):
    """Against all trees, whose heads have the weights of their entries, repeats summed."""
    generator = torch.Generator().manual_seed(0)
    model = kind(normal(2, 3, 4), multiroot=multiroot, lengths=torch.tensor([3, 2]))
    states = torch.randint(0, 4, (3, 2, 3, 3), generator=generator)
    states[..., 0] = torch.arange(3)  # a tree
    weights = normal(3, 2, 3, 3)
    few = model.restrict(states, weights)
    assert type(few) is kind
    same = states.unsqueeze(-1) == torch.arange(4)
    logs = torch.where(same, weights.unsqueeze(-1), -math.inf).logsumexp(-2)
    answers = few.log_partition(), few.entropy(), few.marginals(), few.max_marginals()
    mode = few.mode()
    for lead in itertools.product(range(3), range(2)):
        length = 3 - lead[1]
        every = all_trees(length, kind, multiroot=multiroot)
        unary = (model.unary[lead[1]] + logs[lead])[:length, : length + 1]
        scores = scores_of(unary, every)
        uses = torch.nn.functional.one_hot(every, length + 1)
        chances = (uses * scores.softmax(0).reshape(-1, 1, 1)).sum(0)
        most = torch.where(uses.bool(), scores.reshape(-1, 1, 1), -math.inf).amax(0)
        expected = scores.logsumexp(0), entropy_of(scores), chances, most
        for found, right in zip(answers, expected, strict=True):
            own = found[lead]
            own = own[:length, : length + 1] if own.ndim else own
            torch.testing.assert_close(own, right, **CLOSE)
        assert torch.equal(mode[lead][:length], every[scores.argmax()])
    for wrong in (states[..., :2, :], states + 4):
        with pytest.raises(rg.errors.ModelError, match=r"kept\)|out of range"):
            model.restrict(wrong, torch.zeros(wrong.shape, dtype=torch.float64))


@pytest.mark.parametrize("kind", KINDS)
def test_estimates_answer_what_trees_do(kind):
    model = kind(normal(2, 5, 6), lengths=torch.tensor([5, 3]))
    estimator = rg.Randomized.default(keep=4, replicates=3)
    found = rg.infer(model, estimator=estimator, generator=torch.Generator().manual_seed(0))
    assert found.status.biased
    assert found.marginals().shape == model.unary.shape
    drawn = found.sample(6, generator=torch.Generator().manual_seed(0))
    for heads in (drawn, found.mode()):
        assert bool((model.score(heads) > -math.inf).all())
        assert bool((heads[..., 1, 3:] == -1).all())
    relaxed = found.rsample(temperature=0.5, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(relaxed.sum(-1)[0], torch.ones(5, dtype=torch.float64))
    whole = rg.infer(model, estimator=rg.Randomized.default(keep=1.0))
    assert whole.status.exact
    torch.testing.assert_close(whole.log_partition, model.log_partition(), **CLOSE)
    torch.testing.assert_close(whole.entropy(), model.entropy(), **CLOSE)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("multiroot", [False, True])
def test_gradients_of_first_and_second_order(kind, multiroot):
    lengths = torch.tensor([3, 2])
    unary = normal(2, 3, 4).requires_grad_()

    def log_z(unary):
        return kind(unary, multiroot=multiroot, lengths=lengths).log_partition()

    assert torch.autograd.gradcheck(log_z, unary, fast_mode=True)
    assert torch.autograd.gradgradcheck(log_z, unary, fast_mode=True)
    assert torch.autograd.gradcheck(
        lambda u: kind(u, multiroot=multiroot, lengths=lengths).entropy(), unary, fast_mode=True
    )
    hard = normal(3, 4).masked_fill(normal(3, 4, seed=2) > 0.5, -math.inf).requires_grad_()
    value = kind(hard, multiroot=multiroot).log_partition()
    (first,) = torch.autograd.grad(value, hard, create_graph=True)
    (second,) = torch.autograd.grad((first**2).sum(), hard)
    assert not first.isnan().any()
    assert not second.isnan().any()


@pytest.mark.parametrize("multiroot", [False, True])
@pytest.mark.parametrize("spread", [1.0, 30.0, 200.0])
def test_gradients_are_the_same_where_they_are_recorded(multiroot, spread):
    """A recorded gradient is that of sums in log-space; others are of compiled code."""
    lengths = torch.tensor([12, 9, 1, 0])
    hard = normal(4, 12, 13, seed=3) > 1.0
    unary = (spread * normal(4, 12, 13)).masked_fill(hard, -math.inf).requires_grad_()
    log_z = NonProjectiveDependencies(unary, multiroot=multiroot, lengths=lengths).log_partition()
    alive = torch.where(log_z > -math.inf, log_z, 0.0).sum()
    (first,) = torch.autograd.grad(alive, unary, retain_graph=True)
    (recorded,) = torch.autograd.grad(alive, unary, create_graph=True)
    torch.testing.assert_close(first, recorded.detach(), rtol=1e-9, atol=1e-9)
    used = (log_z > -math.inf) * lengths
    torch.testing.assert_close(first.sum((1, 2)), used.to(first), rtol=1e-9, atol=1e-9)


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
    heads = NonProjectiveDependencies(unary, multiroot=True).mode().tolist()
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
    with pytest.raises(rg.errors.ModelError, match="temperature"):
        model.rsample(1, temperature=0.0)


def test_wrong_models_are_refused():
    for kind in KINDS:
        with pytest.raises(rg.errors.ModelError, match="from_arcs"):
            kind(torch.zeros(3, 3))
        with pytest.raises(rg.errors.ModelError, match="head, dependent"):
            kind.from_arcs(torch.zeros(3, 4))
        with pytest.raises(rg.errors.ModelError, match="lengths"):
            kind(torch.zeros(3, 4), lengths=torch.tensor(4))
        with pytest.raises(rg.errors.EvidenceError, match="Heads"):
            kind(torch.zeros(3, 4)).score(torch.tensor([0, 1, 4]))


@pytest.mark.parametrize("kind", KINDS)
def test_labels_that_are_no_numbers_are_refused(kind):
    scores = torch.zeros(4, 4, 2)
    scores[0, 2, 1] = math.nan
    for wrong in (scores, torch.full((4, 4, 2), math.inf), torch.zeros(4, 4, 0)):
        with pytest.raises(rg.errors.ModelError):
            kind.from_labelled_arcs(wrong)


@pytest.mark.long
def test_no_probability_is_negative():
    for seed in range(30):
        for dtype in (torch.float32, torch.float64):
            model = NonProjectiveDependencies(50 * normal(4, 5, seed=seed, dtype=dtype))
            assert bool((model.marginals() >= 0).all())
