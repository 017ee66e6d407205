"""The traceback where all factors join two variables with equally many states.

What a decided variable says to an undecided one is a row of a table, and changes nothing else: the
beliefs are summed once, and each layer adds to those of its neighbours by a few calls of NumPy.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rdpgraph.engines.loopy.edges import Edges
from rdpgraph.engines.loopy.equations import Equations, arriving
from rdpgraph.engines.loopy.kernels import TableKernel
from rdpgraph.engines.loopy.reading import Hearers, Whole, members_of
from rdpgraph.plan import clock

_Reals = NDArray[np.float64]
_MOST = 1 << 22
"""Entries of tables that are worth a copy."""
_LONG, _THIN = 8, 16
"""Layers that are worth joining, and how many variables they may hold on average: each is decided
for every state of the one before, which takes little beside the calls for a layer."""


@dataclass(frozen=True, eq=False)
class Links:
    """Who speaks to whom: one link for each factor and direction, those to later layers first.

    Attributes:
        kernel: (L,) of the factor.
        factor: (L,) its number in the kernel.
        slot: (L,) of the speaker.
        speaker: (L,) the local number of the variable that is decided.
        hearer: (L,) that of the other variable of the factor.
        edge: (L,) the edge at the hearer.
        steps: per layer its variables, and its links to later layers.
    """

    kernel: Whole
    factor: Whole
    slot: Whole
    speaker: Whole
    hearer: Whole
    edge: Whole
    steps: "tuple[Step, ...]"


@dataclass(frozen=True, eq=False)
class Step:
    """A layer.

    Attributes:
        variables: local numbers.
        links: those from the layer to later ones, by hearer.
        starts: where those of each hearer begin.
        hearers: each once.
        told: (n,) for many layers in one, where each variable has one earlier neighbour: the link
            from that. Such are not among the links of any step.
        above: for each round of pointer jumping the place among the variables of one further
            back, a variable's own where there is none.
    """

    variables: Whole
    links: slice | Whole
    starts: Whole
    hearers: Whole
    told: Whole | None = None
    above: tuple[Whole, ...] = ()


def links_of(edges: Edges, numbers: Tensor) -> Links | None:
    """The links of variables in layers (V,), or None where factors are of another kind."""
    pairs = all(len(own) == 2 and all(p.rows is None for p in own) for own in edges.ports)
    if len(edges.classes) != 1 or not pairs or not edges.count:
        return None
    c = edges.classes[0]
    variable, layers = c.variable.cpu().numpy(), numbers[c.variables.cpu()].numpy()
    columns: list[list[Whole]] = [[] for _ in range(6)]
    for kernel, (first, second) in enumerate(edges.by_kernel):
        ends = edges.segments[first].start, edges.segments[second].start
        factor = np.arange(edges.factors[kernel])
        for slot in (0, 1):
            here, there = ends[slot] + factor, ends[1 - slot] + factor
            parts = (
                np.full_like(factor, kernel), factor, np.full_like(factor, slot),
                variable[here], variable[there], there,
            )  # fmt: skip
            for column, part in zip(columns, parts, strict=True):
                column.append(part)
    joined = [np.concatenate(column) for column in columns]
    _, _, _, speaker, hearer, _ = joined
    onwards = layers[speaker] < layers[hearer]
    order = np.lexsort((hearer, layers[speaker], ~onwards))
    speaker, hearer = speaker[order], hearer[order]
    count, known = int(layers.max(initial=-1)) + 1, int(onwards.sum())
    cuts = np.searchsorted(layers[speaker[:known]], np.arange(count + 1)).tolist()
    own = members_of(layers)
    steps: list[Step] = []
    for variables, first, last in zip(own, cuts[:-1], cuts[1:], strict=True):
        heard = Hearers.of(hearer[first:last])
        steps.append(Step(variables, slice(first, last), heard.starts, heard.variables))
    steps = _joined(steps, speaker[:known], hearer[:known], len(layers)) if known else steps
    kernel, factor, slot, _, _, edge = (column[order] for column in joined)
    return Links(kernel, factor, slot, speaker, hearer, edge, tuple(steps))


def _joined(steps: list[Step], speaker: Whole, hearer: Whole, count: int) -> list[Step]:
    """Steps with many layers in a row made one, if they hold few variables, one heard by each."""
    heard = np.bincount(hearer, minlength=count)
    thin = [bool((heard[step.variables] == 1).all()) for step in steps]
    result, first = list[Step](), 0
    while first < len(steps):
        last = first + 1
        while last < len(steps) and thin[last]:
            last += 1
        joined = _in_one(steps[first], steps[first + 1 : last], speaker, hearer)
        result += steps[first:last] if joined is None else joined
        first = last
    return result


def _in_one(
    head: Step, steps: list[Step], speaker: Whole, hearer: Whole
) -> tuple[Step, Step] | None:
    """A layer, and those after it in one; None where that is not worth while."""
    variables = np.concatenate([step.variables for step in (head, *steps)])[len(head.variables) :]
    if len(steps) < _LONG or len(variables) > _THIN * len(steps):
        return None
    place = np.full(int(max(speaker.max(), hearer.max())) + 1, -1)
    place[variables] = np.arange(len(variables))
    last = steps[-1].links
    assert isinstance(head.links, slice)
    assert isinstance(last, slice)
    begin, middle, end = head.links.start, head.links.stop, last.stop
    links = np.arange(begin, end)
    inside = place[hearer[links]] >= 0
    if inside.sum() < len(variables):
        return None  # something was heard before
    told = np.empty(len(variables), np.int64)
    told[place[hearer[links[inside]]]] = links[inside]
    up = place[speaker[told]]
    up = np.where(up < 0, np.arange(len(up)), up)
    above = [up]
    while not np.array_equal(up, up[up]):
        up = up[up]
        above.append(up)
    left, right = links[~inside & (links < middle)], links[~inside & (links >= middle)]
    return _step(head.variables, left, hearer), replace(
        _step(variables, right, hearer), told=told, above=tuple(above)
    )


def _step(variables: Whole, links: Whole, hearer: Whole) -> Step:
    """Variables that speak on some links."""
    links = links[np.argsort(hearer[links], kind="stable")]
    heard = Hearers.of(hearer[links])
    return Step(variables, links, heard.starts, heard.variables)


def applies(equations: Equations) -> bool:
    """Whether the tables are few enough, in memory of the processor, and counted once."""
    tables = [kernel.scaled for kernel in equations.kernels if isinstance(kernel, TableKernel)]
    small = sum(table.numel() for table in tables) <= _MOST
    alike = small and len(tables) == len(equations.kernels) and equations.weights is None
    return alike and equations.unary_device.type == "cpu"


def traced_pairs(
    equations: Equations, logs: Sequence[Tensor], states: Tensor, free: Tensor, links: Links,
    end: float,
) -> Tensor:  # fmt: skip
    """(B, V) states with the free ones (B, V) decided layer by layer, until the end.

    Args:
        equations: the model.
        logs: per class (B, K, E) what undecided variables say.
        states: (B, V) those of variables that are not free.
        free: (B, V) which are.
        links: who speaks to whom, and when.
        end: of the time.
    """
    c, batch = equations.edges.classes[0], equations.batch
    answers = equations.outgoing(logs)[0].expand(batch, -1, -1)
    unary = equations.unary[0].expand(batch, -1, -1)
    tables, first = _rows(equations, links)
    hard = any(bool((part == -math.inf).any()) for part in (answers, unary, tables))
    rows = _parts(tables, hard=hard)
    heard, sums = (_parts(part.movedim(1, 2), hard=hard) for part in (answers, unary))
    more = [arriving(c, torch.from_numpy(part).movedim(1, 2)).movedim(1, 2) for part in heard]
    sums = np.ascontiguousarray(sums + torch.stack(more).numpy())
    order = c.variables
    values, open_ = states[:, order].numpy().copy(), free[:, order].numpy()
    items = np.arange(batch).reshape(-1, 1) if len(tables) > 1 else np.zeros((1, 1), np.int64)
    every = bool(open_.all())
    heard = heard[:, :, links.edge]

    def said(some: slice | Whole) -> _Reals:
        """What the speakers say in their states, less what was heard before."""
        at = first[some] + values[:, links.speaker[some]]
        return rows[:, items, at] - heard[:, :, some]

    def along(step: Step, told: Whole) -> Whole:
        """(B, n) the states of the variables of a step, each given the one before it."""
        at = first[told][:, None] + np.arange(c.size)
        part = rows[:, items[:, :, None], at] - heard[:, :, told, None]
        if not every:
            part = part * open_[:, links.speaker[told], None, None]
        chosen = _best(part + sums[:, :, step.variables, None])  # (B, n, K) given the state before
        if not every:
            own = step.variables
            chosen = np.where(open_[:, own, None], chosen, values[:, own, None])
        start = np.take_along_axis(chosen, values[:, links.speaker[told], None], 2)
        own = (step.above[0] == np.arange(len(told)))[:, None]
        chosen = np.where(own, start, chosen)
        for above in step.above:
            chosen = np.take_along_axis(chosen, chosen[:, above], 2)
        return chosen[:, :, 0]

    if not every:  # variables that are not free speak first
        spoken = said(slice(None)) * ~open_[:, links.speaker, None]
        np.add.at(np.moveaxis(sums, 2, 0), links.hearer, np.moveaxis(spoken, 2, 0))
    for step in links.steps:
        mine = open_[:, step.variables]
        if not every and not mine.any():
            continue
        if clock.now() > end:
            break
        own, told = step.variables, step.told
        best = _best(sums[:, :, own]) if told is None else along(step, told)
        if not every:
            best = np.where(mine, best, values[:, step.variables])
        values[:, step.variables] = best
        if len(step.starts):
            spoken = said(step.links)
            if not every:
                spoken = spoken * open_[:, links.speaker[step.links], None]
            sums[:, :, step.hearers] += np.add.reduceat(spoken, step.starts, axis=2)
    result = states.clone()
    result[:, order] = torch.from_numpy(values)
    return result


def _parts(logs: Tensor, *, hard: bool) -> _Reals:
    """(1 or 2, b, n, K) of log-values (b, n, K): those that are finite, and which are hard zeros.

    The latter are left out where there are none anywhere.
    """
    if not hard:
        return logs.double().contiguous().unsqueeze(0).numpy()
    zeros = logs == -math.inf
    return torch.stack([logs.double().masked_fill(zeros, 0.0), zeros.double()]).numpy()


def _best(sums: _Reals) -> Whole:
    """(b, ...) the best of the states with the fewest hard zeros, of sums (1 or 2, b, ..., K)."""
    if len(sums) == 1:
        return sums[0].argmax(-1)
    finite, zeros = sums
    return np.where(zeros > zeros.min(-1, keepdims=True), -math.inf, finite).argmax(-1)


def _rows(equations: Equations, links: Links) -> tuple[Tensor, Whole]:
    """(b, R, K) the rows of all tables, either way round, and (L,) the first of each link."""
    size = equations.edges.classes[0].size
    tables = [kernel.scaled for kernel in equations.kernels if isinstance(kernel, TableKernel)]
    items = max(len(table) for table in tables)
    parts, begins, shared = list[Tensor](), list[list[int]](), list[bool]()
    count = 0
    for table in tables:
        begins.append([])
        shared.append(table.shape[3] == 1)
        for around in (table, table.transpose(1, 2)):  # (b, speaker, hearer, F or 1)
            parts.append(around.permute(0, 3, 1, 2).flatten(1, 2).expand(items, -1, -1))
            begins[-1].append(count)
            count += parts[-1].shape[1]
    alone = np.array(shared)[links.kernel]
    first = np.array(begins)[links.kernel, links.slot] + np.where(alone, 0, links.factor) * size
    return torch.cat(parts, 1), first
