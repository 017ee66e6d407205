"""Elimination orders: greedy ones on the primal graph, and the linear-time one of a forest.

Orders without random numbers come from compiled code (`native/kernels/orders.cpp`). The same rules
stand here for random ones, and for machines without a compiler: both give equal orders.
"""

import ctypes
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from functools import cached_property, partial
from heapq import heappop, heappush
from itertools import chain, pairwise
from math import exp, inf, log
from random import Random
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from rdpgraph._core import tuning
from rdpgraph.plan import clock
from rdpgraph.plan.tree import Integers, Topology

_LOOK = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int64)
_UNIT = 2.0**-30
"""Unit of the logarithms of sizes: sums of integers are exact, so that ties are ties."""


@dataclass(frozen=True, eq=False)
class PrimalGraph:
    """Neighbours of each variable, those that it shares a tensor with, and the sizes."""

    starts: Integers  # (V + 1,) first place of each variable in `near`
    near: npt.NDArray[np.int32]  # the neighbours of one variable after the other, increasing
    sizes: tuple[int, ...]

    @classmethod
    def of(cls, adjacency: Sequence[Set[int]], sizes: Sequence[int]) -> "PrimalGraph":
        """The graph of some sets of neighbours."""
        counts = np.fromiter(map(len, adjacency), np.int64, len(adjacency))
        every = chain.from_iterable(map(sorted, adjacency))
        near = np.fromiter(every, np.int32, int(counts.sum()))
        return cls(np.concatenate([[0], counts.cumsum()]).astype(np.int64), near, tuple(sizes))

    @cached_property
    def adjacency(self) -> tuple[Set[int], ...]:
        """The neighbours of each variable as a set."""
        listed, ends = self.near.tolist(), self.starts.tolist()
        return tuple([set(listed[a:b]) for a, b in pairwise(ends)])

    @cached_property
    def counts(self) -> Integers:
        """The sizes as an array."""
        return np.array(self.sizes, np.int64)


Rule: TypeAlias = Callable[..., list[int] | None]
"""A greedy elimination rule with the arguments of `min_weight`."""


def primal_graph(scopes: Iterable[Iterable[int]], sizes: Sequence[int]) -> PrimalGraph:
    """Primal graph: variables are adjacent if a scope has both."""
    return graph_of(Topology(tuple(map(tuple, scopes)), tuple(sizes)))


def graph_of(topology: Topology) -> PrimalGraph:
    """The primal graph of a topology."""
    return graph_of_scopes(topology.flat, topology.lengths, topology.sizes)


def graph_of_scopes(flat: Integers, lengths: Integers, sizes: tuple[int, ...]) -> PrimalGraph:
    """The primal graph of scopes, one after the other in an array, of these lengths."""
    count = len(sizes)
    ends = np.concatenate([[0], lengths.cumsum()]).astype(np.int64)
    if not is_compiled():
        adjacency: list[set[int]] = [set() for _ in sizes]
        listed = flat.tolist()
        for begin, end in pairwise(ends.tolist()):
            for v in listed[begin:end]:
                adjacency[v].update(listed[begin:end])
        for v, neighbours in enumerate(adjacency):
            neighbours.discard(v)
        return PrimalGraph.of(adjacency, sizes)
    from rdpgraph.native.library import call

    variables = np.ascontiguousarray(flat, np.int32)
    # The number of neighbours of each variable, and then these.
    starts = np.zeros(count + 1, np.int64)
    call("order_primal", variables, ends, None, starts[1:], None, count, len(lengths))
    starts = starts.cumsum()
    near = np.empty(int(starts[-1]), np.int32)
    call("order_primal", variables, ends, starts, None, near, count, len(lengths))
    return PrimalGraph(starts, near, sizes)


def is_compiled() -> bool:
    """Return whether compiled code finds orders here."""
    if "torch" not in sys.modules:
        return False  # planning alone loads no tensors, which compiled libraries come with
    import torch

    from rdpgraph.native.library import available

    return available(torch.float64, "orders")


