"""Bispans, scores of the words in a rule, and binarised ways to make bispans by mixed rules.

A rule of two parts and a stretch of words, or of three parts, lays out three blocks, of which two
are adjacent: it is split at a node of these two. O(p^3 q^3) ways of each sort instead of
O(p^4 q^4) rules. Rules of one part with words around it are ways themselves, as the alignments of
words before and after it do not factorise.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import permutations, product

import torch
from torch import Tensor
from torch.nn.functional import pad

from rdpgraph._core import tuning
from rdpgraph._core.cache import cached_property
from rdpgraph.structures.compact.bispans import matched
from rdpgraph.structures.compact.masked import RuleForest

Pairs = tuple[Tensor, Tensor]


@dataclass(frozen=True, eq=False)
class Boxes:
    """Bispans of some items."""

    item: Tensor  # (P,) the item of each
    ends: Tensor  # (4, P) i, k, j, l: words i..k-1 of the source and j..l-1 of the target
    longest: int  # the words of the longest sentence

    def __len__(self) -> int:
        """The number of bispans."""
        return len(self.item)

    def turned(self) -> "Boxes":
        """The bispans with the target reversed, so that inverted joins are straight."""
        back = torch.cat([self.ends[:2], self.longest - self.ends[[3, 2]]])
        return Boxes(self.item, back, self.longest)

    def at(self, sides: Sequence[int]) -> Tensor:
        """(P,) a key for the item and some of the ends."""
        number = self.item
        for side in sides:
            number = number * (self.longest + 1) + self.ends[side]
        return number

    def some(self, index: Tensor) -> "Boxes":
        """The bispans at an index."""
        return Boxes(self.item[index], self.ends[:, index], self.longest)

    def distinct(self) -> tuple["Boxes", Tensor]:
        """The distinct bispans, and the index of each of these among them."""
        keys, place = self.at(range(4)).unique(return_inverse=True)
        first = torch.empty_like(keys)
        first[place] = torch.arange(len(place), device=place.device)
        return self.some(first), place

    def nested(self) -> Pairs:
        """All pairs of a bispan and another one within it."""
        order = self.item.argsort(stable=True)
        sizes = torch.bincount(self.item).tolist() if len(self.item) else []
        nested: list[Pairs] = [(order[:0], order[:0])]
        for group in order.split(sizes):
            inner = self.ends[:, group].to(torch.int16)
            for rows in group.split(tuning.per_block(len(group), tuning.BLOCK)):
                outer = self.ends[:, rows].to(torch.int16).unsqueeze(2)
                within = (outer[0] <= inner[0]) & (outer[1] >= inner[1])
                within &= (outer[2] <= inner[2]) & (outer[3] >= inner[3])
                row, column = within.nonzero().T
                nested.append((rows[row], group[column]))
        whole, part = (torch.cat(side) for side in zip(*nested, strict=True))
        distinct = whole != part
        return whole[distinct], part[distinct]


@dataclass(frozen=True, eq=False)
class StretchScores:
    """Scores of stretches of words by running sums in float64; differentiable.

    Words of both sides score the sum over their pairs, and words of one side the sum over them.

    Attributes:
        pairs: (B, p, q) log-scores of pairs of words (nats).
        source: (B or 1, p) of source words in a rule without target words.
        target: (B or 1, q) likewise.
    """

    pairs: Tensor
    source: Tensor
    target: Tensor

    @cached_property
    def sums(self) -> tuple["RunningSums", "RunningSums", "RunningSums"]:
        """Running sums of pairs, and of the words of either side."""
        return RunningSums.of(self.pairs), RunningSums.of(self.source), RunningSums.of(self.target)

    def scores(self, item: Tensor | None, source: Tensor, target: Tensor) -> Tensor:
        """Scores (n,) for words of items (n,), or (B, n) for all items.

        ``source`` and ``target`` (n, 2): where the words begin and end.
        """
        pairs, sources, targets = self.sums
        some, more = source[:, 1] > source[:, 0], target[:, 1] > target[:, 0]
        either = torch.where(some, sources.over(item, source), targets.over(item, target))
        return torch.where(some & more, pairs.over(item, source, target), either)

    def around(self, item: Tensor | None, ends: Tensor, whole: Tensor, part: Tensor) -> Tensor:
        """(E,) scores of the words of bispans ``whole`` outside of bispans ``part`` within them.

        By inclusion and exclusion: the pairs of words of each, less those of one side of either
        with the other side of the other. ``item`` (P,) and ``ends`` (4, P) describe the bispans;
        without items (B, E) for all.
        """
        source, target = ends.T.unflatten(1, (2, 2)).unbind(1)
        some = (source[whole] != source[part]).any(1)
        more = (target[whole] != target[part]).any(1)
        pairs, *sides = self.sums
        rows, columns = (
            _joined([sum_[..., whole] - sum_[..., part] for sum_ in sums.counted(item, spans)])
            for sums, spans in zip(sides, (source, target), strict=True)
        )
        owner = None if item is None else item[whole]
        crossed = [
            pairs.counted(owner, source[one], target[other])
            for one, other in ((whole, part), (part, whole))
        ]
        both = _joined([
            sum_[..., whole] + sum_[..., part] - first - second
            for sum_, first, second in zip(
                pairs.counted(item, source, target), *crossed, strict=True
            )
        ])  # fmt: skip
        return torch.where(some & more, both, torch.where(some, rows, columns))


_FAR = 1e5  # nats above which numbers are summed separately, so that others keep their digits


def _joined(sums: Sequence[Tensor]) -> Tensor:
    """Recombine the sums of near numbers, of far ones, and the counts of these and of -inf."""
    total, *apart = sums
    if not apart:
        return total
    far, some, gone = apart
    total = total + torch.where(some > 0, far, 0.0)
    return total.masked_fill(gone > 0, -math.inf)


@dataclass(frozen=True, eq=False)
class RunningSums:
    """Running sums of numbers, with numbers far from zero and -inf summed separately.

    Finite scores that stand for absence, as -1e30, would leave no digits of the others.
    """

    # (B, p + 1) or (B, p + 1, q + 1), as `_joined` takes them; the first alone if all numbers are
    # near.
    parts: tuple[Tensor, ...]

    @classmethod
    def of(cls, values: Tensor) -> "RunningSums":
        """Sum (B, p) or (B, p, q)."""
        values, absent = values.double(), values == -math.inf
        far = (values.abs() > _FAR) & ~absent
        parts = [torch.where(absent | far, 0.0, values)]
        if bool((absent | far).any()):
            parts += [torch.where(far, values, 0.0), far.long(), absent.long()]
        for dim in range(1, values.ndim):
            parts = [part.cumsum(dim) for part in parts]
        return cls(tuple([pad(part, (1, 0) * (values.ndim - 1)) for part in parts]))

    def over(self, item: Tensor | None, *spans: Tensor) -> Tensor:
        """Sums (n,) over stretches (n, 2) of each dim for items (n,), or (B, n) for all."""
        return _joined(self.counted(item, *spans))

    def counted(self, item: Tensor | None, *spans: Tensor) -> list[Tensor]:
        """The separate parts of sums over stretches."""
        whole = self.parts[0].shape
        steps = [math.prod(whole[dim + 1 :]) for dim in range(1, len(whole))]
        ends = [span * step for span, step in zip(spans, steps, strict=True)]
        if item is not None:
            ends[0] = ends[0] + (item % whole[0] * math.prod(whole[1:])).unsqueeze(1)

        def summed(part: Tensor) -> Tensor:
            covered = part.new_zeros(())
            part = part.flatten(1) if item is None else part.flatten()
            for corner in product((1, 0), repeat=len(ends)):
                at = sum((end[:, c] for end, c in zip(ends[1:], corner[1:], strict=True)),
                         ends[0][:, corner[0]])  # fmt: skip
                value = part.index_select(-1, at)
                covered = covered - value if corner.count(0) % 2 else covered + value
            return covered

        return [summed(part) for part in self.parts]


ORDERS = tuple(order for count in range(4) for order in permutations(range(count)))
"""Kinds of rules: the place in the target of each part, in source order, for 0 to 3 parts."""


PARTIAL = len(ORDERS)  # the kind of a way to an intermediate node
AROUND = 1  # the kind of rules of one part, with words around it
NONE = -1  # no part


class Where(IntEnum):
    """The side of a part that words stand on; `_SHARED` has the ends that part and whole share."""

    NOWHERE = 0
    BEFORE = 1
    AFTER = 2


_SHARED = ((0, 1), (1,), (0,))  # by `Where`
_LATE = (
    (Where.BEFORE, Where.AFTER), (Where.AFTER, Where.BEFORE), (Where.AFTER, Where.AFTER),
    (Where.AFTER, Where.NOWHERE), (Where.NOWHERE, Where.AFTER),
)  # fmt: skip
"""Positions in source and target of the words joined to the second of two straight parts; those
joined to the first are `_EARLY`."""
_EARLY = (
    (Where.BEFORE, Where.BEFORE), (Where.BEFORE, Where.NOWHERE), (Where.NOWHERE, Where.BEFORE),
)  # fmt: skip
_BOTH = (Where.BEFORE, Where.AFTER), (Where.AFTER, Where.BEFORE)
"""Positions of words joined to two straight parts; elsewhere they are joined to one part."""
_THREE = {
    (0, 1, 2): (False, False, True),
    (1, 0, 2): (True, False, True),
    (1, 2, 0): (False, True, True),
    (2, 1, 0): (True, True, True),
    (0, 2, 1): (True, False, False),
    (2, 0, 1): (False, True, False),
}
"""Flags of each order of three parts: whether the adjacent two are inverted, whether the third is
inverted to them, and whether it is the last in the source."""


@dataclass(frozen=True, eq=False)
class Ways:
    """Ways of one sort to make nodes."""

    kind: int  # of the rule that each completes, as in `ORDERS`; `PARTIAL`: of none
    made: Tensor  # (E,) the node that each makes
    first: Tensor  # (E,) a part, or `NONE`
    second: Tensor  # (E,) likewise
    logs: Tensor | None = None  # (E,) the score of the words of each, nats; None: no words
    # (E, 2, 2) where they begin, on either side, and where they end; None: no words, or words
    # around a part.
    words: Tensor | None = None


@dataclass(frozen=True, eq=False)
class Halves:
    """Intermediate nodes between kept bispans and their rules, straight or inverted.

    Bispans are read forwards if straight, with the target reversed if inverted.
    """

    kept: Boxes  # the bispans
    inverted: bool  # the orientation
    pairs: Boxes  # joins of two adjacent bispans
    joined: tuple[Tensor, Tensor, Tensor]  # (E,) the pair, its first part and its second
    late: Boxes  # remainders of a bispan beside a part in its first or last corner
    # (E,) the whole, the part in its first corner, and the remainder in `late`.
    begins: tuple[Tensor, Tensor, Tensor]
    # (E,) the whole, the part in its last corner, and the remainder in `early`.
    stops: tuple[Tensor, Tensor, Tensor]
    early: Tensor  # (A,) the remainders of `late` beside a part in the last corner

    @classmethod
    def of(cls, kept: Boxes, nested: Pairs, *, inverted: bool) -> "Halves":
        """Find the intermediate nodes of kept bispans, given nested pairs of them."""
        boxes = kept.turned() if inverted else kept
        ends, longest = boxes.ends, boxes.longest
        first, second = matched(boxes.at((1, 3)), boxes.at((0, 2)))
        both = torch.stack([ends[0, first], ends[1, second], ends[2, first], ends[3, second]])
        pairs, pair = Boxes(boxes.item[first], both, longest).distinct()
        corners: list[tuple[Tensor, Tensor]] = []
        rests: list[Tensor] = []
        # Corners: bispans that share the same end of both sides with a larger one, first or last.
        for end, rest in ((0, (1, 5, 3, 7)), (1, (4, 0, 6, 2))):
            whole, part = nested
            same = (ends[end, whole] == ends[end, part]).nonzero().squeeze(1)
            whole, part, other = whole[same], part[same], 1 - end
            apart = ends[2 + end, whole] == ends[2 + end, part]
            apart &= ends[other, whole] != ends[other, part]
            apart &= ends[2 + other, whole] != ends[2 + other, part]
            whole, part = whole[apart], part[apart]
            all_ends = torch.cat([ends[:, part], ends[:, whole]])
            corners.append((whole, part))
            rests.append(all_ends[list(rest)])
        # What is left of the larger ones, each once.
        item = torch.cat([boxes.item[whole] for whole, _ in corners])
        late, place = Boxes(item, torch.cat(rests, 1), longest).distinct()
        at_first, at_last = place.split([len(whole) for whole, _ in corners])
        early, at_last = at_last.unique(return_inverse=True)
        return cls(boxes, inverted, pairs, (pair, first, second), late, (*corners[0], at_first),
                   (*corners[1], at_last), early)  # fmt: skip

    def true(self, boxes: Boxes) -> Boxes:
        """Bispans in forward order."""
        return boxes.turned() if self.inverted else boxes


@dataclass(frozen=True, eq=False)
class Nodes:
    """All nodes: kept bispans, then for either orientation pairs, late and early remainders."""

    kept: Boxes  # the bispans
    emission: StretchScores  # scores of words
    nested: Pairs  # pairs of a kept bispan and another one within it
    halves: tuple[Halves, Halves]  # intermediate nodes, straight and inverted

    @classmethod
    def of(cls, kept: Boxes, emission: StretchScores) -> "Nodes":
        """Find all nodes of kept bispans."""
        nested = kept.nested()
        straight, inverted = (Halves.of(kept, nested, inverted=side) for side in (False, True))
        return cls(kept, emission, nested, (straight, inverted))

    @property
    def starts(self) -> tuple[int, ...]:
        """The first node of each sort, and the number of nodes."""
        starts = [0, len(self.kept)]
        for half in self.halves:
            for count in (len(half.pairs), len(half.late), len(half.early)):
                starts.append(starts[-1] + count)
        return tuple(starts)

    @property
    def boxes(self) -> tuple[Tensor, Tensor]:
        """(nodes,) the item of each, and its rank: parts have lower ranks."""
        item, rank = [self.kept.item], [_size(self.kept) * 2 + 1]
        for half in self.halves:
            for boxes, more in ((half.pairs, 0), (half.late, 0), (half.late.some(half.early), 1)):
                item.append(boxes.item)
                rank.append(_size(boxes) * 2 + more)
        return torch.cat(item), torch.cat(rank)

    def ways(self) -> Iterator[Ways]:
        """All ways, sort by sort."""
        every = torch.arange(len(self.kept), device=self.kept.item.device)
        none, (i, k, j, m) = torch.full_like(every, NONE), self.kept.ends
        source, target = torch.stack([i, k], 1), torch.stack([j, m], 1)
        yield self._scored(0, every, none, self.kept.item, source, target)
        whole, part = self.nested
        logs = self.emission.around(self.kept.item, self.kept.ends, whole, part)
        yield _possible(Ways(AROUND, whole, part, torch.full_like(part, NONE), logs))
        for number in (0, 1):
            yield from self._of_two(number)
            yield from self._of_three(number)

    def _of_two(self, number: int) -> Iterator[Ways]:
        half, starts = self.halves[number], self.starts[1 + 3 * number :]
        kept, kind = half.kept, 2 + number
        pair, first, second = half.joined
        # Two adjacent bispans make a pair; a pair of the size of a kept bispan makes that by a rule
        # without words.
        yield Ways(PARTIAL, starts[0] + pair, first, second)
        whole, pair = matched(kept.at(range(4)), half.pairs.at(range(4)))
        yield Ways(kind, whole, starts[0] + pair, torch.full_like(pair, NONE))
        # Words joined to both parts stand around the pair.
        for sides in _BOTH:
            yield self._extended(half, kind, (kept, 0), (half.pairs, starts[0]), sides)
        # Words joined to the second part: a late remainder is that part with its words. `alive`
        # marks those that some way makes.
        alive = torch.zeros(len(half.late), dtype=torch.bool, device=pair.device)
        for sides in _LATE:
            ways = self._extended(half, PARTIAL, (half.late, starts[1]), (kept, 0), sides)
            alive[ways.made - starts[1]] = True
            yield ways
        # Words joined to the first part: an early remainder is a late one, or a part with words of
        # its own before.
        early = half.late.some(half.early)
        on = alive[half.early].nonzero().squeeze(1)
        yield Ways(PARTIAL, starts[2] + on, starts[1] + half.early[on], torch.full_like(on, NONE))
        begun = alive[half.early]
        for sides in _EARLY:
            ways = self._extended(half, PARTIAL, (early, starts[2]), (kept, 0), sides)
            begun[ways.made - starts[2]] = True
            yield ways
        # A whole is a part in its first corner and a late remainder, or an early remainder and a
        # part in its last corner.
        whole, part, rest = half.begins
        on = alive[rest].nonzero().squeeze(1)
        yield Ways(kind, whole[on], part[on], starts[1] + rest[on])
        whole, part, rest = half.stops
        on = begun[rest].nonzero().squeeze(1)
        yield Ways(kind, whole[on], starts[2] + rest[on], part[on])

    def _of_three(self, number: int) -> Iterator[Ways]:
        """Ways of rules of three parts: an adjacent pair, and a third before or after it."""
        half, start = self.halves[number], self.starts[1 + 3 * number]
        pairs = half.true(half.pairs).at(range(4))
        for order, (inner, outer, late) in _THREE.items():
            if inner != half.inverted:
                continue
            other = self.halves[outer]
            whole, third, rest = other.stops if late else other.begins
            boxes = other.late.some(other.early) if late else other.late
            # The remainder is a pair.
            at, pair = matched(other.true(boxes).at(range(4)), pairs)
            place = torch.full((len(boxes),), NONE, device=pair.device)
            place[at] = pair
            place = place[rest]
            on = (place >= 0).nonzero().squeeze(1)
            yield Ways(ORDERS.index(order), whole[on], start + place[on], third[on])

    def _extended(
        self, half: Halves, kind: int, outer: tuple[Boxes, int], inner: tuple[Boxes, int],
        sides: tuple[Where, Where],
    ) -> Ways:  # fmt: skip
        """Ways that add words before or after ``inner`` nodes to make ``outer`` ones."""
        (whole, start), (part, begin) = outer, inner
        # Pairs of an outer and an inner box that share all ends except those that words are added
        # at.
        shared = [2 * side + end for side, where in enumerate(sides) for end in _SHARED[where]]
        row, column = matched(whole.at(shared), part.at(shared))
        # Words are added: the outer box is strictly longer there.
        wider = torch.ones_like(row, dtype=torch.bool)
        for side, where in enumerate(sides):
            if where == Where.BEFORE:
                wider &= whole.ends[2 * side, row] < part.ends[2 * side, column]
            elif where == Where.AFTER:
                wider &= whole.ends[2 * side + 1, row] > part.ends[2 * side + 1, column]
        row, column = row[wider], column[wider]
        # Which words these are on either side; an inverted target counts from its end.
        words: list[Tensor] = []
        for side, where in enumerate(sides):
            around, within = whole.ends[2 * side : 2 * side + 2], part.ends[2 * side : 2 * side + 2]
            if where == Where.NOWHERE:
                words.append(torch.zeros(len(row), 2, dtype=torch.long, device=row.device))
                continue
            before = where == Where.BEFORE
            ends = (
                (around[0, row], within[0, column])
                if before
                else (within[1, column], around[1, row])
            )
            if side and half.inverted:
                ends = part.longest - ends[1], part.longest - ends[0]
            words.append(torch.stack(ends, 1))
        return self._scored(kind, start + row, begin + column, whole.item[row], *words)

    def _scored(
        self, kind: int, made: Tensor, part: Tensor, item: Tensor, source: Tensor, target: Tensor
    ) -> Ways:
        """Score words, and keep the possible ways."""
        logs = self.emission.scores(item, source, target)
        words = torch.stack([source, target], 2)
        return _possible(Ways(kind, made, part, torch.full_like(part, NONE), logs, words))


def _possible(ways: Ways) -> Ways:
    """Ways of finite score."""
    assert ways.logs is not None
    some = (ways.logs > -torch.inf).nonzero().squeeze(1)
    if len(some) == len(ways.made):
        return ways
    made, first, second = (nodes[some] for nodes in (ways.made, ways.first, ways.second))
    words = None if ways.words is None else ways.words[some]
    return Ways(ways.kind, made, first, second, ways.logs[some], words)


def _size(boxes: Boxes) -> Tensor:
    return boxes.ends[1] - boxes.ends[0] + boxes.ends[3] - boxes.ends[2]


@dataclass(frozen=True, eq=False)
class Listed:
    """The forest of kept bispans and intermediate nodes."""

    forest: RuleForest  # the ways, by the nodes that they make
    place: Tensor  # (P,) the node of each kept bispan
    kind: Tensor  # (E,) of the rule that each way completes; `PARTIAL`: of none
    # (E, 2, 2) where the words of each begin, on either side, and where they end; zeros for no
    # words, or words around a part.
    words: Tensor

    @classmethod
    def of(cls, nodes: Nodes, scores: Tensor, rules: Tensor, tops: Tensor) -> "Listed":
        """List the possible ways of nodes by rank.

        Scores (P,) of kept bispans and of kinds of rules, nats; ``tops`` (I,) the whole of each
        item, -1 for none; ``most`` the largest size of a bispan, in words of both sides.
        """
        # Nodes are put in the order of their rank, so that all parts of a node stand before it.
        item, rank = nodes.boxes
        order = rank.argsort(stable=True)
        place = torch.full((len(order) + 1,), len(order), device=order.device)
        place[order] = torch.arange(len(order), device=order.device)
        ways = list(nodes.ways())
        kind = torch.cat([torch.full_like(way.made, way.kind) for way in ways])
        made = torch.cat([way.made for way in ways])
        parts = [torch.cat([way.first for way in ways]), torch.cat([way.second for way in ways])]
        logs = torch.cat(
            [scores.new_zeros(len(way.made)) if way.logs is None else way.logs for way in ways]
        )
        # A way to a whole node has the score of its bispan and of its kind of rule; one to an
        # intermediate node has neither, as it is the part of such a way.
        ends = kind < PARTIAL
        logs[ends] += scores[made[ends]] + rules[kind[ends]].double()
        words = torch.cat([
            torch.zeros(len(way.made), 2, 2, dtype=torch.int16, device=place.device)
            if way.words is None
            else way.words.to(torch.int16)
            for way in ways
        ])  # fmt: skip
        # Impossible ways are left out, and the others sorted by the node that they make.
        real = (logs > -math.inf).nonzero().squeeze(1)
        made, by_rank = place[made[real]].sort(stable=True)
        real = real[by_rank]
        parts = torch.stack([place[side[real]] for side in parts])
        tops = torch.where(tops < 0, -1, place[tops])
        forest = RuleForest(item[order], made, parts, logs[real], tops)
        return cls(forest, place[: len(scores)], kind[real], words[real])
