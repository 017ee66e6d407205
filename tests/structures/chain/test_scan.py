"""The associative scan equals the recursion, and knows when it may not."""

import math

import pytest
import torch

from rdpgraph.structures.chain import logs, scan, sweeps
from rdpgraph.structures.chain.factors import masked

INF = math.inf


def case(steps, spread=1.0, dtype=torch.float64, kind="shared"):
    generator = torch.Generator().manual_seed(steps)
    shape = (4, 4) if kind == "shared" else (3, steps - 1, 4, 4)
    unary = spread * torch.randn(3, steps, 4, generator=generator, dtype=dtype)
    transition = spread * torch.randn(shape, generator=generator, dtype=dtype)
    gone = torch.rand(shape, generator=generator) < 0.2
    lengths = torch.tensor([steps, max(steps - 3, 0), 1])
    return unary, transition.masked_fill(gone, -INF), lengths


@pytest.mark.parametrize("kind", ["shared", "batch"])
@pytest.mark.parametrize("steps", [1, 2, 3, 4, 7, 8, 33])
def test_any_number_of_steps(steps, kind):
    unary, transition, lengths = case(steps, kind=kind)
    inputs = (unary.requires_grad_(), transition.requires_grad_())
    values, doubtful = scan.log_partition(unary, transition, lengths)
    expected = sweeps.unrolled(masked(unary, lengths), transition, lengths, 0.0)
    assert not doubtful.any()
    torch.testing.assert_close(values, expected)
    pairs = zip(
        torch.autograd.grad(
            values[values > -INF].sum(), inputs, materialize_grads=True, allow_unused=True
        ),
        torch.autograd.grad(
            expected[expected > -INF].sum(), inputs, materialize_grads=True, allow_unused=True
        ),
        strict=True,
    )
    for found, wanted in pairs:
        torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("spread", [3.0, 10.0, 100.0, 1000.0])
def test_right_or_in_doubt(spread, dtype):
    unary, transition, lengths = case(33, spread, dtype)
    values, doubtful = scan.log_partition(unary, transition, lengths)
    wide = masked(unary.double(), lengths), transition.double(), lengths
    exact = logs.log_partition(*wide)
    sure = ~doubtful
    torch.testing.assert_close(values[sure].double(), exact[sure], rtol=1e-5, atol=1e-4)
    if spread == 1000.0:
        assert doubtful[0]
    if spread == 3.0 and dtype == torch.float64:
        assert sure.all()


def test_the_price_decides():
    def worthwhile(*shape):
        return scan.worthwhile(torch.empty(shape, device="meta"))

    assert worthwhile(1, 4096, 4)
    assert not worthwhile(1, 4, 4)  # nothing to save
    assert not worthwhile(1, 4096, 512)  # too much arithmetic
    assert not worthwhile(64, 2**20, 16)  # too much memory
