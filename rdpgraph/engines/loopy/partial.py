"""Updates of some messages only, and flooding in binary models by log-odds."""

import math
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from rdpgraph.engines.loopy.arithmetic import rescaled, take
from rdpgraph.engines.loopy.edges import Bucket, Edges
from rdpgraph.engines.loopy.equations import Equations, Messages, Sums, sums_of
from rdpgraph.engines.loopy.kernels import TableKernel


class LogOdds:
    """The messages of a binary pairwise model as log-odds h = log m(1) / m(0), one per edge.

    A table (a b; c d) turns cavity log-odds h into log (c + d e^h) / (a + b e^h). This is
    `Equations.update` with half the numbers and a third of the operations. The edges at the first
    slots of all factors come first, then those at their second slots.
    """

    def __init__(self, equations: Equations, messages: Messages) -> None:
        c = equations.edges.classes[0]
        slots: list[list[Tensor]] = [[], []]
        parts: list[Tensor] = []
        items = max((len(kernel.group.log_tables) for kernel in equations.kernels
                     if isinstance(kernel, TableKernel)), default=1)  # fmt: skip
        for number, kernel in enumerate(equations.kernels):
            assert isinstance(kernel, TableKernel)
            for slot, segment in enumerate(equations.edges.by_kernel[number]):
                edges = equations.edges.segments[segment]
                slots[slot].append(torch.arange(edges.start, edges.stop, device="cpu"))
            parts.append(kernel.scaled.expand(items, -1, -1, kernel.count))
        order = torch.cat([*slots[0], *slots[1]]).to(c.variable.device)
        self._place = torch.empty_like(order)
        self._place[order] = torch.arange(len(order), device=order.device)
        tables = torch.cat(parts, 3)
        (a, b), (x, y) = tables[:, 0].unbind(1), tables[:, 1].unbind(1)
        # The numerator and denominator of both directions, as a line in the other end's odds.
        self._lines = [torch.cat(pair, 1) for pair in ((x, b), (y, y), (a, a), (b, x))]
        self._variable = c.variable[order].expand(equations.batch, -1)
        # One more place stands for a missing edge.
        places = torch.cat([self._place, self._place.new_tensor([len(self._place)])])
        self._buckets = [(*b.edges.shape, places[b.edges.reshape(-1)]) for b in c.buckets]
        self._padded = c.padded
        self._unary = equations.unary[0][:, 1] - equations.unary[0][:, 0]
        self._boundary = equations.boundary
        self.odds = (messages[0][:, 1] - messages[0][:, 0])[:, order]
        # Room for a sweep: allocated again, it would cost more than what is computed in it.
        self._room = tuple(torch.empty_like(self.odds) for _ in range(3))

    @staticmethod
    def applies(equations: Equations) -> bool:
        """Tell whether all is binary, pairwise, dense, and no number can leave its type's range."""
        boundary, alike = equations.boundary, LogOdds._alike(equations)
        if boundary is not None:  # one way for all parts
            alike = alike and equations.edges.count > 0
            alike = not bool(boundary.largest(torch.tensor(float(not alike), device="cpu")))
        return alike and _largest_odds(equations) < 0.9 * math.log(torch.finfo(equations.dtype).max)

    @staticmethod
    def _alike(equations: Equations) -> bool:
        """Tell whether all is binary, pairwise and dense."""
        if len(equations.edges.classes) != 1 or equations.edges.classes[0].size != 2:
            return False
        if equations.temperature != 1 or equations.weights is not None or equations.vanishing:
            return False
        return all(isinstance(k, TableKernel) and len(k.ports) == 2 for k in equations.kernels)

    def messages(self) -> Messages:
        """Back to log-messages whose maximum is 0."""
        odds = self.odds.index_select(1, self._place)
        return (torch.stack([(-odds).clamp(max=0), odds.clamp(max=0)], 1),)

    def step(self, keep: float) -> Tensor:
        """One sweep of all messages, an old one kept with weight ``keep``; (B,) the change.

        The change is that of `arithmetic.change`, except for a message that turns from one state to
        the other: there it is up to twice as large.
        """
        odds, (cavity, other, new) = self.odds, self._room
        belief = self._arriving(odds).add_(self._unary)
        if self._boundary is not None:
            belief = self._boundary.joined([belief.unsqueeze(1)])[0].squeeze(1)
        torch.gather(belief, 1, self._variable, out=cavity)
        ends = cavity.sub_(odds).exp_().reshape(len(odds), 2, -1)
        half = ends.shape[2]
        other[:, :half], other[:, half:] = ends[:, 1], ends[:, 0]
        x, y, a, b = self._lines
        torch.addcmul(a, b, other, out=cavity)
        torch.addcmul(x, y, other, out=new).div_(cavity).log_()
        size = torch.abs(new, out=cavity).clamp_(min=1.0)
        change = torch.sub(new, odds, out=other).div_(size)
        largest = torch.maximum(change.amax(1), -change.amin(1))
        if keep:
            new.lerp_(odds, keep)
        self.odds, self._room = new, (cavity, other, odds)
        return largest

    def _arriving(self, values: Tensor) -> Tensor:
        """(B, E) summed at the variables: (B, n)."""
        if self._padded:
            values = torch.nn.functional.pad(values, (0, 1))
        parts = [
            values.index_select(1, edges).reshape(len(values), degree, count).sum(1)
            for degree, count, edges in self._buckets
        ]
        return torch.cat(parts, 1)


