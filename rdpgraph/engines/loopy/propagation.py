"""Sweeps of messages until they converge, and gradients of potentials through them."""

import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from rdpgraph._core import effort
from rdpgraph._core.arguments import require_fields
from rdpgraph._core.progress import goes_on
from rdpgraph.engines.loopy.equations import Equations, Messages
from rdpgraph.engines.loopy.log_odds import Flood
from rdpgraph.engines.loopy.schedules import DAMPED, Damping, RandomSubsets, Schedule, sets_of
from rdpgraph.engines.loopy.sweepers import residual_of_all, sweeper_for
from rdpgraph.logspace.gradients import differentiable_once
from rdpgraph.plan import clock

_BREAKDOWN = 1e-12
"""Norm of a new GMRES direction, relative to the right side, at which the space is exhausted."""


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
    settling: bool = False  # what has not converged after a few sweeps goes on with `DAMPED`
    # gives (B, V) best states of messages, and (B,) whether possible: those that last are the end
    read: Callable[[Equations, Messages], tuple[Tensor, Tensor]] | None = None


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
    damping, read, states = limits.damping, limits.read, torch.zeros(batch, 0, device="cpu")
    thorough = schedule.covers_all or schedule.looks_at_residuals
    items = places = torch.arange(batch, device="cpu")  # swept; places of those not converged
    ended, trace, spent, updates = list[tuple[Tensor, Messages]](), list[float](), 0.0, 0
    deadline = math.inf if seconds is None else begin + seconds
    sweeper = sweeper_for(equations, schedule, damping, limits.flood)
    for number in range(limits.sweeps):
        if limits.settling and number == effort.UNDAMPED_SWEEPS:
            damping = sweeper.damping = DAMPED
        residuals = sweeper.residuals if schedule.looks_at_residuals else None
        sets, least = sets_of(schedule, edges, residuals, number, deadline), sweeper.updates
        messages, change = sweeper.sweep(messages, sets)
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
        if schedule.covers_all and sweeper.updates < least + edges.count:
            break  # at the deadline: what was not updated need not have settled
        converged[running[done]] = True
        if read is not None and not (number + 1) % effort.UNDAMPED_SWEEPS:
            before, (states, possible) = states, read(equations, sweeper.finish(messages))
            if before.shape == states.shape:
                done |= (possible & (before == states).all(1)).cpu()[places]
        if bool(done.any()):
            messages = sweeper.finish(messages)
            ended.append((running[done], _rows(messages, places[done])))
            places = places[~done]
            if equations.divisible and 2 * len(places) <= len(items) and len(places):
                equations, messages = equations.part(messages, places)
                states = states[places.to(states.device)]
                updates += sweeper.updates
                items, places = items[places], torch.arange(len(places), device="cpu")
                sweeper = sweeper_for(equations, schedule, damping, limits.flood)
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


class Gradient(ABC):
    """A way to differentiate the messages at which propagation ends."""

    def for_log_partition(self, messages: Messages) -> Messages:
        """The messages that log Z is computed from: constants, since it is stationary in them."""
        return tuple(message.detach() for message in messages)

    @abstractmethod
    def run(self, equations: Equations, start: Messages, limits: Limits) -> Outcome:
        """Propagate, and attach the messages to the potentials' graph."""


@dataclass(frozen=True)
class Unrolled(Gradient):
    """Backpropagation through every sweep: the exact derivative of what was computed, of any order.

    Memory grows with the number of sweeps.
    """

    def run(self, equations: Equations, start: Messages, limits: Limits) -> Outcome:
        """Sweeps with gradients recorded."""
        return propagate(equations, start, limits)

    def for_log_partition(self, messages: Messages) -> Messages:
        """The messages, attached."""
        return messages


@dataclass(frozen=True)
class FromBeliefs(Gradient):
    """Messages are constants: the gradient of log Z is the beliefs, as it is at a fixed point.

    Marginals and entropy lack the gradient through the messages, which is most of theirs: use it
    for log Z only. Costs nothing.
    """

    def run(self, equations: Equations, start: Messages, limits: Limits) -> Outcome:
        """Sweeps without gradients."""
        with torch.no_grad():
            return propagate(equations, start, limits)


@dataclass(frozen=True)
class Implicit(Gradient):
    """Implicit function theorem at the fixed point; memory of one sweep.

    With messages m = G(m, theta), a gradient g of m becomes that of G at u with (I - J^T) u = g, J
    = dG/dm, solved by GMRES. Right where the messages have converged. First derivatives only.

    Args:
        iterations: of the linear solve, at most; each costs a sweep backwards and a vector of
            all messages. It ends early after as many seconds as the messages were given.
        tolerance: on its residual, relative to g.
    """

    iterations: int = 100
    tolerance: float = 1e-6

    def __post_init__(self) -> None:
        require_fields(self, iterations="[1, inf)", tolerance="[0, inf]")

    def run(self, equations: Equations, start: Messages, limits: Limits) -> Outcome:
        """Sweeps without gradients, then one with."""
        with torch.no_grad():
            outcome = propagate(equations, start, limits)
        seconds = math.inf if limits.seconds is None else limits.seconds
        return replace(outcome, messages=self.attached(equations, outcome.messages, seconds))

    def attached(self, equations: Equations, messages: Messages, seconds: float) -> Messages:
        """Messages at a fixed point, attached to the potentials' graph; the solve ends in time."""
        among = equations.boundary is not None and equations.records
        if not torch.is_grad_enabled() or not (equations.edges.count or among):
            return messages
        updated = equations.update(tuple(message.detach() for message in messages))
        if among:  # the solve is that of all parts, whether or not it reaches anything here
            updated = tuple(m if m.requires_grad else m.requires_grad_() for m in updated)
        elif not any(message.requires_grad for message in updated):
            return messages
        # The values stay what they are without gradients, to the last digit.
        return _AtFixedPoint.apply(equations, self, seconds, messages, *updated)  # pyright: ignore


