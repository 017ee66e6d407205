"""Slicing: which variables to fix so that what is left fits the memory."""

from collections import Counter
from math import prod

from rdpgraph.plan.topology import Topology
from rdpgraph.plan.tree import ContractionTree


def choose_slices(tree: ContractionTree, *, elements: float) -> tuple[int, ...]:
    """Variables to loop over, so that the stored elements of one slice fit; () if they fit now.

    Greedy: each round fixes the variable that takes the most out of the stored tables, relative
    to the number of slices it makes.
    """
    sizes = list(tree.topology.sizes)
    chosen: list[int] = []
    scopes = [step.scope for step in tree.steps]
    while True:
        tables = [prod([sizes[v] for v in scope]) for scope in scopes]
        stored = sum(tables)
        if stored <= elements:
            return tuple(chosen)
        saved: Counter[int] = Counter()
        for scope, table in zip(scopes, tables, strict=True):
            for v in scope:
                if sizes[v] > 1:
                    saved[v] += table - table // sizes[v]
        if not saved:
            return tuple(chosen)
        best = max(saved, key=lambda v: ((stored / (stored - saved[v])) ** (1 / (sizes[v] - 1)), -v))
        chosen.append(best)
        sizes[best] = 1


def sliced_topology(topology: Topology, variables: tuple[int, ...]) -> Topology:
    """The topology with some variables fixed: out of every scope; empty scopes are dropped."""
    fixed = set(variables)
    scopes = (tuple(v for v in scope if v not in fixed) for scope in topology.scopes)
    return Topology(tuple(scope for scope in scopes if scope), topology.sizes)
