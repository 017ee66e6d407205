"""Pictures of trees."""

import os
import re
import secrets
from dataclasses import dataclass, field
from pathlib import Path

from rdpgraph.errors import FileFormatError, UnsupportedError

_SUFFIXES = (".png", ".svg", ".pdf")


@dataclass
class _Node:
    label: str
    parts: "list[_Node]" = field(default_factory=list)
    x: float = 0.0


def draw_tree(bracketed: str, target: Path) -> None:
    """Draw a tree, given in brackets, words at the bottom.

    Raises:
        UnsupportedError: matplotlib is missing.
        FileFormatError: the name's suffix is no picture format.
    """
    if target.suffix.lower() not in _SUFFIXES:
        raise FileFormatError(
            f"{target}: a picture's name ends in {', '.join(_SUFFIXES)}; got {target.suffix!r}."
        )
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise UnsupportedError("draw needs matplotlib: pip install 'rdpgraph[draw]'.") from None

    root = _read(bracketed)
    words = _place(root, 0)
    depth = _depth(root)
    figure = Figure(figsize=(1.0 + 0.9 * words, 1.0 + 0.7 * depth))
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
    target.parent.stat()
    scratch = target.with_name(f".{secrets.token_hex(8)}{target.suffix}")
    try:
        figure.savefig(scratch, dpi=150)
        os.replace(scratch, target)
    finally:
        scratch.unlink(missing_ok=True)


def _read(bracketed: str) -> _Node:
    """The tree that brackets say; words are nodes without parts."""
    tokens = re.findall(r"[()]|[^\s()]+", bracketed)
    above = [_Node("")]
    for before, token in zip(["", *tokens], tokens, strict=False):
        if token == ")":
            above.pop()
        elif token != "(":
            node = _Node(token)
            above[-1].parts.append(node)
            if before == "(":
                above.append(node)
    return above[0].parts[0]


def _place(node: _Node, words: int) -> int:
    """Set x: words side by side, parents over their parts; gives the words so far."""
    if not node.parts:
        node.x = float(words)
        return words + 1
    for part in node.parts:
        words = _place(part, words)
    node.x = (node.parts[0].x + node.parts[-1].x) / 2
    return words


def _depth(node: _Node) -> int:
    return 1 + max(map(_depth, node.parts)) if node.parts else 0
