"""The best score with each segment: max-product forwards, and forwards again on the reversal."""

import math

import torch
from torch import Tensor

from rdpgraph.structures.semimarkov.recursion import Window
from rdpgraph.structures.semimarkov.transitions import after, reversed_transition


@torch.no_grad()
def max_marginals(segments: Tensor, transition: Tensor, lengths: Tensor) -> Tensor:
    """(B, T, D, N) the best score of the segmentations with each segment; O(T (D N + N^2)).

    -inf where there is none. Not differentiable.
    """
    batch, steps, durations, labels = segments.shape
    if not segments.numel():
        return segments.clone()
    device = segments.device
    places = torch.arange(steps, device=device).reshape(1, -1, 1)
    reach = torch.arange(durations, device=device)
    start = places - reach
    inside = (start >= 0) & (places < lengths.reshape(-1, 1, 1))
    item = torch.arange(batch, device=device).reshape(-1, 1, 1)
    # A segment that starts at s ends the reversed sequence at L - 1 - s.
    ends = lengths.reshape(-1, 1, 1) - 1 - places + reach
    backwards = segments[item, ends.clamp(0, steps - 1), reach]
    valid = (ends >= reach) & (ends < lengths.reshape(-1, 1, 1))
    backwards = backwards.masked_fill(~valid.unsqueeze(3), -math.inf)
    prefix, base = _best_before(segments, transition)
    suffix, tail = _best_before(backwards, reversed_transition(transition, lengths))
    first = start.clamp(min=0)
    left = (lengths.reshape(-1, 1) - 1 - places.squeeze(2)).clamp(min=0)
    left = left.unsqueeze(2).expand(-1, -1, labels)
    rest = suffix.gather(1, left).unsqueeze(2)
    shift = base[item, first] + tail.gather(1, left[:, :, 0]).unsqueeze(2)
    logs = segments + prefix[item, first] + rest + shift.to(segments.dtype).unsqueeze(3)
    return logs.masked_fill(~inside.unsqueeze(3), -math.inf)


def _best_before(segments: Tensor, transition: Tensor) -> tuple[Tensor, Tensor]:
    """(B, T, N) the best score before a segment that starts at each position, and its base."""
    window = Window(segments)
    kept: list[tuple[Tensor, Tensor]] = []
    for place, scores in enumerate(segments.unbind(1)):
        kept.append((window.logs[:, 0], window.base))
        best = window.terms(scores).amax(1)
        if place + 1 < segments.shape[1]:
            window.push((best.unsqueeze(2) + after(transition, place)).amax(1))
    logs, bases = zip(*kept, strict=True)
    return torch.stack(logs, 1), torch.stack(bases, 1)
