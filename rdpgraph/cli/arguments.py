"""What the options say, as values."""

import math
import re
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any

import torch
import typer

from rdpgraph.errors import EvidenceError
from rdpgraph.io.evidence import read_evidence
from rdpgraph.io.files import read
from rdpgraph.model.domain import Named
from rdpgraph.model.graph import FactorGraph

_BYTES = {"": 1, "b": 1, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}
_BINARY = {"k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}
_SECONDS = {"ms": 1e-3, "": 1, "s": 1, "m": 60, "min": 60, "h": 3600}


class Task(StrEnum):
    """What is asked."""

    PR = "PR"
    MAR = "MAR"
    MAP = "MAP"
    MMAP = "MMAP"


class Method(StrEnum):
    """How it is answered."""

    AUTO = "auto"
    EXACT = "exact"
    LOOPY = "loopy"
    JOIN = "join"


class Format(StrEnum):
    """How the answer is written."""

    TABLE = "table"
    UAI = "uai"
    JSON = "json"


class Device(StrEnum):
    """Where it is computed."""

    CPU = "cpu"
    CUDA = "cuda"


def memory(text: str) -> float:
    """Bytes of ``4GB``, ``512MiB``, ``1e9``."""
    match = re.fullmatch(r"\s*([0-9.]+(?:e[0-9]+)?)\s*([kmgt]?)(i?)b?\s*", text, re.IGNORECASE)
    value = _number(match[1]) if match else None
    if match is None or value is None or not 0 < value < math.inf:
        raise typer.BadParameter(f"expected an amount such as 4GB or 512MiB; got {text!r}")
    unit = match[2].lower()
    return value * (_BINARY[unit] if match[3] and unit else _BYTES[unit])


def seconds(text: str) -> float:
    """Seconds of ``60s``, ``2m``, ``500ms``, ``60``."""
    match = re.fullmatch(r"\s*([0-9.]+(?:e[0-9]+)?)\s*(ms|s|min|m|h|)\s*", text, re.IGNORECASE)
    value = _number(match[1]) if match else None
    if match is None or value is None or not 0 < value < math.inf:
        raise typer.BadParameter(f"expected a time such as 60s or 2m; got {text!r}")
    return value * _SECONDS[match[2].lower()]


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def load(
    model: Path, evidence: Path | None, settings: Sequence[str], device: Device = Device.CPU
) -> FactorGraph:
    """The model of a file, evidence included.

    Raises:
        RdpgraphError: the file, the evidence or the device is not usable.
    """
    graph = read(model)
    if device is Device.CUDA:
        if not torch.cuda.is_available():
            raise EvidenceError("Device cuda is not available on this machine; use --device cpu.")
        graph = graph.to("cuda")
    if evidence is not None:
        rows = read_evidence(evidence)
        names = dict.fromkeys(name for row in rows for name in row)
        if len(rows) == 1:
            graph = graph.condition(_by_place(graph, rows[0]))
        elif names:
            batch = {name: [row.get(name) for row in rows] for name in names}
            graph = graph.condition(_by_place(graph, batch))
    for setting in settings:
        name, equals, state = setting.rpartition("=")
        if not equals or not name:
            raise typer.BadParameter(f"--set needs NAME=STATE; got {setting!r}")
        graph = graph.condition({name: _state(graph, name, state)})
    return graph


def _by_place(graph: FactorGraph, row: Mapping[str, Any]) -> dict[Named, Any]:
    """Evidence files number the variables; a model with names is asked by its order."""
    names = graph.domain.by_name
    if all(name in names for name in row):
        return dict(row.items())
    entries = graph.variables
    result: dict[Named, Any] = {}
    for name, state in row.items():
        if not 0 <= int(name) < len(entries):
            raise EvidenceError(
                f"The evidence names variable {name}; the model has {len(entries)} variables."
            )
        result[entries[int(name)].name] = state
    return result


def _state(graph: FactorGraph, name: str, state: str) -> int | str:
    states = graph.domain.states_of(name)
    if isinstance(states, tuple) and state in states:
        return state
    return int(state) if state.isascii() and state.isdigit() else state
