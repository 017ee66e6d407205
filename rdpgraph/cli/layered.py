"""Places for the boxes of a directed graph: layers from top to bottom, few crossings.

The method of Sugiyama, Tagawa and Toda 1981: an edge over several layers has a place of its own in
each of them, so that no box covers it.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import mean
from typing import TypeAlias

Point: TypeAlias = tuple[float, float]
Size: TypeAlias = tuple[float, float]

_SWEEPS = 24
_GAP = 0.25  # between neighbours of a layer, in inches
_BETWEEN = 0.55  # between layers
_BEND = 0.12  # the width that an edge takes where it passes a layer


@dataclass(frozen=True)
class Layered:
    """Where boxes and edges are, in inches, y upwards.

    Attributes:
        places: the centre of each node's box.
        routes: the points that the edge from a node to another passes, from top to bottom.
    """

    places: dict[str, Point]
    routes: dict[tuple[str, str], list[Point]]


@dataclass(eq=False)
class _Cell:
    """A node, or the place of an edge, in a layer."""

    width: float
    above: list["_Cell"] = field(default_factory=list["_Cell"])
    below: list["_Cell"] = field(default_factory=list["_Cell"])
    x: float = 0.0


def layered(parents: Mapping[str, Sequence[str]], sizes: Mapping[str, Size]) -> Layered:
    """Places for the nodes of a directed acyclic graph.

    Args:
        parents: those of each node, in an order in which parents come first.
        sizes: the width and height of each node's box, in inches.
    """
    ranks = _ranks(parents)
    layers: list[list[_Cell]] = [[] for _ in range(max(ranks.values(), default=-1) + 1)]
    cells = {name: _Cell(sizes[name][0]) for name in parents}
    for name, cell in cells.items():
        layers[ranks[name]].append(cell)
    paths: dict[tuple[str, str], list[_Cell]] = {}
    for child, above in parents.items():
        for parent in dict.fromkeys(above):
            path = [_Cell(_BEND) for _ in range(ranks[parent] + 1, ranks[child])]
            for step, cell in enumerate(path, ranks[parent] + 1):
                layers[step].append(cell)
            ends = [cells[parent], *path, cells[child]]
            for upper, lower in itertools.pairwise(ends):
                upper.below.append(lower)
                lower.above.append(upper)
            paths[parent, child] = path
    _order(layers)
    _spread(layers)
    heights = [0.0] * len(layers)
    for name, rank in ranks.items():
        heights[rank] = max(heights[rank], sizes[name][1])
    tops = [-sum(heights[:rank]) - _BETWEEN * rank for rank in range(len(layers))]
    centres = [top - height / 2 for top, height in zip(tops, heights, strict=True)]
    places = {name: (cell.x, centres[ranks[name]]) for name, cell in cells.items()}
    routes: dict[tuple[str, str], list[Point]] = {}
    for (parent, child), path in paths.items():
        (x, y), rank = places[parent], ranks[parent]
        points = [(x, y - sizes[parent][1] / 2), (x, tops[rank] - heights[rank])]
        for step, cell in enumerate(path, rank + 1):
            points += [(cell.x, tops[step]), (cell.x, tops[step] - heights[step])]
        (x, y), rank = places[child], ranks[child]
        points += [(x, tops[rank]), (x, y + sizes[child][1] / 2)]
        routes[parent, child] = points
    return Layered(places, routes)


def _ranks(parents: Mapping[str, Sequence[str]]) -> dict[str, int]:
    """The layer of each node: below its parents, and near its children."""
    ranks: dict[str, int] = {}
    for name, above in parents.items():
        ranks[name] = 1 + max((ranks[parent] for parent in above), default=-1)
    highest: dict[str, int] = {}
    for name in reversed(list(parents)):
        if name in highest:  # it has children: as low as they allow
            ranks[name] = highest[name]
        for parent in parents[name]:
            highest[parent] = min(ranks[name] - 1, highest.get(parent, ranks[name]))
    return ranks


def _order(layers: list[list[_Cell]]) -> None:
    """Sort each layer by the mean place of what its cells are joined to; keep the best order."""
    best, fewest = [list(layer) for layer in layers], _crossings(layers)
    for sweep in range(_SWEEPS):
        down = sweep % 2 == 0
        for layer in layers[1:] if down else layers[-2::-1]:
            places = _places(layers)
            own = {cell: place for place, cell in enumerate(layer)}
            joined = {cell: cell.above if down else cell.below for cell in layer}
            layer.sort(key=lambda c: mean(places[other] for other in joined[c]) if joined[c]
                       else float(own[c]))  # fmt: skip
        crossings = _crossings(layers)
        if crossings < fewest:
            best, fewest = [list(layer) for layer in layers], crossings
    layers[:] = best


def _places(layers: list[list[_Cell]]) -> dict[_Cell, int]:
    return {cell: place for layer in layers for place, cell in enumerate(layer)}


def _crossings(layers: list[list[_Cell]]) -> int:
    """How many pairs of edges cross."""
    places, total = _places(layers), 0
    for layer in layers:
        ends = [sorted(places[other] for other in cell.below) for cell in layer]
        seen: list[int] = []
        for own in ends:
            total += sum(place > end for end in own for place in seen)
            seen += own
    return total


def _spread(layers: list[list[_Cell]]) -> None:
    """Move each cell towards those that it is joined to, in order and without an overlap."""
    for layer in layers:
        _settle(layer, [0.0] * len(layer))
    for sweep in range(_SWEEPS):
        for layer in layers if sweep % 2 == 0 else reversed(layers):
            both = [[*cell.above, *cell.below] for cell in layer]
            wanted = [
                mean(other.x for other in joined) if joined else cell.x
                for cell, joined in zip(layer, both, strict=True)
            ]
            _settle(layer, wanted)


def _settle(layer: list[_Cell], wanted: list[float]) -> None:
    """The places nearest to those wanted, in least squares, that keep the cells apart."""
    offset, offsets = 0.0, list[float]()
    for place, cell in enumerate(layer):
        if place:
            offset += (layer[place - 1].width + cell.width) / 2 + _GAP
        offsets.append(offset)
    runs: list[tuple[float, int]] = []  # means of runs that touch, and their lengths
    for want, start in zip(wanted, offsets, strict=True):
        value, count = want - start, 1
        while runs and runs[-1][0] >= value:
            before, size = runs.pop()
            value = (before * size + value * count) / (size + count)
            count += size
        runs.append((value, count))
    values = [value for value, count in runs for _ in range(count)]
    for cell, value, start in zip(layer, values, offsets, strict=True):
        cell.x = value + start
