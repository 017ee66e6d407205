"""Log Z by scaled products, with a backward pass written by hand.

Every product of the recursion is alpha_{t-1}(i) P_ij e_t(j), each factor at most 1. If the positive
entries of alpha_{t-1} are at least `state_limit`, and the least positive P_ij times the least
positive e_t(j) at least `step_limit`, no product underflows, and alpha_t is right to rounding. By
induction this check of minima suffices, but it is not necessary: a left-to-right chain leaves its
early states behind at a geometric rate. Otherwise log Z is bounded in float64: from below with
factors below a floor set to zero, and from above with those raised to the floor, except for hard
zeros. Where the bounds agree, all lost paths together have a share in Z as small as the gap, which
holds for the marginals as well. Where they differ, log-space is left.
"""

from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from rdpgraph._core.types import Doubt, LogZ, Unary
from rdpgraph.logspace.gradients import regradient
from rdpgraph.structures.chain import logs, native, sweeps
from rdpgraph.structures.chain.factors import Factors, StepFactors, masked
from rdpgraph.structures.chain.low_rank import ThinFactors
from rdpgraph.structures.chain.steps import RankSteps, stepping
from rdpgraph.structures.chain.sweeps import Forward

FLOOR = 1e-140  # of states in float64, between which the bounds are squeezed
FACTOR_FLOOR = 1e-80  # of factors: a floored state times two of them is a normal number
_LEAST_SCALE = 1e-150  # of a step: the backward pass divides by it
_GAP = 1e-9  # nats between the bounds, beyond rounding
_ROUNDING = 1e-13  # relative, of the sums


def log_partition(unary: Unary, *parts: Tensor) -> tuple[LogZ, Doubt]:
    """Log Z of each item, (B,), and whether underflow may have taken some of it, (B,) bool.

    O(T N^2) per item, as products of matrices, or O(T N r); keeps O(T N), or O(T (N + r)). Twice
    differentiable. Parts are the transition, (N, N) or (1 or B, T-1, N, N), or both sides of ranks,
    (N, r) or (1 or B, T-1, N, r), of the dtype of unary (B, T, N), T > 0; and lengths (B,).
    """
    return _Scaled.apply(0.0, unary, *parts)  # pyright: ignore


def certified(unary: Unary, *parts: Tensor) -> tuple[LogZ, Doubt]:
    """Log Z of tables by bounds in float64; in doubt only where underflow may matter."""
    return _Scaled.apply(FLOOR, unary, *parts)  # pyright: ignore


class _Scaled(torch.autograd.Function):
    """The scaled recursion; with a floor for certified bounds."""

    @staticmethod
    def forward(ctx: Any, floor: float, unary: Tensor, *parts: Tensor) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        *sides, lengths = parts
        if floor:
            own, swept = _certified(factors(unary, *parts), floor)
        else:
            own = factors(unary, *parts) if len(sides) == 1 else ThinFactors.of(unary, *parts)
            swept = forward(own)
        kept = own.offset, *sides, *own.made
        ctx.save_for_backward(unary, lengths, swept.states, swept.scales, *kept)
        ctx.mark_non_differentiable(swept.doubtful)
        ctx.floor, ctx.kind, ctx.sides = floor, type(own), len(sides)
        ctx.products = _autocast(unary.device.type) if len(sides) > 1 else nullcontext()
        return swept.values, swept.doubtful

    @staticmethod
    def backward(ctx: Any, gradient: Tensor | None, _: Tensor | None):  # pyright: ignore
        if gradient is None:
            return None, None, *(None for _ in range(ctx.sides)), None
        unary, lengths, states, scales, offset, *kept = ctx.saved_tensors
        if torch.is_grad_enabled():
            floor = ctx.floor

            def again(unary: Tensor, *sides: Tensor) -> Tensor:
                steps = stepping(*sides)
                if isinstance(steps, RankSteps):
                    return logs.log_partition(unary, steps, lengths)
                return sweeps.unrolled(masked(unary, lengths), steps, lengths, floor)

            return None, *regradient(again, (unary, *kept[: ctx.sides]), gradient), None
        own = ctx.kind(unary, offset, lengths, *kept)
        swept = Forward(states, scales, scales, scales)
        with ctx.products:
            marginals, ahead = backward(own, swept, gradient)
            needed = any(ctx.needs_input_grad[2:])
            edges = own.edges(states, ahead) if needed else (None,) * ctx.sides
        return None, marginals, *edges, None


def _autocast(device: str) -> torch.autocast:
    """The current autocast mode, for the products of the gradient."""
    return torch.autocast(
        device, torch.get_autocast_dtype(device), enabled=torch.is_autocast_enabled(device)
    )


def factors(unary: Tensor, transition: Tensor, lengths: Tensor) -> Factors:
    """Scaled factors of log-potentials, by the compiled kernel or in torch."""
    if native.applies(unary, transition):
        return native.factors(unary, transition, lengths)
    return Factors.of(unary, transition, lengths)


def forward(factors: StepFactors, *, floor: float = 0.0, upward: bool = False) -> Forward:
    """A forward sweep by the compiled kernel or in torch."""
    if isinstance(factors, Factors) and native.applies(factors.emission, factors.matrix):
        return native.forward(factors, floor=floor, upward=upward)
    return sweeps.forward(factors, floor=floor, upward=upward)


def backward(factors: StepFactors, swept: Forward, gradient: Tensor) -> tuple[Tensor, Tensor]:
    """A backward sweep likewise: marginals, and the other side of each edge."""
    if isinstance(factors, Factors) and native.applies(factors.emission, factors.matrix):
        return native.backward(factors, swept, gradient)
    return sweeps.backward(factors, swept, gradient)


def _certified(factors: Factors, floor: float) -> tuple[Factors, Forward]:
    """The sweep that bounds Z from below, in doubt where the upper bound is too far from it."""
    below = factors.squeezed(FACTOR_FLOOR, upward=False)
    swept = forward(below, floor=floor, upward=False)
    above = factors.squeezed(FACTOR_FLOOR, upward=True)
    other = forward(above, floor=floor, upward=True)
    most = _GAP + _ROUNDING * other.values.abs()
    same = (other.values == swept.values) | (other.values - swept.values <= most)
    tiny = (swept.scales > 0) & (swept.scales < _LEAST_SCALE) & factors.inside()
    return below, replace(swept, doubtful=~same | tiny.any(1))
