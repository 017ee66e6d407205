"""Blocks of steps side by side say what single steps say, and are left where that is not known."""

import math

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from rdpgraph.structures.chain import array_paths, array_steps, decode, native, recursion, sampling
from tests.structures.chain.enumeration import seeded

INF = math.inf


@pytest.fixture(autouse=True)
def without_a_kernel(monkeypatch):
    monkeypatch.setattr(native, "applies", lambda unary, transition: False)


def drawn(batch, steps, states, *, dtype=torch.float64, zeros=0.0, seed=0):
    generator = seeded(seed)
    unary = torch.randn(batch, steps, states, generator=generator, dtype=dtype)
    transition = torch.randn(states, states, generator=generator, dtype=dtype)
    gone = torch.rand(states, states, generator=generator) < zeros
    gone.fill_diagonal_(fill_value=False)
    return unary, transition.masked_fill(gone, -INF), torch.full((batch,), steps)


def persistent(steps, states, *, cycle=False):
    """A chain that never forgets: each state leads to one other, or hardly leaves itself."""
    if cycle:
        transition = torch.full((states, states), -INF, dtype=torch.float64)
        transition[range(states), [*range(1, states), 0]] = 0.0
    else:
        transition = torch.full((states, states), -200.0, dtype=torch.float64)
        transition.fill_diagonal_(0.0)
    unary = torch.randn(1, steps, states, generator=seeded(1), dtype=torch.float64)
    return unary, transition, torch.tensor([steps])


def one_by_one(monkeypatch, answer):
    """The answer by single steps."""
    with monkeypatch.context() as patch:
        patch.setattr(array_steps, "length_of", lambda *given: 0)
        patch.setattr(array_paths, "_blocks", lambda *given, fewest: (0, 0))
        return answer()


