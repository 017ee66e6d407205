"""Sweeps of messages until they converge."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from rdpgraph._core.progress import goes_on
from rdpgraph.engines.loopy.equations import Equations, Messages
from rdpgraph.engines.loopy.log_odds import Flood
from rdpgraph.engines.loopy.schedules import Damping, RandomSubsets, Schedule, sets_of
from rdpgraph.engines.loopy.sweepers import residual_of_all, sweeper_for
from rdpgraph.plan import clock


@dataclass(frozen=True)
class Sweep:
    """Progress of propagation, as given to a callback after every sweep.

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

    def __str__(self) -> str:
        return f"messages: sweep {self.number}, residual {self.residual:.1e}"


@dataclass(frozen=True)
class Limits:
    """Schedule and damping of updates, and when to stop."""

    schedule: Schedule  # the order of updates
    damping: Damping  # of every update
    sweeps: int  # at most
    tolerance: float  # on the largest change of a log-message, relative beyond one nat
    seconds: float | None = None  # at most, or None; a sweep that would end later is not begun
    # called after every sweep
    progress: Callable[[Sweep], None] | None = field(default=None, metadata={"elsewhere": None})
    flood: Flood | None = None  # compiled sweeps of parity checks


@dataclass(frozen=True, eq=False)
class Outcome:
    """Messages at the end of propagation."""

    messages: Messages  # per size class
    converged: Tensor  # (B,) the residual is within the tolerance
    residual: Tensor  # (B,) of the last sweep
    trace: tuple[float, ...]  # largest residual of every sweep
    sweeps: Tensor  # (B,) number of sweeps of each item
    updates: int = 0  # messages updated, of one batch item
    # (B,) float64 `Equations.log_partition`, if the tables were at hand
    log_partitions: Tensor | None = field(default=None, kw_only=True)
    crosses = True


def propagate(equations: Equations, start: Messages, limits: Limits) -> Outcome:
    """Run sweeps until every batch item has converged; converged items change no more.

    Ranges of items that fit the processor's cache, or single ones where their residuals decide,
    come to their ends one after another, with equal shares of the time that is left. Random sets
    are the same for all items.
    """
    schedule, seconds = limits.schedule, limits.seconds
    size = 1 if schedule.looks_at_residuals else equations.at_once
    if size >= equations.batch or isinstance(schedule, RandomSubsets):
        return _swept(equations, start, limits)
    begin = clock.now()
    end = math.inf if seconds is None else begin + seconds
    outcomes, totals, number, going = list[Outcome](), list[Tensor](), 0, True

    def told(sweep: Sweep) -> None:
        nonlocal number, going
        number += 1
        step = replace(sweep, number=number, seconds=clock.now() - begin)
        going = going and goes_on(limits.progress, step)
        if not going:
            raise StopIteration

    ranges = equations.ranges(size)
    for left, part in zip(range(len(ranges), 0, -1), ranges, strict=True):
        share = None if seconds is None else max(end - clock.now(), 0.0) / left
        progress = None if limits.progress is None else told
        some, messages = equations.part(start, part)
        outcomes.append(_swept(some, messages, replace(limits, seconds=share, progress=progress)))
        if seconds is None and not equations.records:
            # While its tables are prepared: every answer asks for it.
            totals.append(some.log_partition(outcomes[-1].messages))
    length = max(len(run.trace) for run in outcomes)
    traces = [run.trace + run.trace[-1:] * (length - len(run.trace)) for run in outcomes]
    columns = zip(*(run.messages for run in outcomes), strict=True)
    return Outcome(
        messages=tuple(torch.cat(column) for column in columns),
        converged=torch.cat([run.converged for run in outcomes]),
        residual=torch.cat([run.residual for run in outcomes]),
        trace=tuple(max(column) for column in zip(*traces, strict=True)),
        sweeps=torch.cat([run.sweeps for run in outcomes]),
        updates=max(run.updates for run in outcomes),
        log_partitions=torch.cat(totals) if totals else None,
    )


def _swept(equations: Equations, messages: Messages, limits: Limits) -> Outcome:
    """Sweep all items together; half of them or fewer go on alone where that costs less."""
    begin, batch, boundary = clock.now(), equations.batch, equations.boundary
    residual = torch.full((batch,), math.inf, dtype=torch.float64, device="cpu")
    converged = torch.zeros(batch, dtype=torch.bool, device="cpu")
    sweeps = torch.zeros(batch, dtype=torch.long, device="cpu")
    if not batch or not (equations.edges.count or boundary):
        return Outcome(messages, ~converged, torch.zeros(batch, device="cpu"), (), sweeps)
    schedule, edges, seconds = limits.schedule, equations.edges, limits.seconds
    thorough = schedule.covers_all or schedule.looks_at_residuals
    items = places = torch.arange(batch, device="cpu")  # swept; places of those not converged
    ended, trace, spent, updates = list[tuple[Tensor, Messages]](), list[float](), 0.0, 0
    deadline = math.inf if seconds is None else begin + seconds
    sweeper = sweeper_for(equations, schedule, limits.damping, deadline, limits.flood)
    for number in range(limits.sweeps):
        residuals = sweeper.residuals if schedule.looks_at_residuals else None
        messages, change = sweeper.sweep(messages, sets_of(schedule, edges, residuals, number))
        largest = change.cpu().double()
        clock.count(len(places) * equations.operations)
        if not thorough and bool((largest <= limits.tolerance).any()):
            # Messages that a user's schedule leaves out may not have settled.
            every = residual_of_all(equations, sweeper.finish(messages))
            largest = torch.maximum(largest, every.cpu())
        if boundary is not None:
            largest = boundary.largest(largest)
        running, done = items[places], (largest <= limits.tolerance)[places]
        residual[running] = largest[places]
        sweeps[running] += 1
        trace.append(float(residual.amax()))
        if sweeper.cut:
            break  # what was not updated need not have settled
        if bool(done.any()):
            messages = sweeper.finish(messages)
            converged[running[done]] = True
            ended.append((running[done], _rows(messages, places[done])))
            places = places[~done]
            if equations.divisible and 2 * len(places) <= len(items) and len(places):
                equations, messages = equations.part(messages, places)
                updates += sweeper.updates
                items, places = items[places], torch.arange(len(places), device="cpu")
                sweeper = sweeper_for(equations, schedule, limits.damping, deadline, limits.flood)
        before, spent = spent, clock.now() - begin
        step = Sweep(number + 1, trace[-1], spent, updates + sweeper.updates)
        if not goes_on(limits.progress, step) or clock.stopped() or not len(places):
            break
        if seconds is not None and 2 * spent - before > seconds:
            break
    if len(places):
        ended.append((items[places], _rows(sweeper.finish(messages), places)))
    if len(ended) > 1:
        order = torch.cat([members for members, _ in ended]).argsort()
        columns = zip(*(parts for _, parts in ended), strict=True)
        messages = tuple(torch.cat(column)[order.to(column[0].device)] for column in columns)
    else:
        messages = ended[0][1]
    updates += sweeper.updates
    return Outcome(messages, converged, residual, tuple(trace), sweeps, updates)


def _rows(messages: Messages, rows: Tensor) -> Messages:
    if not messages or len(rows) == len(messages[0]):
        return messages
    return tuple(message[rows.to(message.device)] for message in messages)
