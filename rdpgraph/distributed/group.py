"""Groups of processes: joined by torchrun's variables, ended with one line on an error."""

import os
import re
import socket
import sys
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from time import monotonic, sleep
from typing import TYPE_CHECKING, NoReturn

import torch
import torch.distributed as dist

from rdpgraph.errors import GroupError, RdpgraphError

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


@contextmanager
def group(*, seconds: float = 300.0, backend: str | None = None) -> "Generator[DeviceMesh]":
    """A mesh of all the processes that torchrun or SLURM started, of one dim.

    A process that is lost ends the others, and an error of one ends it, each with one line on
    standard error and exit code 1: so the block should hold the whole program. An existing group is
    used as it is, with its time limit.

    Args:
        seconds: the time limit of joining, and of every message.
        backend: of torch.distributed; default: gloo, and nccl between GPUs where there are any.

    Raises:
        SystemExit: with one line, of what went wrong with the group or the model.
    """
    from torch.distributed.device_mesh import init_device_mesh

    here = f"rank {os.environ.get('RANK', '?')} of {os.environ.get('WORLD_SIZE', '?')}"
    began = not dist.is_initialized()
    cuda = torch.cuda.is_available() and (backend is None or "nccl" in backend)
    try:
        with one_line(here):
            if began:
                # gloo for objects and tensors on the CPU, nccl for tensors on GPUs.
                _join(backend or ("cpu:gloo,cuda:nccl" if cuda else "gloo"), seconds, here)
            if cuda:
                torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
            mesh = init_device_mesh("cuda" if cuda else "cpu", (dist.get_world_size(),))
            yield mesh
    except RdpgraphError as error:
        _end(str(error))
    if began:
        dist.destroy_process_group()


def _join(backend: str, seconds: float, here: str) -> None:
    lacking = [name for name in _NAMES if name not in os.environ]
    if lacking:
        raise GroupError(
            f"No group of processes: {', '.join(lacking)} not set; start the program with torchrun."
        )
    if os.environ["RANK"] != "0":
        _await_first(seconds, here)
    try:
        dist.init_process_group(backend, timeout=timedelta(seconds=seconds))
    except (RuntimeError, ValueError) as error:
        raise _not_formed(seconds, here, first_line(error)) from None


def _await_first(seconds: float, here: str) -> None:
    """Wait until the first rank listens; torch's own wait would end in pages of C++ frames."""
    until = monotonic() + seconds
    host, port = os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"]
    while True:
        try:
            socket.create_connection((host, int(port)), timeout=seconds).close()
            return
        except (OSError, OverflowError, ValueError) as error:
            if monotonic() > until or not isinstance(error, OSError):
                raise _not_formed(seconds, here, f"nobody listens there ({error})") from None
        sleep(0.05)


def _not_formed(seconds: float, here: str, why: str) -> GroupError:
    where = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
    return GroupError(f"The group did not form at {where} within {seconds:.3g} s, {here}: {why}")


@contextmanager
def alone() -> "Generator[DeviceMesh]":
    """A mesh of this process alone, to try out programs for many."""
    from torch.distributed.device_mesh import init_device_mesh

    began = not dist.is_initialized()
    with tempfile.TemporaryDirectory() as folder:
        if began:
            path = str(Path(folder) / "store")
            store = dist.FileStore(path, 1)  # pyright: ignore[reportPrivateImportUsage]
            dist.init_process_group("gloo", store=store, rank=0, world_size=1)
        try:
            yield init_device_mesh("cpu", (dist.get_world_size(),))
        finally:
            if began:
                dist.destroy_process_group()


@contextmanager
def one_line(here: str) -> Generator[None]:
    """Turn errors of torch's groups into a `GroupError` of one line."""
    try:
        yield
    except RdpgraphError:
        raise
    except RuntimeError as error:  # of gloo and nccl, beside typed errors
        if isinstance(error, dist.DistError) or any(word in str(error) for word in _LOST):
            raise GroupError(
                f"The group is lost, {here}: another process ended or does not answer "
                f"({first_line(error)})."
            ) from None
        raise


def first_line(error: BaseException) -> str:
    """The first line of an error's message, without its place in the source."""
    line = " ".join(str(error).split("\n")[0].split(". ")[0].split())
    return re.sub(r"^\[?/[^]]*\] ?", "", line)[:160].rstrip(
        "."
    )  # without the place in torch's source


def _end(message: str) -> NoReturn:
    """Print one line and exit at once; threads that wait for other processes would block."""
    sys.stderr.write(f"Error: {message}\n")
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)


_NAMES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_LOST = (
    "Connection",
    "connect",
    "timed out",
    "Timed out",
    "timeout",
    "peer",
    "Broken pipe",
    "NCCL",
)
