"""One process against several of one thread each: seconds, and the peak memory of a rank.

    $ OMP_NUM_THREADS=1 python tests/benchmarks/distributed.py --side 1000 --ranks 2
    $ OMP_NUM_THREADS=1 python tests/benchmarks/distributed.py --side 4000 --ranks 4
    $ OMP_NUM_THREADS=1 python tests/benchmarks/distributed.py --states 20000 --ranks 2

Sweeps of loopy belief propagation over a grid, of which each rank declares a part. With --states it
is log Z and marginals of a chain whose dense table of all pairs of states is a DTensor, of which
each rank makes and keeps its rows. One process and several take turns; the least time of each
counts. Processor time is that of the rank that took most: on a machine with other work it says more
than the clock does.
"""

import argparse
import json
import os
import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard

import rdpgraph as rg
from rdpgraph.distributed import GraphPart, explain

Run = Callable[[], Any]


def grid(mesh: Any, ranks: int, rank: int, options: argparse.Namespace) -> tuple[Run, str]:
    """Sweeps over binary pixels, a band of rows on each rank."""
    side = options.side
    first, stop = side * rank // ranks, side * (rank + 1) // ranks
    shared = rank < ranks - 1  # its last row is the first of the next rank's
    x = rg.VariableArray("pixel", (stop - first + shared, side), 2)
    own = x[: stop - first]
    generator = torch.Generator().manual_seed(rank)
    unary = torch.randn(*own.shape, 2, generator=generator)
    table = rg.Table(torch.tensor([[0.3, 0.0], [0.0, 0.3]]))
    graph = rg.FactorGraph([
        rg.FactorBlock((own,), rg.Table(unary)),
        rg.FactorBlock((x[:-1], x[1:]), table),
        rg.FactorBlock((own[:, :-1], own[:, 1:]), table),
    ])  # fmt: skip
    loopy = rg.Loopy(sweeps=options.sweeps, tolerance=0.0)
    if mesh is None:
        return lambda: rg.infer(graph, scheduler=loopy).solution.outcome, ""
    neighbours = {} if not shared else {rank + 1: [x[-1]]}
    if rank:
        neighbours[rank - 1] = [x[0]]
    part = GraphPart(graph, mesh, neighbours)
    return lambda: part.infer(loopy).solution.outcome, str(explain(part, mesh))


def chain(mesh: Any, ranks: int, rank: int, options: argparse.Namespace) -> tuple[Run, str]:
    """Log Z and marginals of a chain, a band of rows of its table on each rank."""
    states, steps = options.states, options.steps
    every = -(-states // ranks)
    rows = min(every, max(0, states - rank * every))
    unary = torch.randn(steps, states, generator=torch.Generator().manual_seed(0))
    # Rows of one generator each, so that the table is that of one process.
    table = torch.empty(rows, states)
    for k, row in enumerate(table):
        row.normal_(generator=torch.Generator().manual_seed(1 + rank * every + k))
    if mesh is not None:
        table = DTensor.from_local(
            table, mesh, [Shard(0)], run_check=False, shape=(states, states), stride=(states, 1)
        )
    model = rg.Chain(unary, table)

    def answers() -> tuple[float, float]:
        return float(model.log_partition()), float(model.marginals()[0, 0])

    return answers, ""


def process(ranks: int, rank: int, folder: Path, options: argparse.Namespace) -> None:
    """One of them: times and memory into a file."""
    torch.set_num_threads(1)
    mesh = None
    if ranks > 1:
        store = dist.FileStore(str(folder / "store"), ranks)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks)
        mesh = init_device_mesh("cpu", (ranks,))
    make = chain if options.states else grid
    run, forecast = make(mesh, ranks, rank, options)
    found = []
    for _ in range(options.repeats):
        if ranks > 1:
            dist.barrier()
        begin, busy = time.perf_counter(), time.process_time()
        answer = run()
        found.append((time.perf_counter() - begin, time.process_time() - busy))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    clock, busy = (min(column) for column in zip(*found, strict=True))
    if options.states:
        forecast = "log Z {:.3f}, and {:.6g} of the first state at the first step".format(*answer)
    (folder / f"{rank}.json").write_text(json.dumps([clock, busy, peak, forecast]))
    os._exit(0)


def measured(ranks: int, options: argparse.Namespace) -> tuple[float, float, float, str]:
    """Seconds, processor seconds, and bytes above those of an empty process, at the most."""
    folder = Path(tempfile.mkdtemp())
    base = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    workers = []
    for rank in range(ranks):
        worker = os.fork()
        if not worker:
            process(ranks, rank, folder, options)
        workers.append(worker)
    for worker in workers:
        os.waitpid(worker, 0)
    rows = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(ranks)]
    clock, busy, peak = (max(row[place] for row in rows) for place in range(3))
    return clock, busy, peak - base, rows[0][3]


def main() -> None:
    """Print one line for one process, and one for several."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--side", type=int, default=1000)
    parser.add_argument("--sweeps", type=int, default=20)
    parser.add_argument("--states", type=int, help="a chain of so many states in place of a grid")
    parser.add_argument("--steps", type=int, default=10, help="of the chain")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--many-only", action="store_true", help="leave one process out")
    options = parser.parse_args()
    least: dict[int, list[float]] = {}
    forecast = ""
    for _ in range(options.rounds):
        for ranks in (1, options.ranks)[options.many_only :]:
            *row, told = measured(ranks, options)
            least[ranks] = [min(pair) for pair in zip(row, least.get(ranks, row), strict=True)]
            forecast = told or forecast
    for ranks, (clock, busy, peak) in least.items():
        print(
            f"{ranks} x 1 thread: {clock:8.3f} s, {busy:8.3f} s of a processor, "
            f"{peak / 1e9:6.2f} GB at the most"
        )
    print(forecast)
    if options.many_only:
        return
    one, many = least[1], least[options.ranks]
    print(
        f"ratio: {one[0] / many[0]:.2f} by the clock, {one[1] / many[1]:.2f} by processor time, "
        f"{one[2] / many[2]:.2f} of memory"
    )


if __name__ == "__main__":
    main()
