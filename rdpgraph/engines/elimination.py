"""Exact elimination of some variables given all others, and draws by annealed Gibbs sampling.

Annealing is by Kirkpatrick, Gelatt and Vecchi (1983), Optimization by simulated annealing. Hamze
and de Freitas (2004), From fields to trees, draw most variables at once.
"""

import math
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass
from random import Random
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from rdpgraph._core import effort, tuning
from rdpgraph.engines.reduction.tables import Floats, Integers, Tables
from rdpgraph.plan import clock
from rdpgraph.plan.orders import PrimalGraph, Queue, joined


@dataclass(frozen=True, eq=False)
class ConditionedOrder:
    """An order in which some variables are eliminated while all others are fixed."""

    fixed: tuple[int, ...]  # the cutset: variables of the part that had to be fixed
    # For each eliminated variable: itself, and then the variables of its message, in their order.
    steps: tuple[tuple[int, ...], ...]
    cells: float  # the number of entries of all tables together


def conditioned_order(
    graph: PrimalGraph,
    part: Iterable[int],
    *,
    rng: Random,
    cells: float,
    summed: Set[int] = frozenset(),
    sequence: Sequence[int] = (),
    degree: float = 1.0,
    deadline: float = math.inf,
) -> ConditionedOrder | None:
    """Return an order that eliminates most variables of a part with small tables.

    The next variable is the one whose clique has the fewest states; ties are broken at random. If
    even the smallest clique is too large, one of its variables is fixed. It is drawn with a
    probability proportional to (1 + the number of its neighbours) to the power `degree`.

    Args:
        graph: the primal graph; unchanged.
        part: the variables to eliminate; all others are fixed from the start.
        rng: the randomness.
        cells: the largest number of entries of a table.
        summed: variables of the part that are eliminated before the others and are never fixed.
        sequence: the order of the summed variables; if it is empty, they are taken greedily too.
        degree: 0 draws uniformly; higher powers prefer variables with many neighbours.
        deadline: when to give up, on `clock.now`.

    Returns:
        The order. None after the deadline, or if the summed variables alone make a larger table.
    """
    members, none = set(part), set[int]()  # variables outside of the part share one empty set
    adjacency = [
        set(near) & members if v in members else none for v, near in enumerate(graph.adjacency)
    ]
    logs = [math.log(size) for size in graph.sizes]
    weights = [logs[v] + sum([logs[u] for u in near]) for v, near in enumerate(adjacency)]
    queue = Queue(adjacency, rng, 0.0)
    most = math.log(cells)
    fixed: set[int] = set()
    raw: list[tuple[int, set[int]]] = []
    # Variables of the sequence wait by their place in it, others by the weight of their clique,
    # which changes as their neighbours are eliminated.
    place = {v: float(number) for number, v in enumerate(sequence)}
    for phase in (summed, members.difference(summed)):
        waiting = set(phase) - fixed
        for v in waiting:
            queue.push(v, place.get(v, weights[v]))
        while (v := queue.pop()) is not None:
            if clock.now() > deadline:
                return None
            near = adjacency[v]
            if weights[v] > most:
                free = [u for u in (v, *near) if u not in summed]
                if not free:
                    return None
                scale = [(len(adjacency[u]) + 1) ** degree for u in free]
                out = rng.choices(free, scale)[0]
                fixed.add(out)
                waiting.discard(out)
                queue.drop(out)
                for u in adjacency[out]:
                    adjacency[u].discard(out)
                    weights[u] -= logs[out]
                    if u in waiting and u not in place:
                        queue.push(u, weights[u])
                adjacency[out] = set()
                if out != v:
                    queue.push(v, place.get(v, weights[v]))
                continue
            raw.append((v, near))
            waiting.discard(v)
            for u in joined(v, adjacency, weights, logs):
                if u in waiting and u not in place:
                    queue.push(u, weights[u])
    rank = {v: place for place, (v, _) in enumerate(raw)}
    # A neighbour that was fixed later on is fixed from the start.
    steps = [(v, *sorted(near - fixed, key=rank.__getitem__)) for v, near in raw]
    total = sum(math.prod(map(graph.sizes.__getitem__, step), start=1.0) for step in steps)
    return ConditionedOrder(tuple(sorted(fixed)), tuple(steps), total)


_Bucket: TypeAlias = list[tuple[tuple[int, ...], Floats]]