def _call_until(
    deadline: float, name: str, arrays: Sequence[npt.NDArray[Any]], *numbers: float
) -> None:
    """Call a function of orders.cpp that looks at the clock, up to a deadline on `clock.now`."""
    from rdpgraph.native.library import call

    raised: list[BaseException] = []

    def look(times: int) -> int:
        try:  # a clock that counts advances by as many looks
            clock.count((times - 1) * tuning.SECONDS_PER_LOOK * tuning.OPERATIONS_PER_SECOND)
            return int(clock.now() > deadline)
        except BaseException as error:  # Ctrl-C, which must pass through compiled code
            raised.append(error)
            return 1

    called = _LOOK(look)
    call(name, *arrays, ctypes.cast(called, ctypes.c_void_p), *numbers)
    if raised:
        raise raised[0]


def elimination_order(
    topology: Topology, rule: Rule | None = None, *, deadline: float = inf
) -> list[int] | None:
    """A permutation of the variables: the safe ones first, the rest by `rule` (min-fill).

    Cost: 1,000 variables take 5 to 100 ms; 25,000 sparse ones one or two seconds. None past a
    deadline.
    """
    prefix, core, names = peel(graph_of(topology), deadline=deadline)
    order = (rule or min_fill)(core, deadline=deadline)
    return None if order is None else prefix + [names[i] for i in order]


def peel(
    graph: PrimalGraph, *, last: Set[int] = frozenset(), deadline: float = inf
) -> tuple[list[int], PrimalGraph, list[int]]:
    """Variables whose early elimination is safe, the graph that remains, and its old ids.

    Safe are simplicial variables (degree 0 and 1 among them) and those in series: degree 2, and no
    smaller than one of the two neighbours. Whole rounds are taken at a time, from all sides, so
    that trees stay shallow. Large variables in series wait until no leaf is left, because a series
    costs the product of three sizes, and from its end that of two. Variables in `last` stay, as do
    all from the deadline on.

    Source: van den Eijkhof, Bodlaender and Koster (2007), Safe reduction rules for weighted
    treewidth.
    """
    if is_compiled():
        return _peeled(graph, last, deadline)
    sizes = graph.sizes
    adjacency = [set(neighbours) for neighbours in graph.adjacency]
    prefix: list[int] = []
    gone = bytearray(len(sizes))
    leaves_first = max(sizes, default=0) >= tuning.LARGE_IN_SERIES
    waiting: set[int] = set()
    frontier: Sequence[int] = [v for v in range(len(sizes)) if v not in last]
    while frontier or waiting:
        if not frontier:  # there are no leaves any more
            leaves_first, frontier, waiting = False, sorted(waiting), set()
        touched: set[int] = set()
        for v in frontier:
            if clock.now() > deadline:
                touched.clear()
                waiting.clear()
                break
            near = adjacency[v]
            degree = len(near)
            waiting.discard(v)
            if leaves_first and degree > 1:
                waiting.add(v)
                continue
            if degree == 2:
                a, b = near
                if b not in adjacency[a]:
                    if sizes[v] < sizes[a] and sizes[v] < sizes[b]:
                        continue
                    adjacency[a].add(b)
                    adjacency[b].add(a)
            elif degree > 2 and any(len(near & adjacency[u]) < degree - 1 for u in near):
                continue
            gone[v] = 1
            prefix.append(v)
            touched.update(near)
            for u in near:
                adjacency[u].discard(v)
        frontier = sorted(v for v in touched if not gone[v] and v not in last)
    names = [v for v in range(len(sizes)) if not gone[v]]
    rank = {name: i for i, name in enumerate(names)}
    core = [{rank[u] for u in adjacency[name]} for name in names]
    return prefix, PrimalGraph.of(core, [sizes[name] for name in names]), names


