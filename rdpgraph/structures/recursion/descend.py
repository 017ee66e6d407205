"""From the goal to the leaves: the best derivation, or draws."""

import math
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from rdpgraph.model.soundness import require_possible
from rdpgraph.structures.draws import Pick, drawn, largest, require_generator
from rdpgraph.structures.recursion import machine
from rdpgraph.structures.recursion.reader import Reader
from rdpgraph.structures.recursion.replay import whole
from rdpgraph.structures.recursion.step import Step
from rdpgraph.structures.recursion.steps import Leaf
from rdpgraph.structures.recursion.tape import Tape
from rdpgraph.structures.recursion.up import up
from rdpgraph.structures.recursion.values import Value

_FEW = 2**5  # nodes that are told apart in Python
_BLOCK = 2**19  # alternatives that are looked at at a time
Pool = tuple[Value, ...]
Nodes = tuple[Tensor, ...]
"""Derivations, places, labels and, of lists, ranks, (Q,) each."""
Below = Callable[[int, Nodes], Iterator[tuple[Pool, Nodes]]]
"""What the nodes of a step are made of: nodes by their places in pools."""


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
def descend(
    tape: Tape, count: int, *, name: str, best: bool, generator: torch.Generator | None = None
) -> Drawn:
    """Derivations, from the goal downwards: of each item the best one, or draws.

    Args:
        tape: laid out.
        count: how many of each item.
        name: the structure that is named where there is no derivation.
        best: whether they are the best, not draws.
        generator: of draws.

    Raises:
        ImpossibleEvidenceError: an item has no derivation.
    """
    require_generator(generator)
    done, reader = machine.values_of(tape, best=best), Reader()
    if done is None:
        tape = whole(tape)
        reader = up(tape, float(not best))
    goal = reader.values[-1].reshape(-1) if done is None else done.goal
    possible = (goal > -math.inf).expand(tape.batch).reshape(tape.lead)
    require_possible(f"{name} has no samples and no mode", possible)
    if done is not None:
        return Drawn(*done.descend(count, generator))
    pick = largest if best else drawn(generator)
    return picked(tape, reader, torch.arange(count * tape.batch, device=tape.device), pick)


def picked(tape: Tape, reader: Reader, trees: Tensor, pick: Pick) -> Drawn:
    """The sites of derivations with numbers (U,), each of the item that is the rest by B."""

    def below(number: int, nodes: Nodes) -> Iterator[tuple[Pool, Nodes]]:
        step, (tree, place, label) = tape.steps[number], nodes
        item = tree % tape.batch
        chosen = _chosen(step, reader, pick, item, place, label)
        for pool, rows, places, labels in step.children(chosen, item, place, label):
            yield pool, (tree if rows is None else tree[rows], places, labels)

    return followed(tape, (trees, trees * 0, trees * 0), below)


def followed(tape: Tape, goals: Nodes, below: Below) -> Drawn:
    """The sites that are used below nodes of the goal; all nodes of one step at once."""
    none = goals[0][:0]
    used = [(none, none, none)]
    waiting: list[list[Nodes]] = [[] for _ in tape.steps]
    single: list[list[tuple[int, ...]]] = [[] for _ in tape.steps]
    ends: dict[int, tuple[Pool, list[int]]] = {}
    waiting[-1] = [goals]
    for number in range(len(tape.steps) - 1, -1, -1):
        step, own = tape.steps[number], waiting[number]
        if single[number]:
            own.append(torch.tensor(single[number], device=tape.device).unbind(1))
            single[number] = []
        if not own:
            continue
        nodes = tuple(map(torch.cat, zip(*own, strict=True))) if len(own) > 1 else own[0]
        waiting[number] = []
        if not isinstance(step, Leaf):
            for pool, parts in below(number, nodes):
                if len(pool) > 1 and parts[0].shape[0] <= _FEW:
                    for value, node in _each(pool, ends, parts):
                        single[value.number].append(node)
                else:
                    for value, some in _by_value(pool, ends, parts):
                        waiting[value.number].append(some)
        elif step.sites is not None:
            used.append((nodes[0], step.sites[nodes[1]], nodes[2]))
    return Drawn(*map(torch.cat, zip(*used, strict=True)))


def _chosen(step: Step, reader: Reader, pick: Pick, *nodes: Tensor) -> Tensor:
    """(Q,) an alternative of each node, given by item, place and label."""
    if step.alternatives < 2:
        return torch.zeros_like(nodes[0])
    size = max(1, _BLOCK // step.alternatives)
    if nodes[0].shape[0] <= size:
        return step.chosen(reader, pick, *nodes)
    # Nodes of one place side by side: what is made for it is then made for few pieces.
    order = (nodes[0] * (1 + nodes[1].max()) + nodes[1]).argsort()
    pieces = zip(*(part[order].split(size) for part in nodes), strict=True)
    chosen = torch.cat([step.chosen(reader, pick, *piece) for piece in pieces])
    return torch.empty_like(chosen).index_copy_(0, order, chosen)


def _each(
    pool: Pool, known: dict[int, tuple[Pool, list[int]]], nodes: Nodes
) -> Iterator[tuple[Value, tuple[int, ...]]]:
    """A few nodes one by one, as `_by_value`: their numbers cost less than calls on tensors."""
    ends = _ends(pool, known)
    for tree, number, *others in torch.stack(nodes, 1).tolist():
        which = bisect_right(ends, number)
        if which < len(pool):
            yield pool[which], (tree, number - ends[which] + pool[which].places, *others)


def _by_value(
    pool: Pool, known: dict[int, tuple[Pool, list[int]]], nodes: Nodes
) -> Iterator[tuple[Value, Nodes]]:
    """The nodes of each value of a pool, given by their places in it; those of none are dropped."""
    if len(pool) == 1:
        if nodes[0].shape[0]:
            yield pool[0], nodes
        return
    tree, number, *others = nodes
    number, order = number.sort()
    tree, *others = (part[order] for part in (tree, *others))
    ends, first = _ends(pool, known), 0
    bounds = torch.tensor(ends[: len(pool)], device=number.device)
    stops = torch.searchsorted(number, bounds).tolist()
    for value, end, stop in zip(pool, ends[: len(pool)], stops, strict=True):
        if stop > first:
            some, start = slice(first, stop), end - value.places
            yield value, (tree[some], number[some] - start, *(part[some] for part in others))
        first = stop


def _ends(pool: Pool, known: dict[int, tuple[Pool, list[int]]]) -> list[int]:
    """Where each value of a pool ends; after those, ends of a longer one that starts with it."""
    longest, ends = known.get(pool[0].number, ((), []))
    if longest[: len(pool)] != pool:
        ends = [*accumulate([value.places for value in pool])]
        known[pool[0].number] = pool, ends
    return ends
