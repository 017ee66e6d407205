"""Circuits: log Z and all marginals of a small model in a few steps over flat arrays.

Made from the clique tree of an elimination order, level by level.
"""

from collections.abc import Sequence, Set
from dataclasses import dataclass
from math import exp, log

import numpy as np

from rdpgraph._core import tuning
from rdpgraph.plan.orders import min_weight, peel, primal_graph
from rdpgraph.plan.tree import Integers


@dataclass(frozen=True)
class Clique:
    """Variables with a joint table."""

    separator: tuple[int, ...]  # variables shared with the parent, the first dims of the table
    residual: tuple[int, ...]  # the others, its last dims
    parent: int  # position in the list of cliques; -1 for a root
    depth: int  # distance from the root


def clique_tree(
    scopes: Sequence[Sequence[int]], sizes: Sequence[int], *, cells: float
) -> list[Clique] | None:
    """Cliques of a greedy order, parents first; None if their tables have too many cells.

    Every scope lies inside some clique, and every variable, also one in no scope, is in the
    residual of exactly one. Each tree is rooted in its middle, so that it has few levels; on a
    level, cliques with most children come first.
    """
    graph = primal_graph(scopes, sizes)
    prefix, core, names = peel(graph)
    rest = min_weight(core, limit=cells)
    if rest is None:
        return None
    members, links = _maximal(graph.adjacency, prefix + [names[v] for v in rest])
    logs = [log(size) for size in sizes]
    weights = [sum([logs[v] for v in clique]) for clique in members]
    if max(weights, default=0.0) > 50 or sum(map(exp, weights)) > cells:
        return None
    return _hung(members, links)


def _maximal(
    adjacency: Sequence[Set[int]], order: Sequence[int]
) -> tuple[list[set[int]], list[list[int]]]:
    """Maximal cliques of an elimination order, and the neighbours of each in their tree."""
    filled = [set(near) for near in adjacency]
    rank = [0] * len(order)
    for place, v in enumerate(order):
        rank[v] = place
        near = filled[v]
        for u in near:
            filled[u] |= near
            filled[u].discard(u)
            filled[u].discard(v)
    members: list[set[int]] = []
    links: list[list[int]] = []
    home = [0] * len(order)
    for v in reversed(order):
        near = filled[v]
        above = home[min(near, key=rank.__getitem__)] if near else -1
        if above >= 0 and len(near) == len(members[above]):
            members[above].add(v)
            home[v] = above
            continue
        home[v] = len(members)
        members.append({v, *near})
        links.append([])
        if above >= 0:
            links[home[v]].append(above)
            links[above].append(home[v])
    return members, links


def _hung(members: list[set[int]], links: list[list[int]]) -> list[Clique]:
    """Rooted clique trees, level by level."""
    seen = [False] * len(members)
    level: list[tuple[int, int]] = []
    for start in range(len(members)):
        if seen[start]:
            continue
        before = _reached(_reached(start, links)[-1][0], links)
        for clique, _ in before:
            seen[clique] = True
        level.append((_middle(before), -1))
    parents: list[tuple[int, int, int]] = []
    depth = 0
    while level:
        level.sort(key=lambda pair: (pair[1] >= 0) - len(links[pair[0]]))
        ahead: list[tuple[int, int]] = []
        for clique, parent in level:
            came = parents[parent][0] if parent >= 0 else -1
            ahead.extend((other, len(parents)) for other in links[clique] if other != came)
            parents.append((clique, parent, depth))
        level = ahead
        depth += 1
    hung: list[Clique] = []
    for clique, parent, depth in parents:
        above: set[int] = members[parents[parent][0]] if parent >= 0 else set()
        separator = tuple(sorted(members[clique] & above))
        hung.append(Clique(separator, tuple(sorted(members[clique] - above)), parent, depth))
    return hung


def _reached(start: int, links: list[list[int]]) -> list[tuple[int, int]]:
    """Cliques of a tree in breadth-first order from one of them, and their predecessors."""
    reached = [(start, -1)]
    for clique, before in reached:
        reached.extend((other, clique) for other in links[clique] if other != before)
    return reached


