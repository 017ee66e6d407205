"""Chains on the compiled machine: potentials of any range, a transition for each step, draws."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from rdpgraph._core.types import Lengths, LogZ, Paths, Transition, Unary
from rdpgraph.logspace.gradients import is_transformed, mean_scores, regradient
from rdpgraph.logspace.logmatrix import finite, soft_sum
from rdpgraph.native import library
from rdpgraph.structures.chain import logs
from rdpgraph.structures.chain.factors import inside, masked, peak
from rdpgraph.structures.chain.programs import chain_program
from rdpgraph.structures.chain.steps import (
    ChainTensors,
    RankSteps,
    Steps,
    as_steps,
    of_tables,
    tables_of,
)
from rdpgraph.structures.recursion import derivatives, machine
from rdpgraph.structures.recursion.inputs import Inputs
from rdpgraph.structures.recursion.program import Program


def serves(unary: Unary, transition: Transition | Steps) -> bool:
    """Return whether the machine is there for these chains."""
    if not unary.is_cpu or not isinstance(transition, Tensor | RankSteps):
        return False
    typed = not [side for side in tables_of(transition) if side.dtype != unary.dtype]
    wide = len(unary) > 0 and min(unary.shape[1:]) > 1
    return typed and wide and not is_transformed() and library.available(unary.dtype)


def log_partition(unary: Unary, transition: Transition | Steps, lengths: Lengths) -> LogZ:
    """Log Z as `recursion.log_partition`; products that underflow are summed in logarithms.

    Here and in messages the transition may be (B, 1, N, N), one for all steps of each item.
    """
    program, inputs = _inputs(unary, transition, lengths, masks=False)
    many = len(tables_of(transition))

    def again(unary: Tensor, *given: Tensor) -> Tensor:
        return logs.log_partition(unary, _each(unary, given[:many]), lengths)

    values = derivatives.log_sum(program, inputs, again)
    return values if min(lengths.tolist()) else torch.where(lengths > 0, values, 0.0)


def edge_counts(unary: Unary, transition: Tensor, lengths: Lengths) -> Tensor:
    """(B, N, N) the gradient of each item's log Z in the transition of all steps (N, N)."""
    table = transition.expand(len(unary), 1, *transition.shape)
    program, inputs = _inputs(unary, table, lengths, masks=False)
    run = machine.run(program, inputs, whole=False, rows=True, alike=True)
    wanted = [slot == 1 for slot in range(len(inputs.given) + 1)]
    counts = run.gradients((run.goal > -math.inf).to(unary), wanted)[1]
    assert counts is not None
    return counts.squeeze(1).to(unary)


def forward(unary: Unary, transition: Transition | Steps, lengths: Lengths) -> Unary:
    """(B, T, N) the forward messages, each row summing to 1; differentiable."""
    return _forward(unary, transition, lengths)[0]


def perturbed(
    unary: Unary, transition: Transition, lengths: Lengths, noise: Tensor
) -> tuple[Unary, Paths]:
    """`forward`, and the states (count, B, T) of largest noise (count, B, T, N), the last first.

    Each is given the one after it: draws, where the noise is Gumbel's; -1 as for `draw`.
    """
    messages, run = _forward(unary, transition, lengths)
    if min(lengths.tolist()) < unary.shape[1]:
        run = _run(unary, transition, lengths)
    return messages, run.perturbed(noise)


def _forward(
    unary: Tensor, transition: Tensor | Steps, lengths: Tensor
) -> tuple[Tensor, machine.Run]:
    total = unary.shape[1]
    unary = masked(unary, lengths)
    run = _run(unary, transition, torch.full_like(lengths, total))
    sums = unary + _arriving(run, transition).to(unary)
    sums = sums - finite(soft_sum(sums, 2)).unsqueeze(2)
    return torch.where(inside(lengths, total).unsqueeze(2), sums, -math.inf), run


def both(unary: Unary, transition: Transition | Steps, lengths: Lengths) -> Tensor:
    """(B, 2, T, N) forward and backward messages, as `recursion.messages`."""
    total = unary.shape[1]
    # Each item from its last step to its first, which the machine takes as those from the first.
    steps = (lengths.unsqueeze(1) - 1 - torch.arange(total, device="cpu")).clamp(min=0)
    turned = unary.gather(1, steps.unsqueeze(2).expand_as(unary))

    def backwards(side: Tensor) -> Tensor:
        if side.ndim == 2:
            return side.mT
        items = torch.arange(len(unary), device="cpu").unsqueeze(1) if len(side) > 1 else 0
        return side.mT[items, (steps[:, :-1] - 1).clamp(min=0)]

    link = of_tables(*map(backwards, tables_of(transition)[::-1]))
    arriving = _arriving(_run(turned, link, lengths), link).to(unary)
    behind = arriving.gather(1, steps.unsqueeze(2).expand_as(unary))
    behind = behind - peak(behind.detach(), (2,))
    behind = torch.where(inside(lengths, total).unsqueeze(2), behind, -math.inf)
    return torch.stack([forward(unary, transition, lengths), behind], 1)


def draw(
    unary: Unary, transition: Transition | Steps, lengths: Lengths, count: int,
    generator: torch.Generator | None,
) -> Paths:  # fmt: skip
    """(count, B, T) exact draws; -1 beyond a length, and where nothing is possible."""
    run = machine.run(*_inputs(unary, transition, lengths, masks=False), whole=False)
    return run.states(count, generator)


def best_states(unary: Unary, transition: Transition, lengths: Lengths) -> Paths:
    """(B, T) the best sequences; -1 as for `draw`."""
    run = machine.run(*_inputs(unary, transition, lengths, masks=False), best=True, whole=False)
    return run.states(1, None)[0]


