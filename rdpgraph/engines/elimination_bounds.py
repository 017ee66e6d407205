"""Bounds on log Z, scores and sums by elimination with bounded tables (weighted mini-buckets).

Dechter and Rish (2003), Mini-buckets; Liu and Ihler (2011), Bounding the partition function using
Holder's inequality.
"""

import math
from collections.abc import Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from random import Random
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from rdpgraph._core import effort, tuning
from rdpgraph.engines.elimination import log_sum
from rdpgraph.engines.reduction.network import Network
from rdpgraph.engines.reduction.tables import Floats, Tables, tables_of
from rdpgraph.engines.solution import meets
from rdpgraph.errors import BudgetError
from rdpgraph.plan import clock
from rdpgraph.plan.orders import PrimalGraph, min_fill, min_weight, primal_graph
from rdpgraph.plan.plan import require_room

Factor: TypeAlias = tuple[tuple[int, ...], Floats]
"""Variables, and log-values with a dim for each."""


_CONSTANT = 2e-6
"""Difference of values that tables of six digits may have where they should be equal."""

_FAR = 1e7
"""Nats by which values are shifted at most: larger shifts would cost their digits."""


_NEGATIVE = 0.5
"""Absolute value of each negative weight of a lower bound."""


@dataclass(frozen=True, eq=False)
class MiniBucket:
    """A part of the factors that hold a variable."""

    weight: float  # of its power sum; those of a variable's mini-buckets sum to one
    scope: tuple[int, ...]  # the variable, and the others in the order of elimination
    values: Floats  # summed log-values of the factors
    rest: tuple[int, ...]  # the variables of the message, in the order of elimination
    message: Floats  # the power sum over the variable, without dims along which it is constant


@dataclass(frozen=True, eq=False)
class Elimination:
    """Result of a pass."""

    bound: float  # on log Z, or on the maximum, upper or lower (nats)
    buckets: tuple[tuple[MiniBucket, ...], ...]  # of each variable, in the order of elimination
    exact: bool  # no bucket was split: the bound is log Z

    @property
    def cells(self) -> int:
        """Entries of all tables."""
        return sum(part.values.size for bucket in self.buckets for part in bucket)


def bounded(
    tables: Tables,
    order: Sequence[int],
    *,
    cells: float,
    lower: bool = False,
    maximised: Set[int] = frozenset(),
    deadline: float = math.inf,
) -> Elimination:
    """Bound log Z along an order, with no table above a size.

    The factors of a variable are split into mini-buckets, first fit; the mini-buckets' moments are
    matched, which leaves their product unchanged, and each is summed to the power of its weight.
    Time and memory are linear in the tables.

    Args:
        tables: the model; finite values only for a lower bound.
        order: all variables.
        cells: entries of a table, unless one factor has more.
        lower: one weight above one and the others negative (reverse Holder), not all positive.
        maximised: variables to maximise over, the last of the order: the bound is an upper one on
            the best score, or on the largest sum over the others.
        deadline: on `clock.now`.

    Raises:
        BudgetError: the pass does not end by the deadline.
    """
    rank = {v: place for place, v in enumerate(order)}
    waiting = _sorted_factors(tables, rank)
    bound, exact = 0.0, True
    done: list[tuple[MiniBucket, ...]] = []
    for v in order:
        if clock.now() > deadline:
            raise BudgetError(
                f"Bounds of {len(order):,} variables take longer than the time budget: raise it."
            )
        # The factors of a bucket are split, and the parts matched by their moments.
        parts = _split(v, waiting[rank[v]], rank, tables.sizes, cells)
        waiting[rank[v]] = []
        weights = _weights(len(parts), lower=lower)
        exact = exact and len(parts) == 1
        most = v in maximised
        values = _matched([part for _, part in parts], weights, most=most)
        bucket: list[MiniBucket] = []
        for (scope, _), joint, weight in zip(parts, values, weights, strict=True):
            # A part is summed to the power of its weight, w log sum exp(joint / w), and its message
            # waits in the bucket of its next variable.
            rest, message = varying(
                scope[1:],
                joint.max(0) if most else weight * log_sum(joint / weight, 0),
                lower=lower,
            )
            bucket.append(MiniBucket(weight, scope, joint, rest, message))
            if rest:
                waiting[rank[rest[0]]].append((rest, message))
            else:
                bound += float(message)
        done.append(tuple(bucket))
        entries = sum(part.values.size for part in bucket)
        clock.count(tuning.BUCKET * len(bucket) + tuning.BUCKET_ENTRY * entries)
    return Elimination(bound, tuple(done), exact)


