"""Scaled factors of chains of low rank."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from rdpgraph._core.cache import cached_property
from rdpgraph.logspace.logmatrix import finite
from rdpgraph.structures.chain.factors import (
    StepFactors,
    edge_gradient,
    inside,
    peak,
    product,
    steps_of,
)
from rdpgraph.structures.chain.steps import of_items
from rdpgraph.structures.chain.sweeps import swept

_LEAST = {torch.float32: 1e-10, torch.float64: 1e-100}
"""The smallest mass of a rank for which underflow elsewhere is negligible; see `doubtful`."""
_PANEL = 1024
_MOST_ROWS = 64


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
    def of(cls, unary: Tensor, log_left: Tensor, log_right: Tensor, lengths: Tensor) -> Self:
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
        self.masses[step] = to_ranks(state, self._lefts[step])
        to_states(self.masses[step], self._rights[step], out)

    def back(self, step: int, state: Tensor, out: Tensor) -> None:
        """Two products; the masses between them are stored."""
        self._backs[step] = to_ranks(state, self._rights[step])
        to_states(self._backs[step], self._lefts[step], out)

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
        own = ThinFactors.of(*of_items((*possible, self.lengths), rows))
        _, scales = swept(own, floor=_LEAST[self.unary.dtype], upward=True)
        return (own.masses > 0).transpose(0, 1).roll(1, 1), scales.mT > 0

    @cached_property
    def _lefts(self) -> Sequence[Tensor]:
        return steps_of(self.left, len(self.masses) - 1)

    @cached_property
    def _rights(self) -> Sequence[Tensor]:
        return steps_of(self.right, len(self.masses) - 1)

    @cached_property
    def _backs(self) -> Tensor:
        return torch.zeros_like(self.masses)


def to_ranks(state: Tensor, factor: Tensor) -> Tensor:
    """(B, N) times (N, r) or (1 or B, N, r): (B, r); in panels that fit a cache."""
    count = _panels(state, factor)
    if not count:
        return product(state, factor)
    main = count * _PANEL
    rows = state[:, :main].unflatten(1, (count, _PANEL)).transpose(0, 1)
    total = (rows @ factor[:main].unflatten(0, (count, _PANEL))).sum(0)
    return total if main == len(factor) else total + state[:, main:] @ factor[main:]


def to_states(rank: Tensor, factor: Tensor, out: Tensor) -> None:
    """(B, r) times the transpose of (N, r) or (1 or B, N, r), to (B, N)."""
    count = _panels(rank, factor)
    if not count:
        out.copy_(product(rank, factor.mT))
        return
    main = count * _PANEL
    panels = factor[:main].unflatten(0, (count, _PANEL))
    parts = rank.expand(count, *rank.shape) @ panels.mT
    out[:, :main].unflatten(1, (count, _PANEL)).copy_(parts.transpose(0, 1))
    if main < len(factor):
        out[:, main:] = rank @ factor[main:].mT


def _panels(rows: Tensor, factor: Tensor) -> int:
    """The number of panels; 0 where one product is as fast."""
    tall = factor.ndim == 2 and rows.device.type == "cpu" and len(rows) <= _MOST_ROWS
    return len(factor) // _PANEL if tall and len(factor) >= 8 * _PANEL else 0
