"""Topology of a model, and contraction trees: the order in which tensors are multiplied."""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from heapq import heapify, heappop, heappush
from itertools import chain, pairwise
from math import prod
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

Integers: TypeAlias = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Topology:
    """Scopes of the tensors and sizes of the variables: all that planning reads.

    A variable that is in no scope belongs to no component and appears in no tree: its sum is its
    size, which the caller accounts for.

    Args:
        scopes: one tuple of distinct variable ids per tensor, never empty.
        sizes: number of states per variable, each at least 1.
    """

    scopes: tuple[tuple[int, ...], ...]
    sizes: tuple[int, ...]

    @property
    def num_tensors(self) -> int:
        """Number of tensors (leaves of a contraction tree)."""
        return len(self.scopes)

    @property
    def num_variables(self) -> int:
        """Number of variables, those in no scope included."""
        return len(self.sizes)

    @cached_property
    def lengths(self) -> Integers:
        """The number of variables of each tensor."""
        return np.fromiter(map(len, self.scopes), np.int64, len(self.scopes))

    @cached_property
    def flat(self) -> Integers:
        """Variables of all scopes, one scope after the other."""
        return np.fromiter(chain.from_iterable(self.scopes), np.int64, int(self.lengths.sum()))

    @cached_property
    def owners(self) -> Integers:
        """Tensor of each entry of `flat`."""
        return np.repeat(np.arange(len(self.scopes), dtype=np.int64), self.lengths)

    @cached_property
    def key(self) -> bytes:
        """A 16-byte digest: equal for equal topologies, the same in every process."""
        digest = hashlib.blake2b(digest_size=16)
        for part in (self.lengths, self.flat, np.asarray(self.sizes, dtype=np.int64)):
            digest.update(len(part).to_bytes(8, "little"))
            digest.update(np.ascontiguousarray(part).tobytes())
        return digest.digest()

    def components(self) -> tuple[tuple[int, ...], ...]:
        """Tensors per connected component, ascending, components by their smallest variable."""
        if not self.scopes:
            return ()
        starts = np.cumsum(self.lengths) - self.lengths
        first = self.flat[starts]
        labels = component_labels(np.repeat(first, self.lengths), self.flat, self.num_variables)
        owner = labels[first]
        order = np.argsort(owner, kind="stable")
        cuts = np.flatnonzero(np.diff(owner[order])) + 1
        bounds = [0, *cuts.tolist(), len(order)]
        listed = order.tolist()
        return tuple(tuple(listed[a:b]) for a, b in pairwise(bounds))


def component_labels(left: Integers, right: Integers, count: int) -> Integers:
    """Smallest member of each one's connected component, given edges left[i] - right[i]."""
    labels = np.arange(count, dtype=np.int64)
    while True:
        ends = labels[left], labels[right]
        low = np.minimum(*ends)
        if np.array_equal(*ends):
            return labels
        np.minimum.at(labels, ends[0], low)
        np.minimum.at(labels, ends[1], low)
        while True:
            jumped = labels[labels]
            if np.array_equal(jumped, labels):
                break
            labels = jumped


class ContractionStep(NamedTuple):
    """Multiply two tensors and sum out every variable that is not in `scope`.

    `right == -1` means that `left` alone is reduced. A named tuple, because a large forest has
    millions of steps.
    """

    left: int
    right: int
    scope: tuple[int, ...]


