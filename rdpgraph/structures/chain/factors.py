"""Potentials as scaled factors, which the recursion multiplies."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rdpgraph._core.cache import cached_property
from rdpgraph.logspace.logmatrix import finite


@dataclass(frozen=True, eq=False)
class StepFactors(ABC):
    """Potentials as probabilities, divided by their maxima."""

    unary: Tensor  # (B, T, N) in nats, as given
    offset: Tensor  # (B, T) nats taken off the unary of a step and the transition into it
    lengths: Tensor  # (B,) int64

    @property
    @abstractmethod
    def made(self) -> tuple[Tensor, ...]:
        """The last fields, beyond the potentials, which the backward pass needs."""

    @abstractmethod
    def emitted(self, first: int, out: Tensor) -> None:
        """Write the probabilities of states at the steps from ``first`` on, (T - first, B, N)."""

    @abstractmethod
    def ahead(self, step: int, state: Tensor, out: Tensor) -> None:
        """Write states (B, N) times the transition from a step to (B, N)."""

    @abstractmethod
    def back(self, step: int, state: Tensor, out: Tensor) -> None:
        """Write states (B, N) after a step times its transition transposed to (B, N)."""

    @abstractmethod
    def doubtful(self, states: Tensor, scales: Tensor) -> Tensor:
        """(B,) bool: items that may have lost something to underflow.

        Given the states (B, T, N) of a sweep and their sums (B, T) before they were normalised.
        """

    @abstractmethod
    def edges(self, states: Tensor, ahead: Tensor) -> tuple[Tensor, ...]:
        """Sums of edge marginals in the shapes of the transition's tensors.

        Given both sides of edges (B, T, N), of which those ahead are 0 at the last step.
        """

    def inside(self) -> Tensor:
        """(B, T): whether a step is one of the item's."""
        return inside(self.lengths, self.unary.shape[1])


@dataclass(frozen=True, eq=False)
class Factors(StepFactors):
    """Scaled factors of tables."""

    transition: Tensor  # (N, N) or (1 or B, T-1, N, N) in nats, as given
    emission: Tensor  # (B, T, N): exp(unary), the maximum of each row 1; 0 in rows of -inf
    matrix: Tensor  # (N, N) or (1 or B, T-1, N, N): exp(transition), the maximum of each matrix 1

    @classmethod
    def of(cls, unary: Tensor, transition: Tensor, lengths: Tensor) -> "Factors":
        """Scaled factors of log-potentials."""
        rows, top = peak(unary, (2,)), peak(transition, (-2, -1))
        matrix = torch.sub(transition, top).exp_()
        emission = torch.sub(unary, rows).exp_()
        return cls(unary, joined(rows, top), lengths, transition, emission, matrix)

    @property
    def made(self) -> tuple[Tensor, ...]:
        return self.emission, self.matrix

    def emitted(self, first: int, out: Tensor) -> None:
        out.copy_(self.emission.transpose(0, 1)[first:])

    def ahead(self, step: int, state: Tensor, out: Tensor) -> None:
        multiply(state, self._each[0][step], out=out)

    def back(self, step: int, state: Tensor, out: Tensor) -> None:
        multiply(state, self._each[1][step], out=out)

    def doubtful(self, states: Tensor, scales: Tensor) -> Tensor:
        smallest = torch.where(states > 0, states, 1.0).amin(2)
        step = torch.where(self.unary > -math.inf, self.emission, 1.0).amin(2)
        step[:, 1:] *= torch.where(self.transition > -math.inf, self.matrix, 1.0).amin((-2, -1))
        low = (smallest < state_limit(states.dtype)) | (step < step_limit(states.dtype))
        return (low & self.inside()).any(1)

    def edges(self, states: Tensor, ahead: Tensor) -> tuple[Tensor, ...]:
        return (edge_gradient(self.matrix, states, ahead),)

    @cached_property
    def _each(self) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
        count = self.unary.shape[1] - 1
        return steps_of(self.matrix, count), steps_of(self.matrix.mT, count)


def state_limit(dtype: torch.dtype) -> float:
    """The least safe positive entry of a normalised state; see `scaled`."""
    return math.exp(-45.0) if dtype == torch.float32 else math.exp(-370.0)


