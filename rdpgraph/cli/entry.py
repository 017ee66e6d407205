"""Entry point: closed streams, errors of one line, exit codes."""

import errno
import os
import signal
import sys
import threading
from io import TextIOBase
from typing import NoReturn

from rdpgraph.errors import RdpgraphError, in_a_line


class _Closed(TextIOBase):
    """A standard output that the caller has closed."""

    def write(self, text: str, /) -> int:
        """Raise an error that names --output."""
        raise OSError(errno.EBADF, "it is closed; use --output FILE", "standard output")


_caught: list[bool] = []
"""One entry for each Ctrl-C since the start, except those that `interruptible` answers."""


def raise_swallowed() -> None:
    """Raise the Ctrl-C that code beneath an import has swallowed, if there was one."""
    if _caught:
        raise KeyboardInterrupt


def main() -> None:
    """Run the command line: exit code 0 answered, 1 a one-line error, 2 usage, 130 interrupted."""
    _caught.clear()

    def interrupted(*_: object) -> None:
        _caught.append(True)
        raise KeyboardInterrupt

    ours = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGINT, interrupted) if ours else None
    try:
        _answered()
    except BaseException as error:
        # An interrupted import may fail later with another error.
        if _caught or _is_interrupt(error):
            _fail("Stopped.", 130)
        raise
    finally:
        if before is not None:
            signal.signal(signal.SIGINT, before)


def _is_interrupt(error: BaseException) -> bool:
    """Return whether an error is Ctrl-C, or the exit that typer makes of it."""
    before = error.__context__.__cause__ if error.__context__ else None
    return isinstance(error, KeyboardInterrupt) or isinstance(before, KeyboardInterrupt)


def _answered() -> None:
    try:
        _run()
    except BrokenPipeError:
        _drop_stdout()
        sys.exit(1)
    except OSError as error:
        name = f"{error.filename}: " if error.filename else ""
        _drop_stdout()
        _fail(f"{name}{error.strerror or error}.")


def _run() -> None:
    if sys.stdout is None:  # pyright: ignore[reportUnnecessaryComparison]  # closed by the caller
        sys.stdout = _Closed()
    if hasattr(sys.stdout, "reconfigure"):  # escape characters that the terminal lacks
        sys.stdout.reconfigure(errors="backslashreplace")  # pyright: ignore
    from rdpgraph.cli.app import app

    try:
        app(prog_name="rdpgraph")
    except SystemExit:
        sys.stdout.flush()  # while a full disk can still set the exit code
        raise
    except RdpgraphError as error:
        _fail(str(error))
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "memory" not in str(error).lower():
            raise
        _fail("Out of memory; ask for less at once, or lower --memory.")


def _drop_stdout() -> None:
    """Discard buffered output, so that flushing at exit does not fail again."""
    if not isinstance(sys.stdout, _Closed):
        try:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        except (OSError, ValueError):  # not a file
            return


def _fail(message: str, code: int = 1) -> NoReturn:
    if sys.stderr is not None:  # pyright: ignore[reportUnnecessaryComparison]
        sys.stderr.write(f"Error: {in_a_line(message)}\n")
    sys.exit(code)
