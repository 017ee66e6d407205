"""Sweeps of sequential tree-reweighted messages, compiled or in NumPy, and the bound they give.

Kolmogorov (2006), Convergent Tree-reweighted Message Passing for Energy Minimization. The equations
are those of `trws.h` of the compiled library. A sweep visits the variables in order, the next one
in reverse. For maxima no sweep raises the bound.
"""

import math
from typing import NamedTuple

import numpy as np

from rdpgraph._core import effort, tuning
from rdpgraph._core.cache import cached_property
from rdpgraph._core.numbers import PROOF
from rdpgraph.engines.reduction.tables import SURE, Integers
from rdpgraph.engines.trws.bound import bound_operations, upper_bound
from rdpgraph.engines.trws.cuts import Cut, minimum_cut
from rdpgraph.engines.trws.layers import TrwsLayer, depths, layers_of
from rdpgraph.engines.trws.pairs import Pairwise
from rdpgraph.native.library import call, serves_graphs
from rdpgraph.plan import clock


class Swept(NamedTuple):
    """Outcome of sweeps over one batch item."""

    bound: float  # certain upper bound (nats), by the best of all messages
    states: Integers  # (V,) the best configuration that was read off
    score: float  # its log-value, without larger factors
    settled: Integers  # (V,) states that some mode has all together; -1 where nothing is known


def swept(model: Pairwise, temperature: float, *, seconds: float, near: float = 0.0) -> Swept:
    """Sweep until the bound meets the score, or gains next to nothing, or the time is over.

    Modes of binary variables begin with a minimum cut. Where pairs attract it is the answer, and
    else its bound is the limit of sweeps, which go on for better configurations.

    Args:
        model: the factors of one batch item.
        temperature: 0 bounds scores, t > 0 bounds t log sum exp(score / t).
        seconds: in which sweeps may begin; there may be none.
        near: the same, if that is more, for the first sweeps for maxima, and where a small gap
            between bound and score promises a proof.
    """
    begin, messages, bound = clock.now(), _Messages(model, temperature), math.inf
    states = model.likeliest(messages.values)
    score, settled = model.score(states), np.full(len(states), -1, np.int64)
    if not temperature and (cut := _cut(model, effort.CUT * seconds)) is not None:
        bound = upper_bound(model, cut.messages, temperature)
        clock.count(messages.bound_operations)
        known = np.where(cut.states >= 0, cut.states, states)
        if (value := model.score(known)) > score:
            states, score = known, value
        if cut.error <= 0.5 * PROOF * max(abs(score), 1.0):
            settled = cut.states
    # The first two sweeps solve trees; then shares are those of Kolmogorov for maxima, which end
    # lower, and all of a belief for log Z, whose bound is lower then.
    count, forward, stale, done = 2, True, 0, 0
    while model.count and bound > score + PROOF * max(abs(score), 1.0) and stale < 2:
        # The first sweeps for maxima gain more than a search from a poor configuration would.
        close = bound - score <= effort.NEAR_PROOF * max(abs(score), 1.0)
        longer = not temperature and (close or done < effort.FIRST_REWEIGHTED)
        until = begin + (max(seconds, near) if longer else seconds)
        left = (until - clock.now()) * tuning.OPERATIONS_PER_SECOND - messages.bound_operations
        count = min(count, int(left / messages.operations))
        if count < 1:
            break
        read = np.zeros(len(model.sizes), np.int64) if not temperature else None
        messages.sweep(count, forward=forward, evenly=bool(temperature) or count == 2, states=read)
        # The bound in the direction of the last sweep is the one that it lowered.
        last = forward == (count % 2 == 1)
        new = upper_bound(model, messages.values, temperature, forward=last)
        clock.count(messages.bound_operations)
        least, before = effort.SWEPT_GAIN * max(abs(new), 1.0), score
        if not temperature:
            least = min(least, effort.SWEPT_CLOSED * (bound - score))
        if read is not None:
            # Each by itself, the best states are consistent where the bound is tight; read in turn,
            # they are better where it is not.
            for read_off in (read, model.likeliest(messages.values)):
                other = np.where(settled >= 0, settled, read_off)
                if (value := model.score(other)) > score:
                    states, score = other, value
        # Scores may still rise where the bound has reached its limit.
        stale = 0 if new < bound - least or score > before else stale + 1
        bound, done = min(bound, new), done + count
        count, forward = effort.SWEEPS, not last
    if temperature or not math.isfinite(bound):
        # Sweeps for maxima never raise the bound of the messages they begin with; others may.
        zero = np.zeros(model.message_entries)
        bound = min(bound, upper_bound(model, zero, temperature))
        clock.count(messages.bound_operations)
    return Swept(bound, states, score, settled)


