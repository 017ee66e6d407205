"""Pictures of factor graphs."""

from io import BytesIO
from pathlib import Path
from typing import Any

from rdpgraph.errors import UnsupportedError
from rdpgraph.io.text import write_bytes_atomically
from rdpgraph.model.evidence import MISSING
from rdpgraph.model.graph import FactorGraph
from rdpgraph.query.posterior import Posterior

_WITH_BARS = 40
_MOST_STATES = 8
_MOST = 400


def draw(graph: FactorGraph, target: Path, posterior: Posterior | None) -> None:
    """Draw variables as circles and factors as squares, with marginals as bars where small.

    The file's name ends in a picture's format.

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

    figure = Figure(figsize=_figure_size(count), layout="constrained")
    axes = figure.add_subplot()
    _draw_graph(axes, graph, posterior if count <= _WITH_BARS else None)
    figure.savefig(drawn := BytesIO(), format=target.suffix[1:].lower(), dpi=150)
    write_bytes_atomically(target, drawn.getvalue())


def _figure_size(count: int) -> tuple[float, float]:
    side = min(4.0 + 1.1 * count**0.5, 24.0)
    return (1.3 * side, side)


def _layout(graph: FactorGraph) -> tuple[Any, dict[Any, Any]]:
    """The bipartite graph and a position in the unit square for each node."""
    import networkx as nx

    bipartite: Any = nx.Graph()
    bipartite.add_nodes_from(("v", n) for n in range(graph.num_variables))
    number = 0
    for block in graph.blocks:
        for scope in block.scopes.tolist():
            bipartite.add_node(("f", number))
            bipartite.add_edges_from((("f", number), ("v", n)) for n in scope)
            number += 1
    if graph.num_variables <= 60 and nx.is_connected(bipartite):
        places = nx.kamada_kawai_layout(bipartite)
    else:
        places = nx.spring_layout(bipartite, seed=0)
    return bipartite, places


def _draw_graph(axes: Any, graph: FactorGraph, posterior: Posterior | None) -> None:
    bipartite, places = _layout(graph)
    seen = [False] * graph.num_variables
    if graph.observed is not None:
        flags = (graph.observed != MISSING).reshape(-1, graph.num_variables).any(0)
        seen = flags.tolist()
    for first, second in bipartite.edges:
        (x0, y0), (x1, y1) = places[first], places[second]
        axes.plot([x0, x1], [y0, y1], color="#9aa3ad", linewidth=1.0, zorder=1)
    few = graph.num_variables <= _WITH_BARS
    factors = [places[node] for node in bipartite if node[0] == "f"]
    if factors:
        x, y = zip(*factors, strict=True)
        axes.scatter(x, y, s=40 if few else 8, marker="s", color="#3b4752", zorder=2)
    for shaded, color in ((False, "#ffffff"), (True, "#c9d3dd")):
        chosen = [places["v", n] for n in range(graph.num_variables) if seen[n] is shaded]
        if chosen:
            x, y = zip(*chosen, strict=True)
            size = 260 if few else 24
            axes.scatter(x, y, s=size, color=color, edgecolors="#3b4752", linewidths=1.2, zorder=3)
    if few:
        for n in range(graph.num_variables):
            variable = graph.domain.variable(n)
            x, y = places["v", n]
            axes.annotate(
                variable.name, (x, y), xytext=(0, 12), textcoords="offset points",
                ha="center", va="bottom", fontsize=9, fontweight="bold", zorder=5,
            )  # fmt: skip
            if posterior is not None and variable.size <= _MOST_STATES:
                _bars(axes, (x, y), posterior, n)
    axes.margins(0.12)
    axes.set_axis_off()


def _bars(axes: Any, place: tuple[float, float], posterior: Posterior, number: int) -> None:
    """A little bar chart of a variable's marginal under its node."""
    variable = posterior.graph.domain.variable(number)
    marginal = posterior.marginal(variable).detach().reshape(-1, variable.size)[0].tolist()
    names = variable.states if isinstance(variable.states, tuple) else range(variable.size)
    lines: list[str] = []
    for name, probability in zip(names, marginal, strict=True):
        filled = round(10 * probability)
        lines.append(f"{str(name)[:8]:>8s} {'█' * filled}{'░' * (10 - filled)} {probability:5.3f}")
    axes.annotate(
        "\n".join(lines), place, xytext=(0, -12), textcoords="offset points", ha="center", va="top",
        family="DejaVu Sans Mono", fontsize=5.5, zorder=4, color="#1d4e79",
        bbox={"boxstyle": "round,pad=0.25", "facecolor": "#ffffffd0", "edgecolor": "#d5dbe1"},
    )  # fmt: skip
