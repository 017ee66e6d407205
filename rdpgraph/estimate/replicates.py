"""Replicates of an estimate: their combination, errors, statuses and lower bounds on Z."""

import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from rdpgraph._core import tuning
from rdpgraph._core.arguments import typed
from rdpgraph._core.cache import differentiable_property
from rdpgraph._core.numbers import ROUNDING, student
from rdpgraph.engines.solution import Solution, Status
from rdpgraph.errors import BudgetError, UnsupportedError
from rdpgraph.estimate.estimator import Model, Supports, restricted
from rdpgraph.logspace.logmatrix import soft_sum
from rdpgraph.logspace.means import effective_size, is_worth_enough, mean_error, shares
from rdpgraph.model.graph import FactorGraph
from rdpgraph.model.restriction import Support
from rdpgraph.structures.draws import uniform

_FEW = 16  # replicates that show what each of them may miss
_SURE = 0.999  # of the interval beyond which a bound is no chance


@dataclass(frozen=True, eq=False)
class Replicates:
    """Independent estimates of one partition function, or draws that have equal weights.

    Attributes:
        log_partitions: (replicates, *batch) nats; -inf where nothing kept was possible.
        equal: the possible ones have equal weights, whatever these are; the mean is no Z.
        errors: (*batch,) standard errors of log Z, nats, where more is known than the replicates
            show; None: by the replicates alone.
        bounds: (*batch,) and (*batch,) certain lower and upper bounds on log Z, nats, if any are
            known, as the mass of states that all replicates miss together.
    """

    log_partitions: Tensor
    equal: bool = False
    errors: Tensor | None = None
    bounds: tuple[Tensor, Tensor] | None = None

    def within(self, bounds: tuple[Tensor, Tensor] | None) -> "Replicates":
        """The replicates with bounds on log Z; those that do not differ show no error: +inf."""
        logs = self.log_partitions.detach()
        unknown = logs.amax(0) - logs.amin(0) <= self._rounding
        if bounds is not None:
            unknown &= bounds[0] < bounds[1]
        errors = torch.where(unknown, math.inf, self._error)
        return replace(self, errors=errors, bounds=bounds)

    @property
    def count(self) -> int:
        """Number of replicates."""
        return self.log_partitions.shape[0]

    @differentiable_property
    def log_partition(self) -> Tensor:
        """(*batch,) log of the mean of Z, which is unbiased for Z and too low for log Z.

        Raises:
            UnsupportedError: draws of equal weights, which estimate no Z.
        """
        self.require_estimates()
        return soft_sum(self.log_partitions, 0) - math.log(self.count)

    def require_estimates(self) -> None:
        """Raise `UnsupportedError` for draws of equal weights, which estimate no Z."""
        if self.equal:
            raise UnsupportedError(
                "An average of dependent draws with equal weights has no log Z, and nothing that "
                "needs one; its marginals, samples and modes are answered."
            )

    @property
    def possible(self) -> Tensor:
        """(replicates, *batch) whether the replicate has a possible configuration."""
        return self.log_partitions.detach() > -math.inf

    @differentiable_property
    def weights(self) -> Tensor:
        """(replicates, *batch) weight of each in the mean; zero where log Z is -inf."""
        if not self.equal:
            return shares(self.log_partitions)
        alive = self.possible
        return alive.to(self.log_partitions) / alive.sum(0).clamp(min=1)

    @property
    def standard_error(self) -> Tensor:
        """(*batch,) of log Z, nats; +inf where fewer than four replicates are possible.

        By the delta method, if the replicates are worth six and half of their number. Else the
        largest of them decide their mean, and it is no less than the standard deviation of their
        logs, nor than half of the variance, by which the mean log of a lognormal Z is too low.
        Where a bound on log Z is farther away than chance allows, it is no less than the distance.
        """
        return torch.maximum(self._error, self._beyond)

    @property
    def _error(self) -> Tensor:
        """(*batch,) standard error, whatever the bounds."""
        if self.errors is not None:
            return self.errors
        return mean_error(self.log_partitions)

    @property
    def _rounding(self) -> Tensor:
        """(*batch,) nats below which log Z does not differ."""
        return ROUNDING * self.log_partition.detach().abs().clamp(min=1.0)

    @property
    def _beyond(self) -> Tensor:
        """(*batch,) nats from log Z to a bound that is not beside it by chance; else 0."""
        log_z = self.log_partition.detach()
        if self.bounds is None:
            return torch.zeros_like(log_z)
        (least, most), (low, high) = self.bounds, self.interval(_SURE)
        gap = torch.where(high == math.inf, least - log_z, 0.0)
        gap = torch.where(low == -math.inf, torch.maximum(gap, log_z - most), gap)
        return torch.where(self._error < math.inf, gap, 0.0)

    @typed(confidence="(0, 1)")
    def interval(self, confidence: float) -> tuple[Tensor, Tensor]:
        """(*batch,) and (*batch,): ends by Student's t; infinite where the error is.

        They hold log Z about that often if replicates differ little. An end that a bound on log Z
        proves to be wrong is infinite.
        """
        log_z, error = self.log_partition.detach(), self._error
        width = student(0.5 + confidence / 2, self.count - 1)
        half = torch.where(error > 0, width * error, 0.0)
        low = torch.where(half < math.inf, log_z - half, -math.inf)
        high = torch.where(half < math.inf, log_z + half, math.inf)
        if self.bounds is None:
            return low, high
        least, most = self.bounds
        slack = self._rounding
        low = torch.where(most < low - slack, -math.inf, low)
        return low, torch.where(least > high + slack, math.inf, high)

    @property
    def effective_sample_size(self) -> Tensor:
        """(*batch,) square of the sum of Z over the sum of its squares; 0 where Z is 0."""
        return effective_size(self.weights)

    def described(self, status: Status) -> Status:
        """Status with the replicates' error and effective number, of the worst item.

        Neither for one replicate, or for draws with equal weights, which have no known error.
        Converged: there are sixteen and more, worth half of their number, and no bound is beyond
        what they allow; for messages that iterate, whether these have converged.
        """
        known = self.count > 1 and not self.equal and self.log_partitions.numel() > 0
        error = 0.0 if status.exact or not known else float(self.standard_error.amax())
        status = replace(
            status,
            standard_error=error if known else None,
            effective_sample_size=float(self.effective_sample_size.amin()) if known else None,
        )
        if status.exact or status.bound or self.equal or not self.log_partitions.numel():
            return status
        size = float(self.effective_sample_size.amin())
        if not bool(self.possible.any(0).all()):
            doubt = (
                "no replicate has a possible configuration, so that the kept states of neighbours "
                "cannot be joined: keep more states, or take Exact()"
            )
        elif status.iterations is not None:
            return status
        elif bool((self._beyond > 0).any()):
            doubt = (
                "states that different replicates keep have more mass together than the estimate, "
                "or all states another: keep more states, or take Exact()"
            )
        elif self.count < _FEW:
            doubt = (
                f"{self.count} of {_FEW} replicates that an error is known by: replicates=16, and "
                "interval() for the error by Student's t"
            )
        elif not bool(is_worth_enough(self.log_partitions).all()):
            doubt = f"{self.count} replicates are worth {size:.2g}: keep more states"
        elif error == math.inf:
            doubt = "replicates that do not differ show no error: keep more states, or take Exact()"
        else:
            return status
        return replace(status, converged=False, remedy=status.remedy or doubt)

    def mean(self, values: Tensor) -> Tensor:
        """(*batch, ...) mean of (replicates, *batch, ...) values, weighted by Z."""
        extra = values.ndim - self.weights.ndim
        return (values * self.weights.reshape(*self.weights.shape, *(1,) * extra)).sum(0)

    def choose(self, count: int, generator: torch.Generator | None) -> Tensor:
        """(count, *batch) replicates drawn in proportion to their Z."""
        weights = self.weights.detach().double()
        heights = weights.cumsum(0)
        total = heights[-1]
        target = uniform((count, *total.shape), total.device, generator) * total
        target = torch.minimum(target, total.nextafter(torch.zeros_like(total)))
        return (heights.unsqueeze(1) <= target).sum(0).clamp(max=self.count - 1)


