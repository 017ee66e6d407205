"""Grammars with rules of low rank are those with the rules written out, in single precision."""

import math

import pytest
import torch

import rdpgraph as rg
from tests.questions import NUMBERS

NONTERMINALS, PRETERMINALS, WORDS = 4, 3, 6
CHILDREN = NONTERMINALS + PRETERMINALS


def drawn(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).requires_grad_()


def low_rank():
    shapes = [(NONTERMINALS, 2), (CHILDREN, 2), (CHILDREN, 2)]
    return rg.trees.LowRankRules(*(drawn(*shape, seed=1 + n) for n, shape in enumerate(shapes)))


def factorised():
    shape = (NONTERMINALS, CHILDREN, 2)
    left, right = drawn(*shape, seed=1), drawn(*shape, seed=2)
    with torch.no_grad():
        left[1, 2] = -math.inf
    return rg.trees.FactorisedRules(left, right)


RULES = {"low rank": low_rank, "factorised": factorised}
QUERIES = NUMBERS | {
    "spans": lambda m: m.span_marginals(),
    "mode": lambda m: m.mode(),
    "score": lambda m: m.score(m.mode()),
    "log-probability": lambda m: m.log_prob(m.mode()),
    "k best": lambda m: m.k_best(3).scores,
}


def grammar(rules):
    lengths = torch.tensor([WORDS, 3, 2])
    terms = drawn(3, WORDS, PRETERMINALS, seed=7)
    return rg.Hypertree.pcfg(drawn(3, NONTERMINALS, seed=8), rules, terms, lengths=lengths)


@pytest.mark.parametrize("kind", RULES)
@pytest.mark.parametrize("query", QUERIES)
def test_low_rank_is_dense(kind, query):
    rules, ask = RULES[kind](), QUERIES[query]
    found = ask(grammar(rules))
    expected = ask(grammar(rg.trees.DenseRules(rules.table(NONTERMINALS, CHILDREN))))
    if not found.is_floating_point():
        assert torch.equal(found, expected)
        return
    finite = expected > -math.inf
    assert torch.equal(found > -math.inf, finite)
    assert torch.allclose(found[finite], expected[finite], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", RULES)
def test_gradients(kind):
    rules = RULES[kind]()
    dense = rg.trees.DenseRules(rules.table(NONTERMINALS, CHILDREN))
    own, other = (
        torch.autograd.grad(grammar(made).log_partition().sum(), rules.parts, retain_graph=True)
        for made in (rules, dense)
    )
    for found, expected in zip(own, other, strict=True):
        assert bool((expected != 0).any())
        assert torch.allclose(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", RULES)
def test_draws_have_the_frequencies_of_the_model(kind):
    """Within five standard errors for each span and label."""
    model, count = grammar(RULES[kind]()), 3000
    drawn_trees = model.sample(count, torch.Generator().manual_seed(0))
    p = model.marginals().detach().double()
    states = torch.arange(p.shape[-1])
    seen = (drawn_trees.unsqueeze(-1) == states).double().mean(0)
    assert bool(((seen - p).abs() <= 5 * (p * (1 - p) / count).sqrt() + 1e-4).all())


def test_factorised_rules_sum_to_one_for_each_parent():
    table = factorised().table(NONTERMINALS, CHILDREN)
    assert torch.allclose(table.exp().sum((1, 2)), torch.ones(NONTERMINALS))
