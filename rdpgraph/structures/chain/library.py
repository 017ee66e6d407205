"""The compiled kernel's file: built by the machine's own C++ compiler on first use, and kept.

Every chain loads what is kept, so that it is checked first. Its name holds a digest of its content,
and the folder is the user's own. A file that is cut, empty or planted is rebuilt.
"""

import ctypes
import functools
import hashlib
import os
import platform
import shutil
import stat
import subprocess
import tempfile
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

_SOURCES = Path(__file__).with_name("kernels")
_FLAGS = ("-O3", "-march=native", "-std=c++17", "-shared", "-fPIC")
_NAMES = {torch.float32: "float", torch.float64: "double"}
_SIGNATURES = {
    "level": (5, 3, 0, 0),
    "forward": (12, 3, 3, 2),
    "backward": (9, 3, 0, 1),
    "edges": (4, 2, 0, 1),
    "prefixes": (5, 3, 0, 1),
    "trace": (5, 6, 0, 1),
    "best": (4, 4, 0, 1),
    "up": (6, 3, 0, 2),
    "down": (11, 3, 0, 1),
}
"""Numbers of pointers, sizes, reals and small integers, in this order."""
_SECONDS = 300
"""The longest that a build may take."""
_UNUSABLE = ".unusable"
"""Of the name of an empty file beside a library that does not load where it was built."""
_OTHERS = stat.S_IWGRP | stat.S_IWOTH
_WARNED: set[str] = set()


@dataclass(frozen=True)
class KernelStatus:
    """Whether kernels are there, and if not, why: ``str(status)`` says it.

    Attributes:
        kernel: the file that they were loaded from, or the version of what builds them; or None.
        reason: what happened, and the way out.
    """

    kernel: Path | str | None
    reason: str

    def __str__(self) -> str:
        return self.reason


class NoFolderError(Exception):
    """There is no folder that the kernel may be kept in."""


def status() -> KernelStatus:
    """Whether structures use compiled code here; builds it if that was not tried yet."""
    return _loaded()[1]


def available(dtype: torch.dtype) -> bool:
    """Whether there is a kernel for a type; where there is none at all, a warning says so once."""
    if dtype not in _NAMES:
        return False
    library, known = _loaded()
    if library is None and not _WARNED:
        _WARNED.add(known.reason)
        warnings.warn(
            f"Small chains are several times slower than they could be. {known}",
            RuntimeWarning,
            stacklevel=2,
        )
    return library is not None


@functools.cache
def function(name: str, dtype: torch.dtype) -> Any:
    """One of the library's functions, which is available."""
    called = getattr(_loaded()[0], f"chain_{name}_{_NAMES[dtype]}")
    pointers, sizes, reals, flags = _SIGNATURES[name]
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
    """The library, built unless the cache has it."""
    compiler = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        return None, KernelStatus(
            None,
            "No C++ compiler (c++, g++, clang++) is on the PATH; using torch. Install one (Debian: "
            "apt install g++; macOS: xcode-select --install).",
        )
    failure = ""
    for flags in ((*_FLAGS, "-fopenmp"), _FLAGS):
        try:
            library, file = _library(compiler, flags)
        except NoFolderError as error:
            return None, KernelStatus(
                None,
                f"The compiled kernel cannot be kept: {error}; using torch. Set XDG_CACHE_HOME to "
                "the absolute path of a folder of your own.",
            )
        except subprocess.CalledProcessError as error:
            failure = _first_line(error.stderr) or f"exit status {error.returncode}"
        except (OSError, subprocess.SubprocessError) as error:
            failure = str(error)
        else:
            lacking = f" It has no OpenMP ({failure})." if failure else ""
            return library, KernelStatus(file, f"Compiled kernel {file}.{lacking}")
    return None, KernelStatus(
        None,
        f"{compiler} built no kernel ({failure}); using torch. Put a compiler of C++17 that works "
        "first on the PATH.",
    )


