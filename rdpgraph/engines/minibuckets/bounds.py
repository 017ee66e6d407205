"""Bounds of log Z by elimination with bounded tables (weighted mini-buckets).

Dechter and Rish (2003), Mini-buckets; Liu and Ihler (2011), Bounding the partition function using
Holder's inequality.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from rdpgraph.engines.tables import Floats, Tables

_Factor: TypeAlias = tuple[tuple[int, ...], Floats]

_NEGATIVE = 0.5
"""The absolute value of each negative weight of a lower bound."""


@dataclass(frozen=True, eq=False)
class MiniBucket:
    """A part of the factors that hold a variable.

    Attributes:
        weight: of its power sum; those of a variable's mini-buckets sum to one.
        scope: the variable, and the others in the order of elimination.
        values: their summed log-values.
        message: the power sum over the variable.
    """

    weight: float
    scope: tuple[int, ...]
    values: Floats
    message: Floats


@dataclass(frozen=True, eq=False)
class Elimination:
    """What a pass leaves behind.

    Attributes:
        bound: of log Z, upper or lower (nats).
        buckets: of each variable, in the order of elimination.
        exact: no bucket was split: the bound is log Z.
    """

    bound: float
    buckets: tuple[tuple[MiniBucket, ...], ...]
    exact: bool


def bounded(
    tables: Tables,
    order: Sequence[int],
    *,
    cells: float,
    lower: bool = False,
) -> Elimination:
    """A bound of log Z along an order, with no table above a size.

    The factors of a variable are split into mini-buckets, first fit; the mini-buckets' moments are
    matched, which leaves their product as it is, and each is summed to the power of its weight.
    Time and memory are linear in the tables.

    Args:
        tables: the model; finite values only for a lower bound.
        order: all variables.
        cells: entries of a table, unless one factor has more.
        lower: one weight above one and the others negative (reverse Holder), not all positive.
    """
    rank = {v: place for place, v in enumerate(order)}
    waiting = _sorted_factors(tables, rank)
    bound, exact = 0.0, True
    done: list[tuple[MiniBucket, ...]] = []
    for v in order:
        parts = _split(v, waiting[rank[v]], rank, tables.sizes, cells)
        waiting[rank[v]] = []
        weights = _weights(len(parts), lower=lower)
        exact = exact and len(parts) == 1
        values = _matched([part for _, part in parts], weights)
        own: list[MiniBucket] = []
        for (scope, _), joint, weight in zip(parts, values, weights, strict=True):
            message = _power_sum(joint, weight)
            own.append(MiniBucket(weight, scope, joint, message))
            if len(scope) > 1:
                waiting[rank[scope[1]]].append((scope[1:], message))
            else:
                bound += float(message)
        done.append(tuple(own))
    return Elimination(bound, tuple(done), exact)


def _sorted_factors(tables: Tables, rank: dict[int, int]) -> list[list[_Factor]]:
    """The factors of each variable, in order; each with the first of its own, dims in order."""
    waiting: list[list[_Factor]] = [[] for _ in rank]
    for stack in tables.stacks:
        for scope, values in zip(stack.scopes.tolist(), stack.values, strict=True):
            dims = sorted(range(len(scope)), key=lambda dim, own=scope: rank[own[dim]])
            ordered = tuple([scope[dim] for dim in dims])
            waiting[rank[ordered[0]]].append((ordered, values.transpose(dims)))
    return waiting


def _split(
    v: int, factors: list[_Factor], rank: dict[int, int], sizes: Sequence[int], cells: float
) -> list[tuple[tuple[int, ...], Floats]]:
    """First fit, the largest factors first."""
    scopes: list[set[int]] = []
    members: list[list[_Factor]] = []
    for factor in sorted(factors, key=lambda pair: -len(pair[0])):
        own = set(factor[0])
        for place, scope in enumerate(scopes):
            if own <= scope or math.prod(sizes[u] for u in own | scope) <= cells:
                scope |= own
                members[place].append(factor)
                break
        else:
            scopes.append(own)
            members.append([factor])
    if not scopes:
        return [((v,), np.zeros(sizes[v]))]
    parts: list[tuple[tuple[int, ...], Floats]] = []
    for scope, own_factors in zip(scopes, members, strict=True):
        ordered = tuple(sorted(scope, key=rank.__getitem__))
        joint = np.zeros([sizes[u] for u in ordered])
        for held, values in own_factors:
            inside = set(held)
            joint += values.reshape([sizes[u] if u in inside else 1 for u in ordered])
        parts.append((ordered, joint))
    return parts


def _weights(count: int, *, lower: bool) -> list[float]:
    if not lower:
        return [1.0 / count] * count
    return [1.0 + _NEGATIVE * (count - 1)] + [-_NEGATIVE] * (count - 1)


def _matched(parts: list[Floats], weights: list[float]) -> list[Floats]:
    """The same product, with moments that agree; hard zeros are moved to all parts."""
    if len(parts) == 1:
        return parts
    moments = [
        _log_sum((values / weight).reshape(len(values), -1), 1)
        for values, weight in zip(parts, weights, strict=True)
    ]
    with np.errstate(invalid="ignore"):
        mean = sum(weight * moment for weight, moment in zip(weights, moments, strict=True))
        gaps = [np.where(np.isfinite(moment), mean - moment, 0.0) for moment in moments]
    return [
        values + (weight * gap).reshape(-1, *(1,) * (values.ndim - 1))
        for values, weight, gap in zip(parts, weights, gaps, strict=True)
    ]


def _power_sum(joint: Floats, weight: float) -> Floats:
    """The log of the sum over the first dim of powers, to the power of the weight."""
    return weight * _log_sum(joint / weight, 0)


def _log_sum(values: Floats, dim: int) -> Floats:
    peak = values.max(dim, keepdims=True)
    safe = np.where(np.isfinite(peak), peak, 0.0)
    with np.errstate(divide="ignore"):
        return np.log(np.exp(values - safe).sum(dim)) + safe.squeeze(dim)
