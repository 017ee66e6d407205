"""Gradients of potentials through the messages."""

import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from rdpgraph._core.numbers import is_real, is_whole
from rdpgraph.engines.loopy.equations import Equations, Messages
from rdpgraph.engines.loopy.propagation import Limits, Outcome, propagate
from rdpgraph.errors import ModelError
from rdpgraph.logspace.gradients import differentiable_once
from rdpgraph.plan import clock

_BREAKDOWN = 1e-12
"""Norm of a new GMRES direction, relative to the right side, at which the space is exhausted."""


class Gradient(ABC):
    """A way to differentiate the messages at which propagation ends."""

    def for_log_partition(self, messages: Messages) -> Messages:
        """The messages that log Z is computed from: constants, since it is stationary in them."""
        return tuple(message.detach() for message in messages)

    @abstractmethod
    def run(self, equations: Equations, start: Messages, limits: Limits) -> Outcome:
        """Propagate, and attach the messages to the potentials' graph."""


@dataclass(frozen=True)
class Unrolled(Gradient):
    """Backpropagation through every sweep: the exact derivative of what was computed, of any order.

    Memory grows with the number of sweeps.
    """

    def run(self, equations: Equations, start: Messages, limits: Limits) -> Outcome:
        """Sweeps with gradients recorded."""
        return propagate(equations, start, limits)

    def for_log_partition(self, messages: Messages) -> Messages:
        """The messages, attached."""
        return messages


@dataclass(frozen=True)
class FromBeliefs(Gradient):
    """Messages are constants: the gradient of log Z is the beliefs, as it is at a fixed point.

    Marginals and entropy lack the gradient through the messages, which is most of theirs: use it
    for log Z only. Costs nothing.
    """

    def run(self, equations: Equations, start: Messages, limits: Limits) -> Outcome:
        """Sweeps without gradients."""
        with torch.no_grad():
            return propagate(equations, start, limits)


@dataclass(frozen=True)
class Implicit(Gradient):
    """Implicit function theorem at the fixed point; memory of one sweep.

    With messages m = G(m, theta), a gradient g of m becomes that of G at u with (I - J^T) u = g, J
    = dG/dm, solved by GMRES. Right where the messages have converged. First derivatives only.

    Args:
        iterations: of the linear solve, at most; each costs a sweep backwards and a vector of
            all messages. It ends early after as many seconds as the messages were given.
        tolerance: on its residual, relative to g.
    """

    iterations: int = 100
    tolerance: float = 1e-6

    def __post_init__(self) -> None:
        numbers = is_whole(self.iterations, 1) and is_real(self.tolerance)
        if not numbers or not self.tolerance >= 0:
            raise ModelError(
                "Implicit needs iterations >= 1 and a tolerance >= 0; got "
                f"{self.iterations!r:.80} and {self.tolerance!r:.80}."
            )

    def run(self, equations: Equations, start: Messages, limits: Limits) -> Outcome:
        """Sweeps without gradients, then one with."""
        with torch.no_grad():
            outcome = propagate(equations, start, limits)
        seconds = math.inf if limits.seconds is None else limits.seconds
        return replace(outcome, messages=self.attached(equations, outcome.messages, seconds))

    def attached(self, equations: Equations, messages: Messages, seconds: float) -> Messages:
        """Messages at a fixed point, attached to the potentials' graph; the solve ends in time."""
        among = equations.boundary is not None and equations.records
        if not torch.is_grad_enabled() or not (equations.edges.count or among):
            return messages
        updated = equations.update(tuple(message.detach() for message in messages))
        if among:  # the solve is that of all parts, whether or not it reaches anything here
            updated = tuple(m if m.requires_grad else m.requires_grad_() for m in updated)
        elif not any(message.requires_grad for message in updated):
            return messages
        return _AtFixedPoint.apply(equations, self, seconds, *updated)  # pyright: ignore


