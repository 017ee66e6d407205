"""Programs in which a process is lost, is not there, or has another model: how they end."""

import json
import os
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import checkpoint
from torch.distributed.checkpoint import FileSystemWriter
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Shard, distribute_tensor

import rdpgraph as rg
from rdpgraph.distributed import SpreadSlices, group, partition

LIMIT = 5.0
ASIA = Path(__file__).parents[2] / "examples" / "asia.bif"


def killed(rank: int) -> None:
    """The last rank ends in the middle of it."""
    with group(seconds=LIMIT) as mesh:
        posterior = partition(rg.read(ASIA), mesh).infer()
        if rank == mesh.size() - 1:
            os._exit(9)
        _ = posterior.log_partition
        dist.barrier()  # a message may have gone out before the end was known


def silent(rank: int) -> None:
    """The last rank does not answer."""
    with group(seconds=LIMIT) as mesh:
        posterior = partition(rg.read(ASIA), mesh).infer()
        if rank == mesh.size() - 1:
            time.sleep(2 * LIMIT)
            os._exit(9)
        _ = posterior.log_partition


def missing(rank: int) -> None:
    """The last rank never comes."""
    if rank:
        os._exit(9)
    with group(seconds=LIMIT):
        pass


def unequal(rank: int) -> None:
    """Each has a graph of its own."""
    with group(seconds=LIMIT) as mesh:
        x = rg.Variable("x", 2)
        partition(rg.FactorGraph([rg.Factor(x, rg.Table.from_logs([0.0, float(rank)]))]), mesh)


def headless(rank: int) -> None:
    """The first rank never comes."""
    if not rank:
        os._exit(9)
    with group(seconds=LIMIT / 5):
        pass


def apart_in_parts(rank: int) -> None:
    """Each asks a question of its own, whose messages have other sizes."""
    with group(seconds=LIMIT) as mesh:
        posterior = partition(rg.read(ASIA), mesh).infer()
        posterior.gathered() if rank else posterior.log_partition


def apart_in_slices(rank: int) -> None:
    """The same of slices."""
    with group(seconds=LIMIT) as mesh:
        x = rg.VariableArray("x", (8, 8), 2)
        near = rg.Table.from_logs([[0.5, 0.0], [0.0, 0.5]])
        factors = [rg.FactorBlock(both, near) for both in ((x[1:], x[:-1]), (x[:, 1:], x[:, :-1]))]
        spread = SpreadSlices(mesh, memory=20_000)
        posterior = rg.infer(rg.FactorGraph(factors), scheduler=spread)
        posterior.marginals() if rank else posterior.log_partition


def unset(rank: int) -> None:
    """Started without torchrun."""
    del os.environ["RANK"]
    with group(seconds=LIMIT):
        pass


class Half(FileSystemWriter):
    """Ends the process in the middle of what it writes."""

    def write_data(self, plan: Any, planner: Any) -> Any:
        (self.path / "half").write_bytes(b"half")
        os._exit(9)


def state_of(mesh: DeviceMesh, value: float) -> dict[str, Any]:
    """State that is saved and restored."""
    return {"x": distribute_tensor(torch.full((4, 6), value), mesh, [Shard(1)])}


def cut(rank: int) -> None:
    """The last rank ends in the middle of its second checkpoint."""
    saved = Path(os.environ["ANSWERS"]) / "saved"
    with group(seconds=LIMIT) as mesh:
        checkpoint.save(state_of(mesh, 1.0), checkpoint_id=saved / "1")
        writer = (FileSystemWriter if rank < mesh.size() - 1 else Half)(saved / "2")
        checkpoint.save(state_of(mesh, 2.0), storage_writer=writer)


def answered(rank: int) -> None:
    """No fault: one model on two processes, by the command line."""
    from rdpgraph.cli import main

    folder = Path(os.environ["ANSWERS"])
    command = f"rdpgraph infer {ASIA} --method loopy --format json --output {folder / 'asia'}"
    sys.argv = command.split()
    main()


FAULTS: dict[str, Callable[[int], None]] = {
    function.__name__: function
    for function in (
        killed, silent, missing, headless, unequal, apart_in_parts, apart_in_slices, unset,
        cut, answered,
    )
}  # fmt: skip


def ended(function: Callable[[int], None], folder: Path) -> list[tuple[int, str]]:
    """Exit code and output of each of two ranks."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    workers: list[int] = []
    for rank in range(2):
        worker = os.fork()
        if not worker:
            said = os.open(folder / f"{function.__name__}{rank}", os.O_CREAT | os.O_WRONLY)
            os.dup2(said, 2)
            os.environ.update(
                RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port)
            )
            os.environ["ANSWERS"] = str(folder)
            function(rank)
            os._exit(0)
        workers.append(worker)
    found = list[tuple[int, str]]()
    for rank, worker in enumerate(workers):
        code = os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1])
        said = (folder / f"{function.__name__}{rank}").read_text()
        found.append((code, said))
    return found


def main(folder: Path) -> None:
    """All of them, one after the other."""
    (folder / "faults.json").write_text(
        json.dumps({name: ended(function, folder) for name, function in FAULTS.items()})
    )
