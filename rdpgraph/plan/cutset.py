"""Elimination orders whose tables stay small because a few variables are fixed."""

from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass
from math import inf, log
from random import Random

from rdpgraph.plan import clock
from rdpgraph.plan.orders import PrimalGraph, Queue, joined


@dataclass(frozen=True, eq=False)
class ConditionedOrder:
    """Elimination order of some variables while all others are fixed."""

    fixed: tuple[int, ...]  # variables of the part that had to be fixed (a cutset)
    # per eliminated variable, itself and then the variables of its message, by elimination
    steps: tuple[tuple[int, ...], ...]
    cells: float  # entries of all tables


def conditioned_order(
    graph: PrimalGraph,
    part: Iterable[int],
    *,
    rng: Random,
    cells: float,
    summed: Set[int] = frozenset(),
    sequence: Sequence[int] = (),
    degree: float = 1.0,
    deadline: float = inf,
) -> ConditionedOrder | None:
    """Order that eliminates most variables of a part, with no table above a size.

    Greedy by least clique weight, ties at random. If the smallest clique is too large, one of its
    variables is fixed: drawn in proportion to its number of neighbours to the power `degree`.

    Args:
        graph: the primal graph; unchanged.
        part: the variables to eliminate; all others are fixed from the start.
        rng: the randomness.
        cells: entries that no table exceeds.
        summed: variables that are eliminated before the others and never fixed; all of the part.
        sequence: the order of the summed variables; without one it is greedy.
        degree: 0 draws uniformly; higher powers fix the hubs.
        deadline: give up (None) when `clock.now` passes this.

    Returns:
        The order; None past the deadline, or if summed variables alone make a larger table.
    """
    members, none = set(part), set[int]()  # one for all that are not of the part
    adjacency = [
        set(near) & members if v in members else none for v, near in enumerate(graph.adjacency)
    ]
    logs = [log(size) for size in graph.sizes]
    weights = [logs[v] + sum([logs[u] for u in near]) for v, near in enumerate(adjacency)]
    queue = Queue(adjacency, rng, 0.0)
    most = log(cells)
    fixed: set[int] = set()
    raw: list[tuple[int, set[int]]] = []
    # Those of a sequence by their place; others by weights, that change as neighbours go.
    place = {v: float(number) for number, v in enumerate(sequence)}
    for phase in (summed, members.difference(summed)):
        waiting = set(phase) - fixed
        for v in waiting:
            queue.push(v, place.get(v, weights[v]))
        while (v := queue.pop()) is not None:
            if clock.now() > deadline:
                return None
            near = adjacency[v]
            if weights[v] > most:
                free = [u for u in (v, *near) if u not in summed]
                if not free:
                    return None
                scale = [(len(adjacency[u]) + 1) ** degree for u in free]
                out = rng.choices(free, scale)[0]
                fixed.add(out)
                waiting.discard(out)
                queue.drop(out)
                for u in adjacency[out]:
                    adjacency[u].discard(out)
                    weights[u] -= logs[out]
                    if u in waiting and u not in place:
                        queue.push(u, weights[u])
                adjacency[out] = set()
                if out != v:
                    queue.push(v, place.get(v, weights[v]))
                continue
            raw.append((v, near))
            waiting.discard(v)
            for u in joined(v, adjacency, weights, logs):
                if u in waiting and u not in place:
                    queue.push(u, weights[u])
    return _laid_out(raw, fixed, graph.sizes)


def _laid_out(
    raw: Sequence[tuple[int, set[int]]], fixed: set[int], sizes: Sequence[int]
) -> ConditionedOrder:
    rank = {v: place for place, (v, _) in enumerate(raw)}
    steps: list[tuple[int, ...]] = []
    cells = 0.0
    for v, near in raw:
        # A neighbour that was fixed later on is fixed from the start.
        step = (v, *sorted(near - fixed, key=rank.__getitem__))
        count = 1.0
        for u in step:
            count *= sizes[u]
        cells += count
        steps.append(step)
    return ConditionedOrder(tuple(sorted(fixed)), tuple(steps), cells)
