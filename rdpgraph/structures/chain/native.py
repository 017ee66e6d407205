"""The compiled kernel: built by the machine's own C++ compiler on first use, if it has one."""

import ctypes
import functools
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from rdpgraph.structures.chain import ranges
from rdpgraph.structures.chain.factors import Factors
from rdpgraph.structures.chain.sweeps import Forward

_SOURCE = Path(__file__).with_name("chain.cpp")
_FLAGS = ("-O3", "-march=native", "-std=c++17", "-shared", "-fPIC")
_NAMES = {torch.float32: "float", torch.float64: "double"}
_SIGNATURES = {"forward": (12, 3, 3, 2), "backward": (9, 3, 0, 1), "edges": (4, 2, 0, 1)}
"""Numbers of pointers, sizes, reals and small integers, in this order."""
_SHARED_WORK = 2**18
"""Products of one step below which a second thread costs more than it brings."""


@dataclass(frozen=True)
class Status:
    """Whether the kernel is there, and if not, why: ``str(status)`` says it.

    Attributes:
        library: the file it was loaded from, or None.
        reason: what happened.
    """

    library: Path | None
    reason: str

    def __str__(self) -> str:
        return self.reason


def status() -> Status:
    """Whether chains use a compiled kernel here; builds it if that was not tried yet."""
    return _loaded()[1]


def serves(factors: Factors) -> bool:
    """Whether the kernel is there for these factors."""
    return applies(factors.emission, factors.matrix)


def applies(unary: Tensor, transition: Tensor) -> bool:
    """Whether it is there for one transition for all steps, on the CPU."""
    return (
        transition.ndim == 2
        and unary.device.type == "cpu"
        and unary.dtype in _NAMES
        and not torch.compiler.is_compiling()
        and _loaded()[0] is not None
    )


def forward(factors: Factors, *, floor: float, upward: bool) -> Forward:
    """As `sweeps.forward`."""
    unary, emission = _dense(factors.unary), _dense(factors.emission)
    transition, matrix = _dense(factors.transition), _dense(factors.matrix)
    offset, lengths = _dense(factors.offset), _dense(factors.lengths)
    starts = torch.zeros_like(lengths) if factors.starts is None else _dense(factors.starts)
    batch, steps, count = emission.shape
    states, scales = torch.empty_like(emission), torch.empty_like(offset)
    values = offset.new_empty(batch)
    doubtful = torch.empty(batch, dtype=torch.bool)
    room = _room(matrix)
    _function("forward", emission.dtype)(
        *_pointers(unary, emission, transition, matrix, offset, starts, lengths),
        *_pointers(states, scales, values, doubtful),
        room.data_ptr(),
        batch,
        steps,
        count,
        ranges.state_limit(emission.dtype),
        ranges.step_limit(emission.dtype),
        floor,
        upward,
        _threads(batch, count),
    )
    return Forward(states, scales, values, doubtful)


def backward(factors: Factors, found: Forward, gradient: Tensor) -> tuple[Tensor, Tensor]:
    """As `sweeps.backward`."""
    emission, matrix = _dense(factors.emission), _dense(factors.matrix)
    lengths, gradient = _dense(factors.lengths), _dense(gradient)
    batch, steps, count = emission.shape
    marginals, ahead = torch.empty_like(emission), torch.empty_like(emission)
    room = _room(matrix)
    _function("backward", emission.dtype)(
        *_pointers(found.states, found.scales, emission, matrix, lengths, gradient),
        *_pointers(marginals, ahead),
        room.data_ptr(),
        batch,
        steps,
        count,
        _threads(batch, count),
    )
    return marginals, ahead


def edge_gradient(matrix: Tensor, states: Tensor, ahead: Tensor) -> Tensor:
    """As `sweeps.edge_gradient`, of one matrix for all steps."""
    matrix, result = _dense(matrix), torch.empty_like(matrix)
    count = len(matrix)
    steps = states.numel() // count
    _function("edges", matrix.dtype)(
        *_pointers(states, ahead, matrix, result), steps, count, _threads(steps, count)
    )
    return result


def _room(matrix: Tensor) -> Tensor:
    """Memory for the matrix in panels."""
    library = _loaded()[0]
    assert library is not None
    return matrix.new_empty(library.chain_packed_size(len(matrix), matrix.element_size()))


def _dense(part: Tensor) -> Tensor:
    return part.detach().contiguous()


def _pointers(*parts: Tensor) -> list[int]:
    return [part.data_ptr() for part in parts]


def _threads(batch: int, count: int) -> int:
    work = batch * count * count
    return max(1, min(torch.get_num_threads(), work // _SHARED_WORK))


@functools.cache
def _function(name: str, dtype: torch.dtype) -> "ctypes._CFuncPtr":  # pyright: ignore
    library = _loaded()[0]
    function = getattr(library, f"chain_{name}_{_NAMES[dtype]}")
    pointers, sizes, reals, flags = _SIGNATURES[name]
    function.argtypes = [
        *[ctypes.c_void_p] * pointers,
        *[ctypes.c_int64] * sizes,
        *[ctypes.c_double] * reals,
        *[ctypes.c_int] * flags,
    ]
    function.restype = None
    return function


@functools.cache
def _loaded() -> tuple[ctypes.CDLL | None, Status]:
    """The library, built unless the cache has it."""
    compiler = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        return None, Status(None, "No C++ compiler (c++, g++, clang++) on the PATH; using torch.")
    failure = ""
    for flags in ((*_FLAGS, "-fopenmp"), _FLAGS):
        try:
            file = _built(compiler, flags)
            library = ctypes.CDLL(str(file))
            library.chain_packed_size.argtypes = [ctypes.c_int64, ctypes.c_int64]
            library.chain_packed_size.restype = ctypes.c_int64
        except (OSError, subprocess.SubprocessError) as error:
            failure = str(error)
        else:
            return library, Status(file, f"Compiled kernel {file}.")
    return None, Status(None, f"{compiler} built no kernel ({failure}); using torch.")


def _built(compiler: str, flags: tuple[str, ...]) -> Path:
    """The library's file; its name tells sources, flags, compilers and processors apart."""
    # What "native" stands for, and the version, are in what the driver says it would run.
    command = [compiler, *flags, "-###", "-E", "-x", "c++", os.devnull]
    means = subprocess.run(command, capture_output=True, check=True, timeout=60).stderr
    parts = (_SOURCE.read_bytes(), " ".join(flags).encode(), platform.machine().encode(), means)
    digest = hashlib.sha256(b"\0".join(parts)).hexdigest()[:20]
    folder = _cache()
    file = folder / f"chain-{digest}.so"
    if file.exists():
        return file
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as room:
        made = Path(room) / file.name
        command = [compiler, *flags, "-o", str(made), str(_SOURCE)]
        subprocess.run(command, capture_output=True, check=True, timeout=300)
        made.replace(file)
    return file


def _cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "rdpgraph"
