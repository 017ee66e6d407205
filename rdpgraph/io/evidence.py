"""The UAI formats beside the models: evidence and the queries of marginal MAP."""

import math
from collections.abc import ItemsView, Iterator, Mapping, Sequence
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from rdpgraph.io.source import WAIT
from rdpgraph.io.text import Bytes, PathLike, read_bytes
from rdpgraph.io.tokens import Numbers

LIMIT = 1 << 25
"""The most bytes of text by default, 32 MiB."""
_PIECE = 1 << 15
"""Numbers that are turned at once."""
_MOST = 2.0**53
Array = NDArray[np.signedinteger[Any]]


class Row(Mapping[str, int]):
    """Evidence by the name of the variable, in the order of the file: a mapping over an array.

    Equal to the dictionary of the same states, and a tenth of its size.

    Args:
        pairs: (n, 2) variables, each once, and their states.
    """

    __slots__ = ("_pairs", "_sorted")

    def __init__(self, pairs: Array) -> None:
        self._pairs = pairs
        self._sorted: tuple[Array, Array] | None = None

    def __getitem__(self, name: str) -> int:
        if self._sorted is None:
            order = self._pairs[:, 0].argsort()
            self._sorted = self._pairs[order, 0], order
        known, order = self._sorted
        # A number may be written in several ways, but a variable has one name.
        if isinstance(name, str) and name.isdecimal() and len(name) < 19:
            at = int(np.searchsorted(known, int(name)))
            if at < len(known) and str(known[at]) == name:
                return int(self._pairs[order[at], 1])
        raise KeyError(name)

    def __len__(self) -> int:
        return len(self._pairs)

    def __iter__(self) -> Iterator[str]:
        return (name for name, _ in self.items())

    def items(self) -> ItemsView[str, int]:
        """Names and states."""
        return _Items(self)

    def each(self) -> Iterator[tuple[str, int]]:
        """The same, a piece of the array at a time."""
        for first in range(0, len(self), _PIECE):
            for variable, state in self._pairs[first : first + _PIECE].tolist():
                yield str(variable), state

    def __repr__(self) -> str:
        return repr(dict(self.items()))


class _Items(ItemsView[str, int]):
    _mapping: Row

    def __iter__(self) -> Iterator[tuple[str, int]]:
        return self._mapping.each()


def read_evidence(
    path: PathLike, *, limit: int = LIMIT, wait: float = WAIT
) -> Sequence[Mapping[str, int]]:
    """The rows of an evidence file, each ready for ``graph.condition(row)``.

    Both dialects are read, told apart by the number of tokens: ``n v1 s1 ... vn sn`` (2014, one
    row) and ``samples``, then for each sample ``n v1 s1 ... vn sn`` (2010). An empty file and a
    lone 0 are one row without evidence.

    Args:
        path: the file, plain or gzipped.
        limit: the most bytes of text, unpacked.
        wait: how long a pipe may be silent, in seconds.

    Returns:
        At least one row, a mapping {variable: state} whose variables are named as `read_uai` names
        them. Memory is at most six times the text.

    Raises:
        FileFormatError: with the line and the token that do not fit.
    """
    return parse_evidence(read_bytes(path, limit=limit, wait=wait), source=str(path))


def parse_evidence(text: str | Bytes, *, source: str = "<text>") -> Sequence[Mapping[str, int]]:
    """The rows of an evidence file's text; see `read_evidence`.

    Example:
        >>> parse_evidence("2  0 1  3 0"), parse_evidence("2  1 0 1  1 0 0")
        ([{'0': 1, '3': 0}], [{'0': 1}, {'0': 0}])
    """
    listed = _Listed(text, source)
    if listed.end == 0:
        return [{}]
    count = listed.whole(0, "a number of observed variables, or of samples", listed.end - 1)
    if listed.end == 1 + 2 * count:
        return [_row(listed, 0)[0]]
    starts, at = np.empty(count, dtype=listed.values.dtype), 1
    for number in range(count):
        starts[number] = at
        at = _row(listed, at)[1]
    if at < listed.end:
        expected = f"the end of the file after {count} samples, or {1 + 2 * count} tokens in all"
        listed.numbers.fail(at, expected)
    return Rows(listed, starts)


