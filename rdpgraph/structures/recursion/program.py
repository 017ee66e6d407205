"""Programs: tapes lowered to arrays of numbers, which the compiled machine runs.

Lowering depends on the topology alone: which step reads which places of which values. Tensors are
given when a program runs, by slot: potentials of the sites, leaves, tables, and places that differ
by item.
"""

import math
from array import array
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rdpgraph._core.cache import cached_property
from rdpgraph.structures.recursion.links import Table
from rdpgraph.structures.recursion.series import chain_ends, mark_series
from rdpgraph.structures.recursion.step import Step
from rdpgraph.structures.recursion.steps import (
    Concatenated,
    LabelsAsPlaces,
    Leaf,
    Linked,
    Pairs,
    Relabelled,
    Total,
)
from rdpgraph.structures.recursion.stored import Stored, stored
from rdpgraph.structures.recursion.values import Value, View, listed_places

# As in tables.h.
(
    _SITES, _GIVEN, _TOTAL, _LINKED, _SUMMED, _PAIRS, _RULES, _BESIDE, _PICKED, _APART, _NONE,
    _PRODUCT,
) = range(12)  # fmt: skip
FIELDS, _NUMBER = 14, 10  # of a step, and that of a link's table among several
CHAIN_KINDS = _SITES, _GIVEN, _TOTAL, _LINKED, _SUMMED, _PRODUCT
_LEVELLED = {_TOTAL, _LINKED, _SUMMED, _RULES}  # kinds whose rows have a level in float32
_MOVED = {_BESIDE, _PICKED}  # kinds whose rows have one if those that they read have

Slot = Leaf | Table | View
"""The source of a program's tensor."""


class NotLoweredError(Exception):
    """The machine does not have a step."""


@dataclass(frozen=True, eq=False)
class Program:
    """The steps of a tape as numbers."""

    # (n, 6) for each step: its offset among the numbers of an item, its places, its labels, its
    # offset among the rows of an item that have levels (-1: none), where its first item begins
    # after those numbers, and numbers from one item to the next.
    values: Tensor
    steps: Tensor  # (n, fields) for each: its kind, its number, and arguments of the kind
    index: Tensor  # the lists that steps point to: ways, places of values, labels
    size: int  # the numbers of an item, the potentials of its sites first
    levels: int  # its rows that have levels
    levelled: bool  # whether maxima keep their digits in float32: all sums have levels
    # Leaves, links and views whose tensors are given, numbered from 1; 0 is the potentials of the
    # sites.
    slots: Sequence[Slot]
    # For each table's slot the ranges, for one item, of its links' rows before and after products.
    rows: dict[int, tuple[int, int, int, int]]
    pairs: frozenset[int]  # slots of tables that link pairs, whose rows come last
    # For each table's slot its links: their places, and the number of the table.
    places: dict[int, list[tuple[int, int]]]
    leaves: dict[int, int]  # for each leaf's slot the number of its step
    unstored: frozenset[int]  # steps whose values are not stored
    work: float  # multiply-adds of one item
    ends: Sequence[int] | None = None  # how many sites an item may have, if they are a chain

    @cached_property
    def ranges(self) -> "np.ndarray[Any, np.dtype[np.int64]]":
        """`values` as an array, whose rows are read quickly."""
        return self.values.numpy()

    @cached_property
    def reads(self) -> dict[int, int]:
        """The number of rows that read the tables of each slot, for one item."""
        return {slot: sum(places for places, _ in links) for slot, links in self.places.items()}

    @cached_property
    def links(self) -> list[int]:
        """The offsets of the values of all links by tables, for one item."""
        return self.values[self.steps[:, 0] == _LINKED, 0].numpy().tolist()

    @cached_property
    def first_link(self) -> int | None:
        """The offset of the values of links by one table, if they lie as their rows do."""
        steps = self.steps.numpy()  # whose loops are lighter to load than torch's
        links = steps[:, 0] == _LINKED
        values, (starts, totals) = self.values.numpy()[links], steps[links, 11:13].T
        plain, before, after = self.row_sizes
        offsets = values[:, 0] - starts * values[:, 2]
        alike = len(self.rows) == 1 and plain == before == after
        alike = alike and bool((values[:, 2] * totals == after).all())
        return int(offsets[0]) if alike and bool((offsets == offsets[0]).all()) else None

    @cached_property
    def row_sizes(self) -> tuple[int, int, int]:
        """The sizes of rows before products, without and with those of pairs, and after them."""
        plain = [row[1] for slot, row in self.rows.items() if slot not in self.pairs]
        befores, afters = ([row[end] for row in self.rows.values()] for end in (1, 3))
        return max(plain, default=0), max(befores, default=0), max(afters, default=0)


