"""Building compiled libraries: natively on first use, and portably for wheels.

Also the build hook of pyproject.toml, which runs without torch: this file imports nothing of the
package. Each `Unit` is a library of its own, so a change to one kernel rebuilds that one alone. The
name of a library's file holds a digest of its sources and flags, and one of its content.
"""

import hashlib
import importlib
import os
import platform
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

FLAGS = ("-O3", "-std=c++17", "-shared", "-fPIC")
_DEBUG_FLAGS = ("-fno-omit-frame-pointer", "-std=c++17", "-shared", "-fPIC")
# Checks of the undefined sanitizer that each access to memory has, which double the time of a
# build; what they find the address sanitizer finds, too.
_UNCHECKED = ("null", "alignment", "object-size")
LEVELS = {
    "avx512": ("-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mfma"),
    "avx2": ("-mavx2", "-mfma"),
    "base": (),
}
"""Instruction sets of portable libraries by torch's names, best first; off x86-64 the last only."""
PACKAGED = Path(__file__).with_name("compiled")
"""The folder of portable libraries, in the wheel and in an installed source tree."""
SECONDS = 300  # time limit of a build command
DEBUG_SECONDS = 1800  # and with sanitizers, of which the largest takes 40 s of a core that is free
_SOURCES = Path(__file__).resolve().with_name("kernels")
_INCLUDE = re.compile(rb'^#include "([^"]+)"', re.MULTILINE)


@dataclass(frozen=True)
class Unit:
    """A library, made of one source file of `kernels/`.

    Attributes:
        name: of the source file, without its suffix.
        parts: macros; the file is compiled once with each of them, in parallel, and all parts are
            linked.
        openmp: the flag that turns on its OpenMP pragmas.
    """

    name: str
    parts: tuple[str, ...]
    openmp: str

    def sources(self) -> list[Path]:
        """The source file and all files that it includes, in a fixed order."""
        found, waiting = set[Path](), [_SOURCES / f"{self.name}.cpp"]
        while waiting:
            file = waiting.pop()
            if file not in found:
                found.add(file)
                included = _INCLUDE.findall(file.read_bytes())
                waiting += [(file.parent / name.decode()).resolve() for name in included]
        return sorted(found)


ENTROPIES = Unit("entropies", ("ALL",), "-fopenmp")
GRAPHS = Unit("graphs", ("ALL",), "-fopenmp")
MATCHINGS = Unit("matchings", ("ALL",), "-fopenmp")
MESSAGES = Unit("messages", ("MESSAGES_FLOAT", "MESSAGES_DOUBLE"), "-fopenmp")
ORDERS = Unit("orders", ("ALL",), "-fopenmp")
PARITIES = Unit("parities", ("ALL",), "-fopenmp")
TREES = Unit("trees", ("ALL",), "-fopenmp")
RECURRENCES = Unit("recurrences", ("RECURRENCES_FLOAT", "RECURRENCES_DOUBLE"), "-fopenmp")
SELECTIONS = Unit("selections", ("ALL",), "-fopenmp")
UNITS = (ENTROPIES, GRAPHS, MATCHINGS, MESSAGES, ORDERS, PARITIES, RECURRENCES, SELECTIONS, TREES)


def flags_here() -> tuple[str, ...]:
    """The flags of libraries for this machine, for debugging where `is_debugged`.

    The address sanitizer is only for processes that have loaded it first, by LD_PRELOAD. With it
    debuggers know lines and no variables, as a build would take too long.
    """
    if not is_debugged():
        return (*FLAGS, "-march=native")
    addresses = "asan" in os.environ.get("LD_PRELOAD", "")
    sanitizers = "undefined,address" if addresses else "undefined"
    unchecked = f"-fno-sanitize={','.join(_UNCHECKED)}"
    flags = "-O1", "-g1" if addresses else "-g", *_DEBUG_FLAGS, "-march=native"
    return (*flags, f"-fsanitize={sanitizers}", unchecked)


def is_debugged() -> bool:
    """Return whether RDPGRAPH_DEBUG=1 asks for libraries to be debugged."""
    return os.environ.get("RDPGRAPH_DEBUG", "0") not in ("", "0")


def compiler() -> str | None:
    """The path of a C++ compiler, if there is one."""
    return shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")


def stem_of(unit: Unit, *parts: str) -> str:
    """The first part of a library's name: a digest of its sources and flags."""
    content = [part.encode() for part in parts]
    content += [source.read_bytes() for source in unit.sources()]
    return f"{unit.name}-{hashlib.sha256(bytes(1).join(content)).hexdigest()[:20]}-"


def name_of(stem: str, content: bytes) -> str:
    """The name of a library with some content."""
    return f"{stem}{hashlib.sha256(content).hexdigest()[:32]}.so"


def packaged(unit: Unit, level: str) -> Iterable[Path]:
    """Intact portable libraries of a unit for a level, built from the current sources."""
    stem = stem_of(unit, level, *FLAGS, *LEVELS[level])
    for file in sorted(PACKAGED.glob(f"{stem}*.so")):
        with suppress(OSError):
            if file.name == name_of(stem, file.read_bytes()):
                yield file