def max_marginals(unary: Unary, transition: Transition, lengths: Lengths) -> Unary:
    """(B, T, N) the best score with each state; -inf beyond a length. Without gradient."""
    program, inputs = _inputs(unary, transition, lengths)
    return machine.run(program, inputs.double(), best=True).most().to(unary)


def k_best(unary: Unary, transition: Transition, lengths: Lengths, k: int) -> Paths:
    """(k, B, T) the best sequences in turn; -1 beyond a length, and where there are fewer."""
    program, inputs = _inputs(unary, transition, lengths)
    return machine.run(program, inputs.double(), best=True).k_best_states(k)


def losses(parts: ChainTensors, other: ChainTensors, *, divergence: bool) -> Tensor | None:
    """(B,) nats: the cross-entropy of chains of one shape, or their divergence; in float64.

    Differentiable; None where the machine is not there.
    """
    unary, link, one, two = (part.double() for pair in (parts, other) for part in pair[:2])
    if not serves(unary, link):
        return None
    batch, total, states = unary.shape
    if link.shape != two.shape:  # those of either for each step
        link, two = (part.expand(batch, total - 1, states, states) for part in (link, two))
    pairs = [_inputs(unary, link, parts.lengths)]
    if other is not parts:
        pairs.append(_inputs(one, two, parts.lengths))

    def again(*inputs: Tensor) -> Tensor:
        size = len(inputs) // len(pairs)
        ours, theirs = inputs[:2], inputs[len(inputs) - size :][:2]
        solve = partial(logs.log_partition, lengths=parts.lengths)
        total, means = mean_scores(solve, ours, [finite(part) for part in theirs])
        loss = solve(*theirs) - means
        if divergence:
            loss = loss - total + mean_scores(solve, ours, [finite(part) for part in ours])[1]
        return torch.where(total > -math.inf, loss, 0.0)

    values = derivatives.losses(pairs, again, divergence=divergence)
    return None if values is None else values.to(parts.unary)


def _run(unary: Tensor, transition: Tensor | Steps, lengths: Tensor) -> machine.Run:
    """The log-sums of prefixes; with rows for their gradients, where these are recorded."""
    program, inputs = _inputs(unary, transition, lengths)
    tracked = any(part.requires_grad for part in (inputs.unary, *inputs.given))
    return machine.run(program, inputs, whole=False, rows=tracked and torch.is_grad_enabled())


def _arriving(run: machine.Run, transition: Tensor | Steps) -> Tensor:
    """(B, T, N) log-sums over prefixes up to each step without its unary, up to a shift by step."""
    many, (unary, given) = len(tables_of(transition)), (run.inputs.unary, run.inputs.given)

    def again(unary: Tensor, *given: Tensor) -> Tensor:
        steps, lengths = as_steps(_each(unary, given[:many])), [unary.shape[1]] * len(unary)
        states = logs.forward(unary, steps, torch.tensor(lengths, device="cpu")).unbind(1)
        links = [steps.advance(step, state) for step, state in enumerate(states[:-1])]
        return torch.stack([torch.zeros_like(states[0]), *links], 1)

    return _Arriving.apply(run, again, many, unary, *given)  # pyright: ignore


class _Arriving(Function):
    """The values of all links to states; their gradient is that of a program's goal, elsewhere."""

    @staticmethod
    def forward(
        ctx: Any, done: machine.Run, again: Callable[..., Tensor], every: int, unary: Tensor,
        *given: Tensor,
    ) -> Tensor:  # fmt: skip
        ctx.save_for_backward(unary, *given)
        ctx.done, ctx.again, ctx.every = done, again, every
        linked = done.linked(done.values, unary.shape[2], every).transpose(0, 1).to(unary)
        return torch.cat([torch.zeros_like(unary[:, :1]), linked], 1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        inputs, (gradient,) = ctx.saved_tensors, gradients
        if torch.is_grad_enabled() or is_transformed(gradient):
            with torch.enable_grad():
                return None, None, None, *regradient(ctx.again, inputs, gradient)
        seeds, wanted = gradient[:, 1:].transpose(0, 1), ctx.needs_input_grad[3:]
        parts = ctx.done.gradients(gradient.new_zeros(len(gradient)), wanted, (seeds, ctx.every))
        return None, None, None, *(part if part is None else part.to(gradient) for part in parts)


def _each(unary: Tensor, tables: Sequence[Tensor]) -> Tensor | RankSteps:
    """The transition of tables, those of items for each step."""
    steps = unary.shape[1] - 1
    return of_tables(*[t if t.ndim == 2 else t.expand(-1, steps, -1, -1) for t in tables])


def _inputs(
    unary: Tensor, transition: Tensor | Steps, lengths: Tensor, *, masks: bool = True
) -> tuple[Program, Inputs]:
    (total, states), sides = unary.shape[1:], tables_of(transition)
    each = tuple(int(side.ndim > 2 and side.shape[1] > 1) for side in sides)
    given = [side if side.ndim > 2 > side.shape[1] else side.contiguous() for side in sides]
    least = min(lengths.tolist())
    ragged = least < total
    widths = (sides[0].shape[-1], states)[-len(sides) :]
    program = chain_program(total, widths, each, ragged=ragged)
    if ragged:  # what leads to the first site; the last step, beyond all of them for length 0
        last = lengths.reshape(-1, 1, 1) - 1
        last = last if least else last.remainder(total + 1)
        given += unary.new_zeros(1, 1, states), last, last
    unary = masked(unary, lengths) if ragged and masks else unary
    return program, Inputs(unary.contiguous(), given)
