"""Loopy belief propagation over the parts of a graph equals that of one process."""

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Shard, distribute_tensor

import rdpgraph as rg
from rdpgraph.distributed import GraphPart, by_metis, partition
from rdpgraph.loopy import FromBeliefs, Implicit, ProbabilityDamping, Unrolled
from tests.distributed.checks import DOUBLE, check, close, seeded


def grid(
    sizes: tuple[int, int], states: int, *, zeros: bool = False, batch: int = 0,
    dtype: torch.dtype = DOUBLE, seed: int = 0,
) -> tuple[rg.FactorGraph, list[Tensor]]:  # fmt: skip
    """A grid with tables of its own on every link, a unary table on every pixel, and these."""
    generator = seeded(seed)
    x = rg.VariableArray("x", sizes, states)
    lead = (batch,) if batch else ()
    shapes = [
        (*lead, *sizes, states),
        (sizes[0] - 1, sizes[1], states, states),
        (sizes[0], sizes[1] - 1, states, states),
    ]
    tables = [0.5 * torch.randn(*s, generator=generator, dtype=dtype) for s in shapes]
    if zeros:
        tables[1] = tables[1].masked_fill(
            torch.rand(shapes[1], generator=generator) < 0.2, -math.inf
        )
    tables = [table.requires_grad_() for table in tables]
    scopes = [(x,), (x[:-1], x[1:]), (x[:, :-1], x[:, 1:])]
    return rg.FactorGraph([
        rg.FactorBlock(scope, rg.Table(table)) for scope, table in zip(scopes, tables, strict=True)
    ]), tables  # fmt: skip


def mixed() -> tuple[rg.FactorGraph, list[Tensor]]:
    """Variables of many sizes, factors of three, a hard constraint, one variable settled."""
    generator = seeded(4)
    a, b, c, d, e = (rg.Variable(n, s) for n, s in zip("abcde", (2, 3, 4, 3, 2), strict=True))
    scopes = [(a,), (a, b), (b, c, d), (d, e), (e, a), (c, d), (c,)]
    tables = [
        torch.randn([v.size for v in scope], generator=generator, dtype=DOUBLE) for scope in scopes
    ]
    tables[6][2:] = -math.inf  # two states of c are out, wherever c is
    tables[5][:, 0] = -math.inf
    tables = [table.requires_grad_() for table in tables]
    factors = [rg.Factor(s, rg.Table(t)) for s, t in zip(scopes, tables, strict=True)]
    lone = rg.Variable("lone", 3)
    return rg.FactorGraph(
        [*factors, rg.Factor((a, lone), rg.Table(torch.zeros(2, 3, dtype=DOUBLE)))]
    ), tables


def agrees(
    mesh: DeviceMesh, graph: rg.FactorGraph, tables: list[Tensor], scheduler: rg.Loopy,
    assignment: Tensor | None = None, tolerance: float = 1e-12, *, gradients: bool = True,
) -> None:  # fmt: skip
    """Log Z, beliefs, sweeps and gradients."""
    one = rg.infer(graph, scheduler=scheduler)
    many = partition(graph, mesh, assignment=assignment).infer(scheduler)
    close(many.log_partition, one.log_partition, tolerance)
    assert many.status.iterations == one.status.iterations
    assert many.status.converged == one.status.converged
    gathered, here = many.gathered(), many.marginals()
    for entry, expected in one.marginals().items():
        close(gathered[entry], expected, tolerance)
    for view, found in here.items():
        close(found, gathered[view], tolerance)
    if gradients:
        found = [torch.zeros_like(table) for table in tables]
        own = torch.autograd.grad(many.log_partition.sum(), tables, allow_unused=True)
        for total, part in zip(found, own, strict=True):
            total += torch.zeros_like(total) if part is None else part
            torch.distributed.all_reduce(total)
        expected = torch.autograd.grad(one.log_partition.sum(), tables)
        for mine, theirs in zip(found, expected, strict=True):
            close(mine, theirs, 1e-7)


