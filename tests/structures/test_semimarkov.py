"""Semi-Markov chains against the enumeration of all segmentations."""

import itertools
import math

import pytest
import torch

import rdpgraph as rg
from rdpgraph import Segmentation, SemiMarkov
from rdpgraph.testing import brute_force
from tests.cases import first_short

DOUBLE = torch.float64


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def random_model(steps, durations, labels, *, batch=(), seed=0, scale=1.0, dtype=DOUBLE, **kwargs):
    draw = seeded(seed)
    segments = torch.randn(*batch, steps, durations, labels, generator=draw, dtype=DOUBLE)
    transition = torch.randn(labels, labels, generator=draw, dtype=DOUBLE)
    return SemiMarkov((segments * scale).to(dtype), (transition * scale).to(dtype), **kwargs)


def all_segmentations(length, durations, labels):
    """Every list of (end, duration - 1, label) that covers the positions, by plain recursion."""
    if length == 0:
        yield ()
        return
    for d, n in itertools.product(range(min(durations, length)), range(labels)):
        for before in all_segmentations(length - 1 - d, durations, labels):
            yield (*before, (length - 1, d, n))


def score_of(pieces, segments, transition):
    total = segments.new_zeros(())
    for piece in pieces:
        total = total + segments[piece]
    for (_, _, left), (_, _, right) in itertools.pairwise(pieces):
        total = total + transition[left, right]
    return total


def as_segmentation(pieces, steps):
    labels = torch.full((steps,), -1)
    starts = torch.zeros(steps, dtype=torch.bool)
    for end, d, n in pieces:
        labels[end - d : end + 1] = n
        starts[end - d] = True
    return Segmentation(labels, starts)


class Truth:
    """Every answer about one sequence from the list of its segmentations."""

    def __init__(self, segments, transition, length=None):
        self.steps, durations, labels = segments.shape
        length = self.steps if length is None else length
        self.all = list(all_segmentations(length, durations, labels))
        self.scores = torch.stack([score_of(one, segments, transition) for one in self.all])
        self.log_z = self.scores.logsumexp(0)
        self.chances = (self.scores - self.log_z).exp()
        self.marginals = torch.zeros_like(segments)
        self.positions = segments.new_zeros(self.steps, labels)
        self.best = torch.full_like(segments, -math.inf)
        for pieces, chance, score in zip(self.all, self.chances, self.scores, strict=True):
            for end, d, n in pieces:
                self.marginals[end, d, n] += chance
                self.positions[end - d : end + 1, n] += chance
                self.best[end, d, n] = torch.maximum(self.best[end, d, n], score)
        logs = torch.where(self.chances > 0, self.scores - self.log_z, 0.0)
        self.entropy = -(self.chances * logs).sum()


SHAPES = [(1, 1, 1), (1, 3, 2), (2, 3, 2), (4, 1, 3), (5, 2, 2), (4, 3, 2), (6, 4, 1), (3, 5, 2)]


@pytest.mark.parametrize("shape", SHAPES)
def test_every_answer_is_that_of_enumeration(shape):
    model = random_model(*shape, seed=sum(shape))
    truth = Truth(model.unary, model.transition)
    close = {"rtol": 1e-10, "atol": 1e-12}
    torch.testing.assert_close(model.log_partition(), truth.log_z, **close)
    torch.testing.assert_close(model.marginals(), truth.marginals, **close)
    torch.testing.assert_close(model.position_marginals(), truth.positions, **close)
    torch.testing.assert_close(model.entropy(), truth.entropy, **close)
    torch.testing.assert_close(model.max_marginals(), truth.best, **close)
    best = truth.all[int(truth.scores.argmax())]
    mode, expected = model.mode(), as_segmentation(best, truth.steps)
    assert torch.equal(mode.labels, expected.labels)
    assert torch.equal(mode.starts, expected.starts)
    listed = [as_segmentation(one, truth.steps) for one in truth.all]
    every = Segmentation(
        torch.stack([one.labels for one in listed]), torch.stack([one.starts for one in listed])
    )
    torch.testing.assert_close(model.score(every), truth.scores, **close)


