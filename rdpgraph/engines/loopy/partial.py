"""Updates of some messages only: what to compute, and which variables they touch."""

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from rdpgraph.engines.loopy.arithmetic import rescaled, take
from rdpgraph.engines.loopy.edges import Bucket, Edges
from rdpgraph.engines.loopy.equations import Equations, Messages, Sums, sums_of


@dataclass(frozen=True, eq=False)
class SegmentEdges:
    """Some edges of one segment.

    Attributes:
        segment: its number.
        places: (n,) numbers within the class.
        rows: (n,) the factors of the kernel.
    """

    segment: int
    places: Tensor
    rows: Tensor


@dataclass(frozen=True, eq=False)
class EdgeSubset:
    """Some edges, by segment, and per class the variables at them by degree."""

    parts: tuple[SegmentEdges, ...]
    touched: tuple[tuple[Bucket, ...], ...]
    locals: tuple[Tensor, ...]


def edge_subset(edges: Edges, chosen: Tensor) -> EdgeSubset:
    """The parts of a set of edge numbers."""
    chosen = chosen.sort().values
    starts = [edges.first_edge(segment) for segment in edges.segments]
    bounds = torch.searchsorted(chosen, torch.tensor([*starts, edges.count])).tolist()
    parts: list[SegmentEdges] = []
    for number, segment in enumerate(edges.segments):
        low, high = bounds[number], bounds[number + 1]
        if low == high:
            continue
        own = chosen[low:high] - starts[number]
        port = edges.ports[segment.kernel][segment.port]
        rows = own if port.rows is None else port.rows[own]
        parts.append(SegmentEdges(number, own + segment.start, rows))
    touched: list[tuple[Bucket, ...]] = []
    numbers: list[Tensor] = []
    for place, c in enumerate(edges.classes):
        at = torch.zeros(len(c.variables), dtype=torch.bool)
        for part in parts:
            if edges.segments[part.segment].size_class == place:
                at[c.variable[part.places]] = True
        variables = at.nonzero().flatten()
        buckets: list[Bucket] = []
        for bucket in c.buckets:
            here = variables[(variables >= bucket.start) & (variables < bucket.stop)] - bucket.start
            buckets.append(Bucket(bucket.start, bucket.edges[:, here]))
        touched.append(tuple(buckets))
        numbers.append(variables)
    return EdgeSubset(tuple(parts), tuple(touched), tuple(numbers))


class EdgeSubsets:
    """The selections of sets of edges that come again: in later sweeps, or in other batch items."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Tensor | None, EdgeSubset]] = {}
        self._held = 0

    def of(self, edges: Edges, chosen: Tensor | None) -> EdgeSubset:
        """The subset of a set of edge numbers, or of all."""
        if id(chosen) in self._known:
            return self._known[id(chosen)][1]
        everything = torch.arange(edges.count) if chosen is None else chosen
        subset = edge_subset(edges, everything)
        self._known[id(chosen)] = chosen, subset
        self._held += len(everything)
        while self._held > 4 * edges.count:  # sets that never recur are not all kept
            first = self._known.pop(next(iter(self._known)))[0]
            self._held -= edges.count if first is None else len(first)
        return subset


def affected(edges: Edges, selected: EdgeSubset) -> Tensor:
    """The edges whose message would change when the touched variables' beliefs do."""
    touched = torch.zeros(len(edges.home), dtype=torch.bool)
    for c, numbers in zip(edges.classes, selected.locals, strict=True):
        touched[c.variables[numbers]] = True
    changing: list[Tensor] = []
    for kernel, ports in enumerate(edges.ports):
        counts = torch.zeros(edges.factors[kernel], dtype=torch.long)
        hits: list[Tensor] = []
        for port in ports:
            hit = touched[port.variables].long()
            hits.append(hit)
            if port.rows is None:
                counts += hit
            else:
                counts.index_add_(0, port.rows, hit)
        for number, (port, hit) in enumerate(zip(ports, hits, strict=True)):
            others = (counts if port.rows is None else counts[port.rows]) - hit
            segment = edges.segments[edges.by_kernel[kernel][number]]
            changing.append((others > 0).nonzero().flatten() + edges.first_edge(segment))
    return torch.cat(changing)


