"""Variables in layers without a pair inside, which NumPy visits at once."""

from typing import NamedTuple

import numpy as np

from rdpgraph.engines.reduction.tables import Floats, Integers
from rdpgraph.engines.trws.pairs import Pairwise


class End(NamedTuple):
    """Pairs of one group, as the variables of a layer at one end of them see them."""

    group: int
    pairs: Integers  # (n,) places in the group
    column: bool  # the layer's variables are the columns of the tables
    own: Integers  # (n, K) places of their states among those of the layer
    others: Integers  # (n,) the variables at the other end
    later: Integers  # (n,) number of pairs of each with later variables
    earlier: Integers  # (n,) and with earlier ones

    def tables(self, model: Pairwise) -> Floats:
        """(n, K, L) log-values, the states of the layer's variables in dim 1."""
        pairs = model.pairs[self.group]
        values = pairs.values[pairs.tables[self.pairs]]
        return values.swapaxes(1, 2) if self.column else values


class TrwsLayer(NamedTuple):
    """Variables that share no pair, and are visited at once."""

    places: Integers  # of their states in the model's unary log-values
    entries: Integers  # of the messages to them
    receivers: Integers  # the state that each of these is about, among `places`
    later: list[End]  # the pairs with later variables
    earlier: list[End]
    alike: list[tuple[Integers, Integers]]  # variables of one size, and (n, K) their states here


def layers_of(model: Pairwise, depth: Integers, *, forward: bool) -> list[TrwsLayer]:
    """Layers of variables of equal depth (V,), which must share no pair.

    Later and earlier pairs are those with variables of higher and of lower numbers, or the other
    way round unless ``forward``.
    """
    later, earlier = model.later(forward=forward), model.later(forward=not forward)
    numbers = range(int(depth.max(initial=-1)) + 1)
    sides: list[tuple[int, bool, bool, list[Integers]]] = []
    for group, pairs in enumerate(model.pairs):
        for column in (False, True):
            own, other = (pairs.columns, pairs.rows) if column else (pairs.rows, pairs.columns)
            for ahead in (True, False):
                some = (((other > own) == forward) == ahead).nonzero()[0]
                by_layer = _split(depth[own[some]], numbers)
                sides.append((group, column, ahead, [some[part] for part in by_layer]))
    of_states = np.repeat(depth, model.sizes)
    entries = _split(of_states[model.receivers], numbers)
    layers: list[TrwsLayer] = []
    position = np.zeros(len(model.unary), np.int64)
    for number, variables in zip(numbers, _split(depth, numbers), strict=True):
        # Variables of one size are beside one another, so that their states are a matrix.
        alike, places, begin = list[tuple[Integers, Integers]](), list[Integers](), 0
        for size in np.unique(model.sizes[variables]).tolist():
            some = variables[model.sizes[variables] == size]
            places.append(model.states_of(some, size).ravel())
            alike.append((some, begin + np.arange(len(places[-1])).reshape(-1, size)))
            begin += len(places[-1])
        flat = np.concatenate(places)
        position[flat] = np.arange(len(flat))
        ends: dict[bool, list[End]] = {True: [], False: []}
        for group, column, ahead, by_layer in sides:
            pairs, some = model.pairs[group], by_layer[number]
            if not len(some):
                continue
            own, other = (pairs.columns, pairs.rows) if column else (pairs.rows, pairs.columns)
            at = position[model.states_of(own[some], pairs.values.shape[2 if column else 1])]
            counts = later[own[some]], earlier[own[some]]
            ends[ahead].append(End(group, some, column, at, other[some], *counts))
        receivers = position[model.receivers[entries[number]]]
        layers.append(TrwsLayer(flat, entries[number], receivers, ends[True], ends[False], alike))
    return layers


def _split(keys: Integers, numbers: range) -> list[Integers]:
    """The places of each number among the keys, in increasing order."""
    order = np.argsort(keys, kind="stable")
    return np.split(order, np.searchsorted(keys[order], numbers[1:]))


def depths(model: Pairwise, *, forward: bool) -> Integers:
    """(V,) the most pairs on a way to each variable along which the order rises."""
    ends = [np.zeros((2, 0), np.int64)]
    ends += [np.stack([pairs.rows, pairs.columns]) for pairs in model.pairs]
    sign = 1 if forward else -1
    steps = np.sort(sign * np.concatenate(ends, 1), 0)
    depth = [0] * len(model.sizes)
    # A variable's depth is final once all pairs from variables before it have been seen.
    for first, second in (sign * steps[:, np.argsort(steps[0], kind="stable")]).T.tolist():
        depth[second] = max(depth[second], depth[first] + 1)
    return np.array(depth, np.int64)


def colours(model: Pairwise) -> Integers:
    """(V,) numbers that differ wherever two variables share a pair; few, if no variable has many.

    Variables that come first among their uncoloured neighbours, in a random order, get the next
    colour (Jones and Plassmann 1993).
    """
    count = len(model.sizes)
    colour, rank = np.full(count, -1), np.random.default_rng(0).permutation(count)
    ends = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for pairs in model.pairs:
        ends[0].append(pairs.rows)
        ends[1].append(pairs.columns)
    one, other = np.concatenate(ends[0] + ends[1]), np.concatenate(ends[1] + ends[0])
    number = 0
    while (waiting := colour < 0).any():
        before = waiting[one] & waiting[other] & (rank[other] < rank[one])
        waiting[one[before]] = False
        colour[waiting] = number
        number += 1
    return colour
