"""Graphs that every process holds, cut into parts, and the cost of the parts before they run."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rdpgraph._core.arguments import require_fields, typed
from rdpgraph._core.units import duration, quantity
from rdpgraph.distributed.collectives import Peers, fingerprint_of
from rdpgraph.distributed.graphs import GraphPart, members_among
from rdpgraph.engines.reduction.network import may_have_zeros
from rdpgraph.errors import ModelError, UnsupportedError
from rdpgraph.model.block import Block
from rdpgraph.model.domain import Domain, Entry
from rdpgraph.model.graph import FactorGraph
from rdpgraph.model.potentials.table import Table
from rdpgraph.model.variable import Variable, VariableArray

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


@typed(ranks="[1, inf)")
def by_metis(graph: FactorGraph, ranks: int) -> Tensor:
    """An assignment (V,) for `partition`: equally many variables on each rank, few links cut.

    Two variables are linked if a factor holds both. O(links) time and memory, on every rank.

    Args:
        graph: the same on every rank.
        ranks: the number of parts.

    Raises:
        UnsupportedError: pymetis is not installed.

    Source: Karypis and Kumar 1998, "A fast and high quality multilevel scheme for partitioning
    irregular graphs".
    """
    try:
        import pymetis  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise UnsupportedError(
            "by_metis needs pymetis: pip install 'rdpgraph[distributed]'; without it, partition "
            "cuts in blocks, or by an assignment of yours."
        ) from None
    count = graph.num_variables
    # Each link as one number, both ways; then the adjacency in compressed rows.
    codes = [
        block.scopes[:, one] * count + block.scopes[:, other]
        for block in graph.blocks
        for one, other in permutations(range(block.arity), 2)
    ]
    codes.append(torch.zeros(0, dtype=torch.long))
    links = torch.cat(codes).unique()
    degrees = torch.bincount(links // max(1, count), minlength=count)
    ends = torch.cat([degrees.new_zeros(1), degrees.cumsum(0)])
    if ranks == 1 or not len(links):
        return torch.arange(count) * ranks // max(1, count)
    linked = pymetis.CSRAdjacency(ends.int().numpy(), (links % count).int().numpy())
    return torch.tensor(list(pymetis.part_graph(ranks, linked)[1]), dtype=torch.long)


def partition(
    graph: FactorGraph, mesh: "DeviceMesh", *, assignment: Tensor | None = None
) -> GraphPart:
    """This rank's part of a graph that every rank holds.

    A factor goes to the rank of its first variable, and takes its other variables along. The part
    has copies of its factors' tables: make it again in every step of training.

    Args:
        graph: the same on every rank, evidence included.
        mesh: of one dim.
        assignment: (V,) the rank of each variable, in the order of the graph's variables, members
            of arrays included; default: in blocks, equally many variables on each rank, so that an
            array is cut along its first dim.

    Raises:
        ModelError: an assignment that does not fit, or graphs that differ between the ranks.
    """
    peers, count = Peers.of(mesh), graph.num_variables
    if assignment is None:
        assignment = torch.arange(count) * peers.ranks // max(1, count)
    whole = assignment.dtype == torch.long and assignment.shape == (count,)
    if not whole or (
        count and not 0 <= int(assignment.amin()) <= int(assignment.amax()) < peers.ranks
    ):
        raise ModelError(
            f"partition needs the ranks of {count:,} variables, int64 from 0 to {peers.ranks - 1}; "
            f"got {assignment!r:.80}."
        )
    peers.require_alike("graphs, or their assignments", fingerprint_of(graph, assignment))
    present = torch.zeros(peers.ranks, count, dtype=torch.bool)
    present[assignment, torch.arange(count)] = True
    for block in graph.blocks:
        if block.arity:
            ranks = assignment[block.scopes[:, :1]].expand_as(block.scopes)
            present[ranks, block.scopes] = True
    mine = present[peers.rank]
    numbers = mine.nonzero().flatten()
    local = torch.full((count,), -1).scatter(0, numbers, torch.arange(len(numbers)))
    blocks = [_part(block, assignment, peers.rank, local) for block in graph.blocks]
    blocks = [block for block in blocks if block.count]
    # A constant factor, for the batch dims and type of the whole graph.
    nothing = Table(torch.zeros(graph.batch_shape, dtype=graph.dtype, device=graph.device))
    empty = torch.zeros(1, 0, dtype=torch.long)
    blocks.append(Block(empty, nothing, (), None, torch.tensor([graph.num_factors])))
    observed = None if graph.observed is None else graph.observed[..., numbers]
    entries: list[Entry] = [
        VariableArray(entry.name, (len(rows),), entry.states)
        if isinstance(entry, VariableArray)
        else entry
        for entry, rows, _ in members_among(graph.domain, numbers)
    ]
    part = FactorGraph.from_blocks(Domain(tuple(entries)), blocks, observed)
    shared: dict[int, Sequence[Variable | VariableArray]] = {}
    for rank in range(peers.ranks):
        both = local[(mine & present[rank]).nonzero().flatten()]
        if rank != peers.rank and len(both):
            shared[rank] = [view for *_, view in members_among(part.domain, both)]
    return GraphPart(part, mesh, shared, home=(graph.domain, numbers))


def _part(block: Block, assignment: Tensor, rank: int, local: Tensor) -> Block:
    """The factors of a block whose first variable is a rank's; constants are the first rank's."""
    if not block.arity:
        rows = torch.arange(block.count if rank == 0 else 0)
    else:
        rows = (assignment[block.scopes[:, 0]] == rank).nonzero().flatten()
    potential = block.select(rows)
    lead = potential.lead(block.arity)
    one = not lead or lead[-1] == 1
    shape = (1,) if one else (len(rows),)
    if not lead:
        shape = ()
    return Block(local[block.scopes[rows]], potential, shape, None, block.declared[rows])


@dataclass(frozen=True)
class Cluster:
    """A model of identical devices and the links between them; the defaults are those of an H100.

    Data sheets give upper bounds: for realistic times, measure one step on one device and a
    collective operation between two.

    Args:
        ranks: the number of devices.
        rate: multiply-adds a second of one of them, in the type of the model.
        memory_rate: bytes a second that one of them reads from its memory.
        link: bytes a second that one of them sends.
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
        above = "(0, inf]"
        require_fields(
            self, ranks="[1, inf)", rate=above, memory_rate=above, link=above, memory=above
        )

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
        ranks: the number of ranks.
        sent_bytes: what the rank that sends most sends in a sweep.
        memory_bytes: what the rank that holds most holds.
        busy_seconds: the time that its device computes in a sweep.
        wire_seconds: the time that its messages take on the wire in a sweep.
        room: the bytes that a device has.
    """

    ranks: int
    sent_bytes: float
    memory_bytes: float
    busy_seconds: float
    wire_seconds: float
    room: float

    @property
    def seconds(self) -> float:
        """Seconds of a sweep in which computing and sending alternate."""
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

    Nothing is run. Every rank is assumed to have a part like this one; for a part too large to be
    declared here there is `Cluster.graph`.

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
