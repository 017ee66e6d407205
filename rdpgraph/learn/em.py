"""Expectation maximisation of any graph or structure: counts are the gradient of log Z."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from rdpgraph._core.arguments import require_fields, typed
from rdpgraph._core.numbers import ROUNDING
from rdpgraph._core.progress import goes_on
from rdpgraph.engines.solution import Status
from rdpgraph.errors import ImpossibleEvidenceError, ModelError
from rdpgraph.estimate.estimator import Estimator, Model
from rdpgraph.infer import infer
from rdpgraph.learn.parameters import Batches, Parameter, Rows
from rdpgraph.plan import clock
from rdpgraph.schedulers.scheduler import Scheduler

Statistics = dict[str, tuple[Tensor, ...]]


@dataclass(frozen=True)
class Step:
    """A step of a fit, as given to ``progress``.

    Attributes:
        start: the number of the start, from 0.
        number: of the step, from 0.
        objective: the log-likelihood plus the log-prior before it (nats).
    """

    start: int
    number: int
    objective: float

    def __str__(self) -> str:
        return f"step {self.number}, log-likelihood {self.objective:.4f}"


@dataclass(frozen=True, eq=False)
class Fit:
    """The outcome of a fit, from which another one may continue. It can be pickled.

    Attributes:
        parameters: by name, as fitted.
        history: the log-likelihood plus the log-prior (nats) at the start and after every step; in
            stepwise EM those of the passes, except for the last.
        log_likelihood: of all rows, weighted (nats), at the end.
        status: its convergence, and the exactness of log Z in all steps.
        averages: statistics and the number of updates from which stepwise EM continues.
    """

    parameters: dict[str, Parameter]
    history: tuple[float, ...]
    log_likelihood: float
    status: Status
    averages: tuple[Statistics, int] | None = field(default=None, repr=False)

    @property
    def steps(self) -> int:
        """The number of steps."""
        return len(self.history) - 1


@dataclass(frozen=True, eq=False)
class EM:
    """Fit the parameters of a model to rows of data by expectation maximisation.

    A step asks for log Z of all rows, once and with its gradient, which holds the expected counts;
    each parameter is then maximised from its counts. Where log Z is exact, log-likelihood plus
    log-prior never fall.

    Args:
        model: called with the tensors of the parameters, by name, and a batch of rows; gives a
            `FactorGraph` or a `Structure` whose log Z is the log-likelihood: (rows,), or their sum.
        parameters: by name; `Probabilities` or another `Parameter`.
        tolerance: the gain of a step, in nats for each row, below which it ends.
        limit: of steps.
        batch_size: rows that are in memory together; None: all.
        starts: how many; the first one from the parameters given, the others drawn. The best fit is
            returned. Those that collapse are left out, and the fit's status says how many and why.
        fixed: names of parameters that stay as they are.
        stepwise: an exponent in (0.5, 1]: parameters are maximised after every batch, from
            statistics in which the k-th batch weighs k to the minus of it. Liang and Klein 2009,
            "Online EM for unsupervised models", section 4.
        hard: counts of the best configuration take the place of expected ones, and its score that
            of log Z.
        scheduler: as for `infer`.
        estimator: as for `infer`; counts are then estimates, and `Fit.status` says so.
        progress: called with a `Step` after every step. A step is not reported while it runs.

    Raises:
        ModelError: an option that is none of these.

    Example:
        >>> import rdpgraph as rg
        >>> coin, side = rg.Variable("coin", 2), rg.Variable("side", 2)
        >>> def model(values, rows):
        ...     graph = rg.FactorGraph([
        ...         rg.Factor(coin, rg.Table(values["coin"])),
        ...         rg.Factor((coin, side), rg.Table(values["side"])),
        ...     ])
        ...     return graph.condition({coin: rows[:, 0], side: rows[:, 1]})
        >>> rows = torch.tensor([[0, 1], [1, 0], [-1, 1], [0, -1]])
        >>> half = torch.full((2, 2), 0.5).log()
        >>> tables = {
        ...     "coin": rg.learn.Probabilities(half[0]), "side": rg.learn.Probabilities(half)}
        >>> fit = EM(model, tables).fit(rows)
        >>> fit.parameters["coin"].log_values.exp()
        tensor([0.7500, 0.2500])
    """

    model: Callable[[dict[str, Tensor], Any], Model]
    parameters: Mapping[str, Parameter]
    tolerance: float = field(default=1e-6, kw_only=True)
    limit: int = field(default=100, kw_only=True)
    batch_size: int | None = field(default=None, kw_only=True)
    starts: int = field(default=1, kw_only=True)
    fixed: Sequence[str] = field(default=(), kw_only=True)
    stepwise: float | None = field(default=None, kw_only=True)
    hard: bool = field(default=False, kw_only=True)
    scheduler: Scheduler | None = field(default=None, kw_only=True)
    estimator: Estimator | None = field(default=None, kw_only=True)
    progress: Callable[[Step], None] | None = field(default=None, kw_only=True, repr=False)

    def __post_init__(self) -> None:
        require_fields(
            self, tolerance="[0, inf]", limit="[0, inf)", batch_size="[1, inf)",
            starts="[1, inf)", stepwise="(0.5, 1]",
        )  # fmt: skip
        given: Mapping[str, Any] = self.parameters
        if not given:
            raise ModelError(f"EM needs parameters by name, at least one; got {given!r:.80}.")
        for name, parameter in given.items():
            if not isinstance(parameter, Parameter):
                raise ModelError(
                    f"Parameter {name!r} of EM must be Probabilities or another Parameter; got "
                    f"{type(parameter).__name__}."
                )
        if unknown := {*self.fixed} - {*given}:
            raise ModelError(
                f"EM cannot keep {min(unknown)!r} fixed, which is none of {', '.join(given)}."
            )

    @torch.inference_mode(mode=False)
    @typed()
    def fit(
        self,
        data: Any,
        weights: Any = None,
        *,
        start: Fit | None = None,
        generator: torch.Generator | None = None,
    ) -> Fit:
        """Fit the parameters to data.

        Args:
            data: a tensor with a leading dim of rows, or a tuple or dictionary of them; or an
                iterable of such batches, which is gone through again in every step.
            weights: (rows,) of the rows, or a list of those of each batch; None: one each.
            start: an earlier fit to go on from, its history included.
            generator: draws further starts, and the order of rows of stepwise EM.

        Raises:
            ImpossibleEvidenceError: a row that no configuration explains; the message names it.
            ModelError: data or weights that are none of these, or a parameter that has no maximum
                in any start.
        """
        if self.starts > 1 and generator is None:
            raise ModelError("EM draws further starts; give generator=torch.Generator().")
        shuffle = generator if self.stepwise is not None else None
        batches = Batches.of(data, weights, self.batch_size, shuffle)

        def fitted(number: int) -> Fit:
            begin = start or Fit(dict(self.parameters), (), 0.0, Status())
            if number:
                assert generator is not None
                drawn = {
                    name: parameter if name in self.fixed else parameter.drawn(generator)
                    for name, parameter in self.parameters.items()
                }
                begin = Fit(drawn, (), 0.0, Status())
            return self._climbed(batches, begin, number, generator)

        return best_fit(self.starts, fitted)

    def _climbed(
        self, batches: Batches, begin: Fit, number: int, generator: torch.Generator | None
    ) -> Fit:
        parameters, averages = begin.parameters, begin.averages or ({}, 0)
        history = list(begin.history[:-1])  # the parameters are scored again
        first, converged, fell = len(history), False, False
        while True:
            last = len(history) - first == self.limit
            update = self.stepwise if not last and not converged else None
            scored = self._scored(batches, parameters, averages, update, generator)
            history.append(scored.objective)
            if not scored.objective < math.inf:
                raise ModelError(
                    f"The log-likelihood plus log-prior of EM is {scored.objective} after "
                    f"{len(history) - 1} steps: it has no maximum there. Check the weights and the "
                    "prior, or start from other parameters."
                )
            step = Step(number, len(history) - 1, history[-1])
            stopped = not goes_on(self.progress, step) or clock.stopped()
            if last or converged or stopped:
                break
            if len(history) - first > 1:
                gain = history[-1] - history[-2]
                slack = ROUNDING * (abs(history[-1]) + scored.weight)
                rises = scored.exact and self.stepwise is None
                fell = rises and gain < -slack
                converged = (gain if rises else abs(gain)) < self.tolerance * scored.weight
            if self.stepwise is not None:
                parameters, averages = scored.parameters, scored.averages
            elif converged:
                break
            else:
                parameters = _maximised(parameters, scored.statistics)
        steps = len(history) - 1 - first
        remedy = "" if converged else f"not converged in {steps} steps: give a larger limit"
        if stopped and not converged:
            remedy = f"not converged in {steps} steps, after which it was stopped: let it go on"
        if not scored.exact:
            remedy = "log Z was estimated, so that the history and the likelihood may fall"
        if fell:
            remedy = (
                "the objective fell, as it cannot in exact EM: the model's log-weights must be "
                "sums of the tables that it is given, and depend on the parameters in no other way"
            )
        status = Status(
            exact=scored.exact, converged=converged and not fell, biased=not scored.exact,
            iterations=len(history) - 1, method="hard EM" if self.hard else "EM", remedy=remedy,
        )  # fmt: skip
        ended = averages if self.stepwise is not None else None
        return Fit(parameters, tuple(history), scored.log_likelihood, status, ended)

    def _scored(
        self,
        batches: Batches,
        parameters: dict[str, Parameter],
        averages: tuple[Statistics, int],
        update: float | None,
        generator: torch.Generator | None,
    ) -> "_Scored":
        """Pass over the data once; with an exponent, update parameters after each batch."""
        total = weight = 0.0
        exact, summed = True, Statistics()
        share = batches.weight() if update is not None else 1.0
        for places, rows, masses in batches:
            # Expected counts are the gradients of the log-likelihood in the log-values.
            values = {name: p.value(rows).detach() for name, p in parameters.items()}
            free = {name: p for name, p in parameters.items() if name not in self.fixed}
            leaves = [values[name].requires_grad_() for name in free]
            with torch.enable_grad():
                log_z, sure = self.log_likelihoods(values, places, rows, generator)
                if masses is not None and log_z.shape != masses.shape:
                    raise ModelError(
                        f"Weights need a log Z for each of the {len(places)} rows; the model's has "
                        f"shape {tuple(log_z.shape)}."
                    )
                likelihood = (log_z if masses is None else log_z * masses.to(log_z)).sum()
                gradients = ()
                if leaves:
                    gradients = torch.autograd.grad(
                        likelihood, leaves, allow_unused=True, materialize_grads=True
                    )
            total += float(likelihood.detach())
            mass = float(len(places)) if masses is None else float(masses.sum())
            weight, exact = weight + mass, exact and sure
            # Each parameter turns its counts into statistics, which are summed over the batches.
            for (name, parameter), counts in zip(free.items(), gradients, strict=True):
                part = parameter.statistics(rows, counts)
                before = summed.get(name)
                summed[name] = part if before is None else _mixed(before, part, 1.0, 1.0)
            if update is not None:
                # Stepwise: the averages move a step of (t + 2)^-update towards this batch.
                known, times = averages
                eta, scale = (times + 2) ** -update, share / mass
                part = {n: tuple(scale * one for one in each) for n, each in summed.items()}
                if known:
                    part = {n: _mixed(known[n], part[n], 1 - eta, eta) for n in part}
                averages, summed = (part, times + 1), {}
                parameters = _maximised(parameters, part)
        prior = sum(float(parameter.log_prior()) for parameter in parameters.values())
        return _Scored(total + prior, total, weight, exact, summed, parameters, averages)

    def log_likelihoods(
        self,
        values: dict[str, Tensor],
        places: Tensor,
        rows: Rows,
        generator: torch.Generator | None = None,
    ) -> tuple[Tensor, bool]:
        """The log-likelihoods of a batch in float64, and True where log Z is exact.

        ``places`` (rows,) are row numbers for messages. Raises `ImpossibleEvidenceError` for a row
        that no configuration explains.
        """
        model = self.model(values, rows)
        posterior = infer(model, self.scheduler, estimator=self.estimator, generator=generator)
        # Checked before asking for a mode, which an impossible row lacks.
        log_z = posterior.log_partition
        dead = (log_z.detach() == -torch.inf).reshape(-1).nonzero().flatten()
        if len(dead):
            each = log_z.numel() == len(places)
            where = f"row {int(places[dead[0]])}" if each else f"rows {int(places[0])} and on"
            raise ImpossibleEvidenceError(
                f"No configuration explains {where} of the data: its probability is zero. Check "
                "its values, and the entries of -inf, or give a prior."
            )
        if self.hard:
            mode: Any = posterior.mode()
            log_z = model.score(mode)
        status = posterior.status_of("log_partition")
        return log_z.double(), status.exact and not status.biased


@dataclass(frozen=True, eq=False)
class _Scored:
    """Sums of a pass over the data."""

    objective: float
    log_likelihood: float
    weight: float
    exact: bool
    statistics: Statistics
    parameters: dict[str, Parameter]
    averages: tuple[Statistics, int]


def best_fit(starts: int, fitted: Callable[[int], Fit]) -> Fit:
    """The best of the fits from some starts; its status counts those that collapsed.

    Args:
        starts: how many.
        fitted: gives the fit from a start, by number.

    Raises:
        ModelError: all collapsed; or `ImpossibleEvidenceError`, the type of the first error.
    """
    fits, errors = list[Fit](), list[ModelError | ImpossibleEvidenceError]()
    for number in range(starts):
        try:
            fits.append(fitted(number))
        except (ModelError, ImpossibleEvidenceError) as error:
            if starts == 1:
                raise
            errors.append(error)
    if not fits:
        raise type(errors[0])(f"All {starts} starts collapsed. The first: {errors[0]}")
    best = max(fits, key=lambda fit: fit.history[-1])
    if not errors:
        return best
    dropped = (
        f"{len(errors)} of {starts} starts collapsed and were dropped, the first by: {errors[0]}"
    )
    remedies = [part for part in (best.status.remedy, dropped) if part]
    return replace(best, status=replace(best.status, remedy="; ".join(remedies)))


def _mixed(
    one: tuple[Tensor, ...], two: tuple[Tensor, ...], first: float, second: float
) -> tuple[Tensor, ...]:
    return tuple(first * a + second * b for a, b in zip(one, two, strict=True))


def _maximised(parameters: dict[str, Parameter], statistics: Statistics) -> dict[str, Parameter]:
    """Maximise all parameters by their statistics; an error names the parameter at fault."""
    result: dict[str, Parameter] = {}
    for name, parameter in parameters.items():
        if name not in statistics:  # it is fixed
            result[name] = parameter
            continue
        try:
            result[name] = parameter.maximised(statistics[name])
        except ModelError as error:
            raise ModelError(f"Parameter {name!r}: {error}") from None
    return result
