"""Sequences of labels, padded to one length, and pieces of them."""

from dataclasses import dataclass

import torch
from torch import Tensor

from rdpgraph.structures.chain.factors import inside


@dataclass(frozen=True, eq=False)
class Labelling:
    """Sequences of labels, padded to one length.

    Attributes:
        states: (B, T) labels from 0; -1 beyond the lengths, and throughout where labels are asked
            for.
        lengths: (B,) from 1 to T.
        edges: for each sequence, (E, 2) the pairs of positions that influence each other; None
            for neighbours.
    """

    states: Tensor
    lengths: Tensor
    edges: tuple[Tensor, ...] | None = None

    def inside(self) -> Tensor:
        """(B, T) whether a position is within the length."""
        return inside(self.lengths, self.states.shape[1])


@dataclass(frozen=True, eq=False)
class Pieces:
    """Short sequences that are parts of longer ones, and may overlap.

    Attributes:
        labels: of the P pieces.
        sequences: (P,) which one each is a part of.
        positions: (P, W) there; anything in range beyond the length of a piece.
    """

    labels: Labelling
    sequences: Tensor
    positions: Tensor

    @classmethod
    def neighbours(cls, labels: Labelling) -> "Pieces":
        """Each position with the next one; sequences of one position are a piece by themselves."""
        states, lengths = labels.states, labels.lengths
        steps = torch.arange(states.shape[1], device=states.device)
        # A position begins a piece if another one follows, or if it is alone.
        begins = steps < (lengths - 1).clamp(min=1).unsqueeze(1)
        sequences, first = begins.nonzero().unbind(1)
        positions = torch.stack([first, (first + 1).clamp(max=states.shape[1] - 1)], 1)
        sizes = lengths[sequences].clamp(max=2)
        chosen = states[sequences.unsqueeze(1), positions]
        chosen = torch.where(inside(sizes, 2), chosen, -1)
        return cls(Labelling(chosen, sizes), sequences, positions)

    def same(self, other: "Pieces") -> bool:
        """Whether these are the same positions of the same sequences."""
        return torch.equal(self.sequences, other.sequences) and torch.equal(
            self.positions, other.positions
        )

    def totals(self, values: Tensor, sequences: int) -> Tensor:
        """(sequences,) sums of values (P,) over the pieces of each."""
        return values.new_zeros(sequences).index_add(0, self.sequences, values)
