"""The forward recursion over segments, without gradient.

With s the segments and A the transitions (Sarawagi and Cohen 2004, section 3.1, in log-space),

    leaving_t(n)  = log sum_d exp(s[t, d, n] + entering_{t-d}(n))
    entering_t(n) = log sum_m exp(leaving_{t-1}(m) + A_{t-1}[m, n]),    entering_0 = 0.

Every `entering` is kept relative to a base of its own, summed up in float64, so that float32 holds
at any length.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rdpgraph.model.semiring import finite
from rdpgraph.structures.semimarkov.coupling import Coupling


@dataclass(frozen=True, eq=False)
class Prefixes:
    """The messages of all positions, and the total.

    Attributes:
        log_partition: (B,).
        leaving: (B, T, N) log-mass of the prefixes that end with a position and label, less the
            base.
        entering: (B, T, N) that of those that end before a position, less the base; maximum 0.
        bases: (B, T) float64, the base of both.
    """

    log_partition: Tensor
    leaving: Tensor
    entering: Tensor
    bases: Tensor


@torch.no_grad()
def prefixes(segments: Tensor, couplings: Sequence[Coupling], lengths: Tensor) -> Prefixes:
    """Run the recursion and keep O(T N) of it; O(D N + N^2) for each position.

    Args:
        segments: (B, T, D, N).
        couplings: the T - 1 transitions.
        lengths: (B,) int64; what stands beyond them has no effect.
    """
    batch, steps, durations, labels = segments.shape
    leaving, entering = (segments.new_empty(batch, steps, labels) for _ in range(2))
    kept = torch.zeros(batch, steps, dtype=torch.float64, device=segments.device)
    if not steps:
        return Prefixes(segments.sum((1, 2, 3)), leaving, entering, kept)
    # The latest `entering`, newest first, each with its base; -inf before the sequence starts.
    window = segments.new_full((batch, durations, labels), -math.inf)
    window[:, 0] = 0.0
    bases = kept.new_zeros(batch, durations)
    for place, scores in enumerate(segments.unbind(1)):
        base = bases[:, :1]
        terms = scores + window + (bases - base).to(scores.dtype).unsqueeze(2)
        last = terms.logsumexp(1)
        leaving[:, place], entering[:, place], kept[:, place] = last, window[:, 0], base[:, 0]
        if place + 1 < steps:
            following = couplings[place].enter(last)
            peak = finite(following.amax(1, keepdim=True))
            window = torch.cat([(following - peak).unsqueeze(1), window[:, :-1]], 1)
            bases = torch.cat([base + peak, bases[:, :-1]], 1)
    total = at_last(leaving, lengths).logsumexp(1) + at_last(kept.unsqueeze(2), lengths).squeeze(1)
    log_z = torch.where(lengths > 0, total, 0.0).to(segments.dtype)
    return Prefixes(log_z, leaving, entering, kept)


def at_last(values: Tensor, lengths: Tensor) -> Tensor:
    """(B, N) of (B, T, N) at the last position of each item (the first, if it has none)."""
    place = (lengths - 1).clamp(min=0).reshape(-1, 1, 1)
    return values.gather(1, place.expand(-1, 1, values.shape[2])).squeeze(1)
