"""Reading of a model and its evidence from files."""

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import typer

from rdpgraph.cli.options import Device, Format, Task
from rdpgraph.errors import EvidenceError, ModelError
from rdpgraph.io.evidence import LIMIT as EVIDENCE_LIMIT
from rdpgraph.io.evidence import Rows, read_evidence, read_query
from rdpgraph.io.files import read
from rdpgraph.io.text import LIMIT
from rdpgraph.model.domain import Named
from rdpgraph.model.graph import FactorGraph
from rdpgraph.model.variable import State
from rdpgraph.plan.plan import require_room

_NUMBER, _PLAIN = 900.0, 120.0
"""Bytes for each number that is written, from the evidence to the text: with names, and without;
measured on 60,000 rows of eight variables as JSON, and on a million states."""
_STATE = 24.0
"""Bytes for each state of a row: as it is read, given and kept."""


def load(
    model: Path,
    evidence: Path | None = None,
    settings: Sequence[str] = (),
    device: Device = Device.CPU,
    *,
    limit: float | None,
    wait: float,
    memory: float | None = None,
) -> FactorGraph:
    """The model of a file, evidence included.

    Bytes of text, seconds of silence and bytes of memory for rows of evidence are limited.
    """
    graph = read(model, limit=int(limit or LIMIT), wait=wait)
    if device is Device.CUDA:
        if not torch.cuda.is_available():
            raise EvidenceError("Device cuda is not available on this machine; use --device cpu.")
        graph = graph.to("cuda")
    if evidence is not None:
        rows = read_evidence(evidence, limit=int(limit or EVIDENCE_LIMIT), wait=wait)
        what = f"{len(rows):,} rows of evidence on {graph.num_variables:,} variables"
        require_room(_STATE * len(rows) * graph.num_variables, what, memory)
        given = rows.columns() if isinstance(rows, Rows) and len(rows) > 1 else rows[0]
        graph = graph.condition(_by_place(graph, given))
    for setting in settings:
        name, equals, state = setting.rpartition("=")
        if not equals or not name:
            raise typer.BadParameter(f"--set needs NAME=STATE; got {setting!r}")
        graph = graph.condition({name: _state(graph, name, state)})
    return graph


def queried(graph: FactorGraph, names: Sequence[str]) -> list[str]:
    """The variables of a query; a name that the model lacks may be a query file's."""
    expanded: list[str] = []
    for name in names:
        if name not in graph.domain.by_name and (name == "-" or os.path.isfile(name)):
            numbers = read_query(name)
            places = _by_place(graph, dict.fromkeys(numbers, 0), "query")
            expanded.extend(key if isinstance(key, str) else key.name for key in places)
        else:
            graph.domain.place(name)
            expanded.append(name)
    return expanded


def require_room_for_answers(
    graph: FactorGraph, task: Task, query: Sequence[str], style: Format, memory: float | None
) -> None:
    """Refuse evidence rows and states whose answers, as text, exceed memory or the format."""
    rows, numbers = math.prod(graph.batch_shape), 0
    if style is Format.UAI and rows > 1:
        raise ModelError(f"The uai format holds one evidence row; got {rows}. Use json.")
    if task is Task.MAR:
        sizes = graph.domain.sizes
        places = [graph.domain.place(name) for name in query]
        numbers = int(sizes[places].sum()) if places else graph.domain.total_states
    elif task is not Task.PR:
        numbers = len(query) or graph.num_variables
    each = _PLAIN if style is Format.UAI else _NUMBER
    what = f"Answers for {rows:,} rows of evidence, {numbers:,} numbers each,"
    require_room(each * rows * (1 + numbers), what, memory)


def _by_place(
    graph: FactorGraph, row: Mapping[str, Any], what: str = "evidence"
) -> dict[Named, Any]:
    """Evidence by the model's names; numbers in evidence files are places in the model."""
    names, entries = graph.domain.by_name, graph.variables
    numbered = all(name in names for name in row)
    if numbered and bool(graph.domain.unnamed.all()):
        return row  # pyright: ignore[reportReturnType]  # names are keys too
    result: dict[Named, Any] = {}
    for name, state in row.items():
        if not numbered and not 0 <= int(name) < len(entries):
            raise EvidenceError(
                f"The {what} names variable {name}; the model has {len(entries)} variables."
            )
        entry = entries[names[name] if numbered else int(name)]
        # States are given by index, even where they have names.
        result[entry.name] = state if isinstance(entry.states, int) else torch.as_tensor(state)
    return result


def _state(graph: FactorGraph, name: str, text: str) -> State:
    """The state of a name, or of an index where states have no names, on the command line."""
    states = graph.domain.states_of(name)
    if isinstance(states, tuple):
        return next((state for state in states if str(state) == text), text)
    # Longer numbers are refused as unknown names.
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else text
