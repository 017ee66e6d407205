"""Charts: a value for every span, laid out so that the parts of all spans of a width are slices.

A span of width w + 1 that starts at i has w splits. Its left parts start at i and have widths
1..w; its right parts end at i + w and have widths w..1. Lefts are kept by start and width, rights
by end and falling width, so that split m is at the same place in both slices.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from rdpgraph._cache import remembered
from rdpgraph.model.semiring import finite
from rdpgraph.structures.hypertree.ranks import Ranks
from rdpgraph.structures.hypertree.rules import DenseRules

kept_layout = remembered(16, where=lambda words, device: words <= 64)  # noqa: ARG005
"""For functions of a number of words and a device that give the places of all parts of all spans.

Those of long sentences take as much memory as their charts.
"""


@dataclass(frozen=True, eq=False)
class HypertreeTensors:
    """A hypertree as the kernels take it.

    Attributes:
        leaves: (B, T, P) log-potentials of spans of width one.
        spans: (B, T, T, N) log-potentials of the others, [first, last].
        rules: flat, of N parents and C children.
        lengths: (B,) int64.
        split: whether leaves have states of their own, C = N + P; else C = N = P.
    """

    leaves: Tensor
    spans: Tensor
    rules: DenseRules | Ranks
    lengths: Tensor
    split: bool

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All that gradients may flow to."""
        return (self.leaves, self.spans, *self.rules.parts)

    def with_tensors(self, tensors: Sequence[Tensor]) -> "HypertreeTensors":
        """Others instead of `tensors`."""
        leaves, spans, *parts = tensors
        return replace(self, leaves=leaves, spans=spans, rules=self.rules.with_parts(parts))

    def rows(self, rows: Tensor) -> "HypertreeTensors":
        """Some of the items."""
        rules, lengths = self.rules.item(rows), self.lengths[rows]
        return HypertreeTensors(self.leaves[rows], self.spans[rows], rules, lengths, self.split)

    def to(self, dtype: torch.dtype) -> "HypertreeTensors":
        """The same in another type."""
        return self.with_tensors([part.to(dtype) for part in self.tensors])

    def phi(self, width: int) -> Tensor:
        """(B, T - width, N) log-potentials of spans of width + 1 words, -inf beyond the length."""
        phi = self.spans.diagonal(offset=width, dim1=1, dim2=2).mT
        return torch.where(self.inside(width).unsqueeze(2), phi, -math.inf)

    def inside(self, width: int) -> Tensor:
        """(B, T - width) whether spans of width + 1 words end within the length."""
        ends = torch.arange(width, self.spans.shape[1], device=self.lengths.device)
        return ends < self.lengths.unsqueeze(1)


@dataclass(frozen=True, eq=False)
class Chart:
    """Values of every span, twice: as left parts and as right parts. Filled in place.

    Attributes:
        lefts: (B, T, T, ...) by start and width.
        rights: (B, T, T, ...) by end and falling width.
    """

    lefts: Tensor
    rights: Tensor

    @staticmethod
    def of(like: Tensor, *dims: int, fill: float = 0.0) -> "Chart":
        """A chart of (B, T, T, *dims) for leaves (B, T, P)."""
        shape = (like.shape[0], like.shape[1], like.shape[1], *dims)
        return Chart(like.new_full(shape, fill), like.new_full(shape, fill))

    @property
    def tensors(self) -> tuple[Tensor, Tensor]:
        """As left parts, and as right parts."""
        return self.lefts, self.rights

    def skip(self) -> None:
        """Leave the next width as it is."""

    def put(self, width: int, left: Tensor, right: Tensor) -> None:
        """Set the spans of width + 1 words."""
        self.left(width).copy_(left)
        self.right(width).copy_(right)

    def left(self, width: int) -> Tensor:
        """(B, T - width, ...) what spans of width + 1 words are as left parts."""
        return self.lefts[:, : self.lefts.shape[1] - width, width]

    def right(self, width: int) -> Tensor:
        """(B, T - width, ...) what spans of width + 1 words are as right parts."""
        return self.rights[:, width:, self.rights.shape[1] - 1 - width]

    def left_parts(self, width: int, first: int, last: int) -> Tensor:
        """(B, T - width, last - first, ...) left parts of some splits of all spans of a width."""
        return self.lefts[:, : self.lefts.shape[1] - width, first:last]

    def right_parts(self, width: int, first: int, last: int) -> Tensor:
        """(B, T - width, last - first, ...) right parts of the same splits."""
        start = self.rights.shape[1] - width
        return self.rights[:, width:, start + first : start + last]


