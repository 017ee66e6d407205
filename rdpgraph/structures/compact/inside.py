"""The inside-outside recursion over a forest, size by size, in log-space throughout."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from rdpgraph._core.cache import cached_property


@dataclass(frozen=True, eq=False)
class Binary:
    """Rules of one or more kinds, over classes of labels that no rule distinguishes."""

    # (B or 1, K, G * L * R) log-weights of a label given the kind and the classes of its parts.
    table: Tensor
    kinds: int  # G
    left: Tensor  # (K,) the class of each label as a left part, 0..L-1
    right: Tensor  # (K,) likewise, 0..R-1

    @staticmethod
    def of(tables: Sequence[Tensor]) -> "Binary":
        """Rules from tables (B or 1, K, K, K), one for each kind, in doubles."""
        many = max(len(table) for table in tables)
        stack = torch.stack([table.double().expand(many, -1, -1, -1) for table in tables], 2)
        sides: list[Tensor] = []
        for dim in (3, 4):
            rows = stack.movedim(dim, 0).flatten(1)
            # Rows of no numbers are alike.
            classes = torch.zeros(len(rows), dtype=torch.long, device=rows.device)
            if rows.numel():
                _, classes = rows.unique(dim=0, return_inverse=True)
            first = torch.full((int(classes.max()) + 1,), len(classes), device=classes.device)
            every = torch.arange(len(classes), device=classes.device)
            first, order = first.scatter_reduce(0, classes, every, "amin").sort()
            stack = stack.index_select(dim, first)
            sides.append(order.argsort()[classes])
        return Binary(stack.flatten(2), len(tables), *sides)

    def repeated(self, chains: int) -> "Binary":
        """The rules of so many chains of items."""
        shared = len(self.table) == 1
        return self if shared else replace(self, table=self.table.repeat(chains, 1, 1))

    @cached_property
    def counts(self) -> tuple[int, int]:
        """L and R."""
        return int(self.left.max()) + 1, int(self.right.max()) + 1

    @cached_property
    def masks(self) -> tuple[Tensor, Tensor]:
        """(L, K) and (R, K): 0 where a label is of a class, else -inf."""
        sides: list[Tensor] = []
        for side, count in zip((self.left, self.right), self.counts, strict=True):
            mask = side == torch.arange(count, device=side.device).unsqueeze(1)
            sides.append(torch.where(mask, 0.0, -math.inf).to(self.table))
        return sides[0], sides[1]


@dataclass(frozen=True, eq=False)
class Forest:
    """The kept places of some items, by size, and the ways to make one of two smaller ones.

    A derivation uses a place once at most, with one label. Time and memory are in proportion to
    places and ways.
    """

    item: Tensor  # (P,) the item of each place
    ends: Tensor  # (P, K) log-potentials of a place without parts; -inf if it must have some
    joined: Tensor  # (P, K) of a place with parts, without its rule
    rows: tuple[int, ...]  # the first place of each size, and P
    left: Tensor  # (E,) the left part of each way, ordered by the whole and the kind of rule
    right: Tensor  # (E,) the right part
    ways: Tensor  # (P * G,) the number of ways for each whole and kind
    rules: Binary  # the rules
    tops: Tensor  # (B,) the place of each item's whole; -1: none, and Z is 0
    root: Tensor  # (B or 1, K) log-potentials of its label

    @cached_property
    def whole(self) -> Tensor:
        """(E,) the whole and kind of each way, as place * G + kind."""
        every = torch.arange(len(self.ways), device=self.ways.device)
        return torch.repeat_interleave(every, self.ways, output_size=len(self.left))

    @cached_property
    def before(self) -> Tensor:
        """(P * G + 1,) the first way of each whole and kind."""
        return torch.nn.functional.pad(self.ways.cumsum(0), (1, 0))

    @cached_property
    def layers(self) -> list[tuple[slice, slice, slice]]:
        """Places, wholes with kinds, and ways, by size."""
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
    """Left and right parts ordered by whole and kind, and the number of ways of each of them.

    ``triples`` has (whole, left, right) for each kind; a whole below 0 is left out.
    """
    kinds = len(triples)
    whole = torch.cat([wholes * kinds + kind for kind, (wholes, _, _) in enumerate(triples)])
    left, right = (torch.cat([triple[side] for triple in triples]) for side in (1, 2))
    whole, order = whole.sort()
    gone = int((whole < 0).sum())
    whole, order = whole[gone:], order[gone:]
    ways = torch.bincount(whole, minlength=places * kinds)
    return left[order], right[order], ways


LOWEST = -torch.finfo(torch.float64).max
"""A finite stand-in for a shift of -inf, which would make NaN of -inf."""


@dataclass(frozen=True, eq=False)
class Inside:
    """Log-sums over the derivations below each place."""

    forest: Forest  # the places and ways
    labels: Tensor  # (P, K) of each label
    lefts: Tensor  # (P, L) of each class of labels as a left part
    rights: Tensor  # (P, R) as a right part
    sums: Tensor  # (P * G, L * R) over the ways, before the rules

    @cached_property
    def log_partition(self) -> Tensor:
        """(B,) nats; -inf where an item has no derivation."""
        return self.tops.logsumexp(1)

    @cached_property
    def tops(self) -> Tensor:
        """(B, K) log-sums of the whole, with the potentials of its label."""
        tops = self.forest.tops
        if not len(self.labels):
            return self.forest.root.new_full((len(tops), self.forest.root.shape[1]), -math.inf)
        scores = self.labels[tops.clamp(min=0)] + self.forest.root
        return scores.masked_fill((tops < 0).unsqueeze(1), -math.inf)

    @cached_property
    def choices(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Probabilities of the ways of a place given its label, and of labels given classes.

        (P, K) that it has no parts; (P, K, G L R) that it has parts of a kind and of classes; (P,
        K) of the label given its class as a left part, and (P, K) as a right part.
        """
        forest, rules = self.forest, self.forest.rules
        alive = self.labels.clamp(min=LOWEST)
        ends = (forest.ends - alive).exp()
        joined = (forest.joined - alive).unsqueeze(2) + self._ruled(slice(None))
        left = (self.labels - self.lefts.clamp(min=LOWEST)[:, rules.left]).exp()
        right = (self.labels - self.rights.clamp(min=LOWEST)[:, rules.right]).exp()
        return ends, joined.exp_(), left, right

    @cached_property
    def probabilities(self) -> Tensor:
        """(E, L * R) the probability of each way given its whole, kind and classes."""
        forest = self.forest
        logs = _pairs(self.lefts, self.rights, forest.left, forest.right)
        return logs.sub_(self.sums.clamp(min=LOWEST)[forest.whole]).exp_()

    def expected(self) -> tuple[Tensor, Tensor, Tensor]:
        """Averages by the outside recursion.

        (P, K) the probability of each label at each place, (P, K) that without parts, and
        (B, K, G, L, R) the expected uses of each rule.
        """
        forest, rules = self.forest, self.forest.rules
        ends, joined, left, right = self.choices
        chances, (lefts, rights) = self.probabilities, rules.counts
        places = torch.zeros_like(self.labels)
        as_left, as_right = torch.zeros_like(self.lefts), torch.zeros_like(self.rights)
        top = self.tops.softmax(1)
        alive = (self.log_partition > -math.inf).nonzero().squeeze(1)
        places.index_add_(0, forest.tops[alive], top[alive])
        for place, pair, way in reversed(forest.layers):
            mass = places[place]
            mass += as_left[place][:, rules.left] * left[place]
            mass += as_right[place][:, rules.right] * right[place]
            if way.start == way.stop:
                continue
            flow = torch.einsum("pk,pkc->pc", mass, joined[place])
            flow = flow.reshape(-1, lefts * rights).index_select(0, forest.whole[way] - pair.start)
            flow = flow.mul_(chances[way]).unflatten(1, (lefts, rights))
            as_left.index_add_(0, forest.left[way], flow.sum(2))
            as_right.index_add_(0, forest.right[way], flow.sum(1))
        used = places.unsqueeze(2) * joined
        counts = used.new_zeros(len(forest.tops), *used.shape[1:])
        counts.index_add_(0, forest.item, used)
        shape = (rules.kinds, lefts, rights)
        return places, places * ends, counts.unflatten(2, shape)

    def _ruled(self, place: slice) -> Tensor:
        """(n, K, G L R) sums and rules of some places."""
        return _ruled(self.forest, self.sums, place)


