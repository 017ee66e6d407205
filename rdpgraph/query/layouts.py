"""Layouts of boxes without overlap, in inches, with lines around other boxes.

Directed graphs are laid out in layers from top to bottom with few crossings (Sugiyama, Tagawa and
Toda 1981): networkx's layouts in layers neither sort them nor have a place for an edge that passes
one. Undirected ones are unfolded by the lengths of their shortest paths (Kamada and Kawai 1989).
"""

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rdpgraph._core import tuning

Places: TypeAlias = NDArray[np.floating[Any]]
Point: TypeAlias = tuple[float, float]
Scope: TypeAlias = tuple[int, ...]

_SWEEPS = 24  # sweeps over layers, down and up, that uncross edges
_GAP = 0.25  # between neighbours of a layer, in inches
_BETWEEN = 0.55  # between layers
_BEND = 0.12  # width of an edge that crosses a layer
_APART = 0.22  # between two boxes of an undirected graph
_LARGEST = 60.0  # inches of a side
_ASPECT = 1.4  # width of boxes over height
_BENDS = (0.0, 0.15, -0.15, 0.3, -0.3, 0.5, -0.5)  # of an edge, relative to its length


@dataclass(frozen=True)
class Layered:
    """Centres of boxes and points along edges (from top to bottom), in inches, y upwards."""

    places: dict[str, Point]
    routes: dict[tuple[str, str], list[Point]]


def layered(parents: Mapping[str, Sequence[str]], sizes: Mapping[str, Point]) -> Layered:
    """A layered layout of a directed acyclic graph, from parents and the sizes of boxes."""
    import networkx as nx

    graph: Any = nx.DiGraph()
    graph.add_nodes_from(parents)
    graph.add_edges_from((parent, child) for child, above in parents.items() for parent in above)
    ranks: dict[str, int] = {}
    for rank, names in enumerate(nx.topological_generations(graph)):
        ranks.update(dict.fromkeys(names, rank))
    for name in reversed(list(ranks)):  # as far down as children allow
        ranks[name] = min((ranks[child] - 1 for child in graph[name]), default=ranks[name])
    layers: list[list[Any]] = [[] for _ in range(max(ranks.values(), default=-1) + 1)]
    for name in ranks:
        layers[ranks[name]].append(name)
    links: Any = nx.DiGraph()  # edges have a cell in each layer that they cross
    links.add_nodes_from(ranks)
    for parent, child in graph.edges:
        path = [(parent, child, rank) for rank in range(ranks[parent] + 1, ranks[child])]
        for place in path:
            layers[place[2]].append(place)
        nx.add_path(links, [parent, *path, child])
    _order(layers, links)
    x = _abscissas(layers, links, {name: size[0] for name, size in sizes.items()})
    heights = [0.0] * len(layers)
    for name, rank in ranks.items():
        heights[rank] = max(heights[rank], sizes[name][1])
    tops = [-sum(heights[:rank]) - _BETWEEN * rank for rank in range(len(layers))]
    places = {name: (x[name], tops[rank] - heights[rank] / 2) for name, rank in ranks.items()}
    routes: dict[tuple[str, str], list[Point]] = {}
    for parent, child in graph.edges:
        first, last = ranks[parent], ranks[child]
        points = [(x[parent], places[parent][1] - sizes[parent][1] / 2)]
        points.append((x[parent], tops[first] - heights[first]))
        for rank in range(first + 1, last):
            at = x[parent, child, rank]
            points += [(at, tops[rank]), (at, tops[rank] - heights[rank])]
        end = (x[child], places[child][1] + sizes[child][1] / 2)
        routes[parent, child] = [*points, (x[child], tops[last]), end]
    return Layered(places, routes)


def _order(layers: list[list[Any]], links: Any) -> None:
    """Sort each layer by the mean place of its cells' neighbours; keep the fewest crossings."""
    best, fewest = [list(layer) for layer in layers], _crossings(layers, links)
    for sweep in range(_SWEEPS):
        down = sweep % 2 == 0
        for layer in layers[1:] if down else layers[-2::-1]:
            places = _numbered(layers)
            near = {c: list(links.pred[c] if down else links.succ[c]) or [c] for c in layer}
            layer.sort(key={c: mean(places[o] for o in near[c]) for c in layer}.__getitem__)
        if (crossings := _crossings(layers, links)) < fewest:
            best, fewest = [list(layer) for layer in layers], crossings
    layers[:] = best


def _numbered(layers: list[list[Any]]) -> dict[Hashable, int]:
    return {cell: place for layer in layers for place, cell in enumerate(layer)}


def _crossings(layers: list[list[Any]], links: Any) -> int:
    """The number of pairs of edges that cross."""
    places, total = _numbered(layers), 0
    for layer in layers:
        ends = [(places[cell], places[below]) for cell in layer for below in links[cell]]
        high, low = (np.subtract.outer(side, side) for side in np.reshape(ends, (-1, 2)).T)
        total += int((high * low < 0).sum()) // 2
    return total


