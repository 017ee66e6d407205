"""Hidden Markov models as distributions, against enumeration and hmmlearn."""

import math
from itertools import product

import pytest
import torch

from rdpgraph import Chain
from rdpgraph.distributions import HMM
from rdpgraph.errors import ImpossibleEvidenceError, ModelError

STEPS, STATES, SYMBOLS = 4, 3, 2


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def parameters(*batch, states=STATES, symbols=SYMBOLS, seed=0):
    source = generator(seed)
    shapes = ((*batch, states), (states, states), (states, symbols))
    draws = [torch.randn(shape, generator=source, dtype=torch.float64) for shape in shapes]
    return [draw.log_softmax(-1) for draw in draws]


def every(count, steps=STEPS):
    return torch.tensor(list(product(range(count), repeat=steps)), dtype=torch.long)


def joint(start, transition, emission, observations, hidden):
    """Log-probability of hidden states with observations, both (..., steps)."""
    seen = emission[hidden, observations].sum(-1)
    return start[hidden[..., 0]] + transition[hidden[..., :-1], hidden[..., 1:]].sum(-1) + seen


def test_log_prob_by_enumeration():
    model = parameters()
    hmm = HMM(*model, length=STEPS)
    assert hmm.batch_shape == ()
    assert hmm.event_shape == (STEPS,)
    observations, hidden = every(SYMBOLS), every(STATES)
    expected = joint(*model, observations.unsqueeze(1), hidden).logsumexp(1)
    log_prob = hmm.log_prob(observations)
    torch.testing.assert_close(log_prob, expected)
    torch.testing.assert_close(log_prob.logsumexp(0), torch.zeros((), dtype=torch.float64))


def test_log_prob_has_the_gradient_of_the_enumeration():
    model = [value.requires_grad_() for value in parameters()]
    observations = torch.tensor([0, 1, 1, 0])
    ours = HMM(*model, length=STEPS, validate_args=False).log_prob(observations)
    theirs = joint(*model, observations, every(STATES)).logsumexp(0)
    torch.testing.assert_close(torch.autograd.grad(ours, model), torch.autograd.grad(theirs, model))


def test_posterior_and_filter_by_enumeration():
    model = parameters()
    hmm = HMM(*model, length=STEPS)
    observations, hidden = torch.tensor([1, 0, 0, 1]), every(STATES)
    expected = joint(*model, observations, hidden).log_softmax(0)
    posterior = hmm.posterior(observations)
    torch.testing.assert_close(posterior.log_prob(hidden), expected)
    last = torch.stack([expected[hidden[:, -1] == state].exp().sum() for state in range(STATES)])
    torch.testing.assert_close(hmm.filter(observations).probs, last)


def test_missing_symbols_are_summed_out():
    hmm = HMM(*parameters(), length=STEPS)
    seen = torch.tensor([1, -1, 0, -1])
    filled = every(SYMBOLS)
    agrees = ((filled == seen) | (seen == -1)).all(-1)
    assert agrees.sum() == 4
    torch.testing.assert_close(hmm.log_prob(seen), hmm.log_prob(filled[agrees]).logsumexp(0))
    nothing = hmm.log_prob(torch.full((STEPS,), -1))
    torch.testing.assert_close(nothing, torch.zeros_like(nothing))


def test_a_batch_of_starts_is_each_start_alone():
    start, transition, emission = parameters(3)
    hmm = HMM(start, transition, emission, length=STEPS)
    assert hmm.batch_shape == (3,)
    observations = every(SYMBOLS)
    log_prob = hmm.log_prob(observations.unsqueeze(1))
    assert log_prob.shape == (len(observations), 3)
    assert hmm.sample((5, 2)).shape == (5, 2, 3, STEPS)
    for item in range(3):
        alone = HMM(start[item], transition, emission, length=STEPS)
        torch.testing.assert_close(log_prob[:, item], alone.log_prob(observations))
    one = torch.tensor([0, 1, 0, 1])
    torch.testing.assert_close(hmm.log_prob(one), hmm.log_prob(one.expand(3, -1)))
    wide = hmm.expand((4, 3))
    assert wide.sample().shape == (4, 3, STEPS)
    torch.testing.assert_close(wide.log_prob(one), hmm.log_prob(one).expand(4, 3))


@pytest.mark.parametrize("length", [0, 1])
def test_short_lengths(length):
    model = parameters()
    hmm = HMM(*model, length=length)
    observations = every(SYMBOLS, length)
    total = hmm.log_prob(observations).logsumexp(0)
    torch.testing.assert_close(total, torch.zeros_like(total))
    assert hmm.sample((3,)).shape == (3, length)
    if length == 0:
        with pytest.raises(ModelError, match="length 0"):
            hmm.filter(observations)


