"""Run message passing to convergence, and differentiate the messages at which it ends."""

import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from rdpgraph._core import effort, tuning
from rdpgraph._core.arguments import require_fields
from rdpgraph._core.progress import goes_on
from rdpgraph.engines.loopy.compiled import log_partition
from rdpgraph.engines.loopy.equations import Equations, Messages
from rdpgraph.engines.loopy.schedules import DAMPED, Damping, RandomSubsets, Schedule, sets_of
from rdpgraph.engines.loopy.sweepers import Sweeper, residual_of_all, serves, sweeper_for
from rdpgraph.logspace.gradients import differentiable_once
from rdpgraph.plan import clock

_BREAKDOWN = 1e-12
"""Norm at which a new GMRES direction, before it is scaled to a unit vector, counts as zero.

The Krylov space cannot grow any further then.
"""


@dataclass(frozen=True)
class Sweep:
    """The progress of propagation, passed to a callback after every sweep.

    Attributes:
        number: number of sweeps so far.
        residual: largest change of a log-message in the last sweep. A change from m to n counts as
            ``|n - m| / max(1, |n|)``: in nats if n is within one nat of zero, else relative.
            `JoinGraph` compares values instead of their logs.
        seconds: time since the start.
        updates: number of messages updated since the start, per batch item.
    """

    number: int
    residual: float
    seconds: float
    updates: int

    def __str__(self) -> str:
        return f"messages: sweep {self.number}, residual {self.residual:.1e}"


@dataclass(frozen=True)
class Limits:
    """The schedule and damping of message updates, and the conditions that end them."""

    schedule: Schedule  # the order of updates
    damping: Damping  # applied to every update
    sweeps: int  # the largest number of sweeps
    tolerance: float  # an item has converged if its residual, as in `Sweep`, is at most this
    # Time limit, or None. A sweep that is predicted to end later is not started.
    seconds: float | None = None
    # Called after every sweep.
    progress: Callable[[Sweep], None] | None = field(default=None, metadata={"elsewhere": None})
    settling: bool = False  # use `DAMPED` after the first `effort.UNDAMPED_SWEEPS` sweeps
    # Returns (B,) whether configurations (B, V) are possible. The best states that the messages
    # imply are read every `effort.UNDAMPED_SWEEPS` sweeps, and an item also ends if they are the
    # same twice in a row and possible.
    possible: Callable[[Equations, Tensor], Tensor] | None = None


@dataclass(frozen=True, eq=False)
class Outcome:
    """The messages at the end of propagation, with a record of how it went."""

    messages: Messages  # per size class (B, K, E)
    converged: Tensor  # (B,) whether the residual is within the tolerance
    residual: Tensor  # (B,) residual of the item's last sweep
    trace: tuple[float, ...]  # largest residual of all items, after each sweep
    sweeps: Tensor  # (B,) number of sweeps of each item
    updates: int = 0  # number of messages updated, per batch item
    # (B,) float64 `Equations.log_partition`, or None if it was not computed on the way.
    log_partitions: Tensor | None = field(default=None, kw_only=True)
    crosses = True  # kept in pickles and copies of a solution; see `Portable`


