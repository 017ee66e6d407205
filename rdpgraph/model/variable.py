"""Variables, and named arrays of variables."""

import math
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from operator import index
from typing import Any, TypeAlias

import torch
from torch import Tensor

from rdpgraph._core.cache import cached_property
from rdpgraph._core.compiler import Opaque
from rdpgraph.errors import EvidenceError, ModelError, no_raw_memory_error

MOST = 2**31
"""Maximum of the states of a variable, and of the members of an array."""

State: TypeAlias = bool | int | str
"""Name of a state."""

States: TypeAlias = int | tuple[State, ...]
"""Number of states, or their names in order."""

_FIRST_OF_NUMBERS = frozenset("+-.0123456789")


@dataclass(frozen=True, eq=False)
class Variable:
    """A discrete random variable: a name, and its states.

    Two variables of the same name and the same states are the same variable. A graph, and every
    question about it, refuses one of the same name with other states or another order of them.

    Args:
        name: the identity of the variable.
        states: the number of states, or their names in order: strings, whole numbers or truth
            values, such as ``("no", "yes")``, ``(1, 2, 3)`` and ``(False, True)``; or intervals of
            pandas, as those that ``pandas.cut`` makes, which files hold as their text.

    Example:
        >>> rain = Variable("rain", ("no", "yes"))
        >>> rain.size, rain.index_of("yes")
        (2, 1)
    """

    name: str
    states: States
    home: "tuple[VariableArray, int] | None" = field(default=None, repr=False)
    size: int = field(init=False, repr=False)  # the number of states

    def __post_init__(self) -> None:
        states = _checked_states(self.name, self.states)
        size = states if isinstance(states, int) else len(states)
        vars(self).update(states=states, size=size)

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return (
            isinstance(other, Variable)
            and self.name == other.name
            and same_states(self.states, other.states)
        )

    def __hash__(self) -> int:
        return hash(self.name)

    @property
    def shape(self) -> tuple[int, ...]:
        """``()``: a variable is an array of variables with no dims."""
        return ()

    def index_of(self, state: State) -> int:
        """The index of a state, which is given by its name, or by index if states have no names.

        A number is also the name that spells it, where both readings are one state.

        Raises:
            EvidenceError: the variable has no such state, or what is given has two readings.
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
        states: of every member, as for a `Variable`.

    Example:
        >>> pixels = VariableArray("pixel", (4, 6), 2)
        >>> pixels[:, :-1].shape, pixels[0, 1].name
        ((4, 5), 'pixel[0, 1]')
    """

    name: str
    shape: tuple[int, ...]
    states: States
    view: "tuple[VariableArray, Tensor] | None" = field(default=None, repr=False)
    size: int = field(init=False, repr=False)  # the number of states of every member

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
        states = _checked_states(self.name, self.states)
        size = states if isinstance(states, int) else len(states)
        vars(self).update(shape=shape, states=states, size=size)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, VariableArray):
            return False
        if self.name != other.name or self.shape != other.shape:
            return False
        if not same_states(self.states, other.states):
            return False
        return torch.equal(self.positions, other.positions)

    def __hash__(self) -> int:
        return hash((self.name, self.shape))

    @property
    def base(self) -> "VariableArray":
        """The whole array that this one is a view of (itself, if it is whole)."""
        return self if self.view is None else self.view[0]

    @cached_property
    def positions(self) -> Tensor:
        """The index of each member in the flattened base: int64, of this array's shape."""
        if self.view is not None:
            return self.view[1]
        with no_raw_memory_error(f"The places of the {math.prod(self.shape):,} members"):
            return torch.arange(math.prod(self.shape), device="cpu").reshape(self.shape)

    def __getitem__(self, key: Any) -> "VariableArray | Variable":
        try:
            if isinstance(key, str):
                raise IndexError(f"members are known by positions; got {key!r}")
            positions = self.positions[key]
        except (IndexError, TypeError, ValueError) as error:  # ValueError: a step below 1
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

    def index_of(self, state: State) -> int:
        """The index of a state, as of a `Variable`."""
        return state_index(self.name, self.states, state)


