"""Parts of a tensor on the processes of torch.distributed: which there are, and how they meet.

What is computed from whole values is the same on all processes, so that a loss counts once. Values
that all have (whole), and parts of which each process has its own, are turned into each other by
linear maps of the values of all processes:

    copy:    whole to one copy each,        transposed: the sum of what all have
    gather:  the parts in a row to a whole,  transposed: the part of this process

Each is the gradient of the other of its row, so all derivatives exist.
"""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

from rdpgraph.errors import ModelError

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor


def is_sharded(value: object) -> bool:
    """Return whether a value is a DTensor; its type is compared by name, to import nothing."""
    return type(value).__name__ == "DTensor"


def are_same_values(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors are views of the same memory; of DTensors, of what is here."""
    sharded = is_sharded(one)
    if sharded != is_sharded(other):
        return False
    if sharded:
        one, other = (x.detach().to_local() for x in (one, other))  # pyright: ignore
    return one.is_set_to(other)


@dataclass(frozen=True, eq=False)
class Shard:
    """How the parts of one dim of a tensor lie on the processes.

    All processes call every method, in the same order.

    Attributes:
        group: the processes; None where this one has all.
        rank: of this process.
        sizes: of the parts, by rank. A process without a part holds one entry that counts as
            nothing, so that no maximum is over nothing.
    """

    group: Any
    rank: int
    sizes: tuple[int, ...]

    @property
    def size(self) -> int:
        """The size of the part here."""
        return self.sizes[self.rank]

    @property
    def start(self) -> int:
        """The first entry here."""
        return sum(self.sizes[: self.rank])

    def told(self, value: Any) -> list[Any]:
        """A small Python object of every process, by rank."""
        if self.group is None:
            return [value]
        found: list[Any] = [None] * len(self.sizes)
        dist.all_gather_object(found, value, group=self.group)
        return found

    def copy(self, whole: Tensor) -> Tensor:
        """Whole values for use beside a part: their gradients on all processes are added up."""
        return whole if self.group is None else _apply(_same, self._total, whole)

    def total(self, values: Tensor) -> Tensor:
        """The sums of the values of all processes."""
        return values if self.group is None else _apply(self._total, _same, values)

    def part(self, whole: Tensor, dim: int) -> Tensor:
        """The part of whole values that goes with the part here; one entry where there is none."""
        if self.group is None:
            return whole
        return _apply(self._cutting(dim), self._gathering(dim), whole)

    def gather(self, part: Tensor, dim: int) -> Tensor:
        """The parts of all processes in a row; an entry of a process without a part is left out."""
        if self.group is None:
            return part
        return _apply(self._gathering(dim), self._cutting(dim), part)

    def stack(self, values: Tensor) -> Tensor:
        """Return the values of all processes, (processes, ...).

        Every process calls this, with values of one shape.
        """
        each = Shard(self.group, self.rank, (1,) * len(self.sizes))
        return each.gather(values.unsqueeze(0), 0)

    # ---- the maps ----

    def _total(self, values: Tensor) -> Tensor:
        total = values.detach().clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=self.group)
        return total

    def _cutting(self, dim: int) -> Callable[[Tensor], Tensor]:
        def cut(whole: Tensor) -> Tensor:
            # A process without a part has some entry, which meets the one that counts as nothing.
            start = min(self.start, sum(self.sizes) - 1)
            return whole.detach().narrow(dim, start, max(1, self.size)).clone()

        return cut

    def _gathering(self, dim: int) -> Callable[[Tensor], Tensor]:
        def gathered(part: Tensor) -> Tensor:
            # Parts of one size are sent, of which the ends are left out again.
            part, most = part.detach().narrow(dim, 0, self.size), max(self.sizes)
            sent = part.new_zeros(*part.shape[:dim], most, *part.shape[dim + 1 :])
            sent.narrow(dim, 0, self.size).copy_(part)
            sent = torch.view_as_real(sent) if sent.is_complex() else sent
            parts = [torch.empty_like(sent) for _ in self.sizes]
            dist.all_gather(parts, sent, group=self.group)
            parts = [torch.view_as_complex(x) for x in parts] if part.is_complex() else parts
            each = zip(parts, self.sizes, strict=True)
            return torch.cat([one.narrow(dim, 0, size) for one, size in each], dim)

        return gathered


def _same(values: Tensor) -> Tensor:
    return values.detach().clone()


def _apply(there: Any, back: Any, values: Tensor) -> Tensor:
    made: Tensor = _LinearMap.apply(there, back, values)  # pyright: ignore
    return made


class _LinearMap(torch.autograd.Function):
    """A linear map and its transpose, which is its gradient."""

    @staticmethod
    def forward(ctx: Any, there: Any, back: Any, values: Tensor) -> Tensor:
        ctx.maps = back, there
        return there(values)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        there, back = ctx.maps
        return None, None, _apply(there, back, gradients[0])


# ---- DTensors ----


@dataclass(frozen=True, eq=False)
class LocalPart:
    """What this process has of a DTensor.

    Attributes:
        values: the part; gradients reach the DTensor.
        dim: the dim that is split between the processes.
        shard: how the parts lie on the processes.
    """

    values: Tensor
    dim: int
    shard: Shard

    @property
    def held(self) -> Tensor:
        """The part; one entry of -inf along the dim where this process has none."""
        if self.shard.size:
            return self.values
        shape = [*self.values.shape]
        shape[self.dim] = 1
        return torch.cat([self.values, self.values.new_full(shape, -math.inf)], self.dim)


def part_of(name: str, whole: "DTensor") -> LocalPart:
    """The part of a DTensor that is here.

    All processes of its mesh call this, and learn the sizes of all parts.

    Args:
        name: of the tensor, for errors.
        whole: split in one dim by one dim of its mesh; any other has whole values.

    Raises:
        ModelError: on all processes alike, for other placements, or parts that do not fit.
    """
    mesh, placements = whole.device_mesh, whole.placements
    split = [k for k, one in enumerate(placements) if one.is_shard() and mesh.size(k) > 1]
    if len(split) > 1 or any(one.is_partial() for one in placements):
        raise ModelError(
            f"{name} needs a DTensor that is split in one dim, by one dim of its mesh; got "
            f"{tuple(placements)}: redistribute it, as to [Shard(-1)]."
        )
    # What is not split is whole everywhere; else all processes tell the sizes of their parts.
    values: Tensor = _Local.apply(whole)  # pyright: ignore
    if not split or not whole.numel():
        return LocalPart(values, 0, Shard(None, 0, tuple(values.shape[:1])))
    placement: Any = placements[split[0]]
    dim = placement.dim % whole.ndim
    group, rank = mesh.get_group(split[0]), mesh.get_local_rank(split[0])
    asking = Shard(group, rank, (0,) * mesh.size(split[0]))
    shapes = asking.told((tuple(whole.shape), tuple(values.shape)))
    sizes = tuple(own[dim] for _, own in shapes)
    parts = [(*whole.shape[:dim], size, *whole.shape[dim + 1 :]) for size in sizes]
    if sum(sizes) != whole.shape[dim] or shapes != [(tuple(whole.shape), one) for one in parts]:
        raise ModelError(
            f"{name} needs parts that are {tuple(whole.shape)} together on every process; got "
            f"parts of {[own for _, own in shapes]} of {[shape for shape, _ in shapes]}."
        )
    return LocalPart(values, dim, Shard(group, rank, sizes))


class _Local(torch.autograd.Function):
    """The part of a DTensor, whose gradient is a DTensor of the same placements."""

    @staticmethod
    def forward(ctx: Any, whole: "DTensor") -> Tensor:
        ctx.placed = whole.device_mesh, whole.placements
        ctx.shape = whole.shape
        return whole.to_local().detach()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        from torch.distributed.tensor import DTensor

        stride = [*itertools.accumulate(reversed(ctx.shape[1:]), lambda x, y: x * y, initial=1)]
        return DTensor.from_local(
            gradients[0].contiguous(), *ctx.placed, run_check=False, shape=ctx.shape,
            stride=tuple(reversed(stride)),
        )  # fmt: skip


def fingerprint(values: Tensor) -> int:
    """A hash of the bits of a tensor, to compare between processes."""
    flat = torch.view_as_real(values) if values.is_complex() else values
    flat = flat.detach().contiguous().reshape(-1)
    width = {8: torch.int64, 4: torch.int32, 2: torch.int16}.get(flat.element_size())
    whole = flat.view(width) if width is not None else flat
    total = 0
    for first in range(0, len(whole), 1 << 22):
        block = whole[first : first + (1 << 22)].long()
        places = torch.arange(first, first + len(block), device=block.device)
        total += int((block * (2 * places + 1)).sum())  # overflow wraps around
    return total % math.floor(2**61)


def require_alike(name: str, parts: Sequence[LocalPart], others: Mapping[str, Any]) -> None:
    """Check the parts of a model that is split between processes.

    The parts must be below +inf, and not NaN; all else must be the same on all processes.

    Args:
        name: of the model, for errors.
        parts: of its DTensors.
        others: its whole tensors, and numbers, by name.

    Raises:
        ModelError: on all processes alike, in one line.
    """
    # All tell what they have, so that each finds the same fault and none waits for another.
    given = {
        key: (tuple(x.shape), str(x.dtype), fingerprint(x)) if isinstance(x, Tensor) else x
        for key, x in others.items()
    }
    for part in parts:
        values = part.values.detach()
        highest = float(values.amax()) if values.numel() else -math.inf
        told = part.shard.told((highest, given))
        worst = next((high for high, _ in told if not high < math.inf), None)
        if worst is not None:
            kind = "NaN" if math.isnan(worst) else "+inf"
            raise ModelError(
                f"{name} needs log-values below +inf (-inf is a hard zero); got {kind}."
            )
        (_, first), *_ = told
        apart = [key for _, own in told for key in own if own[key] != first.get(key)]
        if apart:
            raise ModelError(
                f"{name} is split between processes, which must have the same {apart[0]}; theirs "
                "differ: make it of one seed, or send that of one process to all."
            )
