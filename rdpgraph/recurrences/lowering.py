"""Programs as stages of loops, as the executor takes them; of fixed size, too.

A rule that sums over labels gets its sum from a stage of its own: a link (a row of labels times a
matrix), a pair (two rows, summed over splits, times a matrix of their pairs), or a sum over labels.
If such a sum depends on one place alone it is made once for each place, however many rules read it.
What is left of the rules adds up alternatives, entry by entry.

The numbers of the records are expressions in sizes; one generated function gives all of them for
any sizes, so a new size costs microseconds.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from rdpgraph.native.records import numbers
from rdpgraph.recurrences.affine import Affine
from rdpgraph.recurrences.program import Array, Lookup, Program, Read, Rule, Table
from rdpgraph.recurrences.records import (
    Alternative,
    Factor,
    Form,
    Kind,
    Look,
    Stage,
    Whole,
)

# The coordinates of a place: the step, the axes of places from the outermost to the innermost, and
# loops, the outer and the inner. Users' names have no such sign.
STEP, OUTER, MIDDLE, INNER, LOOP2, LOOP = "@s", "@q", "@u", "@p", "@w", "@r"
Made = TypeVar("Made")
MOST_LOOKS = 4  # indices of one entry that are data: kLooks of the executor
COORDINATES = {"s": STEP, "q": OUTER, "u": MIDDLE, "w": LOOP2, "p": INNER, "r": LOOP}


class UnloweredError(Exception):
    """A program that the executor has no stages for; the interpreter answers it."""


@dataclass(frozen=True)
class Place:
    """How a table lies in memory: [step][places][label].

    Attributes:
        solved: the axis that is known from the step and the places; None: all is of one step.
        axes: of places, the last innermost.
        label: the axis of labels, if there is one.
    """

    table: Table
    solved: str | None
    axes: tuple[str, ...]
    label: str | None

    @classmethod
    def of(cls, table: Table, labels: Iterable[str]) -> "Place":
        """The layout of a table.

        Raises:
            UnloweredError: it has more than one label or three axes of places.
        """
        label = [axis for axis in table.axes if axis in labels]
        rest = [axis for axis in table.axes if axis not in labels]
        solved = [axis for axis in rest if abs(table.order.coefficient(axis)) == 1]
        axes = tuple(axis for axis in rest if axis not in solved[-1:])
        if len(label) > 1 or len(axes) > 3 or (not solved and table.order.names & {*rest}):
            raise UnloweredError(f"{table.name} has more than a label, three places and an order")
        return cls(table, solved[-1] if solved else None, axes, label[0] if label else None)

    @property
    def steps(self) -> Affine:
        """How many steps it has numbers of."""
        return self.table.order_end + 1 if self.solved else Affine.of(1)

    def step(self, order: Affine) -> Affine:
        """Which of its steps has the numbers of a cell of some order."""
        return order if self.solved else Affine()

    def coordinates(self) -> dict[str, Affine]:
        """The table's axes by step and places."""
        found = {
            axis: Affine.of(name)
            for axis, name in zip(reversed(self.axes), (INNER, MIDDLE, OUTER), strict=False)
        }
        if self.solved is None:
            return found
        sign = self.table.order.coefficient(self.solved)
        rest = (self.table.order - Affine.of(self.solved) * sign).substitute(found)
        return found | {self.solved: (Affine.of(STEP) - rest) * sign}

    def point(self, index: Sequence[Affine | Lookup]) -> dict[str, Affine]:
        """The value of each axis that is no label, of an entry."""
        each = zip(self.table.axes, index, strict=True)
        return {axis: at for axis, at in each if axis != self.label and isinstance(at, Affine)}


@dataclass(frozen=True)
class Sketch:
    """A stage before its records.

    Attributes:
        matrix: that a link or a pair multiplies by.
        before, after: the labels before and after it; those before are summed over.
        owner: the table beside whose sum it is computed, before that if ``first``, else after.
    """

    kind: Kind
    table: str
    rules: tuple[Rule, ...]
    matrix: Read | None = None
    before: tuple[str, ...] = ()
    after: str | None = None
    owner: str = ""
    first: bool = True


