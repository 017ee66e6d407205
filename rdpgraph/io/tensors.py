"""Tensors in files of safetensors."""

import importlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from rdpgraph.errors import FileFormatError, UnsupportedError
from rdpgraph.io.text import PathLike, write_bytes_atomically


def write_tensors(path: PathLike, tensors: Mapping[str, Tensor], texts: dict[str, str]) -> None:
    """Write tensors by name, with texts as metadata, to a file of safetensors, atomically."""
    copies = {name: part.detach().clone().contiguous() for name, part in tensors.items()}
    write_bytes_atomically(path, _safetensors().save(copies, texts))


def read_tensors(path: PathLike, what: str) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read the tensors and the metadata of a file; errors say what it should be."""
    library, data = _safetensors(), Path(path).read_bytes()
    try:
        size = int.from_bytes(data[:8], "little")
        return library.load(data), json.loads(data[8 : 8 + size]).get("__metadata__", {})
    except Exception as error:  # the library defines an exception
        raise FileFormatError(f"{path}: not {what}: {error}") from None


def require_like(path: PathLike, name: str, stored: Tensor | None, like: Tensor) -> Tensor:
    """The stored tensor, in the type and on the device of another of its shape."""
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
