"""Reading of a model and its evidence from files, and checks of output files."""

import errno
import math
import os
import re
import stat
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import typer
from torch import Tensor

from rdpgraph._core import tuning
from rdpgraph.cli.options import Device, Format, Task
from rdpgraph.errors import EvidenceError, FileFormatError, ModelError, UnsupportedError
from rdpgraph.io.comma_separated import parse_rows
from rdpgraph.io.evidence import LIMIT as EVIDENCE_LIMIT
from rdpgraph.io.evidence import Rows, read_evidence, read_query
from rdpgraph.io.files import read
from rdpgraph.io.text import LIMIT, mode_of, read_bytes
from rdpgraph.io.tokens import is_number
from rdpgraph.model.domain import Named
from rdpgraph.model.factor import Factor
from rdpgraph.model.graph import FactorGraph
from rdpgraph.model.potentials.table import Table
from rdpgraph.model.variable import State, names_of, state_index
from rdpgraph.plan.plan import require_room
from rdpgraph.query.drawing import checked_suffix


@dataclass(frozen=True)
class GivenTexts:
    """What is given on the command line: evidence, interventions and soft evidence, as texts."""

    settings: Sequence[str] | None = None
    do: Sequence[str] | None = None
    soft: Sequence[str] | None = None


def load(
    model: Path,
    evidence: Path | None = None,
    given: GivenTexts = GivenTexts(),
    device: Device = Device.CPU,
    *,
    limit: float | None,
    wait: float,
    memory: float | None = None,
    encoding: str | None = None,
) -> FactorGraph:
    """The model of a file, after interventions, evidence included.

    Bytes of text, seconds of silence and bytes of memory for rows of evidence are limited.
    """
    graph = read(model, limit=int(limit or LIMIT), wait=wait, encoding=encoding)
    if given.do:
        graph = _after(graph, given.do)
    for setting in given.soft or ():
        graph = graph.with_factors(_likelihood(graph, setting))
    if device is Device.CUDA:
        if not torch.cuda.is_available():
            raise EvidenceError("Device cuda is not available on this machine; use --device cpu.")
        graph = graph.to("cuda")
    # Evidence of a file: rows of a table, or of the UAI format. Settings come after it.
    if evidence is not None and evidence.name.lower().removesuffix(".gz").endswith(".csv"):
        columns = read_rows(evidence, graph, int(limit or EVIDENCE_LIMIT), wait, encoding)
        require_room_for_rows(len(next(iter(columns.values()))), graph, memory)
        graph = graph.condition(columns)
    elif evidence is not None:
        rows = read_evidence(evidence, limit=int(limit or EVIDENCE_LIMIT), wait=wait)
        require_room_for_rows(len(rows), graph, memory)
        observed = rows.columns() if isinstance(rows, Rows) and len(rows) > 1 else rows[0]
        graph = graph.condition(_by_place(graph, observed))
    for setting in given.settings or ():
        name, text = _named(graph, "--set", setting, _is_state)
        graph = graph.condition({name: _state(graph, name, text)})
    return graph


def read_rows(
    path: Path, graph: FactorGraph, limit: int, wait: float, encoding: str | None = None
) -> dict[str, Tensor]:
    """Read a file of comma-separated values: the states of each column."""
    data = read_bytes(path, limit=limit, wait=wait, encoding=encoding)
    return parse_rows(data, graph.domain, source=str(path))


def require_room_for_rows(count: int, graph: FactorGraph, memory: float | None) -> None:
    """Refuse evidence rows whose states exceed memory."""
    what = f"{count:,} rows of evidence on {graph.num_variables:,} variables"
    require_room(tuning.ROW_STATE * count * graph.num_variables, what, memory)


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
    each = tuning.PLAIN_NUMBER if style is Format.UAI else tuning.WRITTEN_NUMBER
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


def _after(graph: FactorGraph, interventions: Sequence[str]) -> FactorGraph:
    """Return the graph after the interventions NAME=STATE, each of which sets a variable."""
    settings: dict[str, State] = {}
    for setting in interventions:
        name, text = _named(graph, "--do", setting, _is_state)
        state = _state(graph, name, text)
        if settings.setdefault(name, state) != state:
            raise EvidenceError(f"--do sets {name!r} to two states; give one of them.")
    try:
        return graph.do(settings)
    except UnsupportedError as error:
        raise UnsupportedError(f"--do needs a Bayesian network. {error}") from None


