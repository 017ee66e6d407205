"""Chains as tensors with one batch dim: transitions by tables of pairs of states, or ranks."""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeAlias, TypeVar

import torch
from torch import Tensor

from rdpgraph._core import tuning
from rdpgraph._core.cache import cached_property, differentiable_property
from rdpgraph.errors import BudgetError
from rdpgraph.logspace.logmatrix import LogMatrix, soft_sum
from rdpgraph.model.potentials.lowrank import LowRank
from rdpgraph.model.potentials.operators import PairOperator
from rdpgraph.model.potentials.potential import Potential
from rdpgraph.structures.chain.factors import step_of


class Steps(ABC):
    """Log-values (nats) of every state before a step and after it; -inf allowed.

    Step t lies between the states at t and those at t + 1.
    """

    @abstractmethod
    def turned(self) -> "Steps":
        """The same with the states before and after exchanged."""

    @abstractmethod
    def advance(self, step: int, state: Tensor) -> Tensor:
        """``logsumexp_i(state_i + value_ij)``, (B, N): exact at any range; differentiable."""

    @abstractmethod
    def blocks(self, step: int, width: int) -> Iterable[Tensor]:
        """Values in blocks of ``width`` states after the step: (N, width) or (1 or B, N, width)."""

    @abstractmethod
    def values(self, before: Tensor, after: Tensor) -> Tensor:
        """(*lead, B, T - 1) the value of one pair of states at each step; differentiable."""

    @abstractmethod
    def columns(self, after: Tensor, *, first: int) -> Tensor:
        """(count, B, S, N) values from every state to one at the next step; differentiable.

        Given the states (count, B, S) after S steps from ``first`` on.
        """

    def best(self, rows: Tensor, step: int) -> tuple[Tensor, Tensor] | None:
        """`PairOperator.best` of rows (B, N, k); None where the values are to be compared."""
        return None


@dataclass(frozen=True, eq=False)
class TableSteps(Steps):
    """Tables of all pairs."""

    # (N, N), or (1 or B, T - 1, N, N) per step; in relaxed draws (B, 1, N, N), too; [from, to].
    table: Tensor

    def turned(self) -> "TableSteps":
        return TableSteps(self.table.mT)

    def advance(self, step: int, state: Tensor) -> Tensor:
        return self._into.times(step, state)

    def blocks(self, step: int, width: int) -> Iterable[Tensor]:
        matrix = step_of(self.table, step)
        return matrix.split(width, -1) if width < matrix.shape[-1] else (matrix,)

    def values(self, before: Tensor, after: Tensor) -> Tensor:
        if self.table.ndim == 2:
            return self.table[before, after]
        return self.table[*_places(self.table, before), before, after]

    def columns(self, after: Tensor, *, first: int) -> Tensor:
        if self.table.ndim == 2:
            return self._turned.index_select(0, after.reshape(-1)).unflatten(0, after.shape)
        return self.table.mT[*_places(self.table, after, first), after]

    @differentiable_property
    def _into(self) -> "_Factors":
        return _Factors.of(self.table.mT)

    @differentiable_property
    def _turned(self) -> Tensor:
        return self.table.mT.contiguous()


@dataclass(frozen=True, eq=False)
class RankSteps(Steps):
    """Sums over ranks: ``value_ij = logsumexp_k(left_ik + right_jk)``."""

    left: Tensor  # (N, r), or (1 or B, T - 1, N, r) per step: log-factors of the state before
    right: Tensor  # likewise, of the state after

    @property
    def sides(self) -> tuple[Tensor, Tensor]:
        """Left and right."""
        return self.left, self.right

    def turned(self) -> "RankSteps":
        return RankSteps(self.right, self.left)

    def advance(self, step: int, state: Tensor) -> Tensor:
        return self.to_states(step, self.to_ranks(step, state))

    def between(self, states: Tensor) -> Tensor:
        """`advance` by each step, (B, T - 1, N) at once."""
        for side in (self._onto_ranks, self._from_ranks):
            states = side.all_times(states)
        return states

    def to_ranks(self, step: int, state: Tensor) -> Tensor:
        """(B, r) sums over the states before a step, (B, N)."""
        return self._onto_ranks.times(step, state)

    def to_states(self, step: int, ranks: Tensor) -> Tensor:
        """(B, N) sums over the ranks, (B, r), for the states after a step."""
        return self._from_ranks.times(step, ranks)

    def blocks(self, step: int, width: int) -> Iterable[Tensor]:
        left = self._columns.at(step)
        for block in step_of(self.right, step).split(width, -2):
            yield left.times(block).mT

    def values(self, before: Tensor, after: Tensor) -> Tensor:
        return soft_sum(_rows(self.left, before) + _rows(self.right, after), -1)

    def columns(self, after: Tensor, *, first: int) -> Tensor:
        count, batch, steps = after.shape
        width = tuning.per_block(count * batch * self.left.shape[-2], tuning.CACHE_BLOCK)
        if width < steps:
            starts = range(0, steps, width)
            parts = (after[..., start : start + width] for start in starts)
            pairs = zip(parts, starts, strict=True)
            return torch.cat([self.columns(part, first=first + at) for part, at in pairs], 2)
        rows = _rows(self.right, after, first)
        if self.left.ndim == 2:
            return self._columns.at(0).times(rows)
        left = LogMatrix.of(self.left[:, first : first + after.shape[2]])
        return left.times(rows.movedim(0, 2)).movedim(2, 0)

    @differentiable_property
    def _onto_ranks(self) -> "_Factors":
        return _Factors.of(self.left.mT)

    @differentiable_property
    def _from_ranks(self) -> "_Factors":
        return _Factors.of(self.right)

    @differentiable_property
    def _columns(self) -> "_Factors":
        return _Factors.of(self.left)