class Workbench:
    """Live tensors of a contraction under way.

    Tensors are numbered as in `ContractionTree`: leaves first, then one per step. With `eager=True`
    a step sums out every variable that no other live tensor has; otherwise only `eliminate` removes
    variables. Scopes of results are ascending. ``flops`` and ``stored`` are those of `Cost`.
    """

    def __init__(self, topology: Topology, *, eager: bool = True) -> None:
        self.topology = topology
        self.eager = eager
        self.sizes = topology.sizes
        self.scopes: list[tuple[int, ...]] = list(topology.scopes)
        self.volumes: list[int] = [prod([self.sizes[v] for v in s]) for s in self.scopes]
        self.levels: list[int] = [0] * len(self.scopes)
        self.alive = bytearray(b"\1") * len(self.scopes)
        self.counts: list[int] = [0] * len(self.sizes)
        self.uses: list[list[int]] = [[] for _ in self.sizes]
        self.steps: list[ContractionStep] = []
        self.flops = 0
        self.stored = 0
        for tensor, scope in enumerate(self.scopes):
            for v in scope:
                self.counts[v] += 1
                self.uses[v].append(tensor)

    def live(self) -> list[int]:
        """Live tensors that still have variables, ascending."""
        return [t for t, (on, scope) in enumerate(zip(self.alive, self.scopes, strict=True))
                if on and scope]  # fmt: skip

    def bucket(self, variable: int) -> list[int]:
        """Live tensors that have the variable."""
        if not self.counts[variable]:
            return []
        return [t for t in self.uses[variable] if self.alive[t]]

    def reduce(self, tensor: int, drop: Iterable[int] | None = None) -> int:
        """Sum out `drop` (default: all variables that only this tensor has); return the new id.

        The tensor itself is returned, without a step, when there is nothing to sum out.
        """
        scope, counts = self.scopes[tensor], self.counts
        gone = set(drop) if drop is not None else {v for v in scope if counts[v] == 1}
        if not gone:
            return tensor
        for v in gone:
            counts[v] = 0
        self.alive[tensor] = 0
        kept = tuple(sorted(v for v in scope if v not in gone))
        self.flops += self.volumes[tensor]
        return self._append(tensor, -1, kept, self.levels[tensor] + 1)

    def multiply(self, left: int, right: int, drop: int | None = None) -> int:
        """Multiply two tensors that are left, and sum out variables; return the id of the result.

        The class says which variables are summed out. ``drop`` names one if that is not eager.
        Variables that only one leaf has are summed out first where that saves work.
        """
        scopes, counts, sizes = self.scopes, self.counts, self.sizes
        if self.eager:
            left = self._trim(left, right)
            right = self._trim(right, left)
        first, second = scopes[left], scopes[right]
        shared = set(first).intersection(second)
        for v in shared:
            counts[v] -= 1
        union = sorted({*first, *second})
        self.flops += prod([sizes[v] for v in union])
        if self.eager:
            kept = tuple([v for v in union if counts[v] > 1])
            if len(kept) < len(union):
                for v in union:
                    if counts[v] == 1:
                        counts[v] = 0
        else:
            kept = tuple([v for v in union if v != drop])
            if drop is not None:
                counts[drop] = 0
        self.alive[left] = self.alive[right] = 0
        level = 1 + max(self.levels[left], self.levels[right])
        return self._append(left, right, kept, level)

    def combine(self, tensors: Sequence[int], drop: int | None = None) -> int:
        """Multiply tensors pairwise, smallest first, so that alike ones form a balanced tree."""
        heap = [self._rank(t) for t in tensors]
        heapify(heap)
        while len(heap) > 2:
            left = heappop(heap)[-1]
            heappush(heap, self._rank(self.multiply(left, heappop(heap)[-1])))
        if len(heap) == 2:
            left = heappop(heap)[-1]
            return self.multiply(left, heap[0][-1], drop)
        return heap[0][-1]

    def eliminate(self, variable: int) -> None:
        """Multiply everything that has the variable and sum it out (bucket elimination)."""
        bucket = self.bucket(variable)
        if len(bucket) > 1:
            self.combine(bucket, variable)
        elif bucket:
            self.reduce(bucket[0], None if self.eager else (variable,))

    def residual(self) -> tuple[Topology, list[int], tuple[int, ...]]:
        """Live tensors as a separate topology, their ids here, and its variables here."""
        live = self.live()
        names = tuple(sorted({v for t in live for v in self.scopes[t]}))
        rank = {name: i for i, name in enumerate(names)}
        scopes = tuple(tuple(rank[v] for v in self.scopes[t]) for t in live)
        return Topology(scopes, tuple(self.sizes[v] for v in names)), live, names

    def _rank(self, tensor: int) -> tuple[int, int, tuple[int, ...], int]:
        return self.volumes[tensor], self.levels[tensor], self.scopes[tensor], tensor

    def _trim(self, tensor: int, other: int) -> int:
        """Reduce a leaf before a product when that is cheaper than within it."""
        if tensor >= self.topology.num_tensors:
            return tensor
        scope, sizes = self.scopes[tensor], self.sizes
        private = prod([sizes[v] for v in scope if self.counts[v] == 1])
        if private == 1:
            return tensor
        rest = prod([sizes[v] for v in self.scopes[other] if v not in scope])
        volume = self.volumes[tensor]
        if volume + volume * rest // private < volume * rest:
            return self.reduce(tensor)
        return tensor

    def _append(self, left: int, right: int, scope: tuple[int, ...], level: int) -> int:
        tensor = len(self.scopes)
        self.steps.append(ContractionStep(left, right, scope))
        volume = prod([self.sizes[v] for v in scope])
        self.scopes.append(scope)
        self.volumes.append(volume)
        self.levels.append(level)
        self.alive.append(1)
        self.stored += volume
        for v in scope:
            self.uses[v].append(tensor)
        return tensor


