"""Kernel of exact inference: multiply two batches of tables and eliminate some dims.

Sums run as matrix products of scaled values. Where the dynamic range of the two operands does not
fit the floating type, and for maxima, the same product streams over the eliminated dims in logs.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from string import ascii_letters

import torch
from torch import Tensor

from rdpgraph._core import tuning
from rdpgraph._core.cache import differentiable_property, remembered
from rdpgraph.logspace.logmatrix import finite, safe_log, streamed_max, streamed_sum


@dataclass(frozen=True, eq=False)
class Value:
    """A batch of non-negative tables, ``exp(log_scale) * values`` or ``exp(values)``."""

    values: Tensor  # (batch or 1, count or 1, *dims) scaled values, or log-values if ``is_log``
    log_scale: Tensor  # (batch or 1, count or 1) float64; zero for logs
    low: float = 0.0  # lower bound on the log of the non-zero ``values`` (scaled form only)
    high: float = 0.0  # upper bound on the log of ``values`` (scaled form only)
    is_log: bool = False  # ``values`` are logs
    # (count,) the table of each row, where rows share tables and these are not written out for each
    shared: Tensor | None = None

    @property
    def dims(self) -> tuple[int, ...]:
        """Sizes of the table's dims."""
        return tuple(self.values.shape[2:])

    def logs(self) -> Tensor:
        """Log-values, scale included."""
        if self.is_log:
            return self.values
        return safe_log(self.values) + _over(self.log_scale, self.values)

    def rows(self, index: Tensor | slice | None) -> "Value":
        """A part of the tables, written out; a single one (count 1) stands for any of them."""
        if self.shared is not None:
            index = self.shared if index is None else self.shared[index]
        if index is None:
            return self
        if isinstance(index, Tensor) and self._is_large and len(index):
            first = int(index[0])
            if bool((index == first).all()):
                return self._single(first)
        index = index.to(self.values.device) if isinstance(index, Tensor) else index
        values = self.values if self.values.shape[1] == 1 else self.values[:, index]
        scale = self.log_scale if self.log_scale.shape[1] == 1 else self.log_scale[:, index]
        return Value(values, scale, self.low, self.high, self.is_log)

    @property
    def _is_large(self) -> bool:
        """Return whether tables are too large to be copied."""
        count = self.values.shape[1]
        return count > 1 and math.prod(self.values.shape[2:]) >= tuning.CORE_BLOCK

    @differentiable_property
    def _apart(self) -> tuple[Tensor, ...]:
        """Each table as a view, all made at once: their gradients are written out together."""
        return self.values.unbind(1)

    def _single(self, number: int) -> "Value":
        """One table, without a copy."""
        many = self.log_scale.shape[1] > 1
        scale = self.log_scale[:, number : number + 1] if many else self.log_scale
        return Value(self._apart[number].unsqueeze(1), scale, self.low, self.high, self.is_log)


@remembered(16)
def float_limits(dtype: torch.dtype) -> tuple[float, float]:
    """Logs between which products of this type neither underflow nor overflow."""
    info = torch.finfo(dtype)
    return math.log(info.tiny) + 1.0, math.log(info.max) - 1.0


def from_logs(logs: Tensor, *, keep_logs: bool = False) -> Value:
    """Scale log-values by their maximum; keep logs if their range does not fit the type."""
    none = torch.zeros(1, 1, dtype=torch.float64, device=logs.device)
    if keep_logs:
        return Value(logs, none, is_log=True)
    detached = logs.detach()
    peak = detached.flatten(2).amax(-1) if detached.ndim > 2 else detached
    peak = finite(peak)
    shifted = logs - _over(peak, logs)
    low = _lowest(shifted.detach())
    if low < float_limits(logs.dtype)[0]:
        return Value(logs, none, is_log=True)
    return Value(shifted.exp_(), peak.double(), low=low, high=0.0)


def _lowest(shifted: Tensor) -> float:
    """The smallest finite log-value, at most 0; without a copy where there are no hard zeros."""
    if not shifted.numel():
        return 0.0
    low = float(shifted.amin())
    return min(float(finite(shifted).amin()) if low == -math.inf else low, 0.0)


def rescaled(value: Value) -> Value:
    """Rescale to a maximum of one per table, and measure the true range."""
    if value.is_log:
        return value
    detached = value.values.detach()
    peak = detached.flatten(2).amax(-1) if detached.ndim > 2 else detached
    peak = torch.where(peak > 0, peak, torch.ones_like(peak))
    values = value.values / _over(peak, value.values)
    smallest = torch.where(values.detach() > 0, values.detach(), math.inf).amin()
    low = min(float(smallest.log()), 0.0) if bool(smallest < math.inf) else 0.0
    return Value(values, value.log_scale + peak.double().log(), low=low, high=0.0)


def joined(parts: Sequence[Value], counts: Sequence[int]) -> Value:
    """Tables of several values in one, ``counts`` of each; in logs if any of them is."""
    in_logs = any(part.is_log for part in parts)
    batch = max(max(part.values.shape[0], part.log_scale.shape[0]) for part in parts)
    values: list[Tensor] = []
    scales: list[Tensor] = []
    for part, count in zip(parts, counts, strict=True):
        tensor = part.logs() if in_logs else part.values
        values.append(tensor.expand(batch, count, *tensor.shape[2:]))
        scale = torch.zeros_like(part.log_scale) if in_logs else part.log_scale
        scales.append(scale.expand(batch, count))
    low = min(part.low for part in parts)
    high = max(part.high for part in parts)
    if len(parts) == 1:
        return Value(values[0], scales[0], low, high, in_logs)
    return Value(torch.cat(values, 1), torch.cat(scales, 1), low, high, in_logs)