def _peeled(
    graph: PrimalGraph, last: Set[int], deadline: float
) -> tuple[list[int], PrimalGraph, list[int]]:
    """`peel` by compiled code."""
    count, sizes = len(graph.sizes), graph.counts
    prefix, used = np.empty(count, np.int32), np.zeros(1, np.int64)
    # Variables in series are replaced by an edge, so that no more of these are left.
    starts, near = np.zeros(count + 1, np.int64), np.empty(len(graph.near), np.int32)
    arrays = graph.starts, graph.near, sizes, _chosen(last, count), prefix, used, starts, near
    _call_until(deadline, "order_peel", arrays, count, tuning.LARGE_IN_SERIES)
    first = prefix[: int(used[0])]
    left = np.ones(count, bool)
    left[first] = False
    names = left.nonzero()[0]
    starts = starts[: len(names) + 1].copy()
    kept = tuple(sizes[names].tolist())
    return first.tolist(), PrimalGraph(starts, near[: int(starts[-1])].copy(), kept), names.tolist()


def _chosen(members: Set[int], count: int) -> npt.NDArray[np.int8]:
    """Which of so many variables are members, as ones and zeros."""
    chosen = np.zeros(count, np.int8)
    chosen[list(members)] = 1
    return chosen


def _greedy(
    graph: PrimalGraph, last: Set[int], limit: float, deadline: float, *, fill: bool, weighted: bool
) -> list[int] | None:
    """An order by a greedy rule without random numbers, by compiled code."""
    count = len(graph.sizes)
    order, found = np.empty(count, np.int32), np.zeros(1, np.int64)
    arrays = graph.starts, graph.near, graph.counts, _chosen(last, count), order, found
    _call_until(deadline, "order_greedy", arrays, count, min(limit, 1e308), fill, weighted)
    return order.tolist() if found[0] else None


def min_weight(
    graph: PrimalGraph,
    *,
    rng: Random | None = None,
    noise: float = 0.0,
    last: Set[int] = frozenset(),
    limit: float = inf,
    deadline: float = inf,
) -> list[int] | None:
    """Eliminate the variable that makes the clique with the smallest product of sizes.

    Args:
        graph: unchanged.
        rng: breaks ties at random; without one the smaller clique, then the smaller id, wins.
        noise: scores are multiplied by 1 + noise * u, u uniform on [0, 1); needs `rng`.
        last: variables to eliminate after all others (marginal MAP).
        limit: give up (None) once the summed clique weights exceed this.
        deadline: give up (None) when `clock.now` passes this.
    """
    if rng is None and is_compiled():
        return _greedy(graph, last, limit, deadline, fill=False, weighted=False)
    # In Python for random orders, and where there is no compiled code.
    adjacency = [set(neighbours) for neighbours in graph.adjacency]
    logs = _logs(graph)
    weights = [logs[v] + sum([logs[u] for u in near]) for v, near in enumerate(adjacency)]
    queue = Queue(adjacency, rng, noise)
    order: list[int] = []
    spent = 0.0
    for phase in _phases(len(adjacency), last):
        for v in phase:
            queue.push(v, weights[v])
        waiting = set(phase)
        # Neighbours of what goes are joined, and queue again with their new weights.
        while (v := queue.pop()) is not None:
            order.append(v)
            waiting.discard(v)
            spent += _entries(weights[v])
            if spent > limit:
                return None
            for u in joined(v, adjacency, weights, logs):
                if clock.now() > deadline:
                    return None
                if u in waiting:
                    queue.push(u, weights[u])
    return order


def _logs(graph: PrimalGraph) -> list[float]:
    """Logarithms of the sizes in units, as whole numbers."""
    return [float(round(log(size) / _UNIT)) for size in graph.sizes]


def _entries(logs: float) -> float:
    """The entries of a table, given their logarithm in units."""
    return exp(logs * _UNIT) if logs * _UNIT < 700 else inf