@pytest.mark.parametrize("shape", [(4, 3, 2), (3, 2, 2), (1, 3, 2), (2, 1, 2)])
def test_the_general_graph_is_the_same_model(shape):
    steps, _, labels = shape
    lengths = torch.tensor([steps, max(steps - 1, 0), 1, 0])
    model = random_model(*shape, batch=(4,), lengths=lengths)
    graph = model.factor_graph()
    truth = brute_force(graph)
    torch.testing.assert_close(model.log_partition(), truth.log_partition)
    torch.testing.assert_close(model.entropy(), truth.entropy)
    torch.testing.assert_close(model.score(model.mode()), truth.maximum)
    (sites,) = graph.variables
    positions = model.position_marginals()
    for place in range(steps):
        joint = truth.joint((sites[place],)).reshape(4, -1, labels).sum(1)
        inside = (place < lengths).unsqueeze(1)
        torch.testing.assert_close(positions[:, place], torch.where(inside, joint, 0.0))
    drawn = model.sample(20, generator=seeded())
    scores = graph.score({sites: model.states(drawn)})
    torch.testing.assert_close(scores, model.score(drawn))
    assert scores.isfinite().all()


def test_a_graph_of_no_positions():
    model = random_model(0, 2, 2)
    assert model.log_partition() == brute_force(model.factor_graph()).log_partition == 0


@pytest.mark.parametrize("batch", [(5,), (1,), (2, 3)])
def test_a_batch_equals_its_singles_at_every_length(batch):
    count = math.prod(batch)
    lengths = (torch.arange(count) % 6).reshape(batch)
    model = random_model(5, 3, 2, batch=batch, lengths=lengths)
    drawn = model.sample(3, generator=seeded())
    mode = model.mode()
    for item in itertools.product(*map(range, batch)):
        length = int(lengths[item])
        one = SemiMarkov(model.unary[item][:length], model.transition)
        truth = Truth(model.unary[item], model.transition, length)
        torch.testing.assert_close(model.log_partition()[item], truth.log_z)
        torch.testing.assert_close(one.log_partition(), truth.log_z)
        torch.testing.assert_close(model.marginals()[item], truth.marginals)
        torch.testing.assert_close(model.position_marginals()[item], truth.positions)
        torch.testing.assert_close(model.entropy()[item], truth.entropy)
        torch.testing.assert_close(model.max_marginals()[item], truth.best)
        assert torch.equal(mode.labels[item][:length], one.mode().labels)
        assert torch.equal(mode.starts[item][:length], one.mode().starts)
        for part in (mode, drawn):
            assert (part.labels[..., *item, length:] == -1).all()
            assert not part.starts[..., *item, length:].any()
    assert drawn.labels.shape == (3, *batch, 5)


def test_what_stands_beyond_a_length_has_no_effect():
    model = random_model(5, 3, 2, batch=(2,), lengths=torch.tensor([3, 0]))
    segments = model.unary.clone()
    segments[0, 3:] = torch.randn(2, 3, 2, generator=seeded(1), dtype=DOUBLE) * 50
    segments[1] = -math.inf
    segments[:, 0, 1:] = 7.0
    other = model.with_unary(segments.requires_grad_())
    torch.testing.assert_close(other.log_partition(), model.log_partition())
    torch.testing.assert_close(other.entropy(), model.entropy())
    for answer in (other.log_partition(), other.entropy()):
        (gradient,) = torch.autograd.grad(answer.sum(), segments)
        assert (gradient[0, 3:] == 0).all()
        assert (gradient[1] == 0).all()
        assert (gradient[:, 0, 1:] == 0).all()


def test_duration_one_is_a_plain_chain():
    steps, labels = 5, 3
    model = random_model(steps, 1, labels, batch=(2,))
    sites = rg.VariableArray("x", (steps,), labels)
    plain = rg.infer(
        rg.FactorGraph(
            [
                rg.FactorBlock((sites,), rg.Table(model.unary.squeeze(-2))),
                rg.FactorBlock((sites[:-1], sites[1:]), rg.Table(model.transition)),
            ]
        )
    )
    torch.testing.assert_close(model.log_partition(), plain.log_partition)
    torch.testing.assert_close(model.position_marginals(), plain.marginal(sites))
    torch.testing.assert_close(model.marginals().squeeze(-2), plain.marginal(sites))
    torch.testing.assert_close(model.entropy(), plain.entropy())
    assert torch.equal(model.mode().labels, plain.mode()[sites])
    assert model.mode().starts.all()


def test_infer_asks_the_structure():
    model = random_model(4, 3, 2)
    posterior = rg.infer(model)
    torch.testing.assert_close(posterior.log_partition, model.log_partition())
    torch.testing.assert_close(posterior.marginals(), model.marginals())
    torch.testing.assert_close(posterior.entropy(), model.entropy())
    assert torch.equal(posterior.mode().labels, model.mode().labels)
    drawn = posterior.sample(5, generator=seeded())
    assert torch.equal(drawn.labels, model.sample(5, generator=seeded()).labels)


