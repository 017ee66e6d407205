"""Structured VAEs: held against enumeration of all states and of all draws."""

import itertools
import math
import warnings

import pytest
import torch
from torch.testing import assert_close

import rdpgraph as rg
from rdpgraph.answers import RelaxedStates
from rdpgraph.nn import Joint, LSTMDecoder, StructuredVAE

N, V, D = 3, 4, 3
TOKENS = torch.tensor([[1, 3, 2], [2, 2, 0], [3, 0, 0]])
LENGTHS = torch.tensor([3, 2, 1])


class Encoder(torch.nn.Embedding):
    """Every word by itself."""

    def forward(self, tokens, lengths):
        return super().forward(tokens)


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def tiny(estimator=None, states=N, seed=0):
    torch.manual_seed(seed)
    decoder = LSTMDecoder(states=states, vocabulary=V, hidden=6, dimension=4)
    vae = StructuredVAE(Encoder(V, D), decoder, states=states, dimension=D, estimator=estimator)
    return vae.double()


def sequences(length, states=N):
    return torch.tensor(list(itertools.product(range(states), repeat=length)))


def joints(vae, tokens):
    """log p(x, y) of one sentence for all x, and log q(x | y)."""
    paths = sequences(len(tokens), len(vae.embeddings))
    many = len(paths)
    length = torch.full((many,), len(tokens))
    draw = RelaxedStates.of(paths, vae.embeddings)
    joint = vae.decoder(tokens.repeat(many, 1), length, draw)
    log_q = vae.chain(tokens.unsqueeze(0)).log_prob(paths.unsqueeze(1)).squeeze(1)
    return joint, log_q


def log_likelihoods(vae):
    found = [
        sum(joints(vae, row[:length])[0]).logsumexp(0)
        for row, length in zip(TOKENS, LENGTHS, strict=True)
    ]
    return torch.stack(found).detach()


def test_the_decoder_is_a_distribution_over_words_and_states():
    vae = tiny()
    words, states = sequences(2, V), sequences(2)
    tokens = words.repeat_interleave(len(states), 0)
    draw = RelaxedStates.of(states.repeat(len(words), 1), vae.embeddings)
    total = sum(vae.decoder(tokens, torch.full((len(tokens),), 2), draw)).exp().sum()
    assert_close(total, torch.ones((), dtype=torch.float64))


def test_a_batch_of_sentences_is_each_by_itself_whatever_stands_beyond_their_lengths():
    vae = tiny()
    states = torch.tensor([[0, 2, 1], [1, 0, -1], [2, -1, -1]])
    draw = RelaxedStates.of(states, vae.embeddings)
    together = vae.decoder(torch.where(states < 0, 3, TOKENS), LENGTHS, draw)
    for item, length in enumerate(LENGTHS.tolist()):
        own = RelaxedStates.of(states[item : item + 1, :length], vae.embeddings)
        single = vae.decoder(TOKENS[item : item + 1, :length], LENGTHS[item : item + 1], own)
        for one, all_ in zip(single, together, strict=True):
            assert_close(one[0], all_[item])
    garbage = torch.where(states < 0, -100, TOKENS)
    chains = vae.chain(garbage, LENGTHS), vae.chain(TOKENS, LENGTHS)
    assert_close(chains[0].log_partition(), chains[1].log_partition())
    found = [
        vae.importance_log_likelihood(tokens, LENGTHS, samples=3, generator=seeded())
        for tokens in (garbage, TOKENS)
    ]
    assert_close(found[0].log_likelihood, found[1].log_likelihood)


def test_importance_sampling_over_every_sequence_once_is_enumeration(monkeypatch):
    vae = tiny()
    with torch.no_grad():
        vae.embeddings.zero_()  # q is uniform, and a draw of each sequence is its expectation
    monkeypatch.setattr(
        rg.Chain, "sample", lambda chain, count, generator: sequences(3).unsqueeze(1)
    )
    found = vae.importance_log_likelihood(TOKENS[:1], samples=N**3)
    assert_close(found.log_likelihood, log_likelihoods(vae)[:1], rtol=0.0, atol=1e-6)


def test_importance_sampling_from_the_posterior_itself_is_exact():
    vae = tiny()
    evidence = torch.tensor([-3.0, -2.0, -1.0], dtype=torch.float64)

    class Posterior(torch.nn.Module):
        def forward(self, tokens, lengths, draw):
            states = torch.where(draw.weights > 0, draw.states, -1).squeeze(-1)
            count = len(tokens) // 3
            log_q = vae.chain(TOKENS, LENGTHS).log_prob(states.reshape(count, 3, -1))
            return Joint(evidence.repeat(count), log_q.flatten())

    vae.decoder = Posterior()
    with pytest.warns(UserWarning, match="collapsed"):  # the decoder knows the words by heart
        found = vae.importance_log_likelihood(TOKENS, LENGTHS, samples=5, generator=seeded())
    assert_close(found.log_likelihood, evidence, rtol=0.0, atol=1e-6)
    assert bool((found.standard_error < 1e-6).all())
    assert_close(found.effective_sample_size, torch.full_like(evidence, 5.0))


