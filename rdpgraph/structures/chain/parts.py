"""Chains as tensors with one batch dim, values of some pairs of their states, steps in lengths."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar

import torch
from torch import Tensor

from rdpgraph._core.cache import remembered
from rdpgraph._core.types import Lengths, Unary
from rdpgraph.logspace.logmatrix import finite
from rdpgraph.model.potentials.lowrank import LowRank, rows_of
from rdpgraph.model.potentials.operators import PairOperator
from rdpgraph.model.potentials.potential import Potential
from rdpgraph.structures.checks import written_out

Link = TypeVar("Link", bound=Tensor | LowRank | PairOperator, covariant=True)


@dataclass(frozen=True, eq=False)
class Parts(Generic[Link]):
    """Chains as tensors, batch dims flattened."""

    unary: Unary  # (B, T, N) log-potentials in nats; -inf allowed
    # [from, to] (N, N), or (1 or B, T - 1, N, N) per step; or a potential whose tensors have that
    # lead or none.
    transition: Link
    lengths: Lengths  # (B,) int64, 0 to T

    @staticmethod
    def of(unary: Tensor, link: Any, lengths: Tensor) -> "Parts[Any]":
        """Flatten (*batch, T, N) and a transition that broadcasts to that batch; lengths are (B,).

        Parameters and potentials are taken to one type.
        """
        *batch, total, states = unary.shape
        dtype = torch.promote_types(unary.dtype, link.dtype)
        if len(batch) != 1 or unary.dtype != dtype:
            unary = unary.reshape([math.prod(batch), total, states]).to(dtype)

        def side(values: Tensor) -> Tensor:
            if not isinstance(link, Tensor):
                if not link.lead(2) or values.ndim == 2:
                    return values.to(dtype)
                # One for all steps of all items, or one for each step.
                ends = values.shape[-2:]
                if math.prod(values.shape[:-2]) == 1:
                    return values.reshape(ends).to(dtype)
                values = values.expand(*values.shape[:-3], total - 1, *ends)
            return flattened(values, batch).to(dtype)

        sides = [*map(side, sides_of(link))]
        return Parts(unary, replaced(link, sides), lengths)

    def double(self) -> "Parts[Tensor | LowRank | PairOperator]":
        """The same in float64."""
        sides = [part.double() for part in sides_of(self.transition)]
        return Parts(self.unary.double(), replaced(self.transition, sides), self.lengths)


ChainTensors: TypeAlias = Parts[Tensor]
AnyChain: TypeAlias = Parts[Tensor | LowRank | PairOperator]


def sides_of(transition: Tensor | LowRank | PairOperator) -> tuple[Tensor, ...]:
    """The tensors of a transition."""
    return (transition,) if isinstance(transition, Tensor) else transition.tensors


def replaced(
    transition: Tensor | LowRank | PairOperator, sides: Sequence[Tensor]
) -> Tensor | LowRank | PairOperator:
    """The same kind of transition with other tensors."""
    return sides[0] if isinstance(transition, Tensor) else transition.replaced(sides)


def flattened(transition: Tensor, batch: Sequence[int]) -> Tensor:
    """(N, N) as it is; (*batch, T - 1, N, N) with one batch dim, of size 1 where items share it."""
    if transition.ndim == 2:
        return transition
    lead, ends = transition.shape[:-3], transition.shape[-3:]
    lead = lead if math.prod(lead) == 1 else batch
    return transition.expand(*lead, *ends).reshape(math.prod(lead), *ends)


def table_of(transition: Tensor | Potential, *, of: str = "Chain") -> Tensor:
    """A transition as a tensor; `BudgetError` above `tuning.MOST_TABULATED` entries."""
    if isinstance(transition, Tensor):
        return transition
    return written_out(of, "transition", transition, 2)


# ---- values of some pairs ----


def between(transition: Tensor | Potential, before: Tensor, after: Tensor) -> Tensor:
    """(*lead, B, T - 1) the log-values (nats) of states and the next ones; differentiable.

    A potential's states have dims (*lead, *batch, T - 1).
    """
    if not before.shape[-1]:
        return torch.zeros(before.shape, device=before.device)
    if isinstance(transition, Potential):
        return transition.evaluate([before.unsqueeze(-1), after.unsqueeze(-1)])[..., 0, 0]
    if transition.ndim == 2:
        return transition[before, after]
    return transition[*_places(transition, before), before, after]


def columns(transition: Tensor | LowRank | PairOperator, after: Tensor, *, first: int) -> Tensor:
    """(count, B, S, N) log-values from every state to one at the next step; differentiable.

    Given the states (count, B, S) after S steps from ``first`` on.
    """
    if isinstance(transition, Tensor):
        if transition.ndim == 2:
            turned = transition.mT.contiguous()
            return turned.index_select(0, after.reshape(-1)).unflatten(0, after.shape)
        return transition.mT[*_places(transition, after, first), after]
    here = slice(first, first + after.shape[2])
    sides = [x[:, here] if x.ndim > 3 else x for x in sides_of(transition)]
    if isinstance(transition, LowRank):
        rows = rows_of(sides[1], after.movedim(0, -1))  # the draws of a step by one product
        low = transition if sides[0].ndim == 2 else LowRank(*sides)
        return low.from_ranks.times(rows).movedim(2, 0)
    transition = transition.replaced(sides)
    every = torch.arange(transition.shape[-1], device=after.device)
    return transition.evaluate([every, after.unsqueeze(-1)])[..., 0]


def _places(side: Tensor, states: Tensor, first: int = 0) -> tuple[Tensor | int, Tensor]:
    """Items and steps of states (..., B, S), to index a table per step."""
    batch, steps = states.shape[-2:]
    items = torch.arange(batch, device=states.device).unsqueeze(1) if len(side) != 1 else 0
    numbers = torch.arange(first, first + steps, device=states.device)
    return items, numbers.clamp(max=side.shape[1] - 1)  # one for all steps of an item


# ---- steps within lengths ----


def inside(lengths: Tensor, total: int) -> Tensor:
    """(*batch, T): whether a step is within the length."""
    return torch.arange(total, device=lengths.device) < lengths.unsqueeze(-1)


@remembered(64)
def _full(count: int, length: int, device: torch.device) -> Tensor:
    return torch.full((count,), length, device=device)


def flat_lengths(lengths: Tensor | None, shape: Sequence[int], like: Tensor) -> Tensor:
    """(B,) lengths from (*batch,), for shape (*batch, T); default: all T."""
    if lengths is not None:
        return lengths.reshape(-1)
    return _full(math.prod(shape[:-1]), shape[-1], like.device)


def masked(unary: Tensor, lengths: Tensor) -> Tensor:
    """Unary potentials (*batch, T, N), zero beyond the lengths (*batch,)."""
    return torch.where(inside(lengths, unary.shape[-2]).unsqueeze(-1), unary, 0.0)


def held(values: Tensor, lengths: Tensor, *, best: bool) -> Tensor:
    """Marginals or max-marginals (*batch, T, states), with state 0 certain beyond the lengths."""
    if not values.shape[-2]:
        return values
    sure = torch.ones_like(lengths, dtype=values.dtype)
    if best:
        sure = torch.where(lengths > 0, values.amax((-2, -1)), 0.0)
    first = torch.arange(values.shape[-1], device=values.device) == 0
    only = torch.where(first, sure.reshape([*lengths.shape, 1, 1]), -math.inf if best else 0.0)
    return torch.where(inside(lengths, values.shape[-2]).unsqueeze(-1), values, only)


def peak(logs: Tensor, dims: tuple[int, ...]) -> Tensor:
    """The maxima over some dims, kept at size 1; 0 where all is -inf."""
    return finite(logs.amax(dims, keepdim=True))
