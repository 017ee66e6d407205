"""Messages between the parts of a graph, and the posterior of the whole that they end in."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor

from rdpgraph.distributed.wire import NO_SECOND, Wire
from rdpgraph.engines.loopy.edges import Boundary
from rdpgraph.engines.loopy.equations import Equations
from rdpgraph.engines.reduction.network import Network
from rdpgraph.engines.solution import Approximation, Status
from rdpgraph.errors import UnsupportedError
from rdpgraph.logspace.gradients import refused
from rdpgraph.model.graph import FactorGraph


def exchanged(wire: Wire, sent: Mapping[int, Tensor]) -> dict[int, Tensor]:
    """What neighbours send, from what they are sent: by rank, of equal shapes both ways."""
    arrived = {rank: torch.empty_like(values) for rank, values in sent.items()}
    calls: list[dist.P2POp] = []
    for rank, values in sent.items():
        if values.numel():
            other = dist.get_global_rank(wire.group, rank)
            calls.append(dist.P2POp(dist.irecv, arrived[rank], other, wire.group))
            calls.append(dist.P2POp(dist.isend, values.contiguous(), other, wire.group))
    for work in dist.batch_isend_irecv(calls) if calls else ():
        work.wait()
    return arrived


@dataclass(frozen=True, eq=False)
class Neighbours(Boundary):
    """The boundary of a part that shares variables with others.

    Attributes:
        wire: the ranks.
        solvers: those that have variables left.
        places: by rank of a neighbour, per class the places of the variables shared with it, in
            the order that both have.
        counts: per class (n,) 1 for a variable that no lower rank has, or 0.
        bounded: see `Boundary`.
        records: likewise.
    """

    wire: Wire
    solvers: tuple[int, ...]
    places: Mapping[int, tuple[Tensor, ...]]
    counts: tuple[Tensor, ...]
    bounded: bool
    records: bool

    def joined(self, values: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """What all parts say of the variables: sent to the neighbours, and added up."""
        if torch.is_grad_enabled() and self.records and self.places:
            return _Joined.apply(self, *map(watched, values))  # pyright: ignore
        return self.added(values)

    def added(self, values: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """`joined` without gradient, in place."""
        sent = {
            rank: torch.cat([
                value.index_select(2, places).reshape(-1)
                for value, places in zip(values, shared, strict=True)
            ])
            for rank, shared in self.places.items()
        }  # fmt: skip
        arrived = exchanged(self.wire, sent)
        for rank, shared in self.places.items():
            sizes = [v.shape[0] * v.shape[1] * len(p) for v, p in zip(values, shared, strict=True)]
            parts = arrived[rank].split(sizes)
            for value, places, part in zip(values, shared, parts, strict=True):
                value.index_add_(2, places, part.view(*value.shape[:2], len(places)))
        return tuple(values)

    def counted(self, number: int) -> Tensor:
        return self.counts[number]

    def total(self, values: Tensor) -> Tensor:
        """The sum over the ranks, by an all-reduce; differentiable."""
        needed = torch.is_grad_enabled() and self.records
        return self.wire.summed(watched(values) if needed else values)

    def largest(self, values: Tensor) -> Tensor:
        """The maximum over the ranks, by an all-reduce."""
        return self.wire.largest(values)

    def solved(self, values: Tensor) -> Tensor:
        """The sum over the ranks, by an all-reduce.

        Where some ranks have no variables, the others send their values to each other.
        """
        if len(self.solvers) == self.wire.ranks:
            return self.wire.total(values)
        others = {rank: values.reshape(-1) for rank in self.solvers if rank != self.wire.rank}
        told = exchanged(self.wire, others) | {self.wire.rank: values.reshape(-1)}
        return torch.stack([told[rank] for rank in self.solvers]).sum(0).reshape(values.shape)


def watched(values: Tensor) -> Tensor:
    """The pass back is that of all parts, whether or not anything of this one needs it."""
    return values if values.requires_grad else values.detach().requires_grad_()


class _Joined(torch.autograd.Function):
    """Sums over all holders of a variable are their own transpose."""

    @staticmethod
    def forward(ctx: Any, boundary: Neighbours, *values: Tensor) -> Any:
        ctx.boundary = boundary
        return boundary.added([value.clone() for value in values])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        copies = [gradient.clone() for gradient in gradients]
        with torch.no_grad():
            joined = ctx.boundary.added(copies)
        if torch.is_grad_enabled():
            joined = tuple(refused(part, NO_SECOND, *gradients) for part in joined)
        return None, *joined


def joining(
    wire: Wire, network: Network, shared: Mapping[int, Tensor]
) -> Callable[[Equations], Equations]:
    """Makes the equations of a part those of a part of the whole.

    Args:
        wire: the ranks.
        network: the part, with states left that all parts agree about.
        shared: by rank of a neighbour, the numbers of the variables shared with it.
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
        told = wire.stacked(flags)
        unbounded, records, vanishing, reach = told.amax(0)[:4].tolist()
        solvers = tuple(told[:, 4].nonzero().flatten().tolist())
        places: dict[int, tuple[Tensor, ...]] = {}
        counts = [torch.ones(len(c.variables), dtype=dtype, device=device) for c in edges.classes]
        for rank, numbers in sorted(shared.items()):
            active = network.active[numbers]
            active = active[active >= 0]  # what is settled, is so in all parts
            home, local = edges.home[active], edges.local[active]
            places[rank] = tuple(
                local[home == number].to(device) for number in range(len(edges.classes))
            )
            if rank < wire.rank:
                for mine, theirs in zip(counts, places[rank], strict=True):
                    mine[theirs] = 0.0
        boundary = Neighbours(wire, solvers, places, tuple(counts), not unbounded, bool(records))
        return replace(equations, vanishing=bool(vanishing), lowest=-reach, boundary=boundary)

    return join


@dataclass(frozen=True, eq=False)
class Gathered(Approximation):
    """log Z and the beliefs of variables, from all parts of a graph; nothing else crossed.

    Attributes:
        log_z: (B,) nats.
        beliefs: (B, S).
        worth: of the messages.
    """

    log_z: Tensor = field(repr=False)
    beliefs: Tensor = field(repr=False)
    worth: Status

    def status(self) -> Status:
        """Whether the messages converged."""
        return self.worth

    def log_partition(self) -> Tensor:
        return self.log_z

    def variable_marginals(self) -> Tensor:
        return self.beliefs

    def factor_marginals(self, block: int) -> Tensor:
        """Not gathered.

        Raises:
            UnsupportedError: always.
        """
        refuse()

    def expected_score(self) -> Tensor:
        """Not gathered.

        Raises:
            UnsupportedError: always.
        """
        refuse()

    def max_marginals(self) -> Tensor:
        """Not gathered.

        Raises:
            UnsupportedError: always.
        """
        refuse()

    def mode(self) -> Tensor:
        """Not gathered.

        Raises:
            UnsupportedError: always.
        """
        refuse()


def refuse_to_solve(graph: FactorGraph) -> NoReturn:
    """For joints of variables that no factor holds."""
    del graph
    refuse()


def refuse() -> NoReturn:
    """What is not known of the parts."""
    raise UnsupportedError(
        "The parts of a graph give log Z and marginals of single variables; ask one process for "
        "modes, draws, joints and entropies."
    )
