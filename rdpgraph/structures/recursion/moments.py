"""Entropies and divergences of recursions, from the choices at every node.

A derivation is drawn by a choice at each node, so that the expectation of minus its
log-probability is a sum over nodes, without cancellation of large numbers.
"""

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.utils.checkpoint import checkpoint

from rdpgraph._core import tuning
from rdpgraph.errors import ModelError
from rdpgraph.logspace.logmatrix import LogMatrix, finite
from rdpgraph.structures.recursion import derivatives, machine
from rdpgraph.structures.recursion.down import goal, last_read, leaves, rebuilt, up
from rdpgraph.structures.recursion.inputs import Inputs, inputs_of
from rdpgraph.structures.recursion.layouts import whole
from rdpgraph.structures.recursion.links import Table
from rdpgraph.structures.recursion.program import Program
from rdpgraph.structures.recursion.step import Reader, Step
from rdpgraph.structures.recursion.steps import Leaf, Linked
from rdpgraph.structures.recursion.tape import Tape


def matrix_of(step: Step, batch: int) -> LogMatrix | None:
    """The table of a step, if it has one that is large; else None."""
    if not isinstance(step, Linked) or not isinstance(step.link, Table):
        return None
    if batch * math.prod(step.link.values.shape[-2:]) <= tuning.LOGGED_TERMS:
        return None
    return step.whole.matrix


def matrices_of(steps: tuple[Step, Step], batch: int) -> tuple[LogMatrix, LogMatrix] | None:
    """The tables of the same step in two recursions; None if either has none."""
    first, second = (matrix_of(step, batch) for step in steps)
    return None if first is None or second is None else (first, second)


def chosen(matrix: LogMatrix, x: Tensor, below: Tensor) -> tuple[Tensor, Tensor]:
    """(B, P, J) the values after a link, and the entropies of the choices there and below.

    Values before and entropies below are (B, P, I).
    """
    value = matrix.times(x)
    shift, total = _relative(matrix, x, value)
    mean = matrix.means(x, finite(below) - shift, matrix.surprises)
    return value, torch.where(value > -math.inf, mean + total, 0.0)


def compared(
    matrices: tuple[LogMatrix, LogMatrix],
    befores: tuple[Tensor, Tensor],
    values: tuple[Tensor, Tensor],
    below: Tensor,
    *,
    divergence: bool,
) -> Tensor:
    """(B, P, J) the mean over one recursion's choices of another's loss there and below.

    Values before ``befores`` and losses below are (B, P, I), ``values`` after (B, P, J); for a
    ``divergence`` the entropy is subtracted.
    """
    parts = [_relative(*each) for each in zip(matrices, befores, values, strict=True)]
    (gain, total), (other, others) = parts
    gains, scores, rest = -other, matrices[1].surprises[0], others
    if divergence:
        gains, scores = gain - other, scores - matrices[0].surprises[0]
        rest = others - total
    weighted = matrices[0].weights * scores
    mean = matrices[0].means(befores[0], finite(below) + gains, (scores, weighted))
    return torch.where(values[0] > -math.inf, mean + rest, 0.0)


