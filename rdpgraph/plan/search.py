"""The anytime portfolio of contraction orders."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import inf, log
from random import Random
from time import perf_counter

from rdpgraph.plan.anneal import anneal
from rdpgraph.plan.cost import Cost, cost
from rdpgraph.plan.orders import (
    PrimalGraph,
    forest_order,
    min_fill,
    min_weight,
    peel,
    primal_graph,
    weighted_min_fill,
)
from rdpgraph.plan.topology import Topology
from rdpgraph.plan.tree import ContractionTree, Step, tree_from_order, tree_from_path

RULES = (min_fill, weighted_min_fill, min_weight)
LEAST_SEARCH = 2e-3
"""Predicted seconds under which the greedy orders are good enough."""


@dataclass(frozen=True)
class Candidate:
    """A tree and its cost; ranked by how far it exceeds the memory, then by predicted time."""

    tree: ContractionTree
    cost: Cost

    def rank(self, memory_elements: float) -> tuple[float, float]:
        """What is minimised."""
        over = log(self.cost.stored / memory_elements) if self.cost.stored > memory_elements else 0
        return (over, self.cost.seconds)


def search(
    topology: Topology,
    *,
    seconds: float,
    memory_elements: float,
    seed: int = 0,
    last: frozenset[int] = frozenset(),
) -> ContractionTree:
    """The cheapest contraction tree that a bounded search finds.

    A forest is solved at once. Otherwise every component gets the greedy orders (min-fill,
    weighted min-fill, min-weight), then randomised restarts of them, opt_einsum's and cotengra's
    greedy searches, and annealing of the best tree, for as long as the search has cost less than
    what it could still save: the predicted run time of the best tree so far. Components that are
    alike are searched once.

    Args:
        topology: the model.
        seconds: an upper bound for the search.
        memory_elements: trees that store more than this are ranked by how far they exceed it.
        seed: of the randomised parts.
        last: variables to eliminate after all others (marginal MAP).
    """
    if not last:
        order = forest_order(topology)
        if order is not None:
            return tree_from_order(topology, order)
    components = topology.components()
    deadline = perf_counter() + seconds
    found: dict[object, tuple[tuple[Step, ...], int]] = {}
    steps: list[Step] = []
    leaves = topology.num_tensors
    for left, tensors in enumerate(components):
        part, names = _part(topology, tensors)
        own_last = frozenset(i for i, name in enumerate(names) if name in last)
        key = (part, own_last)
        if key not in found:
            share = (deadline - perf_counter()) / (len(components) - left)
            tree = _search_component(
                part, seconds=max(share, 0.0), memory=memory_elements, seed=seed, last=own_last
            )
            found[key] = (tree.steps, part.num_tensors)
        own, count = found[key]
        made = leaves + len(steps)

        def place(node: int, tensors: tuple[int, ...] = tensors, count: int = count, made: int = made) -> int:
            if node < 0:
                return node
            return tensors[node] if node < count else made + node - count

        steps.extend(
            Step(place(step.left), place(step.right), tuple(names[v] for v in step.scope))
            for step in own
        )
    return ContractionTree(topology, tuple(steps))


def _part(topology: Topology, tensors: Sequence[int]) -> tuple[Topology, tuple[int, ...]]:
    """The topology of some tensors, variables ranked in ascending order, and their old numbers.

    Two components that are alike up to such a ranking give equal topologies.
    """
    scopes = [topology.scopes[t] for t in tensors]
    names = tuple(sorted({v for scope in scopes for v in scope}))
    rank = {name: i for i, name in enumerate(names)}
    ranked = tuple(tuple(rank[v] for v in scope) for scope in scopes)
    return Topology(ranked, tuple(topology.sizes[v] for v in names)), names


def _search_component(
    topology: Topology, *, seconds: float, memory: float, seed: int, last: frozenset[int]
) -> ContractionTree:
    start = perf_counter()
    prefix, core, names = peel(primal_graph(topology), last=last)
    own_last = frozenset(i for i, name in enumerate(names) if name in last)
    eager = not last

    def ordered(order: list[int]) -> Candidate:
        tree = tree_from_order(topology, [*prefix, *(names[i] for i in order)], eager=eager)
        return Candidate(tree, cost(tree))

    best: Candidate | None = None
    for rule in RULES:
        order = rule(core, last=own_last)
        if order is None:
            continue
        candidate = ordered(order)
        if best is None or candidate.rank(memory) < best.rank(memory):
            best = candidate
        if best.cost.seconds < LEAST_SEARCH:
            break
    assert best is not None
    if best.cost.seconds < LEAST_SEARCH or not core.sizes:
        return best.tree
    tries = _tries(topology, core, ordered, own_last, seed, eager=eager)
    while True:
        spent = perf_counter() - start
        fits = best.cost.stored <= memory
        worth = min(seconds, best.cost.seconds) if fits else seconds
        if spent >= worth:
            return best.tree
        candidate = next(tries)(best, start + worth)
        if candidate is not None and candidate.rank(memory) < best.rank(memory):
            best = candidate


Try = Callable[[Candidate, float], Candidate | None]


def _tries(
    topology: Topology, core: PrimalGraph, ordered: Callable[[list[int]], Candidate],
    last: frozenset[int], seed: int, *, eager: bool,
) -> Iterator[Try]:  # fmt: skip
    """One attempt after the other: noisy greedy orders, other libraries' searches, annealing."""
    rng = Random(seed)

    def noisy(noise: float) -> Try:
        rule = RULES[rng.randrange(len(RULES))]

        def attempt(best: Candidate, deadline: float) -> Candidate | None:
            order = rule(core, rng=rng, noise=noise, last=last, limit=best.cost.flops)
            return None if order is None else ordered(order)

        return attempt

    def annealed(best: Candidate, deadline: float) -> Candidate | None:
        share = perf_counter() + max((deadline - perf_counter()) / 3, 0.05)
        tree = anneal(best.tree, rng=rng, deadline=min(share, deadline))
        return Candidate(tree, cost(tree))

    def foreign(path: Callable[[Topology, int], list[tuple[int, ...]]]) -> Try:
        def attempt(best: Candidate, deadline: float) -> Candidate | None:
            tree = tree_from_path(topology, path(topology, rng.randrange(1 << 30)), ssa=False)
            return Candidate(tree, cost(tree))

        return attempt

    for _ in range(4):
        yield noisy(0.0)
    if eager:
        yield annealed
        if topology.num_tensors < 20_000:
            yield foreign(_opt_einsum_path)
            yield foreign(_cotengra_path)
            yield annealed
    while True:
        for noise in (0.0, 0.1, 0.3, 0.0, 0.1):
            yield noisy(noise)
        if eager:
            yield annealed


def _opt_einsum_path(topology: Topology, seed: int) -> list[tuple[int, ...]]:
    from opt_einsum.paths import greedy

    sizes = dict(enumerate(topology.sizes))
    path = greedy([frozenset(scope) for scope in topology.scopes], frozenset(), sizes, inf)
    return [tuple(group) for group in path]


def _cotengra_path(topology: Topology, seed: int) -> list[tuple[int, ...]]:
    from cotengra import RandomGreedyOptimizer

    names = {v: f"{v}" for scope in topology.scopes for v in scope}
    inputs = [tuple(names[v] for v in scope) for scope in topology.scopes]
    sizes = {name: topology.sizes[v] for v, name in names.items()}
    optimizer = RandomGreedyOptimizer(max_repeats=16, parallel=False, seed=seed)
    return [tuple(group) for group in optimizer(inputs, (), sizes)]
