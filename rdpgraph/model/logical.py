"""Logical constraints on binary variables, state 1 being true, whose messages cost O(arity)."""

import math
from collections.abc import Sequence

import torch

from rdpgraph.errors import ModelError
from rdpgraph.model.automaton import Automaton, checked_arity


def Or(arity: int, *, dtype: torch.dtype | None = None) -> Automaton:
    """At least one of the slots is true: log-value 0, else -inf; two automaton states.

    Args:
        arity: how many binary slots.
        dtype: of the log-values; torch's default.

    Example:
        >>> Or(2).table(2).exp().tolist()
        [[0.0, 1.0], [1.0, 1.0]]
    """
    checked_arity("Or", arity)
    return _constraint([[0, 1], [1, 1]], [False, True], arity, dtype)


def And(arity: int, *, dtype: torch.dtype | None = None) -> Automaton:
    """All slots are true: log-value 0, else -inf; two automaton states.

    Args:
        arity: how many binary slots.
        dtype: of the log-values; torch's default.

    Example:
        >>> And(2).table(2).exp().tolist()
        [[0.0, 0.0], [0.0, 1.0]]
    """
    checked_arity("And", arity)
    return _constraint([[1, 0], [1, 1]], [True, False], arity, dtype)


def Xor(arity: int, *, parity: int = 1, dtype: torch.dtype | None = None) -> Automaton:
    """The number of true slots is odd (parity 1), or even (parity 0): log-value 0, else -inf.

    It has two automaton states.

    Args:
        arity: how many binary slots.
        parity: of the number of true slots: 1, odd; 0, even, as in the parity checks of a code.
        dtype: of the log-values; torch's default.

    Raises:
        ModelError: a parity other than 0 and 1.

    Example:
        >>> Xor(2, parity=1).table(2).exp().tolist()
        [[0.0, 1.0], [1.0, 0.0]]
    """
    checked_arity("Xor", arity)
    if parity not in (0, 1):
        raise ModelError(f"Xor needs parity 1 (odd) or 0 (even); got {parity!r}.")
    return _constraint([[0, 1], [1, 0]], [parity == 0, parity == 1], arity, dtype)


def AtMostOne(arity: int, *, dtype: torch.dtype | None = None) -> Automaton:
    """No two slots are true: log-value 0, else -inf; three automaton states.

    Args:
        arity: how many binary slots.
        dtype: of the log-values; torch's default.

    Example:
        >>> AtMostOne(2).table(2).exp().tolist()
        [[1.0, 1.0], [1.0, 0.0]]
    """
    return _counted("AtMostOne", arity, 0, 1, dtype)


def ExactlyOne(arity: int, *, dtype: torch.dtype | None = None) -> Automaton:
    """One slot is true and no other: log-value 0, else -inf; three automaton states.

    Args:
        arity: how many binary slots.
        dtype: of the log-values; torch's default.

    Example:
        >>> ExactlyOne(2).table(2).exp().tolist()
        [[0.0, 1.0], [1.0, 0.0]]
    """
    return _counted("ExactlyOne", arity, 1, 1, dtype)


def Cardinality(
    arity: int,
    *,
    at_least: int = 0,
    at_most: int | None = None,
    dtype: torch.dtype | None = None,
) -> Automaton:
    """The number of true slots lies between two bounds: log-value 0, else -inf.

    It has ``at_most + 2`` automaton states, ``at_least + 1`` without an upper bound; messages cost
    O(arity) times that.

    Args:
        arity: how many binary slots.
        at_least: the smallest number allowed.
        at_most: the largest number allowed; None, or the arity and more: no bound.
        dtype: of the log-values; torch's default.

    Raises:
        ModelError: a negative bound, or bounds that no number of true slots meets.

    Example:
        >>> Cardinality(3, at_least=1, at_most=2).table(3).exp().sum()
        tensor(6.)
    """
    return _counted("Cardinality", arity, at_least, at_most, dtype)


def _counted(
    name: str, arity: int, at_least: int, at_most: int | None, dtype: torch.dtype | None
) -> Automaton:
    checked_arity(name, arity)
    for bound, value in (("at_least", at_least), ("at_most", at_most)):
        if value is not None and value < 0:
            raise ModelError(f"{name} needs {bound} >= 0; got {value}.")
    highest = arity if at_most is None else min(at_most, arity)
    if at_least > highest:
        limit = f"the arity {arity}" if highest == arity else f"at_most={at_most}"
        raise ModelError(f"{name} needs at_least <= {limit}; got at_least={at_least}.")
    # Without an upper bound nothing needs to be counted past the lower one.
    last = at_least if highest == arity else highest + 1
    transitions = [[count, min(count + 1, last)] for count in range(last + 1)]
    holds = [at_least <= count <= highest for count in range(last + 1)]
    return _constraint(transitions, holds, arity, dtype)


def _constraint(
    transitions: Sequence[Sequence[int]],
    holds: Sequence[bool],
    arity: int,
    dtype: torch.dtype | None,
) -> Automaton:
    log_accept = [0.0 if accepted else -math.inf for accepted in holds]
    return Automaton(torch.tensor(transitions), torch.tensor(log_accept, dtype=dtype), arity)
