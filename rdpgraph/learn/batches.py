"""Rows of data in batches, with weights."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rdpgraph.errors import ModelError

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
    """Select rows."""
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
