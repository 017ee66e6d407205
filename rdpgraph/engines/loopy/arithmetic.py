"""Log-vectors over states: rescaled, summed softly, made probabilities. States are dim 1."""

import math

import torch
from torch import Tensor


def floored(logs: Tensor, lowest: float) -> Tensor:
    """Logs not below ``lowest``, except for -inf.

    Hard constraints around a loop may multiply a message's log with every sweep. Long before it
    overflows, what other messages add to it would be lost to rounding.
    """
    floor = max(lowest, torch.finfo(logs.dtype).min)
    return torch.where(logs > -math.inf, logs.clamp(min=floor), logs)


def rescaled(logs: Tensor, *, vanishing: bool) -> tuple[Tensor, Tensor]:
    """Logs whose maximum over states is 0, and what was taken off (B, 1, n)."""
    peak = logs.amax(1, keepdim=True)
    if vanishing:
        peak = torch.where(peak == -math.inf, torch.zeros_like(peak), peak)
    return logs - peak, peak


def share(logs: Tensor, temperature: float) -> Tensor:
    """Probabilities over dim 1; zero throughout where nothing is possible; maxima share at 0."""
    peak = logs.detach().amax(1, keepdim=True)
    peak = torch.where(peak == -math.inf, torch.zeros_like(peak), peak)
    if temperature == 0:
        values = ((logs == peak) & (logs > -math.inf)).to(logs)
    else:
        values = ((logs - peak) / temperature).exp()
    total = values.sum(1, keepdim=True)
    return values / torch.where(total > 0, total, 1.0)


FAINT = 40.0
"""Nats past the precision of float64: around loops, hard constraints may drive logs down forever,
and below this nothing is told apart."""
_FEW = 16
BOTTOM = 1e30
"""The same where logs are bounded: -inf alone lies below."""


@torch.no_grad()
def change(new: Tensor, old: Tensor, seen: float) -> Tensor:
    """(B, n): how much log-messages (B, K, n) differ: in nats, relatively beyond one nat.

    Not as probabilities, where what is on its way from far evidence may be too small to see.

    Args:
        new: log-messages.
        old: the same before.
        seen: nats below zero at which nothing is told apart any more, `FAINT` or `BOTTOM`.
    """
    new, old = new.clamp(min=-seen), old.clamp(min=-seen)
    return ((new - old).abs_() / new.abs_().clamp_(min=1.0)).amax(1)


def first_best(logs: Tensor) -> Tensor:
    """(B, n) the first of the best states of (B, K, n); torch's own is slow where K is small."""
    if logs.shape[1] > _FEW:
        return logs.argmax(1)
    best, states = logs[:, 0], torch.zeros_like(logs[:, 0], dtype=torch.long)
    for state in range(1, logs.shape[1]):
        own = logs[:, state]
        states.masked_fill_(own > best, state)
        best = torch.maximum(best, own)
    return states


def take(values: Tensor, index: Tensor) -> Tensor:
    """(B, K, E) at some of its last places; torch selects from matrices much faster."""
    batch, states, _ = values.shape
    return values.reshape(batch * states, -1).index_select(1, index).reshape(batch, states, -1)


def neighbours(places: Tensor) -> slice | Tensor:
    """An ascending index, as a slice if it has no gaps: that reads where the values are."""
    first, last = int(places[0]), int(places[-1]) + 1
    return slice(first, last) if last - first == len(places) else places
