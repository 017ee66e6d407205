"""Results as the UAI competitions read them: the task's name on a line, then the solution."""

from collections.abc import Sequence
from typing import Any


def format_pr(log10_z: float) -> str:
    r"""The text of a PR result: the base-10 logarithm of the partition function.

    Example:
        >>> format_pr(-0.25)
        'PR\n-0.25\n'
    """
    return f"PR\n{float(log10_z)!r}\n"


def format_mar(marginals: Sequence[Any]) -> str:
    r"""The text of a MAR result.

    Args:
        marginals: per variable, in the model's order, its probabilities: sequence or tensor.

    Example:
        >>> format_mar([[0.5, 0.5], [1.0]])
        'MAR\n2 2 0.5 0.5 1 1.0\n'
    """
    parts = [str(len(marginals))]
    for marginal in marginals:
        values = [float(value) for value in _listed(marginal)]
        parts += [str(len(values)), *map(repr, values)]
    return f"MAR\n{' '.join(parts)}\n"


def format_map(states: Sequence[int]) -> str:
    r"""The text of an MPE result: a state for every variable, in the model's order.

    Example:
        >>> format_map([0, 2, 1])
        'MPE\n3 0 2 1\n'
    """
    return f"MPE\n{' '.join(map(str, [len(states), *map(int, _listed(states))]))}\n"


def format_mmap(query: Sequence[str | int], states: Sequence[int]) -> str:
    r"""The text of an MMAP result: the query variables, each with its state.

    Args:
        query: the variables' numbers, or their names as `read_query` gives them.
        states: a state for each.

    Example:
        >>> format_mmap(["2", "3"], [0, 1])
        'MMAP\n2 2 0 3 1\n'
    """
    parts = [len(query)]
    for variable, state in zip(query, _listed(states), strict=True):
        parts += [int(variable), int(state)]
    return f"MMAP\n{' '.join(map(str, parts))}\n"


def _listed(values: Any) -> list[Any]:
    return values.tolist() if hasattr(values, "tolist") else list(values)
