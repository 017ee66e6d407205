"""Chains whose states are sharded equal those of one process."""

import math
from pathlib import Path

import pytest
import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

import rdpgraph as rg
from rdpgraph.distributed import ShardedChain, shard
from tests.distributed.checks import check

DOUBLE = torch.float64


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def potentials(
    states: int, *, steps: int = 5, batch: tuple[int, ...] = (3,), per_step: bool = False,
    zeros: bool = False, scale: float = 1.0, dtype: torch.dtype = DOUBLE, seed: int = 0,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """Unary potentials and a transition, hard zeros among them if asked for."""
    generator = seeded(seed)
    lead = (batch[-1], steps - 1) if per_step else ()
    drawn = [
        scale * torch.randn(*shape, generator=generator, dtype=dtype)
        for shape in ((*batch, steps, states), (*lead, states, states))
    ]
    if zeros:
        drawn = [
            part.masked_fill(torch.rand(part.shape, generator=generator) < 0.3, -math.inf)
            for part in drawn
        ]
    return drawn[0], drawn[1]


def agrees(mesh: DeviceMesh, chain: rg.Chain, parts: list[torch.Tensor], tolerance: float) -> None:
    """Every answer of the chain and of its shards, with gradients in the potentials."""
    weights = torch.rand(chain.batch_shape, generator=seeded(9), dtype=chain.unary.dtype)
    here = shard(chain, mesh)
    one, many = chain.log_partition(), here.log_partition()
    close(many, one, tolerance)
    alive = one.detach() > -math.inf
    gradients = [
        torch.autograd.grad(torch.where(alive, values, 0.0).mul(weights).sum(), parts)
        for values in (one, many)
    ]
    for expected, found in zip(*gradients, strict=True):
        close(found, expected, tolerance * max(1.0, float(expected.abs().amax())))
    own = slice(here.start, here.start + here.split.local)
    close(here.marginals(), chain.marginals()[..., own], tolerance)
    if bool(alive.all()):
        assert torch.equal(here.mode(), chain.mode())


def close(found: torch.Tensor, expected: torch.Tensor, tolerance: float) -> None:
    torch.testing.assert_close(
        found.detach(), expected.detach(), rtol=tolerance, atol=tolerance, check_stride=False
    )


CASES = {
    "plain": {"states": 8},
    "unequal shards": {"states": 5},
    "a rank with nothing": {"states": 3},
    "one state": {"states": 1},
    "hard zeros": {"states": 7, "zeros": True},
    "transitions of each step": {"states": 6, "per_step": True},
    "the same with hard zeros": {"states": 5, "per_step": True, "zeros": True},
    "two batch dims": {"states": 4, "batch": (2, 3)},
    "one step": {"states": 4, "steps": 1},
    "in doubt, then wide": {"states": 5, "scale": 300.0},
    "in logs": {"states": 5, "scale": 3000.0},
}


@check
def dense_chains_equal_one_process(mesh: DeviceMesh, folder: Path) -> None:
    for name, case in CASES.items():
        narrow = (
            [(torch.float32, 1e-5)] if name in ("unequal shards", "in doubt, then wide") else []
        )
        for dtype, tolerance in [(DOUBLE, 1e-12), *narrow]:
            unary, transition = potentials(**case, dtype=dtype)
            parts = [unary.requires_grad_(), transition.requires_grad_()]
            total = unary.shape[-2]
            lengths = torch.tensor([total, 0, (total + 1) // 2]).expand(unary.shape[:-2])
            own = None if name == "plain" else lengths
            agrees(mesh, rg.Chain(unary, transition, lengths=own), parts, tolerance)


@check
def chains_of_low_rank_equal_one_process(mesh: DeviceMesh, folder: Path) -> None:
    for states, zeros, steps in ((9, False, None), (5, True, None), (3, False, 4), (3, True, 4)):
        generator = seeded(states)
        lead = () if steps is None else (steps,)
        for dtype, tolerance in ((DOUBLE, 1e-12), (torch.float32, 1e-5))[: 1 + zeros]:
            unary = torch.randn(3, 5, states, generator=generator, dtype=dtype)
            left, right = torch.randn(2, *lead, states, 4, generator=generator, dtype=dtype)
            if zeros:
                left = left.masked_fill(
                    torch.rand(left.shape, generator=generator) < 0.3, -math.inf
                )
            parts = [part.clone().requires_grad_() for part in (unary, left, right)]
            low = rg.LowRank(*parts[1:])
            agrees(mesh, rg.Chain(parts[0], low, lengths=[5, 0, 3]), parts, tolerance)


@check
def draws_are_those_of_one_process(mesh: DeviceMesh, folder: Path) -> None:
    for name in ("unequal shards", "transitions of each step", "in logs"):
        case = CASES[name]
        unary, transition = potentials(**case)
        lengths = torch.full(unary.shape[:-2], unary.shape[-2]).sub_(
            torch.arange(unary.shape[-3]) % 2
        )
        chain = rg.Chain(unary, transition, lengths=lengths)
        here = shard(chain, mesh)
        assert torch.equal(here.sample(50, seeded(1)), chain.sample(50, seeded(1)))


@check
def draws_of_low_rank_follow_the_marginals(mesh: DeviceMesh, folder: Path) -> None:
    generator = seeded(3)
    unary = torch.randn(2, 4, 5, generator=generator, dtype=DOUBLE)
    left, right = torch.randn(2, 5, 2, generator=generator, dtype=DOUBLE)
    chain = rg.Chain(unary, rg.LowRank(left, right), lengths=[4, 2])
    drawn = shard(chain, mesh).sample(4000, seeded(4))
    assert bool((drawn[:, 1, 2:] == -1).all())
    table = chain.edge_marginals()[0]
    pairs = torch.zeros_like(table)
    for step in range(3):
        codes = drawn[:, 0, step] * 5 + drawn[:, 0, step + 1]
        pairs[step] = torch.bincount(codes, minlength=25).reshape(5, 5) / 4000
    close(pairs, table, 0.04)
    # The same on any number of ranks.
    file = folder.parent / "low_rank_draws.pt"
    if mesh.size() == 2 and not mesh.get_local_rank():
        torch.save(drawn, file)
    elif mesh.size() != 2:
        assert torch.equal(torch.load(file), drawn)


@check
def tensors_that_were_never_whole(mesh: DeviceMesh, folder: Path) -> None:
    unary, transition = potentials(6, batch=())
    placed = [
        distribute_tensor(part, mesh, [Shard(-1 + part.ndim)]).requires_grad_()
        for part in (unary, transition)
    ]
    for make in (lambda: rg.Chain(*placed), lambda: rg.Table(placed[1])):
        with pytest.raises(rg.errors.ModelError, match="a DTensor"):
            make()
    here = ShardedChain(*placed)
    here.log_partition().backward()
    expected = [part.clone().requires_grad_() for part in (unary, transition)]
    rg.Chain(*expected).log_partition().backward()
    for found, wanted in zip(placed, expected, strict=True):
        assert isinstance(found.grad, DTensor)
        close(found.grad.full_tensor(), wanted.grad, 1e-12)


@check
def second_derivatives_are_refused(mesh: DeviceMesh, folder: Path) -> None:
    generator = seeded(4)
    for name in ("plain", "in logs", "low rank"):
        case = {"states": 6} if name == "low rank" else CASES[name]
        unary, transition = (part.requires_grad_() for part in potentials(**case))
        if name == "low rank":
            transition = rg.LowRank(*torch.randn(2, 6, 2, generator=generator, dtype=DOUBLE))
        here = shard(rg.Chain(unary, transition), mesh)
        log_z = here.log_partition().square().sum()
        (gradient,) = torch.autograd.grad(log_z, unary, create_graph=True)
        for answer in (gradient, here.marginals()):
            if answer.numel():
                with pytest.raises(rg.errors.UnsupportedError, match=r"^[^\n]*one process[^\n]*$"):
                    torch.autograd.grad(answer.square().sum(), unary)
        with torch.no_grad():
            assert not here.marginals().requires_grad


@check
def estimates_are_those_of_one_process(mesh: DeviceMesh, folder: Path) -> None:
    generator = seeded(5)
    unary, transition = potentials(11, steps=4, batch=(2,))
    left, right = torch.randn(2, 11, 3, generator=generator, dtype=DOUBLE)
    for parts in ([unary, transition], [unary, left, right]):
        parts = [part.clone().requires_grad_() for part in parts]
        low = parts[1] if len(parts) == 2 else rg.LowRank(*parts[1:])
        chain = rg.Chain(parts[0], low, lengths=[4, 3])
        for estimator in (
            rg.Randomized.default(keep=5, replicates=2),
            rg.Randomized(rg.randomized.Local(), rg.randomized.TopTail(2, 3), replicates=2),
            rg.Randomized.piloted(keep=4),
        ):
            one, many = (
                rg.infer(model, estimator=estimator, generator=seeded(6))
                for model in (chain, shard(chain, mesh).lazily())
            )
            close(many.log_partition, one.log_partition, 1e-12)
            close(many.marginals(), one.marginals(), 1e-12)
            gradients = [
                torch.autograd.grad(each.log_partition.sum(), parts) for each in (one, many)
            ]
            for expected, found in zip(*gradients, strict=True):
                close(found, expected, 1e-11)
            drawn = [each.sample(7, seeded(7)) for each in (one, many)]
            assert torch.equal(*drawn)
