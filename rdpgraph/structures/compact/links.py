"""Two sentences, and links between their words."""

from typing import Protocol

import torch
from torch import Tensor


class SentencePairs(Protocol):
    """What masks read of any model of two sentences."""

    @property
    def unary(self) -> Tensor:
        """The potentials of constituents."""
        ...

    @property
    def source_lengths(self) -> Tensor | None:
        """Of the sources."""
        ...

    @property
    def target_lengths(self) -> Tensor | None:
        """Of the targets."""
        ...

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """The dims in front."""
        ...


def mutual(gains: Tensor) -> Tensor:
    """(*batch, p, q) bool: the pairs that are the best ones of both words, one of a word at most.

    Args:
        gains: (*batch, p, q) of which the largest are best.
    """
    if not gains.numel():
        return gains > 0
    best = [torch.zeros_like(gains, dtype=torch.bool) for _ in range(2)]
    for own, dim in zip(best, (-1, -2), strict=True):
        own.scatter_(dim, gains.argmax(dim, keepdim=True), value=True)
    return best[0] & best[1]
