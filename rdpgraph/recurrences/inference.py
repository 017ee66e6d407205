"""What rules leave out: ranges, sizes, domains, the order of computation, and the goal.

A rule says what is multiplied and, by the names on its left, what is summed over. The rest follows:

- A variable has the range of the dim or axis in which it stands alone, or that of a condition.
- A table is as large as the rules that write to it.
- Its domain is given by inequalities between axes that every rule keeps to, if the cells that it
  reads keep to them. They are the largest such set (Houdini's algorithm).
- Its order is an affine form that is larger for a cell than for all cells that the cell reads. This
  is proved for the forms, hence for all sizes; nothing is tried at a size.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations, permutations, product
from typing import Any

from rdpgraph.errors import ModelError
from rdpgraph.recurrences.affine import Affine, Facts
from rdpgraph.recurrences.parsing import Line, is_size
from rdpgraph.recurrences.program import (
    Array,
    CellTable,
    Lookup,
    Program,
    Read,
    Rule,
    inside,
    points,
)

GOAL = "goal"
"""The table that a recurrence is asked for."""


def infer_program(
    name: str, inputs: Sequence[Array], lengths: Sequence[tuple[str, Affine]], lines: list[Line]
) -> Program:
    """The program of some rules.

    Args:
        name: of the class, for messages.
        inputs: what is given.
        lengths: names of lengths, and the sizes that they are at most.
        lines: the rules, `goal` among the tables that they write to.

    Raises:
        ModelError: a name that means nothing, a variable without a range, or a cell that is read
            before it is there; the message repeats the rule.
    """
    lines, goals = _separate_goals(name, {one.name for one in inputs}, lengths, lines)
    sketch = _Sketch(name, {one.name: one for one in inputs}, [one for one, _ in lengths], lines)
    sketch.check_names()
    rules = [sketch.normalized(line) for line in lines]
    sizes = sketch.sizes(rules)
    sizes = _read_alone(sizes, sketch.with_ranges(rules, sizes))
    rules = sketch.with_ranges(rules, sizes)
    labels, ordered, by_data = _with_labels(sketch, sizes, rules, goals)
    _check_beginnings(name, rules)
    ranges, labelled, final = _named_apart(rules, ordered, labels)
    return Program(
        name, tuple(inputs), tuple(lengths), ranges, labelled, tuple(ordered),
        tuple(_simplified(rule, {t.name: t for t in ordered}, sketch, ranges) for rule in final),
        goals, tuple(by_data),
    )  # fmt: skip


@dataclass(frozen=True)
class _Draft:
    """A rule in the coordinates of its table: named `Rule`, with what is known of its variables."""

    rule: Rule
    line: Line
    limits: tuple[Affine, ...]  # at least 0 where its inputs are there and its conditions hold
    ranges: dict[str, Affine] = field(default_factory=dict[str, Affine])

    def variables(self) -> list[str]:
        """The variables that it sums over, sorted."""
        return [*self.rule.over]


def _check_beginnings(owner: str, drafts: Sequence[_Draft]) -> None:
    """Check that some cell of every table can be other than absent, -inf.

    A table has a beginning if one of its rules reads only inputs and tables with a beginning.
    """
    lacking = {draft.rule.table for draft in drafts}
    found = True
    while found:
        found = {
            draft.rule.table
            for draft in drafts
            if not lacking.intersection(factor.array for factor in draft.rule.factors)
        } & lacking
        lacking -= found
    for draft in sorted(drafts, key=lambda draft: draft.rule.table == GOAL):
        table, reads = draft.rule.table, [factor.array for factor in draft.rule.factors]
        if table in lacking:
            before = next(array for array in reads if array in lacking)
            raise ModelError(
                f"{owner}: every cell of {table} is absent, because each of its rules reads a "
                f"table that has no first cell, as {before} in {draft.line.text}; add a rule "
                "for a first cell, which reads inputs alone."
            )


def _separate_goals(
    owner: str, inputs: set[str], lengths: Sequence[tuple[str, Affine]], lines: list[Line]
) -> tuple[list[Line], tuple[Read, ...]]:
    """Make the goal a table with an axis for each end that its rules name, as `lengths - 1`.

    A goal of one rule whose factors fall into parts without a common variable has a table for each
    part, so that each sequence of a model of several may be empty by itself. A goal that is a cell
    of a table needs no table.
    """
    known = {name for name, _ in lengths}
    # What is refused: no goal, a goal with an index, a goal that is read.
    written = [line for line in lines if line.table == GOAL]
    others = [line for line in lines if line.table != GOAL]
    if not written:
        raise ModelError(f"{owner}: no rule says what the goal is, as `goal += a[lengths - 1, n]`.")
    for line in written:
        if line.index:
            raise ModelError(f"{owner}: the goal is one number, without an index, in {line.text}")
        for factor in line.factors:
            if factor.array == GOAL:
                raise ModelError(f"{owner}: the goal is read by no rule, in {line.text}")
    parts = _parts(written[0], known) if len(written) == 1 else [written]
    goals: list[Read] = []
    for number, part in enumerate(parts):
        # A goal that is one cell of a table needs no table of its own.
        cell = _cell_of(part, known)
        if cell is not None and cell.array not in inputs:
            goals.append(cell)
            continue
        # Otherwise a table with an axis for each end: its rules are written for any place, and the
        # goal reads it at the ends.
        table = GOAL if len(parts) == 1 else f"{GOAL}{number + 1}"
        ends = _ends_of(part, known)
        names = {at: f"end{k + 1}" for k, at in enumerate(ends)}

        def placed(at: Affine | Lookup, names: Mapping[Affine, str] = names) -> Affine | Lookup:
            """An index with the axis of an end in place of it."""
            if isinstance(at, Lookup) or not _is_end(at, known):
                return at
            return next(at - end + name for end, name in names.items() if not (at - end).terms)

        for line in part:
            factors = tuple(
                Read(factor.array, tuple(map(placed, factor.index))) for factor in line.factors
            )
            index = tuple(map(Affine.of, names.values()))
            others.append(replace(line, table=table, index=index, factors=factors))
        goals.append(Read(table, ends))
    return others, tuple(goals)


def _cell_of(lines: list[Line], lengths: set[str]) -> Read | None:
    """The cell of a table that rules of the goal are, if they are one, without a variable."""
    if len(lines) > 1 or len(lines[0].factors) != 1 or lines[0].conditions:
        return None
    (read,) = lines[0].factors
    at_ends = (
        isinstance(at, Affine) and (not at.terms or _is_end(at, lengths)) for at in read.index
    )
    return read if all(at_ends) else None


def _ends_of(lines: list[Line], lengths: set[str]) -> tuple[Affine, ...]:
    """The ends that rules name; of those that a number apart, as lengths - 1 and - 2, the last."""
    last: dict[tuple[tuple[str, int], ...], Affine] = {}
    for line in lines:
        for factor in line.factors:
            for at in factor.index:
                if isinstance(at, Affine) and _is_end(at, lengths):
                    known = last.setdefault(at.terms, at)
                    last[at.terms] = max(known, at, key=lambda form: form.constant)
    return tuple(last.values())


def _is_end(at: Affine, lengths: set[str]) -> bool:
    """Return whether an index is that of an end: it has lengths or sizes, and no variable."""
    return bool(at.terms) and all(name in lengths or is_size(name) for name in at.names)


def _parts(line: Line, lengths: set[str]) -> list[list[Line]]:
    """A rule's factors in parts that share no variable, each a rule."""
    parts: list[tuple[set[str], list[Read]]] = []
    for factor in line.factors:
        own = {name for name in factor.names if not is_size(name)} - lengths
        touching = [part for part in parts if part[0] & own]
        apart = [part for part in parts if not part[0] & own]
        names = own.union(*(part[0] for part in touching))
        parts = [*apart, (names, [read for part in touching for read in part[1]] + [factor])]
    # Conditions hold for all of it, so a rule that has some stays whole.
    if line.conditions or len(parts) < 2:
        return [[line]]
    return [[replace(line, factors=tuple(reads))] for _, reads in parts]


