"""Simulated annealing of a contraction tree by local rotations."""

from collections.abc import Callable
from math import inf, log, log2
from random import Random

from rdpgraph._core import tuning
from rdpgraph.plan import clock
from rdpgraph.plan.tree import ContractionTree, Topology, tree_from_path

HOT = 1.0
"""First temperature, in bits of local cost."""

COLD = 0.05
"""Last temperature."""


def anneal(
    tree: ContractionTree,
    *,
    rng: Random,
    sweeps: int = 200,
    hot: float = HOT,
    write_weight: float = 1.0,
    deadline: float = inf,
) -> ContractionTree:
    """Cheapest tree met while rotating ((A B) C) into ((A C) B) or ((B C) A), or `tree`.

    A sweep visits every node once, from the roots; a rotation that multiplies the cost of its two
    steps by 2^d is accepted with probability min(1, e^(-d / temperature)). The cost of a step is
    its table size plus `write_weight` times the size of its result, a positive number; one to three
    microseconds per visit.

    Source: Kalachev, Panteleev and Yung (2021), Multi-tensor contraction for XEB verification of
    quantum circuits, arXiv:2108.05665.
    """
    state = _Rotations(tree, write_weight)
    if not state.rotatable:
        return tree
    # Temperatures fall geometrically; the best tree met is kept.
    best, best_total = state.snapshot(), state.total()
    start_total = best_total
    for sweep in range(sweeps):
        temperature = hot * (COLD / hot) ** (sweep / max(1, sweeps - 1))
        state.sweep(temperature, rng.random)
        clock.count(tuning.ANNEALING_VISIT * len(state.left))
        total = state.total()
        if total < best_total:
            best, best_total = state.snapshot(), total
        if clock.now() > deadline:
            break
    return state.tree(best) if best_total < start_total else tree


class _Rotations:
    """A binary tree over bitmask scopes, rotated in place.

    Nodes are numbered as in the tree without its lone reductions. When a and b are joined, the
    variables that survive are those of their sibling or of their grandparent's result.
    """

    def __init__(self, tree: ContractionTree, write_weight: float) -> None:
        self.topology: Topology = tree.topology
        leaves = self.topology.num_tensors
        self.leaves = leaves
        masks = [sum(1 << v for v in scope) for scope in self.topology.scopes]
        self.left = [-1] * leaves
        self.right = [-1] * leaves
        names = list(range(leaves))
        self.masks = masks
        for left, right, scope in tree.steps:
            if right < 0:
                names.append(names[left])
                continue
            names.append(len(masks))
            self.left.append(names[left])
            self.right.append(names[right])
            masks.append(sum(1 << v for v in scope))
        self.roots = [names[root] for root in tree.roots]
        self.rotatable = len(masks) > leaves + 1
        self.bits = _bits(self.topology.sizes)
        self.write = log2(write_weight)
        self.work = [-inf] * len(masks)
        for p in range(leaves, len(masks)):
            self.work[p] = self._step(masks[self.left[p]] | masks[self.right[p]], masks[p])

    def _step(self, union: int, result: int) -> float:
        """log2 of one step's cost."""
        table, out = self.bits(union), self.bits(result) + self.write
        return table + log2(1.0 + 2.0 ** max(out - table, -60.0))

    def total(self) -> float:
        """log2 of the cost of all steps."""
        top = max(self.work)
        return top + log2(sum([2.0 ** max(w - top, -1000.0) for w in self.work[self.leaves :]]))

    def snapshot(self) -> tuple[list[int], list[int]]:
        """Current shape of the tree."""
        return self.left.copy(), self.right.copy()

    def sweep(self, temperature: float, random: Callable[[], float]) -> None:
        """Propose one rotation at every node, parents first."""
        left, right, masks, work, leaves = self.left, self.right, self.masks, self.work, self.leaves
        step = self._step
        stack = [root for root in self.roots if root >= leaves]
        while stack:
            p = stack.pop()
            x, c = left[p], right[p]
            draw = random()
            if x < leaves:
                if c < leaves:
                    continue
                x, c = c, x
            elif c >= leaves:
                if draw < 0.5:
                    x, c = c, x
                    draw += draw
                else:
                    draw += draw - 1.0
            a, b = left[x], right[x]
            if draw < 0.5:
                a, b = b, a
            # ((a b) c) -> ((a c) b)
            pair = masks[a] | masks[c]
            kept = pair & (masks[b] | masks[p])
            inner = step(pair, kept)
            outer = step(kept | masks[b], masks[p])
            old = work[x], work[p]
            top = max(inner, outer, *old)
            rise = log2(
                (2.0 ** max(inner - top, -1000.0) + 2.0 ** max(outer - top, -1000.0))
                / (2.0 ** max(old[0] - top, -1000.0) + 2.0 ** max(old[1] - top, -1000.0))
            )
            if rise <= 0.0 or log(random() + 1e-300) < -rise / temperature:
                left[x], right[x] = a, c
                left[p], right[p] = x, b
                masks[x] = kept
                work[x] = inner
                work[p] = outer
            if left[p] >= leaves:
                stack.append(left[p])
            if right[p] >= leaves:
                stack.append(right[p])

    def tree(self, shape: tuple[list[int], list[int]]) -> ContractionTree:
        """Contraction tree of a snapshot."""
        left, right = shape
        order: list[int] = []
        stack = [root for root in self.roots if root >= self.leaves]
        while stack:
            p = stack.pop()
            order.append(p)
            stack += [child for child in (left[p], right[p]) if child >= self.leaves]
        names = list(range(len(self.masks)))
        path: list[tuple[int, int]] = []
        for p in reversed(order):
            names[p] = self.leaves + len(path)
            path.append((names[left[p]], names[right[p]]))
        return tree_from_path(self.topology, path)


def _bits(sizes: tuple[int, ...]) -> Callable[[int], float]:
    """A function from a bitmask of variables to log2 of the product of their sizes."""
    classes: dict[int, int] = {}
    for v, size in enumerate(sizes):
        if size > 1:
            classes[size] = classes.get(size, 0) | 1 << v
    parts = [(log2(size), mask) for size, mask in classes.items()]
    if len(parts) == 1 and all(size > 1 for size in sizes):
        unit = parts[0][0]
        return lambda mask: unit * mask.bit_count()
    return lambda mask: sum([unit * (mask & part).bit_count() for unit, part in parts])