def draws_before(chosen: Tensor) -> Tensor:
    """(count, *batch) number of earlier draws from the same replicate.

    The largest plus one is the number of draws needed of every replicate. ``chosen`` (count,
    *batch) is the replicate of each draw.
    """
    ordered, order = chosen.sort(dim=0, stable=True)
    place = torch.arange(len(chosen), device=chosen.device)
    place = place.reshape(-1, *(1,) * (chosen.ndim - 1)).expand_as(chosen)
    new = torch.ones_like(chosen, dtype=torch.bool)
    new[1:] = ordered[1:] != ordered[:-1]
    first = torch.where(new, place, 0).cummax(0).values if len(chosen) else place
    return torch.zeros_like(chosen).scatter(0, order, place - first)


def taken(drawn: Tensor, chosen: Tensor) -> Tensor:
    """(count, *batch, ...) next unused draw of each chosen replicate (count, *batch).

    ``drawn`` are (many, replicates, *batch, ...) draws of all replicates.
    """
    index = draws_before(chosen) * drawn.shape[1] + chosen
    index = index.reshape(*index.shape, *(1,) * (drawn.ndim - 1 - index.ndim))
    return drawn.flatten(0, 1).take_along_dim(index, 0)


def averaged(lift: Callable[[Solution], Solution], count: int, solution: Solution) -> "Averaged":
    """Lift the solution of replicates of a rewritten model, and average them."""
    return Averaged(lift(solution), count, solution)


