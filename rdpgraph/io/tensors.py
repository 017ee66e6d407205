"""Tensors in files of safetensors, and folders of models on the hub of Hugging Face."""

import importlib
import importlib.util
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
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


def downloaded(folder: PathLike) -> PathLike:
    """A folder that is here, or the copy of the repository of that name."""
    if Path(folder).exists() or not importlib.util.find_spec("huggingface_hub"):
        return folder
    try:
        return importlib.import_module("huggingface_hub").snapshot_download(str(folder))
    except (OSError, ValueError) as error:
        raise FileFormatError(f"{folder}: no folder, nor on the hub: {_line(error)}") from None


def upload(
    write: Callable[[str], None], name: str, *, token: str | None, private: bool | None, note: str
) -> str:
    """The address of a commit that has the files which a function writes to a folder."""
    try:
        hub: Any = importlib.import_module("huggingface_hub")
    except ImportError:
        raise UnsupportedError(
            "push_to_hub needs huggingface_hub, which is not installed: pip install huggingface_hub"
        ) from None
    with TemporaryDirectory() as folder:
        write(folder)
        try:
            api = hub.HfApi(token=token)
            made = api.create_repo(name, private=private, exist_ok=True)
            sent = api.upload_folder(repo_id=made.repo_id, folder_path=folder, commit_message=note)
        except (OSError, ValueError) as error:  # no token or access, or no name of a repository
            raise UnsupportedError(f"{name}: the hub took no model: {_line(error)}") from None
    return str(sent.commit_url)


def _line(error: Exception) -> str:
    return f"{' '.join(str(error).split()):.200}"
