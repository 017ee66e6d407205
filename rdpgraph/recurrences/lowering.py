"""Programs as stages of loops, as the executor takes them; of fixed size, too.

A rule that sums over labels gets its sums from stages of their own, one label after the other: a
link (a row of labels times a matrix), a pair (two rows, summed over splits, times a matrix of their
pairs), or a sum over a label. A matrix may be an input, the same everywhere or gathered for each
place, or a table. If such a sum depends on one place alone it is made once for each place, however
many rules read it; if on inputs alone, as the scores of words do, once for each of their values.
What is left of the rules adds up alternatives, entry by entry.

A table has one row of labels. Its other labels are axes as its places are, but no condition ever
changes along them.

The numbers of the records are expressions in sizes; one generated function gives all of them for
any sizes, so a new size costs microseconds.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar

from rdpgraph.native.records import numbers
from rdpgraph.recurrences.affine import Affine, essential_forms
from rdpgraph.recurrences.program import Array, CellTable, Lookup, Program, Read, Row, Rule
from rdpgraph.recurrences.records import (
    Alternative,
    FactorRecord,
    Form,
    Kind,
    Look,
    Stage,
    Whole,
)

# The coordinates of a place: the step, the axes of places from the outermost to the innermost, and
# loops, the outer and the inner. Users' names have no such sign.
STEP, OUTMOST, OUTER, MIDDLE, INNER = "@s", "@o", "@q", "@u", "@p"
LOOP2, LOOP = "@w", "@r"
AXES = (INNER, MIDDLE, OUTER, OUTMOST)
Made = TypeVar("Made")
MOST_LOOKS = 4  # indices of one entry that are data: kLooks of the executor
COORDINATES = {
    "s": STEP, "o": OUTMOST, "q": OUTER, "u": MIDDLE, "w": LOOP2, "p": INNER, "r": LOOP,
}  # fmt: skip
_NAMES = {coordinate: name for name, coordinate in COORDINATES.items()}


class UnloweredError(Exception):
    """A program that the executor has no stages for; the interpreter answers it."""


@dataclass(frozen=True)
class Place:
    """How a table lies in memory: [step][axes][row].

    Attributes:
        solved: the axis that is known from the step and the axes; None: all is of one step.
        axes: of places, and after them labels that are not in the row; the last is the innermost.
        row: labels whose entries are computed together, relative to one level.
    """

    table: CellTable
    solved: str | None
    axes: tuple[str, ...]
    row: tuple[str, ...]

    @classmethod
    def of(
        cls, table: CellTable, labels: Iterable[str], row: Iterable[str] = (),
        lists: Iterable[str] = (),
    ) -> "Place":  # fmt: skip
        """The layout of a table, whose row is some labels, or the last one.

        Axes of which each place has a row of a list come first, so that the innermost has all its
        places in common with the others.

        Raises:
            UnloweredError: it has more than four axes besides the order and the row.
        """
        own = [axis for axis in table.axes if axis in labels]
        row = tuple(row) or tuple(own[-1:])
        rest = [axis for axis in table.axes if axis not in own]
        solved = [axis for axis in rest if abs(table.order.coefficient(axis)) == 1][-1:]
        axes = tuple(axis for axis in rest if axis not in solved)
        axes = tuple(sorted(axes, key=lambda axis: axis not in {*lists}))
        axes += tuple(axis for axis in own if axis not in row)
        if len(axes) > len(AXES) or (not solved and table.order.names & {*rest}):
            raise UnloweredError(f"{table.name} has more than a row, four axes and an order")
        return cls(table, solved[0] if solved else None, axes, row)

    def flat(self) -> "Place":
        """The same with its row as the innermost axis."""
        if len(self.axes) + len(self.row) > len(AXES):
            raise UnloweredError(f"{self.table.name} has more than four axes and an order")
        return replace(self, axes=(*self.axes, *self.row), row=())

    @property
    def ends(self) -> dict[str, Affine]:
        """The size of each axis of the table."""
        return dict(zip(self.table.axes, self.table.sizes, strict=True))

    @property
    def steps(self) -> Affine:
        """How many steps it has numbers of."""
        return self.table.order_end + 1 if self.solved else Affine.of(1)

    def coordinates(self) -> dict[str, Affine]:
        """The table's axes, but for those of its row, by step and axes."""
        pairs = zip(reversed(self.axes), AXES, strict=False)
        found = {axis: Affine.of(name) for axis, name in pairs}
        if self.solved is None:
            return found
        sign = self.table.order.coefficient(self.solved)
        rest = (self.table.order - Affine.of(self.solved) * sign).substitute(found)
        return found | {self.solved: (Affine.of(STEP) - rest) * sign}

    def point(self, index: Sequence[Affine | Lookup], labels: Iterable[str]) -> dict[str, Affine]:
        """The value of each axis that is no label, of an entry."""
        each = zip(self.table.axes, index, strict=True)
        return {axis: at for axis, at in each if axis not in labels and isinstance(at, Affine)}


@dataclass(frozen=True)
class Sketch:
    """A stage of the computation, from which the records that compiled code reads are written.

    Attributes:
        kind: what is computed: a sum of terms, a link (a vector times a matrix), a pair (two
            vectors), ...
        table: the table that it writes to.
        rules: the rules that it computes.
        matrix: the input that a link or a pair multiplies by.
        before, after: the labels before and after that product; those before are summed over.
        owner: the table with whose cells it is computed.
        when: in the first step only; else before the owner's sum of a cell, or after it.
    """

    kind: Kind
    table: str
    rules: tuple[Rule, ...]
    matrix: Read | None = None
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    owner: str = ""
    when: Literal["first", "before", "after"] = "before"


