"""Estimates of a structure that is recognised in a graph, as answers about the graph."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from rdpgraph._core.cache import Kept, cached_property, differentiable_property
from rdpgraph._core.portable import tensors_in
from rdpgraph.engines.recognised import SitesInGraph, graph_held
from rdpgraph.engines.solution import Delegate, Question, Solution, Status, Value
from rdpgraph.errors import ModelError, UnsupportedError
from rdpgraph.estimate.estimator import Estimator, Lift, Model, Problem
from rdpgraph.interface.structure import REGISTRY, Match
from rdpgraph.model.graph import FactorGraph
from rdpgraph.structures.chain.model import Chain

_OF_FACTORS = {
    "factor_marginals", "joint", "joints", "marginal_mode", "marginal_mode_scores",
}  # fmt: skip
"""Questions about several variables, of which a structure's estimate does not know the factors."""


def prepared_as_structure(
    estimator: Estimator,
    graph: FactorGraph,
    *,
    solve: Callable[[Model], Any],
    generator: torch.Generator | None,
) -> Problem | None:
    """The problem of an estimator for the structure that a graph is; None if it is none.

    Hard zeros of one factor join all sites of a tree, and those of pairs the steps of a segment, so
    that a few states of each variable of the graph may have no configuration together. A structure
    chooses states that have. A chain's sites are the graph's variables: its graph is as good.
    """
    match = _estimated_match(graph)
    if match is None:
        return None
    try:
        problem = estimator.prepare(match.structure, solve=solve, generator=generator)
    except (ModelError, UnsupportedError):
        return None  # what the estimator refuses of a structure, it may take of a graph
    if problem.lift is None:
        return None
    of_graph = partial(_of_graph, estimator, graph, solve, generator)
    return Problem(problem.model, InGraph(graph, match, problem.lift, of_graph))


_NAME = "_estimated_structure"


def _estimated_match(graph: FactorGraph) -> Match | None:
    """The structure that a graph is, if its estimate is another one than that of the graph.

    The same object for the next call, so that randomized pruning can go on, unless a table was
    written to; or with gradients, which pass once through what was computed from the tables.
    """
    read = [(block.scopes, block.potential, block.rows) for block in graph.blocks]
    kept: Kept[Match | None] | None = vars(graph).get(_NAME)
    if kept is not None and kept.is_current(read):
        return kept.value
    match = _recognised(graph)
    if not any(part.requires_grad for part in tensors_in(graph.blocks)):
        vars(graph)[_NAME] = Kept.of(match, read)
    return match


def _recognised(graph: FactorGraph) -> Match | None:
    held = graph_held(graph)
    match = REGISTRY.recognise(held)
    if match is None or isinstance(match.structure, Chain):
        return None
    # Several structures in one graph are a batch of their own.
    if match.structure.batch_shape != held.batch_shape or match.structure.sites() is None:
        return None
    return match


def _of_graph(
    estimator: Estimator, graph: FactorGraph, solve: Callable[[Model], Any],
    generator: torch.Generator | None,
) -> Solution:  # fmt: skip
    """Solution by an estimator of the graph as a graph."""
    problem = estimator.prepare(graph, solve=solve, generator=generator)
    solution = solve(problem.model).solution
    return solution if problem.lift is None else problem.lift(solution)


@dataclass(frozen=True, eq=False)
class InGraph:
    """Lift from a structure's model on a few states to the graph that is the structure."""

    graph: FactorGraph
    match: Match
    lift: Lift  # from that model to the structure
    of_graph: Callable[[], Solution] = field(repr=False)  # another estimate, of the graph itself

    def __call__(self, solution: Solution) -> "InGraphSolution":
        return InGraphSolution(self, self.lift(solution))


@dataclass(frozen=True, eq=False)
class InGraphSolution(Delegate):
    """Answers about a graph from the estimate of a structure, site by site.

    Questions about several variables together are asked of an estimate of the graph itself, with
    states of its own.
    """

    made: InGraph
    inner: Solution  # about the structure

    def _ask(self, question: Question[Value]) -> Value:
        return question(self._general if question.subject in _OF_FACTORS else self.inner)

    @differentiable_property
    def _general(self) -> Solution:
        return self.made.of_graph()

    @cached_property
    def _sites(self) -> SitesInGraph:
        return SitesInGraph(self.made.graph, self.made.match)

    def status_of(self, answer: str) -> Status:
        """Status of the structure's estimate, or of the graph's where that answers."""
        return (self._general if answer in _OF_FACTORS else self.inner).status_of(answer)

    def _values(self, flat: Tensor, *, best: bool) -> Tensor:
        """(B, S) values of the variables' states, from those of the sites' states (B, S')."""
        values = flat.reshape(self.made.match.structure.unary.shape)
        return self._sites.flat(self._sites.values(values, best=best))

    def _states(self, states: Tensor, lead: tuple[int, ...]) -> Tensor:
        """(*lead, B, V) states of the variables from those of the sites (*lead, B, V')."""
        structure = self.made.match.structure
        states = states.reshape(*lead, *structure.states_shape)
        return self._sites.states(structure.configuration(states), lead)

    def variable_marginals(self) -> Tensor:
        return self._of_possible(self._values(self.inner.variable_marginals(), best=False))

    def max_marginals(self) -> Tensor:
        return self._values(self.inner.max_marginals(), best=True)

    def mode(self) -> Tensor:
        return self._states(self.inner.mode(), ())

    def possible_mode(self) -> Tensor:
        return self._states(self.inner.possible_mode(), ())

    def sample(self, count: int, generator: torch.Generator | None) -> Tensor:
        return self._states(self.inner.sample(count, generator), (count,))

    def rsample(self, temperature: float, generator: torch.Generator | None) -> Tensor:
        return self._values(self.inner.rsample(temperature, generator), best=False)

    def joint(self, numbers: Tensor, solve: Callable[[FactorGraph], Solution]) -> Tensor | None:
        return self._general.joint(numbers, solve)

    def joints(self, number: int) -> Tensor | None:
        return self._general.joints(number)

    def factor_marginals(self, block: int) -> Tensor:
        """(B, F, *sizes): of one variable each from marginals, else by an estimate of the graph."""
        declared = self.made.graph.blocks[block]
        if declared.arity != 1:
            return self._general.factor_marginals(block)
        places = self.made.graph.domain.places(declared.scopes[:, 0], declared.sizes[0])
        marginals = self.variable_marginals()
        return marginals[:, places.to(marginals.device)]