def levels_here() -> list[str]:
    """Return the x86-64 levels to look for.

    It is the best one of this processor where Linux tells its flags, and otherwise every level that
    it may have.
    """
    if platform.machine() not in ("x86_64", "AMD64"):
        return ["base"]
    try:
        listed = Path("/proc/cpuinfo").read_text()
    except OSError:
        return list(LEVELS)
    found = re.search(r"^flags\s*:(.*)$", listed, re.MULTILINE)
    has = set(found[1].split()) if found else set[str]()
    needs = {level: {flag.removeprefix("-m") for flag in flags} for level, flags in LEVELS.items()}
    return [next(level for level, flags in needs.items() if flags <= has)]


def package(*, here: bool = False) -> None:
    """Build missing portable libraries, and remove outdated ones; ``here``: for this machine alone.

    They use the OpenMP that torch has loaded: none is linked to. Raises OSError or SubprocessError
    where the compiler fails or the folder is read-only.
    """
    PACKAGED.mkdir(exist_ok=True)
    levels = list(LEVELS) if platform.machine() in ("x86_64", "AMD64") else ["base"]
    if here:
        levels = levels_here()
    wanted = [(unit, level) for unit in UNITS for level in levels]
    sound = {pair: list(packaged(*pair)) for pair in wanted}
    for file in set(PACKAGED.glob("*.so")).difference(*sound.values()):
        file.unlink()
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(lambda pair: _package(*pair), [pair for pair in wanted if not sound[pair]]))


def _package(unit: Unit, level: str) -> None:
    """Build one portable library."""
    flags = *FLAGS, *LEVELS[level]
    command, stem = [compiler() or "c++", *flags], stem_of(unit, level, *flags)
    with suppress(subprocess.CalledProcessError):
        file = build(unit, command, PACKAGED, stem, unlinked=[unit.openmp])
        if b"GOMP_parallel" in file.read_bytes():
            return
        file.unlink()  # torch does not load the runtime of this compiler
    build(unit, command, PACKAGED, stem)


def build(
    unit: Unit, command: list[str], folder: Path, stem: str, *, unlinked: Iterable[str] = ()
) -> Path:
    """Build a library in a folder, synchronised to disk before it gets its name.

    ``stem`` is from `stem_of`; flags ``unlinked`` are not for the linker. Raises OSError or
    SubprocessError where it fails.
    """
    seconds = DEBUG_SECONDS if is_debugged() else SECONDS
    with tempfile.TemporaryDirectory(dir=folder) as workspace:
        made, source = Path(workspace) / "made.so", str(_SOURCES / f"{unit.name}.cpp")
        objects = {part: str(Path(workspace) / f"{part}.o") for part in unit.parts}
        # Parts are compiled side by side, then linked.
        with ThreadPoolExecutor() as pool:
            builds = [
                [*command, *unlinked, "-c", f"-D{part}", source, "-o", compiled]
                for part, compiled in objects.items()
            ]
            list(pool.map(partial(run, seconds=seconds), builds))
        run([*command, *objects.values(), "-o", str(made)], seconds=seconds)
        # Written to disk before it is renamed: whoever finds the name finds all of the file.
        made.chmod(0o755)
        file = folder / name_of(stem, made.read_bytes())
        _synchronised(made)
        made.replace(file)
    _synchronised(folder)
    return file


def run(command: list[str], *, seconds: float) -> bytes:
    """Run a command; return its standard error.

    A command that fails or takes too long raises SubprocessError. One that is not waited for is
    ended, and with it all that it has started, as a compiler runs its parts as processes.
    """
    environment = {key: value for key, value in os.environ.items() if key != "LD_PRELOAD"}
    # A sanitizer that was loaded for libraries to be debugged is not for the compiler.
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env=environment if is_debugged() else None, start_new_session=True,
    )  # fmt: skip
    try:
        output, errors = process.communicate(timeout=seconds)
    except BaseException:  # an interrupt, too, which a session of its own does not get
        if os.name == "posix":
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()
        process.communicate()
        raise
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command, output, errors)
    return errors


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
        try:
            if compiler() is None:
                raise OSError("no C++ compiler (c++, g++, clang++) is on the PATH")
            package(here=version == "editable")  # a checkout is for the machine that it is on
        except (OSError, subprocess.SubprocessError) as error:
            hook.app.display_warning(f"Without compiled code, a wheel of Python alone: {error}")
            return
        platforms = importlib.import_module("packaging.tags").platform_tags()
        build_data["artifacts"].append("/rdpgraph/native/compiled/*.so")
        build_data.update(pure_python=False, tag=f"py3-none-{next(platforms)}")

    interface = importlib.import_module("hatchling.builders.hooks.plugin.interface")
    return type("CompiledLibrary", (interface.BuildHookInterface,), {"initialize": initialize})