@dataclass
class _Sketch:
    """What is declared, and the names of the tables' axes."""

    owner: str
    inputs: dict[str, Array]
    lengths: list[str]
    lines: list[Line]
    axes: dict[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])

    def __post_init__(self) -> None:
        for line in self.lines:
            names = [at.bare or f"{line.table}{k + 1}" for k, at in enumerate(line.index)]
            bare = all(at.bare for at in line.index) and len({*names}) == len(names)
            if line.table not in self.axes or (bare and not self._is_bare(line.table)):
                if len({*names}) < len(names):
                    names = [f"{line.table}{k + 1}" for k in range(len(names))]
                self.axes[line.table] = tuple(names)

    def _is_bare(self, table: str) -> bool:
        return any(
            tuple(at.bare for at in line.index) == self.axes[table]
            for line in self.lines
            if line.table == table
        )

    def error(self, why: str, line: Line) -> ModelError:
        return ModelError(f"{self.owner}: {why}, in {line.text}")

    def check_names(self) -> None:
        """Check that every name means something, and has the indices that it should."""
        sizes = {name for one in self.inputs.values() for dim in one.dims for name in dim.names}
        for line in self.lines:
            # What is written: no input, with as many indices as elsewhere.
            if line.table in self.inputs or line.table in self.lengths:
                raise self.error(f"{line.table} is an input, and no rule writes to it", line)
            if len(line.index) != len(self.axes[line.table]):
                raise self.error(
                    f"{line.table} has {len(self.axes[line.table])} indices in another rule", line
                )
            # What is read: arrays and the data that index them.
            for read in line.factors:
                self._check_read(read, line)
                for at in read.index:
                    if isinstance(at, Lookup):
                        self._check_read(Read(at.array, at.index), line, whole=True)
            for row in line.rows:
                self._check_read(Read(row.array, (row.at,)), line, whole=True)
                if any(row.variable in at.names for at in line.index):
                    raise self.error(
                        f"the row is summed over, and {row.variable} stands left", line
                    )
            # Names of indices: variables are in small letters, sizes are of an input, and an array
            # is no index.
            for name in sorted(line.names):
                if name in self.lengths:
                    raise self.error(f"only reads of the goal have the index {name}", line)
                if is_size(name) and name not in sizes:
                    raise self.error(
                        f"{name} is the size of no input; variables are in small letters", line
                    )
                if name in self.inputs or name in self.axes:
                    raise self.error(f"{name} is an array, and stands as an index", line)

    def _check_read(self, read: Read, line: Line, *, whole: bool = False) -> None:
        array = self.inputs.get(read.array)
        if array is None and (whole or read.array not in self.axes):
            known = ", ".join([*self.inputs, *self.axes])
            raise self.error(
                f"{read.array} is no input, and no rule makes it (known: {known})", line
            )
        if array is not None and array.whole != whole:
            holds = "indices, so it stands within an index" if array.whole else "logs, no indices"
            raise self.error(f"{read.array} holds {holds}", line)
        rank = len(array.dims if array is not None else self.axes[read.array])
        if len(read.index) != rank:
            raise self.error(f"{read.array} has {rank} indices; got {len(read.index)}", line)

    def normalized(self, line: Line) -> _Draft:
        """A rule with its table's axes as variables: z[t + 1] += a[t] is z[t] += a[t - 1].

        Every index on the left is solved for one of its variables, if it has one that no earlier
        index was solved for; otherwise it is an equation that the axis keeps to.
        """
        axes = self.axes[line.table]
        # The rule's own variables get names that no axis has.
        own = {name: Affine.of(f"{name}'") for name in line.names if not is_size(name)}
        solved: dict[str, Affine] = {}
        equal: list[Affine] = []
        for axis, at in zip(axes, line.index, strict=True):
            form = at.substitute(own).substitute(solved)
            free = [name for name, times in form.terms if name[-1:] == "'" and abs(times) == 1]
            if not free:
                equal.append(Affine.of(axis) - form)
                continue
            name, times = free[0], form.coefficient(free[0])
            value = (Affine.of(axis) - (form - Affine.of(name) * times)) * times
            solved = {known: form.substitute({name: value}) for known, form in solved.items()}
            solved[name] = value
        moves = {name: at.substitute(solved) for name, at in own.items()}
        # Variables that are summed over get their names back, unless an axis has that name.
        rest = sorted(f"{name}'" for name in own if f"{name}'" not in solved)
        short = {n: Affine.of(n[:-1] if n[:-1] not in axes else n) for n in rest}
        moves = {name: at.substitute(short) for name, at in moves.items()}
        equal = [form.substitute(short) for form in equal]
        factors = tuple(factor.substitute(moves) for factor in line.factors)
        guards = tuple(form.substitute(moves) for form in line.conditions)
        over = tuple(sorted(at.bare or "" for at in short.values()))
        rows = tuple(row.substitute(moves) for row in line.rows)
        rule = Rule(line.table, factors, over, guards, tuple(equal), line.text, rows)
        return _Draft(rule, line, tuple(self.limits(rule)))

    # ---- ranges and sizes ----

    def sizes(self, drafts: list[_Draft]) -> dict[str, tuple[Affine, ...]]:
        """The size of every axis: the largest that a rule writes to.

        What a rule writes is bounded by the inputs that it reads and by its conditions; otherwise
        by other tables, once their sizes are known. A bound by the table itself says nothing new.
        """
        known: dict[tuple[str, int], Affine] = {}
        pending = [(table, k) for table, axes in self.axes.items() for k in range(len(axes))]
        while pending:
            before = len(known)
            for table, k in pending:
                found = self._extents(table, k, drafts, known)
                if found is not None:
                    known[table, k] = self._largest(table, k, found)
            pending = [slot for slot in pending if slot not in known]
            if len(known) == before and pending:
                raise self._unbounded(pending, drafts, known)
        return {
            table: tuple(known[table, k] for k in range(len(axes)))
            for table, axes in self.axes.items()
        }

    def _extents(
        self, table: str, k: int, drafts: list[_Draft], known: Mapping[tuple[str, int], Affine]
    ) -> list[list[Affine]] | None:
        """For each rule of a table, bounds of an axis, each enough; None: some are unknown."""
        found: list[list[Affine]] = []
        axis = self.axes[table][k]
        for draft in drafts:
            if draft.rule.table != table:
                continue
            bounds = [*self._fixed_bounds(draft, axis)]
            if not bounds and axis not in draft.rule.names and table.startswith(GOAL):
                continue  # the goal has ends that this rule does not mention
            if not bounds:
                bounds, own = self._table_bounds(draft, axis, known)
                if own and not bounds:
                    continue
                if not bounds:
                    return None
            found.append(bounds)
        return found or None

    def _fixed_bounds(self, draft: _Draft, name: str) -> Iterator[Affine]:
        """How many values a variable has at most, by inputs, conditions and equations."""
        yield from self._direct_bounds(draft, name)
        for form in draft.limits:
            if form.coefficient(name) != -1:
                continue
            # The variable is at most a sum of others, which is largest where these are at an end.
            most, ends = form + name, dict[str, Affine]()
            for other in most.names:
                if most.coefficient(other) < 0:
                    ends[other] = Affine()
                elif not is_size(other):
                    bounds = sorted(self._direct_bounds(draft, other), key=_simplicity)
                    if not bounds:
                        break
                    ends[other] = bounds[0] - 1
            else:
                yield most.substitute(ends) + 1

    def _direct_bounds(self, draft: _Draft, name: str) -> Iterator[Affine]:
        """How many values a variable has at most, by forms that have no other."""
        for form in draft.limits:
            if form.coefficient(name) == -1 and all(map(is_size, form.names - {name})):
                yield form + name + 1

    def limits(self, rule: Rule) -> Iterator[Affine]:
        """Forms that are at least 0 where a rule's inputs are there and its conditions hold."""
        lookups = [
            Read(at.array, at.index)
            for read in rule.factors
            for at in read.index
            if isinstance(at, Lookup)
        ]
        for read in (*rule.factors, *lookups):
            if read.array in self.inputs:
                yield from inside(read, self.inputs[read.array])
        for row in rule.rows:
            for at in (row.at, row.at + 1):
                yield from inside(Read(row.array, (at,)), self.inputs[row.array])
        yield from rule.guards
        for form in rule.equal:
            yield from (form, -form)

    def _table_bounds(
        self, draft: _Draft, name: str, known: Mapping[tuple[str, int], Affine]
    ) -> tuple[list[Affine], bool]:
        """How many values a variable has by tables of known sizes; whether its own bounds it."""
        bounds: list[Affine] = []
        own = False
        for read in draft.rule.factors:
            for j, at in enumerate(read.index if read.array in self.axes else ()):
                if not isinstance(at, Affine) or at.coefficient(name) != 1:
                    continue
                shift = at - name
                if not all(map(is_size, shift.names)):
                    continue
                size = known.get((read.array, j))
                if size is not None:
                    bounds.append(size - shift)
                elif read.array == draft.rule.table and self.axes[read.array][j] == name:
                    own |= not shift.terms and shift.constant >= 0
        return bounds, own

    def _largest(self, table: str, k: int, found: list[list[Affine]]) -> Affine:
        """The size of axis ``k`` of a table: the least bound that all of its rules keep to.

        A rule that writes to a numbered cell, as a[0, n] += ..., asks for no size: where the size
        is zero there is no such cell.
        """
        if any(bound.terms for bounds in found for bound in bounds):
            found = [bounds for bounds in found if any(bound.terms for bound in bounds)]
        for bound in sorted((bound for bounds in found for bound in bounds), key=_simplicity):
            if all(any(_at_most(one, bound) for one in bounds) for bounds in found):
                return bound
        some = sorted({bounds[0] for bounds in found}, key=_simplicity)
        axis, few, many = self.axes[table][k], some[0], some[-1]
        line = next(line for line in self.lines if line.table == table)
        raise self.error(
            f"{axis} of {table} has {' and '.join(map(str, some))} values by different rules; add "
            f"`if {axis} < {many}` to the rule with {few}, whose reads outside of arrays are "
            f"absent, or `if {axis} < {few}` to the one with {many}, which cuts it short",
            line,
        )

    def _unbounded(
        self, pending: list[tuple[str, int]], drafts: list[_Draft],
        known: Mapping[tuple[str, int], Affine],
    ) -> ModelError:  # fmt: skip
        """The error of the first rule with a variable that nothing bounds."""
        for table, k in pending:
            axis = self.axes[table][k]
            for draft in drafts:
                if draft.rule.table == table and not [*self._fixed_bounds(draft, axis)]:
                    bounds, own = self._table_bounds(draft, axis, known)
                    if not bounds and not own:
                        said = draft.line.index[k] if k < len(draft.line.index) else axis
                        return self._needs_range(str(said), draft.line)
        table, k = pending[0]
        line = next(line for line in self.lines if line.table == table)
        return self._needs_range(self.axes[table][k], line)

    def _needs_range(self, name: str, line: Line) -> ModelError:
        sizes = list(
            dict.fromkeys(n for one in self.inputs.values() for d in one.dims for n in d.names)
        )
        # A variable is often written as its size is, in small letters.
        size = next((one for one in sizes if one.lower() == name.lower()), "10")
        return self.error(
            f"nothing says how far {name} goes, as no input has it alone as an index; add a "
            f"condition such as `if {name} < {size}`, by a number or by one of the sizes "
            f"{', '.join(sizes) or '(there are none)'}", line,
        )  # fmt: skip

    def with_ranges(
        self, drafts: list[_Draft], sizes: Mapping[str, tuple[Affine, ...]]
    ) -> list[_Draft]:
        """The rules with the range of every variable that they have."""
        known = {(table, k): size for table in sizes for k, size in enumerate(sizes[table])}
        made: list[_Draft] = []
        for draft in drafts:
            ranges = dict(zip(self.axes[draft.rule.table], sizes[draft.rule.table], strict=True))
            for name in draft.rule.over:
                bounds = [*self._fixed_bounds(draft, name)]
                bounds += self._table_bounds(draft, name, known)[0]
                if not bounds:
                    raise self._needs_range(name, draft.line)
                # Any of them is sound; the shortest form is that of a variable alone in a dim.
                ranges[name] = min(bounds, key=_simplicity)
            made.append(replace(draft, ranges=ranges))
        return made

    def holding(self, draft: _Draft, tables: Mapping[str, CellTable]) -> list[Affine]:
        """Forms that are at least 0 wherever a rule adds something."""
        forms = [*draft.limits]
        for name, size in draft.ranges.items():
            forms += [Affine.of(name), size - 1 - name]
        for read in draft.rule.factors:
            if read.array in tables:
                forms += inside(read, tables[read.array])
                for at, size in zip(read.index, tables[read.array].sizes, strict=True):
                    if isinstance(at, Lookup):  # data are within what they index
                        forms += [Affine.of(str(at)), size - 1 - str(at)]
        return forms