def with_zeros(model, seed=3):
    """Hard zeros in a third of everything, and in all self-transitions."""
    draw = seeded(seed)
    hidden = torch.rand(model.unary.shape, generator=draw) < 0.35
    transition = model.transition.clone().fill_diagonal_(-math.inf)
    return SemiMarkov(model.unary.masked_fill(hidden, -math.inf), transition, lengths=model.lengths)


@pytest.mark.parametrize("seed", first_short(range(4), 2))
def test_hard_zeros_are_exact_and_without_nan(seed):
    model = with_zeros(random_model(5, 3, 3, batch=(3,), seed=seed), seed)
    segments = model.unary.requires_grad_()
    transition = model.transition.requires_grad_()
    log_z, entropy = model.log_partition(), model.entropy()
    first = torch.autograd.grad(log_z.sum(), (segments, transition), create_graph=True)
    weights = torch.randn(segments.shape, generator=seeded(), dtype=DOUBLE)
    second = torch.autograd.grad((first[0] * weights).sum(), (segments, transition))
    of_entropy = torch.autograd.grad(entropy.sum(), (segments, transition))
    for gradient in (*first, *second, *of_entropy):
        assert not gradient.isnan().any()
    for gradients in (first, second, of_entropy):
        assert (gradients[0][segments == -math.inf] == 0).all()
        assert (gradients[1][transition == -math.inf] == 0).all()
    for item in range(3):
        truth = Truth(segments[item].detach(), transition.detach())
        torch.testing.assert_close(log_z[item].detach(), truth.log_z)
        torch.testing.assert_close(first[0][item].detach(), truth.marginals)
        torch.testing.assert_close(entropy[item].detach(), truth.entropy)
        torch.testing.assert_close(model.max_marginals()[item], truth.best)
        torch.testing.assert_close(model.score(model.mode())[item].detach(), truth.scores.max())


def test_an_impossible_item_has_nothing_and_disturbs_nobody():
    model = random_model(4, 2, 2, batch=(2,))
    segments = model.unary.clone()
    segments[1, 2:] = -math.inf
    segments.requires_grad_()
    transition = model.transition.clone().requires_grad_()
    broken = SemiMarkov(segments, transition)
    log_z = broken.log_partition()
    assert log_z[1] == -math.inf
    torch.testing.assert_close(log_z[0], model.log_partition()[0])
    first = torch.autograd.grad(log_z.sum(), (segments, transition), create_graph=True)
    assert (first[0][1] == 0).all()
    alone = SemiMarkov(segments[:1], transition)
    (expected,) = torch.autograd.grad(alone.log_partition().sum(), transition)
    torch.testing.assert_close(first[1], expected)
    second = torch.autograd.grad((first[0] ** 2).sum(), (segments, transition))
    assert not any(part.isnan().any() for part in second)
    assert (second[0][1] == 0).all()
    assert broken.entropy()[1] == 0
    assert (broken.position_marginals()[1] == 0).all()
    assert (broken.max_marginals()[1] == -math.inf).all()
    cut = Segmentation(torch.zeros(2, 4, dtype=torch.int64), torch.ones(2, 4, dtype=torch.bool))
    assert broken.log_prob(cut)[1] == -math.inf
    relaxed = broken.rsample(1, temperature=0.5, generator=seeded())
    assert (relaxed[:, 1] == 0).all()
    with pytest.raises(rg.errors.ImpossibleEvidenceError, match="mode"):
        broken.mode()
    with pytest.raises(rg.errors.ImpossibleEvidenceError, match="sample"):
        broken.sample(2)


LENGTHS = torch.tensor([4, 1, 0])


@pytest.mark.parametrize("scale", [1.0, 300.0])
def test_gradients_and_gradients_of_gradients(scale):
    """Most totals of a step are far below the range of its products at the larger scale."""
    model = random_model(4, 2, 3, batch=(3,), lengths=LENGTHS)
    transition = model.transition * scale
    inputs = (model.unary.requires_grad_(), transition.requires_grad_())

    def log_partition(segments, transition):
        return SemiMarkov(segments, transition, lengths=LENGTHS).log_partition()

    def entropy(segments, transition):
        return SemiMarkov(segments, transition, lengths=LENGTHS).entropy()

    assert torch.autograd.gradcheck(log_partition, inputs, fast_mode=True)
    assert torch.autograd.gradgradcheck(log_partition, inputs, fast_mode=True)
    assert torch.autograd.gradcheck(entropy, inputs, fast_mode=True)


