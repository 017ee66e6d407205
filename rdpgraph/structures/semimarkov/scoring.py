"""Segmentations and their scores, of long sequences by position without a (T, D, N) tensor.

The scores of segments by position are recomputed in blocks of some hundred positions, upwards and
for the gradient. Memory is O(T N), and that of one block.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from rdpgraph._core import tuning
from rdpgraph._core.arguments import require_fields
from rdpgraph.errors import EvidenceError
from rdpgraph.logspace.gradients import differentiable_once
from rdpgraph.model.potentials.potential import WHOLE, Potential
from rdpgraph.structures.chain.parts import between


@dataclass(frozen=True, eq=False)
class Segmentation:
    """Sequences cut into labelled segments; a start between equal labels is a cut between them.

    Attributes:
        labels: (*lead, T) int64, the label of the segment at each position; -1 beyond the length.
        starts: (*lead, T) bool, whether a segment starts there; False beyond the length.

    Raises:
        EvidenceError: the two are not integers and booleans of one shape.
    """

    labels: Tensor
    starts: Tensor

    def __post_init__(self) -> None:
        require_fields(self)
        integral = self.labels.dtype in WHOLE
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
        """Make a segmentation of the label of each segment; inverse of `SemiMarkov.site_states`.

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
        """Make a segmentation of the segments of all sequences, (S,), in any order.

        Args:
            row: the number of the sequence.
            last: the last position of the segment.
            duration: its number of steps less one.
            labels: its label.
            shape: (*lead, T) of the sequences, each as long as its segments.
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
        """(*lead, T) int64: the steps since each position's segment started.

        Positions before the first start count from position -1.
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


def score(
    segments: Tensor, transition: Tensor | Potential, lengths: Tensor, segmentation: Segmentation
) -> Tensor:
    """(*lead, B) scores in nats; -inf for impossible segmentations. Differentiable.

    Segments (B, T, D, N); a transition (N, N), (1 or B, T - 1, N, N), or a potential; segmentations
    (*lead, B, T), as `flat` gives them.
    """
    state, starts = segmentation.labels, segmentation.starts
    steps, durations = segments.shape[1:3]
    if not steps:
        return segments.new_zeros(state.shape[:-1])
    place = torch.arange(steps, device=segments.device)
    inside = place < lengths.unsqueeze(1)
    ages, ends = segmentation.ages, ends_of(starts, lengths)
    item = torch.arange(len(lengths), device=segments.device).unsqueeze(1)
    spans = segments[item, place, ages.clamp(max=durations - 1), state]
    total = torch.where(ends, spans, 0.0).sum(-1)
    before = state[..., :-1]
    links = between(transition, before, state[..., 1:])
    total = total + torch.where((starts & inside)[..., 1:], links, 0.0).sum(-1)
    changes = pad(before != state[..., 1:], (1, 0))
    wrong = (ages >= durations) | (ages > place) | (changes & ~starts)
    return total.masked_fill((wrong & inside).any(-1), -math.inf)


def site_states(segmentation: Segmentation, lengths: Tensor, durations: int) -> Tensor:
    """(*lead, B, T, D) the label of each segment, -1: none, of a segmentation from `flat`."""
    lasting = torch.arange(durations, device=lengths.device)
    here = ends_of(segmentation.starts, lengths).unsqueeze(-1) & (
        segmentation.ages.unsqueeze(-1) == lasting
    )
    return torch.where(here, segmentation.labels.unsqueeze(-1), -1)


def over_positions(values: Tensor, *, best: bool) -> Tensor:
    """(*batch, T, D, N) values of the age and the label at each position, from those of segments.

    They are sums, or maxima, over the segments that have begun so many steps before.
    """
    passed = [values[..., -1, :]]
    for age in range(values.shape[-2] - 2, -1, -1):
        later = pad(passed[-1][..., 1:, :], (0, 0, 0, 1), value=-math.inf if best else 0.0)
        here = values[..., age, :]
        passed.append(torch.maximum(here, later) if best else here + later)
    return torch.stack(passed[::-1], -2)


