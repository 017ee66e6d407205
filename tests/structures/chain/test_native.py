"""The compiled kernel says what torch says, at any size and range, and by any number of threads."""

import math

import pytest
import torch

from rdpgraph import Chain

INF = math.inf
# Less, as much and more than a block of rows or a panel of columns, in either type.
SIZES = [(1, 1, 1), (3, 5, 2), (8, 4, 16), (9, 3, 33), (17, 6, 31), (2, 7, 65), (20, 300, 5)]
each = pytest.mark.parametrize("size", SIZES)
types = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])


@pytest.fixture(params=[1, 2])
def threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


def chain_of(size, dtype, *, spread=1.0, whole=False):
    """A chain with hard zeros and lengths; ``whole`` scores tie often."""
    batch, steps, states = size
    generator = torch.Generator().manual_seed(batch + 31 * steps + 997 * states)
    unary = spread * torch.randn(batch, steps, states, generator=generator, dtype=dtype)
    transition = torch.randn(states, states, generator=generator, dtype=dtype)
    gone = torch.rand(states, states, generator=generator) < 0.2
    gone.fill_diagonal_(False)
    if states > 1:
        unary[0, 0, 0] = -INF
    lengths = torch.randint(0, steps + 1, (batch,), generator=generator)
    lengths[0] = steps
    if whole:
        unary, transition = unary.round(), transition.round()
    return Chain(unary, transition.masked_fill(gone, -INF), lengths=lengths)


def sums(chain):
    """Log Z, and its gradients with weights for each item."""
    unary, transition = (part.clone().requires_grad_() for part in (chain.unary, chain.transition))
    values = Chain(unary, transition, lengths=chain.lengths).log_partition()
    weights = torch.linspace(1.0, 2.0, len(values), dtype=values.dtype)
    return values.detach(), *torch.autograd.grad((values * weights).sum(), (unary, transition))


@each
@types
@pytest.mark.parametrize("spread", [1.0, 30.0, 200.0])
def test_log_z_and_gradients_agree(size, dtype, spread, threads, by_torch):
    chain = chain_of(size, dtype, spread=spread)
    close = {"rtol": 1e-5, "atol": 1e-4} if dtype == torch.float32 else {}
    torch.testing.assert_close(sums(chain), by_torch(lambda: sums(chain)), **close)


@each
@types
@pytest.mark.parametrize("whole", [False, True])
def test_best_sequences_are_the_same(size, dtype, whole, threads, by_torch):
    chain = chain_of(size, dtype, whole=whole)
    assert torch.equal(chain.mode(), by_torch(chain.mode))
    close = {"rtol": 1e-5, "atol": 1e-5} if dtype == torch.float32 else {}
    best = chain.max_marginals()
    torch.testing.assert_close(best, by_torch(chain.max_marginals), **close)


@pytest.mark.parametrize("size", [*SIZES[:-1], (4, 9, 3)])
@pytest.mark.parametrize("k", [1, 2, 5, 40])
def test_k_best_agree(size, k, threads, by_torch):
    chain = chain_of(size, torch.float64)
    found, expected = chain.k_best(k), by_torch(lambda: chain.k_best(k))
    assert torch.equal(found.states, expected.states)
    assert torch.equal(found.scores, expected.scores)


@pytest.mark.parametrize("size", SIZES[:-1])
def test_relaxed_draws_do_not_depend_on_the_kernel(size, by_torch, small_blocks):
    chain = chain_of(size, torch.float64)
    inputs = chain.unary.requires_grad_(), chain.transition.requires_grad_()

    def drawn():
        """The draws, and the gradient of their squares."""
        soft = chain.rsample(20, temperature=0.5, generator=torch.Generator().manual_seed(0))
        return soft.detach(), *torch.autograd.grad(soft.square().sum(), inputs)

    found = drawn()
    torch.testing.assert_close(found, by_torch(drawn))
    small_blocks(1)
    torch.testing.assert_close(found, drawn())


def test_nothing_is_added_for_no_items(by_torch):
    unary, transition = torch.zeros(0, 4, 3), torch.zeros(3, 3, requires_grad=True)

    def gradient():
        value = Chain(unary, transition).log_partition().sum()
        return torch.autograd.grad(value, transition)[0]

    for found in (gradient(), by_torch(gradient)):
        assert torch.equal(found, torch.zeros(3, 3))


@pytest.mark.parametrize("persistent", [False, True])
def test_long_chains_in_single_precision_without_the_kernel(persistent, by_torch):
    """The best sequence scores what it does in doubles, and so do log Z and its gradient."""
    chain = chain_of((2, 700, 5), torch.float32)
    unary, transition = chain.unary, chain.transition
    if persistent:  # what came first is never forgotten
        transition = torch.full((5, 5), -200.0).fill_diagonal_(0.0)

    def answers(unary, transition):
        unary = unary.clone().requires_grad_()
        chain = Chain(unary, transition)
        value = chain.log_partition()
        return value.detach(), torch.autograd.grad(value.sum(), unary)[0], chain.mode()

    wide = unary.double(), transition.double()
    found = by_torch(lambda: answers(unary, transition))
    expected = by_torch(lambda: answers(*wide))
    torch.testing.assert_close(found[0].double(), expected[0], rtol=1e-6, atol=0)
    torch.testing.assert_close(found[1].double(), expected[1], rtol=0, atol=1e-4)
    scores = (Chain(*wide).score(states) for states in (found[2], expected[2]))
    torch.testing.assert_close(*scores, rtol=1e-6, atol=0)
