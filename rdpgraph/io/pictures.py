"""Structures as graphs of networkx and as pictures, with configurations."""

import itertools
import math
import warnings
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from typing import Any

from rdpgraph.errors import FileFormatError, UnsupportedError
from rdpgraph.interface.structure import Structure
from rdpgraph.io.text import write_bytes_atomically

PICTURES = (".png", ".svg", ".pdf")
_MOST_DOTS = 8_000  # of a side
_MOST_SITES = 4_000  # of a readable picture
_LARGEST = 40.0  # inches per side
_INK, _LINE, _USED = "#3b4752", "#9aa3ad", "#d3dce6"


def structure_graph(structure: Structure, configuration: Any = None) -> Any:
    """The sites of a structure as a ``networkx.DiGraph``, and how a configuration joins them.

    A node is the position of a site, a number or a tuple. Its attributes are ``place``, where it
    is drawn, and ``state``, that in the configuration, None where it is not used. Edges lead from
    site to site: along a sequence, from a constituent to its parts, from a head to its dependents.
    Without a configuration they join sites that the factors of a chain join.

    Args:
        structure: of a batch the first item.
        configuration: as `mode` and `sample` give it; of several the first.
    """
    import networkx

    batch = structure.batch_shape
    shape = tuple(structure.states_shape[len(batch) :])
    count = math.prod(shape)
    if count > _MOST_SITES:
        raise UnsupportedError(
            f"A picture of {count:,} sites is not readable; at most {_MOST_SITES:,} are drawn."
        )
    result: Any = networkx.DiGraph()
    sites = list(itertools.product(*map(range, shape)))
    names = dict(zip(sites, ((s[0] if len(s) == 1 else s) for s in sites), strict=True))
    states: list[int | None] = [None] * count
    if configuration is not None:
        given = structure.site_states(configuration).reshape(-1, count)[0].tolist()
        states = [state if state >= structure.least_use else None for state in given]
    for site, state in zip(sites, states, strict=True):
        if (place := structure.place(site)) is not None:
            result.add_node(names[site], state=state, place=place)
    used = {site: state for site, state in zip(sites, states, strict=True) if state is not None}
    if configuration is None and len(shape) == 1:
        pairs = _neighbours(structure, count)
    else:
        pairs = [(names[one], names[other]) for one, other in structure.joined(used)]
    result.add_edges_from(pairs)
    return result


def _neighbours(structure: Structure, count: int) -> list[tuple[int, int]]:
    """The pairs of sites that share a factor, where the graph has a variable for each site."""
    try:
        graph = structure.factor_graph()
    except UnsupportedError:
        return []
    scopes = [block.scopes.tolist() for block in graph.blocks if block.arity == 2]
    return (
        [tuple(pair) for pair in itertools.chain(*scopes)] if graph.num_variables == count else []
    )


def checked_suffix(target: str | Path) -> Path:
    """The path of a picture; raises `FileFormatError` for another ending."""
    target = Path(target)
    if target.suffix.lower() not in PICTURES:
        raise FileFormatError(
            f"{target}: a picture's name ends in {', '.join(PICTURES)}; got {target.suffix!r}."
        )
    return target


def blank(width: float = 6.4, height: float = 4.8, *, needs: str = "matplotlib") -> tuple[Any, Any]:
    """An empty picture of matplotlib, of so many inches, and axes that fill it."""
    if not all(map(find_spec, needs.split(" and "))):
        raise UnsupportedError(f"draw needs {needs}: pip install 'rdpgraph[draw]'.")
    from matplotlib.figure import Figure

    picture = Figure(figsize=(width, height))
    return picture, picture.add_axes((0.0, 0.0, 1.0, 1.0))


def draw_structure(structure: Structure, target: str | Path, configuration: Any = None) -> None:
    """Draw the sites of a structure; those that a configuration uses are boxes with arrows."""
    target = checked_suffix(target)
    graph = structure_graph(structure, configuration)
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
            box = {"boxstyle": "round,pad=0.3", "facecolor": _USED, "edgecolor": _INK}
            axes.text(x, y, str(state), ha="center", va="center", fontsize=9, bbox=box)
        if line:
            axes.text(x, y - 0.4, str(node), ha="center", va="top", fontsize=7, color=_INK)
    axes.set_xlim(min(xs) - 0.8, max(xs) + 0.8)
    axes.set_ylim(min(ys) - 0.8, max(ys) + 0.8 + high)
    axes.set_axis_off()
    save_picture(figure, target)


def save_picture(figure: Any, target: Path) -> None:
    """Write a figure of matplotlib at 150 dots an inch, at most 8,000 a side."""
    dots = min(150.0, _MOST_DOTS / max(figure.get_size_inches()))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph")
        figure.savefig(drawn := BytesIO(), format=target.suffix[1:].lower(), dpi=dots)
    write_bytes_atomically(target, drawn.getvalue())