def _over(scale: Tensor, values: Tensor) -> Tensor:
    """(batch, count) tensor shaped to broadcast over (batch, count, *dims)."""
    return scale.to(values.dtype).reshape(*scale.shape, *(1,) * (values.ndim - 2))


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
    product = _product(tuple(left_dims), tuple(right_dims), tuple(out_dims))
    gone = bool(product.left_gone or product.right_gone)
    if maximise and gone:
        pair = _aligned(left, left_dims, right, right_dims, out_dims)
        return from_logs(streamed_max(*pair, tuning.BLOCK), keep_logs=True)
    # Probabilities are multiplied as they are where no sum can leave the range of their type.
    if not left.is_log and not right.is_log:
        terms = product.log_terms(left.values, right.values)
        left, right, fits = _within_range(left, right, terms)
        if fits:
            values = torch.einsum(product.equation, left.values, right.values)
            scale = left.log_scale + right.log_scale
            high = left.high + right.high + terms
            return Value(values, scale, left.low + right.low, high)
    # Otherwise log-values are summed in blocks.
    stay = left.is_log and right.is_log and not gone
    pair = _aligned(left, left_dims, right, right_dims, out_dims)
    return from_logs(streamed_sum(*pair, tuning.BLOCK), keep_logs=stay)


def reduce(value: Value, dims: Sequence[int], out_dims: Sequence[int], *, maximise: bool) -> Value:
    """Tables over ``out_dims`` from tables over ``dims``, the rest eliminated."""
    if value.is_log == maximise:
        product = _product(tuple(dims), (), tuple(out_dims))
        gone = product.left_gone
        terms = 0.0 if maximise else product.log_terms(value.values, value.values)
        if maximise or value.high + terms <= float_limits(value.values.dtype)[1]:
            fold = torch.amax if maximise else torch.sum
            values = fold(value.values, gone) if gone else value.values
            left = [dim for dim in dims if dim in out_dims]
            if left != list(out_dims):
                values = values.permute(0, 1, *(2 + left.index(dim) for dim in out_dims))
            return replace(value, values=values, high=value.high + terms)
    one = Value(
        torch.full((1, 1), 0.0 if value.is_log else 1.0, device="cpu").to(value.values),
        torch.zeros_like(value.log_scale[:1, :1]),
        is_log=value.is_log,
    )
    return multiply(value, dims, one, (), out_dims, maximise=maximise)


def _within_range(left: Value, right: Value, terms: float) -> tuple[Value, Value, bool]:
    """Operands, rescaled if their product might leave the type's range, and whether it fits."""
    low, high = float_limits(left.values.dtype)

    def fits(one: Value, other: Value) -> bool:
        return one.low + other.low >= low and one.high + other.high + terms <= high

    if not fits(left, right):
        left = rescaled(left)
    if not fits(left, right):
        right = rescaled(right)
    return left, right, fits(left, right)


@dataclass(frozen=True)
class _EinsumForm:
    """Einsum form of a product of labelled tables."""

    equation: str  # for einsum; the batch and count dims are its first two letters
    left_gone: tuple[int, ...]  # dims of the left operand that are eliminated
    right_gone: tuple[int, ...]  # eliminated dims of the right operand alone

    def log_terms(self, left: Tensor, right: Tensor) -> float:
        """Log of the number of terms of each sum."""
        terms = [left.shape[dim] for dim in self.left_gone]
        return math.log(math.prod([*terms, *(right.shape[dim] for dim in self.right_gone)]))


@remembered(4096)
def _product(
    left_dims: tuple[int, ...], right_dims: tuple[int, ...], out_dims: tuple[int, ...]
) -> _EinsumForm:
    kept = set(out_dims)
    letters = {
        dim: ascii_letters[n + 2]
        for n, dim in enumerate({**dict.fromkeys(left_dims), **dict.fromkeys(right_dims)})
    }
    left, right, out = (
        "ab" + "".join(letters[dim] for dim in dims) for dims in (left_dims, right_dims, out_dims)
    )
    return _EinsumForm(
        f"{left},{right}->{out}",
        tuple(n + 2 for n, dim in enumerate(left_dims) if dim not in kept),
        tuple(
            n + 2 for n, dim in enumerate(right_dims) if dim not in kept and dim not in left_dims
        ),
    )


def _aligned(
    left: Value, left_dims: Sequence[int], right: Value, right_dims: Sequence[int],
    out_dims: Sequence[int],
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Logs of the operands as (terms or 1, batch, count, *out_dims), broadcastable."""
    sizes = dict(zip((*left_dims, *right_dims), (*left.dims, *right.dims), strict=True))
    gone = [dim for dim in sizes if dim not in out_dims]

    def align(logs: Tensor, dims: Sequence[int]) -> Tensor:
        axes = {dim: place + 2 for place, dim in enumerate(dims)}
        order = [axes[dim] for dim in gone if dim in axes]
        moved = logs.permute(*order, 0, 1, *(axes[dim] for dim in out_dims if dim in axes))
        first, last = ([sizes[d] if d in axes else 1 for d in of] for of in (gone, out_dims))
        full = moved.reshape(*first, *logs.shape[:2], *last)
        if order:
            full = full.expand(*(sizes[dim] for dim in gone), *full.shape[len(gone) :])
        return full.reshape(math.prod(full.shape[: len(gone)]), *full.shape[len(gone) :])

    return align(left.logs(), left_dims), align(right.logs(), right_dims)
