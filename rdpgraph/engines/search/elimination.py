"""Bucket elimination of some variables given all others: best states, or draws."""

import math
from collections.abc import Callable, Sequence, Set
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from rdpgraph.engines.reduction.tables import Floats, Integers, Tables
from rdpgraph.plan import clock
from rdpgraph.plan.cutset import ConditionedOrder

_Bucket: TypeAlias = list[tuple[tuple[int, ...], Floats]]

_BYTE = 256
_STEP, _CELL = 1e4, 2.0
"""Operations of a variable, and of each entry of its table."""


def eliminate(
    tables: Tables, order: ConditionedOrder, states: Integers, *, summed: Set[int] = frozenset()
) -> tuple[Integers, float]:
    """Best configuration given the variables fixed by an order, and its log-value (nats).

    Bucket elimination (Dechter 1999). Variables in ``summed`` go first in the order, are summed
    over, and keep their states; those of other eliminated variables are not read.
    """

    def reduced(step: tuple[int, ...], joint: Floats) -> tuple[Floats, npt.NDArray[Any] | None]:
        if step[0] in summed:
            return _log_sum(joint), None
        if tables.sizes[step[0]] == 2:
            return np.maximum(joint[0], joint[1]), joint[1] > joint[0]
        kind = np.uint8 if tables.sizes[step[0]] <= _BYTE else np.int32
        return joint.max(0), joint.argmax(0).astype(kind)

    traces, total = _eliminated(tables, order, states, reduced)
    chosen = states.tolist()
    for step, best in reversed(traces):
        chosen[step[0]] = int(best[tuple([chosen[u] for u in step[1:]])])
    return np.array(chosen, np.int64), total


def draw(
    tables: Tables, order: ConditionedOrder, states: Integers, count: int, rng: np.random.Generator
) -> Integers:
    """(count, V) exact draws given the variables fixed by an order; no value may be infinite."""

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
    tables: Tables,
    order: ConditionedOrder,
    states: Integers,
    reduced: Callable[[tuple[int, ...], Floats], tuple[Floats, npt.NDArray[Any] | None]],
) -> tuple[list[tuple[tuple[int, ...], npt.NDArray[Any]]], float]:
    """Traces of the steps for a traceback, and the final value.

    ``reduced`` gives the message of a step, without its first dim, and its trace, or None.
    """
    clock.count(_STEP * (len(order.steps) + len(order.fixed)) + _CELL * order.cells)
    buckets, total = _filled(tables, order, states)
    rank = {step[0]: place for place, step in enumerate(order.steps)}
    traces: list[tuple[tuple[int, ...], npt.NDArray[Any]]] = []
    for place, step in enumerate(order.steps):
        joint = _product(buckets[place], step, tables.sizes)
        buckets[place] = []
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
    """Factors given the fixed variables, each in its first bucket; and the sum of constant ones."""
    rank = np.full(len(tables.sizes), -1)
    rank[[step[0] for step in order.steps]] = np.arange(len(order.steps))
    alone = np.zeros(int(tables.starts[-1]))
    buckets: list[_Bucket] = [[] for _ in order.steps]
    total = 0.0
    for stack in tables.stacks:
        places = rank[stack.scopes]
        free = places >= 0
        count = free.sum(1)
        total += float(stack.at(np.flatnonzero(count == 0), states).sum())
        single = count == 1
        for slot in range(stack.scopes.shape[1]):
            rows = np.flatnonzero(single & free[:, slot])
            begin = tables.starts[stack.scopes[rows, slot]]
            index = begin[:, None] + np.arange(stack.values.shape[1 + slot])
            np.add.at(alone, index, stack.at(rows, states, slot))
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
    starts = tables.starts.tolist()
    for bucket, step in zip(buckets, order.steps, strict=True):
        v = step[0]
        bucket.append(((v,), alone[starts[v] : starts[v + 1]]))
    return buckets, total


def _product(bucket: _Bucket, scope: tuple[int, ...], sizes: Sequence[int]) -> Floats:
    """Sum of log-values over a scope; all scopes are in elimination order."""
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
    """Log-sum-exp over the first dim; no value is infinite."""
    peak = joint.max(0)
    return np.log(np.exp(joint - peak).sum(0)) + peak
