"""Log Z by scaled products, of tables or ranks, with a backward pass written by hand.

Every product of the recursion is alpha_{t-1}(i) P_ij e_t(j), each factor at most 1. If the positive
entries of alpha_{t-1} are at least `state_limit`, and the least positive P_ij times the least
positive e_t(j) at least `step_limit`, no product underflows, and alpha_t is right to rounding. By
induction this check of minima suffices, but it is not necessary: a left-to-right chain leaves its
early states behind at a geometric rate. Other items are in doubt, and solved by other means.
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
from rdpgraph.structures.chain import logs, sweeps
from rdpgraph.structures.chain.factors import (
    Factors,
    StepFactors,
    edge_gradient,
    inside,
    masked,
    peak,
    product,
    steps_of,
)
from rdpgraph.structures.chain.steps import RankSteps, of_items, stepping
from rdpgraph.structures.chain.sweeps import Forward, swept

_LEAST = {torch.float32: 1e-10, torch.float64: 1e-100}
"""The smallest mass of a rank for which underflow elsewhere is negligible; see `doubtful`."""


@dataclass(frozen=True, eq=False)
class ThinFactors(StepFactors):
    """Factors of ``logsumexp_k(log_left_ik + log_right_jk)``, multiplied through the ranks."""

    log_left: Tensor  # (N, r) or (1 or B, T-1, N, r) in nats, as given
    log_right: Tensor  # of the same shape
    left: Tensor  # probabilities, the largest of each rank 1; the scale is moved to ``right``
    right: Tensor  # probabilities, the largest of each state 1
    rows: Tensor  # (N,) or (1 or B, T-1, N) nats taken off each state on the right
    masses: Tensor  # (T, B, r): the ranks after each step, written by a sweep; 0 after the last

    @classmethod
    def of(
        cls, unary: Tensor, log_left: Tensor, log_right: Tensor, lengths: Tensor
    ) -> "ThinFactors":
        """Scaled factors of log-potentials."""
        columns = peak(log_left, (-2,))
        right = log_right + columns
        rows = peak(right, (-1,))
        left, right = (log_left - columns).exp_(), right.sub_(rows).exp_()
        masses = unary.new_zeros(*unary.shape[1::-1], left.shape[-1])
        rows, tops = rows.squeeze(-1), unary.new_empty(*unary.shape[:2], 1)
        linked = [rows] * len(masses) if rows.ndim == 1 else rows.unbind(1)
        for step, level in enumerate(unary.unbind(1)):
            # In place: small tensors between those of a step would fragment memory.
            logs = level + linked[step - 1] if step else level
            torch.amax(logs, 1, keepdim=True, out=tops[:, step])
        offset = finite(tops.squeeze(2))
        return cls(unary, offset, lengths, log_left, log_right, left, right, rows, masses)

    @property
    def made(self) -> tuple[Tensor, ...]:
        return self.left, self.right, self.rows, self.masses

    def emitted(self, first: int, out: Tensor) -> None:
        out.copy_(self.unary.transpose(0, 1)[first:])
        linked = out if first else out[1:]
        linked += self.rows if self.rows.ndim == 1 else self.rows.transpose(0, 1)
        out.sub_(self.offset.mT[first:, :, None]).exp_()

    def ahead(self, step: int, state: Tensor, out: Tensor) -> None:
        """Two products; the masses of the ranks between them are stored."""
        self.masses[step] = product(state, self._lefts[step])
        out.copy_(product(self.masses[step], self._rights[step].mT))

    def back(self, step: int, state: Tensor, out: Tensor) -> None:
        """Two products; the masses between them are stored."""
        self._backs[step] = product(state, self._rights[step])
        out.copy_(product(self._backs[step], self._lefts[step].mT))

    def edges(self, states: Tensor, ahead: Tensor) -> tuple[Tensor, ...]:
        # Impossible items have no mass.
        backs, masses = (p.nan_to_num().transpose(0, 1) for p in (self._backs, self.masses))
        return edge_gradient(self.left, states, backs), edge_gradient(self.right, ahead, masses)

    def doubtful(self, states: Tensor, scales: Tensor) -> Tensor:
        """Items in which a rank that can be reached has a small mass.

        Factors are at most 1 on the left. With v the messages back to the ranks, the future of any
        state, sum_k L_ik v_k, is at most 1 / min_k w_k times that of the whole, sum_k w_k v_k,
        where w are the masses of the ranks: a loss of N tiny numbers is negligible while no w is
        small. The same holds on the right, whose factors have a maximum of 1 in each state.
        """
        least = _LEAST[states.dtype]
        within = inside(self.lengths, states.shape[1])
        low = (self.masses.transpose(0, 1) < least).roll(1, 1) & within.unsqueeze(2)
        low[:, 0] = False
        faint = (scales < least) & within
        doubtful = low.flatten(1).any(1) | faint.any(1)
        if bool(doubtful.any()):
            rows = doubtful.nonzero().squeeze(1)
            reached, alive = self._reached(rows)
            doubtful[rows] = (low[rows] & reached).flatten(1).any(1) | (faint[rows] & alive).any(1)
        return doubtful

    def _reached(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Ranks (B, T, r) before each step that a prefix of the items reaches, and steps (B, T)."""
        given = self.unary, self.log_left, self.log_right
        possible = [torch.where(part > -math.inf, 0.0, part) for part in given]
        chain = ThinFactors.of(*of_items((*possible, self.lengths), rows))
        _, scales = swept(chain, floor=_LEAST[self.unary.dtype])
        return (chain.masses > 0).transpose(0, 1).roll(1, 1), scales.mT > 0

    @cached_property
    def _lefts(self) -> Sequence[Tensor]:
        return steps_of(self.left, len(self.masses) - 1)

    @cached_property
    def _rights(self) -> Sequence[Tensor]:
        return steps_of(self.right, len(self.masses) - 1)

    @cached_property
    def _backs(self) -> Tensor:
        return torch.zeros_like(self.masses)


