"""What goes between processes: tensors gathered, summed and compared, with their gradients.

Every call is a collective: all ranks of the group make it, in the same order. A value that all
ranks hold is a loss on each of them once, not once for every rank: where all ranks compute the same
from what they have gathered, the gradient is that of one of them; where each computes its own part,
the gradients are added up.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, TypeAlias, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from rdpgraph._core.cache import cached_property
from rdpgraph._core.portable import tensors_in
from rdpgraph.errors import ModelError, RdpgraphError
from rdpgraph.logspace.gradients import refused

_Map: TypeAlias = Callable[[Tensor], Tensor]
Value = TypeVar("Value")


@dataclass(frozen=True, eq=False)
class Wire:
    """The processes that answer together.

    Attributes:
        group: of torch.distributed.
        rank: of this process in it.
        ranks: how many there are.
    """

    group: Any
    rank: int
    ranks: int

    @classmethod
    def of(cls, mesh: Any) -> "Wire":
        """The wire of a `DeviceMesh` of one dim.

        Raises:
            ModelError: of more dims.
        """
        if getattr(mesh, "ndim", 0) != 1:
            raise ModelError(
                f"A model is spread over a DeviceMesh of one dim; got {mesh!r:.80} (of several "
                'dims take one: mesh["states"]).'
            )
        return cls(mesh.get_group(), mesh.get_local_rank(), mesh.size())

    def told(self, value: Any) -> list[Any]:
        """What every rank has to say, a small object of Python, by rank."""
        answers: list[Any] = [None] * self.ranks
        if self.ranks == 1:
            return [value]
        dist.all_gather_object(answers, value, group=self.group)
        return answers

    def require_alike(self, what: str, value: Any) -> None:
        """Refuse ranks that disagree.

        Raises:
            ModelError: on every rank, the first two that differ in one line.
        """
        answers = self.told(value)
        for rank, answer in enumerate(answers):
            if answer != answers[0]:
                raise ModelError(
                    f"The ranks must have one model, and their {what} differ: rank 0 has "
                    f"{answers[0]!r:.120}, rank {rank} has {answer!r:.120}."
                )

    def asked(self, question: str) -> None:
        """Refuse ranks that ask different questions: messages of other sizes end a process.

        Raises:
            ModelError: on every rank.
        """
        self.require_alike("questions", question)

    def require_one_state(self, generator: torch.Generator | None) -> None:
        """Refuse generators that would not draw the same on every rank; None is torch's own.

        Raises:
            ModelError: they differ.
        """
        generator = torch.default_generator if generator is None else generator
        self.require_alike("generators", fingerprint(generator.get_state()))

    def agreed(self, question: Callable[[], Value]) -> Value:
        """This rank's answer, if every rank has one; an error of one of them is raised on all."""
        if self.ranks == 1:
            return question()
        answers, wrong = list[Value](), None
        try:
            answers.append(question())
        except RdpgraphError as error:
            wrong = error
        if bool(self.largest(torch.tensor(float(wrong is not None)))):
            raise next(error for error in self.told(wrong) if error is not None)
        return answers[0]

    def largest(self, values: Tensor) -> Tensor:
        """The largest of every entry, over the ranks; no gradient."""
        return self.reduced(values, dist.ReduceOp.MAX)

    def summed(self, values: Tensor) -> Tensor:
        """The sums over the ranks; the gradient of each rank's part is that of the sum."""
        return _linear(self.total, _as_it_is, values) if self.ranks > 1 else values

    def pooled(self, values: Tensor) -> Tensor:
        """`summed`, where each rank goes on to its own part of the answer."""
        return _linear(self.total, self.pooled, values) if self.ranks > 1 else values

    def stacked(self, local: Tensor) -> Tensor:
        """(R, ...) what every rank has, of one shape, from which all compute the same."""
        flat = local.reshape(1, -1)
        split = Split(self, (flat.shape[1],) * self.ranks)
        return split.known(flat).reshape([self.ranks, *local.shape])

    def total(self, values: Tensor) -> Tensor:
        """`summed` without gradient."""
        return self.reduced(values, dist.ReduceOp.SUM)

    def reduced(self, values: Tensor, how: Any) -> Tensor:
        """Every entry over the ranks; no gradient."""
        if self.ranks == 1:
            return values
        total = values.detach().clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, how, group=self.group)
        return total


