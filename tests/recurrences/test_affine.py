"""Whole numbers in names: arithmetic, printing, and proofs of inequalities."""

import itertools
import random

import pytest

from rdpgraph.recurrences.affine import Affine, follows

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
        if follows(claim, given):
            proved += 1
            assert holds
    assert proved > 5


def test_whole_numbers_prove_more_than_fractions():
    assert follows(t - 1, [t * 2 - 1])  # 2 t >= 1
    assert not follows(t - 1, [t * 2])
