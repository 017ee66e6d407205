"""Log-sums by torch and their first derivatives, as operations listed once for each size.

`Listing` works out everything that sizes decide: which rules add something in a step, where in
memory it is that they read, and in which order factors are multiplied. What is left for a run is a
handful of torch calls for each step. Tables are [step][place][item][label] in one tensor, and all
that a step reads is a strided view of tables and inputs.

    up:    a link is  log(exp(x - peak) P) + peak  with P the exponentials of a fixed matrix,
           a rule is a sum of such logs, and rules are added up by `logaddexp`;
    down:  the gradient of a rule is that of its cell times exp(term - value), that of a link
           w * ((g / total) P') with the w and totals that the pass upwards kept.

Logs are in float64 so that long recurrences keep the digits of float32, exponentials and gradients
in the dtype of the inputs. Within a run what is absent is `_ABSENT`, a finite number so low that no
sum of scores comes near it; so nothing is NaN, and gradients of what is absent are exactly zero.

A matrix product may lose terms to underflow. Runs in which one may have, or whose scores are as low
as `_ABSENT`, say so (`unsound`), and are left to the interpreter, which sums in logs where it must.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from rdpgraph._core.cache import remembered
from rdpgraph.logspace.gradients import is_transformed, regradient
from rdpgraph.recurrences.affine import Affine
from rdpgraph.recurrences.evaluation import evaluate
from rdpgraph.recurrences.interpreter import STEP, Layout, Run, shape_of
from rdpgraph.recurrences.named_tensors import plan_steps
from rdpgraph.recurrences.program import Array, CellTable, Lookup, Program, Read, Rule
from rdpgraph.recurrences.semirings import LogSum

ITEM = "@"
"""The name of the dim of items; users' names have no such sign."""
_ABSENT = -1e250  # nats: what no sum of scores above _LOWEST comes near, and sums of it are finite
_LOWEST = -1e200  # finite scores of inputs below it are left to the interpreter
_MODERATE = 30.0  # nats whose exponentials, times numbers of states, are far from all limits
_COLLECTED = 1 << 16  # numbers of steps whose products with the gradient of a matrix wait for one


# ---- what is read ----


class _Operand(ABC):
    """A tensor in the dims that an operation wants, and where its gradient goes."""

    @abstractmethod
    def read(self, run: "Sums") -> Tensor:
        """The values."""

    @abstractmethod
    def give(self, run: "Sums", gradient: Tensor) -> None:
        """Add a gradient."""

    def give_product(self, run: "Sums", one: Tensor, other: Tensor) -> None:
        """Add a gradient that is a product; the second tensor is written to."""
        self.give(run, other.mul_(one))


@dataclass(eq=False, slots=True)
class _Strided(_Operand):
    """A view of a table or an input.

    Attributes:
        shape: where dims are put together that lie apart; else None.
        lacking: the dims that it has not, over which its gradient is summed.
    """

    source: int
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    shape: tuple[int, ...] | None
    lacking: tuple[int, ...]

    def read(self, run: "Sums") -> Tensor:
        view = run.sources[self.source].as_strided(self.size, self.stride, self.offset)
        return view if self.shape is None else view.reshape(self.shape)

    def give(self, run: "Sums", gradient: Tensor) -> None:
        into = run.gradients[self.source]
        if into is not None:
            if self.shape is not None:
                gradient = gradient.reshape(self.size)
            if self.lacking:
                gradient = gradient.sum(self.lacking, keepdim=True)
            into.as_strided(self.size, self.stride, self.offset).add_(gradient)

    def give_product(self, run: "Sums", one: Tensor, other: Tensor) -> None:
        if self.shape is not None or self.lacking:
            self.give(run, other.mul_(one))
        elif (into := run.gradients[self.source]) is not None:
            into.as_strided(self.size, self.stride, self.offset).addcmul_(one, other)


@dataclass(eq=False, slots=True)
class _Made(_Operand):
    """The result of an operation.

    Attributes:
        order: of its dims, and ``back`` of the dims of its gradient; None: as they are.
        size: of its dims in that order.
        shape: where dims are put together, or of size 1 between them; else None.
        lacking: as for `_Strided`.
    """

    slot: int
    order: tuple[int, ...] | None
    size: tuple[int, ...]
    shape: tuple[int, ...] | None
    lacking: tuple[int, ...]
    back: tuple[int, ...] | None

    def read(self, run: "Sums") -> Tensor:
        values = run.made[self.slot]
        assert values is not None
        if self.order is not None:
            values = values.permute(self.order)
        return values if self.shape is None else values.reshape(self.shape)

    def give(self, run: "Sums", gradient: Tensor) -> None:
        if self.lacking:
            gradient = gradient.sum(self.lacking, keepdim=True)
        if self.shape is not None:
            gradient = gradient.reshape(self.size)
        run.below[self.slot] = gradient if self.back is None else gradient.permute(self.back)


# ---- operations ----


class _Operation(ABC):
    """One step of a rule, upwards and downwards."""

    @abstractmethod
    def up(self, run: "Sums") -> None:
        """Compute the result."""

    @abstractmethod
    def down(self, run: "Sums") -> None:
        """Pass the gradient of the result on."""


@dataclass(eq=False, slots=True)
class _Gather(_Operation):
    """Rows of a table at any places."""

    slot: int
    source: int
    rows: Tensor
    row: tuple[int, int]
    shape: tuple[int, ...]

    def up(self, run: "Sums") -> None:
        table = run.sources[self.source].view(self.row)
        run.made[self.slot] = table.index_select(0, self.rows).view(self.shape)

    def down(self, run: "Sums") -> None:
        into = run.gradients[self.source]
        if into is not None:
            part = run.gradient(self.slot).reshape(-1, self.row[1]).to(into.dtype)
            into.view(self.row).index_add_(0, self.rows, part)


