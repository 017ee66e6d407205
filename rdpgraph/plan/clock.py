"""The clock that deadlines are on, and seconds that several pieces of work share."""

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter

PLANNING = 0.2
"""The part of a time budget in which planning and preparing end."""

LEAST_PLANNING = 0.1
"""Seconds that planning may take whatever the budget."""

_LEAST = 0.1


def now() -> float:
    """Seconds since some moment; every deadline is on this clock."""
    return perf_counter()


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
