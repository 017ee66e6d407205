"""Names and variables of files in little memory; their objects are made on access."""

import re
from abc import abstractmethod
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import eq
from typing import Any, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from rdpgraph._core import tuning
from rdpgraph.model.variable import Variable

T = TypeVar("T")
CODEC = ("utf-8", "surrogatepass")  # texts may hold lone surrogates
_BITS = 0xFFFFFFFF  # of hashes that are stored
_SHORT = 1 << 32  # length of text up to which offsets take four bytes


class LazyTuple(Sequence[T]):
    """A sequence that equals, and prints as, the tuple of its entries."""

    __slots__ = ()

    @abstractmethod
    def entry(self, number: int) -> T:
        """The entry of a number from 0 to the length less one."""

    @overload
    def __getitem__(self, index: int) -> T: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[T, ...]: ...

    def __getitem__(self, index: int | slice) -> T | tuple[T, ...]:
        if isinstance(index, slice):
            return tuple(map(self.entry, range(*index.indices(len(self)))))
        return self.entry(range(len(self))[index])

    def __iter__(self) -> Iterator[T]:
        return map(self.entry, range(len(self)))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, tuple | LazyTuple):
            return NotImplemented
        return len(self) == len(other) and all(map(eq, self, other))

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return repr(tuple(self))


class Numbers(Mapping[T, int]):
    """A mapping from keys to their numbers, by a function that finds them (-1: unknown key)."""

    def __init__(
        self, keys: Callable[[], Iterator[T]], count: int, find: Callable[[T], int]
    ) -> None:
        self._keys, self._count, self._find = keys, count, find

    def __getitem__(self, key: T) -> int:
        number = self._find(key)
        if number < 0:
            raise KeyError(key)
        return number

    def __iter__(self) -> Iterator[T]:
        return self._keys()

    def __len__(self) -> int:
        return self._count


class NumberedNames(LazyTuple[str]):
    """Distinct names in order, with lookup; equal to a tuple of them."""

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
    """The decimal names of distinct numbers >= 0, as in UAI files; a range starts at 0."""

    __slots__ = ("_numbers", "_order")

    def __init__(self, numbers: range | NDArray[np.signedinteger[Any]]) -> None:
        self._numbers = numbers
        self._order: NDArray[np.signedinteger[Any]] | None = None

    def find(self, name: str) -> int:
        # Only the canonical decimal is a name: 07 is not.
        if not name.isdecimal() or len(name) > 18 or name != str(int(name)):
            return -1
        wanted = int(name)
        if isinstance(self._numbers, range):
            return wanted if wanted < len(self) else -1
        if self._order is None:
            self._order = self._numbers.argsort()
        kind = self._numbers.dtype  # another type would copy all numbers
        if wanted > np.iinfo(kind).max:
            return -1
        at = int(np.searchsorted(self._numbers, np.array(wanted, kind), sorter=self._order))
        place = int(self._order[at]) if at < len(self) else -1
        return place if place >= 0 and int(self._numbers[place]) == wanted else -1

    def entry(self, number: int) -> str:
        return str(self._numbers[number])

    def __len__(self) -> int:
        return len(self._numbers)


