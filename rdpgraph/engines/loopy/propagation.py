"""Sweeps of messages until they converge."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from rdpgraph._core.progress import goes_on
from rdpgraph.engines.loopy.equations import Equations, Messages
from rdpgraph.engines.loopy.log_odds import Flood
from rdpgraph.engines.loopy.schedules import Damping, Flooding, Schedule, Sequential, sets_of
from rdpgraph.engines.loopy.subsets import EdgeSubsets
from rdpgraph.engines.loopy.sweepers import Sweeper, residual_of_all, sweeper_for
from rdpgraph.plan import clock


@dataclass(eq=False)
class Share:
    """A part of a batch, swept together."""

    items: Tensor  # (n,) numbers of the items in the batch
    places: Tensor  # (m,) those that have not converged, numbered within the share
    equations: Equations  # of the items
    sweeper: Sweeper  # of the items
    messages: Messages  # of the items, after the last sweep

    @property
    def running(self) -> Tensor:
        """(m,) numbers in the batch of the items that have not converged."""
        return self.items[self.places]


class Shares:
    """A batch split into shares, and the messages of items that have converged."""

    def __init__(
        self, equations: Equations, start: Messages, schedule: Schedule, damping: Damping,
        deadline: float, flood: Flood | None,
    ) -> None:  # fmt: skip
        self._edges = equations.edges
        self._schedule = schedule
        self._damping = damping
        self._deadline = deadline
        self._flood = flood
        self._known = equations.edges.remembered("selections", lambda _: EdgeSubsets())
        self._ended: list[tuple[Tensor, Messages]] = []
        self.updates = 0
        size = items_at_once(equations, schedule)
        every = torch.arange(equations.batch, device="cpu")
        self._shares = [
            self._share(part, equations, start)
            if size >= equations.batch
            else self._share(part, *_some(equations, start, slice(int(part[0]), int(part[-1]) + 1)))
            for part in (every.split(size) if equations.batch else ())
        ]

    def _share(self, items: Tensor, equations: Equations, messages: Messages) -> Share:
        sweeper = sweeper_for(equations, self._schedule, self._damping, self._known, self._flood)
        sweeper.deadline = self._deadline
        return Share(items, torch.arange(len(items), device="cpu"), equations, sweeper, messages)

    def sweep(self, number: int) -> Iterator[tuple[Share, Tensor]]:
        """Sweep every share; yields it and (n,) float64 the largest change of its messages."""
        edges, looks = self._edges, self._schedule.looks_at_residuals
        # Sets that look at no messages are the same for all items, though they may be random.
        blind = [] if looks else list(sets_of(self._schedule, edges, None, number))
        for share in list(self._shares):
            sweeper = share.sweeper
            sets = sets_of(self._schedule, edges, sweeper.residuals, number) if looks else blind
            share.messages, largest = sweeper.sweep(share.messages, sets)
            self.updates = max(self.updates, sweeper.updates)
            yield share, largest.cpu().double()

    def retire(self, share: Share, done: Tensor) -> None:
        """Store the messages of the items that are done, (n,) bool; continue with the others."""
        ended, rest = share.places[done[share.places]], share.places[~done[share.places]]
        if not len(ended):
            return
        share.messages, sweeper = share.sweeper.finish(share.messages), share.sweeper
        self._ended.append((share.items[ended], _rows(share.messages, ended)))
        share.places = rest
        if not len(rest):
            self._shares.remove(share)
        elif share.equations.divisible and 2 * len(rest) <= len(share.items):
            left = self._share(share.running, *_some(share.equations, share.messages, rest))
            left.sweeper.updates = sweeper.updates
            self._shares[self._shares.index(share)] = left

    def messages(self) -> Messages:
        """Current or final messages of every item."""
        parts = [
            (share.running, _rows(share.sweeper.finish(share.messages), share.places))
            for share in self._shares
        ]
        parts += self._ended
        if len(parts) == 1:
            return parts[0][1]
        order = torch.cat([items for items, _ in parts]).argsort()
        columns = zip(*(messages for _, messages in parts), strict=True)
        return tuple(torch.cat(column)[order.to(column[0].device)] for column in columns)


def items_at_once(equations: Equations, schedule: Schedule) -> int:
    """Number of items in a share."""
    return 1 if schedule.looks_at_residuals else equations.at_once


def _some(
    equations: Equations, messages: Messages, chosen: slice | Tensor
) -> tuple[Equations, Messages]:
    return equations.items(chosen), tuple(message[chosen] for message in messages)


def _rows(messages: Messages, rows: Tensor) -> Messages:
    if not messages or len(rows) == len(messages[0]):
        return messages
    return tuple(message[rows.to(message.device)] for message in messages)


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
    """Run sweeps until every batch item has converged; converged items change no more."""
    begin = clock.now()
    batch, schedule = equations.batch, limits.schedule
    residual = torch.full((batch,), math.inf, dtype=torch.float64, device="cpu")
    sweeps = torch.zeros(batch, dtype=torch.long, device="cpu")
    boundary = equations.boundary
    if not batch or not (equations.edges.count or boundary):
        done = torch.ones(batch, dtype=torch.bool, device="cpu")
        return Outcome(start, done, torch.zeros(batch, device="cpu"), (), sweeps)
    size = items_at_once(equations, schedule)
    watched = limits.progress is not None or limits.seconds is not None
    if size < batch and not watched and isinstance(schedule, Flooding | Sequential):
        return _one_by_one(equations, start, limits)
    trace, spent = list[float](), 0.0
    deadline = math.inf if limits.seconds is None else begin + limits.seconds
    shares = Shares(equations, start, schedule, limits.damping, deadline, limits.flood)
    unfinished = torch.zeros(batch, dtype=torch.bool, device="cpu")
    thorough = schedule.covers_all or schedule.looks_at_residuals
    for number in range(limits.sweeps):
        for share, largest in shares.sweep(number):
            clock.count(len(share.places) * equations.operations)
            if not thorough and bool((largest <= limits.tolerance).any()):
                # Messages that a user's schedule leaves out may not have settled.
                largest = torch.maximum(
                    largest, residual_of_all(share.equations, share.messages).cpu()
                )
            if boundary is not None:
                largest = boundary.largest(largest)
            residual[share.running] = largest[share.places]
            sweeps[share.running] += 1
            if share.sweeper.cut:
                unfinished[share.running] = True  # what was not updated need not have settled
            else:
                shares.retire(share, largest <= limits.tolerance)
        worst = float(residual.amax())
        trace.append(worst)
        if bool(unfinished.any()):
            break
        before, spent = spent, clock.now() - begin
        step = Sweep(number + 1, worst, spent, shares.updates)
        if not goes_on(limits.progress, step) or clock.stopped() or worst <= limits.tolerance:
            break
        if limits.seconds is not None and 2 * spent - before > limits.seconds:
            break
    done = (residual <= limits.tolerance) & ~unfinished
    return Outcome(shares.messages(), done, residual, tuple(trace), sweeps, shares.updates)


def _one_by_one(equations: Equations, start: Messages, limits: Limits) -> Outcome:
    """Run the `ranges` of the batch to their ends one after another."""
    outcomes, totals = list[Outcome](), list[Tensor]()
    for part in equations.ranges:
        restricted = equations.items(part)
        outcomes.append(propagate(restricted, tuple(message[part] for message in start), limits))
        if not equations.records:  # while its tables are prepared: every answer asks for it
            totals.append(restricted.log_partition(outcomes[-1].messages))
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
