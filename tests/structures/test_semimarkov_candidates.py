"""Semi-Markov chains on a few labels of each segment: every draw enumerated."""

import itertools
import math
from dataclasses import replace

import pytest
import torch

import rdpgraph as rg
from rdpgraph import Randomized
from rdpgraph.randomized import (
    Global,
    Landmark,
    Local,
    LocalGlobal,
    Oracle,
    Pilot,
    Threshold,
    TopSystematic,
    TopTail,
    Uniform,
)
from tests.estimate.enumeration import Recorder, expectation
from tests.estimate.models import kept_marginals
from tests.structures.test_semimarkov import all_segmentations

INF = math.inf
CLOSE = {"rtol": 1e-9, "atol": 1e-12}
KINDS = ["dense", "hard", "low rank", "embedded"]


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=seeded(seed), dtype=torch.float64)


def transition_of(kind, labels):
    if kind == "low rank":
        return rg.LowRank(normal(labels, 2, seed=1), normal(labels, 2, seed=2))
    if kind == "embedded":
        return rg.Bilinear(normal(labels, 2, seed=1), normal(labels, 2, seed=2))
    table = normal(labels, labels, seed=1)
    return table.fill_diagonal_(-INF) if kind == "hard" else table


def model_of(kind, steps, durations, labels, *, batch=(), lengths=None):
    unary = normal(*batch, steps, durations, labels)
    if kind == "hard":
        unary[..., 0] = torch.where(normal(*unary.shape[:-1], seed=3) > 0.5, -INF, unary[..., 0])
    lengths = None if lengths is None else torch.tensor(lengths)
    return rg.SemiMarkov(unary, transition_of(kind, labels), lengths=lengths)


def few_of(model, count, *, replicates=2, seed=0):
    """Kept labels with repeats, and weights of which some are -inf."""
    shape = (replicates, *model.unary.shape[:-1], count)
    states = torch.randint(model.unary.shape[-1], shape, generator=seeded(seed))
    weights = normal(*shape, seed=seed + 1)
    weights[normal(*shape, seed=seed + 2) > 1.5] = -INF
    return states, weights


class Truth:
    """Every answer about one item of a restricted chain, from all its segmentations."""

    def __init__(self, unary, states, transition, length):
        self.pieces = list(all_segmentations(length, *unary.shape[1:]))
        scores = []
        for pieces in self.pieces:
            labels = [states[piece] for piece in pieces]
            joints = sum(transition[a, b] for a, b in itertools.pairwise(labels))
            scores.append(sum((unary[piece] for piece in pieces), unary.new_zeros(())) + joints)
        self.scores = torch.stack(scores)
        self.log_z = self.scores.logsumexp(0)
        alive = self.log_z > -INF
        self.chances = (self.scores - self.log_z).exp() if alive else self.scores.exp()
        self.entropy = torch.special.entr(self.chances).sum()
        self.marginals = torch.zeros_like(unary)
        self.best = torch.full_like(unary, -INF)
        for pieces, chance, score in zip(self.pieces, self.chances, self.scores, strict=True):
            for piece in pieces:
                self.marginals[piece] += chance
                self.best[piece] = torch.maximum(self.best[piece], score)


def pieces_of(sites):
    """The segments of one tensor (T, D), as `all_segmentations` lists them."""
    rows = (sites >= 0).nonzero().tolist()
    return tuple((place, duration, int(sites[place, duration])) for place, duration in rows)


@pytest.mark.parametrize("kind", KINDS)
def test_every_answer_is_that_of_enumeration(kind):
    model = model_of(kind, 4, 3, 5, batch=(5,), lengths=[4, 3, 2, 1, 0])
    states, weights = few_of(model, 2)
    few = model.restrict(states, weights)
    table = model.potential.table(2)
    answers = few.log_partition(), few.entropy(), few.marginals(), few.max_marginals()
    possible = answers[0] > -INF
    for replicate, item in torch.cartesian_prod(torch.arange(2), torch.arange(5)).tolist():
        at = replicate, item
        truth = Truth(few.unary[at], states[at], table, int(model.lengths[item]))
        expected = truth.log_z, truth.entropy, truth.marginals, truth.best
        for found, right in zip(answers, expected, strict=True):
            torch.testing.assert_close(found[at], right, **CLOSE)
        if not possible[at]:
            continue
        one = model_at(model, item).restrict(states[at], weights[at])
        best = truth.pieces[int(truth.scores.argmax())]
        assert pieces_of(one.mode()) == best
        torch.testing.assert_close(one.log_partition(), truth.log_z, **CLOSE)
        drawn = one.sample(4000, seeded(1))
        counts = torch.nn.functional.one_hot(drawn + 1, 3)[..., 1:].double().mean(0)
        torch.testing.assert_close(counts, truth.marginals, rtol=0, atol=0.04)
    assert int(possible.sum()) > 5


