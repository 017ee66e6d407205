"""The forward recursion over segments.

With s the segments and A the transitions (Sarawagi and Cohen 2004, section 3.1, in log-space),

    leaving_t(n)  = log sum_d exp(s[t, d, n] + entering_{t-d}(n))
    entering_t(n) = log sum_m exp(leaving_{t-1}(m) + A_{t-1}[m, n]),    entering_0 = 0.

Every `entering` is kept relative to a base of its own, summed up in float64, so that float32 holds
at any length.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from rdpgraph.model.semiring import soft_sum
from rdpgraph.structures.semimarkov.coupling import Coupling
from rdpgraph.structures.semimarkov.lowrank import LowRankCoupling

Couplings: TypeAlias = Sequence[Coupling] | Sequence[LowRankCoupling]


class Window:
    """The latest D `entering` messages, newest first, each with its base.

    Attributes:
        logs: (B, D, N); -inf before the sequence starts.
        bases: (B, D) float64.
    """

    def __init__(self, segments: Tensor) -> None:
        batch, _, durations, labels = segments.shape
        self.logs = segments.new_full((batch, durations, labels), -math.inf)
        self.logs[:, 0] = 0.0
        self.bases = torch.zeros(batch, durations, dtype=torch.float64, device=segments.device)

    @property
    def base(self) -> Tensor:
        """(B,) the base of the newest, which terms are relative to."""
        return self.bases[:, 0]

    def terms(self, scores: Tensor) -> Tensor:
        """(B, D, N) log-mass of the prefixes that end with each segment, less the base."""
        shift = (self.bases - self.bases[:, :1]).to(scores.dtype)
        return scores + self.logs + shift.unsqueeze(2)

    def push(self, entering: Tensor) -> None:
        """Take in the message of the next position, (B, N), relative to the base until now."""
        peak = entering.detach().amax(1, keepdim=True)
        peak = torch.where(peak > -math.inf, peak, 0.0)
        self.logs = torch.cat([(entering - peak).unsqueeze(1), self.logs[:, :-1]], 1)
        self.bases = torch.cat([self.bases[:, :1] + peak, self.bases[:, :-1]], 1)


@dataclass(frozen=True, eq=False)
class Step:
    """What the recursion knows at one position.

    Attributes:
        terms: (B, D, N) log-mass of the prefixes that end here with each segment, less the base.
        leaving: (B, N) their sum over durations.
        entering: (B, N) log-mass of the prefixes that end before it, less the base; maximum 0.
        base: (B,) float64.
    """

    terms: Tensor
    leaving: Tensor
    entering: Tensor
    base: Tensor


def walk(segments: Tensor, couplings: Couplings) -> Iterator[Step]:
    """The recursion, a position at a time; differentiable, O(D N + N^2) each, or O(D N + N r).

    Args:
        segments: (B, T, D, N).
        couplings: the T - 1 transitions.
    """
    window, steps = Window(segments), segments.shape[1]
    for place, scores in enumerate(segments.unbind(1)):
        terms = window.terms(scores)
        leaving = soft_sum(terms, 1) if terms.requires_grad else terms.logsumexp(1)
        yield Step(terms, leaving, window.logs[:, 0], window.base)
        if place + 1 < steps:
            window.push(couplings[place].enter(leaving))


@dataclass(frozen=True, eq=False)
class Prefixes:
    """The messages of all positions, and the total.

    Attributes:
        log_partition: (B,).
        leaving: (B, T, N) as in `Step`.
        entering: (B, T, N) as in `Step`.
        bases: (B, T) float64, the base of both.
    """

    log_partition: Tensor
    leaving: Tensor
    entering: Tensor
    bases: Tensor


def prefixes(segments: Tensor, couplings: Couplings, lengths: Tensor) -> Prefixes:
    """Run the recursion and keep O(T N) of it; differentiable, with O(T D N) kept for that.

    Args:
        segments: (B, T, D, N).
        couplings: the T - 1 transitions.
        lengths: (B,) int64; what stands beyond them has no effect.
    """
    batch, steps, _, labels = segments.shape
    if not steps:
        empty = segments.new_zeros(batch, 0, labels)
        bases = torch.zeros(batch, 0, dtype=torch.float64, device=segments.device)
        return Prefixes(segments.sum((1, 2, 3)), empty, empty, bases)
    kept = [(step.leaving, step.entering, step.base) for step in walk(segments, couplings)]
    leaving, entering, bases = (torch.stack(part, 1) for part in zip(*kept, strict=True))
    last = at_last(leaving, lengths)
    base = at_last(bases.unsqueeze(2), lengths).squeeze(1)
    log_z = (soft_sum(last, 1) + base).to(segments.dtype)
    return Prefixes(torch.where(lengths > 0, log_z, 0.0), leaving, entering, bases)


def at_last(values: Tensor, lengths: Tensor) -> Tensor:
    """(B, N) of (B, T, N) at the last position of each item (the first, if it has none)."""
    place = (lengths - 1).clamp(min=0).reshape(-1, 1, 1)
    return values.gather(1, place.expand(-1, 1, values.shape[2])).squeeze(1)
