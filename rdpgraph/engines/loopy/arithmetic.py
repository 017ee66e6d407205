"""Arithmetic of log-vectors over states: rescaling, soft sums, products with factors' tables.

States are dim 1. Factors are the last dim, so that for small tables each operation is one long
vector operation.
"""

import math
from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor

from rdpgraph._core import tuning
from rdpgraph.logspace.logmatrix import finite, streamed_max, streamed_sum


def floored(logs: Tensor, lowest: float) -> Tensor:
    """Return logs that are at least ``lowest``, except for -inf.

    Hard constraints around a loop may multiply the log of a message in every sweep. Long before it
    overflows, it would be so large that rounding loses what is added to it.
    """
    floor = max(lowest, torch.finfo(logs.dtype).min)
    return torch.where(logs > -math.inf, logs.clamp(min=floor), logs)


def rescaled(logs: Tensor, *, vanishing: bool) -> tuple[Tensor, Tensor]:
    """Subtract from logs their maxima over states; return both, the maxima as (B, 1, n)."""
    peak = logs.amax(1, keepdim=True)
    peak = finite(peak) if vanishing else peak
    return logs - peak, peak


def share(logs: Tensor, temperature: float) -> Tensor:
    """Return the softmax over dim 1; at temperature 0 it is uniform over the maxima.

    It is zero where all logs are -inf.
    """
    peak = finite(logs.detach().amax(1, keepdim=True))
    if temperature == 0:
        values = ((logs == peak) & (logs > -math.inf)).to(logs)
    else:
        values = ((logs - peak) / temperature).exp()
    total = values.sum(1, keepdim=True)
    return values / torch.where(total > 0, total, 1.0)


FLOOR = 40.0
"""Log-messages below minus so many nats count as equal in `change`.

This is beyond the precision of float64, and hard constraints on loops may lower logs forever."""
BOTTOM = 1e30
"""The limit in place of `FLOOR` for logs that are bounded: only -inf lies below it."""


@torch.no_grad()
def change(new: Tensor, old: Tensor, seen: float) -> Tensor:
    """Return (B, n) largest changes of log-messages (B, K, n), in nats, relative beyond one nat.

    Changes of probabilities would not do: messages that carry evidence from far away may be too
    small to be seen there. Values below ``-seen``, `FLOOR` or `BOTTOM`, count as equal.
    """
    new, old = new.clamp(min=-seen), old.clamp(min=-seen)
    return ((new - old).abs_() / new.abs_().clamp_(min=1.0)).amax(1)


def take(values: Tensor, index: Tensor) -> Tensor:
    """Return the (B, K, n) entries of (B, K, E) at an index of the last dim, by way of a matrix."""
    batch, states, _ = values.shape
    return values.reshape(batch * states, -1).index_select(1, index).reshape(batch, states, -1)


def neighbours(places: Tensor) -> slice | Tensor:
    """Return an ascending index, as a slice if it has no gaps, so that indexing makes no copy."""
    first, last = int(places[0]), int(places[-1]) + 1
    return slice(first, last) if last - first == len(places) else places


Contract: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""(b, I, J, f) and (B, J, F) to (B, I, F), J eliminated; b is 1 or B, f is 1 or F."""


def product(table: Tensor, vector: Tensor) -> Tensor:
    """Sum products over J; differentiable, and only the operands are saved for that."""
    if torch.is_grad_enabled() and (table.requires_grad or vector.requires_grad):
        return _Product.apply(table, vector)  # pyright: ignore
    return _product(table, vector)


def maximum(table: Tensor, vector: Tensor) -> Tensor:
    """Return the maximum over J of sums of logs."""
    return streamed_max(*_columns(table, vector), tuning.CORE_BLOCK)


def log_sum(table: Tensor, vector: Tensor) -> Tensor:
    """Return the log-sum-exp over J of sums of logs; it is exact at any range, -inf included."""
    return streamed_sum(*_columns(table, vector), tuning.CORE_BLOCK)


def _columns(table: Tensor, vector: Tensor) -> tuple[Tensor, Tensor]:
    """Return the operands as (J, b, I, f) and (J, B, 1, F), with the summed dim first."""
    return table.movedim(2, 0), vector.movedim(1, 0).unsqueeze(2)


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, table: Tensor, vector: Tensor) -> Tensor:  # pyright: ignore
        ctx.save_for_backward(table, vector)  # pyright: ignore
        return _product(table, vector)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:  # pyright: ignore
        table, vector = ctx.saved_tensors  # pyright: ignore
        for_table = for_vector = None
        if ctx.needs_input_grad[1]:  # pyright: ignore
            for_vector = product(table.transpose(1, 2), grad)  # pyright: ignore
        if ctx.needs_input_grad[0]:  # pyright: ignore
            for_table = _outer(grad, vector, table.shape)  # pyright: ignore
        return for_table, for_vector  # pyright: ignore


def _outer(left: Tensor, right: Tensor, shape: torch.Size) -> Tensor:
    """Multiply (B, I, F) by (B, J, F), and sum over the dims that the table broadcasts."""
    if shape[3] == 1:
        joint = torch.matmul(left, right.transpose(1, 2)).unsqueeze(3)
        return joint if shape[0] > 1 else joint.sum(0, keepdim=True)
    if shape[0] == 1 and left.shape[0] > 1:
        return torch.einsum("bif,bjf->ijf", left, right).unsqueeze(0)
    return left.unsqueeze(2) * right.unsqueeze(1)


def _product(table: Tensor, vector: Tensor) -> Tensor:
    rows, columns, factors = table.shape[1:]
    batch = max(table.shape[0], vector.shape[0])
    if factors == 1:
        return torch.matmul(table[..., 0], vector)
    if columns == 1:
        return table[:, :, 0] * vector[:, :1]
    if batch * rows * columns * factors <= tuning.CORE_BLOCK // 8 and columns > 4:
        return (table * vector.unsqueeze(1)).sum(2)
    total = vector.new_empty(batch, rows, factors if factors > 1 else vector.shape[2])
    step = tuning.per_block(rows * total.shape[2], tuning.CORE_BLOCK)
    for start in range(0, batch, step):
        block = slice(start, start + step)
        tables = table if table.shape[0] == 1 else table[block]
        vectors = vector if vector.shape[0] == 1 else vector[block]
        part = torch.mul(tables[:, :, 0], vectors[:, :1], out=total[block])
        for column in range(1, columns):
            torch.addcmul(part, tables[:, :, column], vectors[:, column : column + 1], out=part)
    return total
