"""Derivations by some hyperedges of each node, which each item has of its own."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from rdpgraph.structures.hypertree.hypergraph import Hypergraph, Row
from rdpgraph.structures.tape.recursion import Recursion
from rdpgraph.structures.tape.tape import Tape
from rdpgraph.structures.tape.values import Value, View


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
