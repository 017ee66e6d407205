"""Orders with tight bounds, and upper bounds on the best score or the largest sum."""

import math
from collections.abc import Set
from contextlib import suppress
from random import Random

import torch
from torch import Tensor

from rdpgraph._core import effort, tuning
from rdpgraph.engines.minibuckets.bounds import (
    Factor,
    bounded,
    log_sum,
    pass_cells,
    pass_seconds,
    product,
    varying,
)
from rdpgraph.engines.reduction.network import Network
from rdpgraph.engines.reduction.tables import Floats, Tables, tables_of
from rdpgraph.engines.solution import meets
from rdpgraph.errors import BudgetError
from rdpgraph.plan import clock
from rdpgraph.plan.orders import PrimalGraph, min_fill, min_weight, primal_graph


def tight_order(
    tables: Tables,
    *,
    cells: float,
    seconds: float,
    rng: Random,
    maximised: Set[int] = frozenset(),
    deadline: float = math.inf,
) -> list[int]:
    """Order, among those tried, with the least bound by small tables.

    Variables that make no other table grow go first: their messages are often constant, as those of
    conditional probabilities without evidence below them. The rest go by greedy orders with ties
    and noise at random.

    Args:
        tables: the model.
        cells: entries of a table at most.
        seconds: for trying; with none it is one plain greedy order.
        rng: the randomness.
        maximised: variables to eliminate after all others, by maximising.
        deadline: with no seconds, when to take any order, on `clock.now`.
    """
    end = clock.now() + seconds
    soon = end if seconds > 0 else deadline
    first, graph = _leaves(tables, maximised, soon)
    done = set(first)

    def complete(order: list[int]) -> list[int]:
        return first + [v for v in order if v not in done]

    plain = min_weight(graph, last=maximised, deadline=soon)
    if plain is None:  # too little time to look for a good one
        return complete(sorted(range(len(tables.sizes)), key=maximised.__contains__))
    best, least, stale, tried = complete(plain), None, 0, 0
    if seconds <= 0:
        return best
    cells = min(cells, effort.ORDER_CELLS)
    while stale < effort.ORDERS_STALE:
        begin = clock.now()
        order = best if least is None else None
        if order is None:
            noise = effort.ORDER_NOISE[tried % len(effort.ORDER_NOISE)]
            filled = min_fill(graph, rng=rng, noise=noise, last=maximised, deadline=end)
            if filled is None:
                break
            order, tried = complete(filled), tried + 1
        try:
            passed = bounded(tables, order, cells=cells, maximised=maximised, deadline=end)
        except BudgetError:
            break
        if passed.exact:
            return order
        stale += 1
        if least is None or passed.bound < least:
            best, least, stale = order, passed.bound, 0
        if 2 * clock.now() - begin > end:
            break
    return best


def _leaves(tables: Tables, maximised: Set[int], deadline: float) -> tuple[list[int], PrimalGraph]:
    """Variables whose factors all fit into one of these, in turn, and the graph of the others."""
    factors: dict[int, Factor] = {}
    at: list[set[int]] = [set() for _ in tables.sizes]
    made = 0

    def enter(scope: tuple[int, ...], values: Floats) -> None:
        nonlocal made
        factors[made] = scope, values
        for u in scope:
            at[u].add(made)
        made += 1

    for stack in tables.stacks:
        for scope, values in zip(stack.scopes.tolist(), stack.values, strict=True):
            enter(tuple(scope), values)
    order: list[int] = []
    waiting, gone = list(range(len(tables.sizes))), set[int]()
    while waiting and clock.now() <= deadline:
        v = waiting.pop()
        if v in gone or v in maximised:
            continue
        touching = [factors[number] for number in at[v]]
        widest = max((scope for scope, _ in touching), key=len, default=(v,))
        if not set().union(*(scope for scope, _ in touching)) <= set(widest):
            continue
        gone.add(v)
        order.append(v)
        for number in list(at[v]):
            for u in factors.pop(number)[0]:
                at[u].discard(number)
        scope = (v, *(u for u in widest if u != v))
        joint = product(touching, scope, tables.sizes)
        rest, message = varying(scope[1:], log_sum(joint, 0))
        if rest:
            enter(rest, message)
        waiting.extend(scope[1:])
    return order, primal_graph((scope for scope, _ in factors.values()), tables.sizes)


def ceilings(
    network: Network,
    summed: Set[int],
    *,
    seconds: float,
    memory: float,
    scores: Tensor | None = None,
) -> Tensor:
    """(B,) upper bounds (nats, float64) on the best score, by mini-buckets at temperature zero.

    Active variables ``summed`` are summed out: the bound is on the largest sum. Tables grow until a
    bound meets the known ``scores`` (B,), or the time or the memory (bytes) is used.
    """
    constant = network.constant.detach().double().cpu().expand(network.batch)
    if network.impossible:
        return torch.full_like(constant, -math.inf)
    share = seconds / max(network.batch, 1)
    if pass_seconds(network) > effort.BOUND_LATE * share:
        return torch.full_like(constant, math.inf)
    each = constant.clone()
    maximised = frozenset(range(len(network.sizes))).difference(summed)
    for item in range(network.batch):
        tables = tables_of(network, item, zeros=True)
        known = None if scores is None else scores[item].cpu() - constant[item]
        each[item] += _ceiling(tables, maximised, share, memory, known)
    return each


def _ceiling(
    tables: Tables, maximised: Set[int], seconds: float, memory: float, known: Tensor | None
) -> float:
    begin, best = clock.now(), math.inf
    with suppress(BudgetError):
        most = pass_cells(tables, memory)
        order = tight_order(
            tables,
            cells=most,
            seconds=effort.BOUND_ORDER * seconds,
            rng=Random(0),
            maximised=maximised,
        )
        cells = min(effort.BOUND_CELLS, most)
        while True:
            start = clock.now()
            late = begin + effort.BOUND_LATE * seconds
            passed = bounded(tables, order, cells=cells, maximised=maximised, deadline=late)
            best = min(best, passed.bound)
            took = clock.now() - start
            used = sum(part.values.size for bucket in passed.buckets for part in bucket)
            met = known is not None and bool(meets(known, torch.tensor(best, device="cpu")))
            if passed.exact or met or clock.now() + effort.PASS_GROWTH * took > begin + seconds:
                return best
            if effort.PASS_GROWTH * used * tuning.BUCKET_BYTES > memory:
                return best
            cells *= effort.PASS_GROWTH
    return best
