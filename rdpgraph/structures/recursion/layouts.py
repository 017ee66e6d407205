"""Layouts kept for later objects: a recursion of the same steps supplies its tensors alone."""

import gc
from collections import OrderedDict
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import Any

import torch
from torch import Tensor

from rdpgraph._core import tuning
from rdpgraph._core.cache import cached_property
from rdpgraph.structures.recursion import machine
from rdpgraph.structures.recursion.inputs import GIVEN, PROGRAM, tensor_of
from rdpgraph.structures.recursion.links import Table
from rdpgraph.structures.recursion.names import UnknownError, captured
from rdpgraph.structures.recursion.program import Program, Slot, numbers
from rdpgraph.structures.recursion.steps import Leaf
from rdpgraph.structures.recursion.tape import Tape
from rdpgraph.structures.recursion.tracing import Trace, Tracer, described, fresh
from rdpgraph.structures.recursion.values import View


@dataclass(frozen=True, eq=False)
class Layout:
    """The program of a recursion, and how its tensors are made."""

    program: Program  # whose slots are empty
    trace: Trace  # makes the tensors of the program's slots
    failures: int  # how often a model took other steps

    @cached_property
    def size(self) -> int:
        """The size of the layout, in numbers."""
        many = tuning.LAYOUT_STEP * len(self.program.steps)
        return many + len(self.program.index) + self.trace.size


_EMPTY: dict[type, Slot] = {
    Leaf: Leaf(None), View: View(()), Table: Table(torch.empty(0), torch.empty(0)),
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Filled(Tape):
    """A tape without steps, for the machine: it has their program and tensors."""

    program: Program = field(kw_only=True)
    given: Sequence[Tensor] = field(kw_only=True)
    model: Any = field(kw_only=True)

    def __post_init__(self) -> None:
        self.sources.known.update({PROGRAM: self.program, GIVEN: self.given})

    @cached_property
    def whole(self) -> Tape:
        """The tape with all steps."""
        tape = Tape(self.unary, self.site_dims, ranks=self.ranks, dtype=self.dtype)
        tape.finish(self.model.recursion(tape))
        return tape

    @property
    def work(self) -> float:
        return self.batch * self.program.work


def whole(tape: Tape) -> Tape:
    """A tape with its steps, which answers more than log Z."""
    return tape.whole if isinstance(tape, Filled) else tape


def is_slow(tape: Tape) -> bool:
    """Return whether a tape is slow to make; one by a kept layout is not, and holds its model."""
    return not isinstance(tape, Filled)


_KEPT = OrderedDict[Any, Layout | int]()
"""Layouts, or the number of failures of one; those used last at the end."""
_LOCK = Lock()


def laid_out(tape: Tape, model: Any) -> Tape:
    """Lay out a model's recursion on an empty tape, or take the layout of an earlier one."""
    known, tensors, key = tuning.LAYOUT_TRIES, list[Tensor](), None
    if machine.serves(tape):
        try:
            parts, met = (tape.unary, model), dict[int, int]()
            key = [described(part, tensors, met) for part in parts], tape.ranks, tape.dtype
            key = *key[0], *key[1:], torch.is_grad_enabled(), torch.is_inference_mode_enabled()
            key = *key, torch.get_default_dtype()
            known = _KEPT.get(key, 0)
        except (UnknownError, TypeError):  # not hashable
            pass
    if isinstance(known, Layout):
        given = known.trace.again(tensors)
        if given is not None:
            with _LOCK, suppress(KeyError):
                _KEPT.move_to_end(key)
            return filled(tape, model, known.program, given)
        known = known.failures + 1
    if known >= tuning.LAYOUT_TRIES:
        tape.finish(model.recursion(tape))
        return tape
    with uncollected():
        layout, given = _traced(tape, model, tensors, known)
    if layout is None or layout.size > tuning.KEPT_LAYOUTS:
        _keep(key, tuning.LAYOUT_TRIES)
        return tape
    _keep(key, layout)
    return filled(tape, model, layout.program, given)


@contextmanager
def uncollected() -> Generator[None]:
    """Pause garbage collection, which would look at many objects that soon go by themselves."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _traced(
    tape: Tape, model: Any, tensors: Sequence[Tensor], failures: int
) -> tuple[Layout | None, Sequence[Tensor]]:
    """Lay out a recursion, with the layout's tensors; None where it is not to be kept."""
    try:
        names = captured(model)
    except UnknownError:
        tape.finish(model.recursion(tape))
        return None, ()
    tracer = Tracer(tensors)
    with tracer:
        tape.finish(fresh(model).recursion(tape))
        tracer.read(numbers(tape.steps))
    program = machine.program_of(tape)
    with tracer:
        slots = () if program is None else program.slots
        given = [tensor_of(slot, tape.dtype) for slot in slots]
    trace = None if program is None else tracer.trace(given, names)
    if program is None or trace is None:
        return None, ()
    return Layout(emptied(program), trace, failures), given


def filled(tape: Tape, model: Any, program: Program, given: Sequence[Tensor]) -> Filled:
    """A tape without steps, as one given, for the program of a model and its tensors."""
    options: Any = {"ranks": tape.ranks, "dtype": tape.dtype, "model": model}
    return Filled(tape.unary, tape.site_dims, **options, program=program, given=given)


def emptied(program: Program) -> Program:
    """The same program without the tensors that its slots were made of."""
    return replace(program, slots=[_EMPTY[type(slot)] for slot in program.slots])


def _keep(key: Any, kept: Layout | int) -> None:
    """Keep a layout, and drop those used longest ago where there are too many."""
    with _LOCK:
        _KEPT[key] = kept
        _KEPT.move_to_end(key)
        total = 0
        for old in reversed(list(_KEPT)):
            layout = _KEPT[old]
            total += layout.size if isinstance(layout, Layout) else tuning.LAYOUT_STEP
            if total > tuning.KEPT_LAYOUTS:
                del _KEPT[old]
