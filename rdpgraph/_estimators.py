"""What every estimator must do: answers about the model as declared, and a word of their worth."""

import copy
import math
import pickle
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from rdpgraph._agreement import (
    NUMBERS,
    QUESTIONS,
    agree,
    agree_on_average,
    alike,
    close,
    seeded,
    tensors_of,
)
from rdpgraph.errors import UnsupportedError
from rdpgraph.estimate.problem import Estimator, Model
from rdpgraph.infer import explain, infer
from rdpgraph.model.factor import FactorBlock
from rdpgraph.model.graph import FactorGraph
from rdpgraph.model.structure import Structure
from rdpgraph.model.table import Table
from rdpgraph.plan.plan import Plan

_ROUNDING = 1e-6
"""Nats by which sums of few float64 numbers may differ from bounds of them."""


def check_estimator(estimator: Estimator, model: Model, *, draws: int = 0) -> None:
    """Hold an estimator to its promises, on a small model that exact inference answers.

    The posterior is of the type that the model has without it, and so are its answers, in their
    shapes; marginals are probabilities, modes and samples possible configurations. Where the
    `Status` says exact, all agree with exact inference, and log Z is bounded where it says that. A
    generator of one seed gives one answer; posteriors pickle and deep-copy, and log Z has a
    gradient, which is the marginals where it is exact. What raises `UnsupportedError` is left out.

    Args:
        estimator: what is checked.
        model: a small graph or structure of float64, possible in every item; no evidence.
        draws: for an estimator whose Z is unbiased, from how many runs its mean is compared with Z,
            by their own standard error; 0: it is not.

    Raises:
        AssertionError: what does not hold.

    Example:
        >>> import torch
        >>> import rdpgraph as rg
        >>> chain = rg.Chain(torch.randn(4, 3).double(), torch.randn(3, 3).double())
        >>> check_estimator(rg.Randomized.default(keep=2, replicates=4), chain, draws=100)
    """
    name = type(estimator).__name__
    truth, estimated = infer(model), _run(estimator, model, 1)
    agree(type(estimated) is type(truth), f"infer with {name} gives a {type(truth).__name__}")
    agree(isinstance(_explained(estimator, model), Plan), f"explain with {name} gives a Plan")
    _check_answers(name, model, estimated, truth)
    _check_worth(name, model, estimated, truth)
    again = _run(estimator, model, 1)
    for ask in QUESTIONS.values():
        for what, other in (("run again from one seed", again), *_copies(estimated)):
            with suppress(UnsupportedError):
                one, two = map(tensors_of, (ask(estimated), ask(other)))
                for mine, theirs in zip(one, two, strict=True):
                    close(theirs, mine, f"an answer of {name} {what}")
    _check_gradient(name, estimator, model)
    if draws:
        _check_mean(name, estimator, model, truth.log_partition, draws)


def _run(estimator: Estimator, model: Model, seed: int) -> Any:
    return infer(model, estimator=estimator, generator=seeded(seed))


def _explained(estimator: Estimator, model: Model) -> Any:
    return explain(model, estimator=estimator, generator=seeded(1))


def _copies(estimated: Any) -> list[tuple[str, Any]]:
    return [
        ("pickled", pickle.loads(pickle.dumps(estimated))),
        ("copied", copy.deepcopy(estimated)),
    ]


def _check_answers(name: str, model: Model, estimated: Any, truth: Any) -> None:
    for what, ask in QUESTIONS.items():
        with suppress(UnsupportedError):
            alike(ask(estimated), ask(truth), f"{what} with {name}")
    for mine, theirs in zip(
        tensors_of(estimated.marginals()), tensors_of(truth.marginals()), strict=True
    ):
        agree(bool((mine >= 0).all()), f"marginals with {name} are not negative")
        if isinstance(model, FactorGraph):
            close(mine.sum(-1), theirs.sum(-1), f"the sum of marginals with {name}")
    for what in ("mode()", "sample()"):
        with suppress(UnsupportedError):
            possible = bool((_score(model, QUESTIONS[what](estimated)) > -math.inf).all())
            agree(possible, f"{what} with {name} is possible")


def _check_worth(name: str, model: Model, estimated: Any, truth: Any) -> None:
    status = estimated.status
    agree(status.exact or status.biased, f"log Z with {name} is exact, or said to be biased")
    if status.exact:
        for what, ask in NUMBERS.items():
            for mine, theirs in zip(
                tensors_of(ask(estimated)), tensors_of(ask(truth)), strict=True
            ):
                close(mine, theirs, f"{what} with {name}, which its status says is exact,")
        best = _score(model, truth.mode())
        close(_score(model, estimated.mode()), best, f"the score of the mode with {name}")
        if isinstance(model, FactorGraph):
            above = estimated.mode_bound() >= best.detach().double().cpu() - _ROUNDING
            agree(bool(above.all()), f"no score exceeds mode_bound() with {name}")
    above = {"upper": 1.0, "lower": -1.0}.get(status.bound)
    if above is not None:
        gap = above * (estimated.log_partition - truth.log_partition)
        agree(bool((gap > -1e-9).all()), f"log Z with {name} is a bound, {status.bound}")
    if isinstance(model, FactorGraph):
        with suppress(UnsupportedError):
            lower, upper = estimated.bounds()
            log_z = truth.log_partition
            inside = (lower - _ROUNDING <= log_z) & (log_z <= upper + _ROUNDING)
            agree(bool(inside.all()), f"log Z lies within bounds() with {name}")


def _score(model: Model, configuration: Any) -> Tensor:
    return model.score(configuration)


def _check_gradient(name: str, estimator: Estimator, model: Model) -> None:
    if isinstance(model, Structure):
        leaf = model.unary.detach().requires_grad_()
        asked: Model = model.with_unary(leaf)
    else:
        entry = next(iter(model.variables))
        zeros = torch.zeros(*entry.shape, entry.size, dtype=model.dtype, device=model.device)
        leaf = zeros.requires_grad_()
        slot = entry if entry.shape else [entry]
        asked = model.with_factors(FactorBlock((slot,), Table(leaf if entry.shape else leaf[None])))
    estimated = _run(estimator, asked, 1)
    try:
        log_z = estimated.log_partition
    except UnsupportedError:
        return
    (gradient,) = torch.autograd.grad(log_z.sum(), leaf)
    agree(bool(gradient.isfinite().all()), f"the gradient of log Z with {name} is finite")
    if estimated.status.exact:
        first = tensors_of(estimated.marginals())[0]
        expected = first.reshape(-1, *gradient.shape).sum(0)
        close(gradient, expected, f"the gradient of log Z with {name}, beside the marginals,")


def _check_mean(name: str, estimator: Estimator, model: Model, log_z: Tensor, draws: int) -> None:
    logs = torch.stack(
        [_run(estimator, model, seed).log_partition.detach() for seed in range(draws)]
    )
    agree_on_average((logs - log_z).exp(), f"Z with {name} is right on average")
