"""The compiled library: that of the package, or built by this machine's compiler on first use.

Every structure loads it, so files are checked first: a name holds a digest of the content, and the
cache folder must be writable by the user alone. A truncated or planted file is not loaded.
"""

import ctypes
import functools
import logging
import os
import platform
import shutil
import stat
import subprocess
import time
import warnings
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from rdpgraph.errors import UnsupportedError
from rdpgraph.native import building

_log = logging.getLogger(__name__)

_FLAGS = (*building.FLAGS, "-march=native")
_NAMES = {torch.float32: "float", torch.float64: "double"}
_SIGNATURES = {
    "up": (2, 3, 0, 2),
    "down": (6, 4, 0, 1),
    "most": (2, 3, 0, 1),
    "descend": (4, 5, 0, 2),
    "lists": (4, 4, 0, 1),
    "taken": (2, 0, 0, 0),
    "compile": (5, 3, 1, 0),
    "rows": (9, 3, 1, 1),
    # In float64 alone, by their whole names.
    "parity_sums": (4, 6, 0, 2),
    "parity_gradient": (5, 6, 0, 2),
    "parity_paths": (4, 7, 0, 2),
    "parity_kept": (7, 10, 1, 2),
    "parity_messages": (11, 5, 1, 3),
    "parity_flood": (6, 3, 3, 2),
    "tree_sums": (4, 2, 0, 2),
    "tree_gradient": (6, 2, 0, 2),
    "search_order": (11, 4, 3, 0),
    "search_solve": (12, 3, 0, 1),
    "trws_sweeps": (8, 3, 2, 2),
    "tape_losses": (4, 3, 0, 2),
    "tape_second": (10, 3, 0, 1),
}
"""Arguments: numbers of pointers, sizes, reals and small integers, in this order."""
_UNUSABLE = ".unusable"  # suffix of a marker for a library that does not load where it was built
_OTHERS = stat.S_IWGRP | stat.S_IWOTH
_WARNED: set[str] = set()


@dataclass(frozen=True)
class KernelStatus:
    """The library in use, or the reason for none: ``str(status)`` says it.

    Attributes:
        kernel: the file that was loaded, or None.
        reason: what happened, and the way out.
    """

    kernel: Path | None
    reason: str

    def __str__(self) -> str:
        return self.reason


class NoFolderError(Exception):
    """No folder is safe for built libraries."""


def status() -> KernelStatus:
    """The library of this machine; built if not tried yet."""
    return _loaded()[1]


def available(dtype: torch.dtype) -> bool:
    """Return whether the library serves a dtype; warn once if there is no library."""
    if dtype not in _NAMES:
        return False
    library, known = _loaded()
    if library is None and not _WARNED:
        _WARNED.add(known.reason)
        warnings.warn(
            f"Structures on the CPU are several times slower than they could be. {known}",
            RuntimeWarning,
            stacklevel=2,
        )
    return library is not None


def require(what: str) -> None:
    """Raise `UnsupportedError` where there is no library."""
    if not available(torch.float64):
        raise UnsupportedError(f"{what} is compiled code. {status()}")


@functools.cache
def function(name: str, dtype: torch.dtype | None = None) -> Any:
    """One of the library's functions: for a dtype, or one that is there in float64 alone."""
    pointers, sizes, reals, flags = _SIGNATURES[name]
    called = getattr(_loaded()[0], name if dtype is None else f"chain_{name}_{_NAMES[dtype]}")
    called.argtypes = [
        *[ctypes.c_void_p] * pointers,
        *[ctypes.c_int64] * sizes,
        *[ctypes.c_double] * reals,
        *[ctypes.c_int] * flags,
    ]
    called.restype = None
    return called


@functools.cache
def _loaded() -> tuple[ctypes.CDLL | None, KernelStatus]:
    """Load the package's library, or the cached one, or build one."""
    for level, file in _packaged():
        with suppress(OSError, AttributeError):  # of another platform, or without torch's OpenMP
            return _opened(file), KernelStatus(
                file, f"Compiled library {file} of this installation, for {level}."
            )
    compiler = building.compiler()
    if compiler is None:
        return None, KernelStatus(
            None,
            "This installation has no sound compiled library for this machine, and no C++ compiler "
            "(c++, g++, clang++) is on the PATH; using torch. Install a compiler (Debian: apt "
            "install g++; macOS: xcode-select --install).",
        )
    failure = ""
    for flags in ((*_FLAGS, "-fopenmp"), _FLAGS):
        try:
            library, file = _library(compiler, flags)
        except NoFolderError as error:
            return None, KernelStatus(
                None,
                f"The compiled library cannot be kept: {error}; using torch. Set XDG_CACHE_HOME to "
                "the absolute path of a folder that you own.",
            )
        except subprocess.CalledProcessError as error:
            failure = _first_line(error.stderr) or f"exit status {error.returncode}"
        except (OSError, subprocess.SubprocessError) as error:
            failure = str(error)
        else:
            lacking = f" It has no OpenMP ({failure})." if failure else ""
            return library, KernelStatus(file, f"Compiled library {file}, built here.{lacking}")
    return None, KernelStatus(
        None,
        f"{compiler} failed to build the library ({failure}); using torch. Put a working C++17 "
        "compiler first on the PATH.",
    )


