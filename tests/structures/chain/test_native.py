"""The compiled kernel says what the sweeps in torch say, and is done without where it must be."""

import math

import pytest
import torch

from rdpgraph import Chain
from rdpgraph._core import tuning
from rdpgraph.errors import ModelError
from rdpgraph.structures.chain import decode, native, paths, scaled, sweeps
from rdpgraph.structures.chain.factors import Factors
from rdpgraph.structures.recursion import library

INF = math.inf
needs_kernel = pytest.mark.skipif(library.status().kernel is None, reason=str(library.status()))


def factors(batch, steps, states, dtype, spread=1.0):
    generator = torch.Generator().manual_seed(batch + 31 * steps + 997 * states)
    unary = spread * torch.randn(batch, steps, states, generator=generator, dtype=dtype)
    transition = torch.randn(states, states, generator=generator, dtype=dtype)
    gone = torch.rand(states, states, generator=generator) < 0.2
    unary[0, 0, 0] = -INF
    lengths = torch.randint(0, steps + 1, (batch,), generator=generator)
    lengths[0] = steps
    return Factors.of(unary, transition.masked_fill(gone, -INF), lengths)


def agree(one, other):
    torch.testing.assert_close(one.states, other.states)
    torch.testing.assert_close(one.values, other.values)
    assert torch.equal(one.doubtful, other.doubtful)


# Less, as much and more than a block of rows or a panel of columns, in either type.
SIZES = [(1, 1, 1), (3, 5, 2), (8, 4, 16), (9, 3, 33), (17, 6, 31), (2, 7, 65), (20, 300, 5)]


@needs_kernel
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_sweeps_agree(size, dtype, threads, monkeypatch):
    monkeypatch.setattr(library, "threads", lambda work, most=None: threads)
    case = factors(*size, dtype)
    compiled = native.forward(case, floor=0.0, upward=False)
    plain = sweeps.forward(case)
    agree(compiled, plain)
    turned = case.reversed()
    agree(native.forward(turned, floor=0.0, upward=False), sweeps.forward(turned))
    gradient = torch.linspace(1.0, 2.0, size[0], dtype=dtype)
    found = native.backward(case, compiled, gradient)
    expected = sweeps.backward(case, plain, gradient)
    close = {"rtol": 1e-5, "atol": 1e-5} if dtype == torch.float32 else {}
    torch.testing.assert_close(found, expected, **close)


@needs_kernel
@pytest.mark.parametrize("upward", [False, True])
def test_bounds_agree(upward):
    case = factors(3, 40, 6, torch.float64, spread=200.0)
    squeezed = case.squeezed(scaled.FACTOR_FLOOR, upward=upward)
    compiled = native.forward(squeezed, floor=scaled.FLOOR, upward=upward)
    plain = sweeps.forward(squeezed, floor=scaled.FLOOR, upward=upward)
    agree(compiled, plain)
    possible = compiled.states[compiled.states > 0]
    assert possible.min() >= scaled.FLOOR * (1 - 1e-12)


@needs_kernel
def test_doubt_is_told_alike():
    for spread in (1.0, 10.0, 30.0, 100.0):
        case = factors(16, 20, 6, torch.float32, spread=spread)
        compiled = native.forward(case, floor=0.0, upward=False)
        assert torch.equal(compiled.doubtful, sweeps.forward(case).doubtful)


def test_per_step_transitions_have_no_kernel():
    unary = torch.zeros(2, 3, 4)
    assert not native.applies(unary, torch.zeros(1, 2, 4, 4))
    assert not native.applies(unary.to(torch.float16), torch.zeros(4, 4).to(torch.float16))


def by_torch(monkeypatch, answer):
    """The answer without the kernel."""
    with monkeypatch.context() as patch:
        patch.setattr(native, "applies", lambda unary, transition: False)
        return answer()


def parts_of(size, dtype, *, whole=False):
    """Unaries, a transition and lengths; ``whole`` numbers tie often."""
    case = factors(*size, dtype)
    unary, transition = case.unary, case.transition
    return (unary.round(), transition.round(), case.lengths) if whole else (
        unary, transition, case.lengths
    )  # fmt: skip


def levelled(scores, inside):
    """Scores less the largest of each step, for they are what they are but for a constant there."""
    peaks = scores.amax(2, keepdim=True).clamp(min=torch.finfo(scores.dtype).min)
    return torch.where(inside, scores - peaks, 0.0)


