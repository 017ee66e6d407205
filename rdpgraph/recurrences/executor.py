"""Recurrences by compiled code, on the CPU in float32 and float64.

An `Executable` has what follows from a program, and records for sizes that were seen. An
`_ExecutorState` has the numbers of all tables, relative to levels in float64 so that long
recurrences keep their digits; it is lent to one autograd node at a time and then to the next of the
same sizes.

First derivatives are compiled, too; those of derivatives come from the interpreter, and so does
every answer to a program that `lowering` has no stages for.
"""

import ctypes
import functools
import math
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rdpgraph._core.cache import cached_property
from rdpgraph._core.numbers import flushed
from rdpgraph.logspace.gradients import is_transformed, mean_scores, regradient
from rdpgraph.model.potentials.potential import checked_log_values
from rdpgraph.native import building
from rdpgraph.native.library import threads
from rdpgraph.native.loading import TypedLibrary
from rdpgraph.recurrences.affine import Affine
from rdpgraph.recurrences.derivations import Derived
from rdpgraph.recurrences.evaluation import evaluate
from rdpgraph.recurrences.lowering import UnloweredError, lower
from rdpgraph.recurrences.program import Program, Read
from rdpgraph.recurrences.records import RECORDS
from rdpgraph.recurrences.semirings import LogSum

_POINTER, _SIZE = ctypes.c_void_p, ctypes.c_int64
_SIGNATURES = {
    "work": (ctypes.c_double, [_POINTER]),
    "up": (_POINTER, [*[_POINTER] * 6, *[_SIZE] * 5, _POINTER, _POINTER, _SIZE, *[_POINTER] * 2]),
    "down": (None, [_POINTER] * 3),
    "along": (None, [*[_POINTER] * 3, _SIZE]),
    "second": (None, [_POINTER] * 2),
    "maxima": (None, [_POINTER] * 4),
    "descend": (_SIZE, [*[_POINTER] * 3, *[_SIZE] * 3]),
    "states": (None, [*[_POINTER] * 3, *[_SIZE] * 6, *[_POINTER] * 2]),
    "k_best_states": (None, [*[_POINTER] * 3, *[_SIZE] * 2, _POINTER, *[_SIZE] * 3, _POINTER]),
    "k_best": (_SIZE, [*[_POINTER] * 3, *[_SIZE] * 2, _POINTER]),
    "read": (None, [_POINTER] * 2),
    "release": (None, [_POINTER]),
}
"""The result and the arguments of each function, of which there is one for each dtype."""

_PLANS = 4096  # sizes whose records are kept: 40 microseconds to make, kilobytes to keep
_FEW_ITEMS = 64  # of a batch whose goals are kept: kilobytes
_IDLE = 4  # runs of a program and sizes that wait for the next call, and keep their memory
_IDLE_SIZES = 16  # programs and sizes of which runs wait
_IDLE_NUMBERS = 1 << 20  # numbers of a run that waits; larger ones take longer to fill than to make
_IDLE_INPUTS = 1 << 24  # numbers of its inputs, of which it holds copies: 64 MiB in float32


LIBRARY = TypedLibrary(building.RECURRENCES, _SIGNATURES, RECORDS)
_function = LIBRARY.function


def _address(numbers: "array[int]") -> int:
    return numbers.buffer_info()[0]


# ---- plans ----


@dataclass(frozen=True, eq=False)
class Records:
    """A program at some sizes.

    Attributes:
        numbers: the records one after the other; they outlive every run that reads them.
        size, levels: how many numbers an item's tables have, and how many levels: the logs of the
            scales by which parts of a table are divided.
        work: multiply-adds of an item, or so.
        at, level: where each table begins.
    """

    numbers: "array[int]"
    size: int
    levels: int
    work: float
    at: Mapping[str, int]
    level: Mapping[str, int]


@dataclass(frozen=True, eq=False)
class CallLayout:
    """A program at the shapes and lengths of a call.

    Attributes:
        records: at the sizes.
        items: how many.
        goals: where they are.
        steps: (goals, items) the steps that compute them.
        ends: (2, goals, items) their cells and levels; the cell is -1 where there is none, and -2
            where it is before the first one.
        checked: how many numbers each input has, 0 for whole numbers.
        apart: the bytes from one item's tables to the next one's, and likewise of each input.
    """

    records: Records
    items: int
    goals: tuple["Goal", ...]
    steps: Tensor
    ends: Tensor
    checked: "array[int]"
    apart: "array[int]"


