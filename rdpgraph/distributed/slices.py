"""Work shared between processes without exchange, such as the slices of exact inference."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor

from rdpgraph._core import effort
from rdpgraph._core.cache import cached_property, differentiable_property
from rdpgraph.distributed.collectives import Peers, fingerprint_of
from rdpgraph.engines.exact.engine import SlicedSolution, chosen
from rdpgraph.engines.reduction.network import Network, reduce_graph
from rdpgraph.engines.solution import Solution
from rdpgraph.estimate.replicates import Replicates
from rdpgraph.logspace.logmatrix import finite
from rdpgraph.model.graph import FactorGraph
from rdpgraph.plan import clock
from rdpgraph.plan.plan import Budget, Plan
from rdpgraph.schedulers.contraction import in_slices, planned, solved_network
from rdpgraph.schedulers.scheduler import Scheduler, budget_of

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

Items = TypeVar("Items", Tensor, range, Sequence[Any])


def share(items: Items, mesh: "DeviceMesh") -> Items:
    """This rank's part of a sequence, or of a tensor's rows; sizes differ by one at most.

    Args:
        items: the same on every rank: rows of evidence, sentences, models.
        mesh: of one dim.
    """
    peers = Peers.of(mesh)
    return part_of(items, peers.rank, peers.ranks)


def part_of(items: Items, rank: int, ranks: int) -> Items:
    """The part of a rank."""
    return items[len(items) * rank // ranks : len(items) * (rank + 1) // ranks]


def pooled(replicates: Replicates, mesh: "DeviceMesh") -> Replicates:
    """The independent estimates of all ranks together: their mean Z, and its standard error.

    Each rank makes its ``posterior.replicates``, with a generator of a different seed.
    Differentiable: each rank's potentials have the gradient of the mean.

    Args:
        replicates: of this rank, of one batch shape everywhere; their numbers may differ.
        mesh: of one dim.
    """
    peers, values = Peers.of(mesh), replicates.log_partitions
    counts = peers.told(len(values))
    return Replicates(peers.gathered(values, counts), replicates.equal)


@dataclass(frozen=True, eq=False)
class Summed(Solution):
    """Answers about a sum over the ranks, the same on all of them.

    log Z is one logsumexp over the ranks of B numbers; an expectation of n numbers an item is one
    sum of B (n + 1), the answers of the ranks weighted by their masses. The gradient of each rank
    is that of its part of the sum.

    Attributes:
        local: the solution of the part here; of any part where the rank has none.
        peers: the ranks.
        log_weight: nats added to log Z of the part here; -inf where the rank has none.
    """

    local: Solution
    peers: Peers
    log_weight: float

    @differentiable_property
    def _log_mass(self) -> Tensor:
        """(B,) of the part here."""
        return self.peers.agreed(self.local.log_partition) + self.log_weight

    def log_partition(self) -> Tensor:
        self.peers.asked("log_partition")
        return self.peers.log_summed(self._log_mass)

    def averaged(self, question: str, answer: Callable[[], Tensor]) -> Tensor:
        """An expectation: the ranks' answers weighted by their masses; 0 where log Z is -inf."""
        self.peers.asked(question)
        log_mass = self._log_mass
        mass = (log_mass - finite(self.peers.largest(log_mass.detach()))).exp().unsqueeze(1)
        value = self.peers.agreed(answer)
        parts = torch.cat([value.reshape(len(value), -1) * mass, mass], 1)
        total, mass = self.peers.summed(parts).split([parts.shape[1] - 1, 1], 1)
        return (total / torch.where(mass > 0, mass, 1.0)).reshape(value.shape)

    def variable_marginals(self) -> Tensor:
        return self.averaged("marginals", self.local.variable_marginals)

    def factor_marginals(self, block: int) -> Tensor:
        question = f"factor_marginals({block})"
        return self.averaged(question, lambda: self.local.factor_marginals(block))

    def expected_score(self) -> Tensor:
        return self.averaged("expected_score", self.local.expected_score)

    def max_marginals(self) -> Tensor:
        """(B, S) the largest score with each state; not differentiable."""
        self.peers.asked("max_marginals")
        local = self.peers.agreed(self.local.max_marginals)
        return self.peers.largest(local if self.log_weight > -math.inf else local - math.inf)

    def marginal_mode(self, numbers: Tensor) -> Tensor:
        """The local answer, which refuses: parts cannot compare their marginal modes."""
        return self.local.marginal_mode(numbers)


