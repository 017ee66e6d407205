"""Fitting by gradient, and standard errors."""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd.functional import hessian, jacobian
from torch.optim import LBFGS, Optimizer

from rdpgraph._core.arguments import typed
from rdpgraph._core.progress import goes_on
from rdpgraph.engines.solution import Status
from rdpgraph.errors import ModelError
from rdpgraph.learn.ascent import TRUST, GuardedLoss
from rdpgraph.learn.em import EM, Fit, Step
from rdpgraph.learn.parameters import Batches, Parameter, Rows, require_table
from rdpgraph.plan import clock

_NULL = 1e-9
"""Share of the largest eigenvalue below which others count as zero."""

_AHEAD = 100.0
"""The gain that a step along the gradient may have at a maximum, in units of the tolerance: a step
of an optimizer takes a part of the gain that is ahead."""

_LBFGS = partial(LBFGS, max_iter=10, line_search_fn="strong_wolfe", tolerance_change=0.0)


@torch.inference_mode(mode=False)
@typed()
def fit_by_gradient(
    em: EM,
    data: Any,
    weights: Any = None,
    *,
    optimizer: Callable[[list[Tensor]], Optimizer] | None = None,
    start: Fit | None = None,
) -> Fit:
    """Fit the parameters of a model by gradient, where they have no maximum in closed form.

    Args:
        em: the model, its parameters, which of them are fixed, tolerance, limit of steps and
            batches; the rest is for EM.
        data: as for `EM.fit`.
        weights: as for `EM.fit`.
        optimizer: makes one of ``torch.optim`` for tensors; default L-BFGS, ten iterations a step.
        start: an earlier fit to go on from.

    Raises:
        ImpossibleEvidenceError: a row that no configuration explains.
        UnsupportedError: a parameter without tensors that gradients may change.
        ModelError: a likelihood that is not finite at the start.
    """
    batches = Batches.of(data, weights, em.batch_size)
    parameters = dict(em.parameters if start is None else start.parameters)
    history = list(start.history[:-1]) if start is not None else []
    free = {
        name: [part.detach().clone().requires_grad_() for part in p.free()]
        for name, p in parameters.items()
        if name not in em.fixed
    }
    leaves = [part for parts in free.values() for part in parts if part.numel()]
    mass = batches.weight()
    exact = True

    def objective(*, back: bool) -> tuple[float, float]:
        nonlocal exact
        made, total = _at(parameters, free), 0.0
        for places, rows, weight in batches:
            log_z, sure = _log_likelihoods(em, made, places, rows)
            likelihood = (log_z if weight is None else log_z * weight).sum()
            total, exact = total + float(likelihood.detach()), exact and sure
            if back:
                (-likelihood / mass).backward()
                made = _at(parameters, free)
        prior = sum((p.log_prior() for p in made.values()), torch.zeros(()))
        if back and prior.requires_grad:
            (-prior / mass).backward()
        return total + float(prior.detach()), total

    trust = TRUST if optimizer is None else math.inf
    loss = GuardedLoss(leaves, lambda: -objective(back=True)[0] / mass, trust=trust)
    steps = (optimizer or _LBFGS)(leaves) if leaves else None
    gained, stopped, inside = steps is None, False, True
    for number in range(em.limit):
        if steps is None:  # everything is fixed
            break
        began, inside = loss.step(steps)
        if not inside:
            break
        history.append(-mass * began)
        going = goes_on(em.progress, Step(0, len(history) - 1, history[-1]))
        gained = number > 0 and abs(history[-1] - history[-2]) < em.tolerance * mass
        stopped = not going or clock.stopped()
        if gained or stopped:
            break
    # An optimizer that stands still is at a maximum where no step along the gradient gains more.
    ahead = 0.0
    if gained and em.tolerance < math.inf:
        ahead = max(map(loss.available_gain, leaves), default=0.0)
    value, likelihood = math.nan, math.nan
    with torch.no_grad():
        if inside:
            with suppress(ValueError):  # a step may have left the domain
                value, likelihood = objective(back=False)
        if not math.isfinite(value):
            inside = False
            loss.return_to_best()
            value, likelihood = objective(back=False)
        ended = _at(parameters, free)
    if not value < math.inf:
        raise ModelError(
            f"The log-likelihood plus log-prior is {value} at the start of the fit: check the "
            "weights and the prior, or start from other parameters."
        )
    converged = gained and inside and ahead <= _AHEAD * em.tolerance
    remedy = "" if converged else f"not converged in {len(history)} steps: give a larger limit"
    if stopped:
        remedy = f"not converged in {len(history)} steps, after which it was stopped: let it go on"
    if gained and not converged:
        remedy = (
            f"the steps gain less than the tolerance, but one along the gradient gains {ahead:.2g} "
            "nats for each row: give another optimizer, or other parameters to start from"
        )
    if math.isinf(ahead):
        remedy = (
            "the steps gain nothing, and the gradient leads to parameters where the objective is "
            "not finite: check the data, or start from other parameters"
        )
    if not inside:
        remedy = (
            "the optimizer reached parameters where the objective or its gradient is not finite, "
            "and the best parameters before these were kept: take smaller steps, or start from "
            "other parameters"
        )
    status = Status(
        exact, converged, biased=not exact, iterations=len(history), method="gradient",
        remedy=remedy,
    )  # fmt: skip
    return Fit(ended, (*history, value), likelihood, status)


