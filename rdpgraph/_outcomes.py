"""Every outcome of a selection with its probability, and the expectation of an estimate by them."""

import itertools
import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from rdpgraph._agreement import agree, seeded
from rdpgraph.estimate.proposal import Proposal
from rdpgraph.estimate.randomized import Randomized
from rdpgraph.estimate.selection import Inversion, Selection
from rdpgraph.estimate.selections import Top
from rdpgraph.infer import infer
from rdpgraph.model.graph import FactorGraph
from rdpgraph.model.structure import Structure
from rdpgraph.model.support import Support

LAST = 1.0 - 2.0**-53
"""The largest number that a uniform draw gives."""


def outcomes(selection: Inversion, log_q: Tensor) -> list[tuple[float, Support]]:
    """[(probability, support)] over all uniform numbers that decide what is kept of one row.

    The number j moves nothing but entries decided by it and later ones, and no entry's state
    falls as its number grows; so all the points at which the outcome changes are found by
    bisection, however close together they are.
    """
    count = selection.num_uniforms(log_q.shape[-1])
    listed: list[tuple[float, Support]] = []

    def chosen(numbers: list[float]) -> Support:
        rest = [0.5] * (count - len(numbers))
        return selection.choose(log_q, torch.tensor([*numbers, *rest], dtype=torch.float64))

    def key(numbers: list[float]) -> tuple[float, ...]:
        support = chosen(numbers)
        return (*support.states.tolist(), *support.log_weights.tolist())

    def changes(
        before: list[float], low: float, high: float, first: tuple[float, ...],
        last: tuple[float, ...],
    ) -> list[float]:  # fmt: skip
        if first == last:
            return []
        middle = (low + high) / 2
        if middle in (low, high):
            return [high]
        between = key([*before, middle])
        return changes(before, low, middle, first, between) + changes(
            before, middle, high, between, last
        )

    def walk(before: list[float], probability: float) -> None:
        if len(before) == count:
            listed.append((probability, chosen(before)))
            return
        points = changes(before, 0.0, LAST, key([*before, 0.0]), key([*before, LAST]))
        for low, high in itertools.pairwise([0.0, *points, 1.0]):
            walk([*before, (low + high) / 2], probability * (high - low))

    walk([], 1.0)
    merged: dict[tuple[tuple[int, float], ...], tuple[float, Support]] = {}
    for chance, support in listed:
        # The order of the entries makes no difference to the model on them.
        alike = tuple(
            sorted(zip(support.states.tolist(), support.log_weights.tolist(), strict=True))
        )
        before, _ = merged.get(alike, (0.0, support))
        merged[alike] = (before + chance, support)
    return list(merged.values())


@dataclass(eq=False)
class Recorder(Selection):
    """Notes the scores that it is shown, and keeps the best state.

    Attributes:
        seen: the scores, one after the other.
    """

    seen: list[Tensor] = field(default_factory=list[Tensor])

    def select(self, log_q: Tensor, generator: torch.Generator | None) -> Support:
        """The best state."""
        self.seen.append(log_q)
        return Top(1).select(log_q, generator)


@dataclass(eq=False)
class Script(Selection):
    """Gives out supports in order.

    Attributes:
        supports: those left.
    """

    supports: list[Support]

    def select(self, log_q: Tensor, generator: torch.Generator | None) -> Support:
        """The next support in order, whatever the scores."""
        return self.supports.pop(0)


def expectation(
    model: FactorGraph | Structure,
    proposal: Proposal,
    selection: Inversion,
    *,
    defensive: float = 0.1,
) -> tuple[Tensor, int]:
    """Log E[Z^] and the number of joint outcomes: the estimator is run on each, as a replicate."""
    recorder = Recorder()
    estimator = Randomized(proposal, recorder, defensive=defensive)
    infer(model, estimator=estimator, generator=seeded(3))
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
    posterior: Any = infer(model, estimator=estimator, generator=seeded(3))
    agree(posterior.log_partitions.shape == (len(joint),), "each replicate has an estimate of Z")
    return (chances.log() + posterior.log_partitions).logsumexp(0), len(joint)
