# pyright: basic, reportMissingImports=false
"""One step of the scaled recursion as a kernel: what `fused` hands to Triton.

The functions are plain until `triton.jit` builds them; without Triton nothing can call them. A
program of either kernel makes a block of `rows` items by `columns` states, adding up products over
`inner` states at a time. Tensors are dense, except for the matrix, which has strides. Products are
exact (no TF32): float32 states are certified on that assumption.
"""

from __future__ import annotations  # which are not looked up without Triton

from contextlib import suppress

with suppress(ImportError):
    import triton.language as tl


def forward_step(
    emission,  # (B, T, N)
    matrix,  # (N, N), [from, to]
    starts,  # (B,)
    limits,  # (3,): the least scale, the floor, what stands for a state below the floor
    states,  # (B, T, N): before they are normalised
    sums,  # (2, B, column blocks): of the states of even and of odd steps
    scales,  # (B, T)
    step,
    batch,
    steps,
    count,
    from_stride,
    to_stride,
    rows: tl.constexpr,
    columns: tl.constexpr,
    inner: tl.constexpr,
    pieces: tl.constexpr,  # the column blocks, rounded up to a power of two
):
    """The states of a step, times the sum of those before it; and their sums by column blocks."""
    item = (tl.program_id(0) * rows + tl.arange(0, rows)).to(tl.int64)
    to = tl.program_id(1) * columns + tl.arange(0, columns)
    here, there = item < batch, to < count
    width = tl.num_programs(1)

    piece = tl.arange(0, pieces)
    before = sums + ((1 - step % 2) * batch + item)[:, None] * width + piece[None, :]
    scale = tl.sum(tl.load(before, here[:, None] & (piece < width)[None, :], 0.0), 1)
    if tl.program_id(1) == 0:
        tl.store(scales + item * steps + step - 1, scale, here)
    scale = tl.maximum(scale, tl.load(limits))
    # A slash is exact to the last bit in float64 only.
    share = 1.0 / scale if scale.dtype == tl.float64 else tl.div_rn(1.0, scale)
    floor, filler = tl.load(limits + 1), tl.load(limits + 2)

    row = (item * steps + step) * count
    total = tl.zeros((rows, columns), emission.dtype.element_ty)
    for first in range(0, count, inner):
        source = first + tl.arange(0, inner)
        known = source < count
        state = states + (row - count)[:, None] + source[None, :]
        state = tl.load(state, here[:, None] & known[None, :], 0.0) * share[:, None]
        state = tl.where((state > 0.0) & (state < floor), filler, state)
        table = matrix + source.to(tl.int64)[:, None] * from_stride
        table = table + to.to(tl.int64)[None, :] * to_stride
        table = tl.load(table, known[:, None] & there[None, :], 0.0)
        total = tl.dot(state, table, total, input_precision="ieee", out_dtype=total.dtype)

    block, mask = row[:, None] + to[None, :], here[:, None] & there[None, :]
    emitted = tl.load(emission + block, mask, 0.0)
    begins = tl.load(starts + item, here, -1) == step
    total = tl.where(begins[:, None], emitted, total * emitted)
    tl.store(states + block, total, mask)
    own = sums + ((step % 2) * batch + item) * width + tl.program_id(1)
    tl.store(own, tl.sum(total, 1), here)


def backward_step(
    emission,  # (B, T, N)
    matrix,  # (N, N), [from, to]
    states,  # (B, T, N)
    shares,  # (B, T): what a step's scale divides by
    lasts,  # (B,): the last step of an item
    gradient,  # (B,)
    marginals,  # (B, T, N)
    ahead,  # (B, T, N)
    step,
    batch,
    steps,
    count,
    from_stride,
    to_stride,
    rows: tl.constexpr,
    columns: tl.constexpr,
    inner: tl.constexpr,
):
    """The marginals of a step, from what is ahead of it; and what is ahead of the one before."""
    item = (tl.program_id(0) * rows + tl.arange(0, rows)).to(tl.int64)
    origin = tl.program_id(1) * columns + tl.arange(0, columns)
    here, there = item < batch, origin < count

    row = (item * steps + step) * count
    future = tl.zeros((rows, columns), emission.dtype.element_ty)
    for first in range(0, count, inner):
        target = first + tl.arange(0, inner)
        known = target < count
        coming = ahead + row[:, None] + target[None, :]
        coming = tl.load(coming, here[:, None] & known[None, :], 0.0)
        table = matrix + target.to(tl.int64)[:, None] * to_stride
        table = table + origin.to(tl.int64)[None, :] * from_stride
        table = tl.load(table, known[:, None] & there[None, :], 0.0)
        future = tl.dot(coming, table, future, input_precision="ieee", out_dtype=future.dtype)

    ends = tl.load(lasts + item, here, -1) == step
    seed = tl.where(ends, tl.load(gradient + item, here, 0.0), 0.0)
    future = future + seed[:, None]
    block, mask = row[:, None] + origin[None, :], here[:, None] & there[None, :]
    state = tl.load(states + block, mask, 0.0)
    tl.store(marginals + block, state * future, mask)
    if step > 0:
        share = tl.load(shares + item * steps + step, here, 0.0)
        into = tl.load(emission + block, mask, 0.0) * share[:, None]
        into = tl.where(state == 0.0, 0.0, into) * future
        tl.store(ahead + block - count, into, mask)
