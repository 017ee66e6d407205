"""Variables that are asked for together, and the factors that hold them."""

from collections.abc import Iterable

import torch
from torch import Tensor

from rdpgraph.errors import ModelError
from rdpgraph.model.domain import Named
from rdpgraph.model.factor import Factor
from rdpgraph.model.variable import Variable, VariableArray


def found_in(scopes: Tensor, wanted: Tensor) -> tuple[Tensor, tuple[int, ...]] | None:
    """The rows of a block that hold each row of numbers, and their slots; None if some do not."""
    if not wanted.shape[1]:
        return None if not len(scopes) or scopes.shape[1] else (torch.zeros(1).long(), ())
    listed = wanted.tolist()
    holds = torch.stack([(scopes == number).any(1) for number in listed[0]]).all(0)
    tried: set[tuple[int, ...]] = set()
    for row in scopes[holds].tolist():
        slots = tuple(row.index(number) for number in listed[0])
        if slots in tried:
            continue
        tried.add(slots)
        columns = scopes[:, list(slots)]
        if len(wanted) == 1:
            return (columns == wanted[0]).all(1).nonzero()[0], slots
        rows = {tuple(held): place for place, held in enumerate(columns.tolist())}
        places = [rows.get(tuple(numbers), -1) for numbers in listed]
        if min(places) >= 0:
            return torch.tensor(places), slots
    return None


def several(asked: str, items: Factor | Iterable[Named]) -> list[Named]:
    """The variables of a factor, or those listed."""
    if isinstance(items, Factor):
        return list(items.variables)
    if isinstance(items, str | Variable | VariableArray):
        name = items if isinstance(items, str) else items.name
        raise ModelError(f"{asked} needs a list of variables, as [{name!r}]; got {name!r} alone.")
    return list(items)
