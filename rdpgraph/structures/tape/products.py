"""Expectations over the choices of a link by products of matrices, where its table is large.

With x the values before, A the table and v the values after, a label j comes from i with the
log-probability x_i + A_ij - v_j. All three are taken relative to the largest, so that what is equal
in two recursions cancels.
"""

import math

import torch
from torch import Tensor

from rdpgraph.model.logmatrix import LogMatrix
from rdpgraph.model.semiring import finite
from rdpgraph.structures.tape.links import Table
from rdpgraph.structures.tape.reader import Reader
from rdpgraph.structures.tape.step import Step
from rdpgraph.structures.tape.steps import Linked

_SMALL = 2**12  # terms of a link, of all items, that are looked at one by one


def matrix_of(step: Step, batch: int) -> LogMatrix | None:
    """The table of a step, if there is one for all places, and it is large; else None."""
    if not isinstance(step, Linked) or not isinstance(step.link, Table):
        return None
    logs = step.link.values
    if logs.shape[1] > 1 or batch * math.prod(logs.shape[-2:]) <= _SMALL:
        return None
    return step.whole.matrix


def matrices_of(steps: tuple[Step, Step], batch: int) -> tuple[LogMatrix, LogMatrix] | None:
    """Those of the same step in two recursions; None if either has none."""
    first, second = (matrix_of(step, batch) for step in steps)
    return None if first is None or second is None else (first, second)


def chosen(matrix: LogMatrix, x: Tensor, below: Tensor) -> tuple[Tensor, Tensor]:
    """(B, P, J) the values after, and the entropies of the choices there and below.

    Args:
        matrix: of the link.
        x: (B, P, I) the values before.
        below: (B, P, I) the entropies of theirs.
    """
    value = matrix.times(x)
    own, total = _relative(matrix, x, value)
    mean = matrix.means(x, finite(below) - own, matrix.surprises)
    return value, torch.where(value > -math.inf, mean + total, 0.0)


def compared(
    matrices: tuple[LogMatrix, LogMatrix],
    befores: tuple[Tensor, Tensor],
    values: tuple[Tensor, Tensor],
    below: Tensor,
    *,
    divergence: bool,
) -> Tensor:
    """(B, P, J) the means, over the choices of one recursion, of what another loses by them.

    Args:
        matrices: of the link in both.
        befores: (B, P, I) the values before.
        values: (B, P, J) those after.
        below: (B, P, I) what is lost below.
        divergence: less the entropy.
    """
    parts = [_relative(*each) for each in zip(matrices, befores, values, strict=True)]
    (own, total), (other, others) = parts
    gains, scores, rest = -other, matrices[1].surprises[0], others
    if divergence:
        gains, scores = own - other, scores - matrices[0].surprises[0]
        rest = others - total
    weighted = matrices[0].weights * scores
    mean = matrices[0].means(befores[0], finite(below) + gains, (scores, weighted))
    return torch.where(values[0] > -math.inf, mean + rest, 0.0)


def barred(
    matrices: tuple[LogMatrix, LogMatrix], befores: tuple[Tensor, Tensor], lost: Tensor
) -> Tensor:
    """(B, P, J) 1 where a possible choice of one recursion is not one of another; else 0.

    Args:
        matrices: of the link in both.
        befores: (B, P, I) the values before.
        lost: (B, P, I) 1 where that is so below.
    """
    possible = befores[0] > -math.inf
    wrong = (possible & ((befores[1] == -math.inf) | (lost > 0))).to(lost)
    linked = matrices[0].logs > -math.inf
    cut = (linked & (matrices[1].logs == -math.inf)).to(lost)
    reached = wrong @ linked.to(lost).mT
    if bool(cut.any()):
        reached = reached + possible.to(lost) @ cut.mT
    return (reached > 0).to(lost)


def read(step: Step, *readers: Reader) -> list[Tensor]:
    """(B, P, I) of each reader: what the link of a step is of."""
    assert isinstance(step, Linked)
    return [reader.value(step.x.number) for reader in readers]


def _relative(matrix: LogMatrix, x: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """The values before less the largest, and those after less all that was taken off."""
    peak = finite(x.detach().amax(-1, keepdim=True))
    total = value - peak - matrix.peaks.unsqueeze(-2)
    return finite(x - peak), finite(total)
