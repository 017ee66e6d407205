"""Pairwise potentials that are applied to vectors of states without a table: bands and blocks."""

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Self

import torch
from torch import Tensor

from rdpgraph._core.arguments import require_fields
from rdpgraph._core.cache import differentiable_property
from rdpgraph._core.types import ArrayLike, broadcast_shapes
from rdpgraph.errors import ModelError
from rdpgraph.logspace.logmatrix import LogMatrix, soft_sum
from rdpgraph.model.potentials.lowrank import LowRank, rows_of
from rdpgraph.model.potentials.potential import Potential, select_lead
from rdpgraph.model.potentials.table import checked_log_table, settle


class PairOperator(Potential):
    """A potential of two variables of N states each, applied to vectors without its N^2 values."""

    @property
    @abstractmethod
    def tensors(self) -> tuple[Tensor, ...]:
        """Parameters that gradients flow to; the first has a row for each first state, in order."""

    @abstractmethod
    def replaced(self, tensors: Sequence[Tensor]) -> Self:
        """The same with other parameters."""

    @abstractmethod
    def turned(self) -> Self:
        """The same with both slots exchanged."""

    @abstractmethod
    def normal(self) -> Self:
        """The same with rows that sum to one; a `ModelError` where one has no possible state."""

    @abstractmethod
    def sums(self, rows: Tensor) -> Tensor:
        """``logsumexp_i(rows_i + value_ij)``, (B, N) as (B, N); exact and differentiable.

        Leading dims of the potential broadcast with B.
        """

    @property
    @abstractmethod
    def additive(self) -> bool:
        """True if every log-value is a sum of parameters."""

    @property
    def maximises(self) -> bool:
        """True if a maximum has the cost of a sum."""
        return self.additive

    @property
    @abstractmethod
    def work(self) -> int:
        """The multiply-adds of `sums` for each state."""

    @property
    @abstractmethod
    def shape(self) -> tuple[int, ...]:
        """Leading dims, such as the steps of a chain, and the number of states twice."""

    @property
    def dtype(self) -> torch.dtype:
        return self.tensors[0].dtype

    @property
    def device(self) -> torch.device:
        return self.tensors[0].device

    def comparable(self, other: "PairOperator") -> bool:
        """Return whether both are of one kind, with parameters of the same shapes."""
        shapes = ([part.shape for part in each.tensors] for each in (self, other))
        return type(other) is type(self) and next(shapes) == next(shapes)

    def row_totals(self) -> Tensor:
        """(*lead, N) log-sums over the second state."""
        *lead, states, _ = self.shape
        rows = self.tensors[0].new_zeros(*(lead or (1,)), states)
        return self.turned().sums(rows).reshape(*lead, states)

    def _possible_totals(self) -> Tensor:
        totals = self.row_totals()
        if not bool((totals.detach() > -math.inf).all()):
            raise ModelError(
                f"{type(self).__name__}.normalised needs a possible second state for every first."
            )
        return totals