def state_index(name: str, states: States, state: object) -> int:
    """The index of a state, given by its name, or by its index where states have no names.

    A number is also the name that spells it, where both readings are one state: "1" at index 1. A
    truth value is the name that spells it in any case, as "TRUE", and 0.5 is "0.5": pandas reads
    such names from files as values. An interval and its text are one name.
    """
    state = _plain(state)
    if isinstance(state, float) and state.is_integer():
        state = int(state)
    size = states if isinstance(states, int) else len(states)
    names = states if isinstance(states, tuple) else ()
    if isinstance(state, int | str) and state in names:
        place = names.index(state)
        if type(names[place]) is type(state):  # 1 == True, but 1 is not a truth value
            return place
    if is_interval(state) or (isinstance(state, str) and any(map(is_interval, names))):
        texts = [str(label) for label in names]  # which differ from each other
        if str(state) in texts:
            return texts.index(str(state))
    if isinstance(state, bool) and (names or size != 2):
        spelled = [place for place, label in enumerate(names) if _spells(label, state)]
        if len(spelled) == 1:
            return spelled[0]
        raise _either(name, states, state, "a truth value")
    if isinstance(state, float) and names:  # it has a fraction, so that it is no index
        spelled = [place for place, label in enumerate(names) if _number(label) == state]
        if len(spelled) == 1:
            return spelled[0]
    number = _whole(state)
    if names or isinstance(state, str) or is_interval(state):
        known = f"{size} unnamed states" if isinstance(states, int) else _listed(names)
        if number is not None and 0 <= number < size:
            if names[number] == str(number):
                return number
            alike = [label for label in names if _number(label) == number]
            if alike:
                raise _either(name, states, number, f"the state {alike[0]!r}")
            known += f", and torch.tensor({number}) gives its index {number}, {names[number]!r}"
        raise EvidenceError(f"Variable {name!r} has no state {state!r:.80}; it has {known}.")
    if number is None or not 0 <= number < size:
        raise EvidenceError(f"Variable {name!r} has states 0 to {size - 1}; got {state!r:.80}.")
    return number


def names_of(states: States) -> Sequence[State]:
    """The names of states; their indices where they have none."""
    return range(states) if isinstance(states, int) else states


def is_named(states: States, number: int) -> bool:
    """Test if a state has a name that is, or reads as, a number."""
    return isinstance(states, tuple) and number in map(_number, states)


def same_states(first: States, second: States) -> bool:
    """Test if states are equal in order, value and type: 0 is not False."""
    if first is second:
        return True
    if isinstance(first, int) or isinstance(second, int):
        return first == second
    return first == second and list(map(type, first)) == list(map(type, second))


def is_interval(value: object) -> bool:
    """Test for an interval of pandas."""
    kind = type(value)
    return kind.__name__ == "Interval" and kind.__module__.split(".")[0] == "pandas"


def _number(state: State) -> float | None:
    """The number that a name is, or reads as."""
    if not isinstance(state, str):
        return state if isinstance(state, int) else None
    try:
        return float(state) if state[:1] in _FIRST_OF_NUMBERS else None
    except ValueError:
        return None


def _spells(label: State, truth: bool) -> bool:  # noqa: FBT001
    """Test if a name is the word for a truth value, in any case."""
    return isinstance(label, str) and label.lower() == str(truth).lower()


def _either(name: str, states: States, given: int, reading: str) -> EvidenceError:
    """The error for a value that may name a state or be an index."""
    index, ways = f"the index {int(given)}", "an index"
    if isinstance(states, tuple):
        index += f", that of {states[given]!r}" if given < len(states) else ""
        ways = f"one of its states, {_listed(states)}"
    return EvidenceError(
        f"{given!r} for variable {name!r} can be read as {reading} or as {index}; give {ways}."
    )


def _checked_states(name: str, states: States | Iterable[State]) -> States:
    if not isinstance(name, str) or not name:
        raise ModelError(f"A variable's name must be a non-empty string; got {name!r}.")
    if type(states) is int and 0 < states <= MOST:  # by far the most common
        return states
    count = None if isinstance(states, bool) else _whole(states)
    if count is not None:
        if count < 1:
            raise ModelError(f"Variable {name!r} needs at least one state; got {count}.")
        if count > MOST:
            raise ModelError(f"Variable {name!r} has {count:,} states; at most {MOST:,} fit.")
        return count
    if isinstance(states, str | AbstractSet) or not isinstance(states, Iterable):
        raise ModelError(
            f"Variable {name!r} needs a number of states or a tuple of their names; got "
            f"{states!r:.80}."
        )
    names = tuple(map(_plain, states))
    if not names:
        raise ModelError(f"Variable {name!r} needs at least one state; got none.")
    if any(not (isinstance(state, int | str) or is_interval(state)) for state in names):
        raise ModelError(
            f"Variable {name!r} needs strings, whole numbers, truth values or intervals of pandas "
            f"as state names; got {names!r:.80}."
        )
    # Names must also differ as text, for files and the command line.
    if len(set(names)) < len(names) or len(set(map(str, names))) < len(names):
        raise ModelError(f"Variable {name!r} has a state name twice: {_listed(names)}.")
    return names


def _plain(value: Any) -> Any:
    """Convert NumPy and similar scalars to Python's bool, int or str."""
    if type(value) in (bool, int, str):
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if getattr(value, "shape", None) == ():
        value = value.item()
    number = None if isinstance(value, bool) else _whole(value)
    return value if number is None else number


def _whole(value: object) -> int | None:
    """Convert an integer of any type; None for anything else."""
    try:
        return index(value)  # pyright: ignore[reportArgumentType]
    except TypeError:
        return None


def _listed(names: Sequence[object], most: int = 8) -> str:
    shown = ", ".join(repr(name) for name in names[:most])
    return shown if len(names) <= most else f"{shown}, ... ({len(names)} in all)"
