"""Places for the variables and factors of an undirected graph: unfolded, no box over an edge.

Networkx lays each component out by the lengths of its shortest paths (Kamada and Kawai 1989), which
draws a grid as a grid. The picture then grows until the boxes have room.
"""

import itertools
import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Places: TypeAlias = NDArray[np.floating[Any]]
Scope: TypeAlias = tuple[int, ...]

_MANY = 600  # nodes, above which shortest paths take long
_GAP = 0.22  # between two boxes, in inches
_LARGEST = 60.0  # inches of a side
_ASPECT = 1.4  # boxes are wider than they are high
_BENDS = (0.0, 0.15, -0.15, 0.3, -0.3, 0.5, -0.5)


def unfolded(sizes: Places, scopes: Sequence[Scope]) -> Places:
    """(nodes, 2) places in inches, y upwards: those of variables, then of the larger factors.

    Args:
        sizes: (nodes, 2) width and height of the boxes, those of the larger factors included.
        scopes: the variables of each factor over two variables, and those of each larger one; a
            larger factor is a node, numbered after the variables in the order of the scopes.
    """
    import networkx as nx

    graph: Any = nx.Graph()
    graph.add_nodes_from(range(len(sizes)))
    graph.add_edges_from(edges_of(len(sizes), scopes))
    places = np.zeros((len(sizes), 2))
    x = y = row = 0.0
    parts = sorted(nx.connected_components(graph), key=lambda part: (-len(part), min(part)))
    wide = math.sqrt(float((sizes.prod(1) * 8).sum())) * _ASPECT
    for part in parts:
        nodes = sorted(part)
        own = _grown(_laid(graph.subgraph(nodes)), sizes[nodes], _edges_in(graph, nodes))
        low = (own - sizes[nodes] / 2).min(0)
        width, height = (own + sizes[nodes] / 2).max(0) - low
        if x and x + width > wide:
            x, y, row = 0.0, y + row + 2 * _GAP, 0.0
        places[nodes] = own - low + [x, y]
        x, row = x + width + 2 * _GAP, max(row, height)
    return places * [1.0, -1.0]


def edges_of(count: int, scopes: Sequence[Scope]) -> list[tuple[int, int]]:
    """Pairs of nodes to be joined: two variables, or a variable and a larger factor, each once."""
    larger = [scope for scope in scopes if len(scope) > 2]
    first = count - len(larger)
    pairs = {(min(scope), max(scope)) for scope in scopes if len(scope) == 2}
    ends = {(n, first + place) for place, scope in enumerate(larger) for n in scope}
    return sorted(pairs | ends)


def bend_of(places: Places, sizes: Places, edge: tuple[int, int]) -> float:
    """How much an edge is bent, as a share of its length, so that it passes the other boxes."""
    others = np.delete(np.arange(len(places)), edge)
    for bend in _BENDS:
        points = curve(places[edge[0]], places[edge[1]], bend)
        covered = any(
            _hits(one, other, places[others], sizes[others]).any()
            for one, other in itertools.pairwise(points)
        )
        if not covered:
            return bend
    return 0.0


def curve(one: Places, other: Places, bend: float) -> Places:
    """(points, 2) of an edge; its middle is off the line by half of the bend."""
    if not bend:
        return np.stack([one, other])
    side = np.array([one[1] - other[1], other[0] - one[0]])
    corner = (one + other) / 2 + bend * side
    share = np.linspace(0.0, 1.0, 17)[:, None]
    return (1 - share) ** 2 * one + 2 * share * (1 - share) * corner + share**2 * other


def _edges_in(graph: Any, nodes: list[int]) -> list[tuple[int, int]]:
    number = {node: place for place, node in enumerate(nodes)}
    return [(number[a], number[b]) for a, b in graph.subgraph(nodes).edges]


def _laid(part: Any) -> Places:
    """(nodes, 2) places of any scale."""
    import networkx as nx

    nodes = sorted(part)
    if len(nodes) < 3:
        return np.array([[float(place), 0.0] for place, _ in enumerate(nodes)])
    start = nx.spectral_layout(part)
    crowded = len({(round(float(x), 6), round(float(y), 6)) for x, y in start.values()})
    if crowded < len(nodes):  # such as the leaves of a star
        start = nx.circular_layout(part)
    if len(nodes) <= _MANY:
        layout = nx.kamada_kawai_layout(part, pos=start)
    else:
        layout = nx.spring_layout(part, pos=start, seed=0, iterations=200)
    return np.array([layout[node] for node in nodes])


def _grown(places: Places, sizes: Places, edges: list[tuple[int, int]]) -> Places:
    """Scaled until no two boxes touch, and further while that uncovers edges."""
    places = _turned(places - places.mean(0), edges) * [_ASPECT, 1.0]
    distance = np.abs(places[:, None] - places[None])
    needed = (sizes[:, None] + sizes[None]) / 2 + _GAP
    span = float(np.ptp(places, axis=0).max())
    if not span:  # one box
        return places
    with np.errstate(divide="ignore"):
        scales = (needed / distance).min(-1)
    np.fill_diagonal(scales, 0.0)
    scale = min(float(scales.max()), _LARGEST / span)
    best, fewest = scale, math.inf
    for _ in range(8):
        covered = _covered(places * scale, sizes, edges)
        if covered < fewest:
            best, fewest = scale, covered
        if not covered or scale * span >= _LARGEST:
            break
        scale = min(1.2 * scale, _LARGEST / span)
    return places * best


def _turned(places: Places, edges: list[tuple[int, int]]) -> Places:
    """Turned so that edges are as level or upright as they can be, those of a grid all of them."""
    if not edges:
        return places
    ends = np.array(edges)
    steps = places[ends[:, 1]] - places[ends[:, 0]]
    angles = np.arctan2(steps[:, 1], steps[:, 0])
    turn = -np.angle(np.exp(4j * angles).mean()) / 4
    cosine, sine = np.cos(turn), np.sin(turn)
    return places @ np.array([[cosine, sine], [-sine, cosine]])


def _covered(places: Places, sizes: Places, edges: list[tuple[int, int]]) -> int:
    """How many edges pass the box of another node."""
    total = 0
    for a, b in edges:
        hit = _hits(places[a], places[b], places, sizes)
        hit[[a, b]] = False
        total += int(hit.any())
    return total


def _hits(one: Places, other: Places, centres: Places, sizes: Places) -> NDArray[np.bool_]:
    """(boxes,) whether the line between two points passes a box (Liang and Barsky 1984)."""
    half = sizes / 2 + 0.03
    step = other - one
    with np.errstate(divide="ignore", invalid="ignore"):
        near = (centres - half - one) / step
        far = (centres + half - one) / step
    low, high = np.fmin(near, far), np.fmax(near, far)
    inside = np.abs(one - centres) <= half
    low = np.where(step == 0, np.where(inside, -math.inf, math.inf), low)
    high = np.where(step == 0, np.where(inside, math.inf, -math.inf), high)
    return (np.maximum(low.max(1), 0.0) <= np.minimum(high.min(1), 1.0)).astype(np.bool_)
