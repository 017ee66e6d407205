"""Flat arrays of edges, by which messages are indexed.

An edge joins a factor to one of its variables; its message is a log-vector over the variable's
states. Edges of variables with equally many states K form a class, whose messages are one tensor
(B, K, E): states before edges, so that for small K every operation is a long vector operation.
Within a class the edges of one slot of one kernel are contiguous: they form a segment.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import permutations
from typing import TypeVar, cast

import torch
from torch import Tensor

from rdpgraph._core.cache import cached_property, ordinarily


class Boundary(ABC):
    """What the parts of a model in other processes add to the equations of this part.

    Every method but `solved` is a collective call: all parts make it, in the same order, also when
    gradients pass through `joined`. Therefore a part without factors must keep its sums in the
    autograd graph.
    """

    bounded: bool  # no message of any part can grow without bound
    records: bool  # a gradient would reach a potential of some part

    @abstractmethod
    def joined(self, values: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Return for each class (B, M, n) values summed over all parts; differentiable.

        The values that are given may be overwritten.
        """

    @abstractmethod
    def counted(self, number: int) -> Tensor:
        """Return (n,) 1 for each variable of a class that this part counts, 0 for others."""

    @abstractmethod
    def total(self, values: Tensor) -> Tensor:
        """Sum values over all parts; the values of every part get the gradient of the sum."""

    @abstractmethod
    def largest(self, values: Tensor) -> Tensor:
        """Return the maxima over all parts, without gradients."""

    @abstractmethod
    def solved(self, values: Tensor) -> Tensor:
        """Sum over the parts that have messages, which alone call this; without gradients."""


T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Port:
    """A slot of a kernel's factors whose variables take part in message passing."""

    slot: int  # its position in the scopes
    rows: Tensor | None  # (n,) factors of the kernel; None: all
    variables: Tensor  # (n,) active variable of each
    size: int  # number of states of these variables


@dataclass(frozen=True, eq=False)
class Segment:
    """The edges ``start`` to ``stop`` of a class, which belong to one port of a kernel."""

    kernel: int
    port: int
    size_class: int
    start: int
    stop: int


@dataclass(frozen=True, eq=False)
class SizeClass:
    """The variables with K states, and their edges."""

    size: int  # K
    variables: Tensor  # (n,) active numbers, ascending
    # the active variables of its segments' edges, one segment after the other
    parts: tuple[Tensor, ...]
    local: Tensor | None  # (V,) local numbers of active variables; None: these are the same
    first: int  # number of the first edge among all edges

    @cached_property
    def count(self) -> int:
        """The number of edges."""
        return sum(map(len, self.parts))

    @cached_property
    def variable(self) -> Tensor:
        """The (E,) local number of each edge's variable; made when it is first asked for."""
        ends = torch.cat([*self.parts, self.variables[:0]])
        return ends if self.local is None else self.local[ends]

    def each(self) -> Iterator[tuple[slice, Tensor]]:
        """Yield the places of each segment's edges, and the local numbers of their variables."""
        start = 0
        for part in self.parts:
            yield slice(start, start + len(part)), part if self.local is None else self.local[part]
            start += len(part)

    def to(self, device: torch.device) -> "SizeClass":
        """Return a copy whose indices are on a device."""
        parts = tuple(part.to(device) for part in self.parts)
        local = None if self.local is None else self.local.to(device)
        return replace(self, variables=self.variables.to(device), parts=parts, local=local)


