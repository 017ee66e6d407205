"""Derivations as recursions: by all hyperedges, or by some that each item has of its own."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from rdpgraph.structures.hypertree.hypergraph import Hypergraph, Row
from rdpgraph.structures.tape.best import best
from rdpgraph.structures.tape.descend import Drawn
from rdpgraph.structures.tape.recursion import Recursion
from rdpgraph.structures.tape.tape import Tape
from rdpgraph.structures.tape.values import Value, View


@dataclass(frozen=True, eq=False)
class EdgeDerivations(Recursion):
    """The derivations of `Derivations`, laid out on a tape: sites are hyperedges, of one state.

    Args:
        unary: (*batch, E, 1) log-weights (nats).
        graph: the hyperedges.
    """

    graph: Hypergraph = field(repr=False)

    @property
    def name(self) -> str:
        """The name of the structure, for error messages."""
        return "Derivations"

    def recursion(self, tape: Tape) -> Value:
        """Level by level."""
        ways, rows = tape.apart(tape.sites[:]), self.graph.rows
        return self.graph.whole(tape, [View((ways,), row.edges) for row in rows], rows)

    @torch.no_grad()
    def mode(self) -> Tensor:
        """(*batch, E) how often one best derivation uses each hyperedge.

        Raises:
            ImpossibleEvidenceError: an item has no derivation.
        """
        return self._uses(self._best_tape, self._best(), 1)[0]

    @torch.no_grad()
    def sample(self, count: int, generator: torch.Generator | None = None) -> Tensor:
        """(count, *batch, E) how often independent exact draws use each hyperedge.

        Raises:
            ImpossibleEvidenceError: an item has no derivation.
        """
        tape = self.to_tape(double=True)
        return self._uses(tape, self._draws(tape, count, generator), count)

    @torch.no_grad()
    def best_uses(self, k: int) -> tuple[Tensor, Tensor]:
        """(k, *batch, E) those of the k best, best first, and (k, *batch) which there are."""
        drawn, there = best(self._best_tape, k)
        return self._uses(self._best_tape, drawn, k), there

    def _uses(self, tape: Tape, drawn: Drawn, count: int) -> Tensor:
        shape = count * tape.batch, *tape.site_shape
        uses = torch.zeros(shape, dtype=torch.int64, device=tape.device).index_put_(
            (drawn.tree, drawn.site), torch.ones_like(drawn.site), accumulate=True
        )
        return uses.reshape(count, *tape.lead, *tape.site_shape)


@dataclass(frozen=True, eq=False)
class NodeDerivations(Recursion):
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
    def name(self) -> str:
        """The name of the structure, for error messages."""
        return "Derivations"

    def recursion(self, tape: Tape) -> Value:
        """Level by level, each state of a node as a way to derive it."""
        states = self.states.expand(*tape.lead, *self.states.shape[-2:])
        states, kept = states.reshape(tape.batch, *states.shape[-2:]), tape.sites.states
        if kept is not None:
            states = states.gather(2, kept)
        edges, ways = self.graph.by_node.expand(tape.batch, -1, -1), tape.apart(tape.sites[:])
        edges = edges.gather(2, states).mT
        number = torch.arange(ways.places, device=tape.device).reshape(edges.shape[:0:-1]).mT
        weights, rows = list[View](), list[Row]()
        for level, (nodes, _) in enumerate(self.graph.levels):
            weights.append(View((ways,), number[:, nodes]))
            rows.append(self.graph.row(level, edges[:, :, nodes]))
        return self.graph.whole(tape, weights, rows)
