"""Which rows of which tables variables hear that are decided in layers.

What a factor says to a variable is a row: of its table, maximised over the variables that are not
decided yet, at the states of those that are. The rows of all factors stand one after the other: of
each kernel, for each of its variables and each set of the others.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rdpgraph.engines.loopy.edges import Edges, Port

Whole = NDArray[np.int64]
Numbers = NDArray[np.float64 | np.complexfloating[Any, Any]]
_WIDEST = 4
"""Variables of a factor: rows are for every subset of them."""


@dataclass(frozen=True, eq=False)
class Reading:
    """Where the rows stand that some variables hear, one for each of their factors.

    Attributes:
        first: (n,) the first row.
        scopes: (n, m) the variables of the factor.
        strides: (n, m) how many rows a state of each is further on.
    """

    first: Whole
    scopes: Whole
    strides: Whole

    def of(self, rows: Numbers, states: Whole) -> Numbers:
        """(B, n, K) what (b, R, K) rows say at (B, V) states."""
        at = self.first + (states[:, self.scopes] * self.strides).sum(-1)
        if len(at) == 1:
            return rows[:, at[0]]
        return rows[np.arange(len(at)).reshape(-1, 1) if len(rows) > 1 else 0, at]

    def at(self, chosen: Whole) -> "Reading":
        """Some of them."""
        return Reading(self.first[chosen], self.scopes[chosen], self.strides[chosen])


@dataclass(frozen=True, eq=False)
class Hearers:
    """Variables, each once, and where the rows that each hears begin among those of all."""

    variables: Whole
    starts: Whole

    @classmethod
    def of(cls, each: Whole) -> "Hearers":
        """From the (ascending) variable of every row."""
        starts = np.flatnonzero(np.diff(each, prepend=-1))
        return cls(each[starts], starts)

    def sums(self, spoken: Numbers) -> Numbers:
        """(B, n, K) of what (B, rows, K) say to each."""
        return np.add.reduceat(spoken, self.starts, axis=1)


@dataclass(frozen=True, eq=False)
class Step:
    """A layer.

    Attributes:
        variables: (n,) its variables.
        hearers: those of later layers that share factors with them.
        heard: what these have heard of the factors before.
        hear: and what they hear when the layer is decided.
        asked: those of the variables that have factors.
        answers: what they hear when all others are decided.
    """

    variables: Whole
    hearers: Hearers
    heard: Reading
    hear: Reading
    asked: Hearers
    answers: Reading


@dataclass(frozen=True, eq=False)
class Steps:
    """Layers of variables, and which rows they hear.

    Attributes:
        hearers: all that have factors.
        outset: (E,) the rows that they hear when nothing is decided.
        steps: per layer.
    """

    hearers: Hearers
    outset: Whole
    steps: tuple[Step, ...]


def parts(ports: Sequence[Port]) -> Iterator[tuple[int, tuple[int, ...]]]:
    """The slot that hears, and the slots that are decided, of all rows of a kernel."""
    for hearer in range(len(ports)):
        rest = [slot for slot in range(len(ports)) if slot != hearer]
        for size in range(len(rest) + 1):
            yield from ((hearer, decided) for decided in combinations(rest, size))


def steps_of(edges: Edges, layers: Whole) -> Steps | None:
    """The rows that variables in layers (V,) hear; None where factors are no small tables."""
    wide = max(map(len, edges.ports), default=0)
    if not edges.count or wide > _WIDEST or any(p.rows is not None for o in edges.ports for p in o):
        return None
    every, links, count = list[tuple[Whole, ...]](), list[tuple[Whole, ...]](), 0
    for number, ports in enumerate(edges.ports):
        index = np.arange(edges.factors[number])
        scopes = np.stack([port.variables.cpu().numpy() for port in ports], 1)
        padded = np.pad(scopes, ((0, 0), (0, wide - len(ports))))
        first, size, stride = _places(ports, count, len(index), wide)
        count = int(first.max() + size.flat[first.argmax()] * len(index))
        rank, bit = layers[scopes], 1 << np.arange(len(ports))
        for hearer in range(len(ports)):
            full = int(bit.sum()) - (1 << hearer)
            answer = first[full, hearer] + size[full, hearer] * index
            strides = np.broadcast_to(stride[full, hearer], padded.shape)
            outset = first[0, hearer] + index
            every.append((rank[:, hearer], scopes[:, hearer], padded, answer, strides, outset))
            for slot in range(len(ports)):
                later = (rank[:, slot] < rank[:, hearer]).nonzero()[0]
                mask = (rank[later] < rank[later, slot, None]) @ bit
                told = mask | 1 << slot
                links.append((
                    rank[later, slot], scopes[later, hearer], padded[later],
                    first[mask, hearer] + size[mask, hearer] * later, stride[mask, hearer],
                    first[told, hearer] + size[told, hearer] * later, stride[told, hearer],
                ))  # fmt: skip
    return _in_steps(layers, _sorted(every), _sorted(links))


def _places(ports: Sequence[Port], begin: int, factors: int, wide: int) -> tuple[Whole, ...]:
    """By decided slots (as bits) and hearer: the first row, rows a factor, strides of the slots."""
    first = np.zeros((1 << len(ports), len(ports)), np.int64)
    size, stride = np.zeros_like(first), np.zeros((*first.shape, wide), np.int64)
    for hearer, decided in parts(ports):
        bits = sum(1 << slot for slot in decided)
        for place, slot in enumerate(decided):
            further = decided[place + 1 :]
            stride[bits, hearer, slot] = math.prod(ports[other].size for other in further)
        first[bits, hearer] = begin
        size[bits, hearer] = math.prod(ports[slot].size for slot in decided)
        begin += int(size[bits, hearer]) * factors
    return first, size, stride


def _sorted(rows: Sequence[tuple[Whole, ...]]) -> list[Whole]:
    """Columns, by layer, then by hearer."""
    columns = [np.concatenate(column) for column in zip(*rows, strict=True)]
    order = np.lexsort((columns[1], columns[0]))
    return [column[order] for column in columns]


def _in_steps(layers: Whole, every: list[Whole], links: list[Whole]) -> Steps:
    count = int(layers.max(initial=-1)) + 1
    members = np.argsort(layers, kind="stable")
    own = np.split(members, np.searchsorted(layers[members], np.arange(1, count)))
    cuts = [np.searchsorted(part[0], np.arange(count + 1)).tolist() for part in (every, links)]
    steps: list[Step] = []
    for number, variables in enumerate(own):
        asked, answered = (slice(cut[number], cut[number + 1]) for cut in cuts)
        _, hearer, scopes, *rest = (column[answered] for column in links)
        _, mine, around, answer, strides, _ = (column[asked] for column in every)
        steps.append(Step(
            variables, Hearers.of(hearer), Reading(rest[0], scopes, rest[1]),
            Reading(rest[2], scopes, rest[3]), Hearers.of(mine), Reading(answer, around, strides),
        ))  # fmt: skip
    order = np.argsort(every[1], kind="stable")
    return Steps(Hearers.of(every[1][order]), every[5][order], tuple(steps))
