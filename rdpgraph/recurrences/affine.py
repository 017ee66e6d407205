"""Whole numbers that are affine in named ones, and what follows from inequalities between them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from math import gcd

_MOST_ROWS = 600  # inequalities after which a proof is given up; proofs for bitexts take under 200


@dataclass(frozen=True, slots=True)
class Affine:
    """The sum of a constant and of named whole numbers, each times a coefficient that is not 0.

    Names are those of variables, sizes and lengths. ``str`` writes it as rules do: "t - d - 1".
    """

    terms: tuple[tuple[str, int], ...] = ()
    constant: int = 0

    @classmethod
    def of(cls, value: "Affine | int | str") -> "Affine":
        """A number, or a name, as a form; forms as they are."""
        if isinstance(value, Affine):
            return value
        return cls(((value, 1),)) if isinstance(value, str) else cls((), value)

    def __add__(self, other: "Affine | int | str") -> "Affine":
        other, terms = Affine.of(other), dict(self.terms)
        for name, coefficient in other.terms:
            terms[name] = terms.get(name, 0) + coefficient
        kept = tuple(sorted((name, times) for name, times in terms.items() if times))
        return Affine(kept, self.constant + other.constant)

    def __mul__(self, times: int) -> "Affine":
        terms = tuple((name, coefficient * times) for name, coefficient in self.terms if times)
        return Affine(terms, self.constant * times)

    def __neg__(self) -> "Affine":
        return self * -1

    def __sub__(self, other: "Affine | int | str") -> "Affine":
        return self + -Affine.of(other)

    def coefficient(self, name: str) -> int:
        """The coefficient of a name, 0 for one that it lacks."""
        return next((times for known, times in self.terms if known == name), 0)

    def substitute(self, values: Mapping[str, "Affine"]) -> "Affine":
        """Replace names by other forms, all at once."""
        result = Affine((), self.constant)
        for name, times in self.terms:
            result = result + values.get(name, Affine.of(name)) * times
        return result

    def evaluate(self, values: Mapping[str, int]) -> int:
        """The number, where every name has one."""
        return self.constant + sum(times * values[name] for name, times in self.terms)

    @property
    def names(self) -> frozenset[str]:
        """The names that it depends on."""
        return frozenset(name for name, _ in self.terms)

    @property
    def bare(self) -> str | None:
        """The name that it is, if it is nothing else."""
        alone = len(self.terms) == 1 and self.terms[0][1] == 1 and not self.constant
        return self.terms[0][0] if alone else None

    def __str__(self) -> str:
        ordered = sorted(self.terms, key=lambda term: -term[1])
        parts = [
            f"{'+' if times > 0 else '-'} {'' if abs(times) == 1 else f'{abs(times)} * '}{name}"
            for name, times in ordered
        ]
        if self.constant or not parts:
            parts.append(f"{'+' if self.constant >= 0 else '-'} {abs(self.constant)}")
        text = " ".join(parts)
        return text[2:] if text[0] == "+" else f"-{text[2:]}"


def follows(claim: Affine, given: Iterable[Affine]) -> bool:
    """Return whether ``claim >= 0`` follows from ``given >= 0``, all of whole numbers.

    By Fourier and Motzkin's elimination: the claim follows if its opposite contradicts what is
    given. False where there is no proof, also where one was given up.
    """
    rows: dict[tuple[tuple[str, int], ...], int] = {}
    for form in (*given, Affine((), -1) - claim):
        if not _add(rows, form):
            return True
    while names := {name for terms in rows for name, _ in terms}:
        # Eliminate the name whose elimination leaves the fewest inequalities.
        name = min(sorted(names), key=partial(_growth, [*rows]))
        forms = [Affine(terms, constant) for terms, constant in rows.items()]
        lower = [form for form in forms if form.coefficient(name) > 0]
        upper = [form for form in forms if form.coefficient(name) < 0]
        rows = {form.terms: form.constant for form in forms if not form.coefficient(name)}
        for one in lower:
            for other in upper:
                combined = one * -other.coefficient(name) + other * one.coefficient(name)
                if not _add(rows, combined):
                    return True
        if len(rows) > _MOST_ROWS:
            return False
    return False


def _growth(rows: Iterable[tuple[tuple[str, int], ...]], name: str) -> int:
    """How many more inequalities there are once a name is eliminated."""
    signs = [times for terms in rows for known, times in terms if known == name]
    above = sum(times > 0 for times in signs)
    return above * (len(signs) - above) - len(signs)


def _add(rows: dict[tuple[tuple[str, int], ...], int], form: Affine) -> bool:
    """Add an inequality in whole numbers; return False where it contradicts the others at once."""
    if not form.terms:
        return form.constant >= 0
    common = gcd(*(times for _, times in form.terms))
    terms = tuple((name, times // common) for name, times in form.terms)
    constant = form.constant // common  # rounded down: the sum of the terms is a whole number
    rows[terms] = min(constant, rows.get(terms, constant))
    opposite = tuple((name, -times) for name, times in terms)
    return rows.get(opposite, -rows[terms]) + rows[terms] >= 0
