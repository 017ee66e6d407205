"""Join graphs in the form of message passing: clusters are kernels, separators variables."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from rdpgraph._core import tuning
from rdpgraph._core.cache import cached_property
from rdpgraph._core.numbers import LOG_RANGE
from rdpgraph.engines.loopy.arithmetic import neighbours
from rdpgraph.engines.loopy.edges import Edges, Port, edges_of
from rdpgraph.engines.loopy.equations import Equations
from rdpgraph.engines.loopy.kernels import MessageKernel, Ports
from rdpgraph.engines.loopy.network_equations import reach
from rdpgraph.engines.loopy.schedules import Schedule, Sets
from rdpgraph.engines.reduction.network import Network
from rdpgraph.logspace.logmatrix import finite, safe_log
from rdpgraph.plan import clock
from rdpgraph.plan.joingraph import ClusterGraph


@dataclass(frozen=True, eq=False)
class ClusterKernel(MessageKernel):
    """Clusters of equal shape, in float64.

    They sum products of scaled values, or logs where these underflow.
    """

    sizes: tuple[int, ...]  # the number of states of each variable of the clusters
    separators: tuple[tuple[int, ...], ...]  # for each port the dims that its messages are over
    # For each port the (F,) numbers of the separators, which stand for variables here.
    links: tuple[Tensor, ...]
    # For each cluster the log-tables of its factors, (b, *sizes) or broadcastable to it.
    tables: tuple[tuple[Tensor, ...], ...]

    @cached_property
    def ports(self) -> tuple[Port, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return tuple(
            Port(slot, None, links, math.prod(self.sizes[dim] for dim in dims))
            for slot, (dims, links) in enumerate(zip(self.separators, self.links, strict=True))
        )

    @property
    def count(self) -> int:
        return len(self.tables)

    @property
    def bounded(self) -> bool:
        """Return False, because a message may underflow."""
        return False

    @property
    def records(self) -> bool:
        return any(table.requires_grad for tables in self.tables for table in tables)

    @cached_property
    def _scaled(self) -> tuple[Tensor, Tensor]:
        """(b, F, *sizes) values whose maximum is one, and the (b, F) logs of their scales."""
        with torch.enable_grad():  # sweeps without gradients share it with one that records them
            pairs = [self._made(tables) for tables in self.tables]
            batch = max(len(values) for values, _ in pairs)
            values = [part.expand(batch, *self.sizes) for part, _ in pairs]
            return torch.stack(values, 1), torch.stack([p.expand(batch) for _, p in pairs], 1)

    def prepare(self) -> None:
        """Compute the scaled tables now."""
        _ = self._scaled

    def _made(self, tables: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        total = self._total(tables)
        peak = finite(total.detach().flatten(1).amax(1))
        return (total - peak.reshape(-1, *(1,) * len(self.sizes))).exp(), peak

    def _total(self, tables: tuple[Tensor, ...]) -> Tensor:
        """Return the (b, *sizes) log-table of a cluster."""
        dims = (1,) * len(self.sizes)
        device = next((t.device for tables in self.tables for t in tables), torch.device("cpu"))
        total = torch.zeros(1, *dims, dtype=torch.float64, device=device)
        for table in tables:
            total = total + table.double()
        return total.expand(-1, *self.sizes)

    @cached_property
    def _lows(self) -> Tensor:
        """(F,) logs of the smallest positive scaled values; -inf where a value underflowed."""
        with torch.no_grad():
            values = self._scaled[0]
            lows = torch.where(values > 0, values, 1.0).flatten(2).amin((0, 2)).log()
            for row in (values == 0).flatten(2).any(2).any(0).nonzero().flatten().tolist():
                total = self._total(self.tables[row])
                if bool(((values[:, row] == 0) & (total > -math.inf)).any()):
                    lows[row] = -math.inf
        return lows

    def _deep(self, incoming: Sequence[Tensor], rows: Tensor | None) -> Tensor:
        """Return the places among ``rows`` of the clusters whose products might underflow."""
        low = self._lows if rows is None else self._lows[neighbours(rows)]
        for message in incoming:
            logs = message.detach()
            low = low + torch.where(logs > -math.inf, logs, 0.0).amin((0, 1))
        return (low < -LOG_RANGE).nonzero().flatten()

    def _broadcast(self, port: int, incoming: Tensor) -> Tensor:
        """Reshape log-messages (B, K, F) to broadcast with the tables of the clusters."""
        held = self.separators[port]
        shape = [size if dim in held else 1 for dim, size in enumerate(self.sizes)]
        return incoming.transpose(1, 2).reshape(len(incoming), incoming.shape[2], *shape)

    def _product(self, incoming: Sequence[Tensor], rows: Tensor | None) -> Tensor:
        """Return the (B, F, *sizes) products of scaled tables and all messages."""
        total = self._scaled[0]
        if rows is not None:
            total = total[:, neighbours(rows)]
        for port, part in enumerate(incoming):
            total = total * self._broadcast(port, part.exp())
        return total

    def _logs(self, incoming: Sequence[Tensor], rows: Tensor | None, places: Tensor) -> Tensor:
        """Return the (B, n, *sizes) sums of log-tables at some places and all log-messages."""
        chosen = places if rows is None else rows[places]
        tables = [self._total(self.tables[row]) for row in chosen.tolist()]
        batch = max(len(table) for table in tables)
        total = torch.stack([table.expand(batch, *self.sizes) for table in tables], 1)
        for port, part in enumerate(incoming):
            total = total + self._broadcast(port, part[..., places])
        return total

    def _joint(self, incoming: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Return (B, F, *sizes) products of tables and messages, and (B, F) logs of their scale."""
        total = self._product(incoming, None)
        scale = self._scaled[1].expand(total.shape[:2])
        places = self._deep(incoming, None)
        if len(places):
            logs = self._logs(incoming, None, places)
            peak = finite(logs.detach().flatten(2).amax(2))
            values = (logs - peak.reshape(*peak.shape, *(1,) * len(self.sizes))).exp()
            total = total.index_copy(1, places, values.expand(len(total), *values.shape[1:]))
            scale = scale.index_copy(1, places, peak.expand(len(total), -1))
        return total, scale

    def messages(
        self, incoming: Sequence[Tensor], *, rows: Tensor | None = None, wanted: Ports = None
    ) -> list[Tensor | None]:
        """Return the marginals of the joint table on the separators, divided by what came in."""
        total = self._product(incoming, rows)
        clock.count(tuning.MESSAGES_BEGIN + tuning.CLUSTER_ENTRY * len(incoming) * total.numel())
        places = self._deep(incoming, rows)
        logs = self._logs(incoming, rows, places) if len(places) else None
        answers: list[Tensor | None] = [None] * len(incoming)
        for port in range(len(incoming)) if wanted is None else wanted:
            sums = safe_log(self.marginal(total, self.separators[port]).flatten(2).transpose(1, 2))
            if logs is not None:
                below = self._log_marginal(logs, self.separators[port]).flatten(2).transpose(1, 2)
                sums = sums.index_copy(2, places, below.expand(len(sums), -1, -1))
            message = incoming[port]
            alive = message > -math.inf
            answers[port] = torch.where(alive, sums - torch.where(alive, message, 0.0), -math.inf)
        return answers

    def _gone(self, kept: Sequence[int]) -> list[int]:
        return [dim + 2 for dim in range(len(self.sizes)) if dim not in kept]

    def _log_marginal(self, logs: Tensor, kept: Sequence[int]) -> Tensor:
        """Return the logs of the sums of (B, n, *sizes) over all dims except ``kept``."""
        gone = self._gone(kept)
        if not gone:
            return logs
        peak = finite(logs.detach().amax(gone, keepdim=True))
        return safe_log((logs - peak).exp().sum(gone)) + peak.squeeze(gone)

    def marginal(self, joint: Tensor, kept: Sequence[int]) -> Tensor:
        """Sum (B, F, *sizes) over all dims except ``kept``."""
        gone = self._gone(kept)
        return joint.sum(gone) if gone else joint

    def log_partitions(self, incoming: Sequence[Tensor]) -> Tensor:
        joint, scale = self._joint(incoming)
        return safe_log(joint.flatten(2).sum(2)) + scale

    def beliefs(self, incoming: Sequence[Tensor]) -> Tensor:
        """Return the normalised joint table; it is zero where nothing is possible."""
        joint = self._joint(incoming)[0]
        total = joint.flatten(2).sum(2)
        total = torch.where(total > 0, total, 1.0)
        return joint / total.reshape(*total.shape, *(1,) * len(self.sizes))

    @property
    def entries(self) -> int:
        """Return the number of entries of all tables if they differ between batch items; else 0."""
        batch = max((len(table) for tables in self.tables for table in tables), default=1)
        return self.count * math.prod(self.sizes) if batch > 1 else 0

    def items(self, chosen: slice | Tensor) -> "ClusterKernel":
        """Return the kernel of some batch items, with the tables that were prepared so far."""
        if not self.entries:
            return self
        tables = tuple(
            tuple(table if len(table) == 1 else table[chosen] for table in cluster)
            for cluster in self.tables
        )
        kernel = replace(self, tables=tables)
        vars(kernel).update(_scaled=tuple(part[chosen] for part in self._scaled), _lows=self._lows)
        return kernel


