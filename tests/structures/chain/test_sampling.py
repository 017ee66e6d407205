"""Draws from chains, exact and relaxed: their distribution by enumeration, their gradients."""

import math
from functools import partial

import pytest
import torch
from torch.testing import assert_close

from rdpgraph import straight_through
from rdpgraph.errors import ImpossibleEvidenceError, ModelError
from rdpgraph.structures.chain import recursion
from rdpgraph.structures.chain.parts import Parts
from rdpgraph.structures.chain.paths import conditionals, relaxed_by, traceback
from tests.structures.chain.enumeration import (
    KINDS,
    SHAPES,
    chain_of,
    chains,
    item_of,
    possible_items,
    seeded,
    sequences,
)


def gumbel(shape, seed):
    uniform = torch.rand(shape, generator=seeded(seed), dtype=torch.float64)
    return -(-uniform.log()).log()


def normalised(rows):
    """Log-probabilities of rows; -inf where nothing is possible."""
    found = rows.log_softmax(-1)
    return found.masked_fill(found.isnan(), -math.inf)


def log_joint(parts, item):
    """All sequences of one item and their log-probabilities, None if it is impossible."""
    listed, scores = sequences(*parts, item)
    log_z = scores.logsumexp(0)
    return listed, (scores - log_z) if log_z > -math.inf else None


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("states", "total"), SHAPES)
@pytest.mark.parametrize("compiled", [True, False])
def test_the_conditionals_multiply_to_the_joint_of_every_sequence(
    kind, states, total, compiled, by_torch
):
    parts = chains(kind, states=states, total=total)
    for item, length in enumerate(parts[2].tolist()):
        one = Parts(*item_of(*parts, item))
        listed, expected = log_joint(parts, item)
        forward = partial(recursion.forward, one)
        messages = forward() if compiled else by_torch(forward)
        if expected is None:
            assert bool((messages[0, length - 1] == -math.inf).all())
            continue
        every = torch.full((len(listed), 1, total), -1)
        every[:, 0, :length] = listed
        got = torch.zeros(len(listed), dtype=torch.float64)
        for step in range(length):
            given = messages[:, step].expand(len(listed), 1, -1)
            if step + 1 < total:
                given = conditionals(
                    messages[:, step : step + 1], one, every[..., [step + 1]], first=step
                )[:, :, 0]
            got += normalised(given)[:, 0].gather(1, listed[:, [step]]).squeeze(1)
        possible = expected > -math.inf
        assert_close(got[possible], expected[possible])
        assert bool((got[~possible] == -math.inf).all())


@pytest.mark.parametrize("kind", KINDS)
def test_a_traceback_takes_the_argmax_of_each_conditional_plus_noise(kind):
    parts = chains(kind, seed=1)
    batch, total, states = parts[0].shape
    noise = gumbel((6, batch, total, states), 0)
    messages = recursion.forward(Parts(*parts))
    found = traceback(messages, Parts(*parts), count=6, noise=noise.unbind(2).__getitem__)
    for item, length in enumerate(parts[2].tolist()):
        listed, log_p = log_joint(parts, item)
        assert bool((found[:, item, length:] == -1).all())
        if log_p is None:
            assert bool((found[:, item] == -1).all())
            continue
        for number in range(6):
            kept = log_p
            for step in range(length - 1, -1, -1):
                mass = [kept[listed[:, step] == state].logsumexp(0) for state in range(states)]
                state = int((torch.stack(mass) + noise[number, item, step]).argmax())
                assert int(found[number, item, step]) == state
                kept = kept.masked_fill(listed[:, step] != state, -math.inf)


@pytest.mark.parametrize("kind", KINDS)
def test_draws_have_the_frequencies_of_the_model(kind):
    """Chi-square over all sequences, at a level of one in a million for each item."""
    parts, _ = possible_items(*chains(kind, seed=2, states=3, total=3, zeros=0.15))
    count = 20_000
    found = chain_of(*parts).sample(count, seeded(0))
    checked = 0
    for item, length in enumerate(parts[2].tolist()):
        listed, log_p = log_joint(parts, item)
        if length == 0:
            assert bool((found[:, item] == -1).all())
            continue
        place = torch.zeros(count, dtype=torch.long)
        for step in range(length):
            place = place * 3 + found[:, item, step]
        seen = place.bincount(minlength=len(listed)).double()
        expected = log_p.exp() * count
        assert bool((seen[expected == 0] == 0).all())
        # Sequences that are rarely expected are one cell, as the test needs five in each.
        rare = expected < 5
        cells = torch.cat([expected[~rare], expected[rare].sum()[None]])
        counts = torch.cat([seen[~rare], seen[rare].sum()[None]])
        statistic = ((counts - cells)[cells > 0] ** 2 / cells[cells > 0]).sum()
        freedom = int((cells > 0).sum()) - 1
        if freedom:
            half = torch.tensor(freedom / 2, dtype=torch.float64)
            assert torch.special.gammaincc(half, statistic / 2) > 1e-6
            checked += 1
    assert checked >= 2


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("states", "total"), SHAPES)
@pytest.mark.parametrize("temperature", [1e-30, 0.7])
def test_relaxed_draws_peak_where_exact_ones_are(kind, states, total, temperature):
    """Exact draws are the argmaxes of the same noise."""
    parts, _ = possible_items(*chains(kind, seed=3, states=states, total=total))
    noise, given = gumbel((20, *parts[0].shape), 4), Parts(*parts)
    hard = traceback(recursion.forward(given), given, count=20, noise=lambda t: noise[:, :, t])
    soft = relaxed_by(given, temperature, noise)
    assert soft.shape == (20, *parts[0].shape)
    told = hard >= 0
    one_hot = torch.nn.functional.one_hot(hard.clamp(min=0), states) * told.unsqueeze(-1)
    if temperature < 1e-9:
        assert torch.equal(soft, one_hot.double())
    assert torch.equal(straight_through(soft), one_hot.double())
    assert_close(soft.sum(-1), told.double())
    assert bool((soft[:, parts[0] == -math.inf] == 0).all())


