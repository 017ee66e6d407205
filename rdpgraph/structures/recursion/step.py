"""Steps of a tape: each lists its alternatives, on which all questions are answered.

The value of a step is the soft sum of its alternatives: (B, P, K) from terms with one more dim.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from rdpgraph._core import tuning
from rdpgraph._core.cache import remembered
from rdpgraph.logspace.logmatrix import soft_sum
from rdpgraph.structures.draws import Pick
from rdpgraph.structures.recursion.values import Value, View


@dataclass(frozen=True, eq=False)
class Reader:
    """The values of the steps done so far, read through views."""

    values: list[Tensor] = field(default_factory=list[Tensor])  # (B or 1, P, K) of each step
    pools: float = 4  # the number of pools that are cached, those read last
    temperature: float = 1.0  # of the sums
    most: int = 1  # the length of lists of best derivations, by rank in a dim in front
    small: int = 0  # the size up to which a step's terms are cached for the way down
    # By step, the cached terms (B or 1, A, P or 1, K or 1).
    terms: dict[object, Tensor] = field(default_factory=dict[object, Tensor], init=False)
    # Steps by number, `Pairs`, whose values are recomputed.
    remade: dict[int, Any] = field(default_factory=dict[int, Any], init=False)
    _latest: dict[tuple[int, ...], Tensor] = field(
        default_factory=dict[tuple[int, ...], Tensor], init=False
    )

    @property
    def goal(self) -> Tensor:
        """(B or 1,) the value of the last step."""
        return self.values[-1].reshape(-1)

    def value(self, number: int) -> Tensor:
        """(B or 1, P, K) of a step."""
        remade = self.remade.get(number)
        return self.values[number] if remade is None else remade.up(self, self.temperature)

    def rows(self, value: Value, item: Tensor, place: Tensor) -> Tensor:
        """(Q, K) at some places of some items."""
        remade = self.remade.get(value.number)
        if remade is not None:
            keys, which = (item * value.places + place).unique(return_inverse=True)
            return remade.rows(self, keys // value.places, keys % value.places)[which]
        return rows(self.values[value.number], item, place)

    def pooled(self, view: View) -> Tensor:
        """(B or 1, places of the pool, K); with an index one more place, of -inf."""
        if view.index is None:
            return self.values[view.pool[0].number] if view.whole else self._pooled(view)
        key = view.numbers
        pool = self._latest.pop(key, None)
        if pool is None:
            pool = self._pooled(view)
            if len(self._latest) >= self.pools:
                del self._latest[next(iter(self._latest))]
        self._latest[key] = pool
        return pool

    def _pooled(self, view: View) -> Tensor:
        parts = [self.values[value.number] for value in view.pool]
        if view.index is not None:
            none = torch.full((), -math.inf, dtype=parts[0].dtype, device=parts[0].device)
            parts.append(none.expand(*parts[-1].shape[:-2], 1, view.width))
        return side_by_side(parts, -2)

    def read(self, view: View) -> Tensor:
        """(B or 1, M, P or 1, K)."""
        if view.parts > 1:
            whole = self.read(replace(view, parts=1)).unflatten(-1, (view.parts, -1))
            return whole.squeeze(-4).transpose(-3, -2)
        pool, index = self.pooled(view), view.index
        if index is None:
            return pool.unsqueeze(-2 if view.as_alternatives else -3)
        if index.ndim == 2:
            return pool.index_select(-2, index.flatten()).unflatten(-2, index.shape)
        item = torch.arange(len(index), device=index.device).reshape(-1, 1, 1)
        return pool[..., item if pool.shape[-3] > 1 else item * 0, index, :]

    def together(self, way: Sequence[View]) -> list[Tensor]:
        """The views of a product; of lists the ranks that may be needed."""
        parts = [self.read(view) for view in way]
        if self.most == 1:
            return parts
        ranks = self.ranks(way)
        return [part if at is None else part[at] for part, at in zip(parts, ranks, strict=True)]

    def ranks(self, way: Sequence[View]) -> Sequence[Tensor | None]:
        """(C,) for each view the ranks that may be needed; None: all, where the others have one."""
        if len(way) == 1:
            return [None]
        lengths = [self._length(view.pool) for view in way]
        if sum([length > 1 for length in lengths]) < 2:
            return [None] * len(way)
        return needed_ranks(tuple(lengths), self.most, self.values[0].device)

    def _length(self, pool: tuple[Value, ...]) -> int:
        longest = 0
        for value in reversed(pool):
            longest = max(longest, self.values[value.number].shape[0])
            if longest == self.most:
                break
        return longest

    def at(self, view: View, item: Tensor, place: Tensor, label: Tensor | None = None) -> Tensor:
        """(Q, M) of some places of some items; (Q, M, K) of all labels by default."""
        if view.as_alternatives:
            pool = self.pooled(view)
            if label is None:
                return pool.expand(len(item), -1, -1) if pool.shape[0] == 1 else pool[item]
            label = view.label(label * 0, label)
            return pool[0].mT[label] if pool.shape[0] == 1 else pool[item, :, label]
        item, place = item.unsqueeze(1), place.unsqueeze(1)
        ways = torch.arange(view.ways, device=item.device)
        number, pool = view.number(ways, item, place), self.pooled(view)
        places = (number,) if label is None else (number, view.label(ways, label.unsqueeze(1)))
        return pool[0][places] if pool.shape[0] == 1 else pool[(item, *places)]


def rows(values: Tensor, item: Tensor, place: Tensor) -> Tensor:
    """(Q, ...) of (B or 1, P or 1, ...) at places of items; (1, ...) if there is one."""
    batch, places = values.shape[:2]
    if places == 1:
        return values[:, 0] if batch == 1 else values[:, 0][item]
    return values[0][place] if batch == 1 else values[item, place]


def entries(terms: Tensor, *nodes: Tensor) -> Tensor:
    """(Q, A) of (B or 1, A, P or 1, K or 1) at nodes by item, place and label."""
    rows = terms.movedim(1, 3)
    index = tuple([node for node, size in zip(nodes, rows.shape, strict=False) if size > 1])
    rows = rows.squeeze(tuple([dim for dim in range(3) if rows.shape[dim] == 1]))
    return rows[index] if index else rows.expand(nodes[0].shape[0], -1)


def batches(parts: Sequence[Tensor]) -> list[Tensor]:
    """Tensors (B or 1, M, P or 1, K or 1) broadcast to each other except in M."""
    batch, places, width = (joint([part.shape[dim] for part in parts]) for dim in (-4, -2, -1))
    return equally_long([
        part.expand(*part.shape[:-4], batch, part.shape[-3], places, width) for part in parts
    ])  # fmt: skip


def side_by_side(parts: list[Tensor], dim: int) -> Tensor:
    """Concatenate tensors (B or 1, P, K) along places or labels."""
    if len({part.shape[:-2] for part in parts}) > 1:
        batch = joint([part.shape[-3] for part in parts])
        parts = equally_long([part.expand(*part.shape[:-3], batch, -1, -1) for part in parts])
    return torch.cat(parts, dim)


def equally_long(parts: list[Tensor]) -> list[Tensor]:
    """Lists, by rank in their first dim, padded with -inf to one length."""
    most = max([part.shape[0] for part in parts])
    if all(part.shape[0] == most for part in parts):
        return parts
    missing = [torch.full_like(part[:1], -math.inf) for part in parts]
    return [
        part if part.shape[0] == most else torch.cat([part, *[none] * (most - len(part))])
        for part, none in zip(parts, missing, strict=True)
    ]


@remembered(64)
def needed_ranks(lengths: tuple[int, ...], most: int, device: torch.device) -> Sequence[Tensor]:
    """(C,) the ranks in some lists of products that may be among the best.

    A product with ranks r has prod(r + 1) - 1 before it.
    """
    chosen: list[tuple[tuple[int, ...], int]] = [((), 1)]
    for length in lengths:
        chosen = [
            ((*ranks, rank), count * (rank + 1))
            for ranks, count in chosen
            for rank in range(min(length, most // count))
        ]
    return torch.tensor([ranks for ranks, _ in chosen], device=device).unbind(1)


def joint(sizes: Sequence[int]) -> int:
    """The size that 1 and others broadcast to."""
    return next((size for size in sizes if size != 1), 1)


def soft(logs: Tensor, dim: int, temperature: float) -> Tensor:
    """`soft_sum` over one dim, in fewer calls."""
    if not logs.shape[dim] or (temperature == 0.0 and logs.requires_grad):
        return soft_sum(logs, dim, temperature)
    if temperature == 0.0:
        return logs.amax(dim)
    scaled = logs if temperature == 1.0 else logs / temperature
    total: Tensor = (
        _LogSum.apply(scaled, dim)  # pyright: ignore[reportAssignmentType]
        if scaled.requires_grad
        else scaled.logsumexp(dim)
    )
    return total if temperature == 1.0 else temperature * total


class _LogSum(torch.autograd.Function):
    """A log-sum with zero gradient where no term is possible; `torch.logsumexp` gives NaN."""

    @staticmethod
    def forward(ctx: Any, logs: Tensor, dim: int) -> Tensor:
        total = logs.logsumexp(dim)
        ctx.save_for_backward(logs, total)
        ctx.dim = dim
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        logs, total = ctx.saved_tensors
        total = torch.where(total > -math.inf, total, 0.0).unsqueeze(ctx.dim)
        return gradients[0].unsqueeze(ctx.dim) * (logs - total).exp(), None


def in_blocks(terms: int, parts: Sequence[Tensor], dim: int) -> Iterator[tuple[Tensor, ...]]:
    """Split tensors along the dim of places, so that of all ``terms`` few are held at a time."""
    places = parts[0].shape[dim]
    if terms <= tuning.CACHE_BLOCK or places < 2:
        return iter([tuple(parts)])
    size = max(1, places * tuning.CACHE_BLOCK // terms)
    return zip(*(part.split(size, dim) for part in parts), strict=True)


Child = tuple[tuple[Value, ...], Tensor | None, Tensor, Tensor]
"""A pool; the nodes that have a part in it (None: all); their places in it; labels."""


class Step(ABC):
    """A sum of alternatives. A step that moves values has one alternative, and implements `up`.

    Attributes:
        dim: of the alternatives in `terms`.
    """

    dim = -3

    def terms(self, reader: Reader, *, scores: bool = True) -> Tensor:
        """Log-values of all alternatives, (B, A, P, K), or (B, P, A, K) if `dim` is -2.

        Args:
            reader: the values so far.
            scores: whether the step's log-values are included.
        """
        del scores
        return self.up(reader, 1.0).unsqueeze(-3)

    def up(self, reader: Reader, temperature: float) -> Tensor:
        """(B or 1, P, K) the soft sum of the alternatives."""
        return soft(self.terms(reader), self.dim, temperature)

    def at(self, reader: Reader, item: Tensor, place: Tensor, label: Tensor) -> Tensor:
        """(Q, A) log-values of the alternatives of some nodes; zeros where there is one."""
        del item, place
        return torch.zeros_like(label, dtype=reader.values[0].dtype).unsqueeze(1)

    def chosen(
        self, reader: Reader, pick: Pick, item: Tensor, place: Tensor, label: Tensor
    ) -> Tensor:
        """(Q,) a chosen alternative of each of some nodes."""
        return pick(self.at(reader, item, place, label))

    def own(self, chosen: Tensor, item: Tensor, place: Tensor, label: Tensor) -> Tensor | None:
        """(Q,) what chosen alternatives read of the step's own log-values; None: it has none."""
        return None

    @abstractmethod
    def children(
        self, chosen: Tensor, item: Tensor, place: Tensor, label: Tensor
    ) -> Iterator[Child]:
        """The parts of chosen alternatives (Q,)."""

    def passed_down(
        self, reader: Reader, value: Tensor, above: Tensor, *, scores: bool
    ) -> Iterator[tuple[View, Tensor]]:
        """Scores passed to the values read: views, with (B, M, P, K) for their entries.

        Maxima over all entries of this step that an entry is a part of.

        Args:
            reader: the values.
            value: (B or 1, P, K) that of this step.
            above: (B, P, K) the best of the derivations through each of its entries.
            scores: whether the step's log-values are included.
        """
        terms = above.unsqueeze(self.dim)
        if self.alternatives > 1:
            terms = self.terms(reader, scores=scores) + less_value(value, above).unsqueeze(self.dim)
        yield from self.passed_terms(terms)

    def passed_terms(self, terms: Tensor) -> Iterator[tuple[View, Tensor]]:
        """Scores passed to the values read, given terms; for steps without `passed_down`."""
        yield from ()

    @property
    @abstractmethod
    def products(self) -> Sequence[Sequence[View]]:
        """The products of views that it reads."""

    @property
    def reads(self) -> Sequence[View]:
        """The views of all ways."""
        return [view for way in self.products for view in way]

    @property
    def alternatives(self) -> int:
        """The number of alternatives of an entry."""
        return 1

    @property
    def work(self) -> float:
        """The number of terms for one item; 0 where values are moved, or given."""
        return 0.0


def less_value(value: Tensor, above: Tensor) -> Tensor:
    """(B, P, K) the score of the best derivation through an entry, less the entry's value."""
    # Impossible entries stay at -inf.
    return above - value.clamp(min=torch.finfo(value.dtype).min)


def child(
    view: View, here: Tensor | None, ways: Tensor, item: Tensor, place: Tensor, label: Tensor
) -> Child:
    """The nodes that one view has for some alternatives."""
    return view.pool, here, view.number(ways, item, place), view.label(ways, label)
