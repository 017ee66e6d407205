"""The scaled step as one kernel on graphics cards: built by Triton on first use, if it is there.

In torch a step is six launches or so; here it is one. What a step needs of the whole row, the sum
of the states before it, comes as partial sums of the launch before, added up in a fixed order: the
answer is the same on every run.
"""

import functools
import os
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rdpgraph.structures.chain import sweeps
from rdpgraph.structures.chain.factors import Factors
from rdpgraph.structures.chain.library import KernelStatus
from rdpgraph.structures.chain.sweeps import Forward


@dataclass(frozen=True)
class Blocks:
    """How a step is divided between programs.

    Attributes:
        rows: items of a program.
        columns: states of a program.
        inner: states that it takes up at a time.
        pieces: column blocks, rounded up to a power of two.
    """

    rows: int
    columns: int
    inner: int
    pieces: int

    @classmethod
    def of(cls, batch: int, count: int) -> "Blocks":
        """Enough programs for a card where there are few states, and enough reuse of the matrix."""
        rows = min(max(_power(batch), 16), 64)
        columns = min(max(_power(count) // 64, 16), 64)
        return cls(rows, columns, 32, _power(-(-count // columns)))


def status() -> KernelStatus:
    """Whether chains on a GPU use fused kernels here."""
    known = _loaded()[1]
    if known.kernel is None:
        return known
    if not _interpreted() and not torch.cuda.is_available():
        return KernelStatus(None, "No GPU for fused kernels; using torch.")
    device = torch.device("cpu" if _interpreted() else "cuda")
    wrong = _trial(device, torch.float32, Blocks.of(1, 16), 16, transposed=False)
    return KernelStatus(None, f"Triton built no kernel ({wrong}); using torch.") if wrong else known


def serves(factors: Factors) -> bool:
    """Whether the kernels are there for these factors: one transition for all steps, on a GPU."""
    emission, matrix = factors.emission, factors.matrix
    return (
        matrix.ndim == 2
        and (emission.device.type == "cuda" or _interpreted())
        and emission.dtype in (torch.float32, torch.float64)
        and _loaded()[0] is not None
        and _works(emission, matrix)
    )


def forward(
    factors: Factors, *, floor: float, upward: bool, blocks: Blocks | None = None
) -> Forward:
    """The states and scales of all steps, forward, as `sweeps.forward` defines them."""
    emission, matrix = factors.emission.contiguous(), _dense(factors.matrix)
    batch, steps, count = emission.shape
    blocks = blocks or Blocks.of(batch, count)
    grid = _grid(blocks, batch, count)
    starts = factors.starts
    starts = torch.zeros_like(factors.lengths) if starts is None else starts.contiguous()
    least = torch.finfo(emission.dtype).tiny
    limits = emission.new_tensor([least, floor, floor if upward else 0.0])
    states = torch.empty_like(emission)
    states[:, 0] = emission[:, 0]
    scales = emission.new_empty(batch, steps)
    sums = emission.new_zeros(2, batch, grid[1])
    sums[0, :, 0] = emission[:, 0].sum(1)
    with torch.cuda.device_of(emission):
        launch = _kernel("forward_step")[grid]
        for step in range(1, steps):
            launch(
                *(emission, matrix, starts, limits, states, sums, scales),
                *(step, batch, steps, count, *matrix.stride()),
                rows=blocks.rows,
                columns=blocks.columns,
                inner=blocks.inner,
                pieces=blocks.pieces,
                enable_fp_fusion=True,
            )
    scales[:, -1] = sums[(steps - 1) % 2].sum(1)
    states *= scales.clamp(min=least).reciprocal_().unsqueeze(2)
    if floor:
        states = sweeps.squeezed(states, floor, upward=upward)
    return sweeps.finished(factors, states, scales)


def backward(
    factors: Factors, swept: Forward, gradient: Tensor, *, blocks: Blocks | None = None
) -> tuple[Tensor, Tensor]:
    """Marginals times the gradient, and the other side of each edge, as in `sweeps.backward`."""
    emission, matrix = factors.emission.contiguous(), _dense(factors.matrix)
    batch, steps, count = emission.shape
    blocks = blocks or Blocks.of(batch, count)
    states, gradient = swept.states.contiguous(), gradient.contiguous()
    shares = swept.scales.clamp(min=torch.finfo(emission.dtype).tiny).reciprocal_()
    lasts = (factors.lengths - 1).clamp(min=0)
    marginals, ahead = torch.empty_like(states), torch.empty_like(states)
    ahead[:, -1] = 0.0
    with torch.cuda.device_of(emission):
        launch = _kernel("backward_step")[_grid(blocks, batch, count)]
        for step in range(steps - 1, -1, -1):
            launch(
                *(emission, matrix, states, shares, lasts, gradient, marginals, ahead),
                *(step, batch, steps, count, *matrix.stride()),
                rows=blocks.rows,
                columns=blocks.columns,
                inner=blocks.inner,
                enable_fp_fusion=True,
            )
    return marginals, ahead


def _power(number: int) -> int:
    """The least power of two that is not below it."""
    return 1 << max(number - 1, 0).bit_length()


def _grid(blocks: Blocks, batch: int, count: int) -> tuple[int, int]:
    """Neighbours share columns of the matrix."""
    return -(-batch // blocks.rows), -(-count // blocks.columns)


def _dense(matrix: Tensor) -> Tensor:
    return matrix if matrix.mT.is_contiguous() else matrix.contiguous()


def _interpreted() -> bool:
    """Whether Triton runs kernels on the CPU, step by step: for tests."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def _works(emission: Tensor, matrix: Tensor) -> bool:
    """Whether a small chain, of the same build of the kernels, gets the right answers."""
    count = len(matrix)
    small = min(count, 16 + count % 16)  # divisible by 16 where the count is, as builds differ by
    transposed = matrix.mT.is_contiguous() and not matrix.is_contiguous()
    blocks = Blocks.of(len(emission), count)
    return not _trial(emission.device, emission.dtype, blocks, small, transposed=transposed)


@functools.cache
def _trial(
    device: torch.device, dtype: torch.dtype, blocks: Blocks, count: int, *, transposed: bool
) -> str:
    """What is wrong with the kernels of this division; empty where nothing is."""
    numbers = torch.linspace(-1.0, 1.0, (6 + count) * count, dtype=dtype, device=device)
    unary, transition = numbers[: 6 * count].reshape(2, 3, count), numbers[6 * count :]
    transition = transition.reshape(count, count)
    lengths = torch.tensor([3, 2], device=device)
    case = Factors.of(unary, transition.mT if transposed else transition, lengths)
    gradient = torch.ones_like(numbers[:2])
    plain = sweeps.forward(case)
    expected = (plain.states, *sweeps.backward(case, plain, gradient))
    try:
        swept = forward(case, floor=0.0, upward=False, blocks=blocks)
        answers = (swept.states, *backward(case, swept, gradient, blocks=blocks))
        pairs = zip(answers, expected, strict=True)
        same = all(torch.allclose(one, other, rtol=1e-4) for one, other in pairs)
    except Exception as error:  # no compiler, no driver for it, too old a card: torch is left
        return f"{type(error).__name__}: {error}"
    return "" if same else "its answers are wrong"


def _kernel(name: str) -> Any:
    kernels = _loaded()[0]
    assert kernels is not None
    return kernels[name]


@functools.cache
def _loaded() -> tuple[dict[str, Any] | None, KernelStatus]:
    """The kernels, to be built for what they are called with, where Triton can be imported."""
    changing = ["step", "batch", "steps"]  # one build serves all
    try:
        import triton  # pyright: ignore

        from rdpgraph.structures.chain import fused_kernels as kernels

        jit: Any = triton.jit
        functions = (kernels.forward_step, kernels.backward_step)
        built = {f.__name__: jit(f, do_not_specialize=changing) for f in functions}
    except Exception as error:  # whatever it is, there is another way
        return None, KernelStatus(None, f"Triton cannot be used ({error}); using torch.")
    return built, KernelStatus(triton.__version__, f"Fused kernels by Triton {triton.__version__}.")