def test_samples_that_are_all_one_show_no_error():
    vae = tiny()
    with torch.no_grad():
        vae.embeddings.mul_(1000.0)
    found = vae.importance_log_likelihood(TOKENS, LENGTHS, samples=20, generator=seeded())
    assert bool((found.standard_error == math.inf).all())


PROPOSALS = {
    "all states": None,
    "draws": rg.Randomized(
        rg.randomized.Local(), rg.randomized.TopTail(1, 2), replicates=200, defensive=0.5
    ),
    "top": rg.Randomized(rg.randomized.Local(), rg.randomized.Top(2), defensive=0.0),
}


@pytest.mark.parametrize("name", PROPOSALS)
def test_importance_sampling_is_right_within_its_standard_error(name):
    vae = tiny(states=5)
    with torch.no_grad():
        vae.embeddings.mul_(0.5)
    samples = 20 if name == "draws" else 1000
    found = vae.importance_log_likelihood(
        TOKENS, LENGTHS, samples=samples, proposal=PROPOSALS[name], generator=seeded()
    )
    expected = log_likelihoods(vae)
    if name == "top":  # what is left out is missing
        kept = rg.infer(vae.chain(TOKENS, LENGTHS), estimator=PROPOSALS[name]).supports.states[0]
        parts = []
        for row, length, states in zip(TOKENS, LENGTHS.tolist(), kept, strict=True):
            paths = sequences(length, 5)
            inside = (paths.unsqueeze(-1) == states[:length]).any(-1).all(-1)
            joint = sum(joints(vae, row[:length])[0])
            parts.append(joint[inside].logsumexp(0).detach())
        expected = torch.stack(parts)
    error = (found.log_likelihood - expected).abs()
    assert bool((error < 4 * found.standard_error + 1e-3).all()), (error, found.standard_error)
    assert bool((found.standard_error < 0.1).all())


def test_the_bound_is_below_that_of_two_samples_and_this_below_the_likelihood():
    vae = tiny(seed=1)
    expected = log_likelihoods(vae)
    for item, length in enumerate(LENGTHS.tolist()):
        joint, log_q = joints(vae, TOKENS[item, :length])
        log_w = (sum(joint) - log_q).detach()
        chance = log_q.detach().exp()
        one = (chance * log_w).sum()
        pairs = torch.logaddexp(log_w.unsqueeze(1), log_w) - math.log(2)
        two = (chance.unsqueeze(1) * chance * pairs).sum()
        assert float(one) < float(two) < float(expected[item])


def test_over_all_hard_draws_the_bound_and_the_decoders_gradient_are_exact(monkeypatch):
    vae = tiny()
    tokens = TOKENS[:1]
    joint, log_q = joints(vae, tokens[0])
    chance = log_q.exp()
    exact = (chance * (sum(joint) - log_q)).sum()
    parameters = list(vae.decoder.parameters())
    expected = torch.autograd.grad(exact, parameters, retain_graph=True)
    posterior = type(rg.infer(vae.chain(tokens)))
    value, total = 0.0, [torch.zeros_like(part) for part in parameters]
    for path, share in zip(sequences(3), chance.detach(), strict=True):
        weights = torch.nn.functional.one_hot(path, N).double().unsqueeze(0)
        monkeypatch.setattr(posterior, "rsample_kept", lambda _, w=weights, **__: RelaxedStates(w))
        elbo = vae(tokens, straight_through=True).elbo[0]
        value = value + share * elbo.detach()
        for sum_, part in zip(total, torch.autograd.grad(elbo, parameters), strict=True):
            sum_ += share * part
    assert_close(value, exact.detach())
    assert_close(total, list(expected))


def test_the_entropys_gradient_is_exact():
    vae = tiny()
    _, log_q = joints(vae, TOKENS[0])
    expected = -(log_q.exp() * log_q).sum()
    found = vae(TOKENS[:1], generator=seeded()).entropy[0]
    assert_close(found, expected)
    for one, other in zip(
        torch.autograd.grad(found, vae.embeddings),
        torch.autograd.grad(expected, vae.embeddings),
        strict=True,
    ):
        assert_close(one, other)


def test_a_hard_draw_is_an_exact_one():
    """Argmaxes of relaxed draws are exact draws, whatever the temperature."""
    vae = tiny()
    hard = vae(TOKENS, LENGTHS, straight_through=True, generator=seeded(5))
    drawn = vae.chain(TOKENS, LENGTHS).rsample(1, temperature=1.0, generator=seeded(5))[0]
    states = torch.where(drawn.sum(-1) > 0, drawn.argmax(-1), -1)
    exact = vae.decoder(TOKENS, LENGTHS, RelaxedStates.of(states, vae.embeddings))
    assert_close(hard.words, exact.words)
    assert_close(hard.states, exact.states)
    cold = vae(TOKENS, LENGTHS, temperature=1e-4, generator=seeded(5))
    assert_close(cold.words, exact.words)


