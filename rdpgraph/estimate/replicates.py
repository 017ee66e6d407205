"""Replicates of an estimate: their combination, errors, statuses and lower bounds on Z."""

import math
import operator
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from rdpgraph._core import tuning
from rdpgraph._core.arguments import typed
from rdpgraph._core.cache import cached_property, differentiable_property
from rdpgraph._core.numbers import LEAST, ROUNDING, student
from rdpgraph.engines.exact.engine import log_partition_by
from rdpgraph.engines.reduction.network import reduce_graph
from rdpgraph.engines.solution import Solution, Status
from rdpgraph.errors import BudgetError, UnsupportedError
from rdpgraph.estimate.estimator import Model, Supports, restricted, sites_of
from rdpgraph.interface.structure import Structure
from rdpgraph.logspace.logmatrix import soft_scatter, soft_sum
from rdpgraph.logspace.means import effective_size, is_worth_enough, mean_error, shares
from rdpgraph.model.graph import FactorGraph
from rdpgraph.model.restriction import Support
from rdpgraph.plan.plan import Plan, cost
from rdpgraph.structures.draws import uniform

_FEW = 16  # replicates that show what each of them may miss
_SURE = 0.95  # of the interval beyond which a bound is no chance
_BESIDE = 0.7  # of the interval beyond which a bound raises doubts: it has more than one error
_CHANCE = 0.001  # of groups of replicates that disagree though nothing is missed
_SHARE = 0.8  # of the replicates' number, their effective one: a relative deviation of a half
_APART = 6.0  # times the replicates' error: beyond it joined states contradict them
_ALIKE = 2.0  # nats, standard deviation of log Z of replicates that have all modes
_TINY = 1e-3  # nats: in most models with smaller errors all replicates miss a mode


