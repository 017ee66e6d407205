"""Hidden Markov models of text whose states emit the tokens of one cluster each."""

import itertools
import math

import pytest
import torch

import rdpgraph as rg
from rdpgraph.errors import ModelError
from rdpgraph.nn import HMM, exchange_clusters

CLUSTERS = torch.tensor([0, 1, 2, 1, 0])


def model(dropout=0.0):
    generator = torch.Generator().manual_seed(0)
    sizes = {"states": 12, "vocabulary": 5, "dimension": 4, "dropout": dropout}
    return HMM(**sizes, clusters=CLUSTERS, counts=torch.arange(5), generator=generator).double()


@pytest.mark.parametrize("cells", [2**24, 1])
@pytest.mark.parametrize("length", [0, 1, 7])
def test_the_likelihood_is_that_of_the_whole_tables(small_blocks, cells, length):
    small_blocks(cells)
    made, generator = model(), torch.Generator().manual_seed(1)
    tokens = torch.randint(5, (4, length), generator=generator)
    lengths = torch.tensor([7, 3, 1, 0]).clamp(max=length)
    found, whole = made(tokens, lengths), rg.Chain.hmm(*made.matrices(), tokens, lengths=lengths)
    assert torch.allclose(found, whole.log_partition())
    assert torch.allclose(made.chain(tokens, lengths).marginals(), whole.marginals())
    if length > 1:
        parameters = list(made.parameters())
        gradients = torch.autograd.grad(found.sum(), parameters)
        expected = torch.autograd.grad(whole.log_partition().sum(), parameters)
        assert all(map(torch.allclose, gradients, expected))


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_all_sequences_of_a_length_have_probability_one(dropout):
    tokens = torch.tensor(list(itertools.product(range(5), repeat=3)))
    made, generator = model(dropout), torch.Generator().manual_seed(0)
    total = made(tokens, generator=generator).exp().sum().detach()
    assert float(total) == pytest.approx(1.0)


def test_rows_sum_to_one_and_states_emit_their_clusters_alone():
    start, transition, emission = model().matrices()
    assert torch.allclose(start.exp().sum(), torch.ones(()).double())
    assert torch.allclose(transition.exp().sum(1), torch.ones(12).double())
    assert torch.allclose(emission.exp().sum(1), torch.ones(12).double())
    emitted = torch.arange(3).repeat_interleave(4).unsqueeze(1) == CLUSTERS
    assert torch.equal(emission > -math.inf, emitted)


def test_states_are_dropped_from_each_cluster():
    made, tokens = model(0.5), torch.tensor([[3, 1, 4, 1]])
    dropped = made(tokens, generator=torch.Generator().manual_seed(3))
    assert not torch.allclose(dropped, made.eval()(tokens))
    fewer = HMM(states=6, vocabulary=5, dimension=4, clusters=CLUSTERS).double()
    generator = torch.Generator().manual_seed(3)
    kept = torch.cat([
        4 * group + torch.randperm(4, generator=generator)[:2].sort().values for group in range(3)
    ])  # fmt: skip
    values = made.state_dict()
    for name in ("start", "before", "after", "emitting"):
        values[name] = values[name][kept]
    fewer.load_state_dict(values)
    assert torch.allclose(dropped, fewer(tokens))


def test_a_saved_model_is_the_same(tmp_path):
    pytest.importorskip("safetensors")
    made, tokens = model().eval(), torch.tensor([[3, 1, 4, 1], [0, 2, 2, 0]])
    made.save_pretrained(tmp_path)
    assert torch.equal(HMM.from_pretrained(tmp_path)(tokens), made(tokens))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"clusters": torch.tensor([0, 2, 2, 0, 0])}, "cluster 1 has none"),
        ({"clusters": torch.tensor([0, 1, 2, 3, 4])}, "12 do not divide"),
        ({"clusters": torch.tensor([0, 1])}, "5 tokens"),
        ({"clusters": CLUSTERS.double()}, "integers"),
        ({"clusters": -CLUSTERS}, "from 0"),
        ({"clusters": CLUSTERS, "rank": 2}, "no rank"),
        ({"clusters": CLUSTERS, "dimension": None}, "a dimension"),
    ],
)
def test_clusters_that_do_not_fit_are_refused(options, said):
    with pytest.raises(ModelError, match=said):
        HMM(states=12, vocabulary=5, **options)


def bigram_likelihood(text, which):
    """Log-likelihood of clusters given those before, and of their tokens, but for a constant."""
    counts = torch.zeros(3, 3).double()
    for first, second in text.unfold(0, 2, 1):
        counts[which[first], which[second]] += 1
    return float(
        torch.xlogy(counts, counts).sum()
        - sum(torch.xlogy(side, side).sum() for side in (counts.sum(0), counts.sum(1)))
    )


@pytest.mark.parametrize("seed", range(5))
def test_no_exchange_of_a_token_makes_the_text_likelier(seed):
    text = torch.randint(9, (80,), generator=torch.Generator().manual_seed(seed))
    which = exchange_clusters([text], 10, 3, rounds=50)
    best = bigram_likelihood(text, which)
    for token, cluster in itertools.product(range(9), range(3)):
        other = which.clone()
        other[token] = cluster
        if len(other[:9].unique()) == 3:
            assert bigram_likelihood(text, other) <= best + 1e-8


def test_tokens_that_follow_alike_share_a_cluster():
    generator = torch.Generator().manual_seed(0)
    sizes = torch.randint(4, (50, 20), generator=generator)
    text = sizes + 4 * (torch.arange(20) % 3)  # of 0 to 3, 4 to 7 and 8 to 11 in turn
    which = exchange_clusters(list(text), 12, 3).reshape(3, 4)
    assert (which == which[:, :1]).all()
    assert len(which[:, 0].unique()) == 3


@pytest.mark.parametrize(
    ("text", "clusters", "said"),
    [
        ([0, 1], 0, "clusters as a whole number of at least 1"),
        ([0, 1], 4, "1 to 3 clusters"),
        ([0, 3], 2, "outside"),
    ],
)
def test_clusterings_that_cannot_be_are_refused(text, clusters, said):
    with pytest.raises(ModelError, match=said):
        exchange_clusters([torch.tensor(text)], 3, clusters)
