"""Slicing: which variables to fix so that what is left fits the memory."""

from collections import Counter
from collections.abc import Iterable
from math import inf, log, prod

from rdpgraph.plan import clock
from rdpgraph.plan.topology import Topology
from rdpgraph.plan.tree import ContractionTree


def choose_slices(
    tree: ContractionTree,
    *,
    elements: float,
    below: int | None = None,
    operations: float = inf,
    deadline: float = inf,
) -> tuple[int, ...]:
    """Variables to loop over, so that the stored elements of one slice fit; () if they fit now.

    Greedy: each round fixes the variable that multiplies the operations of all slices together by
    the least, for what it takes off the stored elements. When nothing more can be taken off, what
    was chosen so far comes back although it does not fit; so it does once all slices together need
    more than ``operations``, and from the deadline (on `clock.now`) on. Only variables numbered
    under ``below`` are fixed.

    Cost: linear in the scopes of all steps, per variable chosen.
    """
    sizes = list(tree.topology.sizes)
    scopes = tree.scopes
    unions = [
        scopes[left] if right < 0 else tuple({*scopes[left], *scopes[right]})
        for left, right, _ in tree.steps
    ]
    results = [step.scope for step in tree.steps]
    chosen: list[int] = []
    count = 1
    while True:
        stored, saved_elements = _savings(results, sizes)
        if below is not None:
            saved_elements = Counter({v: n for v, n in saved_elements.items() if v < below})
        if stored <= elements or not saved_elements:
            return tuple(chosen)
        flops, saved_flops = _savings(unions, sizes)
        if flops * count > operations or clock.now() > deadline:
            return tuple(chosen)

        def price(v: int) -> tuple[float, int]:
            costlier = log(sizes[v]) + log(flops - saved_flops[v]) - log(flops)  # noqa: B023
            lighter = log(stored) - log(stored - saved_elements[v])  # noqa: B023
            return (costlier / lighter if lighter > 0 else inf), v

        best = min(saved_elements, key=price)
        chosen.append(best)
        count *= sizes[best]
        sizes[best] = 1


def _savings(scopes: list[tuple[int, ...]], sizes: list[int]) -> tuple[int, Counter[int]]:
    """The elements of tables over these scopes, and how many fixing each variable would save."""
    total = 0
    saved: Counter[int] = Counter()
    for scope in scopes:
        table = prod([sizes[v] for v in scope])
        total += table
        for v in scope:
            if sizes[v] > 1:
                saved[v] += table - table // sizes[v]
    return total, saved


def sliced_topology(topology: Topology, variables: Iterable[int]) -> Topology:
    """The topology of one slice: the fixed variables have size 1, all numbers stay.

    The steps of a tree for `topology` are a tree for the result, too.
    """
    fixed = set(variables)
    sizes = tuple(1 if v in fixed else size for v, size in enumerate(topology.sizes))
    return Topology(topology.scopes, sizes)


def sliced_tree(tree: ContractionTree, variables: Iterable[int]) -> ContractionTree:
    """The same steps on one slice: `cost` of it is the cost of one slice."""
    return ContractionTree(sliced_topology(tree.topology, variables), tree.steps)