def pass_seconds(tables: Tables | Network) -> float:
    """Least seconds of a pass."""
    return tuning.SECONDS_PER_FACTOR * _count(tables)


def pass_cells(tables: Tables | Network, memory: float) -> float:
    """Entries of a table with which a pass fits the memory (bytes), at least two.

    Raises `BudgetError` if none does.
    """
    parts = tuning.BUCKET_PART * _count(tables)
    require_room(parts, f"Bounds of {len(tables.sizes):,} variables", memory)
    return max(
        (memory - max(parts - tuning.SMALL_BYTES, 0.0))
        / (tuning.BUCKET_BYTES * max(len(tables.sizes), 1)),
        2.0,
    )


def _count(tables: Tables | Network) -> int:
    parts = tables.stacks if isinstance(tables, Tables) else tables.groups
    return len(tables.sizes) + sum(len(part.scopes) for part in parts)


def _sorted_factors(tables: Tables, rank: dict[int, int]) -> list[list[Factor]]:
    """Factors by the first of their variables, dims in the order of elimination."""
    waiting: list[list[Factor]] = [[] for _ in rank]
    for stack in tables.stacks:
        for scope, values in zip(stack.scopes.tolist(), stack.values, strict=True):
            dims = sorted(range(len(scope)), key=lambda dim, scope=scope: rank[scope[dim]])
            ordered = tuple([scope[dim] for dim in dims])
            waiting[rank[ordered[0]]].append((ordered, values.transpose(dims)))
    return waiting


def _split(
    v: int, factors: list[Factor], rank: dict[int, int], sizes: Sequence[int], cells: float
) -> list[tuple[tuple[int, ...], Floats]]:
    """Mini-buckets by first fit, the largest factors first."""
    scopes: list[set[int]] = []
    members: list[list[Factor]] = []
    for factor in sorted(factors, key=lambda pair: -len(pair[0])):
        needed = set(factor[0])
        for place, scope in enumerate(scopes):
            if needed <= scope or math.prod(sizes[u] for u in needed | scope) <= cells:
                scope |= needed
                members[place].append(factor)
                break
        else:
            scopes.append(needed)
            members.append([factor])
    if not scopes:
        return [((v,), np.zeros(sizes[v]))]
    parts: list[tuple[tuple[int, ...], Floats]] = []
    for scope, joined in zip(scopes, members, strict=True):
        ordered = tuple(sorted(scope, key=rank.__getitem__))
        parts.append((ordered, product(joined, ordered, sizes)))
    return parts


def product(factors: Sequence[Factor], scope: tuple[int, ...], sizes: Sequence[int]) -> Floats:
    """Summed log-values of factors over a scope that holds theirs."""
    place = {v: dim for dim, v in enumerate(scope)}
    joint = np.zeros([sizes[v] for v in scope])
    for variables, values in factors:
        inside = set(variables)
        dims = sorted(range(len(variables)), key=[place[v] for v in variables].__getitem__)
        shape = [sizes[v] if v in inside else 1 for v in scope]
        joint += values.transpose(dims).reshape(shape)
    return joint


def _weights(count: int, *, lower: bool) -> list[float]:
    if not lower:
        return [1.0 / count] * count
    return [1.0 + _NEGATIVE * (count - 1)] + [-_NEGATIVE] * (count - 1)