@check
def grids_equal_one_process(mesh: DeviceMesh, folder: Path) -> None:
    cases: list[Callable[[], tuple[rg.FactorGraph, list[Tensor]]]] = [
        lambda: grid((4, 3), 3, zeros=True),
        lambda: grid((4, 3), 2, batch=3),
        lambda: grid((2, 3), 2),
    ]
    for make in cases:
        graph, tables = make()
        scheduler = rg.Loopy(damping=0.3, sweeps=40, tolerance=1e-5, gradient=FromBeliefs())
        agrees(mesh, graph, tables, scheduler)
    graph, tables = grid((5, 4), 2)
    with torch.no_grad():  # binary messages by their log-odds
        agrees(mesh, graph, tables, rg.Loopy(sweeps=7), gradients=False)
    anywhere = torch.randint(mesh.size(), (20,), generator=seeded(2))
    agrees(mesh, graph, tables, scheduler, anywhere)
    agrees(mesh, graph, tables, scheduler, by_metis(graph, mesh.size()))
    nothing = torch.zeros(20, dtype=torch.long)
    agrees(mesh, graph, tables, scheduler, nothing)
    blind = {"gradient": FromBeliefs()}
    other = rg.Loopy(damping=ProbabilityDamping(0.5), temperature=0.5, sweeps=5, **blind)
    agrees(mesh, graph, tables, other, anywhere, gradients=False)
    graph, tables = grid((5, 4), 2, dtype=torch.float32)
    agrees(mesh, graph, tables, rg.Loopy(sweeps=6, **blind), tolerance=1e-5, gradients=False)


@check
def graphs_of_many_kinds_equal_one_process(mesh: DeviceMesh, folder: Path) -> None:
    graph, tables = mixed()
    evidences = ({}, {"b": 1}, {"b": torch.tensor([0, 1])}, {"c": 1, "e": 0})
    for seed, evidence in enumerate(evidences):
        assignment = torch.randint(mesh.size(), (graph.num_variables,), generator=seeded(seed))
        model = graph.condition(evidence) if evidence else graph
        scheduler = rg.Loopy(sweeps=9, gradient=FromBeliefs())
        agrees(mesh, model, tables, scheduler, assignment, gradients=False)
    # A part may share variables, all of them observed, and have none left.
    x = rg.VariableArray("x", (4,), 2)
    links = rg.FactorBlock((x[:-1], x[1:]), rg.Table(torch.randn(3, 2, 2, generator=seeded(6))))
    seen = rg.FactorGraph([links]).condition({x[2]: 1, x[3]: 0})
    last = torch.tensor([0, 0, mesh.size() - 1, mesh.size() - 1])
    agrees(mesh, seen, [], rg.Loopy(sweeps=5), last, 1e-5, gradients=False)
    impossible = graph.condition({"c": 2})
    many = partition(impossible, mesh).infer()
    assert bool((many.log_partition == -math.inf).all())
    assert not any(bool(values.any()) for values in many.marginals().values())


@check
def gradients_pass_the_messages(mesh: DeviceMesh, folder: Path) -> None:
    """Gradients of marginals, through every sweep or at the fixed point; empty ranks take part."""
    anywhere = torch.randint(mesh.size(), (9,), generator=seeded(3))
    exactly = Implicit(iterations=100, tolerance=1e-11)
    cases = (
        (grid((3, 4), 3), rg.Loopy(sweeps=4, gradient=Unrolled()), None, 1e-11),
        (grid((3, 3), 3, zeros=True), rg.Loopy(tolerance=1e-11, gradient=exactly), anywhere, 1e-9),
        (grid((2, 3), 2), rg.Loopy(tolerance=1e-11, gradient=exactly), 0 * anywhere[:6], 1e-9),
        (grid((3, 3), 3, dtype=torch.float32), rg.Loopy(tolerance=1e-6), None, 2e-5),
    )
    for (graph, tables), scheduler, assignment, tolerance in cases:
        x = graph["x"]
        one = rg.infer(graph, scheduler=scheduler).marginal(x)
        weights = torch.randn(one.shape, generator=seeded(1), dtype=one.dtype)
        expected = torch.autograd.grad((one * weights).sum(), tables)
        part = partition(graph, mesh, assignment=assignment)
        (part.infer(scheduler).gathered()[x] * weights).sum().backward()
        for table, wanted in zip(tables, expected, strict=True):
            found = torch.zeros_like(table) if table.grad is None else table.grad.clone()
            torch.distributed.all_reduce(found)
            close(found, wanted, tolerance)


