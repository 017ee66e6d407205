"""Models, evidence and options of the command line, read and checked."""

import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import torch
import typer

from rdpgraph.errors import EvidenceError, ModelError
from rdpgraph.io.evidence import LIMIT as EVIDENCE_LIMIT
from rdpgraph.io.evidence import read_evidence, read_query
from rdpgraph.io.files import read
from rdpgraph.io.text import LIMIT
from rdpgraph.model.domain import Named
from rdpgraph.model.evidence import MISSING
from rdpgraph.model.graph import FactorGraph
from rdpgraph.model.variable import State, names_of
from rdpgraph.plan.plan import require_room

_BYTES = {"": 1, "b": 1, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}
_BINARY = {"k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}
_SECONDS = {"ms": 1e-3, "": 1, "s": 1, "m": 60, "min": 60, "h": 3600}
_MOST_BYTES = 2.0**62
_LEAST_BARE = 2**20
_MOST_SECONDS = 1e9


class Task(StrEnum):
    """Question about the model."""

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


class EstimatorName(StrEnum):
    """Estimators that rewrite the model before it is solved."""

    EXACT = "exact"
    RANDOMIZED = "randomized"


class ProposalName(StrEnum):
    """Proposals of likely states."""

    DEFAULT = "default"
    UNIFORM = "uniform"
    LOCAL = "local"
    GLOBAL = "global"
    LOCAL_GLOBAL = "local-global"
    LANDMARK = "landmark"
    PILOT = "pilot"


class ParseTask(StrEnum):
    """Question about sentences."""

    LOGZ = "logz"
    VITERBI = "viterbi"
    MBR = "mbr"
    MARGINALS = "marginals"
    SAMPLE = "sample"


class ParseFormat(StrEnum):
    """How the answer is written."""

    TEXT = "text"
    JSON = "json"


def memory(text: str) -> float:
    """Bytes of ``4GB``, ``512MiB``, ``1e9``; a number without a unit is a MiB at least."""
    match = re.fullmatch(r"\s*([0-9.]+(?:e[0-9]+)?)\s*([kmgt]?)(i?)b?\s*", text, re.IGNORECASE)
    unit = match[2].lower() if match else ""
    factor = _BINARY[unit] if match and match[3] and unit else _BYTES[unit]
    amount = _amount(text, match, factor, _MOST_BYTES, "an amount such as 4GB or 512MiB")
    if amount < _LEAST_BARE and not text.strip()[-1].isalpha():
        raise typer.BadParameter(
            f"{text!r} has no unit and would be {amount:g} bytes; expected an amount such as 4GB "
            "or 512MiB (or 4B for bytes)"
        )
    return amount


def seconds(text: str) -> float:
    """Seconds of ``60s``, ``2m``, ``500ms``, ``60``."""
    match = re.fullmatch(r"\s*([0-9.]+(?:e[0-9]+)?)\s*(ms|s|min|m|h|)\s*", text, re.IGNORECASE)
    factor = _SECONDS[match[2].lower()] if match else 1.0
    return _amount(text, match, factor, _MOST_SECONDS, "a time such as 60s or 2m")


def size(text: str) -> int | float:
    """A number of states, ``100``, or a share of them: ``10%``, ``0.1``."""
    match = re.fullmatch(r"\s*([0-9]*\.?[0-9]+)\s*(%?)\s*", text, re.ASCII)
    if match is None or len(match[1]) > 18:
        raise typer.BadParameter(f"expected a number of states or a share like 10%; got {text!r}")
    if not match[2] and match[1].isdigit():
        return int(match[1])
    return float(match[1]) / (100 if match[2] else 1)


def _amount(
    text: str, match: re.Match[str] | None, factor: float, most: float, expected: str
) -> float:
    try:
        value = float(match[1]) * factor if match else math.nan
    except ValueError:
        value = math.nan
    if not 0 < value <= most:
        raise typer.BadParameter(f"expected {expected}, at most {most:.3g}; got {text!r}")
    return value


_NUMBER, _PLAIN = 900.0, 120.0
"""Bytes for each number that is written, from the evidence to the text: with names, and without;
measured on 60,000 rows of eight variables as JSON, and on a million states."""


@dataclass(frozen=True)
class Files:
    """How files are read.

    Attributes:
        limit: the most bytes of text of one file; None: what readers take by default.
        wait: how long a pipe may be silent, in seconds.
    """

    limit: float | None = None
    wait: float = 60.0

    def load(
        self,
        model: Path,
        evidence: Path | None = None,
        settings: Sequence[str] = (),
        device: Device = Device.CPU,
    ) -> FactorGraph:
        """The model of a file, evidence included.

        Raises:
            RdpgraphError: the file, the evidence or the device is not usable.
        """
        graph = read(model, limit=int(self.limit or LIMIT), wait=self.wait)
        if device is Device.CUDA:
            if not torch.cuda.is_available():
                raise EvidenceError(
                    "Device cuda is not available on this machine; use --device cpu."
                )
            graph = graph.to("cuda")
        if evidence is not None:
            most = int(self.limit or EVIDENCE_LIMIT)
            rows = list(read_evidence(evidence, limit=most, wait=self.wait))
            names = dict.fromkeys(name for row in rows for name in row)
            if len(rows) == 1:
                graph = graph.condition(_by_place(graph, rows[0]))
            elif names:
                batch = {name: [row.get(name, MISSING) for row in rows] for name in names}
                graph = graph.condition(_by_place(graph, batch))
        for setting in settings:
            name, equals, state = setting.rpartition("=")
            if not equals or not name:
                raise typer.BadParameter(f"--set needs NAME=STATE; got {setting!r}")
            graph = graph.condition({name: _state(graph, name, state)})
        return graph


def queried(graph: FactorGraph, names: Sequence[str]) -> list[str]:
    """The variables of a query; a name that is not of the model's may be a query file's.

    Raises:
        RdpgraphError: an unknown variable, or a file that is not read.
    """
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
    """Refuse evidence rows and states whose answers, as they are written, do not fit.

    Raises:
        BudgetError: they do not.
        ModelError: there are more rows than the format holds.
    """
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
    """Such files number the variables; a model with names is asked by its order."""
    names, entries = graph.domain.by_name, graph.variables
    numbered = all(name in names for name in row)
    if numbered and bool(graph.domain.takes_indices.all()):
        return row  # pyright: ignore[reportReturnType]  # names are keys too
    result: dict[Named, Any] = {}
    for name, state in row.items():
        if not numbered and not 0 <= int(name) < len(entries):
            raise EvidenceError(
                f"The {what} names variable {name}; the model has {len(entries)} variables."
            )
        entry = entries[names[name] if numbered else int(name)]
        # States are numbered as well, whatever they are called.
        result[entry.name] = state if isinstance(entry.states, int) else torch.tensor(state)
    return result


def _state(graph: FactorGraph, name: str, text: str) -> State:
    """The state of a name, or of an index, on the command line."""
    for state in names_of(graph.domain.states_of(name)):
        if str(state) == text:
            return state
    # A longer number is not a state either: its name is refused in a line.
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else text
