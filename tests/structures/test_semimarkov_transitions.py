"""Semi-Markov chains whose transitions differ by position and item, against enumeration."""

import itertools
import math
from dataclasses import replace

import pytest
import torch

import rdpgraph as rg
from rdpgraph import Segmentation, SemiMarkov
from rdpgraph.randomized import TopTail
from rdpgraph.testing import brute_force
from tests.estimate.enumeration import expectation
from tests.structures.test_semimarkov import all_segmentations, as_segmentation

DOUBLE = torch.float64
STEPS, DURATIONS, LABELS = 4, 3, 2
LENGTHS = torch.tensor([4, 3, 2, 1, 0])
CLOSE = {"rtol": 1e-9, "atol": 1e-12}


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=DOUBLE)


def model_of(kind, *, lengths=LENGTHS, seed=0, grad=False):
    batch = len(lengths)
    segments = normal(batch, STEPS, DURATIONS, LABELS, seed=seed)
    own = {"shared": (), "one": (1,)}.get(kind, (batch,))
    transition = normal(*own, STEPS - 1, LABELS, LABELS, seed=seed + 1)
    if kind == "hard":
        transition[normal(*transition.shape, seed=seed + 2) > 0.8] = -math.inf
    segments, transition = segments.requires_grad_(grad), transition.requires_grad_(grad)
    return SemiMarkov(segments, transition, lengths=lengths)


class Truth:
    """Every answer about one item from the list of its segmentations."""

    def __init__(self, model, item):
        segments = model.unary[item]
        every = model.potential.table(2)
        table = every.expand(len(model.lengths), *every.shape[-3:])[item]
        self.all = list(all_segmentations(int(model.lengths[item]), DURATIONS, LABELS))
        scores = []
        for pieces in self.all:
            total = sum((segments[piece] for piece in pieces), segments.new_zeros(()))
            for (end, _, left), (_, _, right) in itertools.pairwise(pieces):
                total = total + table[end, left, right]
            scores.append(total)
        self.scores = torch.stack(scores)
        self.log_z = self.scores.logsumexp(0)
        self.chances = (self.scores - self.log_z).exp()
        self.entropy = torch.special.entr(self.chances).sum()
        self.marginals = torch.zeros_like(segments)
        self.best = torch.full_like(segments, -math.inf)
        for pieces, chance, score in zip(self.all, self.chances, self.scores, strict=True):
            for piece in pieces:
                self.marginals[piece] += chance
                self.best[piece] = torch.maximum(self.best[piece], score)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["each", "shared", "one", "hard"])
def test_every_answer_is_that_of_enumeration(kind):
    model, other = model_of(kind), model_of("each", seed=7)
    best, mode = model.k_best(4), model.mode()
    answers = model.log_partition(), model.entropy(), model.marginals(), model.max_marginals()
    cross = model.cross_entropy(other)
    for item in range(len(LENGTHS)):
        truth, theirs = Truth(model, item), Truth(other, item)
        expected = truth.log_z, truth.entropy, truth.marginals, truth.best
        for found, right in zip(answers, expected, strict=True):
            torch.testing.assert_close(found[item], right, **CLOSE)
        top = truth.scores.sort(descending=True).values
        top = torch.nn.functional.pad(top, (0, 4), value=-math.inf)[:4]
        torch.testing.assert_close(best.scores[:, item], top, **CLOSE)
        right = as_segmentation(truth.all[int(truth.scores.argmax())], STEPS)
        assert torch.equal(mode.labels[item], right.labels)
        logs = torch.where(truth.chances > 0, theirs.scores - theirs.log_z, 0.0)
        torch.testing.assert_close(cross[item], -(truth.chances * logs).sum(), **CLOSE)
        listed = [as_segmentation(one, STEPS) for one in truth.all]
        every = Segmentation(
            torch.stack([one.labels for one in listed]), torch.stack([one.starts for one in listed])
        )
        alone = model_at(model, item)
        torch.testing.assert_close(alone.score(every), truth.scores, **CLOSE)
    drawn = model.sample(4000, torch.Generator().manual_seed(0))
    assert model.score(drawn).isfinite().all()
    found = (model.score(drawn) - model.score(mode)).exp().mean(0)
    for item in range(len(LENGTHS)):
        truth = Truth(model, item)
        right = (truth.chances * (truth.scores - truth.scores.max()).exp()).sum()
        torch.testing.assert_close(found[item], right, rtol=0, atol=0.03)


def model_at(model, item):
    transition = model.transition
    if transition.ndim == 4:
        transition = transition[item if len(transition) > 1 else 0]
    return SemiMarkov(model.unary[item], transition, lengths=model.lengths[item])


def test_a_batch_is_its_items_and_the_general_graph():
    model = model_of("each")
    truth = brute_force(model.factor_graph())
    torch.testing.assert_close(model.log_partition(), truth.log_partition, **CLOSE)
    for item in range(len(LENGTHS)):
        one = model_at(model, item)
        torch.testing.assert_close(one.log_partition(), model.log_partition()[item], **CLOSE)
        torch.testing.assert_close(one.max_marginals(), model.max_marginals()[item], **CLOSE)


