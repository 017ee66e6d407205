"""Layers of variables that share no factor; layers are decided one after the other."""

import hashlib
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from rdpgraph._core import tuning
from rdpgraph.engines.loopy.edges import Edges
from rdpgraph.plan.plan import Recent

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Arrivals:
    """The messages of one kernel to the variables of a layer."""

    kernel: int  # number of the kernel
    rows: Tensor  # (f,) its factors that send
    wanted: int | None  # the only port asked for; None: all
    # per port the class and the edges (f or fewer,) of incoming messages
    incoming: tuple[tuple[int, Tensor], ...]
    # per answering port its number, the class, which of the sending factors answer, their edges,
    # and the place in the layer of the variable that each leads to
    ports: tuple[tuple[int, int, Tensor | None, Tensor, Tensor], ...]


@dataclass(frozen=True, eq=False)
class Layer:
    """Variables that share no factor: their numbers in each class, and the messages to them."""

    variables: tuple[Tensor, ...]
    arrivals: tuple[Arrivals, ...]


@dataclass(frozen=True, eq=False)
class Order:
    """A partition of the variables into layers, and the order of the layers."""

    numbers: Tensor  # (V,) layer of each variable
    layers: tuple[Layer, ...]  # in order


def orders(edges: Edges) -> tuple[Order, Order] | None:
    """Return an outward order from a variable of every component, and an order of few layers.

    Returns None if factors are too wide.
    """
    return _cached(edges, _orders)


def peeled(edges: Edges) -> Order | None:
    """Return an order in which variables with few factors come last, since they can satisfy these.

    The variable with the fewest factors left is removed together with them, again and again, as
    erasure codes are decoded and sparse graphs are coloured. The order is the reverse of the
    removals. Returns None if factors are too wide.
    """
    return _cached(edges, _peeled)


_known: Recent[Any] = Recent(32)
"""Orders by the function that makes them and what they depend on."""


def _digest(edges: Edges) -> bytes:
    parts = [*edges.factors, edges.variable.device, *(c.size for c in edges.classes)]
    for ports in edges.ports:
        parts += [[(p.slot, p.size, len(p.variables), p.rows is None) for p in ports]]
    digest = hashlib.sha256(repr(parts).encode())
    digest.update(edges.home.numpy().tobytes())  # variables without factors, too
    for ports in edges.ports:
        for port in ports:
            for part in (port.variables, port.rows):
                if part is not None:
                    digest.update(part.cpu().contiguous().numpy().tobytes())
    return digest.digest()


def _cached(edges: Edges, make: Callable[[Edges], T]) -> T:
    def shared(source: Edges) -> T:
        key = make, _digest(source)
        known = _known.get(key)
        return _known.put(key, make(source)) if known is None else known

    return edges.remembered(make, make if edges.count > tuning.CACHED_EDGES else shared)


def _peeled(edges: Edges) -> Order | None:
    scopes = _scopes(edges)
    if scopes is None:
        return None
    # Variables by the number of their factors that are left, those of the fewest first. An entry of
    # a bucket may be stale: it is skipped where the variable has fewer by now.
    factors = _factors(scopes, len(edges.home))
    left = [len(numbers) for numbers in factors]
    buckets = [deque[int]() for _ in range(max(left, default=0) + 1)]
    for variable, degree in enumerate(left):
        buckets[degree].append(variable)
    gone, taken, order, least = [False] * len(scopes), [False] * len(factors), list[int](), 0
    while len(order) < len(factors):
        while not buckets[least]:
            least += 1
        variable = buckets[least].popleft()
        if taken[variable] or left[variable] != least:
            continue
        taken[variable] = True
        order.append(variable)
        # Taking a variable removes its factors, and so lowers the count of their variables.
        for number in factors[variable]:
            if gone[number]:
                continue
            gone[number] = True
            for other in scopes[number]:
                left[other] -= 1
                buckets[left[other]].append(other)
                least = min(least, left[other])
    # Backwards, a variable is one layer behind the last that shares a factor with it.
    layers, last = [0] * len(factors), [-1] * len(scopes)
    for variable in reversed(order):
        layer = 1 + max((last[number] for number in factors[variable]), default=-1)
        layers[variable] = layer
        for number in factors[variable]:
            last[number] = layer
    return _order(edges, layers)


def _factors(scopes: list[tuple[int, ...]], count: int) -> list[list[int]]:
    """Return the factors of each variable."""
    factors: list[list[int]] = [[] for _ in range(count)]
    for number, scope in enumerate(scopes):
        for variable in scope:
            factors[variable].append(number)
    return factors


def _orders(edges: Edges) -> tuple[Order, Order] | None:
    scopes = _scopes(edges)
    if scopes is None:
        return None
    factors = _factors(scopes, len(edges.home))
    queue, distance = _breadth_first(scopes, factors)
    flat = [0] * len(factors)
    return (
        _order(edges, _coloured(scopes, factors, queue, distance)),
        _order(edges, _coloured(scopes, factors, queue, flat)),
    )


def _scopes(edges: Edges) -> list[tuple[int, ...]] | None:
    """Return the variables of each factor; None if factors are too wide."""
    wide = max((scopes.shape[1] for scopes in edges.scopes), default=0)
    return None if wide > tuning.LISTED_ARITY else edges.listed_scopes()


