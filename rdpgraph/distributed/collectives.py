"""Collectives: tensors gathered, summed and compared over processes, with their gradients.

All ranks of the group make every call, in the same order. A value that all ranks hold is a loss
once, not once for every rank: all ranks compute the same from what they have gathered, and the
gradient is that of one of them.
"""

import math
import os
import re
import socket
import sys
import tempfile
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from rdpgraph._core.portable import tensors_in
from rdpgraph._core.shards import fingerprint
from rdpgraph.errors import GroupError, ModelError, RdpgraphError
from rdpgraph.logspace.gradients import refused
from rdpgraph.logspace.logmatrix import finite, safe_log

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


Value = TypeVar("Value")
Items = TypeVar("Items", Tensor, range, Sequence[Any])


@dataclass(frozen=True, eq=False)
class Peers:
    """The processes that answer together: a group of torch.distributed, and this one's rank."""

    group: Any
    rank: int
    ranks: int

    @classmethod
    def of(cls, mesh: Any) -> "Peers":
        """The group of a `DeviceMesh`, which must have one dim."""
        if getattr(mesh, "ndim", 0) != 1:
            raise ModelError(
                f"A model needs a DeviceMesh of one dim; got {mesh!r:.80}. Select one dim of a "
                'larger mesh, as in mesh["states"].'
            )
        return cls(mesh.get_group(), mesh.get_local_rank(), mesh.size())

    def told(self, value: Any) -> list[Any]:
        """A small Python object of every rank, by rank."""
        if self.ranks == 1:
            return [value]
        answers: list[Any] = [None] * self.ranks
        dist.all_gather_object(answers, value, group=self.group)
        return answers

    def require_alike(self, what: str, value: Any) -> None:
        """Raise a `ModelError` on every rank where ranks disagree, naming two that differ."""
        answers = self.told(value)
        for rank, answer in enumerate(answers):
            if answer != answers[0]:
                raise ModelError(
                    f"The ranks must have one model, and their {what} differ: rank 0 has "
                    f"{answers[0]!r:.120}, rank {rank} has {answer!r:.120}."
                )

    def asked(self, question: str) -> None:
        """Raise an error on every rank if ranks ask different questions.

        Otherwise they would send messages of different sizes, which ends the process.
        """
        self.require_alike("questions", question)

    def require_one_state(self, generator: torch.Generator | None) -> None:
        """Refuse generators that would not draw the same on every rank; None is torch's default."""
        generator = torch.default_generator if generator is None else generator
        self.require_alike("generators", fingerprint(generator.get_state()))

    def agreed(self, question: Callable[[], Value]) -> Value:
        """The answer of this rank, if every rank has one; an error of one is raised on all."""
        if self.ranks == 1:
            return question()
        answers, wrong = list[Value](), None
        try:
            answers.append(question())
        except RdpgraphError as error:
            wrong = error
        if bool(self.largest(torch.tensor(float(wrong is not None)))):
            raise next(error for error in self.told(wrong) if error is not None)
        return answers[0]

    def largest(self, values: Tensor) -> Tensor:
        """The largest of every entry, over the ranks; no gradient."""
        return self.reduced(values, dist.ReduceOp.MAX)

    def summed(self, values: Tensor) -> Tensor:
        """The sums over the ranks; the gradient of each rank's part is that of the sum."""
        return linear(self.total, lambda gradient: gradient, values) if self.ranks > 1 else values

    def log_summed(self, logs: Tensor) -> Tensor:
        """The logs of the exponentials' sums over the ranks, the same on all."""
        peak = finite(self.largest(logs.detach()))
        total = self.summed((logs - peak).exp())
        return safe_log(total) + peak

    def stacked(self, local: Tensor) -> Tensor:
        """Return the tensors of all R ranks, (R, ...). Every rank calls this, with one shape."""
        return self.gathered(local.unsqueeze(0), (1,) * self.ranks)

    def gathered(self, rows: Tensor, counts: Sequence[int]) -> Tensor:
        """The rows of all ranks in order, ``counts`` by rank, by one all-to-all without padding."""
        if self.ranks == 1:
            return rows
        start, each = sum(counts[: self.rank]), math.prod(rows.shape[1:])

        def there(rows: Tensor) -> Tensor:
            arrived = rows.new_empty(sum(counts), *rows.shape[1:])
            sizes, leaving = [count * each for count in counts], [rows.numel()] * self.ranks
            sent = rows.detach().reshape(-1).repeat(self.ranks)
            dist.all_to_all_single(arrived.view(-1), sent, sizes, leaving, group=self.group)
            return arrived

        return linear(there, lambda whole: whole[start : start + len(rows)], rows)

    def total(self, values: Tensor) -> Tensor:
        """The sums of `summed` without gradient."""
        return self.reduced(values, dist.ReduceOp.SUM)

    def reduced(self, values: Tensor, how: Any) -> Tensor:
        """Reduce every entry over the ranks; no gradient."""
        if self.ranks == 1:
            return values
        total = values.detach().clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, how, group=self.group)
        return total


def linear(there: Callable[..., Any], back: Callable[..., Any], *values: Tensor) -> Any:
    """A differentiable linear map of tensors to one or more, given with its transpose."""
    return _CollectiveMap.apply(there, back, *values)  # pyright: ignore


class _CollectiveMap(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, there: Callable[..., Any], back: Callable[..., Any], *values: Tensor
    ) -> Any:
        ctx.back = back
        return there(*values)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        with torch.no_grad():
            back = ctx.back(*gradients)
        back = back if isinstance(back, tuple) else (back,)
        if torch.is_grad_enabled() and any(gradient.requires_grad for gradient in gradients):
            back = tuple(refused(part, _NO_SECOND, *gradients) for part in back)
        return None, None, *back


_NO_SECOND = (
    "An answer computed by several processes is differentiable once: its gradient has no "
    "gradient. For second derivatives, solve the model in one process."
)


def fingerprint_of(*parts: object) -> list[object]:
    """Shapes, types and fingerprints of the tensors of models."""
    return [(tuple(part.shape), str(part.dtype), fingerprint(part)) for part in tensors_in(parts)]


def share(items: Items, mesh: "DeviceMesh") -> Items:
    """This rank's part of a sequence, or of a tensor's rows; sizes differ by one at most.

    Args:
        items: the same on every rank: rows of evidence, sentences, models.
        mesh: of one dim.
    """
    peers = Peers.of(mesh)
    return part_of(items, peers.rank, peers.ranks)


def part_of(items: Items, rank: int, ranks: int) -> Items:
    """The part of a rank."""
    return items[len(items) * rank // ranks : len(items) * (rank + 1) // ranks]


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
        SystemExit: with one line that says what failed, in the group or the model.
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
    """Wait until the first rank listens; torch's timeout would print pages of C++ frames."""
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
    return re.sub(r"^\[?/[^]]*\] ?", "", line)[:160].rstrip(".")


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