@pytest.mark.parametrize("scale", [1.0, 300.0])
def test_the_same_transition_everywhere_is_a_shared_one(scale):
    segments, table = normal(2, 5, 2, 3) * scale, normal(3, 3, seed=1) * scale
    lengths = torch.tensor([5, 3])
    segments.requires_grad_()
    plain = SemiMarkov(segments, table, lengths=lengths)
    each = replace(plain, transition=table.expand(2, 4, 3, 3))
    for ask in ("log_partition", "marginals", "max_marginals"):
        torch.testing.assert_close(getattr(each, ask)(), getattr(plain, ask)(), **CLOSE)
    # An entropy is the difference of log Z and a mean, which are of the size of the scores.
    tolerance = 1e-13 * float(plain.log_partition().abs().max())
    torch.testing.assert_close(each.entropy(), plain.entropy(), rtol=1e-9, atol=tolerance)
    assert torch.equal(each.mode().labels, plain.mode().labels)
    torch.testing.assert_close(each.kl_divergence(plain), torch.zeros(2, dtype=DOUBLE))


@pytest.mark.parametrize("kind", ["each", "shared"])
def test_gradients_and_gradients_of_gradients(kind):
    model = model_of(kind, lengths=torch.tensor([4, 2]), grad=True)

    def log_z(segments, transition):
        return SemiMarkov(segments, transition, lengths=model.lengths).log_partition()

    def entropy(segments, transition):
        return SemiMarkov(segments, transition, lengths=model.lengths).entropy()

    inputs = (model.unary, model.transition)
    assert torch.autograd.gradcheck(log_z, inputs, fast_mode=True)
    assert torch.autograd.gradgradcheck(log_z, inputs, fast_mode=True)
    assert torch.autograd.gradcheck(entropy, inputs, fast_mode=True)


def test_hard_zeros_have_gradients_of_zero():
    model = model_of("hard", grad=True)
    total = model.log_partition().sum() + model.entropy().sum()
    gradients = torch.autograd.grad(total, (model.unary, model.transition))
    assert all(bool(gradient.isfinite().all()) for gradient in gradients)
    assert not gradients[1][model.transition == -math.inf].any()


@pytest.mark.parametrize("kind", ["each", "shared", "hard"])
def test_all_labels_kept_is_exact_for_every_question(kind):
    model = model_of(kind)
    states = torch.arange(LABELS).expand(2, *model.unary.shape)
    few = model.restrict(states, torch.zeros(states.shape, dtype=DOUBLE))
    for ask in ("log_partition", "entropy", "marginals", "max_marginals"):
        found, right = getattr(few, ask)(), getattr(model, ask)()
        torch.testing.assert_close(found, right.expand(found.shape), **CLOSE)
    masses = model.sites().masses(states, torch.zeros(states.shape, dtype=DOUBLE))
    chances = (masses - model.log_partition().reshape(-1, 1, 1, 1)).exp()
    torch.testing.assert_close(chances, model.marginals().expand(chances.shape), **CLOSE)


@pytest.mark.parametrize(
    "proposal",
    [rg.randomized.LocalGlobal(), rg.randomized.Pilot(most=2), rg.randomized.Landmark(2)],
)
def test_the_expectation_of_z_is_z(proposal):
    segments, transition = normal(3, 2, 3), normal(2, 3, 3, seed=1)
    model = SemiMarkov(segments, transition)
    mean, number = expectation(model, proposal, TopTail(1, 1))
    assert number >= 32
    torch.testing.assert_close(mean, model.log_partition(), rtol=0, atol=1e-12)


def test_mean_values_are_means_of_the_transitions_met():
    model = model_of("each", lengths=torch.tensor([4, 3]))
    table = model.transition.exp()
    found = (
        model.sites().means(20_000, torch.Generator().manual_seed(0)).exp().expand_as(model.unary)
    )
    close = {"rtol": 0.1, "atol": 0.0}
    before, after = table.mean(-2), table.mean(-1)
    torch.testing.assert_close(found[0, 0, 0], after[0, 0], **close)
    torch.testing.assert_close(found[0, 2, 0], before[0, 1] * after[0, 2], **close)
    torch.testing.assert_close(found[0, 2, 1], before[0, 0] * after[0, 2], **close)
    torch.testing.assert_close(found[1, 2, 0], before[1, 1], **close)


@pytest.mark.parametrize("steps", [0, 1])
def test_sequences_without_a_transition(steps):
    segments = normal(2, steps, 2, 3)
    model = SemiMarkov(segments, torch.zeros(2, max(steps - 1, 0), 3, 3, dtype=DOUBLE))
    plain = SemiMarkov(segments, torch.zeros(3, 3, dtype=DOUBLE))
    torch.testing.assert_close(model.log_partition(), plain.log_partition())
    torch.testing.assert_close(model.entropy(), plain.entropy())
    torch.testing.assert_close(model.max_marginals(), plain.max_marginals())
    assert torch.equal(model.mode().labels, plain.mode().labels)
    assert torch.equal(model.k_best(2).scores, plain.k_best(2).scores)
    assert model.sample(3).labels.shape == (3, 2, steps)
    few = rg.Randomized(rg.randomized.LocalGlobal(), TopTail(1, 1))
    assert rg.infer(model, estimator=few).log_partition.shape == (2,)


@pytest.mark.parametrize("shape", [(3, 2, 2), (2, 3, 3), (3, 4, 3, 3), (2, 2, 4, 3, 3)])
def test_what_does_not_fit_is_refused(shape):
    with pytest.raises(rg.errors.ModelError, match="transition of shape"):
        SemiMarkov(torch.zeros(2, 5, 2, 3), torch.zeros(shape))
