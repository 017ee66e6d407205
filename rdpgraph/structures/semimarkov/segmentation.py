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
        row, last, duration = (flat >= 0).nonzero().unbind(1)
        labels = flat[row, last, duration]
        return cls.cut(row, last, duration, labels, shape=(*lead, steps))

    @classmethod
    def cut(
        cls, row: Tensor, last: Tensor, duration: Tensor, labels: Tensor, *, shape: tuple[int, ...]
    ) -> "Segmentation":
        """From the segments of all sequences, (S,), one after the other or not.

        Args:
            row: the number of the sequence.
            last: the position that the segment ends at.
            duration: how many more steps it lasts than one.
            labels: its label.
            shape: (*lead, T) of the sequences; they are as long as their segments.
        """
        count = math.prod(shape[:-1])
        label = labels.new_zeros(count, shape[-1])
        starts = torch.zeros_like(label, dtype=torch.bool)
        label[row, last - duration] = labels
        starts[row, last - duration] = True
        if shape[-1]:
            positions = torch.arange(shape[-1], device=row.device)
            latest = torch.where(starts, positions, 0).cummax(1).values
            lengths = label.new_zeros(count).scatter_reduce(0, row, last + 1, "amax")
            beyond = positions >= lengths.unsqueeze(1)
            label = label.gather(1, latest).masked_fill(beyond, -1)
        return cls(label.reshape(shape), starts.reshape(shape))

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
