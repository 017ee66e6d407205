"""Sums of products of tensors whose dims have names, as matrix products where that is less work."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from rdpgraph._core.shards import Shard
from rdpgraph.recurrences.semirings import Semiring

Made = TypeVar("Made")


@dataclass(eq=False, slots=True)
class NamedTensor:
    """A tensor (items, *dims) whose dims have names; items: 1 where all have the same.

    Attributes:
        fixed: whether it takes part in many products, so that work to prepare it is worth keeping.
        split: the name of a dim of which the values are a part, others being on other processes.
        shard: how they are split.
        series: (steps, items, *dims) and a number, of tensors that are prepared together; None:
            it is no part of such a series.
    """

    values: Tensor
    names: tuple[str, ...]
    fixed: bool = False
    split: str | None = None
    shard: Shard | None = None
    series: tuple[Tensor, int] | None = None

    @property
    def is_matrix(self) -> bool:
        """Whether what is prepared of it is kept."""
        return self.fixed or self.series is not None

    def size(self, name: str) -> int:
        """The size of a dim."""
        return self.values.shape[1 + self.names.index(name)]

    def narrow(self, name: str, start: int, length: int) -> "NamedTensor":
        """A part of a dim, if the tensor has it; of all items where the name is empty."""
        dim = 1 + self.names.index(name) if name in self.names else -1 if name else 0
        if dim < 0 or self.values.shape[dim] == length or (not dim and len(self.values) == 1):
            return self
        values = self.values.narrow(dim, start, length)
        return replace(self, values=values, fixed=False, series=None)

    def arranged(self, names: Sequence[str]) -> Tensor:
        """(items, *dims) in the order of some names, of size 1 where the tensor lacks one."""
        if self.names == names:
            return self.values
        return View.arranged(self.names, self.values.shape, names).of(self.values)


@dataclass(eq=False, slots=True)
class View:
    """The dims of a tensor in another order, and then in another shape; None: as they are."""

    order: tuple[int, ...] | None
    shape: tuple[int, ...] | None

    @classmethod
    def make(cls, size: Sequence[int], order: Sequence[int], shape: Sequence[int]) -> "View":
        """The view of a tensor of a size."""
        still = tuple(order) == tuple(range(len(order)))
        ordered = tuple(size[k] for k in order)
        return cls(
            None if still else tuple(order), None if tuple(shape) == ordered else tuple(shape)
        )

    @classmethod
    def arranged(cls, own: Sequence[str], size: Sequence[int], names: Sequence[str]) -> "View":
        """The view in the order of some names, of size 1 for those that are lacking."""
        order = [0, *(1 + own.index(name) for name in names if name in own)]
        shape = [size[0], *(size[1 + own.index(n)] if n in own else 1 for n in names)]
        return cls.make(size, order, shape)

    @property
    def is_same(self) -> bool:
        """Whether it is the tensor itself."""
        return self.order is None and self.shape is None

    def of(self, values: Tensor) -> Tensor:
        """The view of a tensor."""
        if self.order is not None:
            values = values.permute(self.order)
        return values if self.shape is None else values.reshape(self.shape)


class _Planned(Protocol):
    """What plans know of a factor: the names of its dims, and whether many products have it."""

    @property
    def names(self) -> tuple[str, ...]: ...
    @property
    def fixed(self) -> bool: ...


@dataclass(eq=False, slots=True)
class ProductStep:
    """Multiply the factors at two places, or take one (-1), and sum names out; append the result.

    Attributes:
        joins: how factors of some sizes are multiplied.
    """

    one: int
    other: int
    summed: tuple[str, ...]
    joins: "dict[object, Join]" = field(default_factory=dict[object, "Join"])


def plan_steps(
    factors: Sequence[_Planned], over: Sequence[str], sizes: Mapping[str, int]
) -> list[ProductStep]:
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
    steps: list[ProductStep] = []

    def join(one: int, other: int, summed: Sequence[str]) -> None:
        names = alive.pop(one) | (alive.pop(other) if other >= 0 else set[str]())
        steps.append(ProductStep(one, other, tuple(summed)))
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


def gather_whole(x: NamedTensor) -> NamedTensor:
    """The values of all processes, of one that is split between them."""
    if x.split is None:
        return x
    assert x.shard is not None
    return NamedTensor(x.shard.gather(x.values, 1 + x.names.index(x.split)), x.names)


class NamedProducts:
    """NamedProducts of named tensors over a semiring.

    Attributes:
        kept: what was prepared of factors that many products have; added to.
    """

    def __init__(self, semiring: Semiring) -> None:
        self.semiring = semiring
        self.kept: dict[object, Any] = {}

    def contract(self, factors: Sequence[NamedTensor], steps: Sequence[ProductStep]) -> NamedTensor:
        """The sum of the product of factors, by steps that were planned for their names."""
        made = [*factors]
        for step in steps:
            if step.other < 0:
                made.append(self.summed(made[step.one], step.summed))
            else:
                made.append(self.joined(made[step.one], made[step.other], step))
        return gather_whole(made[-1])

    # ---- values that are split between processes ----

    def _joined_in_parts(self, x: NamedTensor, y: NamedTensor, step: ProductStep) -> NamedTensor:
        """`joined` where x is split, and y may be: the product with the part here.

        Each process multiplies its part by what goes with it, and sums over the entries that it
        has. If the split name is summed over, the sums of all processes are summed; else the result
        is split as x is.
        """
        split, shard = x.split, x.shard
        assert split is not None
        assert shard is not None
        if y.split != split:  # one of two that are split by different names is made whole
            y = gather_whole(y)
            there = split in y.names
            values = (
                shard.part(y.values, 1 + y.names.index(split)) if there else shard.copy(y.values)
            )
            y = NamedTensor(values, y.names)
        here = self.joined(replace(x, split=None), replace(y, split=None), step)
        return self._added_up(here, split, shard)

    def _added_up(self, here: NamedTensor, split: str, shard: Shard) -> NamedTensor:
        """What a process has computed with its part: a part, or the sum of what all have."""
        if split in here.names:
            return replace(here, split=split, shard=shard)
        return NamedTensor(self.semiring.sum(shard.stack(here.values), [0]), here.names)

    # ---- sums and products ----

    def summed(self, x: NamedTensor, summed: Sequence[str]) -> NamedTensor:
        """The sums over some dims."""
        dims = [1 + x.names.index(name) for name in summed]
        rest = tuple(name for name in x.names if name not in summed)
        here = NamedTensor(self.semiring.sum(x.values, dims), rest)
        if x.split is None:
            return here
        assert x.shard is not None
        return self._added_up(here, x.split, x.shard)

    def joined(self, x: NamedTensor, y: NamedTensor, step: ProductStep) -> NamedTensor:
        """The product of two factors, summed over some names that both have."""
        if x.split is not None:
            return self._joined_in_parts(x, y, step)
        if y.split is not None:
            return self._joined_in_parts(y, x, step)
        # A matrix that was prepared stands on the right.
        if x.is_matrix and not y.is_matrix:
            x, y = y, x
        join = Join.of(x, y, step)
        one = join.x.of(x.values)
        # Factors without a product of matrices are multiplied entry by entry; others are such a
        # product, with a prepared matrix where there is one.
        if not join.as_matrix:
            other = join.y.of(y.values)
            values = (
                self.semiring.sum_products(one, other, join.dims)
                if join.dims
                else self.semiring.multiply(one, other)
            )
        elif y.is_matrix:
            matrices = self.prepared(y, join.y, self.semiring.prepare_each)
            matrix = matrices[0 if y.series is None else y.series[1]]
            values = join.of_product(matrix.times(one))
        else:
            values = self.semiring.pair(one, join.y.of(y.values), balanced=join.balanced)
            values = join.of_product(values)
        return NamedTensor(values, join.names)

    def prepared(self, y: NamedTensor, view: View, prepare: Callable[[Tensor], Made]) -> Made:
        """What is made of a factor that many products have, or of all of its series.

        Args:
            y: the factor.
            view: of its values.
            prepare: makes something of each of (many, *view).
        """
        source = y.values if y.series is None else y.series[0]
        key = id(source), view.order, view.shape, prepare
        found = self.kept.get(key)
        if found is None:
            every = source if y.series is not None else source.unsqueeze(0)
            order = None if view.order is None else (0, *(1 + k for k in view.order))
            shape = None if view.shape is None else (every.shape[0], *view.shape)
            found = self.kept[key] = prepare(View(order, shape).of(every))
        return found


class Join:
    """How two factors of some names and sizes are multiplied, and summed over some of the names.

    Either entry by entry, in dims that broadcast, or as matrices ([lead,] rows, k) and ([lead,]
    columns, k).

    Attributes:
        items: of the two.
        x, y: how they are viewed for that.
        names: of the result.
        as_matrix: whether it is a product of matrices.
        dims: of the products of entries that are summed over.
        shape, order: of the result of a product of matrices, and then of its dims.
        balanced: whether rows and columns are those of one item.
    """

    @classmethod
    def of(cls, x: NamedTensor, y: NamedTensor, step: ProductStep) -> "Join":
        """How two factors are multiplied: as others of their sizes in this step, or anew."""
        key = x.values.shape, y.values.shape, y.is_matrix
        if key not in step.joins:
            step.joins[key] = cls(x, y, step.summed)
        return step.joins[key]

    def __init__(self, one: NamedTensor, other: NamedTensor, summed: tuple[str, ...]) -> None:
        x, y = one.names, other.names
        x_size, y_size, is_matrix = one.values.shape, other.values.shape, other.is_matrix
        items, others = self.items = x_size[0], y_size[0]
        sizes = dict(zip((*x, *y), (*x_size[1:], *y_size[1:]), strict=True))
        shared = [name for name in x if name in y and name not in summed]
        left = [name for name in x if name not in y]
        right = [name for name in y if name not in x]
        # Rows that one matrix multiplies: several, or one in each of many steps.
        several = bool(left) or items > others or is_matrix
        self.as_matrix = bool(summed) and several and bool(right)
        if not self.as_matrix:
            # Nothing is read twice, so a matrix product saves nothing.
            names = (*shared, *left, *right, *summed)
            self.x, self.y = View.arranged(x, x_size, names), View.arranged(y, y_size, names)
            self.dims = tuple(range(1 + len(names) - len(summed), 1 + len(names)))
            self.names = names[: len(names) - len(summed)]
            return
        self.names = (*shared, *left, *right)
        # Items of one factor alone are rows, or columns, too.
        rows, columns = items > others, others > items
        self.balanced = not rows and not columns
        lead = math.prod(sizes[n] for n in shared) * (items if self.balanced else 1)
        lead = (lead,) if lead > 1 else ()
        each = math.prod(sizes[n] for n in summed)

        def as_matrix(
            own: tuple[str, ...], size: Sequence[int], mine: list[str], *, with_items: bool
        ) -> View:
            order = [1 + own.index(n) for n in (*shared, *mine, *summed)]
            order.insert(len(shared) if with_items else 0, 0)
            count = math.prod(sizes[n] for n in mine) * (size[0] if with_items else 1)
            return View.make(size, order, (*lead, count, each))

        self.x = as_matrix(x, x_size, left, with_items=rows)
        self.y = as_matrix(y, y_size, right, with_items=columns)
        # The result has the items after the shared dims, where they are rows or columns.
        shape = [sizes[n] for n in self.names]
        at = len(shared) + (len(left) if columns else 0) if rows or columns else 0
        shape.insert(at, max(items, others))
        self.shape = tuple(shape)
        self.order = None if not at else (at, *(k for k in range(len(shape)) if k != at))

    def of_product(self, values: Tensor) -> Tensor:
        """The product of matrices as (items, *dims)."""
        if values.shape != self.shape:
            values = values.reshape(self.shape)
        return values if self.order is None else values.permute(self.order)


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
