"""A contraction tree compiled into batched steps: alike steps of one level run as one."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rdpgraph._core.cache import cached_property, remembered
from rdpgraph.plan.plan import ELEMENTS_PER_SECOND, SECONDS_PER_GROUP
from rdpgraph.plan.tree import ContractionTree


@dataclass(frozen=True, eq=False)
class Operand:
    """Where the tables of a batched step come from.

    Attributes:
        pieces: (pool, rows) pairs; rows None stands for the whole pool in order.
        counts: how many tables each piece has.
        order: a permutation of the joined pieces, or None.
    """

    pieces: tuple[tuple[int, Tensor | None], ...]
    counts: tuple[int, ...]
    order: Tensor | None

    @cached_property
    def inverse(self) -> Tensor | None:
        """The permutation back."""
        return None if self.order is None else torch.argsort(self.order)


@dataclass(frozen=True, eq=False)
class BatchedStep:
    """Alike steps of one level.

    Attributes:
        left, right: operands; right is None for a lone reduction.
        left_dims, right_dims, out_dims: labels of the dims; labels index the columns below.
        variables: (count, labels) the variable behind each label.
        gone: the labels that are eliminated here.
        maximise: whether they are maximised out instead of summed.
    """

    left: Operand
    right: Operand | None
    left_dims: tuple[int, ...]
    right_dims: tuple[int, ...]
    out_dims: tuple[int, ...]
    variables: Tensor
    gone: tuple[int, ...]
    maximise: bool

    @property
    def count(self) -> int:
        """How many steps run as one."""
        return self.variables.shape[0]


@dataclass(frozen=True, eq=False)
class Owner:
    """Variables whose marginals are read off one slot of one group of factors."""

    group: int
    slot: int
    rows: Tensor
    variables: Tensor


@dataclass(frozen=True, eq=False)
class Program:
    """Pools 0 .. groups-1 are the factors; step i fills pool groups + i.

    Attributes:
        groups: the number of factor pools.
        steps: in order of execution.
        roots: the pools of scalars, one scalar per component.
        last_use: per pool the last step that reads it.
        owners: for every variable the smallest factor that holds it.
        sizes: the number of states of each variable.
    """

    groups: int
    steps: tuple[BatchedStep, ...]
    roots: tuple[int, ...]
    last_use: tuple[int, ...]
    owners: tuple[Owner, ...]
    sizes: tuple[int, ...]

    @cached_property
    def shares(self) -> tuple[float, ...]:
        """The part of the work that lies before each step, and after the last, as predicted."""
        fixed = SECONDS_PER_GROUP * ELEMENTS_PER_SECOND
        work = [0.0]
        for step in self.steps:
            cells = math.prod(self.sizes[v] for v in step.variables[0].tolist())
            work.append(work[-1] + fixed + float(step.count * cells))
        return tuple(part / max(work[-1], 1.0) for part in work)


@remembered(256)
def compiled(
    tree: ContractionTree, layout: tuple[int, ...], maximise: frozenset[int] = frozenset()
) -> Program:
    """The program of a tree whose leaves lie in groups of ``layout`` factors; cached.

    Args:
        tree: what to run.
        layout: how many factors each group has, in the order of the tree's leaves.
        maximise: the variables that are maximised out instead of summed.
    """
    compiler = _Compiler(tree, layout, maximise)
    return compiler.program()


class _Compiler:
    def __init__(
        self, tree: ContractionTree, layout: tuple[int, ...], maximise: frozenset[int]
    ) -> None:
        self.tree, self.layout, self.maximise = tree, layout, maximise
        self.sizes = tree.topology.sizes
        self.scopes: list[tuple[int, ...]] = list(tree.topology.scopes)
        self.places = [(g, row) for g, count in enumerate(layout) for row in range(count)]
        self.pool_counts = list(layout)

    def program(self) -> Program:
        steps: list[BatchedStep] = []
        roots: list[int] = []
        leaves = len(self.places)
        self.places.extend([(-1, -1)] * len(self.tree.steps))
        for level in self._levels():
            for signature, members in level.items():
                pool = len(self.layout) + len(steps)
                members.sort(key=lambda member: (self.places[member[1]], self.places[member[2]]))
                steps.append(self._batched(signature, members))
                for row, member in enumerate(members):
                    self.places[leaves + member[0]] = (pool, row)
                self.pool_counts.append(len(members))
                if not steps[-1].out_dims:
                    roots.append(pool)
        last_use = [-1] * len(self.pool_counts)
        for number, step in enumerate(steps):
            for operand in (step.left, step.right):
                for pool, _ in operand.pieces if operand else ():
                    last_use[pool] = number
        owners = _owners(self.tree, self.layout)
        return Program(
            len(self.layout), tuple(steps), tuple(roots), tuple(last_use), owners, self.sizes
        )

    def _levels(
        self,
    ) -> list[dict[tuple[object, ...], list[tuple[int, int, int, tuple[int, ...]]]]]:
        """Per level the steps by signature: (step, left, right, variables by label)."""
        levels: list[dict[tuple[object, ...], list[tuple[int, int, int, tuple[int, ...]]]]] = []
        sizes, scopes, maximise = self.sizes, self.scopes, self.maximise
        depths = self.tree.levels
        leaves = len(self.tree.topology.scopes)
        for number, (left, right, scope) in enumerate(self.tree.steps):
            if right >= 0 and len(scopes[left]) < len(scopes[right]):
                left, right = right, left
            first = scopes[left]
            second = scopes[right] if right >= 0 else ()
            labels = {variable: label for label, variable in enumerate(first)}
            for variable in second:
                labels.setdefault(variable, len(labels))
            kept, inside = set(scope), set(second)
            out = [v for v in first if v in kept and v in inside]
            out += [v for v in first if v in kept and v not in inside]
            out += [v for v in second if v in kept and v not in first]
            gone = [v for v in labels if v not in kept]
            largest = bool(gone) and gone[0] in maximise
            signature = (
                tuple(sizes[v] for v in labels),
                len(first),
                tuple(labels[v] for v in second),
                tuple(labels[v] for v in out),
                right >= 0,
                largest,
            )
            scopes.append(tuple(out))
            depth = depths[leaves + number] - 1
            while len(levels) <= depth:
                levels.append({})
            levels[depth].setdefault(signature, []).append((number, left, right, tuple(labels)))
        return levels

    def _batched(
        self,
        signature: tuple[object, ...],
        members: Sequence[tuple[int, int, int, tuple[int, ...]]],
    ) -> BatchedStep:
        sizes, first, right_dims, out_dims, joined, largest = signature
        assert isinstance(sizes, tuple)
        assert isinstance(first, int)
        assert isinstance(right_dims, tuple)
        assert isinstance(out_dims, tuple)
        return BatchedStep(
            left=self._operand([member[1] for member in members]),
            right=self._operand([member[2] for member in members]) if joined else None,
            left_dims=tuple(range(first)),
            right_dims=right_dims,
            out_dims=out_dims,
            variables=torch.tensor([member[3] for member in members], device="cpu").reshape(
                len(members), -1
            ),
            gone=tuple(label for label in range(len(sizes)) if label not in out_dims),
            maximise=bool(largest),
        )

    def _operand(self, nodes: Sequence[int]) -> Operand:
        by_pool: dict[int, list[tuple[int, int]]] = {}
        for place, node in enumerate(nodes):
            pool, row = self.places[node]
            by_pool.setdefault(pool, []).append((row, place))
        pieces: list[tuple[int, Tensor | None]] = []
        order: list[int] = []
        for pool, entries in by_pool.items():
            rows = [row for row, _ in entries]
            # Lengths first: a chain reads one row of a large pool at every step.
            whole = len(rows) == self.pool_counts[pool] and rows == list(range(len(rows)))
            pieces.append((pool, None if whole else torch.tensor(rows, device="cpu")))
            order.extend(place for _, place in entries)
        counts = tuple(len(entries) for entries in by_pool.values())
        if order == list(range(len(order))):
            return Operand(tuple(pieces), counts, None)
        return Operand(tuple(pieces), counts, torch.argsort(torch.tensor(order, device="cpu")))


def _owners(tree: ContractionTree, layout: tuple[int, ...]) -> tuple[Owner, ...]:
    topology = tree.topology
    starts = [0]
    for count in layout:
        starts.append(starts[-1] + count)
    cells: list[float] = []
    for group in range(len(layout)):
        total = 1.0
        for variable in topology.scopes[starts[group]]:
            total *= topology.sizes[variable]
        cells.append(total)
    owned = bytearray(len(topology.sizes))
    owners: list[Owner] = []
    for group in sorted(range(len(layout)), key=cells.__getitem__):
        scopes = topology.scopes[starts[group] : starts[group + 1]]
        for slot in range(len(scopes[0])):
            rows: list[int] = []
            variables: list[int] = []
            for row, scope in enumerate(scopes):
                if not owned[scope[slot]]:
                    owned[scope[slot]] = 1
                    rows.append(row)
                    variables.append(scope[slot])
            if rows:
                owners.append(
                    Owner(
                        group,
                        slot,
                        torch.tensor(rows, device="cpu"),
                        torch.tensor(variables, device="cpu"),
                    )
                )
    return tuple(owners)