@dataclass(frozen=True)
class Sized:
    """How much a table holds at some sizes, as expressions.

    Attributes:
        steps: of the table.
        inner, u, q, o: of its axes, from the innermost to the outermost.
        width: of its row.
        numbers, levels: of a step.
        hops, rows: strides of axes, by name; and those of their levels.
        at, level: names of where its numbers and levels begin.
    """

    steps: str
    inner: str
    u: str
    q: str
    o: str
    width: str
    numbers: str
    levels: str
    hops: Mapping[str, str]
    rows: Mapping[str, str]
    at: str
    level: str


@dataclass(frozen=True)
class Lowered:
    """A program as the executor takes it.

    Attributes:
        sizes: the names of the arguments of ``bind``, before the item strides of all inputs.
        bind: from sizes and strides to the numbers of all records.
        places: the layout of every table, those of stages included.
        sized: how much each holds.
    """

    sizes: tuple[str, ...]
    bind: Callable[..., list[int]]
    places: Mapping[str, Place]
    sized: Mapping[str, Sized]


def lower(program: Program) -> Lowered:
    """The stages of a program.

    Raises:
        UnloweredError: the executor lacks something that it needs.
    """
    lowering = _Lowering(program)
    return lowering.lowered()


def expression(form: Affine) -> str:
    """A form in sizes as a Python expression."""
    parts = [f"{times}*{name}" if times != 1 else name for name, times in form.terms]
    return "+".join([*parts, str(form.constant)] if form.constant or not parts else parts)


@dataclass(frozen=True)
class _Term:
    """A part of a product, and what is summed over in it.

    Attributes:
        inner: its factors but for the matrix.
        before: the labels that are summed over.
        after: labels that the matrix alone has.
    """

    kind: Kind
    inner: tuple[Read, ...]
    matrix: Read | None
    before: tuple[str, ...]
    after: tuple[str, ...]


