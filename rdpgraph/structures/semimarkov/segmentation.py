"""A segmentation: which label each position has, and where segments start."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from rdpgraph.errors import EvidenceError


@dataclass(frozen=True, eq=False)
class Segmentation:
    """Sequences cut into labelled segments; a start between equal labels is a cut between them.

    Attributes:
        labels: (*lead, T) int64, the label of the segment that each position lies in; -1 beyond
            the length.
        starts: (*lead, T) bool, whether a segment starts there; False beyond the length.

    Raises:
        EvidenceError: the two are not integers and booleans of one shape.
    """

    labels: Tensor
    starts: Tensor

    def __post_init__(self) -> None:
        integral = not (self.labels.is_floating_point() or self.labels.dtype == torch.bool)
        if not integral or self.starts.dtype != torch.bool or self.labels.ndim < 1:
            raise EvidenceError(
                "Segmentation needs labels (*lead, T) of integers and starts of booleans; got "
                f"{self.labels.dtype} of shape {tuple(self.labels.shape)} and {self.starts.dtype}."
            )
        if self.labels.shape != self.starts.shape:
            raise EvidenceError(
                f"Segmentation needs labels and starts of one shape; got "
                f"{tuple(self.labels.shape)} and {tuple(self.starts.shape)}."
            )

    @classmethod
    def of(cls, segments: Tensor) -> "Segmentation":
        """From the label of each segment; `SemiMarkov.site_states` is the way back.

        Args:
            segments: (*lead, T, D) the label of the segment that ends at a position and lasts
                d + 1 steps; -1 where there is none.
        """
        *lead, steps, durations = segments.shape
        flat = segments.reshape(math.prod(lead), steps, durations)
        row, place, duration = (flat >= 0).nonzero().unbind(1)
        labels = flat.new_zeros(len(flat), steps)
        starts = torch.zeros_like(labels, dtype=torch.bool)
        labels[row, place - duration] = flat[row, place, duration]
        starts[row, place - duration] = True
        lengths = flat.new_zeros(len(flat)).scatter_reduce(0, row, place + 1, "amax")
        segmentation = spread(labels, starts, lengths)
        return cls(
            segmentation.labels.reshape(*lead, steps), segmentation.starts.reshape(*lead, steps)
        )

    @property
    def ages(self) -> Tensor:
        """(*lead, T) int64: how many steps before each position its segment started.

        Positions before the first start count from position -1, which no segment holds.
        """
        positions = torch.arange(self.starts.shape[-1], device=self.starts.device)
        if not len(positions):
            return self.labels.clone()
        return positions - torch.where(self.starts, positions, -1).cummax(-1).values


@dataclass(frozen=True, eq=False)
class KBestSegmentations:
    """The most probable segmentations, best first.

    Attributes:
        segmentations: (k, *batch, T); labels -1 and no start where there are fewer than k.
        scores: (k, *batch) nats, unnormalised, differentiable; -inf where there are fewer.
    """

    segmentations: Segmentation
    scores: Tensor


def spread(labels: Tensor, starts: Tensor, lengths: Tensor) -> Segmentation:
    """The segmentation whose labels are given where segments start.

    Args:
        labels: (C, T) read at the starts only.
        starts: (C, T).
        lengths: (C,).
    """
    steps = labels.shape[1]
    if not steps:
        return Segmentation(labels, starts)
    positions = torch.arange(steps, device=labels.device)
    latest = torch.where(starts, positions, 0).cummax(1).values
    inside = positions < lengths.unsqueeze(1)
    return Segmentation(labels.gather(1, latest).masked_fill(~inside, -1), starts & inside)