@pytest.mark.parametrize("kind", KINDS)
def test_relaxed_draws_are_the_softmax_of_conditionals_and_noise(kind):
    parts = chains(kind, seed=4)
    batch, total, states = parts[0].shape
    noise = gumbel((5, batch, total, states), 1)
    found = relaxed_by(Parts(*parts), 0.5, noise)
    for item, length in enumerate(parts[2].tolist()):
        listed, log_p = log_joint(parts, item)
        if log_p is None:
            assert bool((found[:, item] == 0).all())
            continue
        assert bool((found[:, item, length:] == 0).all())
        for number in range(5):
            kept = log_p
            for step in range(length - 1, -1, -1):
                mass = [kept[listed[:, step] == state].logsumexp(0) for state in range(states)]
                logits = torch.stack(mass) + noise[number, item, step]
                assert_close(found[number, item, step], (logits / 0.5).softmax(0))
                kept = kept.masked_fill(listed[:, step] != logits.argmax(), -math.inf)


@pytest.mark.parametrize("kind", KINDS)
def test_relaxed_draws_of_a_batch_are_those_of_its_items(kind):
    parts = chains(kind, seed=5)
    noise = gumbel((3, *parts[0].shape), 2)
    whole = relaxed_by(Parts(*parts), 0.8, noise)
    for item in range(len(parts[2])):
        one = relaxed_by(Parts(*item_of(*parts, item)), 0.8, noise[:, item : item + 1])
        assert_close(whole[:, item], one[:, 0])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("zeros", [0.0, 0.25])
def test_the_gradient_of_relaxed_draws_with_the_noise_held_fixed(kind, zeros):
    unary, transition, lengths = chains(kind, seed=6, states=2, total=3, zeros=zeros)
    noise = gumbel((2, *unary.shape), 3)
    alive = [values > -math.inf for values in (unary, transition)]

    def of(some_unary, some_transition):
        whole = [unary.masked_scatter(alive[0], some_unary)]
        whole.append(transition.masked_scatter(alive[1], some_transition))
        return relaxed_by(Parts(*whole, lengths), 0.9, noise)

    inputs = (unary[alive[0]].requires_grad_(), transition[alive[1]].requires_grad_())
    assert bool((of(*inputs) > 0).any())
    assert torch.autograd.gradcheck(of, inputs, fast_mode=True)


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_impossible_has_no_gradient_in_relaxed_draws(kind):
    unary, transition, lengths = chains(kind, seed=7, zeros=0.3)
    unary[0] = -math.inf
    unary.requires_grad_()
    transition.requires_grad_()
    model = chain_of(unary, transition, lengths)
    soft = model.rsample(4, temperature=0.5, generator=seeded(5))
    weights = torch.randn(soft.shape, generator=seeded(6), dtype=torch.float64)
    for values, gradient in zip(
        (unary, transition),
        torch.autograd.grad((soft * weights).sum(), (unary, transition)),
        strict=True,
    ):
        assert bool(gradient.isfinite().all())
        assert bool((gradient[values == -math.inf] == 0).all())
        assert bool((gradient != 0).any())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("total", [0, 1, 4])
def test_differentiable_forward_messages_are_the_filtered_distributions(kind, total):
    parts = chains(kind, seed=8, total=total)
    found = recursion.forward(Parts(*parts))
    for item, length in enumerate(parts[2].tolist()):
        assert bool((found[item, length:] == -math.inf).all())
        for step in range(length):
            prefix = (parts[0], parts[1], torch.full_like(parts[2], step + 1))
            listed, scores = sequences(*prefix, item)
            mass = [scores[listed[:, step] == state].logsumexp(0) for state in range(3)]
            expected = normalised(torch.stack(mass))
            assert_close(normalised(found[item, step]), expected)


