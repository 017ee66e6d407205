"""Tensors in files of safetensors, which hold numbers alone and are read by any program."""

import importlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from rdpgraph.errors import FileFormatError, UnsupportedError
from rdpgraph.io.text import PathLike, write_bytes_atomically


def write_tensors(path: PathLike, tensors: Mapping[str, Tensor], told: dict[str, str]) -> None:
    """Write tensors by name to a file, atomically, and what else is told of them.

    Raises:
        UnsupportedError: safetensors is not installed.
        OSError: the file cannot be written.
    """
    own = {name: part.detach().clone().contiguous() for name, part in tensors.items()}
    write_bytes_atomically(path, _safetensors().save(own, told))


def read_tensors(path: PathLike, what: str) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read the tensors of a file, and what else it tells; errors name what it should be.

    Raises:
        FileFormatError: another file.
        UnsupportedError: safetensors is not installed.
        OSError: the file cannot be read.
    """
    library, data = _safetensors(), Path(path).read_bytes()
    try:
        size = int.from_bytes(data[:8], "little")
        return library.load(data), json.loads(data[8 : 8 + size]).get("__metadata__", {})
    except Exception as error:  # the library has an exception of its own
        raise FileFormatError(f"{path}: not {what}: {error}") from None


def require_like(path: PathLike, name: str, stored: Tensor | None, like: Tensor) -> Tensor:
    """A tensor of a file, on another's device and in its type.

    Raises:
        FileFormatError: there is none, or it has another shape.
    """
    if stored is None or stored.shape != like.shape:
        shape = None if stored is None else tuple(stored.shape)
        raise FileFormatError(
            f"{path}: expected {name} of shape {tuple(like.shape)}; got {shape}. Load it as "
            "what it was saved from."
        )
    return stored.to(like)


def _safetensors() -> Any:
    try:
        return importlib.import_module("safetensors.torch")
    except ImportError:
        raise UnsupportedError(
            "Files of tensors need safetensors, which is not installed: pip install "
            "'rdpgraph[safetensors]'; what they hold can be pickled too."
        ) from None
