"""Dense log-tables, and entries of tensors by an index for each dim."""

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rdpgraph._types import ArrayLike
from rdpgraph.errors import ModelError, ProbabilityWarning
from rdpgraph.model.arrays import as_values, settle
from rdpgraph.model.log_values import checked_log_values
from rdpgraph.model.potential import Potential, select_lead

_FEW = 4096
"""Entries up to which the numbers would take longer than the entries."""


def looked_up(values: Tensor, index: Sequence[Tensor]) -> Tensor:
    """``values[tuple(index)]`` by the numbers of the entries, several times as fast for many.

    Args:
        values: of any shape.
        index: int64, 0 to the size less 1, for each dim; they broadcast.
    """
    few = math.prod(own.numel() for own in index) <= _FEW
    if few or not values.is_contiguous():  # its numbers would need a copy of it
        return values[tuple(index)]
    number = index[0]
    # The gradient holds the numbers, which are as many as the entries.
    kind = torch.int32 if values.numel() < 2**31 else torch.int64
    for size, own in zip(values.shape[1:], index[1:], strict=True):
        number = (number * size).to(kind) + own.to(kind)
    return values.view(-1).index_select(0, number.flatten()).reshape(number.shape)


warnings.filterwarnings("once", category=ProbabilityWarning, append=True)

_TOLERANCE = 1e-4  # of sums


@dataclass(frozen=True, eq=False)
class Table(Potential):
    """A dense table of log-values (nats); -inf is a hard zero.

    Values between 0 and 1 that sum to one over a dim, or in all, are warned of once, as they look
    like probabilities: `from_probabilities` takes these, and `from_logs` says that logs are meant.

    Args:
        log_values: (*lead, k_1, ..., k_n), floating; leading dims are batch dims or factors of a
            block. Gradients flow to it. A list or a NumPy array becomes a tensor.

    Raises:
        ModelError: not a floating tensor, or it holds NaN or +inf.

    Example:
        >>> Table(torch.tensor([[0.9, 0.1], [0.2, 0.8]]).log()).shape
        (2, 2)
    """

    log_values: Tensor

    if TYPE_CHECKING:  # what the fields are made of

        def __init__(self, log_values: ArrayLike) -> None: ...

    def __post_init__(self) -> None:
        settle(self, "log_values")
        if 0 < checked_log_values("Table", self.log_values) <= 1 and _add_up(self.log_values):
            warnings.warn(
                "A Table takes log-values, and was given what look like probabilities: use "
                "Table.from_probabilities(values), or Table.from_logs(values) if logs are meant.",
                ProbabilityWarning,
                stacklevel=3,
            )

    @classmethod
    def from_logs(cls, values: ArrayLike) -> "Table":
        """The table of log-values, which are not taken for probabilities whatever they are."""
        values = as_values("Table.from_logs", values)
        checked_log_values("Table.from_logs", values)
        return cls.checked(values)

    @classmethod
    def from_probabilities(cls, values: "Tensor | Sequence[Any]") -> "Table":
        """The table of non-negative values, normalised or not; zeros become -inf.

        The gradient with respect to a value of exactly zero is zero.
        """
        values = as_values("Table.from_probabilities", values)
        if not bool((values >= 0).all()):
            raise ModelError(
                "Table.from_probabilities needs values >= 0; got a negative one or NaN."
            )
        positive = values > 0
        logs = torch.where(positive, values, torch.ones_like(values)).log()
        return cls.from_logs(torch.where(positive, logs, -math.inf))

    @classmethod
    def checked(cls, log_values: Tensor) -> "Table":
        """The table of log-values that have been checked, which are not looked at again."""
        table = object.__new__(Table)
        object.__setattr__(table, "log_values", log_values)
        return table

    @property
    def shape(self) -> tuple[int, ...]:
        """Leading dims, then the number of states of each slot."""
        return tuple(self.log_values.shape)

    @property
    def dtype(self) -> torch.dtype:
        """The floating type of the log-values."""
        return self.log_values.dtype

    @property
    def device(self) -> torch.device:
        """Where the log-values live."""
        return self.log_values.device

    def table(self, arity: int) -> Tensor:
        """The log-values themselves."""
        return self.log_values

    def evaluate(self, states: Sequence[Tensor]) -> Tensor:
        """The log-values on a grid of states, by indexing; cost and memory of the result."""
        arity = len(states)
        lead, index = self.lead(arity), list[Tensor]()
        # The table as it is: the gradient of one expanded to the states' dims would be as large.
        for dim, size in enumerate(lead):
            places = torch.arange(size, device=self.device)
            index.append(places.reshape(-1, *(1,) * (len(lead) - dim - 1 + arity)))
        for slot, chosen in enumerate(states):
            dims = (*chosen.shape[:-1], *(1,) * slot, chosen.shape[-1], *(1,) * (arity - slot - 1))
            index.append(chosen.to(self.device).reshape(dims))
        return looked_up(self.log_values, index) if index else self.log_values

    def select(self, block: tuple[int, ...], rows: Tensor | None, arity: int) -> "Table":
        """The tables of some factors of a block."""
        values = select_lead(self.log_values, trailing=arity, block=block, rows=rows)
        return Table.checked(values)


def _add_up(values: Tensor) -> bool:
    """Whether values of at most 1 sum to one over a dim or in all; not where all are 0 and 1."""
    values = values.detach()
    if bool((values < 0).any()) or not bool(((values > 0) & (values < 1)).any()):
        return False
    sums = [values.sum(dim) for dim in range(values.ndim)] + [values.sum()]
    return any(bool(((total - 1).abs() <= _TOLERANCE).all()) for total in sums)
