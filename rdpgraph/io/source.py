"""Bytes from files, pipes and terminals, and to pipes, without seeking and without hanging."""

import errno
import os
import select
import stat
from time import monotonic, sleep
from typing import Self

from rdpgraph.errors import ModelError

WAIT = 60.0
"""How long a pipe may be silent by default, in seconds."""
_STANDARD_INPUT = ("-", "/dev/stdin", "/dev/fd/0", "/proc/self/fd/0")


class Source:
    """An open file whose first two bytes are known, read from front to end.

    A pipe without a writer, or whose writer is silent, is waited for no longer than ``wait``.

    Args:
        path: the file; ``-`` is standard input.
        wait: how long to wait for the next bytes, in seconds.

    Raises:
        ModelError: no path.
        OSError: the file cannot be opened or read; TimeoutError: nothing came.
    """

    def __init__(self, path: str | os.PathLike[str], wait: float = WAIT) -> None:
        if not isinstance(path, str | os.PathLike):
            raise ModelError(f"A file to read needs a path, as 'model.uai'; got {path!r:.80}.")
        self._name, self._wait = str(path), wait
        if self._name in _STANDARD_INPUT:
            self._file = os.dup(0)  # what cannot be opened by name, a socket, is read too
        else:  # a pipe that is opened to block waits for its writer, forever
            flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
            self._file = os.open(path, flags)
        try:
            if stat.S_ISDIR(os.fstat(self._file).st_mode):
                raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), self._name)
            self._waits = not stat.S_ISREG(os.fstat(self._file).st_mode)
            self._ahead = b""
            while len(self._ahead) < 2 and (byte := self._next(2 - len(self._ahead))):
                self._ahead += byte
        except BaseException:
            os.close(self._file)
            raise
        self.head = self._ahead

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._file)

    def read(self, most: int) -> bytes:
        """The next bytes, some at least, or none at the end."""
        ahead, self._ahead = self._ahead[:most], self._ahead[most:]
        return ahead or self._next(most)

    def _next(self, most: int) -> bytes:
        until = monotonic() + self._wait
        while True:
            if self._waits and not _is_ready(self._file, select.POLLIN, until):
                message = f"nothing came for {self._wait:g} seconds (is anything writing?)"
                raise TimeoutError(errno.ETIMEDOUT, message, self._name)
            try:
                return os.read(self._file, most)
            except BlockingIOError:
                continue
            except OSError as error:
                raise OSError(error.errno, error.strerror, self._name) from None


def pour(path: str | os.PathLike[str], data: bytes, wait: float = WAIT) -> None:
    """Write into a pipe or a terminal.

    Raises:
        OSError: it cannot be opened or written to; TimeoutError: nobody reads for too long.
    """
    late = TimeoutError(errno.ETIMEDOUT, f"nobody read for {wait:g} seconds", str(path))
    until, left, file = monotonic() + wait, memoryview(data), -1
    while file < 0:
        try:  # to open it so that it blocks would wait for a reader, forever
            file = os.open(path, os.O_WRONLY | getattr(os, "O_NONBLOCK", 0))
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            if monotonic() > until:
                raise late from None
            sleep(0.02)
    try:
        while left:
            if not _is_ready(file, select.POLLOUT, until):
                raise late
            try:
                left = left[os.write(file, left) :]
                until = monotonic() + wait
            except BlockingIOError:
                continue
    finally:
        os.close(file)


def _is_ready(file: int, event: int, until: float) -> bool:
    """Whether a file can be read from or written to, before it is too late."""
    poll = select.poll()
    poll.register(file, event)
    return bool(poll.poll(min(1000 * max(until - monotonic(), 0.0), 2.0**31 - 1)))
