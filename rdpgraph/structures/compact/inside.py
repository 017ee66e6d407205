"""Sums over the derivations of a forest, size by size, and what they expect of it.

Per place and class of labels, in log-space throughout, so that no range of potentials is lost.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from rdpgraph._cache import cached_property
from rdpgraph.structures.compact.forest import Forest

LOWEST = -torch.finfo(torch.float64).max
"""What is taken off logs that are all -inf: they stay so, where -inf off -inf is NaN."""


@dataclass(frozen=True, eq=False)
class Expected:
    """What the derivations of a forest have on average.

    Attributes:
        places: (P, K) the probability of each label at each place.
        ended: (P, K) and without parts.
        rules: (B, K, G, L, R) the expected number of uses of each rule.
    """

    places: Tensor
    ended: Tensor
    rules: Tensor


@dataclass(frozen=True, eq=False)
class Inside:
    """Log-sums over the derivations below each place.

    Attributes:
        forest: whose.
        labels: (P, K) of each label.
        lefts: (P, L) of each class of labels as a left part.
        rights: (P, R) as a right part.
        sums: (P * G, L * R) over the ways, before the rules.
    """

    forest: Forest
    labels: Tensor
    lefts: Tensor
    rights: Tensor
    sums: Tensor

    @cached_property
    def log_partition(self) -> Tensor:
        """(B,) nats; -inf where an item has no derivation."""
        return self.tops.logsumexp(1)

    @cached_property
    def tops(self) -> Tensor:
        """(B, K) of the whole, with the potentials of its label."""
        tops = self.forest.tops
        if not len(self.labels):
            return self.forest.root.new_full((len(tops), self.forest.root.shape[1]), -math.inf)
        scores = self.labels[tops.clamp(min=0)] + self.forest.root
        return scores.masked_fill((tops < 0).unsqueeze(1), -math.inf)

    @cached_property
    def choices(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """What a derivation does at a place, given its label: probabilities.

        (P, K) that it ends; (P, K, G L R) that it is joined by a kind of rule of parts of some
        classes. And given the class of a part, of its label: (P, K) as a left one, (P, K) as a
        right one.
        """
        forest, rules = self.forest, self.forest.rules
        alive = self.labels.clamp(min=LOWEST)
        ends = (forest.ends - alive).exp()
        joined = (forest.joined - alive).unsqueeze(2) + self._ruled(slice(None))
        left = (self.labels - self.lefts.clamp(min=LOWEST)[:, rules.left]).exp()
        right = (self.labels - self.rights.clamp(min=LOWEST)[:, rules.right]).exp()
        return ends, joined.exp_(), left, right

    @cached_property
    def shares(self) -> Tensor:
        """(E, L * R) the probability of each way given its whole, kind and classes."""
        forest = self.forest
        logs = _pairs(self.lefts, self.rights, forest.left, forest.right)
        return logs.sub_(self.sums.clamp(min=LOWEST)[forest.whole]).exp_()

    def expected(self) -> Expected:
        """From the wholes downwards."""
        forest, rules = self.forest, self.forest.rules
        ends, joined, left, right = self.choices
        shares, (lefts, rights) = self.shares, rules.counts
        places = torch.zeros_like(self.labels)
        as_left, as_right = torch.zeros_like(self.lefts), torch.zeros_like(self.rights)
        top = self.tops.softmax(1)
        alive = (self.log_partition > -math.inf).nonzero().squeeze(1)
        places.index_add_(0, forest.tops[alive], top[alive])
        one = lefts == rights == 1
        for place, pair, way in reversed(forest.layers):
            own = places[place]
            if one:
                own += as_left[place] * left[place]
                own += as_right[place] * right[place]
            else:
                own += as_left[place][:, rules.left] * left[place]
                own += as_right[place][:, rules.right] * right[place]
            if way.start == way.stop:
                continue
            flow = torch.einsum("pk,pkc->pc", own, joined[place])
            flow = flow.reshape(-1, lefts * rights).index_select(0, forest.whole[way] - pair.start)
            flow = flow.mul_(shares[way])
            if not one:
                flow = flow.unflatten(1, (lefts, rights))
            as_left.index_add_(0, forest.left[way], flow if one else flow.sum(2))
            as_right.index_add_(0, forest.right[way], flow if one else flow.sum(1))
        used = places.unsqueeze(2) * joined
        counts = used.new_zeros(len(forest.tops), *used.shape[1:])
        counts.index_add_(0, forest.item, used)
        shape = (rules.kinds, lefts, rights)
        return Expected(places, places * ends, counts.unflatten(2, shape))

    def _ruled(self, place: slice) -> Tensor:
        """(n, K, G L R) of some places: sums and rules."""
        return _ruled(self.forest, self.sums, place)


def inside(forest: Forest) -> Inside:
    """The log-sums of a forest, from the smallest places up."""
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
            if len(mask) == 1:
                side[place] = labels[place].logsumexp(1, keepdim=True)
            else:
                side[place] = (labels[place].unsqueeze(1) + mask).logsumexp(2)
    return Inside(forest, labels, as_left, as_right, sums)


def _ruled(forest: Forest, sums: Tensor, place: slice) -> Tensor:
    own = sums.reshape(len(forest.item), forest.rules.table.shape[2])[place].unsqueeze(1)
    table = forest.rules.table
    return own + (table if len(table) == 1 else table[forest.item[place]])


def _pairs(lefts: Tensor, rights: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """(E, L * R) the logs of products of both parts."""
    first, second = lefts.index_select(0, left), rights.index_select(0, right)
    if first.shape[1] == second.shape[1] == 1:
        return first.add_(second)
    return (first.unsqueeze(2) + second.unsqueeze(1)).flatten(1)


def segments(logs: Tensor, counts: Tensor, segment: Tensor) -> Tensor:
    """(n, C) the log-sums of rows (E, C) that stand together."""
    peak = torch.segment_reduce(logs, "max", lengths=counts, unsafe=True).clamp_(min=LOWEST)
    terms = logs.sub_(peak.index_select(0, segment)).exp_()
    total = torch.segment_reduce(terms, "sum", lengths=counts, unsafe=True, initial=0.0)
    return total.log_().add_(peak)


def weighted(chances: Tensor, logs: Tensor) -> Tensor:
    """Terms of expectations: 0 of what has no chance, whose logs may be -inf."""
    return torch.where(chances > 0, chances * logs, 0.0)
