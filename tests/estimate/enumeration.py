"""Every outcome of a selection with its probability, from the selection alone."""

import itertools
import math
from dataclasses import dataclass, field

import torch

import rdpgraph as rg
from rdpgraph.estimate.randomized import Randomized
from rdpgraph.estimate.selection import Selection
from rdpgraph.estimate.selections import Top
from rdpgraph.model.support import Support

LAST = 1.0 - 2.0**-53


def outcomes(selection, log_q):
    """[(probability, support)] over all uniform numbers that decide what is kept of one row.

    The number j moves nothing but entries decided by it and later ones, and no entry's state
    falls as its number grows; so all the points at which the outcome changes are found by
    bisection, however close together they are.
    """
    count = selection.num_uniforms(log_q.shape[-1])
    found = []

    def chosen(numbers):
        rest = [0.5] * (count - len(numbers))
        uniforms = torch.tensor([*numbers, *rest], dtype=torch.float64)
        return selection.choose(log_q, uniforms)

    def key(numbers):
        support = chosen(numbers)
        return (*support.states.tolist(), *support.log_weights.tolist())

    def changes(before, low, high, first, last):
        if first == last:
            return []
        middle = (low + high) / 2
        if middle in (low, high):
            return [high]
        between = key([*before, middle])
        return changes(before, low, middle, first, between) + changes(
            before, middle, high, between, last
        )

    def walk(before, probability):
        if len(before) == count:
            found.append((probability, chosen(before)))
            return
        points = changes(before, 0.0, LAST, key([*before, 0.0]), key([*before, LAST]))
        for low, high in itertools.pairwise([0.0, *points, 1.0]):
            walk([*before, (low + high) / 2], probability * (high - low))

    walk([], 1.0)
    merged = {}
    for chance, support in found:
        # The order of the entries makes no difference to the model on them.
        alike = tuple(
            sorted(zip(support.states.tolist(), support.log_weights.tolist(), strict=True))
        )
        before, _ = merged.get(alike, (0.0, support))
        merged[alike] = (before + chance, support)
    return list(merged.values())


@dataclass(eq=False)
class Recorder(Selection):
    """Notes the scores that it is shown, and keeps the best state."""

    seen: list = field(default_factory=list)

    def select(self, log_q, generator):
        self.seen.append(log_q)
        return Top(1).select(log_q, generator)


@dataclass(eq=False)
class Script(Selection):
    """Gives out supports in order."""

    supports: list

    def select(self, log_q, generator):
        return self.supports.pop(0)


def expectation(model, proposal, selection, *, defensive=0.1):
    """E[Z^] by running the estimator once for every joint outcome of all sites, as replicates."""

    def generator():
        return torch.Generator().manual_seed(3)

    recorder = Recorder()
    estimator = Randomized(proposal, recorder, defensive=defensive)
    rg.infer(model, estimator=estimator, generator=generator())
    (log_q,) = recorder.seen
    rows = [outcomes(selection, row) for row in log_q.flatten(0, -2)]
    joint = list(itertools.product(*rows))
    supports = [
        Support(
            torch.stack([support.states for _, support in row]).reshape(*log_q.shape[:-1], -1),
            torch.stack([support.log_weights for _, support in row]).reshape(*log_q.shape[:-1], -1),
        )
        for row in joint
    ]
    chances = torch.tensor(
        [math.prod(chance for chance, _ in row) for row in joint], dtype=torch.float64
    )
    estimator = Randomized(proposal, Script(supports), replicates=len(joint), defensive=defensive)
    posterior = rg.infer(model, estimator=estimator, generator=generator())
    assert posterior.log_partitions.shape == (len(joint),)
    return (chances.log() + posterior.log_partitions).logsumexp(0), len(joint)
