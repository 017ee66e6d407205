"""Pictures of trees, and checks of output files."""

import errno
import os
import re
import stat
from dataclasses import dataclass, field
from pathlib import Path

from rdpgraph.errors import FileFormatError, UnsupportedError, printable
from rdpgraph.io.pictures import blank, checked_suffix, save_picture
from rdpgraph.io.text import mode_of


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
    if target is not None:
        checked_suffix(target)
    checked_target(target, *sources)
    if target is not None and output is not None and target.absolute() == output.absolute():
        raise FileFormatError(f"{target}: this file is already an output; name another one.")


def _error(number: int, target: Path) -> OSError:
    return OSError(number, os.strerror(number), str(target))


_MOST_WORDS = 400  # of a readable picture


@dataclass
class _Node:
    label: str
    parts: "list[_Node]" = field(default_factory=list)
    x: float = 0.0


def draw_tree(bracketed: str, target: Path) -> None:
    """Draw a tree given in brackets, words at the bottom."""
    nodes = _nodes_of(bracketed)
    words = sum(not node.parts for node in nodes)
    if words > _MOST_WORDS:
        raise UnsupportedError(
            f"A picture of {words:,} words is not readable; draw takes up to {_MOST_WORDS}."
        )
    root, depth = nodes[0], _place(nodes)
    figure, axes = blank(1.0 + 0.9 * words, 1.0 + 0.7 * depth)
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
