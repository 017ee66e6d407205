"""Matrix products in log-space, by a product of probabilities wherever that is exact."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from rdpgraph.model.semiring import soft_sum

_CELLS = 2**22  # terms that are summed in logs at a time


@dataclass(frozen=True, eq=False)
class LogMatrix:
    """A matrix of logs, ready to be multiplied many times.

    Attributes:
        logs: (*lead, n, k); -inf allowed.
        weights: (*lead, n, k) its exponentials, the largest of each row 1.
        peaks: (*lead, n) what was taken off each row.
    """

    logs: Tensor
    weights: Tensor
    peaks: Tensor

    @classmethod
    def of(cls, logs: Tensor) -> "LogMatrix":
        """From logs, (*lead, n, k)."""
        peaks = _peak(logs)
        return cls(logs, (logs - peaks).exp(), peaks.squeeze(-1))

    def times(self, rows: Tensor) -> Tensor:
        """``logsumexp_k(rows_ik + logs_jk)``: (*lead, m, k) as (*lead, m, n), nats.

        One matrix product. Entries that it may have lost to underflow are summed in logs, so that
        all are exact to rounding; -inf where no term is possible, the gradient there zero.
        Differentiable any number of times.
        """
        peak = _peak(rows)
        total = (rows - peak).exp() @ self.weights.mT
        limits = torch.finfo(total.dtype)
        least = limits.tiny / limits.eps * max(1, self.logs.shape[-1])
        if total.requires_grad:
            least = max(least, steep(total.dtype))
        low = total.detach() < least
        logs = torch.where(low, -math.inf, torch.where(low, 1.0, total).log())
        result = logs + peak + self.peaks.unsqueeze(-2)
        return self._repaired(result, low, rows) if bool(low.any()) else result

    def _repaired(self, result: Tensor, low: Tensor, rows: Tensor) -> Tensor:
        """Entries that are low and possible, from the logs."""
        possible = (rows > -math.inf).to(result) @ (self.logs > -math.inf).to(result).mT
        places = (low & (possible > 0)).reshape(-1, *low.shape[-2:]).nonzero()
        if not len(places):
            return result
        lead = result.shape[:-2]
        own = rows.expand(*lead, *rows.shape[-2:]).reshape(-1, *rows.shape[-2:])
        other = self.logs.expand(*lead, *self.logs.shape[-2:]).reshape(-1, *self.logs.shape[-2:])
        exact = [
            soft_sum(own[item, i] + other[item, j], 1)
            for item, i, j in (
                part.unbind(1) for part in places.split(max(1, _CELLS // rows.shape[-1]))
            )
        ]
        flat = result.reshape(-1, *result.shape[-2:])
        return flat.index_put(places.unbind(1), torch.cat(exact)).reshape(result.shape)


def steep(dtype: torch.dtype) -> float:
    """Below this a number's log has a second derivative that may overflow."""
    return 64 * math.sqrt(torch.finfo(dtype).tiny)


def log_products(first: Tensor, second: Tensor) -> Tensor:
    """``logsumexp_k(first_ik + second_jk)``: (*lead, m, k) and (*lead, n, k) as (*lead, m, n)."""
    return LogMatrix.of(second).times(first)


def _peak(logs: Tensor) -> Tensor:
    if not logs.shape[-1]:
        return logs.new_zeros(*logs.shape[:-1], 1)
    highest = logs.detach().amax(-1, keepdim=True)
    return torch.where(highest > -math.inf, highest, 0.0)
