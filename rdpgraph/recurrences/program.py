"""Recurrences as data: inputs, tables, rules and a goal, of a size that no length changes."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

from rdpgraph._core.cache import cached_property
from rdpgraph.recurrences.affine import Affine


@dataclass(frozen=True, slots=True)
class Lookup:
    """An index that is data: an entry of an input of whole numbers."""

    array: str
    index: tuple[Affine, ...]

    @property
    def names(self) -> frozenset[str]:
        """The names that its place depends on."""
        return frozenset[str]().union(*(at.names for at in self.index))

    @property
    def bare(self) -> None:
        """It is no variable."""
        return None

    def substitute(self, values: Mapping[str, Affine]) -> "Lookup":
        """Replace names by forms."""
        return Lookup(self.array, tuple(at.substitute(values) for at in self.index))

    def __str__(self) -> str:
        return f"{self.array}[{', '.join(map(str, self.index))}]"


@dataclass(frozen=True, slots=True)
class Read:
    """An entry of an input or a table; absent, -inf, where an index is outside of it."""

    array: str
    index: tuple[Affine | Lookup, ...]

    @property
    def names(self) -> frozenset[str]:
        """The names that its place depends on."""
        return frozenset[str]().union(*(at.names for at in self.index))

    def substitute(self, values: Mapping[str, Affine]) -> "Read":
        """Replace names by forms."""
        return Read(self.array, tuple(at.substitute(values) for at in self.index))

    def __str__(self) -> str:
        return f"{self.array}[{', '.join(map(str, self.index))}]" if self.index else self.array


@dataclass(frozen=True, slots=True)
class Row:
    """A variable goes through a row of a list: from ``array[at]`` to ``array[at + 1] - 1``.

    Attributes:
        variable: of the loop.
        array: the input of whole numbers that says where the rows begin, and where the last ends.
        at: the number of the row.
    """

    variable: str
    array: str
    at: Affine

    @property
    def names(self) -> frozenset[str]:
        """The names that it depends on."""
        return self.at.names | {self.variable}

    def substitute(self, values: Mapping[str, Affine]) -> "Row":
        """Replace names by forms; the variable can be replaced only by another."""
        variable = values.get(self.variable, Affine.of(self.variable)).bare
        assert variable is not None
        return Row(variable, self.array, self.at.substitute(values))

    def __str__(self) -> str:
        return f"{self.array}[{self.at}] <= {self.variable} < {self.array}[{self.at + 1}]"


@dataclass(frozen=True, slots=True)
class Array:
    """An input: its dims after the batch, each a size plus a number.

    Attributes:
        whole: whether it holds whole numbers, which are indices, in place of logs.
    """

    name: str
    dims: tuple[Affine, ...]
    whole: bool = False

    def __str__(self) -> str:
        shape = f"{self.name}[{', '.join(map(str, self.dims))}]"
        return f"whole {shape}" if self.whole else shape


@dataclass(frozen=True, slots=True)
class CellTable:
    """Values that are computed: one for each item and cell.

    Attributes:
        axes: names of its coordinates; axis k has values from 0 to ``sizes[k] - 1``.
        domain: forms in axes and sizes; other cells than those where all are at least 0 are absent.
        order: a form in axes and sizes, from 0 on: the step in which a cell is computed.
    """

    name: str
    axes: tuple[str, ...]
    sizes: tuple[Affine, ...]
    domain: tuple[Affine, ...]
    order: Affine

    @property
    def order_end(self) -> Affine:
        """Return the largest order of a cell, as a form in sizes: the last step of the table."""
        ends = zip(self.axes, self.sizes, strict=True)
        up = {axis: size - 1 for axis, size in ends if self.order.coefficient(axis) > 0}
        down = {axis: Affine() for axis in self.axes if axis not in up}
        return self.order.substitute({**up, **down})

    def __str__(self) -> str:
        axes = [f"{axis} < {size}" for axis, size in zip(self.axes, self.sizes, strict=True)]
        where = [*axes, *(f"{form} >= 0" for form in self.domain)]
        cell = f"{self.name}[{', '.join(self.axes)}]"
        return f"{cell} by {self.order} where {', '.join(where)}" if where else cell


@dataclass(frozen=True, slots=True)
class Rule:
    """A cell of a table gets the sum, over variables that the table lacks, of a product.

    Attributes:
        table: whose axes, by name, are the variables that are not summed over.
        factors: what is multiplied; none: 1.
        over: the variables that are summed over.
        guards: forms that are at least 0 where the rule holds.
        equal: forms that are 0 where it holds.
        text: the rule as it was written.
        rows: of lists, that variables go through.
    """

    table: str
    factors: tuple[Read, ...]
    over: tuple[str, ...]
    guards: tuple[Affine, ...] = ()
    equal: tuple[Affine, ...] = ()
    text: str = ""
    rows: tuple[Row, ...] = ()

    @property
    def names(self) -> frozenset[str]:
        """All names in it except the table's axes that nothing on its right has."""
        forms = (*self.factors, *self.guards, *self.equal, *self.rows)
        return frozenset(self.over).union(*(form.names for form in forms))


