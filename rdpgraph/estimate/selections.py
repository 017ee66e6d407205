"""Selections: their interface, the largest scores, and unbiased draws from the rest."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from rdpgraph._core import tuning
from rdpgraph.errors import ModelError
from rdpgraph.logspace.logmatrix import finite
from rdpgraph.model.restriction import Support
from rdpgraph.structures.draws import uniform

Size: TypeAlias = int | float
"""A number of states, or a fraction of them: a float in (0, 1]."""


class Selection(ABC):
    """Chooses states by their scores.

    An estimate of Z is unbiased if for every state of non-zero score the expectation of its weight,
    zero where it is not kept, is one; and if sites are chosen independently.
    """

    @abstractmethod
    def select(self, log_q: Tensor, generator: torch.Generator | None) -> Support:
        """Select states and log-weights for every row of scores.

        Args:
            log_q: (*lead, N) log-scores, not necessarily normalised; a state of -inf is not kept.
            generator: the only source of randomness.

        Returns:
            A support of (*lead, kept) states; where fewer states are possible than are kept, the
            entries left over have log-weight -inf.
        """

    @property
    def bound(self) -> str:
        """``"lower"`` where log Z of what is kept never exceeds log Z; else empty."""
        return ""


class Inversion(Selection):
    """A selection that is a function of a few uniform numbers per row.

    It can be checked over all of its arguments: each entry's state does not decrease as the number
    that decides it grows.
    """

    def select(self, log_q: Tensor, generator: torch.Generator | None) -> Support:
        """Select states and log-weights for every row of scores.

        Raises:
            ModelError: scores of NaN or +inf.
        """
        if log_q.ndim < 1 or not bool((log_q < math.inf).all()):
            raise ModelError(
                f"{type(self).__name__} needs log-scores (..., states) below +inf and not NaN."
            )
        *lead, states = log_q.shape
        flat = log_q.reshape(-1, states)
        uniforms = uniform((len(flat), self.num_uniforms(states)), log_q.device, generator)
        rows = tuning.per_block(states, tuning.BLOCK)
        parts = list(map(self.choose, flat.split(rows), uniforms.split(rows)))
        return Support.joined(parts, 0).map(lambda part: part.reshape(*lead, parts[0].kept))

    @abstractmethod
    def num_uniforms(self, states: int) -> int:
        """Number of uniform numbers for a row of scores."""

    @abstractmethod
    def choose(self, log_q: Tensor, uniforms: Tensor) -> Support:
        """Select states, given (*lead, `num_uniforms`) float64 numbers in [0, 1)."""


def checked_size(owner: str, name: str, size: Size, least: int = 1) -> None:
    """Raise `ModelError` unless a size is a number of states or a fraction of them."""
    share = isinstance(size, float) and 0.0 < size <= 1.0
    number = isinstance(size, int) and not isinstance(size, bool) and size >= least
    if not share and not number:
        raise ModelError(
            f"{owner} needs {name} as a number of states >= {least}, or a share of them as a float "
            f"in (0, 1]; got {size!r}."
        )


def count_of(size: Size, states: int) -> int:
    """Number of states that a size stands for; a fraction is at least one state."""
    count = max(1, round(size * states)) if isinstance(size, float) else size
    return min(count, states)


_CERTAIN = 1.0 - 1e-6  # a state more likely kept than this is kept for certain


@dataclass(frozen=True)
class Top(Inversion):
    """States of largest score, and no others: biased, log Z from below.

    The truncation of Sun et al. 2019; a baseline. O(N) per site.

    Args:
        keep: number of states, or a fraction of them.
    """

    keep: Size

    def __post_init__(self) -> None:
        checked_size("Top", "keep", self.keep)

    @property
    def bound(self) -> str:
        return "lower"

    def num_uniforms(self, states: int) -> int:
        return 0

    def choose(self, log_q: Tensor, uniforms: Tensor) -> Support:
        keep = count_of(self.keep, log_q.shape[-1])
        return _everything(log_q) if keep == log_q.shape[-1] else _largest(log_q, keep)


@dataclass(frozen=True)
class TopTail(Inversion):
    """Largest scores, and independent draws with replacement from the rest.

    Fu, Cunningham and Lapata 2022, eq. 5-8: a drawn state has the log-weight ``-log(tail * q(i))``,
    q normalised over the rest; repeats stay separate entries. Where ``top + tail`` covers all
    states, all are kept with weight one. O(N + tail log N) per site.

    Args:
        top: number of states of the largest score, or a fraction; 0 for none.
        tail: number of draws, or a fraction of the states.
    """

    top: Size
    tail: Size

    def __post_init__(self) -> None:
        checked_size("TopTail", "top", self.top, least=0)
        checked_size("TopTail", "tail", self.tail)

    def num_uniforms(self, states: int) -> int:
        return count_of(self.tail, states)

    def choose(self, log_q: Tensor, uniforms: Tensor) -> Support:
        """Select the largest scores, then one state for each uniform number, by inversion."""
        states = log_q.shape[-1]
        top, tail = count_of(self.top, states), count_of(self.tail, states)
        if top + tail >= states:
            return _everything(log_q)
        first = _largest(log_q, top)
        rest = log_q.double().scatter(-1, first.states, -math.inf)
        peak, heights = _heights(rest)
        total = heights[..., -1:]
        picks = _inverse(heights, uniforms * total)
        log_q_rest = rest.gather(-1, picks) - peak - _log(total)
        drawn = Support(picks, _weights(-log_q_rest - math.log(tail), rest, picks, log_q))
        return Support.joined([first, drawn])


@dataclass(frozen=True)
class TopSystematic(Inversion):
    """Largest scores, and a systematic sample of the rest.

    The rest is kept with probabilities ``pi_i = min(1, c q_i)`` that sum to ``tail``, by one
    uniform number for all, with log-weights ``-log pi_i``: no state twice, and less variance than
    independent draws. O(N + K log K) per site.

    Args:
        top: number of states of the largest score, or a fraction; 0 for none.
        tail: number of the rest, or a fraction of the states.
    """

    top: Size
    tail: Size

    def __post_init__(self) -> None:
        checked_size("TopSystematic", "top", self.top, least=0)
        checked_size("TopSystematic", "tail", self.tail)

    def num_uniforms(self, states: int) -> int:
        return 1

    def choose(self, log_q: Tensor, uniforms: Tensor) -> Support:
        states = log_q.shape[-1]
        top, tail = count_of(self.top, states), count_of(self.tail, states)
        return _systematic(log_q, uniforms, min(top + tail, states), top)


@dataclass(frozen=True)
class Threshold(Inversion):
    """States kept with probability ``min(1, c q_i)``, c such that ``keep`` are kept.

    The optimal resampling of Fearnhead and Clifford 2003: scores above a threshold are kept with
    weight one, the rest is sampled systematically with log-weights ``-log pi_i``. The number of
    these is computed, not given. This is optimal for scores near the marginals; if scores are much
    flatter than the marginals, no state is kept for certain, and `TopSystematic` is safer. O(N + K
    log K) per site.

    Args:
        keep: number of states, or a fraction of them.
    """

    keep: Size

    def __post_init__(self) -> None:
        checked_size("Threshold", "keep", self.keep)

    def num_uniforms(self, states: int) -> int:
        return 1

    def choose(self, log_q: Tensor, uniforms: Tensor) -> Support:
        return _systematic(log_q, uniforms, count_of(self.keep, log_q.shape[-1]), 0)


def _everything(log_q: Tensor) -> Support:
    """All states with weight one, impossible ones with log-weight -inf."""
    everything = torch.arange(log_q.shape[-1], device=log_q.device).expand(log_q.shape)
    return Support(everything, log_q).unweighted()


def _largest(log_q: Tensor, keep: int) -> Support:
    values, states = log_q.topk(keep)
    return Support(states, values).unweighted()


def _systematic(log_q: Tensor, uniforms: Tensor, keep: int, top: int) -> Support:
    """Keep the certain states, at least ``top`` of them, and a systematic sample of the others."""
    if keep == log_q.shape[-1]:
        return _everything(log_q)
    scores = log_q.double()
    values, order = scores.topk(keep)
    rest = scores.scatter(-1, order, -math.inf)
    place = torch.arange(keep, device=log_q.device)
    certain = torch.maximum(_num_certain(values, rest), place.new_tensor(top))
    # Where anything is possible beyond the largest, one entry is left for it.
    open_end = rest.amax(-1, keepdim=True) > -math.inf
    certain = torch.where(open_end, certain.clamp(max=keep - 1), certain)
    is_certain = place < certain
    rest = scores.scatter(-1, order, torch.where(is_certain, -math.inf, values))
    peak, heights = _heights(rest)
    spacing = heights[..., -1:] / (keep - certain).clamp(min=1)
    picks = _inverse(heights, (uniforms + (place - certain)).clamp(min=0.0) * spacing)
    log_weights = _log(spacing) + peak - rest.gather(-1, picks)
    as_it_is = torch.where(values > -math.inf, 0.0, -math.inf).to(log_q)
    return Support(
        torch.where(is_certain, order, picks),
        torch.where(is_certain, as_it_is, _weights(log_weights, rest, picks, log_q)),
    )


def _num_certain(values: Tensor, rest: Tensor) -> Tensor:
    """(*lead, 1) number of the largest scores that are kept for certain.

    With the m largest certain, the next has ``pi = (K - m) q_m / (q_m + q_m+1 + ...)``; it is
    certain too where that is one or more. Sums run from the small end, so nothing cancels.
    """
    keep = values.shape[-1]
    shift = finite(values[..., :1])
    masses = (values - shift).exp()
    beyond = (rest - shift).exp().sum(-1, keepdim=True)
    from_here = beyond + masses.flip(-1).cumsum(-1).flip(-1)
    left = keep - torch.arange(keep, device=values.device)
    certain = left * masses > from_here * _CERTAIN
    return certain.long().cumprod(-1).sum(-1, keepdim=True)


def _heights(scores: Tensor) -> tuple[Tensor, Tensor]:
    """Cumulative masses (*lead, N) relative to a log-shift (*lead, 1)."""
    peak = finite(scores.amax(-1, keepdim=True))
    return peak, (scores - peak).exp().cumsum(-1)


def _inverse(heights: Tensor, targets: Tensor) -> Tensor:
    """State in whose step of the cumulative masses each target lies; never one of no mass."""
    total = heights[..., -1:]
    below = torch.minimum(targets, torch.nextafter(total, torch.zeros_like(total)))
    picks = torch.searchsorted(heights, below.contiguous(), right=True)
    return picks.clamp(max=heights.shape[-1] - 1)


def _weights(log_weights: Tensor, scores: Tensor, picks: Tensor, like: Tensor) -> Tensor:
    """Log-weights, -inf where there was nothing to draw."""
    possible = scores.gather(-1, picks) > -math.inf
    return torch.where(possible, log_weights, -math.inf).to(like.dtype)


def _log(values: Tensor) -> Tensor:
    return torch.where(values > 0, values, 1.0).log()
