"""Sequences and mappings whose entries are made when they are asked for."""

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import eq
from typing import TypeVar, overload

T = TypeVar("T")


class Listing(Sequence[T]):
    """A sequence that is equal to a tuple of its entries, and shown as one."""

    __slots__ = ()

    @abstractmethod
    def entry(self, number: int) -> T:
        """The entry of a number from 0 to their count less one."""

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
        if not isinstance(other, tuple | Listing):
            return NotImplemented
        return len(self) == len(other) and all(map(eq, self, other))

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return repr(tuple(self))


class Numbers(Mapping[T, int]):
    """The number of each of some keys.

    Args:
        keys: gives all of them, in the order of their numbers.
        count: how many there are.
        find: the number of a key, or -1.
    """

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
