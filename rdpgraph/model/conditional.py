"""Conditional probability tables, checked: the factors of a Bayesian network."""

import graphlib
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from rdpgraph.errors import ModelError
from rdpgraph.model.arrays import as_values
from rdpgraph.model.factor import Factor
from rdpgraph.model.table import Table
from rdpgraph.model.variable import Variable

Conditional = tuple[Variable, Sequence[Variable], Any]
"""A variable, its parents, and probabilities (*batch, *parents, states of the variable)."""


def network_factors(conditionals: Iterable[Conditional], tolerance: float) -> list[Factor]:
    """The factors of conditional tables over (*parents, child), in the order given.

    Raises:
        ModelError: as for `FactorGraph.bayesian_network`.
    """
    factors: list[Factor] = []
    parents: dict[str, list[str]] = {}
    for item in conditionals:
        child, given, values = _parts(item)
        if child.name in parents:
            raise ModelError(f"Variable {child.name!r} has two conditional tables; give one.")
        parents[child.name] = [parent.name for parent in given]
        table = _checked(child, given, as_values(f"The table of {child.name!r}", values), tolerance)
        factors.append(Factor((*given, child), Table.from_probabilities(table)))
    for child, names in parents.items():
        lacking = [name for name in names if name not in parents]
        if lacking:
            raise ModelError(
                f"Variable {lacking[0]!r} is a parent of {child!r} and has no table of its own; "
                "add one, without parents if it has none."
            )
    try:
        graphlib.TopologicalSorter(parents).prepare()
    except graphlib.CycleError as error:
        cycle = " - ".join(repr(name) for name in error.args[1][:8])
        raise ModelError(f"A Bayesian network has no directed cycle; got {cycle}.") from None
    return factors


def _parts(item: object) -> Conditional:
    fits = isinstance(item, tuple | list) and len(item) == 3 and isinstance(item[0], Variable)
    if not fits:
        raise ModelError(
            "A Bayesian network is given by (variable, parents, probabilities) for each variable; "
            f"got {item!r:.80}."
        )
    child, parents, values = item  # pyright: ignore[reportGeneralTypeIssues]
    several = isinstance(parents, tuple | list)
    if not several or not all(isinstance(parent, Variable) for parent in parents):
        raise ModelError(
            f"The parents of {child.name!r} are a tuple of Variables, () if it has none; got "
            f"{parents!r:.80}."
        )
    return child, tuple(parents), values


def _checked(
    child: Variable, parents: Sequence[Variable], values: Tensor, tolerance: float
) -> Tensor:
    shape = tuple(variable.size for variable in (*parents, child))
    if values.ndim < len(shape) or tuple(values.shape[values.ndim - len(shape) :]) != shape:
        given = ", ".join(repr(parent.name) for parent in parents) or "nothing"
        raise ModelError(
            f"The table of {child.name!r} given {given} needs shape {shape}, parents first and the "
            f"variable last (batch dims in front); got {tuple(values.shape)}."
        )
    known = values.detach()
    off = ~((known.sum(-1) - 1).abs() <= tolerance) | ~(known >= 0).all(-1)
    if bool(off.any()):
        place = tuple(int(i) for i in off.nonzero()[0])
        raise ModelError(f"{_said(child, parents, place)} {_wrong(known[place])}.")
    return values


def _said(child: Variable, parents: Sequence[Variable], place: tuple[int, ...]) -> str:
    lead = place[: len(place) - len(parents)]
    states = place[len(lead) :]
    pairs = [
        f"{parent.name}={parent.states[state] if isinstance(parent.states, tuple) else state}"
        for parent, state in zip(parents, states, strict=True)
    ]
    given = f" given {', '.join(pairs)}" if pairs else ""
    item = f", in batch item {', '.join(map(str, lead))}," if lead else ""
    return f"The probabilities of {child.name!r}{given}{item}"


def _wrong(row: Tensor) -> str:
    if not bool((row >= 0).all()):
        return f"hold {'NaN' if bool(row.isnan().any()) else f'{float(row.amin()):.6g}'}, not >= 0"
    return f"sum to {float(row.sum(dtype=torch.float64)):.6g}, not to one"