@needs_kernel
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("whole", [False, True])
def test_best_sequences_are_the_same(size, dtype, threads, whole, monkeypatch):
    monkeypatch.setattr(library, "threads", lambda work, most=None: threads)
    parts = parts_of(size, dtype, whole=whole)
    inside = (torch.arange(size[1]) < parts[2].unsqueeze(1)).unsqueeze(2)
    expected = by_torch(monkeypatch, lambda: decode.prefixes(*parts))
    found = decode.prefixes(*parts)
    close = {"rtol": 1e-5, "atol": 1e-5} if dtype == torch.float32 else {}
    torch.testing.assert_close(levelled(found, inside), levelled(expected, inside), **close)
    states = by_torch(monkeypatch, lambda: decode.best_states(*parts))
    assert torch.equal(decode.best_states(*parts), states)


@needs_kernel
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("size", [*SIZES[:-1], (4, 9, 3)])
@pytest.mark.parametrize("k", [1, 2, 5, 40])
def test_k_best_agree(size, k, threads, monkeypatch):
    monkeypatch.setattr(library, "threads", lambda work, most=None: threads)
    parts = parts_of(size, torch.float64)
    expected = by_torch(monkeypatch, lambda: decode.k_best(*parts, k))
    states, scores = decode.k_best(*parts, k)
    assert torch.equal(states, expected[0])
    assert torch.equal(scores, expected[1])


@needs_kernel
@pytest.mark.parametrize("size", SIZES)
def test_tracebacks_are_the_same_bit_for_bit(size, monkeypatch):
    parts = parts_of(size, torch.float32)
    messages = decode.prefixes(*parts)
    noise = torch.randn(3, *size, generator=torch.Generator().manual_seed(0))

    def traced():
        return paths.traceback(messages, *parts[1:], count=3, noise=paths.held(noise))

    found = traced()
    assert torch.equal(found, by_torch(monkeypatch, traced))
    monkeypatch.setattr(tuning, "CACHE_BLOCK", 1)
    assert torch.equal(found, traced())


@needs_kernel
def test_draws_do_not_depend_on_the_kernel(monkeypatch):
    parts = parts_of((9, 30, 7), torch.float64)

    def drawn():
        return paths.draw(*parts, 20, torch.Generator().manual_seed(0))

    assert torch.equal(drawn(), by_torch(monkeypatch, drawn))


@needs_kernel
def test_nothing_is_added_for_no_items(monkeypatch):
    unary, transition = torch.zeros(0, 4, 3), torch.zeros(3, 3, requires_grad=True)

    def gradient():
        value = Chain(unary, transition).log_partition().sum()
        return torch.autograd.grad(value, transition)[0]

    for found in (gradient(), by_torch(monkeypatch, gradient)):
        assert torch.equal(found, torch.zeros(3, 3))


@pytest.mark.parametrize("persistent", [False, True])
def test_long_chains_in_single_precision_without_the_kernel(persistent, monkeypatch):
    """The best sequence scores what it does in doubles, and so do log Z and its gradient."""
    unary, transition, _ = parts_of((2, 700, 5), torch.float32)
    if persistent:  # what came first is never forgotten
        transition = torch.full((5, 5), -200.0).fill_diagonal_(0.0)

    def answers(unary, transition):
        unary = unary.clone().requires_grad_()
        chain = Chain(unary, transition)
        value = chain.log_partition()
        return value.detach(), torch.autograd.grad(value.sum(), unary)[0], chain.mode()

    wide = unary.double(), transition.double()
    found = by_torch(monkeypatch, lambda: answers(unary, transition))
    expected = by_torch(monkeypatch, lambda: answers(*wide))
    torch.testing.assert_close(found[0].double(), expected[0], rtol=1e-6, atol=0)
    torch.testing.assert_close(found[1].double(), expected[1], rtol=0, atol=1e-4)
    scores = (Chain(*wide).score(states) for states in (found[2], expected[2]))
    torch.testing.assert_close(*scores, rtol=1e-6, atol=0)


@needs_kernel
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_factors_are_those_of_torch(dtype):
    case = factors(3, 5, 4, dtype)
    found = native.factors(case.unary, case.transition, case.lengths)
    for name in ("emission", "matrix", "offset"):
        assert torch.equal(getattr(found, name), getattr(case, name))


@needs_kernel
def test_memory_of_another_device_is_not_read():
    lengths = torch.tensor([3], device="meta")
    with pytest.raises(ModelError, match="default device"):
        native.prefixes(torch.zeros(1, 3, 2), torch.zeros(2, 2), lengths)
