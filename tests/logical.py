"""The logical potentials: how each is made, and by how many ones it is met.

Tests of potentials, messages, counting and the fuzz read this table. A new logical potential is
given a line here, and has all of their tests.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import rdpgraph as rg


@dataclass(frozen=True)
class Logical:
    """A potential of binary slots that depends on the number of ones alone.

    Attributes:
        make: the potential of so many slots; takes ``dtype`` too.
        meets: whether a number of ones, of so many slots, meets it.
    """

    make: Callable[..., rg.Automaton]
    meets: Callable[[int, int], bool]


def count_between(least: int, most: int | None = None) -> Logical:
    """From ``least`` to ``most`` ones; None: any number."""
    return Logical(
        partial(rg.Cardinality, at_least=least, at_most=most),
        lambda ones, arity: least <= ones <= (arity if most is None else most),
    )


# Each by its name; `Cardinality`, which has bounds, by `count_between`.
LOGICAL = {
    "or": Logical(rg.Or, lambda ones, arity: ones >= 1),
    "and": Logical(rg.And, lambda ones, arity: ones == arity),
    "odd": Logical(rg.Xor, lambda ones, arity: ones % 2 == 1),
    "even": Logical(partial(rg.Xor, parity=0), lambda ones, arity: ones % 2 == 0),
    "at most one": Logical(rg.AtMostOne, lambda ones, arity: ones <= 1),
    "exactly one": Logical(rg.ExactlyOne, lambda ones, arity: ones == 1),
}
