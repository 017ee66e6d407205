"""Forests: the places that a mask keeps, and the ways to join two of them, as lists."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rdpgraph._cache import cached_property


@dataclass(frozen=True, eq=False)
class Binary:
    """Rules of one or more kinds, over classes of labels that no rule tells apart.

    Attributes:
        table: (B or 1, K, G * L * R) log-weights of a label given the kind and the classes of its
            parts.
        kinds: G.
        left: (K,) the class of each label as a left part, 0..L-1.
        right: (K,) likewise, 0..R-1.
    """

    table: Tensor
    kinds: int
    left: Tensor
    right: Tensor

    @staticmethod
    def of(tables: Sequence[Tensor]) -> "Binary":
        """From tables (B or 1, K, K, K), one for each kind, in doubles."""
        many = max(len(table) for table in tables)
        stack = torch.stack([table.double().expand(many, -1, -1, -1) for table in tables], 2)
        sides: list[Tensor] = []
        for dim in (3, 4):
            rows = stack.movedim(dim, 0).flatten(1)
            _, classes = rows.unique(dim=0, return_inverse=True)
            first = torch.full((int(classes.max()) + 1,), len(classes), device=classes.device)
            every = torch.arange(len(classes), device=classes.device)
            first, order = first.scatter_reduce(0, classes, every, "amin").sort()
            stack = stack.index_select(dim, first)
            sides.append(order.argsort()[classes])
        return Binary(stack.flatten(2), len(tables), *sides)

    @cached_property
    def counts(self) -> tuple[int, int]:
        """L and R."""
        return int(self.left.max()) + 1, int(self.right.max()) + 1

    @cached_property
    def masks(self) -> tuple[Tensor, Tensor]:
        """(L, K) and (R, K): 0 where a label is of a class, else -inf."""
        sides: list[Tensor] = []
        for side, count in zip((self.left, self.right), self.counts, strict=True):
            own = side == torch.arange(count, device=side.device).unsqueeze(1)
            sides.append(torch.where(own, 0.0, -math.inf).to(self.table))
        return sides[0], sides[1]


@dataclass(frozen=True, eq=False)
class Forest:
    """The kept places of some items, by size; and the ways to make one of two smaller ones.

    A place stands in a derivation once at most, with one label. Time and memory of all that is
    done with a forest are in proportion to its places and ways.

    Attributes:
        item: (P,) which item each place belongs to.
        ends: (P, K) log-potentials of a place without parts; -inf if it must have some.
        joined: (P, K) of a place with parts, beside what the rules say.
        rows: where each size begins among the places, and P.
        left: (E,) the left part of each way, ordered by the whole and the kind of rule.
        right: (E,) the right part.
        ways: (P * G,) how many there are for each whole and kind.
        rules: what joins them.
        tops: (B,) the place of each item's whole; -1: it has none, and Z is 0.
        root: (B or 1, K) log-potentials of its label.
    """

    item: Tensor
    ends: Tensor
    joined: Tensor
    rows: tuple[int, ...]
    left: Tensor
    right: Tensor
    ways: Tensor
    rules: Binary
    tops: Tensor
    root: Tensor

    @cached_property
    def whole(self) -> Tensor:
        """(E,) for each way the number of its whole and kind, place * G + kind."""
        every = torch.arange(len(self.ways), device=self.ways.device)
        return torch.repeat_interleave(every, self.ways, output_size=len(self.left))

    @cached_property
    def before(self) -> Tensor:
        """(P * G + 1,) how many ways stand before those of each whole and kind."""
        return torch.nn.functional.pad(self.ways.cumsum(0), (1, 0))

    @cached_property
    def layers(self) -> list[tuple[slice, slice, slice]]:
        """By size the places, the wholes with kinds, and the ways."""
        kinds = self.rules.kinds
        bounds = torch.tensor(self.rows, device=self.ways.device) * kinds
        starts = self.before[bounds].tolist()
        return [
            (slice(a, b), slice(a * kinds, b * kinds), slice(c, d))
            for a, b, c, d in zip(self.rows, self.rows[1:], starts, starts[1:], strict=False)
        ]


def joined_forest(
    places: int,
    triples: Sequence[tuple[Tensor, Tensor, Tensor]],
) -> tuple[Tensor, Tensor, Tensor]:
    """Left and right parts, ordered by whole and kind, and how many each has.

    Args:
        places: P.
        triples: for each kind (whole, left, right), of which those with a whole below 0 are none.
    """
    kinds = len(triples)
    whole = torch.cat([own * kinds + kind for kind, (own, _, _) in enumerate(triples)])
    left, right = (torch.cat([own[side] for own in triples]) for side in (1, 2))
    # Numbers of 16 bits at a time would be sorted in linear time; these are few.
    whole, order = whole.sort()
    gone = int((whole < 0).sum())
    whole, order = whole[gone:], order[gone:]
    ways = torch.bincount(whole, minlength=places * kinds)
    return left[order], right[order], ways
