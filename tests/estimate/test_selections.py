"""States that selections keep, their frequencies and their weights."""

import math

import pytest
import torch

import rdpgraph as rg
from rdpgraph.randomized import Threshold, Top, TopSystematic, TopTail
from tests.estimate.enumeration import outcomes

ALL = [Top(3), TopTail(1, 2), TopSystematic(1, 2), Threshold(3)]


def name(value):
    return repr(value)


def scores(*shape, seed=0, scale=3.0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return scale * torch.randn(*shape, generator=generator, dtype=dtype)


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def inclusion(selection, log_q):
    kept = torch.zeros_like(log_q)
    for chance, support in outcomes(selection, log_q):
        kept[support.states.unique()] += chance
    return kept


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("keep", [1, 2, 3, 5])
def test_the_threshold_is_that_of_fearnhead_and_clifford(seed, keep):
    log_q = scores(7, seed=seed)
    q = log_q.softmax(-1)
    low, high = 0.0, keep / float(q.min())
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if (middle * q).clamp(max=1).sum() < keep else (low, middle)
    expected = (high * q).clamp(max=1)
    assert torch.allclose(inclusion(Threshold(keep), log_q), expected, atol=1e-9)
    for _, support in outcomes(Threshold(keep), log_q):
        assert len(support.states.unique()) == keep
        assert torch.allclose(support.log_weights, -expected[support.states].log(), atol=1e-9)


@pytest.mark.parametrize("seed", range(2))
def test_a_systematic_tail_is_a_threshold_on_the_rest(seed):
    log_q = scores(7, seed=seed)
    top = int(log_q.argmax())
    kept = inclusion(TopSystematic(1, 3), log_q)
    assert kept[top] == pytest.approx(1.0)
    rest = torch.cat([log_q[:top], log_q[top + 1 :]])
    expected = inclusion(Threshold(3), rest)
    assert torch.allclose(torch.cat([kept[:top], kept[top + 1 :]]), expected, atol=1e-9)
    for _, support in outcomes(TopSystematic(1, 3), log_q):
        assert len(support.states.unique()) == 4


@pytest.mark.parametrize("seed", range(2))
def test_tail_draws_are_independent(seed):
    log_q = scores(5, seed=seed)
    rest = log_q.clone()
    rest[log_q.argmax()] = -math.inf
    expected = 1 - (1 - rest.softmax(-1)) ** 2
    expected[log_q.argmax()] = 1.0
    assert torch.allclose(inclusion(TopTail(1, 2), log_q), expected, atol=1e-9)


def test_top_keeps_the_largest():
    log_q = scores(4, 3, 9)
    support = Top(4).select(log_q, None)
    assert torch.equal(support.states, log_q.topk(4).indices)
    assert bool((support.log_weights == 0).all())
    assert Top(4).bound == "lower"


@pytest.mark.parametrize("selection", ALL, ids=name)
def test_every_row_is_chosen_for_itself(selection):
    log_q = scores(4, 3, 9)
    support = selection.select(log_q, seeded())
    assert support.states.shape == support.log_weights.shape == (4, 3, 3)
    uniforms = torch.rand(
        12, selection.num_uniforms(9), generator=seeded(), dtype=torch.float64
    ).reshape(4, 3, -1)
    for row in range(4):
        for column in range(3):
            alone = selection.choose(log_q[row, column], uniforms[row, column])
            assert torch.equal(alone.states, support.states[row, column])
            assert torch.allclose(alone.log_weights, support.log_weights[row, column], atol=1e-12)


@pytest.mark.parametrize("selection", ALL, ids=name)
def test_one_seed_gives_one_choice_and_others_other_ones(selection):
    log_q = scores(6, 50)
    first, again, other = (selection.select(log_q, seeded(seed)) for seed in (1, 1, 2))
    assert torch.equal(first.states, again.states)
    assert torch.equal(first.log_weights, again.log_weights)
    assert torch.equal(first.states, other.states) == isinstance(selection, Top)


@pytest.mark.parametrize("selection", ALL, ids=name)
@pytest.mark.parametrize("possible", [0, 1, 2, 3, 4])
def test_impossible_states_are_never_kept(selection, possible):
    log_q = torch.full((200, 8), -math.inf, dtype=torch.float64)
    log_q[:, 3 : 3 + possible] = scores(200, possible)
    support = selection.select(log_q, seeded())
    assert not bool(support.log_weights.isnan().any())
    assert bool((support.log_weights < math.inf).all())
    alive = support.log_weights > -math.inf
    states = support.states[alive]
    assert bool(((states >= 3) & (states < 3 + possible)).all())
    assert bool(alive.any(-1).all()) == (possible > 0)
    if possible <= 3 and not isinstance(selection, TopTail):
        # All that is possible is kept for certain, as it is.
        assert bool((alive.sum(-1) == possible).all())
        assert bool((support.log_weights[alive] == 0).all())


@pytest.mark.parametrize("selection", ALL, ids=name)
def test_scores_of_any_range(selection):
    log_q = torch.tensor([0.0, -800.0, -801.0, -2000.0, -2001.0], dtype=torch.float64)
    worth = torch.zeros(5, dtype=torch.float64)
    for chance, support in outcomes(selection, log_q):
        worth = worth.index_add(0, support.states, chance * support.log_weights.exp())
    if not isinstance(selection, Top):
        assert torch.allclose(worth[:3], torch.ones(3, dtype=torch.float64), atol=1e-9)


@pytest.mark.parametrize(
    "make", [Top, Threshold, lambda k: TopTail(k, k)], ids=["Top", "Threshold", "TopTail"]
)
def test_sizes_are_numbers_or_shares(make):
    log_q = scores(2, 20)
    assert make(0.25).select(log_q, seeded()).kept == make(5).select(log_q, seeded()).kept
    assert make(1e-9).select(log_q, seeded()).kept == make(1).select(log_q, seeded()).kept
    for everything in (1.0, 20, 100):
        support = make(everything).select(log_q, seeded())
        assert bool((support.states == torch.arange(20)).all())
        assert bool((support.log_weights == 0).all())


@pytest.mark.parametrize("wrong", [0, -1, 0.0, 1.5, True, "10"])
def test_what_is_no_size_is_refused(wrong):
    for make in (Top, Threshold, lambda size: TopTail(1, size), lambda s: TopSystematic(1, s)):
        with pytest.raises(rg.errors.ModelError, match="number of states"):
            make(wrong)


@pytest.mark.parametrize("selection", ALL, ids=name)
@pytest.mark.parametrize("wrong", [math.nan, math.inf])
def test_what_is_no_score_is_refused(selection, wrong):
    log_q = scores(3, 6)
    log_q[1, 2] = wrong
    with pytest.raises(rg.errors.ModelError, match="NaN"):
        selection.select(log_q, seeded())


@pytest.mark.parametrize(
    "selection", [Top(1000), TopTail(500, 500), TopSystematic(500, 500), Threshold(1000)], ids=name
)
def test_a_million_states_in_float32(selection):
    log_q = scores(2, 1_000_000, scale=2.0, dtype=torch.float32)
    support = selection.select(log_q, seeded())
    assert support.states.shape == (2, 1000)
    assert support.log_weights.dtype == torch.float32
    if isinstance(selection, Top):
        return
    # The weighted sum of any function is right up to its sampling error: here of exp(log_q).
    q = log_q.double().softmax(-1)
    total = (support.log_weights.double().exp() * q.gather(-1, support.states)).sum(-1)
    assert torch.allclose(total, torch.ones(2, dtype=torch.float64), atol=1e-5)
    if isinstance(selection, Threshold | TopSystematic):
        assert all(len(row.unique()) == 1000 for row in support.states)


@pytest.mark.parametrize("selection", [TopSystematic(2, 4), Threshold(5)], ids=name)
@pytest.mark.parametrize("kind", ["smooth", "rough", "equal"])
def test_a_sample_has_its_share_of_every_level(selection, kind):
    """A sum of ``q_i f_i`` errs by at most one spacing times the variation of f along the order."""
    levels = torch.arange(60, dtype=torch.float64)
    log_q = scores(60, seed=1, scale=1.0) if kind == "rough" else -((levels - 17.3) ** 2) / 50
    log_q = log_q * (kind != "equal")
    q = log_q.exp()
    # A function that falls from each state of the order to the next.
    place = log_q.argsort(descending=True).argsort().double() if kind == "rough" else levels
    f = 1.0 - place / 60
    for number in torch.linspace(0, 0.999, 20, dtype=torch.float64):
        support = selection.choose(log_q, number.reshape(1))
        weights = support.log_weights.exp()
        spacing = float((q[support.states] * weights)[weights > 1].max())
        error = (q * f)[support.states] @ weights - q @ f
        assert abs(float(error)) <= spacing + 1e-12