def with_tensors(
    steps: Sequence[Step], slots: Sequence[Slot], tensors: Sequence[Tensor]
) -> list[Step]:
    """The same steps with other tensors of slots."""
    leaves, places = dict[int, Step](), dict[int, Tensor]()
    tables = dict[int, Sequence[Table]]()
    for slot, tensor in zip(slots, tensors, strict=True):
        if isinstance(slot, Leaf):
            leaves[id(slot)] = replace(slot, logs=tensor)
        elif isinstance(slot, Table):
            parts = tensor.split(1, 1) if tensor.shape[1] > 1 else [tensor]
            tables[id(slot.source)] = [
                Table(part, tensor, at, slot.copies) for at, part in enumerate(parts)
            ]
        else:
            places[id(slot.index)] = tensor

    def fresh(view: View) -> View:
        other = places.get(id(view.index))
        return view if other is None else replace(view, index=other)

    def changed(step: Step) -> Step:
        if isinstance(step, Linked) and isinstance(step.link, Table):
            return replace(step, link=tables[id(step.link.source)][step.link.number])
        if isinstance(step, Total) and places:
            return Total([tuple(map(fresh, way)) for way in step.ways])
        if isinstance(step, Pairs) and places:
            return Pairs(fresh(step.left), fresh(step.right))
        if isinstance(step, Concatenated) and places:
            return Concatenated(list(map(fresh, step.views)))
        return step

    return [leaves.get(id(step)) or changed(step) for step in steps]


def numbers(steps: Sequence[Step]) -> Iterator[Tensor]:
    """The tensors of steps whose numbers a program is made of."""
    for step in steps:
        if isinstance(step, Relabelled):
            yield step.which
        elif isinstance(step, Leaf) and step.sites is not None:
            yield step.sites
        yield from [view.index for view in step.reads if view.index is not None and not view.varies]


