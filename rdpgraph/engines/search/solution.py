"""Modes and marginal modes of a network by search, for each item of a batch."""

import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random
from typing import Any, NoReturn, cast

import torch
from torch import Tensor

from rdpgraph._core import effort
from rdpgraph._core.cache import cached_property
from rdpgraph._core.numbers import ROUNDING
from rdpgraph.engines.minibuckets.bounds import ceilings
from rdpgraph.engines.reduction.network import Network, reduce_graph
from rdpgraph.engines.reduction.tables import active_states, full_states, tables_of
from rdpgraph.engines.search.neighbourhoods import Search
from rdpgraph.engines.search.starts import (
    Limits,
    Searched,
    best_estimated,
    best_of,
    completed,
    scored,
    starts_of_sums,
)
from rdpgraph.engines.solution import Solution, Status, meets
from rdpgraph.engines.trws.bounding import Bounding
from rdpgraph.errors import BudgetError, UnsupportedError
from rdpgraph.model.graph import FactorGraph
from rdpgraph.plan import clock


def search(
    network: Network, limits: Limits, *, numbers: Tensor | None = None, start: Tensor | None = None,
    spared: Tensor | None = None, bounds: Tensor | None = None,
) -> Searched:  # fmt: skip
    """Search for the best configuration of each item.

    Args:
        network: reduced, without whole potentials; some configuration may be possible.
        limits: of time and memory.
        numbers: variables of the graph to maximise over, the others summed; None: all.
        start: (B, V) initial states; None: the first state of each.
        spared: (B,) items that are not searched; their scores are not read.
        bounds: (B,) upper bounds on all scores, at which a search ends.

    Raises:
        BudgetError: sums do not fit, and nothing possible was drawn.
    """
    begin, active = clock.now(), len(network.sizes)
    summed = summed_by(network, numbers)
    states = active_states(network, start)
    scores = torch.zeros(network.batch, dtype=torch.float64, device="cpu")
    optimal = torch.zeros(network.batch, dtype=torch.bool, device="cpu")
    constant = network.constant.detach().double().cpu().expand(network.batch)
    optimal |= constant == -math.inf
    scores[optimal] = -math.inf
    searched = (~optimal if spared is None else ~(optimal | spared.cpu())).nonzero().flatten()
    for turn, item in enumerate(searched.tolist()):
        left = limits.seconds - (clock.now() - begin)
        share = max(left, 0.02 * limits.seconds) / (len(searched) - turn)
        tables = tables_of(network, item, summed)
        until = clock.now() + share
        run = Search(
            tables, Random(limits.seed), memory=limits.memory, summed=summed,
            deadline=clock.now() + effort.PLANNING * share, seconds=share, kernel=limits.compiled(),
        )  # fmt: skip
        first, fits = states[item].numpy(), True
        starts = [first]
        if summed:
            fits = run.value(first, deadline=until) is not None
            share = max(until - clock.now(), 0.02 * share)
        if summed and fits:
            starts = starts_of_sums(network, item, run, first, replace(limits, seconds=share))
        elif active > len(network.numbers):
            starts = [completed(tables, len(network.numbers), first)]
        share = max(until - clock.now(), 0.02 * share)
        patience = limits.patience * share
        result, told = None, float(constant[item])
        if fits and summed:
            result = run.compete(
                starts, seconds=share, patience=patience, progress=limits.progress, constant=told
            )
        elif fits:
            result = run.run(
                starts[0], seconds=share, patience=patience, any_possible=limits.any_possible,
                enough=math.inf if bounds is None else reached(float(bounds[item])) - told,
                progress=limits.progress, constant=told,
            )  # fmt: skip
        if result is None:
            limited = replace(limits, seconds=share)
            candidate = best_estimated(network, item, summed, first, limited)
            if candidate is None:
                raise BudgetError(
                    "The sum over the other variables does not fit, whatever the states of those "
                    "asked for, and no possible configuration was drawn: raise the memory budget."
                )
            states[item] = torch.from_numpy(candidate[0])
            scores[item] = candidate[1] + constant[item]
            continue
        states[item] = torch.from_numpy(result.states)
        possible = tables.is_possible(result.score)
        scores[item] = result.score + constant[item] if possible else -math.inf
        optimal[item] = result.optimal
    device = network.graph.device
    full = full_states(network, states.unsqueeze(0))[0]
    return Searched(full.to(device), scores.to(device), optimal)


@torch.no_grad()
def possible_modes(graph: FactorGraph, states: Tensor, seconds: float) -> Searched:
    """Configurations (B, V), those of probability zero replaced by the best that a search finds."""
    scores = graph.score_states(states.reshape(*graph.batch_shape, graph.num_variables))
    known = scores.double().reshape(-1).expand(len(states))
    given = Searched(states, known, torch.zeros_like(known, dtype=torch.bool))
    if bool(given.found.all()):
        return given
    network = reduce_graph(graph)
    if network.impossible:
        return replace(given, optimal=~given.found)
    limits = Limits(seconds, effort.BOUNDS_BYTES, any_possible=True)
    other = search(network, limits, start=states, spared=given.found)
    new = ~given.found & (other.found | other.optimal.to(given.found.device))
    return Searched(
        torch.where(new.unsqueeze(1), other.states, states),
        torch.where(new, other.scores, known),
        new & ~other.found,
    )