def _matched(parts: list[Floats], weights: list[float], *, most: bool) -> list[Floats]:
    """Parts with equal moments and the same product; hard zeros are moved to all parts."""
    if len(parts) == 1:
        return parts
    flat = [
        (part / weight).reshape(len(part), -1) for part, weight in zip(parts, weights, strict=True)
    ]
    moments = [values.max(1) if most else log_sum(values, 1) for values in flat]
    with np.errstate(invalid="ignore"):
        mean = sum(weight * moment for weight, moment in zip(weights, moments, strict=True))
        gaps = [np.where(np.isfinite(moment), mean - moment, 0.0) for moment in moments]
        # What stands for absence, as -1e30 does, stays where it is: any shifts that cancel serve.
        near = np.all([(np.abs(gap) < _FAR) | (mean == -math.inf) for gap in gaps], axis=0)
        gaps = [np.where(near, gap, 0.0) for gap in gaps]
    return [
        values + (weight * gap).reshape(-1, *(1,) * (values.ndim - 1))
        for values, weight, gap in zip(parts, weights, gaps, strict=True)
    ]


def varying(
    scope: tuple[int, ...], message: Floats, *, lower: bool = False
) -> tuple[tuple[int, ...], Floats]:
    """Return a message without the dims along which it is constant up to rounding.

    What is left is still a bound, as the largest value (or the least, for a lower bound) stands for
    all.

    Sums of conditional probabilities without evidence below them are constant, for one.
    """
    for dim in reversed(range(message.ndim)):
        line = message[(0,) * dim + (slice(None),) + (0,) * (message.ndim - dim - 1)].tolist()
        if max(line) > -math.inf and max(line) - min(line) > _CONSTANT:
            continue  # one line tells most dims that vary
        least, most = message.min(dim), message.max(dim)
        alive = most > -math.inf
        if bool((most[alive] - least[alive] <= _CONSTANT).all()):
            scope, message = scope[:dim] + scope[dim + 1 :], least if lower else most
    return scope, message


def tight_order(
    tables: Tables,
    *,
    cells: float,
    seconds: float,
    rng: Random,
    maximised: Set[int] = frozenset(),
    deadline: float = math.inf,
) -> list[int]:
    """Order, among those tried, with the least bound by small tables.

    Variables that make no other table grow go first: their messages are often constant, as those of
    conditional probabilities without evidence below them. The rest go by greedy orders with ties
    and noise at random.

    Args:
        tables: the model.
        cells: entries of a table at most.
        seconds: for trying; with none it is one plain greedy order.
        rng: the randomness.
        maximised: variables to eliminate after all others, by maximising.
        deadline: with no seconds, when to take any order, on `clock.now`.
    """
    end = clock.now() + seconds
    soon = end if seconds > 0 else deadline
    first, graph = _leaves(tables, maximised, soon)
    done = set(first)

    def complete(order: list[int]) -> list[int]:
        return first + [v for v in order if v not in done]

    plain = min_weight(graph, last=maximised, deadline=soon)
    if plain is None:  # too little time to look for a good one
        return complete(sorted(range(len(tables.sizes)), key=maximised.__contains__))
    best, least, stale, tried = complete(plain), None, 0, 0
    if seconds <= 0:
        return best
    cells = min(cells, effort.ORDER_CELLS)
    while stale < effort.ORDERS_STALE:
        begin = clock.now()
        order = best if least is None else None
        if order is None:
            noise = effort.ORDER_NOISE[tried % len(effort.ORDER_NOISE)]
            filled = min_fill(graph, rng=rng, noise=noise, last=maximised, deadline=end)
            if filled is None:
                break
            order, tried = complete(filled), tried + 1
        try:
            passed = bounded(tables, order, cells=cells, maximised=maximised, deadline=end)
        except BudgetError:
            break
        if passed.exact:
            return order
        stale += 1
        if least is None or passed.bound < least:
            best, least, stale = order, passed.bound, 0
        if 2 * clock.now() - begin > end:
            break
    return best


