"""Sums of log-values at a temperature: the semirings of message passing, without NaN."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor


def soft_sum(logs: Tensor, dim: int | Sequence[int], temperature: float | Tensor = 1.0) -> Tensor:
    """``temperature * logsumexp(logs / temperature)`` over some dims, their maximum at 0.0.

    Exact at any range; -inf where every entry is, with a zero gradient there and no NaN.

    Args:
        logs: nats; -inf allowed.
        dim: the dims to sum over; none of them leaves ``logs`` as it is.
        temperature: a tensor is positive, broadcasts with ``logs``, and has size 1 in ``dim``.
    """
    dims = [dim] if isinstance(dim, int) else list(dim)
    # From the right, where a temperature of more dims does not shift them.
    dims = [place - logs.ndim if place >= 0 else place for place in dims]
    if not dims:
        return logs
    if _is_zero(temperature):
        return _alive(logs.amax(dims))
    peak = logs.detach().amax(dims, keepdim=True)
    terms = _terms(logs, _shift(peak), temperature)
    return _log(terms.sum(dims, keepdim=True), peak, temperature).squeeze(tuple(dims))


def soft_scatter(
    logs: Tensor, groups: Tensor, count: int, temperature: float | Tensor = 1.0
) -> Tensor:
    """``soft_sum`` of the rows of each group: (R, ...) as (count, ...), in O(R) per column.

    Args:
        logs: (R, ...).
        groups: (R,) int64, the group of each row; a group without rows becomes -inf.
        count: the number of groups.
        temperature: as for `soft_sum`; a tensor has no more dims than ``logs``, and
            size 1 in dim 0 if it has that.
    """
    spread = groups.reshape(-1, *(1,) * (logs.ndim - 1)).expand_as(logs)

    def highest(rows: Tensor) -> Tensor:
        start = rows.new_full((count, *rows.shape[1:]), -math.inf)
        return start.scatter_reduce(0, spread, rows, "amax")

    if _is_zero(temperature):
        return _alive(highest(logs))
    peak = highest(logs.detach())
    terms = _terms(logs, _shift(peak).index_select(0, groups), temperature)
    total = terms.new_zeros((count, *terms.shape[1:])).index_add(0, groups, terms)
    return _log(total, peak, temperature)


def _is_zero(temperature: float | Tensor) -> bool:
    return not isinstance(temperature, Tensor) and temperature == 0.0


def _alive(peak: Tensor) -> Tensor:
    """Maxima; a tie of nothing but -inf would share the gradient among impossible entries."""
    return torch.where(peak > -math.inf, peak, -math.inf) if peak.requires_grad else peak


def _shift(peak: Tensor) -> Tensor:
    return torch.where(peak > -math.inf, peak, 0.0)


def _terms(logs: Tensor, shift: Tensor, temperature: float | Tensor) -> Tensor:
    if not isinstance(temperature, Tensor):
        return ((logs - shift) / temperature).exp()
    # The gradient in the temperature would multiply a term of zero by a gap of -inf.
    possible = logs > -math.inf
    gaps = torch.where(possible, logs - shift, 0.0)
    return torch.where(possible, (gaps / temperature).exp(), 0.0)


def _log(total: Tensor, peak: Tensor, temperature: float | Tensor) -> Tensor:
    alive = peak > -math.inf
    logs = temperature * torch.where(alive, total, 1.0).log() + _shift(peak)
    return torch.where(alive, logs, -math.inf)


def finite(logs: Tensor) -> Tensor:
    """Logs with 0 in place of -inf."""
    return logs.nan_to_num(nan=math.nan, posinf=math.inf, neginf=0.0)


def safe_log(values: Tensor) -> Tensor:
    """The log with log 0 = -inf and a zero gradient there."""
    if not (torch.is_grad_enabled() and values.requires_grad):
        return values.log()
    positive = values > 0
    return torch.where(positive, torch.where(positive, values, 1.0).log(), -math.inf)
