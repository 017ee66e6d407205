"""The pairs that a matching chooses from, and their connected components."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rdpgraph._core.masked import present
from rdpgraph._core.numbers import is_whole
from rdpgraph.errors import ModelError
from rdpgraph.model.potentials.table import as_values, as_whole, is_array

Integers = NDArray[np.int64]
Flags = NDArray[np.bool_]


class Pairs:
    """Pairs of a row and a column; a matching uses each row and each column once at most.

    Rows and columns are the vertices of a bipartite graph, the columns numbered after the rows, and
    the pairs are its edges.

    Attributes:
        ends: (P, 2) the vertex of the row and that of the column of each pair.
        num_rows: the number of rows.
        num_columns: the number of columns.
        required: (rows + columns,) the vertices that every matching uses.
        sites: (P,), or (rows, columns) where all pairs are there.
    """

    def __init__(
        self, ends: Integers, num_rows: int, num_columns: int, required: Flags,
        sites: tuple[int, ...],
    ) -> None:  # fmt: skip
        self.ends, self.required, self.sites = ends, required, sites
        self.num_rows, self.num_columns = num_rows, num_columns

    def __repr__(self) -> str:
        every = int(self.required.sum())
        return (
            f"Pairs({len(self.ends)} of {self.num_rows} rows and {self.num_columns} columns, "
            f"{every} of these required)"
        )

    @property
    def vertices(self) -> int:
        """The number of rows and columns."""
        return self.num_rows + self.num_columns

    @staticmethod
    def of(
        listed: Any, shape: tuple[int, int], sites: tuple[int, ...], every_row: Any,
        every_column: Any,
    ) -> "Pairs":  # fmt: skip
        """Pairs given as (P, 2) rows and columns, checked against a shape (rows, columns)."""
        ends = np.array(listed, dtype=np.int64).reshape(-1, 2)
        ends[:, 1] += shape[0]
        required = [
            _flags(f"every_{name}", given, count)
            for name, given, count in zip(
                ("row", "column"), (every_row, every_column), shape, strict=True
            )
        ]
        return Pairs(ends, *shape, np.concatenate(required), sites)


def _flags(name: str, given: Any, count: int) -> Flags:
    """(count,) booleans, from one for all or one for each."""
    if isinstance(given, bool):
        return np.full(count, given)
    if isinstance(given, Tensor):
        given = given.detach().cpu()
    flags = np.asarray(present(f"Matching's {name}", given))
    if flags.dtype != np.bool_ or flags.shape != (count,):
        raise ModelError(
            f"Matching needs {name} as True or False, or {count} of them, one for each; got "
            f"{flags.dtype} of shape {flags.shape}."
        )
    return flags


def read_matrix(given: Any) -> tuple[Integers, tuple[int, int], Tensor, bool]:
    """Pairs (P, 2), the shape, log-odds and whether they are dense, from a matrix.

    Dense ones are (*batch, rows, columns), and all pairs are there; of a sparse matrix of scipy or
    torch the entries that are stored are the pairs, those of value 0 too.
    """
    if hasattr(given, "tocoo"):
        coo = given.tocoo(copy=True)  # which duplicates are summed in
        coo.sum_duplicates()
        values = torch.as_tensor(coo.data)
        listed, shape = np.stack([coo.row, coo.col], 1).astype(np.int64), tuple(coo.shape)
        return (
            listed,
            (int(shape[0]), int(shape[1])),
            as_values("Matching's log_odds", values),
            False,
        )
    if isinstance(given, Tensor) and given.layout != torch.strided:
        coo = given.to_sparse_coo().coalesce()
        if coo.sparse_dim() != 2 or coo.dense_dim():
            raise ModelError(f"Matching needs a sparse matrix; got shape {tuple(coo.shape)}.")
        return coo.indices().T.cpu().numpy(), (coo.shape[0], coo.shape[1]), coo.values(), False
    plain = given = present("Matching's log_odds", given)
    if is_array(given) or not isinstance(given, Tensor):
        plain = as_values("Matching's log_odds", given)
    if plain.ndim < 2:
        raise ModelError(
            "Matching needs log_odds (*batch, rows, columns), dense or a sparse matrix of scipy or "
            f"torch, or (*batch, P) beside pairs=(P, 2); got shape {tuple(plain.shape)}."
        )
    rows, columns = plain.shape[-2:]
    listed = np.argwhere(np.ones((rows, columns)))
    return listed, (rows, columns), plain, True


def read_pairs(given: Any, shape: Any) -> tuple[Integers, tuple[int, int]]:
    """Pairs (P, 2) and the shape, that of the largest numbers where none is given."""
    listed = as_whole("Matching's pairs", given).cpu().numpy()
    if listed.ndim != 2 or listed.shape[1] != 2:
        raise ModelError(
            f"Matching needs pairs (P, 2), a row and a column each; got {listed.shape}."
        )
    if shape is None:
        shape = (listed.max(0, initial=-1) + 1).tolist()
    sizes: tuple[Any, ...] = tuple(shape) if isinstance(shape, Iterable) else ()
    if len(sizes) != 2 or not all(is_whole(size) for size in sizes):
        raise ModelError(
            f"Matching needs shape=(rows, columns), whole numbers >= 0; got {shape!r:.80}."
        )
    rows, columns = map(int, sizes)
    if (listed < 0).any() or (listed >= (rows, columns)).any():
        wrong = listed[((listed < 0) | (listed >= (rows, columns))).any(1)][0].tolist()
        raise ModelError(
            f"Matching of {rows} rows and {columns} columns needs pairs within these, counted from "
            f"0; got {tuple(wrong)}."
        )
    return listed, (rows, columns)


@dataclass(frozen=True, eq=False)
class Alike:
    """Components of one shape: the same edges between their vertices, in the same order."""

    ends: Integers  # (E, 2) the vertices of each edge, numbered from 0
    required: Flags  # (V,)
    entries: Tensor  # (G, E) the place of each edge among all (items, P)
    items: Tensor  # (G,)


def components(pairs: Pairs, possible: Flags) -> tuple[list[Alike], Flags]:
    """The connected components of possible pairs, (B, P), those of one shape together.

    And (B,) whether a vertex that is required has no possible pair.
    """
    items, count = len(possible), pairs.vertices
    item, pair = possible.nonzero()
    ends = pairs.ends[pair] + (item * count)[:, None]
    alone = np.ones(items * count, dtype=np.bool_)
    alone[ends] = False
    lacking = np.asarray((alone.reshape(items, count) & pairs.required).any(1))
    if not len(item):
        return [], lacking
    label = _labels(items * count, ends)
    # Vertices and edges of a component lie one after another, in their order.
    used = (~alone).nonzero()[0]
    used = used[np.argsort(label[used], kind="stable")]
    order = np.argsort(label[ends[:, 0]], kind="stable")
    first = _starts(label[used])
    place = np.empty(items * count, dtype=np.int64)
    place[used] = np.arange(len(used)) - np.repeat(first[:-1], np.diff(first))
    local = place[ends[order]]
    required = pairs.required[used % count]
    start = _starts(label[ends[order, 0]])
    # Components are alike where these bytes are.
    groups: dict[tuple[bytes, bytes], list[int]] = {}
    small = local.astype(np.int32)
    for number in range(len(start) - 1):
        key = (
            small[start[number] : start[number + 1]].tobytes(),
            required[first[number] : first[number + 1]].tobytes(),
        )
        groups.setdefault(key, []).append(number)
    entries = (item * len(pairs.ends) + pair)[order]
    found = list[Alike]()
    for members in groups.values():
        one = members[0]
        edges = slice(start[one], start[one + 1])
        rows = start[members][:, None] + np.arange(start[one + 1] - start[one])
        found.append(
            Alike(
                local[edges],
                required[first[one] : first[one + 1]],
                torch.from_numpy(entries[rows]),
                torch.from_numpy(item[order[rows[:, 0]]]),
            )
        )
    return found, lacking


def _labels(count: int, ends: Integers) -> Integers:
    """(count,) the least vertex of the component of each, by hooking and pointer jumping."""
    label = np.arange(count)
    one, other = ends.T
    while True:
        low = np.minimum(label[one], label[other])
        if (label[one] == label[other]).all():
            return label
        np.minimum.at(label, label[one], low)
        np.minimum.at(label, label[other], low)
        while ((above := label[label]) != label).any():
            label = above


def _starts(sorted_labels: Integers) -> Integers:
    """The start of each run of equal labels, and the end of the last."""
    change = (np.diff(sorted_labels) != 0).nonzero()[0] + 1
    return np.concatenate([[0], change, [len(sorted_labels)]])


def two_sides(count: int, ends: Iterable[tuple[int, int]]) -> list[int] | None:
    """Return a side, 0 or 1, for each vertex such that every edge joins both sides.

    It is None if the graph has a cycle of odd length.
    """
    near: list[list[int]] = [[] for _ in range(count)]
    for one, other in ends:
        near[one].append(other)
        near[other].append(one)
    side = [-1] * count
    for start in range(count):
        if side[start] >= 0:
            continue
        side[start], stack = 0, [start]
        while stack:
            one = stack.pop()
            for other in near[one]:
                if side[other] == side[one]:
                    return None
                if side[other] < 0:
                    side[other] = 1 - side[one]
                    stack.append(other)
    return side
