"""The configurations that bounds of all that depends on them make the best."""

import math
from collections.abc import Set

import numpy as np

from rdpgraph.engines.minibuckets.bounds import Elimination
from rdpgraph.engines.tables import Floats, Integers


def best_bounded(passed: Elimination, maximised: Set[int], count: int) -> tuple[Integers, Floats]:
    """Configurations of the maximised variables, those with the highest bounds first.

    Grows them backwards along the order of elimination, a variable at a time, and keeps the best.

    Args:
        passed: the maximised variables were the last of its order.
        maximised: these variables; the others keep state 0.
        count: how many configurations are kept at a time.

    Returns:
        (n, V) states and (n,) bounds of their scores, or sums; n is 0 where none is possible.
    """
    states = np.zeros((len(passed.buckets), 1), np.int32)
    bounds = np.array([passed.bound])
    for bucket in reversed(passed.buckets):
        v = bucket[0].scope[0]
        if v not in maximised:
            break
        each = np.repeat(bounds[None], len(bucket[0].values), 0)
        for part in bucket:
            each += part.values[(slice(None), *(states[u] for u in part.scope[1:]))].reshape(
                len(each), -1
            )
            said = np.asarray(part.message[tuple(states[u] for u in part.rest)])
            each -= np.where(said > -math.inf, said, 0.0)
        flat = each.reshape(-1)
        order = np.argsort(-flat, kind="stable")[:count]
        order = order[flat[order] > -math.inf]
        states = states[:, order % len(bounds)]
        states[v] = order // len(bounds)
        bounds = flat[order]
    return states.T.astype(np.int64), bounds
