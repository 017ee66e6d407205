"""The clock that deadlines are on, and seconds that several pieces of work share."""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from math import inf
from time import perf_counter

from rdpgraph.errors import BudgetError

PLANNING = 0.2
"""The part of a time budget in which planning and preparing end."""

LEAST_PLANNING = 0.1
"""Seconds that planning may take whatever the budget."""

_NEVER = 30 * 86_400.0
"""Seconds that nobody waits for: a month."""

_LEAST = 0.1

_EARLY, _HOPELESS, _LITTLE = 0.25, 2.0, 1e-3


_LOOK = 2e-5
"""Seconds that a look at a counter stands for: about a step of a greedy order."""

_OPERATIONS = 3e8
"""Operations that a counter takes for a second."""


@dataclass(eq=False)
class Counter:
    """A clock that moves by work alone, so that what its deadlines end is the same anywhere.

    Attributes:
        seconds: predicted for what was done so far.
    """

    seconds: float = 0.0


_counter: ContextVar[Counter | None] = ContextVar("counter", default=None)


def now() -> float:
    """Seconds since some moment; every deadline is on this clock."""
    counter = _counter.get()
    if counter is None:
        return perf_counter()
    counter.seconds += _LOOK
    return counter.seconds


def count(operations: float) -> None:
    """Tell a counter, where there is one, what was done since the last look."""
    counter = _counter.get()
    if counter is not None:
        counter.seconds += operations / _OPERATIONS


@contextmanager
def counted(counter: Counter | None) -> Generator[None]:
    """Puts a counter in place of the machine's clock; None: leaves it."""
    token = _counter.set(counter) if counter is not None else None
    try:
        yield
    finally:
        if token is not None:
            _counter.reset(token)


class Watch:
    """Seconds for one piece of work, from now on."""

    def __init__(self, seconds: float = inf) -> None:
        self.seconds, self._begin = seconds, now()

    @property
    def spent(self) -> float:
        """Seconds so far."""
        return now() - self._begin

    def look(self, done: Callable[[], float] | None = None) -> None:
        """Refuse to go on once the seconds are over, or will be by far.

        Args:
            done: the part of the work that is behind, as predicted.

        Raises:
            BudgetError: they are.
        """
        spent = self.spent
        if spent <= _EARLY * self.seconds:
            return
        whole = spent if done is None else spent / max(done(), _LITTLE)
        if spent > self.seconds or whole > _HOPELESS * self.seconds:
            raise BudgetError(
                f"Exact inference would take {whole:.3g} s, more than was predicted; "
                f"{ways_out(whole, 'time', 'use an approximate method')}."
            )


def ways_out(seconds: float, budget: str, *others: str) -> str:
    """Advice: to raise a budget unless nobody would wait for so many seconds, or others."""
    ways = [f"raise the {budget} budget", *others] if seconds < _NEVER else [*others]
    return ", or ".join([", ".join(ways[:-1]), ways[-1]] if len(ways) > 1 else ways)


@dataclass(eq=False)
class Allowance:
    """Seconds that several pieces of work share; time between them is not counted.

    Attributes:
        seconds: for all of them.
        spent: so far.
        counter: what they are counted on; None: the clock.
    """

    seconds: float
    spent: float = 0.0
    counter: Counter | None = None

    def left(self, share: float = 1.0) -> float:
        """A part of what is left; a tenth of the whole at least, so that every answer gets some."""
        return max(share * (self.seconds - self.spent), _LEAST * self.seconds)

    @contextmanager
    def spending(self) -> Generator[None]:
        """Counts what is done inside."""
        with counted(self.counter):
            begin = now()
            try:
                yield
            finally:
                self.spent += now() - begin