def flat(segmentation: Segmentation, unary: Tensor, lengths: Tensor) -> Segmentation:
    """Segmentations (*lead, *batch, T) as (*lead, B, T), with zeros beyond the length.

    Raises:
        EvidenceError: a shape that does not fit, or a label outside 0..N-1.
    """
    if not isinstance(segmentation, Segmentation):
        raise EvidenceError(f"SemiMarkov needs a Segmentation; got {segmentation!r:.80}.")
    labels, shape = segmentation.labels, tuple(unary.shape[:-2])
    lead = labels.ndim - len(shape)
    if lead < 0 or tuple(labels.shape[lead:]) != shape:
        raise EvidenceError(
            f"SemiMarkov needs a segmentation of shape (*lead, {', '.join(map(str, shape))}); "
            f"got {tuple(labels.shape)}."
        )
    inside = torch.arange(shape[-1], device=labels.device) < lengths.unsqueeze(1)
    labels = labels.reshape(*labels.shape[:lead], len(lengths), shape[-1])
    labels = labels.masked_fill(~inside, 0)
    if not bool(((labels >= 0) & (labels < unary.shape[-1])).all()):
        raise EvidenceError(
            f"SemiMarkov has labels 0 to {unary.shape[-1] - 1}; a segmentation has "
            f"{int(labels.min())} to {int(labels.max())}."
        )
    return Segmentation(labels, segmentation.starts.reshape(labels.shape) & inside)


def filled(states: Tensor, unary: Tensor) -> Segmentation:
    """The segmentation of states (*lead, *batch, T, D); the last segment is extended.

    Raises:
        EvidenceError: a shape that does not fit, or a label outside -1..N-1.
    """
    shape, lead = tuple(unary.shape[:-1]), states.ndim - unary.ndim + 1
    if lead < 0 or tuple(states.shape[lead:]) != shape:
        raise EvidenceError(
            "SemiMarkov needs the labels of segments, (*lead, "
            f"{', '.join(map(str, shape))}); got {tuple(states.shape)}."
        )
    if states.numel() and not -1 <= int(states.min()) <= int(states.max()) < unary.shape[-1]:
        raise EvidenceError(
            f"SemiMarkov has labels 0 to {unary.shape[-1] - 1}, and -1 where there is no segment; "
            f"got {int(states.min())} to {int(states.max())}."
        )
    segmentation = Segmentation.of(states)
    return Segmentation(segmentation.labels.clamp(min=0), segmentation.starts)


def ends_of(starts: Tensor, lengths: Tensor) -> Tensor:
    """Return (*lead, B, T) bool, True where a segment ends.

    It ends before the start of the next one, or at the last position of the item.
    """
    place = torch.arange(starts.shape[-1], device=starts.device)
    follows = pad(starts, (0, 1), value=True)[..., 1:]
    last = place == lengths.unsqueeze(1) - 1
    return (place < lengths.unsqueeze(1)) & (follows | last)


def log_ends(unary: Tensor, transition: Tensor, duration: Tensor) -> Tensor:
    """(B, T, N) log-weight of all segmentations of the first t + 1 positions with last label n.

    Differentiable once; T short calls of torch each way. In float64: long sums leave few digits to
    the differences that are marginals. Unary (B, T, N), transition (N, N), duration (D, N).
    """
    result: Tensor = _Ends.apply(unary, transition, duration)  # pyright: ignore
    return result


def best(unary: Tensor, transition: Tensor, duration: Tensor, lengths: Tensor) -> Segmentation:
    """(B, T) a most probable segmentation of each possible item, of lengths (B,) from 1.

    Unary (B, T, N), transition (N, N), duration (D, N).
    """
    ends, _, spans, before = _upwards(unary, transition, duration, maximum=True)
    item, last = torch.arange(len(unary), device=unary.device), lengths - 1
    label = ends[item, last].argmax(-1)
    cuts: list[tuple[Tensor, ...]] = []
    while len(item):
        age = len(duration) - 1 - spans[item, last, label]
        cuts.append((item, last, age, label))
        on = last > age
        item, last = item[on], (last - age)[on] - 1
        label = before[item, last, label[on]]
    parts = (torch.cat(each) for each in zip(*cuts, strict=True))
    return Segmentation.cut(*parts, shape=tuple(unary.shape[:2]))


def _pieces(unary: Tensor, duration: Tensor) -> list[tuple[int, int]]:
    steps = unary.shape[1]
    size = tuning.per_block(len(unary) * duration.numel(), tuning.CACHE_BLOCK)
    return [(start, min(start + size, steps)) for start in range(0, steps, size)]


