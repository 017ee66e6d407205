"""The library of chains, tapes and whatever else is compiled with them, and its functions."""

import ctypes
import functools
from typing import Any

import torch

from rdpgraph.errors import UnsupportedError
from rdpgraph.native import building
from rdpgraph.native.loading import DTYPES, KernelStatus, Library

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


def _check(library: ctypes.CDLL) -> None:
    """Raise AttributeError where a function is missing."""
    for name in _SIGNATURES:
        typed = (f"chain_{name}_{kind}" for kind in DTYPES.values())
        for symbol in (name,) if "_" in name else typed:
            getattr(library, symbol)
    library.chain_panel_width.argtypes = [ctypes.c_int64]


_LIBRARY = Library(building.CHAIN, _check)


def status() -> KernelStatus:
    """The library of this machine; built if not tried yet."""
    return _LIBRARY.status


def available(dtype: torch.dtype) -> bool:
    """Return whether the library serves a dtype; warn once if there is no library."""
    return _LIBRARY.available(dtype)


def require(what: str) -> None:
    """Raise `UnsupportedError` where there is no library."""
    if not available(torch.float64):
        raise UnsupportedError(f"{what} is compiled code. {status()}")


@functools.cache
def function(name: str, dtype: torch.dtype | None = None) -> Any:
    """One of the library's functions: for a dtype, or one that is there in float64 alone."""
    pointers, sizes, reals, flags = _SIGNATURES[name]
    called = getattr(_LIBRARY.loaded[0], name if dtype is None else f"chain_{name}_{DTYPES[dtype]}")
    called.argtypes = [
        *[ctypes.c_void_p] * pointers,
        *[ctypes.c_int64] * sizes,
        *[ctypes.c_double] * reals,
        *[ctypes.c_int] * flags,
    ]
    called.restype = None
    return called


def threads(work: float, most: int | None = None, *, least: int = 2**18) -> int:
    """The number of threads, ``most`` at most, for multiply-adds, ``least`` for each."""
    limits = torch.get_num_threads(), int(work) // least, *(() if most is None else (most,))
    return max(1, min(limits))


@functools.cache
def panel_width(size: int) -> int:
    """The number of items of ``size`` bytes in a row of a panel."""
    library: Any = _LIBRARY.loaded[0]
    return library.chain_panel_width(size)
