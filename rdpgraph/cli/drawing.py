"""Pictures of models and trees, and checks of output files."""

import errno
import os
import re
import stat
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from rdpgraph.cli.layouts import Point, edges_of, layered, line_of, unfolded
from rdpgraph.errors import FileFormatError, UnsupportedError, printable
from rdpgraph.io.pictures import PICTURES, save_picture
from rdpgraph.io.tables import Conditional, conditional_tables
from rdpgraph.io.text import mode_of
from rdpgraph.model.evidence import MISSING
from rdpgraph.model.graph import FactorGraph
from rdpgraph.model.variable import Variable, names_of
from rdpgraph.query.posterior import Posterior


def checked_target(target: Path | None, *sources: Path | None) -> None:
    """Refuse an output that is a source, or that cannot be written."""
    if target is None:
        return
    for source in sources:
        if source is None or not source.is_file() or not target.exists():
            continue
        if os.path.samefile(source, target):
            raise FileFormatError(f"{target}: this file is read; write to another one.")
    mode = mode_of(target)
    if mode is not None and not stat.S_ISREG(mode):
        if stat.S_ISDIR(mode):
            raise _error(errno.EISDIR, target)
        return  # a pipe or a terminal
    folder = Path(os.path.realpath(target)).parent
    if not folder.is_dir():
        raise _error(errno.ENOENT if not folder.exists() else errno.ENOTDIR, target)
    if not os.access(folder, os.W_OK | os.X_OK):
        raise _error(errno.EACCES, target)


def checked_picture(target: Path | None, *sources: Path | None, output: Path | None = None) -> None:
    """Refuse a picture of another suffix, or that is another output, a source or not writable."""
    if target is not None and target.suffix.lower() not in PICTURES:
        raise FileFormatError(
            f"{target}: a picture's name ends in {', '.join(PICTURES)}; got {target.suffix!r}."
        )
    checked_target(target, *sources)
    if target is not None and output is not None and target.absolute() == output.absolute():
        raise FileFormatError(f"{target}: this file is already an output; name another one.")


def _error(number: int, target: Path) -> OSError:
    return OSError(number, os.strerror(number), str(target))


_WITH_BARS = 40
_WITH_NAMES = 150
_MOST = 400
_MOST_CELLS = 1 << 22  # of the tables tested for a Bayesian network
_DOT = 0.13  # inches
_SQUARE = 0.09
_NOTHING = 1e-6
_MOST_STATES = 8  # with bars
_NAMES, _BARS = 8.5, 5.5  # points
_WIDE = 0.61 / 72  # width of a letter, inches per point
_LONGEST = 18
_MOST_WORDS = 400
_SHARES = (0.5, 0.35, 0.65, 0.2, 0.8)  # candidate places of a factor along an edge
_FONTS = ["DejaVu Sans Mono", "DejaVu Sans"]  # the second as a fallback for glyphs
_INK, _LINE, _SEEN, _BLUE = "#3b4752", "#9aa3ad", "#d3dce6", "#1d4e79"


@dataclass(frozen=True)
class Box:
    """A box with a variable's name, and a line with a bar for each state."""

    name: str
    lines: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """The name, cut if it is long."""
        return self.name if len(self.name) <= _LONGEST else f"{self.name[: _LONGEST - 1]}…"

    @property
    def size(self) -> tuple[float, float]:
        """Width and height in inches."""
        wide = max((len(line) for line in self.lines), default=0) * _BARS * _WIDE
        wide = max(wide, len(self.title) * _NAMES * _WIDE)
        high = 1.35 * (_NAMES + len(self.lines) * _BARS * 0.95) / 72
        return wide + 0.14, high + 0.1


def box_of(variable: Variable, posterior: Posterior | None) -> Box:
    """The box of a variable, with its marginal if there is one and it has few states."""
    title = printable(variable.name)
    if posterior is None or variable.size > _MOST_STATES:
        return Box(title)
    marginal = posterior.marginal(variable).detach().reshape(-1, variable.size)[0].tolist()
    lines: list[str] = []
    for name, probability in zip(names_of(variable.states), marginal, strict=True):
        filled = round(10 * probability)
        bar = "█" * filled + "░" * (10 - filled)
        lines.append(f"{printable(str(name))[:8]:>8s} {bar} {probability:5.3f}")
    return Box(title, tuple(lines))


