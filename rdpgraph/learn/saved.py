"""Fits in files of safetensors, which hold numbers alone and are read by any program."""

import importlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from rdpgraph.engines.solution import Status
from rdpgraph.errors import FileFormatError, UnsupportedError
from rdpgraph.io.text import PathLike, write_bytes_atomically
from rdpgraph.learn.em import EM, Fit, Statistics


def save(fit: Fit, path: PathLike) -> None:
    """Write a fit to a file of safetensors, atomically: the tensors of parameters, and the history.

    Raises:
        UnsupportedError: safetensors is not installed.
        OSError: the file cannot be written.
    """
    known: dict[str, Tensor] = {}

    def keep(name: str, tensor: Tensor) -> Tensor:
        known[name] = tensor.detach().clone().contiguous()
        return tensor

    _mapped(fit.parameters, "parameters", keep)
    statistics, updates = fit.averages or ({}, 0)
    _mapped(statistics, "averages", keep)
    told = {
        "history": fit.history, "log_likelihood": fit.log_likelihood, "updates": updates,
        "status": asdict(fit.status),
    }  # fmt: skip
    write_bytes_atomically(path, _safetensors().save(known, {"fit": json.dumps(told)}))


def load(em: EM, path: PathLike) -> Fit:
    """Read a fit of the same parameters, which `EM.fit` goes on from: ``start=load(em, path)``.

    Args:
        em: its parameters say of what kind those of the file are.
        path: a file that `save` wrote.

    Raises:
        FileFormatError: no such file, or one of other parameters.
        UnsupportedError: safetensors is not installed.
    """
    library, data = _safetensors(), Path(path).read_bytes()
    try:
        known: dict[str, Tensor] = library.load(data)
        size = int.from_bytes(data[:8], "little")
        told = json.loads(json.loads(data[8 : 8 + size])["__metadata__"]["fit"])
    except Exception as error:  # the library has an exception of its own
        raise FileFormatError(f"{path}: not a fit that was saved: {error}") from None

    def restore(name: str, tensor: Tensor) -> Tensor:
        stored = known.get(name)
        if stored is None or stored.shape != tensor.shape:
            shape = None if stored is None else tuple(stored.shape)
            raise FileFormatError(
                f"{path}: expected {name} of shape {tuple(tensor.shape)}; got {shape}. Load it "
                "with the parameters that it was saved from."
            )
        return stored.to(tensor)

    parameters = _mapped(dict(em.parameters), "parameters", restore)
    averages: Statistics = {}
    for name in parameters:
        count = sum(key.startswith(f"averages.{name}.") for key in known)
        averages[name] = tuple(known[f"averages.{name}.{place}"] for place in range(count))
    status = replace(Status(**told["status"]), trace=tuple(told["status"]["trace"]))
    kept = (averages, told["updates"]) if told["updates"] else None
    return Fit(parameters, tuple(told["history"]), told["log_likelihood"], status, kept)


def _mapped(value: Any, name: str, change: Callable[[str, Tensor], Tensor]) -> Any:
    """A value with the tensors in it changed: in dataclasses, dictionaries, tuples and lists."""
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


def _safetensors() -> Any:
    try:
        return importlib.import_module("safetensors.torch")
    except ImportError:
        raise UnsupportedError(
            "Saving fits needs safetensors, which is not installed: pip install "
            "'rdpgraph[safetensors]'; a Fit can be pickled too."
        ) from None