def test_it_is_the_likelihood_of_the_chain():
    model = parameters(seed=1)
    observations = every(SYMBOLS)
    chain = Chain.hmm(*model, observations)
    log_prob = HMM(*model, length=STEPS).log_prob(observations)
    torch.testing.assert_close(log_prob, chain.log_partition())


def test_samples_are_as_frequent_as_they_are_probable():
    hmm = HMM(*parameters(seed=2), length=3)
    count = 20_000
    draws = hmm.sample((count,), generator=generator(3))
    assert torch.equal(draws, hmm.sample((count,), generator=generator(3)))
    place = (draws * torch.tensor([4, 2, 1])).sum(-1)
    frequency = torch.bincount(place, minlength=8) / count
    probability = hmm.log_prob(every(SYMBOLS, 3)).exp()
    deviation = (probability * (1 - probability) / count).sqrt()
    assert ((frequency - probability).abs() < 4.5 * deviation).all()


def test_hard_zeros():
    start = torch.tensor([1.0, 0.0]).log()
    transition = torch.tensor([[0.0, 1.0], [1.0, 0.0]]).log()
    emission = torch.eye(2).log()
    hmm = HMM(start, transition, emission, length=5)
    only = torch.tensor([0, 1, 0, 1, 0])
    assert torch.equal(hmm.sample((4,)), only.expand(4, 5))
    assert hmm.log_prob(only) == 0
    assert hmm.log_prob(1 - only) == -math.inf
    assert hmm.filter(only).probs.tolist() == [1, 0]
    with pytest.raises(ImpossibleEvidenceError, match="probability zero"):
        hmm.filter(1 - only)


def test_validation_and_what_has_no_answer():
    start, transition, emission = parameters()
    hmm = HMM(start, transition, emission, length=STEPS, validate_args=True)
    for wrong in (torch.tensor([0, 1, SYMBOLS, 0]), torch.tensor([0, 1, -2, 0]), torch.zeros(5)):
        with pytest.raises(ValueError, match=r"support|shape|size"):
            hmm.log_prob(wrong)
    with pytest.raises(ValueError, match="transition"):
        HMM(start, transition + 1, emission, length=STEPS, validate_args=True)
    with pytest.raises(ModelError, match="transition"):
        HMM(start, transition[:2], emission, length=STEPS, validate_args=True)
    with pytest.raises(ModelError, match="emission"):
        HMM(start, transition, emission[:2], length=STEPS, validate_args=True)
    with pytest.raises(ModelError, match="length"):
        HMM(start, transition, emission, length=-1)
    with pytest.raises(NotImplementedError):
        hmm.entropy()
    with pytest.raises(NotImplementedError):
        hmm.mode  # noqa: B018


@pytest.mark.long
def test_agrees_with_hmmlearn():
    hmmlearn = pytest.importorskip("hmmlearn.hmm")
    states, symbols = 5, 7
    start, transition, emission = parameters(states=states, symbols=symbols, seed=4)
    theirs = hmmlearn.CategoricalHMM(n_components=states, n_features=symbols)
    theirs.startprob_ = start.exp().numpy()
    theirs.transmat_ = transition.exp().numpy()
    theirs.emissionprob_ = emission.exp().numpy()
    lengths = torch.tensor([1, 2, 17, 40])
    source = generator(5)
    observations = torch.randint(symbols, (4, 40), generator=source)
    padded = observations.where(torch.arange(40) < lengths.unsqueeze(1), -1)
    log_prob = HMM(start, transition, emission, length=40).log_prob(padded)
    chain = Chain.hmm(start, transition, emission, padded, lengths=lengths)
    close = {"atol": 1e-4, "rtol": 0}
    for item, length in enumerate(lengths.tolist()):
        column = observations[item, :length].unsqueeze(1).numpy()
        likelihood = torch.tensor(theirs.score(column), dtype=torch.float64)
        torch.testing.assert_close(log_prob[item], likelihood, **close)
        torch.testing.assert_close(chain.log_partition()[item], likelihood, **close)
        hmm = HMM(start, transition, emission, length=length)
        posterior = hmm.posterior(observations[item, :length])
        smoothed = torch.from_numpy(theirs.predict_proba(column))
        torch.testing.assert_close(posterior.chain.marginals(), smoothed, **close)
        torch.testing.assert_close(chain.marginals()[item, :length], smoothed, **close)
        assert posterior.mode.tolist() == theirs.predict(column).tolist()
        assert chain.mode()[item, :length].tolist() == theirs.predict(column).tolist()
        last = hmm.filter(observations[item, :length]).probs
        torch.testing.assert_close(last, smoothed[-1], **close)