def step_limit(dtype: torch.dtype) -> float:
    """The least safe product of the two other factors."""
    return math.exp(-42.0) if dtype == torch.float32 else math.exp(-330.0)


def inside(lengths: Tensor, total: int) -> Tensor:
    """(*batch, T): whether a step is within the length."""
    return torch.arange(total, device=lengths.device) < lengths.unsqueeze(-1)


def flat_lengths(lengths: Tensor | None, shape: Sequence[int], like: Tensor) -> Tensor:
    """(B,) lengths from (*batch,), for shape (*batch, T); default: all T."""
    if lengths is not None:
        return lengths.reshape(-1)
    return torch.full((math.prod(shape[:-1]),), shape[-1], device=like.device)


def masked(unary: Tensor, lengths: Tensor) -> Tensor:
    """Unary potentials (*batch, T, N), zero beyond the lengths (*batch,)."""
    return torch.where(inside(lengths, unary.shape[-2]).unsqueeze(-1), unary, 0.0)


def held(values: Tensor, lengths: Tensor, *, best: bool) -> Tensor:
    """Marginals or max-marginals (*batch, T, states), with state 0 certain beyond the lengths."""
    if not values.shape[-2]:
        return values
    sure = torch.ones_like(lengths, dtype=values.dtype)
    if best:
        sure = torch.where(lengths > 0, values.amax((-2, -1)), 0.0)
    first = torch.arange(values.shape[-1], device=values.device) == 0
    only = torch.where(first, sure.reshape([*lengths.shape, 1, 1]), -math.inf if best else 0.0)
    return torch.where(inside(lengths, values.shape[-2]).unsqueeze(-1), values, only)


def peak(logs: Tensor, dims: tuple[int, ...]) -> Tensor:
    """The maxima over some dims, kept at size 1; 0 where all is -inf."""
    return finite(logs.amax(dims, keepdim=True))


def joined(rows: Tensor, top: Tensor) -> Tensor:
    """(B, T): the peak of each unary (B, T, 1) plus that of the transition before it."""
    offset = rows.squeeze(2).clone()
    offset[:, 1:] += top.squeeze(-1).squeeze(-1)
    return offset


def product(state: Tensor, matrix: Tensor) -> Tensor:
    """(..., N) times (N, N), or rows times matrices (..., N, N), whose lead may be 1."""
    if matrix.ndim == 2:
        return state @ matrix
    if matrix.ndim == 3 and len(matrix) == 1:
        return state @ matrix[0]
    return (state.unsqueeze(-2) @ matrix).squeeze(-2)


def edge_gradient(matrix: Tensor, states: Tensor, ahead: Tensor) -> Tensor:
    """Sums over steps of both sides of edges, (B, T, n) and (B, T, k), times a matrix.

    In the shape of the matrix, (n, k) or (1 or B, T-1, n, k); ``ahead`` is 0 at the last step.
    """
    if matrix.ndim == 2:
        if not states.is_contiguous():  # in the order of steps, as sweeps in torch make them
            states, ahead = states.transpose(0, 1), ahead.transpose(0, 1)
        return (states.flatten(0, 1).mT @ ahead.flatten(0, 1)).mul_(matrix)
    states, ahead = states[:, :-1], ahead[:, :-1]
    if matrix.shape[0] == 1:
        return torch.einsum("bti,btj->tij", states, ahead).unsqueeze(0).mul_(matrix)
    return (states.unsqueeze(3) * ahead.unsqueeze(2)).mul_(matrix)


def multiply(state: Tensor, matrix: Tensor, *, out: Tensor) -> None:
    """`product` into an existing tensor; no gradient."""
    if matrix.ndim == 2 or matrix.shape[0] == 1:
        torch.mm(state, matrix if matrix.ndim == 2 else matrix[0], out=out)
    else:
        torch.bmm(state.unsqueeze(1), matrix, out=out.unsqueeze(1))


def step_of(matrix: Tensor, step: int) -> Tensor:
    """The matrix from step to step + 1: (N, N) or (1 or B, N, N)."""
    return matrix if matrix.ndim == 2 else matrix[:, step]


def steps_of(matrix: Tensor, count: int) -> Sequence[Tensor]:
    """`step_of` for all steps, by one unbinding: the gradient of a slice is as large as all."""
    return [matrix] * count if matrix.ndim == 2 else matrix.unbind(1)
