"""Where a search begins: configurations of draws, bounds and estimates; and its limits."""

import math
from collections.abc import Callable, Iterable, Set
from dataclasses import dataclass, field
from itertools import chain, count, product
from random import Random

import numpy as np

from rdpgraph._core import effort, tuning
from rdpgraph.engines.elimination_bounds import Elimination, bounded, tight_order
from rdpgraph.engines.minibuckets.estimate import Sampling, estimated
from rdpgraph.engines.minibuckets.population import grown
from rdpgraph.engines.minibuckets.solution import best_bounded, paths
from rdpgraph.engines.reduction.network import Network
from rdpgraph.engines.reduction.tables import (
    Floats,
    Integers,
    Stack,
    Tables,
    tables_of,
)
from rdpgraph.engines.search.neighbourhoods import Move, NeighbourhoodSearch, Patience
from rdpgraph.errors import BudgetError
from rdpgraph.plan import clock


@dataclass(frozen=True)
class SearchLimits:
    """The limits of a search."""

    seconds: float  # for all items of the batch
    memory: float = math.inf  # bytes for the tables of a move
    patience: float = 1.0  # part of the seconds without a gain after which a search ends
    seed: int = 0  # of the randomness
    # seconds that everything before the search took; if given, a search also ends after as long
    # without a gain as everything took up to its last gain
    before: float = math.inf
    any_possible: bool = False  # stop at the first mode that is possible
    # called after every move
    progress: Callable[[Move], None] | None = field(default=None, metadata={"elsewhere": None})


def starts_of_sums(
    network: Network, item: int, run: NeighbourhoodSearch, states: Integers, limits: SearchLimits
) -> list[Integers]:
    """Return initial states of searches for a marginal mode, those of the largest sums first.

    They are the given states, modes of all variables found from several starts, draws, and
    configurations whose sums have the highest upper bounds.
    """
    end = clock.now() + limits.seconds
    joint, tables = tables_of(network, item), tables_of(network, item, zeros=True)
    drawn = _drawn(tables, run.summed, limits)
    kept = sorted(set(range(len(tables.sizes))).difference(run.summed))
    seen: dict[bytes, tuple[float, Integers]] = {}

    # Each start is valued by the log-sum over the variables that are summed, once.
    def enter(states: Integers) -> None:
        key = states[kept].tobytes()
        value = None if key in seen else run.value(states, deadline=end)
        if value is not None:
            seen[key] = value, states

    # A mode of all variables: from a draw, or from any states where nothing is impossible.
    firsts: Iterable[Integers] = [states, *drawn[:1]]
    if not any((stack.values == -math.inf).any() for stack in tables.stacks):
        rng = np.random.default_rng(limits.seed)
        firsts = chain([states], (rng.integers(0, tables.sizes) for _ in count()))
    seconds = effort.JOINT_MODE * (end - clock.now())
    search = NeighbourhoodSearch(joint, Random(limits.seed), memory=limits.memory)
    mode = search.compete(firsts, seconds=seconds, patience=Patience(0.5 * seconds))
    for other in (states, *([] if mode is None else [mode.states])):
        enter(other)
    # Draws, then configurations of large bounds, each kind in a half of its time.
    for candidates in (drawn, _by_bounds(tables, run.summed, limits)):
        until = clock.now() + 0.5 * effort.BOUNDED_STARTS * limits.seconds
        for other in candidates:
            if clock.now() > until:
                break
            enter(other)
    best = sorted(seen.values(), key=lambda pair: -pair[0])
    return [states for _, states in best[: effort.STARTS]]


def _drawn(tables: Tables, summed: Set[int], limits: SearchLimits) -> Integers:
    """Return (n, V) possible configurations of a population that follows bounds on the rest.

    The bounds maximise over the variables asked for and sum over the others. Their order may
    maximise before it sums, which only loosens them. If they are too loose to reach a possible
    configuration, the population follows bounds that sum over all variables.
    """
    everything = frozenset(range(len(tables.sizes)))
    end = clock.now() + 0.5 * effort.DRAWN_STARTS * limits.seconds
    order = tight_order(
        tables, cells=effort.START_CELLS, seconds=0.0, rng=Random(limits.seed), deadline=end
    )
    cells = max(min(effort.START_CELLS, limits.memory / (32.0 * len(tables.sizes))), 2.0)
    rng, late = np.random.default_rng(limits.seed), end + effort.DRAWN_STARTS * limits.seconds
    # Small populations before large ones, and bounds that maximise before those that only sum.
    kinds = (everything.difference(summed), frozenset[int]())
    passes: dict[frozenset[int], Elimination] = {}
    for members, maximised in product((effort.BEAM, 10 * effort.BEAM), kinds):
        try:
            if maximised not in passes:
                passes[maximised] = bounded(
                    tables, order, cells=cells, maximised=maximised, deadline=late
                )
        except BudgetError:
            break
        drawn = grown(passes[maximised], members, rng, recorded=True, deadline=late)
        if drawn is not None and len(drawn.shares):
            return paths(drawn, len(tables.sizes), effort.BEAM)
        if drawn is None or clock.now() > end:
            break
    return np.zeros((0, len(tables.sizes)), np.int64)