def _middle(reached: list[tuple[int, int]]) -> int:
    """Middle of the path to the last clique reached."""
    before = dict(reached)
    path = [reached[-1][0]]
    while before[path[-1]] >= 0:
        path.append(before[path[-1]])
    return path[len(path) // 2]


@dataclass(frozen=True, eq=False)
class Scopes:
    """Factors of one shape whose tables are contiguous."""

    scopes: Integers  # (F, arity) variables
    rows: Integers  # (F,) table of each factor
    tables: int  # number of tables


@dataclass(frozen=True, eq=False)
class Runs:
    """Sums of runs of gathered cells."""

    cells: Integers  # to gather, run after run
    starts: Integers  # of the runs, none of which is empty


@dataclass(frozen=True, eq=False)
class Level:
    """Cliques at one distance from their roots, with contiguous cells and messages."""

    cells: slice  # positions of the cells
    messages: slice  # positions of the messages to the parents
    # children's messages that act on the first cells, one of each child in turn
    pulls: tuple[Integers, ...]
    starts: Integers  # first cell of each message, within the level
    above: Runs  # the parents' cells that each message sums
    targets: Integers  # message of the level that each cell contributes to


@dataclass(frozen=True, eq=False)
class Circuit:
    """Gathers and sums of a small model, independent of evidence and tables."""

    entries: int  # number of entries in all tables; a zero follows them
    factors: Runs  # per cell the entries whose sum is its log-value
    entry: Integers  # cell of each gathered entry
    owners: Integers  # clique of each cell
    cliques: Integers  # first cell of each clique
    levels: tuple[Level, ...]  # roots first
    states: Runs  # per state of every variable the cells that make up its marginal
    variables: Integers  # first state of each variable
    variable: Integers  # variable of each state
    # per variable its clique's cells, and their shape (before its dim, states, after it)
    places: tuple[tuple[slice, tuple[int, int, int]], ...]
    log_cells: float  # log of the number of configurations, a bound on every sum
    num_messages: int  # of all levels


def circuit(blocks: Sequence[Scopes], sizes: Integers) -> Circuit | None:
    """Circuit of factors over variables of some sizes; None if it is not small."""
    listed = [scope for block in blocks for scope in block.scopes.tolist()]
    counts: list[int] = sizes.tolist()
    cliques = clique_tree(listed, counts, cells=tuning.CIRCUIT_CELLS)
    if not cliques:
        return None
    grid = _Grid(cliques, counts)
    offsets, strides, entries = _entries(blocks, counts)
    # Cliques are listed level by level: of those that hold a part of a scope the last is lowest.
    homes = [max((grid.home[v] for v in scope), default=0) for scope in listed]
    log_cells = sum(log(size) for size in counts)
    owners = np.repeat(np.arange(len(cliques)), grid.counts)
    factors, entry = _factor_runs(grid, homes, offsets, strides, entries)
    levels, num_messages = _levels(grid, cliques, counts)
    begins = np.cumsum(sizes) - sizes
    return Circuit(
        entries=entries,
        factors=factors,
        entry=entry,
        owners=owners,
        cliques=grid.starts,
        levels=levels,
        states=_state_runs(grid, cliques, begins),
        variables=begins,
        variable=np.repeat(np.arange(len(sizes)), sizes),
        places=tuple(grid.place(v) for v in range(len(counts))),
        log_cells=log_cells,
        num_messages=num_messages,
    )


class _Grid:
    """Cells of all cliques, one table after the other."""

    def __init__(self, cliques: list[Clique], sizes: list[int]) -> None:
        self.dims = [(*clique.separator, *clique.residual) for clique in cliques]
        self.strides: list[dict[int, int]] = []
        counts: list[int] = []
        self.home: dict[int, int] = {}
        for number, (clique, dims) in enumerate(zip(cliques, self.dims, strict=True)):
            self.home.update((v, number) for v in clique.residual)
            strides, count = _strides(dims, sizes)
            self.strides.append(strides)
            counts.append(count)
        self.sizes = sizes
        self.counts = np.array(counts)
        self.starts = np.cumsum(self.counts) - self.counts
        self.total = int(self.counts.sum())

    def place(self, v: int) -> tuple[slice, tuple[int, int, int]]:
        number = self.home[v]
        stride, size = self.strides[number][v], self.sizes[v]
        start, count = int(self.starts[number]), int(self.counts[number])
        return slice(start, start + count), (count // (size * stride), size, stride)

    def indexed(
        self, cliques: list[int], offsets: Sequence[int], weights: list[dict[int, int]]
    ) -> tuple[Integers, Integers]:
        """Cells of each clique of a list, and an index that is linear in their states.

        The index begins at ``offsets``; ``weights`` are what each further state of a variable adds.
        """
        which = np.array(cliques, dtype=np.int64)
        counts = self.counts[which]
        ends = np.cumsum(counts)
        local = np.arange(int(ends[-1]) if len(ends) else 0) - np.repeat(ends - counts, counts)
        index = np.repeat(np.array(offsets, dtype=np.int64), counts)
        terms = max(map(len, weights), default=0)
        sizes, none = self.sizes, [(1, 1, 0)] * terms
        listed = [
            ([(self.strides[clique][v], sizes[v], by) for v, by in steps.items()] + none)[:terms]
            for clique, steps in zip(cliques, weights, strict=True)
        ]
        table = np.array(listed, dtype=np.int64).reshape(len(cliques), terms, 3)
        for stride, size, weight in np.repeat(table, counts, axis=0).transpose(1, 2, 0):
            index += local // stride % size * weight
        return local + np.repeat(self.starts[which], counts), index


def _entries(
    blocks: Sequence[Scopes], sizes: list[int]
) -> tuple[list[int], list[dict[int, int]], int]:
    """First entry of each factor, the strides of its variables, and the number of entries."""
    offsets: list[int] = []
    strides: list[dict[int, int]] = []
    total = 0
    for block in blocks:
        stride = 1
        for scope, row in zip(block.scopes.tolist(), block.rows.tolist(), strict=True):
            by_variable, stride = _strides(scope, sizes)
            strides.append(by_variable)
            offsets.append(total + row * stride)
        total += block.tables * stride
    return offsets, strides, total


def _factor_runs(
    grid: _Grid, homes: list[int], offsets: list[int], strides: list[dict[int, int]], entries: int
) -> tuple[Runs, Integers]:
    """Per cell the entries of the factors assigned to its clique, or the final zero."""
    bare = sorted(set(range(len(grid.counts))).difference(homes))
    none: list[dict[int, int]] = [{} for _ in bare]
    cells, index = grid.indexed(homes + bare, offsets + [entries] * len(bare), strides + none)
    order = np.argsort(cells, kind="stable")
    return Runs(index[order], _run_starts(cells, grid.total)), cells[order]


def _state_runs(grid: _Grid, cliques: list[Clique], begins: Integers) -> Runs:
    """Per state of every variable the cells with it in the clique that owns the variable."""
    pairs = [(number, v) for number, clique in enumerate(cliques) for v in clique.residual]
    first = [int(begins[v]) for _, v in pairs]
    cells, index = grid.indexed([number for number, _ in pairs], first, [{v: 1} for _, v in pairs])
    return Runs(cells[np.argsort(index, kind="stable")], _run_starts(index, sum(grid.sizes)))


def _levels(grid: _Grid, cliques: list[Clique], sizes: list[int]) -> tuple[tuple[Level, ...], int]:
    owned = np.array([int(np.prod([sizes[v] for v in c.residual])) for c in cliques])
    lengths = grid.counts // owned
    begins = np.cumsum(lengths) - lengths
    total = int(lengths.sum())
    run = np.repeat(owned, lengths)
    starts = np.cumsum(run) - run
    targets = np.repeat(np.arange(total), run)
    # Every cell of a parent, once for each child: which of the child's messages acts on it.
    children = [number for number, clique in enumerate(cliques) if clique.parent >= 0]
    parents = [cliques[number].parent for number in children]
    weights = [_strides(cliques[number].separator, sizes)[0] for number in children]
    cells, index = grid.indexed(parents, begins[children].tolist(), weights)
    order = np.argsort(index, kind="stable")
    above, above_starts = cells[order], _run_starts(index, total)
    pulled = np.cumsum(grid.counts[parents]) if parents else np.zeros(0, np.int64)
    kids: list[list[int]] = [[] for _ in cliques]
    for place, parent in enumerate(parents):
        kids[parent].append(place)
    levels: list[Level] = []
    bounds = [n for n, c in enumerate(cliques) if not n or c.depth != cliques[n - 1].depth]
    for low, high in zip(bounds, [*bounds[1:], len(cliques)], strict=True):
        last = high - 1
        cell = slice(int(grid.starts[low]), int(grid.starts[last] + grid.counts[last]))
        message = slice(int(begins[low]), int(begins[last] + lengths[last]))
        pulls: list[Integers] = []
        for turn in range(len(kids[low])):
            places = [kids[n][turn] for n in range(low, high) if len(kids[n]) > turn]
            pieces = [index[pulled[p] - grid.counts[parents[p]] : pulled[p]] for p in places]
            pulls.append(np.concatenate(pieces))
        ends = above_starts[message.stop] if message.stop < total else len(above)
        begin = above_starts[message.start]
        runs = Runs(above[begin:ends], above_starts[message] - begin)  # of roots no cells
        firsts, senders = starts[message] - cell.start, targets[cell] - message.start
        levels.append(Level(cell, message, tuple(pulls), firsts, runs, senders))
    return tuple(levels), total


def _strides(scope: Sequence[int], sizes: list[int]) -> tuple[dict[int, int], int]:
    """Stride of each variable in a contiguous table, and the table's cells."""
    strides: dict[int, int] = {}
    stride = 1
    for v in reversed(scope):
        strides[v] = stride
        stride *= sizes[v]
    return strides, stride


def _run_starts(keys: Integers, count: int) -> Integers:
    """Starts of the runs of the keys 0, 1, ... once they are sorted."""
    lengths = np.bincount(keys, minlength=count)
    return np.cumsum(lengths) - lengths
