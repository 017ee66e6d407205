"""Best prefixes, and sequences traced back through messages, on NumPy's arrays: see `arrays`."""

import numpy as np
import torch
from torch import Tensor

from rdpgraph.structures.chain.arrays import Array, as_array, dense, in_items, in_steps
from rdpgraph.structures.draws import Noise

_FEW = 64
"""Numbers of states at a step for which all decisions are made in advance, at once."""
_CELLS = 2**20  # numbers of noise at a time


def prefixes(unary: Tensor, transition: Tensor) -> Tensor:
    """(B, T, N) as `decode.prefixes`, of unary potentials whose largest is 0 at each step.

    Beyond an item's length they are those of the potentials there.
    """
    best_scores, matrix = (
        np.array(as_array(unary).swapaxes(0, 1), order="C"),
        dense(as_array(transition)),
    )
    # From each state, of each item, to each state: the maxima are then over whole rows.
    sums, best = (
        np.empty((len(matrix), *best_scores[0].shape), best_scores.dtype),
        np.empty_like(best_scores[0]),
    )
    peak, onwards, sources = np.empty_like(best[:, :1]), matrix[:, None], best_scores.swapaxes(1, 2)
    lowest = (
        None
        if np.isfinite(matrix).all() and np.isfinite(best_scores).all()
        else _lowest(best_scores)
    )
    add, subtract, largest = np.add, np.subtract, np.maximum.reduce
    for state, before in zip(best_scores[1:], sources[..., None], strict=False):
        add(before, onwards, sums)
        largest(sums, 0, None, best)
        largest(best, 1, None, peak, keepdims=True)
        if lowest is not None:
            np.maximum(peak, lowest, out=peak)  # what is impossible stays -inf
        subtract(best, peak, best)
        add(state, best, state)
    return in_items(best_scores)


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
    outside = np.arange(total)[:, None] >= ends
    few = count * batch * width
    decide = _beforehand if few <= _FEW and total * few * width <= _CELLS else _in_turn
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
    choices[np.broadcast_to(outside[:, None], choices.shape[:-1])] = len(into) - 1
    told = choices.tolist()
    for row, item in np.ndindex(*following.shape):
        state = int(following[row, item])
        for step in range(len(told) - 1, -1, -1):
            state = told[step][row][item][state]
            paths[step, row, item] = state


def _in_turn(logs: Array, into: Array, outside: Array, following: Array, paths: Array) -> None:
    """What each step decides, given what the one after it did."""
    room = np.empty(logs.shape[1:], logs.dtype)
    ending = set(np.flatnonzero(outside.any(1)).tolist())
    for step in range(len(paths) - 1, -1, -1):
        np.take(into, following, 0, room, "clip")
        np.add(room, logs[step], room)
        following = paths[step]
        room.argmax(-1, following)
        if step in ending:
            following[:, outside[step]] = len(into) - 1


def _lowest(like: Array) -> np.floating:
    return np.finfo(like.dtype).min
