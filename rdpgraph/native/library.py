"""The compiled libraries and their functions."""

import ctypes
import functools
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from rdpgraph.errors import UnsupportedError
from rdpgraph.native import building
from rdpgraph.native.loading import DTYPES, KernelStatus, Library

_FUNCTIONS = {
    "entropies": {"entropy": (8, 3, 0, 1), "pullback": (10, 3, 0, 1)},
    "graphs": {
        "circuit_compile": (5, 3, 1, 0),
        "rows": (9, 3, 2, 1),
        "search_order": (11, 4, 3, 0),
        "search_solve": (12, 3, 0, 1),
        "trws_sweeps": (8, 3, 2, 2),
        "trws_bound": (7, 2, 2, 1),
        "cut_minimum": (6, 2, 1, 0),
    },
    "matchings": {"matching_sums": (3, 3, 0, 1), "matching_gradient": (4, 3, 0, 1)},
    "orders": {
        "order_primal": (5, 2, 0, 0),
        "order_peel": (9, 2, 0, 0),
        "order_greedy": (7, 1, 1, 2),
    },
    "parities": {
        "parity_sums": (4, 6, 0, 2),
        "parity_gradient": (5, 6, 0, 2),
        "parity_paths": (4, 7, 0, 2),
        "parity_kept": (10, 11, 0, 2),
        "parity_messages": (11, 5, 1, 3),
        "parity_flood": (6, 3, 3, 2),
    },
    "selections": {"mean": (2, 4, 1, 1), "systematic": (4, 5, 2, 1)},
    "trees": {"tree_sums": (4, 2, 0, 2), "tree_gradient": (6, 2, 0, 2)},
}
"""The functions of each library, with their numbers of pointers, sizes, reals and small integers. A
name without an underscore stands for a function in each floating type."""


def _check(name: str, library: ctypes.CDLL) -> None:
    """Raise AttributeError where a function is missing."""
    for function in _FUNCTIONS[name]:
        for suffix in [""] if "_" in function else [f"_{kind}" for kind in DTYPES.values()]:
            getattr(library, f"{function}{suffix}")


_LIBRARIES = {
    unit.name: Library(unit, functools.partial(_check, unit.name))
    for unit in building.UNITS
    if unit.name in _FUNCTIONS
}
_OWNERS = {name: unit for unit, functions in _FUNCTIONS.items() for name in functions}


def status(unit: str) -> KernelStatus:
    """Return the status of a library on this machine; it is built first, if that was not tried."""
    return _LIBRARIES[unit].status


def available(dtype: torch.dtype, unit: str) -> bool:
    """Return whether a library serves a dtype; warn once if there is none."""
    return _LIBRARIES[unit].available(dtype)


def require(what: str, unit: str) -> None:
    """Raise `UnsupportedError` if a library is lacking; ``what`` needs it, for the message."""
    if not available(torch.float64, unit):
        raise UnsupportedError(f"{what} needs compiled code, which is not there. {status(unit)}")


@functools.cache
def function(name: str, dtype: torch.dtype | None = None) -> Any:
    """A function of the libraries: for a dtype, or one that is there in float64 alone."""
    unit = _OWNERS[name]
    pointers, sizes, reals, flags = _FUNCTIONS[unit][name]
    library = _LIBRARIES[unit].loaded[0]
    called = getattr(library, name if dtype is None else f"{name}_{DTYPES[dtype]}")
    called.argtypes = [
        *[ctypes.c_void_p] * pointers,
        *[ctypes.c_int64] * sizes,
        *[ctypes.c_double] * reals,
        *[ctypes.c_int] * flags,
    ]
    called.restype = None
    return called


def serves_graphs() -> bool:
    """Return whether the functions of graphs are there. Else engines compute in NumPy."""
    return available(torch.float64, "graphs")


def call(name: str, *arguments: "npt.NDArray[Any] | ctypes.c_void_p | float | None") -> None:
    """Call a function that is there in float64 alone.

    Arrays are passed by their addresses: they must be contiguous, and None is a null pointer.
    """
    function(name)(*[a.ctypes.data if isinstance(a, np.ndarray) else a for a in arguments])


def threads(work: float, most: int | None = None, *, least: int = 2**18) -> int:
    """Return how many threads some work (multiply-adds) is worth.

    Each gets ``least`` of the work or more, and there are at most ``most``, or as many as torch
    uses.
    """
    limits = torch.get_num_threads(), int(work) // least, *(() if most is None else (most,))
    return max(1, min(limits))