def test_marginals_are_differentiable():
    model = random_model(3, 2, 2)
    inputs = (model.unary.requires_grad_(), model.transition.requires_grad_())
    assert torch.autograd.gradcheck(
        lambda s, t: SemiMarkov(s, t).position_marginals(), inputs, fast_mode=True
    )


def test_the_score_is_differentiable():
    model = random_model(4, 3, 2, batch=(2,))
    drawn = model.sample(3, generator=seeded())
    inputs = (model.unary.requires_grad_(), model.transition.requires_grad_())
    assert torch.autograd.gradcheck(
        lambda s, t: SemiMarkov(s, t).score(drawn), inputs, fast_mode=True
    )


def test_the_gradient_of_the_entropy_is_that_of_log_z_less_the_mean_score():
    model = random_model(5, 3, 2, batch=(2,))
    inputs = (model.unary.requires_grad_(), model.transition.requires_grad_())
    log_z = model.log_partition()
    first = torch.autograd.grad(log_z.sum(), inputs, create_graph=True)
    mean = sum((part * given).sum() for part, given in zip(first, inputs, strict=True))
    torch.testing.assert_close(model.entropy().sum(), log_z.sum() - mean)
    expected = torch.autograd.grad(log_z.sum() - mean, inputs)
    got = torch.autograd.grad(model.entropy().sum(), inputs)
    for left, right in zip(got, expected, strict=True):
        torch.testing.assert_close(left, right)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("zeros", [False, True])
def test_the_k_best_are_the_first_of_all(shape, zeros):
    model = random_model(*shape, seed=sum(shape))
    model = with_zeros(model) if zeros and shape[2] > 1 else model
    truth = Truth(model.unary, model.transition)
    expected = truth.scores.sort(descending=True).values
    for k in (1, 3, len(truth.all) + 2):
        found = model.k_best(k)
        most = min(k, len(truth.all))
        torch.testing.assert_close(found.scores[:most], expected[:k])
        assert (found.scores[most:] == -math.inf).all()
        there = found.scores > -math.inf
        assert torch.equal((found.segmentations.labels >= 0).all(-1), there)
        assert torch.equal(found.segmentations.starts.any(-1), there)
        lines = torch.cat([found.segmentations.labels, found.segmentations.starts], -1)[there]
        assert len(lines.unique(dim=0)) == len(lines)


def test_the_k_best_of_a_batch_with_lengths():
    model = random_model(4, 3, 2, batch=(3,), lengths=LENGTHS)
    found = model.k_best(3)
    for item, length in enumerate(LENGTHS.tolist()):
        alone = SemiMarkov(model.unary[item, :length], model.transition).k_best(3)
        torch.testing.assert_close(found.scores[:, item], alone.scores)
        assert torch.equal(found.segmentations.labels[:, item, :length], alone.segmentations.labels)
        assert (found.segmentations.labels[:, item, length:] == -1).all()
    assert found.scores[:, 2].tolist() == [0.0, -math.inf, -math.inf]
    with pytest.raises(rg.errors.ModelError, match="k >= 1"):
        model.k_best(0)


@pytest.mark.parametrize("zeros", [False, True])
def test_cross_entropies_are_those_of_enumeration(zeros):
    one = random_model(4, 3, 3, batch=(2,), seed=1)
    two = random_model(4, 3, 3, batch=(2,), seed=2)
    one, two = (with_zeros(one), with_zeros(two)) if zeros else (one, two)
    for item in range(2):
        p = Truth(one.unary[item], one.transition)
        q = Truth(two.unary[item], two.transition)
        logs = torch.where(p.chances > 0, q.scores - q.log_z, 0.0)
        cross = -(p.chances * logs).sum()
        torch.testing.assert_close(one.cross_entropy(two)[item], cross)
        torch.testing.assert_close(one.kl_divergence(two)[item], cross - p.entropy)
    assert (one.kl_divergence(one) == 0).all()
    torch.testing.assert_close(one.cross_entropy(one), one.entropy())