@dataclass(frozen=True, eq=False)
class UpAndDown(Schedule):
    """Sends messages up the order of the clusters, children first, and then down, parents first."""

    sets: tuple[Tensor, ...]  # messages of the clusters of one level, level by level
    covers_all = True

    def sweep(self, edges: Edges, residuals: Callable[[], Tensor], number: int) -> Sets:
        yield from self.sets


@dataclass(frozen=True, eq=False)
class JoinLayout:
    """The equations of a join graph, and the places of its clusters and tensors in them."""

    equations: Equations  # of the messages
    kernels: tuple[ClusterKernel, ...]  # the clusters, those of equal shape together
    members: tuple[tuple[int, ...], ...]  # per kernel the numbers of its clusters
    scopes: tuple[tuple[int, ...], ...]  # per tensor its variables
    schedule: UpAndDown  # up and down


def laid_out(network: Network, graph: ClusterGraph) -> JoinLayout:
    """Lay out the clusters of a reduced network; tensor t is factor t of the groups, in order."""
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
    for clusters in alike.values():  # what is asked for at once stands together
        clusters.sort(key=lambda cluster: level[cluster])
    tables = list(_tables(network, graph))
    kernels = tuple(
        ClusterKernel(
            tuple(graph.sizes[v] for v in graph.scopes[clusters[0]]),
            tuple(dims for dims, _ in ends[clusters[0]]),
            tuple(
                torch.tensor(links, device="cpu")
                for links in zip(*([link for _, link in ends[at]] for at in clusters), strict=True)
            ),
            tuple(tables[cluster] for cluster in clusters),
        )
        for clusters in alike.values()
    )
    sizes = [math.prod(graph.sizes[v] for v in link.separator) for link in graph.links]
    edges = edges_of(
        [kernel.ports for kernel in kernels],
        [kernel.count for kernel in kernels],
        sizes,
        torch.arange(len(sizes), device="cpu"),
        len(sizes),
    )
    members = tuple(tuple(clusters) for clusters in alike.values())
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
    scopes = tuple(tuple(row) for group in network.groups for row in group.scopes.tolist())
    return JoinLayout(equations, kernels, members, scopes, schedule)


