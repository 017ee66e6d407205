"""What a recurrence adds up and multiplies: log-sums, maxima or counts."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from rdpgraph._core import tuning
from rdpgraph.logspace.logmatrix import LogMatrix, soft_sum, streamed_max


class Prepared(Protocol):
    """A matrix that is multiplied many times."""

    def times(self, rows: Tensor) -> Tensor:
        """(*lead, m, k) as (*lead, m, n): the sum over k of products with (*lead, n, k)."""
        ...


class Semiring(ABC):
    """Sums and products of tensors, entry by entry, with -inf or 0 for what is absent.

    Attributes:
        zero: the sum of nothing.
        one: the product of nothing.
        wide: the dtype of tables, whatever that of inputs is; None: that of products of inputs.
    """

    zero: float
    one: float
    wide: torch.dtype | None = None

    @abstractmethod
    def lift(self, logs: Tensor) -> Tensor:
        """The values of inputs, given in nats."""

    @abstractmethod
    def multiply(self, one: Tensor, other: Tensor) -> Tensor:
        """The products of entries of tensors that broadcast."""

    @abstractmethod
    def sum(self, values: Tensor, dims: Sequence[int]) -> Tensor:
        """The sums over some dims."""

    def sum_products(self, one: Tensor, other: Tensor, dims: Sequence[int]) -> Tensor:
        """The sums over some dims of the products of entries of tensors that broadcast."""
        return self.sum(self.multiply(one, other), dims)

    def add(self, values: Sequence[Tensor]) -> Tensor:
        """The sum of tensors, entry by entry."""
        return self.sum(torch.stack(torch.broadcast_tensors(*values)), [0])

    @abstractmethod
    def prepare(self, matrix: Tensor) -> Prepared:
        """A matrix (*lead, n, k) for products with many rows."""

    def prepare_each(self, matrices: Tensor) -> Sequence[Prepared]:
        """Each of some matrices (many, *lead, n, k)."""
        return [self.prepare(matrix) for matrix in matrices.unbind(0)]

    def pair(self, rows: Tensor, columns: Tensor, *, balanced: bool) -> Tensor:
        """The product of rows (*lead, m, k) and of columns (*lead, n, k), which no other has.

        Args:
            rows: of values.
            columns: of values.
            balanced: whether all rows are of one item, and all columns, so that they are alike.
        """
        return self.prepare(columns).times(rows)


class _Logs(Semiring):
    """Logs in nats, whose products are sums."""

    zero, one = -math.inf, 0.0

    def lift(self, logs: Tensor) -> Tensor:
        return logs

    def multiply(self, one: Tensor, other: Tensor) -> Tensor:
        return one + other


class LogSum(_Logs):
    """Logs in nats; sums are log-sums, so that the goal is log Z.

    Exact at any range of scores; all derivatives exist, and are zero at -inf.
    """

    def sum(self, values: Tensor, dims: Sequence[int]) -> Tensor:
        return soft_sum(values, dims)

    def prepare(self, matrix: Tensor) -> Prepared:
        return LogMatrix.of(matrix)

    def prepare_each(self, matrices: Tensor) -> Sequence[Prepared]:
        every = LogMatrix.of(matrices)
        parts = zip(
            every.logs.unbind(0), every.weights.unbind(0), every.peaks.unbind(0), strict=True
        )
        return [LogMatrix(*each) for each in parts]


class Max(_Logs):
    """Logs in nats; sums are maxima, so that the goal is the score of the best derivation."""

    def sum(self, values: Tensor, dims: Sequence[int]) -> Tensor:
        return soft_sum(values, dims, 0.0)

    def prepare(self, matrix: Tensor) -> Prepared:
        return _MaxMatrix(matrix)


class _MaxMatrix:
    """A matrix (*lead, n, k) of logs, for maxima of sums; k is gone through in blocks."""

    def __init__(self, matrix: Tensor) -> None:
        self.columns = matrix.movedim(-1, 0).unsqueeze(-2)

    def times(self, rows: Tensor) -> Tensor:
        rows = rows.movedim(-1, 0).unsqueeze(-1)
        if rows.numel() * self.columns.shape[-1] <= tuning.CACHE_BLOCK:
            return (rows + self.columns).amax(0)
        return streamed_max(rows, self.columns, tuning.BLOCK)


class Most(_Logs):
    """Logs in nats, each with a count as its imaginary part; sums are over the largest count.

    The goal is the log-sum of the derivations that use most of what counts, and how much they use.
    The count of -inf means nothing.
    """

    def lift(self, logs: Tensor) -> Tensor:
        return logs if logs.is_complex() else torch.complex(logs, torch.zeros_like(logs))

    def sum(self, values: Tensor, dims: Sequence[int]) -> Tensor:
        logs, counts = values.real, values.imag.detach()
        counts = torch.where(logs.detach() > -math.inf, counts, -math.inf)
        most = counts.amax([*dims], keepdim=True)
        total = soft_sum(torch.where(counts == most, logs, -math.inf), dims)
        most = most.sum([*dims])  # of size 1
        return torch.complex(total, torch.where(most > -math.inf, most, 0.0))

    def prepare(self, matrix: Tensor) -> Prepared:
        return _MostMatrix(self, matrix)


class _MostMatrix:
    def __init__(self, semiring: Most, matrix: Tensor) -> None:
        self.semiring, self.matrix = semiring, matrix

    def times(self, rows: Tensor) -> Tensor:
        return self.semiring.sum(rows.unsqueeze(-2) + self.matrix.unsqueeze(-3), [-1])


class Count(Semiring):
    """Whole numbers in float64: an entry counts 1 where it is possible.

    The goal is the number of derivations with a score above -inf, exact up to 2^53.
    """

    zero, one = 0.0, 1.0

    def lift(self, logs: Tensor) -> Tensor:
        return (logs > -math.inf).to(torch.float64)

    def multiply(self, one: Tensor, other: Tensor) -> Tensor:
        return one * other

    def sum(self, values: Tensor, dims: Sequence[int]) -> Tensor:
        return values.sum([*dims])

    def prepare(self, matrix: Tensor) -> Prepared:
        return _CountMatrix(matrix)


class _CountMatrix:
    def __init__(self, matrix: Tensor) -> None:
        self.matrix = matrix

    def times(self, rows: Tensor) -> Tensor:
        return rows @ self.matrix.mT