def _leaves(tables: Tables, maximised: Set[int], deadline: float) -> tuple[list[int], PrimalGraph]:
    """Variables whose factors all fit into one of these, in turn, and the graph of the others."""
    factors: dict[int, Factor] = {}
    at: list[set[int]] = [set() for _ in tables.sizes]
    made = 0

    def enter(scope: tuple[int, ...], values: Floats) -> None:
        nonlocal made
        factors[made] = scope, values
        for u in scope:
            at[u].add(made)
        made += 1

    for stack in tables.stacks:
        for scope, values in zip(stack.scopes.tolist(), stack.values, strict=True):
            enter(tuple(scope), values)
    order: list[int] = []
    waiting, gone = list(range(len(tables.sizes))), set[int]()
    while waiting and clock.now() <= deadline:
        v = waiting.pop()
        if v in gone or v in maximised:
            continue
        # Sum a variable out where one of its factors spans all of them: no table grows.
        touching = [factors[number] for number in at[v]]
        widest = max((scope for scope, _ in touching), key=len, default=(v,))
        if not set().union(*(scope for scope, _ in touching)) <= set(widest):
            continue
        gone.add(v)
        order.append(v)
        for number in list(at[v]):
            for u in factors.pop(number)[0]:
                at[u].discard(number)
        # The message is a factor of those that are left, which may be leaves now.
        scope = (v, *(u for u in widest if u != v))
        joint = product(touching, scope, tables.sizes)
        rest, message = varying(scope[1:], log_sum(joint, 0))
        if rest:
            enter(rest, message)
        waiting.extend(scope[1:])
    return order, primal_graph((scope for scope, _ in factors.values()), tables.sizes)


def ceilings(
    network: Network, summed: Set[int], *, seconds: float, memory: float,
    scores: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """(B,) upper bounds (nats, float64) on the best score, by mini-buckets at temperature zero.

    Active variables ``summed`` are summed out: the bound is on the largest sum. Tables grow until a
    bound meets the known ``scores`` (B,), or the time or the memory (bytes) is used.
    """
    constant = network.exact_constant
    if network.impossible:
        return torch.full_like(constant, -math.inf)
    share = seconds / max(network.batch, 1)
    if pass_seconds(network) > effort.BOUND_LATE * share:
        return torch.full_like(constant, math.inf)
    each = constant.clone()
    maximised = frozenset(range(len(network.sizes))).difference(summed)
    for item in (constant > -math.inf).nonzero().flatten().tolist():  # no other is possible
        tables = tables_of(network, item, zeros=True)
        known = None if scores is None else scores[item].cpu() - constant[item]
        each[item] += _ceiling(tables, maximised, share, memory, known) + rounding(tables)
    return each + network.constant_error


def rounding(tables: Tables) -> float:
    """Return a bound on the rounding of a pass along any order (nats).

    Each addition and each sum of powers rounds by the last digit of float64, relative to numbers
    that are no larger than the span of the scores and the log of the number of configurations. A
    change of a message moves the bound by no more than that change. Each factor and each message is
    added once, and each variable's states are.
    """
    size = tables.span + math.fsum(map(math.log, tables.sizes))
    steps = 2 * sum(len(stack.scopes) for stack in tables.stacks) + sum(tables.sizes)
    return 8.0 * float(np.finfo(np.float64).eps) * size * (steps + 16)


def _ceiling(
    tables: Tables, maximised: Set[int], seconds: float, memory: float, known: Tensor | None
) -> float:
    begin, best = clock.now(), math.inf
    with suppress(BudgetError):
        most = pass_cells(tables, memory)
        order = tight_order(
            tables, cells=most, seconds=effort.BOUND_ORDER * seconds, rng=Random(0),
            maximised=maximised,
        )  # fmt: skip
        cells = min(effort.BOUND_CELLS, most)
        while True:
            start = clock.now()
            late = begin + effort.BOUND_LATE * seconds
            passed = bounded(tables, order, cells=cells, maximised=maximised, deadline=late)
            best = min(best, passed.bound)
            took = clock.now() - start
            met = known is not None and bool(meets(known, torch.tensor(best, device="cpu")))
            if passed.exact or met or clock.now() + effort.PASS_GROWTH * took > begin + seconds:
                return best
            if effort.PASS_GROWTH * passed.cells * tuning.BUCKET_BYTES > memory:
                return best
            cells *= effort.PASS_GROWTH
    return best