@dataclass(frozen=True, eq=False)
class Banded(PairOperator):
    """A pairwise potential of values at some offsets, and none or low rank elsewhere.

    ``value(i, i + o_d) = exp(log_values[i, d])``, plus that of ``rest`` for every pair. As a
    transition of a `Chain` it costs O(T N (D + r)). The offsets ``(-1, 0, 1)`` are a band; the
    offset 0 and a rest of low rank are a diagonal plus low rank, as of models that copy (Li and
    Stephens 2003): with a leading dim, one for each step.

    Args:
        log_values: (*lead, N, D) nats, [i, d] of state i and offset o_d; where i + o_d is no state
            it is not read. Leading dims are the steps of a chain, batch dims or factors of a block.
            Gradients flow to them.
        offsets: D different whole numbers from -(N - 1) to N - 1, at least one.
        rest: a `LowRank` of shape (*lead, N, N), whose leading dims broadcast with those of the
            values; None: nothing elsewhere. With a rest of
            one rank maxima have the cost of sums; of more they form the N^2 values.

    Raises:
        ModelError: shapes or offsets that do not fit, NaN or +inf.

    Example:
        >>> steps = Banded.normalised(torch.zeros(4, 3), (-1, 0, 1))
        >>> steps.table(2).exp()
        tensor([[0.5000, 0.5000, 0.0000, 0.0000],
                [0.3333, 0.3333, 0.3333, 0.0000],
                [0.0000, 0.3333, 0.3333, 0.3333],
                [0.0000, 0.0000, 0.5000, 0.5000]])
    """

    log_values: Tensor
    offsets: tuple[int, ...]
    rest: LowRank | None = field(default=None)

    if TYPE_CHECKING:  # accepted types, converted to those of the fields

        def __init__(
            self, log_values: ArrayLike, offsets: Sequence[int], rest: LowRank | None = None
        ) -> None: ...

    def __post_init__(self) -> None:
        settle(self, "log_values")
        checked_log_table("Banded's log_values", self.log_values)
        require_fields(self)
        shape, offsets = tuple(self.log_values.shape), self.offsets
        # As many offsets as columns, all different, each shorter than the table.
        ends = shape[-2:]
        fits = len(ends) == 2 and 0 < ends[-1] == len(offsets) == len({*offsets})
        if not fits or not all(abs(offset) < ends[0] for offset in offsets):
            raise ModelError(
                "Banded needs log_values (*lead, N, D) and D different offsets between -N and N; "
                f"got {shape} and {offsets}."
            )
        # A rest is added to the band: it needs the same states, type and leading dims.
        rest, states = self.rest, ends[0]
        if rest is None:
            return
        if rest.shape[-2:] != (states, states) or rest.dtype != self.dtype:
            raise ModelError(
                f"Banded of {states} states needs a rest of shape {(states, states)} and "
                f"{self.dtype}; got {rest.shape} and {rest.dtype}."
            )
        try:
            broadcast_shapes(shape[:-2], rest.lead(2))
        except RuntimeError:
            raise ModelError(
                "Banded needs leading dims that broadcast; got log_values "
                f"{shape} and a rest of shape {rest.shape}."
            ) from None

    @classmethod
    def normalised(
        cls, log_values: Tensor, offsets: Sequence[int], rest: LowRank | None = None
    ) -> "Banded":
        """The log-probabilities of the second state given the first: each row sums to one.

        Raises:
            ModelError: as for the class, or a row without a possible state.
        """
        return cls(log_values, offsets, rest).normal()

    def normal(self) -> "Banded":
        totals = self._possible_totals().unsqueeze(-1)
        values, *sides = self.tensors
        return self.replaced([values - totals, *(s - totals for s in sides[:1]), *sides[1:]])

    @property
    def shape(self) -> tuple[int, ...]:
        lead = self.log_values.shape[:-2]
        lead = lead if self.rest is None else broadcast_shapes(lead, self.rest.lead(2))
        return (*lead, *2 * self.log_values.shape[-2:-1])

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        sides = () if self.rest is None else (self.rest.log_left, self.rest.log_right)
        return self.log_values, *sides

    def replaced(self, tensors: Sequence[Tensor]) -> "Banded":
        values, *sides = tensors
        return replace(self, log_values=values, rest=LowRank(*sides) if sides else None)

    def turned(self) -> "Banded":
        rest = None if self.rest is None else LowRank(self.rest.log_right, self.rest.log_left)
        return Banded(self._into, tuple(-offset for offset in self.offsets), rest)

    def comparable(self, other: PairOperator) -> bool:
        same = isinstance(other, Banded) and other.offsets == self.offsets
        return same and super().comparable(other)

    @property
    def additive(self) -> bool:
        return self.rest is None

    @property
    def maximises(self) -> bool:
        return self.rest is None or self.rest.rank == 1

    @property
    def work(self) -> int:
        return len(self.offsets) + (0 if self.rest is None else 2 * self.rest.rank)

    def select(self, block: tuple[int, ...], rows: Tensor | None, arity: int) -> "Banded":
        return self.replaced(
            [select_lead(part, trailing=2, block=block, rows=rows) for part in self.tensors]
        )

    def sums(self, rows: Tensor) -> Tensor:
        ways = [
            rows.roll(offset, -1) + values
            for offset, values in zip(self.offsets, self._into.unbind(-1), strict=True)
        ]
        if self._ranks is not None:
            onto, out = self._ranks
            ways.append(_times(out, _times(onto, rows)))
        return soft_sum(torch.stack(torch.broadcast_tensors(*ways)), 0)

    def evaluate(self, states: Sequence[Tensor]) -> Tensor:
        """The log-values on a grid of states, in O(grid (D + r))."""
        first, second = states[0].unsqueeze(-1), states[1].unsqueeze(-2)
        gap, missing = second - first, self.log_values.new_full((), -math.inf)
        values = missing if self.rest is None else self.rest.evaluate(states)
        given = rows_of(self.log_values, states[0])
        shape = broadcast_shapes(values.shape, gap.shape, (*given.shape[:-1], 1))
        values = values.expand(shape)
        for offset, column in zip(self.offsets, given.unbind(-1), strict=True):
            here = torch.where(gap == offset, column.unsqueeze(-1), missing)
            values = here.where(gap == offset, values) if self.rest is None else soft_sum(
                torch.stack([values, here.expand(shape)]), 0
            )  # fmt: skip
        return values

    @differentiable_property
    def _into(self) -> Tensor:
        """(*lead, N, D) log-values by the second state; -inf where there is no first one."""
        values, states = self.log_values, self.log_values.shape[-2]
        place = torch.arange(states, device=self.device)
        columns = [
            torch.where((place >= o) & (place - o < states), column.roll(o, -1), -math.inf)
            for o, column in zip(self.offsets, values.unbind(-1), strict=True)
        ]
        return torch.stack(columns, -1)

    @differentiable_property
    def beside(self) -> Tensor:
        """(*lead, N, D) the values of a rest of one rank at the pairs of the bands."""
        assert self.rest is not None
        left, right = self.rest.log_left.squeeze(-1), self.rest.log_right.squeeze(-1)
        return torch.stack([left + right.roll(-offset, -1) for offset in self.offsets], -1)

    @differentiable_property
    def largest(self) -> Tensor:
        """(*lead, N, D) the values along the bands with those of a rest of one rank added."""
        if self.rest is None:
            return self.log_values
        both = torch.broadcast_tensors(self.log_values, self.beside)
        return soft_sum(torch.stack(both), 0)

    @differentiable_property
    def _ranks(self) -> tuple[LogMatrix, LogMatrix] | None:
        rest = self.rest
        return rest and (LogMatrix.of(rest.log_left.mT), LogMatrix.of(rest.log_right))


