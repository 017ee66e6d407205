"""Join graphs: clusters of tensors of bounded size, and their links."""

from dataclasses import dataclass
from math import inf, log2, prod

from rdpgraph._core import tuning
from rdpgraph.plan import clock
from rdpgraph.plan.orders import elimination_order, min_weight
from rdpgraph.plan.plan import Budget, Recent
from rdpgraph.plan.tree import Topology

_graphs: "Recent[tuple[Budget, ClusterGraph, float]]" = Recent(32)


@dataclass(frozen=True)
class Link:
    """Two clusters that exchange messages over the variables of a separator."""

    child: int  # the cluster that comes first in the order
    parent: int  # the other
    separator: tuple[int, ...]  # ascending


@dataclass(frozen=True)
class ClusterGraph:
    """Clusters in the order of messages.

    For every variable, the links whose separators hold it form a tree of the clusters that hold it.
    With no variable split (`exact`) the whole is a junction tree.
    """

    sizes: tuple[int, ...]  # of the variables
    scopes: tuple[tuple[int, ...], ...]  # variables of each cluster, ascending
    tensors: tuple[tuple[int, ...], ...]  # tensors of each cluster; each tensor is in one
    links: tuple[Link, ...]  # children before parents
    exact: bool  # no bucket was split

    def elements(self) -> int:
        """Entries of all clusters' tables."""
        return sum(prod([self.sizes[v] for v in scope]) for scope in self.scopes)

    def setup_seconds(self, batch: int) -> float:
        """Predicted seconds to make the tables and read the answers off them."""
        count = len(self.scopes) + sum(map(len, self.tensors))
        work = 2 * tuning.CLUSTER_PASSES * batch * self.elements()
        return tuning.SECONDS_PER_GROUP * count + work / tuning.CLUSTER_ENTRIES_PER_SECOND

    def seconds(self, batch: int) -> float:
        """Predicted seconds of a run until convergence."""
        degree = [1] * len(self.scopes)
        for link in self.links:
            degree[link.child] += 1
            degree[link.parent] += 1
        work = sum(
            prod([self.sizes[v] for v in scope]) * links
            for scope, links in zip(self.scopes, degree, strict=True)
        )
        calls = 2e-4 * len(self.links)
        return tuning.ASSUMED_SWEEPS * (
            tuning.CLUSTER_PASSES * batch * work / tuning.CLUSTER_ENTRIES_PER_SECOND + calls
        )


def join_graph(
    topology: Topology, order: list[int], most_elements: float, *, deadline: float = inf
) -> ClusterGraph | None:
    """Mini-bucket elimination as a join graph (Dechter, Rish 2003; Mateescu et al. 2010).

    The bucket of each variable is split so that no part's table has more than ``most_elements``
    entries (unless single tensors force it); the parts are linked by the variable, and each passes
    on its other variables. None past a deadline on `clock.now`.
    """
    sizes = topology.sizes
    place = {v: i for i, v in enumerate(order)}
    buckets: list[list[tuple[tuple[int, ...], int, bool]]] = [[] for _ in order]

    def file(scope: tuple[int, ...], source: int, *, tensor: bool) -> None:
        buckets[min(place[v] for v in scope)].append((scope, source, tensor))

    for number, scope in enumerate(topology.scopes):
        file(tuple(sorted(scope)), number, tensor=True)
    scopes: list[tuple[int, ...]] = []
    tensors: list[tuple[int, ...]] = []
    links: list[Link] = []
    exact = True
    for position, variable in enumerate(order):
        # Each part has its variables, the entries of its table, and its items.
        parts: list[tuple[set[int], int, list[tuple[tuple[int, ...], int, bool]]]] = []
        for item in sorted(buckets[position], key=lambda item: -len(item[0])):
            if clock.now() > deadline:
                return None
            # Best fit: the part whose table grows least and stays small enough, or a new one.
            best: tuple[int, int] | None = None
            for number, (union, table, _) in enumerate(parts):
                growth = 1
                for v in item[0]:
                    if v not in union:
                        growth *= sizes[v]
                if growth * table <= most_elements and (best is None or growth < best[0]):
                    best = growth, number
            if best is None:
                parts.append((set(item[0]), prod([sizes[v] for v in item[0]]), [item]))
            else:
                union, table, items = parts[best[1]]
                union.update(item[0])
                items.append(item)
                parts[best[1]] = union, best[0] * table, items
        # Each part is a cluster, linked to its senders and to the part before it.
        exact = exact and len(parts) <= 1
        before: int | None = None
        for union, _, items in parts:
            cluster = len(scopes)
            scopes.append(tuple(sorted(union)))
            tensors.append(tuple(source for _, source, tensor in items if tensor))
            links += [Link(child, cluster, s) for s, child, tensor in items if not tensor]
            if before is not None:
                links.append(Link(before, cluster, (variable,)))
            before = cluster
            rest = tuple(v for v in scopes[cluster] if v != variable)
            if rest:
                file(rest, cluster, tensor=False)
    return _absorbed(ClusterGraph(sizes, tuple(scopes), tuple(tensors), tuple(links), exact))