def test_what_the_other_forbids_is_infinitely_far():
    one = random_model(4, 3, 2, batch=(3,))
    segments = one.unary.clone()
    segments[0, 2, 1, 0] = -math.inf
    segments[2] = -math.inf
    segments.requires_grad_()
    two = SemiMarkov(segments, one.transition)
    assert torch.equal(one.cross_entropy(two).isinf(), torch.tensor([True, False, True]))
    found = two.cross_entropy(one)
    assert found[2] == 0
    assert found.isfinite().all()
    gradients = torch.autograd.grad(one.cross_entropy(two)[1] + found.sum(), segments)[0]
    assert gradients.isfinite().all()
    assert (gradients[segments == -math.inf] == 0).all()
    joints = one.transition.clone().fill_diagonal_(-math.inf)
    assert one.cross_entropy(SemiMarkov(one.unary, joints)).isinf().all()
    with pytest.raises(rg.errors.ModelError, match="same shape"):
        one.kl_divergence(random_model(4, 3, 2))


def test_the_divergence_is_differentiable_in_both():
    shapes = ((2, 3, 2, 2), (2, 2), (2, 3, 2, 2), (2, 2))
    inputs = [
        torch.randn(shape, generator=seeded(number), dtype=DOUBLE, requires_grad=True)
        for number, shape in enumerate(shapes)
    ]
    lengths = torch.tensor([3, 2])

    def divergence(segments, transition, others, joints):
        other = SemiMarkov(others, joints, lengths=lengths)
        return SemiMarkov(segments, transition, lengths=lengths).kl_divergence(other)

    assert torch.autograd.gradcheck(divergence, inputs, fast_mode=True)


def test_log_probabilities_sum_to_one():
    model = random_model(4, 3, 2)
    listed = [as_segmentation(one, 4) for one in all_segmentations(4, 3, 2)]
    every = Segmentation(
        torch.stack([one.labels for one in listed]), torch.stack([one.starts for one in listed])
    )
    torch.testing.assert_close(model.log_prob(every).exp().sum(), torch.ones((), dtype=DOUBLE))


def test_scores_of_what_the_model_does_not_have():
    model = random_model(4, 2, 2)
    starts = torch.tensor([True, False, True, False])
    labels = torch.tensor([0, 0, 1, 1])
    assert model.score(Segmentation(labels, starts)).isfinite()
    change = torch.tensor([0, 1, 1, 1])
    assert model.score(Segmentation(change, starts)) == -math.inf
    long = torch.tensor([True, False, False, True])
    assert model.score(Segmentation(torch.zeros(4, dtype=torch.long), long)) == -math.inf
    late = torch.tensor([False, True, False, True])
    assert model.score(Segmentation(torch.zeros(4, dtype=torch.long), late)) == -math.inf
    with pytest.raises(rg.errors.EvidenceError, match="labels 0 to 1"):
        model.score(Segmentation(labels + 1, starts))
    with pytest.raises(rg.errors.EvidenceError, match="shape"):
        model.score(Segmentation(labels[1:], starts[1:]))
    with pytest.raises(rg.errors.EvidenceError, match="one shape"):
        Segmentation(labels, starts[1:])


def test_draws_have_the_frequencies_of_the_model():
    """Pearson's statistic below its 1 - 1e-4 quantile (Wilson and Hilferty's approximation)."""
    model = random_model(4, 3, 2, batch=(2,), lengths=torch.tensor([4, 3]), scale=0.5)
    count = 40_000
    drawn = model.sample(count, generator=seeded(7))
    for item, length in enumerate((4, 3)):
        truth = Truth(model.unary[item], model.transition, length)
        states = model.states(drawn)[:, item]
        pairs = [as_segmentation(pieces, 4) for pieces in truth.all]
        one = SemiMarkov(model.unary[item], model.transition, lengths=torch.tensor(length))
        listed = torch.stack([one.states(pair) for pair in pairs])
        same = (states.unsqueeze(1) == listed).all(2)
        assert (same.sum(1) == 1).all()
        expected = truth.chances * count
        assert expected.min() > 5
        statistic = float(((same.sum(0) - expected) ** 2 / expected).sum())
        freedom = len(truth.all) - 1
        spread = 2 / (9 * freedom)
        quantile = freedom * (1 - spread + 3.719 * math.sqrt(spread)) ** 3
        assert statistic < quantile


