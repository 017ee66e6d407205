"""Steps that add nothing: labels picked for others, and labels as places."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rdpgraph.logspace.logmatrix import soft_scatter
from rdpgraph.structures.recursion.reader import Reader
from rdpgraph.structures.recursion.step import Child, Step, soft
from rdpgraph.structures.recursion.values import Value, View


@dataclass(frozen=True, eq=False)
class Relabelled(Step):
    """For each new label one of the labels of a value.

    Attributes:
        x: (B, P or 1, I).
        which: (J,), or (B, P, J) where not all labels are kept: labels of x.
        places: P.
    """

    x: Value
    which: Tensor
    places: int

    def up(self, reader: Reader, temperature: float) -> Tensor:
        """(B or 1, P, J)."""
        x = reader.values[self.x.number]
        if self.which.ndim == 1:
            moved = x.index_select(-1, self.which)
            return moved.expand(*x.shape[:-2], self.places, -1)
        x = x.expand(*x.shape[:-3], len(self.which), self.places, -1)
        return x.gather(-1, self.which.expand(*x.shape[:-1], -1))

    def children(
        self, chosen: Tensor, item: Tensor, place: Tensor, label: Tensor
    ) -> Iterator[Child]:
        """The label of x."""
        own = self.which[label] if self.which.ndim == 1 else self.which[item, place, label]
        yield (self.x,), None, place if self.x.places > 1 else place * 0, own

    def shares(
        self, reader: Reader, own: Tensor, above: Tensor, *, scores: bool
    ) -> Iterator[tuple[View, Tensor]]:
        """To each label of x what those have that are made of it."""
        if self.which.ndim == 1:
            parts = soft_scatter(above.movedim(2, 0), self.which, self.x.width, 0.0)
            yield View((self.x,)), parts.movedim(0, 2).unsqueeze(1)
            return
        which = self.which.expand(len(above), self.places, -1)
        columns = torch.arange(self.x.width, device=which.device)
        made = which.unsqueeze(-2) == columns.unsqueeze(-1)
        terms = torch.where(made, above.unsqueeze(-2), -math.inf)
        yield View((self.x,)), soft(terms, -1, 0.0).unsqueeze(1)

    @property
    def products(self) -> Sequence[Sequence[View]]:
        """All of the value."""
        return ((View((self.x,)),),)


@dataclass(frozen=True, eq=False)
class LabelsAsPlaces(Step):
    """The labels of a value as places of one label, those of each place side by side: (B, P K, 1).

    Attributes:
        x: (B, P, K).
    """

    x: Value

    def up(self, reader: Reader, temperature: float) -> Tensor:
        """(B, P K, 1)."""
        return reader.values[self.x.number].flatten(-2).unsqueeze(-1)

    def children(
        self, chosen: Tensor, item: Tensor, place: Tensor, label: Tensor
    ) -> Iterator[Child]:
        """The place and label that became a place."""
        yield (self.x,), None, place // self.x.width, place % self.x.width

    def spread(self, terms: Tensor) -> Iterator[tuple[View, Tensor]]:
        """To each label its place."""
        yield View((self.x,)), terms.squeeze(-1).unflatten(2, (self.x.places, self.x.width))

    @property
    def products(self) -> Sequence[Sequence[View]]:
        """All of the value."""
        return ((View((self.x,)),),)
