"""Variables, and named arrays of variables."""

import math
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from operator import index
from typing import Any

import torch
from torch import Tensor

from rdpgraph._cache import cached_property
from rdpgraph._compiler import Opaque
from rdpgraph.errors import EvidenceError, ModelError, no_raw_memory_error

MOST = 2**31
"""States of a variable, and members of an array: a marginal of so many takes gigabytes."""


@dataclass(frozen=True, eq=False)
class Variable:
    """A discrete random variable: a name, and its states.

    Two variables of the same name are the same variable; a graph refuses two of one name that
    disagree about their states.

    Args:
        name: the identity of the variable.
        states: how many states it has, or their names in order.

    Example:
        >>> rain = Variable("rain", ("no", "yes"))
        >>> rain.size, rain.index_of("yes")
        (2, 1)
    """

    name: str
    states: int | tuple[str, ...]
    home: "tuple[VariableArray, int] | None" = field(default=None, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "states", _checked_states(self.name, self.states))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Variable) and self.name == other.name

    def __hash__(self) -> int:
        return hash(self.name)

    @property
    def size(self) -> int:
        """The number of states."""
        return self.states if isinstance(self.states, int) else len(self.states)

    @property
    def shape(self) -> tuple[int, ...]:
        """``()``: a variable is an array of variables with no dims."""
        return ()

    def index_of(self, state: int | str) -> int:
        """The index of a state given by index or by name.

        Raises:
            EvidenceError: the variable has no such state.
        """
        return state_index(self.name, self.states, state)


@dataclass(frozen=True, eq=False)
class VariableArray(Opaque):
    """A named array of alike variables, sliced as a tensor is, for models with millions of them.

    ``pixels[1:, :]`` is a view of the same variables; ``pixels[3, 4]`` is the single
    `Variable` named ``"pixel[3, 4]"``.

    Args:
        name: the identity of the array.
        shape: its dims.
        states: how many states every member has, or their names in order.

    Example:
        >>> pixels = VariableArray("pixel", (4, 6), 2)
        >>> pixels[:, :-1].shape, pixels[0, 1].name
        ((4, 5), 'pixel[0, 1]')
    """

    name: str
    shape: tuple[int, ...]
    states: int | tuple[str, ...]
    view: "tuple[VariableArray, Tensor] | None" = field(default=None, repr=False)

    def __post_init__(self) -> None:
        given = self.shape if isinstance(self.shape, Iterable) else (self.shape,)
        shape = tuple(-1 if (size := _whole(n)) is None else size for n in given)
        if not shape or any(size < 0 for size in shape):
            raise ModelError(
                f"VariableArray {self.name!r} needs a shape of one or more sizes >= 0; got "
                f"{self.shape!r:.80}."
            )
        if math.prod(shape) > MOST:
            raise ModelError(
                f"VariableArray {self.name!r} of shape {shape} has {math.prod(shape):,} members; "
                f"at most {MOST:,} are numbered."
            )
        object.__setattr__(self, "shape", shape)
        object.__setattr__(self, "states", _checked_states(self.name, self.states))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, VariableArray):
            return False
        if self.name != other.name or self.shape != other.shape:
            return False
        return torch.equal(self.positions, other.positions)

    def __hash__(self) -> int:
        return hash((self.name, self.shape))

    @property
    def size(self) -> int:
        """The number of states of every member."""
        return self.states if isinstance(self.states, int) else len(self.states)

    @property
    def base(self) -> "VariableArray":
        """The whole array that this one is a view of (itself, if it is whole)."""
        return self if self.view is None else self.view[0]

    @cached_property
    def positions(self) -> Tensor:
        """Where in the flattened base each member lies: int64, of this array's shape."""
        if self.view is not None:
            return self.view[1]
        with no_raw_memory_error(f"The places of the {math.prod(self.shape):,} members"):
            return torch.arange(math.prod(self.shape), device="cpu").reshape(self.shape)

    def __getitem__(self, key: Any) -> "VariableArray | Variable":
        try:
            if isinstance(key, str):
                raise IndexError(f"members are known by positions; got {key!r}")
            positions = self.positions[key]
        except (IndexError, TypeError, ValueError) as error:  # ValueError: steps below 1
            message = f"VariableArray {self.name!r} of shape {self.shape}: {error}"
            raise IndexError(message) from None
        if positions.ndim:
            return VariableArray(
                self.name, tuple(positions.shape), self.states, view=(self.base, positions)
            )
        return self.base.member(int(positions))

    def __len__(self) -> int:
        return self.shape[0]

    def member(self, position: int) -> Variable:
        """The variable at a position of the flattened base array."""
        rest, where = position, list[str]()
        for size in reversed(self.base.shape):
            rest, here = divmod(rest, size)
            where.append(str(here))
        name = f"{self.name}[{', '.join(reversed(where))}]"
        return Variable(name, self.states, home=(self.base, position))

    def index_of(self, state: int | str) -> int:
        """The index of a state given by index or by name."""
        return state_index(self.name, self.states, state)


def state_index(name: str, states: int | tuple[str, ...], state: int | str) -> int:
    """The index of a state of a variable, given by index or by name."""
    size = states if isinstance(states, int) else len(states)
    if isinstance(state, str):
        if isinstance(states, tuple) and state in states:
            return states.index(state)
        known = f"{size} unnamed states" if isinstance(states, int) else _listed(states)
        raise EvidenceError(f"Variable {name!r} has no state {state!r}; it has {known}.")
    number = _whole(state)
    if number is None or not 0 <= number < size:
        raise EvidenceError(f"Variable {name!r} has states 0 to {size - 1}; got {state!r:.80}.")
    return number


def _checked_states(name: str, states: int | Sequence[str]) -> int | tuple[str, ...]:
    if not isinstance(name, str) or not name:
        raise ModelError(f"A variable's name is a non-empty string; got {name!r}.")
    if isinstance(states, bool | str):
        raise ModelError(
            f"Variable {name!r} needs a number of states or a tuple of their names; got {states!r}."
        )
    count = _whole(states)
    if count is not None:
        if count < 1:
            raise ModelError(f"Variable {name!r} needs at least one state; got {count}.")
        if count > MOST:
            raise ModelError(f"Variable {name!r} has {count:,} states; at most {MOST:,} fit.")
        return count
    if not isinstance(states, Iterable) or isinstance(states, AbstractSet):
        raise ModelError(
            f"Variable {name!r} needs a number of states or a tuple of their names; got "
            f"{states!r:.80}."
        )
    names = tuple(states)
    if not names:
        raise ModelError(f"Variable {name!r} needs at least one state; got none.")
    if any(not isinstance(state, str) for state in names):
        raise ModelError(f"Variable {name!r} needs strings as state names; got {names!r}.")
    if len(set(names)) < len(names):
        raise ModelError(f"Variable {name!r} has a state name twice: {_listed(names)}.")
    return tuple(map(str, names))  # those of NumPy are of a type of their own


def _whole(value: object) -> int | None:
    """A whole number of any type, NumPy's included; None for anything else."""
    try:
        return index(value)  # pyright: ignore[reportArgumentType]
    except TypeError:
        return None


def _listed(names: Sequence[str], most: int = 8) -> str:
    shown = ", ".join(repr(name) for name in names[:most])
    return shown if len(names) <= most else f"{shown}, ... ({len(names)} in all)"