def inside(forest: Forest) -> Inside:
    """The inside recursion over a forest."""
    rules = forest.rules
    lefts, rights = rules.counts
    labels = forest.ends.clone()
    as_left = labels.new_full((len(labels), lefts), -math.inf)
    as_right = labels.new_full((len(labels), rights), -math.inf)
    sums = labels.new_full((len(forest.ways), lefts * rights), -math.inf)
    for place, pair, way in forest.layers:
        if way.start < way.stop:
            logs = _pairs(as_left, as_right, forest.left[way], forest.right[way])
            sums[pair] = segments(logs, forest.ways[pair], forest.whole[way] - pair.start)
            ruled = _ruled(forest, sums, place).logsumexp(2).add_(forest.joined[place])
            labels[place] = torch.logaddexp(labels[place], ruled)
        for side, mask in zip((as_left, as_right), rules.masks, strict=True):
            side[place] = (labels[place].unsqueeze(1) + mask).logsumexp(2)
    return Inside(forest, labels, as_left, as_right, sums)


def _ruled(forest: Forest, sums: Tensor, place: slice) -> Tensor:
    rows = sums.reshape(len(forest.item), forest.rules.table.shape[2])[place].unsqueeze(1)
    table = forest.rules.table
    return rows + (table if len(table) == 1 else table[forest.item[place]])


def _pairs(lefts: Tensor, rights: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """(E, L * R) log-products of both parts."""
    first, second = lefts.index_select(0, left), rights.index_select(0, right)
    return (first.unsqueeze(2) + second.unsqueeze(1)).flatten(1)


def segments(logs: Tensor, counts: Tensor, segment: Tensor) -> Tensor:
    """(n, C) log-sums of consecutive rows (E, C)."""
    peak = torch.segment_reduce(logs, "max", lengths=counts, unsafe=True).clamp_(min=LOWEST)
    terms = logs.sub_(peak.index_select(0, segment)).exp_()
    total = torch.segment_reduce(terms, "sum", lengths=counts, unsafe=True, initial=0.0)
    return total.log_().add_(peak)


def weighted(chances: Tensor, logs: Tensor) -> Tensor:
    """Terms of expectations, 0 where the probability is, whose logs may be -inf."""
    return torch.where(chances > 0, chances * logs, 0.0)
