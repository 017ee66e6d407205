"""The parse command: sentences by a weighted grammar."""

import json
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from rdpgraph.cli.estimation import seeded
from rdpgraph.cli.trees import draw_tree
from rdpgraph.errors import EvidenceError, ImpossibleEvidenceError
from rdpgraph.io.grammar import Grammar, read_grammar
from rdpgraph.io.text import shown, write_text_atomically
from rdpgraph.structures.hypertree.model import Hypertree
from rdpgraph.structures.hypertree.trees import Trees


class ParseTask(StrEnum):
    """What is asked of sentences."""

    LOGZ = "logz"
    VITERBI = "viterbi"
    MBR = "mbr"
    MARGINALS = "marginals"
    SAMPLE = "sample"


class ParseFormat(StrEnum):
    """How the answer is written."""

    TEXT = "text"
    JSON = "json"


@dataclass(frozen=True, eq=False)
class Parsed:
    """Sentences and their hypertree.

    Attributes:
        grammar: whose symbols are the states.
        sentences: their words.
        hypertree: one item for each sentence.
    """

    grammar: Grammar
    sentences: tuple[tuple[str, ...], ...]
    hypertree: Hypertree


def parsed(grammar: Grammar, sentences: Sequence[str]) -> Parsed:
    """Sentences, cut at blanks, as a hypertree of one batch.

    Raises:
        EvidenceError: a sentence without words, or with one that the grammar does not have.
    """
    words = tuple(tuple(sentence.split()) for sentence in sentences)
    if not words or not all(words):
        raise EvidenceError("parse needs sentences of one word at least.")
    return Parsed(grammar, words, Hypertree.parses(grammar, words))


def answers(
    found: Parsed, task: ParseTask, *, count: int, seed: int | None
) -> list[dict[str, Any]]:
    """What was asked of each sentence, as plain values.

    Raises:
        ImpossibleEvidenceError: a sentence that the grammar does not have, unless log Z is asked.
    """
    tree, names = found.hypertree, found.grammar.symbols
    log_z = tree.log_partition().tolist()
    rows: list[dict[str, Any]] = [
        {"sentence": " ".join(words), "log_partition": value}
        for words, value in zip(found.sentences, log_z, strict=True)
    ]
    if task is ParseTask.LOGZ:
        return rows
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
        generator = seeded(seed)
        if generator is None:
            generator = torch.Generator()
            generator.seed()
        trees = Trees(tree.sample(count, generator))
    else:
        one = tree.viterbi() if task is ParseTask.VITERBI else tree.mbr()
        trees = Trees(one.states.unsqueeze(0))
    scores = tree.log_prob(trees.states)
    for item, row in enumerate(rows):
        row["trees"] = [
            {
                "tree": trees[draw][item].bracketed(found.sentences[item], names),
                "log_probability": float(scores[draw, item]),
            }
            for draw in range(trees.lead[0])
        ]
    return rows


def parse_command(
    grammar: Annotated[
        Path, typer.Argument(metavar="GRAMMAR", help='Rules: 0.5 S -> NP VP, 1.0 N -> "dog".')
    ],
    sentences: Annotated[
        list[str], typer.Argument(metavar="SENTENCE", help="Words between blanks, in quotes.")
    ],
    task: Annotated[
        ParseTask, typer.Option(help="log Z, the best tree, the best spans, marginals, draws.")
    ] = ParseTask.VITERBI,
    count: Annotated[int, typer.Option(min=1, help="How many draws.")] = 1,
    seed: Annotated[int | None, typer.Option(help="Of the draws.")] = None,
    style: Annotated[
        ParseFormat, typer.Option("--format", help="How to write it.")
    ] = ParseFormat.TEXT,
    output: Annotated[
        Path | None, typer.Option(help="Write here, whole or not at all, instead of printing.")
    ] = None,
    draw: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Draw the first tree: a .png, .svg or .pdf name."),
    ] = None,
) -> None:
    """Parse sentences by a weighted grammar."""
    if draw is not None and task in (ParseTask.LOGZ, ParseTask.MARGINALS):
        raise typer.BadParameter("--draw needs a task with trees: viterbi, mbr or sample")
    found = parsed(read_grammar(grammar), sentences)
    rows = answers(found, task, count=count, seed=seed)
    text = _as_json(rows) if style is ParseFormat.JSON else _as_text(rows, found)
    if output is not None:
        write_text_atomically(output, text)
    if draw is not None:
        draw_tree(rows[0]["trees"][0]["tree"], draw)
    if output is None:
        sys.stdout.write(text)


def _as_text(rows: Sequence[dict[str, Any]], found: Parsed) -> str:
    """One line for each tree, or span, or sentence."""
    lines: list[str] = []
    for row, words in zip(rows, found.sentences, strict=True):
        if "trees" in row:
            lines += [tree["tree"] for tree in row["trees"]]
        elif "spans" in row:
            for span in row["spans"]:
                part = " ".join(words[span["first"] : span["last"] + 1])
                lines.append(f"{span['probability']:.6f}  {span['symbol']}  {part}")
        else:
            lines.append(f"{row['log_partition']:.6f}  {row['sentence']}")
    return "\n".join(lines) + "\n"


def _as_json(rows: Sequence[dict[str, Any]]) -> str:
    """A list, one entry for each sentence; an impossible one has log_partition null."""
    for row in rows:
        if row["log_partition"] == -math.inf:
            row["log_partition"] = None
        for tree in row.get("trees", ()):
            if tree["log_probability"] == -math.inf:  # of an MBR tree that the rules do not have
                tree["log_probability"] = None
    return json.dumps(list(rows), indent=1, allow_nan=False) + "\n"
