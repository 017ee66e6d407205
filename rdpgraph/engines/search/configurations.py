"""Configurations of a search, scored and compared."""

import math
import warnings
from collections.abc import Iterable
from dataclasses import dataclass, replace
from random import Random

import torch
from torch import Tensor

from rdpgraph.engines.reduction.network import Network
from rdpgraph.engines.reduction.tables import Integers, Tables, tables_of
from rdpgraph.engines.search.elimination import eliminate
from rdpgraph.engines.solution import Solution
from rdpgraph.errors import BudgetError
from rdpgraph.model.graph import FactorGraph
from rdpgraph.model.scores import log_values_at
from rdpgraph.model.soundness import items_named, require_possible
from rdpgraph.plan.cutset import conditioned_order

_NOT_FOUND = (
    "No possible configuration was found for some item; its mode has probability zero, and "
    "FactorGraph.violations(mode) counts what it violates. More time may find a better one."
)


@dataclass(frozen=True, eq=False)
class Searched:
    """Configurations that a search arrived at."""

    # (B, V) of all variables; any state for summed ones. If no possible configuration is known, one
    # with few violations.
    states: Tensor
    # (B,) their log-values in nats, in float64; lower bounds of sums that do not fit
    scores: Tensor
    # (B,) it is proved that none is better; at a score of -inf, that none is possible
    optimal: Tensor

    @property
    def found(self) -> Tensor:
        """(B,) whether the configuration is possible."""
        return self.scores > -math.inf

    @property
    def exists(self) -> Tensor:
        """(B,) False where it is proved that no configuration is possible."""
        return (self.found | ~self.optimal).cpu()

    def required(self, graph: FactorGraph, what: str = "mode") -> "Searched":
        """Self, if each item has a possible configuration.

        Raises `ImpossibleEvidenceError` if it is proved that an item has none, else `BudgetError`.
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
        """Self, after a warning if a configuration has probability zero."""
        if not bool((self.found | self.optimal).all()):
            warnings.warn(_NOT_FOUND, stacklevel=2)
        return self


def best_of(network: Network, every: Iterable[Tensor]) -> Searched:
    """Best of several configurations (B, V) of the graph, for each batch item.

    If all have probability zero, one with the fewest violations.
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
    """(B, V) likeliest state of each variable, by the marginals of a solution."""
    flat = solution.variable_marginals().detach().cpu()
    sizes = graph.domain.sizes.cpu()
    states = torch.zeros(len(flat), graph.num_variables, dtype=torch.long, device="cpu")
    starts = sizes.cumsum(0) - sizes
    for size in torch.unique(sizes).tolist():
        numbers = (sizes == size).nonzero().flatten()
        values = flat[:, starts[numbers].unsqueeze(1) + torch.arange(size, device="cpu")]
        states[:, numbers] = values.argmax(-1)
    return states


def violations(graph: FactorGraph, states: Tensor) -> Tensor:
    """(B,) number of factors and observations that configurations (B, V) contradict."""
    states = states.to(graph.device).reshape(*graph.batch_shape, -1)
    clash, every, _ = log_values_at(
        states, graph.domain, graph.blocks, graph.observed, graph.device
    )
    count = clash.sum(-1)
    for values in every:
        count = count + (values == -math.inf).sum(-1)
    return count.reshape(-1).cpu()


def scored(network: Network, states: Tensor) -> Searched:
    """Configurations (B, V) with their scores, not proved optimal."""
    left = begun(network, states)
    scores = network.constant.detach().double().cpu().expand(network.batch).clone()
    for item in range(network.batch):
        tables, chosen = tables_of(network, item), left[item].numpy()
        if len(chosen) > len(network.numbers):
            chosen = completed(tables, len(network.numbers), chosen)
        value = tables.score(chosen)
        scores[item] += value if tables.is_possible(value) else -math.inf
    return Searched(states, scores, torch.zeros(network.batch, dtype=torch.bool, device="cpu"))


def begun(network: Network, states: Tensor | None) -> Tensor:
    """(B, active) initial states of a search, the first ones by default."""
    begun = torch.zeros(network.batch, len(network.sizes), dtype=torch.long, device="cpu")
    if states is not None:
        begun[:, : len(network.numbers)] = _left_states(network, states)
    return begun


def _left_states(network: Network, states: Tensor) -> Tensor:
    """(B, active) states (B, V) of the graph, numbered among the remaining ones."""
    original = states.cpu()[:, network.numbers]
    sizes = torch.tensor(network.sizes[: len(network.numbers)], dtype=torch.long, device="cpu")
    left = original.clamp(max=(sizes - 1).clamp(min=0))
    if network.possible is None:
        return left
    for size in torch.unique(sizes).tolist():
        chosen = (sizes == size).nonzero().flatten()
        names = network.states_left(network.numbers[chosen], size)
        same = names.unsqueeze(0) == original[:, chosen].unsqueeze(-1)
        left[:, chosen] = same.long().argmax(-1)
    return left


def completed(tables: Tables, count: int, states: Integers) -> Integers:
    """States with the best ones of auxiliary variables, as long as their tables are small."""
    part = range(count, len(tables.sizes))
    order = conditioned_order(tables.graph, part, rng=Random(0), cells=1e6)
    return states if order is None else eliminate(tables, order, states)[0]