@dataclass(eq=False, slots=True)
class _FixedProduct(_Operation):
    """The sum over k of products of rows ([s,] m, k) and a fixed matrix ([s,] n, k) of an input."""

    slot: int
    x: _Operand
    matrix: int
    shape: tuple[int, ...] | None

    def up(self, run: "Sums") -> None:
        x, matrix = self.x.read(run), run.matrices[self.matrix]
        peak = x.amax(-1, keepdim=True)
        rows = torch.sub(x, peak, out=run.empty(x.shape)).exp_()
        total = matrix.product(rows, matrix.turned)
        logs = total.log().double().add_(peak)  # of two inputs in float32, too
        if matrix.peaks is not None:
            logs.add_(matrix.peaks)
        if matrix.hard:
            logs.clamp_(min=_ABSENT)
        run.made[self.slot] = logs if self.shape is None else logs.view(self.shape)
        run.keep(self, rows, total)

    def down(self, run: "Sums") -> None:
        (rows, total), matrix = run.kept[self], run.matrices[self.matrix]
        gradient = run.gradient(self.slot)
        share = (gradient if self.shape is None else gradient.reshape(total.shape)) / total
        if matrix.wanted:
            matrix.collect(rows, share)
        self.x.give_product(run, rows, matrix.product(share, matrix.weights))

    def is_lossy(self, run: "Sums", low: Tensor) -> bool:
        """Return whether a low total may have lost terms, and is not that of nothing."""
        there = (self.x.read(run) > _ABSENT / 2).to(run.dtype)
        matrix = run.matrices[self.matrix]
        return bool((low & (there @ matrix.there.mT > 0)).any())


class _Prepared:
    """The exponentials of a matrix in one run.

    Attributes:
        weights, turned: ([s,] n, k), and the transposed.
        peaks: ([s, 1,] n) what was taken off the logs of each row; None: nothing.
        hard: whether there are zeros among them.
        there: 1 where an entry is possible, 0 elsewhere.
        wanted: whether its gradient is.
    """

    def __init__(self, run: "Sums", operand: _Strided) -> None:
        logs, self.operand = operand.read(run), operand
        peaks = logs.amax(-1, keepdim=True)
        # Moderate scores are taken as they are, which saves an addition in every link.
        moderate = bool((peaks.amax() < _MODERATE) & (peaks.amin() > -_MODERATE))
        self.weights = (logs if moderate else logs - peaks).exp().to(run.dtype)
        self.turned = self.weights.mT
        self.product = torch.mm if self.weights.ndim == 2 else torch.bmm
        self.peaks = None if moderate else peaks.mT
        self.there = (logs > _ABSENT / 2).to(run.dtype)
        self.hard = bool((self.weights == 0).any())
        self.wanted = run.gradients[operand.source] is not None
        self.begin()

    def begin(self) -> None:
        """Begin a pass downwards."""
        self.waiting: list[tuple[Tensor, Tensor]] = []
        self.size, self.total = 0, torch.zeros_like(self.weights)

    def collect(self, rows: Tensor, share: Tensor) -> None:
        """Note what the matrix product of one step gives; many are summed in one product."""
        self.waiting.append((rows, share))
        self.size += rows.numel() + share.numel()
        if self.size > _COLLECTED:
            self.flush()

    def flush(self) -> None:
        """Add up what was noted."""
        if self.waiting:
            rows, shares = (torch.cat(parts, -2) for parts in zip(*self.waiting, strict=True))
            self.total += self.product(shares.mT, rows)
            self.waiting, self.size = [], 0

    def finish(self, run: "Sums") -> None:
        """Pass the gradient on to the input."""
        self.flush()
        self.operand.give(run, self.total * self.weights)


@dataclass(eq=False, slots=True)
class _Pair(_Operation):
    """The sum over k of products of (s, m, k) and (s, n, k), which change from step to step.

    With ``balanced`` all m and all n have a peak for each k, so that nothing is lost where the two
    change with k in opposite ways; else each m and each n has one.
    """

    slot: int
    x: _Operand
    y: _Operand
    balanced: bool
    shape: tuple[int, ...]

    def up(self, run: "Sums") -> None:
        x, y = self.x.read(run), self.y.read(run)
        if self.balanced:
            mine = x.amax(-2, keepdim=True)
            both = mine + y.amax(-2, keepdim=True)
            peak = both.amax(-1, keepdim=True)
            rows = torch.sub(x, mine, out=run.empty(x.shape)).exp_()
            columns = torch.add(y, mine - peak, out=run.empty(y.shape)).exp_()
        else:
            mine, other = x.amax(-1, keepdim=True), y.amax(-1, keepdim=True)
            rows = torch.sub(x, mine, out=run.empty(x.shape)).exp_()
            columns = torch.sub(y, other, out=run.empty(y.shape)).exp_()
            peak = mine + other.mT
        total = torch.bmm(rows, columns.mT)
        logs = total.log().double().add_(peak).clamp_(min=_ABSENT)
        run.made[self.slot] = logs.view(self.shape)
        run.keep(self, rows, total, columns)

    def down(self, run: "Sums") -> None:
        rows, total, columns = run.kept[self]
        share = run.gradient(self.slot).reshape(total.shape) / total
        self.x.give_product(run, rows, torch.bmm(share, columns))
        self.y.give_product(run, columns, torch.bmm(share.mT, rows))

    def is_lossy(self, run: "Sums", low: Tensor) -> bool:
        """As for links."""
        one, other = ((part.read(run) > _ABSENT / 2).to(run.dtype) for part in (self.x, self.y))
        return bool((low & (one @ other.mT > 0)).any())


@dataclass(eq=False, slots=True)
class _Sum(_Operation):
    """The product of one or two operands, summed over its last dims; or of all, over none."""

    slot: int
    parts: tuple[_Operand, ...]
    dims: tuple[int, ...]

    def terms(self, run: "Sums") -> Tensor:
        """The products."""
        first, *others = (part.read(run) for part in self.parts)
        return first + others[0] if others else first

    def up(self, run: "Sums") -> None:
        terms = self.terms(run)
        run.made[self.slot] = terms.logsumexp(self.dims) if self.dims else terms

    def down(self, run: "Sums") -> None:
        gradient = run.gradient(self.slot)
        if self.dims:
            total = run.made[self.slot]
            assert total is not None
            ones = (1,) * len(self.dims)
            share = (self.terms(run) - total.view(total.shape + ones)).exp_()
            gradient = share * gradient.reshape(total.shape + ones)
        for part in self.parts:
            part.give(run, gradient)


