"""Transitions between neighbouring steps of chains: tables of pairs of states, or ranks."""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from rdpgraph._core.cache import cached_property, differentiable_property
from rdpgraph.logspace.gradients import regradient
from rdpgraph.logspace.logmatrix import LogMatrix, finite, soft_sum
from rdpgraph.structures.chain.factors import product, step_of

_CELLS = 2**20  # values from all states that are formed at a time
# Terms at a time, in one buffer for all steps: reallocation at each step would fragment memory.
_BLOCK = 2**18


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

    @abstractmethod
    def column(self, step: int, after: Tensor) -> Tensor:
        """(count, B, N) `columns` of one step, without gradient; zero where the state is N."""


@dataclass(frozen=True, eq=False)
class TableSteps(Steps):
    """Tables of all pairs."""

    table: Tensor  # (N, N), or (1 or B, T - 1, N, N) per step; [from, to]
    slow: bool = False  # whether all sums are made in logs: then they have derivatives of any order
    _room: list[Tensor] = field(default_factory=list[Tensor], init=False)

    def turned(self) -> "TableSteps":
        return TableSteps(self.table.mT, self.slow)

    def advance(self, step: int, state: Tensor) -> Tensor:
        matrix = self._at(step)
        if self.slow:
            self._room[:] = self._room or [room_for(state.unsqueeze(1))]
            return advance(state, matrix, self._room[0])
        weights, scale = self._scaled if matrix.ndim == 2 else _scaled(matrix)
        logs = state + scale
        top = finite(logs.detach().amax(1, keepdim=True))
        total = product((logs - top).exp(), weights)
        # Each of N terms may have lost `tiny` to underflow.
        limits = torch.finfo(total.dtype)
        low = total.detach() < limits.tiny / limits.eps * total.shape[-1]
        if bool(low.any()) and bool((low & _reached(state, matrix)).any()):
            return advance(state, matrix)
        positive = total > 0
        return torch.where(positive, torch.where(positive, total, 1.0).log() + top, -math.inf)

    def blocks(self, step: int, width: int) -> Iterable[Tensor]:
        matrix = self._at(step)
        return matrix.split(width, -1) if width < matrix.shape[-1] else (matrix,)

    def values(self, before: Tensor, after: Tensor) -> Tensor:
        if self.table.ndim == 2:
            return self.table[before, after]
        return self.table[*_places(self.table, before), before, after]

    def columns(self, after: Tensor, *, first: int) -> Tensor:
        if self.table.ndim == 2:
            rows = self.table.mT.index_select(0, after.reshape(-1))
            return rows.reshape(*after.shape, len(self.table))
        return self.table.mT[*_places(self.table, after, first), after]

    def column(self, step: int, after: Tensor) -> Tensor:
        if self.table.ndim == 2:
            return torch.embedding(self._padded, after)
        return self._padded[self._items, step, after]

    def _at(self, step: int) -> Tensor:
        return self.table if self.table.ndim == 2 else self._each[step]

    @differentiable_property
    def _each(self) -> tuple[Tensor, ...]:
        # One unbinding has one gradient tensor; indices would have one for each step.
        return self.table.unbind(1)

    @differentiable_property
    def _scaled(self) -> tuple[Tensor, Tensor]:
        return _scaled(self.table)

    @cached_property
    def _items(self) -> Tensor | int:
        many = len(self.table)
        return torch.arange(many, device=self.table.device) if many != 1 else 0

    @cached_property
    def _padded(self) -> Tensor:
        return torch.nn.functional.pad(self.table.detach().mT, (0, 0, 0, 1))


