"""Listed rules, for grammars of many symbols and few rules."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import pad

from rdpgraph._core.arguments import require_fields
from rdpgraph._core.cache import current_property
from rdpgraph._core.types import ArrayLike
from rdpgraph.errors import ModelError
from rdpgraph.model.potentials.table import as_whole, checked_log_values, settle
from rdpgraph.structures.grammar.rules import Rules, items_of, within_budget

_SUMMED = 16
"""Rules that are summed at once: calls are saved, and temporaries are so many times larger."""
_MOST_STATES = 2**20  # three states fit an integer of 64 bits


@dataclass(frozen=True, eq=False)
class SparseRules(Rules):
    """A log-weight for each of M rules; there are no others.

    Charts cost O(T^3 M), and memory O(T^2 (N + M)), in logs at any range. `DenseRules` are faster
    if more than one in 200 of all triples is a rule.

    Args:
        triples: (M, 3) int64, [parent, left, right]; each once.
        log_weights: (*batch, M) nats; -inf forbids a rule.
        parents: N, the number of parents' states.
        children: C, that of parts; None: N.

    Raises:
        ModelError: other shapes, no rules, a state out of range, a rule listed twice, NaN or +inf.
    """

    triples: Tensor
    log_weights: Tensor
    parents: int = field(kw_only=True)
    children: int | None = field(default=None, kw_only=True)

    own_dims = 1

    if TYPE_CHECKING:  # arguments become tensors

        def __init__(
            self,
            triples: ArrayLike,
            log_weights: ArrayLike,
            *,
            parents: int,
            children: int | None = None,
        ) -> None: ...

    def __post_init__(self) -> None:
        # Types and shapes, then each rule: states within range, and none twice.
        settle(self, "log_weights", whole=("triples",))
        require_fields(self)
        checked_log_values("SparseRules", self.log_weights)
        triples = as_whole("SparseRules' triples", self.triples).long()
        object.__setattr__(self, "triples", triples.to(self.log_weights.device))
        shape, weights = tuple(self.triples.shape), tuple(self.log_weights.shape)
        if len(shape) != 2 or shape[1] != 3 or not shape[0] or weights[-1:] != shape[:1]:
            raise ModelError(
                "SparseRules needs triples (M, 3), [parent, left, right], and log_weights "
                f"(*batch, M), M >= 1; got {shape} and {weights}."
            )
        parents, children = self.shape
        if not 0 < parents <= children <= _MOST_STATES:
            raise ModelError(
                f"SparseRules needs 0 < parents <= children <= {_MOST_STATES:,}; got {parents:,} "
                f"and {children:,}."
            )
        most = self.triples.new_tensor([parents, children, children])
        wrong = ((self.triples < 0) | (self.triples >= most)).any(1)
        if bool(wrong.any()):
            listed = tuple(self.triples[wrong][0].tolist())
            raise ModelError(
                f"SparseRules of {parents:,} parents and {children:,} children got the rule "
                f"{listed}, [parent, left, right]."
            )
        # Rules were sorted by number, so that equal ones are neighbours.
        again = self._sorted[0].diff() == 0
        if bool(again.any()):
            row = self._sorted[1][1:][again][0]
            listed = tuple(self.triples[row].tolist())
            raise ModelError(f"SparseRules got the rule {listed} twice.")

    @property
    def parts(self) -> tuple[Tensor, ...]:
        return (self.log_weights,)

    def with_parts(self, parts: Sequence[Tensor]) -> "SparseRules":
        return replace(self, log_weights=parts[0])

    @property
    def shape(self) -> tuple[int, int]:
        return self.parents, self.parents if self.children is None else self.children

    @property
    def count(self) -> int:
        """M, the number of rules."""
        return len(self.triples)

    @current_property("triples")
    def _sorted(self) -> tuple[Tensor, Tensor]:
        """(M,) the rules as numbers, ascending, and their rows."""
        numbers = self._numbers(*self.triples.unbind(1))
        ascending, rows = numbers.sort()
        return ascending, rows

    def _numbers(self, parents: Tensor, left: Tensor, right: Tensor) -> Tensor:
        children = self.shape[1]
        return (parents * children + left) * children + right

    @current_property("triples")
    def listing(self) -> "RuleListing":
        """The rules by parent, as a recurrence sums them."""
        device, triples = self.triples.device, self.triples
        order = triples[:, 0].argsort(stable=True)
        groups, members = triples[order, 0], list[Tensor]()
        while int((place := _places(groups)).max()) >= _SUMMED:
            numbers = groups * len(groups) + place // _SUMMED
            some, part = numbers.unique_consecutive(return_inverse=True)
            members.append(_grid(part, len(some) + 1, _SUMMED))
            groups = some // len(groups)
        members.append(_grid(groups, self.shape[1], int(place.max()) + 1))
        _, left, right = pad(triples[order], (0, 0, 0, 1)).unbind(1)
        return RuleListing(order.to(device), left.contiguous(), right.contiguous(), tuple(members))

    def table(self, parents: int, children: int) -> Tensor:
        within_budget(self, math.prod(self.batch_shape) * parents * children**2)
        like = self.log_weights
        empty = like.new_full((*self.batch_shape, parents * children**2), -math.inf)
        places = self._numbers(*self.triples.unbind(1))
        return empty.index_copy(-1, places, like).reshape(
            *self.batch_shape, parents, children, children
        )

    def evaluate(self, parents: Tensor, left: Tensor, right: Tensor) -> Tensor:
        known, rows = self._sorted
        grid = parents[..., :, None, None], left[..., None, :, None], right[..., None, None, :]
        wanted = self._numbers(*grid).contiguous()
        at = torch.searchsorted(known, wanted).clamp(max=self.count - 1)
        item = items_of(self.log_weights, wanted)
        place = (item * self.count + rows[at]).expand(wanted.shape)
        weights = self.log_weights.flatten().index_select(0, place.flatten()).reshape(wanted.shape)
        return torch.where(known[at] == wanted, weights, -math.inf)

    def scaled(self, factor: float) -> "SparseRules":
        return self.with_parts([self.log_weights * factor])

    def is_like(self, other: "SparseRules") -> bool:
        """Return whether another list has the same rules in the same order."""
        return self.shape == other.shape and torch.equal(self.triples, other.triples)


def _places(groups: Tensor) -> Tensor:
    """(R,) the place of each member in its group, for groups (R,) that ascend."""
    sizes = torch.bincount(groups)
    return torch.arange(len(groups), device=groups.device) - (sizes.cumsum(0) - sizes)[groups]


def _grid(groups: Tensor, count: int, most: int) -> Tensor:
    """(most, count) the members of each group, R where it has fewer, for groups (R,)."""
    place, members = _places(groups), torch.arange(len(groups), device=groups.device)
    grid = torch.full((most, count), len(groups), device=groups.device)
    return grid.index_put((place, groups), members)


@dataclass(frozen=True, eq=False)
class RuleListing:
    """Listed rules, those of one parent side by side, and a last one that is impossible.

    Attributes:
        order: (M,) the number of each rule in the list that was given.
        left, right: (M + 1,) the states of the parts.
        members: of groups of rules that are summed, (most, groups + 1), then of groups of these,
            and so on to those of each state as a parent; the last number of all is of none.
    """

    order: Tensor
    left: Tensor
    right: Tensor
    members: tuple[Tensor, ...]
