"""An end to what takes longer than the time that was given."""

import signal
import threading
from collections.abc import Generator
from contextlib import contextmanager
from time import monotonic

from rdpgraph.errors import BudgetError

_SLACK = 1.2
_MORE = 1.0  # a model of no size takes some time too


class _Rung(BaseException):
    """The time is over; nothing that goes on after errors goes on after it."""


@contextmanager
def ending(seconds: float, *, spent: float = 0.0) -> Generator[None]:
    """Ends what is done inside once the seconds, a fifth more and a second are over.

    Seconds that were spent before count too, as far as a half of them.

    Everything looks at the clock and ends by itself where it can; this is for what cannot, such as
    reading a file for longer than that. Nothing happens where there are no alarms: in threads, and
    on Windows.

    Raises:
        BudgetError: they are over.
    """
    ours = threading.current_thread() is threading.main_thread()
    if not ours or not hasattr(signal, "setitimer"):
        yield
        return

    def ring(*_: object) -> None:
        raise _Rung

    begin = monotonic()
    before = signal.signal(signal.SIGALRM, ring)
    most = _SLACK * seconds + _MORE - min(spent, 0.5 * seconds)
    left, interval = signal.setitimer(signal.ITIMER_REAL, most)
    try:
        yield
    except _Rung:
        raise BudgetError(
            f"There is no answer well after the time budget of {seconds:g} s; raise --time, or ask "
            "for less."
        ) from None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
        if left:  # of someone else's alarm
            signal.setitimer(signal.ITIMER_REAL, max(left - (monotonic() - begin), 1e-3), interval)
