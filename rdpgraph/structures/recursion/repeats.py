"""Programs of many like lines of steps, continued from those of few."""

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from rdpgraph._core.cache import remembered
from rdpgraph.structures.recursion.program import Program

_KEPT = 2**20
"""Places that a program which is kept may list."""
Array = np.ndarray[Any, np.dtype[Any]]


def _is_kept(few: Program, next_one: Program, more: int, after: int = 0, places: int = 0) -> bool:
    del after, places
    return more * (len(next_one.index) - len(few.index)) <= _KEPT


@remembered(16, where=_is_kept)
def continued(
    few: Program, next_one: Program, more: int, after: int = 0, places: int = 0
) -> Program:
    """The program of more lines, given that of a few and that of one more.

    Each line has as many steps as the one before, the potentials of sites first. The two lines
    before the new ones read the same places of lines at the same distances, and so do the new ones.
    No step has a table, and the last one, not of a line, is a view of the places of the last steps
    of all lines, in turn.

    Args:
        few: the program of a few lines.
        next_one: that of one more.
        more: the number of new lines.
        after: how many of the lines come after these.
        places: how many places of the last steps of lines these are.
    """
    end = after * (len(next_one.steps) - len(few.steps)) + 1
    values = _grown(few.values.numpy(), next_one.values.numpy(), more, end)
    steps = _grown(few.steps.numpy(), next_one.steps.numpy(), more, end)
    before, read, rest = zip(_parts(few), _parts(next_one), strict=True)
    start = int(few.steps[-end, 2]) if after else len(before[0])
    index = [
        _grown(*before, more, len(before[0]) - start),
        _grown(*read, more, 2 * places),
        _grown(*rest, more),
    ]
    unstored = _grown(_marked(few), _marked(next_one), more, end)
    return replace(
        few,
        values=torch.from_numpy(values),
        steps=torch.from_numpy(steps),
        index=torch.from_numpy(np.concatenate(index)),
        size=few.size + more * (next_one.size - few.size),
        levels=few.levels + more * (next_one.levels - few.levels),
        work=few.work + more * (next_one.work - few.work),
        unstored=frozenset(unstored.nonzero()[0].tolist()),
    )


def _parts(program: Program) -> list[Array]:
    """The index before the places that the last step reads, these, and the rest."""
    index, end = program.index.numpy(), int(program.steps[-1, 2])
    return np.split(index, [int(index[end + 3]), end])


def _marked(program: Program) -> Array:
    """1 for each step whose values are not stored, else 0."""
    return np.array([number in program.unstored for number in range(len(program.steps))], np.int64)


def _grown(few: Array, next_one: Array, more: int, end: int = 0) -> Array:
    """Rows of numbers with those of more lines before the last ``end``."""
    head, count = len(few) - end, len(next_one) - len(few)
    tail = head + more * count
    made = np.empty((tail + end, *few.shape[1:]), few.dtype)
    made[:head] = few[:head] + more * (next_one[:head] - few[:head])
    made[tail:] = few[head:] + more * (next_one[head + count :] - few[head:])
    line, before = made[head - count : head], made[head - 2 * count : head - count]
    lines = made[head:tail].reshape(more, *line.shape)
    lines[:] = line - before
    lines *= np.arange(1, more + 1, dtype=few.dtype).reshape(-1, *[1] * line.ndim)
    lines += line
    return made
