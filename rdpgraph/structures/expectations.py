"""Entropies and cross-entropies of models whose scores are sums of entries of tensors."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rdpgraph.interface.structure import Structure
from rdpgraph.logspace.gradients import expectations


@dataclass(frozen=True, eq=False)
class Scored:
    """A model whose scores are sums of entries of some tensors: their means are gradients."""

    tensors: Sequence[Tensor]  # (*lead, ...) each
    made: Callable[[Sequence[Tensor]], Structure]  # the model of other tensors
    # (*lead,) the score of the best configuration of such a model; -inf if it has none.
    best: Callable[[Structure], Tensor]

    def expected(self) -> tuple[Tensor, list[Tensor]]:
        """Log Z, (*lead,), and its gradients in the tensors, zero for impossible items."""
        tracked = any(part.requires_grad for part in self.tensors)
        return expectations(
            lambda *parts: self.made(parts).log_partition(), self.tensors, tracked=tracked
        )


def entropy(model: Scored) -> Tensor:
    """(*lead,) nats: log Z less the expected score; 0 where nothing is possible."""
    log_z, chances = model.expected()
    alive = log_z.detach() > -math.inf
    nats = torch.where(alive, log_z, 0.0) - _mean_score(model, chances, log_z.ndim)
    return torch.where(alive, nats, 0.0)


def cross_entropy(model: Scored, other: Scored, log_z: Tensor) -> Tensor:
    """(*lead,) the mean under one model of minus the log-probability in another, nats.

    +inf where the other forbids what is possible; 0 where nothing is. The tensors of both have the
    same shapes; ``log_z`` (*lead,) is the other's.
    """
    log_p, chances = model.expected()
    possible = log_p.detach() > -math.inf
    compared = possible & ~_meets(model, other, possible)
    nats = torch.where(compared, log_z, 0.0) - _mean_score(other, chances, log_z.ndim)
    return torch.where(possible, torch.where(compared, nats, math.inf), 0.0)


def _mean_score(model: Scored, chances: Sequence[Tensor], lead: int) -> Tensor:
    """(*lead,) the expected score; impossible entries count as zero."""
    total = chances[0].new_zeros(())
    for values, chance in zip(model.tensors, chances, strict=True):
        products = torch.where(values > -math.inf, values, 0.0) * chance
        total = total + products.flatten(lead).sum(-1)
    return total


@torch.no_grad()
def _meets(model: Scored, other: Scored, possible: Tensor) -> Tensor:
    """(*lead,) whether a possible configuration uses an entry that the other model forbids.

    Decided by the largest number of such entries in one configuration.
    """
    pairs = zip(model.tensors, other.tensors, strict=True)
    barred = [(mine > -math.inf) & (theirs == -math.inf) for mine, theirs in pairs]
    if not any(bool(part.any()) for part in barred):
        return torch.zeros_like(possible)
    most = [
        torch.where(mine > -math.inf, part.to(mine), -math.inf)
        for mine, part in zip(model.tensors, barred, strict=True)
    ]
    return possible & (model.best(model.made(most)) > 0)
