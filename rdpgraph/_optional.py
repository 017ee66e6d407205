"""What must hold of answers that a structure may offer: scores, k best, comparisons, curvature."""

import math
from contextlib import suppress
from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor

from rdpgraph._agreement import agree, close
from rdpgraph._enumeration import Enumeration, OnGraph
from rdpgraph.errors import UnsupportedError
from rdpgraph.model.structure import Structure

_BEST = 5
"""How many of the best configurations are asked for."""


def check_optional(structure: Structure, truth: OnGraph | Enumeration) -> None:
    """Hold the answers that not every structure has against enumeration, where they are offered.

    `log_prob` of the mode and of samples, `k_best`, `cross_entropy` and `kl_divergence` with the
    same structure at another temperature, and the second derivatives of log Z in `unary`.

    Args:
        structure: small enough to enumerate, every item possible.
        truth: its enumeration.
    """
    everything = truth.enumerated if isinstance(truth, OnGraph) else truth
    _check_log_prob(structure, truth)
    if hasattr(structure, "k_best"):
        _check_best(structure, truth, everything.scores)
    if hasattr(structure, "cross_entropy"):
        _check_comparisons(structure, everything)
    _check_curvature(structure, everything)


def _check_log_prob(structure: Structure, truth: OnGraph | Enumeration) -> None:
    generator = torch.Generator().manual_seed(0)
    for what, configuration in (
        ("the mode", structure.mode()),
        ("samples", structure.sample(4, generator)),
    ):
        if configuration is None:
            continue
        with suppress(UnsupportedError):
            scores = truth.score(structure.site_states(configuration))
            chances = structure.log_prob(configuration)
            close(chances, scores - truth.log_partition, f"log_prob() of {what}")


def _check_best(structure: Any, truth: OnGraph | Enumeration, scores: Tensor) -> None:
    """As many as there are, and none is left out that is better than the last; distinct states."""
    best = structure.k_best(_BEST)
    expected = scores.sort(0, descending=True).values[:_BEST]
    missing = expected.new_full((_BEST - len(expected), *expected.shape[1:]), -math.inf)
    close(best.scores, torch.cat([expected, missing]), f"the scores of k_best({_BEST})")
    there = (best.scores > -math.inf).reshape(_BEST, -1)
    count = int(there.all(1).sum())
    states = structure.site_states(_first(getattr(best, fields(best)[0].name), count))
    again = truth.score(states)
    close(again, best.scores[:count], f"the scores of the configurations of k_best({_BEST})")
    if structure.listed() is None:  # what is listed may be made in several ways
        sites = states.shape[again.ndim :].numel()
        for item in states.reshape(count, -1, sites).unbind(1) if sites else ():
            agree(len(item.unique(dim=0)) == count, "k_best() gives no configuration twice")


def _first(configurations: Any, count: int) -> Any:
    """Some of the configurations of `k_best`, tensors or a dataclass of them."""
    if isinstance(configurations, Tensor):
        return configurations[:count]
    parts = {name: part[:count] for name, part in vars(configurations).items()}
    return replace(configurations, **parts)


def _check_comparisons(structure: Any, everything: Enumeration) -> None:
    """Of another that allows the same: its potentials are scaled, those of -inf stay."""
    other = structure.with_unary(structure.unary.detach() * 0.5)
    change = torch.where(structure.unary > -math.inf, other.unary - structure.unary, 0.0).detach()
    uses = everything.uses.flatten(1).to(change)
    batch = everything.scores.shape[1:]
    log_q = everything.scores + (uses @ change.reshape(batch.numel(), -1).mT).reshape(-1, *batch)
    log_q = log_q - log_q.logsumexp(0)
    chances = everything.probabilities
    nats = -torch.where(chances > 0, chances * log_q, 0.0).sum(0)
    close(structure.cross_entropy(other), nats, "cross_entropy()")
    if hasattr(structure, "kl_divergence"):
        close(structure.kl_divergence(other), nats - everything.entropy, "kl_divergence()")


def _check_curvature(structure: Structure, everything: Enumeration) -> None:
    """The derivative of log Z's gradient along a direction is a covariance of uses."""
    unary = structure.unary.detach().requires_grad_()
    if not unary.numel():
        return
    along = torch.linspace(-1.0, 1.0, unary.numel()).reshape(unary.shape).to(unary)
    log_z = structure.with_unary(unary).log_partition()
    (gradient,) = torch.autograd.grad(log_z.sum(), unary, create_graph=True)
    curvature = torch.zeros_like(unary)
    if gradient.requires_grad:  # else it is constant
        (curvature,) = torch.autograd.grad((gradient * along).sum(), unary)
    batch = everything.scores.shape[1:]
    uses, chances = everything.uses.flatten(1).to(unary), everything.probabilities
    rate = uses @ along.reshape(batch.numel(), -1).mT
    weights = chances.reshape(len(uses), -1)
    rate = weights * (rate - (weights * rate).sum(0))
    close(curvature, (rate.mT @ uses).reshape(unary.shape), "the second derivative of log Z")