@dataclass(frozen=True, eq=False)
class Program:
    """A recurrence that was checked; ``str`` prints it.

    Attributes:
        name: of the class.
        inputs: arrays that are given.
        lengths: names of numbers that each item has, and the size that each is at most.
        ranges: every variable, axes included, and how many values it has, from 0 on.
        labels: the variables that stand alone wherever they stand, and decide no order or domain.
        tables: in the sequence in which those of one step are computed.
        rules: at least one for each table.
        goals: cells whose product is Z, their indices affine in sizes and lengths. One whose ends
            are all below 0, as where its length is 0, is 1; if only some are, it is absent.
        by_data: groups of tables that read each other at places that are data, which are below
            that of the cell that reads.
    """

    name: str
    inputs: tuple[Array, ...]
    lengths: tuple[tuple[str, Affine], ...]
    ranges: Mapping[str, Affine]
    labels: frozenset[str]
    tables: tuple[CellTable, ...]
    rules: tuple[Rule, ...]
    goals: tuple[Read, ...]
    by_data: tuple[tuple[str, ...], ...] = ()

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names of inputs, and then those of lengths."""
        return (*(array.name for array in self.inputs), *(name for name, _ in self.lengths))

    @cached_property
    def logs(self) -> tuple[str, ...]:
        """The names of the inputs of logs."""
        return tuple(array.name for array in self.inputs if not array.whole)

    @cached_property
    def shapes(self) -> dict[tuple[Any, ...], Any]:
        """What `bound.shapes_of` keeps for the shapes that it was asked for."""
        return {}

    @cached_property
    def by_name(self) -> Mapping[str, Array | CellTable]:
        """Inputs and tables by name."""
        return {one.name: one for one in (*self.inputs, *self.tables)}

    def table(self, name: str) -> CellTable | None:
        """The table of a name; None: it is an input."""
        found = self.by_name[name]
        return found if isinstance(found, CellTable) else None

    def rules_of(self, table: str) -> list[Rule]:
        """The rules of a table."""
        return [rule for rule in self.rules if rule.table == table]

    @cached_property
    def size_names(self) -> tuple[str, ...]:
        """The names of the sizes of the inputs, sorted."""
        return tuple(
            sorted({name for one in self.inputs for dim in one.dims for name in dim.names})
        )

    @cached_property
    def lookups(self) -> tuple[tuple[Read, int, str], ...]:
        """The indices that are data: (entry, number of the index, input of whole numbers)."""
        return tuple(
            dict.fromkeys(
                (factor, k, at.array)
                for rule in self.rules
                for factor in rule.factors
                for k, at in enumerate(factor.index)
                if isinstance(at, Lookup)
            )
        )

    @cached_property
    def earlier(self) -> tuple[tuple[Rule, Lookup, str], ...]:
        """Indices of rules that are data and below an axis of the rule's cell: (rule, index, axis).

        Else a cell would be read before it is there.
        """
        found: list[tuple[Rule, Lookup, str]] = []
        for rule in self.rules:
            group = next((group for group in self.by_data if rule.table in group), ())
            table = self.table(rule.table)
            axes = [axis for axis in table.axes if axis not in self.labels] if table else []
            for read in rule.factors if len(axes) == 1 else ():
                data = [at for _, at in self._at_places(read)]
                found += [(rule, at, axes[0]) for at in data if read.array in group]
        return tuple(dict.fromkeys(found))

    @cached_property
    def is_listed(self) -> bool:
        """Whether cells of tables are read at places that are data, or rules go through lists."""
        return any(
            rule.rows or any(self._at_places(read) for read in rule.factors) for rule in self.rules
        )

    def _at_places(self, read: Read) -> list[tuple[str, Lookup]]:
        """The axes, labels aside, in which a cell of a table is read at data."""
        table = self.table(read.array)
        pairs = zip(table.axes, read.index, strict=True) if table else ()
        return [(a, at) for a, at in pairs if isinstance(at, Lookup) and a not in self.labels]

    def __str__(self) -> str:
        given = ", ".join([*map(str, self.inputs), *(f"{n} <= {most}" for n, most in self.lengths)])
        lines = [f"{self.name}({given})", *(f"  table {table}" for table in self.tables)]
        for rule in self.rules:
            table = self.by_name[rule.table]
            assert isinstance(table, CellTable)
            over = f"sum {', '.join(rule.over)}: " if rule.over else ""
            terms = " * ".join(map(str, rule.factors)) or "1"
            guards = [f"{form} >= 0" for form in rule.guards] + [f"{at} == 0" for at in rule.equal]
            guards += map(str, rule.rows)
            where = f"  if {' and '.join(guards)}" if guards else ""
            cell = Read(rule.table, tuple(map(Affine.of, table.axes)))
            lines.append(f"  {cell} += {over}{terms}{where}")
        return "\n".join([*lines, f"  log Z of {' * '.join(map(str, self.goals))}"])


def inside(read: Read, array: Array | CellTable) -> list[Affine]:
    """Forms that are all at least 0 where a read is inside of an array, and of a table's domain.

    Indices that are data are looked up inside of their own arrays by whoever reads them.
    """
    dims = array.dims if isinstance(array, Array) else array.sizes
    forms: list[Affine] = []
    for at, size in zip(read.index, dims, strict=True):
        if isinstance(at, Affine):
            forms += [at, size - 1 - at]
    if isinstance(array, CellTable):
        point = dict(zip(array.axes, read.index, strict=True))
        known = {axis: at for axis, at in point.items() if isinstance(at, Affine)}
        data = {*point} - {*known}
        forms += [form.substitute(known) for form in array.domain if not form.names & data]
    return forms


def points(ranges: Mapping[str, int]) -> Iterator[dict[str, int]]:
    """All combinations of values of some variables."""
    for values in product(*map(range, ranges.values())):
        yield dict(zip(ranges, values, strict=True))
