"""Recurrences whose places are data, by torch: tables read at looked-up cells, and rows of lists.

Cells that do not depend on one another are computed together, from what every rule reads at each
of them, gathered. Of tables whose order is data these are the cells of a level, of which all that
is read is lower. Where a step reads depends on data, so it is worked out once for these data, and
kept until others come or they are written to.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from rdpgraph._core.cache import Kept
from rdpgraph.recurrences.affine import Affine, evaluate_form
from rdpgraph.recurrences.interpreter import STEP, CellBlock, Run, TableShape
from rdpgraph.recurrences.named_tensors import (
    NamedTensor,
    ProductStep,
    entries_at,
    merge_names,
    plan_steps,
)
from rdpgraph.recurrences.program import CellTable, Lookup, Read, Row, Rule

NODE = "@node"
"""The dim of cells; users' names have no such sign."""


@dataclass(eq=False, slots=True)
class _Entries:
    """What a rule reads at some cells.

    Attributes:
        read: of a table or an input.
        order, size: of the dims of an input, those that are looked up together in one; None: of a
            table, which has its cells there already.
        rows: (items or 1, entries) numbers of what is looked up.
        shape: of the entries.
        names, labels: of the dims of these, and those that come after, as for `Run.looked_up`.
    """

    read: Read
    order: tuple[int, ...] | None
    size: int
    rows: Tensor
    shape: tuple[int, ...]
    names: list[str]
    labels: "list[str | Lookup]"


@dataclass(eq=False, slots=True)
class _RuleCells:
    """A rule at some cells.

    Attributes:
        rule: its number in the program.
        entries: what it reads, factor by factor.
        where: (items or 1, *dims) where it holds, and the names of the dims; None: everywhere.
        sizes: of all names.
        steps: how the factors are multiplied; None until they are.
        box: none, as all of a block is computed.
    """

    rule: int
    entries: list[_Entries]
    where: tuple[Tensor, tuple[str, ...]] | None
    sizes: Mapping[str, int]
    steps: list[ProductStep] | None = None
    box: Mapping[str, tuple[int, int]] = field(default_factory=dict[str, tuple[int, int]])


def _known(run: Run) -> dict[Any, Any]:
    """What was worked out for the data of a run, added to."""
    data, layout = tuple(run.whole.values()), run.layout
    if layout.listed is None or not layout.listed.is_current(data):
        layout.listed = Kept.of({}, data)
    return {} if layout.listed is None else layout.listed.value


