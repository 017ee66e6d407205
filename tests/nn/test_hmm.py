"""The hidden Markov model of text."""

import pytest
import torch

import rdpgraph as rg
from rdpgraph.nn import HMM
from rdpgraph.nn import hmm as module
from rdpgraph.structures.chain import lowrank_ranks


def model(rank, dropout=0.0):
    generator = torch.Generator().manual_seed(0)
    made = HMM(
        states=12, vocabulary=9, rank=rank, dimension=8, dropout=dropout, generator=generator
    )
    return made.double()


def text():
    tokens = torch.randint(9, (5, 7), generator=torch.Generator().manual_seed(1))
    return tokens, torch.tensor([7, 3, 1, 0, 5])


@pytest.mark.parametrize("rank", [None, 4])
@pytest.mark.parametrize("quick", [False, True])
@pytest.mark.parametrize("cells", [2**24, 1])
def test_the_likelihood_is_that_of_the_tables(monkeypatch, rank, quick, cells):
    monkeypatch.setattr(lowrank_ranks, "symbols_worthwhile", lambda *_, **__: quick)
    monkeypatch.setattr(module, "_CELLS", cells)
    made, (tokens, lengths) = model(rank), text()
    transition = made.transition()
    table = transition if isinstance(transition, torch.Tensor) else transition.table(2)
    emission = (made.emitting * 8**0.5 @ made.tokens.mT + made.bias).log_softmax(1)
    start = made.start.log_softmax(0)
    expected = rg.Chain.hmm(start, table, emission, tokens, lengths=lengths).log_partition()
    found = made.log_likelihood(tokens, lengths)
    assert torch.allclose(found, expected)
    assert torch.allclose(made.chain(tokens, lengths).log_partition(), expected)
    parameters = list(made.parameters())
    for own, other in zip(
        torch.autograd.grad(found.sum(), parameters),
        torch.autograd.grad(expected.sum(), parameters),
        strict=True,
    ):
        assert torch.allclose(own, other)


@pytest.mark.parametrize("rank", [None, 4])
def test_all_sequences_of_a_length_have_probability_one(rank):
    made = model(rank)
    tokens = torch.cartesian_prod(*[torch.arange(9)] * 3)
    assert torch.allclose(made(tokens).logsumexp(0).exp(), torch.ones((), dtype=torch.float64))


def test_dropped_states_are_left_out_and_the_rest_is_normalised():
    made = model(4, dropout=0.5)
    tokens = torch.cartesian_prod(*[torch.arange(9)] * 2)
    draws = [made(tokens, generator=torch.Generator().manual_seed(seed)) for seed in (0, 0, 1)]
    assert torch.equal(draws[0], draws[1])
    assert not torch.allclose(draws[0], draws[2])
    for drawn in draws:
        assert torch.allclose(drawn.logsumexp(0).exp(), torch.ones((), dtype=torch.float64))
    made.eval()
    assert torch.equal(made(tokens), made(tokens))


@pytest.mark.parametrize("rank", [None, 6])
def test_training_learns_what_follows_what(rank):
    """A cycle of three tokens: nearly all of the entropy, log 3 a token, goes."""
    made = HMM(states=6, vocabulary=3, rank=rank, dimension=8,
               generator=torch.Generator().manual_seed(0))  # fmt: skip
    tokens = (torch.arange(12) + torch.arange(3).unsqueeze(1)) % 3
    optimiser = torch.optim.Adam(made.parameters(), lr=0.05)
    for _ in range(150):
        optimiser.zero_grad()
        loss = -made(tokens).mean() / 12
        loss.backward()
        optimiser.step()
    assert float(loss) < 0.2


def test_what_is_no_text_is_refused():
    made = model(4)
    with pytest.raises(rg.EvidenceError, match="token 9"):
        made(torch.tensor([[9]]))
    with pytest.raises(rg.EvidenceError, match="integer tokens"):
        made(torch.zeros(2, 3))
    with pytest.raises(rg.ModelError, match="dropout"):
        HMM(states=2, vocabulary=2, dropout=1.0)