@dataclass
class _Lowering:
    program: Program
    places: dict[str, Place] = field(default_factory=dict[str, Place])
    stages: list[Sketch] = field(default_factory=list[Sketch])
    hoisted: list[Sketch] = field(default_factory=list[Sketch])
    forms: list[Form] = field(default_factory=list[Form])
    factors: list[FactorRecord] = field(default_factory=list[FactorRecord])
    looks: list[Look] = field(default_factory=list[Look])
    alternatives: list[Alternative] = field(default_factory=list[Alternative])
    bounds: dict[Any, tuple[int, int]] = field(default_factory=dict[Any, tuple[int, int]])

    def __post_init__(self) -> None:
        program = self.program
        self.labels, self.ranges = program.labels, dict(program.ranges)
        self.slots = {array.name: k + 1 for k, array in enumerate(program.inputs)}
        for table in program.tables:
            own = [row for rule in program.rules_of(table.name) for row in rule.rows]
            lists = {name for row in own for name in row.at.names}
            self.places[table.name] = Place.of(table, self.labels, lists=lists)
        # Links that several rules read, by what they are.
        self.known: dict[Any, str] = {}
        rules = [self._without_labels(rule) for rule in program.rules]
        for table in program.tables:
            own = tuple(rule for rule in rules if rule.table == table.name)
            beside = [one for one in self.hoisted if one.owner == table.name]
            self.stages += [one for one in beside if one.when == "before"]
            self.stages.append(Sketch(Kind.SUM, table.name, own, owner=table.name))
            self.stages += [one for one in beside if one.when == "after"]
        self.stages = [one for one in self.hoisted if one.when == "first"] + self.stages
        assert len(self.stages) == len(program.tables) + len(self.hoisted)

    def _labels_of(self, read: Read) -> list[str]:
        """The labels by which an entry is read, in the order of its index."""
        parts = [p for at in read.index for p in (at.index if isinstance(at, Lookup) else (at,))]
        found = [self._label_of(part) for part in parts]
        return [*dict.fromkeys(label for label in found if label is not None)]

    def _label_of(self, at: Affine | Lookup) -> str | None:
        """The label that an index is, perhaps plus a number, as where states begin at N."""
        return next((name for name in at.names if name in self.labels), None)

    def _is_same(self, matrix: Read) -> bool:
        """Whether a matrix is the same at all places: it has no variables but labels."""
        return matrix.names.isdisjoint({*self.ranges} - self.labels)

    # ---- sums over labels become stages of their own ----

    def _without_labels(self, rule: Rule) -> Rule:
        """A rule that reads stages in place of its sums over labels, if it has some."""
        while over := [name for name in rule.over if name in self.labels]:
            rule = self._hoisted(rule, self._pair_of(rule, over) or self._link_of(rule, over))
        return rule

    def _pair_of(self, rule: Rule, over: Sequence[str]) -> "_Term | None":
        """A matrix of an input by two rows of labels, if the rule has one."""
        for matrix in rule.factors:
            own = self._labels_of(matrix)
            before = tuple(name for name in own if name in over)
            after = tuple(name for name in own if name not in over)
            others = [f for f in rule.factors if f is not matrix]
            rows = [[f for f in others if name in self._labels_of(f)] for name in before]
            if matrix.array in self.places or len(before) != 2 or not all(rows) or not after:
                continue
            inner = tuple(f for f in others if f in rows[0] or f in rows[1])
            left = {name for f in inner for name in self._labels_of(f)} - {*before}
            if len(inner) < len(rows[0]) + len(rows[1]) or left & {*after}:
                continue
            # A row of inputs alone, as the scores of a word, is summed over by itself.
            if not any(self._is_apart(rule, [matrix, *row]) for row in rows):
                return _Term(Kind.PAIR, inner, matrix, before, after)
        return None

    def _link_of(self, rule: Rule, over: Sequence[str]) -> "_Term":
        """The sum over one label, of those the one with the fewest labels and places left."""

        def reach(label: str) -> tuple[int, int]:
            reads = [factor for factor in rule.factors if label in self._labels_of(factor)]
            names = frozenset[str]().union(*(factor.names for factor in reads))
            return len(names & self.labels), len([n for n in names if n in self.ranges])

        label = min(over, key=reach)
        inner = [factor for factor in rule.factors if label in self._labels_of(factor)]
        # The matrix has labels that no other factor has; best an input, and the same everywhere.
        found: list[tuple[tuple[bool, bool, int], Read, tuple[str, ...]]] = []
        for number, matrix in enumerate(inner):
            others = {name for f in inner if f is not matrix for name in self._labels_of(f)}
            after = [n for n in self._labels_of(matrix) if n != label and n not in others]
            # Labels that are summed over next come first, so that those left lie side by side.
            after.sort(key=lambda name: name not in over)
            if after and len(inner) > 1:
                key = matrix.array in self.places, not self._is_same(matrix), number
                found.append((key, matrix, tuple(after)))
        if not found:
            return _Term(Kind.OVER, tuple(inner), None, (label,), ())
        _, matrix, after = min(found, key=lambda one: one[0])
        rest = tuple(factor for factor in inner if factor is not matrix)
        return _Term(Kind.LINK, rest, matrix, (label,), after)

    def _is_apart(self, rule: Rule, factors: Sequence[Read]) -> bool:
        """Whether factors are inputs that depend on fewer variables than a rule, labels aside."""
        names = frozenset[str]().union(*(factor.names for factor in factors))
        own = {name for name in names if name in self.ranges} - self.labels
        every = [*self.places[rule.table].table.axes, *rule.over]
        places = {name for name in every if name not in self.labels}
        given = all(self.program.by_name.get(f.array) in self.program.inputs for f in factors)
        return given and len(own) < len(places) - len(rule.equal)

    def _hoisted(self, rule: Rule, term: "_Term") -> Rule:
        """Put a term into a stage of its own, which the rule then reads."""
        inner, matrix, before = term.inner, term.matrix, term.before
        loops = [name for name in rule.over if name not in self.labels]
        moving = self._loops_of(loops, inner, matrix)
        rest = tuple(f for f in rule.factors if f not in inner and f is not matrix)
        tables = [f for f in (*inner, *((matrix,) if matrix else ())) if f.array in self.places]
        read = tables[0] if tables else None
        both = bool(moving) and (
            len(tables) != 1
            or bool(rule.rows)
            or tables[0] is matrix
            or self._depends_on_both(rule, inner, matrix, tables[0], moving)
        )
        # A link of one table by one matrix that several rules read is made once.
        shared = (
            term.kind == Kind.LINK and len(inner) == 1 and read is not None and not moving
            and read is not matrix and matrix is not None and self._is_same(matrix)
            and sum(self._links(one, read.array, matrix.array) for one in self.program.rules) > 1
        )  # fmt: skip
        name = f"{rule.table}.{len(self.hoisted)}"
        kept = tuple(v for v in rule.over if v not in before)
        if self._is_apart(rule, [*inner, *((matrix,) if matrix else ())]):
            sketch, index = self._at_own_variables(name, rule, term)
        elif not shared and (term.kind == Kind.PAIR or not moving or both):
            # Loops are summed over in the stage, so all factors that depend on them belong to it.
            while more := [f for f in rest if f.names & {*moving}]:
                if term.matrix and any(self._labels_of(f) for f in more):
                    # These change what follows the matrix, so one entry of that is made at a time.
                    inner, before = (*inner, term.matrix), before[:1]
                    term = _Term(Kind.OVER, inner, None, before, ())
                inner, rest = (*inner, *more), tuple(f for f in rest if f not in more)
                moving = self._loops_of(loops, inner, term.matrix)
            sketch, index = self._at_own_places(name, rule, replace(term, inner=inner), moving)
            kept = tuple(v for v in rule.over if v not in before)
            kept = tuple(v for v in kept if v not in moving)
            # Conditions on these loops hold in the stage; nothing of them is left outside.
            rule = replace(
                rule, guards=tuple(at for at in rule.guards if not at.names & {*moving}),
                equal=tuple(at for at in rule.equal if not at.names & {*moving}),
                rows=tuple(row for row in rule.rows if row.variable not in moving),
            )  # fmt: skip
        else:
            if len(tables) != 1 or read is None or read is matrix:
                raise UnloweredError(f"{rule.text} has a sum over labels of no table's places")
            labels = tuple(at for at in read.index if self._label_of(at) is not None)
            key = (read.array, matrix, before, term.after, labels) if shared else None
            index = self._reading(read, term)
            if key is not None and key in self.known:
                return replace(rule, factors=(Read(self.known[key], index), *rest), over=kept)
            sketch = self._at_places_read(name, rule, term, read, moving)
            if key is not None:
                self.known[key] = name
        self.hoisted.append(sketch)
        return replace(rule, factors=(Read(name, index), *rest), over=kept)

    def _result(self, term: "_Term") -> tuple[str, ...]:
        """The labels that a term leaves: those of rows, and those after the matrix."""
        every = [name for factor in term.inner for name in self._labels_of(factor)]
        rows = dict.fromkeys(name for name in every if name not in term.before)
        return (*(name for name in rows if name not in term.after), *term.after)

    def _sketched(
        self, made: CellTable, term: "_Term", rule: Rule, owner: str,
        when: Literal["first", "before", "after"],
    ) -> Sketch:  # fmt: skip
        """A stage, whose table gets its layout."""
        if len(term.after) > 2:
            raise UnloweredError(f"{rule.text} has a matrix with more than two labels after it")
        lists = [name for row in rule.rows for name in row.at.names]
        self.places[made.name] = Place.of(made, self.labels, term.after, lists)
        return Sketch(
            term.kind, made.name, (rule,), term.matrix, term.before, term.after, owner, when
        )

    def _at_own_variables(
        self, name: str, rule: Rule, term: "_Term"
    ) -> tuple[Sketch, tuple[Affine, ...]]:
        """A stage of inputs alone, at the values of the variables that these depend on."""
        factors = (*term.inner, *((term.matrix,) if term.matrix else ()))
        names = frozenset[str]().union(*(factor.names for factor in factors))
        own = sorted(n for n in names if n in self.ranges and n not in self.labels)
        axes = (*own, *self._result(term))
        made = CellTable(name, axes, tuple(self.ranges[axis] for axis in axes), (), Affine())
        stage = Rule(name, term.inner, term.before, (), (), rule.text)
        return self._sketched(made, term, stage, "", "first"), tuple(map(Affine.of, axes))

    @staticmethod
    def _loops_of(loops: list[str], inner: Iterable[Read], matrix: Read | None) -> list[str]:
        """The loops that factors and a matrix depend on."""
        used = frozenset[str]().union(*(f.names for f in inner), matrix.names if matrix else ())
        return [name for name in loops if name in used]

    def _at_own_places(
        self, name: str, rule: Rule, term: "_Term", moving: list[str]
    ) -> tuple[Sketch, tuple[Affine, ...]]:
        """A stage at the places of the rule's table, loops included."""
        made = self._table_beside(name, self.places[rule.table].table, self._result(term))
        outside = {v for v in rule.over if v not in self.labels and v not in moving}
        for form in (*rule.guards, *rule.equal):
            if form.names & outside and form.names & {*moving}:
                raise UnloweredError(f"{rule.text} has a condition on loops of two sums")
        guards = tuple(form for form in rule.guards if not form.names & outside)
        equal = tuple(form for form in rule.equal if not form.names & outside)
        rows = tuple(row for row in rule.rows if row.variable in moving)
        own = Rule(name, term.inner, term.before + tuple(moving), guards, equal, rule.text, rows)
        return (
            self._sketched(made, term, own, rule.table, "before"),
            tuple(map(Affine.of, made.axes)),
        )

    def _at_places_read(
        self, name: str, rule: Rule, term: "_Term", read: Read, moving: list[str]
    ) -> Sketch:
        """A stage at the places of the table that it reads, made once for each of these."""
        own = self.places[read.array].table
        axes = [axis for axis in own.axes if axis not in self.labels]
        # Loops, by the axes of the table that is read at them.
        moves: dict[str, Affine] = {}
        for axis, at in zip(own.axes, read.index, strict=True):
            loops = at.names & {*moving}
            if axis in axes and loops:
                if len(loops) > 1 or not isinstance(at, Affine):
                    raise UnloweredError(f"{rule.text} reads a table along two loops at once")
                (loop,) = loops
                times = at.coefficient(loop)
                if abs(times) != 1 or loop in moves:
                    raise UnloweredError(f"{rule.text} reads a table twice along a loop")
                moves[loop] = (Affine.of(axis) - (at - Affine.of(loop) * times)) * times
        if {*moving} - {*moves}:
            raise UnloweredError(f"{rule.text} has a matrix that a loop changes alone")
        here = tuple(
            at if axis in self.labels else Affine.of(axis)
            for axis, at in zip(own.axes, read.index, strict=True)
        )
        parts = tuple(Read(f.array, here) if f is read else f.substitute(moves) for f in term.inner)
        matrix = term.matrix.substitute(moves) if term.matrix else None
        left = frozenset[str]().union(*(f.names for f in parts), matrix.names if matrix else ())
        if any(name in self.ranges for name in left - {*axes} - self.labels):
            raise UnloweredError(f"{rule.text} has a link that depends on both of its ends")
        made = self._table_beside(name, own, self._result(term))
        stage = Rule(name, parts, term.before, (), (), rule.text)
        source = next((one for one in self.hoisted if one.table == read.array), None)
        when = "first" if source is not None and source.when == "first" else "after"
        owner = self._owner(read.array)
        return self._sketched(made, replace(term, matrix=matrix), stage, owner, when)

    def _table_beside(self, name: str, own: CellTable, labels: Iterable[str]) -> CellTable:
        """A table at the places of another, with other labels."""
        pairs = [
            pair for pair in zip(own.axes, own.sizes, strict=True) if pair[0] not in self.labels
        ]
        pairs += [(label, self.ranges[label]) for label in labels]
        axes, sizes = tuple(axis for axis, _ in pairs), tuple(size for _, size in pairs)
        return CellTable(name, axes, sizes, own.domain, own.order)

    def _reading(self, read: Read, term: "_Term") -> tuple[Affine | Lookup, ...]:
        """The index of a stage at the places that are read."""
        axes = self.places[read.array].table.axes
        index = [at for axis, at in zip(axes, read.index, strict=True) if axis not in self.labels]
        return (*index, *map(Affine.of, self._result(term)))

    @staticmethod
    def _links(rule: Rule, array: str, matrix: str) -> bool:
        return {array, matrix} <= {factor.array for factor in rule.factors}

    def _depends_on_both(
        self, rule: Rule, inner: tuple[Read, ...], matrix: Read | None, read: Read,
        moving: list[str],
    ) -> bool:  # fmt: skip
        """Whether a link depends on a place of the rule's table beside what it reads of a table."""
        own = frozenset[str]().union(*(at.names for at in read.index)) & {*moving}
        places = {*self.places[rule.table].table.axes} - self.labels
        others = [f for f in (*inner, *((matrix,) if matrix else ())) if f is not read]
        for at in read.index:
            # As a[t - d - 1]: what else depends on d depends on t and on the place that is read.
            if at.names & places and at.names & {*moving}:
                places |= at.names & {*moving}
        return set(own) != {*moving} or any(places & f.names for f in others)

    # ---- records ----

    def lowered(self) -> Lowered:
        """All records, as a function of sizes and strides."""
        self.sized = {
            name: self._sized(k, place) for k, (name, place) in enumerate(self.places.items())
        }
        stages = [self._stage(stage) for stage in self.stages]
        lines = ["total=rows=0"]
        for one in self.sized.values():
            lines += [f"{one.at}=total", f"{one.level}=rows"]
            lines.append(f"total+=({one.steps})*{one.numbers}")
            lines.append(f"rows+=({one.steps})*{one.levels}")
        lines += self._strides()
        ends = [expression(place.table.order_end + 1) for place in self.places.values()]
        lines.append(f"steps=max({','.join(ends)},0)")
        whole = _record(
            Whole, stages=len(stages), alternatives=len(self.alternatives),
            factors=len(self.factors), looks=len(self.looks), forms=len(self.forms),
            steps="steps", size="total", levels="rows",
        )  # fmt: skip
        records = [whole, *stages, *self.alternatives, *self.factors, *self.looks, *self.forms]
        every = [str(number) for record in records for number in numbers(record)]
        sizes = self.program.size_names
        arguments = [*sizes, *(f"item_{slot}" for slot in self.slots.values())]
        return Lowered(sizes, _bind_of(arguments, lines, every), self.places, self.sized)

    def _sized(self, number: int, place: Place) -> Sized:
        ends = {axis: f"({expression(size)})" for axis, size in place.ends.items()}
        hops, rows, hop, row = dict[str, str](), dict[str, str](), "1", "1"
        for axis in reversed((*place.axes, *place.row)):
            hops[axis], hop = hop, f"{hop}*{ends[axis]}"
        # One level for a row, or without one for all places of the innermost axis.
        for axis in reversed(place.axes if place.row else place.axes[:-1]):
            rows[axis], row = row, f"{row}*{ends[axis]}"
        inner, u, q, o = [*(ends[axis] for axis in reversed(place.axes)), *["1"] * 4][:4]
        width = "*".join(ends[axis] for axis in place.row) or "1"
        return Sized(
            expression(place.steps), inner, u, q, o, width, hop, row, hops, rows, f"at_{number}",
            f"level_{number}",
        )  # fmt: skip

    def _strides(self) -> list[str]:
        lines: list[str] = []
        for array in self.program.inputs:
            after = "1"
            for k in range(len(array.dims) - 1, -1, -1):
                lines.append(f"{self._stride(array.name, k)}={after}")
                after = f"{self._stride(array.name, k)}*({expression(array.dims[k])})"
        return lines

    def _stride(self, array: str, dim: int) -> str:
        return f"stride_{self.slots[array]}_{dim}"

    def _item(self, array: str) -> str:
        return f"item_{self.slots[array]}"

    def _form(self, parts: Iterable[tuple[Affine, str]], start: str = "0") -> Form:
        """The sum of affine numbers times strides."""
        found: dict[str, list[str]] = {name: [] for name in ("c", *COORDINATES)}
        if start != "0":
            found["c"].append(start)
        for at, stride in parts:
            rest = list[tuple[str, int]]()
            for term in at.terms:
                name, times = _NAMES.get(term[0]), term[1]
                if name is None:
                    rest.append(term)
                else:
                    found[name].append(f"{times}*{stride}" if times != 1 else stride)
            if rest or at.constant:
                found["c"].append(f"({expression(Affine(tuple(rest), at.constant))})*{stride}")
        said: dict[str, Any] = {name: "+".join(found[name]) or "0" for name in found}
        return Form(**said)

    def _bounds(self, forms: Iterable[Affine], given: Iterable[Affine]) -> tuple[int, int]:
        """Where forms that are at least 0 begin among all of them, and how many there are.

        Those that follow from ``given`` forms are left out: the executor tries all others at each
        place.
        """
        key = tuple(forms), tuple(given)
        if key not in self.bounds:
            kept = essential_forms(*key)
            self.bounds[key] = len(self.forms), len(kept)
            self.forms += [self._form([(at, "1")]) for at in kept]
        return self.bounds[key]

    def _domain(self, place: Place) -> tuple[list[Affine], list[Affine]]:
        """Forms that are at least 0 where a table is defined; and those that hold at all places."""
        moves, table = place.coordinates(), place.table
        found = [form.substitute(moves) for form in table.domain]
        every = list[Affine]()
        for axis, size in place.ends.items():
            if axis in moves:
                ends = every if axis in place.axes else found
                ends += [moves[axis], size - 1 - moves[axis]]
        if place.solved is None:
            found += [Affine.of(STEP) - table.order, table.order - STEP]
        return found, every

    def _moves(self, place: Place, rule: Rule) -> tuple[dict[str, Affine], tuple[str, ...]]:
        """The variables of a rule by coordinates, and its loops, the inner first."""
        moves = place.coordinates()
        loops = [name for name in rule.over if name not in self.labels]
        if len(loops) > 2:
            raise UnloweredError(f"{rule.text} sums over {', '.join(loops)} at once")
        if not loops:
            return moves, ()
        # The inner loop is moved so that the orders that are read do not depend on the place.
        orders: list[Affine] = []
        places: list[Affine] = []
        if rule.rows:  # that of a list is the inner one, as it is
            row, *others = rule.rows
            if others:
                raise UnloweredError(f"{rule.text} goes through two lists at once")
            loop = row.variable
            others = {name: Affine.of(LOOP2) for name in loops if name != loop}
            return {**moves, loop: Affine.of(LOOP), **others}, (loop, *others)
        for read in rule.factors:
            if read.array in self.places and all(isinstance(at, Affine) for at in read.index):
                other = self.places[read.array]
                point = other.point(read.index, self.labels)
                orders.append(other.table.order.substitute(point).substitute(moves))
                places += [
                    point[axis].substitute(moves) for axis in other.axes[:-1] if axis in point
                ]
        loop, shifted = loops[0], Affine.of(LOOP)
        for loop in loops:
            given = next(
                (o for o in orders if o.coefficient(INNER) and abs(o.coefficient(loop)) == 1), None
            )
            shifted = Affine.of(LOOP)
            if given is not None:
                times = given.coefficient(loop)
                shifted = (shifted - Affine.of(INNER) * given.coefficient(INNER)) * times
            moved = [at.substitute({loop: shifted}) for at in (*orders, *places)]
            if not any(at.coefficient(INNER) for at in moved):
                break
        others = {name: Affine.of(LOOP2) for name in loops if name != loop}
        return {**moves, loop: shifted, **others}, (loop, *others)

    def _inside(self, read: Read, moves: Mapping[str, Affine]) -> list[Affine]:
        """Forms that are at least 0 where a read is inside."""
        found: list[Affine] = []
        place = self.places.get(read.array)
        if place is not None:
            point = place.point(read.index, self.labels)
            point = {axis: at.substitute(moves) for axis, at in point.items()}
            data = {*place.table.axes} - {*point} - self.labels
            found += [
                form.substitute(point) for form in place.table.domain if not form.names & data
            ]
            for axis, size in zip(place.table.axes, place.table.sizes, strict=True):
                if axis in point:
                    found += [point[axis], size - 1 - point[axis]]
            for at in read.index:
                if isinstance(at, Lookup):
                    found += self._inside(Read(at.array, at.index), moves)
            return found
        for at, size in zip(read.index, self._array(read.array).dims, strict=True):
            if isinstance(at, Lookup):
                found += self._inside(Read(at.array, at.index), moves)
            elif self._label_of(at) is None:
                found += [at.substitute(moves), size - 1 - at.substitute(moves)]
        return found

    def _array(self, name: str) -> Array:
        found = self.program.by_name[name]
        assert isinstance(found, Array)
        return found

    def _indices(self, read: Read) -> list[tuple[Affine | Lookup, str, str]]:
        """What an entry is read by: a number or data, and its strides in numbers and in levels."""
        place = self.places.get(read.array)
        if place is None:
            strides = [self._stride(read.array, k) for k in range(len(read.index))]
            return [(at, stride, "0") for at, stride in zip(read.index, strides, strict=True)]
        sized, at = self.sized[read.array], dict(zip(place.table.axes, read.index, strict=True))
        found: list[tuple[Affine | Lookup, str, str]] = []
        if place.solved:
            # Of an order such as v - 1 the axes that are read at data add their own parts.
            point = place.point(read.index, self.labels)
            for axis, index in at.items():
                times = place.table.order.coefficient(axis)
                if isinstance(index, Lookup) and times:
                    point[axis] = Affine()
                    found.append((index, f"{times}*{sized.numbers}", f"{times}*{sized.levels}"))
            order = place.table.order.substitute(point)
            found.append((order, sized.numbers, sized.levels))
        rest = (*place.axes, *place.row)
        return found + [(at[axis], sized.hops[axis], sized.rows.get(axis, "0")) for axis in rest]

    def _factor(self, read: Read, moves: Mapping[str, Affine], row: Sequence[str]) -> FactorRecord:
        """What a product reads; labels of the row are read all at once."""
        parts, levels = list[tuple[Affine, str]](), list[tuple[Affine, str]]()
        looks, hops, rows = list[Look](), ["0"], ["0"]
        label = row[-1] if row else None
        for at, stride, level in self._indices(read):
            if isinstance(at, Lookup):
                looks.append(self._look(at, label, stride, moves, level))
                continue
            if label is not None and self._label_of(at) == label:
                hops.append(stride)
                rows.append(level)
                at = at - label
            parts.append((at.substitute(moves), stride))
            levels.append((at.substitute(moves), level))
        first, many = self._add_looks(looks, read)
        # Rows are over labels, or in tables without these over the innermost places.
        gather = any(str(look.hop) != "0" for look in looks) or (
            label is None and any(str(look.at.p) != "0" for look in looks)
        )
        sized, known = self.sized.get(read.array), read.array in self.places
        if gather and known and any(str(look.level) != "0" for look in looks):
            raise UnloweredError(f"{read} is a row of cells at places that are data")
        levels = [(at, stride) for at, stride in levels if stride != "0"]
        return _record(
            FactorRecord, at=self._form(parts, sized.at if sized else "0"),
            level=self._form(levels, sized.level) if sized else Form(),
            slot=0 if known else self.slots[read.array],
            item="total" if known else self._item(read.array), hop=_sum(hops),
            level_item="rows" if known else -1, level_hop=_sum(rows), look=first, looks=many,
            gather=int(gather), link=self._fused(read.array),
        )  # fmt: skip

    def _look(
        self, at: Lookup, label: str | None, stride: str, moves: Mapping[str, Affine],
        level: str = "0",
    ) -> Look:  # fmt: skip
        """Where the data are that say an index, and from one label to the next."""
        hop, parts = "0", list[tuple[Affine, str]]()
        for j, one in enumerate(at.index):
            if label is not None and one.bare == label:
                hop = self._stride(at.array, j)
            else:
                parts.append((one.substitute(moves), self._stride(at.array, j)))
        return _record(
            Look, at=self._form(parts), slot=self.slots[at.array], item=self._item(at.array),
            hop=hop, stride=stride, level=level,
        )  # fmt: skip

    def _add_looks(self, looks: Sequence[Look], read: Read) -> tuple[int, int]:
        """Where the looks of an entry begin among all of them, and how many there are."""
        if len(looks) > MOST_LOOKS:
            raise UnloweredError(f"{read} has more than {MOST_LOOKS} places that are data")
        first = len(self.looks)
        self.looks += looks
        return first, len(looks)

    def _alternative(
        self, rule: Rule, place: Place, row: Sequence[str], factors: Iterable[Read] | None = None,
        matrix: Read | None = None,
    ) -> Alternative:  # fmt: skip
        """A product where all of its rule's factors are inside, and a matrix, too."""
        moves, loops = self._moves(place, rule)
        # Forms that must not be negative: guards, equalities from both sides, places and loops.
        found = [form.substitute(moves) for form in rule.guards]
        for form in rule.equal:
            found += [form.substitute(moves), -form.substitute(moves)]
        for factor in (*rule.factors, *((matrix,) if matrix else ())):
            found += self._inside(factor, moves)
        ends, (domain, every) = ["0", "0", "0", "0"], self._domain(place)
        for k, loop in enumerate(loops):
            size = self.ranges[loop]
            (every if moves[loop].bare else found).extend([moves[loop], size - 1 - moves[loop]])
            ends[2 * k], ends[2 * k + 1] = self._loop_ends(moves[loop], size, place)
        bound, bounds = self._bounds(found, domain + every)
        through = self._row(rule.rows[0], moves) if rule.rows else -1
        first = len(self.factors)
        made = [self._factor(factor, moves, row) for factor in (factors or rule.factors)]
        self.factors += made
        return _record(
            Alternative, first=first, count=len(made), bound=bound, bounds=bounds,
            loops=len(loops), low=ends[0], high=ends[1], low2=ends[2], high2=ends[3],
            row=through,
        )  # fmt: skip

    def _row(self, row: Row, moves: Mapping[str, Affine]) -> int:
        """The number of the look that says where a row of a list begins; the next is its end."""
        look = self._look(Lookup(row.array, (row.at,)), None, "1", moves)
        if str(look.at.p) != "0":
            raise UnloweredError(f"{row} is another row of a list for each of many places at once")
        self.looks.append(look)
        return len(self.looks) - 1

    def _loop_ends(self, moved: Affine, size: Affine, place: Place) -> tuple[str, str]:
        """The least and the largest value of a loop, of which a variable is a form.

        The variable is ``times * (loop - shift * p)``, the loop ``times * variable + shift * p``.
        """
        times = moved.coefficient(LOOP) or moved.coefficient(LOOP2)
        shift = -times * moved.coefficient(INNER)
        last = place.ends[place.axes[-1]] - 1 if place.axes else Affine()
        low, high = Affine(), Affine()
        for step, most in ((times, size - 1), (shift, last)):
            low, high = (low, high + most * step) if step > 0 else (low + most * step, high)
        return expression(low), expression(high)

    def _stage(self, sketch: Sketch) -> Stage:
        place = self.places[sketch.table]
        if sketch.kind == Kind.OVER:  # computes one label after the other, as if these were places
            place = place.flat()
        sized = self._sized([*self.places].index(sketch.table), place)
        bound, bounds = self._bounds(*self._domain(place))
        made = self._alternatives(sketch, place)
        first = len(self.alternatives)
        self.alternatives += made
        axes = [
            (Affine.of(name), axis) for name, axis in zip(AXES, reversed(place.axes), strict=False)
        ]
        parts = [(at, sized.hops[axis]) for at, axis in axes]
        rows = [(at, sized.rows[axis]) for at, axis in axes if axis in sized.rows]
        if place.solved:
            parts.append((Affine.of(STEP), sized.numbers))
            rows.append((Affine.of(STEP), sized.levels))
        depth = [*(expression(self.ranges[name]) for name in sketch.before), "0", "0"][:2]
        second = expression(self.ranges[place.row[1]]) if len(place.row) > 1 else 1
        return _record(
            Stage, kind=int(sketch.kind), first=first, count=len(made), bound=bound, bounds=bounds,
            out=self._form(parts, sized.at), level=self._form(rows, sized.level), item="total",
            level_item="rows", labels=sized.width if place.row else 0, labels2=second,
            places=sized.inner, wide=sized.q, wider=sized.u, widest=sized.o, depth=depth[0],
            depth2=depth[1], last=self._last(sketch), into=self._into(sketch),
            **self._matrix(sketch, place, made),
        )  # fmt: skip

    def _alternatives(self, sketch: Sketch, place: Place) -> list[Alternative]:
        """What the stage's rules multiply; of a pair, the left part and the right one."""
        if sketch.kind == Kind.SUM:
            return [self._alternative(rule, place, place.row) for rule in sketch.rules]
        (rule,) = sketch.rules
        if sketch.kind != Kind.PAIR:
            return [self._alternative(rule, place, sketch.before, matrix=sketch.matrix)]
        left, right = sketch.before
        of_right = [f for f in rule.factors if right in self._labels_of(f)]
        of_left = [f for f in rule.factors if f not in of_right]
        return [
            self._alternative(rule, place, (left,), of_left, sketch.matrix),
            self._alternative(rule, place, (right,), of_right, sketch.matrix),
        ]

    def _matrix(self, sketch: Sketch, place: Place, made: Sequence[Alternative]) -> dict[str, Any]:
        """Where the matrix of a stage lies, as fields of its record."""
        none, read = _own_number("0"), sketch.matrix
        labels = (*sketch.before, *sketch.after) if read else ()
        looks = dict.fromkeys(labels, none)
        strides, steps = dict.fromkeys(labels, "0"), dict.fromkeys(labels, "0")
        common, parts = list[Look](), list[tuple[Affine, str]]()
        levels, fixed = list[tuple[Affine, str]](), True
        known = read is not None and read.array in self.places
        if read is not None:
            # Each index is a label of the stage, with its stride, or a part of the place of the
            # whole matrix; either may be looked up in data.
            moves, _ = self._moves(place, sketch.rules[0])
            for at, stride, level in self._indices(read):
                own = [name for name in labels if name in at.names]
                if len(own) > 1 or any(strides[name] != "0" for name in own):
                    raise UnloweredError(f"{read} has a label twice, or two labels in one place")
                data = isinstance(at, Lookup)
                look = self._look(at, own[0] if own else None, stride, moves) if data else None
                if data and known:
                    raise UnloweredError(f"{read} is a matrix of cells at places that are data")
                if own:
                    strides[own[0]], steps[own[0]] = stride, level
                    looks[own[0]] = look or _own_number(stride)
                elif look:
                    common.append(look)
                if not data:
                    start = at - own[0] if own else at
                    parts.append((start.substitute(moves), stride))
                    levels.append((start.substitute(moves), level))
            # A matrix that is the same at all places is prepared once.
            moving = any(at.names & {*COORDINATES.values()} for at, _ in parts)
            loops = sketch.kind == Kind.LINK and any(one.loops for one in made)
            looked = common or any(look.slot != -1 for look in looks.values())
            fixed = not (moving or loops or looked or known)
        # Labels before and after the matrix, two of each at most: those lacking have stride 0.
        first, many = self._add_looks(common, read) if read else (0, 0)
        ends = [(strides[name], looks[name], steps[name]) for name in labels]
        empty = ("0", none, "0")
        (row, rows, step), (row2, rows2, step2) = [*ends[: len(sketch.before)], empty, empty][:2]
        columns = [*ends[len(sketch.before) :], empty, empty]
        if columns[1][2] != "0":
            raise UnloweredError(f"{read} is a table of two labels with levels of their own")
        sized = self.sized[read.array] if known and read else None
        levels = [(at, stride) for at, stride in levels if stride != "0"]
        return {
            "table": self._form(parts, sized.at if sized else "0"),
            "slot": -1 if read is None else 0 if known else self.slots[read.array],
            "table_item": "0" if read is None else "total" if known else self._item(read.array),
            "table_level": self._form(levels, sized.level) if sized else Form(),
            "row_level": step, "row2_level": step2, "column_level": columns[0][2],
            "row": row, "row2": row2, "column": columns[0][0], "column2": columns[1][0],
            "fixed": int(fixed), "look": first, "looks": many, "rows": rows, "rows2": rows2,
            "columns": columns[0][1], "columns2": columns[1][1],
        }  # fmt: skip

    def _owner(self, name: str) -> str:
        """The table that a stage belongs to."""
        return next((one.owner for one in self.hoisted if one.table == name), name)

    def _is_before(self, name: str) -> bool:
        """Whether a table is that of a stage before the sum that reads it at the same place."""
        return any(one.table == name and one.when == "before" for one in self.hoisted)

    def _fused(self, name: str) -> int:
        """The stage of a link that nothing but the sum at its own place reads; below 0: none."""
        for number, stage in enumerate(self.stages):
            if stage.table != name or stage.kind not in (Kind.LINK, Kind.PAIR):
                continue
            own, owner = self.places[name], self.places.get(stage.owner)
            if stage.when == "before" and owner is not None:
                alike = own.axes == owner.axes and own.row == owner.row
                read = [r for one in self.stages for rule in one.rules for r in rule.factors]
                once = sum(each.array == name for each in read) == 1
                return number if alike and once else -1
        return -1

    def _into(self, sketch: Sketch) -> int:
        """The stage of the sum that a link is written into; below 0: none."""
        if sketch.kind == Kind.SUM or self._fused(sketch.table) < 0:
            return -1
        owner = self._owner(sketch.table)
        return next(
            k for k, one in enumerate(self.stages) if (one.kind, one.table) == (Kind.SUM, owner)
        )

    def _last(self, sketch: Sketch) -> int:
        """The number of the goal that alone needs a stage, from 1 on; 0: others read it, too."""
        read = {factor.array for rule in self.program.rules for factor in rule.factors}
        owner, own = self._owner(sketch.table), sketch.table
        if sketch.when == "first":
            return 0
        goals = [goal.array for goal in self.program.goals]
        if owner not in goals or owner in read or not (own == owner or self._is_before(own)):
            return 0
        return 1 + goals.index(owner)