def eliminate(
    tables: Tables, order: ConditionedOrder, states: Integers, *, summed: Set[int] = frozenset(),
    whole: bool = True,
) -> tuple[Integers, float]:  # fmt: skip
    """Return the best configuration given the fixed variables, and its log-value in nats.

    This is bucket elimination (Dechter 1999). Variables in ``summed`` come first in the order. They
    are summed over, and their states are returned as they were given. The given states of the other
    eliminated variables are not read. If ``whole`` is False, the log-value leaves out the factors
    without an eliminated variable.
    """

    def reduced(step: tuple[int, ...], joint: Floats) -> tuple[Floats, npt.NDArray[Any] | None]:
        if step[0] in summed:
            return _log_sum(joint), None
        if tables.sizes[step[0]] == 2:
            return np.maximum(joint[0], joint[1]), joint[1] > joint[0]
        kind = np.uint8 if tables.sizes[step[0]] <= 256 else np.int32
        return joint.max(0), joint.argmax(0).astype(kind)

    traces, total = _eliminated(tables, order, states, reduced, whole=whole)
    chosen = states.tolist()
    for step, best in reversed(traces):
        chosen[step[0]] = int(best[tuple([chosen[u] for u in step[1:]])])
    return np.array(chosen, np.int64), total


def draw(
    tables: Tables, order: ConditionedOrder, states: Integers, count: int,
    rng: "np.random.Generator",
) -> Integers:  # fmt: skip
    """Return (count, V) exact draws of all other variables given the fixed ones.

    Log-values must be finite.
    """

    def reduced(step: tuple[int, ...], joint: Floats) -> tuple[Floats, Floats]:  # noqa: ARG001
        message = _log_sum(joint)
        return message, np.exp(joint - message).cumsum(0)

    traces, _ = _eliminated(tables, order, states, reduced)
    chosen = np.tile(states, (count, 1))
    for step, reach in reversed(traces):
        reach = reach[(slice(None), *(chosen[:, u] for u in step[1:]))].reshape(len(reach), -1)
        below = reach < rng.random(count) * reach[-1]
        chosen[:, step[0]] = below.sum(0)
    return chosen


def _eliminated(
    tables: Tables, order: ConditionedOrder, states: Integers,
    reduced: Callable[[tuple[int, ...], Floats], tuple[Floats, npt.NDArray[Any] | None]],
    *, whole: bool = True,
) -> tuple[list[tuple[tuple[int, ...], npt.NDArray[Any]]], float]:  # fmt: skip
    """Eliminate the variables of an order; return the traces of the steps, and the final value.

    ``reduced`` takes a step and its joint table. It returns the message, without the first dim, and
    a trace by which the step's variable is chosen later; None where it is not chosen.
    """
    clock.count(
        tuning.MOVE_VARIABLE[0] * (len(order.steps) + len(order.fixed))
        + tuning.MOVE_ENTRY * order.cells
    )
    buckets, total = _filled(tables, order, states)
    total = total if whole else 0.0
    rank = {step[0]: place for place, step in enumerate(order.steps)}
    traces: list[tuple[tuple[int, ...], npt.NDArray[Any]]] = []
    for place, step in enumerate(order.steps):
        joint = _product(buckets[place], step, tables.sizes)
        buckets[place] = []
        # The message goes to the bucket of its next variable; a number is added to the total.
        message, trace = reduced(step, joint)
        if trace is not None:
            traces.append((step, trace))
        if len(step) > 1:
            buckets[rank[step[1]]].append((step[1:], message))
        else:
            total += float(message)
    return traces, total


def _filled(
    tables: Tables, order: ConditionedOrder, states: Integers
) -> tuple[list[_Bucket], float]:
    """Return the buckets of all factors given the fixed variables, and the sum of the constants.

    A factor goes into the bucket of its variable that is eliminated first.
    """
    rank = np.full(len(tables.sizes), -1)
    rank[[step[0] for step in order.steps]] = np.arange(len(order.steps))
    alone = np.zeros(int(tables.starts[-1]))
    buckets: list[_Bucket] = [[] for _ in order.steps]
    total = 0.0
    for stack in tables.stacks:
        # Factors whose variables are all fixed are constants.
        places = rank[stack.scopes]
        free = places >= 0
        count = free.sum(1)
        total += float(stack.at(np.flatnonzero(count == 0), states).sum())
        # Those with one free variable are summed into its unary scores, many at once.
        single = count == 1
        for slot in range(stack.scopes.shape[1]):
            rows = np.flatnonzero(single & free[:, slot])
            begin = tables.starts[stack.scopes[rows, slot]]
            index = begin[:, None] + np.arange(stack.values.shape[1 + slot])
            np.add.at(alone, index, stack.at(rows, states, slot))
        # The others go one by one: cut to their free variables, with dims in the order of
        # elimination.
        joint = np.flatnonzero(count > 1)
        whole = bool(free[joint].all())
        for row, scope, ranks in zip(
            joint.tolist(), stack.scopes[joint].tolist(), places[joint].tolist(), strict=True
        ):
            values = stack.values[row]
            if not whole and min(ranks) < 0:
                both = list(zip(scope, ranks, strict=True))
                values = values[tuple([states[v] if r < 0 else slice(None) for v, r in both])]
                scope = [v for v, r in both if r >= 0]
                ranks = [r for r in ranks if r >= 0]
            if len(ranks) == 2:
                if ranks[0] < ranks[1]:
                    buckets[ranks[0]].append(((scope[0], scope[1]), values))
                else:
                    buckets[ranks[1]].append(((scope[1], scope[0]), values.T))
                continue
            dims = sorted(range(len(ranks)), key=ranks.__getitem__)
            ordered = tuple([scope[dim] for dim in dims])
            buckets[ranks[dims[0]]].append((ordered, values.transpose(dims)))
    # Last, each bucket has the unary scores of the variable that it eliminates.
    starts = tables.starts.tolist()
    for bucket, step in zip(buckets, order.steps, strict=True):
        v = step[0]
        bucket.append(((v,), alone[starts[v] : starts[v + 1]]))
    return buckets, total