@dataclass(eq=False)
class _Lowering:
    values: list[list[int]] = field(default_factory=list[list[int]])
    steps: list[list[int]] = field(default_factory=list[list[int]])
    index: "array[int]" = field(default_factory=lambda: array("i"))
    slots: list[Slot] = field(default_factory=list[Slot])
    known: dict[int, int] = field(default_factory=dict[int, int])
    same: dict[int, int] = field(default_factory=dict[int, int])  # the step that a step repeats
    links: dict[int, list[list[int]]] = field(default_factory=dict[int, list[list[int]]])
    leaves: dict[int, int] = field(default_factory=dict[int, int])
    size: int = 0
    levels: int = 0
    levelled: bool = True
    goal: int = -1  # the number of the last step
    lists: dict[tuple[int, ...], int] = field(default_factory=dict[tuple[int, ...], int])
    listed: dict[int, Tensor] = field(default_factory=dict[int, Tensor])  # that are read by lists

    def slot(self, owner: Slot) -> int:
        """The number of a source: one for all links of a table, or views of the same places."""
        kind = owner.index if isinstance(owner, View) else owner
        key = id(owner.source if isinstance(owner, Table) else kind)
        if key not in self.known:
            self.slots.append(owner)
            self.known[key] = len(self.slots)
        return self.known[key]

    def put(self, numbers: "Sequence[int] | np.ndarray[Any, np.dtype[np.int32]]") -> int:
        """Append numbers to the index; return their start."""
        start = len(self.index)
        if isinstance(numbers, np.ndarray):
            self.index.frombytes(numbers.tobytes())
        else:
            self.index.extend(numbers)
        return start

    def labels(self, which: Tensor, *before: int) -> int:
        """Place in the index of the list of labels of several steps, after some numbers."""
        key = id(which), *before
        if key not in self.lists:
            self.lists[key] = self.put(before)
            self.put(which.tolist())
        return self.lists[key]

    def part(self, view: View) -> list[int]:
        """A factor: size of its pool, start, alternatives, places, labels, slot of its places.

        Last the labels from one alternative to the next, where all are labels of one place; or
        below 0, where the list of its labels begins (-1: at 0).
        """
        each, hop = view.varies, view.width * (view.parts > 1)
        which = self.listed.get(view.pool[0].number)
        return [
            view.size, self.put(self.entries(view)), view.ways // view.parts, view.places,
            view.width, self.slot(view) if each else -1,
            hop if which is None else -1 - self.labels(which, hop),
        ]  # fmt: skip

    def entries(self, view: View) -> "list[int] | np.ndarray[Any, np.dtype[np.int32]]":
        """The step and place for each place of a view's pool that it reads, in turn; -1: none."""
        pool = [(self.same.get(value.number, value.number), value.places) for value in view.pool]
        index = None if view.index is None or view.varies else view.index.flatten()
        return listed_places(pool, index)

    def add(
        self, places: int, labels: int, *numbers: int, stored: bool = True, of: Iterable[Value] = ()
    ) -> None:
        """Append a step, which moves rows ``of`` others or computes its own."""
        kind, hop = numbers[0], places * labels
        far = kind in _LEVELLED  # whether its values grow with what is below it
        if kind in _MOVED:
            far = any(self.values[self.same.get(x.number, x.number)][3] >= 0 for x in of)
        # Many places of one label are worked on as if they were labels, without levels.
        levelled = far and stored and (labels > 1 or places == 1)
        near = not far and kind in (_SITES, _GIVEN, *_MOVED)
        self.levelled &= levelled or near or not stored
        self.values.append([self.size, places, labels, self.levels if levelled else -1, 0, hop])
        self.levels += places * levelled
        fields = [kind, len(self.steps), *numbers[1:]]
        self.steps.append(fields + [0] * (FIELDS - len(fields)))
        self.size += hop if stored else 0

    def add_sites(
        self, sites: Sequence[int], first: int, width: int, shape: tuple[int, int]
    ) -> None:
        """Append a step of some states of some of all sites: where they lie if side by side."""
        copied = not sites or list(sites) != [*range(sites[0], sites[0] + len(sites))]
        copied |= len(self.steps) == self.goal or width < shape[1]
        self.add(len(sites), width, _SITES, self.put(sites), int(copied), first, stored=copied)
        if not copied:
            self.values[-1][0], self.values[-1][4:] = 0, [sites[0] * width, math.prod(shape)]


def lowered(steps: Sequence[Step], sites: int, states: int) -> Program:
    """The program of a tape's steps with K ``states`` of each of all ``sites``.

    Raises:
        NotLoweredError: the machine does not have one of them.
    """
    made = _Lowering(size=sites * states, goal=len(steps) - 1)
    kept = stored(steps, states)
    passed = kept.copies | kept.listed
    for number, step in enumerate(steps):
        if number in passed:
            assert isinstance(step, Relabelled)
            made.same[number] = step.x.number
            if number in kept.listed:
                made.listed[number] = step.which
            made.add(step.places, len(step.which), _NONE, stored=False)
        elif number in kept.split:
            assert isinstance(step, Leaf)
            assert step.sites is not None
            made.add(len(step.sites), states, _NONE, stored=False)
        elif number in kept.sites:
            made.add_sites(*kept.sites[number], (sites, states))
        else:
            _lower(made, number, step, kept)
    if made.values:  # the goal is read as it is
        made.values[-1][3] = -1
    pairs = {slot for slot, links in made.links.items() if made.steps[links[0][0]][0] == _RULES}
    rows = _rows(made, pairs)
    for number in kept.fused:  # by the links that read them
        made.steps[number][0] = _NONE
    mark_series(made.steps, made.values, made.index, made.links.values(), (_SITES, _PRODUCT, _NONE))
    return Program(
        torch.from_numpy(np.array(made.values, np.int64).reshape(-1, 6)),
        torch.from_numpy(np.array(made.steps, np.int64).reshape(-1, FIELDS)),
        torch.frombuffer(made.index or array("i", [0]), dtype=torch.int32),
        made.size,
        made.levels,
        made.levelled,
        made.slots,
        rows,
        frozenset(pairs),
        {
            slot: [(places, made.steps[step][_NUMBER]) for step, places, *_ in links]
            for slot, links in made.links.items()
        },
        made.leaves,
        kept.nowhere,
        sum(step.work for step in steps),
        chain_ends(steps, sites),
    )