def _read_alone(
    sizes: Mapping[str, tuple[Affine, ...]], drafts: list[_Draft]
) -> dict[str, tuple[Affine, ...]]:
    """The sizes of axes without the last cells that a rule writes and none reads."""
    needed: dict[tuple[str, int], set[Affine]] = {}
    for draft in drafts:
        for read in draft.rule.factors:
            for k, at in enumerate(read.index if read.array in sizes else ()):
                # Where a variable stands alone its range is read, otherwise perhaps all there is.
                own = draft.ranges.get(at.bare or "", sizes[read.array][k])
                needed.setdefault((read.array, k), set()).add(own)
    made: dict[str, tuple[Affine, ...]] = {}
    for table, each in sizes.items():
        kept = list[Affine]()
        for k, size in enumerate(each):
            (only, *others) = needed.get((table, k), {size})
            kept.append(only if not others and _at_most(only, size) else size)
        made[table] = tuple(kept)
    return made


def _simplicity(size: Affine) -> tuple[int, int, str]:
    """A key that sorts sizes: T before T + 1 before T + D."""
    return sum(abs(times) for _, times in size.terms), size.constant, str(size)


def _at_most(one: Affine, other: Affine) -> bool:
    """Return whether a size is at most another, whatever the sizes, which are at least 0."""
    rest = other - one
    return rest.constant >= 0 and all(times > 0 for _, times in rest.terms)


