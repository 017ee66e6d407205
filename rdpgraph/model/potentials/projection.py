"""Clauses with hidden variables: possible where these have values that satisfy all of them."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rdpgraph._core import tuning
from rdpgraph._core.types import broadcast_shapes
from rdpgraph.errors import UnsupportedError
from rdpgraph.model.potentials.potential import Stored


@dataclass(frozen=True, eq=False)
class Projection(Stored):
    """The log-value 0 where hidden variables can satisfy all clauses, else -inf.

    Args:
        clauses: of literals x and -x; 1 to ``arity`` are the slots, higher ones hidden variables.
        arity: the number of slots, of two states each.
        zero: (), of the dtype and on the device of the log-values.
    """

    clauses: tuple[tuple[int, ...], ...]
    arity: int
    zero: Tensor
    stored = "zero"

    @property
    def shape(self) -> tuple[int, ...]:
        """Two states of each slot."""
        return (2,) * self.arity

    def placed(self, slots: Sequence[int], last: int) -> tuple[list[tuple[int, ...]], int]:
        """The clauses with given literals for the slots, and the number of hidden variables.

        Hidden variables are numbered from ``last`` + 1 on.
        """
        most = max((abs(x) for clause in self.clauses for x in clause), default=0)
        hidden = max(most - self.arity, 0)
        literals = [0, *slots, *range(last + 1, last + 1 + hidden)]
        placed = [
            tuple(literals[x] if x > 0 else -literals[-x] for x in row) for row in self.clauses
        ]
        return placed, hidden

    def evaluate(self, states: Sequence[Tensor]) -> Tensor:
        """The log-values on a grid of states, by a search for each.

        Raises:
            UnsupportedError: they are more than 2^16.
        """
        sizes = [part.shape[-1] for part in states]
        lead = broadcast_shapes(*(part.shape[:-1] for part in states))
        cells = math.prod(sizes)
        if math.prod(lead) * cells > tuning.MOST_DECIDED:
            raise UnsupportedError(
                f"A projection onto {self.arity:,} variables would be written out to {cells:,} "
                f"log-values, at most {tuning.MOST_DECIDED:,} are; Auto() and Counting() answer "
                "without them."
            )
        place, columns = torch.arange(cells, device="cpu"), list[Tensor]()
        for part, size in zip(reversed(states), reversed(sizes), strict=True):
            columns.append(part.cpu().expand(*lead, size)[..., place % size].flatten())
            place = place // size
        rows = torch.stack(columns[::-1], 1).tolist() if columns else [[]]
        values = [0.0 if self._holds(row) else -math.inf for row in rows]
        return self.zero.new_tensor(values).reshape([*lead, *sizes])

    def _holds(self, row: Sequence[int]) -> bool:
        """Return whether hidden variables satisfy the clauses at a configuration, by search."""
        slots = {slot if state else -slot for slot, state in enumerate(row, 1)}
        stack = [_without(self.clauses, slots)]
        while stack:
            left = stack.pop()
            while left and len(shortest := min(left, key=len)) == 1:
                left = _without(left, {*shortest})
            if not left:
                return True
            if shortest := min(left, key=len):
                stack += [_without(left, {sign * shortest[0]}) for sign in (-1, 1)]
        return False


def _without(clauses: Iterable[tuple[int, ...]], true: set[int]) -> list[tuple[int, ...]]:
    """The clauses that true literals leave open, without those that are false."""
    return [
        tuple(x for x in clause if -x not in true) for clause in clauses if true.isdisjoint(clause)
    ]
