"""Folders of models on the hub of Hugging Face, where huggingface_hub is installed."""

import importlib
import importlib.util
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rdpgraph.errors import FileFormatError, UnsupportedError
from rdpgraph.io.text import PathLike


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
