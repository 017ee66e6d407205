"""The compiled kernel says what the sweeps in torch say, and is done without where it must be."""

import math
import os
import subprocess
import sys

import pytest
import torch

from rdpgraph.structures.chain import native, ranges, sweeps
from rdpgraph.structures.chain.factors import Factors

INF = math.inf
needs_kernel = pytest.mark.skipif(native.status().library is None, reason=str(native.status()))


def factors(batch, steps, states, dtype, spread=1.0):
    generator = torch.Generator().manual_seed(batch + 31 * steps + 997 * states)
    unary = spread * torch.randn(batch, steps, states, generator=generator, dtype=dtype)
    transition = torch.randn(states, states, generator=generator, dtype=dtype)
    gone = torch.rand(states, states, generator=generator) < 0.2
    unary[0, 0, 0] = -INF
    lengths = torch.randint(0, steps + 1, (batch,), generator=generator)
    lengths[0] = steps
    return Factors.of(unary, transition.masked_fill(gone, -INF), lengths)


def agree(one, other):
    torch.testing.assert_close(one.states, other.states)
    torch.testing.assert_close(one.values, other.values)
    assert torch.equal(one.doubtful, other.doubtful)


# Less, as much and more than a block of rows or a panel of columns, in either type.
SIZES = [(1, 1, 1), (3, 5, 2), (8, 4, 16), (9, 3, 33), (17, 6, 31), (2, 7, 65), (20, 300, 5)]


@needs_kernel
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_sweeps_agree(size, dtype, threads, monkeypatch):
    monkeypatch.setattr(native, "_threads", lambda batch, count: threads)
    case = factors(*size, dtype)
    compiled = native.forward(case, floor=0.0, upward=False)
    plain = sweeps.forward(case)
    agree(compiled, plain)
    turned = case.reversed()
    agree(native.forward(turned, floor=0.0, upward=False), sweeps.forward(turned))
    gradient = torch.linspace(1.0, 2.0, size[0], dtype=dtype)
    found = native.backward(case, compiled, gradient)
    expected = sweeps.backward(case, plain, gradient)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(
        native.edge_gradient(case.matrix, compiled.states, found[1]),
        sweeps.edge_gradient(case.matrix, plain.states, expected[1]),
    )


@needs_kernel
@pytest.mark.parametrize("upward", [False, True])
def test_bounds_agree(upward):
    case = factors(3, 40, 6, torch.float64, spread=200.0)
    squeezed = case.squeezed(ranges.FACTOR_FLOOR, upward=upward)
    compiled = native.forward(squeezed, floor=ranges.FLOOR, upward=upward)
    plain = sweeps.forward(squeezed, floor=ranges.FLOOR, upward=upward)
    agree(compiled, plain)
    possible = compiled.states[compiled.states > 0]
    assert possible.min() >= ranges.FLOOR * (1 - 1e-12)


@needs_kernel
def test_doubt_is_told_alike():
    for spread in (1.0, 10.0, 30.0, 100.0):
        case = factors(16, 20, 6, torch.float32, spread=spread)
        compiled = native.forward(case, floor=0.0, upward=False)
        assert torch.equal(compiled.doubtful, sweeps.forward(case).doubtful)


def test_per_step_transitions_have_no_kernel():
    unary = torch.zeros(2, 3, 4)
    assert not native.applies(unary, torch.zeros(1, 2, 4, 4))
    assert not native.applies(unary.to(torch.float16), torch.zeros(4, 4).to(torch.float16))


@pytest.mark.parametrize("broken", ["no compiler", "failing compiler", "no cache"])
def test_without_a_kernel_torch_answers(broken, tmp_path):
    """In a fresh process: nothing is printed or warned of, and the status says why."""
    environment = dict(os.environ, XDG_CACHE_HOME=str(tmp_path / "cache"))
    if broken == "no compiler":
        environment["PATH"] = str(tmp_path)
    elif broken == "failing compiler":
        fake = tmp_path / "c++"
        fake.write_text("#!/bin/sh\nexit 1\n")
        fake.chmod(0o755)
        environment["PATH"] = f"{tmp_path}:{environment['PATH']}"
    else:
        (tmp_path / "cache").write_text("a file where the folder should be")
    code = (
        "import torch\n"
        "from rdpgraph.structures.chain import native, recursion\n"
        "parts = torch.zeros(1, 3, 2), torch.zeros(2, 2), torch.tensor([3])\n"
        "value = recursion.log_partition(*parts)\n"
        "torch.testing.assert_close(value, torch.tensor([8.0]).log())\n"
        "assert native.status().library is None\n"
        "print(native.status())"
    )
    command = [sys.executable, "-W", "error", "-c", code]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert "using torch" in run.stdout
    assert run.stderr == ""
