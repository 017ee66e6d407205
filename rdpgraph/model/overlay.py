"""The same distribution with more factors: over variables asked for, or instead of evidence."""

import math

import torch
from torch import Tensor

from rdpgraph.model.block import Block
from rdpgraph.model.domain import Entry
from rdpgraph.model.evidence import MISSING, observed_entries
from rdpgraph.model.factor import Factor, FactorBlock
from rdpgraph.model.graph import FactorGraph
from rdpgraph.model.potentials.table import Table
from rdpgraph.model.variable import VariableArray


def with_joint(graph: FactorGraph, numbers: Tensor, declared: int) -> FactorGraph:
    """The same distribution, with a last block of one factor of zeros over some variables.

    Args:
        graph: the model.
        numbers: (n,) of the variables, in the order of the slots.
        declared: the place of the factor in the order of declaration.
    """
    # One zero stands for all of them: the table is not written out here.
    zero = torch.zeros((), dtype=graph.dtype, device=graph.device)
    table = Table(zero.expand(graph.domain.sizes[numbers].tolist()))
    block = Block(numbers.unsqueeze(0), table, (), None, torch.tensor([declared], device="cpu"))
    return FactorGraph.from_blocks(graph.domain, (*graph.blocks, block), graph.observed)


def opened(graph: FactorGraph) -> FactorGraph:
    """The same distribution, with each entry observed as a whole or not at all.

    Evidence on some members of an array, or in some rows of a batch, becomes a unary factor of
    zeros and -inf, so that states can be chosen for all of the array at once.
    """
    if graph.observed is None:
        return graph
    observed = observed_entries(graph.domain, graph.observed)
    partly = [
        entry
        for entry, some, every in zip(graph.variables, *observed, strict=True)
        if some and not every
    ]
    if not partly:
        return graph
    evidence = [_as_factor(graph, entry, graph.observed) for entry in partly]
    return graph.retract(*partly).with_factors(*evidence)


def _as_factor(graph: FactorGraph, entry: Entry, observed: Tensor) -> Factor | FactorBlock:
    states = observed[..., graph.domain.numbers(entry)].to(graph.device).unsqueeze(-1)
    every = torch.arange(entry.size, device=graph.device)
    allowed = (states == MISSING) | (states == every)
    table = Table(torch.where(allowed, 0.0, -math.inf).to(graph.dtype))
    single = not isinstance(entry, VariableArray)
    return Factor((entry,), table) if single else FactorBlock((entry,), table)
