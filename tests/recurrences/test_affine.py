"""Whole numbers in names: arithmetic, printing, and proofs of inequalities."""

import itertools
import random

import pytest

from rdpgraph.recurrences.affine import Affine, Facts, essential_forms

t, d, T = map(Affine.of, "tdT")


@pytest.mark.parametrize(
    ("form", "text"),
    [
        (t - d - 1, "t - d - 1"),
        (-t + T - 1, "T - t - 1"),
        (t * 2 + 3, "2 * t + 3"),
        (Affine.of(-1), "-1"),
        (-t, "-t"),
        (t - t, "0"),
    ],
)
def test_forms_print_as_rules_are_written(form, text):
    assert str(form) == text


def test_proofs_are_sound_and_find_what_small_numbers_cannot_refute():
    """Random claims: none that follows has a counterexample, and simple ones are all found."""
    draw = random.Random(0)
    names = "ijk"
    proved = 0
    for _ in range(120):
        forms = []
        for _ in range(5):
            one, other = draw.sample(names, 2)
            form = Affine.of(one) * draw.choice([1, -1]) + Affine.of(other) * draw.choice(
                [1, -1, 0]
            )
            forms.append(form + draw.randint(-2, 2))
        claim, *given = forms
        points = [
            dict(zip(names, values, strict=True))
            for values in itertools.product(range(-4, 5), repeat=3)
        ]
        holds = all(
            claim.evaluate(point) >= 0
            for point in points
            if all(form.evaluate(point) >= 0 for form in given)
        )
        if Facts(given).imply(claim):
            proved += 1
            assert holds
    assert proved > 5


def test_forms_that_are_left_out_hold_wherever_the_others_do():
    """Random forms: what is left says the same, beside given ones, of all small numbers."""
    draw = random.Random(0)
    names = "ijk"
    points = [
        dict(zip(names, values, strict=True))
        for values in itertools.product(range(-4, 5), repeat=3)
    ]
    left_out = 0
    for _ in range(200):
        forms = []
        for _ in range(8):
            one, other = draw.sample(names, 2)
            times = draw.choice([1, -1]), draw.choice([1, -1, 0])
            form = Affine.of(one) * times[0] + Affine.of(other) * times[1]
            forms.append(form + draw.randint(-2, 2))
        given, claims = forms[:3], forms[3:]
        kept = essential_forms(claims, given)
        assert {*kept} <= {*claims}
        left_out += len({*claims}) - len(kept)
        for point in points:
            if all(form.evaluate(point) >= 0 for form in (*given, *kept)):
                assert all(form.evaluate(point) >= 0 for form in claims)
    assert left_out > 100


def test_places_of_parts_follow_from_few_inequalities():
    """Of a span i..j and a split k within it, that k is a word follows."""
    i, j, k, last = map(Affine.of, ["i", "j", "k", "last"])
    inside = [i, last - i, j, last - j, j - i]
    claims = [k, last - k, k - i, j - k - 1, k + 1, last - k - 1, j - i + 3]
    assert essential_forms(claims, inside) == [k - i, j - k - 1]


def test_whole_numbers_prove_more_than_fractions():
    assert Facts([t * 2 - 1]).imply(t - 1)  # 2 t >= 1
    assert not Facts([t * 2]).imply(t - 1)


def test_facts_of_other_names_say_nothing():
    facts = Facts([d - 1, t - 2, T - t])
    assert all(map(facts.imply, (T - 2, T + d - 3)))
    assert not any(map(facts.imply, (T - 3, t + d - 4)))
