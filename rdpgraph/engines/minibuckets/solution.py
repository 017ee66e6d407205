"""Answers of mini-buckets and populations: log Z with bounds and an error, and marginals."""

import math
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NoReturn, cast

import numpy as np
import torch
from torch import Tensor

from rdpgraph._core import effort, tuning
from rdpgraph._core.cache import cached_property
from rdpgraph._core.progress import Progress, goes_on
from rdpgraph.engines.elimination_bounds import Elimination, rounding
from rdpgraph.engines.minibuckets.estimate import Estimate, Sampling, estimated
from rdpgraph.engines.minibuckets.population import Grown, grown
from rdpgraph.engines.minibuckets.population_intervals import RUNS, error_of, log_mean
from rdpgraph.engines.reduction.network import Network
from rdpgraph.engines.reduction.tables import Floats, Integers, state_table, tables_of
from rdpgraph.engines.solution import Solution, Status
from rdpgraph.engines.trws.bounding import Bounding
from rdpgraph.errors import BudgetError, UnsupportedError
from rdpgraph.model.soundness import items_named
from rdpgraph.plan import clock


def best_bounded(passed: Elimination, maximised: Set[int], count: int) -> tuple[Integers, Floats]:
    """(n, V) configurations with the highest bounds, and (n,) these; n is 0 if none is possible.

    Grows ``count`` configurations of the maximised variables, the last of the order, backwards
    along it; the others keep state 0.
    """
    states = np.zeros((len(passed.buckets), 1), np.int32)
    bounds = np.array([passed.bound])
    for bucket in reversed(passed.buckets):
        v = bucket[0].scope[0]
        if v not in maximised:
            break
        # The bound given a state of v: what its mini-buckets are, in place of their messages.
        sums = np.repeat(bounds[None], len(bucket[0].values), 0)
        for part in bucket:
            sums += part.values[(slice(None), *(states[u] for u in part.scope[1:]))].reshape(
                len(sums), -1
            )
            message = np.asarray(part.message[tuple(states[u] for u in part.rest)])
            sums -= np.where(message > -math.inf, message, 0.0)
        # The best pairs of a state and a configuration so far go on, those that are possible.
        flat = sums.reshape(-1)
        order = np.argsort(-flat, kind="stable")[:count]
        order = order[flat[order] > -math.inf]
        states = states[:, order % len(bounds)]
        states[v] = order // len(bounds)
        bounds = flat[order]
    return states.T.astype(np.int64), bounds


def averages(run: Grown, bound: float, starts: Integers) -> tuple[Floats, float]:
    """Marginals of the states (S,), and the expected score (nats), under the estimate.

    Means over all paths through the population, forwards and backwards, consistent as it grows;
    zero for variables without a step. ``bound`` is the log-weight before the first step, ``starts``
    (V + 1,) the first position of each variable's states.
    """
    flat, score = np.zeros(int(starts[-1])), bound
    shares = run.shares
    for step in reversed(run.steps):
        flow = shares[step.members] * step.shares
        first = int(starts[step.variable])
        size = int(starts[step.variable + 1]) - first
        flat[first : first + size] = np.bincount(step.states, flow, size)
        score += float((flow * step.gains).sum())
        shares = np.bincount(step.parents, flow, step.before)
    return flat, score


def paths(run: Grown, variables: int, most: int) -> Integers:
    """(n, V) configurations of the members with the largest weights, of their largest parts."""
    members = np.argsort(-run.shares, kind="stable")[:most]
    states = np.zeros((len(members), variables), np.int64)
    for step in reversed(run.steps):
        # The last part that is written for a member is its largest one.
        rising = np.argsort(step.shares, kind="stable")
        largest = np.zeros(int(step.members.max(initial=-1)) + 1, np.int64)
        largest[step.members[rising]] = rising
        parts = largest[members]
        states[:, step.variable] = step.states[parts]
        members = step.parents[parts]
    return states


_CLOSE = 0.2
"""Error of log Z (nats) of these populations above which that of means is not known."""