@dataclass(frozen=True, eq=False)
class Edges:
    """The edges of a model."""

    classes: tuple[SizeClass, ...]  # by number of states, ascending
    segments: tuple[Segment, ...]  # in order of their edges
    by_kernel: tuple[tuple[int, ...], ...]  # per kernel the segments of its ports
    home: Tensor  # (V,) class of each active variable
    local: Tensor  # (V,) number of each active variable in its class
    ports: tuple[tuple[Port, ...], ...]  # per kernel
    factors: tuple[int, ...]  # number of factors, per kernel
    numbers: Tensor  # graph's number of each active variable, auxiliary ones left out
    num_variables: int  # of the graph
    _memory: dict[object, object] = field(default_factory=dict[object, object], repr=False)

    def to(self, device: torch.device) -> "Edges":
        """Return a copy whose indices for full sweeps are on a device."""
        if device.type == "cpu":
            return self
        classes = tuple(c.to(device) for c in self.classes)
        return replace(self, classes=classes, _memory={})

    def remembered(self, key: object, make: "Callable[[Edges], T]") -> "T":
        """Return what ``make`` gives for these edges; it is computed once for each key."""
        if key not in self._memory:
            self._memory[key] = ordinarily(make, self)
        return cast("T", self._memory[key])

    @cached_property
    def scopes(self) -> tuple[Tensor, ...]:
        """For each kernel the (F, slots) active variables of its factors; -1: no part is taken."""
        scopes: list[Tensor] = []
        for ports, count in zip(self.ports, self.factors, strict=True):
            slots = sorted({port.slot for port in ports})
            variables = torch.full((count, len(slots)), -1, device="cpu")
            for port in ports:
                rows = slice(None) if port.rows is None else port.rows
                variables[rows, slots.index(port.slot)] = port.variables
            scopes.append(variables)
        return tuple(scopes)

    def listed_scopes(self) -> list[tuple[int, ...]]:
        """The active variables of each factor, kernel by kernel."""
        return [tuple(v for v in row if v >= 0) for rows in self.scopes for row in rows.tolist()]

    @cached_property
    def pairs(self) -> tuple[Tensor, Tensor]:
        """The ordered pairs of active variables that share a factor, as two vectors."""
        empty = torch.zeros(0, dtype=torch.long, device="cpu")
        pairs = [(empty, empty)]
        for scopes in self.scopes:
            for one, other in permutations(scopes.unbind(1), 2):
                both = (one >= 0) & (other >= 0)
                pairs.append((one[both], other[both]))
        left, right = zip(*pairs, strict=True)
        return torch.cat(left), torch.cat(right)

    @property
    def count(self) -> int:
        """The number of edges, and so of messages from factors to variables."""
        return sum(c.count for c in self.classes)

    @cached_property
    def variable(self) -> Tensor:
        """The (E,) active variable of each edge; on the CPU."""
        if len(self.classes) == 1:  # the variables of a single class have the same numbers in it
            return self.classes[0].variable.cpu()
        parts = [part for c in self.classes for part in c.parts]
        return torch.cat([*parts, self.home[:0].to(parts[0].device if parts else "cpu")]).cpu()

    def first_edge(self, segment: Segment) -> int:
        """Return the number of a segment's first edge among all edges."""
        return self.classes[segment.size_class].first + segment.start


def edges_of(
    ports: Sequence[Sequence[Port]],
    counts: Sequence[int],
    sizes: Sequence[int] | Tensor,
    numbers: Tensor,
    num_variables: int,
) -> Edges:
    """Number the edges of all ports of all kernels, which have ``counts`` factors each.

    Active variables have ``sizes`` states, and ``numbers`` among the graph's ``num_variables``.
    """
    states = torch.as_tensor(sizes, dtype=torch.long, device="cpu")
    listed = [(k, p) for k, of_kernel in enumerate(ports) for p in range(len(of_kernel))]
    alone = len(states) > 0 and bool((states == states[0]).all())
    kinds = torch.unique(states[:1] if alone else states).tolist()
    # The variables of a single class have the same numbers in it.
    local = torch.arange(len(states), device="cpu")
    home = torch.zeros(1, dtype=torch.long, device="cpu").expand(len(states))
    home = home if alone else home.clone()
    classes: list[SizeClass] = []
    segments: list[Segment] = []
    by_kernel: list[list[int]] = [[0] * len(of_kernel) for of_kernel in ports]
    first = 0
    for number, size in enumerate(kinds):
        members = local if alone else (states == size).nonzero().flatten()
        parts: list[Tensor] = []
        start = 0
        for kernel, port in ((k, p) for k, p in listed if ports[k][p].size == size):
            part = ports[kernel][port].variables
            by_kernel[kernel][port] = len(segments)
            segments.append(Segment(kernel, port, number, start, start + len(part)))
            start += len(part)
            parts.append(part)
        if not alone:
            home[members] = number
            local[members] = torch.arange(len(members), device="cpu")
        classes.append(SizeClass(size, members, tuple(parts), None if alone else local, first))
        first += start
    return Edges(
        classes=tuple(classes),
        segments=tuple(segments),
        by_kernel=tuple(tuple(of_kernel) for of_kernel in by_kernel),
        home=home,
        local=local,
        ports=tuple(tuple(of_kernel) for of_kernel in ports),
        factors=tuple(counts),
        numbers=numbers,
        num_variables=num_variables,
    )
