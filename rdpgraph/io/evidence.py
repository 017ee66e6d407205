"""UAI formats of evidence, of queries of marginal MAP, and of results."""

import math
from collections.abc import ItemsView, Iterator, Mapping, Sequence
from typing import Any, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rdpgraph._core import tuning
from rdpgraph.io.text import WAIT, Bytes, PathLike, read_bytes
from rdpgraph.io.tokens import TokenNumbers
from rdpgraph.model.names import Decimals

LIMIT = 1 << 25
"""Default maximum of bytes of text, 32 MiB."""
_MOST = 2.0**53  # whole numbers that a double holds
Array = NDArray[np.signedinteger[Any]]


class EvidenceRow(Mapping[str, int]):
    """A row of evidence by the names of variables, in file order: a mapping over (n, 2) integers.

    Equal to the dictionary of the same states, in a tenth of its memory.
    """

    __slots__ = ("_names", "pairs")

    def __init__(self, pairs: Array) -> None:
        self.pairs = pairs
        self._names = Decimals(pairs[:, 0])

    def __getitem__(self, name: str) -> int:
        place = self._names.find(name) if isinstance(name, str) else -1
        if place < 0:
            raise KeyError(name)
        return int(self.pairs[place, 1])

    def __len__(self) -> int:
        return len(self.pairs)

    def __iter__(self) -> Iterator[str]:
        return (name for name, _ in self.items())

    def items(self) -> ItemsView[str, int]:
        """Pairs of names and states."""
        return _Items(self)

    def __repr__(self) -> str:
        return repr(dict(self.items()))


