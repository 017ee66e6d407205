"""Configurations drawn by the messages of mini-buckets, with their importance weights.

Liu, Fisher and Ihler (2015), Probabilistic variational bounds for graphical models: every weight
is at most the upper bound.
"""

import math

import numpy as np

from rdpgraph.engines.minibuckets.bounds import Elimination, MiniBucket
from rdpgraph.engines.tables import Floats, Integers, Tables


def draw(
    tables: Tables, passed: Elimination, count: int, rng: np.random.Generator
) -> tuple[Integers, Floats, Floats]:
    """Independent configurations of all variables.

    Args:
        tables: the model.
        passed: with positive weights.
        count: how many.
        rng: the randomness.

    Returns:
        (count, V) states; (count,) the logs of their weights, whose exponentials have the mean Z;
        and (count,) their scores. -inf for those that are impossible.
    """
    states = np.zeros((len(tables.sizes), count), np.int64)
    log_q = np.zeros(count)
    columns = np.arange(count)
    for bucket in reversed(passed.buckets):
        v = bucket[0].scope[0]
        mixture = conditional(bucket, states)
        drawn = (rng.random(count) > np.cumsum(mixture, 0)).sum(0).clip(max=len(mixture) - 1)
        states[v] = drawn
        with np.errstate(divide="ignore"):
            log_q += np.log(mixture[drawn, columns])
    scores = np.zeros(count)
    for stack in tables.stacks:
        rows = np.arange(len(stack.scopes))[:, None]
        index = [states[stack.scopes[:, slot]] for slot in range(stack.scopes.shape[1])]
        scores += stack.values[(rows, *index)].sum(0)
    return states.T, np.where(scores == -math.inf, -math.inf, scores - log_q), scores


def conditional(bucket: tuple[MiniBucket, ...], states: Integers) -> Floats:
    """(states of the bucket's variable, count): its distribution given the later variables.

    A mixture over the mini-buckets, of the states that all of them allow. Where there is none, all
    states are as likely: the weight is zero whatever is drawn.

    Args:
        bucket: the mini-buckets of a variable.
        states: (V, count) of all variables; those of later ones are read.
    """
    total = np.zeros((len(bucket[0].values), states.shape[1]))
    allowed = np.ones_like(total, dtype=bool)
    for part in bucket:
        index = tuple(states[u] for u in part.scope[1:])
        values, message = part.values[(slice(None), *index)], part.message[index]
        if not index:
            values, message = values[:, None], np.asarray(message)[None]
        with np.errstate(invalid="ignore"):
            logs = (values - message) / part.weight
        allowed &= np.isfinite(values)
        total += part.weight * np.where(np.isfinite(logs), np.exp(logs), 0.0)
    total = np.where(allowed, total, 0.0)
    mass = total.sum(0)
    return np.where(mass > 0, total / np.where(mass > 0, mass, 1.0), 1.0 / len(total))
