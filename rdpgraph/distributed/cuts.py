"""Graphs that every process holds, cut into parts: in blocks, as assigned, or by METIS."""

from collections.abc import Sequence
from itertools import permutations
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rdpgraph._core.numbers import is_whole
from rdpgraph.distributed.collectives import Peers, fingerprint_of
from rdpgraph.distributed.graphs import GraphPart, members_among
from rdpgraph.errors import ModelError, UnsupportedError
from rdpgraph.model.block import Block
from rdpgraph.model.domain import Domain, Entry
from rdpgraph.model.graph import FactorGraph
from rdpgraph.model.potentials.table import Table
from rdpgraph.model.variable import Variable, VariableArray

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


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
    if not isinstance(graph, FactorGraph) or not is_whole(ranks, 1):
        raise ModelError(
            f"by_metis needs a FactorGraph and ranks >= 1; got {type(graph).__name__} and "
            f"{ranks!r:.80}."
        )
    count = graph.num_variables
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
    has copies of its factors' tables: cut again in each step of a training.

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