def log_partition(unary: Unary, *parts: Tensor) -> tuple[LogZ, Doubt]:
    """Log Z of each item, (B,), and whether underflow may have taken some of it, (B,) bool.

    O(T N^2) per item, as products of matrices, or O(T N r); keeps O(T N), or O(T (N + r)). Twice
    differentiable. Parts are the transition, (N, N) or (1 or B, T-1, N, N), or both sides of ranks,
    (N, r) or (1 or B, T-1, N, r), of the dtype of unary (B, T, N), T > 0; and lengths (B,).
    """
    return _Scaled.apply(unary, *parts)  # pyright: ignore


class _Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, unary: Tensor, *parts: Tensor) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        *sides, lengths = parts
        chain = (Factors if len(sides) == 1 else ThinFactors).of(unary, *parts)
        swept = sweeps.forward(chain)
        kept = chain.offset, *sides, *chain.made
        ctx.save_for_backward(unary, lengths, swept.states, swept.scales, *kept)
        ctx.mark_non_differentiable(swept.doubtful)
        ctx.kind, ctx.sides = type(chain), len(sides)
        ctx.products = _autocast(unary.device.type) if len(sides) > 1 else nullcontext()
        return swept.values, swept.doubtful

    @staticmethod
    def backward(ctx: Any, gradient: Tensor | None, _: Tensor | None):  # pyright: ignore
        if gradient is None:
            return None, *(None for _ in range(ctx.sides)), None
        unary, lengths, states, scales, offset, *kept = ctx.saved_tensors
        if torch.is_grad_enabled():

            def again(unary: Tensor, *sides: Tensor) -> Tensor:
                steps = stepping(*sides)
                if isinstance(steps, RankSteps):
                    return logs.log_partition(unary, steps, lengths)
                return sweeps.unrolled(masked(unary, lengths), steps, lengths)

            return *regradient(again, (unary, *kept[: ctx.sides]), gradient), None
        chain = ctx.kind(unary, offset, lengths, *kept)
        swept = Forward(states, scales, scales, scales)
        with ctx.products:
            marginals, ahead = sweeps.backward(chain, swept, gradient)
            needed = any(ctx.needs_input_grad[1:])
            edges = chain.edges(states, ahead) if needed else (None,) * ctx.sides
        return marginals, *edges, None


def _autocast(device: str) -> torch.autocast:
    """The current autocast mode, for the products of the gradient."""
    return torch.autocast(
        device, torch.get_autocast_dtype(device), enabled=torch.is_autocast_enabled(device)
    )
