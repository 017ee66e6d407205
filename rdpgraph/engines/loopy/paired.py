"""Sweeps where every variable stands between two factors: each hears what the other has said."""

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from rdpgraph.engines.loopy.arithmetic import neighbours
from rdpgraph.engines.loopy.clusters import ClusterKernel
from rdpgraph.engines.loopy.damping import Damping
from rdpgraph.engines.loopy.edges import Edges
from rdpgraph.engines.loopy.equations import Equations, Messages
from rdpgraph.engines.loopy.partial import Asked, EdgeSubset, EdgeSubsets
from rdpgraph.engines.loopy.sweeper import Sweeper, unasked
from rdpgraph.plan import clock


class Paired(Sweeper):
    """Schedules that are blind to the messages, for clusters; messages are kept edge by edge."""

    def __init__(self, equations: Equations, damping: Damping, known: EdgeSubsets) -> None:
        super().__init__(equations, damping)
        self._known = known
        self._held: list[Tensor] | None = None  # per class (B, E, K)

    @staticmethod
    def applies(equations: Equations) -> bool:
        """Whether all factors are clusters."""
        return all(isinstance(kernel, ClusterKernel) for kernel in equations.kernels)

    def sweep(self, messages: Messages, sets: Iterable[Tensor | None]) -> tuple[Messages, Tensor]:
        """The messages as given: `finish` has the new ones."""
        edges = self.equations.edges
        if self._held is None:
            self._held = [message.transpose(1, 2).contiguous() for message in messages]
        largest = messages[0].new_zeros(len(messages[0]))
        for chosen in sets:
            subset = self._known.of(edges, chosen)
            # All are computed before one is written.
            for number, places, new in list(self._new(subset)):
                held = self._held[number]
                old = held[:, places].transpose(1, 2)
                largest = torch.maximum(largest, self.equations.change(new, old).amax(1))
                held[:, places] = self._mixed(new, old).transpose(1, 2)
            self.updates += edges.count if chosen is None else len(chosen)
            if clock.now() > self.deadline:
                self.cut = True
                break
        return messages, largest

    def _new(self, subset: EdgeSubset) -> Iterator[tuple[int, slice | Tensor, Tensor]]:
        """Per part its class, its edges there, and (B, K, n) their messages as they would be."""
        assert self._held is not None
        edges = self.equations.edges
        for asked in subset.asked:
            incoming = [self._heard(asked, number) for number in edges.by_kernel[asked.kernel]]
            ports = [edges.segments[subset.parts[number].segment].port for number in asked.parts]
            kernel = self.equations.kernels[asked.kernel]
            answers = kernel.messages(incoming, rows=asked.rows, wanted=ports)
            for number, port in zip(asked.parts, ports, strict=True):
                answer, part = answers[port], subset.parts[number]
                assert answer is not None
                size_class = edges.segments[part.segment].size_class
                yield size_class, neighbours(part.places), self.equations.message(answer)

    def _heard(self, asked: Asked, number: int) -> Tensor:
        """(B, K, n) what some factors hear at the port of a segment."""
        assert self._held is not None
        edges, segment = self.equations.edges, self.equations.edges.segments[number]
        others = edges.remembered("partners", _partners)[segment.size_class]
        rows = asked.rows
        others = others[segment.start : segment.stop]
        held = self._held[segment.size_class]
        return held[:, others if rows is None else others[rows]].transpose(1, 2)

    def finish(self, messages: Messages) -> Messages:
        """States before edges again."""
        if self._held is None:
            return messages
        return tuple(held.transpose(1, 2).contiguous() for held in self._held)

    def residuals(self) -> Tensor:
        """Not asked for."""
        return unasked()


def _partners(edges: Edges) -> list[Tensor]:
    """Per class (E,) the other edge at each edge's variable."""
    partners: list[Tensor] = []
    for c in edges.classes:
        other = torch.empty_like(c.variable)
        for bucket in c.buckets:
            first, second = bucket.edges
            other[first], other[second] = second, first
        partners.append(other)
    return partners
