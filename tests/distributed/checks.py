"""Checks that hold on every number of processes, run by each of them in the same order.

A group takes seconds to start, so all checks of a group size run in one: `test_ranks.py` starts it.
"""

import faulthandler
import json
import os
import sys
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

DOUBLE = torch.float64
CHECKS: dict[str, Callable[[DeviceMesh, Path], None]] = {}
SECONDS = 60
RANKS = 3  # the least with one between two others; shares of even sizes are uneven


def check(function: Callable[[DeviceMesh, Path], None]) -> Callable[[DeviceMesh, Path], None]:
    """Take part in every run."""
    CHECKS[function.__name__] = function
    return function


def seeded(seed: int) -> torch.Generator:
    """A generator of this seed."""
    return torch.Generator().manual_seed(seed)


def close(found: torch.Tensor, expected: torch.Tensor, tolerance: float) -> None:
    """Refuse values that differ, relatively and absolutely."""
    torch.testing.assert_close(
        found.detach(), expected.detach(), rtol=tolerance, atol=tolerance, check_stride=False
    )


def outcomes(mesh: DeviceMesh, folder: Path, room: str = "") -> dict[str, str]:
    """Outcome of each check, or of those of one file: None, or the error raised here."""
    found: dict[str, str] = {}
    for name, function in CHECKS.items():
        if not function.__module__.endswith(room):
            continue
        try:
            function(mesh, folder)
            found[name] = ""
        except (Exception, pytest.fail.Exception):
            return found | {name: traceback.format_exc()}  # what it ends for the others, too
    return found


def run(rank: int, ranks: int, folder: Path, room: str) -> None:
    """One process of a group."""
    faulthandler.dump_traceback_later(6 * SECONDS, exit=True)
    store = dist.FileStore(str(folder / "store"), ranks)
    limit = timedelta(seconds=SECONDS)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks, timeout=limit)
    mesh = init_device_mesh("cpu", (ranks,))
    (folder / f"{rank}.json").write_text(json.dumps(outcomes(mesh, folder, room)))
    sys.stderr.flush()
    os._exit(0)  # a group that lost a rank might wait for it


def main(folder: Path) -> None:
    """Groups of 3 and of 2, forked after all imports, which take most of the time."""
    import pymetis  # noqa: F401
    import torch._dynamo  # by the first operation on a DTensor

    import rdpgraph.cli.solving  # noqa: F401
    from tests.distributed import costs, faults, graphs, shards, spread  # noqa: F401

    torch.set_num_threads(1)
    waiting = os.fork()  # most of what goes wrong is waited for
    if not waiting:
        faults.main(folder)
        os._exit(0)
    # A group of even size has what one of 3 has, but for parts of tables, which have other sizes.
    for ranks, room in ((RANKS, ""), (2, "shards")):
        own = folder / str(ranks)
        own.mkdir()
        workers = []
        for rank in range(ranks):
            worker = os.fork()
            if not worker:
                run(rank, ranks, own, room)
            workers.append(worker)
        for worker in workers:
            os.waitpid(worker, 0)
    os.waitpid(waiting, 0)


if __name__ == "__main__":
    from tests.distributed import checks

    checks.main(Path(sys.argv[1]))
