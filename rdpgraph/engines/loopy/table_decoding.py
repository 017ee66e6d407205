"""Decoding layer by layer where all factors are small tables, in NumPy.

The rows of all tables are made at once; every layer of variables then takes a few NumPy calls. With
hard zeros, rows are complex: minus the number of zeros, and the sum of the other log-values, as
NumPy orders complex numbers lexicographically.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rdpgraph._core import tuning
from rdpgraph.engines.loopy.edges import Edges, Port
from rdpgraph.engines.loopy.equations import Equations
from rdpgraph.engines.loopy.kernels import TableKernel
from rdpgraph.plan import clock

Whole = NDArray[np.int64]
Numbers = NDArray[np.float64 | np.complexfloating[Any, Any]]
_WIDEST = 4
"""Variables of a factor, at most: rows are for every subset of them."""


@dataclass(frozen=True, eq=False)
class RowIndex:
    """Index of the rows that some variables receive, one for each of their factors."""

    first: Whole  # (n,) first row
    scopes: Whole  # (n, m) variables of the factor
    strides: Whole  # (n, m) rows to advance per state of each variable

    def of(self, rows: Numbers, states: Whole) -> Numbers:
        """(B, n, K) of the rows (b, R, K) at (B, V) states."""
        at = self.first + (states[:, self.scopes] * self.strides).sum(-1)
        if len(at) == 1:
            return rows[:, at[0]]
        return rows[np.arange(len(at)).reshape(-1, 1) if len(rows) > 1 else 0, at]

    def at(self, chosen: Whole) -> "RowIndex":
        """Index of a subset of the variables."""
        return RowIndex(self.first[chosen], self.scopes[chosen], self.strides[chosen])


@dataclass(frozen=True, eq=False)
class Receivers:
    """Variables, each once, and the first of the rows that each receives."""

    variables: Whole
    starts: Whole

    @classmethod
    def of(cls, each: Whole) -> "Receivers":
        """Receivers from the (ascending) variable of every row."""
        starts = np.flatnonzero(np.diff(each, prepend=-1))
        return cls(each[starts], starts)

    def sums(self, spoken: Numbers) -> Numbers:
        """(B, n, K) sums of rows (B, rows, K) at each variable."""
        return np.add.reduceat(spoken, self.starts, axis=1)


@dataclass(frozen=True, eq=False)
class Step:
    """A layer of variables to decide."""

    variables: Whole  # (n,) of the layer
    receivers: Receivers  # variables of later layers that share factors with them
    before: RowIndex  # rows of those factors before the layer is decided
    after: RowIndex  # rows of those factors after that
    asked: Receivers  # variables of the layer that have factors
    answers: RowIndex  # rows of their factors when all others are decided


@dataclass(frozen=True, eq=False)
class Steps:
    """Layers of variables, and the rows they receive."""

    receivers: Receivers  # all variables that have factors
    initial: Whole  # (E,) the rows that they receive when nothing is decided
    steps: tuple[Step, ...]  # per layer


def parts(ports: Sequence[Port]) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Receiving slot and decided slots of all rows of a kernel."""
    for receiver in range(len(ports)):
        rest = [slot for slot in range(len(ports)) if slot != receiver]
        for size in range(len(rest) + 1):
            yield from ((receiver, decided) for decided in combinations(rest, size))


def steps_of(edges: Edges, layers: Whole) -> Steps | None:
    """Rows that variables in layers (V,) receive; None unless all factors are small tables."""
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
        for receiver in range(len(ports)):
            full = int(bit.sum()) - (1 << receiver)
            answer = first[full, receiver] + size[full, receiver] * index
            strides = np.broadcast_to(stride[full, receiver], padded.shape)
            initial = first[0, receiver] + index
            every.append((rank[:, receiver], scopes[:, receiver], padded, answer, strides, initial))
            for slot in range(len(ports)):
                later = (rank[:, slot] < rank[:, receiver]).nonzero()[0]
                mask = (rank[later] < rank[later, slot, None]) @ bit
                told = mask | 1 << slot
                links.append((
                    rank[later, slot], scopes[later, receiver], padded[later],
                    first[mask, receiver] + size[mask, receiver] * later, stride[mask, receiver],
                    first[told, receiver] + size[told, receiver] * later, stride[told, receiver],
                ))  # fmt: skip
    return _in_steps(layers, _sorted(every), _sorted(links))


