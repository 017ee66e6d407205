"""A semi-Markov conditional random field as a layer."""

import math
from typing import cast

import torch
from torch import Tensor, nn

from rdpgraph._core import tuning
from rdpgraph._core.compiler import operator
from rdpgraph._core.numbers import is_whole
from rdpgraph.errors import EvidenceError, ImpossibleEvidenceError, ModelError
from rdpgraph.logspace.logmatrix import soft_sum
from rdpgraph.nn.crf import (
    Constraints,
    Reduction,
    Transitions,
    lengths_of,
    reduced,
    require_reduction,
)
from rdpgraph.structures.semimarkov import Segmentation, SemiMarkov, scoring


class SemiCRF(Transitions):
    """Scores whole sequences of labelled segments, each by its positions and its duration.

    The score of a segment is the sum of its positions' emissions for its tag and the score of its
    duration; transitions are between segments. Emissions are (batch, steps, tags), masks (batch,
    steps), on for the steps that count: from the first, without gaps. Sarawagi and Cohen (2004),
    *Semi-Markov conditional random fields for information extraction*.

    The scores of all segments, (batch, steps, durations, tags), are stored up to 64 MiB. Beyond
    that they are recomputed piece by piece, in both directions, in O(steps x tags) memory and in
    float64; such a likelihood is differentiable once.

    Example:
        >>> import torch
        >>> from rdpgraph.nn import SemiCRF
        >>> crf = SemiCRF(2, 3)
        >>> with torch.no_grad():
        ...     crf.durations[0] = -9.0  # of segments of one step
        >>> emissions = torch.tensor([[[9.0, 0.0], [9.0, 0.0], [0.0, 9.0], [0.0, 9.0]]])
        >>> crf.decode(emissions)  # tag, first position, and the one after the last
        [[(0, 0, 2), (1, 2, 4)]]

    Args:
        num_tags: number of tags.
        durations: the most steps of a segment.
        constraints: on the tags of segments, as for `CRF`.

    Attributes:
        start_transitions: (tags,) scores of the first segment's tag.
        end_transitions: (tags,) scores of the last segment's tag.
        transitions: (tags, tags) scores of neighbouring segments, [from, to].
        durations: (durations, tags) scores of segments of one step and more; -inf forbids one.

    Raises:
        ModelError: no tags, no durations, or constraints of another number of tags.
    """

    def __init__(
        self, num_tags: int, durations: int, *, constraints: Constraints | None = None
    ) -> None:
        if not is_whole(durations, 1):
            raise ModelError(f"A SemiCRF needs one duration or more; got {durations!r:.80}.")
        super().__init__(num_tags, batch_first=True, constraints=constraints)
        self.durations = nn.Parameter(torch.empty(durations, num_tags).uniform_(-0.1, 0.1))

    def extra_repr(self) -> str:
        return f"num_tags={self.num_tags}, durations={len(self.durations)}"

    def forward(
        self,
        emissions: Tensor,
        segmentation: Segmentation,
        mask: Tensor | None = None,
        reduction: Reduction = "sum",
    ) -> Tensor:
        """Log-likelihood of segmentations in nats: the loss of training is its negative.

        Args:
            emissions: (batch, steps, tags) scores.
            segmentation: labels and starts, (batch, steps); not read beyond the mask. One that
                breaks the constraints, or has too long a segment, has the log-likelihood -inf.
            mask: (batch, steps) which steps count; default all.
            reduction: as for `CRF`.

        Raises:
            ModelError: shapes, a mask or a reduction that do not fit.
            EvidenceError: a segmentation that does not fit, or a label that is out of range.
        """
        require_reduction(reduction)
        scores = self._scores(emissions, mask)
        if not isinstance(cast(object, segmentation), Segmentation):
            raise EvidenceError(f"A SemiCRF needs a Segmentation; got {segmentation!r:.80}.")
        given = [*scores[:4], self.durations, segmentation.labels, segmentation.starts, scores[4]]
        value = _log_likelihood(*(each for each in given if each is not None))
        steps = emissions.shape[0] * emissions.shape[1] if mask is None else mask.bool().sum()
        return reduced(value, reduction, steps)

    def decode(
        self, emissions: Tensor, mask: Tensor | None = None
    ) -> list[list[tuple[int, int, int]]]:
        """The best segments of each item, as (tag, first position, end), the end exclusive.

        Raises:
            ModelError: shapes or a mask that do not fit.
            ImpossibleEvidenceError: an item has no possible segmentation.
        """
        with torch.no_grad():
            fields = self._fields(emissions, mask)
            unary, transition, duration, lengths = fields
            if _is_long(unary, duration):
                best = scoring.best(unary, transition, duration, lengths)
                if bool((_score(*fields, best) == -math.inf).any()):
                    raise ImpossibleEvidenceError(
                        "SemiCRF has no possible segmentation of an item."
                    )
            else:
                best = SemiMarkov.from_unary(unary, transition, duration, lengths=lengths).mode()
        rows: list[list[tuple[int, int, int]]] = []
        for labels, starts, length in zip(best.labels, best.starts, lengths.tolist(), strict=True):
            first: list[int] = starts.nonzero().squeeze(1).tolist()
            tags: list[int] = labels[first].tolist()
            rows.append(list(zip(tags, first, [*first[1:], length], strict=True)))
        return rows

    def chain(self, emissions: Tensor, mask: Tensor | None = None) -> SemiMarkov:
        """The distribution as a `SemiMarkov`, which has the rest: marginals, k best, samples.

        Raises:
            ModelError: shapes or a mask that do not fit.
        """
        unary, transition, duration, lengths = self._fields(emissions, mask)
        return SemiMarkov.from_unary(unary, transition, duration, lengths=lengths)

    def _fields(
        self, emissions: Tensor, mask: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        unary, start, transition, end, mask = self._scores(emissions, mask)
        return _fields(unary, start, transition, end, self.durations, mask)


def _is_long(unary: Tensor, duration: Tensor) -> bool:
    return unary.numel() * len(duration) > tuning.LARGE_BLOCK


def _fields(
    unary: Tensor,
    start: Tensor,
    transition: Tensor,
    end: Tensor,
    duration: Tensor,
    mask: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Scores of positions, transitions, durations, and lengths.

    Start and end scores are added to the first and last position, which lie in the first and last
    segment.
    """
    batch, steps, _ = unary.shape
    if not steps:
        raise ModelError("A SemiCRF needs emissions of one step or more; got none.")
    whole = mask is None
    lengths = torch.full((batch,), steps, device=unary.device) if whole else lengths_of(mask)
    place, last = torch.arange(steps, device=unary.device), lengths.unsqueeze(1) - 1
    unary = torch.where((place > last).unsqueeze(-1), 0.0, unary)
    unary = torch.where((place == 0).unsqueeze(-1), unary + start, unary)
    unary = torch.where((place == last).unsqueeze(-1), unary + end, unary)
    fields = (unary, transition, duration.to(unary.dtype))
    if _is_long(unary, duration):
        unary, transition, duration = (field.double() for field in fields)
        return unary, transition, duration, lengths
    return *fields, lengths


def _of_segments(
    emissions: Tensor, start: Tensor, transitions: Tensor, end: Tensor, durations: Tensor,
    labels: Tensor, starts: Tensor, mask: Tensor | None = None,
) -> Tensor:  # fmt: skip
    unary, transition, duration, lengths = _fields(
        emissions, start, transitions, end, durations, mask
    )
    score = _score(unary, transition, duration, lengths, Segmentation(labels, starts))
    if _is_long(unary, duration):
        ends = scoring.log_ends(unary, transition, duration)
        item = torch.arange(len(unary), device=unary.device)
        log_z = soft_sum(ends[item, lengths - 1], -1)
    else:
        log_z = SemiMarkov.from_unary(unary, transition, duration, lengths=lengths).log_partition()
    return torch.where(score > -math.inf, score - log_z, -math.inf).to(emissions.dtype)


_log_likelihood = operator("semi_crf", _of_segments)


def _score(
    unary: Tensor,
    transition: Tensor,
    duration: Tensor,
    lengths: Tensor,
    segmentation: Segmentation,
) -> Tensor:
    """(B,) scores in nats; -inf for impossible segmentations."""
    every = unary.unsqueeze(2).expand(-1, -1, len(duration), -1)
    flat = scoring.flat(segmentation, every, lengths)
    links = scoring.score(unary.new_zeros(()).expand(every.shape), transition, lengths, flat)
    inside = torch.arange(unary.shape[1], device=unary.device) < lengths.unsqueeze(1)
    here = unary.gather(2, flat.labels.unsqueeze(2)).squeeze(2)
    spans = duration[flat.ages.clamp(max=len(duration) - 1), flat.labels]
    ends = scoring.ends_of(flat.starts, lengths)
    return links + (torch.where(inside, here, 0.0) + torch.where(ends, spans, 0.0)).sum(1)