class _AtFixedPoint(torch.autograd.Function):
    """Messages for their update, whose backward pass solves for the gradient of a fixed point."""

    @staticmethod
    def forward(  # pyright: ignore
        ctx,  # pyright: ignore
        equations: Equations,
        how: Implicit,
        seconds: float,
        messages: Messages,
        *updated: Tensor,
    ) -> Messages:
        del updated  # equal to the messages at a fixed point
        ctx.equations, ctx.how, ctx.seconds = equations, how, seconds  # pyright: ignore
        ctx.save_for_backward(*messages)  # pyright: ignore
        return tuple(message.clone() for message in messages)

    @staticmethod
    @differentiable_once
    def backward(ctx, *grads: Tensor):  # pyright: ignore
        equations, how = ctx.equations, ctx.how  # pyright: ignore
        with torch.enable_grad():
            inputs = tuple(m.detach().requires_grad_() for m in ctx.saved_tensors)  # pyright: ignore
            outputs = equations.update(inputs)  # pyright: ignore

        def transposed(vector: Tensor) -> Tensor:
            parts = _split(vector, inputs)
            gradients = torch.autograd.grad(
                outputs, inputs, parts, retain_graph=True, allow_unused=True, materialize_grads=True
            )
            return vector - _joined(gradients)

        solved, residual = gmres(
            transposed,
            _joined(grads),
            how.iterations,
            how.tolerance,  # pyright: ignore
            deadline=clock.now() + ctx.seconds,  # pyright: ignore
            total=_identity if equations.boundary is None else equations.boundary.solved,  # pyright: ignore
        )
        if residual > 100 * how.tolerance:  # pyright: ignore
            warnings.warn(
                f"The implicit gradient's linear solve stopped at a relative residual of "
                f"{residual:.1e} after {how.iterations} iterations at most; raise "  # pyright: ignore
                "Implicit(iterations=...) or the scheduler's seconds, or use Unrolled().",
                stacklevel=2,
            )
        return None, None, None, None, *_split(solved, inputs)


def _joined(parts: Sequence[Tensor]) -> Tensor:
    return torch.cat([part.reshape(-1) for part in parts])


def _split(vector: Tensor, like: Messages) -> tuple[Tensor, ...]:
    parts = torch.split(vector, [m.numel() for m in like])
    return tuple(p.reshape(m.shape) for p, m in zip(parts, like, strict=True))


def _identity(values: Tensor) -> Tensor:
    return values


def gmres(
    operator: Callable[[Tensor], Tensor],
    right: Tensor,
    iterations: int,
    tolerance: float,
    *,
    deadline: float = math.inf,
    total: Callable[[Tensor], Tensor] = _identity,
) -> tuple[Tensor, float]:
    """Solve operator(x) = right in a Krylov space of at most ``iterations`` dims (Saad, Schultz).

    Ends with the iteration in which the deadline (on `clock.now`) passes. Returns the solution and
    the relative residual. For vectors in parts on several processes, ``total`` sums their scalar
    products.
    """

    def norm(vector: Tensor) -> float:
        return math.sqrt(float(total(vector.norm().double().square())))

    size = norm(right)
    if size == 0.0:
        return torch.zeros_like(right), 0.0
    basis = [right / size]
    matrix = torch.zeros(1, 0, dtype=torch.float64, device="cpu")
    weights = torch.zeros(0, dtype=torch.float64, device="cpu")
    residual = 1.0
    for step in range(iterations):
        image = operator(basis[-1])
        column = torch.zeros(step + 2, dtype=torch.float64, device="cpu")
        for _ in range(2):  # orthogonalised twice, for float32
            parts = total(torch.stack([torch.dot(vector, image) for vector in basis]))
            for part, vector in zip(parts, basis, strict=True):
                image = image - part * vector
            column[:-1] += parts.cpu()
        length = norm(image)
        column[-1] = length
        matrix = torch.cat([torch.nn.functional.pad(matrix, (0, 0, 0, 1)), column[:, None]], 1)
        target = torch.zeros(step + 2, 1, dtype=torch.float64, device="cpu")
        target[0] = size
        weights = torch.linalg.lstsq(matrix, target, driver="gelsd").solution[:, 0]
        residual = float((matrix @ weights - target[:, 0]).norm()) / size
        ended = residual <= tolerance or length <= _BREAKDOWN or clock.now() > deadline
        if float(total(right.new_tensor(float(ended)))):  # processes may round differently
            break
        basis.append(image / length)
    stacked = torch.stack(basis[: len(weights)])
    return weights.to(right) @ stacked, residual