class ListedRun(Run):
    """One evaluation, block after block of cells: see `Run`.

    Attributes:
        known: what was worked out for these data.
    """

    tables: dict[str, Tensor]

    def fill(self) -> None:
        """Compute all tables."""
        self.known, self._known_limits = _known(self), dict[int, list[Affine]]()
        self.tables = {}
        for name, shape in self.layout.shapes.items():
            size = (self.items, shape.steps * shape.cells, *shape.labels.values())
            self.tables[name] = self.like.new_full(size, self.semiring.zero)
            self.done[name] = dict.fromkeys(range(shape.steps))
        for block in self.blocks():
            self._write(block)

    def finished(self) -> dict[str, Tensor]:
        """(items, rows, *labels) of each table, step after step."""
        return self.tables

    def blocks(self) -> list[CellBlock]:
        """What is computed together, in the order of computation."""
        if "blocks" not in self.known:
            self.known["blocks"] = [*self._blocks()]
        return self.known["blocks"]

    def homes(self, table: str, rows: Tensor) -> tuple[Tensor, Tensor]:
        """The keys of the blocks that have some rows of a table, and their places there."""
        if ("homes", table) not in self.known:
            home = torch.zeros(
                2, self.tables[table].shape[1], dtype=torch.int64, device=rows.device
            )
            for block in self.blocks():
                if block.table == table:
                    home[0, block.rows] = block.key
                    home[1, block.rows] = torch.arange(len(block.rows), device=rows.device)
            self.known["homes", table] = home
        home = self.known["homes", table][:, rows]
        return home[0], home[1]

    def _blocks(self) -> Iterator[CellBlock]:
        for number, (table, axes) in enumerate(self._cells()):
            # Cells outside of the table's domain or order are absent, as the rules' conditions say.
            shape = self.layout.shapes[table.name]
            count = len(next(iter(axes.values()))) if axes else 1
            rows = self._row_of(table, axes).expand(count)
            there = (rows >= 0) & (rows < shape.steps * shape.cells)
            if not bool(there.all()):
                rows, axes = rows[there], {axis: at[there] for axis, at in axes.items()}
            if len(rows):
                terms = [
                    self._rule_cells(k, rule, axes)
                    for k, rule in enumerate(self.program.rules)
                    if rule.table == table.name
                ]
                yield CellBlock(
                    table.name, (NODE, *shape.labels), (len(rows), *shape.labels.values()),
                    [term for term in terms if term is not None], number, rows,
                )  # fmt: skip

    def _cells(self) -> Iterator[tuple[CellTable, dict[str, Tensor]]]:
        """The cells that are computed together, by their axes that are no labels, (n,) each."""
        tables, start = [table.name for table in self.program.tables], 0
        shapes = self.layout.shapes
        while start < len(tables):
            group = next((g for g in self.program.by_data if tables[start] in g), None)
            if group is not None:
                yield from self._levels([shapes[name].table for name in group])
                start += len(group)
                continue
            # Tables up to the next whose order is data, step by step.
            decided = {name for g in self.program.by_data for name in g}
            end = next((k for k in range(start, len(tables)) if tables[k] in decided), len(tables))
            own = [shapes[name] for name in tables[start:end]]
            for step in range(max((shape.steps for shape in own), default=0)):
                for shape in own:
                    if step < shape.steps and shape.cells:
                        yield shape.table, self._cells_at(shape, step)
            start = end

    def _cells_at(self, shape: TableShape, step: int) -> dict[str, Tensor]:
        """The axes of the cells of a step."""
        device = self.like.device
        places = torch.arange(shape.cells, device=device)
        axes: dict[str, Tensor] = {}
        for axis, size in reversed([*shape.places.items()]):
            axes[axis], places = places % size, places // size
        if shape.solved:
            form = shape.coordinates()[shape.solved]
            own = evaluate_form(form, {**self.sizes, **axes, STEP: step})
            axes[shape.solved] = torch.as_tensor(own, device=device).expand(shape.cells)
        return axes

    def _levels(self, tables: Sequence[CellTable]) -> Iterator[tuple[CellTable, dict[str, Tensor]]]:
        """The cells of each level."""
        depth = self._depths(tables)
        # Cells of one depth, and of about as many alternatives, so that little is padded.
        many = torch.ones_like(depth)
        for row in {row for table in tables for row in self._rows(table)}:
            count = self.whole[row.array].diff(dim=1).amax(0)[: len(many)]
            many[: len(count)] += count
        order = (depth * 64 + many.double().log2().long()).sort(stable=True)
        sizes = order.values.unique_consecutive(return_counts=True)[1].tolist()
        for nodes in order.indices.split(sizes):
            for table in tables:
                (axis,) = self._axes(table)
                end = table.sizes[table.axes.index(axis)].evaluate(self.sizes)
                own = nodes[nodes < end]
                if len(own):
                    yield table, {axis: own}

    def _axes(self, table: CellTable) -> list[str]:
        return [axis for axis in table.axes if axis not in self.program.labels]

    def _rows(self, table: CellTable) -> Iterator[Row]:
        for rule in self.program.rules_of(table.name):
            yield from rule.rows

    def _depths(self, tables: Sequence[CellTable]) -> Tensor:
        """(cells,) how long the longest path of reads below each cell is, in any item."""
        names, device = {table.name for table in tables}, self.like.device
        above, below, most = list[Tensor](), list[Tensor](), 1
        for table in tables:
            (axis,) = self._axes(table)
            end = table.sizes[table.axes.index(axis)].evaluate(self.sizes)
            most = max(most, end)
            nodes = torch.arange(end, device=device)
            for rule in self.program.rules_of(table.name):
                # The reads of each rule, as pairs of a cell and a lower one that it reads.
                values, dims, holds = self._grid(rule, {axis: nodes})
                for read in rule.factors:
                    if read.array not in names:
                        continue
                    other = self.layout.shapes[read.array].table
                    (own,) = self._axes(other)
                    at = self._index(read.index[other.axes.index(own)], values, dims)
                    both = torch.broadcast_tensors(values[axis], at, holds)
                    part = both[2] & (both[1] >= 0) & (both[1] < both[0])
                    above.append(both[0][part])
                    below.append(both[1][part])
        depth = [0] * most
        if above:
            # Cells read lower ones, so that in their order each has all that it reads before it.
            one, order = torch.cat(above).sort()
            other = torch.cat(below)[order]
            for cell, lower in zip(one.tolist(), other.tolist(), strict=True):
                if depth[lower] >= depth[cell]:
                    depth[cell] = depth[lower] + 1
        return torch.tensor(depth, device=device)

    # ---- cells ----

    def _write(self, block: CellBlock) -> None:
        """Compute the cells of a block."""
        values, full = self.tables[block.table], (self.items, *block.sizes)
        ways = [self._sum(block, term).expand(full) for term in block.terms]
        if ways:
            value = ways[0] if len(ways) == 1 else self.semiring.add(ways)
            rows = torch.as_tensor(block.rows, device=value.device)
            self.tables[block.table] = values.index_copy(1, rows, value.to(values.dtype))

    def _sum(self, block: CellBlock, term: _RuleCells) -> Tensor:
        """(items or 1, n, *labels) what a rule adds to the cells of a block."""
        factors = [*self.reads(block, term), *self.conditions(term)]
        if term.steps is None:
            rule = self.program.rules[term.rule]
            over = [n for n in rule.over if any(n in factor.names for factor in factors)]
            term.steps = plan_steps(factors, over, term.sizes)
        return self.products.contract(factors, term.steps).arranged(block.names)

    def reads(self, block: CellBlock, term: _RuleCells) -> list[NamedTensor]:
        """What a rule reads for the cells of a block, factor by factor."""
        return [self._entries_of(entries) for entries in term.entries]

    def sizes_over(self, term: _RuleCells) -> dict[str, int]:
        """The variables that a rule sums over, and how many values each has."""
        return {name: term.sizes[name] for name in self.program.rules[term.rule].over}

    def conditions(self, term: _RuleCells) -> list[NamedTensor]:
        """Where a rule holds, and 1 for each value of what only conditions have."""
        if term.where is None:
            return []
        holds, names = term.where
        one, zero = (self.like.new_full((), x) for x in (self.semiring.one, self.semiring.zero))
        return [NamedTensor(torch.where(holds, one, zero), names)]

    def _row_of(self, table: CellTable, axes: Mapping[str, Any]) -> Tensor:
        """The number of a cell among those of its table; below 0 outside of it."""
        shape = self.layout.shapes[table.name]
        row: Any = evaluate_form(table.order, {**self.sizes, **axes})
        for axis, size in shape.places.items():
            row = row * size + axes[axis]
        return torch.as_tensor(row, device=self.like.device)

    def _grid(
        self, rule: Rule, axes: Mapping[str, Tensor]
    ) -> tuple[dict[str, Any], tuple[str, ...], Tensor]:
        """The value of every name of a rule, its dims, and where the rule holds.

        Cells are a dim, and so is every variable that is summed over and no label. One that goes
        through rows of a list has as many values as the longest of them. There is a dim of items
        before these where rows differ among them, and always of where the rule holds.
        """
        device, labels = self.like.device, self.program.labels
        loops = [name for name in rule.over if name not in labels]
        dims = (NODE, *loops)
        values: dict[str, Any] = dict(self.sizes)
        # Cells are along the first dim, and each variable that is summed over along one of its own.
        for axis, at in axes.items():
            values[axis] = at.view(-1, *[1] * len(loops))
        lists = {row.variable: row for row in rule.rows}
        holds = torch.ones([1] * (1 + len(dims)), dtype=torch.bool, device=device)
        for k, name in enumerate(loops):
            ones = [1] * (len(loops) - 1 - k)
            if name not in lists:
                values[name] = torch.arange(self.layout.ranges[name], device=device).view(-1, *ones)
                continue
            # A row of a list: entries from where it begins to where the next one does.
            begins = self.whole[lists[name].array]
            at = torch.as_tensor(evaluate_form(lists[name].at, values), device=device)
            last = begins.shape[1] - 1
            there = (at >= 0) & (at < last)
            at = torch.where(there, at, 0)
            ends = at, (at + 1).clamp(max=last)
            first, last = (self._of_items(begins, end) for end in ends)
            most = int((last - first).max()) if first.numel() else 0
            values[name] = first + torch.arange(most, device=device).view(-1, *ones)
            holds = holds & there & (values[name] < last)
        for form in self._limits(rule):
            own = torch.as_tensor(evaluate_form(form, values), device=device)
            holds = holds & (own >= 0)
        return values, dims, holds

    @staticmethod
    def _of_items(data: Tensor, at: Tensor) -> Tensor:
        """(*at) entries of data where items have the same, (items, *at) where each has its own."""
        if len(data) == 1:
            return data[0][at]
        return data[torch.arange(len(data), device=data.device).view(-1, *[1] * at.ndim), at]

    def _limits(self, rule: Rule) -> list[Affine]:
        """Forms that are at least 0 where a rule adds something, labels aside.

        That entries of a list are within its length was checked with the rows.
        """
        if id(rule) not in self._known_limits:
            known = set[Affine]()
            for name in (row.variable for row in rule.rows):
                known |= {Affine.of(name), self.program.ranges[name] - 1 - name}
            self._known_limits[id(rule)] = [
                form
                for form in self.layout.conditions(rule)
                if form not in known and not form.names & self.program.labels
            ]
        return self._known_limits[id(rule)]

    def _rule_cells(self, number: int, rule: Rule, axes: Mapping[str, Tensor]) -> _RuleCells | None:
        """What a rule reads at some cells; None where it holds nowhere."""
        values, dims, holds = self._grid(rule, axes)
        sizes = {
            NODE: len(next(iter(axes.values()))) if axes else 1,
            **{name: values[name].shape[-len(dims) + k] for k, name in enumerate(dims) if k},
            **{name: size for name, size in self.layout.ranges.items() if name not in dims},
        }
        if not all(sizes[name] for name in dims) or not bool(holds.any()):
            return None
        entries = [self._entries(read, values, dims, sizes) for read in rule.factors]
        # Where the rule holds, and once for every value of a variable that nothing else has.
        known = set[str]()
        for each in entries:
            looked = [str(n) for at in each.labels if isinstance(at, Lookup) for n in at.index]
            known |= {*each.names, *(at for at in each.labels if isinstance(at, str)), *looked}
        counted = [name for name in dims if name not in known and sizes[name] > 1]
        moving = [name for k, name in enumerate(dims, 1) if holds.shape[k] > 1 or name in counted]
        if not moving and entries and bool(holds.all()):
            return _RuleCells(number, entries, None, sizes)
        holds = holds.expand(-1, *(sizes[name] for name in dims))
        for k, name in reversed([*enumerate(dims, 1)]):
            holds = holds if name in moving else holds.select(k, 0)
        return _RuleCells(number, entries, (holds, tuple(moving)), sizes)

    def _index(self, at: Affine | Lookup, values: Mapping[str, Any], dims: Sequence[str]) -> Tensor:
        """(items, *dims) the values of an index, of size 1 where it changes nothing.

        Of a form, (*dims); of data outside of their array, any.
        """
        device = self.like.device
        if isinstance(at, Affine):
            number = torch.as_tensor(evaluate_form(at, values), device=device)
            return number.reshape(*[1] * (len(dims) - number.ndim), *number.shape)
        data = self.whole[at.array]
        places = [
            self._index(one, values, dims).clamp(0, max(0, size - 1))
            for one, size in zip(at.index, data.shape[1:], strict=True)
        ]
        item = torch.arange(len(data), device=device).view(-1, *[1] * len(dims))
        return data[(item, *places)]

    def _entries(
        self, read: Read, values: Mapping[str, Any], dims: Sequence[str], sizes: Mapping[str, int]
    ) -> _Entries:
        """What a rule reads, in the dims along which that changes, and labels."""
        labels, table = self.program.labels, self.program.table(read.array)
        order, size = None, 0
        if table is None:
            ends = self.inputs[read.array].shape[1:]
            # Indices that are labels alone stay dims; by the others, entries are looked up.
            bare = [at.bare for at in read.index]
            others = [name for at in read.index if at.bare is None for name in at.names]
            once = {n for n in bare if bare.count(n) == 1 and n in labels and n not in others}
            kept = [k for k, n in enumerate(bare) if n in once and sizes[n] == ends[k]]
            taken = [k for k in range(len(bare)) if k not in kept]
            read_labels: list[str | Lookup] = [str(bare[k]) for k in kept]
            within = {n for k in taken for n in read.index[k].names if n in labels}
            values = self._with_labels(values, sorted(within), sizes)
            dims = (*dims, *sorted(within))
            row: Any = torch.zeros((), dtype=torch.int64, device=self.like.device)
            for k in taken:
                at = self._index(read.index[k], values, dims)
                row = row * ends[k] + at.clamp(0, max(0, ends[k] - 1))
            order = (0, *(1 + k for k in (*taken, *kept)))
            size = math.prod(ends[k] for k in taken)
        else:
            shape = self.layout.shapes[table.name]
            each = dict(zip(table.axes, read.index, strict=True))
            axes = {a: self._index(at, values, dims) for a, at in each.items() if a not in labels}
            size = shape.steps * shape.cells
            row = self._row_of(table, axes).clamp(0, max(0, size - 1))
            own = [each[axis] for axis in shape.labels]
            read_labels = [at if isinstance(at, Lookup) else str(at) for at in own]
        row = row.reshape(*[1] * (1 + len(dims) - row.ndim), *row.shape)
        moving = [k for k in range(len(dims)) if row.shape[1 + k] > 1]
        row = row.reshape(len(row), *(row.shape[1 + k] for k in moving))
        names = [dims[k] for k in moving]
        return _Entries(
            read, order, size, row.reshape(len(row), -1), tuple(row.shape[1:]), names, read_labels
        )

    def _entries_of(self, entries: _Entries) -> NamedTensor:
        """The values of what a rule reads."""
        name = entries.read.array
        if entries.order is None:
            source = self.tables[name]
        else:
            source = self.inputs[name].permute(entries.order)
            taken = source.ndim - 1 - len(entries.labels)
            source = source.reshape(len(source), entries.size, *source.shape[1 + taken :])
        if not entries.size:
            source = self.like.new_full((1, 1, *source.shape[2:]), self.semiring.zero)
        chosen = entries_at(source, entries.rows)
        chosen = chosen.reshape(len(chosen), *entries.shape, *source.shape[2:])
        chosen, names = self.looked_up(chosen, entries.labels)
        return merge_names(chosen, [*entries.names, *names])

    @staticmethod
    def _with_labels(
        values: Mapping[str, Any], labels: Sequence[str], sizes: Mapping[str, int]
    ) -> Mapping[str, Any]:
        """The values of names, with dims more for labels."""
        ones = [1] * len(labels)
        device = next((x.device for x in values.values() if isinstance(x, Tensor)), None)
        wide = {n: x.reshape(*x.shape, *ones) if isinstance(x, Tensor) else x
                for n, x in values.items()}  # fmt: skip
        for k, name in enumerate(labels):
            wide[name] = torch.arange(sizes[name], device=device).view(-1, *ones[k + 1 :])
        return wide
