"""Potentials that list what is possible: configurations, or clauses with hidden variables."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rdpgraph._core import tuning
from rdpgraph._core.arguments import require_fields
from rdpgraph._core.cache import current_property
from rdpgraph._core.types import ArrayLike, broadcast_shapes
from rdpgraph.errors import ModelError, UnsupportedError
from rdpgraph.model.potentials.potential import WHOLE, Decomposition, Part, Stored, select_lead
from rdpgraph.model.potentials.table import checked_log_values, settle
from rdpgraph.model.variable import MOST


@dataclass(frozen=True, eq=False)
class Sparse(Stored):
    """Listed configurations with their log-values (nats); every other one is impossible.

    Memory is the list's: a parity check over 60 binary variables or a tuple constraint over
    variables of a thousand states costs what it lists. The exact engine joins a long one to its
    variables by an auxiliary variable instead of forming its table.

    Args:
        configurations: (C, n) int64, the states of each listed configuration; none twice.
        log_values: (*lead, C) floating.
        sizes: the number of states of each slot.

    Raises:
        ModelError: shapes that disagree, a state out of range, a configuration listed twice.

    Example:
        >>> same = Sparse(torch.tensor([[0, 0], [1, 1]]), torch.zeros(2), (2, 2))
        >>> same.table(2).exp().tolist()
        [[1.0, 0.0], [0.0, 1.0]]
    """

    configurations: Tensor
    log_values: Tensor
    sizes: tuple[int, ...]
    stored = "log_values"

    if TYPE_CHECKING:  # accepted types, converted to those of the fields

        def __init__(
            self, configurations: ArrayLike, log_values: ArrayLike, sizes: Sequence[int]
        ) -> None: ...

    def __post_init__(self) -> None:
        settle(self, "log_values", whole=("configurations",))
        checked_log_values("Sparse", self.log_values)
        require_fields(self, sizes=f"[1, {MOST}]")
        listed = self.configurations
        if listed.ndim != 2 or listed.shape[1] != len(self.sizes) or listed.dtype not in WHOLE:
            raise ModelError(
                f"Sparse over {len(self.sizes)} slots needs integer configurations of shape "
                f"(C, {len(self.sizes)}); got {tuple(listed.shape)} of {listed.dtype}."
            )
        if self.log_values.ndim < 1 or self.log_values.shape[-1] != len(listed):
            raise ModelError(
                f"Sparse with {len(listed)} configurations needs log-values of shape "
                f"(..., {len(listed)}); got {tuple(self.log_values.shape)}."
            )
        limits = torch.tensor(self.sizes, device=listed.device, dtype=listed.dtype)
        wrong = ((listed < 0) | (listed >= limits)).any(-1)
        if bool(wrong.any()):
            raise ModelError(
                f"Sparse of sizes {self.sizes} lists a state out of range, in configuration "
                f"{tuple(listed[wrong][0].tolist())}."
            )
        if len(listed) > 1 and (not self.sizes or len(listed.unique(dim=0)) < len(listed)):
            raise ModelError(f"Sparse of sizes {self.sizes} lists a configuration twice.")

    @property
    def shape(self) -> tuple[int, ...]:
        return (*self.log_values.shape[:-1], *self.sizes)

    @current_property("configurations")
    def _levels(self) -> tuple[tuple[Tensor, ...], Tensor]:
        """The configurations as a prefix tree: per slot the sorted codes (parent, state)."""
        listed = self.configurations.to(self.device).long()
        rank = torch.zeros(len(listed), dtype=torch.long, device=self.device)
        levels: list[Tensor] = []
        for slot, size in enumerate(self.sizes):
            codes, rank = torch.unique(rank * size + listed[:, slot], return_inverse=True)
            levels.append(codes)
        return tuple(levels), torch.argsort(rank)

    def evaluate(self, states: Sequence[Tensor]) -> Tensor:
        """The log-values on a grid of states: a walk down a prefix tree, O(grid log C) a slot."""
        levels, order = self._levels
        lead = broadcast_shapes(*(s.shape[:-1] for s in states)) if states else ()
        rank = torch.zeros(lead, dtype=torch.long, device=self.device)
        listed = torch.full(lead, len(order) > 0, dtype=torch.bool, device=self.device)
        for codes, size, chosen in zip(levels, self.sizes, states, strict=True):
            slot = rank.ndim - len(lead)
            aligned = chosen.to(self.device).reshape(
                *chosen.shape[:-1], *(1,) * slot, chosen.shape[-1]
            )
            wanted = rank.unsqueeze(-1) * size + aligned
            rank = torch.searchsorted(codes, wanted).clamp(max=max(len(codes) - 1, 0))
            matches = codes[rank] == wanted if len(codes) else torch.zeros_like(wanted).bool()
            listed = listed.unsqueeze(-1) & matches
        joint = broadcast_shapes(self.log_values.shape[:-1], lead)
        grid = listed.shape[len(lead) :]
        if not len(order):
            return self.log_values.new_full([*joint, *grid], -math.inf)
        place = order[rank].expand([*joint, *grid]).reshape([*joint, math.prod(grid)])
        values = self.log_values.expand([*joint, -1]).gather(-1, place).reshape([*joint, *grid])
        return torch.where(listed, values, -math.inf)

    def select(self, block: tuple[int, ...], rows: Tensor | None, arity: int) -> "Sparse":
        """The potentials of some factors of a block; they share one list of configurations."""
        values = select_lead(self.log_values, trailing=1, block=block, rows=rows)
        return Sparse(self.configurations, values, self.sizes)

    def decompose(self) -> Decomposition | None:
        """A decomposition with an auxiliary state per configuration, if smaller than the table."""
        count = len(self.configurations)
        dense, linked = math.prod(self.sizes), count * (sum(self.sizes) + 1)
        if dense <= max(4096, linked) or not count:
            return None
        listed = self.configurations.to(self.device).long()
        auxiliary = len(self.sizes)
        parts = [Part((auxiliary,), self.log_values)]
        for slot, size in enumerate(self.sizes):
            link = torch.full((count, size), -math.inf, dtype=self.dtype, device=self.device)
            link = link.scatter(1, listed[:, slot : slot + 1], 0.0)
            parts.append(Part((auxiliary, slot), link))
        return Decomposition((count,), tuple(parts))


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