def _product(bucket: _Bucket, scope: tuple[int, ...], sizes: Sequence[int]) -> Floats:
    """Add the log-values of a bucket over a scope; all scopes are in elimination order."""
    joint: Floats | None = None
    shape = [sizes[v] for v in scope]
    writable = False
    bucket.sort(key=lambda entry: len(entry[0]), reverse=True)
    for part, values in bucket:
        if len(part) < len(scope):
            held = set(part)
            values = values.reshape([sizes[v] if v in held else 1 for v in scope])
        if joint is None:
            joint = values
        elif writable:
            joint += values
        else:
            joint = joint + values
            writable = joint.size == math.prod(shape)
    assert joint is not None
    return joint if joint.ndim == len(shape) and writable else np.broadcast_to(joint, shape)


def _log_sum(joint: Floats) -> Floats:
    """Return the log-sum-exp over the first dim of finite values, which need no check for -inf."""
    peak = joint.max(0)
    return np.log(np.exp(joint - peak).sum(0)) + peak


def log_sum(values: Floats, dim: int) -> Floats:
    """Log-sum-exp along a dim; -inf where all values are."""
    peak = values.max(dim, keepdims=True)
    safe = np.where(np.isfinite(peak), peak, 0.0)
    with np.errstate(divide="ignore"):
        return np.log(np.exp(values - safe).sum(dim)) + safe.squeeze(dim)


def annealed(
    tables: Tables, rng: "np.random.Generator", *, memory: float, deadline: float
) -> tuple[Integers, Integers] | None:
    """Return (n, V) approximate draws of the model, and (m, V) other configurations that were seen.

    Several chains are cooled from random states, and the best of them is the start. A move draws
    the variables that an order of small tables eliminates, given all others. The last moves take
    maxima over them instead. Each move has a new order. Returns None if the deadline comes first.
    """
    model, largest = tables.finite(), max(tables.sizes, default=1)
    chains = _cooled(model, rng, deadline)
    if chains is None:
        return None
    cells = max(min(max(effort.PIN_CELLS, 4.0 * largest**2), memory / tuning.PIN_BYTES), largest)
    part, choice = range(len(tables.sizes)), Random(int(rng.integers(2**63)))
    states = max(chains, key=model.score)
    drawn, others = list[Integers](), [chains]
    for move in range(effort.PIN_MOVES + effort.PIN_MAXIMA):
        order = conditioned_order(tables.graph, part, rng=choice, cells=cells, deadline=deadline)
        if order is None:
            return None
        # Draws first, from which the chain goes on; then maxima, as further configurations.
        if move < effort.PIN_MOVES:
            drawn.append(draw(model, order, states, effort.PIN_DRAWS, rng))
            states = drawn[-1][0]
        else:
            states, _ = eliminate(model, order, states)
            others.append(states[None])
    return np.concatenate(drawn), np.concatenate(others)


