"""Sweeps of messages until they stop changing."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from dataclasses import field as dataclass_field

import torch
from torch import Tensor

from rdpgraph.engines.loopy.damping import Damping
from rdpgraph.engines.loopy.field import Field, Messages
from rdpgraph.engines.loopy.schedules import Flooding, RandomSubsets, Schedule, Sequential
from rdpgraph.engines.loopy.sweepers import residual_of_all, sweeper_for
from rdpgraph.plan import clock

_THOROUGH = Flooding | Sequential | RandomSubsets


@dataclass(frozen=True)
class Sweep:
    """What a progress callback sees after every sweep.

    Attributes:
        number: sweeps done.
        residual: the largest change of a log-message in it, relative beyond one nat.
        seconds: since the start.
        updates: messages updated since the start, of one batch item.
    """

    number: int
    residual: float
    seconds: float
    updates: int


@dataclass(frozen=True)
class Limits:
    """How messages are updated, and when it ends.

    Attributes:
        schedule: the order of updates.
        damping: of every update.
        sweeps: at most.
        tolerance: on the largest change of a log-message, relative beyond one nat.
        seconds: at most, or None; a sweep that would end later is not begun.
        progress: called after every sweep.
    """

    schedule: Schedule
    damping: Damping
    sweeps: int
    tolerance: float
    seconds: float | None = None
    progress: Callable[[Sweep], None] | None = dataclass_field(
        default=None, metadata={"elsewhere": None}
    )


@dataclass(frozen=True, eq=False)
class Outcome:
    """Where the messages ended.

    Attributes:
        messages: per size class.
        converged: (B,) whether the residual came under the tolerance.
        residual: (B,) in the last sweep.
        trace: the largest residual of every sweep.
        updates: messages updated, of one batch item.
    """

    messages: Messages
    converged: Tensor
    residual: Tensor
    trace: tuple[float, ...]
    updates: int = dataclass_field(default=0)
    crosses = True


def propagate(field: Field, start: Messages, limits: Limits) -> Outcome:
    """Run sweeps until every batch item has converged; a finished item changes no more."""
    sweeper = sweeper_for(field, limits.schedule, limits.damping)
    begin = clock.now()
    if limits.seconds is not None:
        sweeper.deadline = begin + limits.seconds
    messages = start
    residual = torch.full((field.batch,), math.inf)
    done = torch.zeros(field.batch, dtype=torch.bool)
    if not field.edges.count:
        return Outcome(messages, ~done, torch.zeros(field.batch), ())
    trace: list[float] = []
    any_done, spent = False, 0.0
    schedule = limits.schedule
    thorough = isinstance(schedule, _THOROUGH) or schedule.looks_at_residuals
    for number in range(limits.sweeps):
        before = messages
        messages, largest = sweeper.sweep(messages, number)
        if any_done:
            keep = done.to(messages[0].device).reshape(-1, 1, 1)
            pairs = zip(messages, before, strict=True)
            messages = tuple(torch.where(keep, old, new) for new, old in pairs)
            largest = torch.where(done, residual, largest.cpu().double())
        residual = largest.cpu().double()
        if not thorough and bool((residual <= limits.tolerance).any()):
            # What a schedule of the user's own leaves out may not have settled.
            residual = torch.maximum(residual, residual_of_all(field, messages).cpu().double())
        worst = float(residual.amax())
        trace.append(worst)
        if sweeper.cut:
            break  # messages that were not updated need not have settled
        if worst <= limits.tolerance or field.batch > 1:
            done = residual <= limits.tolerance
            any_done = bool(done.any())
        before_it, spent = spent, clock.now() - begin
        if limits.progress is not None:
            limits.progress(Sweep(number + 1, worst, spent, sweeper.updates))
        if worst <= limits.tolerance:
            break
        if limits.seconds is not None and 2 * spent - before_it > limits.seconds:
            break
    messages = sweeper.finish(messages)
    return Outcome(messages, done, residual, tuple(trace), sweeper.updates)
