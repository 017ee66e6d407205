"""Ctrl-C since the start of a command, remembered where imported code swallows it."""

import signal
import threading
from collections.abc import Generator
from contextlib import contextmanager

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

    ours = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGINT, interrupted) if ours else None
    try:
        yield
    finally:
        if before is not None:
            signal.signal(signal.SIGINT, before)
