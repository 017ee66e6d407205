"""The variables of a graph, numbered."""

import difflib
import math
import re
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice
from operator import attrgetter, ge
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from rdpgraph._core.cache import cached_property
from rdpgraph.errors import ModelError, UnknownVariableError, no_raw_memory_error
from rdpgraph.model.names import CompactVariables
from rdpgraph.model.variable import States, Variable, VariableArray, names_of, same_states

Entry: TypeAlias = Variable | VariableArray
Named: TypeAlias = Variable | VariableArray | str

_HOME, _NAME = attrgetter("home"), attrgetter("name")
_MEMBER = re.compile(r"^(?P<array>.*)\[(?P<where>\d+(?:,\s*\d+)*)\]$", re.DOTALL)


@dataclass(frozen=True, eq=False)
class Domain:
    """Numbers of the variables of a graph; the members of an array are numbered in a row."""

    entries: Sequence[Entry]

    @staticmethod
    def of(items: Iterable[Entry]) -> "Domain":
        """The domain of variables, arrays and views of arrays, each entered once."""
        entries: dict[str, Entry] = {}
        for item in items:
            single = type(item) is Variable and item.home is None
            entry = item if single else _entry_of(item)
            known = entries.setdefault(entry.name, entry)
            if known is not entry and not _are_same(known, entry):
                raise ModelError(
                    f"Two variables named {entry.name!r} differ: {_brief(known)}, and "
                    f"{_brief(entry)}{_first_difference(known, entry)}."
                )
        for name, entry in entries.items():
            # Only names of members split.
            array = entries.get(_split(name)[0]) if name.endswith("]") else None
            if isinstance(entry, Variable) and isinstance(array, VariableArray):
                raise ModelError(
                    f"Variable {name!r} has the name of a member of array {array.name!r}; use the "
                    "member itself, or another name."
                )
        return Domain(tuple(entries.values()))

    @cached_property
    def by_name(self) -> Mapping[str, int]:
        """The place of each entry."""
        if isinstance(self.entries, CompactVariables):
            return self.entries.numbers
        return {entry.name: place for place, entry in enumerate(self.entries)}

    @cached_property
    def starts(self) -> Sequence[int]:
        """The number of each entry's first variable, and at the end their count."""
        if isinstance(self.entries, CompactVariables):
            return range(len(self.entries) + 1)
        if set(map(type, self.entries)) == {Variable}:
            return range(len(self.entries) + 1)
        return tuple(accumulate((math.prod(entry.shape) for entry in self.entries), initial=0))

    @cached_property
    def state_starts(self) -> Tensor:
        """(V + 1,) the offset of each variable's states among those of all, their count last."""
        starts = torch.zeros(self.count + 1, dtype=torch.long, device="cpu")
        torch.cumsum(self.sizes, 0, out=starts[1:])
        return starts

    def places(self, numbers: Tensor, size: int) -> Tensor:
        """(n, size) the places of the states of variables that have so many, among those of all."""
        return self.state_starts[numbers].unsqueeze(-1) + torch.arange(size, device="cpu")

    @cached_property
    def sizes(self) -> Tensor:
        """(V,) int64: the number of states of each variable."""
        if isinstance(self.entries, CompactVariables):
            return torch.from_numpy(self.entries.sizes)
        if isinstance(self.starts, range):
            return torch.tensor([entry.size for entry in self.entries], device="cpu")
        with no_raw_memory_error(f"The sizes of {self.count:,} variables"):
            return self._repeated(np.array([entry.size for entry in self.entries], np.int64))

    @cached_property
    def unnamed(self) -> Tensor:
        """(V,) True where states have no names."""
        if isinstance(self.entries, CompactVariables):
            return torch.from_numpy(self.entries.unnamed())
        flags = [isinstance(entry.states, int) for entry in self.entries]
        return self._repeated(np.array(flags, np.bool_))

    def _repeated(self, values: npt.NDArray[Any]) -> Tensor:
        """(V,) the value of each entry for all of its members."""
        if isinstance(self.starts, range):  # entries have one member each
            return torch.from_numpy(values)
        return torch.from_numpy(np.repeat(values, np.diff(self.starts)))

    @cached_property
    def total_states(self) -> int:
        """The summed numbers of states of all variables."""
        if isinstance(self.entries, CompactVariables):
            return int(self.entries.sizes.sum())
        if isinstance(self.starts, range):
            return sum([entry.size for entry in self.entries])
        return sum(math.prod(entry.shape) * entry.size for entry in self.entries)

    @property
    def count(self) -> int:
        """The number of variables."""
        return self.starts[-1]

    def holds(self, item: object) -> bool:
        """Test if a variable, an array, or one of that name is in the domain."""
        try:
            return self.knows(item)
        except ModelError:
            return False

    def knows(self, item: object) -> bool:
        """The result of `holds`, where a variable whose states are not the graph's is refused."""
        if not isinstance(item, str | Variable | VariableArray):
            return False
        try:
            self.numbers(item)
        except UnknownVariableError:
            return False
        return True

    def place(self, item: Named) -> int:
        """The place of the entry that holds a variable, an array, or what a name stands for.

        Every question about a variable comes here, or to `single` if it has one number: a variable
        whose states are not those that the graph has by its name is refused.
        """
        if not isinstance(item, str | Variable | VariableArray):
            several = "; joint takes a list of them" if isinstance(item, list | tuple) else ""
            raise ModelError(
                f"A variable must be given by its name or as a Variable{several}; got {item!r:.80}."
            )
        name = item if isinstance(item, str) else item.name
        given = item.base if isinstance(item, VariableArray) else item
        place = self.by_name.get(name)
        if place is None:
            # A member is found by the name of its array; only arrays have members.
            given = item if isinstance(item, str) else _entry_of(item)
            array = _split(name)[0] if isinstance(given, str) else given.name
            place = self.by_name.get(array)
            if place is None or isinstance(self.entries[place], Variable):
                raise UnknownVariableError(self._unknown(name))
        if not isinstance(given, str) and not _are_same(given, self.entries[place]):
            entry = self.entries[place]
            raise ModelError(
                f"{given.name!r}, {_brief(given)}, is not what this graph has by that name, "
                f"{_brief(entry)}{_first_difference(given, entry)}; use graph[{given.name!r}], or "
                "the name alone."
            )
        return place

    def single(self, item: Named) -> tuple[int, Entry] | None:
        """The number and entry of a single variable; None for what `numbers` has to look at."""
        if isinstance(item, str):
            # A name of an entry, or of a member of an array, as "pixel[0, 1]".
            place = self.by_name.get(item)
            if place is None:
                name, where = _split(item)
                array = self.by_name.get(name)
                entry = None if array is None else self.entries[array]
                if array is None or not isinstance(entry, VariableArray):
                    return None
                if len(where) != len(entry.shape) or any(map(ge, where, entry.shape)):
                    return None
                position = 0
                for at, size in zip(where, entry.shape, strict=True):
                    position = position * size + at
                return self.starts[array] + position, entry
        elif not isinstance(item, Variable):
            return None
        elif item.home is not None:
            # A member of an array knows its array and its place there.
            array, position = item.home
            place = self.by_name.get(array.name)
            if place is None or not _are_same(array, self.entries[place]):
                return None
            return self.starts[place] + position, self.entries[place]
        else:
            place = self.by_name.get(item.name)
            # A variable by itself; another object of its name and size is the same variable.
            if place is not None and item is self.entries[place]:
                return self.starts[place], item
            if place is not None and not _are_same(item, self.entries[place]):
                return None
        if place is None or not isinstance(self.entries[place], Variable):
            return None
        return self.starts[place], self.entries[place]

    def singles(self, items: Sequence[Named]) -> list[int | None]:
        """The result of `single` for many items in one pass."""
        kinds = set(map(type, items))
        if kinds == {str}:
            numbers = list(map(self._known.get, items))
            for place, number in enumerate(numbers):
                if number is None and (hit := self.single(items[place])) is not None:
                    numbers[place] = self._known[items[place]] = hit[0]
            return numbers
        if kinds == {Variable}:
            homes = [home for home in map(_HOME, items) if home is not None]
            if len(homes) == len(items) and len({id(array) for array, _ in homes}) == 1:
                array = homes[0][0]
                place = self.by_name.get(array.name)
                if place is None or not _are_same(array, self.entries[place]):
                    return [None] * len(items)
                start = self.starts[place]
                return [start + position for _, position in homes]
            if not homes:
                # Most are the objects that the domain has; others are looked at one by one.
                places = list(map(self.by_name.get, map(_NAME, items)))
                entries, starts = self.entries, self.starts
                pairs = zip(places, items, strict=True)
                return [
                    starts[place] if place is not None and entries[place] is item
                    else None if (hit := self.single(item)) is None else hit[0]
                    for place, item in pairs
                ]  # fmt: skip
        return [None if (hit := self.single(item)) is None else hit[0] for item in items]

    @cached_property
    def _known(self) -> dict[Named, int]:
        """The names looked up before."""
        return {}

    def numbers(self, item: Named) -> Tensor:
        """The numbers of a variable (shape ``()``) or of an array's members (the array's shape)."""
        single = self.single(item)
        if single is not None:
            return torch.tensor(single[0], device="cpu")
        place = self.place(item)
        entry, start = self.entries[place], self.starts[place]
        if isinstance(item, str) and item == entry.name:
            item = entry
        if isinstance(item, VariableArray):
            return start + item.positions
        if isinstance(entry, Variable):
            return torch.tensor(start, device="cpu")
        name = item if isinstance(item, str) else item.name
        raise UnknownVariableError(
            f"{name!r} is outside array {entry.name!r} of shape {entry.shape}."
        )

    def number(self, item: Named) -> int:
        """The number of a single variable, or the `ModelError` that it is none."""
        if (single := self.single(item)) is not None:
            return single[0]
        numbers = self.numbers(item)
        if numbers.ndim:
            name = item if isinstance(item, str) else item.name
            raise ModelError(
                f"A single variable is needed here; {name!r} is an array: name one of its members."
            )
        return int(numbers)

    def state_places(self, item: Named) -> tuple[slice | Tensor, tuple[int, ...]]:
        """Places of the states of a variable or array among those of all, and their shape."""
        if (single := self.single(item)) is not None:
            number, entry = single
            start = int(self.state_starts[number])
            return slice(start, start + entry.size), (entry.size,)
        numbers, size = self.numbers(item), self.entries[self.place(item)].size
        shape, first = (*numbers.shape, size), numbers.reshape(-1)
        count = len(first)
        # Members of a view may stand in any order.
        if not numbers.ndim or (
            count and int(first[-1] - first[0]) == count - 1 and item in self.entries
        ):
            start = int(self.state_starts[first[0]])
            return slice(start, start + count * size), shape
        return self.places(first, size).reshape(-1), shape

    def variable(self, number: int) -> Variable:
        """The variable of a number."""
        place = bisect_right(self.starts, number) - 1
        entry = self.entries[place]
        return entry if isinstance(entry, Variable) else entry.member(number - self.starts[place])

    def states_of(self, item: Named) -> States:
        """The states that a variable, or each member of an array, has in this graph."""
        return self.entries[self.place(item)].states

    def _unknown(self, name: str) -> str:
        names, count = list(islice(self.by_name, 20000)), len(self.entries)
        close = difflib.get_close_matches(name, names, n=3)
        shown = close or names[:5]
        hint, end = ("did you mean", "?") if close else ("it has", ".")
        listed = ", ".join(repr(known) for known in shown) or "no variables"
        more = "" if close or count <= 5 else f", ... ({count} in all)"
        return f"Variable {name!r} is not in this graph; {hint} {listed}{more}{end}"