def read_query(path: PathLike, *, limit: int = LIMIT, wait: float = WAIT) -> list[str]:
    """The query variables of a marginal MAP file (``n v1 ... vn``), by name.

    Raises:
        FileFormatError: with the line and the token that do not fit.
    """
    return parse_query(read_bytes(path, limit=limit, wait=wait), source=str(path))


def parse_query(text: str | Bytes, *, source: str = "<text>") -> list[str]:
    """The query variables of a marginal MAP file's text; see `read_query`."""
    listed = _Listed(text, source)
    count = listed.whole(0, "a number of query variables", max(listed.end - 1, 0))
    names: dict[str, None] = {}
    for at in range(1, 1 + count):
        name = str(listed.whole(at, "a variable"))
        if name in names:
            listed.numbers.fail(at, "a variable that the query does not hold yet")
        names[name] = None
    if listed.end > 1 + count:
        listed.numbers.fail(1 + count, f"the end of the file after {count} variables")
    return list(names)


class Rows(Sequence[Mapping[str, int]]):
    """The rows of a file, each made when it is asked for; equal to a list of the same."""

    def __init__(self, listed: "_Listed", starts: Array) -> None:
        self._listed, self._starts = listed, starts

    @overload
    def __getitem__(self, index: int) -> Mapping[str, int]: ...

    @overload
    def __getitem__(self, index: slice) -> list[Mapping[str, int]]: ...

    def __getitem__(self, index: int | slice) -> Mapping[str, int] | list[Mapping[str, int]]:
        if isinstance(index, slice):
            return [_row(self._listed, int(at))[0] for at in self._starts[index]]
        return _row(self._listed, int(self._starts[index]))[0]

    def __len__(self) -> int:
        return len(self._starts)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, list | Rows) and list(self) == list(other)

    __hash__ = None  # pyright: ignore[reportAssignmentType]

    def __repr__(self) -> str:
        return repr(list(self))


class _Listed:
    """All numbers of a file at once, -1 for those that are not whole."""

    def __init__(self, text: str | Bytes, source: str) -> None:
        self.numbers = Numbers(text.encode() if isinstance(text, str) else text, source)
        self.end = self.numbers.total
        self.values: Array = np.empty(self.end, dtype=np.int32)
        for first in range(0, self.end, _PIECE):
            values = self.numbers.take(min(_PIECE, self.end - first))
            whole = (values >= 0) & (values % 1 == 0) & (values <= _MOST)
            piece = np.where(whole, values, -1.0)
            if self.values.dtype == np.int32 and (piece > np.iinfo(np.int32).max).any():
                self.values = self.values.astype(np.int64)
            self.values[first : first + len(piece)] = piece

    def whole(self, place: int, expected: str, most: float = math.inf) -> int:
        """The number at a place, which must be a whole number from 0 to ``most``."""
        value = float(self.values[place]) if place < self.end else -1.0
        return self.numbers.checked_whole(value, place, expected, most)


def _row(listed: _Listed, at: int) -> tuple[Row, int]:
    """One ``n v1 s1 ... vn sn``, and the place after it."""
    left = (listed.end - at - 1) // 2
    count = listed.whole(at, "a number of observed variables", max(left, 0))
    end = at + 1 + 2 * count
    pairs = listed.values[at + 1 : end].reshape(-1, 2)
    if (pairs < 0).any():
        pair, is_state = divmod(int((pairs < 0).argmax()), 2)
        what = f"a state of variable {pairs[pair, 0]}" if is_state else "a variable"
        listed.numbers.fail(at + 1 + 2 * pair + is_state, what)
    ranked = np.sort(pairs[:, 0])
    if (ranked[1:] == ranked[:-1]).any():
        pairs = _without_repeats(listed.numbers, pairs, at + 1)
    return Row(pairs), end


def _without_repeats(numbers: Numbers, pairs: Array, start: int) -> Array:
    """Pairs without what they say again; another state of a variable is an error."""
    cuts = range(0, len(pairs), _PIECE)
    parts = [np.unique(pairs[first : first + _PIECE], axis=0) for first in cuts]
    kept = np.unique(np.concatenate(parts), axis=0)
    if (kept[1:, 0] == kept[:-1, 0]).any():
        known: dict[int, int] = {}
        for at, (variable, state) in enumerate(map(np.ndarray.tolist, pairs)):
            if known.setdefault(variable, state) != state:
                what = f"the state {known[variable]} that variable {variable} has already"
                numbers.fail(start + 2 * at + 1, what)
    return kept