def joined(
    v: int, adjacency: list[set[int]], weights: list[float], logs: Sequence[float]
) -> Iterator[int]:
    """Eliminate a variable: connect its neighbours to a clique, yielding each when it is done.

    Changes the adjacency, and the weights: logs of the cliques that eliminating each would make.
    """
    near = adjacency[v]
    for u in near:
        neighbours = adjacency[u]
        new = near - neighbours
        neighbours |= new
        neighbours.discard(u)
        neighbours.discard(v)
        weights[u] += sum([logs[w] for w in new]) - logs[u] - logs[v]
        yield u


def _phases(count: int, last: Set[int]) -> tuple[list[int], list[int]]:
    return [v for v in range(count) if v not in last], sorted(last)


class Queue:
    """A heap of variables by score, in which a later push of a variable replaces an earlier."""

    def __init__(self, adjacency: list[set[int]], rng: Random | None, noise: float) -> None:
        self._heap: list[tuple[float, float, int]] = []
        self._now: dict[int, tuple[float, float, int]] = {}
        self._adjacency = adjacency
        self._random = rng.random if rng else None
        self._noise = noise

    def drop(self, v: int) -> None:
        """Remove a variable from the queue."""
        self._now.pop(v, None)

    def push(self, v: int, score: float) -> None:
        """Enter a variable, or change its score."""
        if self._random:
            if self._noise:
                score *= 1.0 + self._noise * self._random()
            entry = (score, self._random(), v)
        else:
            entry = (score, float(len(self._adjacency[v])), v)
        self._now[v] = entry
        heappush(self._heap, entry)

    def pop(self) -> int | None:
        """Remove and return the variable with the least score; None if empty."""
        while self._heap:
            entry = heappop(self._heap)
            v = entry[2]
            if self._now.get(v) is entry:
                del self._now[v]
                return v
        return None


def _fill_order(
    graph: PrimalGraph,
    *,
    rng: Random | None = None,
    noise: float = 0.0,
    last: Set[int] = frozenset(),
    limit: float = inf,
    deadline: float = inf,
    weighted: bool,
) -> list[int] | None:
    """Min-fill with incremental scores: exact fill counts at every step.

    Eliminating v makes a clique of its neighbours N. For u in N with neighbours O outside N, the
    pairs left without an edge are those between N and O and those inside O; for y outside N, the
    new edges between its neighbours in N are subtracted.
    """
    if rng is None and is_compiled():
        return _greedy(graph, last, limit, deadline, fill=True, weighted=weighted)
    weights = graph.sizes if weighted else (1,) * len(graph.sizes)
    plain = all(w == 1 for w in weights)
    get = weights.__getitem__

    def mass(members: Set[int]) -> int:
        return len(members) if plain else sum(map(get, members))

    # At first the fill of v is half the weight of pairs of neighbours that are no neighbours.
    adjacency = [set(neighbours) for neighbours in graph.adjacency]
    logs = _logs(graph)
    fill = [0.0] * len(adjacency)
    for v, near in enumerate(adjacency):
        if clock.now() > deadline:
            return None
        whole = mass(near)
        for u in near:
            fill[v] += 0.5 * weights[u] * (whole - weights[u] - mass(near & adjacency[u]))
    queue = Queue(adjacency, rng, noise)
    order: list[int] = []
    spent = 0.0
    for phase in _phases(len(adjacency), last):
        for v in phase:
            queue.push(v, fill[v])
        waiting = set(phase)
        while (v := queue.pop()) is not None:
            near = adjacency[v]
            order.append(v)
            waiting.discard(v)
            spent += _entries(logs[v] + sum([logs[u] for u in near]))
            if spent > limit or clock.now() > deadline:
                return None
            for u in near:
                adjacency[u].discard(v)
            # A simplicial variable adds no edge; its neighbours lack those to it no more.
            if not fill[v]:
                changed: Iterable[int] = near
                for u in near:
                    outside = adjacency[u] - near
                    fill[u] -= weights[v] * mass(outside)
            else:
                updated = _make_clique(adjacency, near, fill, weights, mass, deadline)
                if updated is None:
                    return None
                changed = updated
            for u in changed:
                if u in waiting:
                    queue.push(u, fill[u])
    return order


