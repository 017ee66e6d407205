"""Answers about small models by enumeration, and assertions that compare answers with them."""

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rdpgraph._core import tuning
from rdpgraph._core.arguments import typed
from rdpgraph._core.numbers import ROUNDING
from rdpgraph._core.types import broadcast_shapes
from rdpgraph.errors import ModelError, UnsupportedError
from rdpgraph.interface.structure import Structure
from rdpgraph.logspace.logmatrix import finite
from rdpgraph.model.domain import Named
from rdpgraph.model.graph import FactorGraph

_MOST_SCORED = tuning.MOST_ENUMERATED // 4  # configurations of a structure


SIGMAS = 6.0
"""Tolerance of means in standard errors; a correct one fails once in 10^9."""

NUMBERS: dict[str, Callable[[Any], Any]] = {
    "log_partition": lambda posterior: posterior.log_partition,
    "marginals()": lambda posterior: posterior.marginals(),
    "max_marginals()": lambda posterior: posterior.max_marginals(),
    "entropy()": lambda posterior: posterior.entropy(),
}
"""Questions with a deterministic numerical answer."""

QUESTIONS: dict[str, Callable[[Any], Any]] = NUMBERS | {
    "mode()": lambda posterior: posterior.mode(),
    "sample()": lambda posterior: posterior.sample(6, generator=seeded()),
    "rsample()": lambda posterior: posterior.rsample(temperature=0.7, generator=seeded()),
}
"""Questions to every posterior."""


def seeded(seed: int = 0) -> torch.Generator:
    """A generator of a seed."""
    return torch.Generator().manual_seed(seed)


def tensors_of(answer: Any) -> list[Tensor]:
    """The tensors of an answer, whatever the question and the model."""
    if isinstance(answer, Tensor):
        return [answer]
    return list((answer if isinstance(answer, dict) else vars(answer)).values())


def alike(got: Any, expected: Any, what: str) -> None:
    """Assert that two answers have one type, equal shapes and types of tensors, and no NaN."""
    kind = Tensor if isinstance(expected, Tensor) else type(expected)
    agree(isinstance(got, kind), f"{what} is a {kind.__name__}")
    for one, other in zip(tensors_of(got), tensors_of(expected), strict=True):
        agree(one.shape == other.shape, f"{what} has shape {tuple(other.shape)}")
        agree(one.dtype == other.dtype, f"{what} has type {other.dtype}")
        agree(not bool(one.isnan().any()), f"{what} has no NaN")


def close(got: Tensor, expected: Tensor, what: str) -> None:
    """Assert that two tensors that broadcast are equal, up to the rounding of their type."""
    got, expected = torch.broadcast_tensors(got.detach(), expected.detach())
    if got.dtype == torch.bool:
        got, expected = got.long(), expected.long()
    tolerance = 1e-8 if got.dtype == torch.float64 else 1e-4
    same = (got == expected) | ((got - expected).abs() <= tolerance * (1 + expected.abs()))
    if not bool(same.all()):
        worst = (got - expected).abs()[~same].max()
        raise AssertionError(f"{what} differs from what it must be, by {float(worst):.3g}.")


def agree_on_average(ratios: Tensor, what: str) -> None:
    """Assert that the mean of draws (n, ...) is one, by their standard error."""
    error = ratios.std(0) / math.sqrt(len(ratios))
    off = (ratios.mean(0) - 1).abs() > SIGMAS * error + ROUNDING
    means = [round(mean, 3) for mean in ratios.mean(0).reshape(-1).tolist()]
    agree(not bool(off.any()), f"{what}; the means of {len(ratios):,} draws are {means}")


def agree(holds: object, what: str) -> None:
    """Raise an AssertionError that quotes the statement ``what`` unless it holds."""
    if not holds:
        raise AssertionError(f"This must hold, and does not: {what}.")


