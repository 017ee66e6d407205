"""Pictures of graphs, posteriors and structures."""

import math
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from rdpgraph._core.arguments import typed
from rdpgraph.errors import FileFormatError, ModelError, UnsupportedError, printable
from rdpgraph.interface.structure import Structure
from rdpgraph.io.graphs import to_networkx
from rdpgraph.io.text import write_bytes_atomically
from rdpgraph.model.conditional import parents_drawn
from rdpgraph.model.evidence import MISSING
from rdpgraph.model.graph import FactorGraph
from rdpgraph.model.variable import Variable, names_of
from rdpgraph.plan.plan import Plan
from rdpgraph.query.layouts import Point, edges_of, layered, line_of, unfolded
from rdpgraph.query.posterior import Posterior
from rdpgraph.query.structured import StructuredPosterior

_PICTURES = (".png", ".svg", ".pdf")
_LAID_OUT = "matplotlib and scipy"  # networkx lays graphs out with scipy
_WITH_BARS = 40  # variables with marginals
_WITH_NAMES = 150  # variables with names
_MOST = 400  # variables
_MOST_DOTS = 8_000  # of a side
_LARGEST = 40.0  # inches per side, of a structure
_DOT = 0.13  # inches
_SQUARE = 0.09  # inches, of a factor
_NOTHING = 1e-6  # inches
_MOST_STATES = 8  # with bars
_NAMES, _BARS = 8.5, 5.5  # points
_WIDE = 0.61 / 72  # width of a letter, inches per point
_LONGEST = 18  # characters of a name
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


@typed()
def draw(
    model: FactorGraph | Posterior | Structure | StructuredPosterior | Plan,
    target: str | Path = "",
    configuration: Any = None,
) -> Any:
    """Draw a model, to a ``.png``, ``.svg`` or ``.pdf`` file if one is named.

    A Bayesian network has a box for each variable and an arrow from each parent, from top to
    bottom, soft evidence included; any other graph a box for each variable and a square for each
    factor. A posterior adds
    its marginals, as bars where there are at most 40 variables, and says above them if they are not
    exact; variables with evidence are shaded.
    The picture of a structure shows its sites: those that a configuration uses are boxes with their
    states, joined by arrows. That of a plan by contraction shows the shapes of factors, from top to
    bottom, each joined to that of the product that it enters, with the variables summed that no
    other factor has.

    Args:
        model: of a batch the first item is drawn.
        target: the name of the file; without one the picture is only returned.
        configuration: of a structure, as `mode` and `sample` give it; of several the first.

    Returns:
        The figure of matplotlib, which notebooks show.

    Raises:
        ModelError: no model, or a configuration for a graph.
        FileFormatError: another ending.
        UnsupportedError: matplotlib is missing, or the model is too large to be readable.
    """
    file = checked_suffix(target) if target != "" else None
    if isinstance(model, StructuredPosterior):
        model = model.structure
    if isinstance(model, Plan):
        return _draw_plan(model, file)
    if isinstance(model, Structure):
        return _draw_structure(model, file, configuration)
    posterior = model if isinstance(model, Posterior) else None
    graph = model.graph if isinstance(model, Posterior) else model
    if configuration is not None:
        raise ModelError("draw takes configurations of structures; a graph's are not drawn.")
    return _draw_graph(graph, file, posterior)


def _draw_graph(graph: FactorGraph, target: Path | None, posterior: Posterior | None) -> Any:
    count = graph.num_variables
    if count > _MOST or graph.num_factors > 4 * _MOST:
        raise UnsupportedError(
            f"A picture of {count:,} variables and {graph.num_factors:,} factors is not readable; "
            f"draw takes up to {_MOST} variables."
        )
    if not count:
        raise UnsupportedError("There is no variable to draw.")
    picture, axes = blank(needs=_LAID_OUT)
    variables = [graph.domain.variable(number) for number in range(count)]
    shown = posterior if count <= _WITH_BARS else None
    boxes = [box_of(variable, shown) if count <= _WITH_NAMES else None for variable in variables]
    sizes = np.array([(_DOT, _DOT) if box is None else box.size for box in boxes])
    parents = parents_drawn(graph.domain, graph.blocks)
    if parents is None:
        places = _undirected(axes, graph, sizes)
    else:
        names = [variable.name for variable in variables]
        named = {names[child]: [names[n] for n in above] for child, above in parents.items()}
        places = _directed(axes, named, map(tuple, sizes))
        # What was declared after the tables is soft evidence.
        soft = [block.scopes[block.declared >= count].flatten() for block in graph.blocks]
        for number in np.unique(np.concatenate([part.numpy() for part in soft])):
            _draw_square(axes, places[number] + sizes[number] * [-0.5, 0.5])
    seen = [False] * count
    if graph.observed is not None:
        seen = (graph.observed != MISSING).reshape(-1, count).any(0).tolist()
    for number, box in enumerate(boxes):
        _draw_box(axes, box, places[number], sizes[number], seen=seen[number])
    note = ""
    if shown is not None and not shown.status.exact:
        note = "approximate" if shown.status.converged else "approximate, NOT converged"
    return _finish(picture, axes, target, note)


