"""Log Z by scaled products in torch, of tables or ranks, with a backward pass written by hand.

Every product of the recursion is alpha_{t-1}(i) P_ij e_t(j), each factor at most 1, with P a table
of pairs, or one to ranks times one from them. Columns of the first table have a maximum of 1. With
v the messages back to its columns, the future of any state, sum_k P_ik v_k, is at most 1 / min_k
w_k times that of the whole, sum_k w_k v_k, where w are the masses of the columns. Numbers below the
least one are lost before a state is divided by its sum: so N of them, over such a sum and over the
least w, are negligible while neither is small. Other items are in doubt, and solved by other means.
"""

import math
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rdpgraph._core.cache import cached_property
from rdpgraph._core.types import Doubt, LogZ, Unary
from rdpgraph.logspace.gradients import regradient
from rdpgraph.logspace.logmatrix import finite
from rdpgraph.structures.chain import logs
from rdpgraph.structures.chain.factors import (
    edge_gradient,
    inside,
    multiply,
    peak,
    product,
    steps_of,
)
from rdpgraph.structures.chain.steps import of_items, of_tables

_LEAST = {torch.float32: 1e-12, torch.float64: 1e-140}
"""The smallest mass for which underflow elsewhere is negligible; of its square the least number of
the type is a small part."""