def _places(ports: Sequence[Port], begin: int, factors: int, wide: int) -> tuple[Whole, ...]:
    """First row, rows per factor, and strides of slots, by decided slots (as bits) and receiver."""
    first = np.zeros((1 << len(ports), len(ports)), np.int64)
    size, stride = np.zeros_like(first), np.zeros((*first.shape, wide), np.int64)
    for receiver, decided in parts(ports):
        bits = sum(1 << slot for slot in decided)
        for place, slot in enumerate(decided):
            further = decided[place + 1 :]
            stride[bits, receiver, slot] = math.prod(ports[other].size for other in further)
        first[bits, receiver] = begin
        size[bits, receiver] = math.prod(ports[slot].size for slot in decided)
        begin += int(size[bits, receiver]) * factors
    return first, size, stride


def _sorted(rows: Sequence[tuple[Whole, ...]]) -> list[Whole]:
    """Columns, sorted by layer, then by receiver."""
    columns = [np.concatenate(column) for column in zip(*rows, strict=True)]
    order = np.lexsort((columns[1], columns[0]))
    return [column[order] for column in columns]


def _in_steps(layers: Whole, every: list[Whole], links: list[Whole]) -> Steps:
    members = np.argsort(layers, kind="stable")
    by_layer = np.split(members, np.searchsorted(layers[members], np.arange(1, layers.max() + 1)))
    count = len(by_layer)
    cuts = [np.searchsorted(part[0], np.arange(count + 1)).tolist() for part in (every, links)]
    steps: list[Step] = []
    for number, variables in enumerate(by_layer):
        asked, answered = (slice(cut[number], cut[number + 1]) for cut in cuts)
        _, receiver, scopes, *rest = (column[answered] for column in links)
        _, asking, around, answer, strides, _ = (column[asked] for column in every)
        steps.append(Step(
            variables, Receivers.of(receiver), RowIndex(rest[0], scopes, rest[1]),
            RowIndex(rest[2], scopes, rest[3]), Receivers.of(asking),
            RowIndex(answer, around, strides),
        ))  # fmt: skip
    order = np.argsort(every[1], kind="stable")
    return Steps(Receivers.of(every[1][order]), every[5][order], tuple(steps))


LEVEL = 1e-6
"""Relative difference of scores that counts as a tie in coordinate ascent."""


def readable(equations: Equations) -> int:
    """Number of items whose rows fit at once; 0 if rows cannot serve this model.

    Factors must be tables, in memory of the processor, and counted once.
    """
    if equations.weights is not None or equations.unary_device.type != "cpu":
        return 0
    total = 1
    for kernel in equations.kernels:
        if not isinstance(kernel, TableKernel):
            return 0
        ports = kernel.ports
        total += 2 * kernel.count * math.prod(port.size for port in ports) * len(ports)
    return tuning.BLOCK // total


def traced_rows(
    equations: Equations, logs: Sequence[Tensor], states: Tensor, free: Tensor, steps: Steps,
    end: float,
) -> Tensor:  # fmt: skip
    """(B, V) states with the free ones (B, V) decided layer by layer, until the end.

    ``logs`` are per class (B, K, E) messages of undecided variables, and of held ones in their
    states.
    """
    rows, sums = _numbers(equations, logs)
    values, open_ = states.numpy().copy(), free.numpy()
    every = bool(open_.all())
    sums[:, steps.receivers.variables] += steps.receivers.sums(rows[:, steps.initial])
    for step in steps.steps:
        if clock.now() > end:
            break
        best = sums[:, step.variables].argmax(-1)
        if not every:
            best = np.where(open_[:, step.variables], best, values[:, step.variables])
        values[:, step.variables] = best
        if len(step.receivers.variables):
            news = step.after.of(rows, values) - step.before.of(rows, values)
            sums[:, step.receivers.variables] += step.receivers.sums(news)
    return torch.from_numpy(values)