# ---- labels, domains, orders ----


def _with_labels(
    sketch: _Sketch, sizes: Mapping[str, tuple[Affine, ...]], drafts: list[_Draft],
    goals: Sequence[Read],
) -> tuple[set[tuple[int | str, str | int]], list[CellTable], list[tuple[str, ...]]]:  # fmt: skip
    """The labels, and what `_with_orders` makes of the tables.

    A table may be read at an index that is data. If the other indices order the cells, that axis is
    one of labels, as where the rules of a grammar name the states of their parts. Otherwise the
    data order the cells, and the axis is one of places, as that of the nodes of a hypergraph.
    """

    def ordered(labels: set[tuple[int | str, str | int]]) -> Any:
        tables = {
            name: CellTable(name, sketch.axes[name], sizes[name], (), Affine()) for name in sizes
        }
        tables = _with_domains(tables, drafts, sketch, labels)
        return labels, *_with_orders(sketch.owner, tables, drafts, sketch, labels)

    # First take axes that are read at data as labels.
    labels = _labels(drafts, sizes, goals, sketch.inputs, placed=False)
    at_data = [
        ((read.array, k), number, draft, at)
        for number, draft in enumerate(drafts)
        for read in draft.rule.factors
        for k, at in enumerate(read.index)
        if isinstance(at, Lookup) and read.array in sizes
    ]

    def is_known(number: int, draft: _Draft, at: Lookup) -> bool:
        """Whether data are looked up by labels, or by all values of what a rule sums over."""
        return all(
            (number, one.bare) in labels
            or (one.bare in draft.rule.over and draft.ranges[one.bare] == size)
            for one, size in zip(at.index, sketch.inputs[at.array].dims, strict=True)
        )

    # That is possible where the data are known without the order of places; if no order is found
    # so, these axes are places.
    if all(axis in labels and is_known(number, draft, at) for axis, number, draft, at in at_data):
        try:
            return ordered(labels)
        except ModelError:
            if not at_data:
                raise
    return ordered(_labels(drafts, sizes, goals, sketch.inputs, placed=True))