def propagate(equations: Equations, start: Messages, limits: Limits) -> Outcome:
    """Run sweeps until every batch item has converged or a limit is reached.

    An item's messages do not change after it has converged. Compiled code takes one item after the
    other by itself; for torch the batch is divided into ranges that fit the processor's cache. If
    the schedule looks at residuals, each item has its own order of updates, and is a range. The
    ranges run one after another, each with an equal share of the time left. `RandomSubsets` draws
    the same sets for all items, and therefore runs on the whole batch.
    """
    schedule, seconds = limits.schedule, limits.seconds
    size = equations.at_once
    if schedule.looks_at_residuals:
        size = 1
    elif serves(equations, limits.damping):
        size = equations.batch
    if size >= equations.batch or isinstance(schedule, RandomSubsets):
        return _propagate_together(equations, start, limits)
    begin = clock.now()
    deadline = math.inf if seconds is None else begin + seconds
    outcomes, log_partitions, number, going = list[Outcome](), list[Tensor](), 0, True

    def report(sweep: Sweep) -> None:
        # The callback sees the ranges as one run, whose sweeps are numbered throughout. Once it has
        # ended the run, each remaining range ends after its first sweep.
        nonlocal number, going
        number += 1
        step = replace(sweep, number=number, seconds=clock.now() - begin)
        going = going and goes_on(limits.progress, step)
        if not going:
            raise StopIteration

    ranges = equations.ranges(size)
    for left, chosen in zip(range(len(ranges), 0, -1), ranges, strict=True):
        share = None if seconds is None else max(deadline - clock.now(), 0.0) / left
        progress = None if limits.progress is None else report
        part, messages = equations.part(start, chosen)
        part_limits = replace(limits, seconds=share, progress=progress)
        outcomes.append(_propagate_together(part, messages, part_limits))
        if seconds is None and not equations.records:
            # Every answer needs log Z, and the tables of this range are prepared now.
            log_partitions.append(log_partition(part, outcomes[-1].messages))
    return _concatenate_outcomes(outcomes, log_partitions)


def _concatenate_outcomes(outcomes: Sequence[Outcome], log_partitions: list[Tensor]) -> Outcome:
    """Return the outcome of a batch, given those of its ranges in order."""
    # A range that ended early keeps its last residual in the trace of the whole batch.
    length = max(len(outcome.trace) for outcome in outcomes)
    traces = [o.trace + o.trace[-1:] * (length - len(o.trace)) for o in outcomes]
    by_class = zip(*(outcome.messages for outcome in outcomes), strict=True)
    return Outcome(
        messages=tuple(torch.cat(parts) for parts in by_class),
        converged=torch.cat([outcome.converged for outcome in outcomes]),
        residual=torch.cat([outcome.residual for outcome in outcomes]),
        trace=tuple(max(residuals) for residuals in zip(*traces, strict=True)),
        sweeps=torch.cat([outcome.sweeps for outcome in outcomes]),
        updates=max(outcome.updates for outcome in outcomes),
        log_partitions=torch.cat(log_partitions) if log_partitions else None,
    )


