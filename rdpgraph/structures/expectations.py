"""Entropies and cross-entropies of models whose scores are sums of entries of their potentials."""

import math

import torch
from torch import Tensor

from rdpgraph.interface.structure import Structure
from rdpgraph.logspace.gradients import expectations


def entropy(model: Structure) -> Tensor:
    """Return the entropies (*batch,) in nats, log Z less the expected score.

    They are 0 where nothing is possible.
    """
    log_z, chances = _expected(model)
    alive = log_z.detach() > -math.inf
    nats = torch.where(alive, log_z, 0.0) - _mean_score(model, chances, log_z.ndim)
    return torch.where(alive, nats, 0.0)


def cross_entropy(model: Structure, other: Structure) -> Tensor:
    """(*batch,) the mean under one model of minus the log-probability in another, nats.

    +inf where the other forbids what is possible; 0 where nothing is. Both have the same sites, and
    the first has max-marginals.
    """
    log_p, chances = _expected(model)
    possible, there = log_p.detach() > -math.inf, model.unary.detach() > -math.inf
    compared, barred = possible, there & (other.unary == -math.inf)
    if bool(barred.any()):
        # The largest number of such entries in one configuration.
        counts = torch.where(there, barred.to(model.unary), -math.inf)
        most = model.with_unary(counts).max_marginals()
        assert most is not None
        compared = possible & ~(most > 0).flatten(log_p.ndim).any(-1)
    log_z = torch.where(compared, other.log_partition(), 0.0)
    nats = log_z - _mean_score(other, chances, log_z.ndim)
    return torch.where(possible, torch.where(compared, nats, math.inf), 0.0)


def _expected(model: Structure) -> tuple[Tensor, Tensor]:
    """(*batch,) log Z, and its gradient, zero for impossible items."""
    log_z, (chances,) = expectations(
        lambda unary: model.with_unary(unary).log_partition(), [model.unary],
        tracked=model.unary.requires_grad,
    )  # fmt: skip
    return log_z, chances


def _mean_score(model: Structure, chances: Tensor, lead: int) -> Tensor:
    """(*batch,) the expected score; impossible entries count as zero."""
    values = torch.where(model.unary > -math.inf, model.unary, 0.0)
    return (values * chances).flatten(lead).sum(-1)
