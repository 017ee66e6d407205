"""What a model will cost on several processes, before anything runs."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from rdpgraph._core.numbers import is_real, is_whole
from rdpgraph.distributed.chains import ShardedChain
from rdpgraph.distributed.graphs import GraphPart
from rdpgraph.engines.reduction.network import may_have_zeros
from rdpgraph.errors import ModelError
from rdpgraph.model.potentials.lowrank import LowRank
from rdpgraph.plan.plan import duration, quantity
from rdpgraph.structures.chain.model import Chain

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


@dataclass(frozen=True)
class Cluster:
    """A model of alike devices and the links between them; the defaults are those of an H100.

    Figures of data sheets are upper bounds: for times that hold, measure one step on one device
    and a collective on two, and give those.

    Args:
        ranks: how many devices.
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

    def chain(
        self, states: int, *, steps: int, batch: int = 1, rank: int | None = None, element: int = 4
    ) -> "Forecast":
        """What log Z and its gradient cost a `ShardedChain`, whose states are sharded.

        Args:
            states: N.
            steps: T.
            batch: items.
            rank: of the transition; None: a dense one, shared by the steps.
            element: bytes of a number.
        """
        local = -(-states // self.ranks)
        others, kept = self.ranks - 1, batch * steps
        if rank is None:
            sent = 2.0 * others * batch * local * element
            turns = steps - 0.5  # there and back; the last step has none to be told by
            once = _all_reduced(self.ranks, (2 * kept + 2 + batch) * element)
            work, table = float(batch * states * local), float(states * local * element)
            memory = 3 * table + (kept * states + 5 * kept * local) * element
        else:
            sent = 3 * _all_reduced(self.ranks, batch * rank * element)  # maxima, sums, gradients
            turns = steps - 1
            once = 2 * _all_reduced(self.ranks, 8.0 * kept)  # in float64
            work, table = 2.0 * batch * local * rank, 2.0 * local * rank * element
            memory = 3 * table + kept * (6 * local + 4 * rank) * element
        every = turns * sent + once if steps else 0.0
        return self._forecast("step", steps, sent, every, 3 * work, 3 * table, memory)

    def graph(
        self, cells: int, messages: int, *, edges: int, shared: int, element: int = 4
    ) -> "Forecast":
        """A sweep of loopy belief propagation where every rank has a part like this one.

        Args:
            cells: entries of all tables of the part.
            messages: numbers in all its messages from factors.
            edges: how many messages those are.
            shared: numbers sent in a sweep, to all neighbours.
            element: bytes of a number.
        """
        sent = float(shared * element) + _all_reduced(self.ranks, 8.0)
        # Tables, and messages read and written a few times, with the places where they stand.
        moved = float(cells + 8 * messages) * element + 48.0 * edges
        memory = float(2 * cells + 8 * messages) * element + 120.0 * edges
        return self._forecast("sweep", 1, sent, sent, 2.0 * cells + 8.0 * messages, moved, memory)

    def _forecast(
        self, unit: str, units: int, sent: float, every: float, work: float, read: float,
        memory: float,
    ) -> "Forecast":  # fmt: skip
        busy = max(work / self.rate, read / self.memory_rate)
        hops = math.ceil(math.log2(self.ranks)) if self.ranks > 1 else 0
        wire = sent / self.link + 2 * hops * self.latency
        return Forecast(self.ranks, unit, units, sent, every, memory, busy, wire, self.memory)


@dataclass(frozen=True)
class Forecast:
    """What each rank sends, holds and takes; print it.

    Attributes:
        ranks: how many there are.
        unit: ``"step"`` of a chain, there and back, or ``"sweep"`` of a graph.
        units: how many of them, 1 where that is not known before.
        sent_bytes: by each rank in each unit.
        all_bytes: by each rank in all units, with what is said once.
        memory_bytes: at the most, of each rank.
        busy_seconds: of its device in a unit.
        wire_seconds: of what it sends in a unit.
        room: bytes of a device.
    """

    ranks: int
    unit: str
    units: int
    sent_bytes: float
    all_bytes: float
    memory_bytes: float
    busy_seconds: float
    wire_seconds: float
    room: float

    @property
    def seconds(self) -> float:
        """Of all units, computing and sending by turns."""
        return self.units * (self.busy_seconds + self.wire_seconds)

    @property
    def fits(self) -> bool:
        """Whether a device has the memory."""
        return self.memory_bytes <= self.room

    def __str__(self) -> str:
        each = [
            f"Forecast: {self.ranks} ranks",
            f"  sends      {quantity(self.sent_bytes)}B a rank and {self.unit}",
            f"  memory     {quantity(self.memory_bytes)}B a rank"
            + ("" if self.fits else f", and there is {quantity(self.room)}B"),
            f"  computes   {_brief(self.busy_seconds)} a {self.unit}",
            f"  waits      {_brief(self.wire_seconds)} a {self.unit}",
        ]
        if self.units > 1:
            each.append(f"  time       about {duration(self.seconds)}, {self.units:,} {self.unit}s")
        return "\n".join(each)


def explain(model: Chain | ShardedChain | GraphPart, mesh: "DeviceMesh | Cluster") -> Forecast:
    """What a model costs each rank: bytes sent, memory, time; nothing is run.

    A chain is spread over the ranks; of a graph's parts every rank is taken to have one like this.
    A chain too large to be declared here: `Cluster.chain`.

    Args:
        model: a `Chain`, a `ShardedChain` or a `GraphPart`.
        mesh: a `Cluster`, or a DeviceMesh, taken as so many CPU cores of one machine.

    Example:
        >>> chain = Chain(torch.zeros(10, 64), torch.zeros(64, 64))
        >>> explain(chain, Cluster(8)).sent_bytes  # 7 others, 8 numbers to each, there and back
        448.0
    """
    cluster = mesh
    if not isinstance(cluster, Cluster):
        if not hasattr(cluster, "size"):
            raise ModelError(f"explain needs a Cluster or a DeviceMesh; got {mesh!r:.80}.")
        cluster = Cluster(cluster.size(), 1e10, 1e10, 1e9, 1e-4, math.inf)
    if isinstance(model, GraphPart):
        return _of_part(model, cluster)
    if not isinstance(model, Chain | ShardedChain):
        raise ModelError(
            f"explain needs a Chain, a ShardedChain or a GraphPart; got {type(model).__name__}."
        )
    steps, states = model.unary.shape[-2:]
    low = model.transition
    rank = None
    if isinstance(low, LowRank):
        rank = low.rank
    elif isinstance(low, tuple):
        rank = low[0].shape[-1]
    batch = math.prod(model.unary.shape[:-2])
    element = model.unary.element_size()
    return cluster.chain(states, steps=steps, batch=batch, rank=rank, element=element)


def _of_part(part: GraphPart, cluster: Cluster) -> Forecast:
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


def _all_reduced(ranks: int, size: float) -> float:
    """Bytes that each rank sends of so many that are summed over all."""
    return 2 * (ranks - 1) / ranks * size


def _brief(seconds: float) -> str:
    return f"{seconds * 1e6:.3g} us" if seconds < 1e-3 else duration(seconds)
