"""Log Z between bounds, and estimated with its error, by mini-buckets and importance sampling."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NoReturn

import numpy as np
import torch
from torch import Tensor

from rdpgraph._cache import cached_property
from rdpgraph.engines.flat import variable_table
from rdpgraph.engines.minibuckets.bounds import Elimination, bounded
from rdpgraph.engines.minibuckets.draws import draw
from rdpgraph.engines.network import Network
from rdpgraph.engines.solution import Solution
from rdpgraph.engines.status import Status
from rdpgraph.engines.tables import Floats, Tables, tables_of
from rdpgraph.errors import BudgetError, UnsupportedError
from rdpgraph.plan import clock
from rdpgraph.plan.orders import min_weight

_CELLS = 64.0
"""Entries of the largest table of the first pass."""
_PASSES = 0.4
"""The part of the time for passes; each allows twice the entries of the one before."""
_BYTES = 24.0
"""Bytes for each entry of a pass: tables, messages and what is made on the way."""
_AT_ONCE = 1024
"""Draws of a round."""
_LEAST = 1
"""Rounds at least, whatever the time."""
_RELIABLE = 30.0
"""Effective draws from which on their standard error is to be believed."""


@dataclass(frozen=True)
class Sampling:
    """How long, how large and how many.

    Attributes:
        seconds: for all items of a batch.
        memory: bytes for the tables of a pass.
        draws: configurations at most; None: as many as the seconds allow.
        seed: of the randomness.
    """

    seconds: float
    memory: float
    draws: int | None
    seed: int


@dataclass(frozen=True, eq=False)
class Estimate:
    """What draws say of one batch item.

    Attributes:
        lower: bound of log Z (nats).
        upper: bound of log Z.
        log_partition: the log of the mean weight.
        error: the standard error of that, by the delta method.
        size: the effective sample size.
        score: the expected score.
        marginals: of the states of active variables, one after the other.
    """

    lower: float
    upper: float
    log_partition: float
    error: float
    size: float
    score: float
    marginals: Floats


@dataclass(frozen=True, eq=False)
class MiniBucketSolution(Solution):
    """Bounds and estimates of a reduced network.

    Attributes:
        network: the model, without high-order potentials.
        sampling: time, memory, draws.
    """

    network: Network
    sampling: Sampling

    @cached_property
    def _estimates(self) -> tuple[Estimate, ...]:
        begin, estimates = clock.now(), list[Estimate]()
        for item in range(self.network.batch):
            left = self.sampling.seconds - (clock.now() - begin)
            share = max(left, 0.02 * self.sampling.seconds) / (self.network.batch - item)
            tables = tables_of(self.network, item, zeros=True)
            estimates.append(_estimate(tables, replace(self.sampling, seconds=share)))
        return tuple(estimates)

    @cached_property
    def _constant(self) -> Tensor:
        return self.network.constant.detach().double().cpu().expand(self.network.batch)

    def _each(self, values: Iterator[float]) -> Tensor:
        own = torch.tensor(list(values), dtype=torch.float64)
        return own.to(self.network.constant)

    def status(self) -> Status:
        """Estimated, with the largest error of the batch."""
        if self.network.impossible:
            return Status(method="mini-buckets")
        every = self._estimates
        size = min((one.size for one in every), default=math.inf)
        remedy = "more seconds give smaller errors, and more memory tighter bounds"
        if size < _RELIABLE:
            remedy = (
                f"the error is not reliable, the draws count as {size:.1f}: more memory gives "
                "better ones"
            )
        return Status(
            exact=False,
            converged=size >= _RELIABLE,
            biased=True,
            standard_error=max((one.error for one in every), default=0.0),
            effective_sample_size=size,
            method="mini-buckets and importance sampling",
            remedy=remedy,
        )

    def log_partition(self) -> Tensor:
        """(B,) the log of the mean weight; its exponential is unbiased."""
        if self.network.impossible:
            return self._impossible()
        return self._each(one.log_partition for one in self._estimates) + self._constant.to(
            self.network.constant
        )

    def _impossible(self) -> Tensor:
        return torch.full_like(self.network.constant.expand(self.network.batch), -math.inf)

    def bounds(self) -> tuple[Tensor, Tensor]:
        """(B,) and (B,), in float64."""
        if self.network.impossible:
            return self._impossible().double(), self._impossible().double()
        lower = torch.tensor([one.lower for one in self._estimates], dtype=torch.float64)
        upper = torch.tensor([one.upper for one in self._estimates], dtype=torch.float64)
        return lower + self._constant, upper + self._constant

    def variable_marginals(self) -> Tensor:
        """(B, S) weighted means over the draws."""
        network = self.network
        if network.impossible:
            return variable_table(network, [], 0.0, 0.0)
        flat = torch.from_numpy(np.stack([one.marginals for one in self._estimates]))
        flat = flat.to(network.constant)
        sizes = torch.tensor(network.sizes, dtype=torch.long)
        starts = sizes.cumsum(0) - sizes
        parts: list[tuple[Tensor, Tensor]] = []
        for size in torch.unique(sizes).tolist():
            own = (sizes == size).nonzero().flatten()
            places = starts[own].unsqueeze(1) + torch.arange(size)
            parts.append((own, flat[:, places.to(flat.device)]))
        return variable_table(network, parts, 0.0, 1.0)

    def expected_score(self) -> Tensor:
        """(B,) the weighted mean over the draws."""
        if self.network.impossible:
            return torch.zeros_like(self.network.constant.expand(self.network.batch))
        return self._each(one.score for one in self._estimates) + self._constant.to(
            self.network.constant
        )

    def factor_marginals(self, block: int) -> Tensor:
        """Refused."""
        return _refused("the joint marginals of factors")

    def max_marginals(self) -> Tensor:
        """Refused."""
        return _refused("max-marginals")

    def mode(self) -> Tensor:
        """Refused."""
        return _refused("a mode")

    def marginal_mode(self, numbers: Tensor) -> Tensor:
        """Refused."""
        return _refused("a marginal mode")

    def sample(self, count: int, generator: torch.Generator | None) -> Tensor:
        """Refused."""
        return _refused("independent draws")


def _refused(what: str) -> NoReturn:
    raise UnsupportedError(
        f"MiniBuckets() gives log Z, its bounds and marginals of variables, and not {what}; use "
        "Auto(), or Search() for modes."
    )


def _has_zeros(tables: Tables) -> bool:
    return any(bool(np.isneginf(stack.values).any()) for stack in tables.stacks)


def _estimate(tables: Tables, sampling: Sampling) -> Estimate:
    begin = clock.now()
    order = min_weight(tables.graph, deadline=begin + _PASSES * sampling.seconds)
    if order is None:  # too little time to look for a good one
        order = list(range(len(tables.sizes)))
    passed, lower = _tightest(tables, order, sampling, begin)
    means, best = _Means(tables), -math.inf
    rng = np.random.default_rng(sampling.seed)
    most = math.inf if sampling.draws is None else sampling.draws
    took, rounds = 0.0, 0
    while means.count < most:
        start = clock.now()
        if rounds >= _LEAST and start + took > begin + sampling.seconds:
            break
        count = int(min(_AT_ONCE, most - means.count))
        states, logs, scores = draw(tables, passed, count, rng)
        means.add(states, logs, scores)
        best = max(best, float(scores.max(initial=-math.inf)))
        took, rounds = clock.now() - start, rounds + 1
    if means.peak == -math.inf:
        raise BudgetError(
            f"None of {means.count:,} draws is possible: raise the memory budget, so that larger "
            "tables see more of the hard zeros, or the time budget."
        )
    log_z, error, size = means.summary()
    upper = passed.bound
    if passed.exact:
        lower = log_z = upper
        error = 0.0
    return Estimate(
        lower=max(lower, best),
        upper=upper,
        log_partition=log_z,
        error=error,
        size=size,
        score=means.score(),
        marginals=means.marginals(),
    )


def _tightest(
    tables: Tables, order: list[int], sampling: Sampling, begin: float
) -> tuple[Elimination, float]:
    """The pass with the least upper bound, and the greatest lower bound."""
    each = sampling.memory / (_BYTES * max(len(order), 1))
    cells, lower = max(min(_CELLS, each), 2.0), -math.inf
    best: Elimination | None = None
    finite = not _has_zeros(tables)
    while True:
        start = clock.now()
        passed = bounded(tables, order, cells=cells)
        best = passed if best is None or passed.bound < best.bound else best
        if finite and not passed.exact:
            below = bounded(tables, order, cells=cells, lower=True)
            lower = max(lower, below.bound)
        took = clock.now() - start
        held = sum(part.values.size for bucket in passed.buckets for part in bucket)
        cells *= 2
        end = begin + _PASSES * sampling.seconds
        if passed.exact or 2 * held * _BYTES > sampling.memory or clock.now() + 3 * took > end:
            return best, lower


class _Means:
    """Weighted sums over draws, scaled by the largest weight so far."""

    def __init__(self, tables: Tables) -> None:
        self.starts = tables.starts[:-1]
        self.flat = np.zeros(int(tables.starts[-1]))
        self.peak = -math.inf
        self.total = self.squares = self.scores = 0.0
        self.count = 0

    def add(self, states: np.ndarray, logs: Floats, scores: Floats) -> None:
        """Take some draws in."""
        self.count += len(logs)
        peak = max(self.peak, float(logs.max(initial=-math.inf)))
        if peak == -math.inf:
            return
        scale = math.exp(self.peak - peak)
        self.peak = peak
        weights = np.exp(logs - peak)
        alive = weights > 0
        self.flat *= scale
        np.add.at(self.flat, self.starts + states[alive], weights[alive, None])
        self.total = self.total * scale + float(weights.sum())
        self.squares = self.squares * scale**2 + float((weights**2).sum())
        self.scores = self.scores * scale + float((weights[alive] * scores[alive]).sum())

    def summary(self) -> tuple[float, float, float]:
        """The log of the mean weight, its standard error, and the effective sample size."""
        mean = self.total / self.count
        variance = max(self.squares / self.count - mean**2, 0.0)
        error = math.sqrt(variance / max(self.count - 1, 1)) / mean
        return self.peak + math.log(mean), error, self.total**2 / self.squares

    def score(self) -> float:
        """The mean score."""
        return self.scores / self.total

    def marginals(self) -> Floats:
        """Of every state of every variable."""
        return self.flat / self.total