@dataclass(frozen=True, eq=False)
class Grown:
    """The same width by width, in operations that autograd records.

    Attributes:
        rows: of each width (B, T - width, ...) what spans are as left and as right parts.
    """

    rows: list[tuple[Tensor, Tensor]] = field(default_factory=list[tuple[Tensor, Tensor]])

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """Nothing: it is not kept."""
        return ()

    def skip(self) -> None:
        """Leave the next width empty; no part of it is read."""
        self.rows.append(())  # pyright: ignore

    def put(self, width: int, left: Tensor, right: Tensor) -> None:
        """Add the next width."""
        self.rows.append((left, right))

    def left(self, width: int) -> Tensor:
        """(B, T - width, ...) what spans of width + 1 words are as left parts."""
        return self.rows[width][0]

    def right(self, width: int) -> Tensor:
        """(B, T - width, ...) what spans of width + 1 words are as right parts."""
        return self.rows[width][1]

    def left_parts(self, width: int, first: int, last: int) -> Tensor:
        """(B, T - width, last - first, ...) left parts of some splits of all spans of a width."""
        parts = [self.left(place)[:, : place - width] for place in range(first, last)]
        return torch.stack(parts, 2)

    def right_parts(self, width: int, first: int, last: int) -> Tensor:
        """(B, T - width, last - first, ...) right parts of the same splits."""
        parts = [self.right(width - 1 - place)[:, place + 1 :] for place in range(first, last)]
        return torch.stack(parts, 2)


def peak(logs: Tensor) -> Tensor:
    """(..., 1) the largest of each row, 0 where all is -inf."""
    return finite(logs.detach().amax(-1, keepdim=True))


def lowest_log(logs: Tensor) -> Tensor:
    """(...) the smallest finite log of each row; +inf where there is none."""
    logs = logs.detach()
    return torch.where(logs > -math.inf, logs, math.inf).amin(-1)


def lowest(values: Tensor) -> Tensor:
    """(...) the log of the smallest positive value of each row; +inf where there is none."""
    values = values.detach()
    return torch.where(values > 0, values, math.inf).amin(-1).log()


def limit(dtype: torch.dtype) -> float:
    """A log below which a product may be lost, or its inverse be too large."""
    return -70.0 if dtype == torch.float32 else -600.0


def rescaled(raw: Tensor, base: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Values over their largest, that (1 if it is 0), and the log-scale (-inf if it is 0)."""
    top = raw.detach().amax(-1, keepdim=True)
    alive = top > 0
    safe = torch.where(alive, top, 1.0)
    scale = torch.where(alive, base + safe.log(), -math.inf)
    return raw / safe, safe, scale.squeeze(-1)


def times(rows: Tensor, matrix: Tensor) -> Tensor:
    """(B, S, M) with (1 or B, M, N) as (B, S, N)."""
    if len(matrix) == 1:
        products = rows.reshape(-1, rows.shape[-1]) @ matrix[0]
        return products.reshape(*rows.shape[:-1], matrix.shape[-1])
    return rows @ matrix


def products(left: Tensor, right: Tensor, count: int) -> Tensor:
    """Sums of outer products of (B, S, M) and (B, S, N) rows, as (count, M, N), count 1 or B."""
    if count == 1:
        return (left.flatten(0, 1).mT @ right.flatten(0, 1)).unsqueeze(0)
    return left.mT @ right