@dataclass(frozen=True, eq=False)
class Split:
    """A dim whose entries lie in order on the ranks, which may hold unequally many, or none.

    Both ways go by one all-to-all of exact sizes: the bytes of an all-gather or a reduce-scatter,
    nothing of them padding, and sums in the order of the ranks, the same on every run.

    Attributes:
        wire: the ranks.
        sizes: how many entries each holds.
    """

    wire: Wire
    sizes: tuple[int, ...]

    @cached_property
    def ends(self) -> list[int]:
        """One past the last entry of every rank."""
        return list(accumulate(self.sizes))

    @property
    def total(self) -> int:
        """How many entries there are."""
        return self.ends[-1]

    @property
    def start(self) -> int:
        """This rank's first entry."""
        return self.ends[self.wire.rank] - self.local

    @property
    def local(self) -> int:
        """How many entries this rank holds."""
        return self.sizes[self.wire.rank]

    def part(self, whole: Tensor) -> Tensor:
        """This rank's entries of the last dim."""
        return whole[..., self.start : self.start + self.local]

    def gathered(self, local: Tensor) -> Tensor:
        """(B, N) from every rank's (B, n); each rank goes on to its own part of the answer."""
        return _linear(self.gather, self.scattered, local) if self.wire.ranks > 1 else local

    def scattered(self, parts: Tensor) -> Tensor:
        """(B, n) of the sum over the ranks of (B, N)."""
        return _linear(self.scatter, self.gathered, parts) if self.wire.ranks > 1 else parts

    def known(self, local: Tensor) -> Tensor:
        """`gathered`, where all ranks go on to compute the same."""
        return _linear(self.gather, self.part, local) if self.wire.ranks > 1 else local

    def owned(self, entries: Tensor) -> tuple[Tensor, Tensor]:
        """Which entries are this rank's, and their places here, 0 for the others."""
        here = (entries >= self.start) & (entries < self.start + self.local)
        return here, torch.where(here, entries - self.start, 0)

    def gather(self, local: Tensor) -> Tensor:
        """`gathered` without gradient."""
        batch = len(local)
        sizes = [batch * size for size in self.sizes]
        flat = local.detach().reshape(-1).repeat(self.wire.ranks)
        arrived = local.new_empty(sum(sizes))
        _exchange(self.wire, arrived, flat, sizes, [batch * self.local] * self.wire.ranks)
        parts = zip(arrived.split(sizes), self.sizes, strict=True)
        return torch.cat([part.view(batch, size) for part, size in parts], 1)

    def scatter(self, parts: Tensor) -> Tensor:
        """`scattered` without gradient."""
        batch = len(parts)
        flat = torch.cat([part.reshape(-1) for part in parts.detach().split(self.sizes, 1)])
        arrived = parts.new_empty(self.wire.ranks * batch * self.local)
        sizes = [batch * size for size in self.sizes]
        _exchange(self.wire, arrived, flat, [batch * self.local] * self.wire.ranks, sizes)
        return arrived.view(self.wire.ranks, batch, self.local).sum(0)


def _exchange(
    wire: Wire, arrived: Tensor, sent: Tensor, arriving: Sequence[int], leaving: Sequence[int]
) -> None:
    dist.all_to_all_single(arrived, sent, list(arriving), list(leaving), group=wire.group)


def _as_it_is(gradient: Tensor) -> Tensor:
    return gradient


def _linear(there: _Map, back: _Map, values: Tensor) -> Tensor:
    """A linear map of tensors, of which the second is the transpose."""
    mapped: Tensor = _Linear.apply(there, back, values)  # pyright: ignore
    return mapped


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, there: _Map, back: _Map, values: Tensor) -> Tensor:
        ctx.back = back
        return there(values)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:  # pyright: ignore
        back = ctx.back(gradient)
        if torch.is_grad_enabled() and gradient.requires_grad:
            back = refused(back.detach(), NO_SECOND, gradient)
        return None, None, back


NO_SECOND = (
    "What was sent between processes is differentiable once: its gradient has no gradient of its "
    "own; ask one process."
)


def fingerprint(values: Tensor) -> int:
    """A number that two tensors of different bits hardly share; of a tensor that all ranks hold."""
    flat = values.detach().contiguous().reshape(-1)
    width = {8: torch.int64, 4: torch.int32, 2: torch.int16}.get(flat.element_size())
    whole = flat.view(width) if width is not None else flat
    total = 0
    for first in range(0, len(whole), 1 << 22):
        block = whole[first : first + (1 << 22)].long()
        places = torch.arange(first, first + len(block), device=block.device)
        total += int((block * (2 * places + 1)).sum())  # wraps around, as it may
    return total % math.floor(2**61)


def fingerprint_of(*parts: object) -> list[object]:
    """The same of the tensors of some models: their shapes, types and bits."""
    return [(tuple(part.shape), str(part.dtype), fingerprint(part)) for part in tensors_in(parts)]
