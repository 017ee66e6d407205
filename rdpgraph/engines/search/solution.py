"""Modes and marginal modes of a network by search, for each item of a batch."""

import math
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from random import Random
from typing import Any, NoReturn, cast

import numpy as np
import torch
from torch import Tensor

from rdpgraph._core import effort, tuning
from rdpgraph._core.cache import cached_property
from rdpgraph._core.numbers import PROOF
from rdpgraph.engines.configurations import Searched, best_of, completed, scored, scored_in_graph
from rdpgraph.engines.elimination_bounds import ceilings
from rdpgraph.engines.moves import Moves
from rdpgraph.engines.reduction.network import Network, reduce_graph
from rdpgraph.engines.reduction.tables import (
    Integers,
    Tables,
    active_states,
    full_states,
    tables_of,
)
from rdpgraph.engines.search.neighbourhoods import NeighbourhoodSearch, Patience
from rdpgraph.engines.search.starts import SearchLimits, best_estimated, starts_of_sums
from rdpgraph.engines.solution import Solution, Status, meets
from rdpgraph.engines.trws.bounding import Bounding
from rdpgraph.errors import BudgetError, UnsupportedError
from rdpgraph.model.graph import FactorGraph
from rdpgraph.plan import clock


def search(
    network: Network, limits: SearchLimits, *, numbers: Tensor | None = None,
    start: Tensor | None = None, others: Sequence[Tensor] = (),
    spared: Tensor | None = None, bounds: Tensor | None = None, settled: Tensor | None = None,
) -> Searched:  # fmt: skip
    """Search for the best configuration of each item.

    Args:
        network: the model, reduced to tables; it must not be known to be impossible.
        limits: those of time and memory.
        numbers: variables of the graph to maximise over, while all others are summed; None: all.
        start: (B, V) initial states; None: the first state of each.
        others: more initial states for modes without hard zeros, tried where moves are quick.
        spared: (B,) items that are not searched; their scores have no meaning.
        bounds: (B,) upper bounds on all scores; a search ends where it reaches one.
        settled: (B, active) states of active variables that some mode has all together, -1 where
            nothing is known: only the others are searched for. No variable is summed then.

    Raises:
        BudgetError: sums do not fit, and no configuration of positive probability was drawn.
    """
    begin, active = clock.now(), len(network.sizes)
    summed = summed_by(network, numbers)
    states = _overlaid(active_states(network, start), settled)
    scores = torch.zeros(network.batch, dtype=torch.float64, device="cpu")
    optimal = torch.zeros(network.batch, dtype=torch.bool, device="cpu")
    constant = network.exact_constant
    optimal |= constant == -math.inf
    scores[optimal] = -math.inf
    searched = (~optimal if spared is None else ~(optimal | spared.cpu())).nonzero().flatten()
    for turn, item in enumerate(searched.tolist()):
        left = limits.seconds - (clock.now() - begin)
        share = max(left, 0.02 * limits.seconds) / (len(searched) - turn)
        tables = tables_of(network, item, summed)
        until = clock.now() + share
        run = NeighbourhoodSearch(
            tables, Random(limits.seed), memory=limits.memory, summed=summed,
            deadline=clock.now() + effort.PLANNING * share, seconds=share,
            settled=() if settled is None else (settled[item] >= 0).nonzero().flatten().tolist(),
        )  # fmt: skip
        first, fits = states[item].numpy(), True
        known = None if settled is None else settled[item].numpy()
        starts = [first]
        if summed:
            fits = run.value(first, deadline=until) is not None
            share = max(until - clock.now(), 0.02 * share)
        if summed and fits:
            starts = starts_of_sums(network, item, run, first, replace(limits, seconds=share))
        elif active > len(network.numbers):
            moves = Moves(tables, frozenset()) if summed else run.moves
            first = completed(moves, len(network.numbers), first)
            # What is best given the start need not be what is settled.
            starts = [first if known is None else np.where(known >= 0, known, first)]
        share = max(until - clock.now(), 0.02 * share)
        patience = Patience(limits.patience * share, limits.before / len(searched))
        result, told = None, float(constant[item])
        if fits and summed:
            result = run.compete(
                starts, seconds=share, patience=patience, progress=limits.progress, constant=told
            )
        elif fits:
            enough = math.inf if bounds is None else reached(float(bounds[item])) - told
            settings: dict[str, Any] = {
                "enough": enough, "progress": limits.progress, "constant": told,
            }  # fmt: skip
            if network.possible is None and others:  # any configuration is a start
                more = [_overlaid(active_states(network, each), settled) for each in others]
                more = [each[item].numpy() for each in more]
                more = [each for each in more if (each != starts[0]).any()]
                drawn = _random_configurations(tables, limits.seed, known)
                result = run.compete(
                    chain(starts, more, drawn), seconds=share, patience=patience,
                    least=effort.SHORT_MOVES, **settings,
                )  # fmt: skip
            else:
                result = run.run(
                    starts[0], seconds=share, patience=patience, any_possible=limits.any_possible,
                    **settings,
                )  # fmt: skip
        if result is None:
            limited = replace(limits, seconds=share)
            candidate = best_estimated(network, item, summed, first, limited)
            if candidate is None:
                raise BudgetError(
                    "The sum over the other variables does not fit, whatever states the variables "
                    "asked for have, and no possible configuration was drawn: raise the memory "
                    "budget."
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


def _overlaid(states: Tensor, settled: Tensor | None) -> Tensor:
    """(B, active) states with those that are settled in their place."""
    return states if settled is None else torch.where(settled >= 0, settled, states)


def _random_configurations(
    tables: Tables, seed: int, settled: Integers | None
) -> Iterator[Integers]:
    """(V,) configurations drawn uniformly, without end; settled states (-1: none) stay."""
    rng = np.random.default_rng(seed)
    while True:
        states = rng.integers(0, tables.sizes)
        yield states if settled is None else np.where(settled >= 0, settled, states)


@torch.no_grad()
def possible_modes(graph: FactorGraph, states: Tensor, seconds: float) -> Searched:
    """Return configurations (B, V), in which a search replaced those of probability zero.

    The search ends after a part of the seconds in which no violation was repaired.
    """
    given = scored_in_graph(graph, states)
    known = given.scores
    if bool(given.found.all()):
        return given
    network = reduce_graph(graph)
    if network.impossible:
        return replace(given, optimal=~given.found)
    limits = SearchLimits(seconds, effort.BOUNDS_BYTES, effort.REPAIR_PATIENCE, any_possible=True)
    other = search(network, limits, start=states, spared=given.found)
    new = ~given.found & (other.found | other.optimal.to(given.found.device))
    return Searched(
        torch.where(new.unsqueeze(1), other.states, states),
        torch.where(new, other.scores, known),
        new & ~other.found,
    )


@dataclass(frozen=True, eq=False)
class Seeker:
    """Finds modes of a network by search, scores them and bounds their scores."""

    network: Network  # reduced, without whole potentials
    limits: SearchLimits  # of each question, except for the seconds
    bounding: Bounding = field(repr=False)  # bounds of the same network, finite at any size
    eliminating: bool = True  # there are few enough factors for bounds by mini-buckets

    def by_messages(self, seconds: float) -> tuple[Searched, Tensor]:
        """Return the best configurations by tree-reweighted messages, and (B,) bounds on scores.

        Messages pass once, within a part of the seconds of the first call; later calls reuse them.
        """
        parts = (effort.REWEIGHTED, effort.REWEIGHTED_NEAR)
        if self._layout_seconds > (1.0 - effort.REWEIGHTED_NEAR) * seconds:
            parts = (effort.REWEIGHTED_ALONE, effort.REWEIGHTED_ALONE)
        states, bounds, _ = self.bounding.maxima(*(part * seconds for part in parts))
        found = self.scored(states)
        optimal = meets(found.scores.cpu(), bounds) | (bounds == -math.inf)
        return replace(found, optimal=optimal, bounds=bounds), bounds

    @cached_property
    def _layout_seconds(self) -> float:
        """Predicted seconds to lay out all tables, one for each factor, for a search."""
        entries = 0.0
        for group in self.network.groups:
            entries += len(group.scopes) * math.prod(group.log_tables.shape[2:])
        return tuning.LAID_OUT_ENTRY * entries * self.network.batch / tuning.OPERATIONS_PER_SECOND

    def settled(self, seconds: float) -> Tensor:
        """(B, active) states that a cut decided, which passes with the messages; -1 elsewhere."""
        return self.bounding.maxima(effort.REWEIGHTED * seconds).settled

    def sought(self, numbers: Tensor | None, start: Tensor | None, seconds: float) -> Searched:
        """Search for the best configurations of some variables, or of all, for some seconds.

        In a pairwise model those of all variables are no worse than by tree-reweighted messages.
        """
        begin, limits = clock.now(), replace(self.limits, seconds=seconds)
        if numbers is not None or not self.bounding.is_pairwise:
            return search(self.network, limits, numbers=numbers, start=start)
        first, bounds = self.by_messages(seconds)
        if bool(first.optimal.all()):
            return first
        every = [first.states, *([] if start is None else [start])]
        best, left = best_of(self.network, every), seconds - (clock.now() - begin)
        late = self._layout_seconds > max(effort.SEARCH_LAYOUT * left, effort.LEAST_PLANNING)
        if late and bool(best.found.all()):
            optimal = first.optimal | meets(best.scores.cpu(), bounds)
            return replace(best, optimal=optimal, bounds=bounds)
        found = search(
            self.network, replace(limits, seconds=max(left, 0.1 * seconds)), start=best.states,
            others=every, spared=first.optimal, bounds=bounds, settled=self.settled(seconds),
        )  # fmt: skip
        device, proved = found.states.device, first.optimal
        states = torch.where(proved.unsqueeze(1).to(device), first.states.to(device), found.states)
        scores = torch.where(proved.to(device), first.scores.to(found.scores), found.scores)
        optimal = proved | found.optimal.cpu() | meets(scores.cpu(), bounds)
        # What the search proves needs no bound by messages.
        above = torch.where(found.optimal.cpu() & ~proved, scores.cpu(), bounds)
        return Searched(states, scores, optimal, above)

    def for_sums(self, seconds: float) -> "Seeker":
        """Return a seeker whose messages bound sums, not maxima; they have passed by then."""
        bounding = replace(self.bounding)
        bounding.above(1.0, seconds)
        return replace(self, bounding=bounding)

    def scored(self, states: Tensor) -> Searched:
        """Return configurations (B, V) with their scores."""
        return scored(self.network, states)

    def above(self, numbers: Tensor | None, scores: Tensor, seconds: float) -> Tensor:
        """Return (B,) upper bounds on all scores, given the best ones so far."""
        bounds = self.bounding.above(0.0 if numbers is None else 1.0, seconds)
        if not self.eliminating or bool(meets(scores.cpu(), bounds).all()):
            return bounds
        summed = summed_by(self.network, numbers)
        memory = min(self.limits.memory, effort.BOUNDS_BYTES)
        other = ceilings(self.network, summed, seconds=seconds, memory=memory, scores=scores)
        return torch.minimum(bounds, other)


def reached(bound: float) -> float:
    """Return the least score that meets an upper bound up to rounding, as `meets` tells it."""
    if not math.isfinite(bound):
        return bound
    return bound - PROOF * max((1.0 - 2.0 * PROOF) * abs(bound), 1.0)


def proved(best: Searched, above: Callable[[Tensor], Tensor]) -> tuple[Searched, Tensor]:
    """Mark configurations as optimal where upper bounds prove it; return them and (B,) bounds.

    ``above`` computes upper bounds on all scores, given those of the configurations.
    """
    scores = best.scores.cpu()
    if bool(best.optimal.all()):
        return best, scores if best.bounds is None else torch.maximum(best.bounds, scores)
    bounds = torch.maximum(above(scores), scores)
    optimal = best.optimal | meets(scores, bounds) | (bounds == -math.inf)
    return replace(best, optimal=optimal), torch.where(best.optimal, scores, bounds)


def summed_by(network: Network, numbers: Tensor | None) -> frozenset[int]:
    """Return the active variables that are summed over when others are maximised."""
    if numbers is None:
        return frozenset()
    kept = network.active[numbers]
    return frozenset(range(len(network.sizes))).difference(kept[kept >= 0].tolist())


class SearchedMarginalModes(Solution):
    """A solution that searches for marginal modes, once for each set of variables."""

    @abstractmethod
    def _search(self, numbers: Tensor) -> Searched:
        """Search for the best states of some variables, summing over the others."""

    @abstractmethod
    def _above(self, numbers: Tensor | None, scores: Tensor) -> Tensor:
        """Return (B,) upper bounds on scores of some variables or all, given the best so far."""

    def marginal_mode(self, numbers: Tensor) -> Tensor:
        """Return the (B, n) best states that a search found."""
        return self._searched(numbers).states[:, numbers]

    def marginal_mode_scores(self, numbers: Tensor) -> tuple[Tensor, Tensor]:
        """Return (B,) scores of what the search found, and (B,) upper bounds by mini-buckets."""
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
    """Modes and marginal modes by search; other questions are refused."""

    network: Network  # the reduced model
    limits: SearchLimits  # of each question
    # Gives (B, V) initial states for a mode within some seconds.
    start: Callable[[float], Tensor] = field(repr=False)

    @cached_property
    def best(self) -> Searched:
        """The best configurations of all variables that the search found."""
        return self._sought(None, effort.MODE_START)

    def _sought(self, numbers: Tensor | None, part: float) -> Searched:
        """Search from the states that a part of the seconds gives to begin with."""
        begin, seconds = clock.now(), self.limits.seconds
        if numbers is None and self._seeker.bounding.is_pairwise:
            first, _ = self._seeker.by_messages(seconds)
            if bool(first.optimal.all()):
                return first
        start = self.start(part * seconds)
        left = max(seconds - (clock.now() - begin), 0.1 * seconds)
        return self._seeker.sought(numbers, start, left)

    @cached_property
    def _seeker(self) -> Seeker:
        bounding = Bounding(self.network, self.limits.memory)
        return Seeker(self.network, self.limits, bounding)

    def status(self) -> Status:
        """Return the status of the mode: exact if it is proved optimal, or proved not to exist."""
        if self.network.impossible:
            return Status(method="search", route="search")
        sure = bool(self._proved[0].optimal.all())
        remedy = "" if sure else "more seconds may find better configurations"
        return Status(exact=sure, method="search", remedy=remedy, route="search")

    def mode(self) -> Tensor:
        return self.best.required(self.network.graph).states

    def mode_exists(self) -> Tensor | None:
        """Return (B,) bools, False where it is known that all probabilities are zero.

        A search that finds no possible configuration raises an error instead.
        """
        constant = self.network.exact_constant
        return (constant > -math.inf) & (not self.network.impossible)

    def mode_bound(self) -> Tensor:
        """Return (B,) upper bounds by messages and mini-buckets, or the score where it is optimal.

        They take up to a tenth of the seconds in addition.
        """
        _ = self.mode()
        return self._proved[1]

    def mode_is_consistent(self) -> Tensor:
        """Return (B,) bools, True where the search itself proved that nothing is better."""
        return self.best.optimal

    def mode_is_optimal(self) -> Tensor:
        """Return (B,) bools, True where the search or an upper bound proves it."""
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
        """Return (B,) lower bounds on log Z by the mode, and (B,) upper bounds by messages."""
        if self.network.impossible:
            return self.network.no_bounds[0], self.network.no_bounds[0]
        seconds, bounding = effort.SUM_BOUNDS * self.limits.seconds, self._of_sums.bounding
        return bounding.within(1.0, [self.best.states], seconds)

    @cached_property
    def _of_sums(self) -> Seeker:
        return self._seeker.for_sums(effort.MODE_BOUNDS * self.limits.seconds)

    def log_partition(self) -> Tensor:
        """Return -inf where the model is known to be impossible; else refuse."""
        if self.network.impossible:
            return self.network.log_zero
        return _refused()

    variable_marginals = factor_marginals = expected_score = cast("Any", _refused)
    max_marginals = sample = cast("Any", _refused)