def _times(matrix: LogMatrix, rows: Tensor) -> Tensor:
    """Rows (B, k) by a matrix (n, k), or each by its own of (*lead, n, k), as (B, n)."""
    if matrix.logs.ndim == 2:
        return matrix.times(rows)
    return matrix.times(rows.unsqueeze(-2)).squeeze(-2)


@dataclass(frozen=True, eq=False)
class Monarch(PairOperator):
    """A pairwise potential that is a product of two block-diagonal matrices with a permutation.

    A state is a block and a place in it, i = (a, b) and j = (k, c), and ``log value(i, j) =
    log_left[a, b, k] + log_right[k, a, c]``. Where both are `normalised`, the first is the
    log-probability of the next block given the state, and the second that of the place in it given
    both blocks. With blocks of sqrt(N) states a `Chain` costs O(T N sqrt(N)), maxima too, and has 2
    N sqrt(N) parameters. Where the sizes B and C of the blocks differ, they are cut to their
    greatest common divisor d, which costs O(T N (K + N / d)).

    Args:
        log_left: (A, B, K) nats, of N = A B states and K blocks of the second ones.
        log_right: (K, A, C), of N = K C second states.

    Raises:
        ModelError: shapes that do not fit, NaN or +inf.

    Source: Dao et al. 2022, "Monarch: expressive structured matrices for efficient and accurate
    training" (arXiv:2204.00595).

    Example:
        >>> left, right = torch.zeros(2, 3, 2), torch.zeros(2, 2, 3)
        >>> Monarch.normalised(left, right).row_totals().exp()
        tensor([1., 1., 1., 1., 1., 1.])
    """

    log_left: Tensor
    log_right: Tensor

    if TYPE_CHECKING:  # accepted types, converted to those of the fields

        def __init__(self, log_left: ArrayLike, log_right: ArrayLike) -> None: ...

    def __post_init__(self) -> None:
        settle(self, "log_left", "log_right")
        checked_log_table("Monarch's log_left", self.log_left)
        checked_log_table("Monarch's log_right", self.log_right)
        left, right = tuple(self.log_left.shape), tuple(self.log_right.shape)
        fits = len(left) == len(right) == 3 and right[:2] == (left[2], left[0])
        if not fits or left[0] * left[1] != right[0] * right[2] or 0 in left:
            raise ModelError(
                "Monarch needs log_left (A, B, K) and log_right (K, A, C), A B = K C; got "
                f"{left} and {right}."
            )
        if self.log_left.dtype != self.log_right.dtype:
            raise ModelError(
                f"Monarch needs log_left and log_right of one dtype; got {self.log_left.dtype} and "
                f"{self.log_right.dtype}."
            )

    @classmethod
    def normalised(cls, log_left: Tensor, log_right: Tensor) -> "Monarch":
        """The log-probabilities of the second state given the first: each row sums to one.

        Raises:
            ModelError: as for the class, or a row without a possible state.
        """
        return cls(log_left, log_right).normal()

    def normal(self) -> "Monarch":
        totals = self._possible_totals().reshape(*self.log_left.shape[:2], 1)
        return Monarch(self.log_left - totals, self.log_right)

    @property
    def shape(self) -> tuple[int, ...]:
        return 2 * (self.log_left.shape[:2].numel(),)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return self.log_left, self.log_right

    def replaced(self, tensors: Sequence[Tensor]) -> "Monarch":
        return Monarch(*tensors)

    def turned(self) -> "Monarch":
        return Monarch(self.log_right.transpose(1, 2), self.log_left.transpose(1, 2))

    @property
    def additive(self) -> bool:
        return True

    @property
    def work(self) -> int:
        return self.log_left.shape[2] + self.log_right.shape[1]

    def sums(self, rows: Tensor) -> Tensor:
        first, second = self._blocks
        ways = first.times(rows.unflatten(1, self.log_left.shape[:2]).transpose(0, 1))
        return second.times(ways.permute(2, 1, 0)).transpose(0, 1).flatten(1)

    def evaluate(self, states: Sequence[Tensor]) -> Tensor:
        """The log-values on a grid of states, in O(grid)."""
        (_, wide, _), (_, _, next_wide) = self.log_left.shape, self.log_right.shape
        first, second = states[0].unsqueeze(-1), states[1].unsqueeze(-2)
        block, after = first // wide, second // next_wide
        left = self.log_left[block, first % wide, after]
        return left + self.log_right[after, block, second % next_wide]

    @differentiable_property
    def _blocks(self) -> tuple[LogMatrix, LogMatrix]:
        return LogMatrix.of(self.log_left.mT), LogMatrix.of(self.log_right.mT)