def _absorbed(graph: ClusterGraph) -> ClusterGraph:
    """Join graph with every child merged into a parent that equals their separator."""
    into = list(range(len(graph.scopes)))
    scopes = list(graph.scopes)

    def home(cluster: int) -> int:
        while into[cluster] != cluster:
            into[cluster] = into[into[cluster]]
            cluster = into[cluster]
        return cluster

    kept: list[Link] = []
    for link in graph.links:
        child, parent = home(link.child), home(link.parent)
        if scopes[parent] == link.separator:
            scopes[parent] = scopes[child]
            into[child] = parent
        else:
            kept.append(link)
    roots = [cluster for cluster in range(len(into)) if home(cluster) == cluster]
    number = {cluster: i for i, cluster in enumerate(roots)}
    tensors: list[list[int]] = [[] for _ in roots]
    for cluster, members in enumerate(graph.tensors):
        tensors[number[home(cluster)]] += members
    # A parent that took in a child may come after its parents: sort by the order.
    ends = [(number[home(a.child)], number[home(a.parent)]) for a in kept]
    links = [Link(min(pair), max(pair), a.separator) for pair, a in zip(ends, kept, strict=True)]
    return ClusterGraph(
        graph.sizes,
        tuple(scopes[cluster] for cluster in roots),
        tuple(tuple(members) for members in tensors),
        tuple(links),
        graph.exact,
    )


def choose_join_graph(
    topology: Topology, *, budget: Budget, batch: int = 1, deadline: float = inf
) -> ClusterGraph | None:
    """Join graph with the largest bound on clusters (i-bound) within a budget; cached by topology.

    Args:
        topology: the reduced model.
        budget: for a run. Tables of clusters get half of its memory, as each cluster has a belief
            of the same size.
        batch: items solved together.
        deadline: on `clock.now`; the best so far is taken, None if there is none.
    """
    meter = clock.Meter()
    key = topology.key, budget.key(), batch, meter.is_counting
    known = _graphs.get(key)
    if known is not None and budget.resembles(known[0]):
        meter.repeat(known[2])
        return known[1]
    graph = _choose(topology, budget, batch, deadline)
    if graph is None or clock.stopped():
        return graph  # another time there may be more
    return _graphs.put(key, (budget, graph, meter.seconds))[1]


def _choose(topology: Topology, budget: Budget, batch: int, deadline: float) -> ClusterGraph | None:
    begin = clock.now()
    order = elimination_order(topology, deadline=begin + 0.4 * (deadline - begin))
    if order is None:
        half = begin + 0.7 * (deadline - begin)
        order = elimination_order(topology, min_weight, deadline=half)
    if order is None:
        return None
    elements = budget.memory_bytes / tuning.CLUSTER_BYTES / batch
    tables = [prod([topology.sizes[v] for v in scope]) for scope in topology.scopes]
    low, high = log2(max(tables, default=1)), tuning.CLUSTER_BITS
    best = join_graph(topology, order, 2.0**low, deadline=deadline)
    while best is not None and high - low > 1:
        bits = (low + high) / 2
        graph = join_graph(topology, order, 2.0**bits, deadline=deadline)
        if graph is None:
            break
        if graph.elements() <= elements and graph.seconds(batch) <= budget.seconds:
            low, best = bits, graph
            if graph.exact:
                break
        else:
            high = bits
    return best
