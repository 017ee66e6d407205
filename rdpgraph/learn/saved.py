"""Estimators and fits in folders: a configuration, and tensors in a file of safetensors."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rdpgraph._core.arguments import typed
from rdpgraph._core.portable import Arguments
from rdpgraph.errors import FileFormatError, UnsupportedError
from rdpgraph.io.tables import all_variables, factor_tables
from rdpgraph.io.text import PathLike, read_tensors, write_bytes_atomically, write_tensors
from rdpgraph.learn.families import edges_of
from rdpgraph.model.factor import Factor
from rdpgraph.model.graph import FactorGraph
from rdpgraph.model.potentials.table import Table
from rdpgraph.model.variable import Variable, is_interval

_CONFIG, _TENSORS = "config.json", "model.safetensors"
_ROOMS = "rdpgraph.learn", "rdpgraph", "torch.distributions"


@typed()
def save(model: Any, folder: PathLike) -> None:
    """Write an estimator, or a `Fit`, to ``config.json`` and ``model.safetensors`` in a folder.

    Every argument but ``progress`` is kept, and all that was fitted.

    Raises:
        UnsupportedError: safetensors is not installed, or an argument of a type that cannot be
            saved.
        OSError: the files cannot be written.
    """
    tensors: dict[str, Tensor] = {}
    config = json.dumps(_written(model, tensors), indent=2)
    Path(folder).mkdir(parents=True, exist_ok=True)
    write_tensors(Path(folder, _TENSORS), tensors, {"format": "pt"})
    write_bytes_atomically(Path(folder, _CONFIG), config.encode())


@typed()
def load(folder: PathLike, *, classes: Iterable[type] = ()) -> Any:
    """Read an estimator, or a `Fit`, which `EM.fit` goes on from: ``start=load(folder)``.

    Args:
        folder: one that `save` wrote.
        classes: user-defined classes that it holds; apart from these, only code of this library
            is run.

    Raises:
        FileFormatError: files of another kind, or that hold another class.
        OSError: no such files.
        UnsupportedError: safetensors is not installed.
    """
    known, path = {each.__name__: each for each in classes}, Path(folder, _CONFIG)
    tensors, _ = read_tensors(Path(folder, _TENSORS), "the tensors of a model that was saved")
    try:
        return _read(json.loads(path.read_bytes()), tensors, known)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise FileFormatError(
            f"{path}: expected a saved model; if it has classes of your own, name them in "
            f"classes=...: {error!r:.80}."
        ) from None


def _written(value: Any, tensors: dict[str, Tensor]) -> Any:
    """A value as JSON, its tensors apart: a number, a text, or a kind and parts of it."""

    def parts(kind: str, values: Iterable[Any]) -> list[Any]:
        return [kind, *(_written(part, tensors) for part in values)]

    # JSON has these itself; all else is a list that begins with its kind.
    value = value.item() if isinstance(value, np.generic) else value
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if is_interval(value):
        return parts("interval", [value.left, value.right, value.closed])
    if isinstance(value, Tensor) or (isinstance(value, np.ndarray) and value.dtype.kind in "biuf"):
        # Numbers go into the file of tensors, and their place stands here.
        tensors[str(len(tensors))] = torch.as_tensor(value)
        return ["tensor", str(len(tensors) - 1)]
    if isinstance(value, FactorGraph):
        tables = [([v.name for v in scope], table) for scope, table in factor_tables(value)]
        return parts("graph", [{v.name: v.states for v in all_variables(value)}, tables])
    if hasattr(value, "is_directed"):
        return parts("digraph", edges_of(value))
    if isinstance(value, Mapping):
        return parts("mapping", value.items())
    if isinstance(value, type):
        # A class is kept by name and by the room that exports it; users name their own when they
        # load.
        of = (room for room in _ROOMS if getattr(import_module(room), value.__name__, 0) is value)
        return ["class", next(of, ""), value.__name__]
    if is_dataclass(value):
        # An object is its arguments, from which it is built anew, and what it learned.
        held = [f.name for f in fields(value) if f.init and f.name != "progress"]
        learned = [
            name for name in vars(value) if name.endswith("_") and isinstance(value, Arguments)
        ]
        each = ({name: getattr(value, name) for name in names} for names in (held, learned))
        return parts("object", [type(value), *each])
    if isinstance(value, Iterable):
        return parts("tuple" if isinstance(value, tuple) else "list", value)
    raise UnsupportedError(f"{value!r:.80} cannot be kept in a folder; pickle the model.")


def _read(value: Any, tensors: Mapping[str, Tensor], known: Mapping[str, type]) -> Any:
    """The value of such JSON."""
    # The inverse of `_written`, from the inside out.
    if not isinstance(value, list):
        return value
    kind, *parts = (_read(part, tensors, known) for part in value)
    match kind:
        case "tensor":
            return tensors[parts[0]]
        case "tuple":
            return tuple(parts)
        case "interval":
            import pandas

            return pandas.Interval(*parts)
        case "mapping":
            return dict(parts)
        case "class":
            room, name = parts
            # Only classes of our rooms are looked up by name: a file imports nothing.
            made = getattr(import_module(room), name) if room in _ROOMS else known[name]
            return made if isinstance(made, type) else known[name]
        case "object":
            result = parts[0](**parts[1])
            vars(result).update(parts[2])
            return result
        case "graph":
            variables = {name: Variable(name, states) for name, states in parts[0].items()}
            tables = (([variables[name] for name in names], table) for names, table in parts[1])
            factors = [Factor(scope, Table.from_logs(table)) for scope, table in tables]
            return FactorGraph(factors, variables.values())
        case "digraph":
            import networkx

            graph: Any = networkx.DiGraph(parts[1])
            graph.add_nodes_from(parts[0])
            return graph
        case _:
            return parts