@dataclass(frozen=True, eq=False)
class BruteForce:
    """Answers about a small graph by enumerating its configurations.

    Attributes:
        graph: the model.
        configurations: (C, V) the states of every configuration.
        scores: (C, B) their log-values, batch items flattened.
    """

    graph: FactorGraph
    configurations: Tensor
    scores: Tensor

    @property
    def log_partition(self) -> Tensor:
        """(*batch,) log Z."""
        return self.scores.logsumexp(0).reshape(self.graph.batch_shape)

    @property
    def probabilities(self) -> Tensor:
        """(C, B); zero throughout where log Z is -inf."""
        return _normalised(self.scores)

    def joint(self, items: tuple[Named, ...]) -> Tensor:
        """(*batch, *sizes) the joint probabilities of some variables."""
        return self._folded(items, self.probabilities, maximise=False)

    def max_marginal(self, item: Named) -> Tensor:
        """(*batch, states) the largest score with each state."""
        return self._folded((item,), self.scores, maximise=True)

    def log_joint(self, items: tuple[Named, ...]) -> Tensor:
        """(*batch, *sizes) the log-mass of each configuration of some variables."""
        return self.joint(items).log() + self.log_partition.reshape(
            *self.graph.batch_shape, *(1,) * len(items)
        )

    @property
    def entropy(self) -> Tensor:
        """(*batch,) in nats."""
        return _entropy(self.probabilities).reshape(self.graph.batch_shape)

    @property
    def maximum(self) -> Tensor:
        """(*batch,) the score of the mode."""
        return self.scores.amax(0).reshape(self.graph.batch_shape)

    def _folded(self, items: tuple[Named, ...], values: Tensor, *, maximise: bool) -> Tensor:
        domain = self.graph.domain
        numbers = [int(domain.numbers(item)) for item in items]
        sizes = [int(domain.sizes[number]) for number in numbers]
        place = torch.zeros(len(self.configurations), dtype=torch.long)
        for number, size in zip(numbers, sizes, strict=True):
            place = place * size + self.configurations[:, number]
        flat = values.new_full((math.prod(sizes), values.shape[1]), -math.inf if maximise else 0.0)
        index = place.unsqueeze(1).expand(-1, values.shape[1])
        flat = flat.scatter_reduce(0, index, values, "amax" if maximise else "sum")
        return flat.T.reshape([*self.graph.batch_shape, *sizes])


def _normalised(scores: Tensor) -> Tensor:
    return (scores - finite(scores.logsumexp(0))).exp()


def _entropy(p: Tensor) -> Tensor:
    return -(p * torch.where(p > 0, p, 1.0).log()).sum(0)


@typed()
def brute_force(graph: FactorGraph) -> BruteForce:
    """Enumerate a graph with at most a million configurations.

    Raises:
        ModelError: the graph is larger than that.
    """
    sizes = graph.domain.sizes.tolist()
    count = math.prod(sizes)
    if count > tuning.MOST_ENUMERATED:
        raise ModelError(
            f"brute_force enumerates at most {tuning.MOST_ENUMERATED:,} configurations; this graph "
            f"has {count:,}."
        )
    # Beside a variable of one state, so that there is one.
    configurations = torch.cartesian_prod(*map(torch.arange, [1, 1, *sizes]))[:, 2:]
    ones = (1,) * len(graph.batch_shape)
    assignment: dict[Named, Any] = {}
    for entry, start, stop in zip(
        graph.variables, graph.domain.starts, graph.domain.starts[1:], strict=False
    ):
        states = configurations[:, start:stop]
        assignment[entry] = states.reshape([count, *ones, *entry.shape])
    scores = graph.score(assignment)
    scores = scores.expand(broadcast_shapes(scores.shape, (count, *graph.batch_shape)))
    return BruteForce(graph, configurations, scores.reshape(count, -1))