def model_at(model, item):
    return replace(model, unary=model.unary[item], lengths=model.lengths[item])


PROPOSALS = [Uniform(), Local(), Global(2), LocalGlobal(), Landmark(2), Oracle()]
PROPOSALS += [Pilot(selection=TopTail(1, 1)), Pilot(most=2)]
CASES = [(proposal, TopSystematic(1, 1)) for proposal in PROPOSALS]
CASES += [(Local(), other) for other in (TopTail(1, 1), TopSystematic(0, 1), Threshold(2))]


def name(value):
    return type(value).__name__


@pytest.mark.long
@pytest.mark.parametrize(("proposal", "selection"), CASES, ids=name)
def test_the_expectation_of_z_is_z(proposal, selection):
    """Over every joint draw of all segments."""
    model = model_of("dense", 3, 2, 3)
    mean, number = expectation(model, proposal, selection)
    assert number >= 32
    torch.testing.assert_close(mean, model.log_partition(), rtol=0, atol=1e-12)


@pytest.mark.parametrize("proposal", [LocalGlobal(), Pilot(most=2)], ids=name)
@pytest.mark.parametrize("kind", KINDS)
def test_the_expectation_of_z_is_z_with_all_transitions(kind, proposal):
    model = model_of(kind, 3, 2, 3)
    mean, _ = expectation(model, proposal, TopTail(1, 1))
    torch.testing.assert_close(mean, model.log_partition(), rtol=0, atol=1e-12)


def test_draws_shared_by_segments_are_caught():
    """The same labels for all segments, each right by itself, are not right together."""
    model = model_of("dense", 2, 1, 3)
    states = torch.arange(3).reshape(3, 1, 1, 1).expand(3, 2, 1, 1)
    few = model.restrict(states, torch.full(states.shape, math.log(3.0), dtype=torch.float64))
    mean = few.log_partition().logsumexp(0) - math.log(3.0)
    assert abs(float(mean - model.log_partition())) > 0.01


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_all_labels_kept_is_exact_for_every_question(kind):
    model = model_of(kind, 5, 3, 4, batch=(4,), lengths=[5, 2, 1, 0])
    for estimator in (Randomized.default(keep=1.0), Randomized.piloted(keep=4, replicates=2)):
        found = rg.infer(model, estimator=estimator, generator=seeded())
        assert found.status.exact
        torch.testing.assert_close(found.log_partition, model.log_partition(), **CLOSE)
        torch.testing.assert_close(found.entropy(), model.entropy(), **CLOSE)
        torch.testing.assert_close(found.marginals(), model.marginals(), **CLOSE)
        torch.testing.assert_close(found.max_marginals(), model.max_marginals(), **CLOSE)
        mode, exact = found.mode(), model.mode()
        assert isinstance(mode, rg.Segmentation)
        assert torch.equal(mode.labels, exact.labels)
        assert torch.equal(mode.starts, exact.starts)
        drawn = found.sample(6000, generator=seeded(1))
        assert bool(model.score(drawn).isfinite().all())
        covered = torch.nn.functional.one_hot(drawn.labels + 1, 5)[..., 1:].double().mean(0)
        torch.testing.assert_close(covered, model.position_marginals(), rtol=0, atol=0.04)
        relaxed = found.rsample(temperature=0.5, generator=seeded())
        assert relaxed.shape == model.unary.shape
        assert bool(relaxed.isfinite().all())


@pytest.mark.parametrize("kind", KINDS)
def test_relaxed_draws_are_those_of_the_chain_on_all_labels(kind):
    model = model_of(kind, 5, 3, 4, batch=(4,), lengths=[5, 2, 1, 0])
    unary = model.unary.requires_grad_()
    states = torch.arange(4).expand(unary.shape)
    few = model.restrict(states, torch.zeros_like(unary))
    for temperature in (0.1, 1.0):
        mine, theirs = (
            one.rsample(3, temperature=temperature, generator=seeded(2)) for one in (few, model)
        )
        torch.testing.assert_close(mine, theirs, **CLOSE)
        first, second = (
            torch.autograd.grad((part**2).sum(), unary, retain_graph=True)[0]
            for part in (mine, theirs)
        )
        torch.testing.assert_close(first, second, rtol=1e-7, atol=1e-10)


