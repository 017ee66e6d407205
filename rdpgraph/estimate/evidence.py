"""Evidence on a part of an array, or in some rows only, as factors."""

import math

import torch
from torch import Tensor

from rdpgraph.model.domain import Entry
from rdpgraph.model.evidence import MISSING
from rdpgraph.model.factor import Factor, FactorBlock
from rdpgraph.model.graph import FactorGraph
from rdpgraph.model.table import Table
from rdpgraph.model.variable import VariableArray


def opened(graph: FactorGraph) -> FactorGraph:
    """The same model, its entries observed as a whole or not at all.

    Evidence on some members of an array, or in some rows of a batch, becomes a unary factor of
    zeros and -inf, so that states can be chosen for all of the array at once.
    """
    if graph.observed is None:
        return graph
    seen = graph.observed != MISSING
    observed = graph.observed.clone()
    added: list[Factor | FactorBlock] = []
    for entry in graph.variables:
        numbers = graph.domain.numbers(entry)
        here = seen[..., numbers]
        if bool(here.any()) and not bool(here.all()):
            added.append(_indicator(graph, entry, graph.observed[..., numbers]))
            observed[..., numbers.reshape(-1)] = MISSING
    if not added:
        return graph
    left = observed if bool((observed != MISSING).any()) else None
    plain = FactorGraph.from_blocks(graph.domain, graph.blocks, left)
    return plain.with_factors(*added)


def _indicator(graph: FactorGraph, entry: Entry, states: Tensor) -> Factor | FactorBlock:
    states = states.to(graph.device).unsqueeze(-1)
    every = torch.arange(entry.size, device=graph.device)
    allowed = (states == MISSING) | (states == every)
    log_values = torch.where(allowed, 0.0, -math.inf).to(graph.dtype)
    if isinstance(entry, VariableArray):
        return FactorBlock((entry,), Table(log_values))
    return Factor((entry,), Table(log_values))
