"""Best prefixes, and sequences traced back through messages, on NumPy's arrays: see `arrays`."""

import numpy as np
import torch
from torch import Tensor

from rdpgraph.structures.chain.array_steps import Array, dense
from rdpgraph.structures.chain.arrays import as_array, in_items, in_steps
from rdpgraph.structures.draws import Noise

_SMALL = 2**13
"""Sums of a step up to which they are in float64, and levelled rarely: calls take the time."""
_LEVELLED = 64
"""Steps whose scores add up before their largest is taken off."""
_FEWEST, _FEWEST_TRACED = 5, 8
"""Blocks that are worth it, for scores of prefixes and for sequences traced back."""
_ROUNDS, _MOST, _ROW = 4, 2**10, 30
"""Rounds at most, numbers that a step makes at most, and how many of them a row counts for."""
_FEW, _SHORT = 10, 500
"""Numbers of states of a step, and steps, for which all decisions are made in advance, at once."""
_CELLS = 2**20  # numbers of noise at a time


def prefixes(unary: Tensor, transition: Tensor) -> Tensor:
    """(B, T, N) as `decode.prefixes`, of unary potentials whose largest is 0 at each step.

    Beyond an item's length they are those of the potentials there.
    """
    values, matrix = as_array(unary).swapaxes(0, 1), as_array(transition)
    small = unary.shape[0] * matrix.size <= _SMALL
    kind = np.float64 if small else values.dtype
    scores, matrix = np.array(values, kind, order="C"), dense(matrix.astype(kind, copy=False))
    if small:
        _in_blocks(scores, matrix)
        scores -= _peaks(scores)
    else:
        _extended(scores, matrix, None, every=1)
    return in_items(scores.astype(values.dtype, copy=False))


def _in_blocks(scores: Array, matrix: Array) -> None:
    """`_extended`, in blocks of steps side by side while that is worth it, and one after another.

    The first time round, blocks begin with what is as good at every state; then with what the block
    before them ended with the last time. What leads to a state hardly depends on where it began
    long before: two rounds are mostly enough. That is known: nothing ends otherwise than before.
    """
    steps, rows, count = scores.shape
    blocks, length = _blocks(steps, rows * count**2, fewest=_FEWEST)
    parts = scores[: blocks * length].reshape(blocks, length, rows, count).swapaxes(0, 1)
    shares, swept = parts.reshape(length, blocks * rows, count), parts
    begin, right = np.zeros((blocks, rows, count)), 0
    for turn in range(_ROUNDS if blocks else 0):
        swept = shares.copy()
        _extended(swept, matrix, begin.reshape(blocks * rows, count), every=0, fresh=rows)
        ends = swept[-1].reshape(begin.shape)
        ends = ends - _peaks(ends)
        if turn:
            right = 1 + _first(~_same(ends[:-1], begin[1:], swept))
            if right == blocks or 2 * right < blocks:
                break
        begin[1:] = ends[:-1]
    if right:
        parts[:, :right] = swept.reshape(parts.shape)[:, :right]
    for start in range(right * length, steps, _LEVELLED):
        before = scores[start - 1] - _peaks(scores[start - 1]) if start else None
        _extended(scores[start : start + _LEVELLED], matrix, before, every=0)