def _rows(made: _Lowering, pairs: Set[int]) -> dict[int, tuple[int, int, int, int]]:
    """Ranges of the rows of each table's links, which are told to the links; of pairs the last.

    Links of the same values by several tables have one range before products.
    """
    most = after = 0
    rows, known = dict[int, tuple[int, int, int, int]](), dict[tuple[int, ...], int]()
    for slot in sorted(made.links, key=pairs.__contains__):
        links, owner = made.links[slot], made.slots[slot - 1]
        assert isinstance(owner, Table)
        read = (len(owner.source), *[made.steps[step][2] for step, *_ in links])
        before = known.setdefault(read, most)
        total, start = sum(places for _, places, *_ in links), 0
        for step, places, *_ in links:
            made.steps[step][8:10], made.steps[step][11:13] = (before, after), (start, total)
            start += places
        *_, depth, columns = links[0]
        rows[slot] = before, before + total * depth, after, after + total * columns
        most, after = max(most, rows[slot][1]), rows[slot][3]
    return rows


def _lower(made: _Lowering, number: int, step: Step, kept: Stored) -> None:
    match step:
        case Leaf():
            assert step.logs is not None
            slot = made.slot(step)
            made.leaves[slot] = number
            made.add(*step.logs.shape[1:], _GIVEN, slot)
        case Total():
            views = [view for way in step.ways for view in way]
            ways = list[int]()
            for way in step.ways:
                ways += max([view.ways for view in way]), len(way)
                for view in way:
                    ways += made.part(view)
            start = made.put(ways)
            sizes = max([view.places for view in views]), max([view.width for view in views])
            kind = _PRODUCT if number in kept.products else _TOTAL
            many = len(step.ways), step.alternatives
            made.add(*sizes, kind, start, *many, stored=kind == _TOTAL)
        case Linked(link=None):
            made.add(step.places, 1, _SUMMED, step.x.number)
        case Linked(link=Table()):
            assert isinstance(step.link, Table)
            table, slot = step.link, made.slot(step.link)
            if step.places != step.x.places:
                raise NotLoweredError
            columns, depth = table.width, step.x.width
            extra = made.steps[step.x.number][4:8] if step.x.number in kept.fused else [0] * 4
            kind = _RULES if step.x.number in kept.fused else _LINKED
            made.links.setdefault(slot, []).append([number, step.places, depth, columns])
            made.add(step.places, columns + step.more, kind, step.x.number, slot, *extra)
            made.steps[-1][_NUMBER] = table.number
        case Pairs():
            left, right = (made.put(made.part(view)) for view in (step.left, step.right))
            sizes = step.left.width, step.right.width
            made.add(
                max(step.left.places, step.right.places), sizes[0] * sizes[1],
                _PAIRS, number, 0, left, right, *sizes, stored=number not in kept.fused,
            )  # fmt: skip
        case Concatenated():
            parts = [made.part(view) for view in step.views]
            start = made.put([n for part in parts for n in part])
            width = sum(part[2] * part[4] for part in parts)
            places = max(part[3] for part in parts)
            pool = [x for view in step.views for x in view.pool]
            made.add(places, width, _BESIDE, 0, start, len(parts), of=pool)
        case Relabelled() if step.which.ndim == 1:
            start = made.labels(step.which)
            made.add(step.places, len(step.which), _PICKED, step.x.number, start, of=[step.x])
        case LabelsAsPlaces():
            made.add(step.x.places * step.x.width, 1, _APART, step.x.number)
        case _:
            raise NotLoweredError(type(step).__name__)