@torch.inference_mode(mode=False)
@typed()
def standard_errors(
    em: EM, fit: Fit, data: Any, weights: Any = None, *, scores: bool = False
) -> dict[str, tuple[Tensor, ...]]:
    """Standard errors of a fit, by the information of the data; for each parameter.

    For `Probabilities` they are those of the probabilities, zero where these are 0, 1 or fixed.
    Those of parameters that EM holds fixed are zero.
    Infinite where the data does not determine a quantity. Takes a backward pass for each fitted
    number.

    Args:
        em: the model.
        fit: its parameters, at a maximum.
        data: as for `EM.fit`.
        weights: as for `EM.fit`; a weight counts equal rows.
        scores: use the outer products of the gradients of rows, which need no second derivatives
            and take a backward pass for each row; else the observed information, the second
            derivatives of log-likelihood plus log-prior.

    Raises:
        ModelError: the fit is not at a maximum.
        UnsupportedError: a parameter without tensors that gradients may change.
        BudgetError: more fitted numbers than a square matrix of them has room for.
    """
    parts = {name: p.free() for name, p in fit.parameters.items() if name not in em.fixed}
    # Parameters that EM holds fixed have no error.
    fixed = {
        name: tuple(torch.zeros_like(part, dtype=torch.float64) for part in p.estimates())
        for name, p in fit.parameters.items()
        if name not in parts
    }
    if not parts:
        return fixed
    # All free numbers are one vector, the point at which the information is taken.
    point = torch.cat([part.double().reshape(-1) for leaf in parts.values() for part in leaf])
    require_table(
        f"The information of {len(point):,} fitted numbers", (len(point), len(point)),
        "hold parameters fixed, or fit a smaller model", each=64.0,
    )  # fmt: skip
    sizes = [part.numel() for leaf in parts.values() for part in leaf]

    def made(point: Tensor) -> dict[str, Parameter]:
        pieces = iter(point.split(sizes))
        free = {
            name: [next(pieces).reshape(part.shape).to(part.dtype) for part in leaf]
            for name, leaf in parts.items()
        }
        return _at(fit.parameters, free)

    def likelihoods(places: Tensor, rows: Rows, weight: Tensor | None, point: Tensor) -> Tensor:
        log_z, _ = _log_likelihoods(em, made(point), places, rows)
        if scores or weight is None:
            return log_z.reshape(-1) if scores else log_z.sum()
        return (weight.to(log_z) * log_z).sum()

    def log_prior(point: Tensor) -> Tensor:
        return sum((p.log_prior().double() for p in made(point).values()), 0.0 * point.sum())

    # The data is added batch by batch: outer products of scores, or minus second derivatives.
    information = torch.zeros(len(point), len(point), dtype=torch.float64)
    for batch in Batches.of(data, weights, em.batch_size):
        slopes: Any = (jacobian if scores else hessian)(partial(likelihoods, *batch), point)
        if scores:
            mass = torch.ones(len(slopes)) if batch[2] is None else batch[2]
            information += slopes.T @ (mass.to(slopes).reshape(-1, 1) * slopes)
        else:
            information -= slopes
    if not scores:
        slopes = hessian(log_prior, point)
        information -= slopes
    values, vectors = torch.linalg.eigh((information + information.T) / 2)
    slack = _NULL * values.abs().amax()
    if bool((values < -1e3 * slack).any()):
        raise ModelError(
            "Standard errors are those of a maximum, and the fit is at none: the information has "
            f"an eigenvalue of {float(values[0]):.3g}. Fit with a smaller tolerance."
        )
    null = values <= slack
    inverse = torch.where(null, 0.0, 1.0 / torch.where(null, 1.0, values))

    def error(slopes: Tensor) -> Tensor:
        along = slopes @ vectors
        unknown = along[..., null].square().sum(-1) > _NULL
        return torch.where(unknown, torch.inf, (along.square() * inverse).sum(-1)).sqrt()

    return fixed | {
        name: tuple(map(error, jacobian(lambda p, name=name: made(p)[name].estimates(), point)))
        for name in parts
    }


def _at(
    parameters: Mapping[str, Parameter], free: Mapping[str, Sequence[Tensor]]
) -> dict[str, Parameter]:
    return {name: p.at(free[name]) if name in free else p for name, p in parameters.items()}


def _log_likelihoods(
    em: EM, made: Mapping[str, Parameter], places: Tensor, rows: Rows
) -> tuple[Tensor, bool]:
    values = {name: p.value(rows) for name, p in made.items()}
    return em.log_likelihoods(values, places, rows)
