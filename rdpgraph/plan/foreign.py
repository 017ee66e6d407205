"""Starting points from other libraries' path searches."""

from math import inf
from typing import Any

from rdpgraph.plan.topology import Topology
from rdpgraph.plan.tree import ContractionTree, tree_from_path

MOST_TENSORS = 5_000
"""Larger components are left to the elimination orders, which scale."""


def opt_einsum_tree(topology: Topology) -> ContractionTree:
    """The tree of opt_einsum's greedy path."""
    from opt_einsum.paths import greedy

    inputs: Any = [frozenset(scope) for scope in topology.scopes]
    sizes: Any = dict(enumerate(topology.sizes))
    limit: Any = inf
    path = greedy(inputs, frozenset(), sizes, limit)
    return tree_from_path(topology, path, ssa=False)


def cotengra_tree(topology: Topology, seed: int) -> ContractionTree:
    """The tree of the best of a few of cotengra's randomised greedy paths."""
    from cotengra import RandomGreedyOptimizer

    inputs = [tuple(map(str, scope)) for scope in topology.scopes]
    sizes = {str(v): size for v, size in enumerate(topology.sizes)}
    one_process: Any = False
    optimizer = RandomGreedyOptimizer(max_repeats=8, parallel=one_process, seed=seed)
    return tree_from_path(topology, optimizer(inputs, (), sizes), ssa=False)
