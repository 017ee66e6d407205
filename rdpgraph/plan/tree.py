"""Contraction trees: the order in which tensors are multiplied and variables summed out."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from rdpgraph.errors import ModelError
from rdpgraph.plan.steps import Step, Workbench
from rdpgraph.plan.topology import Topology

__all__ = ["ContractionTree", "Step", "tree_from_order", "tree_from_path"]


@dataclass(frozen=True, eq=False)
class ContractionTree:
    """Steps that reduce every connected component of a topology to one scalar.

    Tensors 0 .. L-1 are the topology's scopes; step i makes tensor L + i. Every tensor is used
    exactly once, except the roots: one tensor with scope () per component, never joined.
    """

    topology: Topology
    steps: tuple[Step, ...] = field(repr=False)

    @cached_property
    def scopes(self) -> tuple[tuple[int, ...], ...]:
        """Scopes of all tensors: leaves, then the results of the steps."""
        return (*self.topology.scopes, *(step.scope for step in self.steps))

    @cached_property
    def roots(self) -> tuple[int, ...]:
        """The scalar at the end of each component, ascending."""
        leaves = self.topology.num_tensors
        return tuple(leaves + i for i, step in enumerate(self.steps) if not step.scope)

    @cached_property
    def levels(self) -> tuple[int, ...]:
        """Depth of every tensor: 0 for leaves, else one more than the deeper operand."""
        levels = [0] * self.topology.num_tensors
        for left, right, _ in self.steps:
            levels.append(1 + (levels[left] if right < 0 else max(levels[left], levels[right])))
        return tuple(levels)

    def check(self) -> None:
        """Raise ModelError unless the steps are a valid contraction; linear in their scopes.

        Builders make valid trees, so this runs only in tests and on trees from elsewhere.
        """
        counts = [0] * self.topology.num_variables
        for scope in self.topology.scopes:
            for v in scope:
                counts[v] += 1
        scopes = self.scopes
        used = bytearray(len(scopes))
        for i, (left, right, scope) in enumerate(self.steps):
            operands = (left,) if right == -1 else (left, right)
            made = self.topology.num_tensors + i
            if not all(0 <= t < made and not used[t] for t in operands) or left == right:
                raise ModelError(f"Step {i} uses {operands}: not two fresh, earlier tensors.")
            union = {v for t in operands for v in scopes[t]}
            if not union or len(set(scope)) < len(scope) or not union.issuperset(scope):
                raise ModelError(f"Step {i} makes scope {scope} out of variables {sorted(union)}.")
            for t in operands:
                used[t] = 1
                for v in scopes[t]:
                    counts[v] -= 1
            if any(counts[v] for v in union.difference(scope)):
                raise ModelError(f"Step {i} sums out a variable that other tensors still have.")
            for v in scope:
                counts[v] += 1
        left_over = [t for t, scope in enumerate(scopes) if scope and not used[t]]
        if left_over:
            raise ModelError(f"Tensors {left_over[:5]} are never contracted.")


def tree_from_order(
    topology: Topology, order: Iterable[int], *, eager: bool = True
) -> ContractionTree:
    """The tree of bucket elimination along `order`.

    In each bucket the tensors are multiplied pairwise, smallest first, which combines m alike
    messages in depth log m. With `eager` a step also sums out every other variable that no other
    live tensor has; without it a step sums out at most one variable, strictly in the given order
    (what a marginal MAP order needs). Variables missing from `order` come last, ascending.

    Cost: a few microseconds per step.
    Source: Dechter (1999), Bucket elimination: a unifying framework for reasoning.
    """
    bench = Workbench(topology, eager=eager)
    for variable in order:
        bench.eliminate(variable)
    return _finished(bench)


def tree_from_path(
    topology: Topology, path: Iterable[Sequence[int]], *, ssa: bool = True
) -> ContractionTree:
    """The tree of a pairwise contraction path, as opt_einsum and cotengra give it.

    Args:
        topology: what the path is for.
        path: one tuple of operands per contraction; one or more than two operands are fine.
        ssa: whether operands are numbered once and for all, or are positions in the list of
            live tensors (opt_einsum's default), where results are appended at the end.

    Joins of finished components are dropped, and whatever the path leaves open is contracted.
    """
    bench = Workbench(topology)
    component = [0] * topology.num_tensors
    for number, tensors in enumerate(topology.components()):
        for tensor in tensors:
            component[tensor] = number
    # What one operand of the path has become: a live tensor per component.
    operands = [{component[t]: t} for t in range(topology.num_tensors)]
    for group in path:
        chosen = [operands[i] for i in group]
        if not ssa:
            for i in sorted(group, reverse=True):
                del operands[i]
        merged: dict[int, list[int]] = {}
        for operand in chosen:
            for number, tensor in operand.items():
                merged.setdefault(number, []).append(tensor)
        operands.append({number: _contracted(bench, some) for number, some in merged.items()})
    return _finished(bench)


def _contracted(bench: Workbench, tensors: list[int]) -> int:
    return bench.combine(tensors) if len(tensors) > 1 else bench.reduce(tensors[0])


def _finished(bench: Workbench) -> ContractionTree:
    for tensor in bench.live():
        for v in bench.scopes[tensor]:
            bench.eliminate(v)
    return ContractionTree(bench.topology, tuple(bench.steps))