@check
def parts_refuse_by_name_what_they_cannot_do(mesh: DeviceMesh, folder: Path) -> None:
    graph, _ = grid((3, 4), 2)
    part = partition(graph, mesh)
    refused = {
        "schedule=": rg.Loopy(schedule=rg.loopy.Sequential()),
        "counting=": rg.Loopy(counting=rg.loopy.TreeReweighted()),
        "seconds=": rg.Loopy(seconds=9.0),
        "start=": rg.Loopy(start=rg.infer(graph, scheduler=rg.Loopy(sweeps=2))),
    }
    for name, scheduler in refused.items():
        with pytest.raises(rg.errors.UnsupportedError, match=rf"^[^\n]*{name}[^\n]*$"):
            part.infer(scheduler)
    pair = (rg.Variable("a", 2100), rg.Variable("b", 2100))  # a table of one rank's alone
    large = rg.FactorGraph([rg.Factor(pair, rg.Table(torch.zeros(2100, 2100)))])
    with pytest.raises(rg.errors.BudgetError, match=r"^[^\n]*memory[^\n]*$"):
        partition(large, mesh).infer(rg.Loopy(memory=1.0))
    posterior = part.infer(rg.Loopy(sweeps=3))
    whole = posterior.posterior(graph)
    asked = (
        posterior.mode, lambda: posterior.sample(2), whole.mode, whole.entropy,
        lambda: whole.sample(2), whole.max_marginals, lambda: whole.joint(list(graph["x"][0, :2])),
    )  # fmt: skip
    for ask in asked:
        with pytest.raises(rg.errors.UnsupportedError, match=r"^[^\n]+$"):
            ask()
    graph, tables = grid((3, 4), 3)
    posterior = partition(graph, mesh).infer(rg.Loopy(sweeps=3, gradient=Unrolled()))
    twice = torch.autograd.grad(
        posterior.log_partition.square().sum(), tables, create_graph=True, allow_unused=True
    )
    total = sum((part.square().sum() for part in twice if part is not None), torch.zeros(()))
    if mesh.size() > 1:  # of one, nothing was sent
        with pytest.raises(rg.errors.UnsupportedError, match=r"^[^\n]*differentiable once[^\n]*$"):
            total.backward()


@check
def parts_that_were_never_one_graph(mesh: DeviceMesh, folder: Path) -> None:
    ranks, rank, width = mesh.size(), mesh.get_local_rank(), 3
    whole, tables = grid((2 * ranks + 1, width), 2)
    unary, down, across = (table.detach() for table in tables)
    last = rank == ranks - 1
    rows = slice(2 * rank, 2 * rank + 2 + last)  # and the first one of the next part
    x = rg.VariableArray("x", (3, width), 2)
    mine = x[: 2 + last]
    graph = rg.FactorGraph([
        rg.FactorBlock((mine,), rg.Table(unary[rows])),
        rg.FactorBlock((x[:-1], x[1:]), rg.Table(down[2 * rank : 2 * rank + 2])),
        rg.FactorBlock((mine[:, :-1], mine[:, 1:]), rg.Table(across[rows])),
    ])  # fmt: skip
    shared = {} if last else {rank + 1: [x[-1]]}
    if rank:
        shared[rank - 1] = [x[0]]
    scheduler = rg.Loopy(sweeps=8, gradient=FromBeliefs())
    many = GraphPart(graph, mesh, shared).infer(scheduler)
    one = rg.infer(whole, scheduler=scheduler)
    close(many.log_partition, one.log_partition, 1e-12)
    close(many.marginal(mine), one.marginal(whole["x"])[rows], 1e-12)


@check
def ranks_that_disagree_say_so(mesh: DeviceMesh, folder: Path) -> None:
    if mesh.size() == 1:
        return
    rank = mesh.get_local_rank()
    x = rg.VariableArray("x", (3,), 2)
    graph = rg.FactorGraph([rg.FactorBlock((x[1:], x[:-1]), rg.Table(torch.zeros(2, 2)))])
    other = rg.FactorGraph([rg.FactorBlock((x[1:2], x[:1]), rg.Table(torch.zeros(2, 2)))])
    tables = rg.FactorGraph([rg.FactorBlock((x,), rg.Table(torch.full((2,), float(rank))))])
    seen = graph.condition({x[1]: rank % 2})
    last = {} if rank > 1 else {1 - rank: [x[1]]}  # ranks 0 and 1 share a variable
    flag = rg.Variable("flag", ("no", "yes")[:: 1 if rank else -1])
    flags = rg.FactorGraph([rg.Factor((flag,), rg.Table([0.0, 1.0]))])
    unlike = [
        lambda: partition(graph if rank else other, mesh),
        lambda: partition(tables, mesh),
        lambda: GraphPart(graph, mesh, {1 - rank: [x[rank : 2 * rank + 1]]} if rank < 2 else {}),
        lambda: GraphPart(seen, mesh, last),
        lambda: GraphPart(flags, mesh, {1 - rank: [flag]} if rank < 2 else {}),
        lambda: partition(graph, mesh).infer(rg.Loopy(sweeps=3 + rank)),
    ]
    for make in unlike:
        with pytest.raises(rg.errors.ModelError, match=r"^[^\n]*$"):
            make()


@check
def tensors_that_are_not_all_here_are_refused(mesh: DeviceMesh, folder: Path) -> None:
    placed = distribute_tensor(torch.zeros(6, 6), mesh, [Shard(1)])
    for make in (lambda: rg.Chain(placed, placed), lambda: rg.Table(placed)):
        with pytest.raises(rg.errors.ModelError, match="a DTensor"):
            make()