class Executable:
    """A program as the executor takes it, and its records at the sizes that were seen."""

    def __init__(self, program: Program) -> None:
        """Lower a program; UnloweredError where the executor lacks a stage for it."""
        self.program, self.lowered = program, lower(program)
        self._known: dict[tuple[object, ...], Records] = {}
        self._layouts: dict[tuple[object, ...], CallLayout] = {}
        self.whole = tuple(one.whole for one in program.inputs)
        self.first = self.whole.index(False)  # the first input of logs

    def records(self, sizes: Mapping[str, int], strides: Sequence[int]) -> Records:
        """The records at some sizes, for inputs whose items are so many numbers apart."""
        key = (*(sizes[name] for name in self.lowered.sizes), *strides)
        known = self._known.get(key)
        if known is None:
            numbers = array("q", self.lowered.bind(*key))
            at, level, size, levels = {}, {}, 0, 0
            for name, (count, rows) in self.extents(sizes).items():
                at[name], level[name] = size, levels
                size, levels = size + count, levels + rows
            if len(self._known) >= _PLANS:
                self._known.clear()
                self._layouts.clear()
            work = _function("work", torch.float32)(_address(numbers))
            known = self._known[key] = Records(numbers, size, levels, work, at, level)
        return known

    def extents(self, sizes: Mapping[str, int]) -> dict[str, tuple[int, int]]:
        """How many numbers and levels each table has."""
        found: dict[str, tuple[int, int]] = {}
        for name, place in self.lowered.places.items():
            ends = {axis: size.evaluate(sizes) for axis, size in place.ends.items()}
            steps = place.steps.evaluate(sizes)
            # One level for a row, or without one for all places of the innermost axis.
            rows = place.axes if place.row else place.axes[:-1]
            found[name] = (
                steps * math.prod(ends[axis] for axis in (*place.axes, *place.row)),
                steps * math.prod(ends[axis] for axis in rows),
            )
        return found

    def layout(
        self, inputs: Sequence[Tensor], lengths: Mapping[str, Tensor | int],
        sizes: Mapping[str, int],
    ) -> CallLayout:  # fmt: skip
        """What depends on shapes and lengths; kept for some of the lengths of few items."""
        shapes = [x.shape for x in inputs]
        key: list[object] | None = [*shapes, *sizes.values(), inputs[self.first].dtype]
        for each in lengths.values():
            if not isinstance(each, Tensor):
                key.append(each)
            elif each.shape[0] <= _FEW_ITEMS:
                key.append(tuple(each.tolist()))
            else:
                key = None
                break
        found = self._layouts.get(tuple(key)) if key else None
        if found is None:
            with torch.inference_mode(mode=False):  # the next call may be outside of it
                found = self._laid_out(inputs, lengths, sizes)
            if key:
                if len(self._layouts) >= _PLANS:
                    self._layouts.clear()
                self._layouts[tuple(key)] = found
        return found

    def _laid_out(
        self, inputs: Sequence[Tensor], lengths: Mapping[str, Tensor | int],
        sizes: Mapping[str, int],
    ) -> CallLayout:  # fmt: skip
        counts = [x.shape[0] for x in inputs]
        items = max(counts + [x.shape[0] for x in lengths.values() if isinstance(x, Tensor)])
        numbers = [x.numel() for x in inputs]
        strides = [
            size // count if count > 1 else 0 for size, count in zip(numbers, counts, strict=True)
        ]
        records = self.records(sizes, strides)
        goals = tuple(
            self._goal(goal, lengths, sizes, records, items) for goal in self.program.goals
        )
        # Of an item without a cell nothing is read.
        cells = torch.stack([
            goal.cells.masked_fill(~goal.inside, -1).masked_fill(goal.before, -2) for goal in goals
        ])  # fmt: skip
        width = inputs[self.first].element_size()
        kinds = list(zip(numbers, strides, self.whole, strict=True))
        return CallLayout(
            records, items, goals,
            torch.stack([goal.steps for goal in goals]),
            torch.stack([cells, torch.stack([goal.rows for goal in goals])]),
            array("q", [0 if whole else size for size, _, whole in kinds]),
            array("q", [width * records.size, *((8 if w else width) * n for _, n, w in kinds)]),
        )  # fmt: skip

    def _goal(
        self, goal: Read, lengths: Mapping[str, Tensor | int], sizes: Mapping[str, int],
        records: Records, items: int,
    ) -> "Goal":  # fmt: skip
        """Where a goal's cell of each item is."""
        place = self.lowered.places[goal.array]
        table = place.table
        # In NumPy, whose calls on a few numbers take a third of torch's.
        values: dict[str, Any] = dict(sizes)
        for name, each in lengths.items():
            values[name] = each.numpy() if isinstance(each, Tensor) else each
        ends = {a: size.evaluate(sizes) for a, size in zip(table.axes, table.sizes, strict=True)}
        point: dict[str, Any] = {}
        inside, before = np.ones(items, np.bool_), np.ones(items, np.bool_)
        for axis, at in zip(table.axes, goal.index, strict=True):
            assert isinstance(at, Affine)
            index = np.asarray(_number(at, values))
            inside &= (index >= 0) & (index < ends[axis])
            if at.names:
                before &= index < 0
            point[axis] = np.minimum(np.maximum(index, 0), max(0, ends[axis] - 1))
        if not any(isinstance(at, Affine) and at.names for at in goal.index):
            before[:] = False
        for form in table.domain:
            inside &= np.asarray(_number(form, {**sizes, **point})) >= 0
        # The strides are those of tables: [step][places][label], and levels [step][rows].
        step = np.asarray(_number(table.order, {**sizes, **point}))
        cell = row = step if place.solved else 0
        for axis in place.axes:
            cell = cell * ends[axis] + point[axis]
        for axis in place.axes if place.row else place.axes[:-1]:
            row = row * ends[axis] + point[axis]
        item = np.arange(items)
        # Of an item without the cell any number is read, and left out.
        cells = np.where(inside, item * records.size + (records.at[goal.array] + cell), 0)
        rows = np.where(inside, item * records.levels + (records.level[goal.array] + row), 0)
        steps, plain = np.where(inside, step, -1), bool((inside & ~before).all())
        tensor = torch.from_numpy
        return Goal(
            tensor(cells), tensor(rows), tensor(steps), tensor(inside), tensor(before), plain,
            records.size,
        )  # fmt: skip