@dataclass(frozen=True, eq=False)
class OperatorSteps(Steps):
    """Potentials that are applied without a table: one for all steps, or one for each.

    The tensors of each have the lead (1 or B, T - 1), those of one for all have none.
    """

    potential: PairOperator

    @property
    def sides(self) -> tuple[Tensor, ...]:
        """Parameters of the potential."""
        return self.potential.tensors

    def turned(self) -> "OperatorSteps":
        return OperatorSteps(self.potential.turned())

    def advance(self, step: int, state: Tensor) -> Tensor:
        return self._of(step).sums(state)

    def blocks(self, step: int, width: int) -> Iterable[Tensor]:
        each = self._of(step)
        for some in self._states.split(width):
            yield each.evaluate([self._states, some])

    def values(self, before: Tensor, after: Tensor) -> Tensor:
        return self.potential.evaluate([before.unsqueeze(-1), after.unsqueeze(-1)])[..., 0, 0]

    def columns(self, after: Tensor, *, first: int) -> Tensor:
        potential = self.potential
        if self._each is not None:
            here = slice(first, first + after.shape[2])
            parts = [part if part.ndim == 2 else part[:, here] for part in potential.tensors]
            potential = potential.replaced(parts)
        return potential.evaluate([self._states, after.unsqueeze(-1)])[..., 0]

    def best(self, rows: Tensor, step: int) -> tuple[Tensor, Tensor] | None:
        return self._of(step).best(rows) if self.potential.maximises else None

    def _of(self, step: int) -> PairOperator:
        """The potential of a step, with the lead (1 or B) or none."""
        return self.potential if self._each is None else self._each[step]

    @differentiable_property
    def _each(self) -> list[PairOperator] | None:
        """The potentials of all steps, by one unbinding: the gradient of a slice is as large."""
        lead = self.potential.lead(2)
        if not lead:
            return None
        unbound = [
            [part] * lead[-1] if part.ndim == 2 else part.unbind(1)
            for part in self.potential.tensors
        ]
        return [self.potential.replaced(parts) for parts in zip(*unbound, strict=True)]

    @cached_property
    def _states(self) -> Tensor:
        return torch.arange(self.potential.shape[-1], device=self.potential.device)


@dataclass(frozen=True, eq=False)
class _Factors:
    """One side's log-matrices; a shared one is prepared once."""

    shared: LogMatrix | None  # (n, k)
    each: tuple[Tensor, ...]  # (1 or B, n, k) of each step

    @staticmethod
    def of(side: Tensor) -> "_Factors":
        """Log-matrices of (n, k), or (1 or B, T - 1, n, k)."""
        return (
            _Factors(LogMatrix.of(side), ()) if side.ndim == 2 else _Factors(None, side.unbind(1))
        )

    def at(self, step: int) -> LogMatrix:
        return self.shared or LogMatrix.of(self.each[min(step, len(self.each) - 1)])

    def all_times(self, rows: Tensor) -> Tensor:
        """(B, T - 1, k) times the matrix of each step, as (B, T - 1, n)."""
        if self.shared is not None:
            return self.shared.times(rows)
        matrices = LogMatrix.of(torch.stack(self.each, 1))
        return matrices.times(rows.unsqueeze(2)).squeeze(2)

    def times(self, step: int, rows: Tensor) -> Tensor:
        """(B, k) times the matrix of a step, as (B, n); or (count, B, k) as (count, B, n)."""
        if self.shared is not None:
            return self.shared.times(rows)
        if rows.ndim == 2:
            return self.at(step).times(rows.unsqueeze(1)).squeeze(1)
        return self.at(step).times(rows.transpose(0, 1)).transpose(0, 1)


def as_steps(transition: Tensor | Steps) -> Steps:
    """A table as steps."""
    return TableSteps(transition) if isinstance(transition, Tensor) else transition


def tables_of(transition: Tensor | Steps) -> tuple[Tensor, ...]:
    """The log-tables of a step in turn: of pairs of states; or to ranks, and from them."""
    if isinstance(transition, Tensor):
        return (transition,)
    assert isinstance(transition, RankSteps)
    return transition.left, transition.right.mT


