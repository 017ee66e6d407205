"""Dense log-tables, and conversion of array-likes to tensors."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rdpgraph._core import tuning
from rdpgraph._core.compiler import in_transform
from rdpgraph._core.masked import is_masked, present
from rdpgraph._core.once import is_declared_by_user, warn_once
from rdpgraph._core.types import ArrayLike
from rdpgraph.errors import EvidenceError, ModelError, ProbabilityWarning
from rdpgraph.model.potentials.potential import (
    FLOATING,
    WHOLE,
    Potential,
    Stored,
    checked_log_values,
    is_here,
    refuse_hollow,
    select_lead,
)


def as_values(name: str, given: Any) -> Tensor:
    """A floating tensor, itself if it is one already; gradients flow to tensors inside lists.

    Lists and arrays are copied; numbers that are not floating take torch's default type.
    """
    if type(given) is Tensor and given.dtype in FLOATING and is_here(given):
        return given
    given = present(name, given)
    values = given if isinstance(given, Tensor) else converted(name, given, "floating values")
    if not isinstance(given, Tensor) and values.dtype in (*WHOLE, torch.bool):
        values = values.to(torch.get_default_dtype())
    if values.dtype not in FLOATING:
        raise ModelError(f"{name} needs floating values; got a tensor of {values.dtype}.")
    refuse_hollow(name, values)
    return values


def taken(name: str, given: Any) -> Any:
    """A potential or tensor as it is; anything else by `as_values`."""
    given = present(name, given)
    return given if isinstance(given, Tensor | Potential) else as_values(name, given)


def broadcast_values(name: str, given: Any, shape: tuple[int, ...], like: Tensor) -> Tensor:
    """Values by `as_values`, broadcast to a shape; numbers take the type of ``like``."""
    values = as_values(name, given)
    if not isinstance(given, Tensor):
        values = values.to(like)
    try:
        return values.expand(shape)
    except RuntimeError:
        raise ModelError(
            f"{name} needs values that broadcast to {shape}; got {tuple(values.shape)}."
        ) from None


def settle(owner: Any, *fields: str, whole: tuple[str, ...] = ()) -> None:
    """Convert array-like fields of a frozen dataclass to tensors, of integers for ``whole``."""
    for field in (*fields, *whole):
        given = getattr(owner, field)
        name = f"{type(owner).__name__}'s {field}"
        if isinstance(given, Tensor | Potential) and not is_masked(given):
            continue
        if given is None and hasattr(type(owner), field):  # the default
            continue
        made = as_whole(name, given) if field in whole else as_values(name, given)
        object.__setattr__(owner, field, made)


def as_whole(name: str, given: Any) -> Tensor:
    """An integer tensor, itself if it is one already, from what `as_values` takes."""
    given = present(name, given)
    values = given if isinstance(given, Tensor) else converted(name, given, "integers")
    if not isinstance(given, Tensor) and not values.numel():
        values = values.long()
    if values.dtype not in WHOLE:
        raise ModelError(f"{name} needs integers; got a tensor of {values.dtype}.")
    refuse_hollow(name, values)
    return values


def as_states(name: str, given: Any) -> Tensor:
    """States to score: a tensor as it is, integers of array-likes as int64."""
    given = present(name, given, EvidenceError)
    if isinstance(given, Tensor):
        return given
    try:
        return as_whole(name, given).long()
    except ModelError as error:
        raise EvidenceError(str(error)) from None


def is_array(value: object) -> bool:
    """Test for an array of another library than torch, such as NumPy."""
    return hasattr(value, "__array__") and not isinstance(value, Tensor)


def array_of(value: Any) -> Any:
    """A contiguous NumPy copy in the machine's byte order."""
    import numpy

    array = numpy.array(value)
    return array.astype(array.dtype.newbyteorder("="))


def converted(name: str, given: Any, wanted: str) -> Tensor:
    """A tensor of what a list or an array holds; a tensor as it is."""
    try:
        return _tensor(name, given)
    except ModelError:
        raise
    except (TypeError, ValueError, RuntimeError, OverflowError):
        raise ModelError(
            f"{name} needs {wanted} as a tensor, an array or lists of one length in each dim; got "
            f"{given!r:.80}."
        ) from None


def _tensor(name: str, given: Any) -> Tensor:
    given = present(name, given)
    if isinstance(given, Tensor):
        return given
    if isinstance(given, list | tuple):
        if any(isinstance(part, Tensor | list | tuple) or is_array(part) for part in given):
            return torch.stack([_tensor(name, part) for part in given])
        return torch.tensor(given)
    if is_array(given):
        return torch.from_numpy(array_of(given))
    if not isinstance(given, int | float):
        raise TypeError
    return torch.tensor(given)


def looked_up(values: Tensor, index: Sequence[Tensor]) -> Tensor:
    """``values[tuple(index)]`` by flat indices, several times as fast for many entries."""
    few = math.prod(indices.numel() for indices in index) <= tuning.INDEXED
    if few or not values.is_contiguous():  # flat indices would need a copy
        return values[tuple(index)]
    number = index[0]
    # The gradient stores the indices, one for each entry.
    kind = torch.int32 if values.numel() < 2**31 else torch.int64
    for size, indices in zip(values.shape[1:], index[1:], strict=True):
        number = (number * size).to(kind) + indices.to(kind)
    return values.view(-1).index_select(0, number.flatten()).reshape(number.shape)


