"""Tables of pandas as evidence, and answers as tables; it is imported only where one is."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from rdpgraph.errors import EvidenceError, UnsupportedError
from rdpgraph.model.domain import Domain, Entry
from rdpgraph.model.variable import VariableArray


def is_frame(value: object) -> bool:
    """Whether something is a pandas DataFrame."""
    return _kind(value) == "DataFrame"


def is_series(value: object) -> bool:
    """Whether something is a column or an index of pandas."""
    return _kind(value) in ("Series", "Index", "CategoricalIndex", "RangeIndex", "Categorical")


def columns_of(frame: Any) -> dict[Any, Any]:
    """The columns of a DataFrame by name.

    Raises:
        EvidenceError: a name that two columns have.
    """
    names = list(frame.columns)
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise EvidenceError(f"The DataFrame has two columns named {twice!r}.")
    return {name: frame[name] for name in names}


def codes_of(column: Any) -> tuple[Any, list[Any]]:
    """For each row the place of its value among those that occur, -1 where there is none."""
    import pandas

    codes, kinds = pandas.factorize(column)
    return codes, list(kinds)


def is_gap(value: object) -> bool:
    """Whether a value stands for none: None, NaN, or a missing one of pandas."""
    if isinstance(value, float):
        return value != value
    return value is None or type(value).__name__ in ("NAType", "NaTType")


def frame_of_states(states: Mapping[Entry, Tensor], domain: Domain) -> Any:
    """A DataFrame with a column for each variable, of its states (*lead, *shape).

    Raises:
        UnsupportedError: pandas is not installed.
    """
    pandas = _pandas()
    columns: dict[str, Any] = {}
    lead: tuple[int, ...] = ()
    for entry, own in states.items():
        lead = tuple(own.shape[: own.ndim - len(entry.shape)])
        rows = own.detach().cpu().reshape([math.prod(lead), -1]).numpy()
        names = domain.states_of(entry)
        for column, member in zip(rows.T, _member_names(entry), strict=True):
            if isinstance(names, tuple):
                column = pandas.Categorical.from_codes(column, categories=list(names))
            columns[member] = column
    return pandas.DataFrame(columns, index=_index(pandas, lead))


def frame_of_values(values: Mapping[Entry, Tensor], domain: Domain) -> Any:
    """A DataFrame with a row for each variable and state, of numbers (*lead, *shape, states).

    Raises:
        UnsupportedError: pandas is not installed.
    """
    pandas = _pandas()
    index: list[tuple[str, str | int]] = []
    parts: list[Tensor] = [torch.zeros(1, 0, device="cpu")] if not values else []
    lead: tuple[int, ...] = ()
    for entry, own in values.items():
        lead = tuple(own.shape[: own.ndim - len(entry.shape) - 1])
        states = domain.states_of(entry)
        named = states if isinstance(states, tuple) else range(states)
        index.extend((member, state) for member in _member_names(entry) for state in named)
        parts.append(own.detach().cpu().reshape([math.prod(lead), -1]))
    columns = _index(pandas, lead) if lead else ["value"]
    names = pandas.MultiIndex.from_tuples(index, names=["variable", "state"])
    return pandas.DataFrame(torch.cat(parts, 1).T.numpy(), index=names, columns=columns)


def _member_names(entry: Entry) -> list[str]:
    if not isinstance(entry, VariableArray):
        return [entry.name]
    return [entry.base.member(place).name for place in entry.positions.reshape(-1).tolist()]


def _index(pandas: Any, lead: tuple[int, ...]) -> Any:
    if len(lead) > 1:
        return pandas.MultiIndex.from_product([range(size) for size in lead])
    return pandas.RangeIndex(lead[0] if lead else 1)


def _pandas() -> Any:
    try:
        import pandas
    except ImportError:
        raise UnsupportedError(
            "to_frame() needs pandas, which is not installed: pip install 'rdpgraph[pandas]'."
        ) from None
    return pandas


def _kind(value: object) -> str:
    for kind in type(value).__mro__:
        if kind.__module__.split(".")[0] == "pandas":
            return kind.__name__
    return ""
