"""Steps of a tape: each lists its alternatives, on which all questions are answered.

The value of a step is the soft sum of its alternatives: (B, P, K) from terms with one more dim.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from rdpgraph._core import tuning
from rdpgraph.logspace.logmatrix import soft_sum
from rdpgraph.structures.draws import Pick
from rdpgraph.structures.recursion.reader import Reader
from rdpgraph.structures.recursion.values import Value, View


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
            scores: whether the step's own log-values are included.
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

    @abstractmethod
    def children(
        self, chosen: Tensor, item: Tensor, place: Tensor, label: Tensor
    ) -> Iterator[Child]:
        """The parts of chosen alternatives (Q,)."""

    def passed_down(
        self, reader: Reader, own: Tensor, above: Tensor, *, scores: bool
    ) -> Iterator[tuple[View, Tensor]]:
        """Scores passed to the values read: views, with (B, M, P, K) for their entries.

        Maxima over all entries of this step that an entry is a part of.

        Args:
            reader: the values.
            own: (B or 1, P, K) those of this step.
            above: (B, P, K) the best of the derivations through each of its entries.
            scores: whether the step's own log-values are included.
        """
        terms = above.unsqueeze(self.dim)
        if self.alternatives > 1:
            terms = self.terms(reader, scores=scores) + less_value(own, above).unsqueeze(self.dim)
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


def less_value(own: Tensor, above: Tensor) -> Tensor:
    """(B, P, K) the score of the best derivation through an entry, less the entry's value."""
    # Impossible entries stay at -inf.
    return above - own.clamp(min=torch.finfo(own.dtype).min)


def child(
    view: View, here: Tensor | None, ways: Tensor, item: Tensor, place: Tensor, label: Tensor
) -> Child:
    """The nodes that one view has for some alternatives."""
    number = view.number(ways, item, place)
    return view.pool, here, number, label if view.width > 1 else label * 0
