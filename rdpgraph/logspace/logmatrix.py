"""Sums of log-values at a temperature, and matrix products in log-space."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from rdpgraph._core import tuning
from rdpgraph._core.progress import report_quiet_work
from rdpgraph._core.types import broadcast_shapes


def soft_sum(logs: Tensor, dim: int | Sequence[int], temperature: float | Tensor = 1.0) -> Tensor:
    """``temperature * logsumexp(logs / temperature)`` over some dims; at temperature 0 the maximum.

    Exact at any range; -inf where every entry is, with a zero gradient there.

    Args:
        logs: nats; -inf allowed.
        dim: the dims to sum over; none leaves ``logs`` as it is.
        temperature: a number of at least 0; or a tensor above 0 that broadcasts with ``logs`` and
            has size 1 in ``dim``. Neither sign is checked.
    """
    dims = [dim] if isinstance(dim, int) else list(dim)
    # From the right, where a temperature of more dims does not shift them.
    dims = [place - logs.ndim if place >= 0 else place for place in dims]
    if not dims:
        return logs
    if _is_zero(temperature):
        return _alive(logs.amax(dims))
    peak = logs.detach().amax(dims, keepdim=True)
    terms = _terms(logs, finite(peak), temperature)
    return _log(terms.sum(dims, keepdim=True), peak, temperature).squeeze(tuple(dims))


def soft_scatter(
    logs: Tensor, groups: Tensor, count: int, temperature: float | Tensor = 1.0
) -> Tensor:
    """``soft_sum`` of the rows (R, ...) of each group (R,), as (count, ...); -inf if empty.

    A tensor of temperatures has no more dims than ``logs``, and size 1 in dim 0.
    """
    index = groups.reshape(-1, *(1,) * (logs.ndim - 1)).expand_as(logs)

    def highest(rows: Tensor) -> Tensor:
        start = rows.new_full((count, *rows.shape[1:]), -math.inf)
        return start.scatter_reduce(0, index, rows, "amax")

    if _is_zero(temperature):
        return _alive(highest(logs))
    peak = highest(logs.detach())
    terms = _terms(logs, finite(peak).index_select(0, groups), temperature)
    total = terms.new_zeros((count, *terms.shape[1:])).index_add(0, groups, terms)
    return _log(total, peak, temperature)


def _is_zero(temperature: float | Tensor) -> bool:
    return not isinstance(temperature, Tensor) and temperature == 0.0


def _alive(peak: Tensor) -> Tensor:
    """Maxima that pass no gradient to ties of -inf."""
    return torch.where(peak > -math.inf, peak, -math.inf) if peak.requires_grad else peak


def _terms(logs: Tensor, shift: Tensor, temperature: float | Tensor) -> Tensor:
    if not isinstance(temperature, Tensor):
        return ((logs - shift) / temperature).exp()
    # The gradient in the temperature would multiply a term of zero by a gap of -inf.
    possible = logs > -math.inf
    gaps = torch.where(possible, logs - shift, 0.0)
    return torch.where(possible, (gaps / temperature).exp(), 0.0)


def _log(total: Tensor, peak: Tensor, temperature: float | Tensor) -> Tensor:
    alive = peak > -math.inf
    logs = temperature * torch.where(alive, total, 1.0).log() + finite(peak)
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


def streamed_max(left: Tensor, right: Tensor, block: int) -> Tensor:
    """Return max over the first dim of ``left + right``, which broadcast.

    The sums are made in blocks of ``block`` elements, so that they are never in memory together.
    """
    best: Tensor | None = None
    for one, other in _pieces(left, right, block):
        part = (one + other).amax(0)
        best = part if best is None else torch.maximum(best, part)
    assert best is not None
    return best


def streamed_sum(left: Tensor, right: Tensor, block: int) -> Tensor:
    """Return the log-sum-exp over the first dim of ``left + right``, which broadcast.

    It is made block by block as in `streamed_max`. It is exact whatever the range of values, and
    -inf, not NaN, where all terms are.
    """
    if len(left) == len(right) == 1:
        return left[0] + right[0]
    with torch.no_grad():
        shift = finite(streamed_max(left, right, block))
    total = torch.zeros_like(shift)
    for one, other in _pieces(left, right, block):
        total = total + (one + other - shift).exp().sum(0)
    return safe_log(total) + shift


def _pieces(left: Tensor, right: Tensor, block: int) -> Iterator[tuple[Tensor, Tensor]]:
    step = tuning.per_block(math.prod(broadcast_shapes(left.shape[1:], right.shape[1:])), block)
    for start in range(0, max(len(left), len(right)), step):
        part = slice(start, start + step)
        report_quiet_work()
        yield left if len(left) == 1 else left[part], right if len(right) == 1 else right[part]


@dataclass(frozen=True, eq=False)
class LogMatrix:
    """A matrix of logs, ready to be multiplied many times."""

    logs: Tensor  # (*lead, n, k); -inf allowed
    weights: Tensor  # (*lead, n, k) exponentials, scaled so that the largest of each row is 1
    peaks: Tensor  # (*lead, n) the logs of those scales

    @classmethod
    def of(cls, logs: Tensor) -> "LogMatrix":
        """Prepare logs (*lead, n, k)."""
        peaks = _peak(logs)
        return cls(logs, (logs - peaks).exp_(), peaks.squeeze(-1))

    def times(self, rows: Tensor) -> Tensor:
        """``logsumexp_k(rows_ik + logs_jk)``: (*lead, m, k) as (*lead, m, n), nats.

        One matrix product, with entries that it may lose to underflow summed in logs. -inf, with a
        zero gradient, where no term is possible. Differentiable any number of times. Rows may be in
        float64 where the matrix is in float32: the product is in its type, sums of logs in theirs.
        """
        peak = _peak(rows)
        total = (rows - peak).exp().to(self.weights) @ self.weights.mT
        low = self._low(total)
        logs = torch.where(low, -math.inf, torch.where(low, 1.0, total).log().to(rows))
        result = logs + peak + self.peaks.unsqueeze(-2)
        if not bool(low.any()):
            return result
        return self._repaired(result, low, rows)

    def times_columns(self, rows: Tensor) -> Tensor:
        """``logsumexp_j(rows_ij + logs_jk)``: (*lead, m, n) as (*lead, m, k), as `times`.

        It is the product with the transpose, and uses the exponentials that `times` has made.
        """
        scaled = rows + self.peaks.unsqueeze(-2)
        peak = _peak(scaled)
        total = (scaled - peak).exp() @ self.weights
        turned = LogMatrix(self.logs.mT, self.weights.mT, self.peaks)
        low = turned._low(total)
        result = torch.where(low, -math.inf, torch.where(low, 1.0, total).log()) + peak
        if not bool(low.any()):
            return result
        return turned._repaired(result, low, rows)

    def _low(self, total: Tensor) -> Tensor:
        """Mark the totals that may have lost terms to underflow."""
        limits = torch.finfo(total.dtype)
        least = limits.tiny / limits.eps * max(1, self.logs.shape[-1])
        if total.requires_grad:
            least = max(least, steep(total.dtype))
        return total.detach() < least

    def _repaired(self, result: Tensor, low: Tensor, rows: Tensor) -> Tensor:
        """Sum once more, in logarithms, the entries that are low but possible."""
        low = low & (rows > -math.inf).any(-1, keepdim=True)  # before a look at the whole matrix
        if not bool(low.any()):
            return result
        weights = self.weights
        possible = (rows > -math.inf).to(weights) @ (self.logs > -math.inf).to(weights).mT
        places = (low & (possible > 0)).reshape(-1, *low.shape[-2:]).nonzero()
        if not len(places):
            return result
        left, right = _flat(rows, result), _flat(self.logs, result)

        def again(part: Tensor) -> Tensor:
            item, i, j = part.unbind(1)
            return soft_sum(left[item, i] + right[item, j], 1)

        parts = places.split(tuning.per_block(rows.shape[-1], tuning.BLOCK))
        summed: Callable[..., Tensor] = again
        if torch.is_grad_enabled() and len(places) * rows.shape[-1] > tuning.STORED_TERMS:
            summed = partial(checkpoint, again, use_reentrant=False, preserve_rng_state=False)  # pyright: ignore
        repaired = torch.cat([summed(part) for part in parts])
        flat = result.reshape(-1, *result.shape[-2:])
        return flat.index_put(places.unbind(1), repaired).reshape(result.shape)


def _flat(values: Tensor, like: Tensor) -> Tensor:
    """(items, rows, k) from (*lead, rows, k), expanded to another's leading dims."""
    return values.expand(*like.shape[:-2], *values.shape[-2:]).reshape(-1, *values.shape[-2:])


def steep(dtype: torch.dtype) -> float:
    """A value below which the second derivative of the log may overflow."""
    return 64 * math.sqrt(torch.finfo(dtype).tiny)


def log_products(first: Tensor, second: Tensor) -> Tensor:
    """``logsumexp_k(first_ik + second_jk)``: (*lead, m, k) and (*lead, n, k) as (*lead, m, n)."""
    return LogMatrix.of(second).times(first)


def _peak(logs: Tensor) -> Tensor:
    if not logs.shape[-1]:
        return logs.new_zeros(*logs.shape[:-1], 1)
    return finite(logs.detach().amax(-1, keepdim=True))