def _by_bounds(tables: Tables, summed: Set[int], limits: SearchLimits) -> Integers:
    """Return (n, V) configurations whose sums have the highest bounds by mini-buckets."""
    maximised = frozenset(range(len(tables.sizes))).difference(summed)
    cells = max(min(effort.START_CELLS, limits.memory / (32.0 * len(tables.sizes))), 2.0)
    seconds = 0.5 * effort.BOUNDED_STARTS * limits.seconds
    order = tight_order(
        tables, cells=cells, seconds=seconds, rng=Random(limits.seed), maximised=maximised
    )
    late = clock.now() + limits.seconds
    try:
        passed = bounded(tables, order, cells=cells, maximised=maximised, deadline=late)
    except BudgetError:
        return np.zeros((0, len(tables.sizes)), np.int64)
    return best_bounded(passed, maximised, effort.BEAM)[0]


def best_estimated(
    network: Network, item: int, summed: frozenset[int], start: Integers, limits: SearchLimits
) -> tuple[Integers, float] | None:
    """Return the best states (V,) where sums do not fit, and a lower bound on their log-sum.

    The sums are estimated. Where there is no time for an estimate, a configuration's own score is
    the lower bound of its sum. If the model is too large to draw from it in the time, a mode of all
    variables is returned. Returns None if no configuration was possible.
    """
    end = clock.now() + limits.seconds
    slow = tuning.SECONDS_PER_FACTOR * sum(len(group.scopes) for group in network.groups)
    if 2.0 * slow > limits.seconds:
        joint = tables_of(network, item)
        modes = NeighbourhoodSearch(joint, Random(limits.seed), memory=limits.memory)
        mode = modes.run(start, seconds=max(end - clock.now(), 0.0))
        possible = mode is not None and joint.is_possible(mode.score)
        return (mode.states, mode.score) if mode is not None and possible else None
    tables = tables_of(network, item, zeros=True)
    drawn = bounds = np.zeros((0, len(tables.sizes)), np.int64)
    if clock.now() + slow < end:
        drawn = _drawn(tables, summed, limits)[: effort.TRIED_STARTS]
    if clock.now() + slow < end:
        bounds = _by_bounds(tables, summed, limits)[: effort.TRIED_STARTS]
    # Until there are estimates, the start of the largest own score is the best.
    every = np.concatenate([bounds, drawn])
    full = [(states, tables.score(states)) for states in (start, *every)]
    best = max(full, key=lambda pair: pair[1])
    highest = best[1]
    for number, states in enumerate(every):
        left = end - clock.now()
        if left <= 2.0 * slow:
            break
        # The sum over the other variables is estimated in a share of the time that is left. What
        # is claimed is its lower bound.
        part, constant = _given(tables, states, summed)
        if constant == -math.inf:
            continue
        share, late = left / (2 * effort.TRIED_STARTS - number), effort.START_LATE * limits.seconds
        sums = estimated(part, Sampling(share, limits.memory, None, limits.seed, grace=late))
        value = constant + max(sums.log_partition, sums.lower)
        if value > highest:
            best = states, max(constant + sums.lower, tables.score(states))
            highest = value
    return best if highest > -math.inf else None


def _given(tables: Tables, states: Integers, free: Set[int]) -> tuple[Tables, float]:
    """Return the factors of the free variables given the states of all others, and a constant."""
    rank = {v: place for place, v in enumerate(sorted(free))}
    merged: dict[tuple[int, ...], Floats] = {}
    constant = 0.0
    for stack in tables.stacks:
        for scope, values in zip(stack.scopes.tolist(), stack.values, strict=True):
            left = values[tuple(slice(None) if v in rank else states[v] for v in scope)]
            ranks = tuple(rank[v] for v in scope if v in rank)
            if ranks:
                merged[ranks] = merged[ranks] + left if ranks in merged else left
            else:
                constant += float(left)
    stacks = [Stack(np.array([ranks], np.int64), values[None]) for ranks, values in merged.items()]
    sizes = tuple(tables.sizes[v] for v in sorted(free))
    return Tables(sizes, tuple(stacks), tables.span), constant
