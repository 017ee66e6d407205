"""Entry point: closed streams, errors of one line, exit codes."""

import errno
import os
import sys
import warnings
from contextlib import suppress
from io import TextIOBase
from typing import NoReturn

from rdpgraph.cli.advice import in_options
from rdpgraph.errors import RdpgraphError, in_a_line
from rdpgraph.plan.clock import recorded, was_interrupted


class _Closed(TextIOBase):
    """A standard output that the caller has closed."""

    def write(self, text: str, /) -> int:
        """Raise an error that names --output."""
        raise OSError(errno.EBADF, "it is closed; use --output FILE", "standard output")


def main() -> None:
    """Run the command line: exit code 0 answered, 1 a one-line error, 2 usage, 130 interrupted."""
    with recorded(), warnings.catch_warnings():
        warnings.showwarning = _say
        try:
            _run()
        except BaseException as error:
            if was_interrupted(error):
                _fail("Stopped.", 130)
            if isinstance(error, OSError):
                _drop_stdout()
                if isinstance(error, BrokenPipeError):
                    sys.exit(1)
                name = f"{error.filename}: " if error.filename else ""
                _fail(f"{name}{error.strerror or error}.")
            if isinstance(error, RdpgraphError):
                _fail(str(error))
            if isinstance(error, MemoryError) or (
                isinstance(error, RuntimeError) and "memory" in str(error).lower()
            ):
                _fail("Out of memory; ask for less at once, or lower --memory.")
            raise


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


def _say(message: Warning | str, *_: object) -> None:
    """Print a warning on one line, without the place in the code."""
    if sys.stderr is not None:  # pyright: ignore[reportUnnecessaryComparison]
        sys.stderr.write(f"Warning: {in_options(in_a_line(str(message)))}\n")


def _drop_stdout() -> None:
    """Discard buffered output, so that flushing at exit does not fail again."""
    if not isinstance(sys.stdout, _Closed):
        with suppress(OSError, ValueError):  # not a file
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fail(message: str, code: int = 1) -> NoReturn:
    if sys.stderr is not None:  # pyright: ignore[reportUnnecessaryComparison]
        sys.stderr.write(f"Error: {in_options(in_a_line(message))}\n")
    sys.exit(code)
