"""The values of all cells of a table, such as the messages of a chain; differentiable."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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


@dataclass(frozen=True, eq=False)
class Asked:
    """The rows of a table of a program that are asked for.

    Attributes:
        program: the recurrence, whose rules give every row as a whole or leave it out.
        lengths: (items,) whole numbers, or one for all.
        sizes: of the inputs.
        table: of one axis beside its labels, whose cells are computed in the order of the axis.
    """

    program: Program
    lengths: Mapping[str, Tensor | int]
    sizes: Mapping[str, int]
    table: str

    def by_torch(self, *inputs: Tensor) -> Tensor:
        """The rows of some inputs by torch."""
        run = _run(self.program, inputs, self.lengths, self.sizes, best=False)
        rows = _stacked(run, self.table)
        # The shift leaves the digits of float32 to differences between the labels of a step.
        rows = rows - finite(rows.detach().amax(-1, keepdim=True)) if rows.numel() else rows
        return rows.to(next(x.dtype for x in inputs if x.is_floating_point()))


def rows_of(asked: Asked, inputs: Sequence[Tensor], layout: executor.CallLayout | None) -> Tensor:
    """(items, steps, labels) the log-sums of a table of one axis beside its labels.

    Each row is up to a shift, without gradient. All derivatives exist.

    Args:
        asked: what is asked for.
        inputs: (items or 1, *dims) in the order of the program.
        layout: how compiled code answers; None where it does not.
    """
    if layout is None:
        return asked.by_torch(*inputs)
    tracked = torch.is_grad_enabled() and any(part.requires_grad for part in inputs)
    up = executor.run_up(layout, inputs, best=False, keep=tracked)
    if not tracked:
        return executor.rows_of(up, asked.table).clone()
    found: Tensor = _Rows.apply(up, asked, *inputs)  # pyright: ignore
    return found


def best_rows(
    program: Program, inputs: Sequence[Tensor], lengths: Mapping[str, Tensor | int],
    sizes: Mapping[str, int], table: str,
) -> Tensor:  # fmt: skip
    """(items, steps, labels) the maxima of a table, in float64; as `rows_of`, without a shift."""
    run = _run(program, inputs, lengths, sizes, best=True)
    return _stacked(run, table)


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
    def forward(ctx: Any, up: executor.Upward, asked: Asked, *inputs: Tensor) -> Tensor:
        ctx.save_for_backward(*inputs)
        ctx.up, ctx.asked = up, asked
        return executor.rows_of(up, asked.table).clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        inputs, (gradient,) = ctx.saved_tensors, gradients
        if torch.is_grad_enabled() or is_transformed(gradient):
            with torch.enable_grad():
                return None, None, *regradient(ctx.asked.by_torch, inputs, gradient)
        wanted, rows = ctx.needs_input_grad[2:], (ctx.asked.table, gradient)
        return None, None, *executor.run_down(ctx.up, None, wanted, rows=rows)