@dataclass(frozen=True, eq=False)
class Factors:
    """Potentials as probabilities, divided by their maxima."""

    unary: Tensor  # (B, T, N) in nats, as given
    lengths: Tensor  # (B,) int64
    # In nats, as given, (n, k) or (1 or B, T-1, n, k): of pairs, or to ranks and from them.
    sides: Sequence[Tensor]
    tables: Sequence[Tensor]  # the largest of each column 1; the scale is moved to what follows
    rows: Tensor  # (N,) or (1 or B, T-1, N) nats taken off the columns of the last
    offset: Tensor  # (T, B, 1) nats taken off each step, written by a sweep
    masses: Tensor  # (T, B, k): the columns of the first table after each step, likewise

    @classmethod
    def of(cls, unary: Tensor, lengths: Tensor, *sides: Tensor) -> "Factors":
        """Scaled factors of log-potentials."""
        tables, rows = list[Tensor](), unary.new_zeros(())
        for side in sides:
            logs = side + rows.unsqueeze(-1)
            top = peak(logs, (-2,))
            tables.append(logs.sub_(top).exp_())
            rows = top.squeeze(-2)
        steps = unary.shape[1::-1]
        masses = unary.new_zeros(*steps, sides[0].shape[-1])
        return cls(unary, lengths, sides, tables, rows, unary.new_empty(*steps, 1), masses)

    def emitted(self, first: int, out: Tensor) -> None:
        """Write the probabilities of states at the steps from ``first`` on, (T - first, B, N)."""
        out.copy_(self.unary.transpose(0, 1)[first:])
        linked = out if first else out[1:]
        linked += self.rows if self.rows.ndim == 1 else self.rows.transpose(0, 1)
        if not first:
            torch.amax(out, 2, keepdim=True, out=self.offset)
            self.offset.copy_(finite(self.offset))
        out.sub_(self.offset[first:]).exp_()

    def ahead(self, step: int, state: Tensor) -> Tensor:
        """States (B, N) times the transition from a step."""
        first, *others = (tables[step] for tables in self._each)
        if not others:
            multiply(state, first, out=self.masses[step])
            return self.masses[step]
        self.masses[step] = product(state, first)
        return product(self.masses[step], others[0])

    def back(self, step: int, state: Tensor) -> Tensor:
        """States (B, N) after a step times its transition transposed."""
        first, *others = (tables[step].mT for tables in self._each)
        if not others:
            multiply(state, first, out=(room := torch.empty_like(state)))
            return room
        self._backs[step] = product(state, others[0])
        return product(self._backs[step], first)

    def edges(self, states: Tensor, ahead: Tensor) -> list[Tensor]:
        """Sums of edge marginals in the shapes of the transition's tensors.

        Given both sides of edges (B, T, N), of which those ahead are 0 at the last step.
        """
        befores, afters = [states], [ahead]
        if len(self.tables) > 1:  # impossible items have no mass
            befores.append(self.masses.nan_to_num().transpose(0, 1))
            afters.insert(0, self._backs.nan_to_num().transpose(0, 1))
        sums = map(edge_gradient, self.tables, befores, afters)
        return [part.sum_to_size(side.shape) for part, side in zip(sums, self.sides, strict=True)]

    def doubtful(self, scales: Tensor) -> Tensor:
        """(B,) items in which a column that can be reached has a small mass.

        Given the sums (T, B) of states before they were normalised.
        """
        least, within = _LEAST[scales.dtype], inside(self.lengths, len(scales)).mT
        low = (self.masses < least).roll(1, 0) & within.unsqueeze(2)
        low[0] = False
        faint = (scales < least) & within
        doubtful = low.any(0).any(1) | faint.any(0)
        if bool(doubtful.any()):
            rows = doubtful.nonzero().squeeze(1)
            reached, alive = self._reached(rows)
            low, faint = low[:, rows] & reached, faint[:, rows] & alive
            doubtful[rows] = low.any(0).any(1) | faint.any(0)
        return doubtful

    def _reached(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Columns (T, B, k) before each step that a prefix of items reaches, and steps (T, B)."""
        given = self.unary, *self.sides
        possible = [torch.where(part > -math.inf, 0.0, part) for part in given]
        unary, *sides, lengths = of_items((*possible, self.lengths), rows)
        chain = Factors.of(unary, lengths, *sides)
        _, scales = swept(chain, floor=_LEAST[self.unary.dtype])
        return (chain.masses > 0).roll(1, 0), scales > 0

    @cached_property
    def _each(self) -> list[Sequence[Tensor]]:
        return [steps_of(table, self.unary.shape[1] - 1) for table in self.tables]

    @cached_property
    def _backs(self) -> Tensor:
        return torch.zeros_like(self.masses)


def swept(factors: Factors, *, floor: float = 0.0) -> tuple[Tensor, Tensor]:
    """States (T, B, N), each row summing to 1, or to 0 where nothing is possible; sums (T, B).

    alpha_t = alpha_{t-1} P * e_t, normalised. Positive states below a floor are raised to it. Four
    calls for each step, which dominate the time of small chains.
    """
    batch, steps, count = factors.unary.shape
    # In order of the steps; states overwrite the emissions.
    states, scales = (factors.unary.new_empty(steps, batch, size) for size in (count, 1))
    factors.emitted(0, states)
    ones, rows = states.new_ones(count, 1), states.unbind(0)
    for step, (state, scale) in enumerate(zip(rows, scales.unbind(0), strict=True)):
        if step:
            state.mul_(factors.ahead(step - 1, rows[step - 1]))
        torch.mm(state, ones, out=scale)
        torch.div(state, scale, out=state)  # NaN where nothing is possible: see below
        if floor:
            state.copy_(torch.where(state > 0, state.clamp(min=floor), state))
    states.masked_fill_(states.isnan(), 0.0)
    scales.masked_fill_(scales.isnan(), 0.0)
    return states, scales.squeeze(2)


def backward(
    factors: Factors, states: Tensor, scales: Tensor, gradient: Tensor
) -> tuple[Tensor, Tensor]:
    """Marginals times the gradient of log Z, and the other side of each edge, both (B, T, N).

    Given the results of `swept`. With beta_t = P (e_{t+1} beta_{t+1} / c_{t+1}) the marginals are
    alpha_t beta_t, and those of the edge from t are alpha_t(i) P_ij ahead_t(j); ahead is zero at
    the last step. States that no prefix reaches have an unbounded beta, and are left out.
    """
    ahead, futures = torch.empty_like(states), torch.zeros_like(states)
    # What is ahead of a step begins as the next one's share.
    ahead[-1] = 0.0
    factors.emitted(1, ahead[:-1])
    ahead[:-1].div_(scales[1:].unsqueeze(2).clamp(min=torch.finfo(states.dtype).tiny))
    ahead[:-1].masked_fill_(states[1:] == 0, 0.0)
    items = torch.arange(len(gradient), device=gradient.device)
    futures[(factors.lengths - 1).clamp(min=0), items] = gradient.unsqueeze(1)
    behind, after = ahead.unbind(0), futures.unbind(0)
    for step in range(len(states) - 1, 0, -1):
        behind[step - 1].mul_(after[step])
        after[step - 1].add_(factors.back(step - 1, behind[step - 1]))
    return futures.mul_(states).transpose(0, 1), ahead.transpose(0, 1)


def log_partition(unary: Unary, lengths: Tensor, *sides: Tensor) -> tuple[LogZ, Doubt]:
    """Log Z of each item, (B,), and whether underflow may have taken some of it, (B,) bool.

    O(T N^2) per item, as products of matrices, or O(T N r); keeps O(T N), or O(T (N + r)). Twice
    differentiable. Sides are the transition, (N, N) or (1 or B, T-1, N, N), or tables to ranks and
    from them, of the dtype of unary (B, T, N), T > 0.
    """
    return _Scaled.apply(unary, lengths, *sides)  # pyright: ignore


class _Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, unary: Tensor, lengths: Tensor, *sides: Tensor) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        chain = Factors.of(unary, lengths, *sides)
        states, scales = swept(chain)
        doubtful, within = chain.doubtful(scales), inside(lengths, len(scales)).mT
        states.masked_fill_(~within.unsqueeze(2), 0.0)
        terms = torch.where(within, scales.log() + chain.offset.squeeze(2), 0.0)
        ranks = len(sides) > 1
        made = *chain.tables, chain.rows, chain.offset, chain.masses if ranks else chain.rows
        ctx.save_for_backward(unary, lengths, states, scales, *sides, *made)
        ctx.mark_non_differentiable(doubtful)
        ctx.sides = len(sides)
        ctx.products = _autocast(unary.device.type) if ranks else nullcontext()
        return terms.sum(0), doubtful

    @staticmethod
    def backward(ctx: Any, gradient: Tensor | None, _: Tensor | None):  # pyright: ignore
        if gradient is None:
            return None, None, *(None for _ in range(ctx.sides))
        unary, lengths, states, scales, *others = ctx.saved_tensors
        sides, tables = others[: ctx.sides], others[ctx.sides : 2 * ctx.sides]
        if torch.is_grad_enabled():

            def again(unary: Tensor, *sides: Tensor) -> Tensor:
                return logs.log_partition(unary, of_tables(*sides), lengths)

            first, *rest = regradient(again, (unary, *sides), gradient)
            return first, None, *rest
        chain = Factors(unary, lengths, sides, tables, *others[2 * ctx.sides :])
        with ctx.products:
            marginals, ahead = backward(chain, states, scales, gradient)
            needed = any(ctx.needs_input_grad[2:])
            edges = chain.edges(states.transpose(0, 1), ahead) if needed else [None] * ctx.sides
        return marginals, None, *edges


def _autocast(device: str) -> torch.autocast:
    """The current autocast mode, for the products of the gradient."""
    return torch.autocast(
        device, torch.get_autocast_dtype(device), enabled=torch.is_autocast_enabled(device)
    )
