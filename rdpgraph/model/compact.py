"""The variables of a file in a few bytes each: their objects are made when they are asked for."""

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import eq
from typing import overload

import numpy as np
from numpy.typing import NDArray

from rdpgraph.model.names import CODEC, Names, NumberedNames
from rdpgraph.model.variable import Variable

_SHARED = 1 << 10
"""The first lists of states, of which those that come again are not stored again."""
_MOST_SHARED = 1 << 8  # bytes of such a list
_FEW = 1 << 10  # variables: a third of a MB
_FEW_NAMED = 1 << 12  # states with names: half a MB
_MANY_NAMES = 1 << 5  # of one variable, which it takes longer to make


class StateLists:
    """Lists of names of states, numbered in the order in which they came; equal ones may share one.

    The names of a list lie end to end in one text, so that a name takes its bytes and one more.
    """

    def __init__(self) -> None:
        self._text = bytearray()
        self._ends = array("Q", [0])
        self._numbers: dict[bytes, int] = {}
        self._places: dict[int, dict[bytes, int]] = {}

    def add(self, names: bytes) -> int:
        """The number of a list, which is given as its names in UTF-8 with newlines between them."""
        known = self._numbers.get(names)
        if known is not None:
            return known
        number = len(self)
        if len(names) <= _MOST_SHARED and len(self._numbers) < _SHARED:
            self._numbers[names] = number
        self._text += names
        self._ends.append(len(self._text))
        return number

    def __len__(self) -> int:
        return len(self._ends) - 1

    def names(self, number: int) -> tuple[str, ...]:
        """The names of a list."""
        return tuple(self.encoded(number).decode(*CODEC).split("\n"))

    def places(self, number: int) -> Mapping[bytes, int]:
        """The place of each name of a list, by the name in UTF-8."""
        places = self._places.get(number)
        if places is None:
            names = self.encoded(number)
            count = names.count(b"\n") + 1
            if count > _FEW_NAMED:
                known = Names()
                for name in _lines(names):
                    known.add_bytes(name)
                return _PlacesByName(known)
            places = {name: place for place, name in enumerate(names.split(b"\n"))}
            if count <= _MANY_NAMES and len(self._places) < _SHARED:
                self._places[number] = places
        return places

    def encoded(self, number: int) -> bytes:
        """The names of a list as they were given."""
        return bytes(self._text[self._ends[number] : self._ends[number + 1]])


class CompactVariables(Sequence[Variable]):
    """Single variables of different names; equal to a tuple of them.

    Beside its name a variable takes 12 bytes, and an object of its own only while it is looked at.

    Args:
        names: their names.
        sizes: (V,) int64 how many states each has.
        lists: where states have names: these, and (V,) the number of each variable's list.
    """

    def __init__(
        self,
        names: NumberedNames,
        sizes: NDArray[np.int64],
        lists: tuple[StateLists, "array[int]"] | None = None,
    ) -> None:
        self.names, self.sizes, self._lists = names, sizes, lists
        self._made: dict[int, Variable] = {}

    def made(self) -> Sequence[Variable]:
        """These, or a tuple of them where they are few."""
        named = 0 if self._lists is None else int(self.sizes.sum())
        return tuple(self) if len(self) <= _FEW and named <= _FEW_NAMED else self

    @property
    def numbers(self) -> Mapping[str, int]:
        """The number of each name."""
        return _NumbersByName(self.names)

    def list_of(self, number: int) -> int:
        """The number of a variable's list of names of states."""
        assert self._lists is not None
        return self._lists[1][number]

    def _variable(self, number: int) -> Variable:
        made = self._made.get(number)
        if made is None:
            size = int(self.sizes[number])
            states = size if self._lists is None else self._lists[0].names(self._lists[1][number])
            made = Variable(self.names.name(number), states)
            if len(self._made) < _FEW or (self._lists is not None and size > _MANY_NAMES):
                self._made[number] = made
        return made

    @overload
    def __getitem__(self, index: int) -> Variable: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[Variable, ...]: ...

    def __getitem__(self, index: int | slice) -> Variable | tuple[Variable, ...]:
        if isinstance(index, slice):
            return tuple(map(self._variable, range(*index.indices(len(self)))))
        return self._variable(range(len(self))[index])

    def __iter__(self) -> Iterator[Variable]:
        return map(self._variable, range(len(self)))

    def __len__(self) -> int:
        return len(self.sizes)

    def __contains__(self, item: object) -> bool:
        return isinstance(item, Variable) and self.names.find(item.name) >= 0

    def __add__(self, other: Iterable[Variable]) -> tuple[Variable, ...]:
        return (*self, *other)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, tuple | CompactVariables):
            return NotImplemented
        return len(self) == len(other) and all(map(eq, self, other))

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return repr(tuple(self))


class _NumbersByName(Mapping[str, int]):
    def __init__(self, names: NumberedNames) -> None:
        self._names = names

    def __getitem__(self, name: str) -> int:
        number = self._names.find(name)
        if number < 0:
            raise KeyError(name)
        return number

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


class _PlacesByName(Mapping[bytes, int]):
    def __init__(self, names: Names) -> None:
        self._names = names

    def __getitem__(self, name: bytes) -> int:
        place = self._names.find_bytes(name)
        if place < 0:
            raise KeyError(name)
        return place

    def __iter__(self) -> Iterator[bytes]:
        return (name.encode(*CODEC) for name in self._names)

    def __len__(self) -> int:
        return len(self._names)


def _lines(text: bytes) -> Iterator[bytes]:
    start = 0
    while (end := text.find(b"\n", start)) >= 0:
        yield text[start:end]
        start = end + 1
    yield text[start:]
