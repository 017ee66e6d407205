"""Clique trees of elimination orders, level by level."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, log

from rdpgraph.plan.orders import PrimalGraph, min_weight, peel


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
    adjacency: list[set[int]] = [set() for _ in sizes]
    for scope in scopes:
        for v in scope:
            adjacency[v].update(scope)
    for v, near in enumerate(adjacency):
        near.discard(v)
    prefix, core, names = peel(PrimalGraph(tuple(adjacency), tuple(sizes)))
    rest = min_weight(core, limit=cells)
    if rest is None:
        return None
    members, links = _maximal(adjacency, prefix + [names[v] for v in rest])
    logs = [log(size) for size in sizes]
    weights = [sum([logs[v] for v in clique]) for clique in members]
    if max(weights, default=0.0) > 50 or sum(map(exp, weights)) > cells:
        return None
    return _hung(members, links)


def _maximal(
    adjacency: Sequence[set[int]], order: Sequence[int]
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
