"""Sums of products of tensors whose dims have names, as matrix products where that is less work."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from rdpgraph._core.shards import Shard
from rdpgraph.recurrences.semirings import Prepared, Semiring


@dataclass(frozen=True, eq=False)
class NamedTensor:
    """A tensor (items, *dims) whose dims have names; items: 1 where all have the same.

    Attributes:
        fixed: whether it takes part in many products, so that work to prepare it is worth keeping.
        split: the name of a dim of which the values are a part, others being on other processes.
        shard: how they are split.
    """

    values: Tensor
    names: tuple[str, ...]
    fixed: bool = False
    split: str | None = None
    shard: Shard | None = None

    def size(self, name: str) -> int:
        """The size of a dim."""
        return self.values.shape[1 + self.names.index(name)]

    def arranged(self, names: Sequence[str]) -> Tensor:
        """(items, *dims) in the order of some names, of size 1 where the tensor lacks one."""
        own = [name for name in names if name in self.names]
        values = self.values
        if own != [*self.names]:
            values = values.permute(0, *(1 + self.names.index(name) for name in own))
        for place, name in enumerate(names):
            if name not in self.names:
                values = values.unsqueeze(1 + place)
        return values


class _Planned(Protocol):
    """What plans know of a factor: the names of its dims, and whether many products have it."""

    @property
    def names(self) -> tuple[str, ...]: ...
    @property
    def fixed(self) -> bool: ...


Step = tuple[int, int, tuple[str, ...]]
"""Multiply the factors at two places, or take one (-1), and sum names out; append the result."""


def plan_steps(
    factors: Sequence[_Planned], over: Sequence[str], sizes: Mapping[str, int]
) -> list[Step]:
    """The order of products and sums: variable after variable, the cheapest first.

    Of variables that cost the same, one of a fixed matrix comes first, which is prepared once, and
    then one whose sum is smaller.

    Args:
        factors: of which the names and whether they are fixed matter.
        over: the names to sum over.
        sizes: of all names.
    """
    alive = {place: {*factor.names} for place, factor in enumerate(factors)}
    in_fixed = {name for factor in factors if factor.fixed for name in factor.names}
    steps: list[Step] = []

    def join(one: int, other: int, summed: Sequence[str]) -> None:
        names = alive.pop(one) | (alive.pop(other) if other >= 0 else set[str]())
        steps.append((one, other, tuple(summed)))
        alive[len(factors) + len(steps) - 1] = names - {*summed}

    left = [*over]
    while left:
        # The cost of a variable is the number of terms of the sum over it.
        def cost(name: str) -> tuple[int, bool, int]:
            names = set[str]().union(*(own for own in alive.values() if name in own))
            result = math.prod(sizes[each] for each in names - {name})
            return math.prod(sizes[each] for each in names), name not in in_fixed, result

        first = min(left, key=cost)
        while len(group := [place for place, own in alive.items() if first in own]) > 2:
            small = sorted(group, key=lambda place: math.prod(sizes[n] for n in alive[place]))
            join(small[0], small[1], ())
        # Whatever else only these have is summed over in the same product.
        elsewhere = set[str]().union(*(own for place, own in alive.items() if place not in group))
        summed = [name for name in left if name == first or (
            name not in elsewhere and all(name in alive[place] for place in group)
        )]  # fmt: skip
        join(group[0], group[1] if len(group) == 2 else -1, summed)
        left = [name for name in left if name not in summed]
    while len(alive) > 1:
        one, other, *_ = sorted(alive, key=lambda p: math.prod(sizes[n] for n in alive[p]))
        join(one, other, ())
    return steps


def contract(
    semiring: Semiring, factors: Sequence[NamedTensor], steps: Sequence[Step],
    kept: dict[tuple[object, ...], Prepared],
) -> NamedTensor:  # fmt: skip
    """The sum of the product of factors, by steps that were planned for their names.

    Args:
        semiring: of their values.
        factors: at least one.
        steps: from `plan_steps`.
        kept: matrices that were prepared of fixed factors; added to.
    """
    made = [*factors]
    for one, other, summed in steps:
        if other < 0:
            made.append(_summed(semiring, made[one], summed))
        else:
            made.append(_joined(semiring, made[one], made[other], summed, kept))
    return gather_whole(made[-1])


# ---- values that are split between processes ----


def gather_whole(x: NamedTensor) -> NamedTensor:
    """The values of all processes."""
    if x.split is None:
        return x
    assert x.shard is not None
    return NamedTensor(x.shard.gather(x.values, 1 + x.names.index(x.split)), x.names)


def _joined_in_parts(
    semiring: Semiring, x: NamedTensor, y: NamedTensor, summed: Sequence[str],
    kept: dict[tuple[object, ...], Prepared],
) -> NamedTensor:  # fmt: skip
    """`_joined` where x is split, and y may be: the product with the part here.

    Each process multiplies its part by what goes with it, and sums over the entries that it has.
    If the split name is summed over, the sums of all processes are summed; else the result is split
    as x is.
    """
    split, shard = x.split, x.shard
    assert split is not None
    assert shard is not None
    if y.split != split:  # one of two that are split by different names is made whole
        y = gather_whole(y)
        there = split in y.names
        values = shard.part(y.values, 1 + y.names.index(split)) if there else shard.copy(y.values)
        y = NamedTensor(values, y.names)
    here = _joined(semiring, replace(x, split=None), replace(y, split=None), summed, kept)
    return _added_up(semiring, here, split, shard)


def _added_up(semiring: Semiring, here: NamedTensor, split: str, shard: Shard) -> NamedTensor:
    """What a process has computed with its part: a part, or the sum of what all have computed."""
    if split in here.names:
        return replace(here, split=split, shard=shard)
    return NamedTensor(semiring.sum(shard.stack(here.values), [0]), here.names)


# ---- sums and products ----


def _summed(semiring: Semiring, x: NamedTensor, summed: Sequence[str]) -> NamedTensor:
    dims = [1 + x.names.index(name) for name in summed]
    rest = tuple(name for name in x.names if name not in summed)
    here = NamedTensor(semiring.sum(x.values, dims), rest)
    if x.split is None:
        return here
    assert x.shard is not None
    return _added_up(semiring, here, x.split, x.shard)


def _joined(
    semiring: Semiring, x: NamedTensor, y: NamedTensor, summed: Sequence[str],
    kept: dict[tuple[object, ...], Prepared],
) -> NamedTensor:  # fmt: skip
    """The product of two factors, summed over some names that both have."""
    if x.split is not None:
        return _joined_in_parts(semiring, x, y, summed, kept)
    if y.split is not None:
        return _joined_in_parts(semiring, y, x, summed, kept)
    shared = [name for name in x.names if name in y.names and name not in summed]
    left = [name for name in x.names if name not in y.names]
    right = [name for name in y.names if name not in x.names]
    if x.fixed and not y.fixed:
        x, y, left, right = y, x, right, left
    # Rows that one matrix multiplies: several, or one in each of many steps.
    several = bool(left) or len(x.values) > len(y.values) or y.fixed
    if not summed or not several or not right:
        # Nothing is read twice, so a matrix product saves nothing.
        names = (*shared, *summed, *left, *right)
        values = semiring.multiply(x.arranged(names), y.arranged(names))
        product = NamedTensor(values, names)
        return _summed(semiring, product, summed) if summed else product
    rows, lead_x, size_x = _as_matrix(x, shared, left, summed, fold=len(y.values) == 1)
    key = (id(y.values), tuple(shared), tuple(summed), len(x.values) == 1)
    columns, lead_y, size_y = _as_matrix(y, shared, right, summed, fold=len(x.values) == 1)
    matrix = kept.get(key)
    if matrix is None:
        matrix = semiring.prepare(columns)
        if y.fixed:
            kept[key] = matrix
    product = matrix.times(rows)  # (items, *shared, rows, columns)
    shape = [max(lead_x, lead_y), *(x.size(name) for name in shared), *size_x, *size_y]
    values = product.reshape(shape)
    names = (*shared, *left, *right)
    if len(size_x) > len(left):  # items of x were folded into its rows
        values = values.movedim(1 + len(shared), 0).flatten(0, 1)
    elif len(size_y) > len(right):
        values = values.movedim(1 + len(shared) + len(left), 0).flatten(0, 1)
    return NamedTensor(values, names)


def _as_matrix(
    x: NamedTensor, shared: Sequence[str], own: Sequence[str], summed: Sequence[str], *, fold: bool
) -> tuple[Tensor, int, list[int]]:
    """(items, *shared, rows, columns), how many items, and the sizes that are the rows.

    With ``fold`` several items are rows, too: the other factor has one for all.
    """
    values = x.arranged((*shared, *own, *summed))
    sizes, items = [x.size(name) for name in own], len(values)
    if fold and items > 1:
        values = values.unsqueeze(0).movedim(1, 1 + len(shared))
        sizes, items = [len(x.values), *sizes], 1
    rows, columns = math.prod(sizes), math.prod(x.size(name) for name in summed)
    shape = [items, *(x.size(name) for name in shared), rows, columns]
    return values.reshape(shape), items, sizes


def entries_at(values: Tensor, flat: Tensor) -> Tensor:
    """(items, entries, *labels) some entries of the second dim of values, for each item its own."""
    if len(flat) == 1:
        (index,) = flat
        entries = torch.arange(values.shape[1], device=index.device)
        return values if torch.equal(index, entries) else values.index_select(1, index)
    item = torch.arange(len(flat), device=flat.device).unsqueeze(1)
    return values[item if len(values) > 1 else 0, flat]


def merge_names(values: Tensor, names: Sequence[str]) -> NamedTensor:
    """Name the dims of values (items, *dims).

    Of two dims of one name the diagonal is taken, the entries where both have the same value.
    """
    names = [*names]
    for name in dict.fromkeys(names):
        while names.count(name) > 1:
            one = names.index(name)
            other = names.index(name, one + 1)
            values = values.diagonal(dim1=1 + one, dim2=1 + other)
            names = [*(n for k, n in enumerate(names) if k not in (one, other)), name]
    return NamedTensor(values, tuple(names))