def _largest_odds(equations: Equations) -> float:
    """A bound on the log-odds of any cavity: those of the unaries and of the tables, added up."""
    c = equations.edges.classes[0]
    reach = equations.unary[0].new_zeros(c.count)
    for number, kernel in enumerate(equations.kernels):
        assert isinstance(kernel, TableKernel)
        logs = kernel.scaled.detach().log()
        first, second = (equations.edges.segments[s] for s in equations.edges.by_kernel[number])
        reach[first.start : first.stop] = (logs[:, 1] - logs[:, 0]).abs().amax((0, 1))
        reach[second.start : second.stop] = (logs[:, :, 1] - logs[:, :, 0]).abs().amax((0, 1))
    unary = equations.unary[0].detach()
    total = (unary[:, 1] - unary[:, 0]).abs().amax(0).index_add(0, c.variable, reach)
    if equations.boundary is not None:
        total = equations.boundary.joined([total.reshape(1, 1, -1)])[0]
        total = equations.boundary.largest(total.amax())
    largest = float(total.amax())
    return math.inf if math.isnan(largest) else largest


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
class Asked:
    """Factors of a kernel that are asked for their messages at once.

    Attributes:
        kernel: its number.
        rows: (n,) the factors; None: all, by a kernel that answers for all of them at once.
        parts: numbers of the parts that the answer is for.
    """

    kernel: int
    rows: Tensor | None
    parts: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class EdgeSubset:
    """Some edges, by segment, and per class the variables at them by degree."""

    parts: tuple[SegmentEdges, ...]
    asked: tuple[Asked, ...]
    touched: tuple[tuple[Bucket, ...], ...]
    locals: tuple[Tensor, ...]


def edge_subset(edges: Edges, chosen: Tensor) -> EdgeSubset:
    """The parts of a set of edge numbers."""
    starts = edges.remembered("starts", _starts)
    chosen = chosen.to(starts.device).sort().values
    numbers, counts = torch.unique_consecutive(
        torch.searchsorted(starts, chosen, right=True) - 1, return_counts=True
    )
    parts: list[SegmentEdges] = []
    here = zip(numbers.tolist(), torch.split(chosen, counts.tolist()), strict=True)
    for number, own in here:
        segment = edges.segments[number]
        port = edges.ports[segment.kernel][segment.port]
        own = own - edges.first_edge(segment)
        rows = own if port.rows is None else port.rows[own]
        parts.append(SegmentEdges(number, own + segment.start, rows))
    touched: list[tuple[Bucket, ...]] = []
    variables: list[Tensor] = []
    by_class: dict[int, list[Tensor]] = {}
    for part in parts:
        by_class.setdefault(edges.segments[part.segment].size_class, []).append(part.places)
    for number, c in enumerate(edges.classes):
        if number not in by_class:
            touched.append(())
            variables.append(chosen[:0])
            continue
        at = torch.zeros(len(c.variables), dtype=torch.bool, device=chosen.device)
        at[c.variable[torch.cat(by_class[number])]] = True
        own = at.nonzero().flatten()
        touched.append(tuple(
            Bucket(b.start, b.edges[:, own[(own >= b.start) & (own < b.stop)] - b.start])
            for b in c.buckets
        ))  # fmt: skip
        variables.append(own)
    return EdgeSubset(tuple(parts), _asked(edges, parts), tuple(touched), tuple(variables))


