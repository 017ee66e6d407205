"""Unbiased estimates of Z by a population of configurations that grows backwards along an order.

Each member is a configuration of the variables eliminated last; its weight is its product times
the mini-buckets' upper bound on the rest. Members are extended by all states of the next variable;
members that the rest cannot distinguish are merged. If there are too many, the heavy ones are kept
and the others are drawn, so that expected weights do not change.

Fearnhead and Clifford (2003), On-line inference for hidden Markov models via particle filters (how
members are drawn); Broka, Dechter, Ihler and Kask (2018), Abstraction sampling.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from rdpgraph._core import tuning
from rdpgraph.engines.elimination import log_sum
from rdpgraph.engines.elimination_bounds import Elimination, MiniBucket
from rdpgraph.engines.reduction.tables import Floats, Integers
from rdpgraph.plan import clock


@dataclass(frozen=True, eq=False)
class PopulationStep:
    """Extension of the members by a variable."""

    variable: int  # the variable
    before: int  # number of members before
    parents: Integers  # (n,) member before, of each extended member that stayed
    states: Integers  # (n,) of the variable
    gains: Floats  # (n,) added to the log-weight by the extension
    members: Integers  # (n,) member after, of which it is a part
    shares: Floats  # (n,) size of the part, by weight


@dataclass(frozen=True, eq=False)
class Grown:
    """Result of a population."""

    log_partition: float  # its exponential has the mean Z, whatever the number of members
    lower: float  # log of the summed products of the final members, a lower bound on log Z
    exact: bool  # no members were drawn, so that both are log Z
    steps: tuple[PopulationStep, ...]  # of all variables, if they were asked for
    shares: Floats  # (final members,) of the estimate
    # (P,) of each pin, and then of the forced configuration, the approximate log-probability to
    # survive by chance
    log_chances: Floats = field(default_factory=lambda: np.zeros(0))


NOTHING = Grown(-math.inf, -math.inf, True, (), np.zeros(0))  # noqa: FBT003
"""Result if no configuration is possible."""


@dataclass(frozen=True, eq=False)
class _Members:
    """Members of a population."""

    states: dict[int, Integers]  # (n,) of each variable that a later step reads
    keys: Integers  # (n,) of these states; those of different states differ
    weights: Floats  # (n,) logs
    products: Floats  # (n,) logs of their true products and bounds: weights without any draws
    # (n,) log-probabilities, by a proposal, of the configurations that each stands for
    likely: Floats


def grown(
    passed: Elimination,
    count: int,
    rng: "np.random.Generator",
    *,
    likely: Sequence[Floats] = (),
    pins: Integers | None = None,
    forced: Integers | None = None,
    recorded: bool = False,
    deadline: float = math.inf,
) -> Grown | None:
    """Grow one population.

    Time and memory are linear in the members and variables.

    Args:
        passed: mini-buckets with positive weights.
        count: members that are kept at most, besides pins.
        rng: the randomness.
        likely: of each variable, the log-probabilities of its states under a proposal: members are
            then kept half by their weights, and half by how likely the proposal makes them.
        pins: (P, V) configurations whose members are never dropped; the mean stays Z if they do
            not depend on the randomness.
        forced: (V,) a configuration given which members are drawn: as if it had survived by
            chance. For a draw of the model itself the mean is E[Z^2] / Z then (Andrieu, Doucet and
            Holenstein 2010, the conditional particle filter): far above Z where populations as a
            rule miss what they rarely find.
        recorded: keep the steps; of all variables, while else those on which no split bucket
            depends are summed out exactly.
        deadline: on `clock.now`; None is returned if it comes first.
    """
    if passed.bound == -math.inf:
        return NOTHING
    skipped = frozenset[int]() if recorded else _summed_exactly(passed)
    buckets = [bucket for bucket in reversed(passed.buckets) if bucket[0].scope[0] not in skipped]
    last = {u: at for at, bucket in enumerate(buckets) for part in bucket for u in part.scope[1:]}
    leaving: list[list[int]] = [[] for _ in buckets]
    for u, at in last.items():
        leaving[at].append(u)
    # Keys of different states are equal once in 2^62 pairs.
    odd = np.random.default_rng(0).integers(1, 2**62, len(passed.buckets) + 1)
    start = np.array([passed.bound])
    members = _Members({}, np.zeros(1, np.int64), start, start, np.zeros(1))
    followed = _Followed(pins, forced)
    steps: list[PopulationStep] = []
    exact = True
    for bucket, gone in zip(buckets, leaving, strict=True):
        if clock.now() > deadline:
            return None
        v = bucket[0].scope[0]
        each = _gains(bucket, members)
        clock.count(tuning.MEMBERS_VARIABLE + tuning.MEMBER_STATE * each.size)
        if v not in last and not gone and not recorded:
            total = log_sum(each, 0)
            alive = np.flatnonzero(total > -math.inf)
            if not len(alive):
                return replace(NOTHING, exact=exact)
            weights, products = members.weights + total, members.products + total
            followed.move(_ranks(total > -math.inf))
            members = _Members(
                {u: states[alive] for u, states in members.states.items()},
                members.keys[alive], weights[alive], products[alive], members.likely[alive],
            )  # fmt: skip
            continue
        possible = each > -math.inf
        states, parents = np.nonzero(possible)
        if not len(states):
            return replace(NOTHING, exact=exact)
        followed.extend(v, possible)
        gains, keys = each[states, parents], members.keys[parents]
        weights, products = members.weights[parents] + gains, members.products[parents] + gains
        proposed = members.likely[parents] + (likely[v][states] if likely else 0.0)
        if v in last:
            keys = keys + odd[v] * states
        for u in gone:
            keys = keys - odd[u] * members.states[u][parents]
        firsts, groups = _alike(keys) if gone or v not in last else (None, None)
        shares = np.zeros(len(weights))
        if firsts is None or groups is None:
            firsts = groups = np.arange(len(weights))
        else:
            merged = _grouped(weights, groups, len(firsts))
            shares = weights - merged[groups]
            followed.move(groups)
            weights, products = merged, _grouped(products, groups, len(firsts))
            proposed = _grouped(proposed, groups, len(firsts)) if likely else proposed[firsts]
        survivors = np.arange(len(weights))
        if len(weights) > count:
            scores = weights
            if likely:
                scores = np.logaddexp(weights - log_sum(weights, 0), _of_all(proposed))
            survivors, lift = followed.thin(scores, count, float(rng.random()))
            exact = exact and len(survivors) == len(scores)
            # The lift is one over the probability to survive.
            weights, proposed = weights[survivors] + lift, proposed[survivors] + lift
        if recorded:
            place = np.full(len(products), -1)
            place[survivors] = np.arange(len(survivors))
            stayed = np.flatnonzero(place[groups] >= 0)
            steps.append(
                PopulationStep(
                    v, len(members.weights), parents[stayed], states[stayed], gains[stayed],
                    place[groups[stayed]], np.exp(shares[stayed]),
                )
            )  # fmt: skip
        firsts = firsts[survivors]
        mothers = parents[firsts]
        left = {u: values[mothers] for u, values in members.states.items() if u not in gone}
        if v in last:
            left[v] = states[firsts]
        members = _Members(left, keys[firsts], weights, products[survivors], proposed)
    total, lower = float(log_sum(members.weights, 0)), float(log_sum(members.products, 0))
    if total == -math.inf:
        return replace(NOTHING, exact=exact)
    return Grown(
        total, lower, exact, tuple(steps), np.exp(members.weights - total), followed.log_chances
    )


class _Followed:
    """Members that given configurations are part of, at each step."""

    def __init__(self, pins: Integers | None, forced: Integers | None) -> None:
        rows = [] if pins is None else list(pins)
        self._pins = len(rows)
        rows += [] if forced is None else [forced]
        self._states = np.array(rows, np.int64).reshape(len(rows), -1 if rows else 0)
        self._at = np.zeros(len(rows), np.int64)
        self.log_chances = np.zeros(len(rows))

    def extend(self, v: int, possible: npt.NDArray[np.bool_]) -> None:
        """Follow them to the (states, members) that are possible extensions."""
        if len(self._at):
            gone = self._at < 0
            self._at += self._states[:, v] * possible.shape[1]
            self._at[gone] = -1
            self.move(_ranks(possible))

    def move(self, places: Integers) -> None:
        """Follow them to new places, -1 for none."""
        self._at = np.where(self._at < 0, -1, places[self._at])

    def thin(self, scores: Floats, count: int, point: float) -> tuple[Integers, Floats]:
        """Members that stay, and the logs of one over the probability that they do."""
        pinned = np.unique(self._at[: self._pins])
        pinned = pinned[pinned >= 0]
        free = np.delete(np.arange(len(scores)), pinned)
        if len(free) <= count:
            return np.arange(len(scores)), np.zeros(len(scores))
        rank = np.full(len(scores), -1)
        rank[free] = np.arange(len(free))
        forced = int(self._at[-1]) if len(self._at) > self._pins else -1
        one = int(rank[forced]) if forced >= 0 else -1
        kept, lifted = thinned(scores[free], count, point, one)
        survivors = np.concatenate([pinned, free[kept]])
        lift = np.concatenate([np.zeros(len(pinned)), lifted - scores[free[kept]]])
        place = np.full(len(scores), -1)
        place[survivors] = np.arange(len(survivors))
        if lifted.size:  # the last is a draw, which has the weight of the threshold
            below = np.minimum(scores[self._at] - lifted[-1], 0.0)
            self.log_chances += np.where(self._at < 0, 0.0, below)
        self.move(place)
        return survivors, lift


def _ranks(flags: npt.NDArray[np.bool_]) -> Integers:
    """Rank of each among the flagged ones; -1 for the others."""
    flat = flags.reshape(-1)
    return np.where(flat, np.cumsum(flat) - 1, -1)


def _of_all(logs: Floats) -> Floats:
    """Log-softmax; -inf throughout where the sum is zero."""
    total = log_sum(logs, 0)
    return logs - total if total > -math.inf else logs


def thinned(weights: Floats, count: int, point: float, forced: int = -1) -> tuple[Integers, Floats]:
    """Members that stay, and their log-weights: unchanged in expectation.

    Those above a threshold stay unchanged, and the others with a probability in proportion to their
    weight, which becomes the threshold.

    Args:
        weights: (n,) logs.
        count: of members that stay, at most.
        point: uniform in [0, 1).
        forced: the draw is one of those in which this member stays; -1: any.
    """
    peak = weights.max()
    if peak == -math.inf:  # any will do
        return np.arange(count), weights[:count]
    mass = np.exp(weights - peak)
    falling = np.sort(mass)[::-1]
    rest = np.cumsum(falling[::-1])[::-1][:count]
    thresholds = rest / (count - np.arange(count))
    heavy = int(np.argmax(falling[:count] <= thresholds))
    threshold = thresholds[heavy]
    stay = mass > threshold
    if threshold == 0.0:  # all others together are lost in rounding
        return np.flatnonzero(stay), weights[stay]
    light = np.flatnonzero(~stay)
    reach = np.cumsum(mass[light] / threshold)
    chosen = -1
    if forced >= 0 and not stay[forced]:
        at = int(np.searchsorted(light, forced))
        moved = float(reach[at] - (1.0 - point) * mass[forced] / threshold)
        chosen, point = int(moved), moved % 1.0
    drawn = light[np.searchsorted(reach, np.arange(point, reach[-1], 1.0), side="right")]
    if chosen >= 0 and len(drawn):  # whatever rounding says
        drawn[min(chosen, len(drawn) - 1)] = forced
    survivors = np.concatenate([np.flatnonzero(stay), drawn])
    lifted = np.full(len(drawn), peak + math.log(threshold))
    return survivors, np.concatenate([weights[stay], lifted])


def _summed_exactly(passed: Elimination) -> frozenset[int]:
    """Variables whose bucket is not split, nor are those of the variables that depend on it."""
    needed, skipped = set[int](), set[int]()
    for bucket in passed.buckets:
        v = bucket[0].scope[0]
        if len(bucket) == 1 and v not in needed:
            skipped.add(v)
        else:
            needed.update(*(part.scope[1:] for part in bucket))
    return frozenset(skipped)


def _gains(bucket: tuple[MiniBucket, ...], members: _Members) -> Floats:
    """(states, n) addition to the log-weights by each state of a bucket's variable."""
    gains = np.zeros((len(bucket[0].values), len(members.weights)))
    for part in bucket:
        gains += part.values.reshape(len(part.values), -1)[:, _places(part, members, values=True)]
    for part in bucket:
        message = part.message.reshape(-1)[_places(part, members, values=False)]
        gains -= np.where(message > -math.inf, message, 0.0)
    return gains


def _places(part: MiniBucket, members: _Members, *, values: bool) -> Integers:
    """(n,) position at which each member reads a table: values past the first dim, or a message."""
    scope = part.scope[1:] if values else part.rest
    shape = part.values.shape[1:] if values else part.message.shape
    place = np.zeros(len(members.weights), np.int64)
    for u, size in zip(scope, shape, strict=True):
        place *= size
        place += members.states[u]
    return place


def _alike(keys: Integers) -> tuple[Integers, Integers]:
    """(groups,) first of each group of equal keys, and (n,) group of each."""
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    begins = np.concatenate([[True], ordered[1:] != ordered[:-1]])
    groups = np.empty(len(keys), np.int64)
    groups[order] = np.cumsum(begins) - 1
    return order[begins], groups


def _grouped(logs: Floats, groups: Integers, count: int) -> Floats:
    """(count,) log-sums within groups."""
    peak = np.full(count, -math.inf)
    np.maximum.at(peak, groups, logs)
    safe = np.where(np.isfinite(peak), peak, 0.0)
    with np.errstate(divide="ignore"):
        return safe + np.log(np.bincount(groups, np.exp(logs - safe[groups]), count))
