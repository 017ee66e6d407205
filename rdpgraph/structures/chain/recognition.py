"""Chains as factor graphs, and factor graphs that are chains."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rdpgraph._core import tuning
from rdpgraph.interface.sites import Neighbours
from rdpgraph.model.block import Block
from rdpgraph.model.factor import Factor, FactorBlock
from rdpgraph.model.graph import FactorGraph
from rdpgraph.model.potentials.lowrank import Bilinear, LowRank
from rdpgraph.model.potentials.operators import Banded, PairOperator
from rdpgraph.model.potentials.potential import Potential
from rdpgraph.model.potentials.table import Table
from rdpgraph.model.variable import VariableArray
from rdpgraph.structures.chain.parts import inside


@dataclass(frozen=True, eq=False)
class Recognised:
    """A graph as chains."""

    unary: Tensor  # (*batch, T, N), or (*batch, C, T, N) for C chains
    # (N, N), or per step with leading dims that broadcast; a potential without a table if all
    # neighbours share one (a `PairOperator`, a `LowRank` of few ranks, or another one of so many
    # states that its table is large), or if each pair of a chain has one of its own.
    transition: Tensor | Potential
    numbers: Tensor  # (T,) or (C, T): the graph's number of the variable at each site; -1: none
    lengths: Tensor | None  # (*batch, C), or None where all are T


def chain_graph(
    unary: Tensor, transition: Tensor | Potential, lengths: Tensor | None
) -> FactorGraph:
    """The graph of a chain; sites beyond the length are held in state 0."""
    *batch, total, states = unary.shape
    sites = VariableArray("site", (total,), states)
    if not total:
        nothing = Factor((), Table(unary.new_zeros(batch)))
        return FactorGraph([nothing], variables=(sites,))
    if lengths is not None and total > 1:
        transition = transition if isinstance(transition, Tensor) else transition.table(2)
    if lengths is not None:
        within = inside(lengths, total)
        held = torch.full((states,), -math.inf, device=unary.device).to(unary)
        held[0] = 0.0
        unary = torch.where(within.unsqueeze(-1), unary, held)
        if isinstance(transition, Tensor):
            transition = torch.where(within[..., 1:, None, None], transition, 0.0)
    potential = Table.from_logs(transition) if isinstance(transition, Tensor) else transition
    blocks = [FactorBlock((sites,), Table.from_logs(unary))]
    if total > 1:
        blocks.append(FactorBlock((sites[:-1], sites[1:]), potential))
    return FactorGraph(blocks)


def neighbours_of(transition: Tensor | Potential, unary: Tensor) -> tuple[Neighbours, ...]:
    """The transition as the factors of each site and the next, and of each site and the last."""
    total, states = unary.shape[-2:]
    if total < 2:
        return ()
    potential = Table.checked(transition) if isinstance(transition, Tensor) else transition
    sites, sizes = torch.arange(total, device="cpu"), (states, states)
    return Neighbours(sites[:-1], 0, potential, sizes), Neighbours(sites[1:], 1, potential, sizes)


def recognised(graph: FactorGraph) -> Recognised | None:
    """The chains that a graph consists of, all over as many states; or None."""
    # Pairs of variables, with or without unary factors, all of as many states.
    arities = {block.arity for block in graph.blocks}
    sizes = graph.domain.sizes
    if not {2} <= arities <= {1, 2} or int(sizes.amin()) != int(sizes.amax()):
        return None
    pairs = [block for block in graph.blocks if block.arity == 2]
    # (chains, T) the variables in order, -1 beyond the end of a chain; None where the pairs are no
    # lines.
    numbers = lined_up(
        [block.scopes for block in pairs], graph.num_variables, fewest=tuning.FEWEST_SITES
    )
    if numbers is None:
        return None
    # `place` is the inverse: where each variable stands in this table.
    place = torch.empty(graph.num_variables, dtype=torch.long, device="cpu")
    sites = (numbers.reshape(-1) >= 0).nonzero().flatten()
    place[numbers.reshape(-1)[sites]] = sites
    transition = _transition(graph, pairs, place, numbers)
    if transition is None:
        return None
    chains, total = numbers.shape
    unary = unary_sum(graph, place, numbers.numel())
    unary = unary.reshape([*graph.batch_shape, chains, total, -1])
    # A single chain has no batch dim, and several that differ in length have lengths.
    if chains == 1:
        unary, numbers = unary.squeeze(-3), numbers.squeeze(0)
        if isinstance(transition, Tensor) and transition.ndim > 2:
            transition = transition.squeeze(-4)
    lengths = None
    if len(sites) < numbers.numel():
        lengths = (numbers >= 0).sum(-1).to(unary.device).expand(unary.shape[:-2])
    return Recognised(unary, transition, numbers, lengths)


def unary_sum(graph: FactorGraph, place: Tensor, count: int) -> Tensor:
    """(*batch, sites, N): the summed unary potentials of each variable, at its site."""
    size = int(graph.domain.sizes[0])
    total = torch.zeros(count, size, dtype=graph.dtype, device=graph.device)
    for block in graph.blocks:
        if block.arity == 1:
            values = block.select().table(1).to(total)
            values = values if values.ndim > 1 else values.unsqueeze(0)
            where = place[block.scopes[:, 0]]
            total = total + _by_place(values, where, count, 1, once=_once(where, count))
    return total.expand(*graph.batch_shape, count, size)


def _transition(
    graph: FactorGraph, pairs: list[Block], place: Tensor, numbers: Tensor
) -> Tensor | Potential | None:
    """(N, N), or (*batch, C, T - 1, N, N); None where that is much larger than the tables."""
    chains, total = numbers.shape
    edges, states = chains * (total - 1), int(graph.domain.sizes[0])
    joined = graph.num_variables - chains
    placed = [_Placed.of(block, place, total, edges, joined) for block in pairs]
    # One block may be kept as it is, in place of a table: an operator, or of low rank.
    low = placed[0].without_table(graph.dtype) if len(placed) == 1 else None
    if low is not None:
        return low
    # Writing tables out may take much more memory than the factors do. Then there is no chain, and
    # the graph is solved as it is.
    held = [math.prod(block.potential.shape) for block in pairs]
    if any(block.select().decompose() is not None for block in pairs):
        return None
    if len(placed) == 1 and tuning.BLOCK < held[0] <= tuning.MOST_TABULATED and chains == 1:
        kept = placed[0].kept_potential()
        if kept is not None:
            return kept
    if any(
        entries > tuning.BLOCK and not isinstance(block.potential, Table)
        for entries, block in zip(held, pairs, strict=True)
    ):
        return None
    if not all(part.alike for part in placed):
        copied = math.prod(graph.batch_shape) * edges * states**2
        if copied > max(tuning.BLOCK, 4 * sum(held)):
            return None
    like = torch.zeros((), dtype=graph.dtype, device=graph.device)
    # Tables of one pair add up; those that are alike at all steps stay one table.
    tables = [part.tables(edges, like) for part in placed]
    result = tables[0]
    for table in tables[1:]:
        result = result + table
    if result.ndim == 3 and len(result) == 1:
        return result.squeeze(0)
    batch = result.shape[:-3]
    return result.expand(*batch, edges, states, states).reshape(
        [*batch, chains, total - 1, states, states]
    )


@dataclass(frozen=True, eq=False)
class _Placed:
    """A block of pairs."""

    block: Block  # as the graph has it
    where: Tensor  # (F,) the edge of each factor
    forwards: Tensor  # (F,) whether its first slot comes first
    once: bool  # each edge between variables has one of the factors
    all_edges: bool  # there are no others

    @staticmethod
    def of(block: Block, place: Tensor, total: int, edges: int, joined: int) -> "_Placed":
        """Place the factors of a block in chains of ``total`` sites with ``joined`` pairs."""
        first, second = place[block.scopes[:, 0]], place[block.scopes[:, 1]]
        left = torch.minimum(first, second)
        # Chains are concatenated, each with one edge less than sites.
        where = left - left // total
        once = len(where) == joined and int(torch.bincount(where, minlength=edges).amax()) == 1
        return _Placed(block, where, first < second, once, edges == joined)

    @property
    def one_way(self) -> bool:
        """Return whether all factors run in one direction."""
        return bool(self.forwards.all()) or not bool(self.forwards.any())

    @property
    def alike(self) -> bool:
        """Return whether one table is on every edge."""
        return self.block.shared and self.once and self.one_way

    def without_table(self, dtype: torch.dtype) -> LowRank | PairOperator | None:
        """The one potential of all edges, [earlier, later], an operator or of few ranks."""
        low = self.block.select()
        if isinstance(low, Banded) and math.prod(low.lead(2)) == 1:
            low = low.replaced([part.reshape(part.shape[-2:]) for part in low.tensors])
        if isinstance(low, PairOperator) and self.alike and not low.lead(2):
            return low if bool(self.forwards[0]) else low.turned()
        if not isinstance(low, LowRank) or not self.alike or math.prod(low.lead(2)) != 1:
            return None
        if 2 * low.rank > low.shape[-1]:
            return None
        sides = [part.reshape(part.shape[-2:]).to(dtype) for part in (low.log_left, low.log_right)]
        return LowRank(*(sides if bool(self.forwards[0]) else sides[::-1]))

    def kept_potential(self) -> Potential | None:
        """The potential of all edges of a chain, [earlier, later], whatever it is but a `Table`.

        One for all edges, or one for each in their order. None where that is another one.
        """
        block = self.block
        if isinstance(block.potential, Table) or not self.once or not self.one_way:
            return None
        if self.alike:
            return self._directed(kept) if (kept := _without_lead(block.select())) else None
        if block.shared or not self.all_edges:
            return None
        kept = block.select(torch.argsort(self.where))
        return self._directed(kept) if len(kept.lead(2)) == 1 else None

    def _directed(self, kept: Potential) -> Potential:
        return kept if bool(self.forwards[0]) else turned(kept)

    def tables(self, edges: int, like: Tensor) -> Tensor:
        """(*batch, 1 or edges, N, N) log-values, [earlier, later], 0 where there is no factor."""
        values = self.block.select().table(2).to(like)
        values = values if values.ndim > 2 else values.unsqueeze(0)
        if self.one_way:
            values = values if bool(self.forwards[0]) else values.mT
            once = self.once and (self.all_edges or values.shape[-3] == 1)
            return _by_place(values, self.where, edges, 2, once=once)
        values = values.expand(*values.shape[:-3], len(self.where), *values.shape[-2:])
        forwards = self.forwards.to(like.device).reshape(-1, 1, 1)
        values = torch.where(forwards, values, values.mT)
        return _by_place(values, self.where, edges, 2, once=self.once and self.all_edges)


def _without_lead(potential: Potential) -> Potential | None:
    """A potential of one pair without leading dims; None where it has others than ones."""
    if not potential.lead(2):
        return potential
    if math.prod(potential.lead(2)) != 1 or not isinstance(potential, Bilinear):
        return None
    return Bilinear(*(side.reshape(side.shape[-2:]) for side in (potential.left, potential.right)))


def turned(potential: Potential) -> Potential:
    """A potential of two variables with its slots exchanged."""
    if isinstance(potential, Bilinear):
        return Bilinear(potential.right, potential.left)
    if isinstance(potential, LowRank):
        return LowRank(potential.log_right, potential.log_left)
    if isinstance(potential, PairOperator):
        return potential.turned()
    return _Turned(potential)


@dataclass(frozen=True, eq=False)
class _Turned(Potential):
    """A potential of two variables with its slots exchanged."""

    given: Potential

    @property
    def shape(self) -> tuple[int, ...]:
        *lead, first, second = self.given.shape
        return (*lead, second, first)

    @property
    def dtype(self) -> torch.dtype:
        return self.given.dtype

    @property
    def device(self) -> torch.device:
        return self.given.device

    def evaluate(self, states: Sequence[Tensor]) -> Tensor:
        first, second = states
        return self.given.evaluate([second, first]).mT

    def table(self, arity: int) -> Tensor:
        return self.given.table(arity).mT

    def select(self, block: tuple[int, ...], rows: Tensor | None, arity: int) -> Potential:
        return _Turned(self.given.select(block, rows, arity))


def _once(where: Tensor, edges: int) -> bool:
    """Return whether each edge occurs exactly once."""
    return len(where) == edges and bool((torch.bincount(where, minlength=edges) == 1).all())


def _by_place(values: Tensor, where: Tensor, rows: int, dims: int, *, once: bool) -> Tensor:
    """Tables (*batch, F or 1, ...) summed by place: (*batch, rows, ...), or 1 for all."""
    axis = values.ndim - dims - 1
    if once and values.shape[axis] == 1:
        return values
    if once:
        return values.index_select(axis, torch.argsort(where).to(values.device))
    lead, ends = values.shape[:axis], values.shape[axis + 1 :]
    values = values.expand(*lead, len(where), *ends)
    empty = values.new_zeros(*lead, rows, *ends)
    return empty.index_add(axis, where.to(values.device), values)


def lined_up(scopes: Sequence[Tensor], count: int, *, fewest: int) -> Tensor | None:
    """The variables along paths, (paths, length), if pairs make up paths; -1 beyond ends.

    Linear in the pairs (F, 2), which are in any order and may be repeated.
    None for a variable with three neighbours, a cycle, paths of which most are much shorter than
    the longest, or none of ``fewest`` variables; a variable without neighbours is a path. A path
    runs in the direction of its first pair if its ends agree on one, else from the smaller number;
    paths are ordered by their first variables' numbers.
    """
    ends = torch.cat([*scopes, *(scope.flip(1) for scope in scopes)])
    near, far = ends[:, 0], ends[:, 1]
    lowest = torch.full((count,), count, device="cpu").scatter_reduce(0, near, far, "amin")
    highest = torch.full((count,), -1, device="cpu").scatter_reduce(0, near, far, "amax")
    if bool(((far != lowest[near]) & (far != highest[near])).any()):
        return None
    # The neighbours of each variable: one twice at an end, none of a variable that is a path.
    alone, variables = highest < 0, torch.arange(count, device="cpu")
    sides = torch.where(alone, variables, torch.stack([lowest, highest])).T.tolist()
    paths, last = list[list[int]](), [False] * count
    for start, (one, other) in enumerate(sides):
        if one != other or last[start]:
            continue
        path, here = [start], one
        while here != path[-1]:
            before, (one, other) = path[-1], sides[here]
            path.append(here)
            here = here if one == other else other if one == before else one
        last[path[-1]] = True
        paths.append(path)
    length = max(map(len, paths), default=0)
    # What is in no path is in a cycle.
    if sum(map(len, paths)) < count or length < fewest:
        return None
    if len(paths) * length > tuning.MOST_PADDED * count:
        return None
    # The number of a variable is its rank, after all that come first in some pair.
    rank = variables + count
    for scope in scopes:
        rank[scope[:, 0]] = scope[:, 0]
    for path in paths:
        if rank[path[0]] > rank[path[-1]]:
            path.reverse()
    rows = [path + [-1] * (length - len(path)) for path in sorted(paths)]
    return torch.tensor(rows, device="cpu")
