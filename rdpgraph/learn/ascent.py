"""Losses for the optimizers of torch where a step may leave the domain of an objective."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

_BARRIER = 1e10
"""The loss outside of the domain, in units of the first one (or of 1). It is finite, because the
cubic interpolation of L-BFGS makes NaN of an infinite loss, and so large that it is never taken."""


_ROUNDING = 1e-9
"""Relative differences of losses that say nothing."""

TRUST = 2.0
"""How many times the gain that the gradient at the best point says another one may have. Where
special functions of a density have lost their digits, as those of Student's with 1e12 degrees of
freedom, differences of rounding exceed it. In the tails of a density, where a real gain may exceed
it too, shorter steps are taken."""


class GuardedLoss:
    """A loss whose values and gradients are finite wherever an optimizer asks for them.

    Where ``evaluate`` gives a loss or a gradient that is not finite, or refuses the point, the
    loss is a large number without a slope, so that a line search turns back.

    Args:
        leaves: what the optimizer changes.
        evaluate: gives the loss at the leaves and adds its gradient to theirs.
        trust: a gain above so many times the one that the gradient says is taken for rounding, and
            the point for one outside of the domain; for optimizers that go down the gradient.
        longest: for each leaf, the distance from the best point beyond which none is asked for.

    Attributes:
        first: the loss where the optimizer began.
        least: the least loss so far.
        sound: whether the last point was one of the domain.
    """

    def __init__(
        self,
        leaves: Sequence[Tensor],
        evaluate: Callable[[], float],
        *,
        trust: float = math.inf,
        longest: Sequence[float] = (),
    ) -> None:
        self.leaves, self._evaluate, self._trust = leaves, evaluate, trust
        self._longest = longest
        self.first = math.nan
        self.least = math.inf
        self.sound = False
        self._best = [leaf.detach().clone() for leaf in leaves]
        self._slopes = [torch.zeros_like(leaf) for leaf in leaves]
        self._asked = False
        self._began: bool | None = None

    def step(self, optimizer: Optimizer) -> tuple[float, bool]:
        """Take a step of an optimizer: the loss where it began, and if that was in the domain."""
        self._began = None
        given: Any = self  # torch says that it takes functions of tensors
        value = float(optimizer.step(given))
        return value, bool(self._began)

    def __call__(self) -> float:
        """The loss at the leaves, and its gradient in them."""
        for leaf in self.leaves:
            leaf.grad = None
        value = math.inf
        if self._is_near():
            try:
                value = self._evaluate()
            except ValueError:  # of torch, and our own
                if not self._asked:
                    raise
        if not self._asked:
            self._asked, self.first = True, value
        slopes = [_gradient(leaf) for leaf in self.leaves]
        self.sound = math.isfinite(value) and all(bool(s.isfinite().all()) for s in slopes)
        self.sound = self.sound and self._is_plausible(value)
        self._began = self.sound if self._began is None else self._began
        if not self.sound:
            for leaf in self.leaves:
                leaf.grad = torch.zeros_like(leaf)
            size = abs(self.first) if math.isfinite(self.first) else 1.0
            return _BARRIER * max(1.0, size)
        if value < self.least:
            self.least, self._best = value, [leaf.detach().clone() for leaf in self.leaves]
            self._slopes = slopes
        return value

    def _is_near(self) -> bool:
        """Test if no leaf is farther from the best point than it may be."""
        each = zip(self._longest, self.leaves, self._best, strict=False)
        return all(
            longest == math.inf or bool(((leaf.detach() - best).abs() <= longest).all())
            for longest, leaf, best in each
        )

    def _is_plausible(self, value: float) -> bool:
        """Compare the gain over the best point with what the gradient there says."""
        gain = self.least - value
        if not 0.0 < gain < math.inf or self._trust == math.inf:
            return True
        each = zip(self._slopes, self._best, self.leaves, strict=True)
        told = sum(float((slope * (best - leaf.detach())).sum()) for slope, best, leaf in each)
        return gain <= self._trust * max(told, 0.0) + _ROUNDING * max(1.0, abs(value))

    @torch.no_grad()
    def return_to_best(self) -> None:
        """Set the leaves to the point of the least loss."""
        for leaf, best in zip(self.leaves, self._best, strict=True):
            leaf.copy_(best)

    def promised_gains(self, leaf: Tensor, cells: int = 0) -> Tensor:
        """How much a step of one leaf along its gradient would lower the loss.

        A quadratic model says so, whose curvature is a difference of two gradients. The gain is
        near zero at a minimum; at other points at which an optimizer stands still, as because its
        steps are too small, it is not. No step is longer than the largest entry of the leaf, or
        than 1 if that is more.

        Args:
            leaf: one of the leaves.
            cells: how many leading dims the loss is a sum over. The gains have these dims.
        """
        return self._quadratic(leaf, cells)[0]

    def available_gain(self, leaf: Tensor) -> float:
        """By how much the step of `promised_gains` does lower the loss; +inf out of the domain."""
        self.return_to_best()
        gain, length = self._quadratic(leaf, 0)
        if not float(gain):
            return 0.0
        before, start, slope = self(), leaf.detach().clone(), _gradient(leaf).clone()
        with torch.no_grad():
            leaf.sub_(length.to(leaf) * slope)
        after = self()
        with torch.no_grad():
            leaf.copy_(start)
        return max(before - after, 0.0) if self.sound else math.inf

    def _quadratic(self, leaf: Tensor, cells: int) -> tuple[Tensor, Tensor]:
        """The gains of `promised_gains`, and the lengths of the steps in units of the gradient."""
        shape = leaf.shape[:cells]
        self()
        if not self.sound or not leaf.numel():
            none = torch.zeros(shape, dtype=torch.float64)
            return (none if self.sound else none + math.inf), none
        start, slope = leaf.detach().clone(), _gradient(leaf).clone()
        steepest = slope.reshape(*shape, -1).abs().amax(-1)
        reach = start.reshape(*shape, -1).abs().amax(-1).clamp(min=1.0)
        longest = torch.where(steepest > 0, reach / steepest, 0.0)
        # The square root of rounding: shorter would lose the difference, and at a kink a quadratic
        # model promises a gain that goes with this length.
        step = torch.finfo(leaf.dtype).eps ** 0.5 * longest

        def wide(values: Tensor) -> Tensor:
            return values.reshape(*shape, *(1,) * (leaf.ndim - cells))

        with torch.no_grad():
            leaf.sub_(wide(step) * slope)
        self()
        square = slope.reshape(*shape, -1).square().sum(-1)
        after = (slope * _gradient(leaf)).reshape(*shape, -1).sum(-1)
        with torch.no_grad():
            leaf.copy_(start)
        if not self.sound:
            return torch.full(shape, math.inf, dtype=torch.float64), longest
        curvature = (square - after) / torch.where(step > 0, step, 1.0)
        bent = curvature > 0
        length = torch.where(bent, square / torch.where(bent, curvature, 1.0), longest)
        length = torch.minimum(length, longest)
        return (length * square - 0.5 * length.square() * curvature).double(), length


def _gradient(leaf: Tensor) -> Tensor:
    return torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
