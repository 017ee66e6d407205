"""The values of all cells of a table, such as the messages of a chain; differentiable."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from rdpgraph.logspace.gradients import is_transformed, regradient
from rdpgraph.logspace.logmatrix import finite
from rdpgraph.recurrences import executor
from rdpgraph.recurrences.evaluation import run_of
from rdpgraph.recurrences.interpreter import Run
from rdpgraph.recurrences.program import Program
from rdpgraph.recurrences.semirings import LogSum, Max


def rows_of(
    program: Program, inputs: Sequence[Tensor], lengths: Mapping[str, Tensor | int],
    sizes: Mapping[str, int], table: str,
) -> Tensor:  # fmt: skip
    """(items, steps, labels) the log-sums of a table of one axis beside its labels.

    Each row is up to a shift, without gradient. All derivatives exist.

    Args:
        program: the recurrence, whose rules give every row as a whole or leave it out.
        inputs: (items or 1, *dims) in the order of the program.
        lengths: (items,) whole numbers, or one for all.
        sizes: of the inputs.
        table: whose cells are computed in the order of the axis.
    """
    if not executor.serves(program, inputs, sizes) or is_transformed():
        return _by_torch(program, inputs, lengths, sizes, table)
    tracked = torch.is_grad_enabled() and any(part.requires_grad for part in inputs)
    up = executor.run_up(program, inputs, lengths, sizes, best=False, keep=tracked)
    found: Tensor = _Rows.apply(up, (program, lengths, sizes, table), *inputs)  # pyright: ignore
    return found


def best_rows(
    program: Program, inputs: Sequence[Tensor], lengths: Mapping[str, Tensor | int],
    sizes: Mapping[str, int], table: str,
) -> Tensor:  # fmt: skip
    """(items, steps, labels) the maxima of a table, in float64; as `rows_of`, without a shift."""
    run = _run(program, inputs, lengths, sizes, best=True)
    return _stacked(run, table)


def _by_torch(
    program: Program, inputs: Sequence[Tensor], lengths: Mapping[str, Tensor | int],
    sizes: Mapping[str, int], table: str,
) -> Tensor:  # fmt: skip
    rows = _stacked(_run(program, inputs, lengths, sizes, best=False), table)
    # The shift leaves the digits of float32 to differences between the labels of a step.
    rows = rows - finite(rows.detach().amax(-1, keepdim=True)) if rows.numel() else rows
    return rows.to(next(x.dtype for x in inputs if x.is_floating_point()))


def _run(
    program: Program, inputs: Sequence[Tensor], lengths: Mapping[str, Tensor | int],
    sizes: Mapping[str, int], *, best: bool,
) -> Run:  # fmt: skip
    """All tables by torch, in float64 so that long recurrences keep the digits of float32."""
    given = {
        array.name: x if array.whole else x.double()
        for array, x in zip(program.inputs, inputs, strict=True)
    }
    return run_of(program, given, lengths, sizes, Max() if best else LogSum())


def _stacked(run: Run, table: str) -> Tensor:
    steps = range(len(run.done[table]))
    return torch.stack([run.values(table, step).unsqueeze(1).flatten(1) for step in steps], 1)


class _Rows(Function):
    """The rows of a table that a pass upwards has made; they are the goals of its gradient."""

    @staticmethod
    def forward(ctx: Any, up: executor.Upward, asked: Sequence[Any], *inputs: Tensor) -> Tensor:
        ctx.save_for_backward(*inputs)
        ctx.up, ctx.asked = up, asked
        return executor.rows_of(up, asked[-1]).clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        inputs, (gradient,) = ctx.saved_tensors, gradients
        program, *rest = ctx.asked
        if torch.is_grad_enabled() or is_transformed(gradient):

            def again(*inputs: Tensor) -> Tensor:
                return _by_torch(program, inputs, *rest)

            with torch.enable_grad():
                return None, None, *regradient(again, inputs, gradient)
        none, wanted = gradient.new_zeros(len(gradient)), ctx.needs_input_grad[2:]
        found = executor.run_down(ctx.up, none, wanted, rows=(rest[-1], gradient))
        return None, None, *found