def of_tables(first: Tensor, *others: Tensor) -> Tensor | RankSteps:
    """The transition of `tables_of`."""
    return RankSteps(first, *(other.mT for other in others)) if others else first


def _places(side: Tensor, states: Tensor, first: int = 0) -> tuple[Tensor | int, Tensor]:
    """Items and steps of states (..., B, S), to index a table or factors per step."""
    batch, steps = states.shape[-2:]
    items = torch.arange(batch, device=states.device).unsqueeze(1) if len(side) != 1 else 0
    numbers = torch.arange(first, first + steps, device=states.device)
    return items, numbers.clamp(max=side.shape[1] - 1)  # one for all steps of an item


def _rows(side: Tensor, states: Tensor, first: int = 0) -> Tensor:
    """(..., B, S, r) the factors of states (..., B, S)."""
    return side[states] if side.ndim == 2 else side[*_places(side, states, first), states]


Link = TypeVar("Link", bound=Tensor | RankSteps | OperatorSteps)


class Parts(NamedTuple, Generic[Link]):
    """Chains as tensors, batch dims flattened."""

    unary: Tensor  # (B, T, N) log-potentials in nats; -inf allowed
    transition: Link  # (N, N), or (1 or B, T - 1, N, N) per step; [from, to]; or steps
    lengths: Tensor  # (B,) int64, 0 to T

    @staticmethod
    def of(unary: Tensor, given: Tensor | Potential, lengths: Tensor) -> "ChainTensors":
        """Flatten (*batch, T, N), a transition that broadcasts to that batch, and lengths (B,)."""
        *batch, total, states = unary.shape
        transition = flattened(table_of(given), batch)
        if len(batch) != 1:
            unary = unary.reshape([math.prod(batch), total, states])
        if unary.dtype != transition.dtype:
            dtype = torch.promote_types(unary.dtype, transition.dtype)
            unary, transition = unary.to(dtype), transition.to(dtype)
        return Parts(unary, transition, lengths)

    @staticmethod
    def of_operator(unary: Tensor, given: PairOperator, lengths: Tensor) -> "Parts[OperatorSteps]":
        """Flatten (*batch, T, N), and take parameters and potentials to one type."""
        *batch, total, states = unary.shape
        dtype = torch.promote_types(unary.dtype, given.dtype)
        flat = unary.reshape([math.prod(batch), total, states]).to(dtype)
        lead = given.lead(2)
        if not lead:
            steps = OperatorSteps(given.replaced([part.to(dtype) for part in given.tensors]))
            return Parts(flat, steps, lengths)

        def side(values: Tensor) -> Tensor:
            ends = values.shape[-2:]
            if values.ndim == 2:
                return values.to(dtype)
            each = values.expand(*values.shape[:-3], lead[-1], *ends)
            return flattened(each, batch).to(dtype)

        return Parts(flat, OperatorSteps(given.replaced([*map(side, given.tensors)])), lengths)

    @staticmethod
    def of_ranks(unary: Tensor, low: LowRank, lengths: Tensor) -> "Parts[RankSteps]":
        """Flatten (*batch, T, N), factors of leads that broadcast to (*batch, T - 1), and (B,)."""
        *batch, total, states = unary.shape
        dtype = torch.promote_types(unary.dtype, low.dtype)

        def side(values: Tensor) -> Tensor:
            ends = values.shape[-2:]
            if math.prod(values.shape[:-2]) == 1:
                return values.reshape(ends).to(dtype)
            each = values.expand(*values.shape[:-3], total - 1, *ends)
            return flattened(each, batch).to(dtype)

        flat = unary.reshape([math.prod(batch), total, states]).to(dtype)
        return Parts(flat, RankSteps(side(low.log_left), side(low.log_right)), lengths)


ChainTensors: TypeAlias = Parts[Tensor]
RankTensors: TypeAlias = Parts[RankSteps] | Parts[OperatorSteps]


def flattened(transition: Tensor, batch: Sequence[int]) -> Tensor:
    """(N, N) as it is; (*batch, T - 1, N, N) with one batch dim, of size 1 where items share it."""
    if transition.ndim == 2:
        return transition
    lead, ends = transition.shape[:-3], transition.shape[-3:]
    lead = lead if math.prod(lead) == 1 else batch
    return transition.expand(*lead, *ends).reshape(math.prod(lead), *ends)


def table_of(transition: Tensor | Potential, *, of: str = "Chain") -> Tensor:
    """A transition as a tensor; `BudgetError` above `tuning.MOST_TABULATED` entries."""
    if isinstance(transition, Tensor):
        return transition
    entries = math.prod(transition.shape)
    if entries > tuning.MOST_TABULATED:
        raise BudgetError(
            f"{of}'s transition, a {type(transition).__name__}, has {entries:,} entries and at "
            f"most {tuning.MOST_TABULATED:,} are written out; ask a question that needs no table, "
            "or give infer an estimator that keeps a few states."
        )
    return transition.table(2)
