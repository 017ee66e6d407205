"""Tables of pandas as evidence; it is imported only where one is given."""

from typing import Any

from rdpgraph.errors import EvidenceError


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


def _kind(value: object) -> str:
    for kind in type(value).__mro__:
        if kind.__module__.split(".")[0] == "pandas":
            return kind.__name__
    return ""