class Names(NumberedNames):
    """Distinct names, numbered in the order in which they were added.

    Names lie end to end in one buffer, and an open-addressing hash table of numbers finds them: 18
    to 24 bytes for each name beside its text; a string is made on access.
    """

    __slots__ = ("_ends", "_hashes", "_table", "_text")

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._text = bytearray()
        self._ends = array("I", [0])
        self._hashes = array("I")
        self._table = array("i", [-1]) * 16
        self.add_all([name.encode(*CODEC) for name in names])

    def add_bytes(self, name: bytes) -> int:
        """The number of a name in UTF-8, added if it is new."""
        place = self._place(name)
        number = self._table[place]
        if number >= 0:
            return number
        number = self._table[place] = len(self._ends) - 1
        self._write(name)
        self._ends.append(len(self._text))
        self._hashes.append(hash(name) & _BITS)
        self._grow()
        return number

    def find(self, name: str) -> int:
        return self._table[self._place(name.encode(*CODEC))]

    def find_bytes(self, name: bytes) -> int:
        """The number of a name in UTF-8, or -1."""
        return self._table[self._place(name)]

    def add_all(self, names: Sequence[bytes]) -> NDArray[np.int32]:
        """The numbers of some thousand names in UTF-8, added where new; vectorised."""
        different = dict.fromkeys(names)
        listed = list(different)
        hashes = _hashes(listed)
        numbers = self._find_all(listed, hashes)
        new = np.flatnonzero(numbers < 0)
        if len(new):
            numbers[new] = added = np.arange(len(self), len(self) + len(new), dtype=np.int32)
            kept = listed if len(new) == len(listed) else [listed[at] for at in new.tolist()]
            ends = np.fromiter(map(len, kept), np.int64, len(kept)).cumsum() + len(self._text)
            self._write(b"".join(kept))
            self._ends.frombytes(ends.astype(self._ends.typecode).tobytes())
            self._hashes.frombytes(hashes[new].tobytes())
            if not self._grow():
                self._place_all(hashes[new], added)
        if len(listed) == len(names):
            return numbers
        known = dict(zip(listed, numbers.tolist(), strict=True))
        return np.fromiter(map(known.__getitem__, names), np.int32, len(names))

    def find_all(self, names: Sequence[bytes]) -> NDArray[np.int32]:
        """The numbers of some thousand names in UTF-8, or -1; vectorised."""
        return self._find_all(names, _hashes(names))

    def _find_all(self, names: Sequence[bytes], hashes: NDArray[np.uint32]) -> NDArray[np.int32]:
        table, known = np.frombuffer(self._table, np.int32), np.frombuffer(self._hashes, np.uint32)
        ends, lengths = np.frombuffer(self._ends, self._ends.typecode), list(map(len, names))
        mask = len(table) - 1
        numbers = np.full(len(names), -1, dtype=np.int32)
        left, places, step = np.arange(len(names)), hashes & mask, 0
        while len(left) > tuning.FEW_NAMES:
            entries = table[places]
            kept = (entries >= 0).nonzero()[0]
            left, places, entries = left[kept], places[kept], entries[kept]
            alike = known[entries] == hashes[left]
            rows, hits = left[alike].tolist(), entries[alike]
            starts, stops = ends[hits].tolist(), ends[hits + 1].tolist()
            for row, number, start, stop in zip(rows, hits.tolist(), starts, stops, strict=True):
                if lengths[row] == stop - start and self._text.startswith(names[row], start):
                    numbers[row] = number
            others = numbers[left] < 0
            step += 1
            left, places = left[others], (places[others] + step) & mask
        for row in left.tolist():
            numbers[row] = self.find_bytes(names[row])
        return numbers

    def picked(self, numbers: Sequence[int]) -> "Names":
        """Return the names of some numbers, in the order of these."""
        names = Names()
        for at in range(0, len(numbers), tuning.NAMES_PIECE):
            names.add_all([self._bytes(number) for number in numbers[at : at + tuning.NAMES_PIECE]])
        return names

    def entry(self, number: int) -> str:
        return self._bytes(number).decode(*CODEC)

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __reduce__(self) -> tuple[type["Names"], tuple[tuple[str, ...]]]:
        return Names, (tuple(self),)  # hashes differ by process

    def _write(self, more: bytes) -> None:
        self._text += more
        if len(self._text) >= _SHORT and self._ends.typecode == "I":
            self._ends = array("Q", self._ends)

    def _bytes(self, number: int) -> bytes:
        return bytes(self._text[self._ends[number] : self._ends[number + 1]])

    def _place(self, key: bytes) -> int:
        """The slot of the hash table that holds a name's number, or is free for it."""
        table, text, ends = self._table, self._text, self._ends
        mask = len(table) - 1
        place, step = hash(key) & _BITS & mask, 0
        while (number := table[place]) >= 0 and (
            ends[number + 1] - ends[number] != len(key) or not text.startswith(key, ends[number])
        ):
            step += 1
            place = (place + step) & mask
        return place

    def _grow(self) -> bool:
        """Double the hash table until it is at most two thirds full; False if it is already."""
        places = len(self._table)
        while 3 * len(self) > 2 * places:
            places *= 2
        if places == len(self._table):
            return False
        self._table = array("i", [-1]) * places
        for start in range(0, len(self), tuning.NAMES_PIECE):
            hashes = np.frombuffer(
                self._hashes[start : start + tuning.NAMES_PIECE], dtype=np.uint32
            )
            numbers = np.arange(start, start + len(hashes), dtype=np.int32)
            self._place_all(hashes, numbers)
        return True

    def _place_all(self, hashes: NDArray[np.uint32], numbers: NDArray[np.int32]) -> None:
        """Enter the numbers of distinct names that the table lacks."""
        table = np.frombuffer(self._table, np.int32)
        mask, step = np.int64(len(table) - 1), 0
        places = hashes & mask
        while len(numbers):
            free = table[places] < 0
            table[places[free]] = numbers[free]  # of several at one place the last wins
            left = table[places] != numbers
            step += 1
            places, numbers = (places[left] + step) & mask, numbers[left]


def _hashes(names: Sequence[bytes]) -> NDArray[np.uint32]:
    return (np.fromiter(map(hash, names), np.int64, len(names)) & _BITS).astype(np.uint32)


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
                for match in re.finditer(rb"(?:\A|\n)([^\n]*)", names):
                    known.add_bytes(match[1])
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


class CompactVariables(LazyTuple[Variable]):
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
        number = self.names.find(item.name) if isinstance(item, Variable) else -1
        return number >= 0 and self.entry(number) == item

    def __add__(self, other: Iterable[Variable]) -> tuple[Variable, ...]:
        return (*self, *other)