def draw(graph: FactorGraph, target: Path, posterior: Posterior | None) -> None:
    """Draw a graph, with marginals as bars where it is small; variables with evidence are shaded.

    A Bayesian network has a box for each variable and an arrow from each parent, from top to
    bottom; any other graph a box for each variable and a square for each factor. The file's name
    ends in a picture's format.

    Raises:
        UnsupportedError: matplotlib is missing, or the graph is too large to be readable.
    """
    count = graph.num_variables
    if count > _MOST or graph.num_factors > 4 * _MOST:
        raise UnsupportedError(
            f"A picture of {count:,} variables and {graph.num_factors:,} factors is not readable; "
            f"draw takes up to {_MOST} variables."
        )
    if not count:
        raise UnsupportedError("There is no variable to draw.")
    try:
        import scipy  # noqa: F401  # pyright: ignore  # networkx lays graphs out with it
        from matplotlib.figure import Figure
    except ImportError:
        raise UnsupportedError(
            "draw needs matplotlib and scipy: pip install 'rdpgraph[draw]'."
        ) from None

    picture = Figure()
    axes = picture.add_axes((0.0, 0.0, 1.0, 1.0))
    variables = [graph.domain.variable(number) for number in range(count)]
    shown = posterior if count <= _WITH_BARS else None
    boxes = [box_of(variable, shown) if count <= _WITH_NAMES else None for variable in variables]
    sizes = np.array([(_DOT, _DOT) if box is None else box.size for box in boxes])
    conditionals = _conditionals(graph)
    if conditionals is None:
        places = _undirected(axes, graph, sizes)
    else:
        places = _directed(axes, conditionals, sizes)
    for number, (box, seen) in enumerate(zip(boxes, _observed(graph), strict=True)):
        _draw_box(axes, box, places[number], sizes[number], seen=seen)
    axes.set_aspect("equal")
    axes.set_axis_off()
    axes.autoscale_view()
    (left, right), (low, high) = axes.get_xlim(), axes.get_ylim()
    picture.set_size_inches(right - left + 0.2, high - low + 0.2)
    axes.set_xlim(left - 0.1, right + 0.1)
    axes.set_ylim(low - 0.1, high + 0.1)
    save_picture(picture, target)


def _conditionals(graph: FactorGraph) -> list[Conditional] | None:
    """The tables of a Bayesian network; None for other graphs and for large tables."""
    if graph.num_factors != graph.num_variables:
        return None
    cells = sum(block.count * int(np.prod(block.sizes)) for block in graph.blocks)
    if cells > _MOST_CELLS or max(block.arity for block in graph.blocks) < 2:
        return None
    try:
        return conditional_tables(graph.retract())
    except UnsupportedError:
        return None


def _observed(graph: FactorGraph) -> list[bool]:
    if graph.observed is None:
        return [False] * graph.num_variables
    return (graph.observed != MISSING).reshape(-1, graph.num_variables).any(0).tolist()


def _directed(axes: Any, conditionals: Sequence[Conditional], sizes: Any) -> list[Point]:
    """Draw the arrows; the place of each variable."""
    size_of = {c.child.name: tuple(size) for c, size in zip(conditionals, sizes, strict=True)}
    parents = {c.child.name: [parent.name for parent in c.parents] for c in conditionals}
    laid = layered(parents, size_of)
    for route in laid.routes.values():
        _draw_arrow(axes, route)
    return [laid.places[c.child.name] for c in conditionals]


def _draw_arrow(axes: Any, route: Sequence[Point]) -> None:
    """Draw an arrow, straight through layers and curved between them."""
    from matplotlib.patches import FancyArrowPatch
    from matplotlib.path import Path as Line

    points, codes = [route[0]], [Line.MOVETO]
    for place, (x, y) in enumerate(route[1:]):
        before = points[-1]
        if abs(before[0] - x) + abs(before[1] - y) < _NOTHING:
            continue  # zero length
        if place % 2 == 0:  # through a layer
            points.append((x, y))
            codes.append(Line.LINETO)
        else:
            middle = (before[1] + y) / 2
            points += [(before[0], middle), (x, middle), (x, y)]
            codes += [Line.CURVE4] * 3
    style = "-|>,head_length=4,head_width=2"
    axes.add_patch(
        FancyArrowPatch(
            path=Line(points, codes), arrowstyle=style, color=_LINE, linewidth=1.1, zorder=1,
            shrinkA=0.0, shrinkB=0.0,
        )
    )  # fmt: skip


def _undirected(axes: Any, graph: FactorGraph, sizes: Any) -> Any:
    """Draw the edges and the squares of factors; the place of each variable."""
    scopes = [tuple(scope) for block in graph.blocks for scope in block.scopes.tolist()]
    joined = [scope for scope in scopes if len(scope) > 1]
    larger = [scope for scope in joined if len(scope) > 2]
    every = np.concatenate([sizes, np.full((len(larger), 2), _SQUARE)])
    places = unfolded(every, joined)
    squares = [places[graph.num_variables + place] for place, _ in enumerate(larger)]
    for edge in edges_of(len(every), joined):
        line = line_of(places, every, edge)
        axes.plot(line[:, 0], line[:, 1], color=_LINE, linewidth=1.1, zorder=1)
        if edge[1] < graph.num_variables:  # an edge between two variables is a factor
            squares.append(_middle(line, every[edge[0]], every[edge[1]], squares))
    for (number,) in {scope for scope in scopes if len(scope) == 1}:
        squares.append(places[number] + sizes[number] * [-0.5, 0.5])
    for x, y in squares:
        _draw_square(axes, x, y)
    return places[: graph.num_variables]


