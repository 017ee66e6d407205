"""Names and their numbers in a tenth of a dictionary's memory."""

from abc import abstractmethod
from array import array
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rdpgraph.model.listing import Listing

CODEC = ("utf-8", "surrogatepass")  # text that a caller made may hold halves of characters
_FIRST = 1 << 8


class NumberedNames(Listing[str]):
    """Different names in an order, of which each can be found; equal to a tuple of them."""

    __slots__ = ()

    @abstractmethod
    def find(self, name: str) -> int:
        """The number of a name, or -1."""

    def index(self, value: Any, start: int = 0, stop: int | None = None) -> int:
        """The number of a name; ValueError if there is none."""
        number = self.find(value) if isinstance(value, str) else -1
        if number not in range(*slice(start, stop).indices(len(self))):
            raise ValueError(f"{value!r} is not among the names")
        return number

    def __contains__(self, value: object) -> bool:
        return isinstance(value, str) and self.find(value) >= 0


class Decimals(NumberedNames):
    """The decimal names of different numbers >= 0, such as those of a UAI file's variables.

    Args:
        numbers: all up to a count, or an array of them.

    Example:
        >>> names = Decimals(np.array([7, 0, 12]))
        >>> names, names.find("12"), names.find("07")
        (('7', '0', '12'), 2, -1)
    """

    __slots__ = ("_numbers", "_order")

    def __init__(self, numbers: range | NDArray[np.signedinteger[Any]]) -> None:
        self._numbers = numbers
        self._order: NDArray[np.signedinteger[Any]] | None = None

    def find(self, name: str) -> int:
        """The number of a name, or -1."""
        # A number may be written in several ways, but it has one name.
        if not name.isdecimal() or len(name) > 18 or name != str(int(name)):
            return -1
        wanted = int(name)
        if isinstance(self._numbers, range):
            return wanted if wanted < len(self) else -1
        if self._order is None:
            self._order = self._numbers.argsort()
        kind = self._numbers.dtype  # of any other all numbers would be copied
        if wanted > np.iinfo(kind).max:
            return -1
        at = int(np.searchsorted(self._numbers, np.array(wanted, kind), sorter=self._order))
        place = int(self._order[at]) if at < len(self) else -1
        return place if place >= 0 and int(self._numbers[place]) == wanted else -1

    def entry(self, number: int) -> str:
        """The name of a number from 0 to their count less one."""
        return str(self._numbers[number])

    def __len__(self) -> int:
        return len(self._numbers)


class Names(NumberedNames):
    """Different names, numbered from 0 in the order in which they came.

    They lie end to end in one text, and a table of numbers tells where each is: beside its bytes a
    name takes 10 to 20 bytes, and an object of its own only while it is looked at.

    Args:
        names: the first ones; what is repeated is left out.

    Example:
        >>> names = Names(["S", "NP", "S"])
        >>> names, names.find("NP"), names.find("VP")
        (('S', 'NP'), 1, -1)
    """

    __slots__ = ("_ends", "_first", "_table", "_text")

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._text = bytearray()
        self._ends = array("Q", [0])
        self._table = _empty(16)
        self._first: dict[str, int] = {}  # few names are often looked for again and again
        for name in names:
            self.add(name)

    def add(self, name: str) -> int:
        """The number of a name, which is added if it is new."""
        known = self._first.get(name)
        if known is not None:
            return known
        number = self.add_bytes(name.encode(*CODEC))
        if number < _FIRST:
            self._first[name] = number
        return number

    def add_bytes(self, name: bytes) -> int:
        """The same of a name in UTF-8."""
        place = self._place(name)
        number = self._table[place]
        if number >= 0:
            return number
        number = self._table[place] = len(self._ends) - 1
        self._text += name
        self._ends.append(len(self._text))
        if 3 * (number + 1) > 2 * len(self._table):  # fuller, it would be searched for long
            self._number_again()
        return number

    def find(self, name: str) -> int:
        """The number of a name, or -1."""
        return self._table[self._place(name.encode(*CODEC))]

    def find_bytes(self, name: bytes) -> int:
        """The same of a name in UTF-8."""
        return self._table[self._place(name)]

    def picked(self, numbers: Iterable[int]) -> "Names":
        """Some of the names, in another order."""
        return Names(self[number] for number in numbers)

    def entry(self, number: int) -> str:
        """The name of a number from 0 to their count less one."""
        return self._bytes(number).decode(*CODEC)

    def __len__(self) -> int:
        return len(self._ends) - 1

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
