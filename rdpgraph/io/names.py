"""Names and their numbers in a tenth of a dictionary's memory."""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from operator import eq
from typing import Any, overload

_CODEC = ("utf-8", "surrogatepass")  # text that a caller made may hold halves of characters


class Names(Sequence[str]):
    """Different names, numbered from 0 in the order in which they came; equal to a tuple of them.

    They lie end to end in one text, and a table of numbers tells where each is: beside its bytes a
    name takes 10 to 20 bytes, and an object of its own only while it is looked at.

    Args:
        names: the first ones; what is repeated is left out.

    Example:
        >>> names = Names(["S", "NP", "S"])
        >>> names, names.find("NP"), names.find("VP")
        (('S', 'NP'), 1, -1)
    """

    __slots__ = ("_ends", "_table", "_text")

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._text = bytearray()
        self._ends = array("Q", [0])
        self._table = _empty(16)
        for name in names:
            self.add(name)

    def add(self, name: str) -> int:
        """The number of a name, which is added if it is new."""
        key = name.encode(*_CODEC)
        place = self._place(key)
        number = self._table[place]
        if number >= 0:
            return number
        number = self._table[place] = len(self)
        self._text += key
        self._ends.append(len(self._text))
        if 3 * len(self) > 2 * len(self._table):  # fuller, it would be searched for long
            self._number_again()
        return number

    def find(self, name: str) -> int:
        """The number of a name, or -1."""
        return self._table[self._place(name.encode(*_CODEC))]

    def picked(self, numbers: Iterable[int]) -> "Names":
        """Some of the names, in another order."""
        return Names(self[number] for number in numbers)

    def index(self, value: Any, start: int = 0, stop: int | None = None) -> int:
        """The number of a name; ValueError if there is none."""
        number = self.find(value) if isinstance(value, str) else -1
        if number not in range(*slice(start, stop).indices(len(self))):
            raise ValueError(f"{value!r} is not among the names")
        return number

    def __contains__(self, value: object) -> bool:
        return isinstance(value, str) and self.find(value) >= 0

    def __len__(self) -> int:
        return len(self._ends) - 1

    @overload
    def __getitem__(self, index: int) -> str: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[str, ...]: ...

    def __getitem__(self, index: int | slice) -> str | tuple[str, ...]:
        if isinstance(index, slice):
            return tuple(self[number] for number in range(*index.indices(len(self))))
        return self._bytes(range(len(self))[index]).decode(*_CODEC)

    def __iter__(self) -> Iterator[str]:
        return (self[number] for number in range(len(self)))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, tuple | Names):
            return NotImplemented
        return len(self) == len(other) and all(map(eq, self, other))

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return repr(tuple(self))

    def __reduce__(self) -> tuple[type["Names"], tuple[tuple[str, ...]]]:
        return Names, (tuple(self),)  # hashes, and so places in the table, differ by process

    def _bytes(self, number: int) -> bytes:
        return bytes(self._text[self._ends[number] : self._ends[number + 1]])

    def _place(self, key: bytes) -> int:
        """Where the table has the number of a name, or room for it."""
        table, text, ends = self._table, self._text, self._ends
        mask = len(table) - 1
        place = hash(key) & mask
        while (number := table[place]) >= 0 and (
            ends[number + 1] - ends[number] != len(key) or not text.startswith(key, ends[number])
        ):
            place = (place + 1) & mask
        return place

    def _number_again(self) -> None:
        """A larger table."""
        self._table = table = _empty(2 * len(self._table))
        mask = len(table) - 1
        for number in range(len(self)):
            place = hash(self._bytes(number)) & mask
            while table[place] >= 0:
                place = (place + 1) & mask
            table[place] = number


def _empty(places: int) -> "array[int]":
    return array("i", [-1]) * places
