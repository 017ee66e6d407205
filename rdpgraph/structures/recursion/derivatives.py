"""Log-sums and expected losses of programs for autograd: derivatives by the machine."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from rdpgraph._core import tuning
from rdpgraph.logspace.gradients import is_transformed, regradient
from rdpgraph.logspace.logmatrix import finite
from rdpgraph.structures.recursion import machine
from rdpgraph.structures.recursion.inputs import Inputs
from rdpgraph.structures.recursion.program import Program

_autograd: Any = torch._C._autograd  # pyright: ignore
_keeps_graph = getattr(_autograd, "_get_current_graph_task_keep_graph", lambda: True)
"""Return whether the backward pass in progress keeps what another one needs."""
_executes: Any = getattr(torch._C, "_will_engine_execute_node", lambda _: True)  # pyright: ignore


def _asked(ctx: Any) -> list[bool]:
    """Return whether the backward pass in progress asks for a gradient, for each input tensor."""

    def asked(node: Any) -> bool:
        try:
            return node is not None and _executes(node)
        except RuntimeError:  # a leaf that is asked for
            return True

    return [asked(node) for node, _ in ctx.next_functions]


def log_sum(program: Program, inputs: Inputs, again: Callable[..., Tensor]) -> Tensor:
    """(B,) the log-sum, differentiable; ``again`` has the operations that autograd records."""
    result: Tensor = _LogSum.apply(program, again, inputs.unary, *inputs.given)  # pyright: ignore
    return result


class _LogSum(Function):
    @staticmethod
    def forward(
        ctx: Any, program: Program, again: Callable[..., Tensor], unary: Tensor, *given: Tensor
    ) -> Tensor:
        rows = any(ctx.needs_input_grad)
        done = machine.run(program, Inputs(unary, given), whole=False, rows=rows, once=True)
        ctx.save_for_backward(unary, *given)
        ctx.done, ctx.again = done, again
        return done.goal.to(unary).detach()  # not the one that is kept for the gradient

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        inputs, done = ctx.saved_tensors, ctx.done
        large = done.program.work * len(gradients[0]) > tuning.ASKED_WORK
        needed = _asked(ctx) if large else ctx.needs_input_grad[2:]
        if not _keeps_graph():  # nobody asks again
            ctx.done = None
        if is_transformed(*gradients):
            with torch.enable_grad():
                return None, None, *regradient(ctx.again, inputs, gradients[0])
        if torch.is_grad_enabled():
            parts: Any = _Gradient.apply(done, ctx.again, needed, *gradients, *inputs)  # pyright: ignore
        else:
            parts = _gradients(done, gradients[0], needed, inputs[0])
        return None, None, *parts


def _gradients(
    done: machine.Run, gradient: Tensor, wanted: Sequence[bool], like: Tensor
) -> tuple[Tensor | None, ...]:
    parts = done.gradients(gradient, wanted)
    return tuple(part if part is None else part.to(like) for part in parts)


class _Gradient(Function):
    """The gradient of a log-sum, given that of its value; differentiable again."""

    @staticmethod
    def forward(
        ctx: Any, done: machine.Run, again: Callable[..., Tensor], wanted: Sequence[bool],
        gradient: Tensor, *inputs: Tensor,
    ) -> tuple[Tensor | None, ...]:  # fmt: skip
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(gradient, *inputs)
        ctx.done, ctx.again = done, again
        return _gradients(done, gradient, wanted, inputs[0])

    @staticmethod
    def backward(ctx: Any, *moves: Tensor | None) -> Any:
        gradient, unary, *given = ctx.saved_tensors
        needed = _asked(ctx)
        if torch.is_grad_enabled() or is_transformed(*moves):

            def pulled(gradient: Tensor, *inputs: Tensor) -> list[Tensor]:
                pairs = zip(regradient(ctx.again, inputs, gradient), moves, strict=True)
                return [p for p, move in pairs if p is not None and move is not None]

            with torch.enable_grad():
                asked = [move for move in moves if move is not None]
                parts = regradient(pulled, (gradient, unary, *given), *asked)
            return None, None, None, *parts
        done = ctx.done
        if not done.differentiable_twice:
            done = machine.run(done.program, Inputs(unary, given).double(), rows=True)
        along, others = done.second(gradient, moves, needed[1:])
        parts = [along if needed[0] else None, *others]
        return None, None, None, *(part if part is None else part.to(unary) for part in parts)


def losses(
    pairs: Sequence[tuple[Program, Inputs]], again: Callable[..., Tensor], *, divergence: bool
) -> Tensor | None:
    """(B,) the expected losses `Run.losses` of one or two, in float64; None if not of one shape.

    Differentiable; ``again``, of the inputs of all, has the operations that autograd records.
    """
    parts = [part for _, each in pairs for part in (each.unary, *each.given)]
    tracked = torch.is_grad_enabled() and any(part.requires_grad for part in parts)
    runs = [machine.run(*pair, rows=tracked or not at) for at, pair in enumerate(pairs)]
    if not _alike(runs[0], runs[-1]):
        return None
    return _Losses.apply(runs, again, divergence, *parts)  # pyright: ignore


def _alike(first: machine.Run, second: machine.Run) -> bool:
    """Return whether two runs have the same steps, and tensors of the same shapes."""
    one, two = first.program, second.program
    pairs = (one.values, two.values), (one.steps, two.steps), (one.index, two.index)
    shapes = [[part.shape for part in (x.inputs.unary, *x.inputs.given)] for x in (first, second)]
    return shapes[0] == shapes[1] and (one is two or all(torch.equal(*pair) for pair in pairs))


class _Losses(Function):
    """The expected losses of one or two runs.

    With scores s of ours and t of theirs: log Z(t) - <t, dlog Z(s)>, for a divergence less
    log Z(s) - <s, dlog Z(s)>. So the gradient in s is a product with second derivatives.
    """

    @staticmethod
    def forward(
        ctx: Any, runs: Sequence[machine.Run], again: Callable[..., Tensor], divergence: bool,  # noqa: FBT001
        *inputs: Tensor,
    ) -> Tensor:  # fmt: skip
        losses = runs[0].losses(runs[-1], divergence=divergence)
        ctx.save_for_backward(*inputs)
        ctx.runs, ctx.again, ctx.divergence = runs, again, divergence
        ctx.barred = (losses == math.inf) | (runs[0].goal == -math.inf)
        return losses.clamp(min=0.0)  # rounded below it, where one derivation has all the mass

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        inputs = ctx.saved_tensors
        gradient = torch.where(ctx.barred, 0.0, gradients[0])
        if torch.is_grad_enabled() or is_transformed(gradient):
            with torch.enable_grad():
                return None, None, None, *regradient(ctx.again, inputs, gradient)
        ours, theirs, size = ctx.runs[0], ctx.runs[-1], len(ctx.runs[0].inputs.given) + 1
        asked = _asked(ctx)
        needed = [asked[:size], asked[size:]]
        moves = [
            (finite(one) if ctx.divergence else 0.0) - finite(two)
            if one.is_floating_point()
            else None
            for one, two in zip(inputs[:size], inputs[-size:], strict=True)
        ]
        parts = list(ours.second(gradient, moves, needed[0])[1])
        if theirs is not ours:
            one, two = (run.gradients(gradient, needed[1]) for run in (ours, theirs))
            parts += [
                None if part is None or less is None else part - less
                for part, less in zip(two, one, strict=True)
            ]
        return None, None, None, *parts
