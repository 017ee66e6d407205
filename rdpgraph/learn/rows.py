"""Rows of data in batches, and as distinct rows of states, with weights."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rdpgraph._core import tuning
from rdpgraph.errors import EvidenceError, ModelError
from rdpgraph.model.domain import Domain
from rdpgraph.model.evidence import MISSING, states_given
from rdpgraph.model.frames import codes_of, columns_of, is_frame, is_gap, is_series
from rdpgraph.model.variable import States

Rows = Any
"""A tensor with a leading dim of rows, or a tuple or dictionary of them."""


def tensors_of(rows: Rows) -> list[Tensor]:
    """The tensors of a batch."""
    if isinstance(rows, Tensor):
        return [rows]
    if isinstance(rows, tuple | list):
        return [tensor for part in rows for tensor in tensors_of(part)]
    if isinstance(rows, dict):
        return [tensor for part in rows.values() for tensor in tensors_of(part)]
    raise ModelError(
        "Data to fit are tensors with a leading dim of rows, in tuples and dictionaries, or an "
        f"iterable of such batches; got {type(rows).__name__}."
    )


def count_of(rows: Rows) -> int:
    """The number of rows, which all tensors share."""
    counts = {tensor.shape[0] if tensor.ndim else 0 for tensor in tensors_of(rows)}
    if len(counts) != 1 or 0 in counts:
        raise ModelError(
            "All tensors of the data need the same number of rows, at least one, as their leading "
            f"dim; got {sorted(counts)}."
        )
    return counts.pop()


def rows_at(rows: Rows, places: Tensor | slice) -> Rows:
    """Rows at some places, of every tensor of the data."""
    if isinstance(rows, Tensor):
        return rows[places]
    if isinstance(rows, dict):
        return {name: rows_at(part, places) for name, part in rows.items()}
    return tuple(rows_at(part, places) for part in rows)


@dataclass(frozen=True, eq=False)
class Batches:
    """Batches of data for each step: row numbers, rows, weights or None.

    ``data`` are rows or an iterable of batches; a ``generator`` shuffles the rows of each pass.
    """

    data: Any
    weights: Any
    size: int | None
    generator: torch.Generator | None = None

    @staticmethod
    def of(data: Any, weights: Any, size: int | None, generator: Any = None) -> "Batches":
        """Batches of data and weights as given by users; refuses weights that do not fit."""
        whole = isinstance(data, Tensor | tuple | dict)
        if not whole and not isinstance(data, Iterable):
            tensors_of(data)
        if isinstance(data, Iterator):
            raise ModelError(
                "Batches are gone through in every step; got an iterator, which ends after one. "
                "Give a list or a DataLoader."
            )
        if weights is None:
            _ = count_of(data) if whole else None
            return Batches(data, None, size, generator)
        if not whole and isinstance(weights, list):
            return Batches(data, weights, size, generator)
        weights = torch.as_tensor(weights)
        if not whole or weights.shape != (count_of(data),):
            wanted = f"({count_of(data)},)" if whole else "a list, one tensor for each batch"
            raise ModelError(f"Weights of rows need {wanted}; got {tuple(weights.shape)}.")
        if not bool((weights >= 0).all()) or not bool((weights > 0).any()):
            raise ModelError("Weights of rows are numbers at least 0, one of them above.")
        return Batches(data, weights, size, generator)

    def weight(self) -> float:
        """The total weight of all rows."""
        if self.weights is not None:
            return sum(float(part.sum()) for part in self.weights)
        whole = isinstance(self.data, Tensor | tuple | dict)
        return float(sum(map(count_of, (self.data,) if whole else self.data)))

    def __iter__(self) -> Iterator[tuple[Tensor, Rows, Tensor | None]]:
        if not isinstance(self.data, Tensor | tuple | dict):
            first = 0
            for number, rows in enumerate(self.data):
                count = count_of(rows)
                chosen = None if self.weights is None else self.weights[number]
                yield torch.arange(first, first + count), rows, chosen
                first += count
            return
        count = count_of(self.data)
        order = torch.arange(count)
        if self.generator is not None:
            order = torch.randperm(count, generator=self.generator)
        for first in range(0, count, self.size or count):
            at = order[first : first + (self.size or count)]
            # A slice is a view, without a copy.
            places = at if self.generator is not None else slice(first, first + len(at))
            yield at, rows_at(self.data, places), None if self.weights is None else self.weights[at]


@dataclass(frozen=True, eq=False)
class Distinct:
    """Distinct rows of states in small integers, -1 where missing.

    Attributes:
        states: (distinct, variables).
        weights: (distinct,) sums over equal rows, float64.
        first: (distinct,) the number of the first such row.
        inverse: (rows,) for each row its place among the distinct ones.
    """

    states: Tensor
    weights: Tensor
    first: NDArray[np.int64]
    inverse: NDArray[np.int64]

    @staticmethod
    def of(
        states: NDArray[Any], weights: NDArray[np.float64], first: NDArray[np.int64]
    ) -> "Distinct":
        """Distinct rows among (rows, variables), of given weights and numbers."""
        states = np.ascontiguousarray(states)
        keys = states.view(np.dtype((np.void, states.itemsize * states.shape[1])))[:, 0]
        _, places, inverse = np.unique(keys, return_index=True, return_inverse=True)
        return Distinct(
            torch.from_numpy(states[places]),
            torch.from_numpy(np.bincount(inverse, weights, len(places))),
            first[places],
            inverse,
        )


def read_rows(data: Any, domain: Domain) -> Iterator[Distinct]:
    """Distinct rows of a table, chunk by chunk, each of weight one; absent columns are missing."""
    count = count_rows(data)
    kind = np.min_scalar_type(-int(domain.sizes.max()))
    for name in columns(data):
        if not domain.holds(name):
            raise ModelError(f"Column {name!r} is no variable of the network; drop it, or add it.")
    for begin in range(0, count, tuning.COUNTED_ROWS):
        states = states_given(_some(data, begin, begin + tuning.COUNTED_ROWS), domain)
        states = states.expand(min(tuning.COUNTED_ROWS, count - begin), -1).numpy().astype(kind)
        yield Distinct.of(states, np.ones(len(states)), np.arange(begin, begin + len(states)))


def distinct_rows(data: Any, domain: Domain, weights: Any = None) -> Distinct:
    """Distinct rows of a whole table; refuses weights that do not fit."""
    count = count_rows(data)
    given = None if weights is None else np.asarray(weights, np.float64)
    if given is not None and (given.shape != (count,) or not (given >= 0).all()):
        raise ModelError(f"Weights are {count} numbers of at least 0; got shape {given.shape}.")
    if given is not None and not given.sum() > 0:
        raise ModelError("Weights of rows are all zero; there is nothing to fit.")
    parts: list[Distinct] = []
    begin = 0
    for part in read_rows(data, domain):
        size = len(part.inverse)
        if given is not None:
            counted = np.bincount(part.inverse, given[begin : begin + size], len(part.weights))
            part = Distinct(part.states, torch.from_numpy(counted), part.first, part.inverse)
        parts.append(part)
        begin += size
    if not parts:
        raise EvidenceError("The data has no rows.")
    return Distinct.of(
        np.concatenate([part.states.numpy() for part in parts]),
        np.concatenate([part.weights.numpy() for part in parts]),
        np.concatenate([part.first for part in parts]),
    )


def columns(data: Any) -> dict[Any, Any]:
    """The columns of a DataFrame, or of a mapping, by name."""
    if is_frame(data):
        return columns_of(data)
    if isinstance(data, Mapping) and data:
        return dict(data)
    raise EvidenceError(
        "Data is a DataFrame of pandas, or a mapping from variables to columns; got "
        f"{type(data).__name__}."
    )


def count_rows(data: Any) -> int:
    """The number of rows; refuses columns of different lengths."""
    counts = (
        {len(column) for column in columns(data).values()} if not is_frame(data) else {len(data)}
    )
    if len(counts) != 1:
        raise EvidenceError(f"The columns of the data have different lengths: {sorted(counts)}.")
    return counts.pop()


def states_in(name: str, column: Any) -> States:
    """The states of a column: its categories, or the values that occur, sorted."""
    kind = getattr(column, "dtype", None)
    categories = getattr(kind, "categories", None)
    if categories is not None:
        return tuple(categories.tolist())
    if isinstance(column, Tensor):
        values: list[Any] = column.unique().tolist()
    elif is_series(column):
        values = codes_of(column)[1]
    else:
        values = list(dict.fromkeys(np.asarray(column, object).tolist()))
    states: list[Any] = [value for value in values if not is_gap(value)]
    states = [int(v) if isinstance(v, float | np.floating) and v % 1 == 0 else v for v in states]
    states = [value for value in states if isinstance(value, str) or value != MISSING]
    if not states:
        raise EvidenceError(f"Column {name!r} has no states; give them: states={{{name!r}: 2}}.")
    wrong = [value for value in states if isinstance(value, float)]
    if wrong:
        raise EvidenceError(
            f"Column {name!r} holds {wrong[0]!r}, which is no state: states are names or whole "
            "numbers. Cut numbers into intervals, as by pandas.cut."
        )
    return tuple(sorted(states, key=lambda value: (str(type(value)), value)))


def _some(data: Any, begin: int, end: int) -> Any:
    if is_frame(data):
        return data.iloc[begin:end]
    return {
        name: (column.iloc if is_series(column) and hasattr(column, "iloc") else column)[begin:end]
        for name, column in data.items()
    }
