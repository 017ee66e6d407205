"""Rewrites of graphs: factors over joint variables, factors for evidence, a temperature."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from rdpgraph.model.block import Block
from rdpgraph.model.domain import Entry
from rdpgraph.model.evidence import MISSING, observed_entries
from rdpgraph.model.factor import Factor, FactorBlock
from rdpgraph.model.graph import FactorGraph
from rdpgraph.model.potentials.potential import Decomposition, Part, Potential, Stored
from rdpgraph.model.potentials.table import Table
from rdpgraph.model.variable import VariableArray


def with_joint(graph: FactorGraph, numbers: Tensor, declared: int) -> FactorGraph:
    """The same distribution, with a last block: one factor of zeros over the variables (n,)."""
    # An expanded zero: the table takes no memory.
    zero = torch.zeros((), dtype=graph.dtype, device=graph.device)
    table = Table(zero.expand(graph.domain.sizes[numbers].tolist()))
    block = Block(numbers.unsqueeze(0), table, (), None, torch.tensor([declared], device="cpu"))
    return FactorGraph.from_blocks(graph.domain, (*graph.blocks, block), graph.observed)


def opened(graph: FactorGraph) -> FactorGraph:
    """The same distribution, with each entry observed as a whole or not at all.

    Partial evidence becomes a unary factor of zeros and -inf, so that states can be chosen for the
    whole array.
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


@dataclass(frozen=True, eq=False)
class Tempered(Stored):
    """A potential whose log-values are those of another one, divided by a temperature above 0."""

    potential: Potential
    temperature: float
    stored = "potential"

    @property
    def shape(self) -> tuple[int, ...]:
        return self.potential.shape

    def evaluate(self, states: Sequence[Tensor]) -> Tensor:
        return self.potential.evaluate(states) / self.temperature

    def table(self, arity: int) -> Tensor:
        return self.potential.table(arity) / self.temperature

    def select(self, block: tuple[int, ...], rows: Tensor | None, arity: int) -> "Tempered":
        return Tempered(self.potential.select(block, rows, arity), self.temperature)

    def decompose(self) -> Decomposition | None:
        """The parts divided: one configuration of the auxiliary variables adds to any value."""
        decomposition = self.potential.decompose()
        if decomposition is None:
            return None
        parts = (
            Part(one.variables, one.log_values / self.temperature) for one in decomposition.parts
        )
        return Decomposition(decomposition.auxiliary, tuple(parts))

    def messages(
        self, incoming: Sequence[Tensor], *, temperature: float | Tensor = 1.0
    ) -> tuple[Tensor, ...]:
        scaled = [message * self.temperature for message in incoming]
        answers = self.potential.messages(scaled, temperature=temperature * self.temperature)
        return tuple(message / self.temperature for message in answers)


def tempered(graph: FactorGraph, temperature: float, added: Tensor) -> FactorGraph:
    """The graph at a temperature, after adding (*batch, S) nats to all states of its variables."""
    blocks = [replace(block, potential=_cooled(block, temperature)) for block in graph.blocks]
    declared, sizes = graph.num_factors, graph.domain.sizes
    for size in sizes.unique().tolist():
        numbers = (sizes == size).nonzero().flatten()
        places = graph.domain.places(numbers, size).to(added.device)
        table = Table.from_logs(added[..., places] / temperature)
        order = torch.arange(declared, declared + len(numbers), device="cpu")
        blocks.append(Block(numbers.unsqueeze(1), table, (len(numbers),), None, order))
        declared += len(numbers)
    return FactorGraph.from_blocks(graph.domain, blocks, graph.observed)


def _cooled(block: Block, temperature: float) -> Potential:
    potential = block.potential
    if isinstance(potential, Table):
        return Table.from_logs(potential.log_values / temperature)
    return Tempered(potential, temperature)