@dataclass(frozen=True, eq=False)
class RankSteps(Steps):
    """Sums over ranks: ``value_ij = logsumexp_k(left_ik + right_jk)``."""

    left: Tensor  # (N, r), or (1 or B, T - 1, N, r) per step: log-factors of the state before
    right: Tensor  # likewise, of the state after

    @property
    def sides(self) -> tuple[Tensor, Tensor]:
        """Left and right."""
        return self.left, self.right

    @property
    def shared(self) -> bool:
        """Return whether all steps have the same factors."""
        return self.left.ndim == self.right.ndim == 2

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
        width = max(1, _CELLS // max(1, count * batch * self.left.shape[-2]))
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

    def column(self, step: int, after: Tensor) -> Tensor:
        states = self.left.shape[-2]
        right, known = step_of(self.right, step), after.clamp(max=states - 1)
        items = torch.arange(after.shape[1], device=after.device)
        rows = right[known] if right.ndim == 2 else right[items % max(len(right), 1), known]
        into = self._columns.times(step, rows)
        return torch.where((after < states).unsqueeze(-1), into, 0.0)

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
        return self.shared or LogMatrix.of(self.each[step])

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


def stepping(first: Tensor, *others: Tensor) -> Tensor | RankSteps:
    """A table as it is, or the two sides of ranks as steps."""
    return RankSteps(first, *others) if others else first


def _scaled(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Probabilities whose rows have maximum 1, and the logs of the scales."""
    peak = finite(matrix.detach().amax(-1))
    return (matrix - peak.unsqueeze(-1)).exp(), peak


@torch.no_grad()
def _reached(state: Tensor, matrix: Tensor) -> Tensor:
    """(B, N) the states that any possible one leads to."""
    return product((state > -math.inf).to(state), (matrix > -math.inf).to(state)) > 0


def _places(side: Tensor, states: Tensor, first: int = 0) -> tuple[Tensor | int, Tensor]:
    """Items and steps of states (..., B, S), to index a table or factors per step."""
    batch, steps = states.shape[-2:]
    items = torch.arange(batch, device=states.device).unsqueeze(1) if len(side) != 1 else 0
    return items, torch.arange(first, first + steps, device=states.device)


def _rows(side: Tensor, states: Tensor, first: int = 0) -> Tensor:
    """(..., B, S, r) the factors of states (..., B, S)."""
    return side[states] if side.ndim == 2 else side[*_places(side, states, first), states]


def room_for(unary: Tensor) -> Tensor:
    """A buffer for the terms of `advance`, for states (B, N) of unary potentials (B, T, N)."""
    size = unary.shape[0] * unary.shape[2]
    return torch.empty(size * _width(size), dtype=unary.dtype, device=unary.device)


def advance(state: Tensor, transition: Tensor, room: Tensor | None = None) -> Tensor:
    """``logsumexp_i(state_i + transition_ij)``: (B, N), with (N, N) or (1 or B, N, N).

    One step of the recursion in log-space: exact at any range, and slow.
    """
    room = room_for(state.unsqueeze(1)) if room is None else room
    return _Advance.apply(state, transition, room)  # pyright: ignore


class _Advance(torch.autograd.Function):
    """A step of the recursion in blocks of columns; only arguments and result are kept."""

    @staticmethod
    def forward(ctx: Any, state: Tensor, transition: Tensor, room: Tensor) -> Tensor:
        ctx.room = room
        parts: list[Tensor] = []
        for block in transition.split(_width(state.numel()), -1):
            terms = _terms(state, block, room)
            peak = terms.amax(1, keepdim=True)
            shift = torch.where(peak > -math.inf, peak, 0.0)
            parts.append(terms.sub_(shift).exp_().sum(1).log_().add_(shift.squeeze(1)))
        result = torch.cat(parts, -1)
        ctx.save_for_backward(state, transition, result)
        return result

    @staticmethod
    def backward(ctx: Any, gradient: Tensor):  # pyright: ignore
        state, transition, result = ctx.saved_tensors
        if torch.is_grad_enabled():
            gradients = regradient(
                lambda x, values: soft_sum(x.unsqueeze(2) + values, 1),
                (state, transition),
                gradient,
            )
            return *gradients, None
        shift = torch.where(result > -math.inf, result, 0.0)
        whole, parts = torch.zeros_like(state), list[Tensor]()
        width = _width(state.numel())
        for block, total, weight in zip(
            *(part.split(width, -1) for part in (transition, shift, gradient)), strict=True
        ):
            terms = _terms(state, block, ctx.room).sub_(total.unsqueeze(1)).exp_()
            terms.mul_(weight.unsqueeze(1))
            whole += terms.sum(2)
            if ctx.needs_input_grad[1]:
                parts.append(terms.sum_to_size(block.shape).clone())
        return whole, torch.cat(parts, -1) if parts else None, None


def _width(size: int) -> int:
    """The columns of a block, for states of ``size`` elements."""
    return max(1, _BLOCK // max(1, size))


def _terms(state: Tensor, block: Tensor, room: Tensor) -> Tensor:
    """(B, N, columns): a state plus transitions out of it, in the buffer."""
    batch, states = state.shape
    shape = (batch, states, block.shape[-1])
    return torch.add(state.unsqueeze(2), block, out=room[: math.prod(shape)].view(shape))
