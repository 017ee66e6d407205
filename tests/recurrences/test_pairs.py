"""Rules that join two cells: modes, maxima, the k best and draws, beside all derivations.

A cell of few labels has all of its splits and pairs of labels as one list of terms; one of many has
the pairs of labels, and of each the splits. Hard zeros leave few derivations of either kind.
"""

import pytest
import torch
from torch import Tensor

import rdpgraph as rg
from rdpgraph.trees import DenseRules
from tests.structures.declared.models import Spans


def some_states(values: Tensor, kept: int, generator: torch.Generator) -> Tensor:
    """Values with -inf in all but some random states of each site."""
    order = torch.rand(values.shape, generator=generator).argsort(-1).argsort(-1)
    return values.masked_fill(order >= kept, -torch.inf)


def trees(states: int, dtype: torch.dtype, spread: float) -> Spans:
    """Five words, of two sentences, with two states that are possible at each span."""
    generator = torch.Generator().manual_seed(states)
    unary = spread * torch.randn(2, 4, 4, states, generator=generator, dtype=torch.float64)
    rules = spread * torch.randn(states, states, states, generator=generator, dtype=torch.float64)
    rules[0] = -torch.inf  # a label that is only that of words
    unary = some_states(unary, 2, generator)
    return Spans(unary.to(dtype), rules.to(dtype), torch.tensor([4, 3]))


def bitexts(states: int, dtype: torch.dtype, spread: float, *, listed: bool) -> rg.Bitext:
    """Two and three words, with two states of leaves and one of the others at each bispan."""
    generator = torch.Generator().manual_seed(states)
    shape = (1, 3, 3, 4, 4)
    parts = [
        some_states(torch.randn(*shape, many, generator=generator), kept, generator)
        for many, kept in ((states - 3, 1), (3, 1))
    ]
    rules = [
        DenseRules((spread * torch.randn(states, states, states, generator=generator)).to(dtype))
        for _ in range(2)
    ]
    unary = (spread * torch.cat(parts, -1)).to(dtype)
    allowed = torch.ones(shape[1:], dtype=torch.bool)
    allowed[0, 2, 0, 1] = False
    return rg.Bitext(unary, *rules, leaves=3, allowed=allowed if listed else None)


CASES = {
    "few labels": lambda dtype, spread: trees(4, dtype, spread),
    "many labels": lambda dtype, spread: trees(9, dtype, spread),
    "two loops, few labels": lambda dtype, spread: bitexts(5, dtype, spread, listed=False),
    "two loops, many labels": lambda dtype, spread: bitexts(12, dtype, spread, listed=False),
    "lists, few labels": lambda dtype, spread: bitexts(5, dtype, spread, listed=True),
    "lists, many labels": lambda dtype, spread: bitexts(12, dtype, spread, listed=True),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("spread", [1.0, 20.0])
def test_maxima_and_the_k_best_are_those_of_all_derivations(
    case: str, dtype: torch.dtype, spread: float
):
    model = CASES[case](dtype, spread)
    count = int(model.count().max())
    assert 50 < count < 2000
    best = model.k_best(count + 1)
    close = {"rtol": 1e-5, "atol": 1e-3} if dtype == torch.float32 else {}
    torch.testing.assert_close((best.scores > -torch.inf).sum(0).double(), model.count())
    torch.testing.assert_close(best.scores.logsumexp(0), model.log_partition(), **close)
    for item in range(best.scores.shape[1]):
        found = best.states[: int(model.count()[item]), item].flatten(1)
        assert len(found.unique(dim=0)) == len(found)
        scores = best.scores[: len(found), item]
        assert bool((scores.diff() <= 1e-4).all())
        # The best score of a derivation that has a state, of each site.
        states = torch.arange(model.unary.shape[-1])
        has = best.states[: len(found), item].unsqueeze(-1) == states
        with_state = torch.where(has, scores.view(-1, *[1] * (has.ndim - 1)), -torch.inf).amax(0)
        torch.testing.assert_close(model.max_marginals()[item], with_state, **close)
    torch.testing.assert_close(model.score(model.mode()), best.scores[0], **close)
    torch.testing.assert_close(model.k_best(1).scores, best.scores[:1], **close)


@pytest.mark.parametrize("states", [4, 9])
def test_the_best_score_with_each_rule_is_that_of_a_derivation(states: int):
    bound = trees(states, torch.float64, 1.0).by_input()
    uses, scores = bound.k_best(int(bound.count().max()))
    used = uses["table"] > 0
    expected = torch.where(used, scores[..., None, None, None], -torch.inf).amax(0)
    torch.testing.assert_close(bound.max_marginals()["table"], expected)


@pytest.mark.long
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_many_draws_are_as_frequent_as_they_are_probable(case: str, dtype: torch.dtype):
    model, draws = CASES[case](dtype, 1.0), 4000
    best = model.k_best(int(model.count().max()))
    drawn = model.sample(draws, torch.Generator().manual_seed(0))
    for item in range(best.scores.shape[1]):
        every = best.states[:, item].flatten(1)[best.scores[:, item] > -torch.inf]
        same = (drawn[:, item].flatten(1).unsqueeze(1) == every).all(-1)
        assert bool((same.sum(1) == 1).all())
        expected = draws * best.scores[: len(every), item].double().softmax(0)
        # Pearson's statistic over derivations that are drawn some times, and all others together.
        often = expected >= 5
        counts = torch.cat([same.sum(0)[often], same.sum(0)[~often].sum().view(1)])
        means = torch.cat([expected[often], expected[~often].sum().view(1)]).clamp(min=1e-9)
        freedom = len(means) - 1
        assert float(((counts - means).square() / means).sum()) < freedom + 5 * (2 * freedom) ** 0.5
