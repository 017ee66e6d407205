"""The rules over the bispans that a mask keeps, found by the ends that bispans share."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor

from rdpgraph._cache import cached_property
from rdpgraph.structures.mixed.shapes import ORDERS

Triple = tuple[Tensor, Tensor, Tensor]

_BLOCK = 1 << 22  # pairs of bispans that are compared at once
_SHARED = ((0, 1), (1,), (0,))
"""Which ends a whole shares with its parts, if words stand nowhere, before them, or after them."""
_THREE = {
    (0, 1, 2): (False, False, True),
    (1, 0, 2): (True, False, True),
    (1, 2, 0): (False, True, True),
    (2, 1, 0): (True, True, True),
    (0, 2, 1): (True, False, False),
    (2, 0, 1): (False, True, False),
}
"""For each order of three parts whether two side by side are inverted; whether the third is, beside
them; and whether that is the last one in the source."""


@dataclass(frozen=True, eq=False)
class Rules:
    """Rules of one kind.

    Attributes:
        kind: its number, as in `ORDERS`.
        whole: (E,) the bispan that each makes.
        parts: (parts, E) those that it is made of, in the order of the source.
        source: (E, S, 2) the stretches of source words that it has itself, some of them empty.
        target: (E, S, 2) of the target.
    """

    kind: int
    whole: Tensor
    parts: Tensor
    source: Tensor
    target: Tensor


@dataclass(frozen=True, eq=False)
class Kept:
    """The kept bispans of some items.

    Attributes:
        item: (P,) whose.
        ends: (4, P) i, k, j, l: words i..k-1 of the source and j..l-1 of the target.
        longest: the words of the longest sentence.
    """

    item: Tensor
    ends: Tensor
    longest: int

    def rules(self) -> Iterator[Rules]:
        """All of them, kind by kind."""
        every = torch.arange(len(self.item), device=self.item.device)
        own = self.ends.T.unflatten(1, (2, 2))
        yield Rules(0, every, every.new_empty(0, len(every)), own[:, :1], own[:, 1:])
        whole, part = self.nested
        outer, inner = self.ends[:, whole], self.ends[:, part]
        sides = (
            torch.stack([outer[a], inner[a], inner[b], outer[b]], 1).unflatten(1, (2, 2))
            for a, b in ((0, 1), (2, 3))
        )
        yield Rules(1, whole, part.unsqueeze(0), *sides)
        for turned in (False, True):
            yield self._of_two(turned=turned)
        yield from self._of_three()

    @cached_property
    def nested(self) -> tuple[Tensor, Tensor]:
        """All pairs of a bispan and another one within it."""
        order = self.item.argsort(stable=True)
        sizes = torch.bincount(self.item).tolist() if len(self.item) else []
        nested: list[tuple[Tensor, Tensor]] = [(order[:0], order[:0])]
        for own in order.split(sizes):
            inner = self.ends[:, own].to(torch.int16)
            for rows in own.split(max(_BLOCK // max(len(own), 1), 1)):
                outer = self.ends[:, rows].to(torch.int16).unsqueeze(2)
                within = (outer[0] <= inner[0]) & (outer[1] >= inner[1])
                within &= (outer[2] <= inner[2]) & (outer[3] >= inner[3])
                row, column = within.nonzero().T
                nested.append((rows[row], own[column]))
        whole, part = (torch.cat(own) for own in zip(*nested, strict=True))
        other = whole != part
        return whole[other], part[other]

    def _of_two(self, *, turned: bool) -> Rules:
        """Rules of two parts, straight or inverted."""
        ends = self.ends
        if turned:
            # With the target read backwards inverted is straight.
            ends = torch.cat([ends[:2], self.longest - ends[[3, 2]]])
        swapped = ends[[2, 3, 0, 1]]
        triples = [
            self._around(ends), *self._beside(ends), *self._between(ends), *self._between(swapped)
        ]  # fmt: skip
        whole, first, second = (torch.cat(own) for own in zip(*triples, strict=True))
        source = _gap(self.ends[:2], whole, first, second)
        target = _gap(self.ends[2:], whole, *((second, first) if turned else (first, second)))
        return Rules(3 if turned else 2, whole, torch.stack([first, second]), source, target)

    def _corners(self, ends: Tensor) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        """Of nested pairs those of which the part begins where the whole does; and ends."""
        whole, part = self.nested
        same = ends[:, whole] == ends[:, part]
        begins, stops = (same[a] & same[b] for a, b in ((0, 2), (1, 3)))
        return (whole[begins], part[begins]), (whole[stops], part[stops])

    def _around(self, ends: Tensor) -> Triple:
        """Words between the two parts, on either side or none."""
        (whole, first), (other, second) = self._corners(ends)
        row, column = _matched(whole, other)
        whole, first, second = whole[row], first[row], second[column]
        apart = (ends[1, first] <= ends[0, second]) & (ends[3, first] <= ends[2, second])
        return whole[apart], first[apart], second[apart]

    def _beside(self, ends: Tensor) -> Iterator[Triple]:
        """Words before or after both parts, on either side or both; none between them."""
        first, second = self._adjacent((self.item, ends), (self.item, ends), turned=False)
        item, box = self.item[first], _joined(ends[:, first], ends[:, second], turned=False)
        for places in product(_SHARED, repeat=2):
            if all(len(shared) == 2 for shared in places):
                continue  # as found around the words
            shared = [2 * side + end for side, own in enumerate(places) for end in own]
            row, whole = _matched(self._key(item, box[shared]), self._key(self.item, ends[shared]))
            wider = torch.ones_like(row, dtype=torch.bool)
            for side, own in enumerate(places):
                if 0 not in own:
                    wider &= ends[2 * side, whole] < box[2 * side, row]
                elif 1 not in own:
                    wider &= ends[2 * side + 1, whole] > box[2 * side + 1, row]
            yield whole[wider], first[row][wider], second[row][wider]

    def _between(self, ends: Tensor) -> Iterator[Triple]:
        """Words before or after both parts in the source, and between them in the target."""
        (after, early), (before, late) = self._corners(ends)
        row, first = _matched(
            self._key(self.item[before], [ends[2, before], ends[0, late]]),
            self._key(self.item, ends[[2, 1]]),
        )
        whole, second = before[row], late[row]
        some = (ends[0, whole] < ends[0, first]) & (ends[3, first] < ends[2, second])
        yield whole[some], first[some], second[some]
        row, second = _matched(
            self._key(self.item[after], [ends[3, after], ends[1, early]]),
            self._key(self.item, ends[[3, 0]]),
        )
        whole, first = after[row], early[row]
        some = (ends[1, second] < ends[1, whole]) & (ends[3, first] < ends[2, second])
        yield whole[some], first[some], second[some]

    def _of_three(self) -> Iterator[Rules]:
        """Rules of three parts: of two side by side, and of a third on either hand of both."""
        every, full = (self.item, self.ends), self._key(self.item, self.ends)
        for turned in (False, True):
            first, second = self._adjacent(every, every, turned=turned)
            pair = (
                self.item[first],
                _joined(self.ends[:, first], self.ends[:, second], turned=turned),
            )
            for order, (inner, outer, late) in _THREE.items():
                if inner != turned:
                    continue
                if late:
                    row, third = self._adjacent(pair, every, turned=outer)
                    whole = _joined(pair[1][:, row], self.ends[:, third], turned=outer)
                    parts = torch.stack([first[row], second[row], third])
                else:
                    third, row = self._adjacent(every, pair, turned=outer)
                    whole = _joined(self.ends[:, third], pair[1][:, row], turned=outer)
                    parts = torch.stack([third, first[row], second[row]])
                matching, place = _matched(self._key(self.item[third], whole), full)
                words = self.ends.new_empty(len(matching), 0, 2)
                yield Rules(ORDERS.index(order), place, parts[:, matching], words, words)

    def _adjacent(
        self, left: tuple[Tensor, Tensor], right: tuple[Tensor, Tensor], *, turned: bool
    ) -> tuple[Tensor, Tensor]:
        """All pairs, of items and ends (4, n), that are side by side, straight or inverted."""
        (item, ends), (other, others) = left, right
        return _matched(
            self._key(item, ends[[1, 2 if turned else 3]]),
            self._key(other, others[[0, 3 if turned else 2]]),
        )

    def _key(self, item: Tensor, ends: Tensor | Sequence[Tensor]) -> Tensor:
        """(n,) a number for an item and some ends (m, n)."""
        for end in ends:
            item = item * (self.longest + 1) + end
        return item


def _joined(left: Tensor, right: Tensor, *, turned: bool) -> Tensor:
    """(4, n) the ends of two bispans side by side."""
    low, high = (right, left) if turned else (left, right)
    return torch.stack([left[0], right[1], low[2], high[3]])


def _gap(ends: Tensor, whole: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """(E, 1, 2) the words of one side beside two parts in turn, which are one stretch or none."""
    bounds = torch.stack(
        [ends[0, whole], ends[0, first], ends[1, first], ends[0, second], ends[1, second],
         ends[1, whole]], 1,
    ).unflatten(1, (3, 2))  # fmt: skip
    some = (bounds[:, :, 1] > bounds[:, :, 0]).long().argmax(1)
    return bounds.gather(1, some.reshape(-1, 1, 1).expand(-1, 1, 2))


def _matched(left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """All pairs of places in which two lists of numbers are equal."""
    values, order = right.sort(stable=True)
    begin = torch.searchsorted(values, left)
    many = torch.searchsorted(values, left, right=True) - begin
    row = torch.repeat_interleave(torch.arange(len(left), device=left.device), many)
    within = torch.arange(len(row), device=left.device) - (many.cumsum(0) - many)[row]
    return row, order[begin[row] + within]
