"""A configuration from max-beliefs, with a check of its consistency."""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from rdpgraph.engines.loopy.edges import components
from rdpgraph.engines.loopy.field import Field, Messages
from rdpgraph.engines.loopy.propagation import Limits, Outcome, propagate
from rdpgraph.plan import clock

_ROUNDS = 50


@dataclass(frozen=True, eq=False)
class Decoded:
    """What max-beliefs say.

    Attributes:
        states: (B, active variables).
        consistent: (B,) whether the messages converged and every factor's best configurations
            include this one: then it is optimal on trees, and under tree-reweighting anywhere.
    """

    states: Tensor
    consistent: Tensor
    crosses = True


def decode(field: Field, outcome: Outcome, limits: Limits) -> Decoded:
    """The best state of every variable; ties are broken so that neighbours agree.

    Where beliefs tie, one variable of every connected set of tied ones is fixed to its first best
    state, and messages run on from where they were, until no tie is left or the time is up.
    """
    if not field.edges.count:
        states = _states(field, field.beliefs(outcome.messages))
        return Decoded(states, torch.ones(field.batch, dtype=torch.bool))
    end = math.inf if limits.seconds is None else clock.now() + limits.seconds
    items = [
        _decode_one(field.item(n), tuple(m[n : n + 1] for m in outcome.messages), limits, end)
        for n in range(field.batch)
    ]
    states = torch.cat([item[0] for item in items])
    consistent = torch.stack([item[1] for item in items]).reshape(-1)
    return Decoded(states, consistent.cpu() & outcome.converged)


def _decode_one(
    field: Field, messages: Messages, limits: Limits, end: float
) -> tuple[Tensor, Tensor]:
    original, start = field, messages
    quiet = replace(limits, progress=None)
    for _ in range(_ROUNDS):
        beliefs = field.beliefs(messages)
        tied = _tied(field, beliefs)
        if not bool(tied.any()) or clock.now() > end:
            break
        if end < math.inf:
            quiet = replace(quiet, seconds=end - clock.now())
        field = field.with_unary(_fixed(field, beliefs, _first_of_each(field, tied)))
        messages = propagate(field, messages, quiet).messages
    states = _states(field, field.beliefs(messages))
    return states, _consistent(original, start, states)


def _states(field: Field, beliefs: tuple[Tensor, ...]) -> Tensor:
    """(B, V) the first best state of every variable."""
    device = field.unary_device
    states = torch.zeros(field.batch, len(field.edges.home), dtype=torch.long, device=device)
    for c, belief in zip(field.edges.classes, beliefs, strict=True):
        states[:, c.variables] = belief.argmax(1)
    return states


def _slack(values: Tensor) -> float:
    return float(torch.finfo(values.dtype).eps ** 0.75)


def _tied(field: Field, beliefs: tuple[Tensor, ...]) -> Tensor:
    """(V,) whether the best two states of a variable are as good as each other."""
    tied = torch.zeros(len(field.edges.home), dtype=torch.bool, device=field.unary_device)
    for c, belief in zip(field.edges.classes, beliefs, strict=True):
        if c.size < 2 or not len(c.variables):
            continue
        best = belief[0].topk(2, 0).values
        close = best[0] - best[1] <= _slack(belief) * best[0].abs().clamp(min=1.0)
        tied[c.variables] = close & (best[0] > -math.inf)
    return tied


def _first_of_each(field: Field, tied: Tensor) -> Tensor:
    """One variable of every connected set of tied ones."""
    left, right = field.edges.pairs
    tied = tied.cpu()
    inside = tied[left] & tied[right]
    labels = components(left[inside], right[inside], len(tied))
    return (tied & (labels == torch.arange(len(tied)))).nonzero().flatten()


def _fixed(field: Field, beliefs: tuple[Tensor, ...], chosen: Tensor) -> tuple[Tensor, ...]:
    """Unary log-potentials that leave chosen variables their first best state only."""
    states = _states(field, beliefs)[0]
    result: list[Tensor] = []
    for number, (c, unary) in enumerate(zip(field.edges.classes, field.unary, strict=True)):
        own = chosen[field.edges.home[chosen] == number]
        places = field.edges.local[own]
        barred = torch.zeros_like(unary, dtype=torch.bool)
        barred[:, :, places] = True
        barred[:, states[own], places] = False
        result.append(torch.where(barred, -math.inf, unary))
        del c
    return tuple(result)


def _consistent(field: Field, messages: Messages, states: Tensor) -> Tensor:
    """() whether the configuration is among the best of every factor and variable."""
    good = torch.ones((), dtype=torch.bool, device=field.unary_device)
    beliefs = field.beliefs(messages)
    for c, belief in zip(field.edges.classes, beliefs, strict=True):
        if not len(c.variables):
            continue
        taken = belief[0].gather(0, states[:, c.variables])[0]
        good = good & _among_best(taken, belief[0].amax(0))
    for number in range(len(field.kernels)):
        taken, best = field.factor_scores(number, messages, states)
        good = good & _among_best(taken, best)
    return good


def _among_best(taken: Tensor, best: Tensor) -> Tensor:
    slack = 10 * _slack(best) * best.abs().clamp(min=1.0)
    return ((taken >= best - slack) & (taken > -math.inf)).all()