def _seed(generator: torch.Generator | None) -> int:
    device = "cpu" if generator is None else generator.device
    return int(torch.randint(2**62, (), generator=generator, device=device))


def _number(form: Affine, values: Mapping[str, Any]) -> Any:
    total: Any = form.constant
    for name, times in form.terms:
        total = total + values[name] * times
    return total


@dataclass(frozen=True, eq=False)
class Goal:
    """Where a goal is, for each item.

    Attributes:
        cells, rows: (items,) the places of its number among all values, and of its level.
        steps: (items,) the step that computes it; -1: none does.
        inside: (items,) whether it is a cell of its table.
        before: (items,) whether it is before the first cell, and so 1.
        plain: whether all are inside, and none is before.
        size: how many numbers an item's tables have.
    """

    cells: Tensor
    rows: Tensor
    steps: Tensor
    inside: Tensor
    before: Tensor
    plain: bool
    size: int

    def reached(self, possible: Tensor) -> Tensor:
        """(items,) whether derivations go through the goal, of the items that have any."""
        return possible if self.plain else possible & self.inside & ~self.before

    @cached_property
    def own_cells(self) -> Tensor:
        """(items,) the places of its cells in the tables of an item."""
        return self.cells - torch.arange(len(self.cells), device="cpu") * self.size

    def places(self, possible: Tensor) -> Tensor:
        """(items,) the places of its cells in the tables of an item, -1 for those not reached."""
        return torch.where(self.reached(possible), self.own_cells, -1)

    def cell_values(self, values: Tensor, possible: Tensor) -> Tensor:
        """(items,) what some values like those of tables have at the goals, 0 for those of none."""
        return torch.where(self.reached(possible), values.view(-1)[self.cells], 0.0)

    def add_to(self, values: Tensor, above: Tensor, possible: Tensor) -> None:
        """Add something to some values like those of tables, for each goal that is a cell."""
        above = torch.where(self.reached(possible), above.to(values), 0.0)
        values.view(-1).index_add_(0, self.cells, above)


@functools.lru_cache(maxsize=256)
def executable_of(program: Program) -> Executable | None:
    """The executable of a program; None where the executor lacks a stage for it."""
    try:
        return Executable(program)
    except UnloweredError:
        return None


def serves(program: Program, inputs: Sequence[Tensor], sizes: Mapping[str, int]) -> bool:
    """Return whether the executor answers a program with these inputs."""
    logs = [x for x in inputs if x.is_floating_point()]
    return (
        bool(logs)
        and all(x.device.type == "cpu" for x in inputs)
        and (all(sizes.values()) or all(size.evaluate(sizes) for size in program.ranges.values()))
        and executable_of(program) is not None
        and LIBRARY.available(logs[0].dtype)
    )


# ---- runs ----


class _ExecutorState:
    """The numbers and levels of all tables, and the executor's own state."""

    def __init__(self, dtype: torch.dtype, items: int, records: Records) -> None:
        self.dtype, self.handle = dtype, None
        # Tables of no cells have a number all the same, which goals outside of them read.
        with torch.inference_mode(mode=False):  # the next call of these sizes may be outside of it
            self.values = torch.empty(items, records.size or 1, dtype=dtype, device="cpu")
            self.levels = torch.empty(items, records.levels or 1, dtype=torch.float64, device="cpu")
        self.records = records
        self.found = array("q", [0, 0])  # whether inputs were unsound, and sums far from 0
        self.spare: dict[str, Tensor] = {}
        self.keep: tuple[Any, ...] = ()  # what the state points to
        self.inputs = 0  # numbers of inputs that are logs
        self.above: Tensor | None = None  # (items,) what the gradients of tables are there for

    def room(self, what: str) -> Tensor:
        """A tensor like that of the tables, for their gradients, means or losses."""
        if what not in self.spare:
            with torch.inference_mode(mode=False):
                self.spare[what] = torch.empty_like(self.values)
        return self.spare[what]

    def __del__(self) -> None:
        # The collector of cycles may call this before a lease puts the run among those that wait.
        handle, self.handle = self.handle, None
        if handle:
            _function("release", self.dtype)(handle)


class _Lease:
    """A run for as long as this is alive; then it waits for others of its kind."""

    idle: dict[tuple[object, ...], list[_ExecutorState]] = {}  # noqa: RUF012

    def __init__(
        self, key: tuple[object, ...], dtype: torch.dtype, items: int, records: Records
    ) -> None:
        waiting = self.idle.get(key)
        self.key = key
        self.run = waiting.pop() if waiting else _ExecutorState(dtype, items, records)

    def __del__(self) -> None:
        waiting = self.idle.setdefault(self.key, [])
        run = self.run
        is_small = run.values.numel() <= _IDLE_NUMBERS and run.inputs <= _IDLE_INPUTS
        if is_small and len(waiting) < _IDLE:
            waiting.append(run)
        while len(self.idle) > _IDLE_SIZES:
            self.idle.pop(next(iter(self.idle)))


