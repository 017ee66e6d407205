"""Sequences drawn from chains of low rank, exactly or relaxed; O(N r) for each step of a draw."""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from rdpgraph.errors import ModelError
from rdpgraph.structures.chain.factors import step_of
from rdpgraph.structures.chain.lowrank_messages import Links, LowRankTensors, forward
from rdpgraph.structures.draws import gumbel


@torch.no_grad()
def draw(parts: LowRankTensors, count: int, generator: torch.Generator | None) -> Tensor:
    """As `sampling.draw`: (count, B, T) states; -1 beyond the length, and where none is possible.

    O(T N r) for the messages and again for each draw: the transitions into the state that
    follows are one column, which is one product with the rank's factors.
    """
    steps = list(_backwards(parts, forward(parts), count, generator))
    return torch.stack([states for _, states in steps[::-1]], 2) if steps else _none(parts, count)


def relaxed(
    parts: LowRankTensors, count: int, temperature: float, generator: torch.Generator | None
) -> Tensor:
    """As `sampling.relaxed`: (count, B, T, N) weights, differentiable in every potential.

    Raises:
        ModelError: the temperature is not above 0.
    """
    if not 0 < temperature < math.inf:
        raise ModelError(
            f"Relaxed samples need a temperature above 0, and finite; got {temperature}."
        )
    weights: list[Tensor] = []
    for logits, states in _backwards(parts, forward(parts), count, generator):
        told = (states >= 0).unsqueeze(-1)
        safe = torch.where(told, logits, 0.0)
        safe = safe - safe.detach().amax(-1, keepdim=True)
        weights.append(torch.where(told, (safe / temperature).softmax(-1), 0.0))
    empty = parts.unary.expand(count, *parts.unary.shape)
    return torch.stack(weights[::-1], 2) if weights else empty


def _backwards(
    parts: LowRankTensors, messages: Tensor, count: int, generator: torch.Generator | None
) -> Iterator[tuple[Tensor, Tensor]]:
    """From the last step on: logits (count, B, N), noise included, and their argmaxes."""
    batch, total, size = parts.unary.shape
    columns = Links(parts.left)
    items = torch.arange(batch, device=messages.device)
    following = torch.zeros(count, batch, dtype=torch.long, device=messages.device)
    possible = torch.zeros(batch, dtype=torch.bool, device=messages.device)
    prefixes = messages.unbind(1)
    for step in range(total - 1, -1, -1):
        logits = prefixes[step].expand(count, batch, size)
        possible = possible | (
            (parts.lengths == step + 1) & (prefixes[step].detach() > -math.inf).any(-1)
        )
        if step + 1 < total:
            right = step_of(parts.right, step)
            own = items if right.ndim == 3 and len(right) > 1 else torch.zeros_like(items)
            known = following.clamp(min=0)
            ranks = right[known] if right.ndim == 2 else right[own, known]
            into = columns.times(step, ranks.transpose(0, 1)).transpose(0, 1)
            goes_on = (step + 1 < parts.lengths).reshape(1, -1, 1)
            logits = logits + torch.where(goes_on, into, 0.0)
        logits = logits + gumbel((count, batch, size), parts.unary, generator)
        inside = (step < parts.lengths) & possible
        following = torch.where(inside, logits.detach().argmax(-1), -1)
        yield logits, following


def _none(parts: LowRankTensors, count: int) -> Tensor:
    shape = (count, *parts.unary.shape[:2])
    return torch.full(shape, -1, dtype=torch.long, device=parts.unary.device)
