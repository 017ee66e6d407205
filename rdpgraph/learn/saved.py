"""Fits in files of safetensors."""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, fields, is_dataclass, replace
from typing import Any

from torch import Tensor

from rdpgraph.engines.solution import Status
from rdpgraph.errors import FileFormatError
from rdpgraph.io.tensors import read_tensors, require_like, write_tensors
from rdpgraph.io.text import PathLike
from rdpgraph.learn.em import EM, Fit, Statistics


def save(fit: Fit, path: PathLike) -> None:
    """Write a fit to a file of safetensors, atomically: the tensors of parameters, and the history.

    Raises:
        UnsupportedError: safetensors is not installed.
        OSError: the file cannot be written.
    """
    known: dict[str, Tensor] = {}

    def keep(name: str, tensor: Tensor) -> Tensor:
        known[name] = tensor
        return tensor

    _mapped(fit.parameters, "parameters", keep)
    statistics, updates = fit.averages or ({}, 0)
    _mapped(statistics, "averages", keep)
    told = {
        "history": fit.history, "log_likelihood": fit.log_likelihood, "updates": updates,
        "status": asdict(fit.status),
    }  # fmt: skip
    write_tensors(path, known, {"fit": json.dumps(told)})


def load(em: EM, path: PathLike) -> Fit:
    """Read a fit of the same parameters, which `EM.fit` goes on from: ``start=load(em, path)``.

    Args:
        em: its parameters say of what kind those of the file are.
        path: a file that `save` wrote.

    Raises:
        FileFormatError: no such file, or one of other parameters.
        UnsupportedError: safetensors is not installed.
    """
    known, every = read_tensors(path, "a fit that was saved")
    if "fit" not in every:
        raise FileFormatError(f"{path}: not a fit that was saved.")
    told = json.loads(every["fit"])

    def restore(name: str, tensor: Tensor) -> Tensor:
        return require_like(path, name, known.get(name), tensor)

    parameters = _mapped(dict(em.parameters), "parameters", restore)
    averages: Statistics = {}
    for name in parameters:
        count = sum(key.startswith(f"averages.{name}.") for key in known)
        averages[name] = tuple(known[f"averages.{name}.{place}"] for place in range(count))
    status = replace(Status(**told["status"]), trace=tuple(told["status"]["trace"]))
    kept = (averages, told["updates"]) if told["updates"] else None
    return Fit(parameters, tuple(told["history"]), told["log_likelihood"], status, kept)


def _mapped(value: Any, name: str, change: Callable[[str, Tensor], Tensor]) -> Any:
    """Apply a function to the tensors in dataclasses, dictionaries, tuples and lists."""
    if isinstance(value, Tensor):
        return change(name, value)
    if isinstance(value, Mapping):
        return {key: _mapped(part, f"{name}.{key}", change) for key, part in value.items()}
    if isinstance(value, tuple | list):
        parts = (_mapped(part, f"{name}.{place}", change) for place, part in enumerate(value))
        return type(value)(parts)
    if is_dataclass(value) and not isinstance(value, type):
        held = [field.name for field in fields(value) if field.init]
        parts = {key: _mapped(getattr(value, key), f"{name}.{key}", change) for key in held}
        return replace(value, **parts)
    return value