def _propagate_together(equations: Equations, messages: Messages, limits: Limits) -> Outcome:
    """Run sweeps over all items at once until each has converged or a limit is reached.

    Once half of the items have ended, the others are swept without them, provided that the cost of
    a sweep is in proportion to the number of items.
    """
    begin, batch, boundary = clock.now(), equations.batch, equations.boundary
    residual = torch.full((batch,), math.inf, dtype=torch.float64, device="cpu")
    converged = torch.zeros(batch, dtype=torch.bool, device="cpu")
    sweeps = torch.zeros(batch, dtype=torch.long, device="cpu")
    # A part of a model takes part in the collective calls of each sweep even if it has no edges.
    if not batch or not (equations.edges.count or boundary):
        return Outcome(messages, ~converged, torch.zeros(batch, device="cpu"), (), sweeps)

    schedule, damping, possible = limits.schedule, limits.damping, limits.possible
    edges = equations.edges
    deadline = math.inf if limits.seconds is None else begin + limits.seconds
    sweeper = sweeper_for(equations, schedule, damping)
    # `items` are the numbers of the items in `equations`, and `places` the positions among them of
    # those that have not ended. `ended` lists items that have, with their final messages.
    items = places = torch.arange(batch, device="cpu")
    ended = list[tuple[Tensor, Messages]]()
    states = torch.zeros(batch, 0, device="cpu")  # that were read last; none so far
    trace, elapsed, updates = list[float](), 0.0, 0  # updates by earlier sweepers

    number = 0  # of sweeps so far
    while number < limits.sweeps:
        # Sweep once, or until something else than a sweep is to be done.
        if limits.settling and number == effort.UNDAMPED_SWEEPS:
            damping = sweeper.damping = DAMPED
        message_residuals = sweeper.residuals if schedule.looks_at_residuals else None
        sets = sets_of(schedule, edges, message_residuals, number, deadline)
        updates_before = sweeper.updates
        most = _sweeps_at_once(limits, number, len(places) * sweeper.operations)
        messages, changes, counts = sweeper.sweep_items(
            messages, sets, places, most, limits.tolerance
        )
        number += len(changes)
        clock.count(int(counts.sum()) * sweeper.operations)

        # Record the residuals, and find the items that have converged.
        running = items[places]
        changes = _with_others(sweeper, messages, changes, places, limits)
        trace += _largest_residuals(residual, running, changes, counts)
        done = residual[running] <= limits.tolerance
        sweeps[running] += counts
        if schedule.covers_all and sweeper.updates < updates_before + edges.count:
            break  # at the deadline: the messages not updated need not have converged
        converged[running[done]] = True

        # An item whose best states are possible and have not changed since they were last read ends
        # too, although it does not count as converged.
        if possible is not None and not number % effort.UNDAMPED_SWEEPS:
            last_states, states = states, sweeper.best_states(messages)
            same = last_states.shape == states.shape and (last_states == states).all(1)
            if isinstance(same, Tensor) and bool(same.any()):
                done |= (same & possible(equations, states)).cpu()[places]

        # Set aside the messages of items that have ended. If few others are left, go on with those.
        if bool(done.any()):
            messages = sweeper.finish(messages)
            ended.append((running[done], _select_items(messages, places[done])))
            places = places[~done]
            few = 2 * len(places) <= len(items) and len(places)
            if few and sweeper.divides and equations.divisible:
                equations, messages = equations.part(messages, places)
                states = states[places.to(states.device)]
                updates += sweeper.updates
                items, places = items[places], torch.arange(len(places), device="cpu")
                sweeper = sweeper_for(equations, schedule, damping)

        elapsed_before, elapsed = elapsed, clock.now() - begin
        step = Sweep(number, trace[-1], elapsed, updates + sweeper.updates)
        if _must_stop(limits, step, elapsed_before) or not len(places):
            break

    if len(places):
        ended.append((items[places], _select_items(sweeper.finish(messages), places)))
    updates += sweeper.updates
    return Outcome(_in_order_of_items(ended), converged, residual, tuple(trace), sweeps, updates)


def _sweeps_at_once(limits: Limits, number: int, operations: float) -> int:
    """Return how many sweeps of so many operations may follow ``number`` without a look at them."""
    if limits.progress is not None or limits.seconds is not None or clock.stopped():
        return 1
    left = effort.UNDAMPED_SWEEPS - number % effort.UNDAMPED_SWEEPS
    if limits.possible is None and not (limits.settling and number < effort.UNDAMPED_SWEEPS):
        left = limits.sweeps
    # Ctrl-C is noticed between calls.
    return max(1, min(left, limits.sweeps - number, int(tuning.LOOK_OPERATIONS / (operations + 1))))


def _largest_residuals(
    residual: Tensor, running: Tensor, changes: Tensor, counts: Tensor
) -> list[float]:
    """Write the (n,) last residuals of running items; return the largest of all in each sweep.

    ``changes`` (sweeps, n) are those of running items, of which each has taken ``counts`` sweeps.
    """
    last = changes.gather(0, counts.unsqueeze(0) - 1)
    residual[running] = last[0]
    if len(changes) == 1:
        return [float(residual.amax())]
    taken = torch.arange(len(changes), device="cpu").unsqueeze(1) < counts
    others = torch.ones_like(residual, dtype=torch.bool)
    others[running] = False
    rest = residual[others].amax().expand(1) if bool(others.any()) else residual.new_zeros(1)
    return torch.maximum(torch.where(taken, changes, last).amax(1), rest).tolist()