def _library(compiler: str, flags: tuple[str, ...]) -> tuple[ctypes.CDLL, Path]:
    """What is kept, or what is built now."""
    folder, sources = cache_folder(), sorted(_SOURCES.iterdir())
    # What "native" stands for, and the version, are in what the driver says it would run.
    means = _run([compiler, *flags, "-###", "-E", "-x", "c++", os.devnull], seconds=60)
    parts = [" ".join(flags).encode(), platform.machine().encode(), means]
    parts += [source.read_bytes() for source in sources]
    stem = f"chain-{hashlib.sha256(bytes(1).join(parts)).hexdigest()[:20]}-"
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
    file = _built([compiler, *flags], folder, stem)
    try:
        return _opened(file), file
    except OSError:
        file.with_suffix(_UNUSABLE).touch(mode=0o600)
        raise


def _clear(folder: Path) -> None:
    """Remove what builds left that were killed."""
    for room in folder.glob("tmp*"):
        with suppress(OSError):
            if time.time() - room.stat().st_mtime > 2 * _SECONDS:
                shutil.rmtree(room)


def _opened(file: Path) -> ctypes.CDLL:
    """A library that has every function.

    Raises:
        OSError: it cannot be loaded.
        AttributeError: it lacks one.
    """
    library = ctypes.CDLL(str(file))
    for name in _SIGNATURES:
        for kind in _NAMES.values():
            getattr(library, f"chain_{name}_{kind}")
    for name, sizes in (("packed_size", 2), ("panel_width", 1)):
        called = getattr(library, f"chain_{name}")
        called.argtypes, called.restype = [ctypes.c_int64] * sizes, ctypes.c_int64
    return library


def packed_size(states: int, size: int) -> int:
    """Numbers of some bytes each that a transition between so many states takes, in panels."""
    library: Any = _loaded()[0]
    return library.chain_packed_size(states, size)


@functools.cache
def panel_width(size: int) -> int:
    """Numbers of some bytes each in a row of a panel."""
    library: Any = _loaded()[0]
    return library.chain_panel_width(size)


def _sound(file: Path, stem: str) -> bool:
    """Whether a file holds what its name says, and nobody else could have written it."""
    try:
        return _own(file, stat.S_ISREG) and file.name == _name(stem, file.read_bytes())
    except OSError:
        return False


def _name(stem: str, content: bytes) -> str:
    return f"{stem}{hashlib.sha256(content).hexdigest()[:32]}.so"


def _built(command: list[str], folder: Path, stem: str) -> Path:
    """The library, written whole to the disk before it has its name."""
    with tempfile.TemporaryDirectory(dir=folder) as room:
        made = Path(room) / "chain.so"
        halves = {half: str(Path(room) / f"{half}.o") for half in ("CHAIN_FLOAT", "CHAIN_DOUBLE")}
        with ThreadPoolExecutor() as pool:
            builds = [
                [*command, "-c", f"-D{half}", str(_SOURCES / "chain.cpp"), "-o", part]
                for half, part in halves.items()
            ]
            list(pool.map(partial(_run, seconds=_SECONDS), builds))
        _run([*command, *halves.values(), "-o", str(made)], seconds=_SECONDS)
        made.chmod(0o700)
        file = folder / _name(stem, made.read_bytes())
        _synchronised(made)
        made.replace(file)
    _synchronised(folder)
    return file


def cache_folder() -> Path:
    """The folder of compiled kernels, in XDG_CACHE_HOME or ~/.cache; made if it is not there.

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
    """Whether a path is of a kind, no link, the user's, and not for others to write to."""
    entry = path.lstat()
    if os.name != "posix":
        return kind(entry.st_mode)
    return kind(entry.st_mode) and entry.st_uid == os.geteuid() and not entry.st_mode & _OTHERS


def _synchronised(path: Path) -> None:
    if os.name == "posix":
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _run(command: list[str], *, seconds: float) -> bytes:
    """What a command writes as errors."""
    return subprocess.run(command, capture_output=True, check=True, timeout=seconds).stderr


def _first_line(text: bytes) -> str:
    lines = text.decode(errors="replace").strip().splitlines()
    return next((line for line in lines if "error" in line), lines[0] if lines else "")
