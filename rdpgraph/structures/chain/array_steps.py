"""The steps of a linear recursion on NumPy's arrays: one by one, or in blocks side by side.

A step of a small chain costs what its calls do. Cut into blocks, T steps of few states take
about 3 sqrt(T) ones: for the product of the matrices of each block, for what each block begins
with, and for its states from there. The products are N times the arithmetic, so N is small. They
are in float64 and never divided: a block is so short that they stay in range.
"""

import math
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]
_RANGE = 600.0
"""Nats by which the products of a block may fall or rise; float64 has 708."""
_LEAST, _MOST = 96, 2**12
"""Steps from which on, and products of a step of a block's matrices up to which, they pay."""


def advanced(
    states: Array, matrix: Array, begins: dict[int, Array], seeds: Array, *, every: int,
    before: Array | None = None,
) -> Array:  # fmt: skip
    """Shares (T, R, N) made states: ``state_t = (state_(t-1) @ matrix) * share_t``.

    Args:
        states: the shares of each step, in whose place the states come.
        matrix: (N, N).
        begins: the rows that begin at a step, with their seed in place of the product.
        seeds: (R, 1).
        every: at each of so many steps, states are divided by their sums; 0: never.
        before: (R, N) the states before the first step, if there are any.

    Returns:
        (T, R, 1) those sums, at the steps that have one.
    """
    sums, room = np.empty_like(states[..., :1], order="C"), np.empty(states.shape[1:], matrix.dtype)
    ones = np.ones_like(matrix[:, :1], order="C")
    dot, multiply, divide = np.dot, np.multiply, np.divide
    for step, state in enumerate(states):
        if before is not None:
            dot(before, matrix, room)
            if step in begins:
                room[begins[step]] = seeds[begins[step]]
            multiply(room, state, state)
        elif step in begins:
            multiply(state, seeds, state)  # of all rows: what has not begun has no share
        if every and step % every == 0:
            scale = sums[step]
            dot(state, ones, scale)
            divide(state, scale, state)
        before = state
    return sums


def in_blocks(states: Array, matrix: Array, seeds: Array, length: int, *, every: int) -> Array:
    """`advanced` where all rows begin at the first step, in blocks of some length side by side.

    What a block begins with is divided by its sum, if states ever are; ``every`` then divides the
    length.
    """
    steps, rows, count = states.shape
    blocks = -(-steps // length)
    shares = np.ones((blocks * length, rows, count), states.dtype)
    shares[:steps] = states
    shares = dense(shares.reshape(blocks, length, rows, count).swapaxes(0, 1))
    before = np.zeros((blocks, rows, count))
    before[0, :, :1] = seeds
    products = _products(shares, matrix.astype(np.float64))
    totals, ones = np.empty((rows, 1)), np.ones((count, 1))
    begins, ends = before[:-1, :, None], before[1:]
    for begin, product, end in zip(begins, products, ends, strict=False):
        np.matmul(begin, product, end[:, None])
        if every:
            np.dot(end, ones, totals)
            np.divide(end, totals, end)
    before = before.reshape(blocks * rows, count).astype(states.dtype)
    shares = shares.reshape(length, blocks * rows, count)
    sums = advanced(shares, matrix, {0: np.arange(rows)}, seeds, every=every, before=before)
    states[:] = _in_a_row(shares, blocks)[:steps]
    return _in_a_row(sums, blocks)[:steps]


def _products(shares: Array, matrix: Array) -> Array:
    """(blocks, R, N, N) what takes the state before each block to that of its last step."""
    wide = shares.astype(np.float64)[..., None, :]
    product = wide[0] * matrix
    product[0] = wide[0, 0]  # nothing goes before the first: it begins with its share
    flat, room = product.reshape(-1, len(matrix)), np.empty_like(product)
    for share in wide[1:]:
        np.dot(flat, matrix, room.reshape(flat.shape))
        np.multiply(room, share, product)
    return product


def _in_a_row(parts: Array, blocks: int) -> Array:
    """(length, blocks * R, ...) as (blocks * length, R, ...)."""
    length, rows, last = len(parts), parts.shape[1] // blocks, parts.shape[2]
    turned = parts.reshape(length, blocks, rows, last).swapaxes(0, 1)
    return turned.reshape(blocks * length, rows, last)


def length_of(steps: int, rows: int, count: int) -> int:
    """The length of blocks, a multiple of 4, where they are quicker than single steps; or 0."""
    length = max(8, 4 * round(steps**0.5 / 5))
    return length if steps >= _LEAST and rows * count**3 <= _MOST else 0


def stays(shares: Array, least: float, length: int) -> bool:
    """Whether the products of blocks stay in range.

    Args:
        shares: (T, R, N) of each step; the entries of the matrix are at most 1.
        least: the least positive product of a share and an entry of the matrix.
        length: that of the blocks.
    """
    most = shares.shape[-1] * float(shares.max(initial=1.0))
    return least > 0 and length * max(-math.log(least), math.log(most)) < _RANGE


def least(numbers: Array) -> float:
    """The least positive one; 1 if there is none."""
    lowest = numbers.min(initial=np.inf)
    if not lowest > 0:
        lowest = numbers[numbers > 0].min(initial=np.inf)
    return float(lowest) if lowest < np.inf else 1.0


def dense(array: Array) -> Array:
    """The same numbers without gaps, in their order."""
    return np.ascontiguousarray(array)