def _with_others(
    sweeper: Sweeper, messages: Messages, changes: Tensor, places: Tensor, limits: Limits
) -> Tensor:
    """Return (sweeps, n) residuals, given the largest changes of the items at some places."""
    equations, schedule = sweeper.equations, limits.schedule
    thorough = schedule.covers_all or schedule.looks_at_residuals
    if not thorough and bool((changes <= limits.tolerance).any()):
        # The messages that a user's schedule leaves out need not have converged.
        every = residual_of_all(equations, sweeper.finish(messages))
        changes = torch.maximum(changes, every.cpu().double()[places])
    # The parts of a model in several processes must agree on which items have converged.
    return changes if equations.boundary is None else equations.boundary.largest(changes)


def _must_stop(limits: Limits, step: Sweep, elapsed_before: float) -> bool:
    """Report a sweep to the callback, and return whether it must be the last one."""
    if not goes_on(limits.progress, step) or clock.stopped():
        return True
    # The next sweep is predicted to take as long as this one did.
    return limits.seconds is not None and 2 * step.seconds - elapsed_before > limits.seconds


def _in_order_of_items(ended: Sequence[tuple[Tensor, Messages]]) -> Messages:
    """Return the messages of all items in order, given groups of items and their messages."""
    if len(ended) == 1:
        return ended[0][1]
    order = torch.cat([items for items, _ in ended]).argsort()
    by_class = zip(*(messages for _, messages in ended), strict=True)
    return tuple(torch.cat(parts)[order.to(parts[0].device)] for parts in by_class)


def _select_items(messages: Messages, places: Tensor) -> Messages:
    """Return the messages of the items at ascending places; those of all are not copied."""
    if not messages or len(places) == len(messages[0]):
        return messages
    return tuple(message[places.to(message.device)] for message in messages)


class Gradient(ABC):
    """A way to differentiate the messages at which propagation ends."""

    def for_log_partition(self, messages: Messages) -> Messages:
        """Return the messages from which log Z is computed.

        They are constants: log Z is stationary in the messages at a fixed point, so that its
        gradient through them is zero.
        """
        return tuple(message.detach() for message in messages)

    @abstractmethod
    def run(self, equations: Equations, start: Messages, limits: Limits) -> Outcome:
        """Propagate, and attach the messages to the autograd graph of the potentials."""


@dataclass(frozen=True)
class Unrolled(Gradient):
    """Backpropagate through every sweep.

    This is the exact derivative of what was computed, of any order. Memory grows with the number of
    sweeps.
    """

    def run(self, equations: Equations, start: Messages, limits: Limits) -> Outcome:
        """Propagate with gradients recorded."""
        return propagate(equations, start, limits)

    def for_log_partition(self, messages: Messages) -> Messages:
        """Return the messages as they are, with their gradients."""
        return messages


@dataclass(frozen=True)
class FromBeliefs(Gradient):
    """Treat the messages as constants, at no cost.

    The gradient of log Z is then the beliefs, which is right at a fixed point. Marginals and
    entropy lose the part of their gradient that passes through the messages, which is most of it:
    use this for log Z only.
    """

    def run(self, equations: Equations, start: Messages, limits: Limits) -> Outcome:
        """Propagate without gradients."""
        with torch.no_grad():
            return propagate(equations, start, limits)


