"""Small topologies, and contraction by numpy.einsum, for the tests of the plan room."""

from collections import Counter
from random import Random

import numpy as np
from hypothesis import strategies as st

from rdpgraph.plan.tree import ContractionTree, Topology


@st.composite
def topologies(draw, max_variables: int = 7, max_tensors: int = 10) -> Topology:
    """Random scopes of up to four variables, sizes 1 to 3; some variables in no scope."""
    sizes = tuple(draw(st.lists(st.integers(1, 3), min_size=1, max_size=max_variables)))
    scope = st.lists(
        st.integers(0, len(sizes) - 1), min_size=1, max_size=min(4, len(sizes)), unique=True
    ).map(tuple)
    return Topology(tuple(draw(st.lists(scope, max_size=max_tensors))), sizes)


def forest(seed: int, count: int = 30) -> Topology:
    """A random forest of unary, pairwise and ternary factors."""
    rng = Random(seed)
    scopes: list[tuple[int, ...]] = [(0,)]
    made = 1
    while made < count:
        arity = min(rng.choice((2, 2, 3)), count - made + 1)
        fresh = tuple(range(made, made + arity - 1))
        if rng.random() < 0.9:
            scopes.append((rng.randrange(made), *fresh))
        made += arity - 1
    scopes += [(v,) for v in range(made)]
    return Topology(tuple(scopes), tuple(rng.randint(2, 4) for _ in range(made)))


def grid(rows: int, columns: int, states: int = 2) -> Topology:
    """A grid with pairwise and unary factors."""
    across = [
        (r * columns + c, r * columns + c + 1) for r in range(rows) for c in range(columns - 1)
    ]
    down = [
        (r * columns + c, (r + 1) * columns + c) for r in range(rows - 1) for c in range(columns)
    ]
    alone = [(v,) for v in range(rows * columns)]
    return Topology((*across, *down, *alone), (states,) * (rows * columns))


def tables(topology: Topology, seed: int = 0) -> list[np.ndarray]:
    """Positive random tables, one per tensor."""
    rng = np.random.default_rng(seed)
    return [rng.random([topology.sizes[v] for v in scope]) + 0.1 for scope in topology.scopes]


def run(tree: ContractionTree, leaves: list[np.ndarray]) -> list[np.ndarray]:
    """All tensors of a tree, step by step."""
    made = list(leaves)
    for left, right, scope in tree.steps:
        used = (left, right) if right >= 0 else (left,)
        label = {v: i for i, v in enumerate(sorted({v for t in used for v in tree.scopes[t]}))}
        operands: list[object] = []
        for t in used:
            operands += [made[t], [label[v] for v in tree.scopes[t]]]
        made.append(np.einsum(*operands, [label[v] for v in scope]))
    return made


def product_of_roots(tree: ContractionTree, leaves: list[np.ndarray]) -> float:
    """Z without the variables that are in no scope."""
    made = run(tree, leaves)
    return float(np.prod([made[root] for root in tree.roots]))


def brute_force(topology: Topology, leaves: list[np.ndarray]) -> float:
    """The same by one einsum over everything."""
    if not leaves:
        return 1.0
    operands: list[object] = []
    for table, scope in zip(leaves, topology.scopes, strict=True):
        operands += [table, list(scope)]
    return float(np.einsum(*operands, [], optimize="greedy"))  # NumPy 1 takes 32 at once


def check(tree: ContractionTree) -> None:
    """Assert that steps use each tensor once and sum out only what no other tensor has."""
    scopes, used = tree.scopes, set[int]()
    counts = Counter(v for scope in tree.topology.scopes for v in scope)
    for made, (left, right, scope) in enumerate(tree.steps, tree.topology.num_tensors):
        operands = (left,) if right == -1 else (left, right)
        assert left != right
        assert all(0 <= t < made and t not in used for t in operands)
        union = {v for t in operands for v in scopes[t]}
        assert union
        assert len(set(scope)) == len(scope)
        assert union.issuperset(scope)
        used.update(operands)
        counts.subtract(v for t in operands for v in scopes[t])
        assert not any(counts[v] for v in union.difference(scope))
        counts.update(scope)
    assert all(t in used for t, scope in enumerate(scopes) if scope)
