"""Configurations of a network: their scores, the factors that they violate, the best of several."""

import math
import warnings
from collections.abc import Iterable
from dataclasses import dataclass, replace
from random import Random

import torch
from torch import Tensor

from rdpgraph.engines.moves import Moves
from rdpgraph.engines.reduction.network import Network
from rdpgraph.engines.reduction.tables import Integers
from rdpgraph.engines.scores import score_range
from rdpgraph.engines.solution import Solution
from rdpgraph.errors import BudgetError
from rdpgraph.model.block import log_values_at
from rdpgraph.model.graph import FactorGraph
from rdpgraph.model.soundness import items_named, require_possible

_NOT_FOUND = (
    "The mode of some item has probability zero, because no possible configuration was found. "
    "FactorGraph.violations(mode) counts the factors that it violates; more time may find a better "
    "one."
)


@dataclass(frozen=True, eq=False)
class Searched:
    """The configurations that a search found."""

    # (B, V) states of all variables; those of summed variables have no meaning. If no possible
    # configuration is known, they violate few factors.
    states: Tensor
    # (B,) their log-values in nats, in float64. Where a sum does not fit, a lower bound of it.
    scores: Tensor
    # (B,) True where it is proved that none is better; at a score of -inf, that none is possible.
    optimal: Tensor
    # (B,) upper bounds on all scores in float64, if they were computed; those that prove a
    # configuration optimal may exceed its score by rounding
    bounds: Tensor | None = None

    @property
    def found(self) -> Tensor:
        """(B,) bools, True where the configuration has positive probability."""
        return self.scores > -math.inf

    @property
    def exists(self) -> Tensor:
        """(B,) bools, False where it is proved that no configuration is possible."""
        return (self.found | ~self.optimal).cpu()

    def required(self, graph: FactorGraph, what: str = "mode") -> "Searched":
        """Return self if each item has a possible configuration; else raise an error.

        Raises:
            ImpossibleEvidenceError: it is proved that an item has none.
            BudgetError: none was found for an item.
        """
        require_possible(f"There is no {what}", self.exists.reshape(graph.batch_shape))
        if not bool(self.found.all()):
            lost = ~self.found.reshape(graph.batch_shape)
            where = f" in {items_named(lost)}" if lost.ndim else ""
            raise BudgetError(
                f"No possible configuration was found{where}: raise the time budget, or check that "
                "the hard zeros allow one."
            )
        return self

    def warned(self) -> "Searched":
        """Return self, and warn if a configuration has probability zero."""
        if not bool((self.found | self.optimal).all()):
            warnings.warn(_NOT_FOUND, stacklevel=2)
        return self


def best_of(network: Network, every: Iterable[Tensor]) -> Searched:
    """Return the best of several configurations (B, V) of the graph for each batch item.

    Where all have probability zero, it is one that violates the fewest factors.
    """
    best, least = None, torch.zeros(0, device="cpu")
    for states in every:
        new, count = scored(network, states.cpu()), violations(network.graph, states)
        if best is None:
            best, least = new, count
            continue
        better = (count < least) | ((count == least) & (new.scores > best.scores))
        chosen = torch.where(better.unsqueeze(1), new.states, best.states)
        scores = torch.where(better, new.scores, best.scores)
        best, least = replace(best, states=chosen, scores=scores), torch.minimum(count, least)
    assert best is not None
    return best


def likeliest(solution: Solution, graph: FactorGraph) -> Tensor:
    """Return the (B, V) likeliest states of the variables by the marginals of a solution."""
    flat = solution.variable_marginals().detach().cpu()
    sizes = graph.domain.sizes
    states = torch.zeros(len(flat), graph.num_variables, dtype=torch.long, device="cpu")
    for size in torch.unique(sizes).tolist():
        numbers = (sizes == size).nonzero().flatten()
        states[:, numbers] = flat[:, graph.domain.places(numbers, size)].argmax(-1)
    return states


def violations(graph: FactorGraph, states: Tensor) -> Tensor:
    """Count the factors and observations that configurations (B, V) contradict; returns (B,)."""
    states = states.to(graph.device).reshape(*graph.batch_shape, graph.num_variables)
    clash, every, _ = log_values_at(
        states, graph.domain, graph.blocks, graph.observed, graph.device
    )
    count = clash.sum(-1)
    for values in every:
        count = count + (values == -math.inf).sum(-1)
    return count.reshape(-1).cpu()


def scored(network: Network, states: Tensor) -> Searched:
    """Return configurations (B, V) with their scores, marked as not proved optimal.

    They are scored in the graph, whose factors need no auxiliary variables.
    """
    below, above = score_range(network.graph, states.to(network.graph.device))
    scores = (below + above) / 2.0
    return Searched(states, scores, torch.zeros(network.batch, dtype=torch.bool, device="cpu"))


@torch.no_grad()
def scored_in_graph(graph: FactorGraph, states: Tensor) -> Searched:
    """Return configurations (B, V) with their scores in a graph, which is not reduced for it."""
    scores = graph.score_states(states.reshape(*graph.batch_shape, graph.num_variables))
    known = scores.double().reshape(-1).expand(len(states))
    return Searched(states, known, torch.zeros_like(known, dtype=torch.bool))


def completed(moves: Moves, count: int, states: Integers) -> Integers:
    """Return states in which auxiliary variables have their best ones, if tables are small."""
    part = range(count, len(moves.tables.sizes))
    order = moves.part(part, rng=Random(0), cells=1e6)
    return states if order is None else moves.solved(order, states)[0]