def _labels(
    drafts: list[_Draft], sizes: Mapping[str, Sequence[Affine]], goals: Sequence[Read],
    inputs: Mapping[str, Array], *, placed: bool,
) -> set[tuple[int | str, str | int]]:  # fmt: skip
    """The variables that stand alone wherever they stand: (rule, name) and (table, axis).

    A variable and the axes in whose place it stands are labels together or not at all. With
    ``placed`` axes in which tables are read at data are none.
    """
    parent: dict[tuple[int | str, str | int], tuple[int | str, str | int]] = {}

    def root(slot: tuple[int | str, str | int]) -> tuple[int | str, str | int]:
        while parent.setdefault(slot, slot) != slot:
            slot = parent[slot]
        return slot

    no_labels: set[tuple[int | str, str | int]] = set()
    for goal in goals:  # each item reads its own place
        no_labels |= {(goal.array, k) for k in range(len(goal.index))}
    slots: set[tuple[int | str, str | int]] = {(t, k) for t in sizes for k in range(len(sizes[t]))}
    for number, draft in enumerate(drafts):
        rule = draft.rule
        for k, axis in enumerate([*draft.ranges][: len(sizes[rule.table])]):
            parent[root((number, axis))] = root((rule.table, k))
        slots |= {(number, name) for name in draft.ranges}
        no_labels |= {(number, name) for row in rule.rows for name in row.names}
        for form in (*rule.guards, *rule.equal):
            if not _is_range(form, draft.ranges):
                no_labels |= {(number, name) for name in form.names}
        for read in rule.factors:
            if read.array in sizes and placed:  # nor is what is read at data, or what decides it
                at_data = [(k, at) for k, at in enumerate(read.index) if isinstance(at, Lookup)]
                no_labels |= {(read.array, k) for k, _ in at_data}
                no_labels |= {(number, name) for _, at in at_data for name in at.names}
            dims = sizes[read.array] if read.array in sizes else inputs[read.array].dims
            for k, at in enumerate(read.index):
                if isinstance(at, Lookup):
                    each = [*zip(at.index, inputs[at.array].dims, strict=True)]
                else:
                    each = [(at, dims[k])]
                for one, size in each:
                    own = read.array in sizes and isinstance(at, Affine)
                    part = read.array in inputs and isinstance(at, Affine)
                    if not _is_label(one, size, draft.ranges, part=part):
                        no_labels |= {(number, name) for name in one.names}
                        if own:
                            no_labels.add((read.array, k))
                    elif own:
                        parent[root((number, one.bare or ""))] = root((read.array, k))
    lost = {root(slot) for slot in no_labels}
    return {slot for slot in slots if root(slot) not in lost}


