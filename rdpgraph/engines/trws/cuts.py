"""Pairs of binary variables by a minimum cut: the exact mode, or a part of it, and the best bound.

The score of a pair with the table [[a, b], [c, d]] is, up to a constant,

    x_i (c - a + d - b) / 2 + x_j (d - c + b - a) / 2 - w [x_i != x_j],  w = (a + d - b - c) / 2,

so that a graph whose w are all positive has its mode at the minimum cut of a network with these
capacities. So does one that exchanging the states of some variables brings to this form. In other
graphs the cut of the doubled network solves the linear relaxation of the mode (roof duality), and
each state that it decides is that of some mode. See `cuts.h` of the compiled library.

Capacities are integers, so that the flow ends exactly. Their rounding cannot spoil a bound, which
is computed from the messages that the flow stands for, and which any messages would give.
"""

import math
from typing import NamedTuple

import numpy as np

from rdpgraph._core import tuning
from rdpgraph.engines.reduction.tables import SURE, Floats, Integers
from rdpgraph.engines.trws.pairs import Pairwise
from rdpgraph.native.library import call
from rdpgraph.plan import clock

_LARGEST = 2.0**60
"""The sum of all capacities, at most: no sum of them leaves the range of 64 bits."""


class Cut(NamedTuple):
    """Outcome of a cut."""

    messages: Floats  # in the layout of `Pairwise.spans`; their bound is that of the relaxation
    states: Integers  # (V,) states that some mode has all together; -1 where nothing is known
    error: float  # nats by which the cut's scores differ from those of the model, at most


def minimum_cut(model: Pairwise, seconds: float) -> Cut | None:
    """Cut a model of binary variables; None if one has more states.

    Hard zeros are such low numbers that fewer violations score higher.

    Args:
        model: unary log-values and pairs; larger factors are left out.
        seconds: after which no state is decided.
    """
    if not model.count or (model.sizes != 2).any():
        return None
    low = -2.0 * model.span - SURE
    unary = np.maximum(model.unary, low).reshape(-1, 2)
    fields = unary[:, 1] - unary[:, 0]
    # Of each pair: what it gives to its variables, and w.
    ends, own, weights = list[Integers](), list[Floats](), list[Floats]()
    for pairs in model.pairs:
        tables = np.maximum(pairs.values, low)
        (a, b), (c, d) = tables.transpose(1, 2, 0)
        own.append((0.5 * np.stack([c - a + d - b, d - c + b - a], 1))[pairs.tables])
        weights.append((0.5 * (a + d - b - c))[pairs.tables])
        ends.append(np.stack([pairs.rows, pairs.columns], 1))
    places, given, weight = np.concatenate(ends), np.concatenate(own), np.concatenate(weights)
    fields += np.bincount(places.ravel(), given.ravel(), len(fields))
    # The energy is minus the score; powers of two scale without rounding.
    total = float(np.abs(fields).sum() + np.abs(weight).sum())
    scale = 2.0 ** math.floor(math.log2(_LARGEST / max(total, 1e-100)))
    capacities = np.rint(scale * weight).astype(np.int64)
    costs = np.rint(-scale * fields).astype(np.int64)
    moved, labels = np.zeros(len(weight), np.int64), np.empty(len(fields), np.int8)
    visits, places = np.zeros(2), np.ascontiguousarray(places, np.int32)
    most = seconds * tuning.OPERATIONS_PER_SECOND / tuning.CUT_VISIT
    arrays = places, capacities, costs, moved, labels, visits
    call("cut_minimum", *arrays, len(fields), len(weight), most)
    clock.count(tuning.CUT_VISIT * float(visits[0]) + tuning.CUT_PAIR * len(weight))
    # Rounding to integers, and of float64 in the sums before it.
    terms, eps = len(fields) + len(weight), float(np.finfo(np.float64).eps)
    error = 0.5 * terms / scale + 16.0 * eps * float(np.abs(unary).sum() + np.abs(given).sum())
    states = labels.astype(np.int64)
    return Cut(_messages(model, given, weight, moved / (2.0 * scale)), states, error)


def _messages(model: Pairwise, given: Floats, weights: Floats, moved: Floats) -> Floats:
    """What each pair gives to its row and its column, as messages: 0 for the first state."""
    messages, begin = np.zeros(model.message_entries), 0
    for pairs, (rows, columns) in zip(model.pairs, model.views(messages), strict=True):
        some = slice(begin, begin + len(pairs.rows))
        rows[:, 1] = given[some, 0] + moved[some]
        columns[:, 1] = given[some, 1] - np.sign(weights[some]) * moved[some]
        begin = some.stop
    return messages