@dataclass(frozen=True, eq=False)
class ContractionTree:
    """Steps that reduce every connected component of a topology to one scalar.

    Tensors 0 .. L-1 are the topology's scopes; step i makes tensor L + i. Every tensor is used
    exactly once, except the roots: one tensor with scope () per component, never joined.
    """

    topology: Topology
    steps: tuple[ContractionStep, ...] = field(repr=False)

    @cached_property
    def scopes(self) -> tuple[tuple[int, ...], ...]:
        """Scopes of all tensors: leaves, then the results of the steps."""
        return (*self.topology.scopes, *(step.scope for step in self.steps))

    @cached_property
    def roots(self) -> tuple[int, ...]:
        """Final scalar of each component, ascending."""
        leaves = self.topology.num_tensors
        return tuple(leaves + i for i, step in enumerate(self.steps) if not step.scope)

    @cached_property
    def levels(self) -> tuple[int, ...]:
        """Depth of every tensor: 0 for leaves, else one more than the deeper operand."""
        levels = [0] * self.topology.num_tensors
        for left, right, _ in self.steps:
            levels.append(1 + (levels[left] if right < 0 else max(levels[left], levels[right])))
        return tuple(levels)

    def over(self, topology: Topology) -> "ContractionTree | None":
        """Return the same order for another topology; None if its scopes are others.

        The tensors may be in another order, and the variables of other sizes.
        """
        mine, theirs = (
            sorted(range(each.num_tensors), key=each.scopes.__getitem__)
            for each in (self.topology, topology)
        )
        pairs = list(zip(mine, theirs, strict=False))
        alike = all(self.topology.scopes[one] == topology.scopes[other] for one, other in pairs)
        if len(mine) != len(theirs) or not alike:
            return None
        # Steps refer to scopes by number, and to results of earlier steps.
        places = dict(pairs)
        steps = (
            ContractionStep(places.get(left, left), places.get(right, right), scope)
            for left, right, scope in self.steps
        )
        return ContractionTree(topology, tuple(steps))


def tree_from_order(
    topology: Topology, order: Iterable[int], *, eager: bool = True
) -> ContractionTree:
    """Tree of bucket elimination along `order` (Dechter 1999).

    In each bucket the tensors are multiplied pairwise, smallest first, which combines m alike
    messages in depth log m. With `eager` a step also sums out every other variable that no other
    live tensor has; without it a step sums out at most one variable, strictly in the given order
    (as marginal MAP requires). Variables missing from `order` come last, ascending.
    """
    bench = Workbench(topology, eager=eager)
    for variable in order:
        bench.eliminate(variable)
    return _finished(bench)


def tree_from_path(
    topology: Topology, path: Iterable[Sequence[int]], *, ssa: bool = True
) -> ContractionTree:
    """Tree of a pairwise contraction path, as opt_einsum and cotengra give it.

    Joins of finished components are dropped, and tensors that the path leaves are contracted.

    Args:
        topology: of the path.
        path: one tuple of operands per contraction; one or more than two operands are fine.
        ssa: operands have permanent numbers; else they are positions in the list of live tensors
            (opt_einsum's default), where results are appended at the end.
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