def _middle(line: Any, one: Any, other: Any, taken: Sequence[Any]) -> Any:
    """The middle of the visible part of an edge between two boxes, or a free place near it."""
    if len(line) > 2:
        return line[len(line) // 2]
    step = line[1] - line[0]
    with np.errstate(divide="ignore"):  # horizontal and vertical edges
        first, last = (float((size / 2 / np.abs(step)).min()) for size in (one, other))
    points = [line[0] + (first + share * (1 - last - first)) * step for share in _SHARES]
    free = (p for p in points if all(np.abs(p - near).max() > 1.5 * _SQUARE for near in taken))
    return next(free, points[0])


def _draw_square(axes: Any, x: float, y: float) -> None:
    from matplotlib.patches import Rectangle

    corner = (x - _SQUARE / 2, y - _SQUARE / 2)
    axes.add_patch(Rectangle(corner, _SQUARE, _SQUARE, color=_INK, zorder=4))


def _draw_box(axes: Any, box: Box | None, place: Any, size: Any, *, seen: bool) -> None:
    from matplotlib.patches import Circle, FancyBboxPatch

    (x, y), (width, height) = place, size
    face = _SEEN if seen else "#ffffff"
    if box is None:
        axes.add_patch(
            Circle((x, y), width / 2, facecolor=face, edgecolor=_INK, linewidth=0.8, zorder=3)
        )
        return
    axes.add_patch(
        FancyBboxPatch(
            (x - width / 2, y - height / 2), width, height,
            boxstyle="round,pad=0,rounding_size=0.05",
            facecolor=face, edgecolor=_INK, linewidth=0.9, zorder=3,
        )
    )  # fmt: skip
    style = {"family": _FONTS, "ha": "center", "zorder": 5, "parse_math": False}
    top, side = (y + height / 2 - 0.04, "top") if box.lines else (y, "center")
    axes.text(x, top, box.title, va=side, fontsize=_NAMES, fontweight="bold", **style)
    axes.text(
        x, y - height / 2 + 0.04, "\n".join(box.lines), va="bottom", fontsize=_BARS,
        color=_BLUE, linespacing=1.2, **style,
    )  # fmt: skip


@dataclass
class _Node:
    label: str
    parts: "list[_Node]" = field(default_factory=list)
    x: float = 0.0


def draw_tree(bracketed: str, target: Path) -> None:
    """Draw a tree given in brackets, words at the bottom."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise UnsupportedError("draw needs matplotlib: pip install 'rdpgraph[draw]'.") from None

    nodes = _nodes_of(bracketed)
    words = sum(not node.parts for node in nodes)
    if words > _MOST_WORDS:
        raise UnsupportedError(
            f"A picture of {words:,} words is not readable; draw takes up to {_MOST_WORDS}."
        )
    root, depth = nodes[0], _place(nodes)
    width, height = 1.0 + 0.9 * words, 1.0 + 0.7 * depth
    figure = Figure(figsize=(width, height))
    axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
    waiting = [(root, 0)]
    while waiting:
        node, level = waiting.pop()
        y = -depth if not node.parts else -level
        for part in node.parts:
            below = -depth if not part.parts else -level - 1
            axes.plot([node.x, part.x], [y, below], color="#9aa3ad", linewidth=1.0, zorder=1)
            waiting.append((part, level + 1))
        axes.text(
            node.x, y, node.label, ha="center", va="center", fontsize=10, zorder=2,
            fontweight="bold" if node.parts else "normal", parse_math=False,
            bbox={"boxstyle": "round,pad=0.2", "facecolor": "#ffffff", "edgecolor": "none"},
        )  # fmt: skip
    axes.margins(0.12)
    axes.set_axis_off()
    save_picture(figure, target)


def _nodes_of(bracketed: str) -> list[_Node]:
    """The nodes of a bracketed tree, parents first; words have no parts."""
    tokens = re.findall(r"[()]|[^\s()]+", bracketed)
    above, nodes = [_Node("")], list[_Node]()
    for before, token in zip(["", *tokens], tokens, strict=False):
        if token == ")":
            above.pop()
        elif token != "(":
            node = _Node(printable(token))
            nodes.append(node)
            above[-1].parts.append(node)
            if before == "(":
                above.append(node)
    return nodes


def _place(nodes: list[_Node]) -> int:
    """Set x: words side by side, parents over their parts; the depth of the tree."""
    words = [node for node in nodes if not node.parts]
    for place, node in enumerate(words):
        node.x = float(place)
    depths: dict[int, int] = {}
    for node in reversed(nodes):  # parts before parents
        if node.parts:
            node.x = (node.parts[0].x + node.parts[-1].x) / 2
        depths[id(node)] = 1 + max((depths[id(part)] for part in node.parts), default=-1)
    return depths[id(nodes[0])]