@dataclass(frozen=True, eq=False)
class Upward:
    """A finished pass upwards.

    Attributes:
        inputs: contiguous, in the order of the program, whole numbers among them.
        value: (items,) the goal.
        sizes: by name.
        dtype: of the inputs that were given, whatever that of the pass.
    """

    executable: Executable
    lease: _Lease
    inputs: tuple[Tensor, ...]
    goals: tuple[Goal, ...]
    value: Tensor
    sizes: Mapping[str, int]
    dtype: torch.dtype

    @property
    def records(self) -> Records:
        """The program at the sizes of the inputs."""
        return self.lease.run.records

    @cached_property
    def possible(self) -> Tensor:
        """(items,) whether a goal is a cell, so that gradients go into it."""
        return self.value > -torch.inf


def run_up(
    program: Program, inputs: Sequence[Tensor], lengths: Mapping[str, Tensor | int],
    sizes: Mapping[str, int], *, best: bool, keep: bool = False,
) -> Upward:  # fmt: skip
    """Log-sums, or maxima, of all tables.

    Args:
        program: the recurrence.
        inputs: in its order.
        lengths: by name.
        sizes: by name.
        best: whether maxima are asked for.
        keep: whether gradients or draws are asked for next, for which more is kept.

    Raises:
        ModelError: an input has a NaN or +inf.
    """
    executable = executable_of(program)
    assert executable is not None
    inputs = tuple(x.detach().contiguous() for x in inputs)
    layout = executable.layout(inputs, lengths, sizes)
    records, items, dtype = layout.records, layout.items, inputs[executable.first].dtype
    lease = _Lease((id(executable), id(records), items, dtype, best), dtype, items, records)
    run = lease.run
    value = torch.empty(items, dtype=dtype, device="cpu")
    data = _pointers([run.values, *inputs])
    # The state keeps what it was given, so that stays alive with it.
    run.keep, run.above, run.inputs = (layout, records), None, sum(layout.checked)
    cells, found = layout.ends.data_ptr(), _address(run.found)
    run.handle = _function("up", dtype)(
        _address(records.numbers), _address(data), run.levels.data_ptr(), layout.steps.data_ptr(),
        _address(layout.apart), _address(layout.checked), len(layout.checked), items, int(best),
        threads(records.work * items), int(keep), run.handle, cells, len(layout.goals),
        value.data_ptr(), found,
    )  # fmt: skip
    unsound, far = run.found
    if unsound:
        for one, values in zip(program.inputs, inputs, strict=True):
            if not one.whole:
                checked_log_values(f"{program.name}'s {one.name}", values)
    if dtype == torch.float32 and far:
        # Sums of numbers so far apart keep their digits in float64.
        wide = [x.double() if x.is_floating_point() else x for x in inputs]
        up = run_up(program, wide, lengths, sizes, best=False, keep=keep)
        return replace(up, value=up.value.to(dtype), dtype=dtype)
    return Upward(executable, lease, inputs, layout.goals, value, sizes, dtype)


def _pointers(tensors: Sequence[Tensor | None]) -> "array[int]":
    """Addresses of tensors, which must outlive their use; 0 for None."""
    return array("q", [0 if x is None else x.data_ptr() for x in tensors])


def run_down(
    up: Upward, above: Tensor, wanted: Sequence[bool], rows: tuple[str, Tensor] | None = None
) -> list[Tensor | None]:
    """The gradients of the goal in inputs, each summed over items where these share it.

    Args:
        up: a pass of log-sums.
        above: (items,) the gradient of something in the goal.
        wanted: of which inputs.
        rows: a table, and the gradient of it in its `rows_of`, which is added.
    """
    run, possible = up.lease.run, up.possible
    below = run.room("gradients").zero_()
    for goal in up.goals:
        goal.add_to(below, above, possible)
    if rows is not None:
        _rows_in(up, below, rows[0]).add_(rows[1])
    gradients, run.above = _zeros(up, wanted), None
    data, grads = _pointers([run.values, *up.inputs]), _pointers([below, *gradients])
    _function("down", run.dtype)(run.handle, _address(data), _address(grads))
    run.above = None if rows is not None else above.to(run.dtype, copy=True)
    if run.dtype == up.dtype:
        return gradients
    return [x if x is None else flushed(x.to(up.dtype)) for x in gradients]


def rows_of(up: Upward, table: str) -> Tensor:
    """(items, steps, labels) the rows of a table of one axis beside its labels, each up to a shift.

    Args:
        up: a pass upwards.
        table: whose cells are computed in the order of the axis, from its first one on.
    """
    rows = _rows_in(up, up.lease.run.values, table)
    _, count = up.executable.extents(up.sizes)[table]
    many = count // rows.shape[1]
    if many > 1:  # several rows of a step, each with a level of its own
        start = up.records.level[table]
        levels = up.lease.run.levels[:, start : start + count].unflatten(1, (-1, many))
        levels = (levels - levels.amax(2, keepdim=True)).to(rows)
        rows = (rows.unflatten(2, (many, -1)) + levels.unsqueeze(3)).flatten(2)
    return rows.to(up.dtype)