def climbed(
    equations: Equations, states: Tensor, steps: Steps, passes: Tensor, end: float
) -> Tensor:
    """Coordinate ascent: (B, V) states that no change of one variable improves, in (B,) passes."""
    generator = torch.Generator().manual_seed(0)
    rows, unary = _numbers(equations, None)
    chosen, result = np.arange(equations.batch), states.numpy().copy()
    current, most = result, unary.shape[-1]
    for number in range(int(passes.amax())):
        luck = torch.rand(
            most, states.shape[1], generator=generator, dtype=torch.float64, device="cpu"
        ).T.numpy()
        going = (passes[torch.from_numpy(chosen)] > number).numpy()
        if not going.all():
            result[chosen] = current
            chosen, current = chosen[going], current[going]
            rows, unary = (part[going] if len(part) > 1 else part for part in (rows, unary))
        for step in steps.steps:
            if clock.now() > end:
                break
            total = unary[:, step.variables]
            if len(total) < len(current):
                total = np.repeat(total, len(current), 0)
            if len(step.asked.variables):
                received = step.asked.sums(step.answers.of(rows, current))
                if len(step.asked.variables) == len(step.variables):
                    total = total + received
                else:
                    total[:, np.searchsorted(step.variables, step.asked.variables)] += received
            current[:, step.variables] = _any_best(total, luck[step.variables])
    result[chosen] = current
    return torch.from_numpy(result)


def _any_best(total: Numbers, luck: Numbers) -> Whole:
    """(B, n) argmax of (B, n, K), ties broken by the largest of ``luck`` (n, K)."""
    peak = total.max(-1, keepdims=True)
    least = peak.imag if np.iscomplexobj(total) else peak
    least = least - LEVEL * np.maximum(np.abs(least), 1.0)
    if np.iscomplexobj(total):
        near = (total.real == peak.real) & (total.imag >= least)
    else:
        near = total >= least
    return np.where(near, luck, -1.0).argmax(-1)


def _numbers(equations: Equations, logs: Sequence[Tensor] | None) -> tuple[Numbers, Numbers]:
    """Rows (b, R, K) of all kernels given the messages, and unary values (b, V, K).

    States that a variable does not have are -inf.
    """
    edges, most = equations.edges, max(c.size for c in equations.edges.classes)
    made = list[Tensor]()
    for number, kernel in enumerate(equations.kernels):
        assert isinstance(kernel, TableKernel)
        made += _rows(kernel, None if logs is None else equations.at(number, logs), most)
    items = max(len(part) for part in made)
    rows = torch.cat([part.expand(items, -1, -1) for part in made], 1)
    items = max(len(unary) for unary in equations.unary) if logs is None else equations.batch
    unary = rows.new_zeros(items, len(edges.home), most)
    absent = torch.ones(len(edges.home), most, dtype=torch.bool, device="cpu")
    for c, values in zip(edges.classes, equations.unary, strict=True):
        unary[:, c.variables, : c.size] = values.movedim(1, 2).double()
        absent[c.variables, : c.size] = False
    hard = any(bool((part == -math.inf).any()) for part in (rows, unary))
    numbers = [_complex(part) if hard else part.numpy() for part in (rows, unary)]
    if len(edges.classes) > 1:
        numbers[1][:, absent.numpy()] = -math.inf
    return numbers[0], numbers[1]


def _complex(logs: Tensor) -> Numbers:
    dead = logs == -math.inf
    result = np.empty(logs.shape, np.complex128)
    result.real = -dead.numpy().astype(np.float64)
    result.imag = logs.masked_fill(dead, 0.0).numpy()
    return result


def _rows(kernel: TableKernel, incoming: Sequence[Tensor] | None, most: int) -> list[Tensor]:
    """(b, rows, K) float64 in the order of `parts`; zeros for rows that need messages not given."""
    table, ports, result = kernel.scaled.double(), kernel.ports, list[Tensor]()
    table = table.expand(*table.shape[:-1], kernel.count)
    slots = range(len(ports))
    messages = list[Tensor]()
    for slot, part in zip(slots, incoming or (), strict=False):
        shape = [1] * len(ports)
        shape[slot] = ports[slot].size
        messages.append(part.double().reshape(len(part), *shape, kernel.count))
    for receiver, decided in parts(ports):
        rest = [slot for slot in slots if slot != receiver and slot not in decided]
        total = table
        if rest and not messages:
            total = table.new_zeros(1).expand(1, *table.shape[1:])
        for slot in rest if messages else ():
            total = total + messages[slot]
        if rest:
            total = total.amax([1 + slot for slot in rest], keepdim=True)
        order = (0, len(ports) + 1, *(1 + s for s in decided), *(1 + s for s in rest), 1 + receiver)
        part = total.permute(order).reshape(len(total), -1, ports[receiver].size)
        result.append(torch.nn.functional.pad(part, (0, most - part.shape[-1])))
    return result
