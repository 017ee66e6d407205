"""Recurrences by torch operations: over any semiring, on any device, with all derivatives.

One step of the order is computed at a time, for all items, places and labels. It reads whole steps
of before, so a link from N labels to N is one matrix product: nothing has an entry for each step
and pair of labels. An input is gathered for all steps at once, and takes as much as it is read.
Over `logsums.Sums` it is how log Z is answered without compiled code; over exact log-sums it has
derivatives of derivatives, and is the reference for `executor`.

Which places a step reads depends on the sizes alone, so it is worked out once for a program and
sizes (`Layout`) and kept.
"""

import copy
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rdpgraph._core.cache import Kept, cached_property, remembered
from rdpgraph._core.shards import LocalPart
from rdpgraph.errors import UnsupportedError
from rdpgraph.recurrences.affine import Affine, evaluate_form
from rdpgraph.recurrences.links import with_links
from rdpgraph.recurrences.named_tensors import (
    NamedProducts,
    NamedTensor,
    ProductStep,
    entries_at,
    merge_names,
    plan_steps,
)
from rdpgraph.recurrences.program import Array, CellTable, Lookup, Program, Read, Rule, inside
from rdpgraph.recurrences.semirings import Semiring

Index = NDArray[np.int64]

_CELLS = 1 << 20  # places and loops of steps that are laid out at once
STEP = "step"
"""The name of the order where it is a variable of its own; users' variables may not hide it."""


# ---- layouts ----


@dataclass(eq=False)
class _TableRead:
    """What one step reads of a table: rows of the steps from `low` to `high`.

    Attributes:
        rows: numbers of rows, for steps one below the other; a slice where they are in sequence,
            and None where they are all rows of one step.
        names, sizes: of the dims that the rows have, before those of labels.
        labels: the names of their dims, or what is looked up in their place.
        plain: the names of all dims, where no two are one and nothing is looked up; else None.
    """

    table: str
    low: int
    high: int
    rows: Tensor | slice | None
    names: tuple[str, ...]
    sizes: tuple[int, ...]
    labels: tuple[str | Lookup, ...]
    plain: tuple[str, ...] | None


@dataclass(eq=False)
class RuleStep:
    """A rule in one step.

    Attributes:
        box: the values, from and to, of each place and loop in which it adds anything.
        mask: where in the box it does; None: everywhere.
        reads: of tables, one for each factor; None for those that are inputs.
        counted: what only conditions have, and is summed over as well: it counts its values.
        spans: the ends of the places in the box.
        pad: how many places there are around the box, for `pad`; None: none.
        cell: what is read of a table, if the rule is one of one cell that reads one other; else
            None.
    """

    rule: int
    box: Mapping[str, tuple[int, int]]
    mask: Tensor | None
    reads: tuple[_TableRead | None, ...]
    counted: tuple[str, ...]
    spans: tuple[tuple[int, int], ...]
    pad: list[int] | None
    cell: _TableRead | None = None


@dataclass(frozen=True, eq=False)
class TableShape:
    """A table's coordinates: the axis that the order gives, the others, and labels.

    Attributes:
        solved: the axis that is known from the step and the places; None: the order has none.
        places, labels: axes, with their sizes.
        steps: how many there are.
    """

    table: CellTable
    solved: str | None
    places: Mapping[str, int]
    labels: Mapping[str, int]
    steps: int

    @cached_property
    def cells(self) -> int:
        """How many places a step has."""
        return math.prod(self.places.values())

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The dims of the values of a step."""
        return (*self.places, *self.labels)

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Their sizes."""
        return (*self.places.values(), *self.labels.values())

    def in_rows(self, values: Tensor) -> Tensor:
        """(items, cells, *labels) the values of a step, (items, *places, *labels)."""
        if len(self.places) == 1:
            return values
        return values.reshape(len(values), self.cells, *self.labels.values())

    def coordinates(self) -> dict[str, Affine]:
        """Every axis by the step and the places."""
        found = {axis: Affine.of(axis) for axis in (*self.places, *self.labels)}
        if self.solved:
            sign = self.table.order.coefficient(self.solved)
            rest = self.table.order - Affine.of(self.solved) * sign
            found[self.solved] = (Affine.of(STEP) - rest) * sign
        return found


def shape_of(program: Program, table: CellTable, sizes: Mapping[str, int]) -> TableShape:
    """A table's coordinates at some sizes."""
    known = {axis: size.evaluate(sizes) for axis, size in zip(table.axes, table.sizes, strict=True)}
    order = table.order
    solved = next(
        (axis for axis in reversed(table.axes) if abs(order.coefficient(axis)) == 1), None
    )
    labels = {axis: size for axis, size in known.items() if axis in program.labels}
    places = {a: size for a, size in known.items() if a not in program.labels and a != solved}
    steps = max(0, table.order_end.evaluate(sizes) + 1) if all(known.values()) else 0
    return TableShape(table, solved, places, labels, steps)