def _rows_in(up: Upward, values: Tensor, table: str) -> Tensor:
    """The part of values like those of tables that a table has, (items, steps, labels)."""
    count, _ = up.executable.extents(up.sizes)[table]
    start, steps = up.records.at[table], up.executable.lowered.places[table].steps
    return values[:, start : start + count].unflatten(1, (steps.evaluate(up.sizes), -1))


def _zeros(up: Upward, wanted: Sequence[bool]) -> list[Tensor | None]:
    """Zeros in the shapes of the inputs that are wanted."""
    return [torch.zeros_like(x) if use else None for x, use in zip(up.inputs, wanted, strict=True)]


@torch.no_grad()
def mean_along(up: Upward, said: Sequence[Tensor | None]) -> Tensor:
    """(items,) the mean over derivations of the sum of what is said of each entry that is read.

    Of the inputs' own logs it is the mean score, of any other a derivative along a direction.

    Args:
        up: a pass of log-sums.
        said: of each input, in its shape, finite; None: nothing.
    """
    said = [None if x is None else x.to(up.lease.run.dtype).contiguous() for x in said]
    return _along(up, said, entropic=False)


@torch.no_grad()
def entropies(up: Upward) -> Tensor:
    """(items,) the entropies of derivations in nats, 0 where there is none.

    Args:
        up: a pass of log-sums.
    """
    return _along(up, [None] * len(up.inputs), entropic=True)


def _along(up: Upward, said: Sequence[Tensor | None], *, entropic: bool) -> Tensor:
    """(items,) a mean over derivations, of what is said or of minus the log of their shares."""
    run, means = up.lease.run, up.lease.run.room("means")
    data, moves = _pointers([run.values, *up.inputs]), _pointers([means, *said])
    _function("along", run.dtype)(run.handle, _address(data), _address(moves), int(entropic))
    return torch.stack([goal.cell_values(means, up.possible) for goal in up.goals]).sum(0)


@dataclass(frozen=True, eq=False)
class Second:
    """The derivative of a gradient along a direction.

    Attributes:
        means: (items,) the derivatives of the goal along the direction.
        gradients: of the goal in inputs, as from `run_down`; none, unless they are asked for.
        turns: their derivatives along the direction.
    """

    means: Tensor
    gradients: list[Tensor | None]
    turns: list[Tensor | None]

    def to(self, dtype: torch.dtype) -> "Second":
        """The same in a dtype."""
        first, second = (
            [None if x is None else flushed(x.to(dtype)) for x in each]
            for each in (self.gradients, self.turns)
        )
        return Second(self.means.to(dtype), first, second)


@torch.no_grad()
def run_second(
    up: Upward, said: Sequence[Tensor | None], above: Tensor, more: Tensor | None,
    wanted: Sequence[bool], *, first: bool,
) -> Second:  # fmt: skip
    """The second derivatives of the goal along a direction, in float64 accurately.

    Args:
        up: a pass of log-sums.
        said: the direction, as for `mean_along`.
        above: (items,) the gradient of something in the goal, as for `run_down`.
        more: (items,) its derivative, so that its product with the gradient is added to the turns.
        wanted: of which inputs.
        first: whether gradients are asked for, too.
    """
    said = [None if x is None else x.contiguous() for x in said]
    means, run = mean_along(up, said), up.lease.run
    gradients: list[Tensor | None] = [None] * len(wanted)
    # The gradients of tables may be there, from a way down for the same.
    known = run.above is not None and torch.equal(run.above, above.to(run.dtype))
    if first or not known:
        gradients = run_down(up, above, wanted if first else [False] * len(wanted))
    below, turns = run.room("seconds").zero_(), _zeros(up, wanted)
    for goal in up.goals:
        if more is not None:
            goal.add_to(below, more, up.possible)
    seconds = _pointers([below, *turns])
    _function("second", run.dtype)(run.handle, _address(seconds))
    return Second(means, gradients, turns)


@torch.no_grad()
def best_with(up: Upward | Derived, only: int | None = None) -> list[Tensor | None]:
    """The best score of a derivation that uses each entry: (items, *dims) of each input of logs.

    -inf where none does. None for inputs of whole numbers.

    Args:
        up: a pass of maxima.
        only: the number of an input, from 0 on; of others None is given.
    """
    if isinstance(up, Derived):
        return up.best_with()
    run, items = up.lease.run, len(up.value)
    below = run.room("losses").fill_(-torch.inf)
    for goal in up.goals:
        below.view(-1)[goal.cells[goal.reached(up.possible)]] = 0.0
    losses = [
        x.new_full((items, *x.shape[1:]), -torch.inf)
        if x.is_floating_point() and only in (None, number)
        else None
        for number, x in enumerate(up.inputs)
    ]
    each = [below, *losses]
    apart = array("q", [0 if x is None else x.stride(0) * x.element_size() for x in each])
    data, lost = _pointers([run.values, *up.inputs]), _pointers(each)
    _function("maxima", run.dtype)(run.handle, _address(data), _address(lost), _address(apart))
    # What nothing uses has lost everything; impossible items have used nothing.
    best = torch.where(up.possible, up.value, 0.0)
    return [x if x is None else x.add_(best.view(-1, *[1] * (x.ndim - 1))) for x in losses]


