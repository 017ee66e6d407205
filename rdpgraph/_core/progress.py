"""Progress of long work: callbacks that may end it. Imports no torch, as planning does not."""

import math
from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from time import monotonic
from typing import Any

from rdpgraph._core import tuning
from rdpgraph.errors import ModelError


@dataclass(frozen=True)
class Progress:
    """Progress of long work, as given to a callback: estimates, pruning, training, learned rates.

    A callback that raises StopIteration makes the work stop early: what is found so far is the
    answer. Work that has no step for two seconds, such as planning, is reported by its name, with
    NaN as the value.

    Attributes:
        work: the work, in words.
        number: steps done; of work without steps, its reports.
        value: in nats, after these steps: the estimate of log Z ("populations"), the mean score of
            a sweep of pruning ("sweeps"), the evidence bound of a Gaussian process ("steps"), or
            the log-likelihood of learned rates ("rates").
        seconds: since the start.
    """

    work: str
    number: int
    value: float
    seconds: float

    def __str__(self) -> str:
        if math.isnan(self.value):
            return f"{self.work}: {self.seconds:.0f} s"
        return f"{self.work}: {self.number}, {self.value:.4f}"


@dataclass(eq=False)
class _Report:
    """Work that is reported from time to time while it has no step to report."""

    progress: Callable[[Any], object]
    work: str
    begin: float
    last: float  # report, of a step or of work without one
    number: int = 0
    stop: bool = False  # the callback has asked to end

    def look(self) -> None:
        """Report the work if nothing was reported for a while."""
        since = monotonic()
        if self.stop or since - self.last < tuning.QUIET_SECONDS:
            return
        self.number += 1
        self.last = math.inf  # what the callback asks of us is not reported
        try:
            self.progress(Progress(self.work, self.number, math.nan, since - self.begin))
        except StopIteration:
            self.stop = True
        finally:
            self.last = monotonic()


_report: ContextVar[_Report | None] = ContextVar("report", default=None)


@contextmanager
def reporting(progress: Callable[[Any], object] | None, work: str) -> Generator[None]:
    """Call ``progress`` with the name of the work whenever two seconds pass without a step of it.

    This happens where the work looks at the clock (`plan/clock.py`), so not within one large
    product. Work inside other work that reports goes by the callback of that one, under its own
    name, and ``progress`` may be None. Where no work around it reports and ``progress`` is None,
    nothing is reported.
    """
    outer = _report.get()
    if outer is None and progress is None:
        yield
        return
    if outer is not None:
        before, outer.work = outer.work, work
        try:
            yield
        finally:
            outer.work = before
        return
    assert progress is not None
    token = _report.set(_Report(progress, work, (begin := monotonic()), begin))
    try:
        yield
    finally:
        _report.reset(token)


def report_quiet_work() -> bool:
    """Report work without steps, at most every two seconds; True if it is to end."""
    report = _report.get()
    if report is None:
        return False
    report.look()
    return report.stop


def goes_on(progress: Callable[[Any], object] | None, step: object) -> bool:
    """Report a step; False where the callback raises StopIteration to end the work."""
    if not (progress is None or callable(progress)):
        raise ModelError(f"progress needs a function of a step, or None; got {progress!r:.80}.")
    if progress is not None:
        try:
            progress(step)
        except StopIteration:
            return False
        if (report := _report.get()) is not None:
            report.last = monotonic()
    return True
