"""The clock that deadlines are on, and seconds that several pieces of work share."""

from collections.abc import Callable, Generator
from contextlib import contextmanager
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


def now() -> float:
    """Seconds since some moment; every deadline is on this clock."""
    return perf_counter()


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
    """

    seconds: float
    spent: float = 0.0

    def left(self, share: float = 1.0) -> float:
        """A part of what is left; a tenth of the whole at least, so that every answer gets some."""
        return max(share * (self.seconds - self.spent), _LEAST * self.seconds)

    @contextmanager
    def spending(self) -> Generator[None]:
        """Counts what is done inside."""
        begin = now()
        try:
            yield
        finally:
            self.spent += now() - begin
