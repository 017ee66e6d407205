"""Contraction trees compiled into batched steps: alike steps of one level run as one."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from rdpgraph._core import tuning
from rdpgraph._core.cache import cached_property, remembered
from rdpgraph.plan.tree import ContractionTree


@dataclass(frozen=True, eq=False)
class Operand:
    """Origin of the tables of a batched step."""

    # (pool, rows) pairs; rows None stands for the whole pool in order
    pieces: tuple[tuple[int, Tensor | None], ...]
    counts: tuple[int, ...]  # tables of each piece
    order: Tensor | None  # a permutation of the joined pieces, or None

    @cached_property
    def inverse(self) -> Tensor | None:
        """Permutation back to the pieces."""
        return None if self.order is None else torch.argsort(self.order)

    def members(self) -> Iterator[tuple[int, Tensor, Tensor]]:
        """For each piece its pool, the steps that read it, and the rows that they read."""
        start = 0
        for (pool, rows), count in zip(self.pieces, self.counts, strict=True):
            places = torch.arange(start, start + count, device="cpu")
            steps = places if self.inverse is None else self.inverse[places]
            yield pool, steps, torch.arange(count, device="cpu") if rows is None else rows
            start += count


@dataclass(frozen=True, eq=False)
class BatchedStep:
    """Alike steps of one level, of tables whose dims are labels: columns of ``variables``."""

    left: Operand
    right: Operand | None  # None for a lone reduction
    left_dims: tuple[int, ...]
    right_dims: tuple[int, ...]
    out_dims: tuple[int, ...]
    variables: Tensor  # (count, labels) variable behind each label
    gone: tuple[int, ...]  # labels that are eliminated
    maximise: bool  # they are maximised out instead of summed
    # The eliminated labels whose marginals are read off the left and off the right operand. Each
    # is read off the smaller operand that has it, because a message has its operand's size.
    read: tuple[tuple[int, ...], tuple[int, ...]]

    @property
    def count(self) -> int:
        """Number of steps that run as one."""
        return self.variables.shape[0]

    @property
    def sides(self) -> tuple["Side", ...]:
        """Each operand, seen as the one that receives a message from the other."""
        left = Side(self.left, self.left_dims, self.right, self.right_dims, self.read[0])
        if self.right is None:
            return (left,)
        return left, Side(self.right, self.right_dims, self.left, self.left_dims, self.read[1])


class Side(NamedTuple):
    """An operand of a step, and the operand that it is multiplied with, if there is one."""

    operand: Operand
    dims: tuple[int, ...]
    other: Operand | None
    other_dims: tuple[int, ...]
    read: tuple[int, ...]  # labels whose marginals are read off this operand


@dataclass(frozen=True, eq=False)
class ContractionProgram:
    """Batched steps: pools 0 to groups-1 are the factors, and step i fills pool groups + i."""

    groups: int  # number of factor pools
    steps: tuple[BatchedStep, ...]  # in order of execution
    roots: tuple[int, ...]  # the pools of scalars, one scalar per component
    last_use: tuple[int, ...]  # per pool the last step that reads it
    sizes: tuple[int, ...]  # number of states of each variable

    @cached_property
    def shares(self) -> tuple[float, ...]:
        """Predicted part of the work before each step, and after the last."""
        fixed = tuning.SECONDS_PER_GROUP * tuning.OPERATIONS_PER_SECOND
        work = [0.0]
        for step in self.steps:
            cells = math.prod(self.sizes[v] for v in step.variables[0].tolist())
            work.append(work[-1] + fixed + float(step.count * cells))
        return tuple(part / max(work[-1], 1.0) for part in work)


Layout: TypeAlias = tuple[tuple[int, tuple[int, ...] | None], ...]
"""Each group's number of factors and, where its tables are large, the table of each factor."""


@remembered(256)
def compiled(
    tree: ContractionTree, layout: Layout, maximise: frozenset[int] = frozenset()
) -> ContractionProgram:
    """Program of a tree whose leaves are in groups of ``layout``; cached.

    Variables ``maximise`` are maximised out instead of summed.
    """
    return _Compiler(tree, layout, maximise).program()


