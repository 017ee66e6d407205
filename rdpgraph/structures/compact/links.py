"""Two sentences, and masks of the links between their words."""

import math
from abc import abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from rdpgraph._cache import cached_property
from rdpgraph.model.masks import StructureMasks
from rdpgraph.model.structure import Structure


@dataclass(frozen=True, eq=False)
class LinkMasks(StructureMasks):
    """Questions of a source and a target word, (p, q).

    Args:
        model: of the two sentences.
        source_lengths: (*batch,) its own, or None.
        target_lengths: likewise.
    """

    model: Structure
    source_lengths: Tensor | None
    target_lengths: Tensor | None

    site_dims = 5

    @property
    def questions(self) -> tuple[int, ...]:
        """(p, q): whether each source word is linked to each target word."""
        _, rows, _, columns, _ = self.sites
        return rows - 1, columns - 1

    @cached_property
    def lengths(self) -> tuple[Tensor, Tensor]:
        """(B,) of the sources and of the targets."""
        given = self.source_lengths, self.target_lengths
        source, target = map(self.flat_lengths, given, self.questions)
        return source, target

    def open(self) -> Tensor:
        """The pairs of words within the lengths."""
        inside = [
            torch.arange(most, device=own.device) < own.unsqueeze(1)
            for own, most in zip(self.lengths, self.questions, strict=True)
        ]
        within = inside[0].unsqueeze(2) & inside[1].unsqueeze(1)
        return within.reshape(*self.batch_shape, *self.questions)

    def guess(self, likely: Tensor) -> Tensor:
        """The pairs that gain most of both words, one of a word at most."""
        if not likely.numel():
            return likely
        gains = self.gains().masked_fill(~likely, -math.inf)
        best = [torch.zeros_like(gains, dtype=torch.bool) for _ in range(2)]
        for own, dim in zip(best, (-1, -2), strict=True):
            own.scatter_(dim, gains.argmax(dim, keepdim=True), value=True)
        return best[0] & best[1] & likely

    @abstractmethod
    def gains(self) -> Tensor:
        """(*batch, p, q) by how much a link is better than both words alone, nats."""
