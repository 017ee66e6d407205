"""Entropies, and divergences of two recursions of one shape, from the choices at every node.

A derivation is drawn by a choice at each node, from the goal downwards. So the expectation of
minus its log-probability is a sum over nodes, and no large number is taken from another.
"""

import math
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from rdpgraph.errors import ModelError
from rdpgraph.model.semiring import finite
from rdpgraph.structures.tape import products
from rdpgraph.structures.tape.reader import Reader
from rdpgraph.structures.tape.step import Step
from rdpgraph.structures.tape.steps import Leaf
from rdpgraph.structures.tape.tape import Tape
from rdpgraph.structures.tape.up import goal, last_read, leaves, up

_BLOCK = 2**20  # terms of a step that are kept for its gradient; more are made again


def entropy(tape: Tape) -> Tensor:
    """(*lead,) nats; 0 where nothing is possible. Differentiable any number of times.

    Args:
        tape: laid out with ``ranks=False``.
    """
    given, ended, ours, means = leaves(tape), last_read(tape), Reader(), Reader()
    for number, step in enumerate(tape.steps):
        if isinstance(step, Leaf):
            ours.values.append(next(given))
            means.values.append(_none(ours.values[-1]))
            continue
        many = products.matrix_of(step, tape.batch) is None and step.work * tape.batch > _BLOCK
        if torch.is_grad_enabled() and many:
            readers = _copied((ours, means))
            value, mean = checkpoint(_chosen, step, *readers, use_reentrant=False)  # pyright: ignore
        else:
            value, mean = _chosen(step, ours, means)
        ours.values.append(value)
        means.values.append(mean)
        for own in ended[number]:
            ours.values[own] = means.values[own] = value
    # Of what has one way alone the mean is passed on, possible or not.
    return torch.where(goal(tape, ours) > -math.inf, goal(tape, means), 0.0)


def _none(values: Tensor) -> Tensor:
    """Zeros of that shape, which take no memory."""
    return values.new_zeros(()).expand(values.shape)


def _chosen(step: Step, ours: Reader, means: Reader) -> tuple[Tensor, Tensor]:
    """(B, P, K) the values of a step, and the entropies of the choices there and below."""
    matrix = products.matrix_of(step, len(ours.values[-1]))
    if matrix is not None:
        return products.chosen(matrix, *products.read(step, ours, means))
    terms, below = step.terms(ours), step.terms(means, scores=False)
    if terms.shape[step.dim] > 1:
        return _Choice.apply(terms, below, step.dim)  # pyright: ignore[reportReturnType]
    # Below what has no place there is -inf.
    mean = finite(below).expand(terms.shape)
    return terms.squeeze(step.dim), mean.squeeze(step.dim)


class _Choice(torch.autograd.Function):
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
        # What is below may be said of more places than the terms are.
        of_terms = (shares * (gains - mean.unsqueeze(ctx.dim))).sum_to_size(terms.shape)
        return of_value * chances + of_terms, shares.sum_to_size(below.shape), None


def _gains(terms: Tensor, below: Tensor, value: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """The probability of each alternative, and its surprise plus what is below; 0 if impossible."""
    logs, possible = _choices(terms, value, dim)
    return torch.where(possible, logs.exp(), 0.0), torch.where(possible, below - logs, 0.0)


def _choices(terms: Tensor, value: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """The log-probability of every alternative, 0 instead of -inf; and which are possible."""
    possible = terms.detach() > -math.inf
    return torch.where(possible, terms - finite(value).unsqueeze(dim), 0.0), possible


def cross_entropy(tape: Tape, other: Tape, *, divergence: bool = False) -> Tensor:
    """(*lead,) nats: the mean under one tape of minus the log-probability in another.

    +inf where the other forbids what is possible; 0 where nothing is. Differentiable in both.

    Args:
        tape: whose derivations they are, ``ranks=False``.
        other: of the same steps.
        divergence: less the entropy.

    Raises:
        ModelError: tapes of different steps.
    """
    ours, theirs = up(tape), up(other)
    if [value.shape for value in ours.values] != [value.shape for value in theirs.values]:
        raise ModelError("A divergence needs two structures of one shape and length.")
    means, lost = Reader(), Reader()
    for number, step in enumerate(tape.steps):
        value = ours.value(number)
        if isinstance(step, Leaf):
            means.values.append(_none(value))
            lost.values.append(_none(value))
            continue
        pair = (step, other.steps[number])
        readers = (ours, theirs, means)
        with torch.no_grad():
            lost.values.append(_lost(pair, readers, lost))
        again = step.dim == -2 and products.matrix_of(step, tape.batch) is None
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
    """Copies with the values so far: later values would be kept alive."""
    return tuple(Reader(list(reader.values)) for reader in readers)


def _mean(
    steps: tuple[Step, Step], readers: tuple[Reader, ...], number: int, *, divergence: bool
) -> Tensor:
    """(B, P, K) the mean over the alternatives of what is lost here and below."""
    ours, theirs, means = readers
    matrices = products.matrices_of(steps, len(ours.values[-1]))
    if matrices is not None:
        first, second, below = products.read(steps[0], *readers)
        values = ours.value(number), theirs.value(number)
        return products.compared(matrices, (first, second), values, below, divergence=divergence)
    (logs, possible), (others, allowed) = (
        _choices(step.terms(reader), reader.value(number), step.dim)
        for step, reader in zip(steps, (ours, theirs), strict=True)
    )
    weights = torch.where(possible, logs.exp(), 0.0)
    below = steps[0].terms(means, scores=False)
    here = (logs - others if divergence else -others) + below
    # Below what has no place there is -inf.
    here = torch.where(possible & allowed, here, 0.0)
    return (weights * here).sum(steps[0].dim)


def _lost(steps: tuple[Step, Step], readers: tuple[Reader, ...], lost: Reader) -> Tensor:
    """(B, P, K) 1 where a possible choice is not one of the other, here or below; else 0."""
    ours, theirs, _ = readers
    matrices = products.matrices_of(steps, len(ours.values[-1]))
    if matrices is not None:
        first, second, below = products.read(steps[0], ours, theirs, lost)
        return products.barred(matrices, (first, second), below)
    terms = steps[0].terms(ours)
    wrong = (steps[1].terms(theirs) == -math.inf) | (steps[0].terms(lost, scores=False) > 0)
    return (wrong & (terms > -math.inf)).to(terms).amax(steps[0].dim)