@dataclass(eq=False, slots=True)
class _Into(_Operation):
    """A rule's product, of one operand or two, is added to a table where the rule holds.

    Attributes:
        into: the cells.
        first: whether nothing is there before.
        alone: whether nothing else is added to this step.
        fits: whether the product has all dims of the cells.
        later: the parts whose gradients are taken of many steps at once.
    """

    one: _Operand
    other: _Operand | None
    into: _Strided
    first: bool
    alone: bool
    fits: bool
    later: tuple[_Operand, ...] = ()

    def up(self, run: "Sums") -> None:
        cells, terms = self.into.read(run), self.one.read(run)
        if self.other is not None:
            if self.first and self.fits:
                torch.add(terms, self.other.read(run), out=cells)
                return
            terms = terms + self.other.read(run)
        if self.first:
            cells.copy_(terms)
        else:
            torch.logaddexp(cells, terms, out=cells)

    def down(self, run: "Sums") -> None:
        into = self.into
        gradient = run.gradients[into.source]
        assert gradient is not None
        gradient = gradient.as_strided(into.size, into.stride, into.offset)
        if not self.alone:
            terms = self.one.read(run)
            if self.other is not None:
                terms = terms + self.other.read(run)
            gradient = (terms - into.read(run)).exp_() * gradient
        if self.one not in self.later:
            self.one.give(run, gradient)
        if self.other is not None and self.other not in self.later:
            self.other.give(run, gradient)


@dataclass(eq=False, slots=True)
class _Series:
    """An input read alike in many steps of a table: its gradient is that of the cells."""

    read: _Strided
    into: _Strided

    def down(self, run: "Sums") -> None:
        """Add the gradient of all steps."""
        gradient, into = run.gradients[self.into.source], self.into
        assert gradient is not None
        self.read.give(run, gradient.as_strided(into.size, into.stride, into.offset))


# ---- listings ----


@dataclass(eq=False, slots=True)
class _LinearForm:
    """A number that is linear in the step and in dims."""

    constant: int
    step: int
    dims: dict[str, int]

    def at(self, step: int, box: Mapping[str, tuple[int, int]]) -> int:
        """The number at the first corner of a box."""
        found = self.constant + self.step * step
        for name, times in self.dims.items():
            if name in box:
                found += times * box[name][0]
        return found


@dataclass(eq=False, slots=True)
class _Factor:
    """What a rule reads.

    Attributes:
        source: the number of the tensor.
        place: where in it.
        names: the dims along which that changes, items and labels among them.
        fixed: whether all steps read all of it.
        gathered: whether it is a table whose rows are not read upwards in equal strides.
    """

    source: int
    place: _LinearForm
    names: tuple[str, ...]
    fixed: bool
    gathered: bool = False


@dataclass(eq=False, slots=True)
class _PartialProduct:
    """A factor, or the product of some, in one step."""

    names: tuple[str, ...]
    fixed: bool
    factor: _Factor | None
    offset: int
    slot: int


@dataclass(eq=False, slots=True)
class _Known:
    """What of a rule no step changes."""

    dims: tuple[str, ...]
    conditions: list[_LinearForm]
    factors: list[_Factor]
    over: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StepOperations:
    """The operations of a table in one step."""

    table: str
    step: int
    operations: tuple[_Operation, ...]