_TOLERANCE = 1e-4  # by which sums of given probabilities may differ from one


@dataclass(frozen=True, eq=False)
class Table(Stored):
    """A dense table of log-values (nats); -inf is a hard zero.

    Values between 0 and 1, not all of them 0 or 1, that sum to one over a dim or in all, are warned
    of once, as they look like probabilities: `from_probabilities` takes these, and `from_logs` says
    that logs are meant.

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
    stored = "log_values"

    if TYPE_CHECKING:  # accepted types, converted to those of the fields

        def __init__(self, log_values: ArrayLike) -> None: ...

    def __post_init__(self) -> None:
        if type(self.log_values) is not Tensor:
            settle(self, "log_values")
        remedy = (
            "use Table.from_probabilities(values), or Table.from_logs(values) if logs are meant"
        )
        checked_log_table("A Table", self.log_values, remedy)

    @classmethod
    def from_logs(cls, values: ArrayLike) -> "Table":
        """The table of log-values, without the warning about probabilities."""
        values = as_values("Table.from_logs", values)
        checked_log_values("Table.from_logs", values)
        return cls.checked(values)

    @classmethod
    def from_probabilities(cls, values: "Tensor | Sequence[Any]") -> "Table":
        """The table of non-negative values, normalised or not; zeros become -inf.

        The gradient with respect to a value of exactly zero is zero: a hard zero stays one. Where
        1 - p and p are made of one number, its gradient at p = 0 or 1 is therefore that of the
        other value alone; `ParityModel.from_rates` has the derivatives of both.
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
        """The table of log-values that are known to be valid."""
        table = object.__new__(Table)
        object.__setattr__(table, "log_values", log_values)
        return table

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.log_values.shape)

    def table(self, arity: int) -> Tensor:
        return self.log_values

    def evaluate(self, states: Sequence[Tensor]) -> Tensor:
        """The log-values on a grid of states, by indexing, at the cost and memory of the result."""
        arity = len(states)
        lead, index = self.lead(arity), list[Tensor]()
        if arity == 2 and not lead and min(states[0].ndim, states[1].ndim) == 1:
            lines = _lines_of(self.log_values, *states)
            if lines is not None:
                return lines
        # Not expanded: the gradient of an expanded table would be as large as the result.
        for dim, size in enumerate(lead):
            places = torch.arange(size, device=self.device)
            index.append(places.reshape(-1, *(1,) * (len(lead) - dim - 1 + arity)))
        for slot, chosen in enumerate(states):
            dims = (*chosen.shape[:-1], *(1,) * slot, chosen.shape[-1], *(1,) * (arity - slot - 1))
            index.append(chosen.to(self.device).reshape(dims))
        return looked_up(self.log_values, index) if index else self.log_values

    def select(self, block: tuple[int, ...], rows: Tensor | None, arity: int) -> "Table":
        values = select_lead(self.log_values, trailing=arity, block=block, rows=rows)
        return Table.checked(values)


def _lines_of(table: Tensor, rows: Tensor, columns: Tensor) -> Tensor | None:
    """(*lead, m, n) the entries of a matrix in some rows and columns, read as whole lines.

    One of the two is without a lead. None where the lines that hold the entries are much longer
    than the result.
    """
    rows, columns = rows.to(table.device), columns.to(table.device)
    if rows.ndim > 1:
        if not is_every(columns, table.shape[1]):
            return None
        return table.index_select(0, rows.flatten()).unflatten(0, rows.shape)
    if columns.ndim > 1:
        if not is_every(rows, table.shape[0]):
            return None
        return table.index_select(1, columns.flatten()).unflatten(1, columns.shape).movedim(0, -2)
    ahead, across = len(rows) * table.shape[1], len(columns) * table.shape[0]
    if min(ahead, across) > 2 * len(rows) * len(columns):
        return None
    for dim, chosen in ((0, rows), (1, columns))[:: 1 if ahead <= across else -1]:
        if not is_every(chosen, table.shape[dim]):
            table = table.index_select(dim, chosen)
    return table


def is_every(states: Tensor, size: int) -> bool:
    """Return whether some states are all of ``size``, in order; False where values are not read."""
    if states.shape != (size,) or torch.compiler.is_compiling() or in_transform():
        return False
    return torch.equal(states, torch.arange(size, device=states.device))


def checked_log_table(name: str, values: Tensor, remedy: str = "take .log() of them") -> None:
    """Check log-values by `checked_log_values`, and warn once if they look like probabilities.

    Only an object that a user makes is warned of. Scores of arcs, spans and segments are not
    checked so, as marginals are taken for scores there to find the tree of the best expectation.
    """
    highest = checked_log_values(name, values)
    if 0 < highest <= 1 and is_declared_by_user() and _add_up(values):
        warn_once(
            f"{name} takes log-values, and was given what look like probabilities: {remedy}.",
            ProbabilityWarning,
        )


def _add_up(values: Tensor) -> bool:
    """Test for values that look like probabilities: sums of one over a dim, or over the last."""
    values = values.detach()
    if bool((values < 0).any()) or not bool(((values > 0) & (values < 1)).any()):
        return False
    last = [tuple(range(-count, 0)) for count in range(2, values.ndim + 1)]
    dims = [*((dim,) for dim in range(values.ndim)), *last] or [()]
    return any(bool(((values.sum(over) - 1).abs() <= _TOLERANCE).all()) for over in dims)