@pytest.mark.parametrize("zeros", [False, True])
def test_relaxed_draws_become_the_best_of_the_noisy_chain(zeros):
    model = random_model(5, 3, 2, batch=(3,), lengths=torch.tensor([5, 2, 0]))
    model = with_zeros(model) if zeros else model
    relaxed = model.rsample(4, temperature=1e-3, generator=seeded(4))
    assert relaxed.shape == (4, 3, 5, 3, 2)
    uniform = torch.rand(relaxed.shape, generator=seeded(4), dtype=torch.float64)
    noise = -(-uniform.log()).log()  # Gumbel's
    lengths = model.lengths.expand(4, 3)
    noisy = SemiMarkov(model.unary + noise, model.transition, lengths=lengths)
    best = noisy.max_marginals()
    top = best.amax((-3, -2, -1), keepdim=True)
    hard = (best >= top - 1e-9) & (top > -math.inf)
    torch.testing.assert_close(relaxed, hard.to(relaxed), rtol=0, atol=1e-6)
    warm = SemiMarkov(model.unary.clone().requires_grad_(), model.transition)
    soft = warm.rsample(2, temperature=0.7, generator=seeded())
    (gradient,) = torch.autograd.grad((soft**2).sum(), warm.unary)
    assert bool(gradient.isfinite().all())
    assert bool(gradient.any())
    with pytest.raises(rg.errors.ModelError, match="temperature"):
        model.rsample(1, temperature=0.0)


def test_draws_keep_to_hard_zeros_and_to_their_generator():
    model = with_zeros(random_model(5, 3, 3, batch=(3,)))
    drawn = model.sample(200, generator=seeded())
    assert model.score(drawn).isfinite().all()
    again = model.sample(200, generator=seeded())
    assert torch.equal(drawn.labels, again.labels)
    assert torch.equal(drawn.starts, again.starts)


def test_from_unary_sums_over_spans():
    draw = seeded()
    unary = torch.randn(2, 5, 2, generator=draw, dtype=DOUBLE)
    unary[0, 1, 0] = -math.inf
    transition = torch.randn(2, 2, generator=draw, dtype=DOUBLE)
    duration = torch.randn(3, 2, generator=draw, dtype=DOUBLE)
    model = SemiMarkov.from_unary(unary, transition, duration, lengths=torch.tensor([5, 2]))
    for t, d, n in itertools.product(range(5), range(3), range(2)):
        if d <= t:
            expected = unary[:, t - d : t + 1, n].sum(1) + duration[d, n]
            torch.testing.assert_close(model.unary[:, t, d, n], expected)
    given = unary.clone().requires_grad_()
    log_z = SemiMarkov.from_unary(given, transition, duration).log_partition()
    (gradient,) = torch.autograd.grad(log_z.sum(), given)
    positions = SemiMarkov.from_unary(unary, transition, duration).position_marginals()
    torch.testing.assert_close(gradient, positions)
    empty = SemiMarkov.from_unary(unary[:, :0], transition, duration)
    assert (empty.log_partition() == 0).all()


def test_from_unary_at_ten_thousand_positions_in_float32():
    """Large scores before a window leave no trace in it."""
    unary = torch.randn(10_000, 2, generator=seeded()) * 100 + 1000
    unary[5000, 1] = -math.inf
    duration = torch.zeros(4, 2)
    segments = SemiMarkov.from_unary(unary, torch.zeros(2, 2), duration).unary
    exact = SemiMarkov.from_unary(unary.double(), torch.zeros(2, 2).double(), duration.double())
    torch.testing.assert_close(segments.double(), exact.unary, rtol=3e-7, atol=0)


@pytest.mark.long
@pytest.mark.parametrize(("steps", "zeros"), [(500, False), (3_000, True)])
def test_float32_holds_at_thousands_of_positions(steps, zeros):
    model = random_model(steps, 3, 3, scale=3.0, dtype=torch.float32)
    if zeros:
        model = SemiMarkov(model.unary, model.transition.clone().fill_diagonal_(-math.inf))
    exact = SemiMarkov(model.unary.double(), model.transition.double())
    torch.testing.assert_close(
        model.log_partition().double(), exact.log_partition(), rtol=1e-6, atol=0
    )
    torch.testing.assert_close(model.marginals().double(), exact.marginals(), rtol=0, atol=2e-5)
    if not zeros:  # choice by choice in torch
        torch.testing.assert_close(model.entropy().double(), exact.entropy(), rtol=1e-5, atol=0)
    torch.testing.assert_close(
        exact.score(model.mode()), exact.score(exact.mode()), rtol=1e-6, atol=0
    )


