"""Tables that are split between processes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rdpgraph._core.shards import is_sharded, part_of
from rdpgraph.errors import UnsupportedError
from rdpgraph.logspace.logmatrix import soft_sum
from rdpgraph.model.potentials.potential import Potential
from rdpgraph.model.potentials.table import Table

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor


@dataclass(frozen=True, eq=False)
class Sharded(Potential):
    """A table of log-values (nats) of which each process has a part, so that none has it whole.

    Structures make one of a DTensor. All processes ask the same questions, in the same order.
    Values on a grid of states are sums over processes of what each of them has.

    Args:
        values: (*lead, k_1, ..., k_n), split in one dim; gradients are DTensors as well.
    """

    values: "DTensor"

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.values.shape)

    @property
    def dtype(self) -> torch.dtype:
        return self.values.dtype

    @property
    def device(self) -> torch.device:
        return self.values.device

    def evaluate(self, states: Sequence[Tensor]) -> Tensor:
        """The log-values on a grid of states, which all processes add up."""
        part = part_of("A table", self.values)
        shard, slot = part.shard, part.dim - (self.values.ndim - len(states))
        if shard.group is None:
            return Table.checked(part.values).evaluate(states)
        if slot < 0:
            raise UnsupportedError(
                "A table that is split between processes is evaluated where it is split by states; "
                f"got a DTensor of shape {self.shape}, split in dim {part.dim}: redistribute it."
            )
        here = states[slot] - shard.start
        inside = (here >= 0) & (here < shard.size)
        own = [*states[:slot], here.clamp(0, max(0, shard.size - 1)), *states[slot + 1 :]]
        values = Table.checked(part.held).evaluate(own)
        *lead, asked = inside.shape
        inside = inside.reshape(*lead, *(1,) * slot, asked, *(1,) * (len(states) - slot - 1))
        return shard.total(torch.where(inside, values, 0.0))

    def row_totals(self) -> Tensor:
        """The log-sums over the last dim, whole on all processes; no gradient."""
        part = part_of("A table", self.values)
        totals, last = soft_sum(part.held.detach(), -1), self.values.ndim - 1
        if part.dim == last:
            return soft_sum(part.shard.stack(totals), 0)
        return part.shard.gather(totals, part.dim)

    def table(self, arity: int) -> Tensor:
        raise UnsupportedError(
            f"This answer needs a whole table of shape {self.shape}, and got a DTensor, of which "
            "each process has a part: take its full_tensor(), or ask for log Z, its gradients, "
            "marginals or scores."
        )


def as_potential(value: Any) -> Any:
    """A DTensor as a potential; anything else as it is."""
    return Sharded(value) if is_sharded(value) else value
