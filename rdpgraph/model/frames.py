"""Tables of pandas as evidence, and answers as tables; pandas is imported on demand."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rdpgraph._core.portable import optional_module
from rdpgraph.errors import EvidenceError
from rdpgraph.model.domain import Domain, Entry
from rdpgraph.model.variable import VariableArray, names_of


@dataclass(frozen=True)
class Labels:
    """The index and the columns of a DataFrame given as evidence, which answers take over."""

    index: Any
    columns: tuple[Any, ...]

    @staticmethod
    def of(evidence: Any, earlier: "Labels | None" = None) -> "Labels | None":
        """Return the labels that answers take over from evidence.

        They are those of a DataFrame, whose rows must be those of the earlier labels; after any
        other evidence they are the earlier ones.
        """
        if not is_frame(evidence):
            return earlier
        if earlier is not None:
            _require_equal([earlier.index, evidence.index])
        return Labels(evidence.index, tuple(evidence.columns))


def is_frame(value: object) -> bool:
    """Test for a pandas DataFrame."""
    return _kind(value) == "DataFrame"


def is_series(value: object) -> bool:
    """Test for a column or an index of pandas."""
    return _kind(value) in ("Series", "Index", "CategoricalIndex", "RangeIndex", "Categorical")


def columns_of(frame: Any) -> dict[Any, Any]:
    """The columns of a DataFrame, or the values of a Series, by name."""
    names = frame.columns if is_frame(frame) else frame.index
    if not names.is_unique:
        kind = "two columns" if is_frame(frame) else "two values"
        twice = names[names.duplicated()][0]
        raise EvidenceError(f"The {_kind(frame)} has {kind} named {twice!r}.")
    return dict(frame.items())


def require_one_index(columns: Iterable[object]) -> None:
    """Refuse Series whose rows have other names, or another order of them."""
    _require_equal([column.index for column in columns if _kind(column) == "Series"])  # pyright: ignore


def _require_equal(indexes: list[Any]) -> None:
    for other in indexes[1:]:
        if len(other) == len(indexes[0]) and not other.equals(indexes[0]):
            raise EvidenceError(
                "Columns of evidence need one index, because their rows are taken in order; got "
                f"{list(indexes[0][:3])!r:.60} and {list(other[:3])!r:.60}: join the columns in "
                "one DataFrame, or give them as arrays."
            )


def codes_of(column: Any) -> tuple[Any, list[Any]]:
    """The place of each row's value among the distinct ones, -1 where missing; and these."""
    import pandas

    codes, kinds = pandas.factorize(column)
    return codes, list(kinds)


def is_gap(value: object) -> bool:
    """Test for a missing value: None, NaN, or one of pandas or of masked arrays."""
    if isinstance(value, float):
        return value != value
    return value is None or type(value).__name__ in ("NAType", "NaTType", "MaskedConstant")


def frame_of_states(
    states: Mapping[Entry, Tensor], domain: Domain, labels: Labels | None = None
) -> Any:
    """A DataFrame with a column of states (*lead, *shape) for each variable.

    Its index is that of ``labels`` in the last leading dim; columns of the evidence come first.
    """
    pandas = _pandas()
    columns: dict[Any, Any] = {}
    lead: tuple[int, ...] = ()
    for entry, tensor in states.items():
        lead = tuple(tensor.shape[: tensor.ndim - len(entry.shape)])
        rows = tensor.detach().cpu().reshape([math.prod(lead), math.prod(entry.shape)]).numpy()
        names = domain.states_of(entry)
        for column, member in zip(rows.T, _member_names(entry), strict=True):
            if isinstance(names, tuple):
                column = pandas.Categorical.from_codes(column, categories=list(names))
            columns[member] = column
    first = [name for name in labels.columns if name in columns] if labels else []
    ordered = {name: columns[name] for name in dict.fromkeys([*first, *columns])}
    return pandas.DataFrame(ordered, index=_index(pandas, lead, labels))


def frame_of_values(
    values: Mapping[Entry, Tensor], domain: Domain, labels: Labels | None = None
) -> Any:
    """A DataFrame with a row for each variable and state, of numbers (*lead, *shape, states)."""
    pandas = _pandas()
    index: list[tuple[Any, ...]] = []
    parts: list[Tensor] = [torch.zeros(1, 0, device="cpu")] if not values else []
    lead: tuple[int, ...] = ()
    for entry, tensor in values.items():
        lead = tuple(tensor.shape[: tensor.ndim - len(entry.shape) - 1])
        names = names_of(domain.states_of(entry))
        index.extend((member, state) for member in _member_names(entry) for state in names)
        parts.append(tensor.reshape(math.prod(lead), math.prod(tensor.shape[len(lead) :])))
    levels = pandas.MultiIndex.from_tuples(index, names=["variable", "state"])
    return _frame_of_numbers(pandas, torch.cat(parts, 1), levels, lead, labels)


def frame_of_joint(values: Tensor, variables: Iterable[Entry], labels: Labels | None) -> Any:
    """A DataFrame of numbers (*lead, *sizes), a row for each joint state of single variables."""
    pandas, scope = _pandas(), list(variables)
    lead = tuple(values.shape[: values.ndim - len(scope)])
    levels = pandas.MultiIndex.from_product(
        [names_of(variable.states) for variable in scope],
        names=[variable.name for variable in scope],
    )
    rows = values.reshape(math.prod(lead), math.prod(values.shape[len(lead) :]))
    return _frame_of_numbers(pandas, rows, levels, lead, labels)


def _frame_of_numbers(
    pandas: Any, rows: Tensor, index: Any, lead: tuple[int, ...], labels: Labels | None
) -> Any:
    columns = _index(pandas, lead, labels) if lead else ["value"]
    return pandas.DataFrame(rows.detach().cpu().T.numpy(), index=index, columns=columns)


def _member_names(entry: Entry) -> list[str]:
    if not isinstance(entry, VariableArray):
        return [entry.name]
    return [entry.base.member(place).name for place in entry.positions.reshape(-1).tolist()]


def _index(pandas: Any, lead: tuple[int, ...], labels: Labels | None) -> Any:
    """An index with a level for each leading dim; the last level is the evidence's index."""
    if labels is None or lead[-1:] != (len(labels.index),):
        labels = None
    if labels is None and len(lead) < 2:
        return pandas.RangeIndex(lead[0] if lead else 1)
    places = np.indices(lead).reshape(len(lead), -1)
    if labels is None:
        return pandas.MultiIndex.from_arrays(list(places))
    last = labels.index.take(places[-1])
    if len(lead) == 1:
        return last
    levels = [last.get_level_values(level) for level in range(last.nlevels)]
    names = [None] * (len(lead) - 1) + list(last.names)
    return pandas.MultiIndex.from_arrays([*places[:-1], *levels], names=names)


def _pandas() -> Any:
    return optional_module("pandas", "to_frame()", "'rdpgraph[pandas]'")


def _kind(value: object) -> str:
    for kind in type(value).__mro__:
        if kind.__module__.split(".")[0] == "pandas":
            return kind.__name__
    return ""
