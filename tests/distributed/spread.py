"""Slices, chains of masks and replicates that are spread over ranks equal those of one process."""

import math
from pathlib import Path

import pytest
import torch
from torch.distributed.device_mesh import DeviceMesh

import rdpgraph as rg
from rdpgraph.distributed import SpreadChains, SpreadReplicates, SpreadSlices
from rdpgraph.pruning import sweeps_of
from tests.distributed.checks import DOUBLE, check, close, seeded
from tests.distributed.graphs import grid

SMALL = 4500.0  # bytes, which a grid of 4 x 4 does not fit into


def summed(gradients: tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
    """Sum over all ranks."""
    found = [gradient.clone() for gradient in gradients]
    for gradient in found:
        torch.distributed.all_reduce(gradient)
    return found


@check
def slices_of_all_ranks_are_those_of_one(mesh: DeviceMesh, folder: Path) -> None:
    cases = (
        (grid((3, 4), 3, zeros=True, batch=2), 12_000.0),  # three slices
        (grid((2, 3), 2), None),  # one piece
    )
    for (graph, tables), memory in cases:
        x = graph["x"]
        plan = rg.Contraction(memory).plan(graph)[0]
        one = rg.infer(graph, scheduler=rg.Contraction(memory))
        many = rg.infer(graph, scheduler=SpreadSlices(mesh, memory))
        assert many.plan.num_slices == plan.num_slices
        assert (plan.num_slices > 1) == (memory is not None)
        assert many.status.exact
        assert memory is None or plan.num_slices == 3
        close(many.log_partition, one.log_partition, 1e-12)
        close(many.marginal(x), one.marginal(x), 1e-12)
        close(many.entropy(), one.entropy(), 1e-12)
        close(many.joint([x[0, 0], x[1, 0]]), one.joint([x[0, 0], x[1, 0]]), 1e-12)
        assert torch.equal(many.mode()[x], one.mode()[x])
        close(many.max_marginals()[x], one.max_marginals()[x], 1e-12)
        drawn = [each.sample(9, generator=seeded(1))[x] for each in (one, many)]
        assert torch.equal(*drawn)
        if memory is None:
            continue
        weights = torch.randn(one.marginal(x).shape, generator=seeded(2), dtype=DOUBLE)
        expected, own = (
            torch.autograd.grad(
                each.log_partition.sum() + (each.marginal(x) * weights).sum(), tables
            )
            for each in (one, many)
        )
        for found, wanted in zip(summed(own), expected, strict=True):
            close(found, wanted, 1e-11)


@check
def a_rank_without_time_ends_all(mesh: DeviceMesh, folder: Path) -> None:
    graph, _ = grid((4, 4), 2)
    many = rg.infer(graph, scheduler=SpreadSlices(mesh, SMALL))
    solution = many.solution
    if mesh.get_local_rank() == mesh.size() - 1:
        object.__setattr__(solution.local, "seconds", 1e-9)
    with pytest.raises(rg.errors.BudgetError, match=r"^[^\n]*slices[^\n]*$"):
        _ = many.log_partition


@check
def chains_of_masks_are_those_of_one(mesh: DeviceMesh, folder: Path) -> None:
    unary = torch.randn(2, 4, 3, generator=seeded(0), dtype=DOUBLE)
    transition = torch.randn(3, 3, generator=seeded(1), dtype=DOUBLE)
    graph, _ = grid((2, 3), 2)
    chain = rg.Chain(unary, transition, lengths=[4, 2])
    answers: list[torch.Tensor] = []
    for model in (chain, graph):
        for chains in (1, 3):
            estimator = rg.RandomizedPruning(10, chains=chains)
            posterior = rg.infer(
                model, estimator=SpreadChains(estimator, mesh), generator=seeded(2)
            )
            sweeps = sweeps_of(posterior)
            assert sweeps.trace.shape[:2] == (11, chains)
            assert bool((sweeps.r_hat == math.inf).all()) == (chains == 1)
            answers += [
                sweeps.answers, sweeps.standard_error, sweeps.r_hat, sweeps.trace,
                sweeps.expected_score(), sweeps.score_error, sweeps.effective_sample_size,
                sweeps.variable_marginals(), sweeps.sample(7, seeded(3)),
                torch.tensor(posterior.status.iterations),
            ]  # fmt: skip
            more = rg.infer(
                model, estimator=rg.RandomizedPruning(3, chains=chains, resume=posterior),
                generator=seeded(4),
            )  # fmt: skip
            answers += [sweeps_of(more).answers, sweeps_of(more).variable_marginals()]
    # The same on any number of ranks: that of many is the first.
    file = folder.parent / "chains_of_masks.pt"
    if mesh.size() == 1:
        for found, expected in zip(answers, torch.load(file), strict=True):
            close(found.double(), expected.double(), 1e-12)
    elif not mesh.get_local_rank():
        torch.save(answers, file)


@check
def averages_of_chains_converge(mesh: DeviceMesh, folder: Path) -> None:
    """Each chain within its masks; together within the errors that they say.

    In one process: others give the same.
    """
    if mesh.size() > 1:
        return
    unary = torch.randn(4, 3, generator=seeded(5), dtype=DOUBLE)
    chain = rg.Chain(unary, torch.randn(3, 3, generator=seeded(6), dtype=DOUBLE))
    estimator = SpreadChains(rg.RandomizedPruning(60, chains=4), mesh)
    sweeps = sweeps_of(rg.infer(chain, estimator=estimator, generator=seeded(7)))
    error = (sweeps.variable_marginals().reshape(4, 3) - chain.marginals()).abs()
    assert float(error.max()) < 5 * float(sweeps.standard_error.max()) + 1e-9
    assert float(sweeps.r_hat.max()) < 1.2


@check
def replicates_are_those_of_one(mesh: DeviceMesh, folder: Path) -> None:
    unary = torch.randn(2, 4, 11, generator=seeded(8), dtype=DOUBLE).requires_grad_()
    transition = torch.randn(11, 11, generator=seeded(9), dtype=DOUBLE).requires_grad_()
    graph, tables = grid((3, 3), 5, batch=3)
    models = ((rg.Chain(unary, transition), [unary, transition]), (graph, tables))
    for model, parts in models:
        estimator = rg.Randomized.default(keep=3, replicates=3)
        one = rg.infer(model, estimator=estimator, generator=seeded(10))
        many = rg.infer(model, estimator=SpreadReplicates(estimator, mesh), generator=seeded(10))
        close(many.log_partitions, one.log_partitions, 1e-12)
        close(many.log_partition, one.log_partition, 1e-12)
        close(many.standard_error, one.standard_error, 1e-12)
        assert many.status.standard_error == pytest.approx(one.status.standard_error)
        flat = [each.solution.variable_marginals() for each in (one, many)]
        close(flat[1], flat[0], 1e-12)
        close(many.entropy(), one.entropy(), 1e-11)
        close(many.solution.max_marginals(), one.solution.max_marginals(), 1e-12)
        if model is graph:  # two that no factor holds, and a factor
            for place in ((2, 2), (0, 1)):
                pair = [graph["x"][0, 0], graph["x"][place]]
                close(many.joint(pair), one.joint(pair), 1e-12)
        weights = torch.randn(flat[0].shape, generator=seeded(11), dtype=DOUBLE)
        for expected, own in (
            (one.log_partition.sum(), many.log_partition.sum()),
            ((flat[0] * weights).sum(), (flat[1] * weights).sum()),
        ):
            wanted = torch.autograd.grad(expected, parts, retain_graph=True)
            found = summed(torch.autograd.grad(own, parts, retain_graph=True))
            for mine, theirs in zip(found, wanted, strict=True):
                close(mine, theirs, 1e-11)
        for ask in (many.mode, lambda: many.sample(2, seeded(1))):  # noqa: B023
            with pytest.raises(rg.errors.UnsupportedError, match=r"^[^\n]*one process[^\n]*$"):
                ask()


@check
def spreading_refuses_ranks_that_differ(mesh: DeviceMesh, folder: Path) -> None:
    rank = mesh.get_local_rank()
    chain = rg.Chain(torch.zeros(3, 4), torch.zeros(4, 4))
    pruning, randomized = rg.RandomizedPruning(2), rg.Randomized.default(keep=2)
    for changed in ({"seconds": 1.0}, {"progress": print}, {"resume": rg.infer(chain)}):
        with pytest.raises(rg.errors.ModelError, match=r"^[^\n]*seconds.* and resume[^\n]*$"):
            SpreadChains(rg.RandomizedPruning(2, **changed), mesh)
    if mesh.size() == 1:
        return
    other = rg.Chain(torch.full((3, 4), float(rank)), torch.zeros(4, 4))
    for estimator in (SpreadChains(pruning, mesh), SpreadReplicates(randomized, mesh)):
        for model, seed in ((other, 0), (chain, rank)):
            with pytest.raises(rg.errors.ModelError, match=r"^[^\n]*differ[^\n]*$"):
                rg.infer(model, estimator=estimator, generator=seeded(seed))
    x = rg.Variable("x", 2)
    graph = rg.FactorGraph([rg.Factor(x, rg.Table(torch.full((2,), float(rank))))])
    with pytest.raises(rg.errors.ModelError, match=r"^[^\n]*differ[^\n]*$"):
        rg.infer(graph, scheduler=SpreadSlices(mesh))