@dataclass(frozen=True)
class Implicit(Gradient):
    """Differentiate the fixed point by the implicit function theorem.

    The messages satisfy ``m = G(m, theta)``. If g is the gradient with respect to m, that with
    respect to theta is ``(dG/dtheta)^T u``, where ``(I - J^T) u = g`` and ``J = dG/dm``. GMRES
    solves for u. The gradient is right if the messages have converged. The memory is that of one
    sweep, and only first derivatives are available.

    Args:
        iterations: the largest number of GMRES iterations. Each costs a backward pass through one
            sweep, and stores a vector the size of all messages. GMRES also stops after as many
            seconds as were given to the messages.
        tolerance: residual at which GMRES stops, relative to g.
    """

    iterations: int = 100
    tolerance: float = 1e-6

    def __post_init__(self) -> None:
        require_fields(self, iterations="[1, inf)", tolerance="[0, inf]")

    def run(self, equations: Equations, start: Messages, limits: Limits) -> Outcome:
        """Propagate without gradients, then update all messages once with gradients."""
        with torch.no_grad():
            outcome = propagate(equations, start, limits)
        seconds = math.inf if limits.seconds is None else limits.seconds
        return replace(outcome, messages=self.attached(equations, outcome.messages, seconds))

    def attached(self, equations: Equations, messages: Messages, seconds: float) -> Messages:
        """Return the messages of a fixed point, attached to the autograd graph of the potentials.

        The backward pass solves its linear system in about ``seconds`` at most.
        """
        parts_record = equations.boundary is not None and equations.records
        if not torch.is_grad_enabled() or not (equations.edges.count or parts_record):
            return messages
        # The backward pass of this update multiplies u by (dG/dtheta)^T.
        updated = equations.update(tuple(message.detach() for message in messages))
        if parts_record:
            # The parts of a model solve one linear system together, by collective calls. So every
            # part needs a backward pass, even if no gradient reaches its own potentials.
            updated = tuple(m if m.requires_grad else m.requires_grad_() for m in updated)
        elif not any(message.requires_grad for message in updated):
            return messages
        # The values stay what they are without gradients, to the last digit.
        arguments = equations, self, seconds, messages
        return _ImplicitDifferentiation.apply(*arguments, *updated)  # pyright: ignore


class _ImplicitDifferentiation(torch.autograd.Function):
    """Return the messages in place of their update, which has the same values at a fixed point.

    The backward pass replaces the gradient g by the u of `Implicit`, and gives it to the update.
    """

    @staticmethod
    def forward(  # pyright: ignore
        ctx,  # pyright: ignore
        equations: Equations,
        implicit: Implicit,
        seconds: float,
        messages: Messages,
        *updated: Tensor,
    ) -> Messages:
        del updated  # equal to the messages at a fixed point
        ctx.equations, ctx.implicit, ctx.seconds = equations, implicit, seconds  # pyright: ignore
        ctx.save_for_backward(*messages)  # pyright: ignore
        return tuple(message.clone() for message in messages)

    @staticmethod
    @differentiable_once
    def backward(ctx, *grads: Tensor):  # pyright: ignore
        equations, implicit = ctx.equations, ctx.implicit  # pyright: ignore
        # From m = G(m, theta) follows dm = J dm + (dG/dtheta) dtheta, and therefore
        #     g^T dm = g^T (I - J)^-1 (dG/dtheta) dtheta = u^T (dG/dtheta) dtheta,
        # where (I - J^T) u = g. This pass returns u, which the update recorded in
        # `Implicit.attached` multiplies by dG/dtheta.
        with torch.enable_grad():
            inputs = tuple(m.detach().requires_grad_() for m in ctx.saved_tensors)  # pyright: ignore
            outputs = equations.update(inputs)  # pyright: ignore

        def subtract_jacobian(vector: Tensor) -> Tensor:
            """Return (I - J^T) v, by a backward pass through one update of all messages."""
            products = torch.autograd.grad(
                outputs, inputs, _unflatten(vector, inputs),
                retain_graph=True, allow_unused=True, materialize_grads=True,
            )  # fmt: skip
            return vector - _flatten(products)

        solution, residual = gmres(
            subtract_jacobian,
            _flatten(grads),
            implicit.iterations,
            implicit.tolerance,  # pyright: ignore
            deadline=clock.now() + ctx.seconds,  # pyright: ignore
            total=_unchanged if equations.boundary is None else equations.boundary.solved,  # pyright: ignore
        )
        # Warn only if the tolerance was missed by far, and not if it was nearly met.
        if residual > 100 * implicit.tolerance:  # pyright: ignore
            warnings.warn(
                f"The implicit gradient is inaccurate: its linear solve stopped at a relative "
                f"residual of {residual:.1e} after {implicit.iterations} iterations or fewer. "  # pyright: ignore
                "Raise Implicit(iterations=...) or the scheduler's seconds, or use Unrolled().",
                stacklevel=2,
            )
        return None, None, None, None, *_unflatten(solution, inputs)