class _AtFixedPoint(torch.autograd.Function):
    """The identity, whose backward pass solves for the gradient of a fixed point."""

    @staticmethod
    def forward(  # pyright: ignore
        ctx,  # pyright: ignore
        equations: Equations,
        how: Implicit,
        seconds: float,
        *messages: Tensor,
    ) -> Messages:
        ctx.equations, ctx.how, ctx.seconds = equations, how, seconds  # pyright: ignore
        ctx.save_for_backward(*messages)  # pyright: ignore
        return tuple(message.clone() for message in messages)

    @staticmethod
    @differentiable_once
    def backward(ctx, *grads: Tensor):  # pyright: ignore
        equations, how = ctx.equations, ctx.how  # pyright: ignore
        with torch.enable_grad():
            inputs = tuple(m.detach().requires_grad_() for m in ctx.saved_tensors)  # pyright: ignore
            outputs = equations.update(inputs)  # pyright: ignore

        def transposed(vector: Tensor) -> Tensor:
            parts = _split(vector, inputs)
            gradients = torch.autograd.grad(
                outputs, inputs, parts, retain_graph=True, allow_unused=True
            )
            return vector - _joined(gradients, inputs)

        solved, residual = gmres(
            transposed,
            _joined(grads, inputs),
            how.iterations,
            how.tolerance,  # pyright: ignore
            deadline=clock.now() + ctx.seconds,  # pyright: ignore
            total=_identity if equations.boundary is None else equations.boundary.solved,  # pyright: ignore
        )
        if residual > 100 * how.tolerance:  # pyright: ignore
            warnings.warn(
                f"The implicit gradient's linear solve stopped at a relative residual of "
                f"{residual:.1e} after {how.iterations} iterations at most; raise "  # pyright: ignore
                "Implicit(iterations=...) or the scheduler's seconds, or use Unrolled().",
                stacklevel=2,
            )
        return None, None, None, *_split(solved, inputs)


def _joined(parts: tuple[Tensor | None, ...], like: Messages) -> Tensor:
    zipped = zip(parts, like, strict=True)
    return torch.cat([torch.zeros_like(m).reshape(-1) if p is None else p.reshape(-1)
                      for p, m in zipped])  # fmt: skip


def _split(vector: Tensor, like: Messages) -> tuple[Tensor, ...]:
    parts = torch.split(vector, [m.numel() for m in like])
    return tuple(p.reshape(m.shape) for p, m in zip(parts, like, strict=True))


def _identity(values: Tensor) -> Tensor:
    return values


def gmres(
    operator: Callable[[Tensor], Tensor],
    right: Tensor,
    iterations: int,
    tolerance: float,
    *,
    deadline: float = math.inf,
    total: Callable[[Tensor], Tensor] = _identity,
) -> tuple[Tensor, float]:
    """Solve operator(x) = right in a Krylov space of at most ``iterations`` dims (Saad, Schultz).

    Ends with the iteration in which the deadline (on `clock.now`) passes. Returns the solution and
    the relative residual. For vectors in parts on several processes, ``total`` sums their scalar
    products.
    """

    def norm(vector: Tensor) -> float:
        return math.sqrt(float(total(vector.norm().double().square())))

    size = norm(right)
    if size == 0.0:
        return torch.zeros_like(right), 0.0
    basis = [right / size]
    matrix = torch.zeros(1, 0, dtype=torch.float64, device="cpu")
    weights = torch.zeros(0, dtype=torch.float64, device="cpu")
    residual = 1.0
    for step in range(iterations):
        image = operator(basis[-1])
        column = torch.zeros(step + 2, dtype=torch.float64, device="cpu")
        for _ in range(2):  # orthogonalised twice, for float32
            parts = total(torch.stack([torch.dot(vector, image) for vector in basis]))
            for part, vector in zip(parts, basis, strict=True):
                image = image - part * vector
            column[:-1] += parts.cpu()
        length = norm(image)
        column[-1] = length
        matrix = torch.cat([torch.nn.functional.pad(matrix, (0, 0, 0, 1)), column[:, None]], 1)
        target = torch.zeros(step + 2, 1, dtype=torch.float64, device="cpu")
        target[0] = size
        weights = torch.linalg.lstsq(matrix, target, driver="gelsd").solution[:, 0]
        residual = float((matrix @ weights - target[:, 0]).norm()) / size
        ended = residual <= tolerance or length <= _BREAKDOWN or clock.now() > deadline
        if float(total(right.new_tensor(float(ended)))):  # processes may round differently
            break
        basis.append(image / length)
    stacked = torch.stack(basis[: len(weights)])
    return weights.to(right) @ stacked, residual
