"""Variables of files in a few bytes each; their objects are made on access."""

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rdpgraph._core import tuning
from rdpgraph.model.names import CODEC, Listing, Names, NumberedNames, Numbers
from rdpgraph.model.variable import Variable

SHARED = 1 << 10
"""Number of lists of states that are stored once for all equal ones."""
MOST_SHARED = 1 << 8  # bytes of a shared list


class StateLists:
    """Numbered lists of state names; equal ones may share a number.

    The names lie end to end in one buffer: a name takes its bytes and one more.
    """

    def __init__(self) -> None:
        self._text = bytearray()
        self._ends = array("Q", [0])
        self._numbers: dict[bytes, int] = {}
        self._places: dict[int, dict[bytes, int]] = {}

    def add(self, names: bytes) -> int:
        """The number of a list, given as its names in UTF-8 joined by newlines."""
        known = self._numbers.get(names)
        if known is not None:
            return known
        number = len(self)
        if len(names) <= MOST_SHARED and len(self._numbers) < SHARED:
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
            if count > tuning.LISTED_NAMES:
                known = Names()
                for name in _lines(names):
                    known.add_bytes(name)
                return Numbers(
                    lambda: (name.encode(*CODEC) for name in known), len(known), known.find_bytes
                )
            places = {name: place for place, name in enumerate(names.split(b"\n"))}
            if count <= tuning.SLOW_NAMES and len(self._places) < SHARED:
                self._places[number] = places
        return places

    def encoded(self, number: int) -> bytes:
        """The names of a list as they were given."""
        return bytes(self._text[self._ends[number] : self._ends[number + 1]])


class CompactVariables(Listing[Variable]):
    """Single variables of different names; equal to a tuple of them.

    A variable takes 12 bytes beside its name; its object is made on first access. ``sizes`` (V,)
    are numbers of states; ``lists`` has, for named states, the lists and each variable's number
    among them.
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
        """A tuple of the variables if they are few, else this object."""
        named = 0 if self._lists is None else int(self.sizes.sum())
        few = len(self) <= tuning.LISTED_VARIABLES and named <= tuning.LISTED_NAMES
        return tuple(self) if few else self

    @property
    def numbers(self) -> Mapping[str, int]:
        """The number of each name."""
        return Numbers(self.names.__iter__, len(self.names), self.names.find)

    def lists_of(self, numbers: NDArray[np.integer[Any]]) -> list[int]:
        """The numbers of the lists of several variables."""
        assert self._lists is not None
        return np.frombuffer(self._lists[1], dtype=np.int32)[numbers].tolist()

    def unnamed(self) -> NDArray[np.bool_]:
        """(V,) True where states have no names."""
        return np.full(len(self), self._lists is None)

    def entry(self, number: int) -> Variable:
        """The variable of a number, made on first access."""
        made = self._made.get(number)
        if made is None:
            size = int(self.sizes[number])
            states = size if self._lists is None else self._lists[0].names(self._lists[1][number])
            made = Variable(self.names.entry(number), states)
            if len(self._made) < tuning.LISTED_VARIABLES or (
                self._lists is not None and size > tuning.SLOW_NAMES
            ):
                self._made[number] = made
        return made

    def __len__(self) -> int:
        return len(self.sizes)

    def __contains__(self, item: object) -> bool:
        return isinstance(item, Variable) and self.names.find(item.name) >= 0

    def __add__(self, other: Iterable[Variable]) -> tuple[Variable, ...]:
        return (*self, *other)


def _lines(text: bytes) -> Iterator[bytes]:
    start = 0
    while (end := text.find(b"\n", start)) >= 0:
        yield text[start:end]
        start = end + 1
    yield text[start:]