@dataclass(frozen=True, eq=False)
class Seeker:
    """Search, scores and bounds of modes of a network."""

    network: Network  # reduced, without whole potentials
    limits: Limits  # of each question, except for the seconds
    bounding: Bounding = field(repr=False)  # bounds of the same network, finite at any size
    eliminating: bool = True  # there are few enough factors for bounds by mini-buckets

    def by_messages(self, seconds: float) -> tuple[Searched, Tensor]:
        """Best configurations by tree-reweighted messages, and (B,) bounds on all scores.

        The messages pass once, in the seconds of the first call.
        """
        states, bounds = self.bounding.maxima(seconds)
        found = self.scored(states)
        optimal = meets(found.scores.cpu(), bounds) | (bounds == -math.inf)
        return replace(found, optimal=optimal), bounds

    def sought(self, numbers: Tensor | None, start: Tensor | None, seconds: float) -> Searched:
        """Best configurations of some variables or of all, within some seconds.

        Those of all are no worse than by tree-reweighted messages, where the model is pairwise.
        """
        begin, limits = clock.now(), replace(self.limits, seconds=seconds)
        if numbers is not None or not self.bounding.is_pairwise:
            return search(self.network, limits, numbers=numbers, start=start)
        first, bounds = self.by_messages(effort.REWEIGHTED * seconds)
        if bool(first.optimal.all()):
            return first
        start = best_of(self.network, [first.states, *([] if start is None else [start])]).states
        left = max(seconds - (clock.now() - begin), 0.1 * seconds)
        found = search(
            self.network, replace(limits, seconds=left), start=start, spared=first.optimal,
            bounds=bounds,
        )  # fmt: skip
        proved = first.optimal.to(found.states.device)
        return Searched(
            torch.where(proved.unsqueeze(1), first.states.to(found.states.device), found.states),
            torch.where(proved, first.scores.to(found.scores), found.scores),
            first.optimal | found.optimal | meets(found.scores.cpu(), bounds),
        )

    def scored(self, states: Tensor) -> Searched:
        """Configurations (B, V) with their scores."""
        return scored(self.network, states)

    def above(self, numbers: Tensor | None, scores: Tensor, seconds: float) -> Tensor:
        """(B,) upper bounds on all scores, given the best ones so far."""
        bounds = self.bounding.above(0.0 if numbers is None else 1.0, seconds)
        if not self.eliminating or bool(meets(scores.cpu(), bounds).all()):
            return bounds
        summed = summed_by(self.network, numbers)
        memory = min(self.limits.memory, effort.BOUNDS_BYTES)
        other = ceilings(self.network, summed, seconds=seconds, memory=memory, scores=scores)
        return torch.minimum(bounds, other)


def reached(bound: float) -> float:
    """The least score that meets an upper bound, up to rounding: see `meets`."""
    if not math.isfinite(bound):
        return bound
    return bound - ROUNDING * max((1.0 - 2.0 * ROUNDING) * abs(bound), 1.0)


def proved(best: Searched, above: Callable[[Tensor], Tensor]) -> tuple[Searched, Tensor]:
    """Configurations, optimal where their bounds prove it, and (B,) the bounds.

    ``above`` gives upper bounds from the scores of the configurations.
    """
    scores = best.scores.cpu()
    if bool(best.optimal.all()):
        return best, scores
    bounds = torch.maximum(above(scores), scores)
    optimal = best.optimal | meets(scores, bounds) | (bounds == -math.inf)
    return replace(best, optimal=optimal), torch.where(best.optimal, scores, bounds)


def summed_by(network: Network, numbers: Tensor | None) -> frozenset[int]:
    """Active variables to sum over."""
    if numbers is None:
        return frozenset()
    kept = network.active[numbers]
    return frozenset(range(len(network.sizes))).difference(kept[kept >= 0].tolist())


class SearchedMarginalModes(Solution):
    """Solution whose marginal modes come from a search, once per set of variables."""

    @abstractmethod
    def _search(self, numbers: Tensor) -> Searched:
        """Search some variables, the others summed out."""

    @abstractmethod
    def _above(self, numbers: Tensor | None, scores: Tensor) -> Tensor:
        """(B,) upper bounds on the scores of some variables, or of all, given the best so far."""

    def marginal_mode(self, numbers: Tensor) -> Tensor:
        """(B, n) states, the best that a search found."""
        return self._searched(numbers).states[:, numbers]

    def marginal_mode_scores(self, numbers: Tensor) -> tuple[Tensor, Tensor]:
        """(B,) and (B,): score of the search, and bound by mini-buckets."""
        best = self._searched(numbers)
        key = tuple(numbers.tolist())
        if key not in self._limits:
            self._limits[key] = proved(best, partial(self._above, numbers))[1]
        return best.scores.cpu(), self._limits[key]

    def _searched(self, numbers: Tensor) -> Searched:
        key = tuple(numbers.tolist())
        if key not in self._results:
            self._results[key] = self._search(numbers)
        return self._results[key]

    @cached_property
    def _results(self) -> dict[tuple[int, ...], Searched]:
        return {}

    @cached_property
    def _limits(self) -> dict[tuple[int, ...], Tensor]:
        return {}


