"""Transitions whose states lie on several ranks, as potentials: evaluated where they are asked."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rdpgraph._shapes import broadcast_shapes
from rdpgraph.distributed.wire import Split
from rdpgraph.model.bilinear import rows_of
from rdpgraph.model.logmatrix import log_products
from rdpgraph.model.potential import Potential
from rdpgraph.model.table import Table


@dataclass(frozen=True, eq=False)
class Columns(Potential):
    """A transition of which each rank holds some columns; every value goes to every rank.

    Attributes:
        local: (*lead, N, n) the columns here.
        split: of the states.
    """

    local: Tensor
    split: Split

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the table with the columns of all ranks."""
        return (*self.local.shape[:-1], self.split.total)

    @property
    def dtype(self) -> torch.dtype:
        """The floating type of the log-values."""
        return self.local.dtype

    @property
    def device(self) -> torch.device:
        """Where the columns here live."""
        return self.local.device

    def evaluate(self, states: Sequence[Tensor]) -> Tensor:
        """The log-values on a grid of states, each from the rank that has it."""
        here, places = self.split.owned(states[1])
        if self.split.local:
            values = Table.from_logs(self.local).evaluate([states[0], places])
            values = torch.where(here.unsqueeze(-2), values, 0.0)
        else:
            lead = broadcast_shapes(
                self.local.shape[:-2], states[0].shape[:-1], states[1].shape[:-1]
            )
            values = self.local.new_zeros(*lead, states[0].shape[-1], states[1].shape[-1])
        return self.split.wire.summed(values)


@dataclass(frozen=True, eq=False)
class RankRows(Potential):
    """A `LowRank` transition whose rows lie on several ranks; those asked for go to every rank.

    Attributes:
        left: (*lead, n, r) the log-factors of the states here, as those before.
        right: (*lead, n, r) as those after.
        split: of the states.
    """

    left: Tensor
    right: Tensor
    split: Split

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the table with the columns of all ranks."""
        lead = broadcast_shapes(self.left.shape[:-2], self.right.shape[:-2])
        return (*lead, self.split.total, self.split.total)

    @property
    def dtype(self) -> torch.dtype:
        """The floating type of the log-factors."""
        return self.left.dtype

    @property
    def device(self) -> torch.device:
        """Where the rows here live."""
        return self.left.device

    def evaluate(self, states: Sequence[Tensor]) -> Tensor:
        """The log-values on a grid of states, from the rows of both sides."""
        return log_products(
            rows_from(self.left, states[0], self.split),
            rows_from(self.right, states[1], self.split),
        )


def rows_from(local: Tensor, states: Tensor, split: Split) -> Tensor:
    """(*lead, m, r) the rows of some states, from the ranks that have them."""
    here, places = split.owned(states)
    if split.local:
        rows = torch.where(here.unsqueeze(-1), rows_of(local, places), 0.0)
    else:
        lead = broadcast_shapes(local.shape[:-2], states.shape[:-1])
        rows = local.new_zeros(*lead, states.shape[-1], local.shape[-1])
    return split.wire.summed(rows)