@pytest.mark.parametrize("straight_through", [False, True])
def test_the_decoder_reads_the_states_kept_alone_and_gradients_reach_all(straight_through):
    estimator = rg.Randomized.default(keep=4)
    vae = tiny(estimator, states=40)
    read = []
    vae.decoder.register_forward_pre_hook(lambda _, inputs: read.append(inputs[2]))
    found = vae(TOKENS, LENGTHS, straight_through=straight_through, generator=seeded())
    assert read[0].weights.shape == read[0].states.shape == (3, 3, 4)
    assert_close(found.elbo, found.words - found.kl)
    found.elbo.sum().backward()
    for name, parameter in vae.named_parameters():
        assert parameter.grad is not None, name
        assert bool(parameter.grad.isfinite().all()), name
        assert bool(parameter.grad.any()), name


def test_top_states_bound_the_likelihood_from_below():
    top = rg.Randomized(rg.randomized.Local(), rg.randomized.Top(2), defensive=0.0)
    vae = tiny(top)
    many = TOKENS.repeat(400, 1), LENGTHS.repeat(400)
    found = vae(*many, straight_through=True, generator=seeded()).elbo.detach()
    bounds = found.reshape(400, 3)
    slack = 4 * bounds.std(0) / math.sqrt(len(bounds))
    assert bool((bounds.mean(0) - slack < log_likelihoods(vae)).all())


def test_drawn_states_are_no_bound():
    """One state and one draw of four: the mean objective is above the bound, by five errors."""
    drawn_states = rg.Randomized(rg.randomized.Local(), rg.randomized.TopTail(1, 1))
    vae = tiny(drawn_states, states=4, seed=3)
    with torch.no_grad():  # a decoder that q knows little of
        for parameter in vae.decoder.parameters():
            parameter.mul_(3)
    length, many = 3, 20_000
    joint, log_q = joints(vae, TOKENS[0])
    bound = float((log_q.exp() * (sum(joint) - log_q)).sum().detach())  # over all sequences
    found = vae(
        TOKENS[:1].repeat(many, 1), torch.full((many,), length), straight_through=True,
        generator=seeded(),
    ).elbo.detach()  # fmt: skip
    assert float(found.mean()) - bound > 5 * float(found.std()) / math.sqrt(many)


def test_states_that_say_nothing_are_warned_of():
    vae = tiny()
    with torch.no_grad():
        vae.embeddings.zero_()
        for part in vae.decoder.state_logits.parameters():
            part.zero_()
    with pytest.warns(UserWarning, match="collapsed"):
        found = vae.importance_log_likelihood(TOKENS, LENGTHS, samples=2, generator=seeded())
    assert_close(found.kl, torch.zeros(3, dtype=torch.float64))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tiny().importance_log_likelihood(TOKENS, LENGTHS, samples=20, generator=seeded())


def test_training_raises_the_bound():
    vae = tiny(rg.Randomized.default(keep=4), states=8).float()
    optimiser = torch.optim.Adam(vae.parameters(), lr=0.1)
    values, many = [], (TOKENS.repeat(4, 1), LENGTHS.repeat(4))
    for step in range(6):
        found = vae(*many, temperature=0.8, generator=seeded(step)).elbo.mean()
        optimiser.zero_grad()
        (-found).backward()
        optimiser.step()
        values.append(float(found.detach()))
    assert values[-1] > values[0] + 1


class Wide(torch.nn.Module):
    def forward(self, tokens, lengths):
        return torch.zeros(*tokens.shape, D + 1)


REFUSED = {
    "no states": (lambda: tiny(states=0), "StructuredVAE needs states|LSTMDecoder needs states"),
    "no estimator": (lambda: tiny("exact"), "needs estimator as an Estimator"),
    "real tokens": (lambda: tiny()(TOKENS.double()), "integer tokens"),
    "flat tokens": (lambda: tiny()(TOKENS[0]), "integer tokens"),
    "long lengths": (lambda: tiny()(TOKENS, LENGTHS + 1), "lengths 0 to 3"),
    "unknown token": (lambda: LSTMDecoder(states=2, vocabulary=3)(
        TOKENS, LENGTHS, RelaxedStates.of(TOKENS, torch.zeros(())) ), "3 words got token 3"),
    "cold": (lambda: tiny()(TOKENS, temperature=0.0), "temperature above 0"),
    "no samples": (lambda: tiny().importance_log_likelihood(TOKENS, samples=0), "samples >= 1"),
    "wide encoder": (lambda: StructuredVAE(
        Wide(), LSTMDecoder(states=2, vocabulary=V), states=2, dimension=D)(TOKENS),
        "encoder that gives"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_fit_is_refused_in_a_line(case):
    ask, message = REFUSED[case]
    with pytest.raises(rg.errors.RdpgraphError, match=message) as told:
        ask()
    assert "\n" not in str(told.value)


@pytest.mark.parametrize("wrong", [math.nan, math.inf])
def test_a_decoder_without_numbers_is_refused(wrong):
    vae = tiny()
    with torch.no_grad():
        next(vae.decoder.parameters()).fill_(wrong)
    with pytest.raises(rg.errors.ModelError, match=r"^importance_log_likelihood needs a decoder"):
        vae.importance_log_likelihood(TOKENS, LENGTHS, samples=2, generator=seeded())
