"""From the goal to the leaves: the best derivation, or draws."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from rdpgraph.structures.draws import Pick, require_possible
from rdpgraph.structures.tape.step import Step
from rdpgraph.structures.tape.steps import Leaf
from rdpgraph.structures.tape.tape import Tape
from rdpgraph.structures.tape.values import Reader, Value

_BLOCK = 2**19  # alternatives that are looked at at a time
Pool = tuple[Value, ...]
Nodes = tuple[Tensor, Tensor, Tensor]
"""Derivations, places and labels, (Q,) each."""


@dataclass(frozen=True, eq=False)
class Drawn:
    """The sites that derivations use, count * B derivations of the B items in turn.

    Attributes:
        tree: (U,) the derivation.
        site: (U,) the number of a site that it uses.
        state: (U,) the state of the site.
    """

    tree: Tensor
    site: Tensor
    state: Tensor

    def states(self, tape: Tape, count: int) -> Tensor:
        """(count, *lead, *sites) the states of the sites, -1 where they are not used."""
        shape = count * tape.batch, math.prod(tape.site_shape)
        states = torch.full(shape, -1, device=tape.device)
        states[self.tree, self.site] = self.state
        return states.reshape(count, *tape.lead, *tape.site_shape)


@torch.no_grad()
def descend(tape: Tape, reader: Reader, count: int, pick: Pick, *, name: str) -> Drawn:
    """Derivations, from the goal downwards; all nodes of one step at once, over all of them.

    Args:
        tape: laid out.
        reader: its values: sums for draws, maxima for the best.
        count: how many of each item.
        pick: one of the alternatives of each node.
        name: the structure that is named where there is no derivation.

    Raises:
        ImpossibleEvidenceError: an item has no derivation.
    """
    device, batch = tape.device, tape.batch
    require_possible(name, reader.values[-1].flatten() > -math.inf)
    trees = torch.arange(count * batch, device=device)
    used = [(trees[:0], trees[:0], trees[:0])]
    waiting: list[list[Nodes]] = [[] for _ in tape.steps]
    ends: dict[int, tuple[Pool, Tensor]] = {}
    waiting[-1] = [(trees, trees * 0, trees * 0)]
    for number in range(len(tape.steps) - 1, -1, -1):
        if not waiting[number]:
            continue
        step = tape.steps[number]
        own = waiting[number]
        tree, place, label = map(torch.cat, zip(*own, strict=True)) if len(own) > 1 else own[0]
        waiting[number] = []
        if isinstance(step, Leaf):
            if step.sites is not None:
                used.append((tree, step.sites[place], label))
            continue
        item = tree % batch
        chosen = _chosen(step, reader, pick, (item, place, label))
        for pool, rows, places, labels in step.children(chosen, item, place, label):
            below = tree if rows is None else tree[rows]
            for value, nodes in _by_value(pool, ends, (below, places, labels)):
                waiting[value.number].append(nodes)
    return Drawn(*map(torch.cat, zip(*used, strict=True)))


def _chosen(step: Step, reader: Reader, pick: Pick, nodes: Nodes) -> Tensor:
    """(Q,) an alternative of each node, given by item, place and label."""
    if step.alternatives < 2:
        return torch.zeros_like(nodes[0])
    size = max(1, _BLOCK // step.alternatives)
    if len(nodes[0]) <= size:
        return step.chosen(reader, pick, *nodes)
    pieces = zip(*(part.split(size) for part in nodes), strict=True)
    return torch.cat([step.chosen(reader, pick, *piece) for piece in pieces])


def _by_value(
    pool: Pool, known: dict[int, tuple[Pool, Tensor]], nodes: Nodes
) -> Iterator[tuple[Value, Nodes]]:
    """The nodes of each value of a pool, given by their places in it; those of none are dropped.

    Where each value ends is known of pools that start with this one.
    """
    tree, number, label = nodes
    if len(pool) == 1:
        if tree.shape[0]:
            yield pool[0], nodes
        return
    if tree.shape[0] == 1:
        only = int(number)
        for value in pool:
            if only < value.places:
                yield value, (tree, number.new_tensor([only]), label)
                return
            only -= value.places
        return
    longest, ends = known.get(pool[0].number, ((), number))
    if longest[: len(pool)] != pool:
        ends = torch.tensor([*accumulate(value.places for value in pool)], device=number.device)
        known[pool[0].number] = pool, ends
    number, order = number.sort()
    tree, label = tree[order], label[order]
    start = first = 0
    stops = torch.searchsorted(number, ends[: len(pool)]).tolist()
    for value, stop in zip(pool, stops, strict=True):
        if stop > first:
            yield value, (tree[first:stop], number[first:stop] - start, label[first:stop])
        start, first = start + value.places, stop
