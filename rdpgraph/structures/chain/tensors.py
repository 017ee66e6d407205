"""The form in which every function of this folder takes chains."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from rdpgraph.errors import BudgetError
from rdpgraph.model.potential import Potential

MOST_TABULATED = 2**28
"""Entries of the transitions that a `Potential` is written out to, where a table is needed."""


class ChainTensors(NamedTuple):
    """Chains as tensors, batch dims flattened.

    Attributes:
        unary: (B, T, N) log-potentials in nats; -inf allowed.
        transition: (N, N), or (1 or B, T - 1, N, N) per step; [from, to].
        lengths: (B,) int64, 0 to T; an item uses the unary of so many steps, and the transitions
            between them.
    """

    unary: Tensor
    transition: Tensor
    lengths: Tensor

    @staticmethod
    def of(unary: Tensor, transition: Tensor, lengths: Tensor) -> "ChainTensors":
        """From (*batch, T, N), (N, N) or dims that broadcast to (*batch, T - 1, N, N), and (B,)."""
        *batch, total, states = unary.shape
        transition = flattened(transition, batch)
        dtype = torch.promote_types(unary.dtype, transition.dtype)
        if len(batch) != 1:
            unary = unary.reshape([math.prod(batch), total, states])
        return ChainTensors(unary.to(dtype), transition.to(dtype), lengths)

    def to(self, like: Tensor) -> "ChainTensors":
        """The same in the type and on the device of a tensor."""
        return ChainTensors(self.unary.to(like), self.transition.to(like), self.lengths)

    def detach(self) -> "ChainTensors":
        """The same without gradients."""
        return ChainTensors(self.unary.detach(), self.transition.detach(), self.lengths)


def flattened(transition: Tensor, batch: Sequence[int]) -> Tensor:
    """(N, N) as it is; (*batch, T - 1, N, N) with one batch dim, of size 1 where items share it."""
    if transition.ndim == 2:
        return transition
    lead, ends = transition.shape[:-3], transition.shape[-3:]
    lead = lead if math.prod(lead) == 1 else batch
    return transition.expand(*lead, *ends).reshape(math.prod(lead), *ends)


def table_of(transition: Tensor | Potential, *, of: str = "Chain") -> Tensor:
    """A transition as a tensor.

    Raises:
        BudgetError: a potential with more than `MOST_TABULATED` entries.
    """
    if isinstance(transition, Tensor):
        return transition
    entries = math.prod(transition.shape)
    if entries > MOST_TABULATED:
        raise BudgetError(
            f"{of}'s transition, a {type(transition).__name__}, has {entries:,} entries and at "
            f"most {MOST_TABULATED:,} are written out; ask a question that needs no table, or give "
            "infer an estimator that keeps a few states."
        )
    return transition.table(2)
