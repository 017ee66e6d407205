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
from rdpgraph.logspace.gradients import is_transformed, mean_scores, regradient
from rdpgraph.logspace.logmatrix import finite
from rdpgraph.model.potentials.potential import checked_log_values
from rdpgraph.native import building
from rdpgraph.native.loading import TypedLibrary
from rdpgraph.native.records import numbers as numbers_of
from rdpgraph.recurrences.affine import Affine
from rdpgraph.recurrences.derivations import Derived
from rdpgraph.recurrences.evaluation import evaluate
from rdpgraph.recurrences.lowering import UnloweredError, lower
from rdpgraph.recurrences.program import Program, Read
from rdpgraph.recurrences.records import RECORDS, Call
from rdpgraph.recurrences.semirings import LogSum

_POINTER, _SIZE = ctypes.c_void_p, ctypes.c_int64
_SIGNATURES = {
    "work": (ctypes.c_double, [_POINTER]),
    "up": (_POINTER, [*[_POINTER] * 3, *[_SIZE] * 3, *[_POINTER] * 3]),
    "down": (None, [_POINTER] * 4),
    "along": (None, [*[_POINTER] * 4, *[_SIZE] * 2]),
    "second": (None, [_POINTER] * 3),
    "maxima": (None, [_POINTER] * 4),
    "descend": (_SIZE, [*[_POINTER] * 2, *[_SIZE] * 3]),
    "states": (None, [*[_POINTER] * 2, *[_SIZE] * 6, *[_POINTER] * 2]),
    "k_best_states": (None, [*[_POINTER] * 2, *[_SIZE] * 4, *[_POINTER] * 2]),
    "k_best": (_SIZE, [*[_POINTER] * 2, _SIZE, _POINTER]),
    "read": (None, [_POINTER] * 2),
    "narrow": (None, [_POINTER, _POINTER, _SIZE]),
    "release": (None, [_POINTER]),
}
"""The result and the arguments of each function, of which there is one for each dtype."""

_PLANS = 4096  # sizes whose records are kept: 40 microseconds to make, kilobytes to keep
_FEW_ITEMS = 64  # of a batch whose layout is kept for its lengths: kilobytes
_WORK_OF_A_THREAD = 2**18  # multiply-adds that are worth one
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
    """A program at the shapes and lengths of a call, and how it is answered in a dtype.

    Attributes:
        executable: the program.
        sizes: of the inputs, by name.
        lengths: (items,) whole numbers by name, or one for all.
        counts: how many items each input has: all, or 1 where they share it.
        dtype: of the inputs of logs.
        records: at the sizes.
        items: how many.
        steps: (goals, items) the steps that compute the goals.
        ends: (2, goals, items) their cells and levels; the cell is -1 where there is none, and -2
            where it is before the first one.
        checked: how many numbers each input has, 0 for whole numbers.
        apart: the bytes from one item's tables to the next one's, and likewise of each input.
        threads: how many the work is worth.
    """

    executable: "Executable"
    sizes: Mapping[str, int]
    lengths: Mapping[str, Tensor | int]
    counts: tuple[int, ...]
    dtype: torch.dtype
    records: Records
    items: int
    steps: Tensor
    ends: Tensor
    checked: "array[int]"
    apart: "array[int]"
    threads: int

    @cached_property
    def call(self) -> "array[int]":
        """The record of it; what it points to is held by this."""
        parts = self.records.numbers, self.apart, self.checked
        numbers, apart, checked = map(_address, parts)
        ends = self.steps.data_ptr(), self.ends.data_ptr()
        call = Call(numbers, *ends, apart, checked, len(self.counts), self.items, len(self.steps))
        return array("q", numbers_of(call))

    @cached_property
    def numbers(self) -> int:
        """How many numbers the inputs of logs have."""
        return sum(self.checked)

    @cached_property
    def wide(self) -> "CallLayout":
        """The same in float64."""
        return self.executable.layout(self.counts, self.lengths, self.sizes, torch.float64)

    def interpreted(self, *inputs: Tensor) -> Tensor:
        """(items,) log Z by the interpreter, which has all derivatives."""
        program = self.executable.program
        given = {
            array.name: x.reshape(count, *(dim.evaluate(self.sizes) for dim in array.dims))
            for array, x, count in zip(program.inputs, inputs, self.counts, strict=True)
        }
        return evaluate(program, given, self.lengths, self.sizes, LogSum())

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
        scores = [finite(x) for x in inputs if x.is_floating_point()]
        log_z, mean = self.interpreted_mean(*inputs, *scores)
        return torch.where(log_z > -torch.inf, log_z - mean, 0.0)

    def divide(self, tensors: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor | None]]:
        """The inputs, and what is said of each; nothing is said of whole numbers."""
        whole = self.executable.whole
        each = iter(tensors[len(whole) :])
        return [*tensors[: len(whole)]], [None if one else next(each) for one in whole]