@pytest.mark.parametrize("shared", [True, False])
def test_forward_messages_keep_what_single_precision_cannot_scale(shared):
    """The last state is 150 nats less likely at every step from left to right, and then needed."""
    total = 40
    unary = torch.tensor([[0.0, -150.0, -300.0]]).repeat(total, 1)
    unary[-1] = torch.tensor([-math.inf, -math.inf, 0.0])
    unary = unary.unsqueeze(0)
    transition = torch.full((3, 3), 0.5).log().triu() + torch.full((3, 3), -math.inf).tril(-1)
    transition[0, 2] = -math.inf
    if not shared:
        transition = transition.expand(1, total - 1, 3, 3)
    lengths = torch.tensor([total])
    given = [unary.requires_grad_(), transition.clone().requires_grad_()]
    single = recursion.forward(Parts(*given, lengths))
    double = [values.detach().double().requires_grad_() for values in given]
    exact = recursion.forward(Parts(*double, lengths))
    assert torch.equal(single > -math.inf, exact > -math.inf)
    assert_close(normalised(single), normalised(exact).float(), rtol=1e-5, atol=1e-4)
    noise = gumbel((3, *unary.shape), 4)
    soft = [
        relaxed_by(Parts(*parts, lengths), 1.0, noise.to(parts[0].dtype))
        for parts in (given, double)
    ]
    assert_close(soft[0], soft[1].float(), rtol=1e-3, atol=1e-4)
    weights = torch.randn(unary.shape, generator=seeded(7))
    gradients = [
        torch.autograd.grad((values * weights).sum(), parts)
        for values, parts in zip(soft, (given, double), strict=True)
    ]
    for one, other in zip(*gradients, strict=True):
        assert_close(one, other.float(), rtol=1e-3, atol=1e-4)


@pytest.mark.long
def test_long_chains_in_single_precision():
    generator = seeded(8)
    unary = torch.randn(2, 3000, 4, generator=generator) * 3
    transition = torch.randn(4, 4, generator=generator)
    transition[0, 1] = -math.inf
    lengths = torch.tensor([3000, 2000])
    unary.requires_grad_()
    model, noise = chain_of(unary, transition, lengths), gumbel((1, *unary.shape), 9).float()
    given = Parts(unary, transition, lengths)
    soft = relaxed_by(given, 0.5, noise)
    states = straight_through(soft).argmax(-1)
    drawn = traceback(recursion.forward(given), given, count=1, noise=lambda t: noise[:, :, t])
    assert torch.equal(states[..., :2000], drawn[..., :2000])
    assert bool((model.score(states) > -math.inf).all())
    (gradient,) = torch.autograd.grad((soft * soft).sum(), unary)
    assert bool(gradient.isfinite().all())


def test_impossible_items_are_marked_and_leave_the_others_alone():
    parts = chains("shared", seed=9, zeros=0.0)
    item = int(parts[2].argmax())
    parts[0][item, 1] = -math.inf
    model, (others, gone) = chain_of(*parts), possible_items(*parts)
    with pytest.raises(ImpossibleEvidenceError, match="has no samples"):
        model.sample(3, seeded(10))
    soft = model.rsample(3, temperature=1.0, generator=seeded(10))
    assert bool((soft[:, item] == 0).all())
    assert gone == 1
    some = torch.arange(len(parts[2])) != item
    assert_close(soft[:, some].sum((-1, -2))[0], others[2].double())
    assert torch.equal((chain_of(*others).sample(3, seeded(1)) >= 0).sum(-1)[0], others[2])


@pytest.mark.parametrize("temperature", [0.0, -1.0, math.nan, math.inf])
def test_a_temperature_must_be_above_zero(temperature):
    with pytest.raises(ModelError, match="temperature above 0"):
        chain_of(*chains("shared")).rsample(1, temperature=temperature)


def test_straight_through_is_hard_forwards_and_relaxed_backwards():
    logits = torch.randn(4, 3, generator=seeded(11), dtype=torch.float64, requires_grad=True)
    weights = torch.randn(5, 3, generator=seeded(12), dtype=torch.float64)
    soft = torch.cat([logits.softmax(-1), torch.zeros(1, 3, dtype=torch.float64)])
    hard = straight_through(soft)
    one_hot = torch.nn.functional.one_hot(logits.argmax(-1), 3).double()
    assert torch.equal(hard[:4], one_hot)
    assert bool((hard[4] == 0).all())
    (got,) = torch.autograd.grad((hard * weights).sum(), logits, retain_graph=True)
    (expected,) = torch.autograd.grad((soft * weights).sum(), logits)
    assert_close(got, expected)
    assert straight_through(torch.zeros(2, 0, 3)).shape == (2, 0, 3)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("steps", ["one table", "a table of each step"])
def test_relaxed_draws_of_compiled_code_are_those_of_torch(kind, steps, by_torch):
    unary, transition, lengths, *_ = chains(kind, states=4, total=6)
    if steps == "a table of each step" and transition.ndim == 2:
        transition = transition + gumbel((len(unary), 5, 4, 4), 11)
    model = chain_of(unary, transition, lengths)

    def asked():
        return model.rsample(5, temperature=0.5, generator=seeded(12))

    assert_close(asked(), by_torch(asked))
