"""Chains as tensors with one batch dim."""

import math
from collections.abc import Sequence
from typing import Generic, NamedTuple, TypeAlias, TypeVar

import torch
from torch import Tensor

from rdpgraph._core import tuning
from rdpgraph.errors import BudgetError
from rdpgraph.model.potentials.lowrank import LowRank
from rdpgraph.model.potentials.potential import Potential
from rdpgraph.structures.chain.steps import RankSteps

Link = TypeVar("Link", bound=Tensor | RankSteps)


class Parts(NamedTuple, Generic[Link]):
    """Chains as tensors, batch dims flattened."""

    unary: Tensor  # (B, T, N) log-potentials in nats; -inf allowed
    transition: Link  # (N, N), or (1 or B, T - 1, N, N) per step; [from, to]; or ranks
    lengths: Tensor  # (B,) int64, 0 to T

    @staticmethod
    def of(unary: Tensor, given: Tensor | Potential, lengths: Tensor) -> "ChainTensors":
        """Flatten (*batch, T, N), a transition that broadcasts to that batch, and lengths (B,)."""
        *batch, total, states = unary.shape
        transition = flattened(table_of(given), batch)
        dtype = torch.promote_types(unary.dtype, transition.dtype)
        if len(batch) != 1:
            unary = unary.reshape([math.prod(batch), total, states])
        return Parts(unary.to(dtype), transition.to(dtype), lengths)

    @staticmethod
    def of_ranks(unary: Tensor, low: LowRank, lengths: Tensor) -> "RankTensors":
        """Flatten (*batch, T, N), factors of leads that broadcast to (*batch, T - 1), and (B,)."""
        *batch, total, states = unary.shape
        dtype = torch.promote_types(unary.dtype, low.dtype)

        def side(values: Tensor) -> Tensor:
            ends = values.shape[-2:]
            if math.prod(values.shape[:-2]) == 1:
                return values.reshape(ends).to(dtype)
            each = values.expand(*values.shape[:-3], total - 1, *ends)
            return flattened(each, batch).to(dtype)

        flat = unary.reshape([math.prod(batch), total, states]).to(dtype)
        return Parts(flat, RankSteps(side(low.log_left), side(low.log_right)), lengths)


ChainTensors: TypeAlias = Parts[Tensor]
RankTensors: TypeAlias = Parts[RankSteps]


def flattened(transition: Tensor, batch: Sequence[int]) -> Tensor:
    """(N, N) as it is; (*batch, T - 1, N, N) with one batch dim, of size 1 where items share it."""
    if transition.ndim == 2:
        return transition
    lead, ends = transition.shape[:-3], transition.shape[-3:]
    lead = lead if math.prod(lead) == 1 else batch
    return transition.expand(*lead, *ends).reshape(math.prod(lead), *ends)


def of_items(parts: Sequence[Tensor], rows: Tensor) -> list[Tensor]:
    """The tensors of some items: the unary, tables or factors, and lengths."""
    shared = (part.ndim == 2 or (part.ndim > 3 and len(part) == 1) for part in parts)
    return [part if alone else part[rows] for part, alone in zip(parts, shared, strict=True)]


def table_of(transition: Tensor | Potential, *, of: str = "Chain") -> Tensor:
    """A transition as a tensor; `BudgetError` above `tuning.MOST_TABULATED` entries."""
    if isinstance(transition, Tensor):
        return transition
    entries = math.prod(transition.shape)
    if entries > tuning.MOST_TABULATED:
        raise BudgetError(
            f"{of}'s transition, a {type(transition).__name__}, has {entries:,} entries and at "
            f"most {tuning.MOST_TABULATED:,} are written out; ask a question that needs no table, "
            "or give infer an estimator that keeps a few states."
        )
    return transition.table(2)