@torch.no_grad()
def derivations(
    up: Upward | Derived, count: int | None, generator: torch.Generator | None
) -> Tensor:
    """(R, 4) what derivations read: the draw, the item, the input's number, the place in its item.

    Inputs are numbered from 1 on.

    Args:
        up: a pass of maxima for the best derivation, of log-sums for draws.
        count: how many draws of each item; None: the best derivation.
        generator: of the draws.
    """
    if isinstance(up, Derived):
        return up.derivations(count, generator)
    run, items = up.lease.run, len(up.value)
    draws, seed = 1 if count is None else count, 0
    if count is not None:
        seed = _seed(generator)
    data = _pointers([run.values, *up.inputs])
    found: list[Tensor] = []
    for goal in up.goals:
        cells = goal.places(up.possible)
        many = _function("descend", run.dtype)(
            run.handle, _address(data), cells.data_ptr(), draws, int(count is None), seed
        )
        found.append(_reads(run, many))
        seed += draws * items
    return torch.cat(found)


@torch.no_grad()
def states(
    up: Upward, number: int, count: int | None, generator: torch.Generator | None,
    noise: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """(draws, items, *sites) the last index of the entries that derivations use of an input.

    -1 where they use none of a site.

    Args:
        up: a pass of maxima for the best derivation, of log-sums for draws.
        number: of the input, from 0 on.
        count: how many draws of each item; None: the best derivation.
        generator: of the draws.
        noise: (draws, items, *sites, width), to be added to the entries of the input where they are
            chosen; the largest sums are taken. Where one label is chosen at a time, as in chains.
    """
    run, items, draws = up.lease.run, len(up.value), 1 if count is None else count
    seed = 0 if count is None or noise is not None else _seed(generator)
    noise = None if noise is None else noise.detach().to(run.dtype).contiguous()
    *sites, width = up.inputs[number].shape[1:]
    found = torch.full((draws, items, *sites), -1, device="cpu")
    data = _pointers([run.values, *up.inputs])
    for goal in up.goals:
        cells = goal.places(up.possible)
        _function("states", run.dtype)(
            run.handle, _address(data), cells.data_ptr(), draws, int(count is None), seed,
            number + 1, width, math.prod(sites), None if noise is None else noise.data_ptr(),
            found.data_ptr(),
        )  # fmt: skip
        seed += draws * items
    return found


@torch.no_grad()
def best_states(up: Upward, number: int, count: int) -> Tensor:
    """(count, items, *sites) the states of an input's sites in the best derivations, best first.

    -1 where they use none of a site, and where there are fewer.
    """
    if count == 1:
        return states(up, number, None, None)
    run, found = up.lease.run, up.possible.long()
    *sites, width = up.inputs[number].shape[1:]
    best = torch.full((count, len(found), *sites), -1, device="cpu")
    cells = torch.stack([goal.places(up.possible) for goal in up.goals])
    data = _pointers([run.values, *up.inputs])
    _function("k_best_states", run.dtype)(
        run.handle, _address(data), cells.data_ptr(), len(cells), count, found.data_ptr(),
        number + 1, width, math.prod(sites), best.data_ptr(),
    )  # fmt: skip
    return best


@torch.no_grad()
def best_derivations(up: Upward | Derived, count: int) -> tuple[Tensor, Tensor]:
    """What the best derivations read, and (items,) how many there are, at most ``count``.

    By lazy lists of cells (Huang and Chiang 2005, algorithm 3). Reads are those of `derivations`,
    with the rank of a derivation in place of the draw. Ties are broken in a fixed order.

    Args:
        up: a pass of maxima.
        count: how many derivations of each item are asked for.
    """
    if isinstance(up, Derived):
        return up.best_derivations(count)
    if count == 1:
        return derivations(up, None, None), up.possible.long()
    run, found = up.lease.run, up.possible.long()
    cells = torch.stack([goal.places(up.possible) for goal in up.goals])
    data = _pointers([run.values, *up.inputs])
    many = _function("k_best", run.dtype)(
        run.handle, _address(data), cells.data_ptr(), len(cells), count, found.data_ptr()
    )
    return _reads(run, many), found


def count_uses(up: Upward | Derived, reads: Tensor, count: int) -> list[Tensor | None]:
    """How often each of ``count`` derivations uses each entry: (count, items, *dims) of each input.

    None for inputs of whole numbers. ``reads`` are those of `derivations` or `best_derivations`.
    """
    made: list[Tensor | None] = []
    for number, values in enumerate(up.inputs, 1):
        if not values.is_floating_point():
            made.append(None)
            continue
        shape = count, len(up.value), *values.shape[1:]
        derivation, item, _, at = reads[reads[:, 2] == number].T
        place = (derivation * shape[1] + item) * values.shape[1:].numel() + at
        made.append(torch.bincount(place, minlength=math.prod(shape)).view(shape))
    return made


def score_reads(inputs: Sequence[Tensor], reads: Tensor, count: int, items: int) -> Tensor:
    """(count, items) the sums of the entries that derivations read, in float64; differentiable.

    Args:
        inputs: as they were given to `run_up`, or of other numbers.
        reads: from `derivations` or `best_derivations`.
        count: how many derivations each item has.
        items: how many there are.
    """
    logs = [x for x in inputs if x.is_floating_point()]
    scores = logs[0].new_zeros(count * items, dtype=torch.float64)
    for number, values in enumerate(inputs, 1):
        if values.is_floating_point():
            derivation, item, _, at = reads[reads[:, 2] == number].T
            place = item * values.shape[1:].numel() + at if len(values) > 1 else at
            entries = values.reshape(-1).index_select(0, place).double()
            scores = scores.index_add(0, derivation * items + item, entries)
    return scores.view(count, items)


def in_order(reads: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
    """The best derivations in the order of their scores, which were rounded when they were found.

    Args:
        reads: from `best_derivations`.
        scores: (count, items) those of `score_reads`, -inf where there is no derivation.
    """
    if not bool((scores[1:] > scores[:-1]).any()):
        return reads, scores
    order = scores.detach().argsort(dim=0, descending=True, stable=True)
    ranks = order.argsort(dim=0)[reads[:, 0], reads[:, 1]]
    return torch.cat([ranks.unsqueeze(1), reads[:, 1:]], 1), scores.gather(0, order)


def _reads(run: _ExecutorState, many: int) -> Tensor:
    """What the library has noted last."""
    reads = torch.empty(many, 4, dtype=torch.int64, device="cpu")
    _function("read", run.dtype)(run.handle, reads.data_ptr())
    return reads


# ---- derivatives ----


@dataclass(frozen=True, eq=False)
class _Call:
    """What is asked for, beside the tensors that derivatives are taken in."""

    program: Program
    lengths: Mapping[str, Tensor | int]
    sizes: Mapping[str, int]

    def run_up(self, inputs: Sequence[Tensor], *, keep: bool = True) -> Upward:
        """A pass of log-sums."""
        return run_up(self.program, inputs, self.lengths, self.sizes, best=False, keep=keep)

    def interpreted(self, *inputs: Tensor) -> Tensor:
        """(items,) log Z by the interpreter, which has all derivatives."""
        given = {array.name: x for array, x in zip(self.program.inputs, inputs, strict=True)}
        return evaluate(self.program, given, self.lengths, self.sizes, LogSum())

    def interpreted_gradients(self, above: Tensor, *inputs: Tensor) -> list[Tensor]:
        """The gradients in all inputs that need one, given that of log Z."""
        found = regradient(self.interpreted, inputs, above)
        return [x for x in found if x is not None]

    def interpreted_mean(self, *tensors: Tensor) -> tuple[Tensor, Tensor]:
        """(items,) log Z and mean scores, of inputs and then what is said of those of logs."""
        inputs, said = self.divide(tensors)
        logs = [x for x in inputs if x.is_floating_point()]

        def log_partition(*values: Tensor) -> Tensor:
            each = iter(values)
            return self.interpreted(*(next(each) if x.is_floating_point() else x for x in inputs))

        return mean_scores(log_partition, logs, [x for x in said if x is not None])

    def interpreted_entropy(self, *inputs: Tensor) -> Tensor:
        """(items,) entropies, which have all derivatives."""
        log_z, mean = self.interpreted_mean(*inputs, *_scores(inputs))
        return torch.where(log_z > -torch.inf, log_z - mean, 0.0)

    def divide(self, tensors: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor | None]]:
        """The inputs, and what is said of each; nothing is said of whole numbers."""
        count = len(self.program.inputs)
        each = iter(tensors[count:])
        said = [None if array.whole else next(each) for array in self.program.inputs]
        return [*tensors[:count]], said

    def second(
        self, up: Upward, said: Sequence[Tensor | None], above: Tensor, more: Tensor | None,
        wanted: Sequence[bool], *, first: bool,
    ) -> Second:  # fmt: skip
        """`run_second` in float64, in which differences of derivatives keep their digits."""
        dtype = up.value.dtype
        if dtype == torch.float64:
            return run_second(up, said, above, more, wanted, first=first)
        inputs = [x.double() if x.is_floating_point() else x for x in up.inputs]
        return run_second(
            self.run_up(inputs), [None if x is None else x.double() for x in said],
            above.double(), None if more is None else more.double(), wanted, first=first,
        ).to(dtype)  # fmt: skip


class _LogPartition(torch.autograd.Function):
    """The goal, whose gradient is a `_Gradient`."""

    @staticmethod
    def forward(ctx: Any, call: _Call, *inputs: Tensor) -> Tensor:
        ctx.call, ctx.up = call, call.run_up(inputs, keep=any(ctx.needs_input_grad))
        ctx.save_for_backward(*inputs)
        return ctx.up.value.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        (above,), call = gradients, ctx.call
        inputs = ctx.saved_tensors  # torch refuses where one was written to since
        wanted = ctx.needs_input_grad[1:]
        if is_transformed(above):
            return None, *regradient(call.interpreted, inputs, above)
        if not torch.is_grad_enabled():
            return None, *run_down(ctx.up, above, wanted)
        each = iter(_Gradient.apply(call, ctx.up, wanted, above, *inputs))  # pyright: ignore
        return None, *(next(each) if use else None for use in wanted)


class _Gradient(torch.autograd.Function):
    """The gradients of the goal in the inputs that are wanted.

    Derivatives of their derivatives come from the interpreter.
    """

    @staticmethod
    def forward(
        ctx: Any, call: _Call, up: Upward, wanted: Sequence[bool], above: Tensor, *inputs: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.call, ctx.up, ctx.wanted = call, up, wanted
        ctx.set_materialize_grads(False)  # what nothing depends on is no direction
        ctx.save_for_backward(above, *inputs)
        return tuple(x for x in run_down(up, above, wanted) if x is not None)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        above, *inputs = ctx.saved_tensors
        each = iter(gradients)
        said = [next(each) if use else None for use in ctx.wanted]
        if torch.is_grad_enabled() or is_transformed(*gradients):
            again, pairs = ctx.call.interpreted_gradients, zip(inputs, said, strict=True)
            made = [torch.zeros_like(x) if one is None else one for x, one in pairs]
            made = [one for one, use in zip(made, ctx.wanted, strict=True) if use]
            return None, None, None, *regradient(again, (above, *inputs), *made)
        wanted = ctx.needs_input_grad[4:]
        found = ctx.call.second(ctx.up, said, above, None, wanted, first=False)
        return None, None, None, found.means, *found.turns


class _Mean(torch.autograd.Function):
    """The goal, and the mean over derivations of what is said of the entries that they read."""

    @staticmethod
    def forward(ctx: Any, call: _Call, *tensors: Tensor) -> tuple[Tensor, Tensor]:
        inputs, said = call.divide(tensors)
        ctx.call, ctx.up = call, call.run_up(inputs)
        ctx.save_for_backward(*tensors)
        return ctx.up.value.clone(), mean_along(ctx.up, said).to(ctx.up.value)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        call, (of_goal, of_mean), tensors = ctx.call, gradients, ctx.saved_tensors
        if torch.is_grad_enabled() or is_transformed(*gradients):
            return None, *regradient(call.interpreted_mean, tensors, of_goal, of_mean)
        inputs, said = call.divide(tensors)
        wanted = [x.is_floating_point() for x in inputs]
        # The mean is the derivative of the goal along what is said. So its gradient in what is said
        # is the goal's, and its gradient in the inputs is the derivative of that.
        found = call.second(ctx.up, said, of_mean, of_goal, wanted, first=True)
        return None, *found.turns, *(x for x in found.gradients if x is not None)


class _EntropyOfDerivations(torch.autograd.Function):
    """The entropies of derivations.

    They are log Z less the mean score, which is the derivative of log Z along the scores. So the
    gradient is minus the derivative of that of log Z along them.
    """

    @staticmethod
    def forward(ctx: Any, call: _Call, *inputs: Tensor) -> Tensor:
        ctx.call, ctx.up = call, call.run_up(inputs)
        ctx.save_for_backward(*inputs)
        return entropies(ctx.up).to(ctx.up.value)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        call, (above,), inputs = ctx.call, gradients, ctx.saved_tensors
        if torch.is_grad_enabled() or is_transformed(above):
            return None, *regradient(call.interpreted_entropy, inputs, above)
        scores = iter(_scores(inputs))
        said = [None if array.whole else next(scores) for array in call.program.inputs]
        found = call.second(ctx.up, said, -above, None, ctx.needs_input_grad[1:], first=False)
        return None, *found.turns


def _scores(inputs: Sequence[Tensor]) -> list[Tensor]:
    """The inputs of logs, with 0 for what is absent, which no derivation reads."""
    logs = [x for x in inputs if x.is_floating_point()]
    return [torch.where(x > -torch.inf, x, 0.0) for x in logs]


def entropy(
    program: Program, lengths: Mapping[str, Tensor | int], sizes: Mapping[str, int],
    inputs: Sequence[Tensor],
) -> Tensor:  # fmt: skip
    """(items,) the entropies of derivations in nats; 0 where there is none. Differentiable."""
    value: Tensor = _EntropyOfDerivations.apply(_Call(program, lengths, sizes), *inputs)  # pyright: ignore
    return value


def log_partition(
    program: Program, lengths: Mapping[str, Tensor | int], sizes: Mapping[str, int],
    inputs: Sequence[Tensor],
) -> Tensor:  # fmt: skip
    """(items,) log Z in nats, of a program that the executor serves. All derivatives exist."""
    value: Tensor = _LogPartition.apply(_Call(program, lengths, sizes), *inputs)  # pyright: ignore
    return value


def mean_score(
    program: Program, lengths: Mapping[str, Tensor | int], sizes: Mapping[str, int],
    inputs: Sequence[Tensor], said: Sequence[Tensor],
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """(items,) log Z, and the mean over derivations of the sum of what is said of their entries.

    All derivatives exist, in the inputs and in what is said, of each input of logs in its shape.
    """
    call = _Call(program, lengths, sizes)
    found: tuple[Tensor, Tensor] = _Mean.apply(call, *inputs, *said)  # pyright: ignore
    return found
