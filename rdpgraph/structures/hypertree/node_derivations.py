"""Derivations by hyperedges that each item has of its own, listed by node."""

import math
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from rdpgraph.model.structure import Structure
from rdpgraph.structures.draws import Pick, checked_count, drawn, largest
from rdpgraph.structures.hypertree.hypergraph import (
    Hypergraph,
    Level,
    best_through,
    derived,
    inside,
    possible,
)
from rdpgraph.structures.hypertree.moments import entropy_of
from rdpgraph.structures.relaxation import perturbed


@dataclass(frozen=True, eq=False)
class NodeDerivations(Structure):
    """Derivations whose nodes have K hyperedges each, numbered 0..K-1, in each item its own.

    A derivation uses a node once at most; nodes that it does not use are in the state -1.

    Args:
        unary: (*lead, nodes, K) log-weights (nats) of the hyperedges.
        states: (*lead, nodes, K) which of the node's in the graph they are; two may be the same.
        graph: all hyperedges.
    """

    states: Tensor = field(metadata={"dims": 2})
    graph: Hypergraph = field(repr=False)

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """Replicates and batch dims."""
        return tuple(self.unary.shape[:-2])

    def log_partition(self) -> Tensor:
        """(*lead,) log Z in nats."""
        return self._inside(self._levels(), 1.0)[:, -2].reshape(self.batch_shape)

    def entropy(self) -> Tensor:
        """(*lead,) log Z less the expected score; 0 where nothing is possible."""
        return entropy_of(self)

    @torch.no_grad()
    def max_marginals(self) -> Tensor:
        """(*lead, nodes, K) the score of the best derivation with each entry; -inf: none has it.

        Not differentiable.
        """
        levels = self._levels()
        result = torch.full_like(self._flat, -math.inf)
        for level, best in best_through(levels, self._inside(levels, 0.0)):
            result[:, level.nodes] = best
        return result.reshape(self.unary.shape)

    def score(self, states: Tensor) -> Tensor:
        """(*lead, *batch) the scores of derivations, as `mode` gives one; differentiable."""
        used = states >= 0
        number = states.clamp(min=0).unsqueeze(-1)
        shape = (*states.shape, self.unary.shape[-1])
        unary, edges = (part.expand(shape).gather(-1, number) for part in (self.unary, self.states))
        one, ones = (
            replace(self, unary=torch.where(used.unsqueeze(-1), part, -math.inf), states=edges)
            for part in (unary, torch.ones_like(unary))
        )
        # With a nat for each hyperedge the score is how many are used.
        whole = ones.log_partition().detach().round() == used.sum(-1)
        return torch.where(whole, one.log_partition(), -math.inf)

    def mode(self) -> Tensor:
        """(*lead, nodes) numbers of the hyperedges of a best derivation, -1 where unused.

        Raises:
            ImpossibleEvidenceError: an item has no derivation.
        """
        return self._descended(1, 0.0, largest)[0]

    def sample(self, count: int, generator: torch.Generator | None = None) -> Tensor:
        """(count, *lead, nodes) exact draws, as `mode` gives its derivation.

        Raises:
            ImpossibleEvidenceError: an item has no derivation.
        """
        return self._descended(checked_count(count), 1.0, drawn(generator))

    def rsample(
        self, count: int, *, temperature: float, generator: torch.Generator | None = None
    ) -> Tensor:
        """(count, *lead, nodes, K) relaxed one-hot entries, as `Derivations.rsample`.

        Raises:
            ModelError: a temperature that is not above 0.
        """
        unary, _ = perturbed(
            self.unary, None, count=count, temperature=temperature, generator=generator
        )
        return NodeDerivations(unary, self.states.expand(unary.shape), self.graph).marginals()

    def work(self) -> float:
        """The terms of log Z."""
        return float(self.unary.numel() * self.graph.tails.shape[1])

    @property
    def _flat(self) -> Tensor:
        """(B, nodes, K)."""
        return self.unary.reshape(math.prod(self.batch_shape), *self.unary.shape[-2:])

    def _levels(self) -> list[Level]:
        weights, states = self._flat, self.states.expand(self.unary.shape)
        edges = self.graph.by_node.expand(len(weights), -1, -1).gather(
            2, states.reshape_as(weights)
        )
        tails = self.graph.padded_tails
        return [
            Level(nodes, weights[:, nodes], tails[edges[:, nodes]])
            for nodes, _ in self.graph.levels
        ]

    def _inside(self, levels: list[Level], temperature: float) -> Tensor:
        return inside(levels, self._flat, self.graph.nodes, temperature)

    @torch.no_grad()
    def _descended(self, count: int, temperature: float, pick: Pick) -> Tensor:
        levels = self._levels()
        values = possible(self._inside(levels, temperature))
        states = torch.full((count * len(values), self.graph.nodes), -1, device=self.unary.device)
        for level, row, place, way in derived(levels, values, count, pick):
            states[row, level.nodes[place]] = way
        return states.reshape([count, *self.unary.shape[:-1]])
