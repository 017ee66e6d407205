"""Clock of all deadlines, allowances shared by several pieces of work, and Ctrl-C."""

import signal
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from math import inf
from time import perf_counter

from rdpgraph._core import effort, tuning
from rdpgraph._core.progress import report_quiet_work
from rdpgraph.errors import BudgetError


@dataclass(eq=False)
class Counter:
    """A clock that advances by work alone, so that deadlines fall alike on every machine."""

    seconds: float = 0.0  # predicted for the work so far


_counter: ContextVar[Counter | None] = ContextVar("counter", default=None)


@dataclass(eq=False)
class Stop:
    """A request to end work early, with the best answer so far.

    Attributes:
        asked: set by Ctrl-C, or by anybody else.
        end: when the time is over, in seconds of the machine's clock.
    """

    asked: bool = False
    end: float = inf
    _passed: float = 0.0

    @property
    def over(self) -> bool:
        """True once the time is over."""
        return perf_counter() >= self.end

    def passed(self) -> float:
        """Seconds added to the clock: at the end, each look at it is past every deadline."""
        if self.asked or self.over:
            self._passed += effort.NEVER
        return self._passed


_stop: ContextVar[Stop | None] = ContextVar("stop", default=None)
_ended = Stop(asked=True)  # of work whose progress has ended it


@contextmanager
def interruptible(seconds: float = inf) -> Generator[Stop]:
    """End work inside at the first Ctrl-C with the best answer so far; a second one raises.

    Work ends in the same way once the seconds are over, whatever its own budget is: predictions
    fail where others use the machine.

    Work that watches the clock or counts sweeps, moves or steps ends soon: messages, searches,
    estimates, pruning and fits, each with its result so far and a status that has not converged.
    Exact inference has no partial result: `Auto` then answers by messages, and `Contraction` raises
    `BudgetError`. Posteriors answer when they are asked: ask inside. Outside the main thread Ctrl-C
    is left alone.

    Args:
        seconds: after which work ends, on the machine's clock.

    Yields:
        A `Stop`, whose ``asked`` says whether to stop, and may be set from another thread.

    Example:
        >>> import torch
        >>> import rdpgraph as rg
        >>> x = rg.VariableArray("x", (30, 30), 2)
        >>> unary = rg.Table(torch.randn(30, 30, 2, generator=torch.Generator().manual_seed(0)))
        >>> tie = rg.Table(torch.eye(2))
        >>> graph = rg.FactorGraph(
        ...     [rg.FactorBlock((x,), unary), rg.FactorBlock((x[1:], x[:-1]), tie),
        ...      rg.FactorBlock((x[:, 1:], x[:, :-1]), tie)])
        >>> with rg.interruptible() as stop:
        ...     stop.asked = True  # as Ctrl-C does
        ...     status = rg.infer(graph, rg.Loopy(tolerance=0.0)).status
        >>> status.converged, status.iterations
        (False, 1)
    """
    stop = Stop(end=perf_counter() + seconds)

    def ask(*_: object) -> None:
        if stop.asked:
            raise KeyboardInterrupt
        stop.asked = True

    token = _stop.set(stop)
    try:
        with _at_interrupt(ask):
            yield stop
    finally:
        _stop.reset(token)


@contextmanager
def _at_interrupt(handler: Callable[..., None]) -> Generator[None]:
    """Call a function at Ctrl-C, in the main thread."""
    ours = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGINT, handler) if ours else None
    try:
        yield
    finally:
        if before is not None:  # None: not the main thread, or a handler that Python cannot restore
            signal.signal(signal.SIGINT, before)


def stopped() -> bool:
    """Return whether the work is to end, for loops without a deadline."""
    stop = _stop.get()
    return report_quiet_work() or (stop is not None and (stop.asked or stop.over))


def now() -> float:
    """Seconds on the clock of all deadlines; whatever watches it also reports that it goes on."""
    counter, stop = _counter.get(), _stop.get()
    passed = 0.0 if stop is None else stop.passed()
    if report_quiet_work():
        passed += _ended.passed()
    if counter is None:
        return perf_counter() + passed
    counter.seconds += tuning.SECONDS_PER_LOOK
    return counter.seconds + passed


def count(operations: float) -> None:
    """Tell the clock how many operations were done since the last call.

    Where time is counted and not measured, this is what advances it; otherwise it does nothing.
    """
    counter = _counter.get()
    if counter is not None:
        counter.seconds += operations / tuning.OPERATIONS_PER_SECOND