def _around(unary: Tensor, longest: int, start: int, stop: int) -> Tensor:
    """(B, D - 1 + L, N) some positions and those before; absent ones are -inf."""
    first = max(0, start - longest + 1)
    return pad(unary[:, first:stop], (0, 0, longest - 1 - start + first, 0), value=-math.inf)


def _segments(part: Tensor, duration: Tensor) -> Tensor:
    """(B, L, D, N) scores of the segments that end at each position, the longest first."""
    sums = part.unfold(1, len(duration), 1).flip(-1).cumsum(-1).flip(-1)
    return sums.transpose(-1, -2) + duration.flip(0)


def _upwards(
    unary: Tensor, transition: Tensor, duration: Tensor, *, maximum: bool = False
) -> tuple[Tensor, ...]:
    """Log-weights of what ends at each position and enters each, (B, T, N) and (B, D + T, N).

    The latter begins D - 1 positions before the first. For maxima also two choices, (B, T, N): the
    best segment that ends there with a label, the longest being 0, and the best label before a
    label.
    """
    batch, steps, labels = unary.shape
    longest = len(duration)
    ends = torch.empty_like(unary)
    entering = unary.new_full((batch, longest + steps, labels), -math.inf)
    entering[:, longest - 1] = 0.0
    choices = [ends.new_empty(ends.shape if maximum else 0, dtype=torch.long) for _ in range(2)]
    for start, stop in _pieces(unary, duration):
        segments = _segments(_around(unary, longest, start, stop), duration)
        for place in range(start, stop):
            whole = segments[:, place - start] + entering[:, place : place + longest]
            if maximum:
                ends[:, place], choices[0][:, place] = whole.max(1)
                follows = (ends[:, place].unsqueeze(2) + transition).max(1)
                entering[:, place + longest], choices[1][:, place] = follows
            else:
                ends[:, place] = last = whole.logsumexp(1)
                entering[:, place + longest] = (last.unsqueeze(2) + transition).logsumexp(1)
    return ends, entering, *choices


def _probabilities(logs: Tensor, total: Tensor) -> Tensor:
    """Probabilities of terms in their sum; 0 where that is -inf."""
    return (logs - total.masked_fill(total == -math.inf, 0.0)).exp()


class _Ends(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, unary: Tensor, transition: Tensor, duration: Tensor) -> Tensor:
        ends, entering, *_ = _upwards(unary, transition, duration)
        ctx.save_for_backward(unary, transition, duration, ends, entering)
        return ends

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:  # pyright: ignore
        unary, transition, duration, ends, entering = ctx.saved_tensors
        longest, grads = len(duration), [torch.zeros_like(each) for each in (transition, duration)]
        of_entering = torch.zeros_like(entering)
        padded = unary.new_zeros(len(unary), longest - 1 + unary.shape[1], unary.shape[2])
        for start, stop in reversed(_pieces(unary, duration)):
            # Scores of segments are made again piece by piece, the last piece first.
            part = _around(unary, longest, start, stop).requires_grad_()
            table = duration.detach().requires_grad_()
            with torch.enable_grad():
                segments = _segments(part, table)
            begun = entering[:, start : stop + longest - 1].unfold(1, longest, 1)
            here, after = ends[:, start:stop], slice(start + longest, stop + longest)
            taken = _probabilities(segments.detach() + begun.transpose(-1, -2), here.unsqueeze(2))
            joined = here.unsqueeze(3) + transition
            joined = _probabilities(joined, entering[:, after].unsqueeze(2))
            # Gradients go from each end to where its segments begin.
            for place in range(stop - 1, start - 1, -1):
                follows = joined[:, place - start] @ of_entering[:, place + longest].unsqueeze(-1)
                terms = taken[:, place - start]
                terms *= (grad[:, place] + follows.squeeze(-1)).unsqueeze(1)
                of_entering[:, place : place + longest] += terms
            of_part, of_table = torch.autograd.grad(segments, (part, table), taken)
            padded[:, start : stop + longest - 1] += of_part
            grads[0] += (joined * of_entering[:, after].unsqueeze(2)).sum((0, 1))
            grads[1] += of_table
        return padded[:, longest - 1 :], *grads
