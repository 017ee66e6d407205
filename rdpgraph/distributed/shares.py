"""Work that needs no exchange, shared between processes: rows, models, independent estimates."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from torch import Tensor

from rdpgraph.distributed.wire import Split, Wire
from rdpgraph.estimate.replicates import Replicates

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

Items = TypeVar("Items", Tensor, range, Sequence[Any])


def share(items: Items, mesh: "DeviceMesh") -> Items:
    """This rank's part of a sequence, or of a tensor's rows, in order; parts differ by one at most.

    Args:
        items: the same on every rank: rows of evidence, sentences, models.
        mesh: of one dim.
    """
    wire = Wire.of(mesh)
    return part_of(items, wire.rank, wire.ranks)


def part_of(items: Items, rank: int, ranks: int) -> Items:
    """A rank's part of them."""
    return items[len(items) * rank // ranks : len(items) * (rank + 1) // ranks]


def pooled(replicates: Replicates, mesh: "DeviceMesh") -> Replicates:
    """The independent estimates of all ranks together: their mean Z, and its standard error.

    Each rank makes its own, ``posterior.replicates``, from a generator of its own seed, and has
    all of them after it. Differentiable: each rank's potentials have the gradient of the mean.

    Args:
        replicates: of this rank, of one batch shape everywhere; how many may differ.
        mesh: of one dim.
    """
    wire, values = Wire.of(mesh), replicates.log_partitions
    counts = tuple(wire.told(len(values)))
    flat = values.reshape(len(values), math.prod(values.shape[1:]))
    columns = Split(wire, counts).known(flat.mT)
    whole = columns.mT.reshape([sum(counts), *values.shape[1:]])
    return Replicates(whole, replicates.equal)