def _is_label(at: Affine, size: Affine, ranges: Mapping[str, Affine], *, part: bool) -> bool:
    """Return whether an index is that of a label: a variable with all of a dim as its range.

    With ``part`` a part of the dim will do, as the states from N on that ``q + N`` reads.
    """
    names = [name for name in at.names if not is_size(name)]
    if len(names) != 1 or at.coefficient(names[0]) != 1 or names[0] not in ranges:
        return False
    start, (name,) = at - names[0], names
    if not part:
        return not start.terms and not start.constant and ranges[name] == size
    return _at_most(Affine(), start) and _at_most(ranges[name] + start, size)


def _is_range(form: Affine, ranges: Mapping[str, Affine]) -> bool:
    """Return whether a condition says no more than how far a variable goes."""
    names = [name for name in form.names if name in ranges]
    return len(names) == 1 and form == ranges[names[0]] - 1 - names[0]


def _with_domains(
    tables: dict[str, CellTable], drafts: list[_Draft], sketch: _Sketch,
    labels: set[tuple[int | str, str | int]],
) -> dict[str, CellTable]:  # fmt: skip
    """The tables with the inequalities between their axes that all their rules keep to."""
    # Where an axis is read at data no inequality says whether the cell is there, so all are.
    data: set[tuple[int | str, str | int]] = {
        (read.array, k)
        for draft in drafts
        for read in draft.rule.factors
        for k, at in enumerate(read.index)
        if isinstance(at, Lookup)
    }
    tables = {
        name: replace(table, domain=tuple(_candidates(table, labels | data)))
        for name, table in tables.items()
    }
    # A rule without tables says at once what does not hold.
    ordered = sorted(drafts, key=lambda d: sum(f.array in tables for f in d.rule.factors))
    changed = True
    while changed:
        changed = False
        for draft in ordered:
            table = tables[draft.rule.table]
            if not table.domain:
                continue
            facts = Facts(sketch.holding(draft, tables))
            kept = tuple(form for form in table.domain if facts.imply(form))
            if len(kept) < len(table.domain):
                tables[table.name] = replace(table, domain=kept)
                changed = True
    # Leave out what the sizes and the other inequalities say.
    for name, table in tables.items():
        kept = [*table.domain]
        ends = _ends(table)
        for form in table.domain:
            if Facts([*ends, *(other for other in kept if other != form)]).imply(form):
                kept.remove(form)
        tables[name] = replace(table, domain=tuple(kept))
    return tables


def _ends(table: CellTable) -> list[Affine]:
    axes = zip(table.axes, table.sizes, strict=True)
    return [form for axis, size in axes for form in (Affine.of(axis), size - 1 - axis)]


def _candidates(table: CellTable, labels: set[tuple[int | str, str | int]]) -> Iterator[Affine]:
    """Inequalities that a domain may have: differences of axes, and sums of two of them."""
    axes = [axis for k, axis in enumerate(table.axes) if (table.name, k) not in labels]
    for one, other in permutations(axes, 2):
        yield from (Affine.of(one) - other, Affine.of(one) - other - 1)
    yield from dict.fromkeys(form - 1 for form in _double_differences(axes))


def _double_differences(axes: Sequence[str]) -> Iterator[Affine]:
    """Sums of two differences of four axes, as j - i + l - k."""
    for (a, b), (c, d) in combinations(permutations(axes, 2), 2):
        if len({a, b, c, d}) == 4:
            yield Affine.of(a) - b + c - d


def _with_orders(
    owner: str, tables: dict[str, CellTable], drafts: list[_Draft], sketch: _Sketch,
    labels: set[tuple[int | str, str | int]],
) -> tuple[list[CellTable], list[tuple[str, ...]]]:  # fmt: skip
    """The tables with their orders, in the sequence in which those of one step are computed.

    And the groups of tables whose order data decide, if these point to smaller places.
    """
    reads: dict[str, list[tuple[_Draft, Read]]] = {name: [] for name in tables}
    for draft in drafts:
        reads[draft.rule.table] += [
            (draft, read) for read in draft.rule.factors if read.array in tables
        ]
    done: dict[str, CellTable] = {}
    by_data: list[tuple[str, ...]] = []
    for group in _components({n: [r.array for _, r in each] for n, each in reads.items()}):
        found = _ordered(group, tables, reads, done, sketch, labels)
        if found is None:
            supposed = [*_earlier_cells(group, tables, reads, labels)]
            found = _ordered(group, tables, reads, done, sketch, labels, supposed)
            if found is None:
                raise _unordered(owner, group, tables, reads, sketch)
            by_data.append(tuple(table.name for table in found))
        done |= {table.name: table for table in found}
    return [*done.values()], by_data


