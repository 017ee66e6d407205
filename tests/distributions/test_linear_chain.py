"""Linear chains as distributions of torch's kind, against enumeration."""

import math
from itertools import product

import numpy as np
import pytest
import torch
from torch.distributions import Independent, kl_divergence

import rdpgraph as rg
from rdpgraph import Chain, distributions
from rdpgraph.distributions import LinearChain
from rdpgraph.errors import ModelError

STEPS, STATES = 4, 3


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def potentials(*batch, seed=0, per_step=False):
    source = generator(seed)
    unary = torch.randn(*batch, STEPS, STATES, generator=source, dtype=torch.float64)
    shape = (*batch, STEPS - 1) if per_step else ()
    transition = torch.randn(*shape, STATES, STATES, generator=source, dtype=torch.float64)
    return unary, transition


def sequences(steps=STEPS, states=STATES):
    return torch.tensor(list(product(range(states), repeat=steps)), dtype=torch.long)


def enumerated(unary, transition, length=STEPS):
    """Every sequence of one item, and its log-probability."""
    all_of_them = sequences(length, unary.shape[-1])
    steps = torch.arange(length)
    scores = unary[steps, all_of_them].sum(-1)
    table = transition.expand(unary.shape[0] - 1, *transition.shape[-2:])
    before, after = all_of_them[:, :-1], all_of_them[:, 1:]
    return all_of_them, (scores + table[steps[:-1], before, after].sum(-1)).log_softmax(0)


@pytest.mark.parametrize("per_step", [False, True])
def test_log_prob_entropy_and_mode_by_enumeration(per_step):
    unary, transition = potentials(per_step=per_step)
    states, expected = enumerated(unary, transition)
    chain = LinearChain(unary, transition)
    assert chain.batch_shape == ()
    assert chain.event_shape == (STEPS,)
    torch.testing.assert_close(chain.log_prob(states), expected)
    torch.testing.assert_close(chain.entropy(), -(expected.exp() * expected).sum())
    assert torch.equal(chain.mode, states[expected.argmax()])
    assert chain.perplexity() == chain.entropy().exp()


def test_each_item_of_a_batch_with_lengths_is_that_item_alone():
    unary, transition = potentials(5)
    lengths = torch.tensor([0, 1, 2, 3, 4])
    chain = LinearChain(unary, transition, lengths=lengths)
    for item, length in enumerate(lengths.tolist()):
        states, expected = enumerated(unary[item], transition, length)
        padded = torch.full((len(states), 5, STEPS), 0)
        padded[:, item, :length] = states
        padded[:, item, length:] = -1  # what stands there is not looked at
        torch.testing.assert_close(chain.log_prob(padded)[:, item], expected)
        torch.testing.assert_close(chain.entropy()[item], -(expected.exp() * expected).sum())
        best = chain.mode[item]
        assert torch.equal(best[:length], states[expected.argmax()])
        assert (best[length:] == -1).all()


def test_kl_divergence_by_enumeration():
    left, right = potentials(2, seed=1), potentials(seed=2, per_step=True)
    other = enumerated(*right)[1]
    divergence = kl_divergence(LinearChain(*left), LinearChain(*right))
    for item in range(2):
        own = enumerated(left[0][item], left[1])[1]
        torch.testing.assert_close(divergence[item], (own.exp() * (own - other)).sum())
    same = kl_divergence(LinearChain(*left), LinearChain(*left))
    torch.testing.assert_close(same, torch.zeros_like(same))


def test_kl_divergence_is_infinite_where_the_other_forbids():
    unary, transition = potentials()
    hard = transition.clone()
    hard[0, 1] = -math.inf
    assert kl_divergence(LinearChain(unary, transition), LinearChain(unary, hard)) == math.inf
    back = kl_divergence(LinearChain(unary, hard), LinearChain(unary, transition))
    states, log_p = enumerated(unary, hard)
    log_q = enumerated(unary, transition)[1]
    possible = log_p > -math.inf
    expected = (log_p.exp() * (log_p - log_q))[possible].sum()
    assert 0 < len(states[possible]) < len(states)
    torch.testing.assert_close(back, expected)


def test_kl_divergence_needs_equal_steps():
    unary, transition = potentials()
    with pytest.raises(ModelError, match="got 4 and 3"):
        kl_divergence(LinearChain(unary, transition), LinearChain(unary[1:], transition))


