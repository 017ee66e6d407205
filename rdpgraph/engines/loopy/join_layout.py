"""A join graph in message-passing form: separators are its variables, clusters its factors."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rdpgraph.engines.loopy.build import reach
from rdpgraph.engines.loopy.clusters import ClusterKernel
from rdpgraph.engines.loopy.edges import Edges, edges_of
from rdpgraph.engines.loopy.equations import Equations
from rdpgraph.engines.loopy.schedules import Schedule, Sets
from rdpgraph.engines.reduction.network import Network
from rdpgraph.plan.joingraph import ClusterGraph


@dataclass(frozen=True, eq=False)
class UpAndDown(Schedule):
    """Every cluster once it has heard all its children, then once it has heard all its parents.

    Attributes:
        sets: the messages of the clusters of one level, level by level.
    """

    sets: tuple[Tensor, ...]
    covers_all = True

    def sweep(self, edges: Edges, residuals: Callable[[], Tensor], number: int) -> Sets:
        """There and back."""
        yield from self.sets


@dataclass(frozen=True, eq=False)
class JoinLayout:
    """Where the clusters of a join graph are.

    Attributes:
        equations: of its messages.
        kernels: its clusters, alike ones together.
        members: per kernel the numbers of its clusters.
        scopes: per tensor its variables.
        schedule: up and down.
    """

    equations: Equations
    kernels: tuple[ClusterKernel, ...]
    members: tuple[tuple[int, ...], ...]
    scopes: tuple[tuple[int, ...], ...]
    schedule: UpAndDown


def laid_out(network: Network, graph: ClusterGraph) -> JoinLayout:
    """The clusters of a reduced network; tensor t is factor t of the groups, in their order."""
    ends: list[list[tuple[tuple[int, ...], int]]] = [[] for _ in graph.scopes]
    for number, link in enumerate(graph.links):
        for end in (link.child, link.parent):
            scope = graph.scopes[end]
            ends[end].append((tuple(scope.index(v) for v in link.separator), number))
    alike: dict[object, list[int]] = {}
    for cluster, scope in enumerate(graph.scopes):
        ends[cluster].sort()
        sizes = tuple(graph.sizes[v] for v in scope)
        alike.setdefault((sizes, tuple(dims for dims, _ in ends[cluster])), []).append(cluster)
    level = _levels(graph)
    for own in alike.values():  # what is asked for at once stands together
        own.sort(key=lambda cluster: level[cluster])
    tables = list(_tables(network, graph))
    kernels = tuple(
        ClusterKernel(
            tuple(graph.sizes[v] for v in graph.scopes[own[0]]),
            tuple(dims for dims, _ in ends[own[0]]),
            tuple(
                torch.tensor(links, device="cpu")
                for links in zip(*_numbers(ends, own), strict=True)
            ),
            tuple(tables[cluster] for cluster in own),
        )
        for own in alike.values()
    )
    sizes = [math.prod(graph.sizes[v] for v in link.separator) for link in graph.links]
    edges = edges_of(
        [kernel.ports for kernel in kernels],
        [kernel.count for kernel in kernels],
        sizes,
        torch.arange(len(sizes), device="cpu"),
        len(sizes),
    )
    members = tuple(tuple(own) for own in alike.values())
    schedule = UpAndDown(_sets(graph, edges, members, ends, level))
    edges = edges.to(network.constant.device)
    like = network.constant
    equations = Equations(
        edges=edges,
        kernels=kernels,
        unary=tuple(
            like.new_zeros(1, c.size, len(c.variables), dtype=torch.float64) for c in edges.classes
        ),
        weights=None,
        factor_weights=None,
        temperature=1.0,
        batch=network.batch,
        vanishing=True,
        lowest=-reach(network.groups, torch.float64),
        in_values=True,
    )
    scopes = tuple(tuple(own) for group in network.groups for own in group.scopes.tolist())
    return JoinLayout(equations, kernels, members, scopes, schedule)


def _numbers(
    ends: list[list[tuple[tuple[int, ...], int]]], clusters: list[int]
) -> list[tuple[int, ...]]:
    """Per cluster the links of its ports."""
    return [tuple(number for _, number in ends[cluster]) for cluster in clusters]


def _levels(graph: ClusterGraph) -> list[int]:
    """Per cluster the length of the longest way up to it."""
    level = [0] * len(graph.scopes)
    for link in sorted(graph.links, key=lambda link: link.child):
        level[link.parent] = max(level[link.parent], level[link.child] + 1)
    return level


def _sets(
    graph: ClusterGraph,
    edges: Edges,
    members: Sequence[Sequence[int]],
    ends: list[list[tuple[tuple[int, ...], int]]],
    level: list[int],
) -> tuple[Tensor, ...]:
    """The messages to parents, the lowest clusters first, then those to children in reverse."""
    up: dict[int, list[int]] = {}
    down: dict[int, list[int]] = {}
    for kernel, own in enumerate(members):
        firsts = [edges.first_edge(edges.segments[n]) for n in edges.by_kernel[kernel]]
        for row, cluster in enumerate(own):
            for first, (_, number) in zip(firsts, ends[cluster], strict=True):
                way = up if graph.links[number].child == cluster else down
                way.setdefault(level[cluster], []).append(first + row)
    sets = [up[number] for number in sorted(up)]
    sets += [down[number] for number in sorted(down, reverse=True)]
    return tuple(torch.tensor(own, device="cpu") for own in sets)


def _tables(network: Network, graph: ClusterGraph) -> Iterator[tuple[Tensor, ...]]:
    """Of each cluster the log-tables of its factors, as views over its variables."""
    places = [
        (number, row)
        for number, group in enumerate(network.groups)
        for row in range(len(group.scopes))
    ]
    tables = [group.each() for group in network.groups]
    scopes = [group.scopes.tolist() for group in network.groups]
    for scope, members in zip(graph.scopes, graph.tensors, strict=True):
        aligned: list[Tensor] = []
        for tensor in members:
            group, row = places[tensor]
            own = tables[group][:, row if tables[group].shape[1] > 1 else 0]
            aligned.append(_aligned(own, scopes[group][row], scope))
        yield tuple(aligned)


def _aligned(values: Tensor, own: Sequence[int], scope: Sequence[int]) -> Tensor:
    """(b, *sizes of own) as a view that broadcasts over the dims of an ascending scope."""
    ranks = sorted(range(len(own)), key=lambda i: own[i])
    moved = values.permute(0, *(rank + 1 for rank in ranks))
    held = set(own)
    sizes = iter(moved.shape[1:])
    return moved.reshape(len(values), *(next(sizes) if v in held else 1 for v in scope))