class _Signature(NamedTuple):
    """Properties that steps must share to run as one."""

    sizes: tuple[int, ...]  # by label
    num_left: int
    right_dims: tuple[int, ...]
    out_dims: tuple[int, ...]
    joined: bool
    maximise: bool
    # the large table that the left and right operand share: its group and number, or None
    tables: tuple[tuple[int, int] | None, ...]


_Member: TypeAlias = tuple[int, int, int, tuple[int, ...]]
"""A step's number, its left and right node, and its variables by label."""


class _Compiler:
    def __init__(self, tree: ContractionTree, layout: Layout, maximise: frozenset[int]) -> None:
        self.tree, self.layout, self.maximise = tree, layout, maximise
        self.sizes = tree.topology.sizes
        self.scopes: list[tuple[int, ...]] = list(tree.topology.scopes)
        self.places = [(g, row) for g, (count, _) in enumerate(layout) for row in range(count)]
        self.pool_counts = [count for count, _ in layout]

    def program(self) -> ContractionProgram:
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
        return ContractionProgram(
            len(self.layout), tuple(steps), tuple(roots), tuple(last_use), self.sizes
        )

    def _levels(self) -> list[dict[_Signature, list[_Member]]]:
        """Return the steps of each level of the tree, by the signature of those that run as one."""
        levels: list[dict[_Signature, list[_Member]]] = []
        sizes, scopes, maximise = self.sizes, self.scopes, self.maximise
        depths = self.tree.levels
        leaves = len(self.tree.topology.scopes)
        for number, (left, right, scope) in enumerate(self.tree.steps):
            # Variables become labels: those of the larger operand, then those of the other alone.
            if right >= 0 and len(scopes[left]) < len(scopes[right]):
                left, right = right, left
            first = scopes[left]
            second = scopes[right] if right >= 0 else ()
            labels = {variable: label for label, variable in enumerate(first)}
            for variable in second:
                labels.setdefault(variable, len(labels))
            # The result has shared dims first, as a batched matrix product gives them.
            kept, inside = set(scope), set(second)
            out = [v for v in first if v in kept and v in inside]
            out += [v for v in first if v in kept and v not in inside]
            out += [v for v in second if v in kept and v not in first]
            gone = [v for v in labels if v not in kept]
            largest = bool(gone) and gone[0] in maximise
            signature = _Signature(
                tuple(sizes[v] for v in labels),
                len(first),
                tuple(labels[v] for v in second),
                tuple(labels[v] for v in out),
                right >= 0,
                largest,
                (self._large_table(left), self._large_table(right)),
            )
            # A step stands one level above its operands.
            scopes.append(tuple(out))
            depth = depths[leaves + number] - 1
            while len(levels) <= depth:
                levels.append({})
            levels[depth].setdefault(signature, []).append((number, left, right, tuple(labels)))
        return levels

    def _large_table(self, node: int) -> tuple[int, int] | None:
        """The group and the number of a factor's table, if it is large."""
        if not 0 <= node < len(self.tree.topology.scopes):
            return None
        group, row = self.places[node]
        tables = self.layout[group][1]
        return None if tables is None else (group, tables[row])

    def _batched(
        self,
        signature: _Signature,
        members: Sequence[_Member],
    ) -> BatchedStep:
        left_dims, labels = tuple(range(signature.num_left)), range(len(signature.sizes))
        gone = tuple(label for label in labels if label not in signature.out_dims)
        return BatchedStep(
            left=self._operand([member[1] for member in members]),
            right=self._operand([member[2] for member in members]) if signature.joined else None,
            left_dims=left_dims,
            right_dims=signature.right_dims,
            out_dims=signature.out_dims,
            variables=torch.tensor([member[3] for member in members], device="cpu").reshape(
                len(members), -1
            ),
            gone=gone,
            maximise=signature.maximise,
            read=_read_off(gone, left_dims, signature.right_dims, signature.sizes),
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


def _read_off(
    gone: tuple[int, ...], left: tuple[int, ...], right: tuple[int, ...], sizes: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The labels to read off the left and off the right operand: the smaller one that has each."""
    volumes = [math.prod(sizes[label] for label in dims) for dims in (left, right)]
    off_right = {
        label for label in gone if label in right and (label not in left or volumes[1] < volumes[0])
    }
    return (
        tuple(label for label in gone if label not in off_right),
        tuple(label for label in gone if label in off_right),
    )
