"""Whole numbers that are affine in named ones, and what follows from inequalities between them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from math import gcd
from typing import Any

import numpy as np
from numpy.typing import NDArray

_Terms = tuple[tuple[str, int], ...]
_Row = tuple[int, _Terms, int]  # the size of a coefficient, and a form
_MOST_NAMES = 8  # of which small numbers are tried, 3^8 of them
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
        if isinstance(other, int):
            return Affine(self.terms, self.constant + other)
        return self._plus(Affine.of(other), 1)

    def _plus(self, other: "Affine", sign: int) -> "Affine":
        terms = dict(self.terms)
        for name, coefficient in other.terms:
            terms[name] = terms.get(name, 0) + sign * coefficient
        kept = [(name, times) for name, times in terms.items() if times]
        kept.sort()
        return Affine(tuple(kept), self.constant + sign * other.constant)

    def __mul__(self, times: int) -> "Affine":
        terms = [(name, coefficient * times) for name, coefficient in self.terms if times]
        return Affine(tuple(terms), self.constant * times)

    def __neg__(self) -> "Affine":
        return self * -1

    def __sub__(self, other: "Affine | int | str") -> "Affine":
        if isinstance(other, int):
            return Affine(self.terms, self.constant - other)
        return self._plus(Affine.of(other), -1)

    def coefficient(self, name: str) -> int:
        """The coefficient of a name, 0 for one that it lacks."""
        for known, times in self.terms:
            if known == name:
                return times
        return 0

    def substitute(self, values: Mapping[str, "Affine"]) -> "Affine":
        """Replace names by other forms, all at once."""
        terms, constant = dict[str, int](), self.constant
        for name, times in self.terms:
            value = values.get(name)
            if value is None:
                terms[name] = terms.get(name, 0) + times
                continue
            constant += times * value.constant
            for known, coefficient in value.terms:
                terms[known] = terms.get(known, 0) + times * coefficient
        kept = [(name, times) for name, times in terms.items() if times]
        kept.sort()
        return Affine(tuple(kept), constant)

    def evaluate(self, values: Mapping[str, int]) -> int:
        """The number, where every name has one."""
        return self.constant + sum(times * values[name] for name, times in self.terms)

    @property
    def names(self) -> frozenset[str]:
        """The names that it depends on."""
        return frozenset(dict(self.terms))

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


def evaluate_form(form: Affine, values: Mapping[str, Any]) -> Any:
    """Return the value of a form: a number, or an array where values of its names are arrays."""
    total: Any = form.constant
    for name, times in form.terms:
        total = total + (values[name] if times == 1 else times * values[name])
    return total


class Facts:
    """Inequalities in whole numbers, and what follows from them.

    Most claims are wrong, and almost all of these at some small numbers, which are looked up before
    a proof is tried. Most of the others are what was given, or sums of two such forms.
    """

    def __init__(self, given: Iterable[Affine]) -> None:
        """Take forms that are at least 0."""
        self._parts: list[_ConnectedForms] = []
        self._least: dict[_Terms, int] = {}  # the strongest form of some terms, by its constant
        for form in dict.fromkeys(given):
            known = self._least.get(form.terms)
            self._least[form.terms] = form.constant if known is None else min(known, form.constant)
            # Forms that share no name, not even through others, say nothing of one another.
            names = form.names
            touching = [part for part in self._parts if not part.names.isdisjoint(names)]
            forms = [form, *(known for part in touching for known in part.forms)]
            self._parts = [part for part in self._parts if part not in touching]
            self._parts.append(
                _ConnectedForms(forms, names.union(*(part.names for part in touching)))
            )

    def imply(self, claim: Affine) -> bool:
        """Return whether a form is proved to be at least 0."""
        if self._is_given(claim):
            return True
        if not claim.terms:
            return False
        names, terms = claim.names, {*claim.terms}
        touching = [part for part in self._parts if not part.names.isdisjoint(names)]
        if len(touching) == 1 and names <= touching[0].names and touching[0].refute(claim):
            return False
        # The sum of two forms that are given, of which one has a term of it, or a longer proof.
        forms = [form for part in touching for form in part.forms]
        alike = (form for form in forms if not terms.isdisjoint(form.terms))
        return any(self._is_given(claim - form) for form in alike) or follows(claim, forms)

    def _is_given(self, claim: Affine) -> bool:
        """Return whether a form is a number that is not negative, or given and perhaps a number."""
        least = 0 if not claim.terms else self._least.get(claim.terms)
        return least is not None and claim.constant >= least


def essential_forms(forms: Iterable[Affine], given: Iterable[Affine]) -> list[Affine]:
    """Leave out forms that are at least 0 wherever ``given`` ones and those left are.

    What is left out is implied by one of these or is the sum of two, up to a number. Forms of many
    names are left out first.
    """
    kept = [form for form in dict.fromkeys(forms) if form.terms or form.constant < 0]
    given = [form for form in given if form.terms]
    for claim in sorted(kept, key=lambda form: -len(form.terms)):
        others = given + [form for form in kept if form is not claim]
        least = dict[_Terms, int]()
        for form in others:
            least[form.terms] = min(form.constant, least.get(form.terms, form.constant))
        terms = {*claim.terms}
        rests = [claim, *(claim - form for form in others if not terms.isdisjoint(form.terms))]
        if any(rest.terms in least and rest.constant >= least[rest.terms] for rest in rests):
            kept.remove(claim)
    return kept


class _ConnectedForms:
    """Forms that share names, and small numbers for which all of them are at least 0."""

    def __init__(self, forms: list[Affine], names: frozenset[str]) -> None:
        self.forms, self.names = forms, names
        self._places = {name: k for k, name in enumerate(sorted(names))}
        self._points = None

    def _row(self, form: Affine) -> list[int]:
        row = [0] * len(self._places)
        for name, times in form.terms:
            row[self._places[name]] = times
        return row

    def refute(self, claim: Affine) -> bool:
        """Return whether a claim is below 0 for some of the numbers."""
        if len(self._places) > _MOST_NAMES:
            return False
        if self._points is None:
            grid = _grid(len(self._places))
            rows = np.array([self._row(form) for form in self.forms], dtype=np.float32)
            start = np.array([[form.constant] for form in self.forms], dtype=np.float32)
            self._points = grid[:, (rows @ grid + start >= 0).all(0)]
        values = np.array(self._row(claim), dtype=np.float32) @ self._points
        return bool((values + claim.constant < 0).any())


@cache
def _grid(names: int) -> NDArray[np.float32]:
    """(names, points) all small numbers: fewer of each where there are many names."""
    most = 4 if names <= 5 else 3
    return np.indices((most,) * names).reshape(names, -1).astype(np.float32)


def follows(claim: Affine, given: Iterable[Affine]) -> bool:
    """Return whether ``claim >= 0`` follows from ``given >= 0``, all of whole numbers.

    By Fourier and Motzkin's elimination: the claim follows if its opposite contradicts what is
    given. False where there is no proof, also where one was given up.
    """
    rows: dict[_Terms, int] = {}
    for form in (*given, Affine((), -1) - claim):
        if not _add(rows, form.terms, form.constant):
            return True
    while True:
        # Eliminate the name whose elimination leaves the fewest inequalities.
        up, down = dict[str, int](), dict[str, int]()
        for terms in rows:
            for name, times in terms:
                side, other = (up, down) if times > 0 else (down, up)
                side[name] = side.get(name, 0) + 1
                other.setdefault(name, 0)
        if not up:
            return False
        name = min(sorted(up), key=lambda one: up[one] * down[one] - up[one] - down[one])
        lower, upper, rest = list[_Row](), list[_Row](), dict[_Terms, int]()
        for terms, constant in rows.items():
            times = next((times for known, times in terms if known == name), 0)
            if times:
                (lower if times > 0 else upper).append((abs(times), terms, constant))
            else:
                rest[terms] = constant
        rows = rest
        for a, low, start in lower:
            for b, high, end in upper:
                combined = {known: b * times for known, times in low}
                for known, times in high:
                    combined[known] = combined.get(known, 0) + a * times
                terms = tuple(sorted(one for one in combined.items() if one[1]))
                if not _add(rows, terms, b * start + a * end):
                    return True
        if len(rows) > _MOST_ROWS:
            return False


def _add(rows: dict[_Terms, int], terms: _Terms, constant: int) -> bool:
    """Add an inequality in whole numbers; return False where it contradicts the others at once."""
    if not terms:
        return constant >= 0
    common = gcd(*[times for _, times in terms])
    if common > 1:
        terms = tuple((name, times // common) for name, times in terms)
        constant //= common  # rounded down: the sum of the terms is a whole number
    known = rows.get(terms)
    if known is None or constant < known:
        rows[terms] = constant
    opposite = rows.get(tuple([(name, -times) for name, times in terms]))
    return opposite is None or opposite + rows[terms] >= 0