def _abscissas(layers: list[list[Any]], links: Any, widths: dict[Any, float]) -> dict[Any, float]:
    """The x of each cell: near its neighbours, in order and without overlap."""
    from scipy.optimize import isotonic_regression

    offsets: list[Places] = []
    for layer in layers:
        wide = np.array([widths.get(cell, _BEND) for cell in layer])
        offsets.append(np.cumsum(wide) - wide / 2 + _GAP * np.arange(len(layer)))
    x: dict[Any, float] = {}
    for sweep in range(-1, _SWEEPS):
        for layer, offset in list(zip(layers, offsets, strict=True))[
            :: 1 if sweep % 2 == 0 else -1
        ]:
            near = {cell: [*links.pred[cell], *links.succ[cell]] or [cell] for cell in layer}
            wanted = [mean(x[o] for o in near[c]) if sweep >= 0 else 0.0 for c in layer]
            x.update(zip(layer, isotonic_regression(wanted - offset).x + offset, strict=True))
    return x


def unfolded(sizes: Places, scopes: Sequence[Scope]) -> Places:
    """(nodes, 2) places in inches, y upwards, of variables and then of factors over more than two.

    ``sizes`` (nodes, 2) has the widths and heights of all boxes; ``scopes`` are those of factors
    over two or more variables.
    """
    import networkx as nx

    graph: Any = nx.Graph()
    graph.add_nodes_from(range(len(sizes)))
    graph.add_edges_from(edges_of(len(sizes), scopes))
    places = np.zeros((len(sizes), 2))
    x = y = row = 0.0
    wide = math.sqrt(float((sizes.prod(1) * 8).sum())) * _ASPECT
    for part in sorted(nx.connected_components(graph), key=lambda part: (-len(part), min(part))):
        nodes = sorted(part)
        grown = _grown(_laid(graph.subgraph(nodes), nodes), sizes[nodes])
        low = (grown - sizes[nodes] / 2).min(0)
        width, height = (grown + sizes[nodes] / 2).max(0) - low
        if x and x + width > wide:
            x, y, row = 0.0, y + row + 2 * _APART, 0.0
        places[nodes] = grown - low + [x, y]
        x, row = x + width + 2 * _APART, max(row, height)
    return places * [1.0, -1.0]


def edges_of(count: int, scopes: Sequence[Scope]) -> list[tuple[int, int]]:
    """Edges of the drawing: pairs of variables, or a variable and a larger factor."""
    larger = [scope for scope in scopes if len(scope) > 2]
    first = count - len(larger)
    pairs = {(min(scope), max(scope)) for scope in scopes if len(scope) == 2}
    ends = {(n, first + place) for place, scope in enumerate(larger) for n in scope}
    return sorted(pairs | ends)


def line_of(places: Places, sizes: Places, edge: tuple[int, int]) -> Places:
    """(points, 2) of an edge, bent around the other boxes where one bend suffices."""
    one, other = places[list(edge)]
    side = np.array([one[1] - other[1], other[0] - one[0]])
    share = np.linspace(0.0, 1.0, 65)[:, None]
    centres, half = np.delete(places, edge, 0), np.delete(sizes, edge, 0) / 2 + 0.03
    for bend in _BENDS:
        line = one + share * (other - one) + 2 * share * (1 - share) * bend * side
        if not (np.abs(line[:, None] - centres) < half).all(2).any():
            return line if bend else line[[0, -1]]
    return np.stack([one, other])


def _laid(part: Any, nodes: list[int]) -> Places:
    """(nodes, 2) places of any scale, edges as horizontal or vertical as possible."""
    import networkx as nx

    if len(nodes) < 3:
        return np.array([[float(place), 0.0] for place, _ in enumerate(nodes)])
    start = nx.spectral_layout(part)
    if len({tuple(np.round(place, 6)) for place in start.values()}) < len(nodes):
        start = nx.circular_layout(part)  # for symmetric nodes, such as the leaves of a star
    if len(nodes) <= tuning.PATH_NODES:
        layout = nx.kamada_kawai_layout(part, pos=start)
    else:
        layout = nx.spring_layout(part, pos=start, seed=0, iterations=200)
    steps = np.array([layout[b] - layout[a] for a, b in part.edges])
    angles = np.arctan2(steps[:, 1], steps[:, 0])
    turn = -np.angle(np.exp(4j * angles).mean()) / 4
    cosine, sine = np.cos(turn), np.sin(turn)
    return np.array([layout[node] for node in nodes]) @ np.array([[cosine, sine], [-sine, cosine]])


def _grown(places: Places, sizes: Places) -> Places:
    """Places scaled until no two boxes touch."""
    places = (places - places.mean(0)) * [_ASPECT, 1.0]
    needed = (sizes[:, None] + sizes[None]) / 2 + _APART
    with np.errstate(divide="ignore"):
        scales = (needed / np.abs(places[:, None] - places[None])).min(-1)
    np.fill_diagonal(scales, 0.0)
    span = float(np.ptp(places, axis=0).max())
    return places * min(float(scales.max()), _LARGEST / span) if span else places