def test_log_prob_and_entropy_have_the_gradients_of_the_enumeration():
    unary, transition = potentials()
    states, _ = enumerated(unary, transition)
    for answer, expected in (
        (lambda chain: chain.log_prob(states[7]), lambda log_p: log_p[7]),
        (lambda chain: chain.entropy(), lambda log_p: -(log_p.exp() * log_p).sum()),
    ):
        inputs = [value.clone().requires_grad_() for value in (unary, transition)]
        gradients = torch.autograd.grad(answer(LinearChain(*inputs)), inputs)
        wanted = torch.autograd.grad(expected(enumerated(*inputs)[1]), inputs)
        torch.testing.assert_close(gradients, wanted)


def test_samples_have_torch_shapes_no_gradient_and_follow_the_generator():
    unary, transition = potentials(2)
    chain = LinearChain(unary.requires_grad_(), transition, lengths=torch.tensor([4, 2]))
    draws = chain.sample((3, 5), generator=generator(1))
    assert draws.shape == (3, 5, 2, STEPS)
    assert not draws.requires_grad
    assert torch.equal(draws.flatten(0, 1), chain.chain.sample(15, generator(1)))
    assert (draws[..., 1, 2:] == -1).all()
    assert chain.support.check(draws).all()
    assert chain.log_prob(draws).isfinite().all()
    assert chain.sample().shape == (2, STEPS)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        first = chain.sample((4,))
        torch.manual_seed(0)
        assert torch.equal(first, chain.sample((4,)))


def test_samples_of_a_chain_with_one_sequence_are_that_sequence():
    only = torch.tensor([2, 0, 1, 1])
    unary = torch.full((STEPS, STATES), -math.inf)
    unary[torch.arange(STEPS), only] = 0
    draws = LinearChain(unary, torch.zeros(STATES, STATES)).sample((6,))
    assert torch.equal(draws, only.expand(6, STEPS))


def test_relaxed_samples_are_simplices_with_a_gradient():
    unary, transition = potentials(2)
    unary.requires_grad_()
    transition.requires_grad_()
    chain = LinearChain(unary, transition, lengths=torch.tensor([4, 2]), temperature=0.7)
    assert chain.has_rsample
    draws = chain.rsample((3,), generator=generator(2))
    assert draws.shape == (3, 2, STEPS, STATES)
    total = torch.ones(3, 2, STEPS, dtype=torch.float64)
    total[:, 1, 2:] = 0
    torch.testing.assert_close(draws.sum(-1), total)
    gradients = torch.autograd.grad(draws[..., 0].sum(), (unary, transition))
    assert all(gradient.abs().sum() > 0 for gradient in gradients)
    hard = rg.straight_through(draws)
    assert torch.equal(hard.sum(-1), total)


def test_the_temperature_is_that_of_the_relaxed_samples():
    unary, transition = potentials()
    cold = LinearChain(unary, transition, temperature=1e-3).rsample((50,), generator=generator(3))
    warm = LinearChain(unary, transition, temperature=2.0).rsample((50,), generator=generator(3))
    assert cold.amax(-1).mean() > 0.99 > warm.amax(-1).mean()
    with pytest.raises(ModelError, match="temperature"):
        LinearChain(unary, transition, temperature=0.0)


@pytest.mark.parametrize("per_step", [False, True])
def test_expanded_is_the_same_distribution(per_step):
    unary, transition = potentials(2, per_step=per_step)
    lengths = torch.tensor([4, 3])
    chain = LinearChain(unary, transition, lengths=lengths, temperature=0.5)
    wide = chain.expand((5, 2))
    assert wide.batch_shape == (5, 2)
    assert wide.unary.data_ptr() == unary.data_ptr()
    assert wide.temperature == 0.5
    torch.testing.assert_close(wide.entropy(), chain.entropy().expand(5, 2))
    states = chain.sample((7,), generator=generator(4))
    expected = chain.log_prob(states).unsqueeze(1).expand(7, 5, 2)
    torch.testing.assert_close(wide.log_prob(states.unsqueeze(1)), expected)
    assert wide.rsample((3,)).shape == (3, 5, 2, STEPS, STATES)


