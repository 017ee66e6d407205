"""Bounds that no configuration exceeds: of the best score, or of the largest sum."""

import math
from collections.abc import Set
from contextlib import suppress
from random import Random

import torch
from torch import Tensor

from rdpgraph.engines.minibuckets.bounds import ENTRY, bounded, pass_cells, pass_seconds
from rdpgraph.engines.minibuckets.ordering import tight_order
from rdpgraph.engines.network import Network
from rdpgraph.engines.solution import meets
from rdpgraph.engines.tables import Tables, tables_of
from rdpgraph.errors import BudgetError
from rdpgraph.plan import clock

_CELLS, _GROWTH = 2.0**12, 8.0
_ORDER = 0.3
"""The part of the time in which orders are compared."""
_LATE = 10.0
"""How many times the time the first pass may take, which is there or is not."""


def ceilings(
    network: Network,
    summed: Set[int],
    *,
    seconds: float,
    memory: float,
    scores: Tensor | None = None,
) -> Tensor:
    """(B,) upper bounds (nats, float64) of the best score, by mini-buckets at temperature zero.

    Tables grow until a bound meets what was found, or the time or the memory is used.

    Args:
        network: reduced, without whole potentials.
        summed: active variables that are summed out; the bound is of the largest sum.
        seconds: for all items.
        memory: bytes for the tables of a pass.
        scores: (B,) that were found.
    """
    constant = network.constant.detach().double().cpu().expand(network.batch)
    if network.impossible:
        return torch.full_like(constant, -math.inf)
    share = seconds / max(network.batch, 1)
    if pass_seconds(network) > _LATE * share:
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
            tables, cells=most, seconds=_ORDER * seconds, rng=Random(0), maximised=maximised
        )
        cells = min(_CELLS, most)
        while True:
            start = clock.now()
            late = begin + _LATE * seconds
            passed = bounded(tables, order, cells=cells, maximised=maximised, deadline=late)
            best = min(best, passed.bound)
            took = clock.now() - start
            used = sum(part.values.size for bucket in passed.buckets for part in bucket)
            met = known is not None and bool(meets(known, torch.tensor(best, device="cpu")))
            if passed.exact or met or clock.now() + _GROWTH * took > begin + seconds:
                return best
            if _GROWTH * used * ENTRY > memory:
                return best
            cells *= _GROWTH
    return best