min_fill: Rule = partial(_fill_order, weighted=False)
"""Eliminate the variable whose neighbours lack the fewest edges among themselves."""

weighted_min_fill: Rule = partial(_fill_order, weighted=True)
"""The same, each missing edge counted as the product of its ends' sizes."""


def _make_clique(
    adjacency: list[set[int]],
    near: set[int],
    fill: list[float],
    weights: Sequence[int],
    mass: Callable[[Set[int]], int],
    deadline: float,
) -> set[int] | None:
    """Connect `near` to a clique and update the fill scores; return the changed variables."""
    # A new edge between a and b is one that their common neighbours lack no more.
    outside = {u: adjacency[u] - near for u in near}
    changed = set(near)
    for a in near:
        if clock.now() > deadline:
            return None
        for b in near - adjacency[a]:
            if a < b:
                gain = weights[a] * weights[b]
                for y in outside[a] & outside[b]:
                    fill[y] -= gain
                    changed.add(y)
    # A member u of the clique lacks the edges between the clique and its other neighbours, and
    # those among these.
    inside: dict[int, int] = {}
    for u, beyond in outside.items():
        for y in beyond:
            inside[y] = inside.get(y, 0) + weights[u]
    whole = mass(near)
    for u, beyond in outside.items():
        if clock.now() > deadline:
            return None
        rest = mass(beyond)
        total = 0.0
        for y in beyond:
            inner = rest - weights[y] - mass(beyond & adjacency[y])
            total += weights[y] * (whole - inside[y] + 0.5 * inner)
        fill[u] = total
        adjacency[u] |= near
        adjacency[u].discard(u)
    return changed


def forest_order(topology: Topology) -> list[int] | None:
    """A leaves-to-root order when the factor graph is a forest, else None.

    Leaves are removed from all sides, round by round, so levels are as shallow as the forest
    allows; every clique fits inside one factor. Cost: linear; 10^6 variables take about 2 s.

    A variable is a leaf when at most one tensor with other remaining variables has it. Sums of
    remaining neighbours' ids replace adjacency lists: with one left, the sum is its id.
    """
    count = topology.num_variables
    # Tensors of one variable join nothing. Of each variable the tensors' numbers are summed, and
    # of each tensor the variables'.
    alive = topology.lengths > 1
    slots = alive[topology.owners]
    flat, owners = topology.flat[slots], topology.owners[slots]
    degree = np.bincount(flat, minlength=count).tolist()
    tensors = np.zeros(count, np.int64)
    np.add.at(tensors, flat, owners)
    tensor_of: list[int] = tensors.tolist()
    variables = np.zeros(topology.num_tensors, np.int64)
    np.add.at(variables, owners, flat)
    variable_of: list[int] = variables.tolist()
    arity: list[int] = topology.lengths.tolist()
    order: list[int] = []
    # A leaf that goes is subtracted from its tensor, and the tensor from the last one it joins.
    frontier = [v for v, d in enumerate(degree) if d <= 1]
    while frontier:
        order += frontier
        ahead: list[int] = []
        for v in frontier:
            if not degree[v]:
                continue
            tensor = tensor_of[v]
            degree[v] = 0
            arity[tensor] -= 1
            variable_of[tensor] -= v
            if arity[tensor] == 1:
                other = variable_of[tensor]
                degree[other] -= 1
                tensor_of[other] -= tensor
                if degree[other] == 1:
                    ahead.append(other)
        frontier = ahead
    return order if len(order) == count else None
