"""The transition between segments: one for all positions, or one for each.

It is a table (N, N), or tables (1 or B, T - 1, N, N), of which number t lies between a segment
that ends at position t and one that starts at t + 1.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from rdpgraph.errors import ModelError
from rdpgraph.model.lowrank import LowRank
from rdpgraph.model.potential import Potential
from rdpgraph.model.table import Table
from rdpgraph.structures.semimarkov.coupling import Coupling


def checked_transition(transition: Tensor | Potential, segments: Tensor) -> None:
    """Refuse a transition whose shape, type or device is not that of segments (*batch, T, D, N)."""
    *batch, steps, _, labels = segments.shape
    shape, each = tuple(transition.shape), (max(steps - 1, 0), labels, labels)
    lead = shape[:-3]
    broadcasts = len(lead) <= len(batch) and all(
        size in (1, wanted) for size, wanted in zip(reversed(lead), reversed(batch), strict=False)
    )
    if shape != each[1:] and (shape[-3:] != each or not broadcasts):
        raise ModelError(
            f"SemiMarkov of {steps} positions and {labels} labels, batch {tuple(batch)}, needs a "
            f"transition of shape {each[1:]} or (*batch, *{each}), [from, to]; got {shape}."
        )
    if isinstance(transition, LowRank) and len(shape) > 2:
        raise ModelError(
            f"SemiMarkov takes a LowRank transition for all positions, {each[1:]}; got {shape}: "
            "give its table(2)."
        )
    for what, own, theirs in (
        ("type", segments.dtype, transition.dtype),
        ("device", segments.device, transition.device),
    ):
        if own != theirs:
            raise ModelError(
                f"SemiMarkov needs segments and transition of one {what}; got {own} and {theirs}."
            )


def flattened(transition: Tensor, batch: Sequence[int]) -> Tensor:
    """(N, N) as it is; (*batch, T - 1, N, N) with one batch dim, of size 1 where items share it."""
    if transition.ndim == 2:
        return transition
    if not transition.shape[-3]:  # One position: nothing follows, and any table will do.
        return transition.flatten(0, -3).sum(0)
    own, ends = transition.shape[:-3], transition.shape[-3:]
    own = batch if math.prod(own) != 1 else own
    return transition.expand(*own, *ends).reshape(math.prod(own), *ends)


def after(transition: Tensor, place: int) -> Tensor:
    """(N, N), or (B, N, N) where items differ: the table between a position and the next."""
    if transition.ndim == 2:
        return transition
    return transition[0, place] if len(transition) == 1 else transition[:, place]


def tables(transition: Tensor, steps: int) -> Sequence[Coupling]:
    """The T - 1 tables, prepared for products."""
    if transition.ndim == 2:
        return [Coupling.of(transition)] * (steps - 1)
    return [Coupling.of(after(transition, place)) for place in range(steps - 1)]


def potential_after(potential: Potential, place: int) -> Potential:
    """The potential between a position and the next, on the labels of each item."""
    if isinstance(potential, Table) and len(potential.shape) > 2:
        return Table(after(potential.log_values, place))
    return potential


def joints(transition: Tensor | Potential, before: Tensor, following: Tensor) -> Tensor:
    """(*lead, B, T - 1) log-potentials of labels at every position and those that follow."""
    if not isinstance(transition, Tensor):
        ends = before.unsqueeze(-1), following.unsqueeze(-1)
        return transition.evaluate(ends)[..., 0, 0]
    if transition.ndim == 2:
        return transition[before, following]
    batch, steps = before.shape[-2:]
    item = _own(transition, torch.arange(batch, device=before.device)).unsqueeze(1)
    return transition[item, torch.arange(steps, device=before.device), before, following]


def _own(transition: Tensor, items: Tensor) -> Tensor:
    """Which of the tables are those of some items."""
    return items if len(transition) > 1 else torch.zeros_like(items)