def _bind_of(
    arguments: Iterable[str], lines: Iterable[str], every: Sequence[str]
) -> Callable[..., list[int]]:
    """The function of sizes whose results some expressions are, after lines that they need."""
    # Compiling takes time, so the most numbers, which are the same at all sizes, are left out, and
    # each of the other expressions stands once.
    same = {number: int(number) for number in {*every} if number.lstrip("-").isdigit()}
    moving = [number for number in dict.fromkeys(every) if number not in same]
    place = {number: k for k, number in enumerate([*same, *moving])}
    known, places = [*same.values()], [place[number] for number in every]
    # Sizes and numbers are all that is in it.
    body = "\n ".join([*lines, f"return ({','.join(moving)},)"])
    space: dict[str, Any] = {}
    exec(f"def evaluate({', '.join(arguments)}):\n {body}", space)

    def bind(*sizes: int) -> list[int]:
        values = [*known, *space["evaluate"](*sizes)]
        return [values[k] for k in places]

    return bind


def _sum(strides: Sequence[str]) -> str:
    """The sum of strides as an expression."""
    return "+".join(stride for stride in strides if stride != "0") or "0"


def _own_number(stride: str) -> Look:
    """Places of labels by their own numbers."""
    return _record(Look, at=Form(), slot=-1, item=0, hop="0", stride=stride, level=0)


def _record(record: type[Made], /, **numbers: Any) -> Made:
    """A record whose numbers are expressions until sizes are known."""
    return record(**numbers)