@dataclass(frozen=True, eq=False)
class SpreadSlices(Scheduler):
    """Exact contraction in slices, each on one of the processes of a mesh.

    A model whose tables do not fit into the memory of a process is solved once for each
    configuration of a few variables, the cutset, as by `Contraction`; the ranks divide the
    configurations, and their results are summed: see `docs/distributed.md`. The first rank plans
    for all. A model that fits in one piece is solved whole, by every rank: give less memory for
    more slices.

    All ranks ask the same questions in the same order. Each has the gradients of its slices:
    add them up over the ranks. One seed gives the same draws on any number of ranks.

    Args:
        mesh: of one dim.
        memory: bytes for the tables of one slice; None: 60% of what the first rank's machine has
            available, which the processes on it share.
        seconds: the predicted time that each rank may take.

    Example:
        >>> import rdpgraph as rg
        >>> from rdpgraph.distributed import alone
        >>> x = rg.VariableArray("x", (8, 8), 2)
        >>> near = rg.Table([[0.5, 0.0], [0.0, 0.5]])
        >>> grid = rg.FactorGraph([
        ...     rg.FactorBlock((x[1:], x[:-1]), near), rg.FactorBlock((x[:, 1:], x[:, :-1]), near)])
        >>> with alone() as mesh:
        ...     posterior = rg.infer(grid, scheduler=SpreadSlices(mesh, memory=20_000))
        ...     log_z, count = posterior.log_partition, posterior.plan.num_slices
        >>> count > 1, torch.allclose(log_z, rg.infer(grid).log_partition)
        (True, True)
    """

    mesh: "DeviceMesh"
    memory: float | None = None
    seconds: float = 60.0

    def plan(self, graph: FactorGraph) -> tuple[Plan, Callable[[], Solution]]:
        """The plan of the first rank: the variables fixed, and the slices of each rank.

        Raises:
            ModelError: graphs that differ between the ranks.
        """
        peers = Peers.of(self.mesh)
        peers.require_alike("graphs", fingerprint_of(graph))
        network, budget = reduce_graph(graph), budget_of(self.memory, self.seconds)
        plan = None
        if not peers.rank:
            together = replace(budget, seconds=self.seconds * peers.ranks)
            deadline = clock.now() + max(effort.SEARCHING * self.seconds, effort.LEAST_PLANNING)
            plan = planned(network, together, deadline=deadline)
        plan = next(one for one in peers.told(plan) if one is not None)
        if plan.num_slices > 1:
            seconds = plan.seconds * -(-plan.num_slices // peers.ranks) / plan.num_slices
            why = f"{plan.why}; shared between {peers.ranks} processes"
            plan = replace(plan, why=why, seconds=seconds)
        return plan, partial(_spread, peers, network, plan, budget)


def _spread(peers: Peers, network: Network, plan: Plan, budget: Budget) -> Solution:
    if plan.num_slices == 1:
        return solved_network(network, plan, budget)
    whole = in_slices(network, plan, budget)
    parts = tuple(part_of(whole.slices, rank, peers.ranks) for rank in range(peers.ranks))
    here = parts[peers.rank]
    local = replace(whole, slices=here or whole.slices[:1])
    return SpreadSolution(local, peers, 0.0 if here else -math.inf, parts)


@dataclass(frozen=True, eq=False)
class SpreadSolution(Summed):
    """Answers by the slices of all ranks; one with none solves the first, at no weight."""

    local: SlicedSolution
    parts: tuple[range, ...]

    def mode(self) -> Tensor:
        """(B, V) a most probable configuration; the first slice wins a tie."""
        self.peers.asked("mode")
        states, score = self.peers.agreed(self.local.best)
        score = score if self.log_weight > -math.inf else score - math.inf
        # In one message: state numbers are exact in float64.
        told = self.peers.stacked(torch.cat([score.unsqueeze(1), states], 1).double())
        winner = told[:, :, :1].argmax(0, keepdim=True).expand(1, *told.shape[1:])
        return told.gather(0, winner)[0, :, 1:].long()

    @cached_property
    def _logs(self) -> Tensor:
        """(slices, B) log Z of every slice, on every rank."""
        here = self.peers.agreed(lambda: self.local.logs.detach())
        counts = list(map(len, self.parts))
        return self.peers.gathered(here[: counts[self.peers.rank]], counts)

    def sample(self, count: int, generator: torch.Generator | None) -> Tensor:
        """(count, B, V) independent draws, the same on every rank."""
        self.peers.asked(f"sample({count})")
        self.peers.require_one_state(generator)
        choice, seeds = chosen(self._logs, count, generator)
        here = replace(self.local, slices=self.parts[self.peers.rank])
        return self.peers.total(self.peers.agreed(lambda: here.drawn(choice, seeds)))
