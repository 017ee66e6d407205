"""The best segmentation, and draws of segmentations."""

import math

import torch
from torch import Tensor

from rdpgraph.errors import ImpossibleEvidenceError
from rdpgraph.model.lowrank import LowRank
from rdpgraph.structures.semimarkov.recursion import Window, at_last, prefixes
from rdpgraph.structures.semimarkov.segmentation import Segmentation, spread
from rdpgraph.structures.semimarkov.transitions import after, columns, couplings


@torch.no_grad()
def viterbi(segments: Tensor, transition: Tensor, lengths: Tensor) -> Segmentation:
    """One best segmentation of each item; O(T (D N + N^2)).

    Args:
        segments: (B, T, D, N).
        transition: (N, N), or (1 or B, T - 1, N, N).
        lengths: (B,).

    Raises:
        ImpossibleEvidenceError: an item has none.
    """
    batch, steps = segments.shape[:2]
    label = torch.zeros(batch, steps, dtype=torch.long, device=segments.device)
    starts = torch.zeros_like(label, dtype=torch.bool)
    if not steps:
        return Segmentation(label, starts)
    window = Window(segments)
    leaving, durations = list[Tensor](), list[Tensor]()
    before = [torch.zeros_like(segments[:, 0, 0], dtype=torch.long)]
    for step, scores in enumerate(segments.unbind(1)):
        best, duration = window.terms(scores).max(1)
        leaving.append(best)
        durations.append(duration)
        if step + 1 < steps:
            entering, previous = (best.unsqueeze(2) + after(transition, step)).max(1)
            before.append(previous)
            window.push(entering)
    scores, current = at_last(torch.stack(leaving, 1), lengths).max(1)
    _refuse("mode", (scores == -math.inf) & (lengths > 0))
    place = lengths - 1
    lasting, coming = torch.stack(durations, 1), torch.stack(before, 1)
    while bool((place >= 0).any()):
        rows = (place >= 0).nonzero().squeeze(1)
        now = place[rows]
        start = now - lasting[rows, now, current[rows]]
        label[rows, start] = current[rows]
        starts[rows, start] = True
        place[rows] = start - 1
        current[rows] = coming[rows, start, current[rows]]
    return spread(label, starts, lengths)


@torch.no_grad()
def draw(
    segments: Tensor,
    transition: Tensor | LowRank,
    lengths: Tensor,
    count: int,
    generator: torch.Generator | None,
) -> Segmentation:
    """(count * B, T) independent draws, backwards from the last segment.

    One forward recursion, then O(count B (D + N)) for each segment (N r at rank r).

    Args:
        segments: (B, T, D, N).
        transition: (N, N), or (1 or B, T - 1, N, N).
        lengths: (B,).
        count: draws of each item.
        generator: the randomness.

    Raises:
        ImpossibleEvidenceError: an item has none.
    """
    batch, steps, durations, _ = segments.shape
    forward = prefixes(segments, couplings(transition, steps), lengths)
    _refuse("sample", forward.log_partition == -math.inf)
    item = torch.arange(batch, device=segments.device).repeat(count)
    place = lengths[item] - 1
    label = torch.zeros(len(item), steps, dtype=torch.long, device=segments.device)
    starts = torch.zeros_like(label, dtype=torch.bool)
    if not steps:
        return Segmentation(label, starts)
    current = _choose(at_last(forward.leaving, lengths)[item], generator)
    reach = torch.arange(durations, device=segments.device)
    while True:
        rows = (place >= 0).nonzero().squeeze(1)
        if not len(rows):
            return spread(label, starts, lengths[item])
        source, now, chosen = item[rows].unsqueeze(1), place[rows].unsqueeze(1), current[rows]
        first = (now - reach).clamp(min=0)
        shift = forward.bases[source, first] - forward.bases[source, now]
        logs = segments[source, now, reach, chosen.unsqueeze(1)]
        logs = logs + forward.entering[source, first, chosen.unsqueeze(1)] + shift.to(logs.dtype)
        duration = _choose(logs.masked_fill(now < reach, -math.inf), generator)
        start = now.squeeze(1) - duration
        label[rows, start] = chosen
        starts[rows, start] = True
        place[rows] = start - 1
        # Whoever is at the start of the sequence draws a label that nobody reads.
        source, end = source.squeeze(1), (start - 1).clamp(min=0)
        before = columns(transition, source, end, chosen)
        current[rows] = _choose(forward.leaving[source, end] + before, generator)


def _refuse(name: str, impossible: Tensor) -> None:
    if bool(impossible.any()):
        raise ImpossibleEvidenceError(
            f"SemiMarkov.{name}: {int(impossible.sum())} of {len(impossible)} items have no "
            "possible segmentation; log_partition() is -inf for them."
        )


def _choose(logs: Tensor, generator: torch.Generator | None) -> Tensor:
    """(C,) a draw from each row of log-weights: the first of exponential clocks to ring."""
    peak = logs.amax(1, keepdim=True)
    chances = (logs - torch.where(peak > -math.inf, peak, 0.0)).exp()
    clocks = torch.empty_like(chances).exponential_(generator=generator)
    return (chances / clocks.clamp(min=torch.finfo(logs.dtype).tiny)).argmax(1)
