"""Loading a compiled library: that of the package, or one built by this machine's compiler.

A library is built on first use. Every structure loads one, so files are checked first: a name holds
a digest of the content, and the cache folder must be writable by the user alone. A truncated or
planted file is not loaded.
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
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from rdpgraph.native import building
from rdpgraph.native.records import check_sizes

_log = logging.getLogger(__name__)

DTYPES = {torch.float32: "float", torch.float64: "double"}
"""The dtypes that kernels compute in, by the suffixes of their names."""
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


class Library:
    """A compiled library, found or built when it is first asked for.

    Args:
        unit: what it is built of.
        check: raises AttributeError for a library that lacks a function, or has other records.
    """

    def __init__(self, unit: building.Unit, check: Callable[[ctypes.CDLL], None]) -> None:
        self.unit, self.check = unit, check

    @property
    def status(self) -> KernelStatus:
        """The library of this machine; built if not tried yet."""
        return self.loaded[1]

    def available(self, dtype: torch.dtype) -> bool:
        """Return whether the library serves a dtype; warn once if there is no library."""
        if dtype not in DTYPES:
            return False
        library, known = self.loaded
        if library is None and not _WARNED:
            _WARNED.add(known.reason)
            warnings.warn(
                f"Structures on the CPU are several times slower than they could be. {known}",
                RuntimeWarning,
                stacklevel=3,
            )
        return library is not None

    @functools.cached_property
    def loaded(self) -> tuple[ctypes.CDLL | None, KernelStatus]:
        """The library, and how it was found; None, and why there is none."""
        return self.load()

    def load(self) -> tuple[ctypes.CDLL | None, KernelStatus]:
        """Load the package's library, or the cached one, or build one."""
        for level, file in self._packaged():
            with suppress(OSError, AttributeError):  # of another platform, or without its OpenMP
                return self._opened(file), KernelStatus(
                    file, f"Compiled library {file} of this installation, for {level}."
                )
        compiler = building.compiler()
        if compiler is None:
            return None, KernelStatus(
                None,
                "This installation has no sound compiled library for this machine, and no C++ "
                "compiler (c++, g++, clang++) is on the PATH; using torch. Install a compiler "
                "(Debian: apt install g++; macOS: xcode-select --install).",
            )
        failure = ""
        own = building.flags_here()
        for flags in ((*own, self.unit.openmp), own):
            try:
                library, file = self._cached(compiler, flags)
            except NoFolderError as error:
                return None, KernelStatus(
                    None,
                    f"The compiled library cannot be kept: {error}; using torch. Set "
                    "XDG_CACHE_HOME to the absolute path of a folder that you own.",
                )
            except subprocess.CalledProcessError as error:
                failure = _first_line(error.stderr) or f"exit status {error.returncode}"
            except subprocess.TimeoutExpired as error:
                failure = f"it took more than {error.timeout:.0f} seconds"
                break  # nor would it be faster without OpenMP
            except (OSError, subprocess.SubprocessError) as error:
                failure = str(error)
            else:
                lacking = f" It has no OpenMP ({failure})." if failure else ""
                built = "built here, to be debugged" if building.is_debugged() else "built here"
                return library, KernelStatus(file, f"Compiled library {file}, {built}.{lacking}")
        return None, KernelStatus(
            None,
            f"{compiler} failed to build the library ({failure}); using torch. Put a working C++17 "
            "compiler first on the PATH.",
        )

    def _packaged(self) -> Iterable[tuple[str, Path]]:
        """The package's libraries for this processor, best first, each with its level."""
        if building.is_debugged():
            return
        levels = list(building.LEVELS)
        known = torch.backends.cpu.get_cpu_capability().lower()
        for level in levels[levels.index(known if known in levels else "base") :]:
            for file in building.packaged(self.unit, level):
                yield level, file

    def _cached(self, compiler: str, flags: tuple[str, ...]) -> tuple[ctypes.CDLL, Path]:
        """Load the cached library, or build one."""
        folder = cache_folder()
        # The driver's dry run names its version and what "native" means.
        means = building.run([compiler, *flags, "-###", "-E", "-x", "c++", os.devnull], seconds=60)
        said = means.decode(errors="replace")
        stem = building.stem_of(self.unit, *flags, platform.machine(), said)
        _clear(folder)
        for file in sorted(folder.glob(f"{stem}*.so")):
            if _sound(file, stem):
                try:
                    with suppress(AttributeError):  # a library of other functions
                        return self._opened(file), file
                except OSError:
                    if file.with_suffix(_UNUSABLE).exists():  # built here, again and again
                        raise
            with suppress(OSError):
                file.unlink()
        _log.warning("Building rdpgraph's compiled code in %s, once: half a minute or so.", folder)
        file = building.build(self.unit, [compiler, *flags], folder, stem)
        try:
            return self._opened(file), file
        except OSError:
            file.with_suffix(_UNUSABLE).touch(mode=0o600)
            raise

    def _opened(self, file: Path) -> ctypes.CDLL:
        """Load a library; OSError where it fails, AttributeError where it is another one."""
        library = ctypes.CDLL(str(file))
        self.check(library)
        return library


class TypedLibrary(Library):
    """A library whose functions exist in each dtype and take records that Python shares.

    Args:
        unit: what it is built of.
        signatures: the type of the result and those of the arguments of each function, by name.
        records: the dataclasses whose sizes the library must agree with.
    """

    def __init__(
        self, unit: building.Unit, signatures: Mapping[str, tuple[Any, list[Any]]],
        records: Sequence[type],
    ) -> None:  # fmt: skip
        super().__init__(unit, self._check)
        self.signatures, self.records = signatures, records
        self._functions: dict[tuple[str, torch.dtype], Any] = {}

    def _check(self, library: ctypes.CDLL) -> None:
        """Raise AttributeError for a library of other functions or records."""
        for name in self.signatures:
            for kind in DTYPES.values():
                getattr(library, f"{name}_{kind}")
        check_sizes(library, self.records)

    def function(self, name: str, dtype: torch.dtype) -> Any:
        """The function of a name for a dtype, of a library that is available."""
        key = name, dtype
        if key not in self._functions:
            found = getattr(self.loaded[0], f"{name}_{DTYPES[dtype]}")
            found.restype, found.argtypes = self.signatures[name]
            self._functions[key] = found
        return self._functions[key]


def _clear(folder: Path) -> None:
    """Remove the temporary folders of builds that were killed."""
    for workspace in folder.glob("tmp*"):
        with suppress(OSError):
            if time.time() - workspace.stat().st_mtime > 2 * building.DEBUG_SECONDS:
                shutil.rmtree(workspace)


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
        # A folder above that anyone may write to lets others replace this one.
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
