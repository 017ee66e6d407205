"""A semi-Markov conditional random field as a layer."""

import math
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from rdpgraph._core import tuning
from rdpgraph._core.compiler import operator
from rdpgraph._core.numbers import is_whole
from rdpgraph.errors import EvidenceError, ImpossibleEvidenceError, ModelError
from rdpgraph.logspace.logmatrix import soft_sum
from rdpgraph.model.potentials.potential import checked_log_values
from rdpgraph.nn.crf import (
    Constraints,
    Reduction,
    Transitions,
    lengths_of,
    reduced,
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
        durations: the most steps of a segment, the first size of the parameter of this name.
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
            if fields.are_long:
                best = scoring.best(*fields)
                if bool((fields.score(best) == -math.inf).any()):
                    raise ImpossibleEvidenceError(
                        "SemiCRF has no possible segmentation of an item; check its scores of -inf."
                    )
            else:
                best = fields.structure().mode()
        rows: list[list[tuple[int, int, int]]] = []
        for labels, starts, length in zip(
            best.labels, best.starts, fields.lengths.tolist(), strict=True
        ):
            first: list[int] = starts.nonzero().squeeze(1).tolist()
            tags: list[int] = labels[first].tolist()
            rows.append(list(zip(tags, first, [*first[1:], length], strict=True)))
        return rows

    def chain(self, emissions: Tensor, mask: Tensor | None = None) -> SemiMarkov:
        """The distribution as a `SemiMarkov`, which has the rest: marginals, k best, samples.

        Raises:
            ModelError: shapes or a mask that do not fit.
        """
        return self._fields(emissions, mask).structure()

    def _fields(self, emissions: Tensor, mask: Tensor | None) -> "_Fields":
        unary, start, transition, end, mask = self._scores(emissions, mask)
        return _Fields.of(unary, start, transition, end, self.durations, mask)


class _Fields(NamedTuple):
    """Scores of positions, transitions and durations, and lengths; in float64 if they are long."""

    unary: Tensor
    transition: Tensor
    duration: Tensor
    lengths: Tensor

    @classmethod
    def of(
        cls, unary: Tensor, start: Tensor, transition: Tensor, end: Tensor, duration: Tensor,
        mask: Tensor | None,
    ) -> "_Fields":  # fmt: skip
        """Add the scores of start and end to the positions of the first and last segment."""
        batch, steps, _ = unary.shape
        if not steps:
            raise ModelError("A SemiCRF needs emissions of one step or more; got none.")
        whole = mask is None
        lengths = torch.full((batch,), steps, device=unary.device) if whole else lengths_of(mask)
        place, last = torch.arange(steps, device=unary.device), lengths.unsqueeze(1) - 1
        unary = torch.where((place > last).unsqueeze(-1), 0.0, unary)
        unary = torch.where((place == 0).unsqueeze(-1), unary + start, unary)
        unary = torch.where((place == last).unsqueeze(-1), unary + end, unary)
        fields = cls(unary, transition, duration.to(unary.dtype), lengths)
        if not fields.are_long:
            return fields
        for name, part in zip(cls._fields, fields[:3], strict=False):
            checked_log_values(f"SemiCRF's {name}", part)
        unary, transition, duration = (part.double() for part in fields[:3])
        return cls(unary, transition, duration, lengths)

    @property
    def are_long(self) -> bool:
        """True where the scores of all segments are not stored."""
        return self.unary.numel() * len(self.duration) > tuning.LARGE_BLOCK

    def structure(self) -> SemiMarkov:
        """The distribution over segmentations."""
        return SemiMarkov.from_unary(*self[:3], lengths=self.lengths)

    def score(self, segmentation: Segmentation) -> Tensor:
        """(B,) scores in nats; -inf for impossible segmentations."""
        unary, transition, duration, lengths = self
        every = unary.unsqueeze(2).expand(-1, -1, len(duration), -1)
        flat = scoring.flat(segmentation, every, lengths)
        links = scoring.score(unary.new_zeros(()).expand(every.shape), transition, lengths, flat)
        inside = torch.arange(unary.shape[1], device=unary.device) < lengths.unsqueeze(1)
        here = unary.gather(2, flat.labels.unsqueeze(2)).squeeze(2)
        spans = duration[flat.ages.clamp(max=len(duration) - 1), flat.labels]
        ends = scoring.ends_of(flat.starts, lengths)
        return links + (torch.where(inside, here, 0.0) + torch.where(ends, spans, 0.0)).sum(1)


def _of_segments(
    emissions: Tensor, start: Tensor, transitions: Tensor, end: Tensor, durations: Tensor,
    labels: Tensor, starts: Tensor, mask: Tensor | None = None,
) -> Tensor:  # fmt: skip
    fields = _Fields.of(emissions, start, transitions, end, durations, mask)
    score = fields.score(Segmentation(labels, starts))
    if fields.are_long:
        ends = scoring.log_ends(*fields[:3])
        item = torch.arange(len(ends), device=ends.device)
        log_z = soft_sum(ends[item, fields.lengths - 1], -1)
    else:
        log_z = fields.structure().log_partition()
    return torch.where(score > -math.inf, score - log_z, -math.inf).to(emissions.dtype)


_log_likelihood = operator("semi_crf", _of_segments)
