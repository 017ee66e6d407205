"""Spans and bispans that agree with required pairs, and the ways to join them."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor


def each(many: Tensor) -> tuple[Tensor, Tensor]:
    """Repeat each index as often as ``many`` (n,) says; the indices, and a count within each."""
    index = torch.repeat_interleave(torch.arange(len(many), device=many.device), many)
    within = torch.arange(len(index), device=many.device)
    return index, within - (many.cumsum(0) - many)[index]


def matched(left: Tensor, right: Tensor, *, among: int | None = None) -> tuple[Tensor, Tensor]:
    """All pairs of equal numbers of two lists (n,) and (m,), as indices, ordered by the left.

    ``among`` bounds the numbers if they are few and non-negative.
    """
    values, order = right.sort(stable=True)
    if among is None:
        begin = torch.searchsorted(values, left)
        many = torch.searchsorted(values, left, right=True) - begin
    else:
        count = torch.bincount(right, minlength=among)
        begin, many = (count.cumsum(0) - count)[left], count[left]
    row, within = each(many)
    return row, order[begin[row] + within]


@dataclass(frozen=True, eq=False)
class Spans:
    """Spans of sentences that a mask leaves."""

    item: Tensor  # (P,) the sentence of each, by width
    ends: Tensor  # (2, P) the first and the last word
    rows: tuple[int, ...]  # the first index of each width, and P
    number: Tensor  # (B, T, T) the index of each span; -1: left out

    @classmethod
    def of(cls, lengths: Tensor, required: Tensor, forbidden: Tensor) -> "Spans":
        """Spans that cross no required span (B, T, T) and are not forbidden; words are kept."""
        total = required.shape[1]
        place = torch.arange(total, device=required.device)
        first, last = place.unsqueeze(1), place
        kept = (last > first) & ~forbidden & (last < lengths.reshape(-1, 1, 1))
        item, left, right = required.nonzero().T.unsqueeze(-1).unsqueeze(-1)
        crossing = (left < first) & (first <= right) & (right < last)
        crossing |= (first < left) & (left <= last) & (last < right)
        crossed = torch.zeros(kept.shape, dtype=torch.int32, device=kept.device)
        crossed.index_add_(0, item.flatten(), crossing.int())
        kept &= crossed == 0
        kept |= (first == last) & (last < lengths.reshape(-1, 1, 1))
        item, left, right = kept.nonzero().T
        width, order = (right - left).sort(stable=True)
        bounds = torch.arange(total + 1, device=width.device)
        rows = tuple(torch.searchsorted(width, bounds).tolist())
        number = torch.full(kept.shape, -1, device=width.device)
        item, left, right = item[order], left[order], right[order]
        number[item, left, right] = torch.arange(len(item), device=width.device)
        return cls(item, torch.stack([left, right]), rows, number)

    def joins(self) -> tuple[Tensor, Tensor, Tensor]:
        """The whole, left part and right part of every way; a whole left out is -1."""
        total = self.number.shape[1]
        first, last = self.ends
        start = self.item * (total + 1) + first
        stop = self.item * (total + 1) + last + 1
        left, right = matched(stop, start, among=len(self.number) * (total + 1) + 1)
        return self.number[self.item[left], first[left], last[right]], left, right


Triple = tuple[Tensor, Tensor, Tensor]

_BITS = 62  # of a number that holds a set of links


@dataclass(frozen=True, eq=False)
class Bispans:
    """Bispans of sentence pairs that have both or neither of the words of every link.

    They are the pairs of a source and a target span with equal sets of links: found in time and
    memory O(p^2 + q^2) and their number.
    """

    item: Tensor  # (P,) the sentence pair, by size
    ends: Tensor  # (4, P) i, k, j, l: words i..k-1 of the source and j..l-1 of the target
    shape: tuple[int, int]  # p and q, of the longest
    # (S,) for each source span where its bispans begin; (T,) the place of each target span among
    # them; (all,) the index of each, -1 if it is left out.
    index: Triple

    @classmethod
    def of(cls, lengths: tuple[Tensor, Tensor], links: Tensor, allowed: Tensor | None) -> "Bispans":
        """Find the bispans of B sentence pairs given links (n, 3): item, source word, target word.

        Lengths are (B,) of either side; ``allowed`` (B or 1, p + 1, p + 1, q + 1, q + 1), None:
        all.
        """
        p, q = (int(limits.max()) if len(limits) else 0 for limits in lengths)
        batch, device = len(lengths[0]), links.device
        spans = [_spans(batch, most, device) for most in (p, q)]
        # Spans beyond an item's length get a key that no span of the other side has.
        keys = [
            torch.where(last > limits[item], batch + side, item)
            for side, (limits, (item, _, last)) in enumerate(zip(lengths, spans, strict=True))
        ]
        for some, bit in _bits(links[:, 0], batch):
            codes: list[Tensor] = []
            for side, (item, first, last) in enumerate(spans):
                sums = torch.zeros(batch, (p, q)[side] + 1, dtype=torch.long, device=device)
                place = links[some, 0], links[some, 1 + side] + 1
                sums = sums.index_put_(place, bit, accumulate=True).cumsum(1)
                codes.append(sums[item, last] - sums[item, first])
            keys = _refined(keys, codes)
        return cls._joined(spans, keys, (p, q), allowed)

    @classmethod
    def _joined(
        cls, spans: list[Triple], keys: list[Tensor], shape: tuple[int, int], allowed: Tensor | None
    ) -> "Bispans":
        (item, i, k), (_, j, m) = spans
        groups = max((int(key.max()) + 1 for key in keys if len(key)), default=0)
        count = torch.bincount(keys[1], minlength=groups)
        order = keys[1].argsort(stable=True)
        begin = count.cumsum(0) - count
        column = torch.empty_like(order)
        column[order] = torch.arange(len(order), device=order.device)
        column -= begin[keys[1]]
        many = count[keys[0]]
        row = many.cumsum(0) - many
        source, within = each(many)
        target = order[begin[keys[0]][source] + within]
        ends = torch.stack([i[source], k[source], j[target], m[target]])
        owner, size = item[source], ends[1] - ends[0] + ends[3] - ends[2]
        keep = size > 0
        if allowed is not None:
            first = owner if len(allowed) > 1 else torch.zeros_like(owner)
            keep &= allowed[first, ends[0], ends[1], ends[2], ends[3]]
        chosen = keep.nonzero().squeeze(1)
        chosen = chosen[size[chosen].argsort(stable=True)]
        number = torch.full_like(owner, -1)
        number[chosen] = torch.arange(len(chosen), device=number.device)
        index = row, column, number
        return cls(owner[chosen], ends[:, chosen], shape, index)

    def numbers(self, item: Tensor, ends: Tensor) -> Tensor:
        """(n,) the indices of bispans (4, n) that agree with all links; -1: left out.

        Undefined for a bispan that does not agree with them.
        """
        p, q = self.shape
        row, column, number = self.index
        i, k, j, m = ends
        source = item * ((p + 1) * (p + 2) // 2) + _triangle(i, k)
        target = item * ((q + 1) * (q + 2) // 2) + _triangle(j, m)
        return number[row[source] + column[target]]

    def joins(self) -> tuple[Triple, Triple]:
        """The whole, left part and right part of every straight way, and of every inverted one."""
        i, k, j, m = self.ends
        straight = self._matched((k, m), (i, j), (0, 1, 0, 1))
        both = (k > i) & (m > j)
        inverted = self._matched((k, j), (i, m), (0, 1, 1, 0), both)
        return straight, inverted

    def _matched(
        self, corner: tuple[Tensor, Tensor], other: tuple[Tensor, Tensor],
        sides: tuple[int, int, int, int], some: Tensor | None = None,
    ) -> Triple:  # fmt: skip
        """All pairs where a corner of the left part equals another corner of the right part."""
        p, q = self.shape
        left = right = torch.arange(len(self.item), device=self.item.device)
        if some is not None:
            left = right = some.nonzero().squeeze(1)
        key = (self.item * (p + 1) + corner[0]) * (q + 1) + corner[1]
        other_key = (self.item * (p + 1) + other[0]) * (q + 1) + other[1]
        key, other_key = key[left], other_key[right]
        cells = int(max(key.max(), other_key.max())) + 1 if len(key) else 0
        rows, columns = matched(key, other_key, among=cells)
        parts = left, right = left[rows], right[columns]
        ends = torch.stack([self.ends[row][parts[part]] for row, part in enumerate(sides)])
        return self.numbers(self.item[left], ends), left, right


def _triangle(first: Tensor, last: Tensor) -> Tensor:
    """The index of a span, first <= last, in order of its end."""
    return last * (last + 1) // 2 + first


def _spans(batch: int, most: int, device: torch.device) -> Triple:
    """(S,) item, first and last of all spans of ``most`` words, in order of index."""
    last, first = torch.tril_indices(most + 1, most + 1, device=device)
    item = torch.arange(batch, device=device).repeat_interleave(len(first))
    return item, first.repeat(batch), last.repeat(batch)


def _bits(item: Tensor, batch: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Groups of links, as many of an item as a number has bits, and a bit for each."""
    count = torch.bincount(item, minlength=batch)
    order = item.argsort(stable=True)
    rank = torch.empty_like(order)
    rank[order] = torch.arange(len(item), device=item.device)
    rank -= (count.cumsum(0) - count)[item]
    for first in range(0, int(count.max()) if len(item) else 0, _BITS):
        some = ((rank >= first) & (rank < first + _BITS)).nonzero().squeeze(1)
        yield some, torch.ones_like(some) << (rank[some] - first)


def _refined(keys: list[Tensor], codes: list[Tensor]) -> list[Tensor]:
    """Keys that are equal where both keys and codes are."""
    _, code = torch.cat(codes).unique(return_inverse=True)
    _, key = (torch.cat(keys) * (int(code.max()) + 1) + code).unique(return_inverse=True)
    return list(key.split([len(side) for side in keys]))