class _Items(ItemsView[str, int]):
    _mapping: EvidenceRow

    def __iter__(self) -> Iterator[tuple[str, int]]:
        pairs = self._mapping.pairs
        for first in range(0, len(pairs), tuning.PIECE):  # converted piece by piece
            for variable, state in pairs[first : first + tuning.PIECE].tolist():
                yield str(variable), state


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
        At least one row, a mapping {variable: state} whose variables are named as `parse_uai` names
        them. Memory is at most six times the text.

    Raises:
        FileFormatError: with the line and the token that do not fit.
    """
    return parse_evidence(read_bytes(path, limit=limit, wait=wait), source=str(path))


def parse_evidence(text: str | Bytes, *, source: str = "<text>") -> Sequence[Mapping[str, int]]:
    """The rows of an evidence file's text, as `read_evidence` reads them.

    Example:
        >>> parse_evidence("2  0 1  3 0"), parse_evidence("2  1 0 1  1 0 0")
        ([{'0': 1, '3': 0}], [{'0': 1}, {'0': 0}])
    """
    listed = _WholeNumbers(text, source)
    if listed.end == 0:
        return [{}]
    count = listed.whole(0, "a number of observed variables, or of samples", listed.end - 1)
    if listed.end == 1 + 2 * count:
        return [_row(listed, 0)]
    starts, at = _starts(listed, count)
    _check_rows(listed, starts, at)
    if len(starts) < count:
        _length(listed, at)
    if at < listed.end:
        expected = f"the end of the file after {count} samples, or {1 + 2 * count} tokens in all"
        listed.numbers.fail(at, expected)
    return Rows(listed, starts)


def read_query(path: PathLike, *, limit: int = LIMIT, wait: float = WAIT) -> Sequence[str]:
    """The query variables of a marginal MAP file (``n v1 ... vn``), by name.

    Returns:
        A sequence of names as `parse_uai` gives them. Memory is at most six times the text.
        ``limit`` and ``wait`` are those of `read_evidence`.

    Raises:
        FileFormatError: with the line and the token that do not fit.
    """
    return parse_query(read_bytes(path, limit=limit, wait=wait), source=str(path))


def parse_query(text: str | Bytes, *, source: str = "<text>") -> Sequence[str]:
    """The query variables of a marginal MAP file's text, as `read_query` reads them.

    Example:
        >>> parse_query("2  3 0")
        ('3', '0')
    """
    listed = _WholeNumbers(text, source)
    count = listed.whole(0, "a number of query variables", max(listed.end - 1, 0))
    variables = listed.values[1 : 1 + count]
    ranked = np.sort(variables)
    if (ranked[:1] < 0).any() or (ranked[1:] == ranked[:-1]).any():
        known: set[int] = set()
        for at, variable in enumerate(map(int, variables), 1):
            listed.whole(at, "a variable")
            if variable in known:
                listed.numbers.fail(at, "a variable that the query does not hold yet")
            known.add(variable)
    if listed.end > 1 + count:
        listed.numbers.fail(1 + count, f"the end of the file after {count} variables")
    return Decimals(variables)


class Rows(Sequence[Mapping[str, int]]):
    """Rows of a file, made on access; equal to a list of the same."""

    def __init__(self, listed: "_WholeNumbers", starts: Array) -> None:
        self._listed, self._starts = listed, starts

    @overload
    def __getitem__(self, index: int) -> Mapping[str, int]: ...

    @overload
    def __getitem__(self, index: slice) -> list[Mapping[str, int]]: ...

    def __getitem__(self, index: int | slice) -> Mapping[str, int] | list[Mapping[str, int]]:
        if isinstance(index, slice):
            return [_row(self._listed, int(at)) for at in self._starts[index]]
        return _row(self._listed, int(self._starts[index]))

    def __len__(self) -> int:
        return len(self._starts)

    def columns(self) -> dict[str, Tensor]:
        """States of every variable that some row observes, (rows,), by name; -1 in other rows."""
        rows, variables, states = _triples(self._listed.values[1:], self._starts - 1)
        known, places = np.unique(variables, return_inverse=True)
        table = torch.full((len(known), len(self)), -1, device="cpu")
        table[torch.from_numpy(places), torch.from_numpy(rows)] = torch.from_numpy(states).long()
        return dict(zip(map(str, known.tolist()), table, strict=True))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, list | Rows) and list(self) == list(other)

    __hash__ = None  # pyright: ignore[reportAssignmentType]

    def __repr__(self) -> str:
        return repr(list(self))


class _WholeNumbers:
    """The numbers of a file as integers, -1 for those that are not whole."""

    def __init__(self, text: str | Bytes, source: str) -> None:
        self.numbers = TokenNumbers(text.encode() if isinstance(text, str) else text, source)
        self.end = self.numbers.total
        self.values: Array = np.empty(self.end, dtype=np.int32)
        for first in range(0, self.end, tuning.PIECE):
            values = self.numbers.take(min(tuning.PIECE, self.end - first))
            whole = (values >= 0) & (values % 1 == 0) & (values <= _MOST)
            piece = np.where(whole, values, -1.0)
            if self.values.dtype == np.int32 and (piece > np.iinfo(np.int32).max).any():
                self.values = self.values.astype(np.int64)
            self.values[first : first + len(piece)] = piece

    def whole(self, place: int, expected: str, most: float = math.inf) -> int:
        """The number at a place, which must be a whole number from 0 to ``most``."""
        value = float(self.values[place]) if place < self.end else -1.0
        return self.numbers.checked_whole(value, place, expected, most)


def _starts(listed: _WholeNumbers, count: int) -> tuple[Array, int]:
    """The offsets of the rows, up to one whose length does not fit, and the place after them."""
    starts, at, end = np.empty(count, dtype=listed.values.dtype), 1, listed.end
    values, places = listed.values.data, starts.data
    for number in range(count):
        stop = at + 1 + 2 * values[at] if at < end else 0
        if not at < stop <= end:
            return starts[:number], at
        places[number], at = at, stop
    return starts, at


def _check_rows(listed: _WholeNumbers, starts: Array, end: int) -> None:
    """Check rows several at a time; raise an error about the first faulty one."""
    first, piece = 0, np.array(tuning.PIECE, starts.dtype)
    while first < len(starts):
        last = int(np.searchsorted(starts, starts[first] + piece, side="right")) - 1
        last = max(last, first + 1)
        stop = int(starts[last]) if last < len(starts) else end
        if not _fit(listed.values[starts[first] : stop], starts[first:last] - starts[first]):
            for at in starts[first:last]:
                _row(listed, int(at))
        first = last


def _fit(values: Array, starts: Array) -> bool:
    """Test if rows hold only whole numbers, and one state of each variable."""
    rows, variables, states = _triples(values, starts)
    order = np.lexsort((states, variables, rows))
    rows, variables, states = rows[order], variables[order], states[order]
    same = (rows[1:] == rows[:-1]) & (variables[1:] == variables[:-1])
    return bool((values >= 0).all()) and not (same & (states[1:] != states[:-1])).any()


def _triples(values: Array, starts: Array) -> tuple[Array, Array, Array]:
    """The row, the variable and the state of each observation; rows fill ``values``."""
    lengths = np.diff(starts, append=len(values)) // 2
    is_length = np.zeros(len(values), dtype=np.bool_)
    is_length[starts] = True
    variables, states = values[~is_length].reshape(-1, 2).T
    return np.repeat(np.arange(len(starts)), lengths), variables, states


def _length(listed: _WholeNumbers, at: int) -> int:
    """The number of variables that a row observes."""
    left = (listed.end - at - 1) // 2
    return listed.whole(at, "a number of observed variables", max(left, 0))


def _row(listed: _WholeNumbers, at: int) -> EvidenceRow:
    """The row ``n v1 s1 ... vn sn`` at a place."""
    end = at + 1 + 2 * _length(listed, at)
    pairs = listed.values[at + 1 : end].reshape(-1, 2)
    if (pairs < 0).any():
        pair, is_state = divmod(int((pairs < 0).argmax()), 2)
        what = f"a state of variable {pairs[pair, 0]}" if is_state else "a variable"
        listed.numbers.fail(at + 1 + 2 * pair + is_state, what)
    ranked = np.sort(pairs[:, 0])
    if (ranked[1:] == ranked[:-1]).any():
        pairs = _without_repeats(listed.numbers, pairs, at + 1)
    return EvidenceRow(pairs)


def _without_repeats(numbers: TokenNumbers, pairs: Array, start: int) -> Array:
    """Pairs without repetitions; another state of a variable is an error."""
    cuts = range(0, len(pairs), tuning.PIECE)
    kept = _different(np.concatenate([_different(pairs[at : at + tuning.PIECE]) for at in cuts]))
    if (kept[1:, 0] == kept[:-1, 0]).any():
        known: dict[int, int] = {}
        for at, (variable, state) in enumerate(map(np.ndarray.tolist, pairs)):
            if known.setdefault(variable, state) != state:
                what = f"the state {known[variable]} that variable {variable} has already"
                numbers.fail(start + 2 * at + 1, what)
    return kept


def _different(pairs: Array) -> Array:
    """The distinct pairs, in order."""
    ranked = pairs[np.lexsort((pairs[:, 1], pairs[:, 0]))]
    new = np.ones(len(ranked), dtype=np.bool_)
    new[1:] = (ranked[1:] != ranked[:-1]).any(1)
    return ranked[new]


def format_pr(log10_z: float) -> str:
    r"""The text of a PR result: the base-10 logarithm of the partition function.

    Example:
        >>> format_pr(-0.25)
        'PR\n-0.25\n'
    """
    return f"PR\n{float(log10_z)!r}\n"


def format_mar(marginals: Sequence[Any]) -> str:
    r"""The text of a MAR result.

    Args:
        marginals: per variable, in the model's order, its probabilities: sequence or tensor.

    Example:
        >>> format_mar([[0.5, 0.5], [1.0]])
        'MAR\n2 2 0.5 0.5 1 1.0\n'
    """
    parts = [str(len(marginals))]
    for marginal in marginals:
        values = [float(value) for value in _listed(marginal)]
        parts += [str(len(values)), *map(repr, values)]
    return f"MAR\n{' '.join(parts)}\n"


def format_map(states: Sequence[int]) -> str:
    r"""Return the text of an MPE result in UAI format.

    It is the word MPE, and on the next line the number of variables and a state for each, in the
    model's order.

    Example:
        >>> format_map([0, 2, 1])
        'MPE\n3 0 2 1\n'
    """
    return f"MPE\n{' '.join(map(str, [len(states), *map(int, _listed(states))]))}\n"


def format_mmap(query: Sequence[str | int], states: Sequence[int]) -> str:
    r"""The text of an MMAP result: the query variables, each with its state.

    Args:
        query: the variables' numbers, or their names as `read_query` gives them.
        states: a state for each.

    Example:
        >>> format_mmap(["2", "3"], [0, 1])
        'MMAP\n2 2 0 3 1\n'
    """
    parts = [len(query)]
    for variable, state in zip(query, _listed(states), strict=True):
        parts += [int(variable), int(state)]
    return f"MMAP\n{' '.join(map(str, parts))}\n"


def _listed(values: Any) -> list[Any]:
    return values.tolist() if hasattr(values, "tolist") else list(values)
