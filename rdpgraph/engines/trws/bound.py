"""Upper bounds by any messages: on the best score, and on log Z by Hoelder's inequality.

Let b(x) be the belief of a variable s, its unary log-values and all messages into it, and let s
share n(s) pairs with variables later in the order. Moving messages between factors leaves their sum
as it is, so the score of every configuration is

    sum over pairs (s, t), s first, of  b_s(x_s) / n(s) - M_ts(x_s) + table(x_s, x_t) - M_st(x_t)

plus the beliefs of variables without a later pair. The sum of the largest values of these terms
therefore bounds all scores, whatever the messages. Log Z is bounded by eliminating the variables in
the order: Hoelder's inequality gives each pair of s the power sum

    (1 / n(s)) log sum over x_s of exp(n(s) (...)),

whose maximum over x_t takes its place (a weighted mini-bucket for each pair; Liu and Ihler 2011).
Both are exact where each variable has one later pair, as on a tree from the leaves to a root.

Every term is rounded upwards, so that the bounds are certain. `trws.h` of the compiled library has
the same terms.
"""

import math

import numpy as np

from rdpgraph._core import tuning
from rdpgraph.engines.reduction.tables import Floats, Integers
from rdpgraph.engines.trws.pairs import PairBlock, Pairwise, absolute
from rdpgraph.native.library import call, serves_graphs

_EPS = float(np.finfo(np.float64).eps)
"""Twice the largest relative error of one operation in float64."""

_OPERATIONS = 8
"""Operations on a number, at most, beside the additions of a belief."""


def upper_bound(
    model: Pairwise, messages: Floats, temperature: float, *, forward: bool = True
) -> float:
    """Upper bound (nats) on all scores, or at temperature t > 0 on t log sum exp(score / t).

    Args:
        model: the factors.
        messages: any, in the layout of `Pairwise.spans`; -inf proves a state impossible.
        temperature: 0 bounds scores, 1 log Z.
        forward: the order of the variables, or its reverse.
    """
    with np.errstate(invalid="ignore", divide="ignore"):
        later, beliefs = model.later(forward=forward), _raised_beliefs(model, messages)
        terms = [model.rest, *_of_last(model, beliefs, later, temperature)]
        if serves_graphs() and model.count:
            every, scopes = np.empty(model.count), model.edges[0]
            arrays = model.starts, scopes, model.flat_tables, messages, beliefs, later, every
            call(
                "trws_bound", *arrays, len(model.sizes), model.count, temperature,
                _OPERATIONS * _EPS, int(forward),
            )  # fmt: skip
            return _total([*terms, *every.tolist()])
        for pairs, (into_rows, into_columns) in zip(
            model.pairs, model.views(messages), strict=True
        ):
            # The rows of some factors come first in the order, and the columns of the others.
            first = (pairs.rows < pairs.columns) == forward
            each = math.prod(pairs.values.shape[1:])
            for part, swapped in ((first.nonzero()[0], False), ((~first).nonzero()[0], True)):
                step = tuning.per_block(each, tuning.BLOCK)
                for begin in range(0, len(part), step):
                    some = part[begin : begin + step]
                    one, two = into_rows[some], into_columns[some]
                    terms += _of_pairs(
                        model, pairs, some, (two, one) if swapped else (one, two), beliefs, later,
                        temperature, swapped=swapped,
                    ).tolist()  # fmt: skip
    return _total(terms)


def bound_operations(temperature: float) -> tuple[float, float]:
    """Operations of a bound for each pair, and for each entry of its table."""
    if not serves_graphs():
        return tuning.BOUND_PAIR, tuning.BOUND_ENTRY
    return tuning.COMPILED_BOUND_SUMS if temperature else tuning.COMPILED_BOUND_MAXIMA


def _total(terms: list[float]) -> float:
    """The sum of all terms, rounded upwards."""
    total = math.fsum(terms)
    return math.nextafter(total, math.inf) if math.isfinite(total) else total


def _raised(
    values: Floats, magnitudes: Floats, operations: Integers | float = _OPERATIONS
) -> Floats:
    """Values raised by the rounding of operations on numbers of these magnitudes; -inf stays."""
    return np.where(values > -math.inf, values + _EPS * operations * magnitudes, -math.inf)


def _raised_beliefs(model: Pairwise, messages: Floats) -> Floats:
    """(S,) beliefs, raised by the rounding of their sums."""
    places, count = model.receivers, len(model.unary)
    magnitudes = absolute(model.unary) + np.bincount(places, absolute(messages), count)
    additions = np.bincount(places, minlength=count) + _OPERATIONS
    return _raised(model.beliefs(messages), magnitudes, additions)


def _of_last(model: Pairwise, beliefs: Floats, later: Integers, temperature: float) -> list[float]:
    """Largest belief, or log-sum, of each variable that shares no pair with a later one."""
    terms: list[float] = []
    last = later == 0
    for size in np.unique(model.sizes[last]).tolist():
        variables = (last & (model.sizes == size)).nonzero()[0]
        values = beliefs[model.states_of(variables, size)]
        terms += log_power_sum(values, np.full(len(values), temperature)).tolist()
    return terms


def _of_pairs(
    model: Pairwise, pairs: PairBlock, some: Integers, into: tuple[Floats, Floats], beliefs: Floats,
    later: Integers, temperature: float, *, swapped: bool,
) -> Floats:  # fmt: skip
    """(n,) the terms of some pairs.

    ``into`` are the messages into the first variable of each, and into the second.
    """
    first = (pairs.columns if swapped else pairs.rows)[some]
    tables = pairs.values[pairs.tables[some]]  # (n, K, L), the first variable's states in dim 1
    tables = tables.swapaxes(1, 2) if swapped else tables
    own = beliefs[model.states_of(first, tables.shape[1])]
    share = 1.0 / later[first]
    # An impossible state has no message that could be taken back.
    possible = own > -math.inf
    part = share[:, None] * np.where(possible, own, 0.0)
    given = np.where(possible, into[0], 0.0)
    sent = _raised(np.where(possible, part - given, -math.inf), np.abs(part) + np.abs(given))
    back = np.where(into[1] > -math.inf, -into[1], -math.inf)
    back = _raised(back, np.abs(back))
    # What each number is raised by covers the rounding of these additions too.
    values = _raised(tables, np.abs(tables)) + sent[:, :, None] + back[:, None]
    if not temperature:
        return values.reshape(len(values), -1).max(1)
    sums = log_power_sum(
        values.swapaxes(1, 2).reshape(-1, tables.shape[1]),
        np.repeat(share * temperature, tables.shape[2]),
    )
    return sums.reshape(len(values), -1).max(1)


def log_power_sum(values: Floats, temperatures: Floats) -> Floats:
    """(n,) t log sum over k of exp(values / t) of (n, k), rounded upwards; the maximum at t = 0."""
    peak = values.max(1)
    if not temperatures.any():
        return peak
    safe = np.where(peak > -math.inf, peak, 0.0)
    sums = np.log(np.exp((values - safe[:, None]) / temperatures[:, None]).sum(1))
    total = safe + temperatures * sums
    rounding = np.abs(safe) + temperatures * (values.shape[1] + np.abs(sums))
    return np.where(peak > -math.inf, _raised(total, rounding), -math.inf)