def _cooled(tables: Tables, rng: "np.random.Generator", deadline: float) -> Integers | None:
    """Return the (C, V) states of chains after Gibbs sweeps at decreasing temperatures.

    The first sweep shows how many there is time for. Returns None if these would be too few.
    """
    near = _neighbourhoods(tables)
    # Chains begin so hot that the widest table spans ANNEALED_RANGE nats, and end at temperature 1.
    ranges = [float(np.ptp(stack.values)) for stack in tables.stacks]
    least = min(effort.ANNEALED_RANGE / max([*ranges, effort.ANNEALED_RANGE]), 1.0)
    sizes = np.array(tables.sizes, np.int64)
    states = rng.integers(0, sizes[:, None], (len(sizes), effort.ANNEALED_CHAINS))
    begin, sweep, sweeps = clock.now(), 0, effort.ANNEALED_SWEEPS
    while sweep < sweeps:
        power = least ** (1.0 - sweep / (sweeps - 1))
        for place, v in enumerate(rng.permutation(len(sizes)).tolist()):
            log_values = np.zeros((tables.sizes[v], effort.ANNEALED_CHAINS))
            clock.count(tuning.SEARCH_VISIT * (1 + len(near[v])))
            for values, others, strides, along in near[v]:
                log_values += values[along[:, None] + strides @ states[others]]
            # Draw the variable's state in every chain, given its neighbours.
            log_values -= log_values.max(0)
            reach = np.exp(power * log_values).cumsum(0)
            states[v] = (reach < rng.random(effort.ANNEALED_CHAINS) * reach[-1]).sum(0)
            if place % effort.ANNEALED_LOOK == 0 and clock.now() > deadline:
                return None
        sweep += 1
        if sweep == 1:
            took = clock.now() - begin
            if effort.ANNEALED_LEAST * took > deadline - begin:
                return None
            if effort.ANNEALED_SWEEPS * took > deadline - begin:
                sweeps = int((deadline - begin) / took)
    return states.T.copy()


def _neighbourhoods(tables: Tables) -> list[list[tuple[Floats, Integers, Integers, Integers]]]:
    """List for each variable its factors: flat values, other variables, strides, own places."""
    near: list[list[tuple[Floats, Integers, Integers, Integers]]] = [[] for _ in tables.sizes]
    for stack in tables.stacks:
        shape = stack.values.shape[1:]
        strides = np.array([math.prod(shape[k + 1 :]) for k in range(len(shape))], np.int64)
        flat = stack.values.reshape(len(stack.scopes), -1)
        for slot, size in enumerate(shape):
            left, along = np.delete(strides, slot), strides[slot] * np.arange(size)
            rest = np.delete(stack.scopes, slot, 1)
            for v, values, others in zip(stack.scopes[:, slot].tolist(), flat, rest, strict=True):
                near[v].append((values, others, left, along))
    return near


class ReachedConfigurations:
    """The configurations that were reached so far, and how many starts reached each."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._scores = dict[bytes, float]()
        self._found = dict[bytes, int]()
        self.starts = 0

    def add(self, states: Integers) -> tuple[Integers, float]:
        """Add the configurations (n, V) of one start.

        Returns the new one of largest mass, (V,), and the log of the summed mass of all new ones.
        """
        self.starts += 1
        new = dict[bytes, float]()
        for key in {row.tobytes() for row in states.astype(np.int64)}:
            if key not in self._scores:
                new[key] = self._tables.score(np.frombuffer(key, np.int64))
            self._found[key] = self._found.get(key, 0) + 1
        self._scores.update(new)
        heaviest = max(new, key=lambda key: new[key], default=states[0].tobytes())
        return np.frombuffer(heaviest, np.int64), log_total(new.values())

    @property
    def lower(self) -> float:
        """A lower bound on log Z: the log of the summed mass of all configurations."""
        return log_total(self._scores.values())

    def heaviest(self, most: int) -> Integers:
        """Return the (P, V) configurations with the highest scores."""
        most = min(most, effort.MOST_PINS)
        keys = sorted(self._scores, key=lambda key: -self._scores[key])[:most]
        possible = [key for key in keys if self._scores[key] > -math.inf]
        rows = [np.frombuffer(key, np.int64) for key in possible]
        return np.array(rows, np.int64).reshape(len(rows), len(self._tables.sizes))

    def found_once(self, states: Integers) -> tuple[Integers, Floats]:
        """Return places and scores of those configurations that only one start reached."""
        keys = [row.tobytes() for row in states]
        once = [place for place, key in enumerate(keys) if self._found[key] == 1]
        scores = [self._scores[keys[place]] for place in once]
        return np.array(once, np.int64), np.array(scores, np.float64)

    def is_found_again(self, log_partition: float) -> bool:
        """Return whether two starts reached the one of largest mass, or it is a small part of Z."""
        best = max(self._scores, key=lambda key: self._scores[key], default=None)
        if best is None or self._scores[best] < log_partition + math.log(effort.PIN_MASS):
            return best is not None
        return self._found[best] > 1


def log_total(scores: Iterable[float]) -> float:
    """Return the log-sum-exp of scores, which is -inf where there are none."""
    return float(log_sum(np.array([*scores, -math.inf]), 0))
