"""Factors of like shape among the scopes of a file."""

import numpy as np
from numpy.typing import NDArray

_ROWS = 1 << 14


def distinct_sizes(sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """The different sizes, in order."""
    parts = [np.unique(sizes[at : at + _ROWS]) for at in range(0, len(sizes), _ROWS)]
    return np.unique(np.concatenate([*parts, sizes[:0]]))


def alike(
    scopes: NDArray[np.int32], sizes: NDArray[np.int64], distinct: NDArray[np.int64]
) -> list[NDArray[np.int64]] | list[slice]:
    """The rows of scopes of one arity whose variables have like sizes, slot by slot."""
    codes = np.zeros(len(scopes), dtype=np.int64)
    most, count = 1, len(distinct)
    for column in range(scopes.shape[1] if count > 1 else 0):
        if most > 2**62 // count:  # again from 0, as many as there are
            codes = np.unique(codes, return_inverse=True)[1].ravel()
            most = int(codes.max()) + 1
        for at in range(0, len(scopes), _ROWS):
            piece = codes[at : at + _ROWS]
            piece *= count
            piece += np.searchsorted(distinct, sizes[scopes[at : at + _ROWS, column]])
        most *= count
    if (codes == codes[0]).all():
        return [slice(None)]
    order = np.argsort(codes, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(codes[order])) + 1)