def barred(
    matrices: tuple[LogMatrix, LogMatrix], befores: tuple[Tensor, Tensor], lost: Tensor
) -> Tensor:
    """(B, P, J) 1 where a possible choice of one recursion is impossible in another, else 0.

    ``lost`` (B, P, I) says so of the values before.
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
    """(B, P, I) of each reader: the value that a step links."""
    assert isinstance(step, Linked)
    return [reader.value(step.x.number) for reader in readers]


def _relative(matrix: LogMatrix, x: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """The values before less the largest, and those after less all shifts."""
    peak = finite(x.detach().amax(-1, keepdim=True))
    total = value - peak - matrix.peaks.unsqueeze(-2)
    return finite(x - peak), finite(total)


def entropy(tape: Tape) -> Tensor:
    """(*lead,) nats; 0 where nothing is possible. Differentiable any number of times.

    The tape is laid out with ``ranks=False``, in float64.
    """
    compiled = _by_machine(tape, tape, divergence=False)
    return _entropy(whole(tape)) if compiled is None else compiled


def _entropy(tape: Tape) -> Tensor:
    """The entropy by torch."""
    given, ended, ours, means = leaves(tape), last_read(tape), Reader(), Reader()
    for number, step in enumerate(tape.steps):
        if isinstance(step, Leaf):
            ours.values.append(next(given))
            means.values.append(_none(ours.values[-1]))
            continue
        many = matrix_of(step, tape.batch) is None and step.work * tape.batch > tuning.CACHE_BLOCK
        if torch.is_grad_enabled() and many:
            readers = _copied((ours, means))
            value, mean = checkpoint(_chosen, step, *readers, use_reentrant=False)  # pyright: ignore
        else:
            value, mean = _chosen(step, ours, means)
        ours.values.append(value)
        means.values.append(mean)
        for last in ended[number]:
            ours.values[last] = means.values[last] = value
    # Steps with one alternative pass the mean on, possible or not.
    return torch.where(goal(tape, ours) > -math.inf, goal(tape, means), 0.0)


def _by_machine(tape: Tape, other: Tape, *, divergence: bool) -> Tensor | None:
    """(*lead,) the expected losses of two tapes; None where the machine does not give them."""
    tapes = (tape,) if other is tape else (tape, other)
    pairs = list[tuple[Program, Inputs]]()
    for each in tapes:
        program = machine.program_of(each)
        if program is None or each.dtype != torch.float64:
            return None
        pairs.append((program, inputs_of(each, program)))

    def again(*inputs: Tensor) -> Tensor:
        size = len(inputs) // len(pairs)
        made = [
            rebuilt(each, inputs[place * size : (place + 1) * size])
            for place, each in enumerate(tapes)
        ]
        if other is tape:
            return _entropy(made[0]).reshape(-1)
        return _cross_entropy(*made, divergence=divergence).reshape(-1)

    losses = derivatives.losses(pairs, again, divergence=divergence)
    return None if losses is None else losses.reshape(tape.lead)


def _none(values: Tensor) -> Tensor:
    """Zeros of that shape that take no memory."""
    return values.new_zeros(()).expand(values.shape)


def _chosen(step: Step, ours: Reader, means: Reader) -> tuple[Tensor, Tensor]:
    """(B, P, K) the values of a step, and the entropies of the choices there and below."""
    matrix = matrix_of(step, len(ours.values[-1]))
    if matrix is not None:
        return chosen(matrix, *read(step, ours, means))
    terms, below = step.terms(ours), step.terms(means, scores=False)
    if terms.shape[step.dim] > 1:
        return _Choice.apply(terms, below, step.dim)  # pyright: ignore[reportReturnType]
    mean = finite(below).expand(terms.shape)  # absent places have -inf
    return terms.squeeze(step.dim), mean.squeeze(step.dim)


class _Choice(Function):
    """The log-sum of alternatives, and the entropy of the choice plus what is below it."""

    @staticmethod
    def forward(ctx: Any, terms: Tensor, below: Tensor, dim: int) -> tuple[Tensor, Tensor]:
        value = terms.logsumexp(dim)
        chances, gains = _gains(terms, below, value, dim)
        mean = (chances * gains).sum(dim)
        ctx.save_for_backward(terms, below, value, mean)
        ctx.dim = dim
        return value, mean

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        terms, below, value, mean = ctx.saved_tensors
        of_value, of_mean = (gradient.unsqueeze(ctx.dim) for gradient in gradients)
        chances, gains = _gains(terms, below, value, ctx.dim)
        shares = of_mean * chances
        # The terms may broadcast over places of what is below.
        of_terms = (shares * (gains - mean.unsqueeze(ctx.dim))).sum_to_size(terms.shape)
        return of_value * chances + of_terms, shares.sum_to_size(below.shape), None


def _gains(terms: Tensor, below: Tensor, value: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """The probability of each alternative, and its surprise plus what is below; 0 if impossible."""
    logs, possible = _choices(terms, value, dim)
    return torch.where(possible, logs.exp(), 0.0), torch.where(possible, below - logs, 0.0)


def _choices(terms: Tensor, value: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """The log-probability of every alternative, 0 instead of -inf, and whether it is possible."""
    possible = terms.detach() > -math.inf
    return torch.where(possible, terms - finite(value).unsqueeze(dim), 0.0), possible


def cross_entropy(tape: Tape, other: Tape, *, divergence: bool = False) -> Tensor:
    """(*lead,) nats: the mean under one tape of minus the log-probability in another.

    +inf where the other forbids what is possible; 0 where nothing is; with ``divergence`` less the
    entropy. Differentiable in both, which have the same steps, ``ranks=False``; else `ModelError`.
    """
    compiled = _by_machine(tape, other, divergence=divergence)
    if compiled is not None:
        return compiled
    return _cross_entropy(whole(tape), whole(other), divergence=divergence)


def _cross_entropy(tape: Tape, other: Tape, *, divergence: bool) -> Tensor:
    """The losses by torch."""
    ours, theirs = up(tape), up(other)
    if [value.shape for value in ours.values] != [value.shape for value in theirs.values]:
        raise ModelError("A divergence needs two structures of one shape and length.")
    means, lost = Reader(), Reader()
    for number, step in enumerate(tape.steps):
        value = ours.value(number)
        if isinstance(step, Leaf):
            means.values.append(_none(value))
            lost.values.append(
                ((value > -math.inf) & (theirs.value(number) == -math.inf)).to(value)
            )
            continue
        pair = (step, other.steps[number])
        readers = (ours, theirs, means)
        with torch.no_grad():
            lost.values.append(_lost(pair, _copied(readers), lost))
        again = step.dim == -2 and matrix_of(step, tape.batch) is None
        if torch.is_grad_enabled() and again:
            mean: Tensor = checkpoint(  # pyright: ignore
                _mean, pair, _copied(readers), number, divergence=divergence, use_reentrant=False
            )
        else:
            mean = _mean(pair, readers, number, divergence=divergence)
        means.values.append(mean)
    total = goal(tape, means)
    return torch.where(goal(tape, lost) > 0, math.inf, total)


def _copied(readers: tuple[Reader, ...]) -> tuple[Reader, ...]:
    """Copies with the values so far, so that later values can be freed."""
    return tuple(Reader(list(reader.values)) for reader in readers)


def _mean(
    steps: tuple[Step, Step], readers: tuple[Reader, ...], number: int, *, divergence: bool
) -> Tensor:
    """(B, P, K) the mean over the alternatives of the loss here and below."""
    ours, theirs, means = readers
    matrices = matrices_of(steps, len(ours.values[-1]))
    if matrices is not None:
        first, second, below = read(steps[0], *readers)
        values = ours.value(number), theirs.value(number)
        return compared(matrices, (first, second), values, below, divergence=divergence)
    (logs, possible), (others, allowed) = (
        _choices(step.terms(reader), reader.value(number), step.dim)
        for step, reader in zip(steps, (ours, theirs), strict=True)
    )
    weights = torch.where(possible, logs.exp(), 0.0)
    below = steps[0].terms(means, scores=False)
    here = (logs - others if divergence else -others) + below
    here = torch.where(possible & allowed, here, 0.0)  # absent places have -inf
    return (weights * here).sum(steps[0].dim)


def _lost(steps: tuple[Step, Step], readers: tuple[Reader, ...], lost: Reader) -> Tensor:
    """(B, P, K) 1 where a possible choice is impossible in the other, here or below; else 0."""
    ours, theirs, _ = readers
    matrices = matrices_of(steps, len(ours.values[-1]))
    if matrices is not None:
        first, second, below = read(steps[0], ours, theirs, lost)
        return barred(matrices, (first, second), below)
    terms = steps[0].terms(ours)
    wrong = (steps[1].terms(theirs) == -math.inf) | (steps[0].terms(lost, scores=False) > 0)
    return (wrong & (terms > -math.inf)).to(terms).amax(steps[0].dim)