@pytest.mark.long
@pytest.mark.parametrize("seed", range(3))
def test_a_range_of_thousands_of_nats_in_float32(seed):
    """Values that seem lost at one step decide the answer at a later one."""
    rough = with_zeros(random_model(5, 3, 3, batch=(2,), seed=seed, scale=1000.0), seed)
    model = SemiMarkov(rough.unary.float(), rough.transition.float())
    exact = SemiMarkov(model.unary.double(), model.transition.double())
    for item in range(2):
        truth = Truth(exact.unary[item], exact.transition)
        torch.testing.assert_close(model.log_partition()[item].double(), truth.log_z)
        torch.testing.assert_close(
            model.marginals()[item].double(), truth.marginals, rtol=0, atol=2e-3
        )
    torch.testing.assert_close(model.entropy().double(), exact.entropy(), rtol=0, atol=2e-3)


def test_a_faint_path_that_is_the_only_one_is_kept():
    """Label 1 is 900 nats behind label 0, and the only one that leads to label 2."""
    segments = torch.full((4, 2, 3), -math.inf)
    segments[0, 0, :2] = torch.tensor([0.0, -900.0])
    segments[1:, 0, 2] = 0.0
    transition = torch.zeros(3, 3)
    transition[0, 2] = -math.inf
    transition[2, 2] = -5.0
    inputs = (segments.requires_grad_(), transition.requires_grad_())
    model = SemiMarkov(*inputs)
    torch.testing.assert_close(model.log_partition(), torch.tensor(-910.0))
    chances = torch.autograd.grad(model.log_partition(), inputs)
    assert chances[0].nonzero().tolist() == [[0, 0, 1], [1, 0, 2], [2, 0, 2], [3, 0, 2]]
    assert chances[1].tolist() == [[0, 0, 0], [0, 0, 1], [0, 0, 2]]
    assert model.mode().labels.tolist() == [1, 2, 2, 2]
    assert model.sample(3, generator=seeded()).labels.tolist() == [[1, 2, 2, 2]] * 3
    assert model.entropy() == 0


@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
def test_two_faint_paths_share_as_they_should(dtype):
    """Labels 1 and 2, a nat apart and 900 behind label 0, are the only ones that lead to 3."""
    segments = torch.full((2, 2, 1, 4), -math.inf, dtype=dtype)
    segments[:, 0, 0, :3] = torch.tensor([0.0, -900.0, -901.0])
    segments[:, 1, 0, 3] = 0.0
    transition = torch.zeros(4, 4, dtype=dtype)
    transition[0, 3] = -math.inf
    inputs = (segments.requires_grad_(), transition.requires_grad_())
    model = SemiMarkov(*inputs)
    weights = torch.tensor([2.0, -5.0], dtype=dtype)
    first = torch.tensor(1.0, dtype=dtype).sigmoid()
    shares = torch.stack([first, 1 - first])
    chances = torch.autograd.grad(model.log_partition(), inputs, weights)
    torch.testing.assert_close(chances[0][:, 0, 0, 1:3], weights.unsqueeze(1) * shares)
    torch.testing.assert_close(chances[1][1:3, 3], weights.sum() * shares)
    entropy = model.entropy()
    torch.testing.assert_close(entropy, -(shares * shares.log()).sum().expand(2))
    (slope,) = torch.autograd.grad(entropy, segments, weights)
    expected = weights * first * (1 - first)
    torch.testing.assert_close(slope[:, 0, 0, 1:3], torch.stack([-expected, expected], 1))


@pytest.mark.parametrize(
    ("segments", "transition", "lengths", "match"),
    [
        (torch.zeros(3, 2), torch.zeros(2, 2), None, "segments"),
        (torch.zeros(3, 2, 2), torch.zeros(3, 3), None, "transition of shape"),
        (torch.zeros(3, 2, 2), torch.zeros(2, 2, dtype=DOUBLE), None, "one type"),
        (torch.full((3, 2, 2), math.inf), torch.zeros(2, 2), None, "inf"),
        (torch.zeros(3, 2, 2), torch.zeros(2, 2), torch.tensor([3]), "integer lengths"),
        (torch.zeros(1, 3, 2, 2), torch.zeros(2, 2), torch.tensor([4]), "needs lengths 0 to 3"),
    ],
)
def test_what_does_not_fit_is_refused(segments, transition, lengths, match):
    with pytest.raises(rg.errors.ModelError, match=match):
        SemiMarkov(segments, transition, lengths=lengths)