def _breadth_first(
    scopes: list[tuple[int, ...]], factors: list[list[int]]
) -> tuple[list[int], list[int]]:
    """Return the variables in breadth-first order, and the distance of each from its root."""
    distance, met, queue = [-1] * len(factors), [False] * len(scopes), list[int]()
    start = 0
    for root in range(len(factors)):
        if distance[root] >= 0:
            continue
        distance[root] = 0
        queue.append(root)
        while start < len(queue):
            variable = queue[start]
            start += 1
            further = distance[variable] + 1
            for number in factors[variable]:
                if not met[number]:
                    met[number] = True
                    for other in scopes[number]:
                        if distance[other] < 0:
                            distance[other] = further
                            queue.append(other)
    return queue, distance


def _coloured(
    scopes: list[tuple[int, ...]], factors: list[list[int]], queue: list[int], levels: list[int]
) -> list[int]:
    """Return the layer of every variable: by its level, and within a level by its colour."""
    colour, taken, level = [0] * len(factors), [0] * len(scopes), [-1] * len(scopes)
    for variable in sorted(queue, key=levels.__getitem__):
        here, used = levels[variable], 0
        for number in factors[variable]:
            if level[number] == here:
                used |= taken[number]
        free = ~used & (used + 1)
        colour[variable] = free.bit_length()
        for number in factors[variable]:
            taken[number] = (taken[number] if level[number] == here else 0) | free
            level[number] = here
    keys = list(zip(levels, colour, strict=True))
    ranks = {key: rank for rank, key in enumerate(sorted(set(keys)))}
    return [ranks[key] for key in keys]


def _order(edges: Edges, layers: list[int]) -> Order:
    numbers = torch.tensor(layers, dtype=torch.long, device="cpu")
    count = max(layers, default=-1) + 1
    members: list[list[Tensor]] = [[] for _ in range(count)]
    place = torch.zeros(len(layers), dtype=torch.long, device="cpu")
    for c in edges.classes:
        variables = c.variables.cpu()
        of_class = numbers[variables]
        order = of_class.argsort(stable=True)
        sizes = of_class.bincount(minlength=count)
        begins = sizes.cumsum(0) - sizes
        place[variables[order]] = torch.arange(len(order), device="cpu") - begins[of_class[order]]
        for of_layer, part in zip(members, order.split(sizes.tolist()), strict=True):
            of_layer.append(part.to(c.variable.device))
    if edges.classes:
        place = place.to(edges.classes[0].variable.device)
    arrivals: list[list[Arrivals]] = [[] for _ in range(count)]
    for kernel, ports in enumerate(edges.ports):
        make = _of_high_order if any(port.rows is not None for port in ports) else _of_tables
        for layer, of_layer in make(edges, kernel, numbers, place):
            arrivals[layer].append(of_layer)
    pairs = zip(members, arrivals, strict=True)
    built = tuple(Layer(tuple(m), tuple(a)) for m, a in pairs)
    return Order(numbers, built)


def _of_tables(
    edges: Edges, kernel: int, numbers: Tensor, place: Tensor
) -> Iterable[tuple[int, Arrivals]]:
    """Return arrivals slot by slot; a table is read once for each of its variables."""
    segments = [edges.segments[s] for s in edges.by_kernel[kernel]]
    for wanted, segment in enumerate(segments):
        variables = edges.ports[kernel][wanted].variables
        layers = numbers[variables]
        order = layers.argsort(stable=True)
        sizes = layers.bincount().tolist()
        for layer, rows in enumerate(order.split(sizes)):
            if len(rows):
                target, rows = place[variables[rows]], rows.to(place.device)
                incoming = tuple((s.size_class, s.start + rows) for s in segments)
                port = (wanted, segment.size_class, None, segment.start + rows, target)
                yield layer, Arrivals(kernel, rows, wanted, incoming, (port,))


def _of_high_order(
    edges: Edges, kernel: int, numbers: Tensor, place: Tensor
) -> Iterable[tuple[int, Arrivals]]:
    """Return the arrivals of all slots together, from the factors at each layer."""
    ports, segments = edges.ports[kernel], [edges.segments[s] for s in edges.by_kernel[kernel]]
    count = edges.factors[kernel]
    # NumPy, because there are many short arrays: one for each port and layer.
    factors = [np.arange(count) if p.rows is None else p.rows.numpy() for p in ports]
    layers = [numbers[port.variables].numpy() for port in ports]
    every, which = np.concatenate(layers), np.concatenate(factors)
    order = every.argsort(kind="stable")
    found, starts = np.unique(every[order], return_index=True)
    parts = np.split(which[order], starts[1:])
    device, sends = place.device, np.zeros(count, bool)
    for layer, sending in zip(found.tolist(), parts, strict=True):
        sends[sending] = True
        incoming: list[tuple[int, Tensor]] = []
        answered: list[tuple[int, int, Tensor | None, Tensor, Tensor]] = []
        for number, (port, segment) in enumerate(zip(ports, segments, strict=True)):
            asked = sends[factors[number]].nonzero()[0]
            edge = torch.from_numpy(segment.start + asked).to(device)
            incoming.append((segment.size_class, edge))
            here = torch.from_numpy((layers[number][asked] == layer).nonzero()[0])
            if len(here):
                target = place[port.variables[torch.from_numpy(asked)[here]]]
                here = here.to(device)
                answered.append((number, segment.size_class, here, edge[here], target))
        rows = torch.from_numpy(sends.nonzero()[0])
        yield layer, Arrivals(kernel, rows, None, tuple(incoming), tuple(answered))
        sends[sending] = False