def _earlier_cells(
    group: list[str], tables: Mapping[str, CellTable],
    reads: Mapping[str, list[tuple[_Draft, Read]]], labels: set[tuple[int | str, str | int]],
) -> Iterator[tuple[_Draft, Affine]]:  # fmt: skip
    """What is supposed of an index that is data, where a rule reads a table of its own group.

    It is less than the index of the rule's cell, on the one axis of that cell that is no label.
    """
    for name in group:
        axes = [axis for k, axis in enumerate(tables[name].axes) if (name, k) not in labels]
        for draft, read in reads[name] if len(axes) == 1 else ():
            for at in read.index if read.array in group else ():
                if isinstance(at, Lookup):
                    yield draft, Affine.of(axes[0]) - 1 - str(at)


def _components(graph: Mapping[str, Sequence[str]]) -> list[list[str]]:
    """Strongly connected parts of a graph, each after those that it reads."""

    def reached(start: str) -> set[str]:
        found, waiting = set[str](), [start]
        while waiting:
            for other in graph[waiting.pop()]:
                if other not in found:
                    found.add(other)
                    waiting.append(other)
        return found

    below = {name: reached(name) for name in graph}
    parts: list[list[str]] = []
    # A part that another reads has fewer tables below it.
    for name in sorted(graph, key=lambda name: len(below[name] | {name})):
        own = [other for other in graph if other in below[name] and name in below[other]]
        if [*own] not in parts and not any(name in part for part in parts):
            parts.append(own or [name])
    return parts


def _ordered(
    group: list[str], tables: Mapping[str, CellTable],
    reads: Mapping[str, list[tuple[_Draft, Read]]], done: Mapping[str, CellTable],
    sketch: _Sketch, labels: set[tuple[int | str, str | int]],
    supposed: Sequence[tuple[_Draft, Affine]] = (),
) -> list[CellTable] | None:  # fmt: skip
    """Orders of tables that read each other, which agree with those that are done; or None."""
    # What holds where a rule reads: with the domains of all tables.
    given = {
        id(draft): Facts(
            [*sketch.holding(draft, tables), *(at for other, at in supposed if other is draft)]
        )
        for name in group
        for draft, _ in reads[name]
    }

    ordered = {
        name: [
            replace(tables[name], order=order)
            for order in _orders(tables[name], [r for _, r in reads[name]], done, labels)
        ]
        for name in group
    }
    known: dict[tuple[int, ...], int] = {}

    def lead(draft: _Draft, read: Read, order: Affine, other: CellTable) -> int:
        """By how much an order is larger than that of a cell that is read: 1, 0, or -1 for neither.

        Every proof is made once.
        """
        key = id(draft), id(read), id(order), id(other.order)
        if key not in known:
            gap, facts = order - _order_at(other, read), given[id(draft)]
            known[key] = 1 if facts.imply(gap - 1) else 0 if facts.imply(gap) else -1
        return known[key]

    def extend(chosen: dict[str, CellTable], later: dict[str, set[str]]) -> list[CellTable] | None:
        """Tables of the group in sequence; ``later`` has those that each reads in its step."""
        rest = [name for name in group if name not in chosen]
        if not rest:
            sequence = _sequence(group, later)
            return None if sequence is None else [chosen[name] for name in sequence]
        # Depth first: give the next table one order after another, as far as all reads fit.
        name = rest[0]
        for table in ordered[name]:
            trial = {**chosen, name: table}
            same = {key: {*names} for key, names in later.items()}
            fits = True
            for reader in trial:
                for draft, read in reads[reader]:
                    other = trial.get(read.array) or done.get(read.array)
                    if other is None or name not in (reader, read.array):
                        continue
                    # A read of an earlier step fits; one of the same step must be of another
                    # table, which then comes first in the sequence.
                    before = lead(draft, read, trial[reader].order, other)
                    if before == 1:
                        continue
                    fits = before == 0 and read.array != reader
                    if not fits:
                        break
                    if read.array in trial:
                        same.setdefault(reader, set()).add(read.array)
                if not fits:
                    break
            found = extend(trial, same) if fits else None
            if found is not None:
                return found
        return None

    return extend({}, {})


def _order_at(table: CellTable, read: Read) -> Affine:
    """The step of the cell that is read."""
    return table.order.substitute(
        {
            axis: at if isinstance(at, Affine) else Affine.of(str(at))
            for axis, at in zip(table.axes, read.index, strict=True)
        }
    )


def _sequence(group: Iterable[str], later: Mapping[str, set[str]]) -> list[str] | None:
    """Names, each after those that it reads in its own step; None: they go round in a circle."""
    done: list[str] = []
    waiting = [*group]
    while waiting:
        ready = [name for name in waiting if later.get(name, set()) <= {*done}]
        if not ready:
            return None
        done += ready
        waiting = [name for name in waiting if name not in ready]
    return done


def _orders(
    table: CellTable, reads: Sequence[Read], done: Mapping[str, CellTable],
    labels: set[tuple[int | str, str | int]],
) -> Iterator[Affine]:  # fmt: skip
    """Forms that may order a table, simplest first, each at least 0 on its domain."""
    axes = [axis for k, axis in enumerate(table.axes) if (table.name, k) not in labels]
    sizes = dict(zip(table.axes, table.sizes, strict=True))
    shapes = [Affine.of(axis) for axis in axes] + [-Affine.of(axis) for axis in axes]
    shapes += [Affine.of(a) - b for a, b in permutations(axes, 2)]
    shapes += [Affine.of(a) + b for a, b in combinations(axes, 2)]
    shapes += [*dict.fromkeys(_double_differences(axes)), Affine()]
    facts = Facts([*_ends(table), *table.domain])
    after = {done[read.array].order_end for read in reads if read.array in done}
    forms: list[Affine] = []
    for shape in shapes:
        down = [name for name, times in shape.terms if times < 0]
        least = shape
        if not facts.imply(shape):
            for name in down:
                least = least + sizes[name] - 1
        forms.append(least)
    yield from forms
    for form, end in product(forms, sorted(after, key=str)):
        yield form + end


