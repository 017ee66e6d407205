"""Logs of means of independent estimates: shares of these, effective numbers and errors."""

import math

import torch
from torch import Tensor

from rdpgraph._core.numbers import LEAST

_WORTH = 6  # estimates that are worth fewer do not show that they miss something


def shares(logs: Tensor) -> Tensor:
    """(count, *batch) shares of estimates in their sum; zeros where all logs are -inf.

    They sum to one within their rounding, however large the logs are.
    """
    alive = logs.detach() > -math.inf
    return torch.where(alive, torch.where(alive.any(0), logs, 0.0).softmax(0), 0.0)


def effective_size(weights: Tensor) -> Tensor:
    """(*batch,) square of the sum of weights over the sum of squares; 0 where all are."""
    squares = weights.detach().square().sum(0)
    return torch.where(squares > 0, 1.0 / torch.where(squares > 0, squares, 1.0), 0.0)


def is_worth_enough(logs: Tensor) -> Tensor:
    """(*batch,) whether no few estimates decide their mean.

    Their effective number, (sum w)^2 / sum w^2, is at least six and at least half of their number.
    """
    return effective_size(shares(logs)) >= max(len(logs) / 2, _WORTH)


def mean_error(logs: Tensor) -> Tensor:
    """(*batch,) standard error of the log of a mean, nats; +inf if fewer than four are above -inf.

    By the delta method, if no few estimates decide their mean (`is_worth_enough`). Otherwise the
    delta method would give one nat at most, however much they differ. The error is then no less
    than the standard deviation of their logs, nor than half of the variance of these, by which the
    mean log of a lognormal estimate is too low.
    """
    logs = logs.detach()
    if len(logs) < LEAST:
        return torch.full_like(logs[0], math.inf)
    alive = logs > -math.inf
    finite, many = torch.where(alive, logs, 0.0), alive.sum(0)
    apart = torch.where(alive, finite - finite.sum(0) / many.clamp(min=1), 0.0)
    variance = apart.square().sum(0) / (many - 1).clamp(min=1)
    delta = ((shares(logs) * len(logs)).var(0) / len(logs)).sqrt()
    wide = torch.maximum(delta, torch.maximum(variance.sqrt(), variance / 2))
    error = torch.where(is_worth_enough(logs), delta, wide)
    return torch.where(many < LEAST, math.inf, error)
