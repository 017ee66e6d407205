"""Messages: non-negative tensors held as scaled values, or as logs where the range is too wide."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rdpgraph._cache import remembered
from rdpgraph.model.semiring import safe_log


@dataclass(frozen=True, eq=False)
class Value:
    """A batch of non-negative tables, ``exp(log_scale) * values`` or ``exp(values)``.

    Attributes:
        values: (batch or 1, count or 1, *dims). If ``is_log``, log-values; else scaled values.
        log_scale: (batch or 1, count or 1) float64; zero for logs.
        low: a lower bound on the log of the non-zero entries of ``values`` (scaled form only).
        high: an upper bound on the log of the entries of ``values`` (scaled form only).
        is_log: which form it is.
    """

    values: Tensor
    log_scale: Tensor
    low: float = 0.0
    high: float = 0.0
    is_log: bool = False

    @property
    def dims(self) -> tuple[int, ...]:
        """The sizes of the table's dims."""
        return tuple(self.values.shape[2:])

    def logs(self) -> Tensor:
        """The log-values, scale included."""
        if self.is_log:
            return self.values
        return safe_log(self.values) + _over(self.log_scale, self.values)

    def rows(self, index: Tensor | None) -> "Value":
        """Some of the tables; a shared one (count 1) stands for any of them."""
        if index is None:
            return self
        values = self.values if self.values.shape[1] == 1 else self.values[:, index]
        scale = self.log_scale if self.log_scale.shape[1] == 1 else self.log_scale[:, index]
        return Value(values, scale, self.low, self.high, self.is_log)

    def some(self, start: int, count: int) -> "Value":
        """``count`` of the tables that follow each other; a shared one stands for any of them."""
        values, scale = (
            part if part.shape[1] == 1 else part[:, start : start + count]
            for part in (self.values, self.log_scale)
        )
        return Value(values, scale, self.low, self.high, self.is_log)


@remembered(16)
def float_limits(dtype: torch.dtype) -> tuple[float, float]:
    """The logs between which products of this type neither vanish nor overflow."""
    info = torch.finfo(dtype)
    return math.log(info.tiny) + 1.0, math.log(info.max) - 1.0


def from_logs(logs: Tensor, *, keep_logs: bool = False) -> Value:
    """Scale log-values by their maximum; stay in logs if their range does not fit the type."""
    none = torch.zeros(1, 1, dtype=torch.float64, device=logs.device)
    if keep_logs:
        return Value(logs, none, is_log=True)
    detached = logs.detach()
    peak = detached.flatten(2).amax(-1) if detached.ndim > 2 else detached
    peak = torch.where(peak == -math.inf, torch.zeros_like(peak), peak)
    shifted = logs - _over(peak, logs)
    low = _lowest_finite(shifted.detach())
    if low < float_limits(logs.dtype)[0]:
        return Value(logs, none, is_log=True)
    return Value(shifted.exp(), peak.double(), low=low, high=0.0)


def rescaled(value: Value) -> Value:
    """Rescale so that each table's maximum is one, and measure the true range."""
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
    """The tables of several values in one, ``counts`` of each; logs if any of them is in logs."""
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
    """A (batch, count) tensor shaped to act on (batch, count, *dims)."""
    return scale.to(values.dtype).reshape(*scale.shape, *(1,) * (values.ndim - 2))


def _lowest_finite(shifted: Tensor) -> float:
    if not shifted.numel():
        return 0.0
    return min(float(torch.where(shifted == -math.inf, 0.0, shifted).amin()), 0.0)
