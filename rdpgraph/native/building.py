"""Building the compiled library: natively on first use, and portably for wheels.

Also the build hook of pyproject.toml, which runs without torch: this file imports nothing of the
package. A library's name holds a digest of its sources and flags, and one of its content.
"""

import hashlib
import importlib
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

FLAGS = ("-O3", "-std=c++17", "-shared", "-fPIC")
LEVELS = {
    "avx512": ("-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mfma"),
    "avx2": ("-mavx2", "-mfma"),
    "base": (),
}
"""Instruction sets of portable libraries by torch's names, best first; off x86-64 the last only."""
PACKAGED = Path(__file__).with_name("compiled")
"""The folder of portable libraries, in the wheel and in an installed source tree."""
SECONDS = 300  # time limit of a build command
_SOURCES = Path(__file__).with_name("kernels")


def compiler() -> str | None:
    """The path of a C++ compiler, if there is one."""
    return shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")


def stem_of(*parts: str) -> str:
    """The first part of a library's name: a digest of sources and flags."""
    content = [part.encode() for part in parts]
    content += [source.read_bytes() for source in sorted(_SOURCES.iterdir())]
    return f"chain-{hashlib.sha256(bytes(1).join(content)).hexdigest()[:20]}-"


def name_of(stem: str, content: bytes) -> str:
    """The name of a library with some content."""
    return f"{stem}{hashlib.sha256(content).hexdigest()[:32]}.so"


def packaged(level: str) -> Iterable[Path]:
    """Intact portable libraries for a level, built from the current sources."""
    stem = stem_of(level, *FLAGS, *LEVELS[level])
    for file in sorted(PACKAGED.glob(f"{stem}*.so")):
        with suppress(OSError):
            if file.name == name_of(stem, file.read_bytes()):
                yield file


def package() -> None:
    """Build missing portable libraries, and remove outdated ones.

    They use the OpenMP that torch has loaded: none is linked to. Raises OSError or SubprocessError
    where the compiler fails or the folder is read-only.
    """
    PACKAGED.mkdir(exist_ok=True)
    levels = LEVELS if platform.machine() in ("x86_64", "AMD64") else {"base": LEVELS["base"]}
    sound = {level: list(packaged(level)) for level in levels}
    for file in set(PACKAGED.glob("*.so")).difference(*sound.values()):
        file.unlink()
    for level in (level for level in levels if not sound[level]):
        flags = *FLAGS, *LEVELS[level]
        command, stem = [compiler() or "c++", *flags], stem_of(level, *flags)
        with suppress(subprocess.CalledProcessError):
            file = build(command, PACKAGED, stem, unlinked=["-fopenmp"])
            if b"GOMP_parallel" in file.read_bytes():
                continue
            file.unlink()  # torch does not load the runtime of this compiler
        build(command, PACKAGED, stem)


def build(command: list[str], folder: Path, stem: str, *, unlinked: Iterable[str] = ()) -> Path:
    """Build a library in a folder, synchronised to disk before it gets its name.

    ``stem`` is from `stem_of`; flags ``unlinked`` are not for the linker. Raises OSError or
    SubprocessError where it fails.
    """
    with tempfile.TemporaryDirectory(dir=folder) as room:
        made = Path(room) / "chain.so"
        halves = {half: str(Path(room) / f"{half}.o") for half in ("CHAIN_FLOAT", "CHAIN_DOUBLE")}
        with ThreadPoolExecutor() as pool:
            builds = [
                [*command, *unlinked, "-c", f"-D{half}", str(_SOURCES / "chain.cpp"), "-o", part]
                for half, part in halves.items()
            ]
            list(pool.map(partial(run, seconds=SECONDS), builds))
        run([*command, *halves.values(), "-o", str(made)], seconds=SECONDS)
        made.chmod(0o755)
        file = folder / name_of(stem, made.read_bytes())
        _synchronised(made)
        made.replace(file)
    _synchronised(folder)
    return file


def run(command: list[str], *, seconds: float) -> bytes:
    """Run a command; return its standard error."""
    return subprocess.run(command, capture_output=True, check=True, timeout=seconds).stderr


def _synchronised(path: Path) -> None:
    if os.name == "posix":
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def get_build_hook() -> type:
    """The hook for hatchling: wheels hold portable libraries if there is a compiler."""

    def initialize(hook: Any, version: str, build_data: dict[str, Any]) -> None:
        del version
        try:
            if compiler() is None:
                raise OSError("no C++ compiler (c++, g++, clang++) is on the PATH")
            package()
        except (OSError, subprocess.SubprocessError) as error:
            hook.app.display_warning(f"Without compiled code, a wheel of Python alone: {error}")
            return
        platforms = importlib.import_module("packaging.tags").platform_tags()
        build_data["artifacts"].append("/rdpgraph/native/compiled/*.so")
        build_data.update(pure_python=False, tag=f"py3-none-{next(platforms)}")

    interface = importlib.import_module("hatchling.builders.hooks.plugin.interface")
    return type("CompiledLibrary", (interface.BuildHookInterface,), {"initialize": initialize})