def _levels(graph: ClusterGraph) -> list[int]:
    """Return for each cluster the length of the longest path of children up to it."""
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
    """List the messages to parents from the lowest clusters up, then those to children."""
    up: dict[int, list[int]] = {}
    down: dict[int, list[int]] = {}
    for kernel, clusters in enumerate(members):
        firsts = [edges.first_edge(edges.segments[n]) for n in edges.by_kernel[kernel]]
        for row, cluster in enumerate(clusters):
            for first, (_, number) in zip(firsts, ends[cluster], strict=True):
                way = up if graph.links[number].child == cluster else down
                way.setdefault(level[cluster], []).append(first + row)
    sets = [up[number] for number in sorted(up)]
    sets += [down[number] for number in sorted(down, reverse=True)]
    return tuple(torch.tensor(numbers, device="cpu") for numbers in sets)


def _tables(network: Network, graph: ClusterGraph) -> Iterator[tuple[Tensor, ...]]:
    """Return for each cluster the log-tables of its factors, as views over its variables."""
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
            table = tables[group][:, row if tables[group].shape[1] > 1 else 0]
            aligned.append(_aligned(table, scopes[group][row], scope))
        yield tuple(aligned)


def _aligned(values: Tensor, variables: Sequence[int], scope: Sequence[int]) -> Tensor:
    """View a table (b, *sizes) over its variables so that it broadcasts to an ascending scope."""
    ranks = sorted(range(len(variables)), key=lambda i: variables[i])
    moved = values.permute(0, *(rank + 1 for rank in ranks))
    held = set(variables)
    sizes = iter(moved.shape[1:])
    return moved.reshape(len(values), *(next(sizes) if v in held else 1 for v in scope))