def candidates(
    equations: Equations, messages: Messages, sums: list[Sums], chosen: EdgeSubset
) -> list[Tensor]:
    """Per part (B, K, n): the messages as they would be now."""
    edges = equations.edges
    new: list[Tensor] = []
    answered: dict[int, list[Tensor | None]] = {}  # by kernels that answer for all factors at once
    for part in chosen.parts:
        segment = edges.segments[part.segment]
        ports = edges.ports[segment.kernel]
        whole = any(port.rows is not None for port in ports)
        if segment.kernel in answered:
            answer = answered[segment.kernel][segment.port]
            assert answer is not None
            new.append(equations.message(take(answer, part.places - segment.start)))
            continue
        incoming: list[Tensor] = []
        for number in edges.by_kernel[segment.kernel]:
            other = edges.segments[number]
            c = edges.classes[other.size_class]
            places = torch.arange(other.start, other.stop) if whole else other.start + part.rows
            message = take(messages[other.size_class], places)
            cavity = sums[other.size_class].less(message, c.variable[places])
            incoming.append(rescaled(cavity, vanishing=equations.vanishing)[0])
        kernel = equations.kernels[segment.kernel]
        if whole:
            answered[segment.kernel] = kernel.messages(incoming)
            answer = answered[segment.kernel][segment.port]
            assert answer is not None
            answer = take(answer, part.places - segment.start)
        else:
            answer = kernel.messages(incoming, rows=part.rows, wanted=segment.port)[segment.port]
            assert answer is not None
        new.append(equations.message(answer))
    return new


def written(
    equations: Equations, messages: Messages, chosen: EdgeSubset, new: list[Tensor]
) -> Messages:
    """Messages with some of them replaced; in place unless gradients are recorded."""
    result = list(messages)
    for part, values in zip(chosen.parts, new, strict=True):
        number = equations.edges.segments[part.segment].size_class
        result[number] = _put(result[number], part.places, values)
    return tuple(result)


def refreshed(
    equations: Equations, messages: Messages, sums: list[Sums], chosen: EdgeSubset
) -> list[Sums]:
    """The sums at the touched variables recomputed; in place unless gradients are recorded."""
    result = list(sums)
    for number, c in enumerate(equations.edges.classes):
        numbers = chosen.locals[number]
        if not len(numbers):
            continue
        edges = torch.cat([bucket.edges.reshape(-1) for bucket in chosen.touched[number]])
        values = messages[number]
        weight = None if equations.weights is None else equations.weights[number]
        if c.padded:
            values = torch.nn.functional.pad(values, (0, 1))
            weight = None if weight is None else torch.nn.functional.pad(weight, (0, 1))
        here = take(values, edges)
        here = here if weight is None else here * weight[edges]
        arrive = partial(_arriving, chosen.touched[number])
        unary = take(equations.unary[number], numbers)
        careful = equations.vanishing
        new = sums_of(unary, arrive, here) if careful else Sums(unary + arrive(here), None)
        old = result[number]
        zeros = old.zeros
        if zeros is not None and new.zeros is not None:
            zeros = _put(zeros, numbers, new.zeros)
        result[number] = Sums(_put(old.total, numbers, new.total), zeros)
    return result


def _arriving(buckets: tuple[Bucket, ...], values: Tensor) -> Tensor:
    """(B, K, all edges of some buckets) summed at their variables: (B, K, n)."""
    shapes = [bucket.edges.shape for bucket in buckets]
    parts = values.split([degree * count for degree, count in shapes], 2)
    pairs = zip(parts, shapes, strict=True)
    return torch.cat([p.unflatten(2, shape).sum(2) for p, shape in pairs if shape[1]], 2)


def _put(values: Tensor, places: Tensor, new: Tensor) -> Tensor:
    if new.requires_grad or values.requires_grad:
        return values.index_copy(2, places, new)
    return values.index_copy_(2, places, new)
