"""Messages between the parts of a graph, and the posterior that they give of the whole."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NoReturn

import torch
import torch.distributed as dist
from torch import Tensor

from rdpgraph.distributed.collectives import Peers, linear
from rdpgraph.engines.loopy.edges import Boundary
from rdpgraph.engines.loopy.equations import Equations
from rdpgraph.engines.reduction.network import Network
from rdpgraph.engines.solution import Approximation, Status
from rdpgraph.errors import UnsupportedError


def exchanged(peers: Peers, sent: Mapping[int, Tensor]) -> dict[int, Tensor]:
    """Exchange tensors of equal shapes with neighbours, by rank."""
    arrived = {rank: torch.empty_like(values) for rank, values in sent.items()}
    calls: list[dist.P2POp] = []
    for rank, values in sent.items():
        if values.numel():
            other = dist.get_global_rank(peers.group, rank)
            calls.append(dist.P2POp(dist.irecv, arrived[rank], other, peers.group))
            calls.append(dist.P2POp(dist.isend, values.contiguous(), other, peers.group))
    for work in dist.batch_isend_irecv(calls) if calls else ():
        work.wait()
    return arrived


@dataclass(frozen=True, eq=False)
class SharedBoundary(Boundary):
    """The boundary of a part that shares variables with parts on other ranks.

    Variables with equally many states form a class, as in `Edges`.

    Attributes:
        peers: the ranks.
        solvers: the ranks whose part still has variables after hard zeros and evidence.
        places: by rank of a neighbour, for each class the places of the variables shared with it,
            in the order that both have.
        counts: for each class (n,) 1 for a variable that no lower rank has, or 0.
        bounded: see `Boundary`.
        records: see `Boundary`.
    """

    peers: Peers
    solvers: tuple[int, ...]
    places: Mapping[int, tuple[Tensor, ...]]
    counts: tuple[Tensor, ...]
    bounded: bool
    records: bool

    def joined(self, values: Sequence[Tensor]) -> tuple[Tensor, ...]:
        if torch.is_grad_enabled() and self.records and self.places:
            # Sums over all holders of a variable, of which the transpose is the same.
            return linear(self._copied, self._copied, *map(watched, values))
        return self._added(values)

    def _copied(self, *values: Tensor) -> tuple[Tensor, ...]:
        return self._added([value.clone() for value in values])

    def _added(self, values: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """The sums of `joined` without gradient, in place."""
        sent = {
            rank: torch.cat([
                value.index_select(2, places).reshape(-1)
                for value, places in zip(values, shared, strict=True)
            ])
            for rank, shared in self.places.items()
        }  # fmt: skip
        arrived = exchanged(self.peers, sent)
        for rank, shared in self.places.items():
            sizes = [v.shape[0] * v.shape[1] * len(p) for v, p in zip(values, shared, strict=True)]
            parts = arrived[rank].split(sizes)
            for value, places, part in zip(values, shared, parts, strict=True):
                value.index_add_(2, places, part.view(*value.shape[:2], len(places)))
        return tuple(values)

    def counted(self, number: int) -> Tensor:
        return self.counts[number]

    def total(self, values: Tensor) -> Tensor:
        needed = torch.is_grad_enabled() and self.records
        return self.peers.summed(watched(values) if needed else values)

    def largest(self, values: Tensor) -> Tensor:
        return self.peers.largest(values)

    def solved(self, values: Tensor) -> Tensor:
        """The sum over the ranks that have variables; by messages between these if not all have."""
        if len(self.solvers) == self.peers.ranks:
            return self.peers.total(values)
        others = {rank: values.reshape(-1) for rank in self.solvers if rank != self.peers.rank}
        told = exchanged(self.peers, others) | {self.peers.rank: values.reshape(-1)}
        return torch.stack([told[rank] for rank in self.solvers]).sum(0).reshape(values.shape)


def watched(values: Tensor) -> Tensor:
    """Values that require a gradient, as the backward pass needs all parts."""
    return values if values.requires_grad else values.detach().requires_grad_()


def joining(
    peers: Peers, network: Network, shared: Mapping[int, Tensor]
) -> Callable[[Equations], Equations]:
    """A function that makes the equations of messages in one part those of the whole graph.

    ``shared`` has, by rank of a neighbour, the numbers of the variables shared with it. All parts
    must agree about the states left in ``network``.
    """

    def join(equations: Equations) -> Equations:
        edges, dtype = equations.edges, network.constant.dtype
        device = network.constant.device
        flags = torch.tensor(
            [
                not equations.bounded,
                equations.records,
                equations.vanishing,
                -equations.lowest,
                len(edges.classes) > 0,
            ],
            dtype=torch.float64,
            device=device,
        )
        told = peers.stacked(flags)
        unbounded, records, vanishing, reach = told.amax(0)[:4].tolist()
        solvers = tuple(told[:, 4].nonzero().flatten().tolist())
        places: dict[int, tuple[Tensor, ...]] = {}
        counts = [torch.ones(len(c.variables), dtype=dtype, device=device) for c in edges.classes]
        for rank, numbers in sorted(shared.items()):
            active = network.active[numbers]
            active = active[active >= 0]  # variables fixed here are fixed in all parts
            if not len(active):
                continue
            home, local = edges.home[active], edges.local[active]
            places[rank] = tuple(
                local[home == number].to(device) for number in range(len(edges.classes))
            )
            if rank < peers.rank:
                for mine, theirs in zip(counts, places[rank], strict=True):
                    mine[theirs] = 0.0
        boundary = SharedBoundary(
            peers, solvers, places, tuple(counts), not unbounded, bool(records)
        )
        return replace(equations, vanishing=bool(vanishing), lowest=-reach, boundary=boundary)

    return join


def refuse(*_: object, **__: object) -> NoReturn:
    """Refuse answers that parts do not give."""
    raise UnsupportedError(
        "The parts of a graph give log Z and marginals of single variables; ask one process for "
        "modes, draws, joints and entropies."
    )


@dataclass(frozen=True, eq=False)
class Gathered(Approximation):
    """log Z (B,) and the beliefs (B, S) of variables, gathered from all parts of a graph."""

    log_z: Tensor = field(repr=False)
    beliefs: Tensor = field(repr=False)
    worth: Status

    def status(self) -> Status:
        return self.worth

    def log_partition(self) -> Tensor:
        return self.log_z

    def variable_marginals(self) -> Tensor:
        return self.beliefs

    factor_marginals = expected_score = max_marginals = mode = refuse