def test_a_batch_is_its_items():
    model = model_of("dense", 4, 2, 6, batch=(3,), lengths=[4, 1, 0])
    states, weights = few_of(model, 3)
    few = model.restrict(states, weights)
    for item in range(3):
        one = model_at(model, item).restrict(states[:, item], weights[:, item])
        torch.testing.assert_close(few.log_partition()[:, item], one.log_partition())
        torch.testing.assert_close(few.entropy()[:, item], one.entropy())
    empty = rg.SemiMarkov(torch.zeros(2, 0, 3, 4), torch.zeros(4, 4))
    none = rg.infer(empty, estimator=Randomized.default(keep=2), generator=seeded())
    assert none.log_partition.tolist() == none.entropy().tolist() == [0.0, 0.0]
    assert none.mode().labels.shape == (2, 0)
    assert none.sample(3).starts.shape == (3, 2, 0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ask", ["log_partition", "entropy"])
def test_gradients(kind, ask):
    model = model_of(kind, 3, 2, 4, batch=(2,), lengths=[3, 1])
    states, weights = few_of(model, 2, replicates=1)
    # A hard zero has no gradient that finite differences could find.
    unary = torch.where(model.unary > -INF, model.unary, 0.0).requires_grad_()
    weights = torch.where(weights > -INF, weights, 0.0).requires_grad_()
    given = model.transition
    parts = [given] if isinstance(given, torch.Tensor) else list(vars(given).values())
    parts = [part.detach().masked_fill(part == -INF, 0.0).requires_grad_() for part in parts]

    def answer(unary, weights, *parts):
        potential = parts[0] if isinstance(given, torch.Tensor) else type(given)(*parts)
        tilted = replace(model, unary=unary, transition=potential)
        return getattr(tilted.restrict(states, weights), ask)()

    inputs = (unary, weights, *parts)
    assert torch.autograd.gradcheck(answer, inputs, fast_mode=True)
    assert torch.autograd.gradgradcheck(answer, inputs, fast_mode=True)


@pytest.mark.parametrize("ask", ["log_partition", "entropy"])
def test_gradients_of_hard_zeros_are_zero(ask):
    model = model_of("hard", 4, 2, 3, batch=(3,))
    unary, table = model.unary.clone(), model.transition.clone()
    unary[1] = -INF  # nothing is possible
    unary, table = unary.requires_grad_(), table.requires_grad_()
    states, weights = few_of(model, 3, replicates=1)
    few = rg.SemiMarkov(unary, table).restrict(states, weights)
    found = getattr(few, ask)()
    assert found[0, 1] == (-INF if ask == "log_partition" else 0.0)
    found = torch.where(found > -INF, found, 0.0).sum()
    of_unary, of_table = torch.autograd.grad(found, (unary, table))
    assert bool(of_unary.isfinite().all())
    assert bool(of_table.isfinite().all())
    assert not of_unary[unary == -INF].any()
    assert not of_table.diagonal().any()
    assert bool((few.marginals()[0, 1] == 0).all())
    for refused in (few.mode, lambda: few.sample(1)):
        with pytest.raises(rg.errors.ImpossibleEvidenceError, match="1 of 3 batch items"):
            refused()


def test_the_gradient_of_an_estimate_is_the_marginals_of_the_states_kept():
    model = model_of("dense", 4, 3, 6, batch=(2,), lengths=[4, 2])
    unary = model.unary.clone().requires_grad_()
    estimator = Randomized(Uniform(), TopTail(1, 2), replicates=3)
    found = rg.infer(replace(model, unary=unary), estimator=estimator, generator=seeded())
    with torch.no_grad():  # what was asked before has no say
        assert not found.solved.structure.entropy().requires_grad
        found.solved.structure.max_marginals()
    (gradient,) = torch.autograd.grad(found.log_partition.sum(), unary, retain_graph=True)
    marginals = kept_marginals(found).detach().reshape(gradient.shape)
    torch.testing.assert_close(gradient, marginals, **CLOSE)
    assert bool((found.standard_error > 0).all())


@pytest.mark.parametrize("kind", KINDS)
def test_masses_are_marginals_with_the_label_put_among_those_kept(kind):
    model = model_of(kind, 3, 2, 4, batch=(4,), lengths=[3, 2, 1, 0])
    states, weights = few_of(model, 2)
    masses = model.sites().masses(states, weights)
    assert not masses.isnan().any()
    for place in range(3):
        for duration in range(2):
            # All labels at one segment, those kept at the others.
            wide = torch.zeros(2, 4, 3, 2, 4, dtype=torch.int64)
            logs = torch.full(wide.shape, -INF, dtype=torch.float64)
            wide[..., :2], logs[..., :2] = states, weights
            site = (..., place, duration, slice(None))
            wide[site], logs[site] = torch.arange(4), 0.0
            few = model.restrict(wide, logs)
            total = few.log_partition().unsqueeze(-1)
            found = (masses[site] - torch.where(total > -INF, total, 0.0)).exp()
            torch.testing.assert_close(found, few.marginals()[site], **CLOSE)


def test_masses_are_the_same_in_parts(small_blocks):
    model = model_of("dense", 3, 2, 7, batch=(2,))
    states, weights = few_of(model, 3)
    whole = model.sites().masses(states, weights)
    small_blocks(60)
    assert torch.equal(model.sites().masses(states, weights), whole)


@pytest.mark.parametrize("kind", KINDS)
def test_mean_values_are_means_of_transitions(kind):
    model = model_of(kind, 3, 2, 4, batch=(2,), lengths=[3, 2])
    table = model.potential.table(2).exp()
    before, after = table.mean(0), table.mean(1)
    # Landmarks by the thousand are all labels.
    found = model.sites().means(20_000, seeded()).exp().expand(2, 3, 2, 4)
    close = {"rtol": 1e-9 if kind == "low rank" else 0.1, "atol": 0.0}
    torch.testing.assert_close(found[0, 0, 0], after, **close)
    torch.testing.assert_close(found[0, 1, 0], before * after, **close)
    torch.testing.assert_close(found[0, 1, 1], after, **close)
    torch.testing.assert_close(found[1, 1, 0], before, **close)
    torch.testing.assert_close(found[0, 2, 1], before, **close)
    assert bool((found[1, 1, 1] == 1.0).all())


def test_segments_that_do_not_fit_are_never_kept():
    model = model_of("dense", 3, 2, 4, batch=(3,), lengths=[3, 2, 0])
    recorder = Recorder()
    rg.infer(model, estimator=Randomized(Landmark(2), recorder), generator=seeded())
    possible = (recorder.seen[0] > -INF).all(-1)
    place, reach = torch.arange(3).reshape(-1, 1), torch.arange(2)
    fits = (place >= reach) & (place < model.lengths.reshape(-1, 1, 1))
    assert torch.equal(possible, fits)
    assert torch.equal((recorder.seen[0] > -INF).any(-1), fits)


def test_low_rank_is_dense():
    low = model_of("low rank", 5, 3, 6, batch=(3,), lengths=[5, 3, 1])
    dense = replace(low, transition=low.transition.table(2))
    states, weights = few_of(low, 3)
    one, two = low.restrict(states, weights), dense.restrict(states, weights)
    torch.testing.assert_close(one.log_partition(), two.log_partition(), **CLOSE)
    torch.testing.assert_close(one.entropy(), two.entropy(), **CLOSE)
    torch.testing.assert_close(one.marginals(), two.marginals(), **CLOSE)
    torch.testing.assert_close(one.max_marginals(), two.max_marginals(), **CLOSE)
    assert torch.equal(one.mode(), two.mode())
    masses = low.sites().masses(states, weights), dense.sites().masses(states, weights)
    torch.testing.assert_close(*masses, **CLOSE)


@pytest.mark.long
def test_single_precision_holds_over_long_sequences():
    steps = 200
    model = model_of("dense", steps, 2, 4)
    unary, table = (30 * model.unary).float(), (30 * model.transition).float()
    states, weights = few_of(model, 2, replicates=1)
    few = rg.SemiMarkov(unary, table).restrict(states, torch.zeros_like(weights).float())
    exact = rg.SemiMarkov(unary.double(), table.double()).restrict(states, 0.0 * few.unary.double())
    torch.testing.assert_close(
        few.log_partition().double(), exact.log_partition(), rtol=1e-6, atol=0
    )
    torch.testing.assert_close(few.marginals().double(), exact.marginals(), rtol=0, atol=1e-5)
    torch.testing.assert_close(few.entropy().double(), exact.entropy(), rtol=1e-4, atol=1e-4)
    # Segments cover every position once.
    lasting = torch.arange(1, 3).unsqueeze(1)
    assert float((few.marginals() * lasting).sum()) == pytest.approx(steps, rel=1e-5)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["low rank", "embedded"])
def test_no_table_of_all_pairs_is_formed(kind):
    """Forty thousand million pairs of labels would not fit."""
    model = model_of(kind, 3, 2, 200_000)
    estimator = Randomized(Pilot(most=4), TopSystematic(4, 4))
    found = rg.infer(model, estimator=estimator, generator=seeded())
    assert bool(found.log_partition.isfinite())
    assert float(found.entropy()) > 0


def test_what_does_not_fit_is_refused():
    model = model_of("dense", 3, 2, 4)
    states = torch.zeros(3, 2, 2, dtype=torch.int64)
    with pytest.raises(rg.errors.ModelError, match=r"kept\); got"):
        model.restrict(states, torch.zeros(3, 2, 3))
    with pytest.raises(rg.errors.ModelError, match=r"kept\); got"):
        model.restrict(states[0], torch.zeros(2, 2))
    with pytest.raises(rg.errors.ModelError, match="out of range"):
        model.restrict(states + 4, torch.zeros(3, 2, 2))
    with pytest.raises(rg.errors.UnsupportedError, match="ask the structure itself"):
        model.restrict(states, torch.zeros(3, 2, 2)).factor_graph()