def _entry_of(item: Entry) -> Entry:
    if isinstance(item, VariableArray):
        return item.base
    return item if item.home is None else item.home[0]


def _split(name: str) -> tuple[str, tuple[int, ...]]:
    match = _MEMBER.match(name)
    if match is None:
        return name, ()
    return match["array"], tuple(int(part) for part in match["where"].split(","))


def _first_difference(known: Entry, entry: Entry) -> str:
    """The first state that differs, where `_brief` says the same of both entries; else nothing."""
    if _brief(known) != _brief(entry):
        return ""
    pairs = zip(names_of(known.states), names_of(entry.states), strict=True)
    place, (one, other) = next(p for p in enumerate(pairs) if repr(p[1][0]) != repr(p[1][1]))
    return f": state {place} is {one!r} in the first and {other!r} in the second"


def _are_same(given: Entry, entry: Entry) -> bool:
    """Test if two entries of one name agree in their shape and in their states, by order and type.

    Whatever takes a variable or an array asks this of it: indices of states mean the same in both.
    """
    return given is entry or (
        given.shape == entry.shape and same_states(given.states, entry.states)
    )


def _brief(entry: Entry) -> str:
    kind = f"an array {entry.shape}" if isinstance(entry, VariableArray) else "a variable"
    if isinstance(entry.states, int):
        return f"{kind} of {entry.size} states"
    names = ", ".join(map(str, entry.states[:8])) + (", ..." if entry.size > 8 else "")
    return f"{kind} of {entry.size} states ({names})"
