"""Bytes sent are those forecast; gradients by data in parallel."""

import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode

import rdpgraph as rg
from rdpgraph.answers import Replicates
from rdpgraph.distributed import SpreadReplicates, explain, partition, pooled, share
from rdpgraph.loopy import FromBeliefs, Implicit
from tests.distributed.checks import DOUBLE, check, close, seeded
from tests.distributed.graphs import grid


class Counted(TorchDispatchMode):
    """The bytes that this rank sends in collectives, as their usual algorithms do."""

    def __init__(self, ranks: int, rank: int) -> None:
        super().__init__()
        self.ranks, self.rank, self.sent, self.seen = ranks, rank, 0.0, set[str]()

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        name = function._schema.name
        if name.startswith("c10d::"):
            self.seen.add(name)
            if name == "c10d::allgather_":  # which question they ask, some bytes
                return function(*args, **(kwargs or {}))
            first = args[0] if isinstance(args[0], list) else [args[0]]
            size = sum(part.numel() * part.element_size() for part in first)
            if name == "c10d::allreduce_":
                self.sent += 2 * (self.ranks - 1) / self.ranks * size
            elif name == "c10d::alltoall_base_":
                own = args[1].numel() - args[4][self.rank]
                self.sent += own * args[1].element_size()
            elif name == "c10d::send":
                self.sent += size
            else:
                assert name == "c10d::recv_", name
        return function(*args, **(kwargs or {}))


@check
def bytes_are_those_forecast(mesh: DeviceMesh, folder: Path) -> None:
    ranks, rank = mesh.size(), mesh.get_local_rank()
    for states in (2, 3):
        graph, _ = grid((8, 60), states, dtype=torch.float32)
        part = partition(graph, mesh)
        forecast = explain(part, mesh)
        found = []
        for sweeps in (3, 8):
            with Counted(ranks, rank) as counted, torch.no_grad():
                outcome = part.infer(rg.Loopy(sweeps=sweeps, tolerance=0)).solution.outcome
            assert len(outcome.trace) == sweeps
            found.append(counted.sent)
        assert abs((found[1] - found[0]) / 5 - forecast.sent_bytes) <= 0.01 * forecast.sent_bytes


@check
def bytes_of_what_is_summed_up(mesh: DeviceMesh, folder: Path) -> None:
    """An answer of n numbers an item is one sum of n + 1, and a maximum, over the ranks."""
    ranks, rank = mesh.size(), mesh.get_local_rank()
    chain = rg.Chain(
        torch.randn(3, 10, 40, generator=seeded(0)), torch.randn(40, 40, generator=seeded(1))
    )
    estimator = SpreadReplicates(rg.Randomized.default(keep=6, replicates=4), mesh)
    posterior = rg.infer(chain, estimator=estimator, generator=seeded(2))
    _ = posterior.log_partition
    with Counted(ranks, rank) as counted:
        posterior.marginals()
    reduced = 2 * (ranks - 1) / ranks * 4 * 3 * (10 * 40 + 2)
    assert abs(counted.sent - reduced) <= 0.01 * reduced, (counted.sent, reduced)
    graph, _ = grid((8, 80), 3, dtype=torch.float32)
    found = []
    for iterations in (2, 5):  # of the solve behind a gradient, each as a sweep and two dots
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it ends early, as asked for
            gradient = Implicit(iterations=iterations, tolerance=0.0)
            part = partition(graph, mesh)
            beliefs = part.infer(rg.Loopy(sweeps=2, gradient=gradient)).gathered()[graph["x"]]
            weights = torch.randn(beliefs.shape, generator=seeded(3))
            with Counted(ranks, rank) as counted:
                (beliefs * weights).sum().backward()
            found.append(counted.sent)
    forecast = 3 * explain(part, mesh).sent_bytes
    assert abs(found[1] - found[0] - forecast) <= 0.01 * forecast + 500.0 * ranks, (found, forecast)


