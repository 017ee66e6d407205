"""Layouts kept for later objects: a recursion of the same steps supplies its tensors alone."""

from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import Any

import torch
from torch import Tensor

from rdpgraph._core import tuning
from rdpgraph._core.cache import cached_property
from rdpgraph.structures.recursion import machine
from rdpgraph.structures.recursion.inputs import GIVEN, tensor_of
from rdpgraph.structures.recursion.program import Program, with_tensors
from rdpgraph.structures.recursion.step import Step
from rdpgraph.structures.recursion.tape import Tape
from rdpgraph.structures.recursion.tracing import (
    Trace,
    Tracer,
    UnknownError,
    captured,
    described,
    fresh,
)


@dataclass(frozen=True, eq=False)
class Layout:
    """The steps of a recursion, and how their tensors are made."""

    steps: Sequence[Step]  # without their tensors
    program: Program  # of the steps
    trace: Trace  # makes the tensors of the program's slots
    failures: int  # how often a model took other steps

    @cached_property
    def size(self) -> int:
        """The size of the layout, in numbers."""
        return tuning.LAYOUT_STEP * len(self.steps) + len(self.program.index) + self.trace.size


@dataclass(frozen=True, eq=False)
class Filled(Tape):
    """A tape whose steps lack their tensors, which the machine is given."""

    layout: Layout = field(kw_only=True)
    given: Sequence[Tensor] = field(kw_only=True)

    def __post_init__(self) -> None:
        self.sources.known.update({
            machine.PROGRAM: self.layout.program, GIVEN: self.given,
        })  # fmt: skip
        object.__setattr__(self, "steps", self.layout.steps)

    @cached_property
    def whole(self) -> Tape:
        """The tape whose steps have the tensors."""
        tape = Tape(self.unary, self.site_dims, ranks=self.ranks, dtype=self.dtype)
        program = self.layout.program
        steps, slots = with_tensors(self.steps, program.slots, self.given)
        tape.steps.extend(steps)
        tape.sources.known[machine.PROGRAM] = replace(program, slots=slots)
        return tape


def whole(tape: Tape) -> Tape:
    """A tape with complete steps, which answers more than log Z."""
    return tape.whole if isinstance(tape, Filled) else tape


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
            options: Any = {"ranks": tape.ranks, "dtype": tape.dtype}
            return Filled(tape.unary, tape.site_dims, **options, layout=known, given=given)
        known = known.failures + 1
    if known >= tuning.LAYOUT_TRIES:
        tape.finish(model.recursion(tape))
        return tape
    made = _traced(tape, model, tensors, known)
    _keep(key, tuning.LAYOUT_TRIES if made is None or made.size > tuning.KEPT_LAYOUTS else made)
    return tape


def _traced(tape: Tape, model: Any, tensors: Sequence[Tensor], failures: int) -> Layout | None:
    """Lay out a recursion; None where its steps are not to be kept."""
    try:
        names = captured(model)
    except UnknownError:
        tape.finish(model.recursion(tape))
        return None
    tracer = Tracer(tensors)
    with tracer:
        tape.finish(fresh(model).recursion(tape))
        program = machine.program_of(tape)
        slots = () if program is None else program.slots
        given = [tensor_of(slot, tape.dtype) for slot in slots]
    trace = None if program is None else tracer.trace(given, names)
    if program is None or trace is None:
        return None
    # Tensors of the same shapes that take no memory.
    blanks = [part.new_zeros((1,) * part.ndim).expand(part.shape) for part in given]
    steps, owners = with_tensors(tape.steps, program.slots, blanks)
    return Layout(steps, replace(program, slots=owners), trace, failures)


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
