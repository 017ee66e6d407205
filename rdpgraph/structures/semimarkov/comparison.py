"""Expectations under one semi-Markov chain of the scores of another."""

import math

import torch
from torch import Tensor

from rdpgraph.structures.semimarkov import posterior
from rdpgraph.structures.semimarkov.coupling import conditional
from rdpgraph.structures.semimarkov.recursion import at_last, walk
from rdpgraph.structures.semimarkov.transitions import after, tables

Potentials = tuple[Tensor, Tensor]


def cross_entropy(own: Potentials, other: Potentials, lengths: Tensor) -> Tensor:
    """(B,) nats: the mean under one chain of minus the log-probability in another.

    log Z of the other less the mean of its score, in float64. +inf where the other forbids what
    the first allows, 0 for an impossible item. Differentiable by autograd, with O(T D N) kept;
    O(T (D N + N^2)).

    Args:
        own: segments (B, T, D, N) and transition of the first chain.
        other: those of the other.
        lengths: (B,).
    """
    dtype = own[0].dtype
    first, second = (own[0].double(), own[1].double()), (other[0].double(), other[1].double())
    if not first[0].shape[1]:
        return own[0].sum((1, 2, 3))
    possible = posterior.log_partition(own[0].detach(), own[1].detach(), lengths) > -math.inf
    with torch.no_grad():
        support = (_support(first[0]), _support(first[1]))
        barred = (_barred(second[0]), _barred(second[1]))
        allowed = _mean_score(support, barred, lengths) == 0
    log_z = posterior.log_partition(*second, lengths)
    log_z = torch.where(allowed & possible, log_z, 0.0)
    mean = _mean_score(first, (_finite(second[0]), _finite(second[1])), lengths)
    total = torch.where(allowed, log_z - mean, math.inf)
    return torch.where(possible, total, 0.0).to(dtype)


def _mean_score(own: Potentials, scores: Potentials, lengths: Tensor) -> Tensor:
    """(B,) the mean of the sums of finite scores over the segmentations of a chain."""
    (segments, transition), (of_segments, of_joints) = own, scores
    batch, steps, durations, labels = segments.shape
    couplings = tables(transition, steps)
    before = segments.new_zeros(batch, durations, labels)
    kept: list[tuple[Tensor, Tensor]] = []
    for place, step in enumerate(walk(segments, couplings)):
        chances, _ = conditional(step.terms, 1)
        mean = (chances * (of_segments[:, place] + before)).sum(1)
        kept.append((step.leaving, mean))
        if place + 1 < steps:
            entered = couplings[place].mean(step.leaving, mean, after(of_joints, place))
            before = torch.cat([entered.unsqueeze(1), before[:, :-1]], 1)
    leaving, means = (at_last(torch.stack(part, 1), lengths) for part in zip(*kept, strict=True))
    chances, _ = conditional(leaving, 1)
    return torch.where(lengths > 0, (chances * means).sum(1), 0.0)


def _support(logs: Tensor) -> Tensor:
    return torch.where(logs > -math.inf, 0.0, -math.inf).to(logs)


def _barred(logs: Tensor) -> Tensor:
    return (logs == -math.inf).to(logs)


def _finite(logs: Tensor) -> Tensor:
    return torch.where(logs > -math.inf, logs, 0.0)