@dataclass(frozen=True, eq=False)
class Enumeration:
    """The configurations of a structure that may be possible, and their scores.

    Attributes:
        structure: the model.
        uses: (C, S, states) the number of times each uses every state of its sites, row by row.
        scores: (C, *batch) nats.
        graph: of the same sites; a site that an item lacks is held in a state and counts.
    """

    structure: Structure
    uses: Tensor
    scores: Tensor
    graph: FactorGraph | None = None

    @classmethod
    def of(cls, structure: Structure) -> "Enumeration":
        """The configurations that a structure lists, or those that use possible states of sites."""
        batch = structure.log_partition().ndim
        shape, lead = structure.unary.shape[batch:], structure.unary.shape[:batch]
        states, there = structure.listed(), None
        if states is None:
            states, there = _combined(structure, batch)
        expanded = states.reshape(len(states), *(1,) * batch, *states.shape[1:])
        expanded = expanded.expand(len(states), *lead, *states.shape[1:])
        scores = structure.score(expanded).detach()
        if there is not None:
            scores = torch.where(there.reshape(scores.shape), scores, -math.inf)
        one = structure.uses(expanded).reshape(len(states), lead.numel(), -1, shape[-1])[:, 0]
        return cls(structure, one, scores)

    @property
    def log_partition(self) -> Tensor:
        """(*batch,) log Z."""
        return self.scores.logsumexp(0)

    @property
    def maximum(self) -> Tensor:
        """(*batch,) the score of the mode."""
        return self.scores.amax(0)

    @property
    def entropy(self) -> Tensor:
        """(*batch,) the entropy, nats."""
        return _entropy(self.probabilities)

    @property
    def marginals(self) -> Tensor:
        """(*batch, *sites, states)."""
        uses = self.uses.to(self.scores)
        marginals = torch.einsum("c...,csn->...sn", self.probabilities, uses)
        return marginals.reshape(self.structure.unary.shape)

    @property
    def max_marginals(self) -> Tensor:
        """Return the best score of a configuration by the states it uses, (*batch, *sites, states).

        Scores are in nats, unnormalised, and -inf where no configuration uses the state.
        """
        flat, used = self.scores.reshape(len(self.scores), -1).T, self.uses > 0
        best = [torch.where(used, row.reshape(-1, 1, 1), -math.inf).amax(0) for row in flat]
        return torch.stack(best).reshape(self.structure.unary.shape)

    @property
    def most(self) -> Tensor:
        """(*sites) the most times that a configuration uses each site."""
        batch = self.scores.ndim - 1
        return self.uses.sum(-1).amax(0).reshape(self.structure.unary.shape[batch:-1])

    def score(self, states: Tensor) -> Tensor:
        """(*lead, *batch) the scores (nats) of configurations (*lead, *batch, *sites)."""
        if self.graph is None:
            return self.structure.score(states)
        return self.graph.score({self.graph.variables[0]: states.clamp(min=0)})

    @property
    def probabilities(self) -> Tensor:
        """Return the probability of each configuration, (C, *batch).

        They are zero throughout where log Z is -inf.
        """
        return _normalised(self.scores)


def _combined(structure: Structure, batch: int) -> tuple[Tensor, Tensor]:
    """Combinations (C, *sites) of possible states, -1 for none; and their items (C, items)."""
    sites = structure.sites()
    unary = (structure.unary if sites is None else sites.unary).detach()
    possible = (unary > -math.inf).reshape(unary.shape[:batch].numel(), -1, unary.shape[-1])
    lists = [[-1, *row.nonzero().flatten().tolist()] for row in possible.any(0)]
    count = math.prod(len(row) for row in lists)
    if count > _MOST_SCORED:
        raise ModelError(
            f"check_structure scores at most {_MOST_SCORED:,} configurations; this "
            f"{type(structure).__name__} has {count:,}: give it fewer sites or states."
        )
    states = torch.tensor(list(itertools.product(*lists)), device=unary.device)
    states = states.reshape(count, -1)
    # A site that an item lacks has no state.
    some = states.clamp(min=0).T.expand(len(possible), -1, -1)
    has = possible.gather(2, some) | (states < 0).T
    return states.reshape(count, *unary.shape[batch:-1]), has.all(1).T


def truth_of(structure: Structure) -> Enumeration:
    """The configurations of a structure: of its graph, or by its scores if it has none."""
    try:
        graph = structure.factor_graph()
    except UnsupportedError:
        return Enumeration.of(structure)
    sites = structure.unary.shape[len(graph.batch_shape) : -1]
    kinds = {(tuple(entry.shape), entry.size) for entry in graph.variables}
    if kinds != {(tuple(sites), structure.unary.shape[-1])}:
        return Enumeration.of(structure)  # the graph has other sites
    brute = brute_force(graph)
    uses = brute.configurations.unsqueeze(-1) == torch.arange(structure.unary.shape[-1])
    scores = brute.scores.reshape(-1, *graph.batch_shape)
    return Enumeration(structure, uses.long(), scores, graph)