@dataclass(frozen=True, eq=False)
class Averaged(Solution):
    """Answers of replicates of a model together, each in proportion to its Z."""

    inner: Solution  # the solution of all replicates, (replicates * B)
    count: int  # number of replicates
    engine: Solution  # that of the rewritten model

    def _split(self, values: Tensor, dim: int = 0) -> Tensor:
        return values.unflatten(dim, (self.count, -1))

    @differentiable_property
    def replicates(self) -> Replicates:
        """Estimates of Z; the error of an engine that approximates is not known by them."""
        logs = self._split(self.inner.log_partition())
        unknown = torch.full_like(logs[0].detach(), math.inf)
        exact = self.engine.status_of("log_partition").exact
        return Replicates(logs, errors=None if exact else unknown)

    def status(self) -> Status:
        """Status: neither exact nor unbiased, with the error that the replicates show."""
        return self.replicates.described(self.inner.status())

    def status_of(self, answer: str) -> Status:
        return self.replicates.described(self.inner.status_of(answer))

    def log_partition(self) -> Tensor:
        return self.replicates.log_partition

    def log_partitions(self) -> Tensor:
        return self.replicates.log_partitions

    def log_partition_errors(self) -> Tensor:
        return self.replicates.standard_error

    def interval(self, confidence: float) -> tuple[Tensor, Tensor]:
        return self.replicates.interval(confidence)

    def variable_marginals(self) -> Tensor:
        return self.replicates.mean(self._split(self.inner.variable_marginals()))

    def check_factor_marginals(self, block: int) -> None:
        self.inner.check_factor_marginals(block)

    def factor_marginals(self, block: int) -> Tensor:
        return self.replicates.mean(self._split(self.inner.factor_marginals(block)))

    def joint(self, numbers: Tensor, solve: Callable[[FactorGraph], Solution]) -> Tensor | None:
        joint = self.inner.joint(numbers, solve)
        return None if joint is None else self.replicates.mean(self._split(joint))

    def sample(self, count: int, generator: torch.Generator | None) -> Tensor:
        """(count, B, V): a replicate in proportion to its Z, then a configuration of it."""
        chosen = self.replicates.choose(count, generator)
        most = int(draws_before(chosen).amax()) + 1 if chosen.numel() else 0
        drawn = self._split(self.inner.sample(most, generator), 1)
        return taken(drawn, chosen.to(drawn.device))

    def rsample(self, temperature: float, generator: torch.Generator | None) -> Tensor:
        chosen = self.replicates.choose(1, generator).unsqueeze(-1)
        drawn = self._split(self.inner.rsample(temperature, generator))
        return drawn.take_along_dim(chosen.to(drawn.device), 0)[0]

    def expected_score(self) -> Tensor:
        raise _no_average("expected score or entropy")

    def max_marginals(self) -> Tensor:
        raise _no_average("max-marginals")

    def mode(self) -> Tensor:
        raise _no_average("mode")

    def marginal_mode(self, numbers: Tensor) -> Tensor:
        raise _no_average("marginal mode")


def _no_average(answer: str) -> UnsupportedError:
    return UnsupportedError(
        f"Replicates of a rewritten model together have no {answer}; take replicates=1, or Exact()."
    )


@torch.no_grad()
def mass_of(
    model: Model, few: Model, supports: Supports, count: int, solve: Callable[[Model], Any]
) -> tuple[Tensor, Tensor] | None:
    """(B,) and (B,): bounds on log Z by the states that ``count`` replicates keep; None: no time.

    Their mass, each with weight one, is a lower bound. It joins states of neighbours that no
    replicate has together. As many replicates are taken as cost no more than a few times the
    estimate (of the model on ``few`` states); or all states, if these do not, whose mass is Z.
    """
    most = max(tuning.CHECKED * solve(few).plan.flops, tuning.LITTLE_WORK)
    for wider in _wider(model, supports, count):
        with suppress(BudgetError):
            posterior = solve(wider)
            solution = posterior.solution
            if posterior.plan.flops <= most and solution.status_of("log_partition").exact:
                mass = solution.log_partition()
                return mass, mass if wider is model else torch.full_like(mass, math.inf)
    return None


def _wider(model: Model, supports: Supports, count: int) -> Iterator[Model]:
    """Model on all states, then on those of fewer and fewer replicates together."""
    yield model
    while count > 1:
        yield restricted(model, tuple(given and _together(given, count) for given in supports))
        count //= 2


def _together(support: Support, count: int) -> Support:
    """(1, *lead, kept) union of the states of the first ``count`` of (replicates, *lead, kept)."""
    support = support.unweighted().map(lambda part: part[:count].movedim(0, -2).flatten(-2))
    # Of a state the entry that is masked comes last.
    order = (support.states * 2 + (support.log_weights == -math.inf)).argsort(-1)
    support = support.map(lambda part: part.gather(-1, order))
    masked = support.log_weights == -math.inf
    masked[..., 1:] |= support.states[..., 1:] == support.states[..., :-1]
    first = masked.long().argsort(dim=-1, stable=True)
    first = first[..., : max(int((~masked).sum(-1).max()), 1)]
    log_weights = support.log_weights.masked_fill(masked, -math.inf)
    support = Support(support.states, log_weights)
    return support.map(lambda part: part.gather(-1, first).unsqueeze(0))
