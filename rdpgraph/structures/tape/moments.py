"""Entropies, and divergences of two recursions of one shape, from the choices at every node.

A derivation is drawn by a choice at each node, from the goal downwards. So the expectation of
minus its log-probability is a sum over nodes, and no large number is taken from another.
"""

import math

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from rdpgraph.errors import ModelError
from rdpgraph.structures.tape.steps import Leaf, Step
from rdpgraph.structures.tape.tape import Tape
from rdpgraph.structures.tape.up import goal, up
from rdpgraph.structures.tape.values import Reader


def cross_entropy(tape: Tape, other: Tape | None = None, *, divergence: bool = False) -> Tensor:
    """(*lead,) nats: the mean under one tape of minus the log-probability in another.

    +inf where the other forbids what is possible; 0 where nothing is. Differentiable in both.

    Args:
        tape: whose derivations they are, ``ranks=False``.
        other: of the same steps; default: the same tape, whose entropy it is then.
        divergence: less the entropy.

    Raises:
        ModelError: tapes of different steps.
    """
    ours = up(tape)
    theirs = ours if other is None else up(other)
    if [value.shape for value in ours.values] != [value.shape for value in theirs.values]:
        raise ModelError("A divergence needs two structures of one shape and length.")
    others = tape if other is None else other
    means, lost = Reader(), Reader()
    for number, step in enumerate(tape.steps):
        value = ours.values[number]
        if isinstance(step, Leaf):
            means.values.append(torch.zeros_like(value))
            lost.values.append(torch.zeros_like(value))
            continue
        pair = (step, others.steps[number])
        readers = (ours, theirs, means)
        with torch.no_grad():
            lost.values.append(_lost(pair, readers, lost, number))
        if torch.is_grad_enabled() and step.dim == 2:
            mean: Tensor = checkpoint(  # pyright: ignore
                _mean, pair, _copied(readers), number, divergence=divergence, use_reentrant=False
            )
        else:
            mean = _mean(pair, readers, number, divergence=divergence)
        means.values.append(mean)
    total = goal(tape, means)
    return torch.where(goal(tape, lost) > 0, math.inf, total)


def _copied(readers: tuple[Reader, ...]) -> tuple[Reader, ...]:
    """Copies with the values so far: later values would be kept alive. One reader stays one."""
    copies = {id(reader): Reader(list(reader.values)) for reader in readers}
    return tuple(copies[id(reader)] for reader in readers)


def _choices(step: Step, reader: Reader, number: int) -> tuple[Tensor, Tensor]:
    """The log-probability of every alternative, 0 instead of -inf; and which are possible."""
    terms, value = step.terms(reader), reader.values[number].unsqueeze(step.dim)
    possible = terms.detach() > -math.inf
    value = torch.where(value > -math.inf, value, 0.0)
    return torch.where(possible, terms - value, 0.0), possible


def _mean(
    steps: tuple[Step, Step], readers: tuple[Reader, ...], number: int, *, divergence: bool
) -> Tensor:
    """(B, P, K) the mean over the alternatives of what is lost here and below."""
    ours, theirs, means = readers
    logs, possible = _choices(steps[0], ours, number)
    weights = torch.where(possible, logs.exp(), 0.0)
    others, allowed = (logs, possible) if theirs is ours else _choices(steps[1], theirs, number)
    below = steps[0].terms(means, scores=False)
    here = (logs - others if divergence else -others) + below
    # Below what has no place there is -inf.
    here = torch.where(possible & allowed, here, 0.0)
    return (weights * here).sum(steps[0].dim)


def _lost(
    steps: tuple[Step, Step], readers: tuple[Reader, ...], lost: Reader, number: int
) -> Tensor:
    """(B, P, K) 1 where a possible choice is not one of the other, here or below; else 0."""
    ours, theirs, _ = readers
    value = ours.values[number]
    if theirs is ours:
        return torch.zeros_like(value)
    terms = steps[0].terms(ours)
    wrong = (steps[1].terms(theirs) == -math.inf) | (steps[0].terms(lost, scores=False) > 0)
    return (wrong & (terms > -math.inf)).to(value).amax(steps[0].dim)