def _refused(*_: object) -> NoReturn:
    raise UnsupportedError(
        "Search() finds modes and marginal modes only; Auto() answers the other questions."
    )


@dataclass(frozen=True, eq=False)
class SearchSolution(SearchedMarginalModes):
    """Modes by search, and nothing else."""

    network: Network  # the reduced model
    limits: Limits  # of each question
    # gives (B, V) initial states for a mode within some seconds
    start: Callable[[float], Tensor] = field(repr=False)

    @cached_property
    def best(self) -> Searched:
        """Best configurations of all variables."""
        return self._sought(None, effort.MODE_START)

    def _sought(self, numbers: Tensor | None, part: float) -> Searched:
        """Best configurations, begun at what is found in a part of the seconds."""
        begin, seconds = clock.now(), self.limits.seconds
        if numbers is None and self._seeker.bounding.is_pairwise:
            first, _ = self._seeker.by_messages(effort.REWEIGHTED * seconds)
            if bool(first.optimal.all()):
                return first
        start = self.start(part * seconds)
        left = max(seconds - (clock.now() - begin), 0.1 * seconds)
        return self._seeker.sought(numbers, start, left)

    @cached_property
    def _seeker(self) -> Seeker:
        memory = min(self.limits.memory, effort.BOUNDS_BYTES)
        return Seeker(
            self.network, self.limits, Bounding(self.network, self.limits.compiled, memory)
        )

    def status(self) -> Status:
        """Status of the mode: exact if it is proved optimal, or that there is none."""
        if self.network.impossible:
            return Status(method="search")
        sure = bool(self._proved[0].optimal.all())
        remedy = "" if sure else "more seconds may find better configurations"
        return Status(exact=sure, method="search", remedy=remedy)

    def mode(self) -> Tensor:
        return self.best.required(self.network.graph).states

    def mode_exists(self) -> Tensor | None:
        """(B,) bool; a search without a possible configuration raises an error instead."""
        constant = self.network.constant.detach().cpu().expand(self.network.batch)
        return (constant > -math.inf) & (not self.network.impossible)

    def mode_bound(self) -> Tensor:
        """(B,) by messages and mini-buckets, in a tenth of the seconds more; the proved score."""
        _ = self.mode()
        return self._proved[1]

    def mode_is_consistent(self) -> Tensor:
        """(B,) whether the search was a proof."""
        return self.best.optimal

    def mode_is_optimal(self) -> Tensor:
        """(B,) whether the search was a proof, or its bound is met."""
        _ = self.mode()
        return self._proved[0].optimal

    @cached_property
    def _proved(self) -> tuple[Searched, Tensor]:
        return proved(self.best, partial(self._above, None))

    def _search(self, numbers: Tensor) -> Searched:
        best = self._sought(numbers, effort.MARGINAL_START)
        return best.required(self.network.graph, "marginal mode")

    def _above(self, numbers: Tensor | None, scores: Tensor) -> Tensor:
        seeker = self._seeker if numbers is None else self._of_sums
        return seeker.above(numbers, scores, effort.MODE_BOUNDS * self.limits.seconds)

    def bounds(self) -> tuple[Tensor, Tensor]:
        """(B,) and (B,): bounds on log Z by the mode, and by messages."""
        infinite = torch.full((self.network.batch,), math.inf, dtype=torch.float64, device="cpu")
        if self.network.impossible:
            return -infinite, -infinite
        seconds, bounding = effort.SUM_BOUNDS * self.limits.seconds, self._of_sums.bounding
        return bounding.within((-infinite, infinite), 1.0, [self.best.states], seconds)

    @cached_property
    def _of_sums(self) -> Seeker:
        """The seeker with messages that bound sums, not maxima; they have passed."""
        bounding = replace(self._seeker.bounding)
        bounding.above(1.0, effort.MODE_BOUNDS * self.limits.seconds)
        return replace(self._seeker, bounding=bounding)

    def log_partition(self) -> Tensor:
        """-inf where that is known; else refused."""
        if self.network.impossible:
            dtype = self.network.graph.dtype
            return torch.full((self.network.batch,), -math.inf, dtype=dtype, device="cpu")
        return _refused()

    variable_marginals = factor_marginals = expected_score = cast("Any", _refused)
    max_marginals = sample = cast("Any", _refused)
