"""Update subsets of the messages."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from rdpgraph.engines.loopy.arithmetic import rescaled, take
from rdpgraph.engines.loopy.edges import Edges
from rdpgraph.engines.loopy.equations import Equations, Messages, MessageSums, sums_of


@dataclass(frozen=True, eq=False)
class SegmentEdges:
    """A subset of the edges of one segment."""

    segment: int  # its number
    places: Tensor  # (n,) their numbers within the class
    rows: Tensor  # (n,) their factors in the kernel


@dataclass(frozen=True, eq=False)
class KernelCall:
    """The factors of a kernel whose messages are computed in one call."""

    kernel: int  # its number
    # (n,) the factors; None: all, by a kernel that answers for all of them at once
    rows: Tensor | None
    parts: tuple[int, ...]  # numbers of the parts that the answer is for


@dataclass(frozen=True, eq=False)
class EdgeSubset:
    """A subset of the edges, by segment, and for each class the variables that they touch."""

    parts: tuple[SegmentEdges, ...]
    asked: tuple[KernelCall, ...]
    locals: tuple[Tensor, ...]  # (n,) numbers of the variables
    arriving: tuple[tuple[Tensor, Tensor], ...]  # (m,) all edges at them, and places among them


def edge_subset(edges: Edges, chosen: Tensor) -> EdgeSubset:
    """Return the subset of the given edge numbers."""
    # Edges are numbered segment by segment: sorted, they split into one part for each.
    starts = edges.remembered("starts", _starts)
    chosen = chosen.to(starts.device).sort().values
    numbers, counts = torch.unique_consecutive(
        torch.searchsorted(starts, chosen, right=True) - 1, return_counts=True
    )
    parts: list[SegmentEdges] = []
    pairs = zip(numbers.tolist(), torch.split(chosen, counts.tolist()), strict=True)
    for number, members in pairs:
        segment = edges.segments[number]
        port = edges.ports[segment.kernel][segment.port]
        members = members - edges.first_edge(segment)
        rows = members if port.rows is None else port.rows[members]
        parts.append(SegmentEdges(number, members + segment.start, rows))
    # For each class of sizes: the variables that the edges touch, and all edges that arrive there,
    # as beliefs are summed over these and not over the chosen ones alone.
    arriving: list[tuple[Tensor, Tensor]] = []
    variables: list[Tensor] = []
    by_class: dict[int, list[Tensor]] = {}
    for part in parts:
        by_class.setdefault(edges.segments[part.segment].size_class, []).append(part.places)
    for number, c in enumerate(edges.classes):
        if number not in by_class:
            arriving.append((chosen[:0], chosen[:0]))
            variables.append(chosen[:0])
            continue
        # `at` marks the variables; its running sum numbers them.
        at = torch.zeros(len(c.variables), dtype=torch.bool, device=chosen.device)
        at[c.variable[torch.cat(by_class[number])]] = True
        near = at[c.variable].nonzero().flatten()
        arriving.append((near, (at.cumsum(0) - 1)[c.variable[near]]))
        variables.append(at.nonzero().flatten())
    return EdgeSubset(tuple(parts), _asked(edges, parts), tuple(variables), tuple(arriving))


def _starts(edges: Edges) -> Tensor:
    """Return the number of every segment's first edge."""
    firsts = [edges.first_edge(segment) for segment in edges.segments]
    return torch.tensor(firsts, dtype=torch.long, device=edges.classes[0].variable.device)


def _asked(edges: Edges, parts: list[SegmentEdges]) -> tuple[KernelCall, ...]:
    asked: list[KernelCall] = []
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
        asked.append(KernelCall(kernel, rows, (number,)))
    return tuple(asked)


def subset_of(edges: Edges, chosen: Tensor | None) -> EdgeSubset:
    """Return the subset of the given edge numbers, or of all edges.

    It is kept as long as the schedule holds the numbers, because the same tensors recur in later
    sweeps and in other batch items.
    """
    if chosen is None:
        chosen = edges.remembered("all", lambda own: torch.arange(own.count, device="cpu"))
    known = edges.remembered("subsets", lambda _: WeakTensorKeyDictionary())
    subset = known.get(chosen)
    if subset is None:
        subset = known[chosen] = edge_subset(edges, chosen)
    return subset


def candidates(
    equations: Equations, chosen: EdgeSubset, incoming: Callable[[KernelCall], list[Tensor]]
) -> list[Tensor]:
    """Return for each part the (B, K, n) updated messages, from those that come in."""
    edges = equations.edges
    new: dict[int, Tensor] = {}
    for asked in chosen.asked:
        ports = [edges.segments[chosen.parts[number].segment].port for number in asked.parts]
        wanted = None if asked.rows is None else ports
        kernel = equations.kernels[asked.kernel]
        answers = kernel.messages(incoming(asked), rows=asked.rows, wanted=wanted)
        for number, port in zip(asked.parts, ports, strict=True):
            answer, part = answers[port], chosen.parts[number]
            assert answer is not None
            if asked.rows is None:
                answer = take(answer, part.places - edges.segments[part.segment].start)
            new[number] = equations.message(answer)
    return [new[number] for number in range(len(chosen.parts))]


def incoming(
    equations: Equations, messages: Messages, sums: list[MessageSums], asked: KernelCall
) -> list[Tensor]:
    """Return for each port the (B, K, n) messages from variables to factors, rescaled."""
    edges, arriving = equations.edges, list[Tensor]()
    for segment in (edges.segments[number] for number in edges.by_kernel[asked.kernel]):
        variable = edges.classes[segment.size_class].variable
        if asked.rows is None:
            places = torch.arange(segment.start, segment.stop, device=variable.device)
        else:
            places = segment.start + asked.rows
        message = take(messages[segment.size_class], places)
        cavity = sums[segment.size_class].less(message, variable[places])
        arriving.append(rescaled(cavity, vanishing=equations.vanishing)[0])
    return arriving


def written(
    equations: Equations, messages: Messages, chosen: EdgeSubset, new: list[Tensor]
) -> Messages:
    """Replace the messages of a subset, in place unless gradients are recorded."""
    result = list(messages)
    for part, values in zip(chosen.parts, new, strict=True):
        number = equations.edges.segments[part.segment].size_class
        result[number] = _put(result[number], part.places, values)
    return tuple(result)


def refreshed(
    equations: Equations, messages: Messages, sums: list[MessageSums], chosen: EdgeSubset
) -> list[MessageSums]:
    """Recompute sums at the variables touched, in place unless gradients are recorded."""
    result = list(sums)
    for number, numbers in enumerate(chosen.locals):
        if not len(numbers):
            continue
        edges, places = chosen.arriving[number]
        here, unary = take(messages[number], edges), take(equations.unary[number], numbers)
        if equations.weights is not None:
            here = here * equations.weights[number][edges]
        zeros = here.new_zeros(*here.shape[:2], len(numbers))
        arrive = partial(zeros.index_add, 2, places)
        careful = equations.vanishing
        new = sums_of(unary, arrive, here) if careful else MessageSums(unary + arrive(here), None)
        old = result[number]
        dead = old.zeros
        if dead is not None and new.zeros is not None:
            dead = _put(dead, numbers, new.zeros)
        result[number] = MessageSums(_put(old.total, numbers, new.total), dead)
    return result


def _put(values: Tensor, places: Tensor, new: Tensor) -> Tensor:
    if new.requires_grad or values.requires_grad:
        return values.index_copy(2, places, new)
    return values.index_copy_(2, places, new)
