"""The fused kernels say what the sweeps in torch say, and are done without where they must be.

They need Triton, and a GPU or TRITON_INTERPRET=1, under which Triton runs them on the CPU.
"""

import importlib.util
import math
import os
import subprocess
import sys

import pytest
import torch

import rdpgraph as rg
from rdpgraph.structures.chain import arrays, fused, native, ranges, sweeps
from rdpgraph.structures.chain.factors import Factors
from rdpgraph.testing import brute_force

INF = math.inf
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
ABSENT = importlib.util.find_spec("triton") is None
NOWHERE = DEVICE == "cpu" and os.environ.get("TRITON_INTERPRET") != "1"
needs_triton = pytest.mark.skipif(ABSENT, reason="Triton is not installed.")
needs_kernel = pytest.mark.skipif(
    ABSENT or NOWHERE, reason="Needs Triton, and a GPU or TRITON_INTERPRET=1."
)
SMALL = fused.Blocks(rows=16, columns=16, inner=16, pieces=8)


def factors(batch, steps, states, dtype, spread=1.0):
    generator = torch.Generator().manual_seed(batch + 31 * steps + 997 * states)
    unary = spread * torch.randn(batch, steps, states, generator=generator, dtype=dtype)
    transition = torch.randn(states, states, generator=generator, dtype=dtype)
    gone = torch.rand(states, states, generator=generator) < 0.2
    unary[0, 0, 0] = -INF
    lengths = torch.randint(0, steps + 1, (batch,), generator=generator)
    lengths[:3] = torch.tensor([steps, 0, 1])[:batch]
    parts = unary, transition.masked_fill(gone, -INF), lengths
    return Factors.of(*(part.to(DEVICE) for part in parts))


def forward(case, blocks=None):
    return fused.forward(case, floor=0.0, upward=False, blocks=blocks)


def agree(one, other):
    torch.testing.assert_close(one.states, other.states)
    torch.testing.assert_close(one.values, other.values)
    assert torch.equal(one.doubtful, other.doubtful)


# Less, as much and more than a block of items or of states.
SIZES = [(1, 1, 1), (1, 5, 40), (3, 5, 2), (16, 4, 32), (9, 3, 33), (17, 4, 31), (70, 3, 5)]


@needs_kernel
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("blocks", [None, SMALL])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_sweeps_agree(size, blocks, dtype):
    case = factors(*size, dtype)
    assert fused.serves(case)
    found, plain = forward(case, blocks), sweeps.forward(case)
    agree(found, plain)
    torch.testing.assert_close(found.scales, plain.scales)
    turned = case.reversed()
    assert fused.serves(turned)
    agree(forward(turned, blocks), sweeps.forward(turned))
    gradient = torch.linspace(1.0, 2.0, size[0], dtype=dtype, device=DEVICE)
    back = fused.backward(case, found, gradient, blocks=blocks)
    torch.testing.assert_close(back, sweeps.backward(case, plain, gradient))


@needs_kernel
def test_runs_agree_to_the_last_bit():
    case = factors(20, 6, 70, torch.float32)
    assert torch.equal(forward(case).states, forward(case).states)


@needs_kernel
def test_what_lies_beyond_a_length_has_no_influence():
    case = factors(5, 6, 20, torch.float64)
    beyond = ~case.inside().unsqueeze(2)
    broken = Factors.of(
        case.unary.masked_fill(beyond, math.nan), case.transition.clone(), case.lengths
    )
    gradient = torch.ones_like(case.offset[:, 0])
    found, clean = forward(broken), sweeps.forward(case)
    agree(found, clean)
    marginals, _ = fused.backward(broken, found, gradient)
    torch.testing.assert_close(marginals, sweeps.backward(case, clean, gradient)[0])


@needs_kernel
@pytest.mark.parametrize("upward", [False, True])
def test_bounds_agree(upward):
    case = factors(3, 40, 6, torch.float64, spread=200.0)
    squeezed = case.squeezed(ranges.FACTOR_FLOOR, upward=upward)
    found = fused.forward(squeezed, floor=ranges.FLOOR, upward=upward)
    agree(found, sweeps.forward(squeezed, floor=ranges.FLOOR, upward=upward))
    assert found.states[found.states > 0].min() >= ranges.FLOOR * (1 - 1e-12)


@needs_kernel
def test_bounds_hold_where_they_differ():
    """A state that falls below the floor, and would be all there is at the end."""
    unary = torch.tensor([[0.0, -180.0]] * 2 + [[-180.0, 0.0]] * 3, dtype=torch.float64)
    unary, lengths = unary.unsqueeze(0).to(DEVICE), torch.tensor([5], device=DEVICE)
    apart = torch.eye(2, dtype=torch.float64, device=DEVICE).log()
    case = Factors.of(unary, apart, lengths)
    low, high = (
        fused.forward(case, floor=ranges.FLOOR, upward=upward).values for upward in (False, True)
    )
    torch.testing.assert_close(low, unary[:, :, 0].sum(1))  # the other state is lost
    assert low < torch.logsumexp(unary.sum(1), 1) < high


@needs_kernel
def test_doubt_is_told_alike():
    for spread in (1.0, 10.0, 30.0, 100.0):
        case = factors(16, 8, 6, torch.float32, spread=spread)
        assert torch.equal(forward(case).doubtful, sweeps.forward(case).doubtful)


