"""Graphs at a temperature: every log-value divided by it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from rdpgraph.model.block import Block
from rdpgraph.model.graph import FactorGraph
from rdpgraph.model.potentials.potential import Decomposition, Part, Potential
from rdpgraph.model.potentials.table import Table


@dataclass(frozen=True, eq=False)
class Tempered(Potential):
    """The log-values of another potential, divided by a temperature.

    Args:
        potential: the other one.
        temperature: above 0.
    """

    potential: Potential
    temperature: float

    @property
    def shape(self) -> tuple[int, ...]:
        return self.potential.shape

    @property
    def dtype(self) -> torch.dtype:
        return self.potential.dtype

    @property
    def device(self) -> torch.device:
        return self.potential.device

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
        """Those of the other potential, from messages in its own units."""
        own = [message * self.temperature for message in incoming]
        answers = self.potential.messages(own, temperature=temperature * self.temperature)
        return tuple(message / self.temperature for message in answers)


def tempered(graph: FactorGraph, temperature: float, added: Tensor) -> FactorGraph:
    """The graph at a temperature, with log-values of each state of each variable added before.

    Args:
        graph: the model, evidence included.
        temperature: above 0.
        added: (*batch, S) nats, the states of variable 0 first.
    """
    blocks = [replace(block, potential=_cooled(block, temperature)) for block in graph.blocks]
    declared, sizes = graph.num_factors, graph.domain.sizes
    starts = sizes.cumsum(0) - sizes
    for size in sizes.unique().tolist():
        numbers = (sizes == size).nonzero().flatten()
        places = (starts[numbers].unsqueeze(1) + torch.arange(size, device="cpu")).to(added.device)
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