def _blocks(steps: int, work: int, *, fewest: int) -> tuple[int, int]:
    """How many blocks, of what length, go side by side; none where it takes no less time.

    Args:
        steps: all of them.
        work: numbers that a step makes.
        fewest: how many blocks are worth it.
    """
    blocks = steps // max(1, int(1.5 * steps**0.5))
    return (blocks, steps // blocks) if blocks >= fewest and 0 < work <= _MOST else (0, 0)


def _first(flags: Array) -> int:
    """The place of the first that is true, or how many there are."""
    return int(flags.argmax()) if flags.any() else len(flags)


def _same(some: Array, others: Array, among: Array) -> Array:
    """Which blocks' scores are equal except for rounding."""
    size = max(among.max(), -among.min())
    if not size < np.inf:
        size = np.abs(among[among > -np.inf]).max(initial=0.0)
    with np.errstate(invalid="ignore"):
        near = (some == others) | (np.abs(some - others) <= size * 2.0**-40)
    return near.all((1, 2))


def _extended(
    scores: Array, matrix: Array, before: Array | None, *, every: int, fresh: int = 0
) -> None:
    """Potentials (T, R, N) made the best scores of what ends in each state, in place.

    Args:
        scores: the potentials.
        matrix: (N, N).
        before: (R, N) the scores before the first step, if any.
        every: 1, if the largest of each step is taken off what leads to it; or 0.
        fresh: the number of rows, from the first, that begin at the first step all the same.
    """
    # From each state, of each row, to each state: the maxima are then over whole rows.
    rows, count = scores.shape[1:]
    sums, best = np.empty((count, rows, count), scores.dtype), np.empty_like(scores[0], order="C")
    peak, onwards = np.empty_like(best[:, :1]), matrix[:, None]
    finite = not every or (np.isfinite(matrix).all() and np.isfinite(scores).all())
    add, subtract, largest = np.add, np.subtract, np.maximum.reduce
    if before is not None:
        before = before.T[..., None]
    for state, sources in zip(scores, scores.swapaxes(1, 2)[..., None], strict=True):
        if before is not None:
            add(before, onwards, sums)
            largest(sums, 0, None, best)
            if every:
                largest(best, 1, None, peak, keepdims=True)
                if not finite:
                    np.maximum(peak, _lowest(peak), out=peak)  # what is impossible stays -inf
                subtract(best, peak, best)
            if fresh:
                best[:fresh], fresh = 0.0, 0
            add(state, best, state)
        before = sources


def _peaks(scores: Array) -> Array:
    """The largest of each row, finite."""
    return np.maximum(scores.max(-1, keepdims=True), _lowest(scores))


def traced(
    messages: Tensor, transition: Tensor, lengths: Tensor, count: int, noise: Noise | None
) -> Tensor:
    """(count, B, T) states decided from the last step backwards, as `paths.traceback` does."""
    batch, total, width = messages.shape
    rows, ends = in_steps(messages), as_array(lengths)
    # The state after the last one is one more, which anything leads to.
    into = np.zeros((width + 1, width), rows.dtype)
    into[:-1] = as_array(transition).T
    paths = np.full((total, count, batch), width)
    outside = np.broadcast_to((np.arange(total)[:, None] >= ends)[:, None], paths.shape)
    few = count * batch * width
    decide = _beforehand if few <= _FEW and total <= _SHORT else _side_by_side
    following, stop = np.full((count, batch), width), total
    while stop > 0:
        first = max(0, stop - max(1, _CELLS // max(1, few)))
        logs = np.broadcast_to(rows[first:stop, None], (stop - first, count, batch, width))
        if noise is not None:
            logs = logs + as_array(noise(stop - 1, stop - first))[::-1]
        decide(logs, into, outside[first:stop], following, paths[first:stop])
        following, stop = paths[first], first
    states = np.moveaxis(paths, 0, -1)
    states[states == width] = -1
    if total:
        lasts = rows[np.maximum(ends - 1, 0), np.arange(batch)]
        states[:, ~(lasts > -np.inf).any(-1)] = -1
    return torch.from_numpy(dense(states))


def _beforehand(logs: Array, into: Array, outside: Array, following: Array, paths: Array) -> None:
    """What each step would decide, whatever comes after it; then along those decisions."""
    choices: Array = np.asarray((logs[..., None, :] + into).argmax(-1))
    choices[outside] = len(into) - 1
    for row, item in np.ndindex(*following.shape):
        state, told = int(following[row, item]), choices[::-1, row, item].tolist()
        paths[::-1, row, item] = [state := options[state] for options in told]


def _side_by_side(logs: Array, into: Array, outside: Array, following: Array, paths: Array) -> None:
    """Blocks of steps at once, if the last one begins alike whether anything comes after it or not.

    What a step decides depends less and less on what far later ones did.
    """
    blocks, length = _blocks(len(logs), following.size * (_ROW + len(into)), fewest=_FEWEST_TRACED)
    rest = len(logs) - length
    if blocks:
        after = np.stack([following, np.full_like(following, len(into) - 1)])
        read = np.empty((length, *after.shape), following.dtype)
        last = (np.repeat(part[rest:, None], 2, 1) for part in (logs, outside))
        _in_turn(next(last), into, next(last), after, read)
        paths[rest:], following = read[:, 0], read[0, 0]
        if np.array_equal(*read[0]):
            rest = _in_rounds(logs[:rest], into, outside[:rest], following, paths[:rest], length)
            following = paths[rest]
    _in_turn(logs[:rest], into, outside[:rest], following, paths[:rest])


def _in_rounds(
    logs: Array, into: Array, outside: Array, following: Array, paths: Array, length: int
) -> int:
    """Blocks which first end as if nothing came after, then as the next one begins.

    Two rounds are mostly enough. That is known: every block ends as the one after it begins.

    Returns:
        The steps, from the first, that are not decided.
    """
    blocks, rest = divmod(len(logs), length)
    shape = (blocks, length, *following.shape)
    shares, ends = (
        np.array(part[rest:].reshape(*shape, *part.shape[3:]).swapaxes(0, 1), order="C")
        for part in (logs, outside)
    )
    after = np.full((blocks, *following.shape), len(into) - 1)
    after[-1], read, right = following, np.empty_like(ends, int), 0
    for turn in range(_ROUNDS):
        _in_turn(shares, into, ends, after, read)
        same = (read[0, 1:] == after[:-1]).all((1, 2))
        right = 1 + _first(~same[::-1])
        if right == blocks or (turn and 2 * right < blocks):
            break
        after[:-1] = read[0, 1:]
    rest += (blocks - right) * length
    paths[rest:] = read[:, blocks - right :].swapaxes(0, 1).reshape(-1, *following.shape)
    return rest


def _in_turn(logs: Array, into: Array, outside: Array, following: Array, paths: Array) -> None:
    """What each step decides, given what the one after it did."""
    room = np.empty(logs.shape[1:], logs.dtype)
    ending = set(np.flatnonzero(outside.any(tuple(range(1, outside.ndim)))).tolist())
    for step in range(len(paths) - 1, -1, -1):
        np.take(into, following, 0, room, "clip")
        np.add(room, logs[step], room)
        following = paths[step]
        room.argmax(-1, following)
        if step in ending:
            following[outside[step]] = len(into) - 1


def _lowest(like: Array) -> np.floating:
    return np.finfo(like.dtype).min
