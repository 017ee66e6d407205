"""Costs of a graph in parts on several processes, before anything runs."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from rdpgraph._core.numbers import is_real, is_whole
from rdpgraph.distributed.graphs import GraphPart
from rdpgraph.engines.reduction.network import may_have_zeros
from rdpgraph.errors import ModelError
from rdpgraph.plan.plan import duration, quantity

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


@dataclass(frozen=True)
class Cluster:
    """A model of identical devices and the links between them; the defaults are those of an H100.

    Data sheets give upper bounds: for realistic times, measure one step on one device and a
    collective on two.

    Args:
        ranks: the number of devices.
        rate: multiply-adds a second of one of them, in the type of the model.
        memory_rate: bytes a second that it reads.
        link: bytes a second that it sends.
        latency: seconds of a message, whatever its size.
        memory: bytes of one of them.
    """

    ranks: int
    rate: float = 30e12
    memory_rate: float = 3.3e12
    link: float = 50e9
    latency: float = 10e-6
    memory: float = 80e9

    def __post_init__(self) -> None:
        rates = (self.rate, self.memory_rate, self.link, self.memory)
        if not is_whole(self.ranks, 1) or not all(is_real(rate) and rate > 0 for rate in rates):
            raise ModelError(f"A Cluster needs ranks >= 1 and rates above 0; got {self}.")

    def graph(
        self, cells: int, messages: int, *, edges: int, shared: int, element: int = 4
    ) -> "Forecast":
        """A sweep of loopy belief propagation where every rank has a part like this one.

        Args:
            cells: entries of all tables of the part.
            messages: numbers in all its messages from factors.
            edges: the number of those messages.
            shared: numbers sent in a sweep, to all neighbours.
            element: bytes of a number.
        """
        sent = float(shared * element) + 16.0 * (self.ranks - 1) / self.ranks  # a sum over all
        # Tables, and messages with their indices, read and written a few times.
        moved = float(cells + 8 * messages) * element + 48.0 * edges
        memory = float(2 * cells + 8 * messages) * element + 120.0 * edges
        work = 2.0 * cells + 8.0 * messages
        busy = max(work / self.rate, moved / self.memory_rate)
        hops = math.ceil(math.log2(self.ranks)) if self.ranks > 1 else 0
        wire = sent / self.link + 2 * hops * self.latency
        return Forecast(self.ranks, sent, memory, busy, wire, self.memory)


@dataclass(frozen=True)
class Forecast:
    """Bytes that each rank sends and holds, and its time; print it.

    Attributes:
        ranks: their number.
        sent_bytes: by each rank in a sweep.
        memory_bytes: at the most, of each rank.
        busy_seconds: of its device in a sweep.
        wire_seconds: of what it sends in a sweep.
        room: bytes of a device.
    """

    ranks: int
    sent_bytes: float
    memory_bytes: float
    busy_seconds: float
    wire_seconds: float
    room: float

    @property
    def seconds(self) -> float:
        """Seconds of a sweep that computes and sends by turns."""
        return self.busy_seconds + self.wire_seconds

    @property
    def fits(self) -> bool:
        """True where a device has the memory."""
        return self.memory_bytes <= self.room

    def __str__(self) -> str:
        each = [
            f"Forecast: {self.ranks} ranks",
            f"  sends      {quantity(self.sent_bytes)}B a rank and sweep",
            f"  memory     {quantity(self.memory_bytes)}B a rank"
            + ("" if self.fits else f", and there is {quantity(self.room)}B"),
            f"  computes   {_brief(self.busy_seconds)} a sweep",
            f"  waits      {_brief(self.wire_seconds)} a sweep",
        ]
        return "\n".join(each)


def explain(part: GraphPart, mesh: "DeviceMesh | Cluster") -> Forecast:
    """Costs of a sweep over a part of a graph, for each rank: bytes sent, memory, time.

    Nothing is run. Every rank is taken to have a part like this one; a part too large to be
    declared here: `Cluster.graph`.

    Args:
        part: of this rank.
        mesh: a `Cluster`, or a DeviceMesh, taken as so many CPU cores of one machine.

    Example:
        >>> import rdpgraph as rg
        >>> from rdpgraph.distributed import alone, partition
        >>> x = rg.VariableArray("x", (4,), 3)
        >>> graph = rg.FactorGraph([rg.FactorBlock((x[1:], x[:-1]), rg.Table(torch.eye(3)))])
        >>> with alone() as mesh:
        ...     explain(partition(graph, mesh), Cluster(8)).sent_bytes  # one sum over all ranks
        14.0
    """
    if not isinstance(part, GraphPart):
        raise ModelError(f"explain needs a GraphPart; got {type(part).__name__}.")
    cluster = mesh
    if not isinstance(cluster, Cluster):
        if not hasattr(cluster, "size"):
            raise ModelError(f"explain needs a Cluster or a DeviceMesh; got {mesh!r:.80}.")
        cluster = Cluster(cluster.size(), 1e10, 1e10, 1e9, 1e-4, math.inf)
    graph = part.graph
    sizes, batch = graph.domain.sizes, math.prod(graph.batch_shape)
    linked = [block for block in graph.blocks if block.arity > 1]
    cells = sum(block.count * math.prod(block.sizes) for block in linked)
    messages = batch * sum(block.count * sum(block.sizes) for block in linked)
    edges = sum(block.count * block.arity for block in linked)
    odds = all(block.arity == 2 for block in linked) and bool((sizes == 2).all())
    odds = odds and not any(may_have_zeros(block.unique()[0]) for block in linked)
    shared = 0
    for numbers in part.numbers.values():
        shared += len(numbers) if odds else int(sizes[numbers].sum())
    element = torch.finfo(graph.dtype).bits // 8
    return cluster.graph(cells, messages, edges=edges, shared=shared * batch, element=element)


def _brief(seconds: float) -> str:
    return f"{seconds * 1e6:.3g} us" if seconds < 1e-3 else duration(seconds)
