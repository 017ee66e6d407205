"""Random fields of words: sums over sequences and lengths, messages of a long text, draws."""

import copy
import itertools
import math

import pytest
import torch
from torch.testing import assert_close

import rdpgraph as rg
from rdpgraph.errors import EvidenceError, ModelError, UnsupportedError
from rdpgraph.nn import MarkovField

WORDS = 3


def field(lags=1, seed=0, **options):
    generator = torch.Generator().manual_seed(seed)
    made = MarkovField(
        vocabulary=WORDS, rank=2, lags=lags, dimension=4, generator=generator, **options
    ).double()
    with torch.no_grad():
        made.bias.copy_(torch.tensor([0.3, -0.5, 0.1]))
        for own in (made.before, made.after):
            own.mul_(2.0)
    return made


def every(length):
    return (
        torch.tensor(list(itertools.product(range(WORDS), repeat=length)))
        .reshape(WORDS**length, length)
        .long()
    )


def tables(made):
    return [made.coefficient * low.table(2).detach() for low in made.pairs()]


def growth(made):
    """Growth of log Z by the word, from the matrix from the last words to the last words."""
    blocks = every(made.lags)
    step = torch.full((len(blocks), len(blocks)), -math.inf, dtype=torch.float64)
    for a, old in enumerate(blocks.tolist()):
        for b, new in enumerate(blocks.tolist()):
            if old[1:] == new[:-1]:
                scores = [table[old[-lag], new[-1]] for lag, table in enumerate(tables(made), 1)]
                step[a, b] = made.bias[new[-1]] + sum(scores)
    return torch.linalg.eigvals(step.exp()).abs().max().log()


@pytest.mark.parametrize("lags", [1, 2, 3])
def test_scores_are_sums_over_words_and_pairs(lags):
    made, tokens = field(lags), every(4)
    pairs = tables(made)
    for row, found in zip(tokens.tolist(), made.score(tokens).tolist(), strict=True):
        total = sum(made.bias.tolist()[word] for word in row)
        for lag, table in enumerate(pairs, 1):
            total += sum(float(table[row[t], row[t + lag]]) for t in range(4 - lag))
        assert found == pytest.approx(total)
    short = made.score(tokens[:5], torch.tensor([0, 1, 2, 3, 4]))
    assert_close(short[3], made.score(tokens[3:4, :3])[0])
    assert short.tolist()[0] == 0.0


def test_sums_of_all_lengths_are_those_of_enumeration():
    made = field()
    found = made.log_partitions(5)
    expected = [made.score(every(length)).logsumexp(0) for length in range(6)]
    assert_close(found, torch.stack(expected))
    assert_close(made.log_partitions(0), torch.zeros(1, dtype=torch.float64))
    assert torch.autograd.gradcheck(
        lambda bias: torch.func.functional_call(made, {"bias": bias}, (every(2),)), made.bias
    )


def test_with_a_prior_all_sequences_sum_to_one():
    prior = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64).log()
    made = field(prior=prior)
    for length in range(4):
        total = made.log_likelihood(every(length)).logsumexp(0)
        assert_close(total, prior[length])
    with pytest.raises(ModelError, match="lengths of up to 3; a sequence has 4"):
        made.log_likelihood(every(4))


def test_without_one_the_sum_over_all_lengths_is_closed():
    made = field()
    assert_close(made.log_density(), growth(made))
    short = torch.stack([made.log_likelihood(every(n)).logsumexp(0) for n in range(1, 6)])
    ahead = torch.nn.functional.logsigmoid(made.going_on) - made.log_density()
    steps = torch.arange(1, 801, dtype=torch.float64)
    sums = made.log_partitions(800)[1:] + steps * ahead
    assert_close(sums.logsumexp(0).exp() * (short[0] - sums[0]).exp(), torch.ones_like(sums[0]))
    assert_close(short, sums[:5] - sums.logsumexp(0))
    with pytest.raises(ModelError, match="no empty"):
        made.log_likelihood(every(0))


def test_the_gradient_is_that_of_differences():
    made = field(2)
    made.log_density()
    names = ["bias", "before", "maps.0.weight"]
    values = [made.get_parameter(name).detach().requires_grad_() for name in names]

    def density(*given):
        parameters = dict(zip(names, given, strict=True))
        return torch.func.functional_call(
            Density(made), {f"f.{k}": v for k, v in parameters.items()}
        )

    assert torch.autograd.gradcheck(density, values, atol=1e-4)
    assert_close(made.marginals().sum(), torch.ones((), dtype=torch.float64))