@check
def modules_train_in_parallel(mesh: DeviceMesh, folder: Path) -> None:
    ranks, rank = mesh.size(), mesh.get_local_rank()
    hmm = rg.nn.HMM(states=6, vocabulary=7, rank=4, dimension=5, generator=seeded(1)).double()
    tokens = torch.randint(7, (8, 5), generator=seeded(2))
    lengths = torch.tensor([5, 4, 3, 2, 5, 1, 5, 3])
    mine = slice(8 * rank // ranks, 8 * (rank + 1) // ranks)
    crf = rg.nn.CRF(4, batch_first=True).double()
    with torch.no_grad():
        for number, parameter in enumerate(crf.parameters()):
            parameter.copy_(torch.randn(parameter.shape, generator=seeded(number), dtype=DOUBLE))
    scores = torch.randn(8, 5, 4, generator=seeded(3), dtype=DOUBLE)
    tags, mask = torch.randint(4, (8, 5), generator=seeded(4)), torch.arange(5) < lengths[:, None]
    for module, inputs in ((hmm, (tokens, lengths)), (crf, (scores, tags, mask))):
        module(*inputs).sum().backward()
        expected = [parameter.grad.clone() for parameter in module.parameters()]
        module.zero_grad()
        parallel = DistributedDataParallel(module)
        parallel(*(part[mine] for part in inputs)).sum().backward()
        for parameter, wanted in zip(module.parameters(), expected, strict=True):
            close(parameter.grad * ranks, wanted, 1e-12)  # it takes the mean over the ranks


@check
def expected_counts_add_up(mesh: DeviceMesh, folder: Path) -> None:
    rank, ranks = mesh.get_local_rank(), mesh.size()
    unary = torch.randn(8, 5, 3, generator=seeded(5), dtype=DOUBLE)
    transition = torch.randn(3, 3, generator=seeded(6), dtype=DOUBLE)
    own = rg.Chain(unary[8 * rank // ranks : 8 * (rank + 1) // ranks], transition)
    counts = own.edge_counts().sum(0)
    dist.all_reduce(counts)
    close(counts, rg.Chain(unary, transition).edge_counts().sum(0), 1e-12)


@check
def rows_and_estimates_are_shared(mesh: DeviceMesh, folder: Path) -> None:
    rank, ranks = mesh.get_local_rank(), mesh.size()
    unary = torch.randn(7, 4, 30, generator=seeded(5), dtype=DOUBLE)
    transition = torch.randn(30, 30, generator=seeded(6), dtype=DOUBLE).requires_grad_()
    whole, own = rg.Chain(unary, transition), rg.Chain(share(unary, mesh), transition)
    total = own.log_partition().sum().detach()
    dist.all_reduce(total)
    close(total, whole.log_partition().sum(), 1e-12)
    assert (
        share(list(range(7)), mesh) == list(range(7))[7 * rank // ranks : 7 * (rank + 1) // ranks]
    )

    def estimates(seed: int) -> Replicates:
        estimator = rg.Randomized.default(keep=6, replicates=2 + seed)
        return rg.infer(whole, estimator=estimator, generator=seeded(seed)).replicates

    each = [estimates(seed) for seed in range(ranks)]
    together = Replicates(torch.cat([one.log_partitions for one in each]))
    found = pooled(each[rank], mesh)
    close(found.log_partition, together.log_partition, 1e-12)
    # An error that a rank knows of otherwise than by its replicates is the least for all.
    known = torch.stack([one.standard_error for one in each])
    shown = torch.stack([Replicates(one.log_partitions).standard_error for one in each])
    least = torch.where(known > shown, known, 0.0).amax(0)
    close(found.standard_error, torch.maximum(together.standard_error, least), 1e-12)
    mine = torch.autograd.grad(found.log_partition.sum(), transition, retain_graph=True)[0]
    dist.all_reduce(mine)
    close(mine, torch.autograd.grad(together.log_partition.sum(), transition)[0], 1e-12)


@check
def messages_are_flooded_alike_for_a_batch(mesh: DeviceMesh, folder: Path) -> None:
    """Items end one by one, on all ranks at once."""
    graph, _ = grid((4, 4), 2, batch=3)
    scheduler = rg.Loopy(tolerance=1e-9, gradient=FromBeliefs())
    many, one = (
        partition(graph, mesh).infer(scheduler).solution.outcome,
        rg.infer(graph, scheduler=scheduler).solution.outcome,
    )
    assert torch.equal(many.sweeps, one.sweeps)