class Meter:
    """Counted seconds of a piece of work whose result is cached.

    Where time is counted, a cached result takes as long as it did at first (`repeat`). Otherwise
    what is found by a deadline would depend on what had been planned before.
    """

    def __init__(self) -> None:
        self._counter = _counter.get()
        self._begin = 0.0 if self._counter is None else self._counter.seconds

    @property
    def is_counting(self) -> bool:
        """True if operations are counted in place of time: a part of the key of a cache."""
        return self._counter is not None

    @property
    def seconds(self) -> float:
        """Counted seconds since the start; 0 where time is not counted."""
        return 0.0 if self._counter is None else self._counter.seconds - self._begin

    def repeat(self, seconds: float) -> None:
        """Advance the counter, if there is one, by what a cached result took."""
        if self._counter is not None:
            self._counter.seconds += seconds


@contextmanager
def counted(counter: Counter | None) -> Generator[None]:
    """Replace the machine's clock by a counter; None: leave it."""
    token = _counter.set(counter) if counter is not None else None
    try:
        yield
    finally:
        if token is not None:
            _counter.reset(token)


class Watch:
    """Time limit of one piece of work, from now on.

    Work whose finished part says that it ends soon has ``most`` seconds, the same by default.
    """

    def __init__(self, seconds: float = inf, most: float | None = None) -> None:
        self.seconds, self.most = seconds, seconds if most is None else most
        self._begin = now()

    @property
    def spent(self) -> float:
        """Seconds since the start."""
        return now() - self._begin

    def look(self, done: Callable[[], float] | None = None) -> None:
        """Raise `BudgetError` once the seconds are over, or will be by far.

        ``done`` gives the predicted part of the work that is finished: what is nearly finished goes
        on, as all of it would be lost.
        """
        if stopped():
            stop = _stop.get()
            why = "Stopped" if stop is not None and stop.asked else "The time ran out"
            raise BudgetError(f"{why} before exact inference had an answer.")
        spent = self.spent
        if spent <= effort.EARLY * self.seconds:
            return
        whole = spent if done is None else spent / max(done(), effort.LEAST_DONE)
        late = spent > self.seconds and (done is None or whole > self.most)
        if late or whole > effort.HOPELESS * self.seconds:
            raise BudgetError(
                f"Exact inference would take {whole:.3g} s, longer than predicted; "
                f"{ways_out(whole, 'time', 'use an approximate method')}."
            )


def ways_out(seconds: float, budget: str, *others: str) -> str:
    """Return advice for an error: raise the budget, or do one of the other things named.

    To raise the budget is left out where so many seconds are hopeless.
    """
    ways = [f"raise the {budget} budget", *others] if seconds < effort.NEVER else [*others]
    return ", or ".join([", ".join(ways[:-1]), ways[-1]] if len(ways) > 1 else ways)


@dataclass(eq=False)
class Allowance:
    """Seconds that several pieces of work share; time between them is not counted."""

    seconds: float  # for all of them
    spent: float = 0.0  # so far
    counter: Counter | None = None  # replaces the clock, if given
    shared: bool = True  # False: each answer has all of the seconds

    @property
    def is_counted(self) -> bool:
        """True if operations are counted in place of time."""
        return self.counter is not None or _counter.get() is not None

    def for_one_answer(self) -> "Allowance":
        """Seconds for one answer.

        In counted time each answer has a copy of these seconds, so that it does not depend on the
        answers before it. On the machine's clock all answers share them, unless the user's limit
        is for each: then what is left for one depends on those before.
        """
        return replace(self) if self.is_counted or not self.shared else self

    def left(self, share: float = 1.0) -> float:
        """Part of the seconds that are left, and at least a tenth of all for every answer."""
        return max(share * (self.seconds - self.spent), effort.LEAST_LEFT * self.seconds)

    @property
    def is_over(self) -> bool:
        """True if almost none of the seconds are left."""
        return self.spent > (1.0 - effort.LEAST_LEFT) * self.seconds

    @contextmanager
    def spending(self) -> Generator[None]:
        """Add the time inside to `spent`."""
        with counted(self.counter):
            begin = now()
            try:
                yield
            finally:
                self.spent += now() - begin


_caught: list[bool] = []
"""One entry for each Ctrl-C since the start, except those that `interruptible` answers."""


def raise_swallowed() -> None:
    """Raise the Ctrl-C that code beneath an import has swallowed, if there was one."""
    if _caught:
        raise KeyboardInterrupt


def was_interrupted(error: BaseException) -> bool:
    """Return whether Ctrl-C came, or an error is the exit that typer makes of it."""
    before = error.__context__.__cause__ if error.__context__ else None
    # An interrupted import may fail later with another error.
    return bool(_caught) or any(isinstance(one, KeyboardInterrupt) for one in (error, before))


@contextmanager
def recorded() -> Generator[None]:
    """Record each Ctrl-C inside."""
    _caught.clear()

    def interrupted(*_: object) -> None:
        _caught.append(True)
        raise KeyboardInterrupt

    with _at_interrupt(interrupted):
        yield
