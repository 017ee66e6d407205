"""Evidence and assignments as states of numbered variables."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from rdpgraph.errors import EvidenceError
from rdpgraph.model.domain import Domain, Named

Observation: TypeAlias = int | str | Sequence[int | str | None] | Tensor | None
MISSING = -1


def states_given(given: Mapping[Named, Any], domain: Domain) -> Tensor:
    """The states that a mapping gives, -1 where it gives none: (*batch, V) int64.

    Args:
        given: for a variable a state (index or name), or a batch of them (a tensor, or a list
            with names, and None or -1 where missing); for an array a tensor (*batch, *shape).
        domain: the variables.

    Raises:
        EvidenceError: a state that a variable lacks, or shapes that do not fit.
        ModelError: a variable that the graph lacks.
    """
    if not isinstance(given, Mapping):
        raise EvidenceError(
            f"Evidence is a mapping from variables to states; got {type(given).__name__}."
        )
    columns: list[tuple[Tensor, Tensor]] = []
    batch: tuple[int, ...] = ()
    for item, value in given.items():
        numbers = domain.numbers(item)
        states = _states(item, value, numbers, domain)
        columns.append((numbers.reshape(-1), states))
        batch = _joint_batch(item, batch, tuple(states.shape[:-1]))
    result = torch.full((*batch, domain.count), MISSING, dtype=torch.long)
    for (item, _), (numbers, states) in zip(given.items(), columns, strict=True):
        new, old = states.expand(*batch, len(numbers)), result[..., numbers]
        if bool(((new != MISSING) & (old != MISSING) & (new != old)).any()):
            name = item if isinstance(item, str) else item.name
            raise EvidenceError(f"The evidence gives {name!r} two different states.")
        result[..., numbers] = torch.where(new == MISSING, old, new)
    return result


def _states(item: Named, value: Any, numbers: Tensor, domain: Domain) -> Tensor:
    """States of one entry of the mapping: (*batch, members)."""
    name = item if isinstance(item, str) else item.name
    entry = domain.entries[domain.place(item)]
    if value is None:
        value = MISSING
    if not isinstance(value, Tensor):
        value = torch.as_tensor(_indices(value, entry.index_of))
    if value.is_floating_point() or value.is_complex():
        raise EvidenceError(
            f"Evidence on {name!r} needs state indices or names; got {value.dtype}."
        )
    value = value.detach().long().cpu()
    dims = numbers.ndim
    if dims and tuple(value.shape[value.ndim - dims :]) != tuple(numbers.shape):
        if value.ndim:
            raise EvidenceError(
                f"Evidence on array {name!r} needs shape (*batch, *{tuple(numbers.shape)})"
                f"; got {tuple(value.shape)}."
            )
        value = value.expand(numbers.shape)
    bad = (value < MISSING) | (value >= entry.size)
    if bool(bad.any()):
        raise EvidenceError(
            f"Variable {name!r} has states 0 to {entry.size - 1} (-1 for missing); "
            f"got {int(value[bad][0])}."
        )
    return value.reshape(*value.shape[: value.ndim - dims], math.prod(numbers.shape))


def _indices(value: Any, index_of: Any) -> Any:
    """State names to indices, through nested lists."""
    if value is None:
        return MISSING
    if isinstance(value, str):
        return index_of(value)
    if isinstance(value, list | tuple):
        return [_indices(part, index_of) for part in value]
    return value


def _joint_batch(item: Named, batch: tuple[int, ...], more: tuple[int, ...]) -> tuple[int, ...]:
    try:
        return tuple(torch.broadcast_shapes(batch, more))
    except RuntimeError:
        name = item if isinstance(item, str) else item.name
        raise EvidenceError(
            f"Evidence on {name!r} has batch shape {more}, which does not broadcast with {batch}."
        ) from None
