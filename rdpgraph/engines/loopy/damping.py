"""How an old message and a new one are mixed."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from rdpgraph._numbers import is_real
from rdpgraph.errors import ModelError


class Damping(ABC):
    """How an old message and a new one are mixed.

    Attributes:
        share: of the old one; at 0 nothing is mixed.
    """

    share: float

    @abstractmethod
    def mix(self, new: Tensor, old: Tensor) -> Tensor:
        """(B, K, n) log-messages whose maximum is 0 or near it."""


def _checked(share: float) -> None:
    if not is_real(share) or not 0 <= share < 1:
        raise ModelError(
            f"Damping keeps a share of the old message, 0 <= share < 1; got {share!r:.80}."
        )


@dataclass(frozen=True)
class LogDamping(Damping):
    """A geometric mean: ``log m = (1 - share) log m_new + share log m_old``."""

    share: float

    def __post_init__(self) -> None:
        _checked(self.share)

    def mix(self, new: Tensor, old: Tensor) -> Tensor:
        """Weighted sum of logs; a hard zero in either is one in the result."""
        return new if self.share == 0 else ((1 - self.share) * new).add_(old, alpha=self.share)


@dataclass(frozen=True)
class ProbabilityDamping(Damping):
    """An arithmetic mean: ``m = (1 - share) m_new + share m_old``, messages scaled to maximum 1."""

    share: float

    def __post_init__(self) -> None:
        _checked(self.share)

    def mix(self, new: Tensor, old: Tensor) -> Tensor:
        """Weighted sum of values; a hard zero of the new message is one at once."""
        if self.share == 0:
            return new
        pair = torch.stack([new + math.log1p(-self.share), old + math.log(self.share)])
        peak = pair.detach().amax(0)
        shift = torch.where(peak == -math.inf, torch.zeros_like(peak), peak)
        total = (pair - shift).exp().sum(0)
        alive = (total > 0) & (new > -math.inf)
        return torch.where(alive, torch.where(alive, total, 1.0).log() + shift, -math.inf)