def test_the_labels_of_segments_are_a_segmentation_or_nothing():
    """Every choice of a label, or none, for each segment: few cover each position once."""
    steps, durations, labels = 3, 2, 2
    model = random_model(steps, durations, labels, batch=(4,), lengths=torch.tensor([3, 2, 1, 0]))
    every = itertools.product(range(-1, labels), repeat=steps * durations)
    states = torch.tensor(list(every)).reshape(-1, 1, steps, durations)
    scores = model.score(states.expand(-1, 4, -1, -1))
    for item in range(4):
        pieces = list(all_segmentations(int(model.lengths[item]), durations, labels))
        expected = [score_of(own, model.unary[item], model.transition) for own in pieces]
        found = scores[:, item][scores[:, item] > -math.inf]
        torch.testing.assert_close(found.sort().values, torch.stack(expected).sort().values)
    torch.testing.assert_close(
        model.log_prob(states.expand(-1, 4, -1, -1)).exp().sum(0), torch.ones(4, dtype=DOUBLE)
    )


def test_a_segmentation_is_made_of_its_segments():
    model = random_model(6, 3, 4, batch=(4,), lengths=torch.tensor([6, 3, 1, 0]))
    drawn = model.sample(20, seeded())
    states = model.site_states(drawn)
    assert states.shape == (20, 4, 6, 3)
    again = model.configuration(states)
    assert torch.equal(again.labels, drawn.labels)
    assert torch.equal(again.starts, drawn.starts)
    torch.testing.assert_close(model.score(states), model.score(drawn))


def test_labels_of_segments_that_do_not_fit_are_refused():
    model = random_model(3, 2, 4)
    with pytest.raises(rg.errors.EvidenceError, match=r"segments, \(\*lead, 3, 2\); got \(2, 3\)"):
        model.score(torch.zeros(2, 3, dtype=torch.long))
    with pytest.raises(rg.errors.EvidenceError, match="labels 0 to 3, and -1"):
        model.score(torch.full((3, 2), 4))


def test_lists_of_one_are_the_modes_and_impossible_items_have_none():
    model = random_model(4, 2, 2, batch=(3,))
    unary = model.unary.clone()
    unary[1] = -math.inf
    found = SemiMarkov(unary, model.transition).k_best(1)
    assert (found.scores[0] > -math.inf).tolist() == [True, False, True]
    mode = SemiMarkov(unary[::2], model.transition).mode()
    assert torch.equal(found.segmentations.labels[0, ::2], mode.labels)
    assert bool((found.segmentations.labels[0, 1] == -1).all())


@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("kind", ["table", "steps", "ranks"])
def test_a_transition_of_any_kind_is_its_table(kind, kept):
    """Rules for ranks, for positions and for few labels answer as those for one table."""
    unary = random_model(5, 3, 4, batch=(3,)).unary
    table = torch.randn(4, 4, generator=seeded(1), dtype=DOUBLE)
    factors = torch.randn(2, 4, 2, generator=seeded(2), dtype=DOUBLE)
    given = {
        "table": rg.Table(table),
        "steps": table.expand(4, 4, 4),
        "ranks": rg.LowRank(*factors),
    }[kind]
    if kind == "ranks":
        table = given.table(2)
    lengths = torch.tensor([5, 0, 3])
    one, other = (SemiMarkov(unary, each, lengths=lengths) for each in (given, table))
    if kept:
        states = torch.randint(4, (2, 3, 5, 3, 3), generator=seeded(3))
        weights = torch.randn(states.shape, generator=seeded(4), dtype=DOUBLE)
        one, other = (each.restrict(states, weights) for each in (one, other))
    for ask in ("log_partition", "marginals", "entropy", "max_marginals"):
        torch.testing.assert_close(getattr(one, ask)(), getattr(other, ask)())
    torch.testing.assert_close(one.k_best(3).scores, other.k_best(3).scores)
    torch.testing.assert_close(
        one.score(other.sample(9, seeded())), other.score(other.sample(9, seeded()))
    )
    if not kept:
        far = SemiMarkov(unary / 2, other.transition, lengths=lengths)
        divergences = one.kl_divergence(far), other.kl_divergence(far)
        torch.testing.assert_close(*divergences)


def test_ranks_are_drawn_as_the_table_that_they_are():
    factors = torch.randn(2, 3, 2, generator=seeded(2), dtype=DOUBLE)
    unary = random_model(3, 2, 3).unary
    model = SemiMarkov(unary, rg.LowRank(*factors))
    drawn = model.site_states(model.sample(20_000, seeded()))
    shares = torch.nn.functional.one_hot(drawn + 1, 4)[..., 1:].double().mean(0)
    torch.testing.assert_close(shares, model.marginals(), rtol=0, atol=0.015)