def _flatten(messages: Sequence[Tensor]) -> Tensor:
    """Return the entries of all messages as one vector."""
    return torch.cat([message.reshape(-1) for message in messages])


def _unflatten(vector: Tensor, like: Messages) -> tuple[Tensor, ...]:
    """Return a vector as tensors of the shapes of messages; the inverse of `_flatten`."""
    parts = torch.split(vector, [message.numel() for message in like])
    return tuple(p.reshape(m.shape) for p, m in zip(parts, like, strict=True))


def _unchanged(values: Tensor) -> Tensor:
    """Return the values themselves, the sum over a single process."""
    return values


def gmres(
    operator: Callable[[Tensor], Tensor],
    right: Tensor,
    iterations: int,
    tolerance: float,
    *,
    deadline: float = math.inf,
    total: Callable[[Tensor], Tensor] = _unchanged,
) -> tuple[Tensor, float]:
    """Solve ``A x = b`` by GMRES without restarts (Saad and Schultz 1986).

    With ``q_1 = b / |b|``, iteration k makes A q_k orthogonal to q_1, ..., q_k and scales it to the
    unit vector q_{k+1}, so that ``A Q_k = Q_{k+1} H_k``. The solution is ``x = Q_k y``, where y
    minimises ``|H_k y - |b| e_1|``, which is the norm of the residual.

    Args:
        operator: multiplies a vector by A.
        right: (n,) b.
        iterations: the largest dimension of the Krylov space.
        tolerance: relative residual at which to stop.
        deadline: the iteration in which it passes, on `clock.now`, is the last one.
        total: sums scalar products over processes, if each process holds a part of every vector.

    Returns:
        x, and its relative residual ``|A x - b| / |b|``.
    """

    def norm(vector: Tensor) -> float:
        return math.sqrt(float(total(vector.norm().double().square())))

    right_norm = norm(right)
    if right_norm == 0.0:
        return torch.zeros_like(right), 0.0
    basis = [right / right_norm]
    hessenberg = torch.zeros(1, 0, dtype=torch.float64, device="cpu")
    coefficients = torch.zeros(0, dtype=torch.float64, device="cpu")
    residual = 1.0
    for step in range(iterations):
        # Project A q_k on the basis. Rounding in float32 would leave q_{k+1} far from orthogonal
        # after one projection, so there are two.
        image = operator(basis[-1])
        column = torch.zeros(step + 2, dtype=torch.float64, device="cpu")
        for _ in range(2):
            products = total(torch.stack([torch.dot(vector, image) for vector in basis]))
            for product, vector in zip(products, basis, strict=True):
                image = image - product * vector
            column[:-1] += products.cpu()
        image_norm = norm(image)
        column[-1] = image_norm

        # Append the column to H_k, and minimise |H_k y - |b| e_1|.
        padded = torch.nn.functional.pad(hessenberg, (0, 0, 0, 1))
        hessenberg = torch.cat([padded, column[:, None]], 1)
        target = torch.zeros(step + 2, 1, dtype=torch.float64, device="cpu")
        target[0] = right_norm
        coefficients = torch.linalg.lstsq(hessenberg, target, driver="gelsd").solution[:, 0]
        residual = float((hessenberg @ coefficients - target[:, 0]).norm()) / right_norm

        # Processes may round differently: all stop together, as soon as one of them would.
        done = residual <= tolerance or image_norm <= _BREAKDOWN or clock.now() > deadline
        if float(total(right.new_tensor(float(done)))):
            break
        basis.append(image / image_norm)
    # A direction that was added after the last solve has no coefficient.
    return coefficients.to(right) @ torch.stack(basis[: len(coefficients)]), residual