def _cut(model: Pairwise, seconds: float) -> Cut | None:
    """The minimum cut of a model; None unless it is one of pairs of binary variables alone."""
    if not serves_graphs() or model.larger or model.rest or seconds <= 0.0:
        return None
    return minimum_cut(model, seconds)


class _Messages:
    """Messages of one batch item, and sweeps over them."""

    def __init__(self, model: Pairwise, temperature: float) -> None:
        self.model, self.temperature = model, temperature
        self.values = np.zeros(model.message_entries)

    @property
    def operations(self) -> float:
        """Operations of a sweep."""
        pair, entry = tuning.SWEPT_SUMS if self.temperature else tuning.SWEPT_MAXIMA
        return pair * self.model.count + entry * self.model.table_entries

    @property
    def bound_operations(self) -> float:
        """Operations of a bound."""
        pair, entry = bound_operations(self.temperature)
        return pair * self.model.count + entry * self.model.table_entries

    def sweep(self, count: int, *, forward: bool, evenly: bool, states: Integers | None) -> None:
        """Sweep over all variables so many times, in turns of direction.

        Args:
            count: of sweeps, which must be at least one.
            forward: the direction of the first one.
            evenly: each belief is shared among the pairs with later variables alone. Otherwise the
                shares are at most one over the number of earlier pairs, as in the paper.
            states: (V,) written in place by the last sweep: the best state of each variable given
                those visited before it, and the messages from the others. None: nothing is read.
        """
        clock.count(count * self.operations)
        if serves_graphs():
            model = self.model
            arrays = model.starts, *model.edges, model.unary, model.flat_tables, self.values, states
            call(
                "trws_sweeps", *arrays, len(model.sizes), model.count, count, self.temperature,
                self._low, int(forward), int(evenly),
            )  # fmt: skip
            return
        for number in range(count):
            layers = self._forward if forward == (number % 2 == 0) else self._backward
            with np.errstate(invalid="ignore", divide="ignore"):
                self._by_layers(layers, states if number == count - 1 else None, evenly=evenly)

    @cached_property
    def _low(self) -> float:
        """A finite number that outweighs all others, so that fewer violations score higher."""
        return -2.0 * self.model.span - SURE

    @cached_property
    def _forward(self) -> list[TrwsLayer]:
        return layers_of(self.model, depths(self.model, forward=True), forward=True)

    @cached_property
    def _backward(self) -> list[TrwsLayer]:
        return layers_of(self.model, depths(self.model, forward=False), forward=False)

    def _by_layers(self, layers: list[TrwsLayer], states: Integers | None, *, evenly: bool) -> None:
        """One sweep in NumPy; variables of a layer share no pair."""
        model, values = self.model, self.values
        views = model.views(values)
        for layer in layers:
            if states is not None:
                self._read(layer, states)
            arriving = np.bincount(layer.receivers, values[layer.entries], len(layer.places))
            beliefs = model.unary[layer.places] + arriving
            for end in layer.later:
                shares = end.later if evenly else np.maximum(end.later, end.earlier)
                share = 1.0 / shares[:, None]
                into, out = views[end.group][:: -1 if end.column else 1]
                own = beliefs[end.own]
                sent = np.where(own > -math.inf, share * own - into[end.pairs], -math.inf)
                joint = end.tables(model) + sent[:, :, None]
                peak = joint.max(1)
                if self.temperature:
                    power = share * self.temperature
                    safe = np.where(peak > -math.inf, peak, 0.0)
                    sums = np.exp((joint - safe[:, None]) / power[:, None]).sum(1)
                    peak = safe + power * np.log(sums)
                top = peak.max(1, keepdims=True)
                out[end.pairs] = peak - np.where(top > -math.inf, top, 0.0)

    def _read(self, layer: TrwsLayer, states: Integers) -> None:
        """Write the best states of a layer's variables, given those of earlier layers."""
        model, views = self.model, self.model.views(self.values)
        scores = np.maximum(model.unary[layer.places], self._low)
        for end in layer.later:
            into = views[end.group][1 if end.column else 0][end.pairs]
            np.add.at(scores, end.own, np.maximum(into, self._low))
        for end in layer.earlier:
            chosen = states[end.others][:, None, None]
            given = np.take_along_axis(end.tables(model), chosen, 2)[:, :, 0]
            np.add.at(scores, end.own, np.maximum(given, self._low))
        for variables, places in layer.alike:
            states[variables] = scores[places].argmax(1)