@pytest.fixture
def calls(monkeypatch):
    """Calls of the fused sweeps, which nothing faster takes the place of."""
    seen = []
    for name in ("forward", "backward"):
        original = getattr(fused, name)

        def counted(*parts, name=name, original=original, **options):
            seen.append(name)
            return original(*parts, **options)

        monkeypatch.setattr(fused, name, counted)
    for faster in (native, arrays):
        monkeypatch.setattr(faster, "serves", lambda factors: False)
    return seen


@needs_kernel
def test_chains_use_them(calls):
    case = factors(3, 4, 3, torch.float64)
    unary, transition = case.unary.requires_grad_(), case.transition.requires_grad_()
    chain = rg.Chain(unary, transition, lengths=case.lengths.tolist())
    assert fused.serves(case)
    calls.clear()  # those of the trial
    values = chain.log_partition()
    assert "forward" in calls
    for number, length in enumerate(case.lengths.tolist()):
        if length:
            own = rg.Chain(unary[number, :length].cpu(), transition.cpu()).factor_graph()
            torch.testing.assert_close(values[number].cpu(), brute_force(own).log_partition)
    values.sum().backward()
    assert "backward" in calls


@needs_kernel
@pytest.mark.usefixtures("calls")
def test_gradient():
    case = factors(4, 4, 3, torch.float64)

    def log_partition(unary, transition):
        return rg.Chain(unary, transition, lengths=case.lengths).log_partition()

    parts = case.unary.clone(), case.transition.clone()
    parts = [part.clamp(min=-3.0).requires_grad_() for part in parts]
    assert torch.autograd.gradcheck(log_partition, parts)


def test_other_chains_have_no_kernel(monkeypatch):
    monkeypatch.setattr(fused, "_interpreted", lambda: True)
    unary, lengths = torch.zeros(2, 3, 4), torch.tensor([3, 3])
    assert not fused.serves(Factors.of(unary, torch.zeros(1, 2, 4, 4), lengths))
    assert not fused.serves(Factors.of(unary.half(), torch.zeros(4, 4).half(), lengths))


@pytest.fixture
def fresh():
    """Nothing known of what can be built, before and after."""
    for found in (fused._loaded, fused._trial):
        found.cache_clear()
    yield
    for found in (fused._loaded, fused._trial):
        found.cache_clear()


def answers_in_torch(calls):
    """Whether a chain of two states and three steps is summed, by no fused sweep."""
    values = rg.Chain(torch.zeros(1, 3, 2), torch.zeros(2, 2)).log_partition()
    torch.testing.assert_close(values, torch.tensor([8.0]).log())
    return not calls


@pytest.mark.usefixtures("fresh")
def test_without_triton_torch_answers(monkeypatch, calls):
    monkeypatch.setitem(sys.modules, "triton", None)
    monkeypatch.setattr(fused, "_interpreted", lambda: True)
    assert fused.status().kernel is None
    assert "using torch" in str(fused.status())
    assert answers_in_torch(calls)


class Broken:
    """A kernel that cannot be built, or does nothing."""

    def __init__(self, error):
        self.error = error

    def __getitem__(self, grid):
        def launch(*parts, **options):
            if self.error:
                raise self.error

        return launch


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize("error", [RuntimeError("no C compiler"), None])
def test_kernels_that_fail_are_left_for_torch(error, monkeypatch):
    kernels = dict.fromkeys(("forward_step", "backward_step"), Broken(error))
    monkeypatch.setattr(fused, "_loaded", lambda: (kernels, fused.KernelStatus("0", "There.")))
    monkeypatch.setattr(fused, "_interpreted", lambda: True)
    monkeypatch.setattr(native, "serves", lambda factors: False)
    case = Factors.of(torch.zeros(1, 3, 2), torch.zeros(2, 2), torch.tensor([3]))
    assert not fused.serves(case)
    assert fused.status().kernel is None
    assert (str(error) if error else "wrong") in str(fused.status())
    assert answers_in_torch([])


BUILD = """
import triton
from triton.backends.compiler import GPUTarget
from rdpgraph.structures.chain import fused, fused_kernels

plain = ("step", "batch", "steps", "count", "from_stride", "to_stride")
for kernel in (fused_kernels.forward_step, fused_kernels.backward_step):
    for kind in ("fp32", "fp64"):
        built = triton.jit(kernel)
        signature, values = {}, {}
        for name in built.arg_names:
            if name in vars(blocks := fused.Blocks.of(64, 4096)):
                signature[name], values[name] = "constexpr", getattr(blocks, name)
            elif name in plain:
                signature[name] = "i32"
            else:
                signature[name] = "*i64" if name in ("starts", "lasts") else "*" + kind
        source = triton.compiler.ASTSource(built, signature, values)
        options = {"enable_fp_fusion": True}
        made = triton.compile(source, target=GPUTarget("cuda", 80, 32), options=options)
        assert "tf32" not in made.asm["ptx"]
        assert kind == "fp64" or "fma.rn.f32" in made.asm["ptx"]
        assert made.metadata.shared <= 99 * 1024, "more than some cards have for a program"
"""


@needs_triton
def test_products_are_exact_on_a_card():
    """What is built for one, which takes none to see: no product rounds its factors to TF32."""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    run = subprocess.run(
        [sys.executable, "-c", BUILD], env=environment, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
