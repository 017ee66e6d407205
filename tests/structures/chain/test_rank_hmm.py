"""Hidden Markov models by matrices between ranks: locally and globally normalised."""

import math

import pytest
import torch

import rdpgraph as rg

WIDE = torch.float64
STATES, SYMBOLS, RANK = 6, 3, 2


def drawn(*shape, seed=0, scale=1.0):
    generator = torch.Generator().manual_seed(seed)
    return scale * torch.randn(shape, generator=generator, dtype=WIDE)


def model(kind, *, scale=1.0, zeros=False):
    """An HMM with rows of probabilities ("local"), or any scores; emissions as a table or not."""
    start = drawn(STATES, scale=scale)
    left, right = drawn(STATES, RANK, seed=1, scale=scale), drawn(STATES, RANK, seed=2, scale=scale)
    if zeros:
        start[0] = left[2, 0] = right[1] = -math.inf
    ranks = drawn(STATES, 4, seed=3, scale=scale), drawn(SYMBOLS, 4, seed=4, scale=scale)
    emission = rg.LowRank(*ranks)
    transition = rg.LowRank(left, right)
    if kind.startswith("local"):
        start, transition = start.log_softmax(0), rg.LowRank.normalised(left, right)
        emission = rg.LowRank.normalised(*ranks)
    emission = emission if kind.endswith("ranks") else emission.table(2)
    return rg.LowRankHMM(start, transition, emission)


KINDS = ["local, table", "local, ranks", "global, table", "global, ranks"]


def tables(hmm):
    emission = hmm.emission if isinstance(hmm.emission, torch.Tensor) else hmm.emission.table(2)
    return hmm.start, hmm.transition.table(2), emission


def by_hand(hmm, seen):
    """The score of one sequence by the plain forward recursion; -1 is any symbol."""
    start, transition, emission = tables(hmm)
    if not len(seen):
        return torch.zeros((), dtype=WIDE)
    rows = [emission.logsumexp(1) if x < 0 else emission[:, x] for x in seen]
    alpha = start + rows[0]
    for row in rows[1:]:
        alpha = (alpha.unsqueeze(1) + transition).logsumexp(0) + row
    return alpha.logsumexp(0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("scale", [1.0, 100.0])
@pytest.mark.parametrize("zeros", [False, True])
def test_scores_are_those_of_the_forward_recursion(kind, scale, zeros):
    hmm = model(kind, scale=scale, zeros=zeros)
    seen = torch.tensor([[0, 2, 1, 1, 0], [1, -1, 2, 0, 1], [2, 0, 0, 0, 0], [0, 0, 0, 0, 0]])
    lengths = torch.tensor([5, 4, 1, 0])
    expected = torch.stack(
        [
            by_hand(hmm, row[:length])
            for row, length in zip(seen.tolist(), lengths.tolist(), strict=True)
        ]
    )
    assert torch.allclose(hmm.log_score(seen, lengths), expected, rtol=1e-10)
    assert torch.allclose(hmm.chain(seen, lengths).log_partition(), expected, rtol=1e-10)
    short = torch.stack([by_hand(hmm, row[:3]) for row in seen.tolist()])  # without matrices
    assert torch.allclose(hmm.log_score(seen[:, :3]), short, rtol=1e-10)
    assert torch.allclose(hmm.log_score(seen[0]), expected[0], rtol=1e-10)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("total", [0, 1, 2, 3])
def test_all_sequences_of_a_length_have_probability_one_together(kind, total):
    hmm = model(kind)
    every = torch.tensor(
        [[(i // SYMBOLS**t) % SYMBOLS for t in range(total)] for i in range(SYMBOLS**total)]
    )
    every = every.reshape(SYMBOLS**total, total).long()
    one = torch.ones((), dtype=WIDE)
    assert torch.allclose(hmm.log_prob(every).exp().sum(), one, rtol=1e-12)
    if kind.startswith("local"):
        assert torch.allclose(hmm.log_score(every), hmm.log_prob(every), atol=1e-12)


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_gradients(kind):
    hmm = model(kind)
    seen = torch.tensor([[0, 2, 1, -1], [1, 1, 0, 0]])
    inputs = [hmm.start, hmm.transition.log_left, hmm.transition.log_right]
    emission = hmm.emission
    parts = [emission] if isinstance(emission, torch.Tensor) else [
        emission.log_left, emission.log_right
    ]  # fmt: skip
    inputs = [part.clone().requires_grad_() for part in (*inputs, *parts)]

    def score(start, left, right, *shown):
        emission = shown[0] if len(shown) == 1 else rg.LowRank(*shown)
        return rg.LowRankHMM(start, rg.LowRank(left, right), emission).log_prob(
            seen, torch.tensor([4, 2])
        )

    assert torch.autograd.gradcheck(score, inputs, fast_mode=True)


def test_random_features_of_states_and_symbols():
    """Both conditionals by features: rows sum to one, and the model is that of its own tables."""
    states, symbols = drawn(STATES, 4, scale=0.3), drawn(SYMBOLS, 4, seed=1, scale=0.3)
    features = rg.RandomFeatures(4, 8, generator=torch.Generator().manual_seed(0), dtype=WIDE)
    plain = features.low_rank(states, states), features.low_rank(states, symbols)
    hmm = rg.LowRankHMM(
        torch.zeros(STATES, dtype=WIDE).log_softmax(0),
        *(rg.LowRank.normalised(part.log_left, part.log_right) for part in plain),
    )
    start, transition, emission = tables(hmm)
    assert torch.allclose(transition, plain[0].table(2).log_softmax(1))
    assert torch.allclose(emission, plain[1].table(2).log_softmax(1))
    seen = torch.tensor([[0, 1, 2, 2], [1, -1, 0, 0]])
    dense = rg.Chain.hmm(start, transition, emission, seen)
    low = rg.Chain.hmm(start, hmm.transition, hmm.emission, seen)
    assert isinstance(low.transition, rg.LowRank)
    for found in (low.log_partition(), hmm.log_prob(seen), hmm.log_score(seen)):
        assert torch.allclose(found, dense.log_partition(), rtol=1e-10)
    assert torch.allclose(low.marginals(), dense.marginals())


def test_what_does_not_fit_is_refused():
    hmm = model("local, ranks")
    with pytest.raises(rg.errors.ModelError, match=r"transition \(N, N\)"):
        rg.LowRankHMM(hmm.start[:2], hmm.transition, hmm.emission)
    with pytest.raises(rg.errors.EvidenceError, match="symbols 0 to 2"):
        hmm.log_score(torch.tensor([0, 3]))
    with pytest.raises(rg.errors.EvidenceError, match="integer"):
        hmm.log_score(torch.zeros(2))
    scores = rg.LowRank(drawn(STATES, RANK), drawn(STATES, RANK, seed=1))
    with pytest.raises(rg.errors.ModelError, match="sum to one"):
        rg.Chain.hmm(hmm.start, scores, hmm.emission, torch.tensor([0, 1]))
    emission = rg.LowRank(drawn(STATES, RANK), drawn(SYMBOLS, RANK, seed=1))
    with pytest.raises(rg.errors.ModelError, match="sum to one"):
        rg.Chain.hmm(hmm.start, hmm.transition, emission, torch.tensor([0, 1]))