class Listing:
    """The operations of a program for some sizes and number of items.

    Attributes:
        groups: in the order of computation.
        slots: how many results of operations there are.
        passing: the results that the pass downwards does not read.
        sources: what each tensor is: the name of an input or of a table, the numbers of a rule and
            of a factor of an input that is gathered beforehand, or a constant.
    """

    def __init__(
        self, program: Program, sizes: tuple[tuple[str, int], ...], items: int,
        shared: tuple[tuple[str, bool], ...], device: torch.device,
    ) -> None:  # fmt: skip
        self.program, self.sizes, self.items = program, dict(sizes), items
        self.shared, self.device = dict(shared), device
        self.layout = Layout(program, self.sizes)
        self.sources: list[str | tuple[int, int] | Tensor] = []
        self.groups: list[StepOperations] = []
        self.slots, self.passing = 0, set[int]()
        self._numbers: dict[object, int] = {}
        self.matrices: list[_Strided] = []
        self.matrix_numbers: dict[object, int] = {}
        self.plans: dict[object, list[Any]] = {}
        self.extent = {**self.layout.ranges, ITEM: items}
        zero = torch.zeros(1, dtype=torch.float64, device=device)
        self._one = _Factor(self.source(None, zero), _LinearForm(0, 0, {}), (), fixed=False)
        self.row = {
            name: items * math.prod(shape.labels.values())
            for name, shape in self.layout.shapes.items()
        }
        self.series: list[_Series] = []
        self._alone: dict[tuple[int, int], list[tuple[_Into, _Strided]]] = {}
        rules = [
            (number, rule, self._known(number, rule)) for number, rule in enumerate(program.rules)
        ]
        for step in range(self.layout.steps):
            for table in program.tables:
                if step < self.layout.shapes[table.name].steps:
                    own = [each for each in rules if each[1].table == table.name]
                    self._list(table, step, own)
        for each in self._alone.values():
            self._put_in_series(each)
        self._alone.clear()
        # Sums read their own results on the way down.
        for group in self.groups:
            self.passing -= {
                one.slot for one in group.operations if isinstance(one, _Sum) and one.dims
            }

    def note_alone(self, number: int, made: _Into) -> None:
        """Note a rule that alone adds to a step, of whose inputs gradients may wait."""
        tables = self.layout.shapes
        for k, part in enumerate((made.one, made.other)):
            if isinstance(part, _Strided) and part.shape is None:
                what = self.sources[part.source]
                if not isinstance(what, Tensor) and what not in tables:
                    self._alone.setdefault((number, k), []).append((made, part))

    def _put_in_series(self, each: list[tuple[_Into, _Strided]]) -> None:
        """Take the gradients of an input that is read alike in a series of steps at once."""
        while each:
            # The longest run of steps from here whose reads move by one stride, as do the values
            # that they make.
            (made, part), count = each[0], 1
            hop = [0, 0]
            for (_, before), (after, follows) in pairwise(each):
                moved = [
                    follows.offset - before.offset,
                    after.into.offset - each[count - 1][0].into.offset,
                ]
                alike = (follows.size, follows.stride, after.into.size) == (
                    part.size, part.stride, made.into.size
                )  # fmt: skip
                if not alike or (count > 1 and moved != hop):
                    break
                hop, count = moved, count + 1
            # Where the entries that are read are all different, one addition serves the run.
            place = _LinearForm(
                0, 0, {str(k): x for k, x in enumerate((*part.stride, hop[0])) if x}
            )
            extent = {str(k): size for k, size in enumerate((*part.size, count))}
            if count > 2 and hop[0] > 0 and _is_apart(place, extent):
                views = [
                    _Strided(x.source, (count, *x.size), (step, *x.stride), x.offset, None, ())
                    for x, step in zip((part, made.into), hop, strict=True)
                ]
                views[0].lacking = tuple(k + 1 for k in part.lacking)
                self.series.append(_Series(*views))
                for one, read in each[:count]:
                    one.later = (*one.later, read)
            each = each[count:]

    def source(self, key: object, what: "str | tuple[int, int] | Tensor") -> int:
        """The number of a tensor, which is listed if it is new."""
        if key not in self._numbers:
            self._numbers[key] = len(self.sources)
            self.sources.append(what)
        return self._numbers[key]

    def number(self, name: str) -> int:
        """The number of the tensor of a table."""
        return self._numbers[name]

    # ---- what no step changes ----

    def _known(self, number: int, rule: Rule) -> _Known:
        shape = self.layout.shapes[rule.table]
        moves = dict(shape.coordinates()) if shape.solved else dict[str, Affine]()
        dims = (*shape.places, *self.layout.loops(rule))
        conditions = self._settled(rule, shape, moves)

        def linear(form: Any, times: int = 1) -> _LinearForm:
            """A form in the step and dims, times a number."""
            form = form.substitute(moves)
            constant, step, found = form.constant, 0, dict[str, int]()
            for name, coefficient in form.terms:
                if name in self.sizes:
                    constant += coefficient * self.sizes[name]
                elif name == STEP:
                    step = coefficient
                else:
                    found[name] = coefficient
            scaled = {name: value * times for name, value in found.items()}
            return _LinearForm(constant * times, step * times, scaled)

        # Conditions on one dim cut a box out of the loops; on several they need a mask.
        conditions = [linear(form) for form in conditions]
        masked = any(len(form.dims) > 1 for form in conditions)
        factors = [
            self._table_factor(table, read, linear)
            if (table := self.program.table(read.array)) is not None
            else self._input_factor((number, k), rule, read, linear, masked=masked)
            for k, read in enumerate(rule.factors)
        ]
        known = {name for factor in factors for name in factor.names}
        return _Known(dims, conditions, factors, tuple(n for n in rule.over if n in known))

    def _settled(self, rule: Rule, shape: Any, moves: dict[str, Affine]) -> list[Affine]:
        """Conditions on places and loops, with loops that begin at a place counted from there.

        Of splits k between i and j all that has i <= k is read by k - i, so that what holds is a
        box. ``moves`` gets what such loops are.
        """
        forms = [
            form for form in self.layout.conditions(rule) if not form.names & self.program.labels
        ]
        tables = {table.name for table in self.program.tables}
        read = {n for f in rule.factors if f.array not in tables for n in f.names}
        looked = {
            n for f in rule.factors for at in f.index if isinstance(at, Lookup) for n in at.names
        }
        for loop in self.layout.loops(rule):
            if loop in read | looked:
                continue
            for form in forms:
                at = form.substitute(moves)
                places = at.names & {*shape.places}
                others = at.names - places - {loop, STEP} - {*self.sizes}
                if len(places) == 1 and not others and at.coefficient(loop) == 1:
                    (place,) = places
                    begin = Affine.of(loop) - at
                    if (
                        at.coefficient(place) == -1
                        and at.constant <= 0
                        and not (at.names & {STEP, *self.sizes})
                    ):
                        moves[loop] = begin + Affine.of(loop)
                        # The loop's own range, which its box has no longer.
                        end = Affine.of(self.layout.ranges[loop] - 1)
                        forms += [Affine.of(loop), end - Affine.of(loop)]
                        break
        return forms

    def _table_factor(self, table: CellTable, read: Read, linear: Any) -> _Factor:
        """Where a rule reads a table."""
        shape, row = self.layout.shapes[table.name], self.row[table.name]
        at: dict[str, Any] = dict(zip(table.axes, read.index, strict=True))
        times = row * shape.cells
        order = table.order.substitute(at)
        parts, names = [linear(order, times)], list[str]()
        for axis, size in shape.places.items():
            times //= max(1, size)
            parts.append(linear(at[axis], times))
        place = _added(parts)
        names = [name for name, times in place.dims.items() if times]
        gathered = not _is_apart(place, self.extent)
        place.dims = {name: times for name, times in place.dims.items() if times}
        stride = math.prod(shape.labels.values())
        place.dims[ITEM] = stride
        labels: list[str] = []
        for axis, size in shape.labels.items():
            stride //= max(1, size)
            label = str(at[axis])
            place.dims[label] = place.dims.get(label, 0) + stride
            labels.append(label)
        every = (*names, ITEM, *dict.fromkeys(labels))
        source = self.source(table.name, table.name)
        return _Factor(source, place, every, fixed=False, gathered=gathered)

    def _input_factor(
        self, key: tuple[int, int], rule: Rule, read: Read, linear: Any, *, masked: bool
    ) -> _Factor:
        """Where a rule reads an input, or what is gathered of it beforehand."""
        array = self.program.by_name[read.array]
        assert isinstance(array, Array)
        labels, known = self.program.labels, all(not isinstance(at, Lookup) for at in read.index)
        place, stride, moving = _LinearForm(0, 0, {}), 1, set[str]()
        if known:
            parts = list[_LinearForm]()
            for at, dim in zip(reversed(read.index), reversed(array.dims), strict=True):
                parts.append(linear(at, stride))
                stride *= dim.evaluate(self.sizes)
            place = _added(parts)
            moving = {*place.dims} - labels
            known = _is_apart(place, self.extent) and not (masked and moving)
        if known:
            names = tuple(name for name in self.extent if name in place.dims)
            fixed = not moving and not place.step
            source = self.source(read.array, read.array)
        else:
            # Dims of what is gathered are the step, places and loops, then labels.
            steps = self.layout.shapes[rule.table].steps
            every = self.layout.gathered_names(rule, read)
            extent = {**self.extent, STEP: steps}
            place, stride = _LinearForm(0, 0, {}), 1
            for name in reversed(every):
                if name == STEP:
                    place.step = stride
                else:
                    place.dims[name] = stride
                stride *= extent[name]
            names, fixed = tuple(name for name in every if name != STEP), False
            source = self.source(key, key)
        data = [at.array for at in read.index if isinstance(at, Lookup)]
        if not all(self.shared[name] for name in (read.array, *data)):
            place.dims[ITEM] = stride
            split = next((k for k, name in enumerate(names) if name in labels), len(names))
            names = (*names[:split], ITEM, *names[split:])
        return _Factor(source, place, names, fixed)

    # ---- one step ----

    def _list(self, table: CellTable, step: int, rules: list[tuple[int, Rule, _Known]]) -> None:
        """List the operations of a table in a step."""
        boxes = [(each, self._box(each[2], step)) for each in rules]
        there = [(each, box) for each, box in boxes if box is not None]
        made: list[_Operation] = []
        for k, ((number, _, known), (box, mask)) in enumerate(there):
            one = _RuleOperations(self, made, {**self.extent}, box, step)
            for name, (start, end) in box.items():
                one.extent[name] = end - start
            nodes = [one.node(factor, masked=mask is not None) for factor in known.factors]
            # A variable that only conditions have is summed over as well: it counts its values.
            named = {name for node in nodes for name in node.names}
            loops = [n for n in box if n not in self.layout.shapes[table.name].places]
            counted = tuple(n for n in loops if n not in named and one.extent[n] > 1)
            over = [*known.over, *counted]
            if counted or not nodes:
                nodes.append(
                    _PartialProduct(counted, fixed=False, factor=self._one, offset=0, slot=-1)
                )
            if mask is not None:
                nodes.append(one.constant(mask))
            one.finish(number, table, nodes, over, first=not k, alone=len(there) == 1)
        self.groups.append(StepOperations(table.name, step, tuple(made)))

    def _box(
        self, known: _Known, step: int
    ) -> tuple[dict[str, tuple[int, int]], Tensor | None] | None:
        """The values of places and loops for which a rule holds, and which of them; None: none."""
        ends = {name: [0, self.layout.ranges[name]] for name in known.dims}
        several: list[_LinearForm] = []
        for form in known.conditions:
            number = form.constant + form.step * step
            if not form.dims:
                if number < 0:
                    return None
            elif len(form.dims) == 1:
                # number + times * value >= 0
                ((name, times),) = form.dims.items()
                if times > 0:
                    ends[name][0] = max(ends[name][0], -(number // times))
                else:
                    ends[name][1] = min(ends[name][1], number // -times + 1)
            else:
                several.append(form)
        if any(start >= end for start, end in ends.values()):
            return None
        box = {name: (start, end) for name, (start, end) in ends.items()}
        partly: list[_LinearForm] = []
        for form in several:
            sides = [
                sorted((times * box[name][0], times * (box[name][1] - 1)))
                for name, times in form.dims.items()
            ]
            number = form.constant + form.step * step
            if number + sum(high for _, high in sides) < 0:
                return None
            if number + sum(low for low, _ in sides) < 0:
                partly.append(form)
        if not partly:
            return box, None
        sizes = [end - start for start, end in box.values()]
        holds = torch.ones(sizes, dtype=torch.bool)
        for form in partly:
            total: Any = form.constant + form.step * step
            for k, (name, (start, end)) in enumerate(box.items()):
                if name in form.dims:
                    values = torch.arange(start, end).view(-1, *[1] * (len(sizes) - 1 - k))
                    total = total + form.dims[name] * values
            holds &= total >= 0
        if not bool(holds.any()):
            return None
        mask = torch.zeros(sizes, dtype=torch.float64).masked_fill_(~holds, _ABSENT)
        return box, mask.to(self.device)


def _is_apart(place: _LinearForm, extent: Mapping[str, int]) -> bool:
    """Return whether a view in upward strides has every number once."""
    end = 0
    for name, times in sorted(place.dims.items(), key=lambda each: each[1]):
        if times <= end:
            return not times
        end += times * (extent[name] - 1)
    return True


def _added(parts: Sequence[_LinearForm]) -> _LinearForm:
    """The sum of linear numbers."""
    dims: dict[str, int] = {}
    for part in parts:
        for name, times in part.dims.items():
            dims[name] = dims.get(name, 0) + times
    return _LinearForm(sum(part.constant for part in parts), sum(part.step for part in parts), dims)


@dataclass(eq=False, slots=True)
class _RuleOperations:
    """The operations of one rule in one step, as they are listed."""

    listing: Listing
    made: list[_Operation]
    extent: dict[str, int]
    box: dict[str, tuple[int, int]]
    step: int

    def node(self, factor: _Factor, *, masked: bool) -> _PartialProduct:
        """What is read of a factor; rows of a table are gathered where no view has them."""
        listing = self.listing
        offset = factor.place.at(self.step, self.box)
        name = listing.sources[factor.source]
        shape = listing.layout.shapes.get(name) if isinstance(name, str) else None
        moving = tuple(n for n in factor.names if n in self.box)
        if shape is None or not (factor.gathered or (masked and moving)):
            return _PartialProduct(factor.names, factor.fixed, factor, offset, -1)
        # Numbers of rows; any where the rule does not hold.
        row = listing.row[shape.table.name]
        rows = torch.tensor(offset // row)
        for k, one in enumerate(moving):
            values = torch.arange(self.extent[one]).view(-1, *[1] * (len(moving) - 1 - k))
            rows = rows + factor.place.dims[one] // row * values
        rows = rows.reshape(-1).clamp(0, shape.steps * shape.cells - 1).to(listing.device)
        labels = tuple(n for n in factor.names if n in listing.program.labels)
        names = (*moving, ITEM, *labels)
        slot = self.slot()
        if not masked:  # else some of these rows may be computed later, and be others then
            listing.passing.add(slot)
        sizes = tuple(self.extent[n] for n in names)
        self.made.append(
            _Gather(slot, factor.source, rows, (shape.steps * shape.cells, row), sizes)
        )
        return _PartialProduct(names, fixed=False, factor=None, offset=0, slot=slot)

    def constant(self, values: Tensor) -> _PartialProduct:
        """A constant in the dims of the box."""
        number = self.listing.source(len(self.listing.sources), values)
        place, stride = _LinearForm(0, 0, {}), 1
        for name in reversed(self.box):
            place.dims[name] = stride
            stride *= self.extent[name]
        factor = _Factor(number, place, tuple(self.box), fixed=False)
        return _PartialProduct(tuple(self.box), fixed=False, factor=factor, offset=0, slot=-1)

    def slot(self) -> int:
        """A new result."""
        self.listing.slots += 1
        return self.listing.slots - 1

    def operand(
        self, node: _PartialProduct, groups: Sequence[Sequence[str]], *, together: bool = False
    ) -> Any:
        """A node in the order of some names; groups of them in one dim each, if ``together``."""
        names = [name for group in groups for name in group]
        size = tuple(self.extent[name] if name in node.names else 1 for name in names)
        shape = tuple(math.prod(self.extent[name] for name in group) for group in groups)
        lacking = tuple(
            k for k, name in enumerate(names) if name not in node.names and self.extent[name] > 1
        )
        if node.factor is None:
            if together:  # matrix products keep exponentials of it, and not itself
                self.listing.passing.add(node.slot)
            own = [name for name in names if name in node.names]
            order = tuple(node.names.index(name) for name in own)
            order = None if order == tuple(range(len(order))) else order
            back = order and tuple(order.index(k) for k in range(len(order)))
            given = tuple(self.extent[name] for name in own)
            wanted = shape if together else size
            return _Made(
                node.slot, order, given, None if wanted == given else wanted, lacking, back
            )
        strides = tuple(
            node.factor.place.dims.get(name, 0) if name in node.names else 0 for name in names
        )
        if together:
            merged = self._merged(groups, strides)
            if merged is not None:
                return _Strided(node.factor.source, shape, merged, node.offset, None, ())
        else:
            shape = size
        return _Strided(
            node.factor.source, size, strides, node.offset, None if shape == size else shape,
            lacking,
        )  # fmt: skip

    def _merged(
        self, groups: Sequence[Sequence[str]], strides: tuple[int, ...]
    ) -> tuple[int, ...] | None:
        """The stride of every group as one dim; None: one has none."""
        each, found = iter(strides), list[int]()
        for group in groups:
            dims = [(self.extent[name], next(each)) for name in group]
            dims = [(size, stride) for size, stride in dims if size > 1]
            for (_, outer), (size, inner) in pairwise(dims):
                if outer != size * inner:
                    return None
            found.append(dims[-1][1] if dims else 0)
        return tuple(found)

    def finish(
        self, number: int, table: CellTable, nodes: list[_PartialProduct], over: list[str], *,
        first: bool, alone: bool,
    ) -> None:  # fmt: skip
        """List the products and sums of factors, and what adds the result to the table."""
        listing = self.listing
        key = number, tuple(node.names for node in nodes)
        plan = listing.plans.get(key)
        if plan is None:
            plan = listing.plans[key] = plan_steps(nodes, over, listing.extent)
        nodes = [*nodes]
        # The last product needs no result of its own.
        last = plan[-1:] if plan and plan[-1][1] >= 0 and not plan[-1][2] else []
        for one, other, summed in plan[: len(plan) - len(last)]:
            x = nodes[one]
            nodes.append(self._joined(x, nodes[other] if other >= 0 else None, summed))
        parts = [nodes[k] for k in last[0][:2]] if last else nodes[-1:]
        shape = listing.layout.shapes[table.name]
        names = (*shape.places, ITEM, *shape.labels)
        # Where the cells are: strides of [step][places][item][label].
        row = listing.row[table.name]
        stride, strides = row * shape.cells, dict[str, int]()
        offset = stride * self.step
        for axis, size in shape.places.items():
            stride //= max(1, size)
            strides[axis] = stride
            offset += stride * self.box[axis][0]
        stride = row
        for axis in (ITEM, *shape.labels):
            stride //= max(1, self.extent[axis])
            strides[axis] = stride
        size = tuple(self.extent[name] for name in names)
        into = _Strided(
            listing.source(table.name, table.name), size, tuple(strides[n] for n in names),
            offset, None, (),
        )  # fmt: skip
        there = {name for part in parts for name in part.names}
        fits = all(name in there or self.extent[name] == 1 for name in names)
        operands = [self.operand(part, [[name] for name in names]) for part in parts]
        other = operands[1] if len(operands) > 1 else None
        made = _Into(operands[0], other, into, first, alone, fits)
        self.made.append(made)
        if alone:
            read = {part.slot for part in operands if isinstance(part, _Made)}
            listing.passing |= read
        if alone and fits:
            listing.note_alone(number, made)

    def _joined(
        self, x: _PartialProduct, y: _PartialProduct | None, summed: Sequence[str]
    ) -> _PartialProduct:
        """The product of two nodes, summed over some names."""
        slot = self.slot()
        if y is None:
            rest = tuple(name for name in x.names if name not in summed)
            parts = (self.operand(x, [[name] for name in (*rest, *summed)]),)
            self.made.append(_Sum(slot, parts, _last(summed)))
            return _PartialProduct(rest, fixed=False, factor=None, offset=0, slot=slot)
        if x.fixed and not y.fixed:
            x, y = y, x
        shared = [name for name in x.names if name in y.names and name not in summed]
        left = [name for name in x.names if name not in y.names]
        right = [name for name in y.names if name not in x.names]
        names = (*shared, *left, *right)
        made = _PartialProduct(names, fixed=False, factor=None, offset=0, slot=slot)
        if not summed or not right or not (left or y.fixed):
            # Nothing is read twice, so a matrix product saves nothing.
            parts = tuple(self.operand(z, [[n] for n in (*names, *summed)]) for z in (x, y))
            self.made.append(_Sum(slot, parts, _last(summed)))
            return made
        size = tuple(self.extent[name] for name in names)
        if y.fixed and not x.fixed:
            apart = [shared] if shared else []
            rows = self.operand(x, [*apart, left, summed], together=True)
            assert y.factor is not None
            key = y.factor.source, tuple(shared), tuple(right), tuple(summed)
            matrix = self.listing.matrix_numbers.get(key)
            if matrix is None:
                columns = self.operand(y, [*apart, right, summed], together=True)
                matrix = self.listing.matrix_numbers[key] = len(self.listing.matrices)
                self.listing.matrices.append(columns)
            sizes = [math.prod(self.extent[n] for n in group) for group in [*apart, left, right]]
            self.made.append(
                _FixedProduct(slot, rows, matrix, None if size == tuple(sizes) else size)
            )
            return made
        rows, columns = (
            self.operand(z, [shared, own, summed], together=True)
            for z, own in ((x, left), (y, right))
        )
        self.made.append(_Pair(slot, rows, columns, ITEM not in (*left, *right), size))
        return made


def _last(summed: Sequence[str]) -> tuple[int, ...]:
    """The last dims, as many as there are names."""
    return tuple(range(-len(summed), 0))


@remembered(8)
def _listing(
    program: Program, sizes: tuple[tuple[str, int], ...], items: int,
    shared: tuple[tuple[str, bool], ...], device: torch.device,
) -> Listing:  # fmt: skip
    return Listing(program, sizes, items, shared, device)


# ---- runs ----


class Sums:
    """One pass upwards, and what a pass downwards needs of it.

    Attributes:
        dtype: of exponentials and gradients.
        sources: the tensors that operations read, by the numbers of the listing.
        gradients: their gradients, once a pass downwards has begun; None: not wanted.
        made, below: the results of operations and the gradients of these.
        kept: the exponentials and totals of matrix products, by operation.
        sound: whether no product has lost anything.
    """

    def __init__(self, run: Run, *, wanted: Sequence[str]) -> None:
        """Compute all tables.

        Args:
            run: an evaluation that was not filled.
            wanted: the inputs whose gradients will be asked for.
        """
        self.run, self.program, self.tracked = run, run.program, bool(wanted)
        # The operations of these sizes, listed once.
        every = {**run.inputs, **run.whole}
        shared = tuple((name, len(x) == 1) for name, x in every.items())
        device = run.like.device
        self.listing = _listing(
            run.program, tuple(sorted(run.sizes.items())), run.items, shared, device
        )
        self.dtype = torch.promote_types(run.like.dtype, torch.float32)
        self.sound = True
        self.kept: dict[_Operation, tuple[Tensor, ...]] = {}
        self.unchecked: list[tuple[_Operation, Tensor]] = []
        self.size = 0
        self.made: list[Tensor | None] = [None] * self.listing.slots
        self.below: list[Tensor | None] = [None] * self.listing.slots
        # The tensors that operations read; an empty one marks a gradient that will be wanted.
        self.sources = list[Tensor]()
        self.gradients = list[Tensor | None]()
        self.leaves: dict[int, tuple[str, Tensor, Tensor]] = {}
        for number, what in enumerate(self.listing.sources):
            self.sources.append(self._source(number, what, wanted))
            name = self.leaves[number][0] if number in self.leaves else what
            self.gradients.append(
                torch.empty(0) if isinstance(name, str) and name in wanted else None
            )
        self.matrices = [_Prepared(self, operand) for operand in self.listing.matrices]
        self._fill()
        self.ends = self._ends()

    def _source(self, number: int, what: "str | tuple[int, int] | Tensor", wanted: Any) -> Tensor:
        """A tensor that operations read."""
        if isinstance(what, Tensor):
            return what
        if isinstance(what, tuple):
            rule = self.program.rules[what[0]]
            read = rule.factors[what[1]]
            with torch.enable_grad():
                leaf = self.run.inputs[read.array].detach().requires_grad_(read.array in wanted)
                values = self.run.gather(rule, read, leaf)
            self.leaves[number] = read.array, leaf, values
            return self._clean(values.detach())
        if what in self.run.inputs:
            return self._clean(self.run.inputs[what].detach())
        shape = self.listing.layout.shapes[what]
        size = (shape.steps, shape.cells, self.run.items, *shape.labels.values())
        return torch.full(size, _ABSENT, dtype=torch.float64, device=self.run.like.device)

    def _clean(self, values: Tensor) -> Tensor:
        """Logs with `_ABSENT` in place of -inf."""
        if not values.numel():
            return values
        values = values.contiguous()
        if values.storage_offset():  # views of parts are by places in the storage
            values = values.clone()
        least = float(values.amin())
        if least > _LOWEST:
            return values
        if values.dtype == torch.float64 and bool(
            ((values < _LOWEST) & (values > -math.inf)).any()
        ):
            self.sound = False
        return values.double().clamp(min=_ABSENT)

    def _fill(self) -> None:
        wanted = self.run.wanted_steps()
        self.groups = [
            group
            for group in self.listing.groups
            if group.table not in wanted or group.step in wanted[group.table]
        ]
        waiting: list[int] = []
        for group in self.groups:
            for operation in group.operations:
                operation.up(self)
                if not isinstance(operation, _Into):
                    waiting.append(operation.slot)  # pyright: ignore
            # Checks of lost terms read what products were made of.
            if self.size > _COLLECTED:
                self._check()
            if not self.unchecked:
                self._drop(waiting)
        self._check()
        self._drop(waiting)

    def _drop(self, slots: list[int]) -> None:
        """Let go of results that nothing needs any more."""
        for slot in slots:
            if not self.tracked or slot in self.listing.passing:
                self.made[slot] = None
        slots.clear()

    # ---- what operations ask for ----

    def empty(self, shape: Sequence[int]) -> Tensor:
        """Room for exponentials."""
        return torch.empty(shape, dtype=self.dtype, device=self.run.like.device)

    def keep(
        self, operation: "_FixedProduct | _Pair", rows: Tensor, total: Tensor, *more: Tensor
    ) -> None:
        """Keep what a pass downwards needs, and check totals now and then."""
        if self.tracked:
            self.kept[operation] = rows, total, *more
        self.unchecked.append((operation, total))
        self.size += total.numel()

    def _check(self) -> None:
        """Look for totals that have lost terms to underflow."""
        if not self.unchecked:
            return
        limits = torch.finfo(self.dtype)
        least = limits.tiny / limits.eps * 64
        totals = torch.cat([total.reshape(-1) for _, total in self.unchecked])
        if not bool(totals.amin() >= least):
            for operation, total in self.unchecked:
                low = ~(total >= least)
                if bool(low.any()):
                    assert isinstance(operation, _FixedProduct | _Pair)
                    self.sound = self.sound and not operation.is_lossy(self, low)
                    total.clamp_(min=limits.tiny)
        self.unchecked, self.size = [], 0

    def gradient(self, slot: int) -> Tensor:
        """The gradient of a result."""
        found, self.below[slot] = self.below[slot], None
        assert found is not None
        return found if found.dtype is self.dtype else found.to(self.dtype)

    # ---- goals ----

    def _ends(self) -> list[tuple[int, Tensor, Tensor, Tensor]]:
        """Of each goal its source, the places of its cells, and whether they are inside, before."""
        found: list[tuple[int, Tensor, Tensor, Tensor]] = []
        cells = self.run.goal_cells()
        for goal, (axes, inside, before), (_, order) in zip(
            self.program.goals, cells, self.run.ends, strict=True
        ):
            shape, device = self.listing.layout.shapes[goal.array], inside.device
            row = torch.as_tensor(order, device=device).expand(self.run.items)
            for axis, size in shape.places.items():
                row = row * size + axes[axis]
            place = row * self.run.items + torch.arange(self.run.items, device=device)
            found.append(
                (self.listing.number(goal.array), torch.where(inside, place, 0), inside, before)
            )
        return found

    def value(self) -> Tensor:
        """(items,) the goal in float64."""
        result = torch.zeros((), dtype=torch.float64, device=self.run.like.device)
        for number, place, inside, before in self.ends:
            pool = self.sources[number].view(-1)
            value = (
                pool[place]
                if pool.numel()
                else torch.full_like(inside, _ABSENT, dtype=torch.float64)
            )
            value = torch.where(inside & (value > _ABSENT / 2), value, -math.inf)
            result = result + torch.where(before, 0.0, value)
        self.sound = self.sound and not bool(result.isnan().any())
        return result.expand(self.run.items)

    def down(self, above: Tensor, possible: Tensor) -> dict[str, Tensor]:
        """The gradients of the goal in the inputs that are wanted.

        Args:
            above: (items,) the gradient of something in the goal.
            possible: (items,) where the goal is not -inf.
        """
        for number, source in enumerate(self.sources):
            what = self.listing.sources[number]
            if self.gradients[number] is not None or (
                isinstance(what, str) and what in self.listing.layout.shapes
            ):
                self.gradients[number] = torch.zeros(
                    source.shape, dtype=self.dtype, device=source.device
                )
        for number, place, inside, before in self.ends:
            into = self.gradients[number]
            assert into is not None
            given = torch.where(possible & inside & ~before, above.to(self.dtype), 0.0)
            if into.numel():
                into.view(-1).index_add_(0, place, given)
        for matrix in self.matrices:
            matrix.begin()
        for group in reversed(self.groups):
            # Rows are gathered again, which takes less time than keeping them takes memory.
            gathers = [
                each
                for each in group.operations
                if isinstance(each, _Gather) and self.made[each.slot] is None
            ]
            for operation in gathers:
                operation.up(self)
            for operation in reversed(group.operations):
                operation.down(self)
            for operation in gathers:
                self.made[operation.slot] = None
        for each in self.listing.series:
            each.down(self)
        for matrix in self.matrices:
            if matrix.wanted:
                matrix.finish(self)
        found: dict[str, Tensor] = {}
        for number, what in enumerate(self.listing.sources):
            gradient = self.gradients[number]
            if gradient is None or number in self.leaves or what not in self.run.inputs:
                continue
            assert isinstance(what, str)
            found[what] = gradient.view(self.run.inputs[what].shape)
        for number, (name, leaf, values) in self.leaves.items():
            gradient = self.gradients[number]
            if gradient is not None and values.requires_grad:
                (part,) = torch.autograd.grad(
                    values, leaf, gradient.to(values.dtype), retain_graph=True
                )
                found[name] = found[name] + part if name in found else part
        return found


def log_partition(
    program: Program, inputs: Mapping[str, Tensor], lengths: Mapping[str, Tensor | int],
    sizes: Mapping[str, int],
) -> Tensor:  # fmt: skip
    """(items,) log Z in nats, with all derivatives: `evaluation.evaluate`, in far less time.

    Second derivatives are those of the interpreter, and so is all that a matrix product may lose.
    """
    logs = {array.name: inputs[array.name] for array in program.inputs if not array.whole}

    def exact(*values: Tensor) -> Tensor:
        """The interpreter's, in float64 where there is one."""
        given = {**inputs, **dict(zip(logs, values, strict=True))}
        dtype = next((x.dtype for x in values), torch.float64)
        if dtype.itemsize < 8 and all(x.device.type != "mps" for x in values):
            given = {**given, **{name: given[name].double() for name in logs}}
        goal = evaluate(program, given, lengths, sizes, LogSum()).to(dtype)
        # Where no input has a part in it, as where all items are empty, its gradient is zero.
        for x in () if goal.requires_grad else (x for x in values if x.requires_grad):
            goal = torch.where(torch.ones_like(goal, dtype=torch.bool), goal, x.sum().to(goal))
        return goal

    wanted = [name for name, x in logs.items() if x.requires_grad and torch.is_grad_enabled()]
    if not _is_listed(program, logs, sizes):
        return exact(*logs.values())
    with torch.no_grad():
        given = {name: x.detach() for name, x in inputs.items()}
        sums = Sums(Run(program, given, lengths, sizes, LogSum()), wanted=wanted)
        value = sums.value()
    if not sums.sound:
        return exact(*logs.values())
    value = value.to(sums.run.like.dtype)
    if not wanted:
        return value
    found: Tensor = _PassLogPartition.apply(exact, sums, value, *logs.values())  # pyright: ignore
    return found


def _is_listed(program: Program, logs: Mapping[str, Tensor], sizes: Mapping[str, int]) -> bool:
    """Return whether operations can be listed: of real logs on a device that has float64.

    What data look up in tables is not listed.
    """
    return (
        bool(logs)
        and not program.is_listed
        and all(sizes.values())
        and all(x.is_floating_point() and x.device.type != "mps" for x in logs.values())
        and not is_transformed()
        and all(shape_of(program, table, sizes).is_plain for table in program.tables)
        and not any(program.table(read.array) for read, _, _ in program.lookups)
    )


class _PassLogPartition(torch.autograd.Function):
    """A finished pass upwards, and its gradient; derivatives of that are the interpreter's."""

    @staticmethod
    def forward(ctx: Any, exact: Any, sums: Sums, value: Tensor, *logs: Tensor) -> Tensor:
        ctx.exact, ctx.sums, ctx.possible = exact, sums, value > -math.inf
        ctx.save_for_backward(*logs)
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        (above,), logs = gradients, ctx.saved_tensors
        if torch.is_grad_enabled() or is_transformed(above):
            return None, None, None, *regradient(ctx.exact, logs, above)
        found = ctx.sums.down(above, ctx.possible)
        names = ctx.sums.run.inputs
        each = zip(names, logs, strict=True)
        return (
            None,
            None,
            None,
            *(found[name].to(x.dtype) if name in found else None for name, x in each),
        )
