"""What the configurations that a population was made of say: marginals, score, the likeliest."""

import numpy as np

from rdpgraph.engines.minibuckets.population import Grown
from rdpgraph.engines.tables import Floats, Integers


def averages(run: Grown, bound: float, starts: Integers) -> tuple[Floats, float]:
    """The probabilities of the states, and the expected score, under the estimate.

    Means over all paths through the population, forwards and backwards, consistent as it grows.

    Args:
        run: with its steps, and a member left at least.
        bound: the log-weight before the first step.
        starts: (V + 1,) where the states of each variable begin in a list of all.

    Returns:
        (S,), zero for variables without a step, and nats.
    """
    flat, score = np.zeros(int(starts[-1])), bound
    shares = run.shares
    for step in reversed(run.steps):
        flow = shares[step.members] * step.shares
        first = int(starts[step.variable])
        size = int(starts[step.variable + 1]) - first
        flat[first : first + size] = np.bincount(step.states, flow, size)
        score += float((flow * step.gains).sum())
        shares = np.bincount(step.parents, flow, step.before)
    return flat, score


def paths(run: Grown, variables: int, most: int) -> Integers:
    """(n, V) the configurations of the members with the largest weights, of their largest parts.

    Args:
        run: with the steps of all variables.
        variables: V.
        most: configurations at most.
    """
    members = np.argsort(-run.shares, kind="stable")[:most]
    states = np.zeros((len(members), variables), np.int64)
    for step in reversed(run.steps):
        # The last part that is written for a member is its largest one.
        rising = np.argsort(step.shares, kind="stable")
        largest = np.zeros(int(step.members.max(initial=-1)) + 1, np.int64)
        largest[step.members[rising]] = rising
        parts = largest[members]
        states[:, step.variable] = step.states[parts]
        members = step.parents[parts]
    return states
