"""The one kernel of exact inference: multiply two batches of tables, eliminate some dims.

Sums run as matrix products of scaled values. Where the dynamic range of the two operands does not
fit the floating type, and for maxima, the same product streams over the eliminated dims in logs.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from rdpgraph.engines.values import Value, float_limits, from_logs, normalised

_CHUNK = 1 << 22  # elements of a streamed chunk


def multiply(
    left: Value,
    left_dims: Sequence[int],
    right: Value,
    right_dims: Sequence[int],
    out_dims: Sequence[int],
    *,
    maximise: bool = False,
) -> Value:
    """Tables over ``out_dims`` from tables over two sets of dims, the rest eliminated.

    Dims are labels; those of the operands that are not in ``out_dims`` are summed, or maximised.
    """
    sizes = dict(zip(left_dims, left.dims, strict=True))
    sizes.update(zip(right_dims, right.dims, strict=True))
    gone = [dim for dim in sizes if dim not in out_dims]
    if maximise and gone:
        logs = _streamed_max(left.logs(), left_dims, right.logs(), right_dims, out_dims)
        return from_logs(logs, keep_logs=True)
    if not left.is_log and not right.is_log:
        terms = math.log(math.prod(sizes[dim] for dim in gone))
        left, right, fits = _within_range(left, right, terms)
        if fits:
            values = _matrix_product(left.values, left_dims, right.values, right_dims, out_dims)
            scale = left.log_scale + right.log_scale
            high = left.high + right.high + terms
            return Value(values, scale, left.low + right.low, high)
    stay = left.is_log and right.is_log and not gone
    logs = _streamed_sum(left.logs(), left_dims, right.logs(), right_dims, out_dims)
    return from_logs(logs, keep_logs=stay)


def reduce(value: Value, dims: Sequence[int], out_dims: Sequence[int], *, maximise: bool) -> Value:
    """Tables over ``out_dims`` from tables over ``dims``, the rest eliminated."""
    one = Value(
        torch.full((1, 1), 0.0 if value.is_log else 1.0).to(value.values),
        torch.zeros_like(value.log_scale[:1, :1]),
        is_log=value.is_log,
    )
    return multiply(value, dims, one, (), out_dims, maximise=maximise)


def _within_range(left: Value, right: Value, terms: float) -> tuple[Value, Value, bool]:
    """Rescale the operands if their product might leave the range of the type; say if it fits."""
    low, high = float_limits(left.values.dtype)

    def fits() -> bool:
        return left.low + right.low >= low and left.high + right.high + terms <= high

    if not fits():
        left = normalised(left)
    if not fits():
        right = normalised(right)
    return left, right, fits()


def _matrix_product(
    left: Tensor, left_dims: Sequence[int], right: Tensor, right_dims: Sequence[int],
    out_dims: Sequence[int],
) -> Tensor:  # fmt: skip
    """The scaled product, by einsum; labels are shifted past the batch and count dims."""
    return torch.einsum(
        left, [0, 1, *(dim + 2 for dim in left_dims)],
        right, [0, 1, *(dim + 2 for dim in right_dims)],
        [0, 1, *(dim + 2 for dim in out_dims)],
    )  # fmt: skip


def _streamed_max(
    left: Tensor, left_dims: Sequence[int], right: Tensor, right_dims: Sequence[int],
    out_dims: Sequence[int],
) -> Tensor:  # fmt: skip
    """Maximum of sums of logs over the dims that are gone, without forming their joint table."""
    left, right, terms = _aligned(left, left_dims, right, right_dims, out_dims)
    best: Tensor | None = None
    for start, stop in _chunks(left, right, terms):
        part = (_slice(left, start, stop) + _slice(right, start, stop)).amax(0)
        best = part if best is None else torch.maximum(best, part)
    assert best is not None
    return best


def _streamed_sum(
    left: Tensor, left_dims: Sequence[int], right: Tensor, right_dims: Sequence[int],
    out_dims: Sequence[int],
) -> Tensor:  # fmt: skip
    """log-sum-exp of sums of logs over the dims that are gone; exact at any range, no NaN."""
    if len(set(left_dims) | set(right_dims)) == len(out_dims):
        left, right, _ = _aligned(left, left_dims, right, right_dims, out_dims)
        return left[0] + right[0]
    with torch.no_grad():
        peak = _streamed_max(left, left_dims, right, right_dims, out_dims)
        shift = torch.where(peak == -math.inf, torch.zeros_like(peak), peak)
    left, right, terms = _aligned(left, left_dims, right, right_dims, out_dims)
    total = torch.zeros_like(shift)
    for start, stop in _chunks(left, right, terms):
        logs = _slice(left, start, stop) + _slice(right, start, stop)
        total = total + (logs - shift).exp().sum(0)
    alive = total > 0
    return torch.where(alive, torch.where(alive, total, 1.0).log() + shift, -math.inf)


def _aligned(
    left: Tensor, left_dims: Sequence[int], right: Tensor, right_dims: Sequence[int],
    out_dims: Sequence[int],
) -> tuple[Tensor, Tensor, int]:  # fmt: skip
    """Both operands as (terms or 1, batch, count, *out_dims), broadcastable, and the terms."""
    sizes = dict(zip(left_dims, left.shape[2:], strict=True))
    sizes.update(zip(right_dims, right.shape[2:], strict=True))
    gone = [dim for dim in sizes if dim not in out_dims]

    def align(tensor: Tensor, dims: Sequence[int]) -> Tensor:
        own = {dim: place + 2 for place, dim in enumerate(dims)}
        order = [own[dim] for dim in gone if dim in own]
        kept = [own[dim] for dim in out_dims if dim in own]
        moved = tensor.permute(*order, 0, 1, *kept)
        shape = [sizes[dim] if dim in own else 1 for dim in gone]
        ends = [sizes[dim] if dim in own else 1 for dim in out_dims]
        if all(dim in own for dim in gone) or not order:
            terms = math.prod(shape)
            return moved.reshape(terms, *tensor.shape[:2], *ends)
        full = moved.reshape(*shape, *tensor.shape[:2], *ends)
        full = full.expand(*(sizes[dim] for dim in gone), *full.shape[len(gone) :])
        return full.reshape(-1, *full.shape[len(gone) :])

    terms = math.prod(sizes[dim] for dim in gone)
    return align(left, left_dims), align(right, right_dims), terms


def _chunks(left: Tensor, right: Tensor, terms: int) -> list[tuple[int, int]]:
    cells = math.prod(torch.broadcast_shapes(left.shape[1:], right.shape[1:]))
    step = max(1, _CHUNK // max(cells, 1))
    return [(start, min(start + step, terms)) for start in range(0, terms, step)]


def _slice(tensor: Tensor, start: int, stop: int) -> Tensor:
    return tensor if tensor.shape[0] == 1 else tensor[start:stop]