@pytest.mark.parametrize("every", [0, 4])
@pytest.mark.parametrize(("rows", "steps", "length"), [(1, 16, 8), (3, 30, 8), (2, 13, 12)])
def test_products_of_blocks_give_the_states_of_single_steps(rows, steps, length, every):
    shares = torch.rand(steps, rows, 4, generator=seeded(0), dtype=torch.float64).numpy()
    matrix = torch.rand(4, 4, generator=seeded(1), dtype=torch.float64).numpy()
    shares[:, 0, 1], matrix[2, 3] = 0.0, 0.0
    seeds = np.arange(1.0, rows + 1)[:, None]
    plain, begins = shares.copy(), {0: np.arange(rows)}
    array_steps.advanced(plain, matrix, begins, seeds, every=every)
    array_steps.in_blocks(shares, matrix, seeds, length, every=every)
    if every:  # what a block begins with is divided as well
        plain, shares = (part / part.sum(-1, keepdims=True) for part in (plain, shares))
    np.testing.assert_allclose(shares, plain, rtol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("zeros", [0.0, 0.5])
@pytest.mark.parametrize("batch", [1, 3])
def test_log_partition_and_its_gradient_are_those_of_single_steps(batch, zeros, dtype, monkeypatch):
    unary, transition, lengths = drawn(batch, 203, 5, dtype=dtype, zeros=zeros)
    unary[0, 7, :2] = -INF
    unary[-1, -1] += 30.0
    unary.requires_grad_()
    transition.requires_grad_()
    weights = torch.arange(1.0, batch + 1, dtype=dtype)
    taken: list[int] = []
    plain = array_steps.in_blocks
    monkeypatch.setattr(
        array_steps,
        "in_blocks",
        lambda *given, every: taken.append(every) or plain(*given, every=every),
    )

    def answers():
        value = recursion.log_partition(unary, transition, lengths)
        gradients = torch.autograd.grad((value * weights).sum(), (unary, transition))
        return [
            value.detach(),
            *gradients,
            *vars(recursion.messages(unary, transition, lengths)).values(),
        ]

    close = {"rtol": 1e-4, "atol": 1e-5} if dtype == torch.float32 else {}
    answers()
    assert taken[0] == 4
    for found, expected in zip(answers(), one_by_one(monkeypatch, answers), strict=True):
        assert_close(found, expected, **close)


def test_an_item_without_a_possible_sequence_leaves_the_others_alone():
    unary, transition, lengths = drawn(2, 100, 3)
    unary[0, 50] = -INF
    unary.requires_grad_()
    values = recursion.log_partition(unary, transition, lengths)
    assert values[0] == -INF
    assert_close(values[1:], recursion.log_partition(unary[1:], transition, lengths[1:]))
    (gradient,) = torch.autograd.grad(values[1], unary)
    assert bool((gradient[0] == 0).all())
    assert_close(gradient[1].sum(1), torch.ones(100, dtype=torch.float64))


def test_ten_thousand_steps_in_single_precision():
    unary, transition, lengths = drawn(1, 10_000, 6, dtype=torch.float32, zeros=0.3)
    wide = unary.double(), transition.double(), lengths
    unary.requires_grad_()
    value = recursion.log_partition(unary, transition, lengths)
    assert_close(value.detach().double(), recursion.log_partition(*wide), rtol=1e-6, atol=0)
    (marginals,) = torch.autograd.grad(value.sum(), unary)
    messages = recursion.messages(*wide)
    expected = (messages.log_forward + messages.log_backward).softmax(-1)
    assert_close(marginals, expected.float(), rtol=0, atol=1e-4)
    states = decode.best_states(unary.detach(), transition, lengths)
    best = decode.viterbi(*wide)[1]
    assert_close(decode.score(*wide, states), best, rtol=1e-9, atol=0)


def test_blocks_whose_products_would_leave_the_range_are_not_taken():
    shares = np.ones((100, 1, 3))
    assert array_steps.length_of(*shares.shape) == 8
    assert array_steps.stays(shares, math.exp(-70.0), 8)
    assert not array_steps.stays(shares, math.exp(-80.0), 8)
    assert not array_steps.stays(shares * math.exp(80.0), 1.0, 8)
    assert not array_steps.stays(shares, 0.0, 8)


def test_the_least_number_is_no_hard_zero():
    assert array_steps.least(np.array([3.0, 0.0, 2.0])) == 2.0
    assert array_steps.least(np.zeros(3)) == 1.0
    assert array_steps.least(np.ones((0, 2))) == 1.0


CASES = {
    "mixing": drawn(1, 300, 5),
    "zeros": drawn(1, 300, 5, zeros=0.6),
    "two": drawn(2, 120, 4),
    "cycle": persistent(130, 4, cycle=True),
    "persistent": persistent(130, 3),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("count", [1, 4])
def test_best_and_drawn_sequences_are_those_of_single_steps(name, count, monkeypatch):
    unary, transition, lengths = CASES[name]
    lengths = lengths.clone()
    lengths[0] -= 3
    monkeypatch.setattr(array_paths, "_FEW", 0)

    def answers():
        best = decode.best_states(unary, transition, lengths)
        return best, sampling.draw(unary, transition, lengths, count, seeded(3))

    for found, expected in zip(answers(), one_by_one(monkeypatch, answers), strict=True):
        assert torch.equal(found, expected)


@pytest.mark.parametrize("name", CASES)
def test_scores_of_prefixes_are_those_of_single_steps(name, monkeypatch):
    unary, transition, _ = CASES[name]
    unary = unary - unary.amax(2, keepdim=True)
    found = array_paths.prefixes(unary, transition)
    expected = one_by_one(monkeypatch, lambda: array_paths.prefixes(unary, transition))
    assert_close(found, expected, rtol=1e-11, atol=1e-11)


def test_a_chain_that_forgets_takes_few_steps(monkeypatch):
    taken: list[int] = []
    for name in ("_extended", "_in_turn"):
        plain = getattr(array_paths, name)
        monkeypatch.setattr(
            array_paths,
            name,
            lambda first, *given, plain=plain, **more: (
                taken.append(len(first)) or plain(first, *given, **more)
            ),
        )
    monkeypatch.setattr(array_paths, "_FEW", 0)
    decode.best_states(*CASES["mixing"])
    assert sum(taken) < 300  # of two recursions over 300 steps
    taken.clear()
    decode.best_states(*CASES["cycle"])
    assert sum(taken) < 1.5 * 2 * 130  # two rounds, and then one by one


def test_no_items_at_all():
    unary, transition, lengths = drawn(0, 100, 3)
    assert recursion.log_partition(unary.requires_grad_(), transition, lengths).shape == (0,)
    assert decode.best_states(unary.detach(), transition, lengths).shape == (0, 100)