class Density(torch.nn.Module):
    def __init__(self, f):
        super().__init__()
        self.f = f

    def forward(self):
        return self.f.log_density()


@pytest.mark.parametrize("lags", [2, 3])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_tree_reweighted_messages_bound_the_growth(lags, seed):
    made = field(lags, seed)
    exact, bound = growth(made), made.log_density()
    assert exact - 1e-6 < bound < exact + 0.3


def test_bethe_is_exact_where_one_lag_alone_matters():
    made = field(2, tree_reweighted=False)
    with torch.no_grad():
        made.maps[1].weight.zero_()
    assert_close(made.log_density(), growth(made), rtol=0.0, atol=1e-5)
    two = field(2, tree_reweighted=False)
    assert float((two.log_density() - growth(two)).abs()) < 0.1


@pytest.mark.parametrize("lags", [1, 2])
def test_draws_have_the_chances_of_sequences(lags):
    made, rows = field(lags), every(3)
    drawn = made.sample(6000, 3, torch.Generator().manual_seed(0), sweeps=15)
    number = drawn @ torch.tensor([9, 3, 1])
    found = torch.bincount(number, minlength=27) / 6000
    assert_close(found.double(), made.score(rows).softmax(0).detach(), rtol=0.0, atol=0.03)


@pytest.mark.parametrize("lags", [1, 3])
@pytest.mark.parametrize("spread", [1.0, 30.0])
def test_scores_spread_by_hundreds_of_nats_are_summed(lags, spread):
    made = MarkovField(
        vocabulary=12, rank=4, dimension=8, lags=lags, generator=torch.Generator().manual_seed(0)
    )
    with torch.no_grad():
        made.before *= spread
        made.after *= spread
    tokens = torch.tensor([[3, 1, 4, 1, 5]])
    value = made.log_likelihood(tokens)
    value.sum().backward()
    assert bool(torch.isfinite(value).all())
    assert all(bool(torch.isfinite(p.grad).all()) for p in made.parameters() if p.grad is not None)
    if lags == 1:
        exact = rg.Chain(made.bias.expand(5, -1), made.pairs()[0]).log_partition()
        assert_close(made.log_partitions(5)[5], exact, rtol=1e-5, atol=1e-4)
        assert made.converged
    else:
        assert made.converged == (spread == 1.0)


@pytest.mark.parametrize("lags", [1, 2])
def test_marginals_are_those_in_inference_mode(lags):
    made = field(lags)
    with torch.inference_mode():
        found = made.marginals()
    assert_close(found, made.marginals())


def test_what_is_wrong_is_named():
    with pytest.raises(ModelError, match="lags as a whole number of at least 1"):
        MarkovField(vocabulary=3, rank=2, lags=0)
    with pytest.raises(ModelError, match="counts"):
        MarkovField(vocabulary=3, rank=2, counts=torch.ones(4))
    with pytest.raises(ModelError, match="counts"):
        MarkovField(vocabulary=3, rank=2, counts=[1, -1, 2])
    with pytest.raises(ModelError, match="prior with one lag"):
        MarkovField(vocabulary=3, rank=2, prior=torch.zeros(3))
    with pytest.raises(EvidenceError, match="got token 3; use 0 to 2"):
        field().score(torch.tensor([[3]]))
    with pytest.raises(UnsupportedError, match="with one lag"):
        field(2).log_partitions(3)
    for ask in (lambda: field().log_partitions(-1), lambda: field(2).sample(2, -1)):
        with pytest.raises(ModelError, match="length >= 0; got -1"):
            ask()
    assert field(2).sample(2, 0).shape == (2, 0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("lags", [1, 2])
def test_likelihoods_of_layers_of_half_precision_are_in_float32(lags, dtype):
    generator = torch.Generator().manual_seed(0)
    field = MarkovField(vocabulary=9, rank=2, lags=lags, generator=generator).to(dtype)
    tokens = torch.randint(9, (3, 200), generator=generator)
    found = field.log_likelihood(tokens)
    assert found.dtype == torch.float32
    # The features are computed in half precision, and the sums over 200 words are not.
    known = copy.deepcopy(field).double().log_likelihood(tokens)
    torch.testing.assert_close(found.double(), known, rtol=2e-3, atol=0)
    assert bool((found % 0.25 != 0).all())
