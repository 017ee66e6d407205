"""Functions of the compiled library that engines call; schedulers hand them over."""

import ctypes
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy.typing as npt


class Compiled(NamedTuple):
    """Functions of the compiled library, for float64."""

    order: Callable[..., None]  # an elimination order of a move of a search
    solve: Callable[..., None]  # the best states along such an order
    sweep: Callable[..., None]  # sweeps of tree-reweighted messages
    bound: Callable[..., None]  # terms of a bound by any such messages
    cut: Callable[..., None]  # the minimum cut of pairs of binary variables


def uncompiled() -> None:
    """Return no functions: engines compute in NumPy."""


def pointers(*arrays: npt.NDArray[Any] | None) -> list[ctypes.c_void_p]:
    """Addresses of arrays, which must be contiguous and outlive the call; None is null."""
    return [ctypes.c_void_p(None if array is None else array.ctypes.data) for array in arrays]