@dataclass(frozen=True, eq=False)
class _PopulationEstimate:
    """Estimates of one population: log Z, (S,) probabilities of the remaining states, score."""

    log_partition: float
    marginals: Floats
    score: float
    exact: bool


@dataclass(frozen=True, eq=False)
class _Means:
    """Means over populations: (S,) probabilities, their standard errors, expected score."""

    marginals: Floats
    errors: Floats
    score: float


def _refused(what: str, *_: object) -> NoReturn:
    raise UnsupportedError(
        f"MiniBuckets() gives log Z, its bounds and marginals of variables, but not {what}; use "
        "Auto(), or Search() for modes."
    )


@dataclass(frozen=True, eq=False)
class MiniBucketSolution(Solution):
    """Bounds and estimates of a reduced network."""

    network: Network  # the model, without high-order potentials
    sampling: Sampling  # time, memory, draws
    bounding: Bounding = field(repr=False)  # other bounds, of the same network
    # gives a proposal for each batch item, as for `grown`; None: mini-buckets alone
    likely: Callable[[], Sequence[Sequence[Floats]]] | None = field(default=None, repr=False)

    @cached_property
    def _likely(self) -> Sequence[Sequence[Floats]]:
        return [()] * self.network.batch if self.likely is None else self.likely()

    @cached_property
    def estimates(self) -> tuple[Estimate, ...]:
        """Estimates of all batch items."""
        begin, every = clock.now(), list[Estimate]()
        _ = self._likely
        seconds = (1.0 if self.sampling.sums_only else effort.MEANS_SUMS) * self.sampling.seconds
        for item in range(self.network.batch):
            share = max(seconds - (clock.now() - begin), 0.02 * seconds)
            share /= self.network.batch - item
            tables = tables_of(self.network, item, zeros=True)
            budget = replace(self.sampling, seconds=share)
            constant = float(self._constant[item])
            every.append(estimated(tables, budget, self._likely[item], constant))
        return tuple(every)

    @cached_property
    def _averages(self) -> tuple[_Means, ...]:
        """Means of all batch items."""
        # The sums have a time of their own. Making them first gives the means as much time here as
        # after a question for log Z.
        _ = self.estimates
        end = clock.now() + (1.0 - effort.MEANS_SUMS) * self.sampling.seconds
        alive, every = (self._ends(1.0)[1] > -math.inf).tolist(), list[list[_PopulationEstimate]]()
        for item, one in enumerate(self.estimates):
            left = self.network.batch - item
            until = clock.now() + (end - clock.now()) / left
            every.append(self._runs(item, one, until) if alive[item] else [])
        self._require_drawn([bool(runs) for runs in every])
        return tuple(_mixed(runs, sum(self.network.sizes)) for runs in every)

    def _require_drawn(self, drawn: Sequence[bool]) -> None:
        """Refuse items without a possible draw, unless none can be possible."""
        lost = ~torch.tensor(drawn, device="cpu") & (self._ends(1.0)[1] > -math.inf)
        if bool(lost.any()):
            lost = lost.reshape(self.network.graph.batch_shape)
            where = f" in {items_named(lost)}" if lost.ndim else ""
            raise BudgetError(
                f"No configuration that was drawn is possible{where}, or none was drawn in time: "
                "raise the memory budget, so that larger tables see more of the hard zeros, or the "
                "time."
            )

    def _runs(self, item: int, one: Estimate, until: float) -> list[_PopulationEstimate]:
        """Estimates for an item: one of few members, then those there is time for."""
        # As many members as the memory holds, the estimate's own number at most; few at first.
        rng = np.random.default_rng(self.sampling.seed + item)
        starts = tables_of(self.network, item).starts
        room = self.sampling.memory / (tuning.MEMBER_STEP * max(len(self.network.sizes), 1))
        most = int(max(min(one.members, room), 1.0))
        count, runs, tried, first = (
            min(most, effort.FIRST_MEMBERS),
            list[_PopulationEstimate](),
            0,
            clock.now(),
        )
        while len(runs) < RUNS and (not tried or clock.now() < until):
            begin = clock.now()
            last = until + self.sampling.grace
            likely = self._likely[item]
            grow = partial(
                grown, one.passed, count, rng, likely=likely, pins=one.pins, recorded=True
            )
            run = grow(deadline=last)
            # Without a single population there is no answer: the first one may take its time.
            if run is None and clock.stopped() and not tried:
                run = grow(deadline=math.inf)
            if run is None:
                break
            tried += 1
            value = run.log_partition + float(self._constant[item])
            step = Progress("populations", tried, value, clock.now() - first)
            going = goes_on(self.sampling.progress, step)
            # A population with a possible member gives means; impossible ones are tried again.
            if len(run.shares):
                means = averages(run, one.passed.bound, starts)
                runs.append(_PopulationEstimate(run.log_partition, *means, exact=run.exact))
            if run.exact or tried == 4 * RUNS:
                return runs[-1:]
            if not going:
                break
            # Where much time is left, larger populations begin anew.
            left, spent = until - clock.now(), RUNS * (clock.now() - begin)
            if count < most and left > effort.MEANS_GROWTH * spent:
                more = left / spent if spent > 0 else math.inf
                count, runs = int(min(most, count * min(more, 8.0))), []
        return runs

    @cached_property
    def _constant(self) -> Tensor:
        return self.network.exact_constant

    def _each(self, values: Sequence[float]) -> Tensor:
        log_values = torch.tensor(values, dtype=torch.float64, device="cpu") + self._constant
        return log_values.to(self.network.constant)

    def status(self) -> Status:
        """Status of the estimates, with the largest error of the batch."""
        if self.network.impossible:
            return Status(method="mini-buckets", route="mini-buckets")
        every = self.estimates
        remedy = "more seconds give smaller errors, and more memory tighter bounds"
        if not all(one.confirmed for one in every):
            remedy = "too few independent runs confirm the estimate: more seconds give more of them"
        if not all(one.reliable for one in every):
            remedy = (
                "the estimates differ so much that the standard error is not reliable: more "
                "seconds or memory reduce it"
            )
        return Status(
            exact=False,
            converged=all(one.converged for one in every),
            biased=True,
            standard_error=max((one.stated_error for one in every), default=0.0),
            effective_sample_size=min((one.size for one in every), default=math.inf),
            method="mini-buckets and populations",
            route="mini-buckets",
            remedy=remedy,
        )

    def log_partition(self) -> Tensor:
        """(B,) log of the mean of unbiased estimates of Z."""
        if self.network.impossible:
            return self._impossible()
        self._require_drawn([one.log_partition > -math.inf for one in self.estimates])
        return self._each([one.log_partition for one in self.estimates])

    def log_partitions(self) -> Tensor:
        """(populations, B) their estimates, if there are equally many for each item."""
        counts = {len(one.each) for one in self.estimates} if not self.network.impossible else set()
        if len(counts) != 1:
            return self.log_partition().unsqueeze(0)
        each = zip(*(one.each for one in self.estimates), strict=True)
        return torch.stack([self._each(values) for values in each])

    def log_partition_errors(self) -> Tensor | None:
        if self.network.impossible:
            return None
        return torch.tensor([one.stated_error for one in self.estimates], device="cpu").to(
            self.network.constant
        )

    def log_estimates(self) -> Tensor:
        """(B,) `log_partition` in float64, be it -inf, and whatever the bounds."""
        each = [log_mean(np.array(one.each)) for one in self.estimates]
        return torch.tensor(each, dtype=torch.float64, device="cpu") + self._constant

    def _impossible(self) -> Tensor:
        return torch.full_like(self.network.constant.expand(self.network.batch), -math.inf)

    def bounds(self) -> tuple[Tensor, Tensor]:
        return self.interval(1.0)

    def interval(self, confidence: float) -> tuple[Tensor, Tensor]:
        """(B,) and (B,): by mini-buckets and populations, or messages where these are tighter."""
        ends = self._ends(confidence)
        finite = bool(torch.cat(self._ends(1.0)).isfinite().all())
        if not bool((ends[0] < ends[1]).any()) or (finite and not self.bounding.is_pairwise):
            return ends
        with torch.no_grad():
            below, above = self._certain
        # Where an interval and a bound do not meet, chance has misled the interval.
        lower, upper = torch.maximum(ends[0], below), torch.minimum(ends[1], above)
        apart = lower > upper
        return torch.where(apart, below, lower), torch.where(apart, above, upper)

    @cached_property
    def _certain(self) -> tuple[Tensor, Tensor]:
        """(B,) and (B,): bounds by the messages of `Bounding`, and by configurations of these."""
        seconds = effort.SUM_BOUNDS * self.sampling.seconds
        states = self.bounding.maxima(0.5 * seconds).states
        return self.bounding.within(1.0, [states], seconds, self._ends(1.0))

    def _ends(self, confidence: float) -> tuple[Tensor, Tensor]:
        """(B,) and (B,): interval by mini-buckets and populations alone."""
        if self.network.impossible:
            return self._impossible().double(), self._impossible().double()
        ends = [one.interval(confidence) for one in self.estimates]
        each = torch.tensor(ends, dtype=torch.float64, device="cpu").reshape(-1, 2)
        lower, upper = each.unbind(1)
        # Where both ends are log Z itself they stay equal, up to rounding.
        error = torch.where(lower < upper, self._rounding, 0.0)
        return lower + self._constant - error, upper + self._constant + error

    @cached_property
    def _rounding(self) -> Tensor:
        """(B,) bounds on the rounding of all passes and of the constant."""
        items = range(self.network.batch)
        every = [rounding(tables_of(self.network, item, zeros=True)) for item in items]
        return torch.tensor(every, dtype=torch.float64, device="cpu") + self.network.constant_error

    def variable_marginals(self) -> Tensor:
        """(B, S) means over the configurations of populations."""
        if self.network.impossible:
            return state_table(self.network, None, 0.0, 0.0)
        return self._of_states([one.marginals for one in self._averages])

    def marginal_errors(self) -> Tensor:
        """(B, S) standard errors of the marginals; +inf where populations differ too much."""
        if self.network.impossible:
            return state_table(self.network, None, 0.0, 0.0)
        return self._of_states([one.errors for one in self._averages], 0.0)

    def _of_states(self, items: Sequence[Floats], settled: float = 1.0) -> Tensor:
        """(B, S) from numbers for each remaining state of each item."""
        flat = torch.from_numpy(np.stack(items)).to(self.network.constant)
        certain = torch.where(self._ends(1.0)[1] > -math.inf, settled, 0.0)
        return state_table(self.network, flat, 0.0, certain.to(flat))

    def expected_score(self) -> Tensor:
        if self.network.impossible:
            return torch.zeros_like(self.network.constant.expand(self.network.batch))
        return self._each([one.score for one in self._averages])

    factor_marginals = cast("Any", partial(_refused, "the joint marginals of factors"))
    max_marginals = cast("Any", partial(_refused, "max-marginals"))
    mode = cast("Any", partial(_refused, "a mode"))
    marginal_mode = cast("Any", partial(_refused, "a marginal mode"))
    sample = cast("Any", partial(_refused, "independent draws"))


def _mixed(runs: list[_PopulationEstimate], states: int) -> _Means:
    """Marginals and score over populations, weighted by their estimates of Z; zeros for none."""
    if not runs:
        return _Means(np.zeros(states), np.zeros(states), 0.0)
    logs = np.array([run.log_partition for run in runs])
    shares = np.exp(logs - logs.max())
    shares /= shares.sum()
    each = np.stack([run.marginals for run in runs])
    mean = shares @ each
    score = float(shares @ np.array([run.score for run in runs]))
    if runs[0].exact:
        return _Means(mean, np.zeros_like(mean), score)
    if error_of(logs) > _CLOSE:  # the largest of them decides all
        return _Means(mean, np.full_like(mean, math.inf), score)
    spread = (shares[:, None] ** 2 * (each - mean) ** 2).sum(0)
    return _Means(mean, np.sqrt(spread * len(runs) / (len(runs) - 1)), score)