class Executable:
    """A program as the executor takes it, and its records at the sizes that were seen."""

    def __init__(self, program: Program) -> None:
        """Lower a program; UnloweredError where the executor lacks a stage for it."""
        self.program, self.lowered = program, lower(program)
        self._known: dict[tuple[object, ...], Records] = {}
        self._layouts: dict[tuple[object, ...], CallLayout] = {}
        self.whole = tuple(one.whole for one in program.inputs)

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

    def kept_layout(
        self, counts: tuple[int, ...], lengths: Mapping[str, Tensor | int],
        sizes: Mapping[str, int], dtype: torch.dtype,
    ) -> CallLayout:  # fmt: skip
        """A `layout` that is kept, for some of the lengths of few items."""
        key: list[object] = [dtype, *counts, *sizes.values()]
        for each in lengths.values():
            if not isinstance(each, Tensor):
                key.append(each)
            elif each.shape[0] <= _FEW_ITEMS:
                key.append(tuple(each.tolist()))
            else:
                return self.layout(counts, lengths, sizes, dtype)
        found = self._layouts.get(tuple(key))
        if found is None:
            if len(self._layouts) >= _PLANS:
                self._layouts.clear()
            found = self._layouts[tuple(key)] = self.layout(counts, lengths, sizes, dtype)
        return found

    def layout(
        self, counts: tuple[int, ...], lengths: Mapping[str, Tensor | int],
        sizes: Mapping[str, int], dtype: torch.dtype,
    ) -> CallLayout:  # fmt: skip
        """What depends on the shapes of inputs, of which so many items are given, and on lengths.

        Lengths are copied: a layout that is kept has those that it was made for.
        """
        with torch.inference_mode(mode=False):  # the next call may be outside of it
            lengths = {k: x.clone() if isinstance(x, Tensor) else x for k, x in lengths.items()}
            return self._laid_out(counts, lengths, sizes, dtype)

    def _laid_out(
        self, counts: tuple[int, ...], lengths: Mapping[str, Tensor | int],
        sizes: Mapping[str, int], dtype: torch.dtype,
    ) -> CallLayout:  # fmt: skip
        # How many numbers an item has of each input, and how far apart two items are.
        given = zip(self.program.inputs, counts, strict=True)
        each = [(math.prod(dim.evaluate(sizes) for dim in one.dims), n) for one, n in given]
        strides = [size if count > 1 else 0 for size, count in each]
        items = max([*counts, *(len(x) for x in lengths.values() if isinstance(x, Tensor))])
        records = self.records(sizes, strides)
        goals = [self._goal(goal, lengths, sizes, records, items) for goal in self.program.goals]
        steps, cells, rows = (torch.from_numpy(np.stack(part)) for part in zip(*goals, strict=True))
        width, kinds = dtype.itemsize, zip(each, strides, self.whole, strict=True)
        return CallLayout(
            self, dict(sizes), lengths, counts, dtype, records, items, steps,
            torch.stack([cells, rows]),
            array("q", [0 if w else size * n for (size, n), _, w in kinds]),
            array("q", [
                width * records.size,
                *((8 if w else width) * n for n, w in zip(strides, self.whole, strict=True)),
            ]),
            max(1, int(records.work * items) // _WORK_OF_A_THREAD),
        )  # fmt: skip

    def _goal(
        self, goal: Read, lengths: Mapping[str, Tensor | int], sizes: Mapping[str, int],
        records: Records, items: int,
    ) -> tuple[Any, Any, Any]:  # fmt: skip
        """(items,) the steps of a goal, its cells and its levels, as `CallLayout` has them."""
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
        cells = item * records.size + (records.at[goal.array] + cell)
        rows = item * records.levels + (records.level[goal.array] + row)
        cells = np.where(before, -2, np.where(inside, cells, -1))
        return np.where(inside, step, -1), cells, np.where(inside, rows, 0)


def _seed(generator: torch.Generator | None) -> int:
    device = "cpu" if generator is None else generator.device
    return int(torch.randint(2**62, (), generator=generator, device=device))


def _number(form: Affine, values: Mapping[str, Any]) -> Any:
    total: Any = form.constant
    for name, times in form.terms:
        total = total + values[name] * times
    return total


@functools.lru_cache(maxsize=256)
def executable_of(program: Program) -> Executable | None:
    """The executable of a program; None where the executor lacks a stage for it."""
    try:
        return Executable(program)
    except UnloweredError:
        return None


def serves(program: Program, sizes: Mapping[str, int]) -> Executable | None:
    """What answers a program at some sizes, on the CPU in the dtypes of `is_available`; or None."""
    possible = all(sizes.values()) or all(x.evaluate(sizes) for x in program.ranges.values())
    if not possible or all(array.whole for array in program.inputs):
        return None
    return executable_of(program)


# ---- runs ----


class _ExecutorState:
    """The numbers and levels of all tables, and the executor's own state."""

    def __init__(self, records: Records, items: int, dtype: torch.dtype) -> None:
        self.dtype, self.handle = dtype, None
        # Tables of no cells have a number all the same, which goals outside of them read.
        with torch.inference_mode(mode=False):  # the next call of these sizes may be outside of it
            self.values = torch.empty(items, records.size or 1, dtype=dtype, device="cpu")
            self.levels = torch.empty(items, records.levels or 1, dtype=torch.float64, device="cpu")
        self.records = records
        self.found = array("q", [0, 0])  # whether inputs were unsound, and sums far from 0
        self.spare: dict[str, Tensor] = {}
        self.keep: CallLayout | None = None  # what the state points to
        self.said: list[Tensor | None] | None = None  # the direction that its means are along
        self.alongs = 0  # passes along a direction, of which the means of the last one are there
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

    def __init__(self, layout: CallLayout, *, best: bool) -> None:
        self.key = (layout.records, layout.items, layout.dtype, best)
        waiting = self.idle.get(self.key)
        try:
            self.run = waiting.pop() if waiting else _ExecutorState(*self.key[:3])
        except IndexError:  # another thread took it
            self.run = _ExecutorState(*self.key[:3])

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
        layout: what was computed.
        lease: the run that has its tables.
        inputs: contiguous, in the order of the program, whole numbers among them.
        data: the addresses of the values of tables, and of inputs.
        value: (items,) the goal.
        dtype: of the inputs that were given, whatever that of the pass.
    """

    layout: CallLayout
    lease: _Lease
    inputs: tuple[Tensor, ...]
    data: "array[int]"
    value: Tensor
    dtype: torch.dtype

    @cached_property
    def possible(self) -> Tensor:
        """(items,) whether there is a derivation, so that gradients go into the goals."""
        return self.value > -torch.inf


def run_up(
    layout: CallLayout, inputs: Sequence[Tensor], *, best: bool, keep: bool = False
) -> Upward:
    """Log-sums, or maxima, of all tables.

    Args:
        layout: what is computed.
        inputs: in the order of the program.
        best: whether maxima are asked for.
        keep: whether gradients or draws are asked for next, for which more is kept.

    Raises:
        ModelError: an input has a NaN or +inf.
    """
    inputs = tuple([x.detach().contiguous() for x in inputs])
    dtype, lease = layout.dtype, _Lease(layout, best=best)
    run = lease.run
    value = torch.empty(layout.items, dtype=dtype, device="cpu")
    data = _pointers([run.values, *inputs])
    # The state keeps what it was given, so that stays alive with it.
    run.keep, run.above, run.said, run.inputs = layout, None, None, layout.numbers
    run.handle = _function("up", dtype)(
        _address(layout.call), _address(data), run.levels.data_ptr(), best,
        1 if layout.threads == 1 else min(layout.threads, torch.get_num_threads()), keep,
        run.handle, value.data_ptr(), _address(run.found),
    )  # fmt: skip
    unsound, far = run.found
    program = layout.executable.program
    if unsound:
        for one, values in zip(program.inputs, inputs, strict=True):
            if not one.whole:
                checked_log_values(f"{program.name}'s {one.name}", values)
    if far and dtype == torch.float32:
        # Sums of numbers so far apart keep their digits in float64.
        up = run_up(*_wide(layout, inputs), best=False, keep=keep)
        return replace(up, value=up.value.to(dtype), dtype=dtype)
    return Upward(layout, lease, inputs, data, value, dtype)


def _pointers(tensors: Sequence[Tensor | None]) -> "array[int]":
    """Addresses of tensors, which must outlive their use; 0 for None."""
    return array("q", [0 if x is None else x.data_ptr() for x in tensors])


def run_down(
    up: Upward, above: Tensor | None, wanted: Sequence[bool],
    rows: tuple[str, Tensor] | None = None,
) -> list[Tensor | None]:  # fmt: skip
    """The gradients of something in inputs, each summed over items where these share it.

    Args:
        up: a pass of log-sums.
        above: (items,) its gradient in the goal.
        wanted: of which inputs.
        rows: in place of the goal a table, and the gradient in its `rows_of`.
    """
    run = up.lease.run
    below, gradients = run.room("gradients"), _zeros(up, wanted)
    if rows is not None:
        _rows_in(up, below.zero_(), rows[0]).add_(rows[1])
        above = None
    run.above = None if above is None else above.to(run.dtype, copy=True)
    grads = _pointers([below, *gradients])
    _function("down", run.dtype)(
        run.handle, _address(up.data), _address(grads),
        None if run.above is None else run.above.data_ptr(),
    )  # fmt: skip
    if run.dtype == up.dtype:
        return gradients
    return [x if x is None else _in_dtype(x, up.dtype) for x in gradients]


def _in_dtype(values: Tensor, dtype: torch.dtype) -> Tensor:
    """Float64 values in a dtype, in a narrower one with 0 in place of subnormal numbers."""
    if dtype == torch.float64:
        return values
    made = torch.empty_like(values, dtype=dtype)
    _function("narrow", dtype)(values.data_ptr(), made.data_ptr(), values.numel())
    return made


def rows_of(up: Upward, table: str) -> Tensor:
    """(items, steps, labels) the rows of a table of one axis beside its labels, each up to a shift.

    Args:
        up: a pass upwards.
        table: whose cells are computed in the order of the axis, from its first one on.
    """
    rows = _rows_in(up, up.lease.run.values, table)
    layout = up.layout
    _, count = layout.executable.extents(layout.sizes)[table]
    many = count // rows.shape[1]
    if many > 1:  # several rows of a step, each with a level of its own
        start = layout.records.level[table]
        levels = up.lease.run.levels[:, start : start + count].unflatten(1, (-1, many))
        levels = (levels - levels.amax(2, keepdim=True)).to(rows)
        rows = (rows.unflatten(2, (many, -1)) + levels.unsqueeze(3)).flatten(2)
    return rows.to(up.dtype)


def _rows_in(up: Upward, values: Tensor, table: str) -> Tensor:
    """The part of values like those of tables that a table has, (items, steps, labels)."""
    layout = up.layout
    count, _ = layout.executable.extents(layout.sizes)[table]
    start, steps = layout.records.at[table], layout.executable.lowered.places[table].steps
    return values[:, start : start + count].unflatten(1, (steps.evaluate(layout.sizes), -1))


def _zeros(up: Upward, wanted: Sequence[bool]) -> list[Tensor | None]:
    """Zeros in the shapes of the inputs that are wanted."""
    return [torch.zeros_like(x) if use else None for x, use in zip(up.inputs, wanted, strict=True)]


def mean_along(up: Upward, said: Sequence[Tensor | None] | None) -> Tensor:
    """(items,) the mean over derivations of the sum of what is said of each entry that is read.

    Of the inputs' own logs it is the mean score, of any other a derivative along a direction.

    Args:
        up: a pass of log-sums.
        said: of each input, in its shape, finite, which `run_second` reads again; None: nothing, or
            of all inputs their own logs, without those that are absent.
    """
    run = up.lease.run
    run.said = None
    if said is not None:
        run.said = [None if x is None else x.detach().to(run.dtype).contiguous() for x in said]
    return _along(up, run.said, entropic=False)


def entropies(up: Upward) -> Tensor:
    """(items,) the entropies of derivations in nats, 0 where there is none.

    Args:
        up: a pass of log-sums.
    """
    return _along(up, None, entropic=True)


def _along(up: Upward, said: Sequence[Tensor | None] | None, *, entropic: bool) -> Tensor:
    """(items,) a mean over derivations, of what is said or of minus the log of their shares."""
    run = up.lease.run
    run.alongs += 1
    moves = _pointers([run.room("means"), *(said or [None] * len(up.inputs))])
    means = torch.empty(up.layout.items, dtype=run.dtype, device="cpu")
    _function("along", run.dtype)(
        run.handle, _address(up.data), _address(moves), means.data_ptr(),
        said is None and not entropic, entropic,
    )  # fmt: skip
    return means


def run_second(
    up: Upward, above: Tensor, more: Tensor | None, wanted: Sequence[bool], *, first: bool
) -> tuple[list[Tensor | None], list[Tensor | None]]:
    """The derivative of the goal's gradient along a direction, in float64 accurately.

    Args:
        up: a pass of log-sums, after `mean_along` the direction.
        above: (items,) the gradient of something in the goal, as for `run_down`.
        more: (items,) its derivative, so that its product with the gradient is added to the turns.
        wanted: of which inputs.
        first: whether gradients are asked for, too.

    Returns:
        The gradients in inputs, as from `run_down`, if they are asked for, and their derivatives.
    """
    run = up.lease.run
    gradients: list[Tensor | None] = [None] * len(wanted)
    # The gradients of tables may be there, from a way down for the same.
    known = run.above is not None and torch.equal(run.above, above.to(run.dtype))
    if first or not known:
        gradients = run_down(up, above, wanted if first else [False] * len(wanted))
    turns = _zeros(up, wanted)
    seconds = _pointers([run.room("seconds"), *turns])
    more = None if more is None else more.to(run.dtype).contiguous()
    _function("second", run.dtype)(
        run.handle, _address(seconds), None if more is None else more.data_ptr()
    )
    return gradients, turns


def best_with(up: Upward | Derived, only: int | None = None) -> list[Tensor | None]:
    """The best score of a derivation that uses each entry: (items, *dims) of each input of logs.

    -inf where none does. None for inputs of whole numbers.

    Args:
        up: a pass of maxima.
        only: the number of an input, from 0 on; of others None is given.
    """
    if isinstance(up, Derived):
        return up.best_with()
    run, items = up.lease.run, up.layout.items
    best = [
        torch.empty(items, *x.shape[1:], dtype=run.dtype, device="cpu")
        if x.is_floating_point() and only in (None, number)
        else None
        for number, x in enumerate(up.inputs)
    ]
    each = [run.room("losses"), *best]
    apart = array("q", [0 if x is None else x.stride(0) * x.element_size() for x in each])
    losses = _pointers(each)
    _function("maxima", run.dtype)(run.handle, _address(up.data), _address(losses), _address(apart))
    return best


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
    run = up.lease.run
    many = _function("descend", run.dtype)(
        run.handle, _address(up.data), 1 if count is None else count, count is None,
        0 if count is None else _seed(generator),
    )  # fmt: skip
    return _reads(run, many)


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
    run, items, draws = up.lease.run, up.layout.items, 1 if count is None else count
    seed = 0 if count is None or noise is not None else _seed(generator)
    noise = None if noise is None else noise.detach().to(run.dtype).contiguous()
    *sites, width = up.inputs[number].shape[1:]
    found = torch.empty(draws, items, *sites, dtype=torch.int64, device="cpu")
    _function("states", run.dtype)(
        run.handle, _address(up.data), draws, count is None, seed, number + 1, width,
        math.prod(sites), None if noise is None else noise.data_ptr(), found.data_ptr(),
    )  # fmt: skip
    return found


def best_states(up: Upward, number: int, count: int) -> tuple[Tensor, Tensor]:
    """(count, items, *sites) the states of an input's sites in the best derivations, best first.

    -1 where they use none of a site, and where there are fewer. And their scores, (count, items),
    in float64, by which they are in order, and -inf where there are fewer; without gradient.
    """
    run, items = up.lease.run, up.layout.items
    *sites, width = up.inputs[number].shape[1:]
    best = torch.empty(count, items, *sites, dtype=torch.int64, device="cpu")
    scores = torch.empty(count, items, dtype=torch.float64, device="cpu")
    _function("k_best_states", run.dtype)(
        run.handle, _address(up.data), count, number + 1, width, math.prod(sites),
        best.data_ptr(), scores.data_ptr(),
    )  # fmt: skip
    if bool((scores[1:] > scores[:-1]).any()):  # they were found with the digits of the inputs
        order = scores.argsort(dim=0, descending=True, stable=True)
        scores = scores.gather(0, order)
        best = (
            best.flatten(2).gather(0, order.unsqueeze(2).expand_as(best.flatten(2))).view_as(best)
        )
    return best, scores


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
    run = up.lease.run
    found = torch.empty(up.layout.items, dtype=torch.int64, device="cpu")
    many = _function("k_best", run.dtype)(run.handle, _address(up.data), count, found.data_ptr())
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


def _second(
    up: Upward, said: Sequence[Tensor | None] | None, above: Tensor, more: Tensor | None,
    wanted: Sequence[bool], *, first: bool, along: int | None = None,
) -> tuple[Tensor | None, list[Tensor | None], list[Tensor | None]]:  # fmt: skip
    """`mean_along` and `run_second` in float64, so that differences of derivatives keep digits.

    Where the last pass of a run in float64 was ``along`` the same, means are not found again.
    """
    dtype = up.dtype
    if up.layout.dtype != torch.float64:
        up = run_up(*_wide(up.layout, up.inputs), best=False, keep=True)
    elif dtype != torch.float64:
        up = replace(up, dtype=torch.float64)
    is_known = along is not None and along == up.lease.run.alongs
    means = None if is_known else mean_along(up, said).to(dtype)
    gradients, turns = (
        [None if x is None else _in_dtype(x, dtype) for x in each]
        for each in run_second(up, above, more, wanted, first=first)
    )
    return means, gradients, turns


def _wide(layout: CallLayout, inputs: Sequence[Tensor]) -> tuple[CallLayout, list[Tensor]]:
    """A layout and inputs in float64."""
    if layout.dtype == torch.float64:
        return layout, [*inputs]
    return layout.wide, [x.double() if x.is_floating_point() else x for x in inputs]


class _LogPartition(torch.autograd.Function):
    """The goal, whose gradient is a `_Gradient`."""

    @staticmethod
    def forward(ctx: Any, layout: CallLayout, *inputs: Tensor) -> Tensor:
        ctx.up = run_up(layout, inputs, best=False, keep=True)
        ctx.save_for_backward(*inputs)
        return ctx.up.value.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        (above,), layout = gradients, ctx.up.layout
        inputs = ctx.saved_tensors  # torch refuses where one was written to since
        wanted = ctx.needs_input_grad[1:]
        if is_transformed(above):
            return None, *regradient(layout.interpreted, inputs, above)
        if not torch.is_grad_enabled():
            return None, *run_down(ctx.up, above, wanted)
        each = iter(_Gradient.apply(ctx.up, wanted, above, *inputs))  # pyright: ignore
        return None, *(next(each) if use else None for use in wanted)


class _Gradient(torch.autograd.Function):
    """The gradients of the goal in the inputs that are wanted.

    Derivatives of their derivatives come from the interpreter.
    """

    @staticmethod
    def forward(
        ctx: Any, up: Upward, wanted: Sequence[bool], above: Tensor, *inputs: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.up, ctx.wanted = up, wanted
        ctx.set_materialize_grads(False)  # what nothing depends on is no direction
        ctx.save_for_backward(above, *inputs)
        return tuple(x for x in run_down(up, above, wanted) if x is not None)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        above, *inputs = ctx.saved_tensors
        each = iter(gradients)
        said = [next(each) if use else None for use in ctx.wanted]
        if torch.is_grad_enabled() or is_transformed(*gradients):
            again, pairs = ctx.up.layout.interpreted_gradients, zip(inputs, said, strict=True)
            made = [torch.zeros_like(x) if one is None else one for x, one in pairs]
            made = [one for one, use in zip(made, ctx.wanted, strict=True) if use]
            return None, None, *regradient(again, (above, *inputs), *made)
        wanted = ctx.needs_input_grad[3:]
        means, _, turns = _second(ctx.up, said, above, None, wanted, first=False)
        return None, None, means, *turns


class _Mean(torch.autograd.Function):
    """The goal, and the mean over derivations of what is said of the entries that they read."""

    @staticmethod
    def forward(ctx: Any, layout: CallLayout, *tensors: Tensor) -> tuple[Tensor, Tensor]:
        inputs, said = layout.divide(tensors)
        ctx.up = run_up(layout, inputs, best=False, keep=True)
        ctx.save_for_backward(*tensors)
        means = mean_along(ctx.up, said)
        ctx.along = ctx.up.lease.run.alongs
        return ctx.up.value.clone(), means.to(ctx.up.value)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        layout, (of_goal, of_mean), tensors = ctx.up.layout, gradients, ctx.saved_tensors
        if torch.is_grad_enabled() or is_transformed(*gradients):
            return None, *regradient(layout.interpreted_mean, tensors, of_goal, of_mean)
        inputs, said = layout.divide(tensors)
        wanted = [x.is_floating_point() for x in inputs]
        # The mean is the derivative of the goal along what is said. So its gradient in what is said
        # is the goal's, and its gradient in the inputs is the derivative of that.
        along = ctx.along if ctx.up.dtype == torch.float64 else None
        _, firsts, turns = _second(ctx.up, said, of_mean, of_goal, wanted, first=True, along=along)
        return None, *turns, *(x for x in firsts if x is not None)


class _EntropyOfDerivations(torch.autograd.Function):
    """The entropies of derivations.

    They are log Z less the mean score, which is the derivative of log Z along the scores. So the
    gradient is minus the derivative of that of log Z along them.
    """

    @staticmethod
    def forward(ctx: Any, layout: CallLayout, *inputs: Tensor) -> Tensor:
        ctx.save_for_backward(*inputs)
        # In float64, as the gradient will be, for which the passes are kept.
        ctx.up, ctx.dtype = run_up(*_wide(layout, inputs), best=False, keep=True), layout.dtype
        means = mean_along(ctx.up, None)
        ctx.along = ctx.up.lease.run.alongs
        return (ctx.up.value - means).to(layout.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        (above,), inputs = gradients, ctx.saved_tensors
        if torch.is_grad_enabled() or is_transformed(above):
            return None, *regradient(ctx.up.layout.interpreted_entropy, inputs, above)
        wanted = ctx.needs_input_grad[1:]
        _, _, turns = _second(ctx.up, None, -above, None, wanted, first=False, along=ctx.along)
        return None, *(x if x is None else _in_dtype(x, ctx.dtype) for x in turns)


def _is_tracked(tensors: Sequence[Tensor]) -> bool:
    """Return whether gradients of some tensors are recorded."""
    return torch.is_grad_enabled() and any(x.requires_grad for x in tensors)


def entropy(layout: CallLayout, inputs: Sequence[Tensor]) -> Tensor:
    """(items,) the entropies of derivations in nats; 0 where there is none. Differentiable."""
    if not _is_tracked(inputs):
        up = run_up(layout, inputs, best=False, keep=True)
        return entropies(up).to(up.value)
    value: Tensor = _EntropyOfDerivations.apply(layout, *inputs)  # pyright: ignore
    return value


def log_partition(layout: CallLayout, inputs: Sequence[Tensor]) -> Tensor:
    """(items,) log Z in nats, of inputs with all items, or one. All derivatives exist."""
    if not _is_tracked(inputs):
        return run_up(layout, inputs, best=False).value
    value: Tensor = _LogPartition.apply(layout, *inputs)  # pyright: ignore
    return value


def mean_score(
    layout: CallLayout, inputs: Sequence[Tensor], said: Sequence[Tensor]
) -> tuple[Tensor, Tensor]:
    """(items,) log Z, and the mean over derivations of the sum of what is said of their entries.

    All derivatives exist, in the inputs and in what is said, of each input of logs in its shape.
    """
    tensors = (*inputs, *said)
    if not _is_tracked(tensors):
        up = run_up(layout, inputs, best=False, keep=True)
        return up.value, mean_along(up, layout.divide(tensors)[1]).to(up.value)
    found: tuple[Tensor, Tensor] = _Mean.apply(layout, *tensors)  # pyright: ignore
    return found
