"""What a contraction tree costs: operations, memory and predicted time."""

from dataclasses import dataclass
from math import inf, log2, prod

from rdpgraph.plan.tree import ContractionTree

ELEMENTS_PER_SECOND = 3e8
"""Multiply-adds per second of the contraction engine on one machine; to be calibrated."""

SECONDS_PER_GROUP = 1e-4
"""Fixed cost of one batched group of alike steps; to be calibrated."""


@dataclass(frozen=True)
class Cost:
    """The cost of running a tree once, for a whole batch.

    Attributes:
        flops: sum over steps of the product of the sizes in the union of the operands' scopes.
        stored: elements of all intermediates, leaves excluded: what a forward pass holds when a
            backward pass is to follow.
        peak: most intermediate elements alive at once when operands are freed after use, leaves
            excluded.
        width: log2 of the largest table multiplied out in a step (for one batch item).
        steps: number of steps.
        groups: number of batched launches: steps of one level and one shape pattern are one.
        seconds: flops / ELEMENTS_PER_SECOND + groups * SECONDS_PER_GROUP; inf when too large
            for a float.
    """

    flops: int
    stored: int
    peak: int
    width: float
    steps: int
    groups: int
    seconds: float


def cost(tree: ContractionTree, *, batch: int = 1) -> Cost:
    """The cost of `tree` for `batch` items. Takes a few microseconds per step."""
    sizes, scopes = tree.topology.sizes, tree.scopes
    leaves = tree.topology.num_tensors
    volumes = [0] * leaves
    flops = stored = live = peak = widest = 0
    for left, right, scope in tree.steps:
        union = scopes[left] if right < 0 else {*scopes[left], *scopes[right]}
        table = prod([sizes[v] for v in union])
        volume = prod([sizes[v] for v in scope])
        volumes.append(volume)
        flops += table
        stored += volume
        live += volume
        widest = max(widest, table)
        peak = max(peak, live)
        live -= volumes[left] + (0 if right < 0 else volumes[right])
    groups = count_groups(tree)
    return Cost(
        flops=flops * batch,
        stored=stored * batch,
        peak=peak * batch,
        width=log2(widest) if widest else 0.0,
        steps=len(tree.steps),
        groups=groups,
        seconds=predicted_seconds(flops * batch, groups),
    )


def predicted_seconds(flops: int, groups: int) -> float:
    """The time model, for one run without a backward pass."""
    try:
        return flops / ELEMENTS_PER_SECOND + groups * SECONDS_PER_GROUP
    except OverflowError:
        return inf


def count_groups(tree: ContractionTree) -> int:
    """Number of distinct (level, shapes, index pattern) among the steps."""
    sizes, scopes, levels = tree.topology.sizes, tree.scopes, tree.levels
    leaves = tree.topology.num_tensors
    groups: set[tuple[object, ...]] = set()
    for i, (left, right, scope) in enumerate(tree.steps):
        names = scopes[left] if right < 0 else scopes[left] + scopes[right]
        place: dict[int, int] = {}
        pattern = [place.setdefault(v, len(place)) for v in names]
        groups.add(
            (
                levels[leaves + i],
                len(scopes[left]),
                tuple(pattern),
                tuple([sizes[v] for v in place]),
                tuple([place[v] for v in scope]),
            )
        )
    return len(groups)