def _starts(edges: Edges) -> Tensor:
    """The number of every segment's first edge."""
    firsts = [edges.first_edge(segment) for segment in edges.segments]
    return torch.tensor(firsts, dtype=torch.long, device=edges.classes[0].variable.device)


def _asked(edges: Edges, parts: list[SegmentEdges]) -> tuple[Asked, ...]:
    asked: list[Asked] = []
    last: dict[int, int] = {}
    for number, part in enumerate(parts):
        kernel = edges.segments[part.segment].kernel
        whole = any(port.rows is not None for port in edges.ports[kernel])
        rows = None if whole else part.rows
        if kernel in last:
            before = asked[last[kernel]]
            if rows is None or (before.rows is not None and torch.equal(rows, before.rows)):
                asked[last[kernel]] = replace(before, parts=(*before.parts, number))
                continue
        last[kernel] = len(asked)
        asked.append(Asked(kernel, rows, (number,)))
    return tuple(asked)


class EdgeSubsets:
    """The selections of sets of edges that come again: in later sweeps, or in other batch items."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Tensor | None, EdgeSubset]] = {}
        self._held = 0

    def of(self, edges: Edges, chosen: Tensor | None) -> EdgeSubset:
        """The subset of a set of edge numbers, or of all."""
        if id(chosen) in self._known:
            return self._known[id(chosen)][1]
        everything = torch.arange(edges.count, device="cpu") if chosen is None else chosen
        subset = edge_subset(edges, everything)
        self._known[id(chosen)] = chosen, subset
        self._held += len(everything)
        while self._held > 4 * edges.count:  # sets that never recur are not all kept
            first = self._known.pop(next(iter(self._known)))[0]
            self._held -= edges.count if first is None else len(first)
        return subset


def affected(edges: Edges, selected: EdgeSubset) -> Tensor:
    """The edges whose message would change when the touched variables' beliefs do."""
    touched = torch.zeros(len(edges.home), dtype=torch.bool, device="cpu")
    for c, numbers in zip(edges.classes, selected.locals, strict=True):
        touched[c.variables[numbers]] = True
    changing: list[Tensor] = []
    for kernel, ports in enumerate(edges.ports):
        counts = torch.zeros(edges.factors[kernel], dtype=torch.long, device="cpu")
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
    new: dict[int, Tensor] = {}
    for asked in chosen.asked:
        incoming = _incoming(equations, messages, sums, asked)
        ports = [edges.segments[chosen.parts[number].segment].port for number in asked.parts]
        wanted = None if asked.rows is None else ports
        kernel = equations.kernels[asked.kernel]
        answers = kernel.messages(incoming, rows=asked.rows, wanted=wanted)
        for number, port in zip(asked.parts, ports, strict=True):
            answer, part = answers[port], chosen.parts[number]
            assert answer is not None
            if asked.rows is None:
                answer = take(answer, part.places - edges.segments[part.segment].start)
            new[number] = equations.message(answer)
    return [new[number] for number in range(len(chosen.parts))]


def _incoming(
    equations: Equations, messages: Messages, sums: list[Sums], asked: Asked
) -> list[Tensor]:
    """Per port (B, K, n) what the factors hear, rescaled."""
    edges, incoming = equations.edges, list[Tensor]()
    for number in edges.by_kernel[asked.kernel]:
        segment = edges.segments[number]
        variable = edges.classes[segment.size_class].variable
        if asked.rows is None:
            places = torch.arange(segment.start, segment.stop, device=variable.device)
        else:
            places = segment.start + asked.rows
        message = take(messages[segment.size_class], places)
        cavity = sums[segment.size_class].less(message, variable[places])
        incoming.append(rescaled(cavity, vanishing=equations.vanishing)[0])
    return incoming


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