def _named(
    graph: FactorGraph, option: str, setting: str, fits: Callable[[FactorGraph, str, str], bool]
) -> tuple[str, str]:
    """The variable that a setting NAME=TEXT names, and the text; names may hold equals signs."""
    places = [place for place, mark in enumerate(setting) if mark == "="]
    pairs = [(setting[:place], setting[place + 1 :]) for place in places if place]
    if not pairs:
        form = "NAME=STATE:WEIGHT,..." if option == "--soft" else "NAME=STATE"
        raise typer.BadParameter(f"{option} needs {form}; got {setting!r}")
    known = [(name, text) for name, text in pairs if graph.domain.holds(name)]
    fitting = [(name, text) for name, text in known if fits(graph, name, text)]
    if len(fitting) > 1:
        readings = " or ".join(f"{text!r} of variable {name!r}" for name, text in fitting)
        raise EvidenceError(
            f"{option} {setting!r} can be read as {readings}; give evidence in a .csv file."
        )
    return (fitting or known or pairs)[0]


def _is_state(graph: FactorGraph, name: str, text: str) -> bool:
    """Test if a text is a state of a variable."""
    try:
        state_index(name, graph.domain.states_of(name), _state(graph, name, text))
    except EvidenceError:
        return False
    return True


def _state(graph: FactorGraph, name: str, text: str) -> State:
    """The state of a name, or of an index where states have no names, on the command line."""
    states = graph.domain.states_of(name)
    if isinstance(states, tuple):
        return next((state for state in states if str(state) == text), text)
    # Longer numbers are refused as unknown names.
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else text


def _likelihood(graph: FactorGraph, setting: str) -> Factor:
    """The factor of soft evidence NAME=STATE:WEIGHT,..., with a weight for each state."""
    name, text = _named(
        graph, "--soft", setting, lambda graph, name, text: bool(_weights(graph, name, text))
    )
    variable = graph.domain.variable(graph.domain.number(name))
    states = list(map(str, names_of(variable.states)))
    weights = _weights(graph, name, text)
    if set(weights) != set(states) or not any(weights.values()):
        form = ",".join(f"{state}:WEIGHT" for state in states[:4])
        form += ",..." if len(states) > 4 else ""
        raise EvidenceError(
            f"--soft needs a weight >= 0 for each state of {name!r}, and one above 0, as {form}; "
            f"got {text!r}."
        )
    values = [weights[state] for state in states]
    table = torch.tensor(values, dtype=graph.dtype, device=graph.device)
    return Factor(variable, Table.from_probabilities(table))


def _weights(graph: FactorGraph, name: str, text: str) -> dict[str, float]:
    """The weights STATE:WEIGHT,... by state; empty where the text has another form.

    Names of states may hold colons and commas, so the text is compared with the known names, long
    ones first.
    """
    states = sorted(map(str, names_of(graph.domain.states_of(name))), key=len, reverse=True)
    form = re.compile(rf"({'|'.join(map(re.escape, states))}):([^:,]+)(?:,|$)")
    weights: dict[str, float] = {}
    at = 0
    while at < len(text):
        match = form.match(text, at)
        if match is None or match[1] in weights or not is_number(match[2]) or float(match[2]) < 0:
            return {}
        weights[match[1]] = float(match[2])
        at = match.end()
    return {} if text.endswith(",") else weights


def checked_target(target: Path | None, *sources: Path | None) -> None:
    """Refuse an output that is a source, or that cannot be written."""
    if target is None:
        return
    for source in sources:
        if source is None or not source.is_file() or not target.exists():
            continue
        if os.path.samefile(source, target):
            raise FileFormatError(
                f"{target}: this file is an input of the command; write to another one."
            )
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
        raise FileFormatError(
            f"{target}: this file is already the target of another output; name another one."
        )


def _error(number: int, target: Path) -> OSError:
    return OSError(number, os.strerror(number), str(target))
