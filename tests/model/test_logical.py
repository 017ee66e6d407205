"""Logical constraints against their truth tables."""

import itertools
import math

import pytest
import torch

import rdpgraph as rg
from rdpgraph import And, AtMostOne, Cardinality, ExactlyOne, Or, Xor
from tests.logical import LOGICAL, count_between

ARITIES = range(1, 6)


def holds_as(potential, arity, rule):
    """The truth table is that of a rule about a list of bools, in values 0 and -inf."""
    expected = [
        0.0 if rule(list(bits)) else -math.inf
        for bits in itertools.product([False, True], repeat=arity)
    ]
    assert potential.shape == (2,) * arity
    assert potential.table(arity).flatten().tolist() == expected


@pytest.mark.parametrize("arity", ARITIES)
@pytest.mark.parametrize("kind", LOGICAL)
def test_truth_tables(kind, arity):
    one = LOGICAL[kind]
    holds_as(one.make(arity), arity, lambda bits: one.meets(sum(bits), arity))


@pytest.mark.parametrize("arity", ARITIES)
def test_counts_between_all_bounds(arity):
    for least in range(arity + 1):
        for most in (None, *range(least, arity + 3)):
            one = count_between(least, most)
            made = one.make(arity)
            holds_as(made, arity, lambda bits, one=one: one.meets(sum(bits), arity))
            assert len(made.transitions) <= (least + 1 if most is None else most + 2)


def test_a_parity_is_named():
    with pytest.raises(TypeError):
        Xor(2, 0)
    assert Xor(2, parity=0).table(2).exp().tolist() == [[1.0, 0.0], [0.0, 1.0]]
    assert torch.equal(Xor(2, parity=1).table(2), Xor(2).table(2))


def test_the_type_of_the_log_values():
    assert Or(2).dtype == torch.get_default_dtype()
    for one in (*LOGICAL.values(), count_between(1)):
        assert one.make(2, dtype=torch.float64).dtype == torch.float64


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Or(0), "Or needs arity as a whole number of at least 1; got 0"),
        (lambda: And(-1), "And needs arity as a whole number of at least 1; got -1"),
        (lambda: Xor(2.0), "Xor needs arity as a whole number of at least 1; got 2.0"),
        (lambda: AtMostOne(0), "AtMostOne needs arity"),
        (lambda: ExactlyOne(True), "ExactlyOne needs arity"),
        (lambda: Xor(3, parity=2), r"Xor needs parity 1 \(odd\) or 0 \(even\); got 2"),
        (lambda: Cardinality(3, at_least=2, at_most=1), "at_least <= at_most=1; got at_least=2"),
        (lambda: Cardinality(3, at_least=4), "at_least <= the arity 3; got at_least=4"),
        (lambda: Cardinality(3, at_least=4, at_most=5), "at_least <= the arity 3"),
        (
            lambda: Cardinality(3, at_least=-1),
            "needs at_least as a whole number of at least 0; got -1",
        ),
        (
            lambda: Cardinality(3, at_most=-2),
            "needs at_most as a whole number of at least 0 or None; got -2",
        ),
    ],
)
def test_what_cannot_hold_says_why(make, message):
    with pytest.raises(rg.errors.ModelError, match=message) as caught:
        make()
    assert "\n" not in str(caught.value)
