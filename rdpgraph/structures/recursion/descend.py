"""Derivations from the goal to the leaves: the best, the k best, and draws."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from rdpgraph._core import tuning
from rdpgraph.model.soundness import require_possible
from rdpgraph.structures.draws import Pick, drawn, largest, require_generator
from rdpgraph.structures.recursion import machine
from rdpgraph.structures.recursion.down import last_read, leaves, up
from rdpgraph.structures.recursion.layouts import whole
from rdpgraph.structures.recursion.step import Reader, Step
from rdpgraph.structures.recursion.steps import Leaf
from rdpgraph.structures.recursion.tape import Tape
from rdpgraph.structures.recursion.values import Value

Pool = tuple[Value, ...]
Nodes = tuple[Tensor, ...]
"""Derivations, places, labels and, for lists, ranks, (Q,) each."""
Below = Callable[[int, Nodes], tuple[Tensor, Iterator[tuple[Pool, Nodes]]]]
"""The alternatives chosen of a step's nodes, and their parts: pools, and nodes by place in them."""
Taken = list[tuple[Step, Tensor, Nodes]]
"""Nodes of steps, and the alternatives chosen of them."""


@dataclass(frozen=True, eq=False)
class Drawn:
    """The sites that derivations use, count * B derivations of the B items in turn."""

    tree: Tensor  # (U,) the derivation
    site: Tensor  # (U,) the number of a site that it uses
    state: Tensor  # (U,) the state of the site

    def states(self, tape: Tape, count: int) -> Tensor:
        """(count, *lead, *sites) the states of the sites, -1 if unused."""
        shape = count * tape.batch, math.prod(tape.site_shape)
        states = torch.full(shape, -1, device=tape.device)
        states[self.tree, self.site] = self.state
        return states.reshape(count, *tape.lead, *tape.site_shape)


@torch.no_grad()
def descend(
    tape: Tape, count: int, *, name: str, best: bool, generator: torch.Generator | None = None
) -> Drawn:
    """Find ``count`` best derivations, or draws, of each item.

    Raises:
        ImpossibleEvidenceError: an item has no derivation of the structure ``name``.
    """
    done = _values(tape, generator, name=name, best=best)
    if isinstance(done, machine.Run):
        return Drawn(*done.descend(count, generator))
    return _by_torch(whole(tape), done, count, largest if best else drawn(generator))


def configurations(
    tape: Tape, count: int, *, name: str, best: bool, generator: torch.Generator | None = None
) -> Tensor:
    """(count, *lead, *sites) the states of the sites in what `descend` finds, -1 if unused."""
    done = _values(tape, generator, name=name, best=best)
    if isinstance(done, machine.Run):
        return done.states(count, generator).reshape(count, *tape.lead, *tape.site_shape)
    return _by_torch(whole(tape), done, count, largest if best else drawn(generator)).states(
        tape, count
    )


def _values(
    tape: Tape, generator: torch.Generator | None, *, name: str, best: bool
) -> machine.Run | Reader:
    """Log-sums, or maxima, of a tape on which every item has a derivation."""
    require_generator(generator)
    done = machine.values_of(tape, best=best, whole=False)
    reader = up(whole(tape), float(not best)) if done is None else done
    if not float(reader.goal.sum()) > -math.inf:  # or NaN
        possible = (reader.goal > -math.inf).expand(tape.batch).reshape(tape.lead)
        require_possible(f"{name} has no samples and no mode", possible)
    return reader


def _by_torch(tape: Tape, reader: Reader, count: int, pick: Pick) -> Drawn:
    return picked(tape, reader, torch.arange(count * tape.batch, device=tape.device), pick)


def picked(
    tape: Tape, reader: Reader, trees: Tensor, pick: Pick, taken: Taken | None = None
) -> Drawn:
    """The sites of derivations numbered (U,), each of the item that is its number modulo B."""

    def below(number: int, nodes: Nodes) -> tuple[Tensor, Iterator[tuple[Pool, Nodes]]]:
        step, (tree, place, label) = tape.steps[number], nodes
        item = tree % tape.batch
        chosen = _chosen(step, reader, pick, item, place, label)
        return chosen, (
            (pool, (tree if rows is None else tree[rows], places, labels))
            for pool, rows, places, labels in step.children(chosen, item, place, label)
        )

    return followed(tape, (trees, trees * 0, trees * 0), below, taken)


def followed(tape: Tape, goals: Nodes, below: Below, taken: Taken | None) -> Drawn:
    """The sites used below nodes of the goal; all nodes of one step at once.

    Appends them and their alternatives to ``taken``, if given.
    """
    none = goals[0][:0]
    used = [(none, none, none)]
    waiting: list[list[Nodes]] = [[] for _ in tape.steps]
    ends: dict[int, tuple[Pool, list[int]]] = {}
    waiting[-1] = [goals]
    for number in range(len(tape.steps) - 1, -1, -1):
        step, parts = tape.steps[number], waiting[number]
        if not parts:
            continue
        nodes = tuple(map(torch.cat, zip(*parts, strict=True))) if len(parts) > 1 else parts[0]
        waiting[number], chosen = [], nodes[2]
        if not isinstance(step, Leaf):
            chosen, children = below(number, nodes)
            for pool, parts in children:
                for value, some in _by_value(pool, ends, parts):
                    waiting[value.number].append(some)
        elif step.sites is not None:
            used.append((nodes[0], step.sites[nodes[1]], nodes[2]))
        if taken is not None:
            taken.append((step, chosen, nodes))
    return Drawn(*map(torch.cat, zip(*used, strict=True)))