def _unordered(
    owner: str, group: list[str], tables: Mapping[str, CellTable],
    reads: Mapping[str, list[tuple[_Draft, Read]]], sketch: _Sketch,
) -> ModelError:  # fmt: skip
    """The error for tables that no form orders, with a place where a cell is read too early."""
    name = group[0]
    for draft, read in reads[name]:
        if read.array not in group:
            continue
        # The first axis orders most recurrences, so it shows best which read is too early.
        axis = tables[name].axes[0] if tables[name].axes else ""
        at = read.index[0] if read.index else Affine()
        ahead = sketch.holding(draft, tables)
        names = {n for form in ahead for n in form.names}
        if axis and isinstance(at, Affine):
            ahead.append(at - axis)
        for point in points(dict.fromkeys(sorted(names), 3)):
            point = {n: v + 1 if is_size(n) else v for n, v in point.items()}
            if len(names) <= 8 and all(form.evaluate(point) >= 0 for form in ahead):
                where = [f"{n} = {point[n]}" for n in tables[name].axes if n in read.names]
                where = f", as where {' and '.join(where)}" if where else ""
                return ModelError(
                    f"{owner}: {name} reads {read} before it is there{where}, in {draft.line.text}"
                )
    draft, read = next(pair for pair in reads[name] if pair[1].array in group)
    return ModelError(
        f"{owner}: no sum or difference of the indices of {name} is smaller for {read} than for "
        f"the cell that reads it, in {draft.line.text}"
    )


# ---- the end ----


def _named_apart(
    drafts: list[_Draft], tables: list[CellTable], labels: set[tuple[int | str, str | int]]
) -> tuple[dict[str, Affine], frozenset[str], list[Rule]]:
    """Give variables of other ranges, or of which one is a label, other names.

    Axes keep theirs where possible. Returns all ranges, the labels, and the rules.
    """
    ranges: dict[str, Affine] = {}
    kinds: dict[str, bool] = {}
    renamed: dict[str, dict[str, Affine]] = {}
    # Axes of tables first: one name has one range, and is a label everywhere or nowhere.
    for position, table in enumerate(tables):
        moves: dict[str, Affine] = {}
        for k, (axis, size) in enumerate(zip(table.axes, table.sizes, strict=True)):
            name = _free_name(axis, size, (table.name, k) in labels, ranges, kinds)
            moves[axis] = Affine.of(name)
        renamed[table.name] = moves
        tables[position] = CellTable(
            table.name, tuple(moves[axis].bare or axis for axis in table.axes), table.sizes,
            tuple(form.substitute(moves) for form in table.domain), table.order.substitute(moves),
        )  # fmt: skip
    rules: list[Rule] = []
    for number, draft in enumerate(drafts):
        rule, moves = draft.rule, dict(renamed[draft.rule.table])
        taken = {at.bare for at in moves.values()}
        # Then what rules sum over, also apart from the axes of the table that they write.
        for name in rule.over:
            own, label = name, (number, name) in labels
            while own in taken:
                own += "'"
            own = _free_name(own, draft.ranges[name], label, ranges, kinds)
            moves[name] = Affine.of(own)
            taken.add(own)
        rules.append(
            Rule(
                rule.table,
                tuple(factor.substitute(moves) for factor in rule.factors),
                tuple(moves[name].bare or name for name in rule.over),
                tuple(form.substitute(moves) for form in rule.guards),
                tuple(form.substitute(moves) for form in rule.equal),
                rule.text,
                tuple(row.substitute(moves) for row in rule.rows),
            )
        )
    return ranges, frozenset(name for name in ranges if kinds[name]), rules


def _free_name(
    name: str,
    size: Affine,
    label: bool,  # noqa: FBT001
    ranges: dict[str, Affine],
    kinds: dict[str, bool],
) -> str:
    """A name that is new, or that of a variable of this range and kind."""
    while name in ranges and (ranges[name], kinds[name]) != (size, label):
        name += "'"
    ranges[name], kinds[name] = size, label
    return name


def _simplified(
    rule: Rule, tables: Mapping[str, CellTable], sketch: _Sketch, ranges: Mapping[str, Affine]
) -> Rule:
    """A rule without the guards that follow from what it reads and where its table is defined."""
    table = tables[rule.table]
    names = {name: ranges[name] for name in (*table.axes, *rule.over)}
    line = next(line for line in sketch.lines if line.text == rule.text)
    alone = replace(rule, guards=(), equal=())
    draft = _Draft(alone, line, tuple(sketch.limits(alone)), names)
    given = [*sketch.holding(draft, tables), *table.domain]
    guards: list[Affine] = []
    for form in rule.guards:
        if not Facts([*given, *guards]).imply(form):
            guards.append(form)
    return replace(rule, guards=tuple(guards))
