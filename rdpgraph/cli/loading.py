"""Reading of a model and its evidence from files, and checks of output files."""

import errno
import math
import os
import stat
import warnings
from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import torch
import typer

from rdpgraph._core import tuning
from rdpgraph.cli.options import Device, Format, Task
from rdpgraph.errors import EvidenceError, FileFormatError, ModelError, UnsupportedError
from rdpgraph.io.evidence import LIMIT as EVIDENCE_LIMIT
from rdpgraph.io.evidence import Rows, read_evidence, read_query
from rdpgraph.io.files import read
from rdpgraph.io.tables import all_variables
from rdpgraph.io.text import LIMIT, mode_of, read_bytes
from rdpgraph.model.domain import Named
from rdpgraph.model.graph import FactorGraph
from rdpgraph.model.variable import State, names_of
from rdpgraph.plan.plan import require_room
from rdpgraph.query.drawing import checked_suffix

_GAPS = "", "?", "*", "NA", "NaN", "nan", "null", "-1"
"""Texts of missing values, unless a state has such a name."""


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
    if evidence is not None and evidence.name.removesuffix(".gz").endswith(".csv"):
        rows = read_rows(evidence, graph, int(limit or EVIDENCE_LIMIT), wait)
        require_room_for_rows(rows, graph, memory)
        graph = graph.condition(rows)
    elif evidence is not None:
        rows = read_evidence(evidence, limit=int(limit or EVIDENCE_LIMIT), wait=wait)
        require_room_for_rows(rows, graph, memory)
        given = rows.columns() if isinstance(rows, Rows) and len(rows) > 1 else rows[0]
        graph = graph.condition(_by_place(graph, given))
    for setting in settings:
        name, equals, state = setting.rpartition("=")
        if not equals or not name:
            raise typer.BadParameter(f"--set needs NAME=STATE; got {setting!r}")
        graph = graph.condition({name: _state(graph, name, state)})
    return graph


def read_rows(path: Path, graph: FactorGraph, limit: int, wait: float) -> Any:
    """Read a file of comma-separated values as a DataFrame of states."""
    try:
        import pandas
    except ImportError:
        raise UnsupportedError(
            "Rows of comma-separated values need pandas, which is not installed: "
            "pip install 'rdpgraph[pandas]'."
        ) from None
    names = {
        v.name: {str(state): state for state in names_of(v.states)} for v in all_variables(graph)
    }
    text = BytesIO(read_bytes(path, limit=limit, wait=wait))
    try:
        first: Any = pandas.read_csv(text, nrows=0)
        text.seek(0)
        gaps = {name: [g for g in _GAPS if g not in names.get(name, ())] for name in first.columns}
        with warnings.catch_warnings(action="error", category=pandas.errors.ParserWarning):
            # Otherwise the first column of rows with one field more would be their index.
            rows: Any = pandas.read_csv(
                text, dtype="category", keep_default_na=False, na_values=gaps, index_col=False
            )
    except pandas.errors.ParserWarning:
        raise FileFormatError(f"{path}: a row has more fields than the first line.") from None
    except ValueError as error:
        raise FileFormatError(f"{path}: not a table of comma-separated values: {error}") from None
    for name, known in names.items():
        if name in rows:
            states = [known.get(text, text) for text in rows[name].cat.categories]
            rows[name] = rows[name].cat.rename_categories(states)
    return rows


def require_room_for_rows(rows: Sequence[Any], graph: FactorGraph, memory: float | None) -> None:
    """Refuse evidence rows whose states exceed memory."""
    what = f"{len(rows):,} rows of evidence on {graph.num_variables:,} variables"
    require_room(tuning.ROW_STATE * len(rows) * graph.num_variables, what, memory)


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


def _state(graph: FactorGraph, name: str, text: str) -> State:
    """The state of a name, or of an index where states have no names, on the command line."""
    states = graph.domain.states_of(name)
    if isinstance(states, tuple):
        return next((state for state in states if str(state) == text), text)
    # Longer numbers are refused as unknown names.
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else text


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