@dataclass(frozen=True, eq=False)
class Replicates:
    """Independent estimates of one partition function, or draws that have equal weights.

    Attributes:
        log_partitions: (replicates, *batch) nats; -inf where nothing kept was possible.
        equal: the possible ones have equal weights, whatever these are; the mean is no Z.
        errors: (*batch,) standard errors of log Z, nats, where more is known than the replicates
            show; None: by the replicates alone.
        bounds: (*batch,) and (*batch,) certain lower and upper bounds on log Z, nats, if any are
            known, as the mass of the states of several replicates together.
        joined: what the states of several replicates together say, with which these were compared;
            None: they were not.
        groups: the group of each replicate. Those of a group had one run of the proposal, and may
            miss the same states; empty: the replicates have nothing in common.
    """

    log_partitions: Tensor
    equal: bool = False
    errors: Tensor | None = None
    bounds: tuple[Tensor, Tensor] | None = None
    joined: "Joined | None" = None
    groups: tuple[int, ...] = ()

    def compared(self, joined: "Joined") -> "Replicates":
        """Return the replicates with the bounds of joined states, and errors that allow for them.

        Replicates that do not differ show no error: it is +inf, unless both bounds are log Z.
        """
        logs = self.log_partitions.detach()
        unknown = logs.amax(0) - logs.amin(0) <= self._rounding
        if joined.bounds is not None:
            unknown &= joined.bounds[0] < joined.bounds[1]
        errors = self._error if joined.error is None else torch.maximum(self._error, joined.error)
        errors = torch.where(unknown, math.inf, errors)
        return replace(self, errors=errors, bounds=joined.bounds, joined=joined)

    @property
    def count(self) -> int:
        """Number of replicates."""
        return self.log_partitions.shape[0]

    @differentiable_property
    def log_partition(self) -> Tensor:
        """(*batch,) log of the mean of Z. The mean is unbiased; its log is too low on average.

        Raises:
            UnsupportedError: draws of equal weights, which estimate no Z.
        """
        self.require_estimates()
        return soft_sum(self.log_partitions, 0) - math.log(self.count)

    def require_estimates(self) -> None:
        """Raise `UnsupportedError` for draws of equal weights, which estimate no Z."""
        if self.equal:
            raise UnsupportedError(
                "An average of dependent draws with equal weights has no log Z, and no answer that "
                "needs log Z; ask for marginals, samples or modes."
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
        Where a bound on log Z is beyond the 95% interval, it is no less than the distance. Where
        groups of replicates disagree, it is no less than the distance to the farthest group.
        """
        return torch.maximum(self._error, self._beyond(_SURE))

    @property
    def _error(self) -> Tensor:
        """(*batch,) standard error, whatever the bounds."""
        if self.errors is not None:
            return self.errors
        return torch.maximum(mean_error(self.log_partitions), self._disagreement)

    @cached_property
    def _disagreement(self) -> Tensor:
        """(*batch,) nats from log Z to the farthest group, if groups differ beyond chance; else 0.

        The mean log of each group is compared with that of all others, by Student's t with the
        variance within groups.
        """
        logs = self.log_partitions.detach()
        of_group = torch.tensor(self.groups, device=logs.device)
        numbers = of_group.unique()
        freedom = self.count - len(numbers)
        if len(numbers) < 2 or freedom < LEAST:
            return torch.zeros_like(logs[0])
        member = (of_group == numbers.unsqueeze(1)).to(logs)  # (groups, replicates)
        size = member.sum(1).reshape(-1, *(1,) * (logs.ndim - 1))
        possible = self.possible.all(0)
        known = torch.where(possible, logs, 0.0)
        sums = torch.tensordot(member, known, 1)
        means, others = sums / size, (known.sum(0) - sums) / (self.count - size)
        within = (known - torch.tensordot(member.mT, means, 1)).square().sum(0) / freedom
        point = student(1.0 - _CHANCE / (2 * len(numbers)), freedom)
        allowed = point * (within * (1.0 / size + 1.0 / (self.count - size))).sqrt()
        differ = ((means - others).abs() > allowed + self._rounding).any(0) & possible
        every = torch.stack([soft_sum(logs[of_group == number], 0) for number in numbers])
        distance = (every - size.log() - self.log_partition.detach()).abs().amax(0)
        return torch.where(differ, distance, 0.0)

    @property
    def _rounding(self) -> Tensor:
        """(*batch,) nats below which log Z does not differ."""
        return ROUNDING * self.log_partition.detach().abs().clamp(min=1.0)

    def _beyond(self, confidence: float) -> Tensor:
        """(*batch,) nats from log Z to a bound that is beyond the interval; else 0."""
        log_z = self.log_partition.detach()
        if self.bounds is None:
            return torch.zeros_like(log_z)
        (least, most), (low, high) = self.bounds, self.interval(confidence)
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

        One replicate, and draws with equal weights, have no known error. An estimate is converged
        if there are sixteen replicates or more; none of them misses most of Z; no bound is beyond
        log Z by much more than one standard error; and the estimate of joined states is within six
        of their standard errors. Where the whole model was solved, too, they must be worth half of
        their number. Otherwise they must be worth four fifths, so that their Z have a relative
        deviation below a half; their groups must agree; and their standard error must be neither
        below 0.001 nor their deviation above two nats. Messages that iterate must have converged.
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
        doubt = self._doubt(error, messages=status.iterations is not None)
        return replace(status, converged=False, remedy=status.remedy or doubt) if doubt else status

    def _doubt(self, error: float, *, messages: bool) -> str:
        """What speaks against the largest error, and what to do; empty if nothing does."""
        size = float(self.effective_sample_size.amin())
        if not bool(self.possible.any(0).all()):
            return (
                "no replicate has a possible configuration, because no states kept of "
                "neighbouring variables are possible together: keep more states, or use Exact()"
            )
        # The error of messages that iterate is unknown, whatever the replicates show.
        if messages:
            return ""
        # The more items a batch has, the more of them are beside a tight bound by chance.
        items = self.log_partitions[0].numel()
        if bool((self._beyond(1.0 - (1.0 - _BESIDE) / items) > 0).any()):
            return (
                "a few configurations, the states kept by several replicates together, or all "
                "states have a mass that the replicates do not allow: keep more states, or use "
                "Exact()"
            )
        if self.count < _FEW:
            return (
                f"only {self.count} of the recommended {_FEW} replicates, so that the error is "
                "uncertain: use replicates=16, or interval(), which accounts for it"
            )
        if not bool(is_worth_enough(self.log_partitions.detach()).all()):
            return (
                f"{self.count} replicates are worth only {size:.2g} of equal weight: keep more "
                "states"
            )
        if error == math.inf:
            return (
                "all replicates are equal, so that they cannot show an error: keep more states, or "
                "use Exact()"
            )
        return self._doubt_of_kept() if self.joined is not None else ""

    def _doubt_of_kept(self) -> str:
        """What speaks against replicates that were compared with their joined states."""
        assert self.joined is not None
        logs, least = self.log_partitions.detach(), self.joined.error
        if least is not None and bool((least > _APART * mean_error(logs)).any()):
            return (
                "the states of several replicates together give another estimate than the mean of "
                "the replicates: keep more states, or use Exact()"
            )
        # The deviation is NaN where a replicate is impossible.
        if not bool((logs.std(0) <= _ALIKE).all()):
            return "some replicates miss most of Z: keep more states, or use Exact()"
        # Where the whole model was solved, nothing is left that all replicates may miss.
        if self.bounds is not None and bool((self.bounds[0] == self.bounds[1]).all()):
            return ""
        size = float(self.effective_sample_size.amin())
        if size < _SHARE * self.count:
            return (
                f"{self.count} replicates are worth only {size:.3g} of equal weight, so that more "
                "of them may find more mass: keep more states"
            )
        if bool((self._disagreement > 0).any()):
            return (
                "groups of replicates disagree, each of which had a run of the proposal of its "
                "own: keep more states, or use Exact()"
            )
        if bool((self._error < _TINY).any()):
            return (
                "the replicates hardly differ, so that they cannot show what all of them miss: "
                "keep more states, or use Exact()"
            )
        return ""

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
        """The estimates of Z. They do not show the error of an engine that approximates."""
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

    def joints(self, number: int) -> Tensor | None:
        joints = self.inner.joints(number)
        return None if joints is None else self.replicates.mean(self._split(joints))

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
        f"Several replicates of a rewritten model cannot be combined to give {answer}; use "
        "replicates=1, or Exact()."
    )


@dataclass(frozen=True, eq=False)
class Joined:
    """What the states of several replicates together say of log Z, (B,) nats each.

    Attributes:
        estimate: log Z on the states of the first few replicates joined, each with the mean of its
            weights over them; None: there is no time for it. Where states are chosen independently
            of each other, as by `Randomized`, it averages over all combinations of the choices of
            these replicates, and is unbiased for Z as they are.
        error: the least standard error that the estimate allows. It is twice the distance to the
            mean of the same replicates, which have few of the combinations: where these matter,
            configurations that no replicate has matter too. Of all states it is the distance to
            their mean.
        bounds: certain lower and upper bounds on log Z; None: there is no time for any.
    """

    estimate: Tensor | None = None
    error: Tensor | None = None
    bounds: tuple[Tensor, Tensor] | None = None

    def at_least(self, mass: Tensor | None) -> "Joined":
        """Return this with a lower bound that is no less than a mass, (B,) or None."""
        if mass is None:
            return self
        none = torch.full_like(mass, -math.inf), torch.full_like(mass, math.inf)
        low, high = self.bounds or none
        return replace(self, bounds=(torch.maximum(low, mass.to(low)).minimum(high), high))


def _distance(log_partition: Tensor, logs: Tensor) -> Tensor:
    """(B,) nats between log Z and the log of the mean of Z; 0 where one of them is -inf."""
    mean = Replicates(logs.detach()).log_partition
    known = (log_partition > -math.inf) & (mean > -math.inf)
    return torch.where(known, (log_partition - mean).abs(), 0.0)


@torch.no_grad()
def joined_estimate(
    model: Model, few: Model, supports: Supports, logs: Tensor, solve: Callable[[Model], Any]
) -> Joined:
    """Solve once more, on the states of as many replicates together as take no longer.

    All states are taken if they need no more operations than the estimate itself (``few`` is the
    model on the states of all replicates, and ``logs`` (replicates, B) its log Z), or than
    `tuning.LITTLE_WORK`: then both bounds are log Z. Else two models are solved as one batch: one
    with mean weights, for the estimate, and one with weights of one, whose mass is a lower bound.
    Where two do not fit, the estimate alone is made.
    """
    kept = _kept_by_first(supports, len(logs))
    check = _Check(model, solve(few).plan, supports, logs, kept, solve)
    return check.of_all() or check.of_some(2) or check.of_some(1) or Joined()


@dataclass(frozen=True, eq=False)
class _Check:
    """A solution on states of several replicates together, within the time of the estimate."""

    model: Model  # as declared
    plan: Plan  # of the estimate
    supports: Supports  # (replicates, *batch, *shape, kept)
    logs: Tensor  # (replicates, B) log Z of each
    kept: list[float]  # states of a site that the first 1, 2, ... replicates keep, on average
    solve: Callable[[Model], Any]

    def of_all(self) -> Joined | None:
        """Check by all states; None if they take too long."""
        limit, states = max(self.plan.flops, tuning.LITTLE_WORK), 0.0
        if isinstance(self.model, FactorGraph):  # the plans of structures cost nothing
            sites = [sites.unary for sites in sites_of(self.model)]
            count = sum(each.numel() / each.shape[-1] for each in sites)
            states = sum(each.numel() for each in sites) / max(count, 1.0)
        mass = self._solved(self.model, limit) if self._predicted(states, 1) <= limit else None
        return None if mass is None else Joined(mass, _distance(mass, self.logs), (mass, mass))

    def of_some(self, rows: int) -> Joined | None:
        """Check by the states of some replicates; with two rows there is a bound, too."""
        # To read an entry of a table takes longer than an operation, and sums over pairs use each
        # entry once: half of the operations, with the reading, then take as long as the estimate.
        share = 0.5 if self._dims < 2.5 else 1.0
        limit, number = max(share * self.plan.flops, tuning.LITTLE_WORK / 10), len(self.logs)
        while number > 1:
            if self._predicted(self.kept[number - 1], rows) <= limit:
                parts = (given and _joined(given, number, rows) for given in self.supports)
                logs = self._solved(restricted(self.model, tuple(parts)), limit)
                if logs is not None:
                    estimate, *mass = logs.unflatten(0, (rows, -1))
                    above = torch.full_like(estimate, math.inf)
                    error = 2.0 * _distance(estimate, self.logs[:number])
                    return Joined(estimate, error, (mass[0], above) if mass else None)
            number = number * 3 // 4
        return None

    def _predicted(self, states: float, rows: int) -> float:
        """The predicted operations of ``rows`` replicates that keep ``states`` states of each site.

        By this a model that would be too large is not made. Tables over d variables grow by the
        d-th power of the number of states, and structures by the square at least, unless they are
        of low rank.
        """
        one, now = rows * self.plan.flops / len(self.logs), self.kept[0]
        return one * (states / now) ** self._dims

    @property
    def _dims(self) -> float:
        """Number of variables of the largest table of the estimate."""
        if isinstance(self.model, Structure):
            return 2.0
        return self.plan.width / math.log2(self.kept[0]) if self.kept[0] > 1 else math.inf

    def _solved(self, wider: Model, limit: float) -> Tensor | None:
        """(B,) log Z of a model; None where it takes too long, or is not exact."""
        with suppress(BudgetError):
            if isinstance(wider, FactorGraph) and self.plan.tree and self.plan.num_slices == 1:
                # To search another order would take longer than the estimate took.
                network = reduce_graph(wider)
                tree = self.plan.tree.over(network.topology)
                if tree is not None:
                    fits = cost(tree, batch=network.batch).flops <= limit
                    return log_partition_by(network, tree) if fits else None
            posterior = self.solve(wider)
            solution = posterior.solution
            if posterior.plan.flops <= limit and solution.status_of("log_partition").exact:
                return solution.log_partition()
        return None


def _kept_by_first(supports: Supports, count: int) -> list[float]:
    """Distinct states that the first 1, 2, ..., ``count`` replicates keep, on average of sites."""
    total, sites = [0] * count, 0
    for support in supports:
        if support is None or support.kept == 1:
            continue
        states, log_weights, replicate = _in_order(support, count)
        new = torch.ones_like(states, dtype=torch.bool)
        new[:, 1:] = states[:, 1:] != states[:, :-1]
        first = replicate[new & (log_weights > -math.inf)]
        kept = first.bincount(minlength=count).cumsum(0).tolist()
        total, sites = list(map(operator.add, total, kept)), sites + len(states)
    return [max(each / max(sites, 1), 1.0) for each in total]


def _in_order(support: Support, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """(sites, entries) states in order, with log-weights and replicates of each entry.

    Of one state the entries of weight zero come last, and those of earlier replicates first.
    """
    states, log_weights = (
        part[:count].movedim(0, -2).reshape(-1, count * support.kept)
        for part in (support.states, support.log_weights)
    )
    replicate = torch.arange(count, device=states.device).repeat_interleave(support.kept)
    key = states * 2 + (log_weights == -math.inf)
    order = key.argsort(dim=-1, stable=True)
    return states.gather(-1, order), log_weights.gather(-1, order), replicate[order]


def _joined(support: Support, count: int, rows: int) -> Support:
    """The states that the first ``count`` of (replicates, *lead, kept) replicates keep, in one.

    Returns:
        A support of ``rows`` replicates, 1 or 2, of the distinct states at each site, padded to
        equally many with weights of zero. The first has the mean of their weights over the
        ``count`` replicates, the second a weight of one for each.
    """
    states, log_weights, _ = _in_order(support, count)
    new = torch.ones_like(states, dtype=torch.bool)
    new[:, 1:] = states[:, 1:] != states[:, :-1]
    place = new.long().cumsum(1) - 1
    # One entry for each distinct state of a site; sites with fewer states have entries of -inf.
    size = int(place.max()) + 1
    groups = place + torch.arange(len(place), device=place.device).unsqueeze(1) * size
    total = soft_scatter(log_weights.flatten(), groups.flatten(), len(place) * size)
    total = total.reshape(len(place), size) - math.log(count)
    distinct = states.new_zeros(len(place), size).scatter(1, place, states)
    # Entries that have no weight come last, and go.
    masked = total == -math.inf
    first = masked.long().argsort(dim=-1, stable=True)
    first = first[:, : max(int((~masked).sum(1).max()), 1)]
    merged = Support(distinct, total).map(
        lambda part: part.gather(1, first).reshape(*support.states.shape[1:-1], -1).unsqueeze(0)
    )
    return merged if rows == 1 else Support.joined([merged, merged.unweighted()], 0)
