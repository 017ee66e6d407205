"""Lower bounds on log Z by mean field: a distribution of independent variables, improved in turn.

For any such q, log Z is at least the expected score plus the entropy of q (Wainwright and Jordan
2008, section 5). The best q of one variable, given those of all others, is

    q(x) proportional to exp(unary(x) + sum over pairs and states y of q(y) table(x, y)),

so that updates in turn never lower the bound. From a possible configuration on, no update makes an
impossible one probable: the state that the configuration has stays finite.
"""

import math
from collections.abc import Sequence

import numpy as np

from rdpgraph._core import effort, tuning
from rdpgraph.engines.reduction.tables import Floats, Integers
from rdpgraph.engines.trws.layers import TrwsLayer, colours, layers_of
from rdpgraph.engines.trws.pairs import Pairwise, absolute
from rdpgraph.plan import clock

_EPS = float(np.finfo(np.float64).eps)
"""Twice the largest relative error of one operation in float64."""


def mean_field(model: Pairwise, start: Integers, temperature: float, *, seconds: float) -> float:
    """Lower bound (nats) on t log sum exp(score / t), rounded downwards.

    Args:
        model: pairs alone; larger factors are not read.
        start: (V,) a possible configuration to begin with.
        temperature: t, above 0.
        seconds: in which sweeps over all variables may begin.
    """
    end = clock.now() + seconds
    shares = np.zeros(len(model.unary))
    shares[model.starts[:-1] + start] = 1.0
    with np.errstate(invalid="ignore"):  # probabilities of zero, times -inf
        best = _free_energy(model, shares, temperature)
    operations = tuning.MEAN_FIELD_ENTRY * (model.table_entries + len(model.unary))
    layers: Sequence[TrwsLayer] = ()
    for _ in range(effort.MEAN_FIELD_SWEEPS):
        if end - clock.now() < operations / tuning.OPERATIONS_PER_SECOND:
            break
        layers = layers or layers_of(model, colours(model), forward=True)
        with np.errstate(invalid="ignore", over="ignore"):
            for layer in layers:
                _update(model, layer, shares, temperature)
            new = _free_energy(model, shares, temperature)
        clock.count(operations)
        gain, best = new - best, max(best, new)
        if not gain > effort.MEAN_FIELD_GAIN * max(abs(best), 1.0):
            break
    return best


def _update(model: Pairwise, layer: TrwsLayer, shares: Floats, temperature: float) -> None:
    """Set the probabilities of a layer's variables to the best ones given all others."""
    logs = model.unary[layer.places]
    for end in (*layer.later, *layer.earlier):
        tables = end.tables(model)
        others = shares[model.states_of(end.others, tables.shape[2])][:, None]
        means = np.where(others > 0.0, others * tables, 0.0).sum(2)
        logs = logs + np.bincount(end.own.ravel(), means.ravel(), len(logs))
    for _, places in layer.alike:
        each = logs[places] / temperature
        each = np.exp(each - each.max(1, keepdims=True))
        shares[layer.places[places]] = each / each.sum(1, keepdims=True)


def _free_energy(model: Pairwise, shares: Floats, temperature: float) -> float:
    """Expected score plus entropy of independent variables, rounded downwards."""
    likely = shares > 0.0
    logs = np.where(likely, np.log(np.where(likely, shares, 1.0)), 0.0)
    scores = np.where(likely, shares * model.unary, 0.0)
    total, error = float((scores - temperature * shares * logs).sum()), 0.0
    error += float(np.abs(scores).sum()) + temperature * float(np.abs(shares * logs).sum())
    for pairs in model.pairs:
        height, width = pairs.values.shape[1:]
        step = tuning.per_block(height * width)
        for begin in range(0, len(pairs.rows), step):
            some = slice(begin, begin + step)
            one = shares[model.states_of(pairs.rows[some], height)]
            two = shares[model.states_of(pairs.columns[some], width)]
            joint = one[:, :, None] * two[:, None]
            tables = pairs.values[pairs.tables[some]]
            terms = np.where(joint > 0.0, joint * tables, 0.0)
            total += float(terms.sum())
            error += float(absolute(terms).sum())
    # Probabilities add up to one up to rounding, which counts once for each variable of a factor.
    return total - (math.log2(len(shares) + 2.0) + model.sizes.max(initial=1) + 16.0) * _EPS * error
