"""The parse command: sentences by a weighted grammar, and a picture of a tree."""

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from rdpgraph.cli.options import ParseFormat, ParseTask
from rdpgraph.errors import (
    BudgetError,
    EvidenceError,
    ImpossibleEvidenceError,
    UnsupportedError,
    printable,
)
from rdpgraph.io.grammar import Grammar
from rdpgraph.io.text import shown
from rdpgraph.plan.plan import Budget
from rdpgraph.query.drawing import blank, save_picture
from rdpgraph.structures.grammar.model import Hypertree, grammar_rules
from rdpgraph.structures.grammar.trees import Trees

_CHARTS = {
    ParseTask.LOGZ: 1.0,
    ParseTask.VITERBI: 3.5,
    ParseTask.MBR: 2.5,
    ParseTask.MARGINALS: 4.5,
    ParseTask.SAMPLE: 1.3,
}
"""Memory of an answer in charts of inside values, of 8 numbers for each symbol of a span and one
for each rule; measured on up to 800 words and 93 rules."""
_TREES = 6  # arrays of states per tree drawn, scored and written
_SPLITS = 14  # bytes for each three words: places of both parts of a split
_TABLES = 4  # copies of the rules during layout
_MOST_WORDS = 400  # of a readable picture


@dataclass(frozen=True, eq=False)
class Parsed:
    """Sentences, and their hypertree with one item for each, over the symbols of a grammar."""

    grammar: Grammar
    sentences: tuple[tuple[str, ...], ...]
    hypertree: Hypertree


def parsed(
    grammar: Grammar,
    sentences: Sequence[str],
    *,
    task: ParseTask,
    draws: int,
    memory_bytes: float | None,
) -> Parsed:
    """Sentences as a hypertree of one batch; refuses unknown words, and too much memory."""
    words = tuple(tuple(sentence.split()) for sentence in sentences)
    if not words or not all(words):
        raise EvidenceError("parse needs sentences of at least one word.")
    need = needed(grammar, lengths := list(map(len, words)), task=task, draws=draws)
    most = Budget.of_machine().memory_bytes if memory_bytes is None else memory_bytes
    if need > most:
        raise BudgetError(
            f"parse needs about {need / 1e9:.1f} GB for {len(words):,} sentences of up to "
            f"{max(lengths):,} words, {len(grammar.symbols):,} symbols, {len(grammar.rules):,} "
            f"rules and {draws:,} trees of each; "
            f"the budget is "
            f"{most / 1e9:.1f} GB. Ask for fewer at once, or raise --memory."
        )
    return Parsed(grammar, words, Hypertree.parses(grammar, words))


def needed(grammar: Grammar, lengths: Sequence[int], *, task: ParseTask, draws: int) -> float:
    """An upper bound on the bytes for sentences of some lengths."""
    longest = max(lengths)
    cells = len(lengths) * longest**2
    # Rules are looked up at every split of the spans of a width.
    charts = _CHARTS[task] * (8 * len(grammar.symbols) + len(grammar.rules))
    trees = 0 if task in (ParseTask.LOGZ, ParseTask.MARGINALS) else _TREES * draws
    rules = grammar_rules(grammar).parts[0].numel()
    return 8.0 * (cells * (charts + trees) + _TABLES * rules) + _SPLITS * longest**3


def answers(
    parses: Parsed, task: ParseTask, *, count: int, generator: torch.Generator
) -> list[dict[str, Any]]:
    """Answers for each sentence, as plain values; refuses sentences without a tree."""
    tree, names = parses.hypertree, parses.grammar.symbols
    log_z = tree.log_partition().tolist()
    rows: list[dict[str, Any]] = [
        {"sentence": " ".join(words), "log_partition": value}
        for words, value in zip(parses.sentences, log_z, strict=True)
    ]
    if task is ParseTask.LOGZ:
        return rows
    # log Z of a sentence without a tree is an answer; a tree of it is not.
    for row in rows:
        if row["log_partition"] == -math.inf:
            raise ImpossibleEvidenceError(f"The grammar has no tree for {shown(row['sentence'])}.")
    if task is ParseTask.MARGINALS:
        values = tree.marginals()
        for item, row in enumerate(rows):
            row["spans"] = [
                {
                    "first": i,
                    "last": j,
                    "symbol": names[k],
                    "probability": float(values[item, i, j, k]),
                }
                for i, j, k in (values[item] > 0).nonzero().tolist()
            ]
        return rows
    if task is ParseTask.SAMPLE:
        # All trees have a leading dim of draws; there is one draw of a best tree.
        trees = Trees(tree.sample(count, generator))
    else:
        one = tree.viterbi() if task is ParseTask.VITERBI else tree.mbr()
        trees = Trees(one.states.unsqueeze(0))
    scores = tree.log_prob(trees.states)
    for item, row in enumerate(rows):
        row["trees"] = [
            {
                "tree": trees[draw][item].bracketed(parses.sentences[item], names),
                "log_probability": float(scores[draw, item]),
            }
            for draw in range(trees.lead[0])
        ]
    return rows


def as_text(rows: Sequence[dict[str, Any]], parses: Parsed, style: ParseFormat) -> str:
    """Return the answers as lines, one for each tree, span or sentence, or as JSON.

    A number that is minus infinity is null in JSON.
    """
    if style is ParseFormat.JSON:
        for row in rows:
            if row["log_partition"] == -math.inf:
                row["log_partition"] = None
            for tree in row.get("trees", ()):
                if tree["log_probability"] == -math.inf:  # an MBR tree without rules
                    tree["log_probability"] = None
        return json.dumps(list(rows), indent=1, allow_nan=False) + "\n"
    lines: list[str] = []
    for row, words in zip(rows, parses.sentences, strict=True):
        if "trees" in row:
            lines += [tree["tree"] for tree in row["trees"]]
        elif "spans" in row:
            for span in row["spans"]:
                part = " ".join(words[span["first"] : span["last"] + 1])
                lines.append(f"{span['probability']:.6f}  {span['symbol']}  {part}")
        else:
            lines.append(f"{row['log_partition']:.6f}  {row['sentence']}")
    return "\n".join(map(printable, lines)) + "\n"


@dataclass
class _TreeNode:
    label: str
    parts: "list[_TreeNode]" = field(default_factory=list)
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
    # Edges are drawn before labels of nodes; words stand in one row at the bottom.
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


def _nodes_of(bracketed: str) -> list[_TreeNode]:
    """The nodes of a bracketed tree, parents first; words have no parts."""
    tokens = re.findall(r"[()]|[^\s()]+", bracketed)
    above, nodes = [_TreeNode("")], list[_TreeNode]()
    for before, token in zip(["", *tokens], tokens, strict=False):
        if token == ")":
            above.pop()
        elif token != "(":
            node = _TreeNode(printable(token))
            nodes.append(node)
            above[-1].parts.append(node)
            if before == "(":
                above.append(node)
    return nodes


def _place(nodes: list[_TreeNode]) -> int:
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
