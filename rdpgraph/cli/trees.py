"""Pictures of trees."""

import re
from dataclasses import dataclass, field
from pathlib import Path

from rdpgraph.cli.targets import save_picture
from rdpgraph.errors import UnsupportedError, printable

_MOST_WORDS = 400


@dataclass
class _Node:
    label: str
    parts: "list[_Node]" = field(default_factory=list)
    x: float = 0.0


def draw_tree(bracketed: str, target: Path) -> None:
    """Draw a tree, given in brackets, words at the bottom, to a name that ends in a format's.

    Raises:
        UnsupportedError: matplotlib is missing, or the tree is too large to be readable.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise UnsupportedError("draw needs matplotlib: pip install 'rdpgraph[draw]'.") from None

    nodes = _read(bracketed)
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


def _read(bracketed: str) -> list[_Node]:
    """The nodes of the tree that brackets say, parents first; words are nodes without parts."""
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
    """Set x: words side by side, parents over their parts; gives the depth."""
    words = [node for node in nodes if not node.parts]
    for place, node in enumerate(words):
        node.x = float(place)
    depths: dict[int, int] = {}
    for node in reversed(nodes):  # parts before parents
        if node.parts:
            node.x = (node.parts[0].x + node.parts[-1].x) / 2
        depths[id(node)] = 1 + max((depths[id(part)] for part in node.parts), default=-1)
    return depths[id(nodes[0])]
