"""Graphs in parts, one on each process: loopy belief propagation over all of them."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NoReturn, TypeAlias

import torch
from torch import Tensor

from rdpgraph._core.cache import cached_property, differentiable_property
from rdpgraph._core.shards import fingerprint
from rdpgraph.distributed.boundary import Gathered, exchanged, joining, refuse, watched
from rdpgraph.distributed.collectives import Peers
from rdpgraph.engines.loopy.network_equations import Bethe, Fractional
from rdpgraph.engines.loopy.schedules import Flooding
from rdpgraph.engines.loopy.solution import LoopySolution
from rdpgraph.engines.reduction.consistency import Possible
from rdpgraph.engines.reduction.network import Network, reduce_graph
from rdpgraph.engines.solution import Status
from rdpgraph.errors import ModelError, UnsupportedError
from rdpgraph.model.domain import Domain, Entry, Named
from rdpgraph.model.evidence import MISSING
from rdpgraph.model.graph import FactorGraph
from rdpgraph.model.variable import Variable, VariableArray
from rdpgraph.plan.plan import Plan
from rdpgraph.query.answers import StateValues
from rdpgraph.query.posterior import Posterior
from rdpgraph.schedulers.loopy import Loopy, loopy_plan
from rdpgraph.schedulers.scheduler import require_fit

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

Shared: TypeAlias = Mapping[int, Sequence[Variable | VariableArray]]


@dataclass(frozen=True, eq=False)
class GraphPart:
    """The factors of a graph on this process, and the variables that it shares.

    Each factor is in one part. A variable is in every part that has a factor of it, and each two
    parts list the variables that they share, in one order. No process holds the whole: each
    declares one part, with its local names. `partition` makes the parts of a graph that every
    process holds.

    Args:
        graph: this rank's factors and evidence. Evidence on a shared variable must be given in
            every part that has it.
        mesh: of one dim.
        shared: by the rank of another part, the variables shared with it.

    Raises:
        ModelError: parts that disagree about what they share.

    Example:
        >>> import rdpgraph as rg
        >>> from rdpgraph.distributed import alone
        >>> x = VariableArray("x", (4,), 2)
        >>> near = rg.FactorBlock((x[1:], x[:-1]), rg.Table([[1.0, 0.0], [0.0, 1.0]]))
        >>> first = rg.Factor(x[0], rg.Table([0.0, 1.0]))
        >>> with alone() as mesh:  # of two ranks, the first would have shared={1: [x[-1]]}
        ...     posterior = GraphPart(rg.FactorGraph([first, near]), mesh).infer(rg.Loopy())
        ...     posterior.marginal(x[0])
        tensor([0.2689, 0.7311])
    """

    graph: FactorGraph
    mesh: "DeviceMesh"
    shared: Shared = field(default_factory=dict[int, Sequence[Variable | VariableArray]])
    home: tuple[Domain, Tensor] | None = field(default=None, repr=False, kw_only=True)

    def __post_init__(self) -> None:
        peers, graph = self.peers, self.graph
        observed = graph.observed
        # Each rank describes what it shares with each other: states in order, and a digest of the
        # evidence, 0 where nothing is observed.
        local: dict[int, object] = {}
        for rank, numbers in self.numbers.items():
            seen = 0 if observed is None else fingerprint(observed[..., numbers])
            if observed is not None and bool((observed[..., numbers] == MISSING).all()):
                seen = 0
            local[rank] = (self._states(rank), seen)
        told = peers.told((graph.batch_shape, str(graph.dtype), local))
        # All ranks see all descriptions, so that all of them raise the same error and none waits.
        for rank, (batch, dtype, theirs) in enumerate(told):
            if (batch, dtype) != told[0][:2]:
                raise ModelError(
                    f"The parts of a graph need one batch shape and floating type; rank 0 has "
                    f"{told[0][:2]}, rank {rank} has {(batch, dtype)}."
                )
            for other, mine in theirs.items():
                if not 0 <= other < peers.ranks or other == rank:
                    raise ModelError(
                        f"Rank {rank} shares variables with rank {other}, which is no other rank "
                        f"of 0 to {peers.ranks - 1}."
                    )
                if told[other][2].get(rank) != mine:
                    raise ModelError(
                        f"Ranks {rank} and {other} disagree about the variables that they share: "
                        "both must list them in one order, with equal states and evidence."
                    )

    def _states(self, rank: int) -> list[tuple[object, int]]:
        """The states of the variables shared with a rank, each with the length of its run."""
        runs: list[tuple[object, int]] = []
        for item in self.shared[rank]:
            states, count = self.graph.domain.states_of(item), math.prod(item.shape)
            if runs and runs[-1][0] == states:
                count += runs.pop()[1]
            runs.append((states, count))
        return runs

    @cached_property
    def peers(self) -> Peers:
        """The group of ranks, with its collectives."""
        return Peers.of(self.mesh)

    @cached_property
    def numbers(self) -> dict[int, Tensor]:
        """The local numbers of the variables shared with each neighbour, by rank."""
        return {
            rank: torch.cat([self.graph.domain.numbers(item).reshape(-1) for item in items])
            for rank, items in sorted(self.shared.items())
            if len(items)
        }

    def infer(self, scheduler: Loopy | None = None) -> "PartPosterior":
        """Loopy belief propagation over all parts, called on every rank at once.

        The messages are those of one process with the same choices, sweep by sweep. Gradients are
        as of one process, by any `Gradient`; each rank has those of its factors.

        Args:
            scheduler: of `Flooding`, with any damping, temperature, tolerance, gradient and number
                of sweeps, the same on every rank; default `Loopy()`. Its ``memory`` is of a rank.

        Raises:
            UnsupportedError: another schedule, counting numbers that need the whole graph, messages
                to begin with, a limit of seconds.
            BudgetError: a part does not fit into its memory.
        """
        scheduler = scheduler or Loopy()
        _require_in_parts(scheduler)
        kinds = (scheduler.damping, scheduler.counting, scheduler.gradient)
        self.peers.require_alike(
            "schedulers",
            (*map(repr, kinds), scheduler.sweeps, scheduler.tolerance, scheduler.temperature),
        )
        network, numbers = self._agreed(), self.numbers
        self.peers.agreed(
            lambda: require_fit(loopy_plan(network, scheduler.sweeps, "", memory=scheduler.memory))
        )
        solution = replace(scheduler.solution(network), among=joining(self.peers, network, numbers))
        impossible = self.peers.largest(torch.tensor(float(network.impossible)))
        return PartPosterior(self, solution, bool(impossible))

    def _agreed(self) -> Network:
        """The part without the states that any part rules out, iterated to a fixed point."""
        domain = self.graph.domain
        places = {rank: _places(domain, numbers) for rank, numbers in self.numbers.items()}
        within: Possible | None = None
        while True:
            network = reduce_graph(self.graph, high_order=True, within=within)
            left = Possible(domain.sizes)
            if network.possible is not None:
                left.mask &= network.possible.mask[: len(left.mask)]
            sent = {rank: left.mask[shared].float() for rank, shared in places.items()}
            arrived = exchanged(self.peers, sent)
            struck = any(bool((sent[rank] > arrived[rank]).any()) for rank in sent)
            if not bool(self.peers.largest(torch.tensor(float(struck)))):
                return network
            for rank, shared in places.items():
                left.mask[shared] &= arrived[rank] > 0
            within = left


@dataclass(frozen=True, eq=False)
class PartPosterior:
    """Beliefs of a part of a graph, and log Z of the whole.

    All ranks ask the same questions in the same order.

    Attributes:
        part: as declared.
        solution: the messages of this part.
        impossible: True where some part allows nothing.
    """

    part: GraphPart
    solution: LoopySolution = field(repr=False)
    impossible: bool

    @differentiable_property
    def log_partition(self) -> Tensor:
        """(*batch,) log Z of the whole graph, on every rank."""
        graph = self.part.graph
        self.part.peers.asked("log_partition")
        if self.impossible:
            return torch.full(graph.batch_shape, -math.inf, dtype=graph.dtype)
        return self.solution.log_partition().reshape(graph.batch_shape)

    @differentiable_property
    def _flat(self) -> Tensor:
        """(B, S) the beliefs of the variables here."""
        values = self.solution
        self.part.peers.asked("marginals")
        if self.impossible:
            network = values.network
            return network.constant.new_zeros(network.batch, self.part.graph.domain.total_states)
        return values.variable_marginals()

    def marginals(self) -> StateValues:
        """Probabilities of the states of every variable here, the shared ones on each of its ranks.

        A mapping from each `Variable` here to (*batch, states), and from the part of each
        `VariableArray` that lies here to (*batch, *shape, states).
        """
        graph, flat = self.part.graph, self._flat
        domain, numbers = self.part.home or (graph.domain, torch.arange(graph.num_variables))
        answers: dict[Entry, Tensor] = {}
        for entry, here, view in members_among(domain, numbers):
            values = flat[:, graph.domain.places(here, entry.size).to(flat.device)]
            key = entry if len(here) == math.prod(entry.shape) else view
            answers[key] = values.reshape([*graph.batch_shape, *key.shape, entry.size])
        return StateValues(answers, domain)

    def marginal(self, item: Named) -> Tensor:
        """(*batch, states), or (*batch, *shape, states), of variables that are here.

        Raises:
            ModelError: they are in another part.
        """
        return self.marginals()[item]

    def gathered(self) -> StateValues:
        """The marginals of all variables of the graph on every rank, for parts made by `partition`.

        Raises:
            UnsupportedError: parts that were declared one by one: their names are local.
        """
        domain, whole = self._all_beliefs()
        graph = self.part.graph
        answers: dict[Entry, Tensor] = {}
        parts = whole.split([math.prod(e.shape) * e.size for e in domain.entries], 1)
        for entry, part in zip(domain.entries, parts, strict=True):
            answers[entry] = part.reshape(*graph.batch_shape, *entry.shape, entry.size)
        return StateValues(answers, domain)

    def mode(self) -> NoReturn:
        """Raise `UnsupportedError`, as for draws, joints and entropies."""
        refuse()

    def sample(self, count: int, generator: torch.Generator | None = None) -> NoReturn:
        """Raise `UnsupportedError`: parts have no draws."""
        refuse()

    def posterior(self, graph: FactorGraph) -> Posterior:
        """Return the gathered marginals as a `Posterior` of the whole graph.

        ``graph`` is the one that `partition` was given.
        """
        beliefs = self._all_beliefs()[1]
        solution = Gathered(self.log_partition.reshape(-1), beliefs, self.status)
        ranks = self.part.peers.ranks
        plan = Plan("loopy", f"in {ranks} parts, one on each process", graph.num_variables)
        return Posterior(plan, solution, graph, graph, refuse, refuse)

    def _all_beliefs(self) -> tuple[Domain, Tensor]:
        """The variables of the whole graph, and (B, S) their beliefs."""
        if self.part.home is None:
            raise UnsupportedError(
                "These parts were declared one by one, so that their variables have local names "
                "only: gather the marginals() of each part."
            )
        domain, numbers = self.part.home
        graph, peers = self.part.graph, self.part.peers
        local = torch.ones(len(numbers), dtype=torch.bool)
        for rank, shared in self.part.numbers.items():
            if rank < peers.rank:
                local[shared] = False
        here = local.nonzero().flatten()
        whole = self._flat.new_zeros(len(self._flat), domain.total_states)
        peers.asked("gathered")
        places = _places(domain, numbers[here])
        whole[:, places] = self._flat[:, _places(graph.domain, here)]
        if not self.impossible and self.solution.equations.records and torch.is_grad_enabled():
            whole = watched(whole)
        return domain, peers.summed(whole)

    @cached_property
    def status(self) -> Status:
        """The convergence of the messages of all parts, and their number of sweeps."""
        if self.impossible:
            return Status(exact=True, method="loopy")
        local = self.solution.status()
        remedy = local.remedy if not local.converged else (
            "approximate, unless the whole graph has no cycle, which was not checked"
        )  # fmt: skip
        return replace(local, exact=False, biased=True, bound="", remedy=remedy)


def _require_in_parts(scheduler: Loopy) -> None:
    """Refuse options of a scheduler that parts do not support."""
    named = {
        "schedule=": (scheduler.schedule, isinstance(scheduler.schedule, Flooding)),
        "counting=": (scheduler.counting, isinstance(scheduler.counting, Bethe | Fractional)),
        "start=": (scheduler.start, scheduler.start is None),
        "seconds=": (scheduler.seconds, scheduler.seconds is None),
    }
    for name, (given, fits) in named.items():
        if not fits:
            raise UnsupportedError(
                "The parts of a graph need Loopy() with Flooding(), Bethe() or Fractional(), and "
                f"without start and seconds; got {name}{given!r:.80}: leave it out, or solve the "
                "graph in one process."
            )


def _places(domain: Domain, numbers: Tensor) -> Tensor:
    """The places of the states of variables among those of all."""
    local = domain.sizes[numbers]
    first = domain.state_starts[numbers] - (local.cumsum(0) - local)
    return first.repeat_interleave(local) + torch.arange(int(local.sum()))


def members_among(domain: Domain, numbers: Tensor) -> Iterator[tuple[Entry, Tensor, Entry]]:
    """Entries with variables among sorted numbers, the rows of these, and a view of them."""
    for entry, first in zip(domain.entries, domain.starts, strict=False):
        rows = ((numbers >= first) & (numbers < first + math.prod(entry.shape))).nonzero().flatten()
        if len(rows) and isinstance(entry, VariableArray):
            view = (entry, numbers[rows] - first)
            yield entry, rows, VariableArray(entry.name, (len(rows),), entry.states, view=view)
        elif len(rows):
            yield entry, rows, entry
