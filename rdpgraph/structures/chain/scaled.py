"""Log Z by scaled products, with a backward pass written by hand."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from rdpgraph._types import Doubt, Lengths, LogZ, Transition, Unary
from rdpgraph.model.gradients import regradient
from rdpgraph.structures.chain import arrays, fused, native, ranges, sweeps
from rdpgraph.structures.chain.factors import Factors, masked
from rdpgraph.structures.chain.sweeps import Forward


def log_partition(unary: Unary, transition: Transition, lengths: Lengths) -> tuple[LogZ, Doubt]:
    """Log Z of each item, (B,), and whether underflow may have taken some of it, (B,) bool.

    O(T N^2) per item, as products of matrices; keeps O(T N). Twice differentiable.

    Args:
        unary: (B, T, N) in nats, T > 0, float32 or float64; -inf allowed.
        transition: (N, N), or (1 or B, T-1, N, N) per step; of the same dtype.
        lengths: (B,) int64.
    """
    return _Scaled.apply(unary, transition, lengths, 0.0)  # pyright: ignore


def certified(unary: Unary, transition: Transition, lengths: Lengths) -> tuple[LogZ, Doubt]:
    """Log Z as `log_partition` has it, in float64; in doubt only where underflow may matter."""
    return _Scaled.apply(unary, transition, lengths, ranges.FLOOR)  # pyright: ignore


class _Scaled(torch.autograd.Function):
    """The scaled recursion; with a floor, if it is to be certified."""

    @staticmethod
    def forward(
        ctx: Any, unary: Unary, transition: Transition, lengths: Lengths, floor: float
    ) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)  # pyright: ignore
        own = factors(unary, transition, lengths)
        if floor:
            own, swept = _certified(own, floor)
        else:
            swept = forward(own)
        ctx.floor = floor  # pyright: ignore
        ctx.save_for_backward(  # pyright: ignore
            unary,
            transition,
            lengths,
            own.emission,
            own.matrix,
            swept.states,
            swept.scales,
        )
        ctx.mark_non_differentiable(swept.doubtful)  # pyright: ignore
        return swept.values, swept.doubtful

    @staticmethod
    def backward(ctx: Any, gradient: Tensor | None, _: Tensor | None):  # pyright: ignore
        if gradient is None:
            return None, None, None, None
        unary, transition, lengths, emission, matrix, states, scales = ctx.saved_tensors  # pyright: ignore
        if torch.is_grad_enabled():
            floor = ctx.floor  # pyright: ignore

            def again(unary: Tensor, transition: Tensor) -> Tensor:
                return sweeps.unrolled(masked(unary, lengths), transition, lengths, floor)

            return *regradient(again, (unary, transition), gradient), None, None
        own = Factors(unary, transition, emission, matrix, scales, lengths)
        swept = Forward(states, scales, scales, scales)
        needed = ctx.needs_input_grad[1]  # pyright: ignore
        return *backward(own, swept, gradient, edges=needed), None, None


def step_seconds(unary: Tensor, transition: Tensor) -> float:
    """What the calls of a step take, forward and backward, on a CPU."""
    if native.applies(unary, transition):
        return 1e-6
    return arrays.step_seconds(unary) if arrays.applies(unary, transition) else 11e-6


def factors(unary: Tensor, transition: Tensor, lengths: Tensor) -> Factors:
    """Scaled factors of log-potentials, by the compiled kernel if it serves, or in torch."""
    if native.applies(unary, transition):
        return native.factors(unary, transition, lengths)
    return Factors.of(unary, transition, lengths)


def forward(factors: Factors, *, floor: float = 0.0, upward: bool = False) -> Forward:
    """A forward sweep: compiled, on arrays or fused, if one of these serves, or in torch."""
    if native.serves(factors):
        return native.forward(factors, floor=floor, upward=upward)
    if not floor and arrays.serves(factors):
        return arrays.forward(factors)
    if fused.serves(factors):
        return fused.forward(factors, floor=floor, upward=upward)
    return sweeps.forward(factors, floor=floor, upward=upward)


def backward(
    factors: Factors, swept: Forward, gradient: Tensor, *, edges: bool
) -> tuple[Tensor, Tensor | None]:
    """A backward sweep, likewise: marginals, and sums of edge marginals if they are asked for."""
    if native.serves(factors):
        marginals, ahead = native.backward(factors, swept, gradient)
        return marginals, native.edge_gradient(
            factors.matrix, swept.states, ahead
        ) if edges else None
    if arrays.serves(factors):
        sweep = arrays.backward
    else:
        sweep = fused.backward if fused.serves(factors) else sweeps.backward
    marginals, ahead = sweep(factors, swept, gradient)
    return marginals, sweeps.edge_gradient(factors.matrix, swept.states, ahead) if edges else None


def _certified(factors: Factors, floor: float) -> tuple[Factors, Forward]:
    """The sweep that bounds Z from below, in doubt where the upper bound is too far from it."""
    below = factors.squeezed(ranges.FACTOR_FLOOR, upward=False)
    swept = forward(below, floor=floor, upward=False)
    above = factors.squeezed(ranges.FACTOR_FLOOR, upward=True)
    other = forward(above, floor=floor, upward=True)
    most = ranges.GAP + ranges.ROUNDING * other.values.abs()
    same = (other.values == swept.values) | (other.values - swept.values <= most)
    tiny = (swept.scales > 0) & (swept.scales < ranges.LEAST_SCALE) & factors.inside()
    return below, replace(swept, doubtful=~same | tiny.any(1))
