"""The content of UAI files as arrays: time linear in the bytes, memory a few times the text."""

import math
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
import torch
from numpy.typing import NDArray

from rdpgraph.errors import BudgetError
from rdpgraph.io.tables import alike, distinct_sizes
from rdpgraph.io.text import Bytes
from rdpgraph.io.tokens import Numbers

_KINDS = ("MARKOV", "BAYES")
_MOST_SLOTS = 60  # numpy and torch stop at 64 dims
_ARITIES = {float(arity): arity for arity in range(_MOST_SLOTS + 1)}
_MOST_UNSUPPORTED_STATES = 1 << 20  # of a variable whose states no table lists
_MOST_SHAPES = 1 << 14
_BYTES_PER_SHAPE = 700  # of text, beyond that many: a block of factors takes six times as much
_ROWS = 1 << 14


@dataclass(frozen=True, eq=False)
class Alike:
    """The factors of one shape: their scopes (F, arity), and which factors of the file they are."""

    scopes: NDArray[np.int32]
    rows: NDArray[np.int32]
    shape: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Content:
    """What a file holds: sizes, the factors by shape, and the log-values of all, in that order."""

    sizes: NDArray[np.int64]
    groups: list[Alike]
    log_values: NDArray[Any]


def read_content(data: Bytes, source: str, dtype: torch.dtype) -> Content:
    """What a UAI file holds, read in pieces.

    Raises:
        FileFormatError: with the line and the token that do not fit.
        BudgetError: factors of more than 16,384 shapes, in less than 700 bytes of text each.
    """
    most_shapes = max(_MOST_SHAPES, len(data) // _BYTES_PER_SHAPE)
    numbers = Numbers(data, source, kinds=_KINDS)
    del data
    sizes = _read_sizes(numbers)
    arities, members = _read_scopes(numbers, len(sizes))
    groups = _by_shape(numbers, sizes, arities, members, most_shapes)
    del members
    return Content(sizes, groups, _read_tables(numbers, groups, dtype))


def _read_sizes(numbers: Numbers) -> NDArray[np.int64]:
    count = numbers.whole("a number of variables", max(numbers.total - 1, 0))
    sizes = np.empty(min(count, numbers.total - numbers.place), dtype=np.int64)
    most = max(numbers.total, _MOST_UNSUPPORTED_STATES)
    for at in range(0, len(sizes), _ROWS):
        place = numbers.place
        piece = numbers.take(min(_ROWS, len(sizes) - at))
        numbers.check((piece >= 1) & (piece % 1 == 0), place, "a number of states >= 1")
        numbers.check(piece <= most, place, f"at most {most} states in a file of this length")
        sizes[at : at + len(piece)] = piece
    if len(sizes) < count:
        numbers.fail(numbers.total, "a number of states")
    return sizes


def _read_scopes(numbers: Numbers, variables: int) -> tuple[NDArray[np.int8], NDArray[np.int32]]:
    """Per factor its arity, and the variables of all of them, one scope after the other."""
    left = max(numbers.total - numbers.place - 1, 0)
    count = numbers.whole("a number of factors", left)
    arities = np.empty(count, dtype=np.int8)
    members = array("i")
    factor = pending = 0  # pending: variables of the last scope that are still to come
    while factor < count or pending:
        piece = numbers.ahead()
        if not len(piece):
            what = f"a scope of {arities[factor - 1]} variables" if pending else "a scope"
            numbers.fail(numbers.total, what)
        listed, at, heads = piece.tolist(), pending, list[int]()
        first = factor
        while at < len(listed) and factor < count:
            arity = _ARITIES.get(listed[at])
            if arity is None:
                what = f"the scope's length of factor {factor},"
                numbers.checked_whole(listed[at], numbers.place + at, what, _MOST_SLOTS)
                raise AssertionError("every whole number up to the most is an arity")
            heads.append(at)
            factor += 1
            at += 1 + arity
        arities[first:factor] = piece[heads]
        used = min(at, len(listed))
        body = np.ones(used, dtype=np.bool_)
        body[heads] = False
        numbers_read = piece[:used]
        good = (numbers_read >= 0) & (numbers_read < variables) & (numbers_read % 1 == 0) | ~body
        numbers.check(good, numbers.place, f"a variable from 0 to {variables - 1}")
        members.frombytes(numbers_read[body].astype(np.int32).tobytes())
        pending = at - used
        numbers.skip(used)
    return arities, np.frombuffer(members, dtype=np.int32)


def _by_shape(
    numbers: Numbers,
    sizes: NDArray[np.int64],
    arities: NDArray[np.int8],
    members: NDArray[np.int32],
    most_shapes: int,
) -> list[Alike]:
    """The factors of like shape, by arity and size; no scope holds a variable twice."""
    groups: list[Alike] = []
    distinct = distinct_sizes(sizes)
    for arity in np.unique(arities).tolist():
        rows = np.flatnonzero(arities == arity).astype(np.int32)
        every = len(rows) == len(arities)
        own = members if every else members[np.repeat(arities == arity, arities)]
        scopes = own.reshape(len(rows), arity)
        for at in range(0, len(rows) if arity > 1 else 0, _ROWS):
            ranked = np.sort(scopes[at : at + _ROWS], axis=1)
            repeats = (ranked[:, 1:] == ranked[:, :-1]).any(1)
            if repeats.any():
                _fail_at_repeat(numbers, arities, int(rows[at + repeats.argmax()]), members)
        parts = alike(scopes, sizes, distinct)
        if len(groups) + len(parts) > most_shapes:
            raise BudgetError(
                f"{numbers.source}: the factors have more than {most_shapes:,} different shapes, "
                "of about 4 kB each; a file of this length may have no more."
            )
        for part in parts:
            shape = tuple(sizes[scopes[part][0]].tolist())
            groups.append(Alike(scopes[part], rows[part], shape))
    return groups


def _fail_at_repeat(
    numbers: Numbers, arities: NDArray[np.int8], factor: int, members: NDArray[np.int32]
) -> NoReturn:
    """Raise an error about a variable that a factor's scope holds already."""
    start = int(arities[:factor].sum(dtype=np.int64))
    scope = members[start : start + int(arities[factor])].tolist()
    slot = next(slot for slot, variable in enumerate(scope) if variable in scope[:slot])
    first = numbers.place - len(members) - len(arities)
    expected = "a variable that its scope does not hold yet"
    numbers.fail(first + start + factor + 1 + slot, expected)


def _read_tables(numbers: Numbers, groups: list[Alike], dtype: torch.dtype) -> NDArray[Any]:
    """The log-values of the factors, group by group; every length and value is checked."""
    count, end = sum(len(group.rows) for group in groups), numbers.total
    bounds = np.empty(count + 1)  # the places of the tables' lengths, and of what follows them
    bounds[0] = numbers.place
    for rows, sizes in _sized(groups):
        bounds[rows + 1] = sizes + 1
    np.cumsum(bounds, out=bounds)
    # Nothing is allocated on the word of a header: only what the numbers that came will fill.
    target = _Target(groups, bounds, dtype) if bounds[-1] == end else None
    while len(piece := numbers.ahead()):
        start = numbers.place
        first, last = np.searchsorted(bounds[:-1], [start, start + len(piece)]).tolist()
        heads = bounds[first:last].astype(np.int64) - start
        wrong = piece[heads] != np.diff(bounds[first : last + 1]) - 1
        if wrong.any():
            _fail_at_length(numbers, bounds, first + int(wrong.argmax()))
        negative = (piece < 0) & (np.arange(start, start + len(piece)) < bounds[-1])
        if negative.any():
            place = start + int(negative.argmax())
            factor = int(np.searchsorted(bounds, place, side="right")) - 1
            numbers.fail(place, f"a value >= 0 in factor {factor}'s table")
        if target is not None:
            target.put(piece, heads, first)
        numbers.skip(len(piece))
    if bounds[-1] < end:
        numbers.fail(int(bounds[-1]), f"the end of the file after {count} tables")
    if target is None:
        factor = int((bounds[1:] > end).argmax())
        length = bounds[factor + 1] - bounds[factor] - 1
        if bounds[factor] >= end:
            _fail_at_length(numbers, bounds, factor)
        numbers.fail(end, f"the {length:.0f} values of factor {factor}")
    return target.log_values


def _sized(groups: list[Alike]) -> Iterator[tuple[NDArray[np.int32], NDArray[np.float64]]]:
    """Some factors after the other, group by group, and how many values each has."""
    rows, sizes, count = list[NDArray[np.int32]](), list[float](), 0
    for group in groups:
        size = math.prod(map(float, group.shape))
        for at in range(0, len(group.rows), _ROWS):
            rows.append(group.rows[at : at + _ROWS])
            sizes.append(size)
            count += len(rows[-1])
            if count >= _ROWS:
                yield np.concatenate(rows), np.repeat(sizes, list(map(len, rows)))
                rows, sizes, count = [], [], 0
    if rows:
        yield np.concatenate(rows), np.repeat(sizes, list(map(len, rows)))


def _fail_at_length(numbers: Numbers, bounds: NDArray[np.float64], factor: int) -> NoReturn:
    length = bounds[factor + 1] - bounds[factor] - 1
    place = min(int(bounds[factor]), numbers.total)
    numbers.fail(place, f"the {length:.0f} of factor {factor}'s table")


class _Target:
    """The log-values of all factors, group by group, filled as the numbers come."""

    def __init__(
        self, groups: list[Alike], bounds: NDArray[np.float64], dtype: torch.dtype
    ) -> None:
        self._shifts = np.empty(len(bounds) - 1, dtype=np.int64)  # from places to log-values
        start = 0
        for rows, sizes in _sized(groups):
            ends = start + sizes.cumsum().astype(np.int64)
            self._shifts[rows] = ends - (sizes + bounds[rows]).astype(np.int64) - 1
            start = int(ends[-1])
        kind = np.float32 if dtype == torch.float32 else np.float64
        self.log_values: NDArray[Any] = np.empty(start, dtype=kind)
        self._at = int(bounds[0])

    def put(self, piece: NDArray[np.float64], heads: NDArray[np.int64], first: int) -> None:
        """The next numbers, which begin within factor ``first - 1``; lengths stand at ``heads``."""
        counts = np.diff(np.concatenate([[0], heads, [len(piece)]]))
        shifts = self._shifts[np.arange(first - 1, first + len(heads))]
        places = np.arange(self._at, self._at + len(piece)) + np.repeat(shifts, counts)
        is_value = np.ones(len(piece), dtype=np.bool_)
        is_value[heads] = False
        values = torch.from_numpy(piece[is_value]).log()
        self.log_values[places[is_value]] = values.numpy()
        self._at += len(piece)
