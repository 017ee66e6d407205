"""Hypertrees in float32: scores of any spread, and rules that lead by far and are never used."""

import math

import pytest
import torch

from rdpgraph import Hypertree
from rdpgraph.trees import DenseRules
from tests.structures.hypertree.enumeration import KINDS, normal, rules_of

KIND = pytest.mark.parametrize(("kind", "preterminals"), [(k, p) for k in KINDS for p in (0, 1)])


def hypertree(kind, preterminals, dtype, spread=1.0, offset=0.0):
    """Three words, and two fewer in the second item; scores are those of float32 in any dtype."""
    rules = rules_of(kind, 3 - preterminals, 3)
    rules = rules.with_parts([(spread * part).float().to(dtype) for part in rules.parts])
    unary = (spread * normal(2, 3, 3, 3) + offset).float().to(dtype)
    lengths = torch.tensor([3, 2])
    return Hypertree(unary, rules, preterminals=preterminals, lengths=lengths)


def compare(narrow, wide):
    """Log Z to five digits of what its scores add up to; marginals as far as these tell them."""
    least = 1e-5 * float(wide.unary[wide.unary > -math.inf].abs().max().clamp(min=1))
    close = torch.testing.assert_close
    close(narrow.log_partition().double(), wide.log_partition(), rtol=1e-5, atol=least)
    error = 1e-4 + min(1.0, 10 * least)
    pairs = [(narrow.marginals(), wide.marginals())]
    pairs += zip(narrow.rule_marginals(), wide.rule_marginals(), strict=True)
    for found, expected in pairs:
        assert bool(found.isfinite().all())
        close(found.double(), expected, rtol=1e-3, atol=error)


@KIND
@pytest.mark.parametrize("spread", [1.0, 30.0, 300.0, 1000.0])
@pytest.mark.parametrize("offset", [0.0, 1e4])
def test_single_precision_holds_at_any_spread(kind, preterminals, spread, offset):
    dtypes = torch.float32, torch.float64
    compare(*(hypertree(kind, preterminals, dtype, spread, offset) for dtype in dtypes))


@KIND
@pytest.mark.parametrize(("spread", "temperature"), [(1.0, 5.0), (30.0, 0.5), (1000.0, 1e-3)])
def test_relaxed_draws_hold_in_single_precision(kind, preterminals, spread, temperature):
    drawn = [
        hypertree(kind, preterminals, dtype, spread).rsample(
            3, temperature=temperature, generator=torch.Generator().manual_seed(1)
        )
        for dtype in (torch.float32, torch.float64)
    ]
    torch.testing.assert_close(drawn[0].double(), drawn[1], rtol=0, atol=1e-4)


@pytest.mark.parametrize(("preterminals", "high"), [(0, 1e2), (0, 1e3), (0, 1e5), (1, 1e2)])
def test_rules_of_states_that_nothing_has_do_not_matter(preterminals, high):
    """Rules of state 0 lead by far, and no span is in state 0."""
    unary, rules = normal(2, 4, 4, 3).float(), normal(3, 3, 3).float()
    unary[..., 0] = -math.inf
    rules[:, 0], rules[..., 0] = high, high
    rules = rules[: 3 - preterminals]
    pair = [
        Hypertree(unary.to(dtype), DenseRules(rules.to(dtype)), preterminals=preterminals)
        for dtype in (torch.float32, torch.float64)
    ]
    compare(*pair)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rules_lead_where_their_parts_are_faint(dtype):
    """Words in state 0 have a weight of exp(-500), and a rule that joins two of them exp(1500)."""
    unary = torch.zeros(3, 3, 2, dtype=dtype)
    unary[range(3), range(3), 0] = -500.0
    rules = torch.zeros(2, 2, 2, dtype=dtype)
    rules[:, 0, 0] = 1500.0
    model = Hypertree(unary, DenseRules(rules))
    drawn = model.sample(20, torch.Generator().manual_seed(0))
    for states in (model.mode(), *drawn):  # the inner span is in state 0, too
        assert not states[range(3), range(3)].any()
        assert states[0, 1] + states[1, 2] == -1
    best = model.by_input().max_marginals("unary")
    assert [*best] == ["unary"]
    every = model.by_input().max_marginals()
    assert torch.equal(best["unary"], every["unary"])
    torch.testing.assert_close(best["unary"].amax(), model.score(model.mode()))