def _packaged() -> Iterable[tuple[str, Path]]:
    """The package's libraries for this processor, best first, each with its level."""
    levels = list(building.LEVELS)
    known = torch.backends.cpu.get_cpu_capability().lower()
    for level in levels[levels.index(known if known in levels else "base") :]:
        for file in building.packaged(level):
            yield level, file


def _library(compiler: str, flags: tuple[str, ...]) -> tuple[ctypes.CDLL, Path]:
    """Load the cached library, or build one."""
    folder = cache_folder()
    # The driver's dry run names its version and what "native" means.
    means = building.run([compiler, *flags, "-###", "-E", "-x", "c++", os.devnull], seconds=60)
    stem = building.stem_of(*flags, platform.machine(), means.decode(errors="replace"))
    _clear(folder)
    for file in sorted(folder.glob(f"{stem}*.so")):
        if _sound(file, stem):
            try:
                with suppress(AttributeError):  # a library of other functions
                    return _opened(file), file
            except OSError:
                if file.with_suffix(_UNUSABLE).exists():  # built here, again and again
                    raise
        with suppress(OSError):
            file.unlink()
    _log.warning("Building rdpgraph's compiled code in %s, once: half a minute or so.", folder)
    file = building.build([compiler, *flags], folder, stem)
    try:
        return _opened(file), file
    except OSError:
        file.with_suffix(_UNUSABLE).touch(mode=0o600)
        raise


def _clear(folder: Path) -> None:
    """Remove the temporary folders of builds that were killed."""
    for room in folder.glob("tmp*"):
        with suppress(OSError):
            if time.time() - room.stat().st_mtime > 2 * building.SECONDS:
                shutil.rmtree(room)


def _opened(file: Path) -> ctypes.CDLL:
    """Load a library; OSError where it fails, AttributeError where it lacks a function."""
    library = ctypes.CDLL(str(file))
    for name in _SIGNATURES:
        typed = (f"chain_{name}_{kind}" for kind in _NAMES.values())
        for symbol in (name,) if "_" in name else typed:
            getattr(library, symbol)
    library.chain_panel_width.argtypes = [ctypes.c_int64]
    return library


def threads(work: float, most: int | None = None, *, least: int = 2**18) -> int:
    """The number of threads, ``most`` at most, for multiply-adds, ``least`` for each."""
    limits = torch.get_num_threads(), int(work) // least, *(() if most is None else (most,))
    return max(1, min(limits))


@functools.cache
def panel_width(size: int) -> int:
    """The number of items of ``size`` bytes in a row of a panel."""
    library: Any = _loaded()[0]
    return library.chain_panel_width(size)


def _sound(file: Path, stem: str) -> bool:
    """Return whether a file has the content of its name, and nobody else could have written it."""
    try:
        return _own(file, stat.S_ISREG) and file.name == building.name_of(stem, file.read_bytes())
    except OSError:
        return False


def cache_folder() -> Path:
    """The folder for built libraries in XDG_CACHE_HOME or ~/.cache, made if absent.

    Raises:
        NoFolderError: there is none, or others may write to it.
    """
    given = os.environ.get("XDG_CACHE_HOME")
    try:
        base = Path(given) if given else Path.home() / ".cache"
    except RuntimeError:
        raise NoFolderError("there is no home folder") from None
    folder = base / "rdpgraph"
    if not folder.is_absolute():
        raise NoFolderError(f"{folder} is not an absolute path")
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not _own(folder, stat.S_ISDIR):
            raise NoFolderError(f"{folder} is not yours alone to write to")
        for parent in folder.resolve().parents:
            mode = parent.stat().st_mode
            if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
                raise NoFolderError(f"anyone may write to {parent}")
        if not os.access(folder, os.W_OK):
            raise NoFolderError(f"{folder} cannot be written to")
    except OSError as error:
        raise NoFolderError(f"{folder}: {error.strerror or error}") from None
    return folder


def _own(path: Path, kind: Any) -> bool:
    """Return whether a path is of a kind, no link, the user's, and not writable by others."""
    entry = path.lstat()
    if os.name != "posix":
        return kind(entry.st_mode)
    return kind(entry.st_mode) and entry.st_uid == os.geteuid() and not entry.st_mode & _OTHERS


def _first_line(text: bytes) -> str:
    lines = text.decode(errors="replace").strip().splitlines()
    return next((line for line in lines if "error" in line), lines[0] if lines else "")