def _draw_plan(plan: Plan, target: Path | None) -> Any:
    if plan.tree is None or len(plan.tree.scopes) > _MOST:
        raise UnsupportedError(
            f"Only plans by contraction with at most {_MOST} factors and products can be drawn; "
            f"this plan is by {plan.route}. Draw the graph instead."
        )
    picture, axes = blank(needs=_LAID_OUT)
    tree = plan.tree
    shapes = ["x".join(str(tree.topology.sizes[v]) for v in scope) or "1" for scope in tree.scopes]
    boxes = {str(tensor): Box(shape) for tensor, shape in enumerate(shapes)}
    parents: dict[str, list[str]] = {name: [] for name in boxes}
    for made, (left, right, _) in enumerate(tree.steps, tree.topology.num_tensors):
        parents[str(made)] = [str(part) for part in (left, right) if part >= 0]
    places = _directed(axes, parents, (box.size for box in boxes.values()))
    for place, (name, box) in zip(places, boxes.items(), strict=True):
        _draw_box(axes, box, place, box.size, seen=not parents[name])
    return _finish(picture, axes, target)


def _finish(picture: Any, axes: Any, target: Path | None, note: str = "") -> Any:
    """Fit a picture to what is drawn, and write it where a file is named."""
    axes.set_aspect("equal")
    axes.set_axis_off()
    axes.autoscale_view()
    (left, right), (low, high) = axes.get_xlim(), axes.get_ylim()
    if note:
        axes.text(left, high + 0.3, note, fontsize=_NAMES, color=_INK, va="top")
        high, right = high + 0.3, max(right, left + len(note) * _NAMES * _WIDE)
    picture.set_size_inches(right - left + 0.2, high - low + 0.2)
    axes.set_xlim(left - 0.1, right + 0.1)
    axes.set_ylim(low - 0.1, high + 0.1)
    return save_picture(picture, target)


def _directed(axes: Any, parents: dict[str, list[str]], sizes: Iterable[Point]) -> list[Point]:
    """Draw the arrows; the place of each box."""
    laid = layered(parents, dict(zip(parents, sizes, strict=True)))
    for route in laid.routes.values():
        _draw_arrow(axes, route)
    return [laid.places[name] for name in parents]


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
    for square in squares:
        _draw_square(axes, square)
    return places[: graph.num_variables]


def _draw_square(axes: Any, centre: Any) -> None:
    """Draw the square of a factor."""
    from matplotlib.patches import Rectangle

    corner = tuple(np.asarray(centre) - _SQUARE / 2)
    axes.add_patch(Rectangle(corner, _SQUARE, _SQUARE, color=_INK, zorder=4))


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


def checked_suffix(target: str | Path) -> Path:
    """The path of a picture; raises `FileFormatError` for another ending."""
    target = Path(target)
    if target.suffix.lower() not in _PICTURES:
        raise FileFormatError(
            f"{target}: the name of a picture must end in {', '.join(_PICTURES)}; got "
            f"{target.suffix!r}."
        )
    return target


def blank(width: float = 6.4, height: float = 4.8, *, needs: str = "matplotlib") -> tuple[Any, Any]:
    """An empty picture of matplotlib, of so many inches, and axes that fill it."""
    if not all(map(find_spec, needs.split(" and "))):
        raise UnsupportedError(f"draw needs {needs}: pip install 'rdpgraph[draw]'.")
    from matplotlib.figure import Figure

    picture = Figure(figsize=(width, height))
    return picture, picture.add_axes((0.0, 0.0, 1.0, 1.0))


def _draw_structure(structure: Structure, target: Path | None, configuration: Any) -> Any:
    """Draw the sites of a structure; those that a configuration uses are boxes with arrows."""
    if configuration is not None:
        structure.score(configuration)  # refuses what is none
    graph = to_networkx(structure, configuration=configuration)
    places = {node: data["place"] for node, data in graph.nodes(data=True)}
    xs, ys = zip(*places.values(), strict=True) if places else ((0.0,), (0.0,))
    line = min(ys) == max(ys)
    high = 0.6 * max((abs(places[a][0] - places[b][0]) for a, b in graph.edges), default=0) * line
    width, height = max(xs) - min(xs) + 1.6, max(ys) - min(ys) + 1.6 + high
    figure, axes = blank(min(0.7 * width, _LARGEST), min(0.7 * height, _LARGEST))
    for one, other in graph.edges:
        step = (places[other][0] - places[one][0]) * line
        bend = 0.0 if abs(step) <= 1 else math.copysign(0.5, -step)
        arrow = {"arrowstyle": "-|>", "color": _LINE, "shrinkA": 10, "shrinkB": 10}
        arrow["connectionstyle"] = f"arc3,rad={bend}"
        axes.annotate("", places[other], places[one], arrowprops=arrow)
    for node, (x, y) in places.items():
        state = graph.nodes[node]["state"]
        axes.plot([x], [y], "o", color=_LINE, markersize=4)
        if state is not None:
            box = {"boxstyle": "round,pad=0.3", "facecolor": _SEEN, "edgecolor": _INK}
            axes.text(x, y, str(state), ha="center", va="center", fontsize=9, bbox=box)
        if line:
            axes.text(x, y - 0.4, str(node), ha="center", va="top", fontsize=7, color=_INK)
    axes.set_xlim(min(xs) - 0.8, max(xs) + 0.8)
    axes.set_ylim(min(ys) - 0.8, max(ys) + 0.8 + high)
    axes.set_axis_off()
    return save_picture(figure, target)


def save_picture(figure: Any, target: Path | None) -> Any:
    """The figure, written at 150 dots an inch, at most 8,000 a side, where a file is named."""
    if target is None:
        return figure
    dots = min(150.0, _MOST_DOTS / max(figure.get_size_inches()))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph")
        figure.savefig(drawn := BytesIO(), format=target.suffix[1:].lower(), dpi=dots)
    write_bytes_atomically(target, drawn.getvalue())
    return figure