def test_log_prob_broadcasts_a_sequence_over_the_batch():
    unary, transition = potentials(3)
    one = torch.tensor([0, 1, 2, 0])
    chain = LinearChain(unary, transition)
    torch.testing.assert_close(chain.log_prob(one), chain.log_prob(one.expand(3, STEPS)))


def test_as_a_part_of_torch_distributions():
    unary, transition = potentials(3)
    chain = LinearChain(unary, transition)
    together = Independent(chain, 1)
    states = together.sample((2,))
    torch.testing.assert_close(together.log_prob(states), chain.log_prob(states).sum(-1))
    assert "unary: torch.Size([3, 4, 3])" in repr(chain)
    for what in ("mean", "variance"):
        with pytest.raises(NotImplementedError):
            getattr(chain, what)


def test_validation_is_torch_s():
    unary, transition = potentials(2)
    chain = LinearChain(unary, transition, validate_args=True)
    for wrong in (torch.tensor([0, 1, 3, 0]), torch.tensor([0, -1, 0, 0]), torch.zeros(5)):
        with pytest.raises(ValueError, match=r"support|event_shape|shape|size"):
            chain.log_prob(wrong.expand(2, -1))
    with pytest.raises(ValueError, match="support"):
        chain.log_prob(torch.tensor([0.0, 0.5, 1.0, 2.0]))
    assert not chain.support.check(torch.tensor([0, 1, 3, 0]))
    within = LinearChain(unary, transition, lengths=torch.tensor([4, 2])).support
    assert within.check(torch.tensor([[0, 1, 2, -1], [0, 1, 7, -1]])).tolist() == [False, True]
    with pytest.raises(ValueError, match="unary"):
        LinearChain(unary * math.nan, transition, validate_args=True)


def test_a_potential_may_be_the_transition():
    unary, transition = potentials(2)
    chain = LinearChain(unary, rg.Table(transition))
    states = sequences()[:, None].expand(-1, 2, -1)
    expected = LinearChain(unary, transition).log_prob(states)
    torch.testing.assert_close(chain.log_prob(states), expected)
    torch.testing.assert_close(chain.expand((3, 2)).entropy()[0], chain.entropy())
    assert isinstance(chain.chain, Chain)


@pytest.mark.parametrize("shape", [3, np.int64(3), (3,), [3], (), (2, 3), (0,), torch.Size((3,))])
def test_draws_are_asked_for_by_a_number_or_a_shape(shape):
    chain = distributions.LinearChain(torch.zeros(2, 4, 3), torch.zeros(3, 3))
    rows = torch.tensor([[0.9, 0.1], [0.2, 0.8]]).log()
    hmm = distributions.HMM(rows[0], rows, rows, length=4)
    lead = (3,) if shape == 3 else tuple(shape)
    assert chain.sample(shape).shape == (*lead, 2, 4)
    assert chain.rsample(shape).shape == (*lead, 2, 4, 3)
    assert hmm.sample(shape).shape == (*lead, 4)
    first, second = (
        chain.sample(each, generator=torch.Generator().manual_seed(0)) for each in (shape, lead)
    )
    assert torch.equal(first, second)


@pytest.mark.parametrize("shape", [-1, 3.0, "3", None, (2, -1), True, (2.5,)])
def test_a_wrong_shape_of_draws_is_refused_in_one_line(shape):
    chain = distributions.LinearChain(torch.zeros(4, 3), torch.zeros(3, 3))
    for draw in (chain.sample, chain.rsample):
        with pytest.raises(rg.errors.ModelError, match=r"as 3, or their shape") as caught:
            draw(shape)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("batch", [(), (2,), (2, 0)])
def test_a_chain_of_one_step_has_transitions_for_no_steps(batch):
    unary = torch.randn(*batch, 1, 3, dtype=torch.float64)
    chain = LinearChain(unary, torch.zeros(*batch, 0, 3, 3, dtype=torch.float64))
    one = torch.distributions.Categorical(logits=unary.squeeze(-2), validate_args=False)
    states = chain.sample((4,))
    assert states.shape == (4, *batch, 1)
    torch.testing.assert_close(chain.log_prob(states), one.log_prob(states.squeeze(-1)))
    torch.testing.assert_close(chain.entropy(), one.entropy())
    wrong = torch.full((*batch, 1, 3), math.inf)
    if wrong.numel():
        with pytest.raises(ValueError, match="unary"):
            LinearChain(wrong, torch.zeros(*batch, 0, 3, 3))