class InputRead(NamedTuple):
    """How an input is read at all steps, places and loops of a rule.

    Attributes:
        at: the indices by step, places, loops and labels.
        taken, kept: those that are looked up, and those that are labels alone. A label that reads
            a part of a dim is not among these.
        names: the dims of what is read.
    """

    at: Sequence[Affine | Lookup]
    taken: Sequence[int]
    kept: Sequence[int]
    names: tuple[str, ...]


class Layout:
    """Which places each step of a program reads, at some sizes."""

    def __init__(self, program: Program, sizes: Mapping[str, int]) -> None:
        self.program, self.sizes = program, sizes
        self.shapes = {table.name: shape_of(program, table, sizes) for table in program.tables}
        self.ranges = {name: size.evaluate(sizes) for name, size in program.ranges.items()}
        self.steps = max((shape.steps for shape in self.shapes.values()), default=0)
        self.flats: dict[object, Tensor] = {}
        self.ends: dict[tuple[str, int], int] = {}
        self.listed: Kept[dict[Any, Any]] | None = None  # what `lists` works out for data
        self._gathered: dict[tuple[str, Read], InputRead] = {}
        self.terms: dict[str, dict[int, list[RuleStep]]] = {}
        self.plans: dict[Any, list[ProductStep]] = {}

    def terms_at(self, table: str, step: int) -> list[RuleStep]:
        """The rules of a table that add something in a step."""
        if table not in self.terms:
            self.terms[table] = {}
            for number, rule in enumerate(self.program.rules):
                if rule.table == table:
                    for own, term in self._terms(number, rule):
                        self.terms[table].setdefault(own, []).append(term)
        return self.terms[table].get(step, [])

    def series_end(self, term: RuleStep, table: str, first: int) -> int:
        """The first step of a table from one on that no rule computes from the cell before it.

        Or not by the rule of the first one alone.
        """
        if (table, first) not in self.ends:
            last = first
            while last < self.shapes[table].steps:
                terms = self.terms_at(table, last)
                cell = terms[0].cell if len(terms) == 1 and terms[0].rule == term.rule else None
                if cell is None or (cell.table, cell.low) != (table, last - 1):
                    break
                last += 1
            self.ends[table, first] = last
        return self.ends[table, first]

    def loops(self, rule: Rule) -> list[str]:
        """The variables that a rule sums over and that are no labels."""
        return [name for name in rule.over if name not in self.program.labels]

    def gathered(self, rule: Rule, factor: Read) -> InputRead:
        """How an input is read at all steps, places and loops of a rule."""
        key = rule.table, factor
        if key not in self._gathered:
            shape, labels = self.shapes[rule.table], self.program.labels
            array = self.program.by_name[factor.array]
            assert isinstance(array, Array)
            moves = shape.coordinates() if shape.solved else {}
            at = [form.substitute(moves) for form in factor.index]
            bare = [form.bare for form in at]
            kept = [
                k
                for k, name in enumerate(bare)
                if name in labels
                and bare.count(name) == 1
                and self.program.ranges[name] == array.dims[k]
            ]
            taken = [k for k in range(len(at)) if k not in kept]
            every = [n for n in (*self.ranges, STEP) if any(n in at[k].names for k in taken)]
            labels = [str(at[k].bare) for k in kept]
            self._gathered[key] = InputRead(at, taken, kept, (*every, *labels))
        return self._gathered[key]

    def plan(
        self, key: object, factors: Sequence[NamedTensor], over: Sequence[str]
    ) -> list[ProductStep]:
        """How some factors are multiplied and summed, as worked out for the first of their names.

        Args:
            key: of the rule, and of the factors among those that it has.
            factors: the names of whose dims matter, and whether they are fixed.
            over: the names to sum over.
        """
        key = key, tuple(over), tuple((factor.names, factor.fixed) for factor in factors)
        if key not in self.plans:
            sizes = {name: factor.size(name) for factor in factors for name in factor.names}
            self.plans[key] = plan_steps(factors, over, {**sizes, **self.ranges})
        return self.plans[key]

    def _terms(self, number: int, rule: Rule) -> Iterator[tuple[int, RuleStep]]:
        """A rule in each step in which it adds anything."""
        shape, labels = self.shapes[rule.table], self.program.labels
        dims = [*shape.places, *self.loops(rule)]
        sizes = [self.ranges[name] for name in dims]
        if not all(sizes):
            return
        limits = [form for form in self.conditions(rule) if not form.names & labels]
        reads = [self._row_form(factor, shape) for factor in rule.factors]
        # Which variables nothing that is read depends on.
        known = set[str]()
        for factor, form in zip(rule.factors, reads, strict=True):
            known |= {*(self.gathered(rule, factor).names if form is None else form.moving)}
        idle = [name for name in dims if name not in known]
        # The value of every name: steps, places and loops are along dims of their own. As many
        # steps at once as take little memory.
        many = max(1, _CELLS // math.prod(sizes))
        for start in range(0, shape.steps, many):
            steps = np.arange(start, min(start + many, shape.steps))
            grid: dict[str, Any] = {**self.sizes, STEP: steps.reshape(-1, *[1] * len(dims))}
            for k, (name, size) in enumerate(zip(dims, sizes, strict=True)):
                grid[name] = np.arange(size).reshape(-1, *[1] * (len(dims) - 1 - k))
            for axis, form in shape.coordinates().items():
                if axis not in labels and axis not in grid:
                    grid[axis] = evaluate_form(form, grid)
            holds: Any = np.ones([len(steps), *sizes], dtype=bool)
            for form in limits:
                holds &= evaluate_form(form, grid) >= 0
            # In each step, the smallest box around everything that holds.
            counts = holds.reshape(len(steps), -1).sum(1)
            ends: list[tuple[list[int], list[int]]] = []
            for k, size in enumerate(sizes, 1):
                some = holds.any(tuple(j for j in range(1, 1 + len(dims)) if j != k))
                last = size - some[:, ::-1].argmax(1)
                ends.append((some.argmax(1).tolist(), last.tolist()))
            for at in np.flatnonzero(counts).tolist():
                box = {n: (low[at], high[at]) for n, (low, high) in zip(dims, ends, strict=True)}
                mask = None
                if math.prod(high - low for low, high in box.values()) > counts[at]:
                    mask = holds[at][tuple(slice(*each) for each in box.values())].copy()
                yield start + at, self._term(number, shape, start + at, box, mask, reads, idle)

    def _term(
        self, number: int, shape: TableShape, step: int, box: Mapping[str, tuple[int, int]],
        mask: Any, forms: "Sequence[_RowForm | None]", idle: Sequence[str],
    ) -> RuleStep:  # fmt: skip
        """A rule in a step, where the mask (None: all) is set in a box of its places and loops."""
        reads = tuple(None if form is None else form.at(step, box, mask) for form in forms)
        # Places around the box, those of the last dim first.
        pad = [0] * (2 * len(shape.labels))
        for name, size in reversed([*shape.places.items()]):
            pad += [box[name][0], size - box[name][1]]
        # Whether this is one cell that reads one other.
        found = [read for read in reads if read is not None]
        alone = not box and mask is None and len(found) == 1 and not shape.places
        alone = alone and found[0].rows is None and found[0].plain is not None
        return RuleStep(
            number, box, None if mask is None else torch.from_numpy(mask), reads,
            tuple(name for name in idle if box[name][1] - box[name][0] > 1),
            tuple(box[name] for name in shape.places), pad if any(pad) else None,
            found[0] if alone and found[0].labels else None,
        )  # fmt: skip

    def conditions(self, rule: Rule) -> list[Affine]:
        """Forms that are at least 0 where a rule adds something."""
        table = self.program.by_name[rule.table]
        assert isinstance(table, CellTable)
        forms = [*table.domain, *rule.guards, *rule.equal, *(-form for form in rule.equal)]
        forms += inside(Read(rule.table, tuple(map(Affine.of, table.axes))), table)
        for factor in rule.factors:
            forms += inside(factor, self.program.by_name[factor.array])
            for at in factor.index:
                if isinstance(at, Lookup):
                    forms += inside(Read(at.array, at.index), self.program.by_name[at.array])
        return [form for form in dict.fromkeys(forms) if form.terms or form.constant < 0]

    def _row_form(self, read: Read, writer: TableShape) -> "_RowForm | None":
        """Where a rule of a table reads another one; None for an input."""
        table = self.program.table(read.array)
        if table is None:
            return None
        # The step, and the number of the row in it, as forms in the step and the variables.
        shape, moves = self.shapes[table.name], writer.coordinates() if writer.solved else {}
        at = dict(zip(table.axes, read.index, strict=True))
        forms = {axis: one for axis, one in at.items() if isinstance(one, Affine)}
        order, row = table.order.substitute(forms), Affine()
        for axis, size in shape.places.items():
            row = row * size + forms[axis]
        sizes = {name: Affine.of(size) for name, size in self.sizes.items()}
        labels = tuple(
            one if isinstance(one, Lookup) else str(one)
            for one in (at[axis] for axis in table.axes if axis in self.program.labels)
        )
        order, row = (form.substitute(moves).substitute(sizes) for form in (order, row))
        return _RowForm(table.name, shape.cells, order, row, labels)


@dataclass(frozen=True, eq=False)
class _RowForm:
    """Which rows of a table a rule reads.

    Attributes:
        cells: how many rows a step has.
        order, row: the step that is read, and the row in it, by the step, places and loops.
        labels: as of `_TableRead`.
    """

    table: str
    cells: int
    order: Affine
    row: Affine
    labels: tuple[str | Lookup, ...]

    @cached_property
    def moving(self) -> frozenset[str]:
        """The names that what is read depends on."""
        looked = [str(at) for one in self.labels if isinstance(one, Lookup) for at in one.index]
        return (self.order * self.cells + self.row).names | {*looked}

    def at(self, step: int, box: Mapping[str, tuple[int, int]], mask: Any) -> _TableRead:
        """The rows that are read in a step, for a box of places and loops."""
        orders, row = self._on(self.order, step, box), self._on(self.row, step, box)
        if mask is not None:
            orders = np.broadcast_to(orders, mask.shape)[mask]
        low, high = int(orders.min()), int(orders.max())
        rows = (self._on(self.order, step, box) - low) * self.cells + row
        # Leave out dims along which nothing changes.
        moving = (self.order * self.cells + self.row).names
        kept = [name for name, (start, end) in box.items() if name in moving and end - start > 1]
        flat = rows.reshape(-1)
        if mask is not None:
            flat = flat.clip(0, (high - low + 1) * self.cells - 1)
        chosen: Tensor | slice | None
        if bool((flat[1:] - flat[:-1] == 1).all()):
            chosen = slice(int(flat[0]), int(flat[0]) + len(flat))
            chosen = None if low == high and len(flat) == self.cells else chosen
        else:
            chosen = torch.from_numpy(flat)
        every = [*kept, *(one for one in self.labels if isinstance(one, str))]
        is_plain = len({*every}) == len(kept) + len(self.labels)
        sizes = tuple(box[name][1] - box[name][0] for name in kept)
        return _TableRead(
            self.table, low, high, chosen, tuple(kept), sizes, self.labels,
            tuple(every) if is_plain else None,
        )  # fmt: skip

    @staticmethod
    def _on(form: Affine, step: int, box: Mapping[str, tuple[int, int]]) -> Index:
        """The values of a form in a box, of size 1 where it does not change."""
        total = np.full([1] * len(box), form.constant + form.coefficient(STEP) * step)
        for k, (name, (start, end)) in enumerate(box.items()):
            times = form.coefficient(name)
            if times:
                values = times * np.arange(start, end)
                total = total + values.reshape(-1, *[1] * (len(box) - 1 - k))
        return total


@remembered(64)
def _layout(program: Program, sizes: tuple[tuple[str, int], ...]) -> Layout:
    return Layout(program, dict(sizes))


# ---- runs ----


class Links(Protocol):
    """Computes series of cells each of which reads the one before, in a form of its own."""

    def fill(self, run: "Run", term: RuleStep, table: str, first: int) -> bool:
        """Compute the cells of a table from a step on; return False where it cannot."""
        ...

    def logs(self, x: Any) -> Tensor:
        """The values of such a cell in their usual form."""
        ...


class _InputSteps:
    """What is read of an input that changes from step to step, (steps, items, *dims)."""

    def __init__(self, values: Tensor, like: NamedTensor) -> None:
        self.values, self.like = values, like
        self._each: Sequence[Tensor] = ()

    def at(self, step: int) -> NamedTensor:
        """The values of a step; of all at once, so that gradients are."""
        self._each = self._each or self.values.unbind(0)
        series = None if self.like.split else (self.values, step)
        return replace(self.like, values=self._each[step], series=series)


@dataclass(frozen=True, eq=False)
class CellBlock:
    """Cells of one table that are computed together.

    Attributes:
        names, sizes: of the dims of their values, after the items: places and labels.
        terms: the rules that add something to them, each with what it reads.
        key: tells blocks of a run apart.
        rows: which of the table's rows they are, (steps * places,).
    """

    table: str
    names: tuple[str, ...]
    sizes: tuple[int, ...]
    terms: Sequence[Any]
    key: Any
    rows: "range | Tensor"


class Run:
    """One evaluation: the steps of all tables, as far as they are computed."""

    def __init__(
        self, program: Program, inputs: Mapping[str, Tensor],
        lengths: Mapping[str, Tensor | int], sizes: Mapping[str, int], semiring: Semiring,
        parts: Mapping[str, LocalPart] | None = None, links: Links | None = None,
    ) -> None:  # fmt: skip
        """Prepare the inputs.

        Args:
            program: the recurrence.
            inputs: as for `evaluation.evaluate`; of those in ``parts`` what this process has.
            lengths: as there.
            sizes: of the inputs, parts taken together.
            semiring: of the values.
            parts: how inputs are split between processes.
            links: computes cells that are links of others, where it can.
        """
        self.parts = parts or {}
        self.given = program
        program = program if program.is_listed else with_links(program)
        self.program, self.semiring, self.sizes = program, semiring, sizes
        self.layout = _layout(program, tuple(sorted(sizes.items())))
        self.whole = {a.name: inputs[a.name] for a in program.inputs if a.whole}
        logs = {a.name: inputs[a.name] for a in program.inputs if not a.whole}
        self.inputs = {name: semiring.lift(values) for name, values in logs.items()}
        counts = [len(x) for x in inputs.values()]
        counts += [len(x) for x in lengths.values() if isinstance(x, Tensor)]
        self.items = max(counts, default=1)
        some = next(iter(self.inputs.values()), None)
        like = torch.zeros((), device="cpu") if some is None else some.detach()
        self.like = like if semiring.wide is None else like.new_zeros((), dtype=semiring.wide)
        self.products, self.links = NamedProducts(semiring), links
        self.tables: dict[str, Tensor] = {}  # those that are all there; see `reading`
        self.pools: dict[str, tuple[int, int, Tensor]] = {}
        self.gathered: dict[tuple[int, int], NamedTensor | _InputSteps] = {}
        self.done: dict[str, dict[int, Any]] = {table.name: {} for table in program.tables}
        # Where each item's goals are: the index of each axis, and the steps.
        self.ends = [self._end(goal, lengths) for goal in program.goals]

    def _end(
        self, goal: Read, lengths: Mapping[str, Tensor | int]
    ) -> tuple[list[Tensor | int], Any]:
        values: dict[str, Any] = {**self.sizes, **lengths}
        index = [evaluate_form(at, values) for at in goal.index if isinstance(at, Affine)]
        table = self.layout.shapes[goal.array].table
        return index, evaluate_form(
            table.order, {**values, **dict(zip(table.axes, index, strict=True))}
        )

    def wanted_steps(self) -> dict[str, set[int]]:
        """The steps of goals that items need, by table; of other tables all are needed."""
        wanted: dict[str, set[int]] = {}
        read = {factor.array for rule in self.program.rules for factor in rule.factors}
        for goal, (_, order) in zip(self.program.goals, self.ends, strict=True):
            if goal.array not in read:
                orders = order.tolist() if isinstance(order, Tensor) else [int(order)]
                wanted.setdefault(goal.array, set()).update(orders)
        return wanted

    def fill(self) -> None:
        """Compute all steps of all tables, and of the goals those that items need.

        Places are no data: see `lists.ListedRun`.
        """
        wanted = self.wanted_steps()
        tables = [
            (name, shape, self.done[name], wanted.get(name, range(shape.steps)))
            for name, shape in self.layout.shapes.items()
        ]
        for step in range(self.layout.steps):
            for name, shape, done, steps in tables:
                if step in steps and step not in done:
                    terms = self.layout.terms_at(name, step)
                    links = self.links if len(terms) == 1 and terms[0].cell else None
                    if links is None or not links.fill(self, terms[0], name, step):
                        done[step] = self._step(shape, terms, step)

    def _step(self, shape: TableShape, terms: list[RuleStep], step: int) -> Tensor:
        """(items, *places, *labels) of a table in a step."""
        found = [self._value(term, shape, step) for term in terms]
        size = self.items, *shape.sizes
        if not found:
            return self.like.new_full(size, self.semiring.zero)
        values = found[0] if len(found) == 1 else self.semiring.add(found)
        return values if values.shape == size else values.expand(size)

    def values(self, table: str, step: int) -> Tensor:
        """(items, *places, *labels) of a table in a step that was computed."""
        if table in self.tables:
            shape = self.layout.shapes[table]
            values = self.tables[table].narrow(1, step * shape.cells, shape.cells)
            return values.view(len(values), *shape.sizes)
        values = self.done[table][step]
        if self.links is not None and type(values) is not Tensor:
            values = self.done[table][step] = self.links.logs(values)
        return values

    def factors(
        self, term: RuleStep, step: int, cell: NamedTensor | None = None
    ) -> list[NamedTensor]:
        """What a rule multiplies in a step, with values that are known of the cell it reads."""
        factors = [
            self._input(term, k, step) if read is None else cell or self._table(read)
            for k, read in enumerate(term.reads)
        ]
        if term.mask is not None or term.counted or not factors:
            factors = self._masked(term, factors)
        return factors

    # ---- tables that are all there ----

    def finished(self) -> dict[str, Tensor]:
        """(items, rows, *labels) of each table, step after step; what no goal needs is absent."""
        found: dict[str, Tensor] = {}
        for name, shape in self.layout.shapes.items():
            size = self.items, shape.cells, *shape.labels.values()
            none = self.like.new_full(size, self.semiring.zero)
            steps = [
                self.values(name, step).reshape(size) if step in self.done[name] else none
                for step in range(shape.steps)
            ]
            found[name] = torch.cat(steps, 1) if steps else none[:, :0]
        return found

    def reading(self, tables: dict[str, Tensor], inputs: dict[str, Tensor]) -> Self:
        """This run on other inputs and on tables that are all there, as from `finished`.

        It is of the program as it was given, without tables for links.
        """
        other = copy.copy(self)
        other.tables, other.inputs, other.program = tables, inputs, self.given
        other.layout = _layout(self.given, tuple(sorted(self.sizes.items())))
        other.gathered, other.links = {}, None
        return other

    def homes(self, table: str, rows: Tensor) -> tuple[Tensor, Tensor]:
        """The keys of the blocks that have some rows of a table, and their places there."""
        cells = self.layout.shapes[table].cells
        return (rows, rows * 0) if cells == 1 else (rows // cells, rows % cells)

    def blocks(self) -> "list[CellBlock]":
        """What was computed together, in the order of computation."""
        return [
            CellBlock(
                name, shape.names, shape.sizes, self.layout.terms_at(name, step), step,
                range(step * shape.cells, (step + 1) * shape.cells),
            )
            for step in range(self.layout.steps)
            for name, shape in self.layout.shapes.items()
            if step in self.done[name]
        ]  # fmt: skip

    def reads(self, block: "CellBlock", term: Any) -> list[NamedTensor]:
        """What a rule reads for the cells of a block, factor by factor."""
        return [
            self._input(term, k, block.key) if read is None else self._table(read)
            for k, read in enumerate(term.reads)
        ]

    def conditions(self, term: Any) -> list[NamedTensor]:
        """Where a rule holds, and 1 for each value of what only conditions have."""
        found = [self._ones(term)] if term.counted else []
        if term.mask is not None:
            one, zero = (self.like.new_full((), x) for x in (self.semiring.one, self.semiring.zero))
            mask = torch.where(term.mask.to(self.like.device), one, zero).unsqueeze(0)
            found.append(NamedTensor(mask, tuple(term.box)))
        return found

    def sizes_over(self, term: Any) -> dict[str, int]:
        """The variables that a rule sums over, and how many values each has."""
        ends = {name: end - start for name, (start, end) in term.box.items()}
        over = self.program.rules[term.rule].over
        return {name: ends.get(name, self.layout.ranges[name]) for name in over}

    def _ones(self, term: RuleStep) -> NamedTensor:
        """1 for each value of what only conditions have."""
        sizes = [term.box[name][1] - term.box[name][0] for name in term.counted]
        return NamedTensor(self.like.new_full((1, *sizes), self.semiring.one), term.counted)

    # ---- rules ----

    def plan(self, term: RuleStep, factors: list[NamedTensor]) -> list[ProductStep]:
        """How the factors are multiplied."""
        over = self.program.rules[term.rule].over
        over = [name for name in over if any(name in factor.names for factor in factors)]
        return self.layout.plan(term.rule, factors, over)

    def _value(self, term: RuleStep, shape: TableShape, step: int) -> Tensor:
        """(items or 1, *places, *labels) of a rule in a step; what its box lacks is absent."""
        factors = self.factors(term, step)
        made = self.products.contract(factors, self.plan(term, factors))
        values = made.arranged(shape.names)
        if self.semiring.wide is not None:
            values = values.to(self.semiring.wide)
        # All of the box, put where it is among all places.
        size = values.shape[0], *(end - start for start, end in term.spans), *shape.labels.values()
        values = values if values.shape == size else values.expand(size)
        if term.pad is not None:
            values = torch.nn.functional.pad(values, term.pad, value=self.semiring.zero)
        return values

    def _masked(self, term: RuleStep, factors: list[NamedTensor]) -> list[NamedTensor]:
        """The factors, with nothing where the rule does not hold, and with all that is summed."""
        if term.counted or not factors:
            factors = [*factors, self._ones(term)]
        if term.mask is None:
            return factors
        places = tuple(term.box)
        most = max(range(len(factors)), key=lambda k: len({*factors[k].names} & {*places}))
        factor = factors[most]
        labels = tuple(name for name in factor.names if name not in places)
        term.mask = term.mask.to(self.like.device)
        mask = term.mask.reshape(1, *term.mask.shape, *[1] * len(labels))
        values = factor.arranged((*places, *labels))
        values = values if self.semiring.wide is None else values.to(self.semiring.wide)
        values = torch.where(mask, values, self.semiring.zero)
        factors[most] = replace(
            factor, values=values, names=(*places, *labels), fixed=False, series=None
        )
        return factors

    def _table(self, read: _TableRead) -> NamedTensor:
        """What a term reads of a table."""
        if read.rows is None:
            values = self.values(read.table, read.low)
        elif isinstance(read.rows, slice):
            values = self._pool(read)[:, read.rows]
        else:
            read.rows = read.rows.to(self.like.device)
            values = self._pool(read).index_select(1, read.rows)
        size = values.shape[0], *read.sizes, *values.shape[values.ndim - len(read.labels) :]
        values = values if values.shape == size else values.reshape(size)
        if read.plain is not None:
            return NamedTensor(values, read.plain)
        values, labels = self.looked_up(values, read.labels)
        return merge_names(values, (*read.names, *labels))

    def _pool(self, read: _TableRead) -> Tensor:
        """(items, rows, *labels) the steps of a table that are read, one below the other."""
        name, low, high = read.table, read.low, read.high
        shape = self.layout.shapes[name]
        if name in self.tables:
            return self.tables[name].narrow(1, low * shape.cells, (high + 1 - low) * shape.cells)
        if low == high:
            return shape.in_rows(self.values(name, low))
        # Steps that were put together before are a part of it, and those after are put below.
        first, last, known = self.pools.get(name, (0, -1, self.like))
        if (first, last) != (low, high):
            below = range(last + 1 if first <= low <= last <= high else low, high + 1)
            parts = [shape.in_rows(self.values(name, step)) for step in below]
            if below.start > low:
                kept = (last + 1 - low) * shape.cells
                parts.insert(0, known.narrow(1, known.shape[1] - kept, kept))
            known = torch.cat(parts, 1) if len(parts) > 1 else parts[0]
            self.pools[name] = low, high, known
        return known

    def looked_up(self, values: Tensor, labels: Sequence[str | Lookup]) -> tuple[Tensor, list[str]]:
        """Values with the entries that data name in place of some labels; the names of labels."""
        names, first = list[str](), values.ndim - len(labels)
        for label in labels:
            if isinstance(label, str):
                names.append(label)
                continue
            data, dim = self.whole[label.array], first + len(names)
            if len(data) == 1:
                values = values.index_select(dim, data.reshape(-1))
            else:  # each item has its own
                ones = [1] * (values.ndim - dim - 1)
                index = data.reshape(len(data), *[1] * (dim - 1), -1, *ones)
                values = values.expand(len(data), *values.shape[1:]).take_along_dim(index, dim)
            values = values.unflatten(dim, data.shape[1:])
            names += [str(at) for at in label.index]
        return values, names

    # ---- inputs ----

    def _input(self, term: RuleStep, number: int, step: int) -> NamedTensor:
        """What a term reads of an input: gathered for all steps at once, so that gradients are."""
        key = term.rule, number
        found = self.gathered.get(key)
        if found is None:
            found = self.gathered[key] = self._gather(term.rule, number)
        whole = found if isinstance(found, NamedTensor) else found.at(step)
        values = whole.values
        for name, (start, end) in term.box.items():
            if name in whole.names and end - start < whole.size(name):
                values = values.narrow(1 + whole.names.index(name), start, end - start)
        if values is whole.values:
            return whole
        return replace(whole, values=values, fixed=False, series=None)

    def _gather(self, number: int, place: int) -> "NamedTensor | _InputSteps":
        """An input at the places of a rule; its steps if it changes from one to the next."""
        rule = self.program.rules[number]
        factor = rule.factors[place]
        names = self.layout.gathered(rule, factor).names
        values = self._read_input(number, rule, factor)
        part = self.parts.get(factor.array)
        split = None if part is None else self._split_label(rule, factor, part)
        shard = None if part is None else part.shard
        if STEP not in names:
            return NamedTensor(values, names, fixed=True, split=split, shard=shard)
        at = names.index(STEP)
        rest = names[:at] + names[at + 1 :]
        return _InputSteps(
            values.movedim(1 + at, 0), NamedTensor(values, rest, split=split, shard=shard)
        )

    def _split_label(self, rule: Rule, factor: Read, part: LocalPart) -> str:
        """The label by which an input is split between processes."""
        at, _, kept, _ = self.layout.gathered(rule, factor)
        array = self.program.by_name[factor.array]
        assert isinstance(array, Array)
        dim = part.dim - (part.values.ndim - len(at))
        if dim not in kept:
            by = "batch dims" if dim < 0 else f"{array.dims[dim]}, read as {factor.index[dim]}"
            raise UnsupportedError(
                f"{self.program.name} needs {array} split between processes by labels, as rules "
                f"read whole; got a DTensor split by {by}: redistribute it."
            )
        return str(at[dim].bare)

    def _read_input(self, number: int, rule: Rule, factor: Read) -> Tensor:
        """(items or 1, *dims) the values of an input in the dims of `Layout.gathered`."""
        values = self.inputs[factor.array]
        array, shape = self.program.by_name[factor.array], self.layout.shapes[rule.table]
        assert isinstance(array, Array)
        at, taken, kept, names = self.layout.gathered(rule, factor)
        names = names[: len(names) - len(kept)]
        sizes = {**self.layout.ranges, STEP: shape.steps}
        values = values.permute(0, *(1 + k for k in (*taken, *kept)))
        places = values.shape[1 : 1 + len(taken)].numel()
        values = values.reshape(len(values), places, *values.shape[1 + len(taken) :])
        if taken:
            # Numbers of entries are worked out once, unless they are data.
            key = number, factor, self.like.device
            flat = self.layout.flats.get(key)
            if flat is None:
                dims = [array.dims[k].evaluate(self.sizes) for k in taken]
                flat = self._flat([at[k] for k in taken], dims, names, sizes)
                if all(isinstance(form, Affine) for form in at):
                    self.layout.flats[key] = flat
            values = entries_at(values, flat)
        return values.reshape(len(values), *(sizes[name] for name in names), *values.shape[2:])

    def _flat(
        self, at: Sequence[Affine | Lookup], dims: Sequence[int], names: tuple[str, ...],
        sizes: Mapping[str, int],
    ) -> Tensor:  # fmt: skip
        """(items or 1, entries) numbers of entries; any for those outside, which are masked."""
        device = self.like.device
        # Every name is a dim of its own, so that a form in names broadcasts to all of them.
        grid: dict[str, Any] = dict(self.sizes)
        for k, name in enumerate(names):
            values = torch.arange(sizes[name], device=device)
            grid[name] = values.reshape(-1, *[1] * (len(names) - 1 - k))
        flat = torch.zeros(1, *[1] * len(names), dtype=torch.int64, device=device)
        for form, dim in zip(at, dims, strict=True):
            if isinstance(form, Lookup):
                data = self.whole[form.array]
                places = [
                    torch.as_tensor(evaluate_form(one, grid), device=device).clamp(
                        0, max(0, size - 1)
                    )
                    for one, size in zip(form.index, data.shape[1:], strict=True)
                ]
                places = [p.reshape(*[1] * (1 + len(names) - p.ndim), *p.shape) for p in places]
                item = torch.arange(len(data), device=device).reshape(-1, *[1] * len(names))
                index: Any = data[(item, *places)]
            else:
                index = torch.as_tensor(evaluate_form(form, grid), device=device).clamp(
                    0, max(0, dim - 1)
                )
            flat = flat * dim + index
        full = [sizes[name] for name in names]
        return flat.expand(len(flat), *full).reshape(len(flat), math.prod(full))

    # ---- the goal ----

    def goal(self) -> Tensor:
        """(items,) the products of the goals."""
        result: Tensor | None = None
        for goal, (index, order) in zip(self.program.goals, self.ends, strict=True):
            value = self._end_value(goal, index, order)
            result = value if result is None else self.semiring.multiply(result, value)
        assert result is not None
        return result

    def goal_cells(self) -> list[tuple[dict[str, Tensor], Tensor, Tensor]]:
        """The coordinates (items,) of each goal, whether it is a cell, and before the first."""
        return [
            self._goal_cell(goal, index)
            for goal, (index, _) in zip(self.program.goals, self.ends, strict=True)
        ]

    def _goal_cell(
        self, goal: Read, index: Sequence[Tensor | int]
    ) -> tuple[dict[str, Tensor], Tensor, Tensor]:
        shape, device = self.layout.shapes[goal.array], self.like.device
        axes = {
            axis: torch.as_tensor(at, device=device).expand(self.items)
            for axis, at in zip(shape.table.axes, index, strict=True)
        }
        ends = [bool(at.names) for at in goal.index]
        inside = torch.ones(self.items, dtype=torch.bool, device=device)
        before = torch.full_like(inside, fill_value=any(ends))
        for axis, size, is_end in zip(shape.table.axes, shape.table.sizes, ends, strict=True):
            inside &= (axes[axis] >= 0) & (axes[axis] < size.evaluate(self.sizes))
            if is_end:
                before &= axes[axis] < 0
        return axes, inside, before

    def _end_value(self, goal: Read, index: Sequence[Tensor | int], order: Any) -> Tensor:
        """(items,) a goal's table at each item's place."""
        shape, device = self.layout.shapes[goal.array], self.like.device
        axes, inside, before = self._goal_cell(goal, index)
        orders = torch.as_tensor(order, device=device).expand(self.items)
        steps = self.done[goal.array]
        known = sorted({*steps} & {*orders.tolist()}) or sorted(steps)[:1]
        if known:
            number = torch.zeros(max(known) + 1, dtype=torch.int64, device=device)
            number[known] = torch.arange(len(known), device=device)
            rows = number[torch.where(inside, orders, known[0])]
            for axis, size in shape.places.items():
                rows = rows * size + axes[axis].clamp(0, max(0, size - 1))
            pool = torch.cat([shape.in_rows(self.values(goal.array, step)) for step in known], 1)
            values = pool.gather(1, rows.unsqueeze(1)).squeeze(1)
        else:
            values = self.like.new_full((self.items,), self.semiring.zero)
        values = torch.where(inside, values, self.semiring.zero)
        return torch.where(before, self.semiring.one, values)