@dataclass(frozen=True)
class Sized:
    """How much a table holds at some sizes, as expressions.

    Attributes:
        steps, width: of the table; places are ``outer`` rows of ``inner``, `q` by `u` by `inner`.
        rows: levels of a step.
        at, level: names of where its numbers and levels begin.
    """

    steps: str
    inner: str
    u: str
    q: str
    width: str
    places: str
    rows: str
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
    bind: Callable[..., tuple[int, ...]]
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


@dataclass
class _Lowering:
    program: Program
    places: dict[str, Place] = field(default_factory=dict[str, Place])
    stages: list[Sketch] = field(default_factory=list[Sketch])
    hoisted: list[Sketch] = field(default_factory=list[Sketch])
    forms: list[Form] = field(default_factory=list[Form])
    factors: list[Factor] = field(default_factory=list[Factor])
    looks: list[Look] = field(default_factory=list[Look])
    alternatives: list[Alternative] = field(default_factory=list[Alternative])

    def __post_init__(self) -> None:
        program = self.program
        self.labels, self.ranges = program.labels, dict(program.ranges)
        self.slots = {array.name: k + 1 for k, array in enumerate(program.inputs)}
        for table in program.tables:
            self.places[table.name] = Place.of(table, self.labels)
        # Links that several rules read, by what they are.
        self.known: dict[Any, str] = {}
        rules = [self._without_labels(rule) for rule in program.rules]
        for table in program.tables:
            own = tuple(rule for rule in rules if rule.table == table.name)
            beside = [one for one in self.hoisted if one.owner == table.name]
            self.stages += [one for one in beside if one.first]
            self.stages.append(Sketch(Kind.SUM, table.name, own, owner=table.name))
            self.stages += [one for one in beside if not one.first]

    def _labels_of(self, read: Read) -> list[str]:
        """The labels by which an entry is read, in the order of its index."""
        parts = [p for at in read.index for p in (at.index if isinstance(at, Lookup) else (at,))]
        return [*dict.fromkeys(part.bare for part in parts if part.bare in self.labels)]

    # ---- sums over labels become stages of their own ----

    def _without_labels(self, rule: Rule) -> Rule:
        """A rule that reads a stage in place of its sum over labels, if it has one."""
        over = [name for name in rule.over if name in self.labels]
        if not over:
            return rule
        matrices = [factor for factor in rule.factors if len(self._labels_of(factor)) > 1]
        if not matrices:
            if len(over) > 1:
                raise UnloweredError(f"{rule.text} sums over several labels without a matrix")
            inner = tuple(f for f in rule.factors if over[0] in self._labels_of(f))
            return self._hoisted(rule, Kind.OVER, inner, None, (over[0],), None)
        matrix = matrices[0]
        before = tuple(name for name in self._labels_of(matrix) if name in over)
        after = [name for name in self._labels_of(matrix) if name not in before]
        single = self.program.table(matrix.array) is None and len(matrices) == 1
        if not single or len(after) > 1 or not 1 <= len(before) <= 2 or len(before) < len(over):
            raise UnloweredError(f"{rule.text} is no link of one or two rows by a matrix")
        inner = tuple(
            f for f in rule.factors if f is not matrix and {*self._labels_of(f)} & {*before}
        )
        kind = Kind.PAIR if len(before) == 2 else Kind.LINK
        return self._hoisted(rule, kind, inner, matrix, before, after[0] if after else None)

    def _hoisted(
        self, rule: Rule, kind: Kind, inner: tuple[Read, ...], matrix: Read | None,
        before: tuple[str, ...], after: str | None,
    ) -> Rule:  # fmt: skip
        """Put factors and a matrix into a stage of its own, which the rule then reads."""
        if after is None and kind != Kind.OVER:
            raise UnloweredError(f"{rule.text} has a matrix with no label after it")
        loops = [name for name in rule.over if name not in self.labels]
        moving = self._loops_of(loops, inner, matrix)
        rest = tuple(f for f in rule.factors if f not in inner and f is not matrix)
        tables = [f for f in inner if f.array in self.places]
        read = tables[0] if tables else None
        both = bool(moving) and (
            len(tables) != 1 or self._depends_on_both(rule, inner, matrix, tables[0], moving)
        )
        if both and kind == Kind.OVER:
            raise UnloweredError(f"{rule.text} sums over labels and loops of several places")
        # A link of one table by one matrix that several rules read is made once.
        shared = (
            kind == Kind.LINK and len(inner) == 1 and read is not None and not moving
            and matrix is not None and matrix.names <= self.labels
            and sum(self._links(one, read.array, matrix.array) for one in self.program.rules) > 1
        )  # fmt: skip
        name = f"{rule.table}.{len(self.hoisted)}"
        if not shared and (kind == Kind.PAIR or not moving or both):
            # Loops are summed over in the stage, so all factors that depend on them belong to it.
            while more := [f for f in rest if f.names & {*moving}]:
                if any(self._labels_of(f) for f in more):
                    raise UnloweredError(f"{rule.text} has a link and labels that a loop changes")
                inner, rest = (*inner, *more), tuple(f for f in rest if f not in more)
                moving = self._loops_of(loops, inner, matrix)
            made, sketch, index = self._at_own_places(
                name, rule, kind, inner, matrix, before, after, moving
            )
            kept = tuple(v for v in rule.over if v not in before and v not in moving)
            # Conditions on these loops hold in the stage; nothing of them is left outside.
            rule = replace(
                rule, guards=tuple(at for at in rule.guards if not at.names & {*moving}),
                equal=tuple(at for at in rule.equal if not at.names & {*moving}),
            )  # fmt: skip
        else:
            if len(tables) != 1 or read is None:
                raise UnloweredError(f"{rule.text} has a sum over labels of no table's places")
            key = (read.array, matrix, before, after, inner[0].index[-1:]) if shared else None
            index = self._reading(read, after)
            kept = tuple(v for v in rule.over if v not in before)
            if key is not None and key in self.known:
                return replace(rule, factors=(Read(self.known[key], index), *rest), over=kept)
            made, sketch = self._at_places_read(
                name, rule, kind, inner, matrix, before, after, read, moving
            )
            if key is not None:
                self.known[key] = name
        self.places[name] = Place.of(made, self.labels)
        self.hoisted.append(sketch)
        return replace(rule, factors=(Read(name, index), *rest), over=kept)

    @staticmethod
    def _loops_of(loops: list[str], inner: Iterable[Read], matrix: Read | None) -> list[str]:
        """The loops that factors and a matrix depend on."""
        used = frozenset[str]().union(*(f.names for f in inner), matrix.names if matrix else ())
        return [name for name in loops if name in used]

    def _at_own_places(
        self, name: str, rule: Rule, kind: Kind, inner: tuple[Read, ...], matrix: Read | None,
        before: tuple[str, ...], after: str | None, moving: list[str],
    ) -> tuple[Table, Sketch, tuple[Affine, ...]]:  # fmt: skip
        """A stage at the places of the rule's table, loops included."""
        made = self._table_beside(name, self.places[rule.table].table, after)
        outside = {v for v in rule.over if v not in self.labels and v not in moving}
        for form in (*rule.guards, *rule.equal):
            if form.names & outside and form.names & {*moving}:
                raise UnloweredError(f"{rule.text} has a condition on loops of two sums")
        guards = tuple(form for form in rule.guards if not form.names & outside)
        equal = tuple(form for form in rule.equal if not form.names & outside)
        own = Rule(name, inner, before + tuple(moving), guards, equal, rule.text)
        sketch = Sketch(kind, name, (own,), matrix, before, after, rule.table, first=True)
        return made, sketch, tuple(map(Affine.of, made.axes))

    def _at_places_read(
        self, name: str, rule: Rule, kind: Kind, inner: tuple[Read, ...], matrix: Read | None,
        before: tuple[str, ...], after: str | None, read: Read, moving: list[str],
    ) -> tuple[Table, Sketch]:  # fmt: skip
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
        parts = tuple(Read(f.array, here) if f is read else f.substitute(moves) for f in inner)
        matrix = matrix.substitute(moves) if matrix else None
        left = frozenset[str]().union(*(f.names for f in parts), matrix.names if matrix else ())
        known = {*axes, *before, after or ""}
        if any(name in self.ranges for name in left if name not in known):
            raise UnloweredError(f"{rule.text} has a link that depends on both of its ends")
        made = self._table_beside(name, own, after)
        stage = Rule(name, parts, before, (), (), rule.text)
        return made, Sketch(kind, name, (stage,), matrix, before, after, read.array, first=False)

    def _table_beside(self, name: str, own: Table, after: str | None) -> Table:
        """A table at the places of another, with other labels."""
        pairs = [
            pair for pair in zip(own.axes, own.sizes, strict=True) if pair[0] not in self.labels
        ]
        if after is not None:
            pairs.append((after, self.ranges[after]))
        axes, sizes = tuple(axis for axis, _ in pairs), tuple(size for _, size in pairs)
        return Table(name, axes, sizes, own.domain, own.order)

    def _reading(self, read: Read, after: str | None) -> tuple[Affine | Lookup, ...]:
        """The index of a stage at the places that are read."""
        axes = self.places[read.array].table.axes
        index = [at for axis, at in zip(axes, read.index, strict=True) if axis not in self.labels]
        return (*index, *((Affine.of(after),) if after else ()))

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
            lines.append(f"total+=({one.steps})*({one.places})*({one.width})")
            lines.append(f"rows+=({one.steps})*({one.rows})")
        lines += self._strides()
        ends = [expression(place.table.order_end + 1) for place in self.places.values()]
        lines.append(f"steps=max({','.join(ends)},0)")
        whole = _record(
            Whole, stages=len(stages), alternatives=len(self.alternatives),
            factors=len(self.factors), looks=len(self.looks), forms=len(self.forms),
            steps="steps", size="total", levels="rows",
        )  # fmt: skip
        records = [whole, *stages, *self.alternatives, *self.factors, *self.looks, *self.forms]
        said = ",".join(str(number) for record in records for number in numbers(record))
        sizes = self.program.size_names
        arguments = [*sizes, *(f"item_{slot}" for slot in self.slots.values())]
        body = "\n ".join([*lines, f"return ({said},)"])
        # Sizes and numbers are all that is in it.
        space: dict[str, Any] = {}
        exec(f"def bind({', '.join(arguments)}):\n {body}", space)
        return Lowered(sizes, space["bind"], self.places, self.sized)

    def _sized(self, number: int, place: Place) -> Sized:
        table = place.table
        ends = dict(zip(table.axes, table.sizes, strict=True))
        many = [expression(ends[axis]) for axis in place.axes] or ["1"]
        q, u, inner = ["1", "1", *many][-3:]
        width = expression(ends[place.label]) if place.label else "1"
        outer = f"({q})*({u})"
        return Sized(
            expression(place.steps), inner, u, q, width, f"({inner})*{outer}",
            f"({inner})*{outer}" if place.label else outer, f"at_{number}", f"level_{number}",
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
            rest = at
            for name, coordinate in COORDINATES.items():
                if times := at.coefficient(coordinate):
                    found[name].append(f"{times}*{stride}" if times != 1 else stride)
                    rest = rest - Affine.of(coordinate) * times
            if rest.terms or rest.constant:
                found["c"].append(f"({expression(rest)})*{stride}")
        said: dict[str, Any] = {name: "+".join(found[name]) or "0" for name in found}
        return Form(**said)

    def _bounds(self, forms: Iterable[Affine]) -> tuple[int, int]:
        """Where forms that are at least 0 begin among all of them, and how many there are."""
        kept = [at for at in dict.fromkeys(forms) if at.terms or at.constant < 0]
        first = len(self.forms)
        self.forms += [self._form([(at, "1")]) for at in kept]
        return first, len(kept)

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
        for read in rule.factors:
            if read.array in self.places:
                other = self.places[read.array]
                point = other.point(read.index)
                orders.append(other.table.order.substitute(point).substitute(moves))
                places += [point[axis].substitute(moves) for axis in other.axes[:-1]]
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
            point = {axis: at.substitute(moves) for axis, at in place.point(read.index).items()}
            found += [form.substitute(point) for form in place.table.domain]
            for axis, size in zip(place.table.axes, place.table.sizes, strict=True):
                if axis in point:
                    found += [point[axis], size - 1 - point[axis]]
            return found
        for at, size in zip(read.index, self._array(read.array).dims, strict=True):
            if isinstance(at, Lookup):
                found += self._inside(Read(at.array, at.index), moves)
            elif at.bare not in self.labels:
                found += [at.substitute(moves), size - 1 - at.substitute(moves)]
        return found

    def _array(self, name: str) -> Array:
        found = self.program.by_name[name]
        assert isinstance(found, Array)
        return found

    def _factor(self, read: Read, moves: Mapping[str, Affine], label: str | None) -> Factor:
        place = self.places.get(read.array)
        if place is not None:
            sized, point = self.sized[read.array], place.point(read.index)
            order = place.table.order.substitute(point).substitute(moves)
            where = [point[axis].substitute(moves) for axis in place.axes]
            parts, rows = self._strided(place, sized, order, where)
            return _record(
                Factor, at=self._form(parts, sized.at), level=self._form(rows, sized.level),
                slot=0, item="total", hop="1" if place.label else "0", level_item="rows",
                level_hop=0, look=0, looks=0, gather=0, link=self._fused(read.array),
            )  # fmt: skip
        parts, looks, hops = list[tuple[Affine, str]](), list[Look](), list[str]()
        for k, at in enumerate(read.index):
            stride = self._stride(read.array, k)
            if isinstance(at, Lookup):
                looks.append(self._look(at, label, stride, moves))
            elif at.bare is not None and at.bare == label:
                hops.append(stride)
            else:
                parts.append((at.substitute(moves), stride))
        first, many = self._add_looks(looks, read)
        # Rows are over labels, or in tables without these over the innermost places.
        gather = any(str(look.hop) != "0" for look in looks) or (
            label is None and any(str(look.at.p) != "0" for look in looks)
        )
        return _record(
            Factor, at=self._form(parts), level=Form(), slot=self.slots[read.array],
            item=self._item(read.array), hop="+".join(hops) or "0", level_item=-1, level_hop=0,
            look=first, looks=many, gather=int(gather), link=-1,
        )  # fmt: skip

    def _look(
        self, at: Lookup, label: str | None, stride: str, moves: Mapping[str, Affine]
    ) -> Look:
        """Where the data are that say an index, and from one label to the next."""
        hop, parts = "0", list[tuple[Affine, str]]()
        for j, one in enumerate(at.index):
            if label is not None and one.bare == label:
                hop = self._stride(at.array, j)
            else:
                parts.append((one.substitute(moves), self._stride(at.array, j)))
        return _record(
            Look, at=self._form(parts), slot=self.slots[at.array], item=self._item(at.array),
            hop=hop, stride=stride,
        )  # fmt: skip

    def _add_looks(self, looks: Sequence[Look], read: Read) -> tuple[int, int]:
        """Where the looks of an entry begin among all of them, and how many there are."""
        if len(looks) > MOST_LOOKS:
            raise UnloweredError(f"{read} has more than {MOST_LOOKS} places that are data")
        first = len(self.looks)
        self.looks += looks
        return first, len(looks)

    def _strided(
        self, place: Place, sized: Sized, order: Affine, where: Sequence[Affine]
    ) -> tuple[list[tuple[Affine, str]], list[tuple[Affine, str]]]:
        """The coordinates of an entry of a table with the strides of numbers, and of levels."""
        width, inner, u = f"({sized.width})", f"({sized.inner})", f"({sized.u})"
        inward = [*reversed(where)]
        hops = [width, f"{inner}*{width}", f"{u}*{inner}*{width}"]
        step = place.step(order)
        parts = [(step, f"({sized.places})*{width}"), *zip(inward, hops, strict=False)]
        rows = [(step, f"({sized.rows})")]
        if place.label:
            rows += zip(inward, ["1", inner, f"{u}*{inner}"], strict=False)
        else:  # one level for all places of the innermost axis
            rows += zip(inward[1:], ["1", u], strict=False)
        return parts, rows

    def _alternative(
        self, rule: Rule, place: Place, label: str | None, factors: Iterable[Read] | None = None,
        matrix: Read | None = None,
    ) -> Alternative:  # fmt: skip
        """A product where all of its rule's factors are inside, and a matrix, too."""
        moves, loops = self._moves(place, rule)
        found = [form.substitute(moves) for form in rule.guards]
        for form in rule.equal:
            found += [form.substitute(moves), -form.substitute(moves)]
        for factor in (*rule.factors, *((matrix,) if matrix else ())):
            found += self._inside(factor, moves)
        ends = ["0", "0", "0", "0"]
        for k, loop in enumerate(loops):
            size = self.ranges[loop]
            found += [moves[loop], size - 1 - moves[loop]]
            ends[2 * k], ends[2 * k + 1] = self._loop_ends(moves[loop], size, place)
        bound, bounds = self._bounds(found)
        first = len(self.factors)
        made = [self._factor(factor, moves, label) for factor in (factors or rule.factors)]
        self.factors += made
        return _record(
            Alternative, first=first, count=len(made), bound=bound, bounds=bounds,
            loops=len(loops), low=ends[0], high=ends[1], low2=ends[2], high2=ends[3],
        )  # fmt: skip

    def _loop_ends(self, moved: Affine, size: Affine, place: Place) -> tuple[str, str]:
        """The least and the largest value of a loop, of which a variable is a form.

        The variable is ``times * (loop - shift * p)``, the loop ``times * variable + shift * p``.
        """
        times = moved.coefficient(LOOP) or moved.coefficient(LOOP2)
        shift = -times * moved.coefficient(INNER)
        ends = dict(zip(place.table.axes, place.table.sizes, strict=True))
        last = ends[place.axes[-1]] - 1 if place.axes else Affine()
        low, high = Affine(), Affine()
        for step, most in ((times, size - 1), (shift, last)):
            low, high = (low, high + most * step) if step > 0 else (low + most * step, high)
        return expression(low), expression(high)

    def _stage(self, sketch: Sketch) -> Stage:
        place, sized = self.places[sketch.table], self.sized[sketch.table]
        moves, table = place.coordinates(), place.table
        found = [form.substitute(moves) for form in table.domain]
        for axis, size in zip(table.axes, table.sizes, strict=True):
            if axis in moves:
                found += [moves[axis], size - 1 - moves[axis]]
        if place.solved is None:
            found += [Affine.of(STEP) - table.order, table.order - STEP]
        bound, bounds = self._bounds(found)
        made = self._alternatives(sketch, place)
        first = len(self.alternatives)
        self.alternatives += made
        where = [Affine.of(name) for name in (OUTER, MIDDLE, INNER)[3 - len(place.axes) :]]
        parts, rows = self._strided(place, sized, Affine.of(STEP), where)
        depth = [*(expression(self.ranges[name]) for name in sketch.before), "0", "0"][:2]
        return _record(
            Stage, kind=int(sketch.kind), first=first, count=len(made), bound=bound, bounds=bounds,
            out=self._form(parts, sized.at), level=self._form(rows, sized.level), item="total",
            level_item="rows", labels=sized.width if place.label else 0, places=sized.inner,
            wide=sized.q, wider=sized.u, depth=depth[0], depth2=depth[1], last=self._last(sketch),
            into=self._into(sketch), **self._matrix(sketch, place, made),
        )  # fmt: skip

    def _alternatives(self, sketch: Sketch, place: Place) -> list[Alternative]:
        """What the stage's rules multiply; of a pair, the left part and the right one."""
        if sketch.kind == Kind.SUM:
            made = [self._alternative(rule, place, place.label) for rule in sketch.rules]
            self._check_levels(sketch, place, made)
            return made
        (rule,) = sketch.rules
        loops = [name for name in rule.over if name not in self.labels]
        if loops and sketch.kind == Kind.OVER:
            raise UnloweredError(f"{rule.text} sums over labels and loops at once")
        if sketch.kind != Kind.PAIR:
            return [self._alternative(rule, place, sketch.before[0], matrix=sketch.matrix)]
        left, right = sketch.before
        of_right = [f for f in rule.factors if right in self._labels_of(f)]
        of_left = [f for f in rule.factors if f not in of_right]
        if not of_left or not of_right or any(left in self._labels_of(f) for f in of_right):
            raise UnloweredError(f"{rule.text} is no pair of two rows")
        return [
            self._alternative(rule, place, left, of_left, sketch.matrix),
            self._alternative(rule, place, right, of_right, sketch.matrix),
        ]

    def _check_levels(self, sketch: Sketch, place: Place, made: Sequence[Alternative]) -> None:
        """Check that rows over places read rows that have one level."""
        for one in made if place.label is None else ():
            for factor in self.factors[one.first : one.first + one.count]:
                if str(factor.level.p) != "0":
                    raise UnloweredError(f"{sketch.table} reads many steps at once")

    def _matrix(self, sketch: Sketch, place: Place, made: Sequence[Alternative]) -> dict[str, Any]:
        """Where the matrix of a stage lies, as fields of its record."""
        none = _own_number("0")
        labels = (*sketch.before, sketch.after) if sketch.matrix else ()
        strides, looks, common = (
            dict.fromkeys(labels, "0"),
            dict.fromkeys(labels, none),
            list[Look](),
        )
        read, slot, item, parts = sketch.matrix, -1, "0", list[tuple[Affine, str]]()
        fixed = True
        if read is not None:
            moves, _ = self._moves(place, sketch.rules[0])
            slot, item = self.slots[read.array], self._item(read.array)
            for k, at in enumerate(read.index):
                stride = self._stride(read.array, k)
                own = [name for name in labels if name in at.names]
                if len(own) > 1 or any(strides[name] != "0" for name in own):
                    raise UnloweredError(f"{read} has a label twice, or two labels in one place")
                data = isinstance(at, Lookup)
                look = self._look(at, own[0] if own else None, stride, moves) if data else None
                if own:
                    strides[own[0]] = stride
                    looks[own[0]] = look or _own_number(stride)
                elif look:
                    common.append(look)
                elif not data:
                    parts.append((at.substitute(moves), stride))
            steps = any(at.names & {*COORDINATES.values()} for at, _ in parts)
            loops = sketch.kind == Kind.LINK and any(one.loops for one in made)
            fixed = not (steps or loops or common or any(one.slot != -1 for one in looks.values()))
        first, many = self._add_looks(common, read) if read else (0, 0)
        (row, rows), (row2, rows2) = [
            *((strides[name], looks[name]) for name in labels[:-1]), ("0", none), ("0", none)
        ][:2]  # fmt: skip
        column, columns = (strides[labels[-1]], looks[labels[-1]]) if labels else ("0", none)
        return {
            "table": self._form(parts), "slot": slot, "table_item": item, "row": row,
            "row2": row2, "column": column, "fixed": int(fixed), "look": first, "looks": many,
            "rows": rows, "rows2": rows2, "columns": columns,
        }  # fmt: skip

    def _owner(self, name: str) -> str:
        """The table that a stage belongs to."""
        return next((one.owner for one in self.hoisted if one.table == name), name)

    def _is_first(self, name: str) -> bool:
        """Whether a table is that of a stage before the sum that reads it at the same place."""
        return any(one.table == name and one.first for one in self.hoisted)

    def _fused(self, name: str) -> int:
        """The stage of a link that nothing but the sum at its own place reads; below 0: none."""
        for number, stage in enumerate(self.stages):
            linked = stage.kind in (Kind.LINK, Kind.PAIR)
            if stage.table == name and linked and self._is_first(name):
                return number
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
        goals = [goal.array for goal in self.program.goals]
        if owner not in goals or owner in read or not (own == owner or self._is_first(own)):
            return 0
        return 1 + goals.index(owner)


def _own_number(stride: str) -> Look:
    """Places of labels by their own numbers."""
    return _record(Look, at=Form(), slot=-1, item=0, hop="0", stride=stride)


def _record(record: type[Made], /, **numbers: Any) -> Made:
    """A record whose numbers are expressions until sizes are known."""
    return record(**numbers)