def _chosen(step: Step, reader: Reader, pick: Pick, *nodes: Tensor) -> Tensor:
    """(Q,) an alternative of each node, given by item, place and label."""
    if step.alternatives < 2:
        return torch.zeros_like(nodes[0])
    size = tuning.per_block(step.alternatives, tuning.CACHE_BLOCK)
    if nodes[0].shape[0] <= size:
        return step.chosen(reader, pick, *nodes)
    # Sort nodes by place, so that each place is evaluated in few pieces.
    order = (nodes[0] * (1 + nodes[1].max()) + nodes[1]).argsort()
    pieces = zip(*(part[order].split(size) for part in nodes), strict=True)
    chosen = torch.cat([step.chosen(reader, pick, *piece) for piece in pieces])
    return torch.empty_like(chosen).index_copy_(0, order, chosen)


def _by_value(
    pool: Pool, known: dict[int, tuple[Pool, list[int]]], nodes: Nodes
) -> Iterator[tuple[Value, Nodes]]:
    """The nodes of each value of a pool, given by place in it; absent ones are dropped."""
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
    """The end of each value in a pool; cached by the longest pool with this start."""
    longest, ends = known.get(pool[0].number, ((), []))
    if longest[: len(pool)] != pool:
        ends = [*accumulate([value.places for value in pool])]
        known[pool[0].number] = pool, ends
    return ends


def best(tape: Tape, k: int) -> tuple[Drawn, Tensor]:
    """The k best derivations, k * B in turn, and (k, *lead) their scores; -inf: there are fewer.

    The tape is laid out with ``ranks=False``. Scores are differentiable.
    """
    done = machine.values_of(tape, best=True)
    if done is not None:
        used, scores = done.k_best(k)
        return Drawn(*used), scores.reshape(k, *tape.lead).to(tape.unary)
    tape = whole(tape)
    drawn, there, taken = _single(tape) if k == 1 else _together(tape, k)
    unary = tape.unary.reshape(tape.batch, -1, tape.unary.shape[-1])
    reads = [(drawn.tree, unary[drawn.tree % tape.batch, drawn.site, drawn.state])]
    for step, chosen, (tree, *place) in taken:
        own = step.own(chosen, tree % tape.batch, *place[:2])
        reads += [] if own is None else [(tree, own)]
    scores = torch.where(there, 0.0, -math.inf).to(tape.dtype).flatten()
    for tree, own in reads:
        scores = scores.index_add(0, tree, own.to(tape.dtype))
    return drawn, scores.reshape(k, *tape.lead).to(tape.unary)


@torch.no_grad()
def _single(tape: Tape) -> tuple[Drawn, Tensor, Taken]:
    """The best, whether it exists, and the alternatives taken."""
    reader, taken = up(tape, 0.0), Taken()
    there = (reader.goal > -math.inf).expand(tape.batch)
    return picked(tape, reader, there.nonzero().squeeze(1), largest, taken), there, taken


@torch.no_grad()
def _together(tape: Tape, k: int) -> tuple[Drawn, Tensor, Taken]:
    """Merge lists of all entries step by step, and return the k best; else as `_single`."""
    given, ended, reader = leaves(tape), last_read(tape), Reader(most=k)
    lists = reader.values
    # For each step, by rank and entry, a number for the alternative and the ranks of its parts.
    chosen, many, ranks = list[Tensor](), list[int](), list[list[Tensor | None]]()
    for number, step in enumerate(tape.steps):
        ranks.append([])
        if isinstance(step, Leaf):
            lists.append(next(given).unsqueeze(0))
            chosen.append(lists[-1])
            many.append(1)
            continue
        terms = step.terms(reader)
        # Alternatives and ranks last: (B, P, K, A C).
        order = (1, 3, 4, 2, 0) if step.dim == -3 else (1, 2, 4, 3, 0)
        flat = terms.permute(order).flatten(-2)
        values, which = flat.topk(min(k, flat.shape[-1]))
        lists.append(values.movedim(-1, 0))
        chosen.append(which)
        for way in step.products:
            ranks[number] += reader.ranks(way)
        many.append(terms.shape[0])
        for last in ended[number]:
            lists[last] = lists[number]

    def below(number: int, nodes: Nodes) -> tuple[Tensor, Iterator[tuple[Pool, Nodes]]]:
        step, (tree, place, label, rank), picks = tape.steps[number], nodes, chosen[number]
        item, at = tree % tape.batch, None
        indices = item, place, label, rank
        for index, size, stride in zip(indices, picks.shape, picks.stride(), strict=True):
            if size > 1:
                at = index * stride if at is None else at.add(index, alpha=stride)
        way = pair = picks.view(-1).index_select(0, place * 0 if at is None else at)
        if many[number] > 1:
            way, pair = way // many[number], way % many[number]
        parts = zip(step.children(way, item, place, label), ranks[number], strict=True)

        def ranked() -> Iterator[tuple[Pool, Nodes]]:
            for (pool, rows, places, labels), theirs in parts:
                some = (tree, pair) if rows is None else (tree[rows], pair[rows])
                rank = some[1] if theirs is None else theirs.index_select(0, some[1])
                yield pool, (some[0], places, labels, rank)

        return way, ranked()

    goals = lists[-1].new_full((k, tape.batch), -math.inf)
    goals[: len(lists[-1])] = lists[-1].flatten(1)
    there = goals > -math.inf
    trees = there.flatten().nonzero().squeeze(1)
    nodes, taken = (trees, trees * 0, trees * 0, trees // tape.batch), Taken()
    return followed(tape, nodes, below, taken), there, taken
